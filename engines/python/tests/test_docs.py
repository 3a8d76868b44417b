"""docs/engine.md: the Python that it shows runs as it stands, and the C++ compiles."""

import os
import re
import shutil
import subprocess

import pytest
import torch

import package
from tools import small

PAGE = os.path.join(package.CHECKOUT, "docs", "engine.md")
CPU = torch.device("cpu")


def blocks(language):
    with open(PAGE, encoding="utf-8") as f:
        return re.findall(rf"^```{language}\n(.*?)^```$", f.read(), re.M | re.S)


def test_python_runs():
    arguments = small(CPU, s_q=8)
    names = {
        **arguments,
        "padded_q": torch.full((12, 64, 512), float("nan"), dtype=torch.bfloat16),
        "padded_sink": torch.zeros(64),
        "padded_out": torch.full((12, 64, 512), 7.0, dtype=torch.bfloat16),
    }
    names["padded_q"][2:10, :8] = arguments["q"]
    shown = blocks("python")
    assert len(shown) >= 5
    for block in shown:
        exec(compile(block, PAGE, "exec"), names)
    assert names["flash_mla_sparse_fwd"].__module__.startswith("fewhead")
    assert names["out"].shape == (8, 8, 512) and names["counted"]["declined"] == {}
    out = names["padded_out"]
    assert not out[2:10, :8].isnan().any() and (out[2:10, :8] != 7).any()
    assert (out[:2] == 7).all() and (out[10:] == 7).all() and (out[2:10, 8:] == 7).all()


@pytest.mark.skipif(not shutil.which("c++"), reason="not run here: no C++ compiler")
def test_cpp_compiles():
    stand_ins = (
        "#include <cstdint>\ntypedef struct CUstream_st *cudaStream_t;\n"
        "struct Arena { void *take(uint64_t bytes, uint64_t alignment); };\n"
    )
    shown = blocks("cpp")
    assert len(shown) == 1
    subprocess.run(
        [
            "c++",
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            "-x",
            "c++",
            "-I",
            os.path.dirname(package.HEADER),
            "-",
        ],
        input=stand_ins + shown[0],
        text=True,
        check=True,
    )
