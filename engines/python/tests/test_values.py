"""Values: FlashMLA's conformance grid and the oracle case, path by path, against the formula in double."""

import json
import math
import os

import pytest
import torch

import fewhead
from tools import call, compare, flashmla_inputs, o1, paths, small, strided, wanted

NATIVE_HEADS = (1, 2, 4, 5, 8, 12, 16, 20, 32, 48, 63)
CPU_GFLOP = 20  # a case that is more takes a CPU too long

# One case of each group of FlashMLA's grid and each optional argument: what runs where FEWHEAD_GRID names no file.
OWN_GRID = [
    {
        "group": group,
        "d_qk": d_qk,
        "h_q": h_q,
        "s_q": s_q,
        "s_kv": s_kv,
        "topk": topk,
        "attn_sink": sink,
        "topk_length": length,
        "some_rows_all_invalid": lost,
        "check": True,
    }
    for group, d_qk, h_q, s_q, s_kv, topk, sink, length, lost in (
        ("regular", 512, 64, 1, 128, 128, False, False, False),
        ("regular", 576, 128, 62, 95, 128, False, False, False),
        ("features", 512, 64, 62, 592, 128, True, False, False),
        ("features", 576, 64, 62, 114, 384, False, True, False),
        ("features", 512, 128, 62, 1840, 256, True, True, False),
        ("invalid_rows", 512, 64, 62, 256, 256, True, True, True),
        ("invalid_rows", 576, 128, 1, 128, 128, True, True, True),
        ("blocks_without_valid_index", 512, 64, 24, 32, 2048, True, True, False),
    )
]


def grid():
    name = os.environ.get("FEWHEAD_GRID")
    if not name:
        return OWN_GRID
    with open(name, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def gflop(case):
    return 2e-9 * case["s_q"] * case["h_q"] * min(case["topk"], 2**31) * (case["d_qk"] + 512)


def case_id(case):
    return f"{case['group']}-d{case['d_qk']}-h{case['h_q']}-q{case['s_q']}-kv{case['s_kv']}-k{case['topk']}" + "".join(
        "-" + name for name in ("attn_sink", "topk_length", "some_rows_all_invalid") if case[name]
    )


NUMBERED = [pytest.param(number, case, id=f"{number}-{case_id(case)}") for number, case in enumerate(grid())]


@pytest.mark.parametrize("number, case", NUMBERED)
def test_flashmla_grid(number, case, device):
    if device.type == "cpu" and gflop(case) > CPU_GFLOP:
        pytest.skip(f"{gflop(case):.0f} GFLOP, a CPU runs cases up to {CPU_GFLOP}")
    for h_q in (case["h_q"], NATIVE_HEADS[number % len(NATIVE_HEADS)]):
        arguments = flashmla_inputs(case, h_q, device, seed=number)
        want = wanted(arguments) if case["check"] else None
        for path in paths(device, h_q):
            got = call(arguments, path=path)
            if want:
                compare(got, want)


@pytest.mark.parametrize(
    "lists, out, keys",
    [(((3, 5),), 4.0, 2), (((0,),), 0.0, 1), (((7, 7, 7, 3),), 6.0, 4), (((1, -1, 2, 8, 2**31 - 1, 6),), 3.0, 3)],
)
def test_oracle(lists, out, keys, device):
    arguments = o1(device, s_q=9, lists=lists)
    for path in paths(device, 8) + ["reference"]:
        got = call(arguments, path=path)
        assert (got[0] == out).all() and (got[1] == 0).all(), path
        assert ((got[2] - math.log(keys)).abs() < 1e-6).all(), path


def test_rows_without_keys_and_a_sink_that_takes_all(device):
    arguments = o1(device, lists=((-1, 99),))
    out, max_logits, lse = call(arguments)
    assert (out == 0).all() and (max_logits == -math.inf).all() and (lse == math.inf).all()
    sink = torch.full((8,), math.inf, device=device)
    out, max_logits, lse = call(o1(device), attn_sink=sink)
    assert (out == 0).all() and (max_logits == 0).all() and ((lse - math.log(2)).abs() < 1e-6).all()


def test_pool_lists_with_tails(device):
    """Pools of 4 rows, {0, 2} of 14, and the tail rows 12 and 13, garbage behind: mean 6.9, in bf16 6.90625."""
    picks = [4 * pool + i for pool in (0, 2) for i in range(4)] + [12, 13] + [2**31 - 1, 2**30, -1]
    arguments = o1(device, s_q=9, s_kv=14, lists=(picks,))
    for path in paths(device, 8) + ["reference"]:
        out, _, lse = call(arguments, path=path)
        assert (out == 6.90625).all(), path
        assert ((lse - 2.302585).abs() < 1e-6).all(), path


@pytest.mark.parametrize("topk", [1, 63, 641, 2051])
@pytest.mark.parametrize("h_q", [3, 8, 100])
def test_any_width_of_lists(topk, h_q, device):
    arguments = small(device, s_q=6, s_kv=2100, h_q=h_q, topk=topk)
    for path in paths(device, h_q):
        compare(call(arguments, path=path), wanted(arguments))


@pytest.mark.parametrize("sizes", [{"s_q": 0}, {"s_kv": 0}, {"topk": 0}])
def test_nothing_to_do(sizes, device):
    arguments = small(device, **sizes)
    got = call(arguments)
    compare(got, wanted(arguments))
    assert got[0].shape == (sizes.get("s_q", 5), 8, 512)
    if "packed" in paths(device, 8):
        lists = {"topk_length": arguments["topk_length"]}
        plan = fewhead.Plan(arguments["indices"], s_kv=arguments["kv"].shape[0], h_q=8, **lists)
        for path in ("auto", "packed"):
            compare(call(arguments, path=path, plan=plan), wanted(arguments))


def test_head_slices_of_padded_buffers_in_place(device):
    """q in heads 0 .. 7 of 64, out in heads 8 .. 15 of the same number: what stands in the others stays, bit for bit."""
    arguments = small(device, s_q=7)
    q = torch.full((7, 64, 512), float("nan"), dtype=torch.bfloat16, device=device)
    q[:, :8] = arguments["q"]
    out = torch.full((7, 64, 512), 7.0, dtype=torch.bfloat16, device=device)
    arguments["q"] = q[:, :8]
    want = wanted(arguments)
    for path in paths(device, 8):
        out.fill_(7)
        view = out[:, 8:16]
        got = call(arguments, out=view, path=path)
        assert got[0] is view
        compare(got, want)
        assert (out[:, :8] == 7).all() and (out[:, 16:] == 7).all(), path


def test_a_chunk_behind_decode_rows(device):
    """The tensors of a prefill are dim-0 slices of a step's; the cache is blocks of 64 rows, lists a slice of wider ones."""
    arguments = small(device, s_q=6, s_kv=128, topk=20)
    cache = arguments["kv"].reshape(2, 64, 512).contiguous()
    step = {name: torch.cat([arguments[name][:2], arguments[name]]) for name in ("q", "indices", "topk_length")}
    sliced = dict(arguments, kv=cache.view(-1, 1, 512), **{name: t[2:] for name, t in step.items()})
    compare(call(sliced), wanted(arguments))


def test_row_invariant_rows_do_not_depend_on_neighbours(device):
    arguments = small(device, s_q=16, s_kv=300, topk=200)
    whole = call(arguments, row_invariant=True)
    alone = dict(arguments, **{name: arguments[name][5:6] for name in ("q", "indices", "topk_length")})
    for a, b in zip(whole, call(alone, row_invariant=True)):
        assert torch.equal(a[5:6], b)


def test_the_same_call_gives_the_same_bits(device):
    arguments = small(device, s_q=33, s_kv=300, topk=200)
    for path in paths(device, 8):
        first = call(arguments, path=path)
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(first, call(arguments, path=path))), path


def test_requests_of_a_chunk(device):
    arguments = small(device, s_q=21)
    cu_seqlens_q = torch.tensor([0, 3, 3, 20, 21], dtype=torch.int32, device=device)
    for path in paths(device, 8):
        compare(call(arguments, path=path, cu_seqlens_q=cu_seqlens_q), wanted(arguments))


def test_a_plan_serves_the_layers_that_share_its_lists(device):
    if "packed" not in fewhead.describe(device)["paths"]:
        pytest.skip("no packed path on this device")
    cu_seqlens_q = torch.tensor([0, 13, 40], dtype=torch.int32, device=device)
    for requests in (None, cu_seqlens_q):
        layers = [small(device, s_q=40, s_kv=100, seed=seed) for seed in range(3)]
        lists = {name: layers[0][name] for name in ("indices", "topk_length")}
        for path in ("packed", "auto"):
            plan = fewhead.Plan(
                lists["indices"], s_kv=100, h_q=8, topk_length=lists["topk_length"], cu_seqlens_q=requests, path=path
            )
            for layer in layers:
                layer.update(lists)
                compare(call(layer, path=path, plan=plan, cu_seqlens_q=requests), wanted(layer))


def test_costs_decide(device):
    dear, cheap = (0.0, 1e9, 0.0), (0.0, 0.0, 0.0)
    arguments = small(device)
    for path in ("padded", "gather"):
        costs = fewhead.Costs(**{name: cheap if name == path else dear for name in fewhead.Costs._fields})
        fewhead.reset_stats()
        compare(call(arguments, costs=costs), wanted(arguments))
        assert fewhead.stats()["rows"][path] == 5


def test_strided_inputs_are_strided():
    t = strided(torch.zeros(3, 4, 5))
    assert t.stride() == (30, 6, 1) and not t.is_contiguous()


def test_without_the_fast_allocator(device, monkeypatch):
    """A PyTorch that lacks the undocumented function, and a device that is not the current one, take torch.empty."""
    from fewhead import _call

    monkeypatch.setattr(_call, "_empty_strided_cpu", None)
    monkeypatch.setattr(_call, "_empty_strided_cuda", None)
    arguments = small(device, s_q=20)
    for path in paths(device, 8):
        compare(call(arguments, path=path), wanted(arguments))
