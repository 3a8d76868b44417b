"""The bench with a stand-in for the engine: arms, counters, records, tables, time."""
import json
import sys
import time
from types import SimpleNamespace

import bench
import pytest
import torch
from conftest import draw
from test_calls import metadata, v32


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
        return 0.25 if tokens == 1 else seconds, [{"ttft": 0.25, "from_schedule": 0.2, "tpot": 0.01 if tokens > 1 else None, "tokens": [1] * tokens} for _ in prompts]


RUN = {"build": "fewhead 0.2.0", "vllm": "0.26.0", "device": "Box", "driver": "1", "date": "today"}


def measure(engine, monkeypatch, part, arms=",".join(bench.ARMS), seconds=1000, n=2):
    monkeypatch.setattr(bench, "GATE_MIN_SQ", 64)
    monkeypatch.setattr(bench, "WARM_PROMPT", 40)
    monkeypatch.setattr(bench, "WARM_TOKENS", 2)
    monkeypatch.setattr(bench, "SHORT_PROMPT", 20)
    engine.start()
    args = bench.arguments(["--arms", arms, "--lengths", "64", "--batch", "2x64x2", "--requests", "2", "--n", str(n)])
    args.model, args.part, args.seconds = "v4" if part == "v4" else "glm", part, seconds
    records = []
    part = bench.Part(args, FakeEngine(engine, args.model), RUN, records.append)
    return part, part.measure(), records


def test_all_cells_of_glm(engine, monkeypatch):
    part, errors, records = measure(engine, monkeypatch, "glm")
    assert errors == []
    cells = {(r["case"]["workload"], r["case"]["lists"], r["path"]) for r in records}
    assert cells == {("one prompt of 64", lists, arm) for lists in bench.LISTS for arm in bench.ARMS} | {
        ("C2 x 64 x 2", lists, arm) for lists in bench.LISTS for arm in bench.MAIN_ARMS}
    one = next(r for r in records if r["path"] == "auto-shared" and r["case"]["workload"].startswith("one"))
    assert one["engine"]["ttft_ms"]["p50"] == 250 and one["time"]["n"] == 2 and one["engine"]["attention_calls"] == 2
    assert one["parity"]["status"] == "pass" and one["parity"]["compared_calls"] == 2 and one["work"]["plans"]["shared"] > 0
    assert one["provider"] == "fewhead" and one["note"] == bench.NOTE
    batch = next(r for r in records if r["path"] == "flashmla" and "concurrency" in r["case"])
    assert "time" not in batch and batch["engine"]["total_tok_s"] > batch["engine"]["output_tok_s"] > 0 and batch["engine"]["tpot_ms"]["n"] == 2
    work = {arm: part.counters.of[arm] for arm in bench.ARMS}
    assert work["flashmla"]["calls"] == {} and set(work["flashmla"]["declined"]) == {"VLLM_DSV41_FEWHEAD_PREFILL is off"}
    assert work["fa3"]["fa3"] > 0 and work["fa3"]["calls"] == {} and set(work["gate"]["declined"]) == {"s_q below 64"}
    assert work["gather"]["declined"] == {} and work["auto"]["plans"] == {"built": 0, "shared": 0}


@pytest.mark.parametrize("part, arms", [("check", bench.ARMS), ("v4", tuple(arm for arm in bench.ARMS if arm != "fa3"))])
def test_the_other_parts(engine, monkeypatch, part, arms):
    _, errors, records = measure(engine, monkeypatch, part, n=1)
    assert errors == [] and {(r["case"]["lists"], r["path"]) for r in records} == {(lists, arm) for lists in bench.LISTS for arm in arms}
    assert {r["parity"]["status"] for r in records} == {"pass"}


@pytest.mark.parametrize("part", bench.PARTS)
def test_a_part_as_a_whole(engine, monkeypatch, tmp_path, capsys, part):
    import bench_engine
    import stub
    stub.build(str(engine.folder))

    class Started(FakeEngine):
        def __init__(self, args, config):
            super().__init__(engine, args.model)
            assert config["num_hidden_layers"] == (78 if args.part == "glm" else 6)

        def versions(self):
            return {"vllm": "0.26.0", "torch": torch.__version__, "device": "Box", "capability": "9.0"}

    for name, value in (("WARM_PROMPT", 40), ("WARM_TOKENS", 2), ("SHORT_PROMPT", 20), ("GATE_MIN_SQ", 64)):
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench_engine, "Engine", Started)
    monkeypatch.setattr(bench_engine, "ensure_cuda", lambda: None)
    monkeypatch.setattr(bench_engine, "set_environment", lambda home: None)
    args = bench.arguments(["--out", str(tmp_path), "--lengths", "64", "--batch", "2x64x2", "--requests", "2", "--n", "1", "--part", part])
    assert bench.run_part(args) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("fewhead (vLLM 0.26.0): patched V3.2 and GLM, V4; rule auto")
    assert out[1].startswith(f"started {part} in ") and out[-1] == f"part {part}: ok"
    assert sum(line.startswith("TTFT 64 ") for line in out) == (10 if part == "v4" else 12)
    assert sum(line.startswith("BATCH ") for line in out) == (6 if part == "glm" else 0)
    records = bench.collect(args)
    assert len(records) == (18 if part == "glm" else 10 if part == "v4" else 12) and records[0]["run"]["device"] == "Box"
    assert bench.markdown(records, []).startswith("# vLLM with and without fewhead\n\nBox, driver ")


def test_no_time_no_cells(engine, monkeypatch):
    part, errors, records = measure(engine, monkeypatch, "glm", seconds=0)
    assert records == [] and part.counters.of == {}


def test_an_arm_that_routed_nothing_is_an_error(engine, monkeypatch):
    part, _, _ = measure(engine, monkeypatch, "check", arms="flashmla,auto", n=1)
    part.counters.of["auto"] = dict(part.counters.of["auto"], calls={})
    assert [line.split(":")[0] for line in part.counters.errors(part.arms)] == ["arm auto routed nothing"]


def test_equal_counters_are_an_error(engine, monkeypatch):
    part, _, _ = measure(engine, monkeypatch, "check", arms="auto,gather", n=1)
    part.counters.of["gather"] = part.counters.of["auto"]
    assert [line.split(":")[0] for line in part.counters.errors(part.arms)] == ["arms auto and gather have equal counters"]


def test_an_error_inside_the_plug_in_is_no_result(engine, monkeypatch):
    import fewhead

    def broken(*a, **k):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(fewhead, "flash_mla_sparse_fwd", broken)
    with pytest.raises(bench.BenchError, match="arm auto: .*out of luck"):
        measure(engine, monkeypatch, "check", arms="auto", n=1)


def test_arms_take_turns_both_ways(engine, monkeypatch):
    part, _, _ = measure(engine, monkeypatch, "check", arms="auto,gather", n=1, seconds=0)
    assert part.turns(["a", "b"], 0) == ["a", "b"] and part.turns(["a", "b"], 1) == ["b", "a"]


@pytest.mark.parametrize("argv", [["--arms", "fast"], ["--parts", ""], ["--batch", "3x4"], ["--lengths", "0"], ["--lists", "x"]])
def test_wrong_arguments(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.arguments(argv)
    assert stopped.value.code == 2 and "wanted" in capsys.readouterr().err


def test_percentiles_interpolate():
    assert bench.percentile([4, 1, 2, 3], 50) == 2.5 and bench.percentile([7], 99) == 7 and bench.percentile([], 50) is None
    assert bench.summary([0.1, 0.3, None]) == {"mean": 200.0, "p50": 200.0, "p99": pytest.approx(298.0), "n": 2} and bench.summary([]) == {"n": 0}


def test_time_is_shared_out():
    parts = ["check", "glm", "v4"]
    assert bench.share("check", 400, parts) == 400 * bench.CHECK_SHARE
    assert bench.share("glm", 300, parts) == 300 - bench.V4_SECONDS and bench.share("v4", 90, parts) == 90
    assert bench.share("check", 100, ["check"]) == 100


def test_a_part_that_does_not_end_is_ended(tmp_path, capsys):
    import subprocess
    code = "import time; print('TTFT one', flush=True); print('other', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with open(tmp_path / "log", "w") as log:
        status, last = bench.follow(child, log, time.monotonic() + 2)
    assert status != 0 and last == ["TTFT one", "other"] and (tmp_path / "log").read_text() == "TTFT one\nother\n"
    shown = capsys.readouterr().out
    assert "TTFT one" in shown and "other" not in shown and "the time of this part is up" in shown


def test_records_and_tables(engine, monkeypatch, tmp_path):
    _, _, records = measure(engine, monkeypatch, "glm", arms="flashmla,auto-shared")
    args = SimpleNamespace(out=str(tmp_path), part="glm")
    with open(bench.part_file(args), "w") as f:
        f.writelines(json.dumps(record) + "\n" for record in records)
        f.write('{"cut')
    assert bench.collect(args) == json.loads(json.dumps(records))
    text = bench.markdown(records, ["part v4: no time left"])
    assert "**part v4: no time left**" in text and "## glm-5.2 tp8, 2 layers, one prompt of 64, local lists" in text
    assert "| auto-shared | 250.0 | 200.0 | 250.0, 250.0 | - | - | 1.0 | 2 | auto" in text and bench.NOTE in text
    assert bench.markdown([], []) == "# vLLM with and without fewhead\n"


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
