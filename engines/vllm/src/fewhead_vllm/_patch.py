"""The functions that stand in vLLM's place: they bring an engine's call into the form of a Call, and the result back."""
import functools
import inspect
import itertools
import weakref

from . import _targets as targets
from ._route import Call


class _Numbers:
    """Numbers of attention layers in the order of their first calls, which is that of the model."""

    def __init__(self):
        self.known, self.next = weakref.WeakKeyDictionary(), itertools.count()

    def of(self, layer):
        number = self.known.get(layer)
        if number is None:
            number = self.known[layer] = next(self.next)
        return number


def _wrapped(theirs):
    """Mark a function as standing in place of the engine's."""
    def mark(ours):
        functools.update_wrapper(ours, theirs)
        ours.fewhead_original = theirs
        return ours
    return mark


def original(function):
    """The engine's own function, where ours stands in its place."""
    return getattr(function, "fewhead_original", function)


# ---- V3.2 and GLM


def patch_v32(module, found, router):
    """{target path: function}: FlashMLASparseImpl's BF16 kernel at native heads, without the padding copy. The engine's lists hold slots of
    the layer's whole cache, and -1 only behind a list's length."""
    theirs, forward, fp8 = found[targets.KERNEL], found[targets.FORWARD], found[targets.FP8]
    pair, numbers = targets.returns_pair(theirs), _Numbers()
    current = {}  # the attention metadata of the forward in progress

    @_wrapped(forward)
    def with_metadata(self, q, kv_c_and_k_pe_cache, topk_indices, attn_metadata, *more):
        current["metadata"] = attn_metadata
        try:
            return forward(self, q, kv_c_and_k_pe_cache, topk_indices, attn_metadata, *more)
        finally:
            current["metadata"] = None

    def offsets(metadata, rows):
        if metadata is None or metadata.num_reqs < 2 or rows != metadata.num_actual_tokens:
            return None  # one request, or a part of the step's rows
        return metadata.query_start_loc[:metadata.num_reqs + 1]

    @_wrapped(theirs)
    def kernel(self, q, kv_c_and_k_pe_cache, topk_indices, topk_length=None, *more, **named):
        rows = q.shape[0]
        given = dict(zip(("actual_num_heads", "out"), more), **named)
        heads, out = given.get("actual_num_heads") or self.num_heads, given.get("out")
        metadata = current.get("metadata")
        call = Call(
            q=q, kv=kv_c_and_k_pe_cache.view(-1, 1, kv_c_and_k_pe_cache.shape[-1]),
            indices=topk_indices.view(rows, 1, topk_indices.shape[-1]), lengths=topk_length, heads=heads, scale=self.softmax_scale, out=None if out is None else out[:, :heads],
            offsets=offsets(metadata, rows), step=metadata, layer=numbers.of(self),
            list_key=0 if self.topk_indices_buffer is None else self.topk_indices_buffer.data_ptr(),
            own_list=getattr(self, "_fewhead_own_list", True),
            refused="the engine merges by lse (decode context parallelism)" if getattr(self, "need_to_return_lse_for_decode", False)
            else None,
            theirs=lambda: first(theirs(self, q, kv_c_and_k_pe_cache, topk_indices, topk_length, *own_memory(more, named))))
        done = router.run("v32", call)
        if done is None:
            return theirs(self, q, kv_c_and_k_pe_cache, topk_indices, topk_length, *more, **named)
        return done if pair else done[0]

    def first(result):
        return result[0] if pair else result

    def own_memory(more, named):
        heads = more[0] if more else named.get("actual_num_heads")
        return () if heads is None else (heads,)

    @_wrapped(fp8)
    def counted(self, q, *more, **named):
        router.decline("v32", "FP8 cache: the engine's FP8 kernel reads it", q.shape[0] * (q.shape[1] if q.dim() == 4 else 1))
        return fp8(self, q, *more, **named)

    init = getattr(module, targets.V32_CLASS).__init__
    signature = inspect.signature(init)

    @_wrapped(init)
    def noting_lists(self, *given, **named):
        init(self, *given, **named)
        bound = signature.bind(self, *given, **named).arguments
        # A layer without an indexer of its own reads the list that the last one with an indexer left in the buffer.
        self._fewhead_own_list = _argument(bound, "indexer") is not None or _argument(bound, "topk_indices_buffer") is None
        router.prepare_current()

    return {targets.KERNEL: kernel, targets.FORWARD: with_metadata, targets.FP8: counted,
            f"{targets.V32_CLASS}.__init__": noting_lists}


def _argument(bound, name):
    """An argument of that name, or of the **keywords."""
    for value in (bound, *(value for value in bound.values() if isinstance(value, dict))):
        if name in value:
            return value[name]
    return None


# ---- V4 and V4.1


def patch_v4(module, found, router, family):
    """{target path: function}: flash_mla_sparse_fwd of the prefill, on the real heads of q and out, which the engine has padded."""
    operator, combine, prefill = found[targets.OPERATOR.path], found[targets.COMBINE], found[targets.PREFILL]
    combined_arguments, numbers = inspect.signature(combine), _Numbers()
    forward_context = getattr(module, "get_forward_context", None)
    current = {}  # layer, forward pass and list of the prefill in progress

    @_wrapped(prefill)
    def noting_layer(self, q, positions, compressed_k_cache, swa_k_cache, output, attn_metadata, swa_metadata):
        current.update(layer=self, step=forward_context() if forward_context else swa_metadata, list=None)
        try:
            return prefill(self, q=q, positions=positions, compressed_k_cache=compressed_k_cache, swa_k_cache=swa_k_cache, output=output,
                           attn_metadata=attn_metadata, swa_metadata=swa_metadata)
        finally:
            current.clear()

    @_wrapped(combine)
    def noting_list(*given, **named):
        bound = combined_arguments.bind(*given, **named).arguments
        current["list"] = bound["query_start_loc"], bound["compress_ratio"], bound["topk"]
        return combine(*given, **named)

    def own_list(layer, topk):
        """Did this layer make its list anew? V4: layers of ratio 4, by their indexer; the others take the same rows in every layer. V4.1:
        the layers that config.index_source_layer_ids names."""
        if topk == 0:
            return False  # the window alone
        return layer.is_index_source if hasattr(layer, "is_index_source") else getattr(layer, "indexer", True) is not None

    def to_call(layer, step, listed, q, kv, indices, sm_scale, attn_sink, topk_length, out):
        starts, ratio, topk = listed
        heads = layer.n_local_heads
        return Call(
            q=q, kv=kv, indices=indices, lengths=topk_length, sink=None if attn_sink is None else attn_sink[:heads],
            out=None if out is None else out[:, :heads], heads=heads, scale=sm_scale,
            offsets=starts - starts[0] if starts.shape[0] > 2 else None, step=step,
            list_key=(ratio, topk, starts.data_ptr()), own_list=own_list(layer, topk), layer=numbers.of(layer), refused=None,
            theirs=lambda: operator(q, kv, indices, sm_scale, attn_sink=attn_sink, topk_length=topk_length)[0][:, :heads])

    @_wrapped(operator)
    def sparse(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, out=None):
        layer, listed = current.get("layer"), current.get("list")
        done = None
        if layer is None or listed is None:
            router.decline(family, "called from elsewhere than the prefill", q.shape[0])
        else:
            call = to_call(layer, current.get("step"), listed, q, kv, indices, sm_scale, attn_sink, topk_length, out)
            done = router.run(family, call)
        if done is None:
            return operator(q, kv, indices, sm_scale, d_v, attn_sink, topk_length, out)
        return done[0], None, done[1]

    return {targets.OPERATOR.path: sparse, targets.COMBINE: noting_list, targets.PREFILL: noting_layer}


# ---- Which backend the engine takes


def prefer_patched(priorities, router_off):
    """The engine's order of attention backends, FlashMLA sparse before FA3 sparse where heads would be padded: what the engine takes when
    nobody asks for a backend. A backend that somebody asks for stays."""
    signature = inspect.signature(priorities)

    @_wrapped(priorities)
    def ordered(*given, **named):
        order = list(priorities(*given, **named))
        names = [getattr(backend, "name", str(backend)) for backend in order]
        heads = signature.bind(*given, **named).arguments.get("num_heads")
        if router_off() or heads is not None and not 0 < heads < 64:
            return order
        if targets.FA3 in names and targets.FLASHMLA in names and names.index(targets.FA3) < names.index(targets.FLASHMLA):
            flashmla = order.pop(names.index(targets.FLASHMLA))
            order.insert(names.index(targets.FA3), flashmla)
        return order

    return ordered
