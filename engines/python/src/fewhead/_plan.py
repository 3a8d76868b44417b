"""Plans: what neighbouring rows share, built once a list and used by every layer that shares it."""

import ctypes

import torch

from . import _abi as abi
from . import _arguments as arguments
from . import _devices as devices
from . import _stats as stats
from ._call import current_stream, record, sized_call
from ._library import check, lib

_POINTERS = [name for name, kind in abi.fh_plan._fields_ if kind is ctypes.c_void_p]
_layouts = {}  # sizes of a plan -> (its struct, with offsets from the start of its memory for pointers; bytes of its memory)
ALIGNMENT = 64  # bytes, of a plan's memory
MAX_LAYOUTS = 4096


class Plan:
    """A plan for the lists in `indices`, built on the current stream of their device.

        plan = fewhead.Plan(indices, s_kv=kv.shape[0], h_q=8, topk_length=lengths)
        out, max_logits, lse = fewhead.flash_mla_sparse_fwd(q, kv, indices, scale, topk_length=lengths, plan=plan)

    indices       int32 [s_q, 1, topk]
    s_kv          KV rows of the calls it is for
    h_q           heads of the calls it is for, 1 .. 128
    d_qk          512 or 576: what path="auto" decides by
    topk_length   int32 [s_q] or None, as in the calls
    cu_seqlens_q  int32 [requests + 1] or None, as in the calls
    path          "auto": the plan also holds which groups are packed; "packed": all of them
    costs         a fewhead.Costs or None, as in the calls

    A call with a plan takes its unions from the plan and does not compare them with the lists: a plan of other lists gives other
    results. Sizes that do not fit the call are refused. A plan is like a tensor that was written on the stream it was built on: a
    call on another stream has to wait for it, and its memory stays until all calls are done, also where the plan is dropped
    before.

    memory        the uint8 tensor that the plan lies in: what torch.ops.fewhead.flash_mla_sparse_fwd takes as `plan`
    device        the torch.device
    """

    def __init__(self, indices, *, s_kv, h_q, d_qk=512, topk_length=None, cu_seqlens_q=None, path="auto", costs=None):
        try:
            self._build(indices, s_kv, h_q, d_qk, topk_length, cu_seqlens_q, path, costs)
        except Exception as e:
            stats.declined(f"Plan: {type(e).__name__}: {e}")
            raise

    def _build(self, indices, s_kv, h_q, d_qk, topk_length, cu_seqlens_q, path, costs):
        arguments.tensor("indices", indices, torch.int32, ("s_q", 1, "topk"))
        s_q, topk = indices.shape[0], indices.shape[2]
        requests = arguments.lists(indices, topk_length, cu_seqlens_q, s_q, None)
        d_qk = arguments.whole("d_qk", d_qk, 0, 2**31 - 1)
        h_q = arguments.whole("h_q", h_q, 1, arguments.MAX_HEADS)
        call, keep = sized_call(s_q, arguments.whole("s_kv", s_kv), h_q, d_qk, topk, path, requests, costs)
        call.indices, call.indices_stride = indices.data_ptr(), indices.stride(0)
        call.topk_length = None if topk_length is None else topk_length.data_ptr()
        call.cu_seqlens_q = None if cu_seqlens_q is None else cu_seqlens_q.data_ptr()
        self.device, self.h_q, self.topk = indices.device, h_q, topk
        handle, size = devices.handle(self.device), ctypes.c_uint64()
        check(lib.fh_plan_bytes(handle, ctypes.byref(call), ctypes.byref(size)))
        self.memory = torch.empty(max(size.value, 1), dtype=torch.uint8, device=self.device)
        self.struct = abi.fh_plan(struct_size=ctypes.sizeof(abi.fh_plan))
        if self.device.type == "cuda":
            call.stream = current_stream(self.device.index)
            record(self.device.index, indices, topk_length, cu_seqlens_q)
        check(lib.fh_plan_build(handle, ctypes.byref(call), self.memory.data_ptr(), size.value, ctypes.byref(self.struct)))
        del keep
        if len(_layouts) >= MAX_LAYOUTS:
            _layouts.clear()
        sizes = _sizes(self.device, s_q, call.s_kv, topk, self.struct.group, requests)
        _layouts[sizes] = _moved(self.struct, -self.memory.data_ptr()), size.value
        self.address = ctypes.addressof(self.struct)

    def __repr__(self):
        s = self.struct
        sizes = f"s_q={s.s_q}, s_kv={s.s_kv}, h_q={self.h_q}, topk={self.topk}"
        return f"fewhead.Plan({sizes}, groups={s.groups} of {s.group} rows, {self.memory.numel()} bytes on {self.device})"


def _sizes(device, s_q, s_kv, topk, group, requests):
    return device, s_q, s_kv, topk, group, requests


def _moved(struct, by):
    copy = abi.fh_plan.from_buffer_copy(struct)
    for name in _POINTERS:
        at = getattr(copy, name)
        setattr(copy, name, (at or 0) + by)
    return copy


class _FromMemory:
    """A plan as an operator gets it: its memory alone."""

    __slots__ = ("struct", "memory", "device", "address")


def from_memory(memory, q, kv, indices, cu_seqlens_q):
    """The plan that lies in a tensor, for a call of these sizes. Where its arrays lie in the memory depends on sizes alone, and
    is known from the Plan that was built there."""
    if not isinstance(memory, torch.Tensor) or memory.dtype is not torch.uint8:
        raise TypeError(
            f"plan: got {getattr(memory, 'dtype', arguments.kind(memory))}, wanted the memory of a fewhead.Plan, torch.uint8"
        )
    group = max(1, 64 // max(q.shape[1], 1))
    requests = 0 if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    layout = _layouts.get(_sizes(memory.device, q.shape[0], kv.shape[0], indices.shape[-1], group, requests))
    if layout is None:
        raise ValueError(
            "plan: got memory of no plan of this call's sizes; wanted the memory of a fewhead.Plan built with the call's "
            "s_q, s_kv, topk, heads and requests"
        )
    struct, bytes_wanted = layout
    if memory.numel() < bytes_wanted or memory.data_ptr() % ALIGNMENT or memory.dim() != 1 or memory.stride(0) != 1:
        raise ValueError(
            f"plan: got {memory.numel()} bytes at {memory.data_ptr():#x}, wanted {bytes_wanted} contiguous bytes at a multiple "
            f"of {ALIGNMENT}"
        )
    plan = _FromMemory()
    plan.memory, plan.device, plan.struct = memory, memory.device, _moved(struct, memory.data_ptr())
    plan.address = ctypes.addressof(plan.struct)
    return plan
