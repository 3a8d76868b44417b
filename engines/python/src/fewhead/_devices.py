"""Handles of devices: one a device and process, opened at the first use and kept until the process ends."""

import ctypes
import os
import threading

import torch

from . import _abi as abi
from ._arguments import MAX_HEADS, Costs, kind, whole
from ._library import check, cuda_toolkit, driver_problem, driver_version, lib

_lock = threading.RLock()
_handles = {}  # torch.device -> fh_device *


def _forget():
    """In a child of fork: the threads of the parent's CPU device are not here, and its CUDA context is of no use. The handles are
    left as they are, since closing one would wait for those threads."""
    global _lock
    _lock = threading.RLock()
    _handles.clear()


os.register_at_fork(after_in_child=_forget)


def _refuse_cuda(device):
    problem = driver_problem(cuda_toolkit(), driver_version())
    if problem:
        raise RuntimeError(f"{device}: {problem}")
    if torch.cuda._is_in_bad_fork():
        raise RuntimeError(f"{device}: CUDA was used before this process was forked; wanted a process started by spawn")
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{device}: the first call on a device loads its kernels, which a graph cannot record: call "
            f'fewhead.prepare("{device}") before the capture'
        )


def _open(device):
    if device.type == "cuda":
        _refuse_cuda(device)
    made = ctypes.c_void_p()
    check(lib.fh_device_open(str(device).encode(), None, ctypes.byref(made)))
    return made.value


def handle(device):
    """The fh_device of a torch.device: cpu, or cuda with an index."""
    found = _handles.get(device)
    if found is None:
        with _lock:
            found = _handles.get(device)
            if found is None:
                found = _handles[device] = _open(device)
    return found


def normal(device):
    """The torch.device of a name or a torch.device, "cuda" being the current one."""
    try:
        device = torch.device(device)
    except TypeError:
        raise TypeError(f"device: got {kind(device)}, wanted a str or a torch.device") from None
    except RuntimeError:
        raise ValueError(f"device: got {device!r}, wanted cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise NotImplementedError(f"device: got {device}, wanted cpu or cuda")
    if device.type == "cpu":
        return torch.device("cpu")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def prepare(device):
    """Open a device and load all its kernels, which the first call does otherwise. Call it before a CUDA graph is captured.

    device: "cpu", "cuda", "cuda:1", or a torch.device. A CUDA device takes twice its L2 cache in memory. RuntimeError names the
    driver that was found and the one wanted, or what else keeps the device from being used.
    """
    handle(normal(device))


def describe(device, h_q=0):
    """A dict of what the library knows of a device: name, driver, kind, ... as fh_device_info has them, and "paths", the names of
    the paths that run h_q heads there; 0: some number of heads."""
    opened, h_q = handle(normal(device)), whole("h_q", h_q, 0, MAX_HEADS)
    info = abi.fh_device_info(struct_size=ctypes.sizeof(abi.fh_device_info))
    check(lib.fh_device_get_info(opened, ctypes.byref(info)))
    fields = {name: getattr(info, name) for name, _ in info._fields_ if name not in ("struct_size", "reserved")}
    fields = {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in fields.items()}
    fields["paths"] = [
        lib.fh_path_name(path).decode() for path in range(abi.FH_PATHS) if lib.fh_device_has_path(opened, path, h_q)
    ]
    return fields


def default_costs(device):
    """The fewhead.Costs that path="auto" compares by on a device where a call brings none; on CUDA those of 8 heads and many
    rows."""
    struct = abi.fh_costs(struct_size=ctypes.sizeof(abi.fh_costs))
    check(lib.fh_costs_default(handle(normal(device)), ctypes.byref(struct)))
    return Costs(*((cost.call_us, cost.unit_us, cost.gflop_us) for cost in (getattr(struct, name) for name in Costs._fields)))
