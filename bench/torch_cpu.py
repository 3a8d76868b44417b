#!/usr/bin/env python3
"""Times the attention of `make bench` in PyTorch on the CPU. Nothing depends on this program.

h_q 8, d 512, topk 640: the last s_q rows of an 8192-token prompt, a window of 128 rows and 512 picks among the 2048 compressed
rows, drawn afresh for every row (csa). Formulations, each in fp32 and bf16:

  gather  the listed KV rows of some queries at a time, two batched matrix products around a softmax in fp32
  dense   all KV rows, a mask that adds -inf where a row is not listed, scaled_dot_product_attention

Each time comes with the distance from the same computation in fp64. Usage: torch_cpu.py [--threads N] [--s-q 2048,64]
With --products: only the bf16 matrix products that padded attention is made of, batched, and a large square one.
"""
import argparse
import statistics
import time

import torch

PROMPT, RATIO, WINDOW, PICKS, D, HEADS = 8192, 4, 128, 512, 512, 8
POOL = PROMPT // RATIO


def make_lists(s_q, generator):
    """int64 [s_q, 640]; every entry is valid, since the rows stand at the end of the prompt."""
    rows = []
    for s in range(s_q):
        position = PROMPT - s_q + s
        picks = torch.randperm((position + 1) // RATIO, generator=generator)[:PICKS]
        window = POOL + torch.arange(position - WINDOW + 1, position + 1)
        rows.append(torch.cat([picks, window]))
    return torch.stack(rows)


def gather(q, kv, lists, scale, chunk):
    out = torch.empty_like(q)
    for a in range(0, q.shape[0], chunk):
        rows = lists[a : a + chunk]
        k = kv.index_select(0, rows.flatten()).view(rows.shape[0], rows.shape[1], D)
        s = torch.bmm(q[a : a + chunk], k.transpose(1, 2)).float().mul_(scale)
        out[a : a + chunk] = torch.bmm(torch.softmax(s, -1).to(q.dtype), k)
    return out


def dense(q, kv, mask, scale, chunk):
    out = torch.empty_like(q)
    k = kv.view(1, 1, -1, D).expand(1, HEADS, -1, D)
    for a in range(0, q.shape[0], chunk):
        part = q[a : a + chunk].transpose(0, 1).unsqueeze(0)
        m = mask[a : a + chunk].view(1, 1, part.shape[2], -1)
        r = torch.nn.functional.scaled_dot_product_attention(part, k, k, m, scale=scale)
        out[a : a + chunk] = r[0].transpose(0, 1)
    return out


def timed(run, seconds):
    run()
    times = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3, statistics.median(times) * 1e3, len(times)


def products(generator):
    """GFLOP/s of torch.matmul in bf16, which oneDNN computes: best of a second each."""
    shapes = [("logits of 64 rows and 640 keys", 64, 64, 512, 640), ("their values", 64, 64, 640, 512), ("square", 1, 2048, 2048, 2048)]
    done = []
    for name, batch, m, k, n in shapes:
        a, b = (torch.randn(batch, x, y, generator=generator).bfloat16() for x, y in ((m, k), (k, n)))
        best = timed(lambda a=a, b=b: torch.matmul(a, b), 1)[0]
        done.append(f"{name}, {batch} x [{m} x {k}] [{k} x {n}]: {2e-6 * batch * m * k * n / best:.0f} GFLOP/s")
    print(f"PyTorch {torch.__version__} (oneDNN {torch.backends.mkldnn.is_available()}), {torch.get_num_threads()} threads, bf16 matrix products: {'; '.join(done)}.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--s-q", default="2048,64")
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each formulation")
    parser.add_argument("--products", action="store_true", help="only bf16 matrix products")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    generator = torch.Generator().manual_seed(1)
    if args.products:
        return products(generator)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    a, b = (torch.randn(512, 512, generator=generator) for _ in range(2))
    best = timed(lambda: a @ b.T, 0.5)[0]
    print(f"fp32 matrix product 512 x 512 x 512: {2 * 512**3 / best * 1e-6:.1f} GFLOP/s\n")
    kv64 = torch.randn(POOL + PROMPT, D, generator=generator, dtype=torch.float32).bfloat16().double()
    scale = D**-0.5
    print("| s_q | formulation | rows at once | best ms | median ms | n | useful GFLOP/s | cos diff |")
    print("|---|---|---|---|---|---|---|---|")
    with torch.inference_mode():
        for s_q in (int(x) for x in args.s_q.split(",")):
            lists = make_lists(s_q, generator)
            q64 = torch.randn(s_q, HEADS, D, generator=generator).bfloat16().double()
            checked = torch.arange(0, s_q, max(1, s_q // 32))
            want = gather(q64[checked], kv64, lists[checked], scale, 8)
            gflop = 2e-9 * lists.numel() * HEADS * 2 * D
            for dtype in (torch.float32, torch.bfloat16):
                q, kv = q64.to(dtype), kv64.to(dtype)
                mask = torch.full((s_q, kv.shape[0]), float("-inf"), dtype=dtype)
                mask.scatter_(1, lists, 0)
                runs = [("gather", c, lambda c=c: gather(q, kv, lists, scale, c)) for c in (2, 4, 8, 32) if c <= s_q]
                runs += [("dense", c, lambda c=c: dense(q, kv, mask, scale, c)) for c in (64, 512) if c <= s_q]
                for name, chunk, run in runs:
                    best, median, n = timed(run, args.seconds)
                    got = run()[checked].double()
                    cos = 1 - 2 * (got * want).sum() / ((got**2).sum() + (want**2).sum())
                    rate = f"{gflop / best * 1e3:.1f}"
                    row = [s_q, f"{name} {dtype}", chunk, f"{best:.1f}", f"{median:.1f}", n, rate, f"{cos:.1e}"]
                    print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
