-- Does the serving model hold against a real engine? Predicts every arm of a run that was measured.
-- It fits the rest of a step to the padded arm of engine.jsonl alone, predicts every other arm from its attention time, and
-- prints both beside what was measured.
--
--   ./fewhead run experiments/serving_engine.lua --read results/nvidia-h200/engine.jsonl
--
-- Answer on an H200 (vLLM 0.26, a GLM-5.2 rank): the change of TTFT is met within 1.5 points for all arms, the change of
-- throughput within 1.0 for the plug-in and 2.8 for FA3: this engine's decode steps run the arm's kernel too, and the model
-- takes them to be equal.
local fh = require "fewhead"

local opt = fh.options {
  name = "serving_engine", usage = "fewhead run experiments/serving_engine.lua --read FILE",
  about = "Predicts the arms of an engine's A/B from its padded arm and the attention times.",
  options = { { "--read", "FILE", "what engine_ab.lua wrote (default results/nvidia-h200/engine.jsonl)" } },
}:read(arg)

local PADDED = "flashmla"
local path = opt.read or "results/nvidia-h200/engine.jsonl"

-- { [lists] = { cold = cell of one prompt, closed = cell of a closed loop } }, at full depth: the workloads that the fit reads.
local COLD, CLOSED = "cold8k", "C16x8kx48"
local found, layers = {}, 0
local ok, err = pcall(function()
  local cells = fh.engine_ab.cells(fh.engine_ab.read(path))
  for _, cell in ipairs(cells) do layers = math.max(layers, cell.layers) end
  for _, cell in ipairs(cells) do
    if cell.layers == layers and cell.decode == "eager" then
      found[cell.lists] = found[cell.lists] or {}
      if cell.workload == COLD then found[cell.lists].cold = cell end
      if cell.workload == CLOSED then found[cell.lists].closed = cell end
    end
  end
end)
if not ok then fh.cli.exit(fh.cli.FAILED, "serving_engine: " .. tostring(err)) end

local function has_padded(cell) return cell and cell.arms[PADDED] end
for lists, cell in pairs(found) do
  if not has_padded(cell.cold) or not has_padded(cell.closed) then found[lists] = nil end
end
if not next(found) then
  fh.cli.exit(fh.cli.FAILED, ("serving_engine: %s: no %s and %s of arm %s with the same lists"):format(path, COLD, CLOSED,
    PADDED))
end

local rows = {}
for lists, cell in pairs(found) do
  local cold, closed = cell.cold, cell.closed
  local engine = fh.engine.computed { name = "measured", preset = "glm-5.2 tp8", tflops = 1, efficiency = 1, ratio = 1,
    rest = { step_us = 1e4, token_us = 10 } } -- where the fit starts; attention is replaced below
  local whole = engine:keys { s_q = cold.case.prompt, requests = 1, from = { 0 }, to = { cold.case.prompt } }
  function engine.attention(self, arm, chunk)
    return cold.arms[arm == "padded" and PADDED or arm].attention_ms * 1e3 * self:keys(chunk) / whole, arm
  end
  local one = fh.workload.cold { input = cold.case.prompt, count = 1 }
  local batch = fh.workload.closed { concurrency = closed.case.concurrency, count = closed.case.requests,
    input = closed.case.prompt, output = closed.case.output }
  local fitted = fh.calibrate.fit(engine, {
    { workload = one, metric = "ttft_s", value = cold.arms[PADDED].ttft_ms / 1e3 },
    { workload = batch, metric = "total_tok_s", value = closed.arms[PADDED].total_tok_s },
  }, { "token_us", "step_us" }).engine
  local function change(value, of) return value and 100 * (value / of - 1) end
  for _, arm in ipairs(cold.order) do
    local ttft = fh.calibrate.figure(fitted, one, "ttft_s", arm) * 1e3
    local total = fh.calibrate.figure(fitted, batch, "total_tok_s", arm)
    local seen, before = closed.arms[arm], cold.arms[PADDED].ttft_ms
    rows[#rows + 1] = { lists = lists, arm = arm, ttft = cold.arms[arm].ttft_ms, model = ttft,
      change = change(cold.arms[arm].ttft_ms, before), model_change = change(ttft, before),
      total = seen and change(seen.total_tok_s, closed.arms[PADDED].total_tok_s),
      model_total = change(total, closed.arms[PADDED].total_tok_s) }
  end
end
table.sort(rows, function(a, b) return a.lists < b.lists or a.lists == b.lists and a.ttft > b.ttft end)
print((fh.table.text(rows, {
  { key = "lists", align = "left" }, { key = "arm", align = "left" }, { key = "ttft", title = "TTFT ms", format = "%.1f" },
  { key = "model", title = "model", format = "%.1f" }, { key = "change", title = "change %", format = "%+.1f" },
  { key = "model_change", title = "model", format = "%+.1f" }, { key = "total", title = "tok/s change %", format = "%+.1f" },
  { key = "model_total", title = "model", format = "%+.1f" },
})))
