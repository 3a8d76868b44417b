-- Does the serving model hold against a real engine? Fits the rest of a step to the padded arm of engine.jsonl alone,
-- then predicts every other arm from its attention time, and prints both beside what was measured.
--
--   ./fewhead run experiments/serving_engine.lua --read results/nvidia-h200/engine.jsonl
--
-- On an H200 (vLLM 0.26, a GLM-5.2 rank): the change of TTFT is met within 2.5 points for the plug-in's arms. The
-- change of throughput is not: in this engine decode steps run the arm's kernel too, and the model takes them to be
-- equal.
local fh = require "fewhead"

local opt = fh.options {
  name = "serving_engine", usage = "fewhead run experiments/serving_engine.lua --read FILE",
  about = "Predicts the arms of an engine's A/B from its padded arm and the attention times.",
  options = { { "--read", "FILE", "what engine_ab.lua wrote (default results/nvidia-h200/engine.jsonl)" } },
}:read(arg)

local PADDED = "flashmla"
local path = opt.read or "results/nvidia-h200/engine.jsonl"

-- { [lists] = { attention = { [arm] = ms }, ttft = { [arm] = ms }, total = { [arm] = tokens a second }, order = arms }
-- } at full depth.
local found, layers = {}, 0
local ok, err = pcall(function()
  for r in fh.json.lines(path) do layers = math.max(layers, r.case.layers) end
  for r in fh.json.lines(path) do
    if r.case.layers == layers then
      local cell = found[r.case.lists] or { attention = {}, ttft = {}, total = {}, order = {} }
      found[r.case.lists] = cell
      if r.engine.attention_ms then
        cell.attention[r.path], cell.ttft[r.path] = r.engine.attention_ms, r.engine.ttft_ms.p50
        cell.order[#cell.order + 1], cell.prompt = r.path, r.case.prompt
      end
      if r.engine.total_tok_s then cell.total[r.path], cell.batch = r.engine.total_tok_s, r.case end
    end
  end
end)
if not ok then fh.cli.exit(fh.cli.FAILED, "serving_engine: " .. tostring(err)) end

local rows = {}
for lists, cell in pairs(found) do
  local engine = fh.engine.computed { name = "measured", preset = "glm-5.2 tp8", tflops = 1, efficiency = 1, ratio = 1,
    rest = { step_us = 1e4, token_us = 10 } } -- where the fit starts; attention is replaced below
  local whole = engine:keys { s_q = cell.prompt, requests = 1, from = { 0 }, to = { cell.prompt } }
  function engine.attention(self, arm, chunk)
    local ms = cell.attention[arm == "padded" and PADDED or arm]
    return ms * 1e3 * self:keys(chunk) / whole, arm
  end
  local one = fh.workload.cold { input = cell.prompt, count = 1 }
  local batch = fh.workload.closed { concurrency = cell.batch.requests, count = cell.batch.requests, input = cell.batch.prompt,
    output = cell.batch.output }
  local fitted = fh.calibrate.fit(engine, {
    { workload = one, metric = "ttft_s", value = cell.ttft[PADDED] / 1e3 },
    { workload = batch, metric = "total_tok_s", value = cell.total[PADDED] },
  }, { "token_us", "step_us" }).engine
  for _, arm in ipairs(cell.order) do
    local ttft = fh.calibrate.figure(fitted, one, "ttft_s", arm) * 1e3
    local total = fh.calibrate.figure(fitted, batch, "total_tok_s", arm)
    local function change(value, of) return value and 100 * (value / of[PADDED] - 1) end
    rows[#rows + 1] = { lists = lists, arm = arm, ttft = cell.ttft[arm], model = ttft,
      change = change(cell.ttft[arm], cell.ttft), model_change = change(ttft, cell.ttft),
      total = change(cell.total[arm], cell.total), model_total = change(total, cell.total) }
  end
end
table.sort(rows, function(a, b) return a.lists < b.lists or a.lists == b.lists and a.ttft > b.ttft end)
print((fh.table.text(rows, {
  { key = "lists", align = "left" }, { key = "arm", align = "left" }, { key = "ttft", title = "TTFT ms", format = "%.1f" },
  { key = "model", title = "model", format = "%.1f" }, { key = "change", title = "change %", format = "%+.1f" },
  { key = "model_change", title = "model", format = "%+.1f" }, { key = "total", title = "tok/s change %", format = "%+.1f" },
  { key = "model_total", title = "model", format = "%+.1f" },
})))
