-- When does packing pay? Every path, parity before time, on lists that share much, little and nothing.
-- All paths take turns in one run. It writes the tables behind results/<device>/packed.md.
--
--   ./fewhead run experiments/bench_packed.lua --device cuda:0 --out results/DEVICE
--
-- padded and gather work query by query; packed runs on a plan that is there, whose building stands beside it; auto is what a
-- caller gets who brings no plan and says nothing, all of it in its time.
--
-- Answer on an H200, 8 heads, 8192 rows: packed is 1.99 (csa, ratio 1) to 5.02 (local, ratio 4) times as fast as padded, and 1.07
-- where lists share almost nothing; at s_q 64 gather is faster than packed.
local fh = require "fewhead"

local opt = fh.bench.options("bench_packed", "Times of padded, gather, packed and auto by what neighbouring rows share.",
  "64,256,1024,8192"):read(arg)
local b = fh.bench.open("bench_packed", opt, "packed")

local LONG = 131072 -- rows of the prompt that a late chunk ends, 32,768 compressed ones at ratio 4
local function csa(ratio) return { name = ("csa, ratio %d"):format(ratio), options = { pattern = "csa", ratio = ratio } } end
local function kept(keep, ratio, prompt)
  local name = ("local %g, ratio %d%s"):format(keep, ratio, prompt and ", end of 128k" or "")
  return { name = name, options = { pattern = "local", keep = keep, ratio = ratio }, prompt = prompt }
end
local uniform = { name = "uniform over 32768", options = { pattern = "uniform", s_kv = 32768, topk = 640, lengths = "none" } }
local kinds = {}
for _, ratio in ipairs { 4, 2, 1 } do
  for _, kind in ipairs { csa(ratio), kept(0.9, ratio), kept(0.8, ratio) } do kinds[#kinds + 1] = kind end
end
kinds[#kinds + 1] = kept(0.9, 4, LONG)
kinds[#kinds + 1] = uniform

local paths = { "auto" }
for i, path in ipairs(fh.path.candidates()) do table.insert(paths, i, path) end
local sizes = fh.axis.integers("--s-q", opt.s_q, 1)
local by_kind, by_heads, wide, range = b:table { kinds = kinds, heads = { 8 }, s_q = sizes, paths = paths }, {}, {}, {}
if not opt.quick then
  by_heads = b:table { kinds = { csa(4), kept(0.9, 4), kept(0.9, 4, LONG), uniform }, heads = { 4, 16, 32 },
    s_q = { 64, 1024, 4096, 8192 }, paths = paths }
  local function v32(name, prompt, keep) -- V3.2's and GLM's width: no window, an index over tokens
    return { name = name, options = { pattern = keep and "local" or "csa", keep = keep, preset = "v3.2 tp8" }, prompt = prompt }
  end
  wide = b:table { kinds = { v32 "csa", v32("local 0.9", nil, 0.9), v32("local 0.9, end of 128k", LONG, 0.9) },
    heads = { 8, 16 }, s_q = { 64, 1024, 4096 }, paths = paths }
  range = b:auto_beside_padded { kinds = { csa(4), kept(0.9, 4), uniform }, heads = 8,
    s_q = { 1, 16, 64, 256, 1024, 4096, 8192, 16384, 65536, 131072 } }
end

local columns = fh.bench.pick { "cell", "s_q", "h_q", "union", "dedup", "path", "median", "p05", "p95", "plan", "ratio", "useful",
  "executed", "parity", "max_abs", "kernel" }
return b:finish("Packed beside padded, gather and auto", {
  b:legend(),
  "union: KV rows of a group's union, of floor(64 / h_q) queries; dedup: keys that one row of it serves. packed runs on a plan "
    .. "that is there; plan: one build of it. auto brings none: what it builds is in its time.",
  "## 8 heads, d 512, topk 640", { by_kind, columns }, "## Other heads", { by_heads, columns },
  "## d 576, topk 2048", { wide, columns }, "## auto against padded", { range, fh.bench.beside_columns },
})
