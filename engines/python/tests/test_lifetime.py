"""Threads, garbage collection, fork, and what is counted meanwhile."""

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch

import fewhead
from tools import call, compare, o1, small, wanted

CPU = torch.device("cpu")


def is_o1(results):
    return bool((results[0] == 4).all() and (results[1] == 0).all() and ((results[2] - 0.693147).abs() < 1e-6).all())


def run_threads(work, count):
    """Run work(number) in threads of its own; raise what any of them raised."""
    failures = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001: handed to the test
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_with_inputs_of_their_own(device):
    cases = [small(device, s_q=3 + number, seed=number) for number in range(6)]
    good = [wanted(arguments) for arguments in cases]

    def work(number):
        for _ in range(20):
            compare(call(cases[number]), good[number])

    run_threads(work, len(cases))


def test_threads_share_a_plan(device):
    if "packed" not in fewhead.describe(device)["paths"]:
        pytest.skip("no packed path on this device")
    arguments = small(device, s_q=30)
    good = wanted(arguments)
    plan = fewhead.Plan(arguments["indices"], s_kv=40, h_q=8, topk_length=arguments["topk_length"], path="packed")
    run_threads(lambda number: [compare(call(arguments, path="packed", plan=plan), good) for _ in range(10)], 4)


def test_threads_that_end_are_counted():
    fewhead.reset_stats()
    arguments = o1(CPU, s_q=3)
    for _ in range(3):
        run_threads(lambda number: call(arguments, path="gather"), 4)
    counted = fewhead.stats()
    assert counted["calls"]["gather"] == 12 and counted["rows"]["gather"] == 36


def test_a_call_inside_a_call():
    """A finalizer that makes a call of the same shape while a call is being made: both results are right."""
    arguments = o1(CPU, s_q=2)
    inner = []

    class Bomb:
        def __del__(self):
            inner.append(is_o1(call(o1(CPU, s_q=2))))

    class Scale(float):
        """Its hash is asked for while the call's key is built and looked up."""

        def __hash__(self):
            bomb = Bomb()
            del bomb
            return super().__hash__()

    for _ in range(5):
        assert is_o1(call(dict(arguments, sm_scale=Scale(1.0))))
    assert inner and all(inner)


def test_gc_storm(device):
    """Plans and tensors dropped in cycles while calls run and collections are forced: results stay right."""
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(20):
            arguments = o1(device, s_q=9)
            plan = fewhead.Plan(arguments["indices"], s_kv=8, h_q=8) if "packed" in fewhead.describe(device)["paths"] else None
            cycle = [arguments, plan]
            cycle.append(cycle)
            results = call(arguments, plan=plan)
            del arguments, plan, cycle
            gc.collect()
            assert is_o1(results)
    finally:
        gc.set_threshold(*threshold)


def test_nothing_is_kept_alive():
    arguments = small(CPU)
    results = call(arguments)
    gone = [weakref.ref(t) for t in (arguments["q"], arguments["kv"], arguments["indices"], *results)]
    del arguments, results
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)


def test_many_shapes_do_not_pile_up(monkeypatch):
    from fewhead import _call

    monkeypatch.setattr(_call, "MAX_ENTRIES", 4)
    arguments = o1(CPU, s_q=10)
    for s_q in range(1, 10):
        assert is_o1(call(dict(arguments, q=arguments["q"][:s_q], indices=arguments["indices"][:s_q])))
        assert len(_call._local.thread.entries) <= 4


# ---- Fork


def _child(pipe):
    torch.set_num_threads(1)  # PyTorch's own threads do not survive a fork either
    pipe.send(is_o1(call(o1(CPU, s_q=40))))
    pipe.close()


def _fork():
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs,))
    child.start()
    theirs.close()  # so that a child that ends without an answer is seen at once
    assert ours.poll(60), "the child hangs"
    answer = ours.recv()
    child.join(60)
    return answer and child.exitcode == 0


def test_fork_after_calls():
    assert is_o1(call(o1(CPU, s_q=40)))
    for _ in range(3):
        assert _fork()
        assert is_o1(call(o1(CPU, s_q=40)))


def test_fork_while_another_thread_calls():
    arguments, stop = small(CPU, s_q=30), threading.Event()
    good = wanted(arguments)

    def work():
        while not stop.is_set():
            compare(call(arguments), good)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            assert _fork()
    finally:
        stop.set()
        thread.join()


FORK_BEFORE = """
import os, sys
sys.path.insert(0, {tests!r})
child = os.fork()
import torch, fewhead
from tools import call, o1
results = call(o1("cpu", s_q=40))
good = bool((results[0] == 4).all())
if child == 0:
    os._exit(0 if good else 1)
sys.exit(0 if good and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 else 1)
"""


def test_fork_before_the_package_is_loaded():
    code = FORK_BEFORE.format(tests=os.path.dirname(os.path.abspath(__file__)))
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


# ---- What is counted


def test_stats_by_path():
    fewhead.reset_stats()
    arguments = small(CPU, s_q=10, s_kv=40)
    for path, times in (("padded", 2), ("gather", 3), ("packed", 1), ("reference", 1)):
        for _ in range(times):
            call(arguments, path=path)
    counted = fewhead.stats()
    assert counted["calls"] == {"auto": 0, "reference": 1, "padded": 2, "gather": 3, "packed": 1}
    assert counted["rows"] == {"auto": 0, "reference": 10, "padded": 20, "gather": 30, "packed": 10}
    assert counted["executed_flops"] > counted["useful_flops"] > 0 and counted["bytes"] > 0
    assert counted["declined"] == {}
    assert sum(kernel["calls"] for kernel in counted["kernels"].values()) == 7
    assert sum(kernel["rows"] for kernel in counted["kernels"].values()) == 70
    assert all("" != name for name in counted["kernels"])
    call(arguments)
    assert fewhead.stats()["calls"]["auto"] == 1
    fewhead.reset_stats()
    assert sum(fewhead.stats()["calls"].values()) == 0 and fewhead.stats()["useful_flops"] == 0
    assert fewhead.stats()["kernels"] == {}


def test_declined_calls_are_counted_with_their_reasons():
    fewhead.reset_stats()
    arguments = small(CPU)
    for _ in range(2):
        with pytest.raises(NotImplementedError):
            call(arguments, path="packed", row_invariant=True)
    with pytest.raises(TypeError):
        call(dict(arguments, indices=arguments["indices"].long()))
    with pytest.raises(ValueError):
        fewhead.Plan(arguments["indices"], s_kv=-1, h_q=8)
    declined = fewhead.stats()["declined"]
    assert sorted(declined.values()) == [1, 1, 2]
    assert declined["TypeError: indices: got torch.int64, wanted torch.int32"] == 1
    assert any(
        text.startswith("NotImplementedError: row_invariant: got 1 on path packed") and n == 2 for text, n in declined.items()
    )
    assert any(text.startswith("Plan: ValueError: s_kv: got -1") for text in declined)
    assert sum(fewhead.stats()["calls"].values()) == 0


def test_reasons_do_not_pile_up():
    from fewhead import _stats

    fewhead.reset_stats()
    arguments = small(CPU)
    for number in range(_stats.MAX_REASONS + 20):
        with pytest.raises(ValueError):
            call(arguments, d_v=1000 + number)
    declined = fewhead.stats()["declined"]
    assert len(declined) == _stats.MAX_REASONS + 1 and declined[_stats.OTHER_REASONS] == 20
    fewhead.reset_stats()
