"""The registered operators: torch.ops.fewhead.flash_mla_sparse_fwd, and flash_mla_sparse_fwd_out, which writes
into `output` (PyTorch 2.8 takes a keyword `out` of an operator for its result).

They take what the plain function takes, but a plan as its memory tensor (Plan.memory) and costs as 12 numbers, those of
fewhead.Costs in order, since an operator has no other objects. torch.compile traces them by the fake implementations here. No
gradients."""

import torch

from . import _stats as stats
from ._arguments import Costs, D_V, kind
from ._call import sparse_fwd
from ._plan import from_memory

_ARGUMENTS = (
    "Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v=512, Tensor? attn_sink=None, Tensor? topk_length=None, *, "
)
_OPTIONS = "str path='auto', Tensor? plan=None, Tensor? cu_seqlens_q=None, bool row_invariant=False, float[]? costs=None"

_library = torch.library.Library("fewhead", "DEF")
_library.define(
    f"flash_mla_sparse_fwd({_ARGUMENTS}{_OPTIONS}) -> (Tensor out, Tensor max_logits, Tensor lse)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)
_library.define(
    f"flash_mla_sparse_fwd_out({_ARGUMENTS}Tensor(a!) output, {_OPTIONS}) -> (Tensor max_logits, Tensor lse)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


def _costs(numbers):
    if numbers is None:
        return None
    if len(numbers) != 12:
        raise ValueError(
            f"costs: got {len(numbers)} numbers, wanted 12: call_us, unit_us, gflop_us of {', '.join(Costs._fields)}"
        )
    return Costs(*(tuple(numbers[i : i + 3]) for i in range(0, 12, 3)))


def _plan(memory, q, kv, indices, cu_seqlens_q):
    if memory is None:
        return None
    try:
        return from_memory(memory, q, kv, indices, cu_seqlens_q)
    except Exception as e:
        stats.declined(f"{kind(e)}: {e}")
        raise


def _run(
    q,
    kv,
    indices,
    sm_scale,
    d_v=512,
    attn_sink=None,
    topk_length=None,
    *,
    path="auto",
    plan=None,
    cu_seqlens_q=None,
    row_invariant=False,
    costs=None,
):
    return sparse_fwd(
        q,
        kv,
        indices,
        sm_scale,
        d_v,
        attn_sink,
        topk_length,
        None,
        path,
        _plan(plan, q, kv, indices, cu_seqlens_q),
        cu_seqlens_q,
        row_invariant,
        _costs(costs),
    )


def _run_out(
    q,
    kv,
    indices,
    sm_scale,
    d_v=512,
    attn_sink=None,
    topk_length=None,
    *,
    output,
    path="auto",
    plan=None,
    cu_seqlens_q=None,
    row_invariant=False,
    costs=None,
):
    return sparse_fwd(
        q,
        kv,
        indices,
        sm_scale,
        d_v,
        attn_sink,
        topk_length,
        output,
        path,
        _plan(plan, q, kv, indices, cu_seqlens_q),
        cu_seqlens_q,
        row_invariant,
        _costs(costs),
    )[1:]


def _statistics(q):
    if q.dim() != 3:
        raise ValueError(f"q: got shape {list(q.shape)}, wanted [s_q, h_q, 512 or 576]")
    return tuple(torch.empty((q.shape[0], q.shape[1]), dtype=torch.float32, device=q.device) for _ in range(2))


def _fake(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, **options):
    statistics = _statistics(q)
    return (torch.empty((q.shape[0], q.shape[1], D_V), dtype=torch.bfloat16, device=q.device), *statistics)


def _fake_out(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, *, output, **options):
    return _statistics(q)


for _name, _implementation, _shape in (("flash_mla_sparse_fwd", _run, _fake), ("flash_mla_sparse_fwd_out", _run_out, _fake_out)):
    _library.impl(_name, _implementation, "CPU")
    _library.impl(_name, _implementation, "CUDA")
    torch.library.register_fake(f"fewhead::{_name}", _shape, lib=_library)


def traced(q, kv, indices, sm_scale, d_v, attn_sink, topk_length, out, path, plan, cu_seqlens_q, row_invariant, costs):
    """The plain function's call as operators: what torch.compile sees in its place."""
    memory = None if plan is None else plan.memory
    numbers = None if costs is None else [number for cost in costs for number in cost]
    if out is None:
        return torch.ops.fewhead.flash_mla_sparse_fwd(
            q,
            kv,
            indices,
            sm_scale,
            d_v,
            attn_sink,
            topk_length,
            path=path,
            plan=memory,
            cu_seqlens_q=cu_seqlens_q,
            row_invariant=row_invariant,
            costs=numbers,
        )
    max_logits, lse = torch.ops.fewhead.flash_mla_sparse_fwd_out(
        q,
        kv,
        indices,
        sm_scale,
        d_v,
        attn_sink,
        topk_length,
        output=out,
        path=path,
        plan=memory,
        cu_seqlens_q=cu_seqlens_q,
        row_invariant=row_invariant,
        costs=numbers,
    )
    return out, max_logits, lse
