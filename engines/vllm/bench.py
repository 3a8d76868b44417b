"""vLLM's own attention against fewhead's plug-in, in turns on the same prompts: TTFT, TPOT, throughput, attention time, calls by path.

    python3 engines/vllm/bench.py --out results/nvidia-h200 --seconds 480 [--resume] [--workloads cold8k,C16x8kx48] [--graphs fa3,auto-shared] [--together]
                                  [--site ARCHIVE] [--commit HASH]

Needs vLLM 0.26, fewhead and fewhead_vllm in this Python (installed, or build/python and build/vllm of `make stage-vllm` on PYTHONPATH).
--site: a .tar.xz of a site-packages folder, unpacked once into --home and put on the path behind these.
--resume: the records of FOLDER/engine.jsonl stay, and cells that have all their runs there are not measured again.

--graphs ARMS: in part glm, decode steps are CUDA graphs, as on a server; each of these arms has an engine of its own, since a graph keeps its kernels.
It keeps its lists as well, so the lists are the indexer's alone. Part v4 is as ever.
--together: all engines start at once, then measure in turns. That saves the time of their starts and needs memory for all of them.

Parts, each a process of its own; no cell starts when the time is up, and what was measured is written at once:
  check  GLM with 6 layers, all arms, cold8k
  glm    GLM-5.2's rank, 78 layers, the workloads
  v4     V4-Flash's rank with 6 layers, cold8k: attention times

Arms: flashmla (vLLM's padded FlashMLA), fa3 (what vLLM takes by itself on Hopper: FA3 sparse, native heads), gate (the published rule, gather from
2048 rows on), gather (every call), auto (the cost model, a plan a call), auto-shared (one plan for layers that share a list: the plug-in's
default). flashmla, fa3 and auto-shared do every workload, the others cold8k and short-after-8k. Lists: "indexer", those of the random-weight indexer, and "local",
which keep 90 % from row to row. Before an arm is timed every call of one prompt of 8192 is compared with FlashMLA's.

Definitions are vLLM's (vllm bench serve). TTFT = first token - sent; ttft_from_schedule is the engine's own clock and leaves out the queue. Attention is the sum
over all calls of a prompt by CUDA events, in a run of its own. Two arms with equal counters, or an arm that routed nothing, are an error, and no
result. Writes FOLDER/engine.jsonl and FOLDER/engine.md.
"""
import argparse
import datetime
import glob
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKOUT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

from bench_part import (  # noqa: E402
    ARMS, EAGER, LISTS, PARTS, BenchError, Part, cell_of, counter_errors, counters_of, percentile, settings_of)
from bench_workloads import WORKLOADS  # noqa: E402

WEIGHTS = {"check": 2, "glm": 3, "v4": 1}  # a job gets the time that is left by its part's weight among the jobs that are left
SMALL_PARTS = ("check", "v4")
SMALL_LAYERS, SMALL_WORKLOADS = 6, ("cold8k",)


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", default="results/local/engine", help="folder for engine.jsonl and engine.md")
    p.add_argument("--seconds", type=float, default=480, help="time for everything")
    p.add_argument("--resume", action="store_true", help="keep the records that are there, and measure what is missing")
    p.add_argument("--parts", default=",".join(PARTS))
    p.add_argument("--workloads", default=",".join(WORKLOADS), help="of part glm")
    p.add_argument("--arms", default=",".join(ARMS))
    p.add_argument("--lists", default=",".join(LISTS))
    p.add_argument("--layers", type=int, default=0, help="of part glm; 0: 78")
    p.add_argument("--n", type=int, default=3, help="prompts of a workload that is no closed loop, an arm")
    p.add_argument("--runs", type=int, default=3, help="runs of a closed loop and arm")
    p.add_argument("--chunk", type=int, default=8192, help="tokens of a step at most")
    p.add_argument("--kv-gib", type=float, default=20)
    p.add_argument("--graphs", default="", help="arms of part glm with decode steps as CUDA graphs: an engine for each, the indexer's lists")
    p.add_argument("--together", action="store_true", help="start all engines at once, then measure in turns")
    p.add_argument("--site", default="", help="archive of a site-packages folder")
    p.add_argument("--home", default=os.path.join(os.path.expanduser("~"), "engine"), help="where --site is unpacked and kernels are kept")
    p.add_argument("--commit", default="", help="of the checkout, where there is no git")
    p.add_argument("--job", default="", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    for name, known in (("parts", PARTS), ("workloads", WORKLOADS), ("arms", ARMS), ("lists", LISTS), ("graphs", ARMS)):
        given = [text for text in getattr(args, name).split(",") if text]
        wrong = [text for text in given if text not in known]
        if wrong or not given and name != "graphs":
            p.error(f"--{name}: got {getattr(args, name)!r}, wanted some of {','.join(known)}")
        setattr(args, name, given)
    for name in ("n", "runs", "chunk"):
        if getattr(args, name) < 1:
            p.error(f"--{name}: got {getattr(args, name)}, wanted a number from 1 on")
    if args.graphs and "indexer" not in args.lists:
        p.error(f"--graphs: got --lists {','.join(args.lists)}, wanted indexer among them: a graph keeps the lists that it was recorded with")
    if args.graphs and "glm" not in args.parts:
        p.error(f"--graphs: got --parts {','.join(args.parts)}, wanted glm among them")
    part, _, arm = args.job.partition("-")
    if arm:
        args.arms, args.lists = [arm], ["indexer"]
    args.part, args.graphs = part, args.graphs if part in ("", "glm") else []
    names = SMALL_WORKLOADS if part in SMALL_PARTS else args.workloads
    args.workloads = {name: WORKLOADS[name] for name in names}
    args.model = "v4" if part == "v4" else "glm"
    return args


# ---- One job: an engine in this process


def run_job(args):
    """Start an engine, wait for the turn, measure, print; the exit status. The turn is a line of standard input: the seconds to measure in."""
    began = time.monotonic()
    import bench_engine
    layers = SMALL_LAYERS if args.part in SMALL_PARTS else args.layers
    bench_engine.set_environment(args.home)
    bench_engine.ensure_cuda()
    import fewhead
    import fewhead_vllm
    fewhead_vllm.register()
    start = fewhead_vllm.stats()
    print(start["line"], flush=True)
    if not {"glm": "v32", "v4": "v4"}[args.model] in start["patched"]:
        raise BenchError(f"the plug-in did not patch this model: {start['line']}")
    engine = start_engine(args, bench_engine.model_config(args.model, layers))
    run = header(args, fewhead.build_info(), engine.versions())
    print(f"started {args.job} in {time.monotonic() - began:.1f} s: vLLM {run['vllm']}, {run['build']}, {run['device']}", flush=True)
    args.seconds = float(sys.stdin.readline())
    with open(job_file(args.out, args.job), "w", encoding="utf-8") as f:
        def emit(record):
            f.write(json.dumps(record) + "\n")
            f.flush()

        part = Part(args, engine, run, emit, runs_of(kept(args)))
        errors = part.measure()
    for line in errors:
        print("ERROR", line, flush=True)
    for arm, total in part.total.items():
        print(f"calls {arm}: {json.dumps(total)}", flush=True)
    off = [arm for arm in part.arms if part.parity_of(arm)["status"] == "fail"]
    print(f"job {args.job}: {'ERRORS, no result' if errors or off else 'ok'}", flush=True)
    return 1 if errors or off else 0


def start_engine(args, config):
    """The engine of a job. With graphs it starts as its one arm, whose kernels the graphs record: that they did is checked."""
    import bench_engine
    if not args.graphs:
        return bench_engine.Engine(args, config)
    import fewhead
    from fewhead_vllm._register import router
    from fewhead_vllm._stats import STATS
    arm = args.arms[0]
    router().use(settings_of(arm))
    engine = bench_engine.Engine(args, config, backend="fa3" if arm == "fa3" else "flashmla", **bench_engine.GRAPHS)
    recorded = counters_of(STATS.counts(), fewhead.stats()["kernels"], engine.fa3_calls)
    errors = counter_errors({arm: recorded})
    print(f"recorded in graphs, {arm}: {json.dumps(recorded)}", flush=True)
    if errors:
        raise BenchError(f"no graph was recorded: {errors[0]}")
    return engine


# ---- All jobs


def jobs_of(args):
    """Names of the processes: a part, or PART-ARM where every arm has an engine of its own."""
    return [job for part in args.parts for job in ([f"{part}-{arm}" for arm in args.graphs] if args.graphs and part == "glm" else [part])]


def job_file(out, job):
    return os.path.join(out, f"engine.{job}.part")


def header(args, build, versions):
    """The header of a run, as lua/fewhead/record/run.lua has it."""
    date = datetime.datetime.now(datetime.timezone.utc)
    commit = args.commit or commit_of(build)
    return {"id": date.strftime("%Y%m%dT%H%M%SZ") + "-" + os.urandom(4).hex(), "commit": commit, "date": date.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "argv": repeatable(sys.argv[1:]), "kind": "cuda", "build": build, "driver": driver(), **versions}


NOT_SAID = ("--out", "--site", "--home", "--commit", "--job")
FLAGS = ("--resume", "--together")


def repeatable(argv):
    """The options that say what was measured: without folders of this machine and what the parts are started with."""
    words, i = [], 0
    while i < len(argv):
        name, _, value = argv[i].partition("=")
        taken = argv[i:i + 1] if value or name in FLAGS else argv[i:i + 2]
        words += [] if name in NOT_SAID else taken
        i += len(taken)
    return words


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


def share(job, left, jobs):
    """Seconds for a job, of those that are left for it and the jobs behind it."""
    weights = [WEIGHTS[one.partition("-")[0]] for one in jobs[jobs.index(job):]]
    return left * weights[0] / sum(weights)


def run_jobs(args, argv):
    """All jobs in turns; [lines of jobs that failed]."""
    end, failed, jobs = time.monotonic() + args.seconds, [], jobs_of(args)
    os.makedirs(args.out, exist_ok=True)
    environ = environment(args)

    def left():
        return end - time.monotonic()

    def start(job):
        if os.path.exists(job_file(args.out, job)):
            os.remove(job_file(args.out, job))
        return Child([sys.executable, os.path.abspath(__file__), *argv, "--job", job], environ, os.path.join(args.out, f"engine.{job}.log"))

    children = {job: start(job) for job in jobs} if args.together else {}
    for child in children.values():
        child.started(end)
    for job in jobs:
        seconds = share(job, left(), jobs)
        if seconds < LEAST_SECONDS:
            failed.append(f"job {job}: no time left")
            if job in children:
                children[job].end()
            continue
        print(f"== job {job}, {seconds:.0f} s", flush=True)
        deadline = time.monotonic() + seconds
        child = children.get(job) or start(job)
        child.started(deadline)
        status = child.measure(deadline)
        if status:
            failed.append(f"job {job}: status {status}")
            print("\n".join(child.last), flush=True)
    return failed


LEAST_SECONDS = 20
GRACE_SECONDS = 15  # behind a job's time, until it is ended
SHOWN = ("fewhead", "warm", "TTFT", "LOOP", "ERROR", "calls", "job", "started", "recorded", "unpacked", "no time", "Bench")


def progress(text):
    """Show what runs now, on a terminal alone; the next text stands in its place."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class Child:
    """The process of a job. Its output goes into a log; what counts is shown."""

    def __init__(self, words, environ, log):
        self.last, self.ready, self.log, self.deadline = [], threading.Event(), log, None
        self.process = subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        errors="replace")
        self.reader = threading.Thread(target=self.follow, daemon=True)
        self.reader.start()

    def follow(self):
        with open(self.log, "w", encoding="utf-8") as log:
            for line in self.process.stdout:
                log.write(line)
                log.flush()
                self.last = (self.last + [line.rstrip("\n")])[-25:]
                if line.startswith(SHOWN):
                    progress("")
                    print(line, end="", flush=True)
                elif line.startswith("now ") and self.deadline:
                    progress(f"{line[4:].rstrip()}, {max(0, self.deadline - time.monotonic()):.0f} s left")
                if line.startswith("started"):
                    self.ready.set()
        self.ready.set()

    def started(self, deadline):
        """Wait until the engine has started, or has ended."""
        self.ready.wait(max(0.0, deadline - time.monotonic()))

    def measure(self, deadline):
        """Give the child its turn; its exit status. Behind the deadline it is ended."""
        left, self.deadline = deadline - time.monotonic(), deadline
        try:
            self.process.stdin.write(f"{max(0.0, left)}\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended: its status says so
        try:
            self.process.wait(max(0.0, left) + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            print("the time of this job is up: ended", flush=True)
            self.end()
        self.reader.join()
        progress("")
        return self.process.returncode

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def lines_of(path):
    """The records of a file; a last line that was cut is left out. None where there is no file: []."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.endswith("\n")]


def kept(args):
    """The records of an earlier call that stay."""
    return lines_of(os.path.join(args.out, "engine.jsonl")) if args.resume else []


def cell(record):
    case = record["case"]
    return cell_of(case["model"], case["layers"], case["workload"], case["lists"], record["path"], case.get("decode", EAGER))


def runs_of(records):
    """{cell: runs} of records."""
    runs = {}
    for record in records:
        runs[cell(record)] = runs.get(cell(record), 0) + 1
    return runs


def collect(args):
    """Records of the jobs behind those that stay, in one file; all of them."""
    records = kept(args)
    pieces = sorted(glob.glob(job_file(glob.escape(args.out), "*")))
    for piece in pieces:
        records += lines_of(piece)
    path = os.path.join(args.out, "engine.jsonl")
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.writelines(json.dumps(record) + "\n" for record in records)
    os.replace(path + ".new", path)
    for piece in pieces:
        os.remove(piece)
    return records


def spread(values, form):
    """"median (least .. most)" of the runs; a dash without any."""
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    middle = form % percentile(values, 50)
    return middle if len(values) == 1 else f"{middle} ({form % min(values)} .. {form % max(values)})"


def row(records):
    """One arm's runs of a cell, as a row of the table."""
    def each(*names):
        found = [record["engine"] for record in records]
        for name in names:
            found = [one.get(name) if isinstance(one, dict) else None for one in found]
        return found

    first, work = records[0], records[-1]["work"]
    ttft = first["engine"].get("ttft_runs_ms") or each("ttft_ms", "p50")
    calls = ", ".join(f"{path} {n}" for path, n in work["calls"].items()) or "none"
    kernels = ", ".join(f"{name} {n}" for name, n in work["kernels"].items()) or "the engine's"
    worst = [record["parity"].get("max_abs") for record in records]
    return (f"| {first['path']} | {len(ttft)} | {spread(ttft, '%.1f')} | {spread(each('ttft_alone_ms', 'p50'), '%.1f')} | "
            f"{spread(each('tpot_ms', 'p50'), '%.2f')} | {spread(each('total_tok_s'), '%.0f')} | {spread(each('attention_ms'), '%.1f')} | "
            f"{first['engine'].get('attention_calls', '-')} | {calls} | {kernels} | {spread(worst, '%.2g')} |")


def markdown(records, failed):
    """The tables of engine.md."""
    lines = ["# vLLM with and without fewhead", ""]
    for run in {record["run"]["id"]: record["run"] for record in records}.values():
        lines += [f"{run['device']}, driver {run['driver']}, vLLM {run['vllm']}, {run['build']}, {run['date']}: "
                  f"`engines/vllm/bench.py {' '.join(run['argv'])}`", ""]
    if records:
        lines += ["Random weights; TTFT by vLLM's definition, the median request of a run. Figures are medians of the runs, least and most in brackets. Calls and "
                  "kernels are those of the last run.", ""]
    lines += [f"**{line}**" for line in failed] + ([""] if failed else [])
    groups = {}
    for record in records:
        case = record["case"]
        title = f"{case['model']}, {case['layers']} layers, {case['workload']}, {case['lists']} lists" + (
            "" if case.get("decode", EAGER) == EAGER else f", decode steps as CUDA {case['decode']}")
        arms = groups.setdefault((title, record["note"]), {})
        arms.setdefault(record["path"], []).append(record)
    for (title, note), arms in groups.items():
        lines += [f"## {title}", "", f"{note}.", "",
                  "| arm | runs | TTFT ms | alone | TPOT ms | total tok/s | attention ms | calls | fewhead's calls | kernels | largest difference |",
                  "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | ---: |"]
        lines += [row(found) for found in arms.values()] + [""]
    return "\n".join(lines)


def main():
    args = arguments()
    if args.job:
        try:
            status = run_job(args)
        except BenchError as error:
            print(f"BenchError {error}", flush=True)
            status = 1
        sys.stdout.flush()
        os._exit(status)  # all is written; the engine's own end takes seconds
    argv = sys.argv[1:]
    failed = run_jobs(args, argv)
    records = collect(args)
    with open(os.path.join(args.out, "engine.md"), "w", encoding="utf-8") as f:
        f.write(markdown(records, failed))
    for line in failed:
        print(f"FAILED {line}")
    print(f"{len(records)} records in {os.path.join(args.out, 'engine.jsonl')}")
    return 1 if failed or not records else 0


if __name__ == "__main__":
    sys.exit(main())
