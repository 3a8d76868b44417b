"""A stand-in for the vllm package: the modules, names and signatures that the plug-in looks for, on CPU tensors.

The engine's own kernels are the formula in fp32, so that results can be compared. `build` writes the package; `calls` of its module
vllm.v1.attention.backends.mla.flashmla_sparse names the kernels that ran.
"""
import os
import textwrap

KERNELS = '''
import torch

calls = []


def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, out=None{operator_more}):
    """The formula in fp32; the engine's kernel wants 64 or 128 heads."""
    assert q.shape[1] in (64, 128), q.shape
    calls.append(("engine", q.shape[0], q.shape[1]))
    s_q, lists, rows = q.shape[0], indices[:, 0].long(), kv[:, 0].float()
    valid = (lists >= 0) & (lists < rows.shape[0])
    if topk_length is not None:
        valid &= torch.arange(lists.shape[1])[None] < topk_length[:, None]
    keys = rows[lists.clamp(0, rows.shape[0] - 1)]
    logits = (torch.einsum("shd,skd->shk", q.float(), keys) * sm_scale).masked_fill(~valid[:, None], float("-inf"))
    top = logits.amax(-1).clamp_min(-1e30)
    p = (logits - top[..., None]).exp()
    under = p.sum(-1)
    lse = under.log() + top
    if attn_sink is not None:
        under = under + (attn_sink[None] - top).exp()
    result = (torch.einsum("shk,skd->shd", p, keys[..., :512]) / under[..., None].clamp_min(1e-30)).to(torch.bfloat16)
    if out is not None:
        out.copy_(result)
        result = out
    return result, top, lse
'''

SPARSE = '''
from types import SimpleNamespace

import torch

from vllm.kernels import flash_mla_sparse_fwd


class FlashMLASparseImpl:
    def __init__(self, num_heads, topk_indices_buffer=None, indexer=None, **mla_args):
        self.num_heads, self.softmax_scale, self.prefill_padding = num_heads, 0.05, 64
        self.topk_indices_buffer = indexer.topk_indices_buffer if indexer is not None else topk_indices_buffer

    def _forward_bf16_kv(self, q, kv_c_and_k_pe_cache, topk_indices, attn_metadata{forward_more}):
        lengths = (topk_indices >= 0).sum(-1).int()
        return self._bf16_flash_mla_kernel(q, kv_c_and_k_pe_cache, topk_indices.clone(), lengths{pass_heads})

    def _fp8_flash_mla_kernel(self, q, kv_c_and_k_pe_cache, topk_indices, kernel_metadata):
        return q[..., :512], None

    def {kernel}(self, {first}q, kv_c_and_k_pe_cache, topk_indices, topk_length=None{kernel_more}){returns}:
        heads = self.num_heads
        padded = q.new_zeros(q.shape[0], 64, q.shape[2])
        padded[:, :heads] = q[:, :heads]
        kv = kv_c_and_k_pe_cache.view(-1, 1, kv_c_and_k_pe_cache.shape[-1])
        out, _, lse = flash_mla_sparse_fwd(padded, kv, topk_indices.view(q.shape[0], 1, -1), self.softmax_scale, topk_length=topk_length)
        out, lse = out[:, :heads], lse[:, :heads]
        return {result}
'''

V4 = '''
import torch

from vllm.kernels import flash_mla_sparse_fwd

context = [object()]


def get_forward_context():
    return context[0]


def combine_topk_swa_indices(topk_indices, query_start_loc, seq_lens, gather_lens, window_size, compress_ratio, topk, M, N{combine_more}):
    return topk_indices, (topk_indices >= 0).sum(-1).int()


class DeepseekV4FlashMLAAttention:
    def __init__(self, heads, ratio, indexer=None):
        self.n_local_heads, self.compress_ratio, self.indexer, self.scale = heads, ratio, indexer, 0.05
        self.attn_sink = torch.full((64,), float("-inf"))
        self.attn_sink[:heads] = torch.linspace(-1, 1, heads)

    def {prefill}(self, q, positions, compressed_k_cache, swa_k_cache, output, attn_metadata, swa_metadata):
        starts, lists, kv, topk = swa_metadata
        indices, lengths = combine_topk_swa_indices(lists, starts, None, None, 128, self.compress_ratio, topk, 0, 0)
        flash_mla_sparse_fwd(q=q, kv=kv, indices=indices.unsqueeze(1), sm_scale=self.scale, attn_sink=self.attn_sink,
                             topk_length=lengths, out=output)
'''

CUDA = '''
from enum import Enum, auto


class Backend(Enum):
    FLASH_ATTN_MLA = auto()
    FLASH_ATTN_MLA_SPARSE = auto()
    FLASHMLA_SPARSE = auto()


def _get_backend_priorities(use_mla, device_capability, num_heads=None, kv_cache_dtype=None):
    return [Backend.FLASH_ATTN_MLA, Backend.FLASH_ATTN_MLA_SPARSE, Backend.FLASHMLA_SPARSE]
'''

PLAIN = {"operator_more": "", "forward_more": "", "pass_heads": "", "kernel": "_bf16_flash_mla_kernel", "first": "", "kernel_more": "",
         "returns": " -> torch.Tensor", "result": "out", "combine_more": "", "prefill": "_forward_prefill"}
PAIR = {"returns": " -> tuple[torch.Tensor, torch.Tensor]", "result": "out, lse"}
NEW = {**PAIR, "forward_more": ", actual_num_heads", "pass_heads": ", actual_num_heads", "kernel_more": ", actual_num_heads=None, out=None"}

VARIANTS = {
    "plain": {},
    "0.33": {**NEW, "combine_more": ", out=None, left_visible=None, right_visible=None, max_image_tokens=0"},
    "pair": PAIR,
    "kernel renamed": {"kernel": "_bf16_sparse_kernel"},
    "one more keyword": {"kernel_more": ", scale_dtype=None"},
    "one more positional": {"first": "layer, "},
    "no annotation": {"returns": ""},
    "operator with one more keyword": {"operator_more": ", lse_base=2"},
    "prefill renamed": {"prefill": "_run_prefill"},
    "combine with one more keyword": {"combine_more": ", order=None"},
}


def build(folder, version="0.26.0", variant="plain", without=()):
    """Write the package into a folder. without: modules to leave out."""
    names = {**PLAIN, **VARIANTS[variant]}
    modules = {
        "vllm": f"__version__ = {version!r}\n",
        "vllm.kernels": KERNELS,
        "vllm.v1.attention.backends.mla.flashmla_sparse": SPARSE,
        "vllm.models.deepseek_v4.nvidia.flashmla": V4,
        "vllm.platforms.cuda": CUDA,
    }
    if version.startswith("0.33"):
        modules["vllm.models.deepseek_v41.nvidia.flashmla"] = V4
    for name in without:
        del modules[name]
    for name, text in modules.items():
        for key, value in names.items():
            text = text.replace("{" + key + "}", value)
        path = os.path.join(folder, *name.split("."))
        parents = name.split(".")[:-1]
        for depth in range(1, len(parents) + 1):
            parent = os.path.join(folder, *parents[:depth])
            os.makedirs(parent, exist_ok=True)
            open(os.path.join(parent, "__init__.py"), "a").close()
        if name == "vllm":
            os.makedirs(path, exist_ok=True)
            path = os.path.join(path, "__init__")
        with open(path + ".py", "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(text))
