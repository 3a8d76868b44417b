"""The call: FlashMLA's flash_mla_sparse_fwd on the C library.

What a call needs besides pointers depends on shapes, strides and options alone. It is checked and written into an fh_call once,
and kept in the thread that made it: the next call of the same shape sets pointers and runs. A call takes its entry out of the
cache while it works, so that a finalizer or a signal handler that makes a call of its own in between finds none and makes
another."""

import ctypes
import os
import threading

import torch

from . import _abi as abi
from . import _arguments as arguments
from . import _devices as devices
from . import _stats as stats
from ._library import check, error, lib

MAX_ENTRIES = 1024  # shapes kept a thread; then all are dropped
CUDA_LEGACY_STREAM = 1  # cudaStreamLegacy: PyTorch's default stream is 0, which the library would take for its own

_sparse_fwd = lib.fh_sparse_fwd
_byref = ctypes.byref
_empty, _float32, _bfloat16, _uint8 = torch.empty, torch.float32, torch.bfloat16, torch.uint8
# What compiled graphs allocate by: a fraction of the time of torch.empty, on the current device alone. Not a documented function.
try:
    from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda
except ImportError:
    _empty_strided_cpu = _empty_strided_cuda = None
_is_grad_enabled = torch.is_grad_enabled


class _Entry:
    """What a shape was found to need."""

    __slots__ = (
        "call",
        "pointer",
        "device",
        "handle",
        "index",
        "workspace_bytes",
        "out_shape",
        "out_strides",
        "statistics_shape",
        "statistics_strides",
        "keep",
    )


class _Thread:
    """A thread's entries and counters."""

    def __init__(self):
        self.entries = {}
        self.streams = {}
        self.counts = stats.new_counts(self)


class _Local(threading.local):
    def __init__(self):
        self.thread = _Thread()


_local = _Local()


def _forget():
    """In a child of fork: entries hold handles of devices that are the parent's."""
    _local.thread.entries.clear()


os.register_at_fork(after_in_child=_forget)


def _layout_without_grad(t):
    return t.__class__, t.dtype, t.device, t.shape, t.stride()


def _layout_with_grad(t):
    return t.__class__, t.dtype, t.device, t.shape, t.stride(), t.requires_grad


def _key(q, kv, indices, sm_scale, d_v, attn_sink, topk_length, out, path, plan, cu_seqlens_q, row_invariant, costs):
    """All that _prepare looks at. Types stand beside numbers: True is not taken for 1, nor 512.0 for 512."""
    layout = _layout_with_grad if _is_grad_enabled() else _layout_without_grad
    return (
        layout(q),
        layout(kv),
        layout(indices),
        sm_scale.__class__,
        sm_scale,
        d_v.__class__,
        d_v,
        None if attn_sink is None else (attn_sink.is_neg(), layout(attn_sink)),
        None if topk_length is None else layout(topk_length),
        None if out is None else layout(out),
        path,
        None if plan is None else (plan.__class__, plan.device),
        None if cu_seqlens_q is None else layout(cu_seqlens_q),
        row_invariant.__class__,
        row_invariant,
        costs,
    )


def _check_plan(plan, device):
    if isinstance(plan, torch.Tensor) or not isinstance(getattr(plan, "struct", None), abi.fh_plan):
        raise TypeError(f"plan: got {arguments.kind(plan)}, wanted a fewhead.Plan")
    if plan.device != device:
        raise ValueError(f"plan: got one on {plan.device}, wanted {device}, where q lies")


def _failure(status, call, plan):
    """The exception for a failed call. Where a size of the plan is the reason, the text also has the sizes that both were made
    with: the library knows group = 64 / h_q and capacity = group * topk alone."""
    failed = error(status)
    if str(failed).startswith("plan.") and plan is not None:
        sizes = f"s_q={call.s_q}, s_kv={call.s_kv}, h_q={call.h_q}, topk={call.topk}"
        failed.args = (f"{failed} (the call: {sizes}; the plan: {plan!r})",)
    return failed


def sized_call(s_q, s_kv, h_q, d_qk, topk, path, requests, costs):
    """An fh_call with its sizes and choices, and the object that its costs live in."""
    call = abi.fh_call()
    check(lib.fh_call_init(_byref(call), ctypes.sizeof(call), s_q, s_kv, h_q, d_qk, topk))
    call.path, call.requests = arguments.path_number(path), requests
    struct = None
    if costs is not None:
        struct = arguments.costs_struct(costs)
        call.costs = ctypes.addressof(struct)
    return call, struct


def _prepare(q, kv, indices, sm_scale, d_v, attn_sink, topk_length, out, path, plan, cu_seqlens_q, row_invariant, costs):
    """Check all that is not a pointer; the entry of this shape."""
    arguments.tensor("q", q, _bfloat16, ("s_q", "h_q", "512 or 576"))
    s_q, h_q, d_qk = q.shape
    arguments.whole("h_q", h_q, 1, arguments.MAX_HEADS)
    if d_qk not in arguments.WIDTHS:
        raise ValueError(f"q: got shape {list(q.shape)}, wanted [s_q, h_q, 512 or 576]")
    arguments.whole("d_v", d_v, arguments.D_V, arguments.D_V)
    arguments.tensor("kv", kv, _bfloat16, ("s_kv", 1, d_qk), q.device)
    requests = arguments.lists(indices, topk_length, cu_seqlens_q, s_q, q.device)
    if attn_sink is not None:
        arguments.tensor("attn_sink", attn_sink, _float32, (h_q,), q.device)
    if out is not None:
        arguments.tensor("out", out, _bfloat16, (s_q, h_q, arguments.D_V), q.device)
    call, keep = sized_call(s_q, kv.shape[0], h_q, d_qk, indices.shape[2], path, requests, costs)
    call.sm_scale, call.row_invariant = arguments.scale("sm_scale", sm_scale), arguments.flag("row_invariant", row_invariant)
    call.q_stride_s, call.q_stride_h, call.kv_stride, call.indices_stride = (
        q.stride(0),
        q.stride(1),
        kv.stride(0),
        indices.stride(0),
    )
    if out is not None:
        call.out_stride_s, call.out_stride_h = out.stride(0), out.stride(1)
    if plan is not None:
        _check_plan(plan, q.device)
        call.plan = ctypes.addressof(plan.struct)

    entry = _Entry()
    entry.call, entry.pointer, entry.device, entry.keep = call, _byref(call), q.device, keep
    entry.handle = devices.handle(q.device)
    entry.index = q.device.index if q.device.type == "cuda" else None
    entry.out_shape, entry.out_strides = (s_q, h_q, arguments.D_V), (h_q * arguments.D_V, arguments.D_V, 1)
    entry.statistics_shape, entry.statistics_strides = (s_q, h_q), (h_q, 1)
    size = ctypes.c_uint64()
    status = lib.fh_workspace_bytes(entry.handle, entry.pointer, _byref(size))
    if status:
        raise _failure(status, call, plan)
    entry.workspace_bytes = call.workspace_bytes = size.value
    call.counters = ctypes.addressof(_local.thread.counts.struct)
    return entry


def current_stream(index):
    """The cudaStream_t of PyTorch's current stream on a device, as the library takes it."""
    return torch._C._cuda_getCurrentRawStream(index) or CUDA_LEGACY_STREAM


def record(index, *tensors):
    """Tell PyTorch's allocator that the current stream uses these tensors: memory that another stream allocated is then not
    handed out again before this stream is done with it. For memory of the stream's own nothing happens."""
    streams = _local.thread.streams
    raw = torch._C._cuda_getCurrentRawStream(index)
    stream = streams.get((index, raw))
    if stream is None:
        if len(streams) >= MAX_ENTRIES:
            streams.clear()
        stream = streams[index, raw] = torch.cuda.current_stream(index)
    for t in tensors:
        if t is not None:
            t.record_stream(stream)


def _allocator(entry):
    """A function (shape, strides, dtype) that makes a tensor on the call's device, in the order of its current stream."""
    if entry.index is None:
        if _empty_strided_cpu:
            return _empty_strided_cpu
    elif _empty_strided_cuda and torch._C._cuda_getDevice() == entry.index:
        return _empty_strided_cuda
    device = entry.device
    return lambda shape, strides, dtype: _empty(shape, dtype=dtype, device=device)


def _run(thread, entry, q, kv, indices, attn_sink, topk_length, out, plan, cu_seqlens_q):
    call, allocate = entry.call, _allocator(entry)
    given = out
    if out is None:
        out = allocate(entry.out_shape, entry.out_strides, _bfloat16)
    max_logits = allocate(entry.statistics_shape, entry.statistics_strides, _float32)
    lse = allocate(entry.statistics_shape, entry.statistics_strides, _float32)
    call.q, call.kv, call.indices, call.out = q.data_ptr(), kv.data_ptr(), indices.data_ptr(), out.data_ptr()
    call.max_logits, call.lse = max_logits.data_ptr(), lse.data_ptr()
    call.attn_sink = None if attn_sink is None else attn_sink.data_ptr()
    call.topk_length = None if topk_length is None else topk_length.data_ptr()
    call.cu_seqlens_q = None if cu_seqlens_q is None else cu_seqlens_q.data_ptr()
    call.plan = None if plan is None else plan.address
    memory = None if plan is None else plan.memory
    if entry.workspace_bytes:
        # Freed when this function returns, and handed out again in the order of this stream: behind the call's kernels.
        workspace = allocate((entry.workspace_bytes,), (1,), _uint8)
        call.workspace = workspace.data_ptr()
    if entry.index is not None:
        call.stream = current_stream(entry.index)
        record(entry.index, q, kv, indices, attn_sink, topk_length, given, memory, cu_seqlens_q)
    status = _sparse_fwd(entry.handle, entry.pointer)
    if status:
        raise _failure(status, call, plan)
    if call.s_q:
        thread.counts.count_kernel(call.s_q)
    return out, max_logits, lse


def sparse_fwd(*given):
    """The call with all its arguments in order; counts what raises."""
    thread = _local.thread
    entries = thread.entries
    try:
        try:
            key = _key(*given)
            entry = entries.pop(key, None)
        except (AttributeError, TypeError, RuntimeError):  # an argument that no good call has: _prepare says which
            key = entry = None
        if entry is None:
            entry = _prepare(*given)
        q, kv, indices, _, _, attn_sink, topk_length, out, _, plan, cu_seqlens_q, _, _ = given
        results = _run(thread, entry, q, kv, indices, attn_sink, topk_length, out, plan, cu_seqlens_q)
    except Exception as e:
        stats.declined(f"{type(e).__name__}: {e}")
        raise
    if key is not None:
        if len(entries) >= MAX_ENTRIES:
            entries.clear()
        entries[key] = entry
    return results
