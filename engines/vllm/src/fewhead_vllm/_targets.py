"""Where vLLM calls FlashMLA's sparse prefill: what is looked for, what it must look like, and how it is replaced.

A family of models is patched whole or not at all. Every target is looked up and its signature compared first; the first that is not as wanted is
the reason why the family is left to the engine.
"""
import importlib
import inspect
import re
from typing import NamedTuple, Optional, Tuple

VERSIONS = ((0, 24), (0, 33))  # major and minor of the oldest and newest vLLM whose source this was written against
EMPTY = inspect.Parameter.empty

# A signature is a tuple of (name, default); REQUIRED: it has none.
REQUIRED = EMPTY


def _required(*names):
    return tuple((name, REQUIRED) for name in names)


class Target(NamedTuple):
    """A function in a module: "name" or "Class.method"."""
    path: str
    signatures: Tuple[tuple, ...]


class Family(NamedTuple):
    """name: in messages and counters. models: whose. module: where the targets are. since: the first minor version that has it, None: all."""
    name: str
    models: str
    module: str
    targets: Tuple[Target, ...]
    since: Optional[Tuple[int, int]] = None


OPERATOR = Target("flash_mla_sparse_fwd", (
    _required("q", "kv", "indices", "sm_scale") + (("d_v", 512), ("attn_sink", None), ("topk_length", None), ("out", None)),))

V32_KERNEL = _required("self", "q", "kv_c_and_k_pe_cache", "topk_indices") + (("topk_length", None),)
V32_FORWARD = _required("self", "q", "kv_c_and_k_pe_cache", "topk_indices", "attn_metadata")
FP8_KERNEL = _required("self", "q", "kv_c_and_k_pe_cache", "topk_indices", "kernel_metadata")
V32_MODULE, V32_CLASS = "vllm.v1.attention.backends.mla.flashmla_sparse", "FlashMLASparseImpl"
KERNEL, FORWARD, FP8 = f"{V32_CLASS}._bf16_flash_mla_kernel", f"{V32_CLASS}._forward_bf16_kv", f"{V32_CLASS}._fp8_flash_mla_kernel"

COMBINE = "combine_topk_swa_indices"
COMBINED = _required("topk_indices", "query_start_loc", "seq_lens", "gather_lens", "window_size", "compress_ratio", "topk", "M", "N")
PREFILL = "DeepseekV4FlashMLAAttention._forward_prefill"
V4_TARGETS = (
    OPERATOR,
    Target(COMBINE, (
        COMBINED, COMBINED + (("out", None),),
        COMBINED + (("out", None), ("left_visible", None), ("right_visible", None), ("max_image_tokens", 0)))),
    Target(PREFILL, (_required("self", "q", "positions", "compressed_k_cache", "swa_k_cache", "output", "attn_metadata", "swa_metadata"),)),
)

FAMILIES = (
    Family("v32", "V3.2 and GLM", V32_MODULE, (
        OPERATOR,
        Target(KERNEL, (V32_KERNEL, V32_KERNEL + (("actual_num_heads", None), ("out", None)))),
        Target(FORWARD, (V32_FORWARD, V32_FORWARD + _required("actual_num_heads"))),
        Target(FP8, (FP8_KERNEL,)),
    )),
    Family("v4", "V4", "vllm.models.deepseek_v4.nvidia.flashmla", V4_TARGETS),
    Family("v41", "V4.1", "vllm.models.deepseek_v41.nvidia.flashmla", V4_TARGETS, (0, 33)),
)
PLATFORM, PRIORITIES = "vllm.platforms.cuda", "_get_backend_priorities"
FA3, FLASHMLA = "FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE"


class Declined(Exception):
    """Why something is left to the engine: what was looked for, what was found."""


def version_numbers(text):
    """(0, 26) of "0.26.1.dev3+gabc"; None where no two numbers stand first."""
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def check_version(text):
    """Raise Declined for a vLLM that this was not written against."""
    numbers = version_numbers(text)
    if numbers is None or not VERSIONS[0] <= numbers <= VERSIONS[1]:
        oldest, newest = (".".join(map(str, end)) for end in VERSIONS)
        raise Declined(f"vLLM: found version {text}, looked for {oldest} to {newest}")


def _show_one(name, default):
    return name if default is REQUIRED else f"{name}={default!r}"


def show(signature):
    return "(" + ", ".join(_show_one(*one) for one in signature) + ")"


def signature_of(function):
    """The tuple of (name, default); stars stand before the names of *args and **kwargs, which no signature here has."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return tuple((stars.get(p.kind, "") + ("kw " if p.kind is p.KEYWORD_ONLY else "") + p.name, p.default)
                 for p in inspect.signature(function).parameters.values())


def _parent(module, path):
    at = module
    for name in path.split(".")[:-1]:
        at = getattr(at, name, None)
    return at, path.split(".")[-1]


def look_up(module, target):
    """The function of a target; Declined where it is missing or has another signature."""
    parent, name = _parent(module, target.path)
    function = getattr(parent, name, None)
    where = f"{module.__name__}.{target.path}"
    if not callable(function):
        raise Declined(f"looked for {where}, found none")
    try:
        found = signature_of(function)
    except (TypeError, ValueError) as error:
        raise Declined(f"{where}: no signature: {error}") from None
    if found not in target.signatures:
        raise Declined(f"{where}: found {show(found)}, looked for {' or '.join(map(show, target.signatures))}")
    return function


def returns_pair(function):
    """True if the V3.2 kernel returns (out, lse), False if out; by its annotation."""
    annotation = inspect.signature(function).return_annotation
    text = str(annotation)
    if annotation is EMPTY:
        raise Declined(f"{KERNEL}: found no return annotation, looked for torch.Tensor or tuple[torch.Tensor, torch.Tensor]")
    if re.search(r"\b[tT]uple\b", text):
        if text.count("Tensor") != 2:
            raise Declined(f"{KERNEL}: returns {text}, looked for torch.Tensor or tuple[torch.Tensor, torch.Tensor]")
        return True
    if not text.count("Tensor"):
        raise Declined(f"{KERNEL}: returns {text}, looked for torch.Tensor or tuple[torch.Tensor, torch.Tensor]")
    return False


def load(family, version):
    """(module, {target path: function}) of a family; Declined says what was found instead."""
    if family.since and version_numbers(version) < family.since:
        raise Declined(f"vLLM {version} does not have these models, {'.'.join(map(str, family.since))} does")
    try:
        module = importlib.import_module(family.module)
    except Exception as error:  # noqa: BLE001: whatever keeps the module from loading keeps the engine from using it
        raise Declined(f"looked for {family.module}, found {type(error).__name__}: {error}") from None
    return module, {target.path: look_up(module, target) for target in family.targets}


def put(module, path, function):
    """Replace a target."""
    parent, name = _parent(module, path)
    setattr(parent, name, function)


def priorities():
    """(module, function) that orders the attention backends that vLLM may choose by itself; Declined where it is another."""
    try:
        module = importlib.import_module(PLATFORM)
    except Exception as error:  # noqa: BLE001
        raise Declined(f"looked for {PLATFORM}, found {type(error).__name__}: {error}") from None
    function = getattr(module, PRIORITIES, None)
    if not callable(function):
        raise Declined(f"looked for {PLATFORM}.{PRIORITIES}, found none")
    names = [name for name, _ in signature_of(function)]
    if names[:4] != ["use_mla", "device_capability", "num_heads", "kv_cache_dtype"]:
        raise Declined(f"{PLATFORM}.{PRIORITIES}: found ({', '.join(names)}), looked for (use_mla, device_capability, num_heads, "
                       "kv_cache_dtype, ..)")
    return module, function
