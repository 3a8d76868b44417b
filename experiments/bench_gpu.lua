-- The kernels of a GPU, one after another, parity before time: the table behind results/<device>/kernels.md.
--
--   ./fewhead run experiments/bench_gpu.lua --device cuda:0 --out results/nvidia-h200
--
-- Cells are production shapes: V4.1-Flash's (d 512, topk 640, 8 heads of a 64-head buffer) by pattern and s_q, more heads, and
-- those of models with d 576 and topk 2048. Every record is a line of kernels.jsonl.
local fh = require "fewhead"

local opt = fh.cli.options {
  name = "bench_gpu", usage = "fewhead run experiments/bench_gpu.lua [options]",
  about = "Times of every path a device has, on production shapes, each after its parity.",
  options = {
    { "--device", "NAME", "device to run on: cuda:0, cpu", default = fh.device.default_name() },
    { "--s-q", "AXIS", "rows of a chunk, for the patterns", default = "64:16384:*2", lo = 1 },
    fh.peer.option,
    { "--quick", nil, "only the patterns at --s-q, not the large cells of other heads and sizes" },
    { "--out", "DIR", "folder for kernels.jsonl and kernels.md; DEVICE in it stands for the device's name" },
    { "--samples", "INTEGER", "launches timed of each path and cell", default = 30, lo = 6 },
  },
}:read(arg)

-- ---- Cells --------------------------------------------------------------------------------------------------------------------

local function by_s_q(name, options)
  local cells = {}
  for i, s_q in ipairs(fh.axis.integers("--s-q", opt.s_q, 1, 131072)) do
    local cell = { s_q = s_q }
    for key, value in pairs(options) do cell[key] = value end
    cells[i] = { name = name, options = cell }
  end
  return cells
end

local cells = {}
local function add(list)
  for _, cell in ipairs(list) do cells[#cells + 1] = cell end
end

for _, s_kv in ipairs { 8192, 32896 } do
  add(by_s_q("uniform, s_kv " .. s_kv, { pattern = "uniform", s_kv = s_kv, heads = 8, topk = 640, lengths = "none" }))
end
for _, pattern in ipairs { "csa", "local" } do
  for _, ratio in ipairs { 4, 2, 1 } do -- holes = 0: what the published figures were measured on
    add(by_s_q(("%s, ratio %d"):format(pattern, ratio), { pattern = pattern, ratio = ratio, heads = 8, holes = 0 }))
  end
end
for _, heads in ipairs(opt.quick and {} or { 16, 32, 63, 64, 128 }) do
  add { { name = "csa, ratio 4", options = { s_q = 8192, pattern = "csa", ratio = 4, heads = heads, holes = 0 } } }
end
for _, heads in ipairs(opt.quick and {} or { 8, 16 }) do
  add { { name = "uniform, d 576", options = {
    s_q = 4096, s_kv = 8192, pattern = "uniform", heads = heads, d_qk = 576, topk = 2048, preset = "v3.2 tp8", lengths = "none",
  } } }
end

-- ---- Measure ------------------------------------------------------------------------------------------------------------------

local dev, err = fh.device.open(opt.device)
if not dev then error(err, 0) end
local run = fh.run.header(dev)

local function paths_of(case)
  local paths = {}
  for _, path in ipairs { "padded", "gather", "packed" } do
    if dev:has_path(path, case.h_q) then paths[#paths + 1] = path end
  end
  for _, peer in ipairs(opt.provider) do paths[#paths + 1] = peer end
  return paths
end

local TERA = 1e12
local rows, records, failed = {}, {}, 0
local progress = require("fewhead.progress").new()
for i, cell in ipairs(cells) do
  cell.options.layout = "vllm"
  progress:show(("%d of %d: %s, s_q %d"):format(i, #cells, cell.name, cell.options.s_q))
  local case = fh.case(cell.options)
  local problem, refused = case:problem(dev)
  if not problem then error(("%s: %s"):format(case:id(), refused), 0) end
  local comparison
  comparison, refused = fh.compare(case, paths_of(case), {
    device = dev, run = run, min_samples = opt.samples, max_samples = opt.samples, max_seconds = 5,
  })
  if not comparison then error(("%s: %s"):format(case:id(), refused), 0) end
  for _, record in ipairs(comparison.records) do
    local time, work = record.time, record.work
    local row = {
      pattern = cell.name, s_q = case.s_q, s_kv = case.s_kv, h_q = case.h_q, path = record.path, parity = record.parity.status,
      max_abs = record.parity.max_abs,
    }
    if time then
      local seconds = time.median_us / 1e6
      row.median, row.spread = time.median_us, ("%.1f .. %.1f"):format(time.p05_us, time.p95_us)
      row.ratio = comparison.records[1].time and comparison.records[1].time.median_us / time.median_us
      row.useful = problem.useful_flops / seconds / TERA
      row.executed = work.executed_flops and work.executed_flops / seconds / TERA
      row.rows_tb = problem.valid_keys * case.d_qk * 2 / seconds / TERA
      row.plan = time.plan_us
    else failed = failed + 1 end
    rows[#rows + 1], records[#records + 1] = row, record
  end
  case:free()
end
progress:clear()

-- ---- Report -------------------------------------------------------------------------------------------------------------------

local columns = {
  { key = "pattern", align = "left" }, { key = "s_q" }, { key = "s_kv" }, { key = "h_q" }, { key = "path", align = "left" },
  { key = "median", title = "median us", format = "%.1f" }, { key = "spread", title = "p05 .. p95" },
  { key = "ratio", title = "padded / path", format = "%.2f" }, { key = "useful", title = "useful TFLOP/s", format = "%.0f" },
  { key = "executed", title = "executed", format = "%.0f" }, { key = "rows_tb", title = "KV TB/s", format = "%.2f" },
  { key = "plan", title = "plan us", format = "%.1f" }, { key = "parity", align = "left" },
  { key = "max_abs", title = "max error", format = "%.1e" },
}
local legend = {
  "Medians of " .. opt.samples .. " launches by the device's own timer, paths in turns, hot caches; every path was compared with "
    .. "the reference before it was timed.",
  "useful: valid keys of real heads. executed: the heads and keys that the kernel multiplies, padding included, as far as the "
    .. "host knows them. KV TB/s: rows of valid keys over the time. plan: one build, not in the median.",
}

if opt.out then
  local folder = opt.out:gsub("DEVICE", (run.device:lower():gsub("[^%w]+", "-"))) -- "NVIDIA H200": nvidia-h200
  local lines = {}
  for i, record in ipairs(records) do lines[i] = fh.json.encode(record) end
  local head = {
    "# Kernels on " .. run.device, "", ("- command: `./fewhead run experiments/bench_gpu.lua %s`"):format(table.concat(arg, " ")),
    ("- commit %s%s, driver %s, %s"):format(run.commit, run.dirty and " with changes" or "", run.driver, run.date), "",
    fh.report.markdown(rows, columns), "", table.concat(legend, "\n"),
  }
  for name, text in pairs { ["kernels.jsonl"] = table.concat(lines, "\n"), ["kernels.md"] = table.concat(head, "\n") } do
    local written, why = fh.report.write(folder .. "/" .. name, text .. "\n")
    if not written then error(why, 0) end
  end
end
print(fh.report.table(rows, columns))
print(table.concat(legend, "\n"))
return failed == 0 and 0 or fh.cli.FAILED
