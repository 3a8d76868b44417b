-- When does packing pay? Every path, parity before time, on lists that share much, little and nothing.
-- All paths take turns in one run. It writes the table behind results/<device>/packed.md.
--
--   ./fewhead run experiments/bench_packed.lua --device cuda:0 --out results/DEVICE
--
-- padded and gather work query by query; packed runs on a plan that is there, whose building stands beside it; auto is what a
-- caller gets who brings no plan and says nothing, all of it in its time. Every record is a line of packed.jsonl.
--
-- Answer on an H200, 8 heads, 8192 rows: packed is 1.97 (csa, ratio 1) to 5.01 (local, ratio 4) times as fast as padded, and 1.07
-- where lists share almost nothing; at s_q 64 gather is faster than packed.
local fh = require "fewhead"

local opt = fh.bench.options("bench_packed", "Times of padded, gather, packed and auto by what neighbouring rows share.",
  "64,256,1024,8192"):read(arg)
local b = fh.bench.open("bench_packed", opt, "packed")

-- ---- Lists ------------------------------------------------------------------------------------------------------------------

-- The prompt that a late chunk ends, rows: 32,768 compressed ones at ratio 4.
local LONG = 131072

local function lists(name, options, prompt) return { name = name, options = options, prompt = prompt } end

local function csa(ratio) return lists(("csa, ratio %d"):format(ratio), { pattern = "csa", ratio = ratio }) end

local function kept(keep, ratio, prompt)
  local where = prompt and ", end of 128k" or ""
  return lists(("local %g, ratio %d%s"):format(keep, ratio, where), { pattern = "local", keep = keep, ratio = ratio }, prompt)
end

local UNIFORM = lists("uniform over 32768", { pattern = "uniform", s_kv = 32768, topk = 640, lengths = "none" })

local PATTERNS = {}
for _, ratio in ipairs { 4, 2, 1 } do
  for _, one in ipairs { csa(ratio), kept(0.9, ratio), kept(0.8, ratio) } do PATTERNS[#PATTERNS + 1] = one end
end
PATTERNS[#PATTERNS + 1] = kept(0.9, 4, LONG)
PATTERNS[#PATTERNS + 1] = UNIFORM

-- V3.2's and GLM's width: no window, an index over tokens.
local WIDE = {
  lists("csa", { pattern = "csa", preset = "v3.2 tp8" }),
  lists("local 0.9", { pattern = "local", keep = 0.9, preset = "v3.2 tp8" }),
  lists("local 0.9, end of 128k", { pattern = "local", keep = 0.9, preset = "v3.2 tp8" }, LONG),
}

-- ---- Measure ----------------------------------------------------------------------------------------------------------------

local PATHS = fh.path.candidates()
PATHS[#PATHS + 1] = "auto"

-- A row a path.
local function measure(kind, s_q, heads, paths)
  local o = { s_q = s_q, heads = heads, layout = "vllm", holes = 0, prior = kind.prompt and math.max(0, kind.prompt - s_q) }
  for key, value in pairs(kind.options) do o[key] = value end
  return b:measure({ name = kind.name, options = o }, paths)
end

-- Tables of auto beside padded, by the name of the lists: rows of all tables that belong there, found again by s_q.
local beside = {}

-- Rows of all kinds at all of these sizes.
local function table_of(kinds, sizes, heads, paths)
  local rows = {}
  for _, kind in ipairs(kinds) do
    for _, h_q in ipairs(heads) do
      for _, s_q in ipairs(sizes) do
        local measured = measure(kind, s_q, h_q, paths)
        for _, row in ipairs(measured) do rows[#rows + 1] = row end
        if h_q == 8 then beside[kind.name .. s_q] = measured end
      end
    end
  end
  return rows
end

local sizes = fh.axis.integers("--s-q", opt.s_q, 1)
local by_pattern = table_of(PATTERNS, sizes, { 8 }, PATHS)
local by_heads, wide = {}, {}
if not opt.quick then
  by_heads = table_of({ csa(4), kept(0.9, 4), kept(0.9, 4, LONG), UNIFORM }, { 64, 1024, 8192 }, { 4, 16, 32 }, PATHS)
  wide = table_of(WIDE, { 64, 1024, 4096 }, { 8, 16 }, PATHS)
end

-- auto beside padded at every size: where a cell has been measured above, those times.
local whole_range = {}
for _, kind in ipairs(opt.quick and {} or { csa(4), kept(0.9, 4), UNIFORM }) do
  for _, s_q in ipairs { 1, 16, 64, 256, 1024, 4096, 8192, 16384, 65536, 131072 } do
    local row = { cell = kind.name, s_q = s_q }
    for _, one in ipairs(beside[kind.name .. s_q] or measure(kind, s_q, 8, { "padded", "auto" })) do
      if one.path == "padded" then row.padded = one.median end
      if one.path == "auto" then
        row.auto, row.ratio, row.verdict, row.packs, row.parity = one.median, one.ratio, one.verdict, one.packs, one.parity
      end
    end
    if not b.experiment.interrupted then whole_range[#whole_range + 1] = row end
  end
end

-- ---- Report -----------------------------------------------------------------------------------------------------------------

local columns = fh.bench.pick {
  "cell", "s_q", "h_q", "union", "dedup", "path", "median", "p05", "p95", "plan", "ratio", "useful", "executed", "parity",
  "max_abs", "kernel",
}
local parts = {
  b:legend(),
  "union: KV rows of a group's union, of floor(64 / h_q) queries; dedup: keys that one row of it serves. packed runs on a plan "
    .. "that is there; plan: one build of it. auto brings none: what it builds is in its time.",
  "## 8 heads, d 512, topk 640", { by_pattern, columns },
}
local function add(title, rows, shown)
  if #rows > 0 then parts[#parts + 1], parts[#parts + 2] = "## " .. title, { rows, shown } end
end
add("Other heads", by_heads, columns)
add("d 576, topk 2048", wide, columns)
add("auto against padded", whole_range, {
  { key = "cell", title = "lists", align = "left" }, { key = "s_q" }, { key = "padded", title = "padded us", format = "%.1f" },
  { key = "auto", title = "auto us", format = "%.1f" }, { key = "ratio", title = "padded / auto", format = "%.2f" },
  { key = "verdict", title = "auto is", align = "left" },
  { key = "packs", title = "groups packed", format = function(share) return ("%.0f %%"):format(100 * share) end },
  { key = "parity", align = "left" },
})
return b:finish("Packed beside padded, gather and auto", parts)
