"""What the environment asks for: the rule by which calls are taken, comparisons, captures."""
import ctypes
import difflib
import os
from typing import NamedTuple, Optional, Tuple

PREFILL, MIN_SQ = "VLLM_DSV41_FEWHEAD_PREFILL", "VLLM_DSV41_FEWHEAD_MIN_SQ"
GATE_PREFIX = "VLLM_DSV41_FEWHEAD"
CHECK = "FEWHEAD_CHECK"
CAPTURE, LAYERS, CHUNKS = "FEWHEAD_CAPTURE", "FEWHEAD_CAPTURE_LAYERS", "FEWHEAD_CAPTURE_CHUNKS"
ROWS, MEGABYTES = "FEWHEAD_CAPTURE_ROWS", "FEWHEAD_CAPTURE_MB"
NAMES = (PREFILL, MIN_SQ, CHECK, CAPTURE, LAYERS, CHUNKS, ROWS, MEGABYTES)
PREFIXES = (GATE_PREFIX, CHECK, CAPTURE)

AUTO, GATE, OFF = "auto", "gate", "off"
WARNING_BYTES = 1024
DEFAULT_CHUNKS, DEFAULT_ROWS, DEFAULT_MEGABYTES = 1, 1024, 256


class Settings(NamedTuple):
    """rule: "auto" (each call takes the fastest path by the cost model), "gate" (the published rule) or "off".
    min_sq: of the gate. path: "auto" or "gather", what calls under the rule "auto" take. share_plans: layers that share a list share its plan.
    check_every: every so many calls one is compared with the engine's own kernel; 0: none.
    capture: a folder or None; capture_layers: their numbers, None: all; capture_chunks: chunks a layer; capture_rows: rows that a chunk has at
    least (decodes and the engine's warm-up have fewer); capture_bytes: in all."""
    rule: str = AUTO
    min_sq: int = 0
    path: str = AUTO
    share_plans: bool = True
    check_every: int = 0
    capture: Optional[str] = None
    capture_layers: Optional[Tuple[int, ...]] = None
    capture_chunks: int = DEFAULT_CHUNKS
    capture_rows: int = DEFAULT_ROWS
    capture_bytes: int = DEFAULT_MEGABYTES << 20

    def __str__(self):
        if self.rule == GATE:
            return f"rule gate: native heads (path gather) from s_q {self.min_sq} on"
        return "rule off" if self.rule == OFF else f"rule {self.path}"


def _gate(prefill, min_sq, warnings):
    """(enabled, min_sq) as the C library reads the two variables."""
    from fewhead import _abi as abi
    from fewhead._library import check, lib
    gate, text = abi.fh_gate(struct_size=ctypes.sizeof(abi.fh_gate)), ctypes.create_string_buffer(WARNING_BYTES)
    check(lib.fh_gate_parse(prefill.encode() or None, min_sq.encode() or None, ctypes.byref(gate), text, WARNING_BYTES))
    warnings += [line for line in text.value.decode(errors="replace").split("\n") if line]
    return bool(gate.enabled), gate.min_sq


def _whole(environ, name, default, warnings, low=1):
    text = environ.get(name, "")
    if not text:
        return default
    if text.isascii() and text.isdigit() and int(text) >= low:
        return int(text)
    warnings.append(f"{name}: got {text!r}, wanted a whole number >= {low}; using {default}")
    return default


def _check_every(environ, warnings):
    """1000 for "1/1000", 1 for "1" or "1/1", 0 for "" and "0"."""
    text = environ.get(CHECK, "")
    if text in ("", "0"):
        return 0
    numerator, slash, denominator = text.partition("/")
    if numerator == "1" and (not slash or denominator.isascii() and denominator.isdigit() and int(denominator) > 0):
        return int(denominator) if slash else 1
    warnings.append(f"{CHECK}: got {text!r}, wanted a share such as 1/1000; comparing no calls")
    return 0


def _layers(environ, warnings):
    text = environ.get(LAYERS, "")
    if not text:
        return None
    parts = text.split(",")
    if all(part.isascii() and part.isdigit() for part in parts):
        return tuple(int(part) for part in parts)
    warnings.append(f"{LAYERS}: got {text!r}, wanted numbers such as 0,3,41; capturing all layers")
    return None


def misspelt(environ):
    """A line for each variable that begins like ours and is not one of ours."""
    lines = []
    for name in sorted(environ):
        if name.startswith(PREFIXES) and name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1, 0)
            lines.append(f"{name}: no such setting, ignored; did you mean {near[0]}?")
    return lines


def read(environ=None):
    """(Settings, [warnings]). A value that cannot be read keeps its default and is named."""
    environ = os.environ if environ is None else environ
    warnings = misspelt(environ)
    prefill, min_sq = environ.get(PREFILL, ""), environ.get(MIN_SQ, "")
    rule, gate_min_sq = AUTO, 0
    if prefill or min_sq:
        enabled, gate_min_sq = _gate(prefill, min_sq, warnings)
        rule = GATE if enabled else OFF
    folder = environ.get(CAPTURE) or None
    return Settings(rule=rule, min_sq=gate_min_sq, check_every=_check_every(environ, warnings), capture=folder,
                    capture_layers=_layers(environ, warnings), capture_chunks=_whole(environ, CHUNKS, DEFAULT_CHUNKS, warnings),
                    capture_rows=_whole(environ, ROWS, DEFAULT_ROWS, warnings),
                    capture_bytes=_whole(environ, MEGABYTES, DEFAULT_MEGABYTES, warnings) << 20), warnings
