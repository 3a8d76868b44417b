--- Calibrate: the budget of an engine that makes it take what a real one took.
--
--     local fitted = fh.calibrate.fit(engine, {
--       { workload = fh.workload.get "cold32k", metric = "ttft_s", value = 3.49 }, ..
--     }, { "step_us", "token_us", "context_us" })
--     print(fitted.engine, fitted.residual)              -- residual: largest relative difference left
--
-- Only the padded arm is run: what another arm would take stays a prediction.
local args = require "fewhead.base.arguments"
local cost = require "fewhead.decide.cost"
local engines = require "fewhead.serve.engine"
local metrics = require "fewhead.serve.metrics"
local scheduler = require "fewhead.serve.scheduler"

local M = {}

local ROUNDS, ENOUGH = 20, 1e-4 -- of Gauss and Newton's iteration; relative change at which it stops
local REPETITIONS = 5 -- seeds of speculative decoding whose mean counts
local STEP = 1e-2 -- relative step of the numeric derivative

--- One figure of one run of a workload on an engine, path padded: "ttft_s" (mean), "total_tok_s" or "output_tok_s",
-- averaged over seeds where decoding is speculative.
function M.figure(engine, workload, metric, path)
  args.enum("calibrate.figure: metric", metric, { "ttft_s", "last_ttft_s", "total_tok_s", "output_tok_s" }, 2)
  local sum, n = 0, engine.draft and REPETITIONS or 1
  for seed = 1, n do
    local run = scheduler.run(workload, function(chunk)
      local attention = chunk.s_q > 0 and engine:attention(path or "padded", chunk) or 0
      return engine:rest_us(chunk) + attention
    end, { draft = engine.draft, acceptance = engine.acceptance, seed = seed })
    if metric == "last_ttft_s" then -- of the request that was sent last
      local last = run.requests[1]
      for _, r in ipairs(run.requests) do
        if r.sent_us > last.sent_us then last = r end
      end
      sum = sum + (last.first_us - last.sent_us) / 1e6
    elseif metric == "ttft_s" then sum = sum + metrics.of(run).ttft_ms.mean / 1e3
    else sum = sum + metrics.of(run)[metric] end
  end
  return sum / n
end

--- Fit the named fields of engine.rest to observations { workload =, metric =, value = }, as many as names or more, in
-- relative least squares; budgets stay >= 0. Returns { engine = with the fitted budget, residual = largest relative
-- difference left, found = the figures it then gives }.
function M.fit(engine, observations, names)
  args.list("calibrate.fit: observations", observations, 1, nil, 2)
  args.list("calibrate.fit: names", names, 1, #observations, 2)
  for _, name in ipairs(names) do args.enum("calibrate.fit: names", name, engines.rest_names, 2) end
  local now = {}
  for _, name in ipairs(names) do now[name] = math.max(engine.rest[name], 1) end
  local function figures(rest)
    local fitted, list = engine:with(rest), {}
    for i, o in ipairs(observations) do list[i] = M.figure(fitted, o.workload, o.metric) / o.value end
    return list
  end
  for _ = 1, ROUNDS do
    local base, rows, want = figures(now), {}, {}
    for i in ipairs(observations) do rows[i], want[i] = {}, 1 - base[i] end
    for j, name in ipairs(names) do
      local moved = {}
      for _, other in ipairs(names) do moved[other] = now[other] * (other == name and 1 + STEP or 1) end
      for i, value in ipairs(figures(moved)) do
        rows[i][j] = (value - base[i]) / (now[name] * STEP)
        want[i] = want[i] + rows[i][j] * now[name] -- solved for the new value, so that it can be kept >= 0
      end
    end
    local x = cost.nnls(rows, want)
    local change = 0
    for j, name in ipairs(names) do
      local value = math.max(x[j], 1e-9)
      change = math.max(change, math.abs(value - now[name]) / math.max(value, now[name]))
      now[name] = value
    end
    if change < ENOUGH then break end
  end
  local fitted, found, residual = engine:with(now), {}, 0
  for i, value in ipairs(figures(now)) do
    found[i] = value * observations[i].value
    residual = math.max(residual, math.abs(value - 1))
  end
  return { engine = fitted, residual = residual, found = found }
end

return M
