-- What does a real engine gain? Starts vLLM with and without fewhead's plug-in, arm by arm, and says what changed.
--
--   make wheel wheel-vllm           and install both beside vLLM 0.26, on a machine with an H100 or H200
--   ./fewhead run experiments/engine_ab.lua --seconds 480 --out results/nvidia-h200
--   ./fewhead run experiments/engine_ab.lua --seconds 480 --out results/nvidia-h200 --resume
--   ./fewhead run experiments/engine_ab.lua --read results/nvidia-h200/engine.jsonl
--
-- The model is one tensor-parallel rank with 8 heads and random weights: no all-reduce, a dense MLP in place of the experts. In a
-- whole server the same milliseconds are a smaller share.
--
-- Answer on an H200, vLLM 0.26, a GLM-5.2 rank: the median TTFT of an 8192-token prompt falls from 500 ms (padded FlashMLA) to
-- 281 ms.
local fh = require "fewhead"

local START = { "seconds", "parts", "workloads", "lists", "runs", "resume", "graphs", "together", "arms", "site", "python" }
local opt = fh.options {
  name = "engine_ab", usage = "fewhead run experiments/engine_ab.lua [options]",
  about = "TTFT, TPOT, throughput and attention time of vLLM by arm, each beside the better of the engine's own kernels.",
  options = {
    { "--read", "FILE", "records of an earlier run; nothing is started", without = START },
    { "--out", "FOLDER", "for engine.jsonl and engine.md (default results/local/engine)", without = { "read" } },
    { "--seconds", "NUMBER", "time for all parts (default 480)", lo = 1 },
    { "--parts", "TEXT", "of check, glm, v4 (default all)" },
    { "--workloads", "TEXT", "of cold8k, C16x8kx48, short-after-8k, cold32k, C4x32kx12, cold128k (default all)" },
    { "--lists", "TEXT", "of indexer, local (default both)" },
    { "--runs", "N", "runs of a closed loop and arm (default 3)", lo = 1 },
    { "--arms", "TEXT", "of flashmla, fa3, gate, gather, auto, auto-shared (default all)" },
    { "--graphs", "TEXT", "arms of glm with decode steps as CUDA graphs, an engine for each" },
    { "--together", nil, "start all engines at once, then measure in turns" },
    { "--resume", nil, "keep the records in --out, and measure what is missing" },
    { "--site", "FILE", "archive of a site-packages folder with vLLM" },
    { "--python", "FILE", "the Python that has vLLM (default python3)" },
  },
}:read(arg)

local function fail(message) fh.cli.exit(fh.cli.FAILED, "engine_ab: " .. message) end
local quoted = fh.shell.quote

local folder = opt.out or "results/local/engine"

local function start()
  local words = { quoted(opt.python or "python3"), "engines/vllm/bench.py", "--out", quoted(folder), "--seconds",
    tostring(opt.seconds or 480) }
  for _, name in ipairs { "resume", "together" } do
    if opt[name] then words[#words + 1] = "--" .. name end
  end
  for _, name in ipairs { "parts", "workloads", "lists", "arms", "graphs", "runs", "site" } do
    if opt[name] then words[#words + 1] = "--" .. name .. " " .. quoted(opt[name]) end
  end
  return os.execute(table.concat(words, " "))
end

local started = opt.read and 0 or start()
local ok, records = pcall(fh.engine_ab.read, opt.read or folder .. "/engine.jsonl")
if not ok then fail(records) end

local rows, said, notes = {}, {}, {}
local function share(value, of) return value and of and value / of end
for _, cell in ipairs(fh.engine_ab.cells(records)) do
  local best = {}
  for _, name in ipairs(fh.engine_ab.FIGURES) do best[name] = fh.engine_ab.best_own(cell, name) end
  for _, name in ipairs(cell.order) do
    local arm = cell.arms[name]
    local faster = share(arm.total_tok_s, best.total_tok_s)
    rows[#rows + 1] = { arm = name, n = arm.n,
      cell = ("%s, %d layers, %s"):format(cell.model, cell.layers, cell.name),
      ttft = arm.ttft_ms, ttft_share = share(arm.ttft_ms, best.ttft_ms), tpot = arm.tpot_ms, total = arm.total_tok_s,
      total_change = faster and 100 * (faster - 1), low = arm.low.total_tok_s, high = arm.high.total_tok_s,
      attention = arm.attention_ms, attention_share = share(arm.attention_ms, best.attention_ms), worst = arm.max_abs }
  end
  if cell.note and not said[cell.note] then notes[#notes + 1] = ("%s: %s"):format(cell.model, cell.note) end
  said[cell.note or ""] = true
end
print((fh.table.text(rows, {
  { key = "cell", align = "left" }, { key = "arm", align = "left" }, { key = "n", format = "%d" },
  { key = "ttft", title = "TTFT ms", format = "%.1f" }, { key = "ttft_share", title = "of best own", format = "%.2f" },
  { key = "tpot", title = "TPOT ms", format = "%.2f" }, { key = "total", title = "tok/s", format = "%.0f" },
  { key = "low", title = "least", format = "%.0f" }, { key = "high", title = "most", format = "%.0f" },
  { key = "total_change", title = "change %", format = "%+.1f" }, { key = "attention", title = "attention ms", format = "%.1f" },
  { key = "attention_share", title = "of best own", format = "%.2f" }, { key = "worst", title = "max error", format = "%.1e" },
})))
for _, line in ipairs(notes) do print(line) end
local wrong = fh.engine_ab.errors(records)
for _, line in ipairs(wrong) do print("ERROR " .. line) end
return (#wrong > 0 or started ~= 0) and 1 or 0
