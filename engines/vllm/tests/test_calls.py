"""Calls through the patched functions, on CPU tensors: results, counters, plans, comparisons, errors."""
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import draw


class Indexer:
    def __init__(self, buffer):
        self.topk_indices_buffer = buffer


def v32(engine, q, lists, own=True):
    """A layer with an indexer of its own, or one that reads the last list."""
    impl = engine.sparse.FlashMLASparseImpl
    return impl(8, indexer=Indexer(lists)) if own else impl(8, topk_indices_buffer=lists)


def metadata(rows, starts=None):
    starts = torch.tensor(starts or [0, rows], dtype=torch.int32)
    return SimpleNamespace(num_reqs=starts.shape[0] - 1, num_actual_tokens=rows, query_start_loc=starts)


def close(a, b):
    a, b = a.float(), b.float()
    assert a.shape == b.shape and torch.isfinite(a).all()
    assert ((a - b).norm() / b.norm()).item() < 1e-2


def own_result(engine, layer, q, kv, lists):
    """The engine's own kernel's."""
    kernel = engine.sparse.FlashMLASparseImpl._bf16_flash_mla_kernel.fewhead_original
    result = kernel(layer, q, kv, lists, (lists >= 0).sum(-1).int())
    return result[0] if isinstance(result, tuple) else result


def test_v32_runs_at_native_heads(engine, tensors):
    engine.start()
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    got = layer._forward_bf16_kv(q, kv, lists, metadata(96))
    assert engine.kernels == []
    close(got, own_result(engine, layer, q, kv, lists))
    stats = engine.plugin.stats()
    assert stats["calls"] == {"v32": {"auto": 1}} and stats["rows"] == {"v32": {"auto": 96}} and stats["declined"]["calls"] == {}
    assert stats["plans"] == {"built": 1, "shared": 0}


def test_a_kernel_that_returns_lse_gets_one(engine, tensors):
    engine.start("0.33.0", "0.33")
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    padded = torch.full((96, 64, 576), math.nan, dtype=torch.bfloat16)
    padded[:, :8] = q
    out, lse = layer._forward_bf16_kv(padded, kv, lists, metadata(96), 8)
    close(out, own_result(engine, layer, q, kv, lists))
    _, want = engine.sparse.FlashMLASparseImpl._bf16_flash_mla_kernel.fewhead_original(layer, q, kv, lists, (lists >= 0).sum(-1).int())
    assert lse.shape == (96, 8) and (lse - want).abs().max() < 1e-3


def test_layers_that_share_a_list_share_a_plan(engine, tensors):
    engine.start()
    q, kv, lists = tensors()
    own, second, third = v32(engine, q, lists), v32(engine, q, lists, False), v32(engine, q, lists, False)
    step = metadata(96)
    for layer in (own, second, third, own, second):
        close(layer._forward_bf16_kv(q, kv, lists, step), own_result(engine, layer, q, kv, lists))
    assert engine.plugin.stats()["plans"] == {"built": 2, "shared": 3}
    second._forward_bf16_kv(q, kv, lists, metadata(96))  # another step
    assert engine.plugin.stats()["plans"] == {"built": 3, "shared": 3}


def test_a_new_list_in_the_same_buffer_gets_a_plan_of_its_own(engine, tensors):
    engine.start()
    q, kv, lists = tensors()
    own, second = v32(engine, q, lists), v32(engine, q, lists, False)
    step = metadata(96)
    own._forward_bf16_kv(q, kv, lists, step)
    second._forward_bf16_kv(q, kv, lists, step)
    lists += 17
    lists[lists < 17] = -1
    lists[0, 5:] = -1
    for layer in (own, second):
        close(layer._forward_bf16_kv(q, kv, lists, step), own_result(engine, layer, q, kv, lists))
    assert engine.plugin.stats()["plans"] == {"built": 2, "shared": 2}


def test_requests_of_a_chunk_are_told_apart(engine, tensors):
    engine.start()
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    got = layer._forward_bf16_kv(q, kv, lists, metadata(96, [0, 1, 2, 40, 96]))
    close(got, own_result(engine, layer, q, kv, lists))
    got = layer._forward_bf16_kv(q[:40].contiguous(), kv, lists[:40], metadata(96, [0, 40, 96]))  # a part of the step's rows
    close(got, own_result(engine, layer, q[:40], kv, lists[:40]))


def test_the_published_gate(engine, monkeypatch, tensors):
    monkeypatch.setenv("VLLM_DSV41_FEWHEAD_MIN_SQ", "64")
    engine.start()
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    layer._forward_bf16_kv(q, kv, lists, metadata(96))
    assert engine.kernels == []
    layer._forward_bf16_kv(q[:63], kv, lists[:63], metadata(63))
    assert engine.kernels == [("engine", 63, 64)]
    stats = engine.plugin.stats()
    assert stats["calls"] == {"v32": {"gather": 1}} and stats["declined"]["calls"] == {"v32": {"s_q below 64": 1}}
    assert stats["declined"]["rows"] == {"v32": {"s_q below 64": 63}} and stats["plans"]["built"] == 0


def test_what_is_declined_is_counted_with_its_reason_and_said_once(engine, tensors, caplog):
    engine.start()
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    for _ in range(2):
        layer._fp8_flash_mla_kernel(q[None], kv, lists, None)
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "fewhead: v32: the engine's own kernel does a call of 96 rows, and others like it: FP8 cache: the engine's FP8 kernel reads it"]
    layer.num_heads = 64
    wide = torch.randn(96, 64, 576).to(torch.bfloat16)
    layer._bf16_flash_mla_kernel(wide, kv, lists)
    layer.num_heads, layer.need_to_return_lse_for_decode = 8, True
    layer._bf16_flash_mla_kernel(q, kv, lists)
    assert engine.plugin.stats()["declined"]["calls"] == {"v32": {
        "FP8 cache: the engine's FP8 kernel reads it": 2, "64 local heads: none are padded": 1,
        "the engine merges by lse (decode context parallelism)": 1}}
    assert len(engine.kernels) == 2


def test_an_error_falls_back_once_and_says_so(engine, tensors, caplog, monkeypatch):
    engine.start()
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    import fewhead

    def broken(*a, **k):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(fewhead, "flash_mla_sparse_fwd", broken)
    for _ in range(3):
        close(layer._forward_bf16_kv(q, kv, lists, metadata(96)), own_result(engine, layer, q, kv, lists))
    stats = engine.plugin.stats()
    assert stats["errors"] == ["error in a call of 96 rows: RuntimeError: out of luck"] and stats["off"] == stats["errors"][0]
    assert stats["declined"]["calls"] == {"v32": {"error": 1, stats["off"]: 2}} and stats["calls"] == {}
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "fewhead: error in a call of 96 rows: RuntimeError: out of luck; the engine's own kernel does this call and all that follow"]


def test_a_share_of_the_calls_is_compared(engine, monkeypatch, tensors):
    monkeypatch.setenv("FEWHEAD_CHECK", "1/2")
    engine.start()
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    for _ in range(5):
        layer._forward_bf16_kv(q, kv, lists, metadata(96))
    check = engine.plugin.stats()["check"]
    assert check["calls"] == 2 and check["off"] == 0 and 0 < check["worst_abs"] < 2e-2 and 0 < check["worst_rel"] < 1e-2
    assert len(engine.kernels) == 2


def test_a_call_that_is_off_turns_the_plug_in_off(engine, monkeypatch, tensors, caplog):
    monkeypatch.setenv("FEWHEAD_CHECK", "1")
    engine.start()
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    import fewhead
    right = fewhead.flash_mla_sparse_fwd

    def wrong(*a, **k):
        out, top, lse = right(*a, **k)
        out[3, 2, 7] += 1
        return out, top, lse

    monkeypatch.setattr(fewhead, "flash_mla_sparse_fwd", wrong)
    for _ in range(2):
        close(layer._forward_bf16_kv(q, kv, lists, metadata(96)), own_result(engine, layer, q, kv, lists))
    stats = engine.plugin.stats()
    assert stats["check"]["off"] == 1 and stats["off"].startswith("FEWHEAD_CHECK: a call of v32 with 96 rows differs")
    assert "all that follow" in caplog.text and 'fewhead_on 0' in engine.plugin.prometheus()


@pytest.mark.parametrize("rows", [1, 63])
def test_few_rows(engine, tensors, rows):
    engine.start()
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    got = layer._forward_bf16_kv(q[:rows], kv, lists[:rows], metadata(rows))
    assert got.shape == (rows, 8, 512) and engine.plugin.stats()["plans"]["built"] == 0


def test_empty_lists_give_zeros(engine, tensors):
    engine.start()
    q, kv, lists = tensors()
    lists[:] = -1
    assert (v32(engine, q, lists)._forward_bf16_kv(q, kv, lists, metadata(96)) == 0).all()


def test_in_a_graph_gather_runs_without_a_plan(engine, tensors, monkeypatch):
    engine.start()
    q, kv, lists = tensors()
    layer = v32(engine, q, lists)
    router = engine.plugin._register.router()
    monkeypatch.setattr(router, "capturing", lambda q: True)
    layer._forward_bf16_kv(q, kv, lists, metadata(96))
    assert engine.plugin.stats()["declined"]["calls"] == {"v32": {"a graph is recorded before the first call": 1}}
    router.prepare(q.device)
    close(layer._forward_bf16_kv(q, kv, lists, metadata(96, [0, 40, 96])), own_result(engine, layer, q, kv, lists))
    stats = engine.plugin.stats()
    assert stats["calls"] == {"v32": {"gather": 1}} and stats["plans"] == {"built": 0, "shared": 0}


# ---- V4


def v4_call(engine, layer, s_q=96, topk=32, starts=(0, 96), seed=3):
    q, kv = draw(s_q, 64, 512, seed=seed), draw(200, 1, 512, seed=seed)
    lists = (torch.arange(64, dtype=torch.int32)[None] + torch.arange(s_q, dtype=torch.int32)[:, None] // 2).contiguous()
    lists[0, 5:] = -1
    starts = torch.tensor(starts, dtype=torch.int32)
    got, want = torch.full((s_q, 64, 512), 7.0, dtype=torch.bfloat16), torch.empty(s_q, 64, 512, dtype=torch.bfloat16)
    layer._forward_prefill(q=q, positions=None, compressed_k_cache=None, swa_k_cache=None, output=got, attn_metadata=None,
                           swa_metadata=(starts, lists, kv, topk))
    engine.v4.flash_mla_sparse_fwd.fewhead_original(q, kv, lists.unsqueeze(1), layer.scale, attn_sink=layer.attn_sink,
                                                    topk_length=(lists >= 0).sum(-1).int(), out=want)
    return got, want, starts


def test_v4_writes_the_real_heads_in_place(engine):
    engine.start()
    layer = engine.v4.DeepseekV4FlashMLAAttention(8, 4, indexer=object())
    got, want, _ = v4_call(engine, layer)
    close(got[:, :8], want[:, :8])
    assert (got[:, 8:] == 7).all()
    assert engine.plugin.stats()["calls"] == {"v4": {"auto": 1}}


def test_v4_requests_of_a_chunk(engine):
    engine.start()
    got, want, _ = v4_call(engine, engine.v4.DeepseekV4FlashMLAAttention(8, 4, indexer=object()), starts=(100, 140, 196))
    close(got[:, :8], want[:, :8])


def test_v4_check_and_layer_numbers(engine, monkeypatch, tmp_path):
    monkeypatch.setenv("FEWHEAD_CHECK", "1")
    engine.start()
    v4_call(engine, engine.v4.DeepseekV4FlashMLAAttention(8, 4, indexer=object()))
    check = engine.plugin.stats()["check"]
    assert check["calls"] == 1 and check["off"] == 0


def test_v4_layers_of_ratio_128_share_a_plan(engine, monkeypatch):
    engine.start()
    make = engine.v4.DeepseekV4FlashMLAAttention
    indexed, second, third = make(8, 4, indexer=object()), make(8, 128), make(8, 128)
    starts = torch.tensor([0, 96], dtype=torch.int32)
    monkeypatch.setattr(torch, "tensor", lambda *a, **k: starts)  # one tensor for all layers of the step, as the engine has
    for layer in (indexed, second, indexed, third):
        got, want, _ = v4_call(engine, layer)
        close(got[:, :8], want[:, :8])
    assert engine.plugin.stats()["plans"] == {"built": 3, "shared": 1}
    engine.v4.context[0] = object()
    v4_call(engine, third)
    assert engine.plugin.stats()["plans"] == {"built": 4, "shared": 1}


def test_v4_called_from_elsewhere_is_the_engines(engine):
    engine.start()
    q, kv = draw(4, 64, 512), draw(40, 1, 512)
    engine.v4.flash_mla_sparse_fwd(q, kv, torch.zeros(4, 1, 8, dtype=torch.int32), 0.1)
    assert engine.plugin.stats()["declined"]["calls"] == {"v4": {"called from elsewhere than the prefill": 1}}


# ---- Numbers


def test_prometheus(engine, tensors):
    engine.start()
    q, kv, lists = tensors()
    v32(engine, q, lists)._forward_bf16_kv(q, kv, lists, metadata(96))
    lines = engine.plugin.prometheus().splitlines()
    assert 'fewhead_calls_total{family="v32",path="auto"} 1' in lines and 'fewhead_rows_total{family="v32",path="auto"} 96' in lines
    assert 'fewhead_plans_total{how="built"} 1' in lines and "fewhead_on 1" in lines and "# TYPE fewhead_calls_total counter" in lines
