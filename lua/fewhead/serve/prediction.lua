--- Prediction: does the serving model hold against a real engine? Fits the rest of a step to the padded arm of a measured A/B
-- alone, and predicts every other arm from its attention time.
--
--     local found = assert(fh.prediction.of(fh.engine_ab.cells(fh.engine_ab.read "results/nvidia-h200/engine.jsonl")))
--     print(found)                               -- TTFT and throughput, measured and predicted, arm by arm
local args = require "fewhead.base.arguments"
local calibrate = require "fewhead.serve.calibrate"
local engines = require "fewhead.serve.engine"
local tables = require "fewhead.base.table"
local workloads = require "fewhead.serve.workload"

local M = {}

local PADDED = "flashmla"
-- The workloads that the fit reads: one prompt, and a closed loop.
local COLD, CLOSED = "cold8k", "C16x8kx48"
-- Where the fit starts.
local REST = { step_us = 1e4, token_us = 10 }

local Prediction = { __name = "prediction" }
Prediction.__index = Prediction

-- The two cells of each kind of lists that have the padded arm, at the most layers, without graphs: { [lists] = { cold =,
-- closed = } }.
local function pairs_of(cells)
  local found, layers = {}, 0
  for _, cell in ipairs(cells) do layers = math.max(layers, cell.layers) end
  for _, cell in ipairs(cells) do
    if cell.layers == layers and cell.decode == "eager" and cell.arms[PADDED] then
      found[cell.lists] = found[cell.lists] or {}
      if cell.workload == COLD then found[cell.lists].cold = cell end
      if cell.workload == CLOSED then found[cell.lists].closed = cell end
    end
  end
  for lists, pair in pairs(found) do
    if not pair.cold or not pair.closed then found[lists] = nil end
  end
  return found
end

-- An engine whose attention is what the arms of a cold prompt were measured with, dealt out by keys.
local function engine_of(cold)
  local engine = engines.computed { name = "measured", preset = cold.model, tflops = 1, efficiency = 1, ratio = 1, rest = REST }
  local whole = engine:keys { s_q = cold.case.prompt, requests = 1, from = { 0 }, to = { cold.case.prompt } }
  function engine.attention(self, arm, chunk)
    return cold.arms[arm == "padded" and PADDED or arm].attention_ms * 1e3 * self:keys(chunk) / whole, arm
  end
  return engine
end

local function change(value, of) return value and 100 * (value / of - 1) end

-- A row an arm of two cells with the same lists.
local function add_rows(rows, lists, cold, closed)
  local before, all_before = cold.arms[PADDED].ttft_ms, closed.arms[PADDED].total_tok_s
  local one = workloads.cold { input = cold.case.prompt, count = 1 }
  local batch = workloads.closed { concurrency = closed.case.concurrency, count = closed.case.requests,
    input = closed.case.prompt, output = closed.case.output }
  local fitted = calibrate.fit(engine_of(cold), {
    { workload = one, metric = "ttft_s", value = before / 1e3 }, { workload = batch, metric = "total_tok_s", value = all_before },
  }, { "token_us", "step_us" }).engine
  for _, arm in ipairs(cold.order) do
    local ttft = calibrate.figure(fitted, one, "ttft_s", arm) * 1e3
    local total = calibrate.figure(fitted, batch, "total_tok_s", arm)
    local seen = closed.arms[arm]
    rows[#rows + 1] = {
      lists = lists, arm = arm, ttft = cold.arms[arm].ttft_ms, model = ttft, change = change(cold.arms[arm].ttft_ms, before),
      model_change = change(ttft, before), total = seen and change(seen.total_tok_s, all_before),
      model_total = change(total, all_before),
    }
  end
end

--- Predict the arms of cells that fh.engine_ab made. Returns { rows = { lists, arm, ttft = ms measured, model = ms predicted,
-- change and model_change = of TTFT against the padded arm in per cent, total and model_total = the same of tokens a second },
-- sorted by lists and TTFT }, which prints as a table; nil, err where no two cells have what the fit reads.
function M.of(cells)
  args.table("prediction.of: cells", cells, 2)
  local self = setmetatable({ rows = {} }, Prediction)
  for lists, pair in pairs(pairs_of(cells)) do add_rows(self.rows, lists, pair.cold, pair.closed) end
  if #self.rows == 0 then
    return nil, ("no %s and %s of arm %s with the same lists"):format(COLD, CLOSED, PADDED)
  end
  table.sort(self.rows, function(a, b) return a.lists < b.lists or a.lists == b.lists and a.ttft > b.ttft end)
  return self
end

local COLUMNS = {
  { key = "lists", align = "left" }, { key = "arm", align = "left" }, { key = "ttft", title = "TTFT ms", format = "%.1f" },
  { key = "model", title = "model", format = "%.1f" }, { key = "change", title = "change %", format = "%+.1f" },
  { key = "model_change", title = "model", format = "%+.1f" }, { key = "total", title = "tok/s change %", format = "%+.1f" },
  { key = "model_total", title = "model", format = "%+.1f" },
}

function Prediction:__tostring() return (tables.text(self.rows, COLUMNS)) end

return M
