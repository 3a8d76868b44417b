"""python -m fewhead_vllm: is the plug-in installed, does vLLM load it, what does it patch. Exits 0 where vLLM runs on fewhead, else 1."""
import os
import sys
from importlib import metadata

DISTRIBUTION, GROUP, NAME = "fewhead-vllm", "vllm.general_plugins", "fewhead"
VALUE = "fewhead_vllm:register"


def _location(distribution):
    return str(distribution.locate_file(""))


def _entries(distribution):
    return [entry for entry in distribution.entry_points if entry.group == GROUP and entry.name == NAME]


def installed(path=None):
    """(good, line): is there metadata that offers the entry point, and does no older one hide it? path: folders, as sys.path."""
    where = {} if path is None else {"path": path}
    found = [one for one in metadata.distributions(**where) if (one.metadata["Name"] or "").replace("_", "-").lower() == DISTRIBUTION]
    if not found:
        return False, f"not installed: no metadata of {DISTRIBUTION} on the path; pip install fewhead-vllm"
    first = found[0]
    if _entries(first):
        return True, f"installed: {DISTRIBUTION} {first.version} in {_location(first)}"
    hidden = next((one for one in found[1:] if _entries(one)), None)
    if hidden is not None:
        return False, (f"hidden: {DISTRIBUTION} {first.version} in {_location(first)} comes first on the path and offers no entry point "
                       f"{GROUP} {NAME}; it hides {hidden.version} in {_location(hidden)}. Remove the former")
    return False, f"no entry point: {DISTRIBUTION} {first.version} in {_location(first)} offers no {GROUP} {NAME}; install it again"


def allowed(environ):
    """(good, line): does VLLM_PLUGINS let vLLM load it?"""
    text = environ.get("VLLM_PLUGINS")
    if text is None:
        return True, "VLLM_PLUGINS is not set: vLLM loads all plug-ins"
    if NAME in text.split(","):
        return True, f"VLLM_PLUGINS={text} names {NAME}"
    return False, f"installed, but VLLM_PLUGINS excludes it: got {text!r}, wanted a list with {NAME}, or the variable unset"


def main():
    here, line = installed()
    print(line)
    loads = False
    if here:
        loads, line = allowed(os.environ)
        print(line)
    from . import _stats, register
    register()
    start = _stats.STATS.start
    for warning in start["warnings"]:
        print(warning)
    print(start["line"])
    return 0 if here and loads and start["patched"] else 1


if __name__ == "__main__":
    sys.exit(main())
