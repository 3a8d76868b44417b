-- How fast are the GPU's kernels that work query by query? Parity before time.
-- It writes the table behind results/<device>/kernels.md. What neighbours share does not matter to these kernels;
-- bench_packed.lua has the paths for which it does.
--
--   ./fewhead run experiments/bench_gpu.lua --device cuda:0 --out results/DEVICE
--
-- Lists are uniform, on production shapes: V4.1-Flash's (d 512, topk 640, 8 heads of a 64-head buffer) by s_q, more heads, and
-- those of models with d 576 and topk 2048. In results/DEVICE the files are kernels.*.
--
-- Answer on an H200: gather is 1.08 to 1.50 times as fast as padded with 8 heads, 1.25 times with 16, 0.65 with 32.
local fh = require "fewhead"

local opt = fh.bench.options("bench_gpu", "Times of the kernels that work query by query, each after its parity.",
  "64:16384:*2"):read(arg)
local b = fh.bench.open("bench_gpu", opt, "kernels")

local rows = {}
local function measure(name, options)
  options.pattern, options.lengths, options.layout, options.s_kv = "uniform", "none", "vllm", 8192
  for _, row in ipairs(b:measure({ name = name, options = options }, { "padded", "gather" })) do rows[#rows + 1] = row end
end

for _, s_q in ipairs(fh.axis.integers("--s-q", opt.s_q, 1)) do
  measure("d 512, topk 640", { s_q = s_q, heads = 8, topk = 640 })
end
for _, heads in ipairs(opt.quick and {} or { 1, 2, 4, 16, 32, 63, 64, 128 }) do
  measure("d 512, topk 640", { s_q = 8192, heads = heads, topk = 640 })
end
for _, heads in ipairs(opt.quick and {} or { 8, 16, 64 }) do
  measure("d 576, topk 2048", { s_q = 4096, heads = heads, d_qk = 576, topk = 2048, preset = "v3.2 tp8" })
end

return b:finish("Kernels that work query by query", {
  { rows, fh.bench.pick { "cell", "s_q", "h_q", "path", "median", "p05", "p95", "ratio", "useful", "executed", "kv_tb", "parity",
    "max_abs", "kernel" } },
  b:legend(), "Lists are uniform over 8192 KV rows. KV TB/s: rows of valid keys over the time.",
})
