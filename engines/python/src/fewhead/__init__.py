"""fewhead: sparse MLA prefill for few query heads, on PyTorch tensors. Inference only.

    import fewhead
    out, max_logits, lse = fewhead.flash_mla_sparse_fwd(q, kv, indices, sm_scale, topk_length=lengths)

flash_mla_sparse_fwd   FlashMLA's function, for 1 to 128 heads; torch.ops.fewhead.flash_mla_sparse_fwd is the same as an operator
Plan                   what neighbouring rows share, built once a list
Costs, default_costs   the cost model of path="auto"
prepare, describe      open a device before the first call; what the library knows of it
stats, reset_stats     calls and rows by path, declined calls and why
"""

try:
    import torch
except ImportError as error:
    raise ImportError(f"fewhead wants PyTorch 2.8 or later in this Python: {error}") from None

MIN_TORCH = (2, 8)
if tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2]) < MIN_TORCH:
    raise ImportError(f"fewhead: got PyTorch {torch.__version__}, wanted 2.8 or later")

from ._arguments import Costs  # noqa: E402
from ._devices import default_costs, describe, prepare  # noqa: E402
from ._function import flash_mla_sparse_fwd  # noqa: E402
from ._library import build_info, version  # noqa: E402
from ._plan import Plan  # noqa: E402
from ._stats import reset_stats, stats  # noqa: E402

__version__ = version()
__all__ = [
    "Costs",
    "Plan",
    "build_info",
    "default_costs",
    "describe",
    "flash_mla_sparse_fwd",
    "prepare",
    "reset_stats",
    "stats",
    "version",
]
