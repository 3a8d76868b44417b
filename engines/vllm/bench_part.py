"""One part of the bench: an engine in this process, its arms in turns, and the records."""
import json
import time

from bench_workloads import Closed, Cold

ARMS = ("flashmla", "fa3", "gate", "gather", "auto", "auto-shared")
MAIN_ARMS = ("flashmla", "fa3", "auto-shared")
FEWHEAD_ARMS = ("gate", "gather", "auto", "auto-shared")
LISTS = ("indexer", "local")
PARTS = ("check", "glm", "v4")
EAGER, GRAPHS = "eager", "graphs"  # how decode steps run
GATE_MIN_SQ = 2048
WARM_PROMPT = 8192  # the largest chunk: what it compiles is not compiled again
SHORT_PROMPT = 512  # below the gate
SHORT_PROMPTS = 3   # a chunk of all of them is below the gate too
MARGIN_S = 3        # left between the last measurement and the end
NOTE = "one rank: no all-reduce; dense MLP of the experts' FLOPs; random weights"
NOTE_V4 = "one rank: no all-reduce; few experts; hyper-connections are a stand-in, so TTFT is not a V4's; random weights"
NOTE_GRAPHS = "; the steps of a graph are not counted"


class BenchError(Exception):
    """Why there is no result, in one line."""


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


def merge(total, counts):
    """Add the numbers of nested tables."""
    for name, n in counts.items():
        if isinstance(n, dict):
            merge(total.setdefault(name, {}), n)
        else:
            total[name] = total.get(name, 0) + n
    return total


def nothing():
    return {"calls": {}, "rows": {}, "declined": {}, "plans": {"built": 0, "shared": 0}, "kernels": {}, "fa3_calls": 0}


def counters_of(counts, kernels, fa3_calls):
    """What ran, as records have it, from the plug-in's counters and the bench's own."""
    work = nothing()
    for form in ("calls", "rows"):
        for paths in counts[form].values():
            merge(work[form], paths)
    for reasons in counts["declined"]["calls"].values():
        merge(work["declined"], reasons)
    merge(work["plans"], counts["plans"])
    merge(work["kernels"], {kernel: n["calls"] for kernel, n in kernels.items()})
    work["fa3_calls"] = fa3_calls
    return work


def counter_errors(work_of):
    """Lines: arms that routed nothing, arms with equal counters. work_of: {arm: work}."""
    lines, seen = [], {}
    for arm, work in work_of.items():
        ran = {"flashmla": sum(work["declined"].values()), "fa3": work["fa3_calls"]}.get(arm, sum(work["calls"].values()))
        if not ran:
            lines.append(f"arm {arm} routed nothing: {json.dumps(work)}")
        mark = json.dumps(work, sort_keys=True)
        if mark in seen:
            lines.append(f"arms {seen[mark]} and {arm} have equal counters: {mark}")
        seen.setdefault(mark, arm)
    return lines


def cell_of(model, layers, workload, lists, arm, decode=EAGER):
    """What names a cell of the bench, in records and for --resume."""
    return model, layers, workload, lists, arm, decode


class Part:
    """The measurements of one part. engine: a bench_engine.Engine, or what stands for one in the tests. done: {cell_of(..): runs that an earlier
    call of the bench has}."""

    def __init__(self, args, engine, run, emit, done=None):
        self.args, self.engine, self.run, self.emit, self.done = args, engine, run, emit, dict(done or {})
        self.model = {"glm": "glm-5.2 tp8", "v4": "v4-flash tp8"}[args.model]
        self.layers = engine.config["num_hidden_layers"]
        self.decode = GRAPHS if args.graphs else EAGER
        wanted = [arm for arm in args.arms if arm != "fa3" or args.model == "glm"]
        self.arms = [arm for arm in wanted if arm in MAIN_ARMS] + [arm for arm in wanted if arm not in MAIN_ARMS]
        self.main = [arm for arm in self.arms if arm in MAIN_ARMS] or self.arms
        self.deadline = time.monotonic() + args.seconds - MARGIN_S
        self.work, self.total, self.parity, self.took, self.warmed = {}, {}, {}, {}, set()
        self.records = 0

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

    def generate(self, arm, lists, prompts, tokens, check=False, concurrency=None):
        """(seconds, requests) of the engine. Counts what ran; a comparison counts apart."""
        import fewhead
        from fewhead_vllm._stats import STATS
        self.engine.use_lists(lists)
        self.use(arm, check)
        if concurrency:
            seconds, requests = self.engine.closed(prompts, tokens, concurrency)
        else:
            seconds, requests = self.engine.generate(prompts, tokens)
        counts = STATS.counts()
        if counts["errors"] or counts["off"]:
            raise BenchError(f"arm {arm}: {counts['errors'] or counts['off']}")
        if not check:
            work = counters_of(counts, fewhead.stats()["kernels"], self.engine.fa3_calls)
            merge(self.work.setdefault(arm, nothing()), work)
            merge(self.total.setdefault(arm, nothing()), work)
        elif arm in FEWHEAD_ARMS:
            known = self.parity.setdefault(arm, {"calls": 0, "off": 0, "worst_abs": 0.0, "worst_rel": 0.0})
            for key in ("calls", "off"):
                known[key] += counts["check"][key]
            for key in ("worst_abs", "worst_rel"):
                known[key] = max(known[key], counts["check"][key])
        return seconds, requests

    def room(self, key):
        """Is there time for as long as a measurement of this kind took?"""
        return time.monotonic() + self.took.get(key, 0) < self.deadline

    def spend(self, key, began):
        self.took[key] = max(self.took.get(key, 0), time.monotonic() - began)

    def turns(self, arms, i):
        """The arms in turns, forwards and backwards."""
        return arms if i % 2 == 0 else list(reversed(arms))

    def runs(self, name, lists, arm):
        """Runs that an earlier call has of a cell."""
        return self.done.get(cell_of(self.model, self.layers, name, lists, arm, self.decode), 0)

    def missing(self, arms, name, lists, runs):
        """The arms whose cell has fewer runs than wanted, and time to warm up."""
        return [arm for arm in arms if self.runs(name, lists, arm) < runs and self.warm(arm)]

    def arms_of(self, name):
        """The arms that do a workload."""
        w = self.args.workloads[name]
        everyone = name == "cold8k" or not isinstance(w, (Cold, Closed))
        return self.arms if everyone else self.main

    def wanted(self):
        """Records that this part is to make."""
        return sum(max(0, (self.args.runs if isinstance(w, Closed) else 1) - self.runs(name, lists, arm))
                   for name, w in self.args.workloads.items() for lists in self.args.lists for arm in self.arms_of(name))

    def now(self, *words):
        """For a progress line: what is measured now. `bench.py` shows the line on a terminal."""
        print("now", f"{self.records}/{self.all}", *words, flush=True)

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

    def record(self, arm, lists, name, figures, time_us=None, repeat=1):
        parity, fewhead = self.parity_of(arm), arm in FEWHEAD_ARMS
        record = {
            "kind": "engine", "path": arm, "provider": "fewhead" if fewhead else "vllm",
            "provider_version": self.run["build"] if fewhead else self.run["vllm"],
            "case": {"model": self.model, "layers": self.layers, "h_q": 8, "d_qk": 576 if self.args.model == "glm" else 512,
                     "index_topk": self.engine.config["index_topk"], "lists": lists, "chunk": self.args.chunk, "workload": name, "decode": self.decode,
                     **self.args.workloads[name].case},
            "repeat": repeat, "parity": parity, "engine": figures, "work": self.work.pop(arm),
            "note": (NOTE if self.args.model == "glm" else NOTE_V4) + (NOTE_GRAPHS if self.args.graphs else ""), "part": self.args.part, "run": self.run,
        }
        if time_us and parity["status"] == "pass":  # a result that nobody compared has no time in a record
            record["time"] = time_us
        self.emit(record)
        self.records += 1

    # -- Measurements

    def warm(self, arm):
        """Compile and take memory, and compare every call with the engine's own kernel; nothing here is timed. False: no time left."""
        if arm in self.warmed:
            return True
        if not self.room("warm"):
            return False
        began = time.monotonic()
        lists = self.args.lists[0]
        for check in (False, True):
            self.generate(arm, lists, [(WARM_PROMPT, 1)], 1, check)
        self.generate(arm, lists, [(SHORT_PROMPT, 7 + i) for i in range(SHORT_PROMPTS)], 8, concurrency=SHORT_PROMPTS)
        self.work.pop(arm)
        self.spend("warm", began)
        self.warmed.add(arm)
        print(f"warm {arm} {lists}: {time.monotonic() - began:.1f} s; parity {json.dumps(self.parity_of(arm))}", flush=True)
        return True

    def cold(self, arms, lists, name):
        """TTFT of one prompt: --n samples an arm, and the attention time of one more."""
        length = self.args.workloads[name].prompt
        arms = self.missing(arms, name, lists, 1)
        samples, queue = {arm: [] for arm in arms}, {arm: [] for arm in arms}
        for i in range(self.args.n + 1):
            for arm in self.turns(arms, i):
                if not self.room(name):
                    continue
                began = time.monotonic()
                self.now(name, lists, arm)
                seconds, requests = self.generate(arm, lists, [(length, 99 + i)], 1)
                self.spend(name, began)
                if i:  # the first one warms up
                    samples[arm].append(seconds)  # the answer has one token: sent to first token, as the client sees it
                    queue[arm].append(requests[0]["from_schedule"])
        for arm in arms:
            if not samples[arm] or not self.room(name):
                continue
            attention = self.attention(arm, lists, length)
            us = [one * 1e6 for one in samples[arm]]
            figures = {"ttft_ms": summary(samples[arm]), "ttft_from_schedule_ms": summary(queue[arm]),
                       "ttft_runs_ms": [one * 1e3 for one in samples[arm]], **attention}
            self.record(arm, lists, name, figures,
                        {"median_us": percentile(us, 50), "p05_us": percentile(us, 5), "p95_us": percentile(us, 95), "n": len(us)})
            print(f"TTFT {name} {self.model} {self.layers} layers {lists} {arm}: median {percentile(us, 50) / 1e3:.1f} ms of {len(us)} "
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

    def short(self, arms, lists, name):
        """TTFT of a short prompt alone and behind a long one: --n samples an arm, in one record."""
        w = self.args.workloads[name]
        arms = self.missing(arms, name, lists, 1)
        alone, behind = {arm: [] for arm in arms}, {arm: [] for arm in arms}
        for i in range(self.args.n):
            for arm in self.turns(arms, i):
                if not self.room(name):
                    continue
                began = time.monotonic()
                self.now(name, lists, arm)
                alone[arm].append(self.generate(arm, lists, [(w.prompt, 200 + i)], 1)[0])
                self.generate(arm, lists, [(w.before, 300 + i)], 1)
                behind[arm].append(self.generate(arm, lists, [(w.prompt, 400 + i)], 1)[0])
                self.spend(name, began)
        for arm in arms:
            if behind[arm]:
                figures = {"ttft_ms": summary(behind[arm]), "ttft_alone_ms": summary(alone[arm]),
                           "ttft_runs_ms": [one * 1e3 for one in behind[arm]]}
                self.record(arm, lists, name, figures)
                print(f"TTFT {name} {self.model} {self.layers} layers {lists} {arm}: median {figures['ttft_ms']['p50']:.1f} ms, alone "
                      f"{figures['ttft_alone_ms']['p50']:.1f} ms of {len(behind[arm])}", flush=True)

    def closed(self, arms, lists, name, i):
        """Run i of a closed loop, every arm once; a record each."""
        w = self.args.workloads[name]
        for arm in self.turns(self.missing(arms, name, lists, i + 1), i):
            if not self.room(name):
                print(f"no time left for {name} {lists} {arm}, run {i + 1}", flush=True)
                continue
            began = time.monotonic()
            self.now(name, lists, arm)
            seconds, requests = self.generate(arm, lists, [(w.prompt, 1000 * (i + 1) + k) for k in range(w.count)], w.output,
                                              concurrency=w.concurrency)
            self.spend(name, began)
            figures = {
                "seconds": seconds, "total_tok_s": w.count * (w.prompt + w.output) / seconds, "output_tok_s": w.count * w.output / seconds,
                "ttft_ms": summary([one["ttft"] for one in requests]),
                "ttft_from_schedule_ms": summary([one["from_schedule"] for one in requests]),
                "tpot_ms": summary([one["tpot"] for one in requests]), "failed": w.count - len(requests)}
            self.record(arm, lists, name, figures, repeat=i + 1)
            print(f"LOOP {name} {lists} {arm}, run {i + 1}: {figures['total_tok_s']:.0f} total tok/s, TTFT p50 {figures['ttft_ms']['p50']:.0f} ms, "
                  f"TPOT p50 {figures['tpot_ms'].get('p50') or 0:.2f} ms, {seconds:.1f} s", flush=True)

    def measure(self):
        """The part's cells in the order of --workloads, one run of all closed loops before the next; the errors of its counters."""
        loops = {name: w for name, w in self.args.workloads.items() if isinstance(w, Closed)}
        self.all = self.wanted()
        for name, w in self.args.workloads.items():
            for lists in self.args.lists:
                if isinstance(w, Cold):
                    self.cold(self.arms_of(name), lists, name)
                elif name not in loops:
                    self.short(self.arms_of(name), lists, name)
        for i in range(self.args.runs):
            for name in loops:
                for lists in self.args.lists:
                    self.closed(self.arms_of(name), lists, name, i)
        return counter_errors(self.total)
