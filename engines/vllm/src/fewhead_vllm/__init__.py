"""fewhead_vllm: vLLM's sparse MLA prefill on fewhead. vLLM loads it by itself (entry point group vllm.general_plugins).

register()     what vLLM calls in every process; may be called again
stats()        what was patched, calls and rows by path, declined calls and why, plans, comparisons, captures
prometheus()   the same numbers as Prometheus text
python -m fewhead_vllm    is the plug-in installed, does vLLM load it, what would be patched
"""
from ._register import register
from ._stats import prometheus, stats

__version__ = "0.1.0"
__all__ = ["prometheus", "register", "stats"]
