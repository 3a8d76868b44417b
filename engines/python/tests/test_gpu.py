"""What only a GPU shows: streams, graphs, several devices, and FlashMLA itself beside fewhead."""

import gc

import pytest
import torch

import fewhead
from tools import call, compare, o1, paths, small, wanted

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda:0")
SLEEP_CYCLES = 40_000_000  # about 20 ms at 2 GHz
TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="not run here: no second CUDA device")


def assert_o1(results):
    assert (results[0] == 4).all() and (results[1] == 0).all()
    assert ((results[2] - 0.693147).abs() < 1e-6).all()


def poison(kinds):
    """Take memory of the same sizes on the current stream and fill it with what would be seen: NaN, lists of row 7, ones."""
    return [
        torch.empty(shape, dtype=dtype, device=GPU).fill_(
            255 if dtype == torch.uint8 else 7 if dtype == torch.int32 else float("nan")
        )
        for shape, dtype in kinds
    ]


@pytest.mark.parametrize("path", ["auto", "gather", "packed"])
def test_tensors_dropped_while_a_side_stream_sleeps(path):
    """200 times: tensors and plan of the default stream, the call on a side stream behind a sleep of 20 ms, everything dropped at
    once, and the same sizes taken and filled with NaN on the default stream."""
    side, plans = torch.cuda.Stream(), path != "gather"
    fewhead.prepare(GPU)
    reserved = []
    for turn in range(200):
        arguments = o1(GPU, s_q=64)
        plan = fewhead.Plan(arguments["indices"], s_kv=8, h_q=8, path=path) if plans else None
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP_CYCLES)
            results = call(arguments, path=path, plan=plan)
        kinds = [
            (t.shape, t.dtype) for t in list(arguments.values()) + ([plan.memory] if plan else []) if isinstance(t, torch.Tensor)
        ]
        del arguments, plan
        taken = poison(kinds)
        side.synchronize()
        assert_o1(results)
        del results, taken
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[10], f"reserved memory grew from {reserved[10]} to {reserved[-1]} bytes"


def test_a_plan_of_one_stream_used_on_another_and_dropped():
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    for turn in range(50):
        with torch.cuda.stream(a):
            arguments = o1(GPU, s_q=64)
            plan = fewhead.Plan(arguments["indices"], s_kv=8, h_q=8, path="packed")
        b.wait_stream(a)
        with torch.cuda.stream(b):
            torch.cuda._sleep(SLEEP_CYCLES // 10)
            results = call(arguments, path="packed", plan=plan)
        bytes_of_plan = plan.memory.numel()
        del plan
        with torch.cuda.stream(a):
            torch.empty(bytes_of_plan, dtype=torch.uint8, device=GPU).fill_(255)
        b.synchronize()
        assert_o1(results)


def test_memory_stays_flat_over_1000_calls():
    arguments = small(GPU, s_q=64, s_kv=300, topk=128)
    for _ in range(10):
        call(arguments)
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    for _ in range(1000):
        call(arguments)
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() == before


def test_a_call_waits_for_nothing():
    """The call returns while its stream still sleeps."""
    arguments = small(GPU)
    call(arguments)
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * SLEEP_CYCLES)
    call(arguments)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("path", ["auto", "gather", "padded", "packed"])
def test_graph(path):
    """Recorded once and replayed on other values; the results follow the inputs."""
    arguments = small(GPU, s_q=40, s_kv=200, topk=64)
    out = torch.zeros(40, 8, 512, dtype=torch.bfloat16, device=GPU)
    fewhead.prepare(GPU)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(arguments, path=path, out=out)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan = (
            fewhead.Plan(arguments["indices"], s_kv=200, h_q=8, topk_length=arguments["topk_length"], path=path)
            if path == "packed"
            else None
        )
        results = call(arguments, path=path, out=out, plan=plan)
    for seed in (2, 3):
        for name, t in small(GPU, s_q=40, s_kv=200, topk=64, seed=seed).items():
            if isinstance(t, torch.Tensor):
                arguments[name].copy_(t)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        compare(results, wanted(arguments))


def test_a_device_is_not_opened_inside_of_a_capture():
    from fewhead import _call, _devices

    opened = _devices._handles.pop(GPU, None)
    _call._local.thread.entries.clear()
    arguments = small(GPU)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            with pytest.raises(RuntimeError, match="call fewhead.prepare"):
                call(arguments)
    finally:
        if opened is not None:
            _devices._handles[GPU] = opened


def test_default_stream_and_others_give_the_same():
    arguments = small(GPU)
    good = wanted(arguments)
    compare(call(arguments), good)
    for priority in (0, -1):
        stream = torch.cuda.Stream(priority=priority)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results = call(arguments)
        stream.synchronize()
        compare(results, good)


def test_mixed_devices_are_refused_by_name():
    arguments = small(GPU)
    for name in ("kv", "indices", "topk_length", "attn_sink"):
        with pytest.raises(ValueError, match=f"{name}: got a tensor on cpu, wanted cuda:0, where q lies"):
            call(dict(arguments, **{name: arguments[name].cpu()}))
    plan = fewhead.Plan(arguments["indices"].cpu(), s_kv=40, h_q=8)
    with pytest.raises(ValueError, match="plan: got one on cpu, wanted cuda:0"):
        call(arguments, plan=plan)
    with pytest.raises(ValueError, match="out: got a tensor on cpu"):
        call(arguments, out=torch.empty(5, 8, 512, dtype=torch.bfloat16))


@TWO
def test_another_device_than_the_current_one():
    second = torch.device("cuda:1")
    with torch.cuda.device(0):
        arguments = o1(second, s_q=64)
        for path in paths(second, 8):
            results = call(arguments, path=path)
            assert torch.cuda.current_device() == 0
            assert all(t.device == second for t in results)
            torch.cuda.synchronize(second)
            assert_o1(results)
        with pytest.raises(ValueError, match="kv: got a tensor on cuda:0, wanted cuda:1"):
            call(dict(arguments, kv=arguments["kv"].to(GPU)))


@TWO
def test_both_devices_from_threads():
    import threading

    good = []

    def work(index):
        arguments = small(torch.device("cuda", index))
        want = wanted(arguments)
        for _ in range(50):
            compare(call(arguments), want)
        good.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(good) == [0, 1]


def test_results_outlive_the_call():
    results = [call(o1(GPU, s_q=64)) for _ in range(20)]
    gc.collect()
    torch.cuda.synchronize()
    for each in results:
        assert_o1(each)


@pytest.mark.parametrize("topk, d_qk", [(640, 512), (2048, 576)])
@pytest.mark.parametrize("h_q", [8, 16, 64, 128])
def test_beside_flashmla(h_q, topk, d_qk):
    """The same tensors through FlashMLA's real library, heads padded for it."""
    flashmla = pytest.importorskip("flashmla_package").operator()
    if flashmla is None:
        pytest.skip("not run here: no library with FlashMLA in it")
    arguments = small(GPU, s_q=100, s_kv=4000, h_q=h_q, topk=topk, d_qk=d_qk)
    theirs = flashmla(**arguments)
    ours = call(arguments)
    assert torch.equal(ours[2] == float("inf"), theirs[2] == float("inf"))
    good = wanted(arguments)
    compare(ours, good)
    compare(theirs, good)
