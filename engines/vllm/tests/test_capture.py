"""Captures: what is written, what limits it, and that fewhead's reader takes it."""
import json
import os
import subprocess

import fewhead
import numpy
import torch
from test_calls import metadata, v32

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def run(engine, monkeypatch, tensors, folder, layers=2, steps=1, **environ):
    monkeypatch.setenv("FEWHEAD_CAPTURE", str(folder))
    monkeypatch.setenv("FEWHEAD_CAPTURE_ROWS", "64")
    for name, value in environ.items():
        monkeypatch.setenv(f"FEWHEAD_CAPTURE_{name}", value)
    engine.start()
    q, kv, lists = tensors()
    made = [v32(engine, q, lists) for _ in range(layers)]
    for _ in range(steps):
        for layer in made:
            layer._forward_bf16_kv(q, kv, lists, metadata(96, [0, 32, 96]))
    return lists


def test_lists_lengths_offsets_and_sizes(engine, monkeypatch, tensors, tmp_path):
    lists = run(engine, monkeypatch, tensors, tmp_path / "c", LAYERS="1")
    names = sorted(os.listdir(tmp_path / "c"))
    stem = "v32_rank0_layer1_chunk0"
    assert names == [f"{stem}.{end}" for end in ("length.npy", "npy", "npy.json", "offsets.npy", "sizes.json")]
    assert (numpy.load(tmp_path / "c" / f"{stem}.npy") == lists.numpy()).all()
    assert (numpy.load(tmp_path / "c" / f"{stem}.length.npy") == (lists >= 0).sum(-1).numpy()).all()
    assert numpy.load(tmp_path / "c" / f"{stem}.offsets.npy").tolist() == [0, 32, 96]
    with open(tmp_path / "c" / f"{stem}.sizes.json") as f:
        assert json.load(f) == {"family": "v32", "layer": 1, "rank": 0, "s_q": 96, "topk": 32, "s_kv": 256, "h_q": 8, "d_qk": 576,
                                "sm_scale": 0.05, "attn_sink": False, "cu_seqlens_q": [0, 32, 96]}
    assert engine.plugin.stats()["capture"] == {"files": 5, "bytes": 4 * 96 * 33, "full": False}


def test_chunks_and_sizes_are_limited(engine, monkeypatch, tensors, tmp_path):
    run(engine, monkeypatch, tensors, tmp_path / "c", layers=1, steps=3, CHUNKS="2")
    assert sorted(n for n in os.listdir(tmp_path / "c") if n.endswith("0.npy") or n.endswith("1.npy")) == [
        "v32_rank0_layer0_chunk0.npy", "v32_rank0_layer0_chunk1.npy"]


def test_the_size_limit_is_said(engine, monkeypatch, tensors, tmp_path):
    engine_settings = {"MB": "1"}
    run(engine, monkeypatch, tensors, tmp_path / "c", layers=1, **engine_settings)
    router = engine.plugin._register.router()
    router.capture.left = 10
    q, kv, lists = tensors()
    v32(engine, q, lists)._forward_bf16_kv(q, kv, lists, metadata(96))
    assert engine.plugin.stats()["capture"]["full"]


def test_a_folder_that_cannot_be_written_stops_nothing_but_the_capture(engine, monkeypatch, tensors, tmp_path):
    (tmp_path / "c").write_text("a file")
    run(engine, monkeypatch, tensors, tmp_path / "c", layers=1, steps=2)
    stats = engine.plugin.stats()
    assert stats["calls"] == {"v32": {"auto": 2}} and stats["off"] is None
    assert len(stats["errors"]) == 1 and stats["errors"][0].startswith("FEWHEAD_CAPTURE: ")


def test_a_replay_is_the_engines_call(engine, monkeypatch, tensors, tmp_path):
    """The provider race on a capture: the call's sizes, requests and lists, and among its kernels the one that the engine's call took."""
    fewhead.reset_stats()
    run(engine, monkeypatch, tensors, tmp_path / "c", layers=1)
    kernels = list(fewhead.stats()["kernels"])
    path = tmp_path / "c" / "v32_rank0_layer0_chunk0.npy"
    out = tmp_path / "out"
    done = subprocess.run(["./fewhead", "run", "experiments/peers.lua", "--indices", str(path), "--preset", "glm-5.2 tp8", "--published", "8",
                           "--seconds", "0", "--samples", "6", "--out", str(out)], cwd=CHECKOUT, capture_output=True, text=True,
                          env=dict(os.environ, FEWHEAD_FLASHMLA="/none", FEWHEAD_FA3="/none"))
    assert done.returncode == 0, done.stderr + done.stdout
    with open(out / "latest" / "records.jsonl") as f:
        records = [json.loads(line) for line in f]
    raced = [r for r in records if r["case"]["pattern"] == "file"]
    auto = next(r for r in raced if r["path"] == "auto")
    with open(tmp_path / "c" / "v32_rank0_layer0_chunk0.sizes.json") as f:
        sizes = json.load(f)
    assert {name: auto["case"][name] for name in ("s_q", "topk", "s_kv", "h_q", "d_qk")} == {
        name: sizes[name] for name in ("s_q", "topk", "s_kv", "h_q", "d_qk")}
    assert auto["case"]["boundaries"] is True and auto["parity"]["status"] == "pass"
    assert len(kernels) == 1 and kernels[0] in {r["kernel"] for r in raced if r["path"] != "padded"}


def test_a_replay_has_the_engines_result(engine, monkeypatch, tensors, tmp_path):
    """The captured lists, lengths and offsets with the engine's q and kv, and a plan of them: the bits of the engine's call, from the same
    kernel."""
    monkeypatch.setenv("FEWHEAD_CAPTURE", str(tmp_path / "c"))
    monkeypatch.setenv("FEWHEAD_CAPTURE_ROWS", "64")
    engine.start()
    q, kv, lists = tensors()
    fewhead.reset_stats()
    out = v32(engine, q, lists)._forward_bf16_kv(q, kv, lists, metadata(96, [0, 32, 96]))
    kernels = fewhead.stats()["kernels"]
    indices, lengths, offsets = (torch.from_numpy(numpy.load(tmp_path / "c" / f"v32_rank0_layer0_chunk0.{end}"))
                                 for end in ("npy", "length.npy", "offsets.npy"))
    fewhead.reset_stats()
    rows, indices = kv.view(-1, 1, 576), indices.unsqueeze(1)
    plan = fewhead.Plan(indices, s_kv=rows.shape[0], h_q=8, d_qk=576, topk_length=lengths, cu_seqlens_q=offsets)
    again = fewhead.flash_mla_sparse_fwd(q, rows, indices, 0.05, topk_length=lengths, cu_seqlens_q=offsets, plan=plan)[0]
    assert torch.equal(again, out) and out.abs().max() > 0.1
    assert fewhead.stats()["kernels"] == kernels


def test_overlap_reads_a_capture(engine, monkeypatch, tensors, tmp_path):
    run(engine, monkeypatch, tensors, tmp_path / "c", layers=1)
    path = tmp_path / "c" / "v32_rank0_layer0_chunk0.npy"
    done = subprocess.run(["./fewhead", "run", "experiments/overlap.lua", "--indices", str(path)], cwd=CHECKOUT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"{path}: 96 rows" in done.stdout and "2 requests" in done.stdout and "topk 32, 31.7 keys a row" in done.stdout, done.stdout
