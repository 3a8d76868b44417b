"""What an engine does besides plain prompts, each tried on a real vLLM with every call compared with the engine's own kernel.

    python3 engines/vllm/edges.py --out results/nvidia-h200 [--edges fp8,mtp] [--load-seconds 300] [--site ARCHIVE] [--commit HASH]

Needs what bench.py needs. GLM with 6 layers and random weights; an edge is a process of its own:
  fp8         FP8 cache: every call is the engine's own, counted and said
  heads64     64 local heads: every call is the engine's own, counted and said
  mixed       steps of decodes and parts of several prompts of 1 to 3000 tokens
  prefix      prefix-cache hits: the same prompts again, and others with the same beginning
  preemption  a cache for four prompts, eight requests: some are thrown out and computed again
  mtp         multi-token prediction: several query rows a request in a decode step
  empty       lists without a key: rows of -1
  gate        VLLM_DSV41_FEWHEAD_MIN_SQ=2048 in the environment, as it is published
  load        mixed load for --load-seconds: memory of the GPU and of the process at a fifth of the time, and at the end
  nothing-set 78 layers, vLLM's own choice of everything: the log line, and TTFT of prompts of 8192
  excluded    the same with the plug-in excluded (VLLM_PLUGINS names another), to hold beside it
  tp2         two GPUs, 16 heads, tensor_parallel_size=2: workers of their own; only where there are two GPUs

Prints a line an edge, and writes FOLDER/engine_edges.jsonl. Ends with status 1 where an edge failed.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import bench  # noqa: E402
from bench_workloads import Cold  # noqa: E402

LAYERS = 6
LONGEST = 4096
CHUNK = 2048
LARGE_PROMPT = 3000


class EdgeError(Exception):
    """What was wanted, and what was found."""


def wanted(condition, text, *found):
    if not condition:
        raise EdgeError(f"wanted {text}, found {', '.join(map(str, found))}")


# ---- The engine of an edge, in this process


def start(more_config=None, kv_gib=4, **options):
    """(engine, its counters since the start are 0). Every call is compared with the engine's own kernel."""
    import bench_engine
    import fewhead_vllm
    from fewhead_vllm._register import router
    fewhead_vllm.register()
    config = dict(bench_engine.model_config("glm", LAYERS), **more_config or {})
    args = argparse.Namespace(model="glm", workloads={"edge": Cold(LONGEST)}, lists=["indexer"], chunk=CHUNK, kv_gib=kv_gib)
    engine = bench_engine.Engine(args, config, **options)
    engine.backend = "flashmla"
    reset(router())
    return engine


def reset(router):
    from fewhead_vllm._stats import STATS
    router.use(router.settings._replace(check_every=1))
    STATS.reset()


def counted():
    import fewhead_vllm
    return fewhead_vllm.stats()


def prompts(lengths, seed):
    return [(length, seed + i) for i, length in enumerate(lengths)]


def none_off(stats, declined=False):
    """The counters of an edge in which fewhead did the calls."""
    check, calls = stats["check"], sum(stats["calls"].get("v32", {}).values())
    wanted(not stats["errors"] and not stats["off"], "no error", stats["errors"], stats["off"])
    wanted(calls > 0 and check["calls"] == calls and check["off"] == 0, "every call compared and none off", calls, check)
    wanted(declined or not stats["declined"]["calls"], "no call declined", stats["declined"]["calls"])
    return {"calls": calls, "compared_calls": check["calls"], "off": check["off"], "max_abs": check["worst_abs"], "rel": check["worst_rel"],
            "plans": stats["plans"]}


def all_declined(stats, reason):
    """The counters of an edge in which every call is the engine's own."""
    declined = stats["declined"]["calls"].get("v32", {})
    wanted(not stats["calls"].get("v32") and declined and all(reason in text for text in declined), f"calls declined with {reason!r} alone",
           stats["calls"], declined)
    return {"calls": 0, "declined": declined}


# ---- The edges; each returns the figures of its record


def fp8():
    engine = start(kv_cache_dtype="fp8_ds_mla")
    engine.generate(prompts([LARGE_PROMPT, 100], 1), 4)
    return all_declined(counted(), "FP8")


def heads64():
    engine = start({"num_attention_heads": 64, "num_key_value_heads": 64})
    engine.generate(prompts([LARGE_PROMPT, 100], 1), 4)
    return all_declined(counted(), "64 local heads")


def mixed():
    engine = start()
    lengths = [random.Random(7).randint(1, LARGE_PROMPT) for _ in range(38)] + [1, 2]
    engine.closed(prompts(lengths, 1), 12, 8)
    return none_off(counted())


def prefix():
    engine = start(enable_prefix_caching=True)
    first = engine.generate(prompts([LARGE_PROMPT, 2500], 1), 4)[1]
    again = engine.generate(prompts([LARGE_PROMPT, 2500], 1), 4)[1]
    wanted([one["tokens"] for one in first] == [one["tokens"] for one in again], "the same tokens again", first, again)
    hits = [one["cached"] for one in again]
    wanted(all(one["cached"] == 0 for one in first) and min(hits) > 2000, "prefix-cache hits the second time alone", first, hits)
    return dict(none_off(counted()), cached_tokens=hits)


def preemption():
    from vllm.v1.core.sched.scheduler import Scheduler
    thrown, theirs = [], Scheduler._preempt_request

    def preempt(this, request, *given, **named):
        thrown.append(request.request_id)
        return theirs(this, request, *given, **named)

    Scheduler._preempt_request = preempt
    engine = start(kv_gib=0.05)
    _, requests = engine.closed(prompts([1700] * 8, 1), 200, 8)
    wanted(len(requests) == 8 and thrown, "8 requests done, and some thrown out before", len(requests), len(thrown))
    return dict(none_off(counted()), preempted=len(thrown))


def mtp():
    rows = []
    engine = start({"num_nextn_predict_layers": 1}, speculative_config={"method": "mtp", "num_speculative_tokens": 2})
    from fewhead_vllm._stats import STATS
    took = STATS.took

    def count(family, path, n):
        rows.append(n)
        took(family, path, n)

    STATS.took = count
    engine.generate(prompts([500, 700], 1), 16)
    wanted(6 in rows, "steps of 2 requests with 3 query rows each", sorted(set(rows)))
    return none_off(counted())


def empty():
    import torch
    engine = start()
    table = torch.full((LONGEST + 64, engine.config["index_topk"]), -1, dtype=torch.int32)
    table[::2, 0] = 0  # every other row has one key, the first
    engine.tables["empty"] = table.cuda()
    engine.use_lists("empty")
    engine.generate(prompts([LARGE_PROMPT, 100], 1), 4)
    return none_off(counted())


def gate():
    engine = start()
    stats = counted()
    wanted("gate" in stats["rule"] or "2048" in stats["rule"], "the published gate as rule", stats["rule"])
    engine.generate(prompts([CHUNK], 1), 4)
    stats = counted()
    wanted(stats["calls"]["v32"] == {"gather": LAYERS}, f"{LAYERS} calls of gather", stats["calls"])
    reasons = list(stats["declined"]["calls"]["v32"])
    wanted(reasons == ["s_q below 2048"], "the other calls below the gate", reasons)
    return none_off(stats, declined=True)


def memory():
    """(bytes that PyTorch has reserved on the GPU, bytes of this process in memory)."""
    import torch
    with open("/proc/self/statm", encoding="ascii") as f:
        resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return torch.cuda.memory_reserved(), resident


def load(seconds):
    from fewhead_vllm._register import router
    engine = start(kv_gib=8)
    router().use(router().settings._replace(check_every=100))
    draw, began, early, requests = random.Random(3), time.monotonic(), None, 0
    while time.monotonic() - began < seconds:
        lengths = [draw.choice((1, 40, 300, 900, LARGE_PROMPT, 4000)) for _ in range(24)]
        requests += len(engine.closed(prompts(lengths, draw.randrange(10 ** 6)), 16, 12)[1])
        if early is None and time.monotonic() - began > seconds / 5:
            early = memory()
    late, stats = memory(), counted()
    wanted(late[0] <= early[0] * 1.01 and late[1] <= early[1] + 64 * 2 ** 20, "memory that does not grow", early, late)
    check = stats["check"]
    wanted(not stats["errors"] and not stats["off"] and check["off"] == 0 and check["calls"] > 0, "no error and none off", stats)
    return {"seconds": time.monotonic() - began, "requests": requests, "calls": sum(stats["calls"]["v32"].values()),
            "compared_calls": check["calls"], "off": 0, "max_abs": check["worst_abs"], "gpu_bytes": [early[0], late[0]],
            "process_bytes": [early[1], late[1]]}


def as_installed(loaded):
    """vLLM as somebody starts it who set nothing: the plug-in comes by its entry point, vLLM chooses the backend."""
    import bench_engine
    from vllm import LLM, SamplingParams
    bench_engine.scale_weights()
    config, length = bench_engine.model_config("glm", 0), 8192
    llm = LLM(model=bench_engine.model_folder(config), skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", enforce_eager=True,
              max_num_batched_tokens=length, max_model_len=length + 64, kv_cache_memory_bytes=4 * 2 ** 30, gpu_memory_utilization=0.8,
              enable_prefix_caching=False)
    sampling, ttft = SamplingParams(max_tokens=1, temperature=0, detokenize=False), []
    for seed in range(5):
        began = time.perf_counter()
        llm.generate(bench_engine.random_prompt(config, length, seed), sampling, use_tqdm=False)
        ttft.append((time.perf_counter() - began) * 1e3)
    plug_in = sys.modules.get("fewhead_vllm")
    line = plug_in and plug_in.stats()["line"]
    wanted(bool(line) == loaded, "the plug-in loaded" if loaded else "the plug-in left out", line)
    calls = plug_in.stats()["calls"].get("v32", {}) if line else {}
    wanted(not loaded or calls.get("auto", 0) >= 5 * 78, "every call through the plug-in", calls)
    return {"ttft_ms": ttft[2:], "line": line, "calls": calls}


def nothing_set():
    return as_installed(True)


def excluded():
    return as_installed(False)


def tp2():
    import torch
    if torch.cuda.device_count() < 2:
        return None
    engine = start({"num_attention_heads": 16, "num_key_value_heads": 16}, tensor_parallel_size=2)
    engine.generate(prompts([LARGE_PROMPT, 100], 1), 4)
    ranks = engine.llm.collective_rpc(worker_counts)
    return {"ranks": [none_off(stats) for stats in ranks]}


def worker_counts(_worker):
    import fewhead_vllm
    return fewhead_vllm.stats()


EDGES = {"fp8": fp8, "heads64": heads64, "mixed": mixed, "prefix": prefix, "preemption": preemption, "mtp": mtp, "empty": empty, "gate": gate,
         "load": load, "nothing-set": nothing_set, "excluded": excluded, "tp2": tp2}
ENVIRONMENT = {"excluded": {"VLLM_PLUGINS": "none"}, "gate": {"VLLM_DSV41_FEWHEAD_MIN_SQ": "2048"},
               "tp2": {"FEWHEAD_CHECK": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_WORKER_MULTIPROC_METHOD": "fork"}}


def run_edge(args):
    """One edge in this process: its record on standard output, after a mark."""
    import bench_engine
    bench_engine.set_environment(args.home)
    bench_engine.ensure_cuda()
    function = EDGES[args.edge]
    try:
        figures = function(args.load_seconds) if args.edge == "load" else function()
    except EdgeError as error:
        print(MARK + json.dumps({"status": "fail", "reason": str(error)}), flush=True)
        return
    import fewhead
    import torch
    import vllm
    run = bench.header(args, fewhead.build_info(), {"vllm": vllm.__version__, "torch": torch.__version__, "device": torch.cuda.get_device_name()})
    status = {"status": "not run", "reason": "one GPU"} if figures is None else {"status": "pass", "figures": figures}
    print(MARK + json.dumps(dict(status, run=run)), flush=True)


MARK = "EDGE "


def result_of(output, status):
    """The record that an edge printed; a failure with its last lines where it printed none."""
    found = re.findall(rf"^{MARK}(.*)$", output, re.M)
    if found:
        return json.loads(found[-1])
    return {"status": "fail", "reason": f"ended with status {status}: " + " | ".join(output.strip().splitlines()[-12:])}


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", default="results/local/engine", help="folder for engine_edges.jsonl")
    p.add_argument("--edges", default=",".join(EDGES))
    p.add_argument("--load-seconds", type=float, default=300)
    p.add_argument("--limit", type=float, default=200, help="seconds for an edge, besides --load-seconds")
    p.add_argument("--site", default="", help="archive of a site-packages folder")
    p.add_argument("--home", default=os.path.join(os.path.expanduser("~"), "engine"), help="where --site is unpacked and kernels are kept")
    p.add_argument("--commit", default="", help="of the checkout, where there is no git")
    p.add_argument("--edge", default="", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    args.edges = [name for name in args.edges.split(",") if name]
    wrong = [name for name in args.edges if name not in EDGES]
    if wrong or not args.edges:
        p.error(f"--edges: got {','.join(wrong)!r}, wanted some of {','.join(EDGES)}")
    return args


def main():
    args = arguments()
    if args.edge:
        run_edge(args)
        sys.stdout.flush()
        os._exit(0)
    os.makedirs(args.out, exist_ok=True)
    environ, failed = bench.environment(args), 0
    with open(os.path.join(args.out, "engine_edges.jsonl"), "w", encoding="utf-8") as f:
        for name in args.edges:
            began = time.monotonic()
            child = subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--edge", name],
                                     env=dict(environ, **ENVIRONMENT.get(name, {})), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                     errors="replace", start_new_session=True)
            try:
                output = child.communicate(timeout=args.limit + (args.load_seconds if name == "load" else 0))[0]
            except subprocess.TimeoutExpired:
                child.kill()
                output = child.communicate()[0] + "\nthe time for this edge was up"
            with open(os.path.join(args.out, f"engine_edges.{name}.log"), "w", encoding="utf-8") as log:
                log.write(output)
            said = [line for line in output.splitlines() if "the engine's own kernel does a call" in line]
            record = {"kind": "edge", "edge": name, **result_of(output, child.returncode)}
            if name in ("fp8", "heads64") and record["status"] == "pass" and not said:
                record.update(status="fail", reason="the log does not say that calls are declined")
            failed += record["status"] == "fail"
            f.write(json.dumps(record) + "\n")
            f.flush()
            print(f"edge {name}: {record['status']} in {time.monotonic() - began:.0f} s: {record.get('reason') or json.dumps(record['figures'])}",
                  flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
