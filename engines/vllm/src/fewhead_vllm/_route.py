"""A call: does fewhead do it, and how; comparisons; what happens on an error."""
import ctypes
import logging

import torch

import fewhead
from fewhead import _abi as abi
from fewhead._library import lib

from . import _settings as settings_module
from ._capture import Capture
from ._stats import STATS

LOG = logging.getLogger("vllm.fewhead")  # a child of vLLM's logger, which has the handler

WIDTHS = (512, 576)  # d_qk that fewhead takes
MAX_SAID = 100  # reasons that are logged
MAX_KNOWN = 10000  # decisions that are kept; then all are dropped
MIN_SHARED_ROWS = 64  # below it a plan costs more than it saves, and auto takes gather

# Two kernels that round their results to bf16 differ in norm by about 0.003. An element may be off by the rounding of the
# largest ones in its sum.
LIMIT_REL, LIMIT_ABS = 1e-2, 2e-2


class Router:
    """What the patched functions of a process share."""

    def __init__(self, settings):
        self.prepared, self.said = set(), set()
        self.use(settings)

    def use(self, settings):
        """Begin anew with other settings."""
        self.settings = settings
        self.gate = abi.fh_gate(struct_size=ctypes.sizeof(abi.fh_gate), enabled=int(settings.rule != settings_module.OFF),
                                min_sq=settings.min_sq if settings.rule == settings_module.GATE else 0)
        self.capture = Capture(settings) if settings.capture else None
        self.calls = 0
        self.step, self.plans = None, {}
        self.known = {}  # what path() decided, by all that it looks at
        STATS.off = None

    def path(self, q, kv, heads):
        """(path, None), or (None, why the engine's own kernel does this call)."""
        if STATS.off is not None:
            return None, STATS.off
        key = q.shape[0], q.shape[2], q.dtype, kv.dtype, heads
        decided = self.known.get(key)
        if decided is None:
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            decided = self.known[key] = self.decide(*key)
        return decided

    def decide(self, s_q, d_qk, q_dtype, kv_dtype, heads):
        """path() of a shape, while the plug-in takes calls."""
        padded = lib.fh_padded_heads(heads)
        if self.settings.rule == settings_module.OFF:
            return None, f"{settings_module.PREFILL} is off"
        if heads >= padded:
            return None, f"{heads} local heads: none are padded"
        if q_dtype is not torch.bfloat16 or kv_dtype is not torch.bfloat16:
            return None, f"q {q_dtype}, kv {kv_dtype}: wanted torch.bfloat16"
        if d_qk not in WIDTHS:
            return None, f"d_qk {d_qk}: wanted 512 or 576"
        if s_q == 0:
            return None, "no rows"
        if not lib.fh_gate_native(ctypes.byref(self.gate), heads, padded, s_q):
            return None, f"s_q below {self.settings.min_sq}"
        if self.settings.rule == settings_module.GATE:
            return "gather", None
        return self.settings.path, None

    def capturing(self, q):
        return q.is_cuda and torch.cuda.is_current_stream_capturing()

    def prepare(self, device):
        """Open the device and load its kernels before a call or a graph needs them."""
        if device not in self.prepared:
            fewhead.prepare(device)
            self.prepared.add(device)

    def prepare_current(self):
        """prepare() for the GPU that the engine is setting up, long before it records a graph."""
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return
        try:
            self.prepare(torch.device("cuda", torch.cuda.current_device()))
        except Exception as error:  # noqa: BLE001: the engine must go on
            self.stop(f"the GPU does not open: {type(error).__name__}: {error}", error=True)

    def key(self, call):
        return call.list_key, call.q.shape[0], call.kv.shape[0], call.indices.shape[-1], call.heads

    def begin(self, call):
        """Forget the plans of an earlier step, and that of the list which this layer has made anew."""
        if self.step is not call.step:
            self.step, self.plans = call.step, {}
        if call.own_list:
            self.plans.pop(self.key(call), None)

    def plan(self, call):
        """The plan of a call's list: an earlier layer's where the list is the same, else a new one."""
        key = self.key(call)
        plan = self.plans.get(key)
        if plan is not None:
            STATS.plans["shared"] += 1
            return plan
        plan = self.plans[key] = fewhead.Plan(
            call.indices, s_kv=call.kv.shape[0], h_q=call.heads, d_qk=call.q.shape[2], topk_length=call.lengths, cu_seqlens_q=call.offsets)
        STATS.plans["built"] += 1
        return plan

    def run(self, family, call):
        """(out, lse) of fewhead, or None where the engine's own kernel must do the call. call: a Call."""
        rows = call.q.shape[0]
        self.begin(call)
        path, reason = self.path(call.q, call.kv, call.heads)
        if reason is None and call.refused:
            path, reason = None, call.refused
        recording = self.capturing(call.q)
        if recording and reason is None and call.q.device not in self.prepared:
            path, reason = None, "a graph is recorded before the first call"
        if path is None:
            self.decline(family, reason, rows)
            return None
        try:
            if not recording:
                self.prepare(call.q.device)
                self.take(family, call)
            else:
                path = "gather"
            plan = None
            if path == "auto" and self.settings.share_plans and call.step is not None and rows >= MIN_SHARED_ROWS:
                plan = self.plan(call)
            out, _, lse = fewhead.flash_mla_sparse_fwd(
                call.q[:, :call.heads], call.kv, call.indices, call.scale, attn_sink=call.sink, topk_length=call.lengths, out=call.out,
                path=path, plan=plan, cu_seqlens_q=None if recording else call.offsets)
        except Exception as error:  # noqa: BLE001: the engine must go on
            self.stop(f"error in a call of {rows} rows: {type(error).__name__}: {error}", error=True)
            STATS.declined(family, "error", rows)
            return None
        STATS.took(family, path, rows)
        if self.settings.check_every and not recording:
            self.calls += 1
            if self.calls % self.settings.check_every == 0 and not self.compare(family, call, out):
                return None
        return out, lse

    def decline(self, family, reason, rows):
        """Count a call that is left to the engine's own kernel, and say each reason once."""
        STATS.declined(family, reason, rows)
        if (family, reason) not in self.said and len(self.said) < MAX_SAID and reason != STATS.off:
            self.said.add((family, reason))
            LOG.info("fewhead: %s: the engine's own kernel does a call of %d rows, and others like it: %s", family, rows, reason)

    def take(self, family, call):
        """Capture the call's lists, where that is wanted. An error ends the captures, not the calls."""
        if self.capture is None:
            return
        try:
            self.capture.take(family, call)
        except OSError as error:
            STATS.errors.append(f"{settings_module.CAPTURE}: {error}")
            LOG.error("fewhead: %s: %s; nothing more is captured", settings_module.CAPTURE, error)
            self.capture = None

    def stop(self, reason, error=False):
        """Leave all further calls to the engine's own kernel, and say so once."""
        if error:
            STATS.errors.append(reason)
        if STATS.off is None:
            STATS.off = reason
            LOG.error("fewhead: %s; the engine's own kernel does this call and all that follow", reason)

    def compare(self, family, call, out):
        """Is the result the engine's own, within limits?"""
        try:
            want = call.theirs().float()
        except Exception as error:  # noqa: BLE001
            self.stop(f"{settings_module.CHECK}: the engine's own kernel raised {type(error).__name__}: {error}", error=True)
            return True  # it cannot do this call, and fewhead has
        got = out.float()
        finite = bool((torch.isfinite(got) == torch.isfinite(want)).all())
        difference = (got - want).nan_to_num_()
        largest, size = want.nan_to_num().abs().max().item(), want.nan_to_num().norm().item()
        worst = difference.abs().max().item()
        relative = difference.norm().item() / size if size else float(worst > 0)
        check = STATS.check
        check["calls"] += 1
        check["worst_abs"], check["worst_rel"] = max(check["worst_abs"], worst), max(check["worst_rel"], relative)
        if finite and worst <= LIMIT_ABS * max(1.0, largest) and relative <= LIMIT_REL:
            return True
        check["off"] += 1
        self.stop(f"{settings_module.CHECK}: a call of {family} with {call.q.shape[0]} rows differs from the engine's own kernel: absolute "
                  f"{worst:.3g}, relative {relative:.3g}, {'NaN or inf in the same places' if finite else 'NaN or inf in other places'}; "
                  f"allowed {LIMIT_ABS * max(1.0, largest):.3g} and {LIMIT_REL:.3g}")
        return False


class Call:
    """One call of the engine's.

    q [s_q, heads or more, d_qk], kv [s_kv, 1, d_qk], indices [s_q, 1, topk], lengths [s_q], sink [heads] or None,
    out [s_q, heads, 512] or None: as fewhead takes them. heads: the real ones.
    offsets   first row of each request and s_q, int32 on the device, or None
    step      an object that is the same for all layers of one forward pass and for no other, or None: plans are not shared
    list_key  names the list within a step; own_list: this layer made the list anew
    layer     number of the attention layer
    refused   a reason why fewhead cannot do it, or None
    theirs    a function: out [s_q, heads, 512] of the engine's own kernel, in memory of its own
    """
    __slots__ = ("q", "kv", "indices", "lengths", "sink", "out", "heads", "scale", "offsets", "step", "list_key", "own_list", "layer",
                 "refused", "theirs")

    def __init__(self, **given):
        for name in self.__slots__:
            setattr(self, name, given.get(name))
