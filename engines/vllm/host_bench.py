"""What a call costs on the host: the plug-in's method of V3.2 and GLM, and what it calls of fewhead.

    make stage-vllm
    PYTHONPATH=build/python:build/vllm python3 engines/vllm/host_bench.py [--device cuda:0] [--out results/local/engine]

The tests' stand-in takes vLLM's place, so vLLM is not needed. On a CPU the C functions of a call and of a plan are replaced by ones that return
at once: what is left is Python and PyTorch. On a GPU the C functions launch their kernels, and nothing waits for them.

  layer with an indexer   the patched method, which builds a plan
  layer without           the patched method, which takes the plan of the layer before
  plan, call              the parts of fewhead in these: fewhead.Plan, fewhead.flash_mla_sparse_fwd

A figure is the least mean of --samples times --calls calls, in microseconds: other work of the machine only adds to it. Prints a table and
writes FOLDER/engine_host.json.
"""
import argparse
import ctypes
import datetime
import importlib
import json
import os
import sys
import tempfile
import time
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tests")]

import torch  # noqa: E402

S_Q, HEADS, D_QK, TOPK, BLOCKS = 512, 8, 576, 2048, 64
WARM_CALLS = 50


def least_us(function, calls, samples, device):
    """The least mean of `calls` calls, in microseconds."""
    means = []
    for _ in range(samples):
        began = time.perf_counter_ns()
        for _ in range(calls):
            function()
        means.append((time.perf_counter_ns() - began) / calls / 1000)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return min(means)


def patched_class(lengths):
    """The stand-in's attention class with the plug-in in it. Its forward does nothing but call the kernel."""
    import stub
    folder = tempfile.mkdtemp()
    stub.build(folder)
    sys.path.insert(0, folder)
    impl = importlib.import_module("vllm.v1.attention.backends.mla.flashmla_sparse").FlashMLASparseImpl

    def forward(self, q, kv_c_and_k_pe_cache, topk_indices, attn_metadata):
        return self._bf16_flash_mla_kernel(q, kv_c_and_k_pe_cache, topk_indices, lengths)

    impl._forward_bf16_kv = forward
    import fewhead_vllm
    fewhead_vllm.register()
    return impl


def leave_out_c(plan):
    """Replace the C functions that compute by ones that return at once. plan: a plan of the sizes that will be built."""
    from fewhead import _call, _plan

    def build(_handle, _call, _memory, _bytes, struct):
        ctypes.memmove(struct, plan.address, ctypes.sizeof(plan.struct))
        return 0

    _call._sparse_fwd = lambda _handle, _call: 0
    library = _plan.lib
    _plan.lib = SimpleNamespace(fh_plan_bytes=library.fh_plan_bytes, fh_plan_build=build)


def ways(device):
    """{what: function that does it once}"""
    import fewhead
    q = torch.zeros(S_Q, HEADS, D_QK, dtype=torch.bfloat16, device=device)
    kv = torch.zeros(BLOCKS, 64, D_QK, dtype=torch.bfloat16, device=device)
    lists = (torch.arange(TOPK)[None] + torch.arange(S_Q)[:, None]).int().to(device)
    lengths = torch.full((S_Q,), TOPK, dtype=torch.int32, device=device)
    impl = patched_class(lengths)
    layers = impl(HEADS, indexer=SimpleNamespace(topk_indices_buffer=lists)), impl(HEADS, topk_indices_buffer=lists)
    starts = torch.tensor([0, S_Q // 2, S_Q], dtype=torch.int32, device=device)
    step = SimpleNamespace(num_reqs=2, num_actual_tokens=S_Q, query_start_loc=starts)
    indices, rows, scale = lists.view(S_Q, 1, TOPK), kv.view(-1, 1, D_QK), layers[0].softmax_scale

    def make_plan():
        return fewhead.Plan(indices, s_kv=rows.shape[0], h_q=HEADS, d_qk=D_QK, topk_length=lengths, cu_seqlens_q=starts)

    plan = make_plan()
    if device.type == "cpu":
        leave_out_c(plan)
    return {
        "layer with an indexer": lambda: layers[0]._forward_bf16_kv(q, kv, lists, step),
        "layer without": lambda: layers[1]._forward_bf16_kv(q, kv, lists, step),
        "plan": make_plan,
        "call": lambda: fewhead.flash_mla_sparse_fwd(q, rows, indices, scale, topk_length=lengths, plan=plan, cu_seqlens_q=starts),
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cpu")
    p.add_argument("--out", default="results/local/engine", help="folder for engine_host.json")
    p.add_argument("--calls", type=int, default=100)
    p.add_argument("--samples", type=int, default=41)
    args = p.parse_args()
    device = torch.device(args.device)
    import fewhead
    fewhead.prepare(device)
    figures = {}
    with torch.inference_mode():
        for what, function in ways(device).items():
            for _ in range(WARM_CALLS):
                function()
            figures[what] = least_us(function, args.calls, args.samples, device)
            print(f"{what:24} {figures[what]:8.2f} us", flush=True)
    from fewhead_vllm import stats
    off = stats()["off"] or stats()["errors"] or stats()["declined"]["calls"]
    if off:
        sys.exit(f"no result: calls were the engine's own: {off}")
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "engine_host.json"), "w", encoding="utf-8") as f:
        json.dump({"kind": "host", "device": fewhead.describe(device)["name"], "build": fewhead.build_info(), "torch": torch.__version__,
                   "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "argv": sys.argv[1:],
                   "case": {"s_q": S_Q, "h_q": HEADS, "d_qk": D_QK, "topk": TOPK, "requests": 2}, "us": figures}, f)
        f.write("\n")


if __name__ == "__main__":
    main()
