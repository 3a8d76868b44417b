--- Engine A/B: the records that engines/vllm/bench.py writes, read as cells.
--
--     local cells = fh.engine_ab.cells(fh.engine_ab.read "results/nvidia-h200/engine.jsonl")
--     print(cells[1].workload, cells[1].arms["auto-shared"].ttft_ms)      -- the median of the runs
--
-- A cell is a model, a workload, a kind of lists and how decode steps ran; its arms are what ran it. A cold workload has one
-- record an arm with all its samples, a closed loop one record a run.
local json = require "fewhead.base.json"
local option = require "fewhead.base.option"
local shell = require "fewhead.base.shell"
local stats = require "fewhead.measure.stats"

local M = {}

--- The options of engines/vllm/bench.py that start takes (fewhead.base.option).
M.rows = option.rows("engine_ab", {
  { "--seconds", "NUMBER", "time for all parts", default = 480, lo = 1 },
  { "--parts", "TEXT", "of check, glm, v4 (default all)" },
  { "--workloads", "TEXT", "of cold8k, C16x8kx48, short-after-8k, cold32k, C4x32kx12, cold128k (default all)" },
  { "--lists", "TEXT", "of indexer, local (default both)" },
  { "--runs", "N", "runs of a closed loop and arm (default 3)", lo = 1 },
  { "--arms", "TEXT", "of flashmla, fa3, gate, gather, auto, auto-shared (default all)" },
  { "--graphs", "TEXT", "arms of glm with decode steps as CUDA graphs, an engine for each" },
  { "--together", nil, "start all engines at once, then measure in turns" },
  { "--resume", nil, "go on with the newest run, and measure what is missing" },
  { "--site", "FILE", "archive of a site-packages folder with vLLM" },
  { "--python", "FILE", "the Python that has vLLM (default python3)" },
})

--- Start the bench in this folder, with the options of M.rows, and wait for its end: whether it measured all, as os.execute says.
function M.start(folder, o)
  local words = { shell.quote(o.python or "python3"), "engines/vllm/bench.py", "--out", shell.quote(folder) }
  for _, row in ipairs(M.rows.list) do
    local value = o[row.key]
    if value and row.key ~= "python" then
      words[#words + 1] = row.flag .. (row.metavar and " " .. shell.quote(tostring(value)) or "")
    end
  end
  return os.execute(table.concat(words, " ")) == 0
end

--- Arms that run the engine's own kernels: padded FlashMLA, and FA3 sparse.
M.OWN = { flashmla = true, fa3 = true }

--- The figures of an arm in cells(), each with its unit in the name.
-- @value FIGURES
M.FIGURES = { "ttft_ms", "ttft_alone_ms", "tpot_ms", "total_tok_s", "output_tok_s", "attention_ms" }

--- All records of a file. Raises with the file where one is damaged, is not of the bench, or where none is there.
function M.read(path)
  local list = {}
  for r in json.lines(path) do
    if type(r.engine) ~= "table" or type(r.work) ~= "table" or type(r.case) ~= "table" then
      error(("%s: record %d is not one of the engine's bench"):format(path, #list + 1), 0)
    end
    list[#list + 1] = r
  end
  if #list == 0 then error(path .. ": no record in it", 0) end
  return list
end

-- A figure of one record: a number, or the median request where a record has their distribution.
local function figure(r, name)
  local value = r.engine[name]
  if type(value) == "table" then return value.p50 end
  return value
end

-- { n =, [figure] = median of the runs, low = { [figure] = least }, high = { [figure] = most }, max_abs =, status = }
local function summary(records)
  local arm = { n = #records, low = {}, high = {}, status = "pass" }
  for _, name in ipairs(M.FIGURES) do
    local values = {}
    for _, r in ipairs(records) do values[#values + 1] = figure(r, name) end
    if name == "ttft_ms" and records[1].engine.ttft_runs_ms then
      values = records[1].engine.ttft_runs_ms
      arm.n = #values
    end
    if #values > 0 then
      arm[name] = stats.median(values)
      arm.low[name], arm.high[name] = math.min(unpack(values)), math.max(unpack(values))
    end
  end
  for _, r in ipairs(records) do
    if r.parity.max_abs then arm.max_abs = math.max(arm.max_abs or 0, r.parity.max_abs) end
    if r.parity.status ~= "pass" then arm.status = r.parity.status end
  end
  return arm
end

--- Cells in the order of the records: { model =, layers =, workload =, lists =, decode =, name =, case =, note =,
-- arms = { [arm] = summary }, order = arms }. decode is "eager" or "graphs" (decode steps as CUDA graphs); name says workload,
-- lists and graphs. A summary has n (runs), FIGURES as medians of the runs, low and high (their least and most), max_abs,
-- the largest difference to FlashMLA, and status of parity.
function M.cells(records)
  local cells, by_key = {}, {}
  for _, r in ipairs(records) do
    local case = r.case
    local decode = case.decode or "eager"
    local key = table.concat({ case.model, case.layers, case.workload, case.lists, decode }, "\n")
    local cell = by_key[key]
    if not cell then
      local name = ("%s, %s lists%s"):format(case.workload, case.lists, decode == "graphs" and ", decode graphs" or "")
      cell = { model = case.model, layers = case.layers, workload = case.workload, lists = case.lists, decode = decode,
        name = name, case = case, note = r.note, arms = {}, order = {} }
      by_key[key], cells[#cells + 1] = cell, cell
    end
    if not cell.arms[r.path] then
      cell.arms[r.path] = {}
      cell.order[#cell.order + 1] = r.path
    end
    table.insert(cell.arms[r.path], r)
  end
  for _, cell in ipairs(cells) do
    for arm, list in pairs(cell.arms) do cell.arms[arm] = summary(list) end
  end
  return cells
end

--- The best figure of the engine's own arms in a cell: the most where more is better, else the least; nil without any.
function M.best_own(cell, name)
  local more = name:match "_tok_s$"
  local best
  for arm, summary_of in pairs(cell.arms) do
    local value = M.OWN[arm] and summary_of[name]
    if value and (not best or (more and value > best) or (not more and value < best)) then best = value end
  end
  return best
end

local function share(value, of) return value and of and value / of end

-- Columns of M.table.
local COLUMNS = {
  { key = "cell", align = "left" }, { key = "arm", align = "left" }, { key = "n", format = "%d" },
  { key = "ttft", title = "TTFT ms", format = "%.1f" }, { key = "ttft_share", title = "of best own", format = "%.2f" },
  { key = "tpot", title = "TPOT ms", format = "%.2f" }, { key = "total", title = "tok/s", format = "%.0f" },
  { key = "low", title = "least", format = "%.0f" }, { key = "high", title = "most", format = "%.0f" },
  { key = "total_change", title = "change %", format = "%+.1f" }, { key = "attention", title = "attention ms", format = "%.1f" },
  { key = "attention_share", title = "of best own", format = "%.2f" }, { key = "worst", title = "max error", format = "%.1e" },
}

--- Rows and columns for fh.table of cells, a row an arm, beside the better of the engine's own; and the cells' notes, each once.
function M.table(cells)
  local rows, notes, said = {}, {}, {}
  for _, cell in ipairs(cells) do
    local best = {}
    for _, name in ipairs(M.FIGURES) do best[name] = M.best_own(cell, name) end
    for _, name in ipairs(cell.order) do
      local arm = cell.arms[name]
      local faster = share(arm.total_tok_s, best.total_tok_s)
      rows[#rows + 1] = {
        arm = name, n = arm.n, cell = ("%s, %d layers, %s"):format(cell.model, cell.layers, cell.name), ttft = arm.ttft_ms,
        ttft_share = share(arm.ttft_ms, best.ttft_ms), tpot = arm.tpot_ms, total = arm.total_tok_s,
        total_change = faster and 100 * (faster - 1), low = arm.low.total_tok_s, high = arm.high.total_tok_s,
        attention = arm.attention_ms, attention_share = share(arm.attention_ms, best.attention_ms), worst = arm.max_abs,
      }
    end
    if cell.note and not said[cell.note] then notes[#notes + 1] = ("%s: %s"):format(cell.model, cell.note) end
    said[cell.note or ""] = true
  end
  return rows, COLUMNS, notes
end

-- Adds the numbers of nested tables.
local function merge(total, counts)
  for name, n in pairs(counts) do
    if type(n) == "table" then
      total[name] = merge(total[name] or {}, n)
    elseif n ~= 0 then
      total[name] = (total[name] or 0) + n
    end
  end
  return total
end

local function sum(counts)
  local total = 0
  for _, n in pairs(counts or {}) do total = total + n end
  return total
end

-- What an arm ran, as one text; rows are left out, since they follow from the calls.
local function mark(work)
  local parts = { "fa3 " .. (work.fa3_calls or 0) }
  for _, field in ipairs { "calls", "declined", "plans", "kernels" } do
    for name, n in pairs(work[field] or {}) do parts[#parts + 1] = ("%s %s %d"):format(field, name, n) end
  end
  table.sort(parts)
  return table.concat(parts, "; ")
end

--- Why records are no result, sorted lines, by part of the bench: an arm that routed nothing, two arms with equal counters,
-- an arm that differs from the engine's own kernel. None: {}.
function M.errors(records)
  local lines, said, parts = {}, {}, {}
  local function say(...)
    local line = string.format(...)
    if not said[line] then lines[#lines + 1] = line end
    said[line] = true
  end
  for _, r in ipairs(records) do
    local part = (r.part or "?") .. " of " .. (r.run and r.run.id or "?")
    parts[part] = parts[part] or { name = r.part or "?", arms = {} }
    local arms = parts[part].arms
    arms[r.path] = merge(arms[r.path] or {}, r.work)
    if r.parity.status == "fail" then say("%s: %s differs from the engine's own kernel", parts[part].name, r.path) end
  end
  for _, part in pairs(parts) do
    local names, seen = {}, {}
    for arm in pairs(part.arms) do names[#names + 1] = arm end
    table.sort(names)
    for _, arm in ipairs(names) do
      local work = part.arms[arm]
      local ran = arm == "flashmla" and sum(work.declined) or arm == "fa3" and (work.fa3_calls or 0) or sum(work.calls)
      if ran == 0 then say("%s: arm %s routed nothing", part.name, arm) end
      local text = mark(work)
      if seen[text] then say("%s: arms %s and %s have equal counters", part.name, seen[text], arm) end
      seen[text] = seen[text] or arm
    end
  end
  table.sort(lines)
  return lines
end

return M
