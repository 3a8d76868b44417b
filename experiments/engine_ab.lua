-- What does a real engine gain? Starts vLLM with and without fewhead's plug-in, arm by arm, and says what changed.
--
--   make wheel wheel-vllm           and install both beside vLLM 0.26, on a machine with an H100 or H200
--   ./fewhead run experiments/engine_ab.lua --seconds 480 --out results/nvidia-h200
--   ./fewhead run experiments/engine_ab.lua --read results/nvidia-h200/engine.jsonl
--
-- The model is one tensor-parallel rank with 8 heads and random weights: no all-reduce, a dense MLP in place of the experts. In a
-- whole server the same milliseconds are a smaller share.
local fh = require "fewhead"

local opt = fh.options {
  name = "engine_ab", usage = "fewhead run experiments/engine_ab.lua [options]",
  about = "TTFT, TPOT, throughput and attention time of vLLM by arm, each beside the better of the engine's own kernels.",
  options = {
    { "--read", "FILE", "records of an earlier run; nothing is started", without = { "seconds", "parts", "site", "python" } },
    { "--out", "FOLDER", "for engine.jsonl and engine.md (default results/local/engine)", without = { "read" } },
    { "--seconds", "NUMBER", "time for all parts (default 480)", lo = 1 },
    { "--parts", "TEXT", "of check, glm, v4 (default all)" },
    { "--site", "FILE", "archive of a site-packages folder with vLLM" },
    { "--python", "FILE", "the Python that has vLLM (default python3)" },
  },
}:read(arg)

local function fail(message) fh.cli.exit(fh.cli.FAILED, "engine_ab: " .. message) end
local quoted = fh.shell.quote

-- ---- Start -----------------------------------------------------------------------------------------------------------------

local folder = opt.out or "results/local/engine"

local function start()
  local words = { quoted(opt.python or "python3"), "engines/vllm/bench.py", "--out", quoted(folder), "--seconds",
    tostring(opt.seconds or 480) }
  for _, name in ipairs { "parts", "site" } do
    if opt[name] then words[#words + 1] = "--" .. name .. " " .. quoted(opt[name]) end
  end
  return os.execute(table.concat(words, " "))
end

local started = opt.read and 0 or start()
local path = opt.read or folder .. "/engine.jsonl"
local records = {}
local ok, err = pcall(function()
  for r in fh.json.lines(path) do records[#records + 1] = r end
end)
if not ok then fail(tostring(err)) end
if #records == 0 then fail(path .. ": no record in it") end

-- ---- Check -----------------------------------------------------------------------------------------------------------------

local OWN = { flashmla = true, fa3 = true } -- the engine's own arms
local wrong = {}

local function sum(counts)
  local total = 0
  for _, n in pairs(counts or {}) do total = total + n end
  return total
end

-- What an arm ran, as one text; the counters of a record grow through its part, so the last record of an arm has all of them.
local function mark(work)
  local parts = { "fa3 " .. (work.fa3_calls or 0) }
  for _, field in ipairs { "calls", "declined", "plans", "kernels" } do
    for name, n in pairs(work[field] or {}) do parts[#parts + 1] = ("%s %s %d"):format(field, name, n) end
  end
  table.sort(parts)
  return table.concat(parts, "; ")
end

local last = {} -- part -> arm -> record
for _, r in ipairs(records) do
  if type(r.engine) ~= "table" or type(r.work) ~= "table" then fail(path .. ": no records of the engine's bench") end
  local part = r.part or ""
  last[part] = last[part] or {}
  last[part][r.path] = r
  if r.parity.status == "fail" then wrong[#wrong + 1] = ("%s: %s differs from the engine's own kernel"):format(part, r.path) end
end
for part, arms in pairs(last) do
  local seen = {}
  for arm, r in pairs(arms) do
    local ran = arm == "flashmla" and sum(r.work.declined) or arm == "fa3" and r.work.fa3_calls or sum(r.work.calls)
    if ran == 0 then wrong[#wrong + 1] = ("%s: arm %s routed nothing"):format(part, arm) end
    local text = mark(r.work)
    if seen[text] then
      local first, second = seen[text], arm
      if second < first then first, second = second, first end
      wrong[#wrong + 1] = ("%s: arms %s and %s have equal counters"):format(part, first, second)
    end
    seen[text] = arm
  end
end
table.sort(wrong)

-- ---- Tell ------------------------------------------------------------------------------------------------------------------

local function cell_of(r)
  return ("%s, %d layers, %s, %s lists"):format(r.case.model, r.case.layers, r.case.workload, r.case.lists)
end

local cells, order = {}, {}
for _, r in ipairs(records) do
  local name = cell_of(r)
  if not cells[name] then
    cells[name] = {}
    order[#order + 1] = name
  end
  table.insert(cells[name], r)
end

-- The best figure of the engine's own arms: the least, or the most where more is better.
local function best(list, figure, more)
  local found
  for _, r in ipairs(list) do
    local value = OWN[r.path] and figure(r)
    if value and (not found or (more and value > found) or (not more and value < found)) then found = value end
  end
  return found
end

local function ttft(r) return r.engine.ttft_ms and r.engine.ttft_ms.p50 end
local function total(r) return r.engine.total_tok_s end
local function attention(r) return r.engine.attention_ms end
local function share(figure, baseline) return figure and baseline and figure / baseline end

local rows = {}
for _, name in ipairs(order) do
  local list = cells[name]
  local b_ttft, b_total, b_attention = best(list, ttft), best(list, total, true), best(list, attention)
  for _, r in ipairs(list) do
    local faster = share(total(r), b_total)
    rows[#rows + 1] = { cell = name, arm = r.path, ttft = ttft(r), ttft_share = share(ttft(r), b_ttft), total = total(r),
      total_change = faster and 100 * (faster - 1), attention = attention(r), attention_share = share(attention(r), b_attention),
      tpot = r.engine.tpot_ms and r.engine.tpot_ms.p50, worst = r.parity.max_abs }
  end
end
print((fh.table.text(rows, {
  { key = "cell", align = "left" }, { key = "arm", align = "left" }, { key = "ttft", title = "TTFT ms", format = "%.1f" },
  { key = "ttft_share", title = "of best own", format = "%.2f" }, { key = "tpot", title = "TPOT ms", format = "%.2f" },
  { key = "total", title = "tok/s", format = "%.0f" }, { key = "total_change", title = "change %", format = "%+.1f" },
  { key = "attention", title = "attention ms", format = "%.1f" },
  { key = "attention_share", title = "of best own", format = "%.2f" }, { key = "worst", title = "max error", format = "%.1e" },
})))
local said = {}
for _, r in ipairs(records) do
  if r.note and not said[r.note] then
    said[r.note] = true
    print(("%s: %s"):format(r.case.model, r.note))
  end
end
for _, line in ipairs(wrong) do print("ERROR " .. line) end
return (#wrong > 0 or started ~= 0) and 1 or 0
