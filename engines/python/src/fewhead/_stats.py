"""What the calls of this process did: counted by the library, one struct a thread, summed up when somebody asks."""

import ctypes
import threading
import weakref

from . import _abi as abi
from ._library import lib

MAX_REASONS = 100  # declined calls are kept by their text, up to so many texts
OTHER_REASONS = "other reasons"

PATHS = {lib.fh_path_name(path).decode(): path for path in range(abi.FH_PATHS)}

_COUNTED = [(name, kind) for name, kind in abi.fh_counters._fields_ if name not in ("struct_size", "kernel")]

_lock = threading.RLock()  # a finalizer may end a thread's state while this thread holds it
_threads = []  # (weak reference to a thread's state, its Counts)
_baseline = None  # sums at the last reset
_declined = {}


class Counts:
    """What a thread did: the struct that the library adds to, and {kernel name as bytes: [calls, rows]}."""

    def __init__(self):
        self.struct = abi.fh_counters(struct_size=ctypes.sizeof(abi.fh_counters))
        self.kernels = {}

    def count_kernel(self, rows):
        """Count the kernel of the call that has just returned. rows: its s_q, above 0."""
        counted = self.kernels.setdefault(self.struct.kernel, [0, 0])
        counted[0] += 1
        counted[1] += rows

    def add(self, other):
        for name, kind in _COUNTED:
            if kind is ctypes.c_uint64:
                setattr(self.struct, name, getattr(self.struct, name) + getattr(other.struct, name))
            else:
                ours, theirs = getattr(self.struct, name), getattr(other.struct, name)
                for i in range(len(ours)):
                    ours[i] += theirs[i]
        for name, (calls, rows) in list(other.kernels.items()):
            counted = self.kernels.setdefault(name, [0, 0])
            counted[0] += calls
            counted[1] += rows


_ended = Counts()  # of threads that are gone


def new_counts(owner):
    """The counts of a thread. owner: an object that lives as long as the thread does."""
    counts = Counts()
    with _lock:
        _fold()
        _threads.append((weakref.ref(owner), counts))
    return counts


def _fold():
    for entry in [entry for entry in _threads if entry[0]() is None]:
        _threads.remove(entry)
        _ended.add(entry[1])


def _sums():
    _fold()
    total = Counts()
    total.add(_ended)
    for _, counts in list(_threads):
        total.add(counts)
    return total


def declined(reason):
    """Count a call that raised instead of running."""
    with _lock:
        if reason not in _declined and len(_declined) >= MAX_REASONS:
            reason = OTHER_REASONS
        _declined[reason] = _declined.get(reason, 0) + 1


def _kernels(now, base):
    counted = {}
    for name, (calls, rows) in now.kernels.items():
        before = base.kernels.get(name, (0, 0))
        if calls > before[0]:
            counted[name.decode(errors="replace")] = {"calls": calls - before[0], "rows": rows - before[1]}
    return counted


def stats():
    """What was done in this process since it started, or since reset_stats(), over all threads and devices. A dict:

    calls          {path: calls with rows on this path}; "auto" counts the calls that asked for auto
    rows           {path: query rows}; on CUDA rows of a call that let a plan decide stand under "auto", since the host does not
                   see what the device chose
    kernels        {kernel: {"calls": n, "rows": n}}, such as "sm90 gather"; "sm90 packed + sm90 gather" shared the rows of a call
    useful_flops   FLOPs of the valid keys; on CUDA the most that it can have been (fh_counters)
    executed_flops FLOPs multiplied, padding included; on CUDA likewise
    bytes          bytes moved; on CUDA likewise
    declined       {reason: calls that raised}; up to 100 texts, the rest under "other reasons"

    A call that a CUDA graph records is counted once, when it is recorded. Replays are not counted.
    """
    with _lock:
        now, base = _sums(), _baseline or Counts()
        paths = {
            field: {name: getattr(now.struct, field)[i] - getattr(base.struct, field)[i] for name, i in PATHS.items()}
            for field in ("calls", "rows")
        }
        sums = {
            name: getattr(now.struct, name) - getattr(base.struct, name) for name in ("useful_flops", "executed_flops", "bytes")
        }
        return {**paths, "kernels": _kernels(now, base), **sums, "declined": dict(_declined)}


def reset_stats():
    """Begin to count anew."""
    global _baseline
    with _lock:
        _baseline = _sums()
        _declined.clear()
