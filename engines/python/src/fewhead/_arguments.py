"""Checks of arguments that C cannot make: types, shapes against each other, numbers that C would cut to 32 bits. What an array's
strides and memory must be is left to the library, which says it in its own words."""

import ctypes
import math
import numbers
import operator
from typing import NamedTuple, Tuple

import torch

from . import _abi as abi
from ._stats import PATHS

D_V = 512
WIDTHS = (512, 576)  # d_qk
MAX_HEADS = 128
MAX_SCALE = 2.0**127
INT64_MAX = 2**63 - 1
_PLAIN = torch.Tensor.__torch_dispatch__  # that of a tensor with memory of its own; wrappers and fake tensors have another


def kind(value):
    """What a message calls the value's type."""
    return type(value).__name__


def whole(name, value, low=0, high=INT64_MAX):
    """The int of anything that is a whole number by its type; TypeError for bool, float and tensors, ValueError outside low ..
    high."""
    if isinstance(value, (bool, torch.Tensor)) or kind(value) in ("bool_", "bool"):
        raise TypeError(f"{name}: got {kind(value)}, wanted an int")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: got {kind(value)}, wanted an int") from None
    if not low <= number <= high:
        raise ValueError(f"{name}: got {number}, wanted {low if low == high else f'{low} .. {high}'}")
    return number


def flag(name, value):
    """The bool that it must be."""
    if type(value) is not bool:
        raise TypeError(f"{name}: got {kind(value)}, wanted True or False")
    return value


def scale(name, value):
    """The float of a real number > 0 that a 32-bit float can hold."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: got {kind(value)}, wanted a float")
    number = float(value)
    if not (math.isfinite(number) and 0 < ctypes.c_float(min(number, 2 * MAX_SCALE)).value <= MAX_SCALE):
        raise ValueError(f"{name}: got {number!r}, wanted a finite number > 0 and at most 2^127, as a 32-bit float")
    return number


def path_number(value):
    """The fh_path of a name."""
    if not isinstance(value, str):
        raise TypeError(f"path: got {kind(value)}, wanted a str")
    if value not in PATHS:
        raise ValueError(f"path: got {value!r}, wanted one of {', '.join(PATHS)}")
    return PATHS[value]


class Costs(NamedTuple):
    """The cost model that path="auto" compares by: for each path (call_us, unit_us, gflop_us), so that
    microseconds = call_us + unit_us * units + gflop_us * GFLOP; a unit is a row (padded, gather) or a group (packed, plan).
    See fh_costs in fewhead.h; fewhead.default_costs(device) returns the built-in ones."""

    padded: Tuple[float, float, float]
    gather: Tuple[float, float, float]
    packed: Tuple[float, float, float]
    plan: Tuple[float, float, float]


def costs_struct(costs):
    """The fh_costs of a Costs; the library checks the numbers."""
    if not isinstance(costs, Costs):
        raise TypeError(f"costs: got {kind(costs)}, wanted fewhead.Costs")
    struct = abi.fh_costs(struct_size=ctypes.sizeof(abi.fh_costs))
    for name, cost in zip(Costs._fields, costs):
        if not isinstance(cost, tuple) or len(cost) != 3:
            raise TypeError(f"costs.{name}: got {cost!r}, wanted a tuple of 3 numbers: call_us, unit_us, gflop_us")
        for number in cost:
            if isinstance(number, bool) or not isinstance(number, numbers.Real):
                raise TypeError(f"costs.{name}: got {kind(number)}, wanted a float")
        setattr(struct, name, abi.fh_path_cost(*map(float, cost)))
    return struct


# ---- Tensors


def tensor(name, value, dtype, shape, device=None):
    """Check that the value is a plain tensor of this dtype and shape on this device, the last dimension contiguous.

    shape: what is wanted of each dimension: a number, or the text that names it where any number will do.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: got {kind(value)}, wanted a torch.Tensor")
    if value.is_meta:
        raise TypeError(
            f"{name}: got a meta tensor, which has no memory; wanted a tensor on cpu or cuda "
            "(the operator torch.ops.fewhead.flash_mla_sparse_fwd takes meta tensors)"
        )
    if type(value).__torch_dispatch__ is not _PLAIN or value.layout is not torch.strided:
        raise TypeError(f"{name}: got {kind(value)} of layout {value.layout}, wanted a plain strided tensor")
    if value.dtype is not dtype:
        raise TypeError(f"{name}: got {value.dtype}, wanted {dtype}")
    sizes = tuple(value.shape)
    if len(sizes) != len(shape) or any(isinstance(want, int) and got != want for got, want in zip(sizes, shape)):
        raise ValueError(f"{name}: got shape {list(sizes)}, wanted [{', '.join(map(str, shape))}]")
    if sizes[-1] > 1 and value.numel() and value.stride(-1) != 1:
        raise ValueError(f"{name}: got stride {value.stride(-1)} in the last dimension, wanted 1 (contiguous)")
    if device is None:
        if value.device.type not in ("cpu", "cuda"):
            raise NotImplementedError(f"{name}: got a tensor on {value.device}, wanted cpu or cuda")
    elif value.device != device:
        raise ValueError(f"{name}: got a tensor on {value.device}, wanted {device}, where q lies")
    if value.is_neg():
        raise ValueError(
            f"{name}: got a view that negates its memory (imag of a conj), wanted one of plain memory: x.resolve_neg()"
        )
    if value.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name}: got a tensor that requires grad, and fewhead computes no gradients: call it under torch.no_grad(), or "
            f"pass {name}.detach()"
        )
    return value


def lists(indices, topk_length, cu_seqlens_q, s_q, device):
    """Check the tensors that say which keys a row takes; the number of requests, 0 where cu_seqlens_q is None."""
    tensor("indices", indices, torch.int32, (s_q, 1, "topk"), device)
    if topk_length is not None:
        tensor("topk_length", topk_length, torch.int32, (s_q,), device or indices.device)
    if cu_seqlens_q is None:
        return 0
    tensor("cu_seqlens_q", cu_seqlens_q, torch.int32, ("requests + 1",), device or indices.device)
    if cu_seqlens_q.shape[0] < 2:
        raise ValueError(f"cu_seqlens_q: got shape {list(cu_seqlens_q.shape)}, wanted [requests + 1] with at least one request")
    return cu_seqlens_q.shape[0] - 1
