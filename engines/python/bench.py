"""What a call costs on the host, and fewhead beside FlashMLA on the same tensors: values and times.

    python3 engines/python/bench.py --out results/local/python [--device cuda:0] [--heads 8,16,64] [--rows 1,64,1024,8192]

Needs the package fewhead (an installed wheel, or the folder that `make test-torch` makes on PYTHONPATH) and PyTorch. FlashMLA is
taken from an installed package that has its operator (flashmla_package.py); without one its columns stay empty and the reason is
recorded. Writes FOLDER/python.jsonl (a header record, then one record a line) and FOLDER/python.md (the same as tables).

Host cost: time between two calls on an idle queue, 100 calls a sample, median of 21 samples, s_q 1 (a CPU: 0):
nothing that the device does is waited for. Device time: 10 calls in a CUDA graph, replayed; median of 15 replays, arms in turn,
inputs hot; on a CPU the call's own time. FlashMLA runs on heads and lists that are padded beforehand; its padding is not timed.
Values: all rows of the two are compared with each other, up to 64 rows of each with the formula in double. An arm that is off by
FlashMLA's tolerances is marked WRONG and gets no time.
"""

import argparse
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tests")]

import torch  # noqa: E402

import fewhead  # noqa: E402
import flashmla_package  # noqa: E402
from fewhead import _call  # noqa: E402
from tools import compare, formula  # noqa: E402

CALLS, SAMPLES = 100, 21  # host cost
GRAPH_CALLS, REPLAYS = 10, 15  # device time
CHECKED_ROWS = 64
KEPT = 0.9  # of a row's picks that the next row has too, in lists "local"
SHAPES = ((512, 640), (576, 2048))  # d_qk, topk: V4.1-like and V3.2-like
LIMIT_US = {"plain": 25.0, "operator": 40.0}


def lists_of(kind, s_q, s_kv, topk, g):
    """int32 [s_q, 1, topk], each row without repeats: "random" picks anew for each row, "local" keeps 90 % from row to row."""
    device = g.device
    picked = min(topk, s_kv)
    indices = torch.full((s_q, 1, topk), -1, dtype=torch.int32, device=device)
    if kind == "random":
        for a in range(0, s_q, 512):
            scores = torch.rand(min(512, s_q - a), s_kv, generator=g, device=device)
            indices[a : a + 512, 0, :picked] = scores.topk(picked, dim=1).indices.int()
        return indices
    score = torch.rand(s_kv, generator=g, device=device)
    changed = max(1, round((1 - KEPT) * s_kv))
    for row in range(s_q):
        indices[row, 0, :picked] = score.topk(picked).indices.sort().values.int()
        at = torch.randint(s_kv, (changed,), generator=g, device=device)
        score[at] = torch.rand(changed, generator=g, device=device)
    return indices


def inputs(device, h_q, s_q, d_qk, topk, kind, s_kv):
    g = torch.Generator(device=device).manual_seed(1000 * h_q + s_q)

    def draw(*shape, deviation=1.0):
        return (torch.randn(*shape, generator=g, device=device) * deviation).to(torch.bfloat16)

    return {
        "q": draw(s_q, h_q, d_qk),
        # FlashMLA's tests draw values at 0.1: the absolute limit of its tolerances is made for outputs of that size
        "kv": draw(s_kv, 1, d_qk, deviation=0.1),
        "indices": lists_of(kind, s_q, s_kv, topk, g),
        "sm_scale": 10 * d_qk**-0.5,
        "attn_sink": torch.randn(h_q, generator=g, device=device),
        "topk_length": torch.randint(topk // 2, topk + 1, (s_q,), generator=g, device=device, dtype=torch.int32),
    }


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- Host cost


def host_us(function, device):
    """Microseconds that the caller waits for one call."""
    for _ in range(20):
        function()
    samples = []
    for _ in range(SAMPLES):
        synchronize(device)
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            function()
        samples.append((time.perf_counter_ns() - began) / CALLS / 1000)
    synchronize(device)
    return {"median_us": statistics.median(samples), "least_us": min(samples), "most_us": max(samples)}


def c_call(arguments):
    """The C function alone, on a call that is filled in already: what Python adds is the difference."""
    a = arguments
    given = (
        a["q"],
        a["kv"],
        a["indices"],
        a["sm_scale"],
        512,
        a["attn_sink"],
        a["topk_length"],
        None,
        "gather",
        None,
        None,
        False,
        None,
    )
    entry = _call._prepare(*given)
    held = [torch.empty(max(entry.workspace_bytes, 1), dtype=torch.uint8, device=entry.device)]
    held += [
        torch.empty(shape, dtype=dtype, device=entry.device)
        for shape, dtype in (
            (entry.out_shape, torch.bfloat16),
            (entry.statistics_shape, torch.float32),
            (entry.statistics_shape, torch.float32),
        )
    ]
    c = entry.call
    c.q, c.kv, c.indices, c.attn_sink, c.topk_length = (
        a[name].data_ptr() for name in ("q", "kv", "indices", "attn_sink", "topk_length")
    )
    c.workspace, c.out, c.max_logits, c.lse = (t.data_ptr() for t in held)
    if entry.index is not None:
        c.stream = _call.current_stream(entry.index)
    return lambda held=held: _call._sparse_fwd(entry.handle, entry.pointer)


def host_costs(device, flashmla):
    """One record for each way to call. A CPU is given no rows, since it computes before it returns."""
    s_q = 1 if device.type == "cuda" else 0
    arguments = inputs(device, 8, s_q, 512, 640, "random", 1024)
    by_place = [arguments[name] for name in ("q", "kv", "indices", "sm_scale")] + [
        512,
        arguments["attn_sink"],
        arguments["topk_length"],
    ]
    out = torch.empty(s_q, 8, 512, dtype=torch.bfloat16, device=device)
    operator = torch.ops.fewhead.flash_mla_sparse_fwd
    ways = {
        "plain, auto": lambda: fewhead.flash_mla_sparse_fwd(*by_place),
        "plain, gather": lambda: fewhead.flash_mla_sparse_fwd(*by_place, path="gather"),
        "plain, gather, out given": lambda: fewhead.flash_mla_sparse_fwd(*by_place, out, path="gather"),
        "operator, auto": lambda: operator(*by_place),
        "operator, gather": lambda: operator(*by_place, path="gather"),
        "C function alone, gather": c_call(arguments),
        "torch.empty, three results": lambda: [torch.empty((s_q, 8), dtype=torch.float32, device=device) for _ in range(3)],
    }
    if "packed" in fewhead.describe(device, 8)["paths"]:
        plan = fewhead.Plan(arguments["indices"], s_kv=1024, h_q=8, topk_length=arguments["topk_length"], path="packed")
        ways["plain, packed, plan given"] = lambda: fewhead.flash_mla_sparse_fwd(*by_place, path="packed", plan=plan)
    if flashmla:
        ways["FlashMLA's operator"] = flashmla_package.prepared(flashmla, **arguments)
    records = []
    for name, way in ways.items():
        record = {"kind": "host", "call": name, "s_q": s_q, **host_us(way, device)}
        limit = LIMIT_US.get(name.split(",")[0])
        if limit:
            record["limit_us"], record["within"] = limit, record["median_us"] <= limit
        records.append(record)
        print(f"host  {name:28} {record['median_us']:8.2f} us", flush=True)
    return records


# ---- Device time and values


def replayable(function, device):
    """A function that runs `function` and returns the microseconds of one call: on CUDA of GRAPH_CALLS calls in a graph, or in a
    row where they cannot be captured; then the host's share is in the time."""
    if device.type == "cpu":

        def run():
            began = time.perf_counter_ns()
            function()
            return (time.perf_counter_ns() - began) / 1000

        return run

    def in_a_row():
        for _ in range(GRAPH_CALLS):
            function()

    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            in_a_row()
        launch = graph.replay
    except RuntimeError as error:
        print(f"not captured, timed call by call: {str(error).splitlines()[0]}", flush=True)
        torch.cuda.synchronize(device)
        launch = in_a_row
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def run():
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1000 / GRAPH_CALLS

    return run


def median_times(arms, device):
    """{arm: [median, least, most] us}: the arms in turn, two warming rounds."""
    runs = {name: replayable(function, device) for name, function in arms.items()}
    samples = {name: [] for name in runs}
    for turn in range(REPLAYS + 2):
        for name, run in runs.items():
            us = run()
            if turn >= 2:
                samples[name].append(us)
    return {name: [statistics.median(times), min(times), max(times)] for name, times in samples.items()}


def checked(results, want, rows):
    """What is off in the results of these rows; "ok" where nothing is."""
    try:
        compare(tuple(t[rows] for t in results), want)
    except AssertionError as error:
        return f"WRONG: {error}"
    return "ok"


def one_case(device, flashmla, unit, h_q, s_q, d_qk, topk, kind):
    s_kv = max(8192, topk)
    arguments = inputs(device, h_q, s_q, d_qk, topk, kind, s_kv)
    rows = torch.linspace(0, s_q - 1, min(s_q, CHECKED_ROWS), device=device).long()
    want = formula(
        arguments["q"][rows],
        arguments["kv"],
        arguments["indices"][rows],
        arguments["sm_scale"],
        arguments["topk_length"][rows],
        arguments["attn_sink"],
    )

    def make_plan():
        return fewhead.Plan(arguments["indices"], s_kv=s_kv, h_q=h_q, d_qk=d_qk, topk_length=arguments["topk_length"])

    plan = make_plan()
    arms = {
        "auto": lambda: fewhead.flash_mla_sparse_fwd(**arguments),
        "auto, plan given": lambda: fewhead.flash_mla_sparse_fwd(**arguments, plan=plan),
    }
    for path in ("gather", "padded"):
        arms[path] = lambda path=path: fewhead.flash_mla_sparse_fwd(**arguments, path=path)
    record = {"kind": "case", "h_q": h_q, "s_q": s_q, "s_kv": s_kv, "d_qk": d_qk, "topk": topk, "lists": kind, "values": {}}
    ours = arms["auto"]()
    for name, arm in list(arms.items()):
        record["values"][name] = checked(arm(), want, rows)
    if flashmla:
        theirs = flashmla_package.prepared(flashmla, **arguments)
        out, max_logits, lse = theirs()[:3]
        result = out[:, :h_q], max_logits[:, :h_q] * unit, lse[:, :h_q] * unit
        record["values"]["FlashMLA"] = checked(result, want, rows)
        record["largest_difference"] = {
            name: (a.float() - b.float()).abs().nan_to_num(0).max().item()
            for name, a, b in zip(("out", "max_logits", "lse"), ours, result)
        }
        arms["FlashMLA"] = theirs
    good = {name: arm for name, arm in arms.items() if record["values"][name] == "ok"}
    record["us"] = median_times({**good, "plan": make_plan}, device)
    fewhead.reset_stats()
    arms["auto"]()
    record["auto_ran"] = list(fewhead.stats()["kernels"])
    return record


# ---- Output


def header(device, flashmla, why):
    known = fewhead.describe(device)
    return {
        "kind": "header",
        "fewhead": fewhead.build_info(),
        "pytorch": torch.__version__,
        "device": known["name"],
        "driver": known["driver"],
        "flashmla": why if flashmla is None else f"{why}: {flashmla}",
        "python": sys.version.split()[0],
        "command": " ".join([os.path.basename(sys.executable)] + sys.argv),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def table(head, rows):
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)] + ["| " + " | ".join(row) + " |" for row in rows]
    )


def markdown(records):
    head, host, cases = records[0], [r for r in records if r["kind"] == "host"], [r for r in records if r["kind"] == "case"]
    parts = [f"# The Python package on {head['device']}", "\n".join(f"- {name}: {head[name]}" for name in head if name != "kind")]
    parts += [
        f"## Host cost of a call (s_q {host[0]['s_q']}, 8 heads, topk 640), microseconds",
        table(
            ("call", "median", "least", "most", "wanted at most"),
            [
                (
                    r["call"],
                    *(f"{r[n]:.2f}" for n in ("median_us", "least_us", "most_us")),
                    f"{r['limit_us']:.0f}" if "limit_us" in r else "",
                )
                for r in host
            ],
        ),
    ]
    for lists in dict.fromkeys(r["lists"] for r in cases):
        for d_qk, topk in dict.fromkeys((r["d_qk"], r["topk"]) for r in cases):
            chosen = [r for r in cases if (r["lists"], r["d_qk"], r["topk"]) == (lists, d_qk, topk)]
            if not chosen:
                continue
            arms = [
                name
                for name in ("FlashMLA", "auto", "auto, plan given", "plan", "gather", "padded")
                if any(name in r["us"] for r in chosen)
            ]
            rows = []
            for r in chosen:
                wrong = [f"{name} {text}" for name, text in r["values"].items() if text != "ok"]
                ratio = (
                    f"{r['us']['FlashMLA'][0] / r['us']['auto'][0]:.2f}" if "FlashMLA" in r["us"] and "auto" in r["us"] else ""
                )
                rows.append(
                    (
                        str(r["h_q"]),
                        str(r["s_q"]),
                        *(f"{r['us'][a][0]:.1f}" if a in r["us"] else "" for a in arms),
                        ratio,
                        f"{r['largest_difference']['out']:.2e}" if "largest_difference" in r else "",
                        "; ".join(wrong) or "ok",
                        ", ".join(r["auto_ran"]),
                    )
                )
            parts += [
                f"## Lists {lists}, d_qk {d_qk}, topk {topk}: microseconds a call, median",
                table(("h_q", "s_q", *arms, "FlashMLA / auto", "largest difference of out", "values", "auto ran"), rows),
            ]
    return "\n\n".join(parts) + "\n"


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder to write python.jsonl and python.md into")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--heads", type=numbers, default=[8, 16, 64])
    parser.add_argument("--rows", type=numbers, default=[1, 16, 64, 256, 1024, 4096, 8192], help="s_q")
    parser.add_argument("--lists", default="random,local", help="random, local or both")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help=f"how many of {SHAPES} (d_qk, topk)")
    parser.add_argument("--seconds", type=float, default=480, help="begin no further case after so many")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    fewhead.prepare(device)
    began = time.monotonic()
    flashmla, why = flashmla_package.extension() if device.type == "cuda" else (None, "runs on CUDA alone")
    unit = flashmla_package.lse_unit(flashmla, device) if flashmla else 1.0
    records, left_out = [header(device, flashmla, why)], 0
    os.makedirs(args.out, exist_ok=True)

    def write():
        with open(os.path.join(args.out, "python.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(record) + "\n" for record in records)
        with open(os.path.join(args.out, "python.md"), "w", encoding="utf-8") as f:
            f.write(markdown(records))

    with torch.inference_mode():
        records += host_costs(device, flashmla)
        for d_qk, topk in SHAPES[: args.shapes]:
            for kind in args.lists.split(","):
                for h_q in args.heads:
                    for s_q in args.rows:
                        if time.monotonic() - began > args.seconds:
                            left_out += 1
                            continue
                        records.append(one_case(device, flashmla, unit, h_q, s_q, d_qk, topk, kind))
                        r = records[-1]
                        print(
                            f"case  d {d_qk} topk {topk} {kind} h_q {h_q} s_q {s_q}: "
                            + ", ".join(f"{n} {t[0]:.1f}" for n, t in r["us"].items()),
                            *(f"{n} {t}" for n, t in r["values"].items() if t != "ok"),
                            flush=True,
                        )
                        write()
    write()
    wrong = [r for r in records if r["kind"] == "case" and any(text != "ok" for text in r["values"].values())]
    print(
        f"{len(records) - 1} records in {args.out}; {len(wrong)} cases with wrong values; "
        f"{left_out} cases not begun in {args.seconds:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
