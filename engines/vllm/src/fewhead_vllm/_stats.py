"""What the plug-in did in this process."""
import threading

MAX_REASONS = 100  # declined calls are kept by their text, up to so many texts
OTHER_REASONS = "other reasons"
FORMS = ("calls", "rows")

_lock = threading.RLock()


class Stats:
    """Counters; all methods may be called from any thread."""

    def __init__(self):
        self.start = {"vllm": None, "rule": None, "line": None, "patched": [], "not_patched": {}, "warnings": []}
        self.reset()

    def reset(self):
        with _lock:
            self.taken = {}       # (family, path) -> [calls, rows]
            self.declined_calls = {}  # (family, reason) -> [calls, rows]
            self.plans = {"built": 0, "shared": 0}
            self.check = {"calls": 0, "off": 0, "worst_abs": 0.0, "worst_rel": 0.0}
            self.errors = []
            self.capture = {"files": 0, "bytes": 0, "full": False}
            self.off = None       # why the plug-in takes no more calls

    def took(self, family, path, rows):
        with _lock:
            counted = self.taken.setdefault((family, path), [0, 0])
            counted[0] += 1
            counted[1] += rows

    def declined(self, family, reason, rows):
        with _lock:
            if (family, reason) not in self.declined_calls and len(self.declined_calls) >= MAX_REASONS:
                reason = OTHER_REASONS
            counted = self.declined_calls.setdefault((family, reason), [0, 0])
            counted[0] += 1
            counted[1] += rows

    def counts(self):
        """The counters as a dict of plain values."""
        with _lock:
            return {
                **{form: _nested(self.taken, at) for at, form in enumerate(FORMS)},
                "declined": {"calls": _nested(self.declined_calls, 0), "rows": _nested(self.declined_calls, 1)},
                "plans": dict(self.plans), "check": dict(self.check), "capture": dict(self.capture), "errors": list(self.errors),
                "off": self.off,
            }


def _nested(counted, at):
    nested = {}
    for (family, key), pair in counted.items():
        nested.setdefault(family, {})[key] = pair[at]
    return nested


STATS = Stats()


def stats():
    """What the plug-in did in this process since it started. A dict:

    vllm, rule, line  vLLM's version, the rule, and the line that was logged at start
    patched           names of the model families that run through the plug-in; not_patched: {family: why}
    warnings          settings that were not understood
    calls, rows       {family: {path: n}}, path being what was asked of fewhead: "auto" or "gather"
    declined          {"calls": {family: {reason: n}}, "rows": ..}: calls that the engine's own kernel did
    plans             built, and calls that used a plan of an earlier layer
    check             calls compared with the engine's own kernel, how many were off, the worst differences: absolute, and the norm of the
                      difference over that of the result
    capture           files and bytes written; full: the size limit is reached
    errors            texts of errors inside; off: why the plug-in takes no more calls, None while it does
    kernels           {kernel: {"calls", "rows"}} of fewhead

    A call that a CUDA graph records is counted once, when it is recorded.
    """
    kernels = {}
    try:
        import fewhead
        kernels = fewhead.stats()["kernels"]
    except Exception as error:  # noqa: BLE001: the start line and "errors" say why fewhead does not load
        kernels = {f"fewhead does not load: {error}": {"calls": 0, "rows": 0}}
    return {**STATS.start, **STATS.counts(), "kernels": kernels}


def _label(text):
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def prometheus():
    """stats() as Prometheus text, for an exporter's page or a node_exporter text file."""
    now = STATS.counts()
    lines = []

    def metric(name, kind, text, samples):
        lines.append(f"# HELP fewhead_{name} {text}")
        lines.append(f"# TYPE fewhead_{name} {kind}")
        for labels, value in samples:
            inside = ",".join(f"{key}={_label(given)}" for key, given in labels.items())
            lines.append(f"fewhead_{name}{{{inside}}} {value}" if inside else f"fewhead_{name} {value}")

    for form in FORMS:
        metric(f"{form}_total", "counter", f"{form} that fewhead did, by path asked for",
               [({"family": family, "path": path}, n) for family, paths in now[form].items() for path, n in paths.items()])
        metric(f"declined_{form}_total", "counter", f"{form} that the engine's own kernel did, by reason",
               [({"family": family, "reason": reason}, n) for family, reasons in now["declined"][form].items()
                for reason, n in reasons.items()])
    metric("plans_total", "counter", "plans built, and calls that used an earlier layer's",
           [({"how": how}, n) for how, n in now["plans"].items()])
    metric("checked_calls_total", "counter", "calls compared with the engine's own kernel", [({}, now["check"]["calls"])])
    metric("check_off_total", "counter", "compared calls that differed too much", [({}, now["check"]["off"])])
    metric("check_worst_abs", "gauge", "largest absolute difference seen", [({}, now["check"]["worst_abs"])])
    metric("check_worst_rel", "gauge", "largest relative difference of a call, by norms", [({}, now["check"]["worst_rel"])])
    metric("errors_total", "counter", "errors inside the plug-in", [({}, len(now["errors"]))])
    metric("on", "gauge", "1 while the plug-in takes calls", [({}, int(now["off"] is None and bool(STATS.start["patched"])))])
    return "\n".join(lines) + "\n"
