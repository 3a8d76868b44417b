"""FlashMLA's sparse prefill of an installed package, with the arguments of flash_mla_sparse_fwd: what fewhead is compared with.

FlashMLA's kernels for compute capability 9.0 take 64 or 128 heads and lists of a multiple of 128: heads and lists are padded
here, outside of what `prepared` times.
"""

import importlib
import math

import torch

EXTENSIONS = (("vllm._flashmla_C", "_flashmla_C"), ("sgl_kernel", "sgl_kernel"), ("flash_mla.cuda", None))
LIST_STEP = 128
FIXED = 5  # arguments that every version has: q, kv, indices, sm_scale, d_v


def extension():
    """torch.ops.NAMESPACE.sparse_prefill_fwd of the first package that has it, and what to call it; (None, why) where none
    has."""
    reasons = []
    for module, namespace in EXTENSIONS:
        try:
            loaded = importlib.import_module(module)
        except Exception as error:  # noqa: BLE001: a package that does not import is one that is not there
            reasons.append(f"{module}: {type(error).__name__}: {error}")
            continue
        found = getattr(getattr(torch.ops, namespace) if namespace else loaded, "sparse_prefill_fwd", None)
        if found is not None:
            return found, module
        reasons.append(f"{module}: no sparse_prefill_fwd")
    return None, "; ".join(reasons)


def padded_heads(h_q):
    return 64 if h_q <= 64 else 128


def prepared(function, q, kv, indices, sm_scale, attn_sink=None, topk_length=None):
    """A function without arguments that runs FlashMLA on padded copies of the tensors and returns its three results, padding
    included."""
    s_q, h_q, d_qk = q.shape
    heads, width = padded_heads(h_q), -(-max(indices.shape[2], 1) // LIST_STEP) * LIST_STEP
    wide_q = torch.zeros(s_q, heads, d_qk, dtype=q.dtype, device=q.device)
    wide_q[:, :h_q] = q
    lists = torch.full((s_q, 1, width), -1, dtype=torch.int32, device=q.device)
    lists[..., : indices.shape[2]] = indices
    sink = None
    if attn_sink is not None:
        sink = torch.full((heads,), -math.inf, dtype=torch.float32, device=q.device)
        sink[:h_q] = attn_sink
    arguments = wide_q, kv.contiguous(), lists, sm_scale, 512, *optional(function, sink, topk_length)
    return lambda: function(*arguments)


def optional(function, attn_sink, topk_length):
    """The arguments behind d_v: some versions also have `out`, without a default."""
    schema = getattr(getattr(function, "default", None), "_schema", None)
    return (attn_sink, topk_length, None)[: len(schema.arguments) - FIXED if schema else 2]


def lse_unit(function, device):
    """ln 2 where the package's lse is a base-2 logarithm, else 1: the lse of 128 equal keys tells."""
    q, kv = torch.zeros(1, 64, 512, dtype=torch.bfloat16, device=device), torch.zeros(
        128, 1, 512, dtype=torch.bfloat16, device=device
    )
    lists = torch.arange(128, dtype=torch.int32, device=device).reshape(1, 1, 128)
    lse = prepared(function, q, kv, lists, 1.0)()[2][0, 0].item()
    return math.log(2) if abs(lse - 7) < 1e-3 else 1.0


def operator():
    """flash_mla_sparse_fwd of the package, native heads in and out; None where no package has it."""
    function, _ = extension()
    if function is None:
        return None

    def run(q, kv, indices, sm_scale, attn_sink=None, topk_length=None):
        unit = lse_unit(function, q.device)
        out, max_logits, lse = prepared(function, q, kv, indices, sm_scale, attn_sink, topk_length)()[:3]
        h_q = q.shape[1]
        return out[:, :h_q], max_logits[:, :h_q] * unit, lse[:, :h_q] * unit

    return run
