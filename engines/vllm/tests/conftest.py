"""A fresh plug-in and a fresh stand-in for vLLM in each test."""
import importlib
import logging
import os
import sys

import pytest
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import stub  # noqa: E402

SETTINGS = ("VLLM_", "FEWHEAD_CAPTURE", "FEWHEAD_CHECK")


class Engine:
    """The stand-in with the plug-in in it."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, version="0.26.0", variant="plain", without=()):
        """Build the package and register the plug-in, as vLLM does; stats()."""
        stub.build(str(self.folder), version, variant, without)
        importlib.invalidate_caches()
        import fewhead_vllm
        self.plugin = fewhead_vllm
        fewhead_vllm.register()
        return fewhead_vllm.stats()

    @property
    def sparse(self):
        return importlib.import_module("vllm.v1.attention.backends.mla.flashmla_sparse")

    @property
    def v4(self):
        return importlib.import_module("vllm.models.deepseek_v4.nvidia.flashmla")

    @property
    def kernels(self):
        return importlib.import_module("vllm.kernels").calls


@pytest.fixture
def engine(tmp_path, monkeypatch, caplog):
    for name in list(os.environ):
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)
    for name in [name for name in sys.modules if name.split(".")[0] in ("vllm", "fewhead_vllm")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    caplog.set_level(logging.INFO, "vllm.fewhead")
    yield Engine(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] in ("vllm", "fewhead_vllm")]:
        del sys.modules[name]


def draw(*shape, seed=1):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=g).to(torch.bfloat16)


@pytest.fixture
def tensors():
    """q [s_q, heads, d], kv [blocks, 64, d], lists [s_q, topk] of neighbours that share most keys, -1 behind their length"""
    def make(s_q=96, heads=8, d=576, topk=32, blocks=4):
        lists = torch.arange(topk, dtype=torch.int32)[None] + torch.arange(s_q, dtype=torch.int32)[:, None] // 2
        lists[0, 5:] = -1
        return draw(s_q, heads, d), draw(blocks, 64, d), lists.contiguous()
    return make
