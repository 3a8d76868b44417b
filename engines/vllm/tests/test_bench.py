"""The bench with a stand-in for the engine: arms, counters, records, tables, time."""
import json
import sys
import time
from types import SimpleNamespace

import bench
import bench_part
import pytest
import torch
from conftest import draw
from bench_workloads import WORKLOADS, Closed, Cold, Short
from test_calls import metadata, v32

SMALL = {"cold8k": Cold(64), "C16x8kx48": Closed(2, 64, 3, 2), "short-after-8k": Short(64, 20)}


class NoEvents:
    on, calls = False, 0

    def milliseconds(self):
        n, self.calls = self.calls, 0
        return [0.5] * n


class FakeEngine:
    """Prompts go through two layers of the stand-in, in chunks; every further token is a step of one row a request."""
    CHUNK = 64

    def __init__(self, engine, model):
        self.engine, self.model, self.timer, self.fa3_worst = engine, model, NoEvents(), None
        self.backend, self.fa3_calls, self.check_fa3, self.lists = "flashmla", 0, False, None
        self.config = {"num_hidden_layers": 2, "index_topk": 32, "vocab_size": 100}
        self.buffer = (torch.arange(32, dtype=torch.int32)[None] + torch.arange(self.CHUNK, dtype=torch.int32)[:, None] // 2).contiguous()
        self.q = draw(self.CHUNK, 8, 576) if model == "glm" else draw(self.CHUNK, 64, 512)
        self.kv = draw(2, 64, self.q.shape[2])
        if model == "glm":
            self.layers = [v32(engine, None, self.buffer), v32(engine, None, self.buffer, False)]
        else:
            self.layers = [engine.v4.DeepseekV4FlashMLAAttention(8, 4, object()), engine.v4.DeepseekV4FlashMLAAttention(8, 128)]

    def use_lists(self, kind):
        self.lists = kind

    def step(self, rows):
        kv, meta = self.kv, metadata(rows)
        for layer in self.layers:
            self.timer.calls += self.timer.on
            if self.backend == "fa3":
                self.fa3_calls += 1
                if self.check_fa3:
                    self.fa3_worst = 1e-3
            elif self.model == "glm":
                layer._forward_bf16_kv(self.q[:rows], kv, self.buffer[:rows], meta)
            else:
                layer._forward_prefill(q=self.q[:rows], positions=None, compressed_k_cache=None, swa_k_cache=None,
                                       output=torch.empty(rows, 64, 512, dtype=torch.bfloat16), attn_metadata=None,
                                       swa_metadata=(meta.query_start_loc, self.buffer[:rows], kv.view(-1, 1, 512), 32))

    def generate(self, prompts, tokens):
        began = time.perf_counter()
        for length, _ in prompts:
            for at in range(0, length, self.CHUNK):
                self.step(min(self.CHUNK, length - at))
        for _ in range(tokens - 1):
            self.step(len(prompts))
        seconds = time.perf_counter() - began
        return 0.25 if tokens == 1 else seconds, [{"ttft": 0.25, "from_schedule": 0.2, "tpot": 0.01 if tokens > 1 else None, "tokens": [1] * tokens}
                                                  for _ in prompts]

    def closed(self, prompts, tokens, concurrency):
        assert 1 <= concurrency <= len(prompts)
        return self.generate(prompts, tokens)


RUN = {"id": "1", "build": "fewhead 0.2.0", "vllm": "0.26.0", "device": "Box", "driver": "1", "date": "today", "argv": ["--runs", "2"]}


@pytest.fixture
def small(monkeypatch):
    """The bench with little rows."""
    for name, value in (("WARM_PROMPT", 64), ("SHORT_PROMPT", 20), ("GATE_MIN_SQ", 64)):
        monkeypatch.setattr(bench_part, name, value)
    monkeypatch.setattr(bench, "WORKLOADS", dict(WORKLOADS, **SMALL))


def measure(engine, part, arms=",".join(bench.ARMS), seconds=1000, n=2, runs=2, workloads=",".join(SMALL), done=None, more=()):
    engine.start()
    args = bench.arguments(["--arms", arms, "--workloads", workloads, "--n", str(n), "--runs", str(runs), "--job", part, *more])
    args.seconds = seconds
    records = []
    part = bench.Part(args, FakeEngine(engine, args.model), RUN, records.append, done)
    return part, part.measure(), records


def cells(records):
    return [bench.cell(record)[2:5] for record in records]


def test_all_cells_of_glm(engine, small):
    part, errors, records = measure(engine, "glm")
    assert errors == []
    loop = [cell for cell in cells(records) if cell[0] == "C16x8kx48"]
    assert loop[:3] == [("C16x8kx48", "indexer", arm) for arm in bench_part.MAIN_ARMS]  # then backwards
    assert loop[6:9] == [("C16x8kx48", "indexer", arm) for arm in reversed(bench_part.MAIN_ARMS)] and len(loop) == 12
    assert set(cells(records)) - set(loop) == {("cold8k", lists, arm) for lists in bench.LISTS for arm in bench.ARMS} | {
        ("short-after-8k", lists, arm) for lists in bench.LISTS for arm in bench.ARMS}
    one = next(r for r in records if r["path"] == "auto-shared" and r["case"]["workload"] == "cold8k")
    assert one["engine"]["ttft_ms"]["p50"] == 250 and one["time"]["n"] == 2 and one["engine"]["attention_calls"] == 2
    assert one["parity"]["status"] == "pass" and one["parity"]["compared_calls"] == 2 and one["work"]["plans"]["shared"] > 0
    assert one["provider"] == "fewhead" and one["note"] == bench_part.NOTE and one["case"]["prompt"] == 64
    runs = [r for r in records if r["path"] == "flashmla" and "concurrency" in r["case"] and r["case"]["lists"] == "local"]
    assert [r["repeat"] for r in runs] == [1, 2] and {r["engine"]["failed"] for r in runs} == {0}
    for r in runs:
        assert "time" not in r and r["engine"]["total_tok_s"] > r["engine"]["output_tok_s"] > 0 and r["engine"]["tpot_ms"]["n"] == 3
    assert runs[0]["work"] == runs[1]["work"] and sum(runs[0]["work"]["declined"].values()) == 8  # of this run alone: 3 prompts, 1 step, 2 layers
    short = next(r for r in records if r["case"]["workload"] == "short-after-8k")
    assert short["engine"]["ttft_ms"]["n"] == 2 and short["engine"]["ttft_alone_ms"]["p50"] == 250 and short["case"]["before"] == 64
    assert part.total["flashmla"]["calls"] == {} and set(part.total["flashmla"]["declined"]) == {"VLLM_DSV41_FEWHEAD_PREFILL is off"}
    assert part.total["fa3"]["fa3_calls"] > 0 and part.total["fa3"]["calls"] == {} and set(part.total["gate"]["declined"]) == {"s_q below 64"}
    assert part.total["gather"]["declined"] == {} and part.total["auto"]["plans"] == {"built": 0, "shared": 0}


def test_what_is_there_is_not_measured_again(engine, small):
    _, _, first = measure(engine, "glm", arms="flashmla,auto-shared", runs=1)
    done = bench.runs_of(first)
    assert done[("glm-5.2 tp8", 2, "C16x8kx48", "local", "flashmla", "eager")] == 1
    _, errors, more = measure(engine, "glm", arms="flashmla,auto-shared", runs=2, done=done)
    assert errors == [] and {(r["case"]["workload"], r["repeat"]) for r in more} == {("C16x8kx48", 2)} and len(more) == 4
    part, errors, none = measure(engine, "glm", arms="flashmla,auto-shared", runs=1, done=done)
    assert none == [] and errors == [] and part.warmed == set()


@pytest.mark.parametrize("part, arms", [("check", bench.ARMS), ("v4", tuple(arm for arm in bench.ARMS if arm != "fa3"))])
def test_the_other_parts(engine, small, part, arms):
    _, errors, records = measure(engine, part, n=1)
    assert errors == [] and set(cells(records)) == {("cold8k", lists, arm) for lists in bench.LISTS for arm in arms}
    assert {r["parity"]["status"] for r in records} == {"pass"} and len(records) == 2 * len(arms)


@pytest.fixture
def started(engine, monkeypatch):
    """The bench starts a FakeEngine, and its turn comes at once."""
    import io

    import bench_engine
    import stub
    stub.build(str(engine.folder))

    class Started(FakeEngine):
        def __init__(self, args, config, backend="flashmla", **options):
            super().__init__(engine, args.model)
            self.backend = backend
            if options:  # a graph records a step
                assert options == bench_engine.GRAPHS and args.graphs and len(args.arms) == 1
                self.step(2)
            assert config["num_hidden_layers"] == (78 if args.part == "glm" else 6)

        def versions(self):
            return {"vllm": "0.26.0", "torch": torch.__version__, "device": "Box", "capability": "9.0"}

    monkeypatch.setattr(bench_engine, "Engine", Started)
    monkeypatch.setattr(bench_engine, "ensure_cuda", lambda: None)
    monkeypatch.setattr(bench_engine, "set_environment", lambda home: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("900\n"))


def run_job(folder, job, *more):
    args = bench.arguments(["--out", str(folder), "--workloads", ",".join(SMALL), "--n", "1", "--runs", "1", "--job", job, *more])
    return args, bench.run_job(args)


@pytest.mark.parametrize("part", bench.PARTS)
def test_a_part_as_a_whole(started, small, tmp_path, capsys, part):
    args, status = run_job(tmp_path, part)
    assert status == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("fewhead (vLLM 0.26.0): patched V3.2 and GLM, V4; rule auto")
    assert out[1].startswith(f"started {part} in ") and out[-1] == f"job {part}: ok"
    assert sum(line.startswith("TTFT cold8k ") for line in out) == (10 if part == "v4" else 12)
    assert sum(line.startswith("LOOP C16x8kx48 ") for line in out) == (6 if part == "glm" else 0)
    records = bench.collect(args)
    assert len(records) == (30 if part == "glm" else 10 if part == "v4" else 12) and records[0]["run"]["device"] == "Box"
    assert bench.markdown(records, []).startswith("# vLLM with and without fewhead\n\nBox, driver ")
    args.resume = True
    assert bench.collect(args) == records and bench.lines_of(str(tmp_path / "engine.jsonl")) == records


@pytest.mark.parametrize("arm", bench_part.MAIN_ARMS)
def test_decode_steps_as_graphs(started, small, tmp_path, capsys, arm):
    args, status = run_job(tmp_path, f"glm-{arm}", "--graphs", ",".join(bench_part.MAIN_ARMS))
    out = capsys.readouterr().out
    assert status == 0 and f"recorded in graphs, {arm}: " in out and out.endswith(f"job glm-{arm}: ok\n")
    records = bench.collect(args)
    assert [(r["path"], r["case"]["workload"], r["case"]["lists"], r["case"]["decode"]) for r in records] == [
        (arm, name, "indexer", "graphs") for name in ("cold8k", "short-after-8k", "C16x8kx48")]
    assert records[0]["note"].endswith("; the steps of a graph are not counted")
    assert "C16x8kx48, indexer lists, decode steps as CUDA graphs\n" in bench.markdown(records, [])
    assert bench.cell(records[0])[-1] == "graphs" and bench.cell(dict(records[0], case=dict(records[0]["case"], decode="eager")))[-1] == "eager"


def test_graphs_that_recorded_nothing_are_an_error(started, small, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeEngine, "step", lambda self, rows: None)
    with pytest.raises(bench.BenchError, match="no graph was recorded: arm auto-shared routed nothing"):
        run_job(tmp_path, "glm-auto-shared", "--graphs", "auto-shared")


def test_jobs():
    def jobs(*words):
        return bench.jobs_of(bench.arguments(list(words)))
    assert jobs() == ["check", "glm", "v4"]
    assert jobs("--graphs", "fa3,auto-shared", "--parts", "v4,glm") == ["v4", "glm-fa3", "glm-auto-shared"]


CHILD = """
import os, sys, time
job = sys.argv[sys.argv.index("--job") + 1]
if job == "check":
    sys.exit("no engine")
open(job, "w").close()
print("started", job, flush=True)
seconds = float(sys.stdin.readline())
print("TTFT", job, sorted(name for name in os.listdir() if name in ("glm", "v4")), flush=True)
"""


@pytest.mark.parametrize("together", [False, True])
def test_jobs_take_turns(tmp_path, monkeypatch, capsys, together):
    """Together, both engines run before the first measures; else each starts in its turn. A job that dies fails alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "child.py"))
    argv = ["--out", str(tmp_path / "out"), "--seconds", "300"] + (["--together"] if together else [])
    assert bench.run_jobs(bench.arguments(argv), argv) == ["job check: status 1"]
    out = capsys.readouterr().out
    assert f"TTFT glm {['glm', 'v4'] if together else ['glm']}" in out and "TTFT v4 ['glm', 'v4']" in out and "no engine" in out


def test_no_time_no_cells(engine, small):
    part, errors, records = measure(engine, "glm", seconds=0)
    assert records == [] and part.total == {} and errors == []


def test_progress_says_what_runs_of_how_much(engine, small, capsys):
    _, _, first = measure(engine, "glm", arms="flashmla,auto-shared", runs=1)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("now ")]
    assert lines[0] == "now 0/12 cold8k indexer flashmla" and lines[-1] == "now 11/12 C16x8kx48 local auto-shared"
    assert len(first) == 12
    measure(engine, "glm", arms="flashmla,auto-shared", runs=2, done=bench.runs_of(first))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("now ")]
    assert [line.split()[1] for line in lines] == ["0/4", "1/4", "2/4", "3/4"]


def test_progress_is_for_terminals(monkeypatch, capsys):
    bench.progress("3/12 cold8k")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bench.progress("3/12 cold8k")
    assert capsys.readouterr().err == "\r\033[K3/12 cold8k"


def test_an_arm_that_routed_nothing_is_an_error(engine, small):
    part, _, _ = measure(engine, "check", arms="flashmla,auto", n=1)
    part.total["auto"] = dict(part.total["auto"], calls={})
    assert [line.split(":")[0] for line in bench_part.counter_errors(part.total)] == ["arm auto routed nothing"]


def test_equal_counters_are_an_error(engine, small):
    part, _, _ = measure(engine, "check", arms="auto,gather", n=1)
    part.total["gather"] = part.total["auto"]
    assert [line.split(":")[0] for line in bench_part.counter_errors(part.total)] == ["arms auto and gather have equal counters"]


def test_an_error_inside_the_plug_in_is_no_result(engine, monkeypatch, small):
    import fewhead

    def broken(*a, **k):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(fewhead, "flash_mla_sparse_fwd", broken)
    with pytest.raises(bench.BenchError, match="arm auto: .*out of luck"):
        measure(engine, "check", arms="auto", n=1)


@pytest.mark.parametrize("argv", [["--arms", "fast"], ["--parts", ""], ["--workloads", "C3"], ["--n", "0"], ["--runs", "-1"], ["--lists", "x"],
                                  ["--graphs", "x"], ["--graphs", "fa3", "--lists", "local"], ["--graphs", "fa3", "--parts", "v4"]])
def test_wrong_arguments(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.arguments(argv)
    assert stopped.value.code == 2 and "wanted" in capsys.readouterr().err


def test_percentiles_interpolate():
    assert bench.percentile([4, 1, 2, 3], 50) == 2.5 and bench.percentile([7], 99) == 7 and bench.percentile([], 50) is None
    assert bench_part.summary([0.1, 0.3, None]) == {"mean": 200.0, "p50": 200.0, "p99": pytest.approx(298.0), "n": 2} and bench_part.summary([]) == {"n": 0}


def test_time_is_shared_out():
    jobs = ["check", "glm-fa3", "glm-auto", "v4"]
    assert [bench.share(job, 90, jobs) for job in jobs] == [90 * 2 / 9, 90 * 3 / 7, 90 * 3 / 4, 90]


def test_a_job_that_does_not_end_is_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "GRACE_SECONDS", 1)
    code = "import time; print('started', flush=True); print('other', flush=True); time.sleep(600)"
    child = bench.Child([sys.executable, "-c", code], None, str(tmp_path / "log"))
    child.started(time.monotonic() + 60)
    assert child.measure(time.monotonic() + 1) != 0
    assert child.last == ["started", "other"] and (tmp_path / "log").read_text() == "started\nother\n"
    shown = capsys.readouterr().out
    assert "started" in shown and "other" not in shown and "the time of this job is up" in shown


def test_records_and_tables(engine, small, tmp_path):
    _, _, records = measure(engine, "glm", arms="flashmla,auto-shared")
    args = SimpleNamespace(out=str(tmp_path), resume=False)
    with open(bench.job_file(str(tmp_path), "glm"), "w") as f:
        f.writelines(json.dumps(record) + "\n" for record in records)
        f.write('{"cut')
    assert bench.collect(args) == json.loads(json.dumps(records))
    for record, total in zip((r for r in records if "concurrency" in r["case"] and r["path"] == "flashmla"), (9000, 9100, 8000, 8000)):
        record["engine"]["total_tok_s"] = total
    text = bench.markdown(records, ["part v4: no time left"])
    assert "**part v4: no time left**" in text and "## glm-5.2 tp8, 2 layers, cold8k, local lists" in text and "`engines/vllm/bench.py --runs 2`" in text
    assert "| auto-shared | 2 | 250.0 (250.0 .. 250.0) | - | - | - | 1.0 | 2 | auto" in text and bench_part.NOTE in text
    assert "| flashmla | 2 | 250.0 (250.0 .. 250.0) | - | 10.00 (10.00 .. 10.00) | 8500 (8000 .. 9000) | - | - | none | the engine's | - |" in text
    assert bench.markdown([], []) == "# vLLM with and without fewhead\n"


def test_the_command_of_a_run():
    given = ["--out", "/here", "--seconds", "480", "--resume", "--site=/x", "--n", "3"]
    assert bench.repeatable(given) == ["--seconds", "480", "--resume", "--n", "3"]
    assert bench.repeatable([*given, "--job", "glm-fa3", "--graphs", "fa3"]) == ["--seconds", "480", "--resume", "--n", "3", "--graphs", "fa3"]


def test_the_environment_of_a_part(monkeypatch, tmp_path, capsys):
    import tarfile
    (tmp_path / "x.py").write_text("")
    with tarfile.open(tmp_path / "site.tar.xz", "w:xz") as tar:
        tar.add(tmp_path / "x.py", "x.py")
    monkeypatch.setenv("VLLM_DSV41_FEWHEAD_MINSQ", "0")
    args = SimpleNamespace(site=str(tmp_path / "site.tar.xz"), home=str(tmp_path / "home"))
    environ = bench.environment(args)
    assert str(tmp_path / "home" / "site") in environ["PYTHONPATH"].split(":") and (tmp_path / "home" / "site" / "x.py").exists()
    assert "VLLM_DSV41_FEWHEAD_MINSQ" not in environ and "VLLM_DSV41_FEWHEAD_MINSQ is not taken over" in capsys.readouterr().out
    bench.environment(args)
    assert "unpacked" not in capsys.readouterr().out


def test_lists_that_keep_90_percent():
    import bench_engine
    table = bench_engine.local_table(600, 64, 2)
    for position, row in enumerate(table):
        rows = (position + 1) // 2
        assert row.max() < max(rows, 1) and len(set(row[row >= 0].tolist())) == min(rows, 64)
    kept = [len(set(table[i]) & set(table[i - 1])) / 64 for i in range(200, 600)]
    assert 0.88 < sum(kept) / len(kept) < 0.93


def test_configs():
    import bench_engine
    glm, v4 = bench_engine.model_config("glm", 0), bench_engine.model_config("v4", 6)
    assert glm["num_hidden_layers"] == 78 and glm["first_k_dense_replace"] == 78 and glm["index_topk_freq"] == 4
    assert v4["compress_ratios"] == [0, 0, 4, 128, 4, 128] and v4["num_hidden_layers"] == 6
