"""vLLM's own attention against fewhead's plug-in, in turns on the same prompts: TTFT, TPOT, throughput, attention time, calls by path.

    python3 engines/vllm/bench.py --out results/nvidia-h200 --seconds 480 [--site ARCHIVE] [--parts check,glm,v4] [--commit HASH]

Needs vLLM 0.26, fewhead and fewhead_vllm in this Python (installed, or build/python and build/vllm of `make stage-vllm` on PYTHONPATH).
--site: a .tar.xz of a site-packages folder, unpacked once into --home and put on the path behind these.

Parts, each a process of its own, the most valuable first; none starts when the time is up, and what was measured is written at once:
  check  GLM with 6 layers, all arms, every call compared with the engine's own kernel
  glm    GLM-5.2's rank, 78 layers: TTFT of one prompt, then a closed loop of --batch
  v4     V4-Flash's rank with 6 layers: attention times

Arms: flashmla (vLLM's padded FlashMLA), fa3 (what vLLM takes by itself on Hopper: FA3 sparse, native heads), gate (the published rule, gather from
2048 rows on), gather (every call), auto (the cost model, a plan a call), auto-shared (one plan for layers that share a list: the plug-in's
default). Lists: "indexer", those of the random-weight indexer, and "local", which keep 90 % from row to row.

Definitions are vLLM's (vllm bench serve). TTFT = first token - sent; ttft_from_schedule is the engine's own clock and leaves out the queue. Attention is the sum
over all calls of a prompt by CUDA events, in a run of its own. Two arms with equal counters, or an arm that routed nothing, are an error, and no
result. Writes FOLDER/engine.jsonl and FOLDER/engine.md.
"""
import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKOUT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

ARMS = ("flashmla", "fa3", "gate", "gather", "auto", "auto-shared")
MAIN_ARMS = ("flashmla", "fa3", "auto-shared")
FEWHEAD_ARMS = ("gate", "gather", "auto", "auto-shared")
LISTS = ("indexer", "local")
PARTS = ("check", "glm", "v4")
GATE_MIN_SQ = 2048
WARM_PROMPT, WARM_TOKENS = 1024, 16
SHORT_PROMPT = 512  # below the gate
MARGIN_S = 3          # left between the last measurement and the end
CHECK_SHARE = 0.35    # of the time, at most, for the part check; v4 keeps V4_SECONDS
V4_SECONDS = 130
NOTE = "one rank: no all-reduce; dense MLP of the experts' FLOPs; random weights"
NOTE_V4 = "one rank: no all-reduce; few experts; hyper-connections are a stand-in, so TTFT is not a V4's; random weights"


class BenchError(Exception):
    """Why there is no result, in one line."""


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", default="results/local/engine", help="folder for engine.jsonl and engine.md")
    p.add_argument("--seconds", type=float, default=480, help="time for everything")
    p.add_argument("--parts", default=",".join(PARTS))
    p.add_argument("--arms", default=",".join(ARMS))
    p.add_argument("--lists", default=",".join(LISTS))
    p.add_argument("--layers", type=int, default=0, help="of part glm; 0: 78")
    p.add_argument("--lengths", default="8192", help="prompt lengths for TTFT")
    p.add_argument("--n", type=int, default=3, help="prompts a length and arm")
    p.add_argument("--batch", default="16x8192x64", help="CONCURRENCYxPROMPTxOUTPUT of the closed loop")
    p.add_argument("--requests", type=int, default=16, help="requests of the closed loop")
    p.add_argument("--chunk", type=int, default=8192, help="tokens of a step at most")
    p.add_argument("--kv-gib", type=float, default=20)
    p.add_argument("--site", default="", help="archive of a site-packages folder")
    p.add_argument("--home", default=os.path.join(os.path.expanduser("~"), "engine"), help="where --site is unpacked and kernels are kept")
    p.add_argument("--commit", default="", help="of the checkout, where there is no git")
    p.add_argument("--part", default="", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    for name, known in (("parts", PARTS), ("arms", ARMS), ("lists", LISTS)):
        given = [text for text in getattr(args, name).split(",") if text]
        wrong = [text for text in given if text not in known]
        if wrong or not given:
            p.error(f"--{name}: got {getattr(args, name)!r}, wanted some of {','.join(known)}")
        setattr(args, name, given)
    try:
        args.lengths = [int(text) for text in args.lengths.split(",")]
        args.batch = [int(text) for text in args.batch.split("x")]
        if len(args.batch) != 3 or min(args.lengths + args.batch) < 1 or args.n < 1:
            raise ValueError
    except ValueError:
        p.error("--lengths, --batch, --n: wanted numbers from 1 on such as 8192,32768 and 16x8192x64")
    return args


# ---- One part: an engine in this process


def settings_of(arm):
    """What the plug-in does in an arm."""
    from fewhead_vllm._settings import AUTO, GATE, OFF, Settings
    return {
        "flashmla": Settings(rule=OFF), "fa3": Settings(rule=OFF), "gate": Settings(rule=GATE, min_sq=GATE_MIN_SQ),
        "gather": Settings(rule=AUTO, path="gather"), "auto": Settings(rule=AUTO, share_plans=False), "auto-shared": Settings(rule=AUTO),
    }[arm]


def percentile(values, q):
    """By linear interpolation between the sorted samples; None without any."""
    values = sorted(values)
    if not values:
        return None
    at = (len(values) - 1) * q / 100
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def summary(seconds):
    """{mean, p50, p99, n} in milliseconds."""
    ms = [one * 1e3 for one in seconds if one is not None]
    if not ms:
        return {"n": 0}
    return {"mean": sum(ms) / len(ms), "p50": percentile(ms, 50), "p99": percentile(ms, 99), "n": len(ms)}


class Counters:
    """What ran, by arm: the plug-in's counters and the bench's own."""

    def __init__(self):
        self.of = {}

    def add(self, arm, counts, kernels, fa3_calls):
        total = self.of.setdefault(arm, {"calls": {}, "rows": {}, "declined": {}, "plans": {"built": 0, "shared": 0}, "kernels": {}, "fa3": 0})
        for form in ("calls", "rows"):
            for paths in counts[form].values():
                for path, n in paths.items():
                    total[form][path] = total[form].get(path, 0) + n
        for reasons in counts["declined"]["calls"].values():
            for reason, n in reasons.items():
                total["declined"][reason] = total["declined"].get(reason, 0) + n
        for how, n in counts["plans"].items():
            total["plans"][how] += n
        for kernel, n in kernels.items():
            total["kernels"][kernel] = total["kernels"].get(kernel, 0) + n["calls"]
        total["fa3"] += fa3_calls

    def errors(self, arms):
        """Lines: arms that routed nothing, arms with equal counters."""
        lines, seen = [], {}
        for arm in arms:
            total = self.of.get(arm)
            if total is None:
                continue
            ran = {"flashmla": sum(total["declined"].values()), "fa3": total["fa3"]}.get(arm, sum(total["calls"].values()))
            if not ran:
                lines.append(f"arm {arm} routed nothing: {json.dumps(total)}")
            mark = json.dumps(total, sort_keys=True)
            if mark in seen:
                lines.append(f"arms {seen[mark]} and {arm} have equal counters: {mark}")
            seen.setdefault(mark, arm)
        return lines


class Part:
    """The measurements of one part. engine: a bench_engine.Engine, or what stands for one in the tests."""

    def __init__(self, args, engine, run, emit):
        self.args, self.engine, self.run, self.emit = args, engine, run, emit
        self.model = args.model
        self.layers = engine.config["num_hidden_layers"]
        wanted = [arm for arm in args.arms if arm != "fa3" or self.model == "glm"]
        self.arms = [arm for arm in wanted if arm in MAIN_ARMS] + [arm for arm in wanted if arm not in MAIN_ARMS]
        self.deadline = time.monotonic() + args.seconds - MARGIN_S
        self.counters, self.parity, self.took = Counters(), {}, {}

    # -- One run of an arm

    def use(self, arm, check=False):
        import fewhead
        from fewhead_vllm._register import router
        from fewhead_vllm._stats import STATS
        STATS.reset()
        fewhead.reset_stats()
        router().use(settings_of(arm)._replace(check_every=1 if check else 0))
        self.engine.backend = "fa3" if arm == "fa3" else "flashmla"
        self.engine.fa3_calls, self.engine.check_fa3 = 0, check and arm == "fa3"

    def generate(self, arm, lists, prompts, tokens, check=False):
        import fewhead
        from fewhead_vllm._stats import STATS
        self.engine.use_lists(lists)
        self.use(arm, check)
        seconds, requests = self.engine.generate(prompts, tokens)
        counts = STATS.counts()
        if not check:
            self.counters.add(arm, counts, fewhead.stats()["kernels"], self.engine.fa3_calls)
        if counts["errors"] or counts["off"]:
            raise BenchError(f"arm {arm}: {counts['errors'] or counts['off']}")
        if check and arm in FEWHEAD_ARMS:
            known = self.parity.setdefault(arm, {"calls": 0, "off": 0, "worst_abs": 0.0, "worst_rel": 0.0})
            for key in ("calls", "off"):
                known[key] += counts["check"][key]
            for key in ("worst_abs", "worst_rel"):
                known[key] = max(known[key], counts["check"][key])
        return seconds, requests

    def room(self, key):
        """Is there time for as long as a measurement of this kind took?"""
        return time.monotonic() + self.took.get(key, 0) < self.deadline

    def turns(self, arms, i):
        """The arms in turns, forwards and backwards."""
        return arms if i % 2 == 0 else list(reversed(arms))

    # -- Records

    def parity_of(self, arm):
        if arm == "flashmla":
            return {"status": "pass", "against": "flashmla", "reason": "the reference itself"}
        if arm == "fa3":
            worst = self.engine.fa3_worst
            return {"status": "invalid", "reason": "not compared in this part"} if worst is None else {
                "status": "pass", "against": "flashmla", "max_abs": worst}
        known = self.parity.get(arm)
        if not known or not known["calls"]:
            return {"status": "invalid", "reason": "not compared in this part"}
        return {"status": "fail" if known["off"] else "pass", "against": "flashmla", "compared_calls": known["calls"],
                "max_abs": known["worst_abs"], "rel": known["worst_rel"]}

    def record(self, arm, lists, workload, figures, time_us=None):
        total, config, parity = self.counters.of[arm], self.engine.config, self.parity_of(arm)
        record = {
            "kind": "engine", "path": arm, "provider": "fewhead" if arm in FEWHEAD_ARMS else "vllm",
            "provider_version": self.run["build"] if arm in FEWHEAD_ARMS else self.run["vllm"],
            "case": {"model": {"glm": "glm-5.2 tp8", "v4": "v4-flash tp8"}[self.model], "layers": self.layers, "h_q": 8,
                     "d_qk": 576 if self.model == "glm" else 512, "index_topk": config["index_topk"], "lists": lists, "chunk": self.args.chunk,
                     **workload},
            "parity": parity, "engine": figures,
            "work": {"calls": dict(total["calls"]), "rows": dict(total["rows"]), "declined": dict(total["declined"]),
                     "plans": dict(total["plans"]), "kernels": dict(total["kernels"]), "fa3_calls": total["fa3"]},
            "note": NOTE if self.model == "glm" else NOTE_V4, "part": self.args.part, "run": self.run,
        }
        if time_us and parity["status"] == "pass":  # a result that nobody compared has no time in a record
            record["time"] = time_us
        self.emit(record)

    # -- Measurements

    def warm(self, arms, lists, batch):
        """Compile and take memory, compare calls with the engine's own kernel; nothing here is timed."""
        for arm in arms:
            if not self.room("warm"):
                return
            began = time.monotonic()
            length = self.args.lengths[0]
            for check in (False, True):
                self.generate(arm, lists, [(length, 1)], 1, check)
            self.generate(arm, lists, [(SHORT_PROMPT, 7)], 1)
            if batch:
                self.generate(arm, lists, [(WARM_PROMPT, 90 + i) for i in range(self.args.batch[0])], WARM_TOKENS)
            self.took["warm"] = max(self.took.get("warm", 0), time.monotonic() - began)
            print(f"warm {arm} {lists}: {time.monotonic() - began:.1f} s; parity {json.dumps(self.parity_of(arm))}", flush=True)

    def ttft(self, arms, lists, length):
        if not arms or not self.room("ttft"):
            return
        samples = {arm: [] for arm in arms}
        queue = {arm: [] for arm in arms}
        for arm in arms:
            self.generate(arm, lists, [(length, 99)], 1)
        for i in range(self.args.n):
            for arm in self.turns(arms, i):
                if self.room("ttft"):
                    began = time.monotonic()
                    seconds, requests = self.generate(arm, lists, [(length, 100 + i)], 1)
                    samples[arm].append(seconds)  # the answer has one token: sent to first token, as the client sees it
                    queue[arm].append(requests[0]["from_schedule"])
                    self.took["ttft"] = max(self.took.get("ttft", 0), time.monotonic() - began)
        for arm in arms:
            if not samples[arm]:
                continue
            attention = self.attention(arm, lists, length)
            us = [one * 1e6 for one in samples[arm]]
            figures = {"ttft_ms": summary(samples[arm]), "ttft_from_schedule_ms": summary(queue[arm]),
                       "ttft_runs_ms": [one * 1e3 for one in samples[arm]], **attention}
            self.record(arm, lists, {"workload": f"one prompt of {length}", "requests": 1, "prompt": length, "output": 1}, figures,
                        {"median_us": percentile(us, 50), "p05_us": percentile(us, 5), "p95_us": percentile(us, 95), "n": len(us)})
            print(f"TTFT {length} {self.model} {self.layers} layers {lists} {arm}: median {percentile(us, 50) / 1e3:.1f} ms of {len(us)} "
                  f"({min(us) / 1e3:.1f} .. {max(us) / 1e3:.1f}); attention {attention['attention_ms']:.1f} ms in {attention['attention_calls']} "
                  "calls", flush=True)

    def attention(self, arm, lists, length):
        """The attention calls of one prompt, by events."""
        self.engine.timer.on = True
        try:
            self.generate(arm, lists, [(length, 100)], 1)
            times = self.engine.timer.milliseconds()
        finally:
            self.engine.timer.on = False
        return {"attention_ms": sum(times), "attention_calls": len(times), "attention_call_us": summary([one / 1e3 for one in times])}

    def batch(self, arms, lists):
        concurrency, prompt, output = self.args.batch
        count = self.args.requests
        prompts = [(prompt, 1000 + i) for i in range(count)]
        for arm in arms:
            if not self.room("batch"):
                print(f"no time left for BATCH {lists} {arm}", flush=True)
                return
            began = time.monotonic()
            seconds, requests = self.generate(arm, lists, prompts, output)
            self.took["batch"] = max(self.took.get("batch", 0), time.monotonic() - began)
            figures = {
                "seconds": seconds, "total_tok_s": count * (prompt + output) / seconds, "output_tok_s": count * output / seconds,
                "ttft_ms": summary([one["ttft"] for one in requests]),
                "ttft_from_schedule_ms": summary([one["from_schedule"] for one in requests]),
                "tpot_ms": summary([one["tpot"] for one in requests]), "failed": 0}
            self.record(arm, lists, {"workload": f"C{concurrency} x {prompt} x {count}", "requests": count, "prompt": prompt,
                                     "output": output, "concurrency": concurrency}, figures)
            print(f"BATCH C{concurrency} x {prompt} x {count} {lists} {arm}: {figures['total_tok_s']:.0f} total tok/s, TTFT p50 "
                  f"{figures['ttft_ms']['p50']:.0f} ms ({figures['ttft_from_schedule_ms']['p50']:.0f} from schedule), TPOT p50 "
                  f"{figures['tpot_ms'].get('p50') or 0:.2f} ms", flush=True)

    def measure(self):
        """The part's cells, the most valuable first; the errors of its counters."""
        main = [arm for arm in self.arms if arm in MAIN_ARMS] or self.arms
        others = [arm for arm in self.arms if arm not in main]
        if self.args.part == "glm":
            self.warm(main, self.args.lists[0], True)
            for lists in self.args.lists:
                self.ttft(main, lists, self.args.lengths[0])
            for lists in self.args.lists:
                self.batch(main, lists)
            if others and self.room("warm"):
                self.warm(others, self.args.lists[0], True)
                for lists in self.args.lists:
                    self.ttft([arm for arm in others if arm in self.counters.of], lists, self.args.lengths[0])
            for length in self.args.lengths[1:]:
                for lists in self.args.lists:
                    self.ttft(main, lists, length)
        else:
            self.warm(self.arms, self.args.lists[0], True)
            warmed = [arm for arm in self.arms if arm in self.counters.of]
            for lists in self.args.lists:
                self.ttft(warmed, lists, self.args.lengths[0])
        return self.counters.errors(self.arms)


def run_part(args):
    """Start an engine, measure, print; the exit status."""
    began = time.monotonic()
    import bench_engine
    args.model = "v4" if args.part == "v4" else "glm"
    layers = 6 if args.part in ("check", "v4") else args.layers
    bench_engine.set_environment(args.home)
    bench_engine.ensure_cuda()
    import fewhead
    import fewhead_vllm
    fewhead_vllm.register()
    start = fewhead_vllm.stats()
    print(start["line"], flush=True)
    if not {"glm": "v32", "v4": "v4"}[args.model] in start["patched"]:
        raise BenchError(f"the plug-in did not patch this model: {start['line']}")
    engine = bench_engine.Engine(args, bench_engine.model_config(args.model, layers))
    run = header(args, fewhead.build_info(), engine.versions())
    print(f"started {args.part} in {time.monotonic() - began:.1f} s: vLLM {run['vllm']}, {run['build']}, {run['device']}", flush=True)
    with open(part_file(args), "w", encoding="utf-8") as f:
        def emit(record):
            f.write(json.dumps(record) + "\n")
            f.flush()

        args.seconds -= time.monotonic() - began
        part = Part(args, engine, run, emit)
        errors = part.measure()
    for line in errors:
        print("ERROR", line, flush=True)
    for arm, total in part.counters.of.items():
        print(f"calls {arm}: {json.dumps(total)}", flush=True)
    off = [arm for arm in part.arms if part.parity_of(arm)["status"] == "fail"]
    print(f"part {args.part}: {'ERRORS, no result' if errors or off else 'ok'}", flush=True)
    return 1 if errors or off else 0


# ---- All parts


def part_file(args, part=None):
    return os.path.join(args.out, f"engine.{part or args.part}.part")


def header(args, build, versions):
    """The header of a run, as lua/fewhead/record/run.lua has it."""
    date = datetime.datetime.now(datetime.timezone.utc)
    commit = args.commit or commit_of(build)
    return {"id": date.strftime("%Y%m%dT%H%M%SZ") + "-" + os.urandom(4).hex(), "commit": commit, "date": date.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "argv": [one for one in sys.argv[1:]], "kind": "cuda", "build": build, "driver": driver(), **versions}


def commit_of(build):
    found = [word for word in build.replace(",", "").split() if len(word) >= 12 and all(c in "0123456789abcdef" for c in word)]
    return found[0] if found else "unknown"


def driver():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                              timeout=20).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return ""


def unpack(archive, home):
    """The folder that the archive was unpacked into, once."""
    site, mark = os.path.join(home, "site"), os.path.join(home, "unpacked")
    wanted = f"{os.path.getsize(archive)} {os.path.basename(archive)}"
    if not os.path.exists(mark) or open(mark, encoding="utf-8").read() != wanted:
        began = time.monotonic()
        os.makedirs(site, exist_ok=True)
        with tarfile.open(archive, "r:*") as tar:
            tar.extractall(site, filter="data")
        with open(mark, "w", encoding="utf-8") as f:
            f.write(wanted)
        print(f"unpacked {archive} in {time.monotonic() - began:.1f} s", flush=True)
    return site


def environment(args):
    """For the parts: the path, and the CUDA toolkit that DeepGEMM and Triton compile with."""
    environ = dict(os.environ, PYTHONUNBUFFERED="1")
    path = [os.path.join(CHECKOUT, "build", name) for name in ("python", "vllm") if os.path.isdir(os.path.join(CHECKOUT, "build", name))]
    if args.site:
        path.append(unpack(args.site, args.home))
    environ["PYTHONPATH"] = os.pathsep.join(path + [one for one in [os.environ.get("PYTHONPATH", "")] if one])
    compiler = shutil.which("nvcc")
    environ.setdefault("CUDA_HOME", os.path.dirname(os.path.dirname(os.path.realpath(compiler))) if compiler else "/usr/local/cuda")
    environ["PATH"] = os.path.join(environ["CUDA_HOME"], "bin") + os.pathsep + environ.get("PATH", "")
    for name in list(environ):
        if name.startswith(("VLLM_DSV41_FEWHEAD", "FEWHEAD_CHECK", "FEWHEAD_CAPTURE", "VLLM_PLUGINS")):
            print(f"{name} is not taken over: the arms set it", flush=True)
            del environ[name]
    return environ


def share(part, left, parts):
    """Seconds for a part, of those that are left."""
    later = parts[parts.index(part) + 1:]
    if part == "check" and later:
        return left * CHECK_SHARE
    return left - (V4_SECONDS if "v4" in later else 0)


def run_parts(args, argv):
    """All parts in turn; [lines of parts that failed]."""
    began, failed = time.monotonic(), []
    os.makedirs(args.out, exist_ok=True)
    environ = environment(args)
    for part in args.parts:
        seconds = share(part, args.seconds - (time.monotonic() - began), args.parts)
        if seconds < 20:
            failed.append(f"part {part}: no time left")
            continue
        print(f"== part {part}, {seconds:.0f} s", flush=True)
        if os.path.exists(part_file(args, part)):
            os.remove(part_file(args, part))
        with open(os.path.join(args.out, f"engine.{part}.log"), "w", encoding="utf-8") as log:
            child = subprocess.Popen([sys.executable, os.path.abspath(__file__), *argv, "--part", part, "--seconds", str(seconds)], env=environ,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            status, last = follow(child, log, time.monotonic() + seconds + 15)
        if status:
            failed.append(f"part {part}: status {status}")
            print("\n".join(last), flush=True)
    return failed


SHOWN = ("fewhead", "warm", "TTFT", "BATCH", "ERROR", "calls", "part", "started", "unpacked", "no time", "Bench")


def follow(child, log, deadline):
    """(exit status, last lines) of a part. Its output goes into the log, what counts is shown. It is ended at the deadline."""
    import threading
    last = []

    def end():
        if child.poll() is None:
            print("the time of this part is up: ended", flush=True)
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    for line in child.stdout:
        log.write(line)
        log.flush()
        last = (last + [line.rstrip("\n")])[-25:]
        if line.startswith(SHOWN):
            print(line, end="", flush=True)
    timer.cancel()
    return child.wait(), last


def collect(args):
    """Records of the parts, in one file; the records."""
    records = []
    for part in PARTS:
        if os.path.exists(part_file(args, part)):
            with open(part_file(args, part), encoding="utf-8") as f:
                records += [json.loads(line) for line in f if line.endswith("\n")]
            os.remove(part_file(args, part))
    with open(os.path.join(args.out, "engine.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(record) + "\n" for record in records)
    return records


def markdown(records, failed):
    """The tables of engine.md."""
    def number(value, form):
        return "-" if value is None else form % value

    lines = ["# vLLM with and without fewhead", ""]
    if records:
        run = records[0]["run"]
        lines += [f"{run['device']}, driver {run['driver']}, vLLM {run['vllm']}, {run['build']}, {run['date']}. Random weights; TTFT by "
                  "vLLM's definition.", ""]
    lines += [f"**{line}**" for line in failed] + ([""] if failed else [])
    groups = {}
    for record in records:
        case = record["case"]
        groups.setdefault((case["model"], case["layers"], case["workload"], case["lists"], record["note"]), []).append(record)
    for (model, layers, workload, lists, note), group in groups.items():
        lines += [f"## {model}, {layers} layers, {workload}, {lists} lists", "", f"{note}.", "",
                  "| arm | TTFT p50 ms | from schedule | runs | TPOT p50 ms | total tok/s | attention ms | calls | fewhead's calls | kernels "
                  "| largest difference |",
                  "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | --- | --- | ---: |"]
        for record in group:
            figures, parity = record["engine"], record["parity"]
            runs = ", ".join(f"{one:.1f}" for one in figures.get("ttft_runs_ms", []))
            calls = ", ".join(f"{path} {n}" for path, n in record["work"]["calls"].items()) or "none"
            kernels = ", ".join(f"{name} {n}" for name, n in record["work"]["kernels"].items()) or "the engine's"
            lines.append(
                f"| {record['path']} | {number(figures['ttft_ms'].get('p50'), '%.1f')} | "
                f"{number(figures['ttft_from_schedule_ms'].get('p50'), '%.1f')} | {runs or '-'} | "
                f"{number(figures.get('tpot_ms', {}).get('p50'), '%.2f')} | {number(figures.get('total_tok_s'), '%.0f')} | "
                f"{number(figures.get('attention_ms'), '%.1f')} | {figures.get('attention_calls', '-')} | {calls} | {kernels} | "
                f"{number(parity.get('max_abs'), '%.2g')} |")
        lines.append("")
    return "\n".join(lines)


def main():
    args = arguments()
    if args.part:
        try:
            status = run_part(args)
        except BenchError as error:
            print(f"BenchError {error}", flush=True)
            status = 1
        sys.stdout.flush()
        os._exit(status)  # all is written; the engine's own end takes seconds
    argv = sys.argv[1:]
    failed = run_parts(args, argv)
    records = collect(args)
    with open(os.path.join(args.out, "engine.md"), "w", encoding="utf-8") as f:
        f.write(markdown(records, failed))
    for line in failed:
        print(f"FAILED {line}")
    print(f"{len(records)} records in {os.path.join(args.out, 'engine.jsonl')}")
    return 1 if failed or not records else 0


if __name__ == "__main__":
    sys.exit(main())
