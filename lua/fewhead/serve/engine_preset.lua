--- Engine presets: engines by name, their budgets fitted to published figures.
--
--     local engine = fh.engine_preset.get "h20x8-tp8"
--     print(engine)                                       -- the assumptions, a line each
local args = require "fewhead.base.arguments"
local calibrate = require "fewhead.serve.calibrate"
local engines = require "fewhead.serve.engine"
local published = require "fewhead.serve.published"
local checkout = require "fewhead.base.checkout"
local gate = require "fewhead.decide.gate"
local sweep = require "fewhead.decide.sweep"
local workloads = require "fewhead.serve.workload"

local M = {}

-- The H20's dense bf16 rate in TFLOP/s, and the share of it that FlashMLA is taken to reach: with a sixth of an H200's
-- rate and the same memory the tensor cores wait for little. Between 0.8 and 1.0 the predicted gain moves from 8.4 to
-- 6.6 %.
local H20_TFLOPS, H20_EFFICIENCY = 148, 0.9

-- One draft token a step: the pull request reports acceptance, not the number of draft tokens.
local DRAFT = 1

-- An observation of the padded arm: a figure that the pull request reports for a workload.
local function padded(name, metric)
  return { workload = workloads.get(name), metric = metric, value = published.figures[name].padded[metric] }
end

-- What the rest of a step is taken to scale by from an H20 to an H200: tokens by the tensor rate (GEMMs of many rows),
-- the step and its decodes by the memory's bandwidth in TB/s (weights are read once a step). Nobody has measured such
-- an engine here.
local H200_TFLOPS, H20_TB_S, H200_TB_S = 813, 4.0, 4.8

-- An engine whose attention is that of a gate sweep in results/; rest and draft tokens as M.computed takes them.
local function measured(name, folder, options)
  local file = ("%s/results/%s/gate_sweep.jsonl"):format(checkout.shipped() or ".", folder)
  local found, err = sweep.read(file)
  if not found then error(("engine %s: %s"):format(name, err), 0) end
  options.name = name
  return engines.measured(gate.fit(found), options)
end

local PRESETS = {
  -- What anyone can run: attention of the CPU that results/ has, and nothing else in a step.
  ["cpu"] = function()
    local engine = measured("cpu", "intel-r-xeon-r-processor", {})
    engine.lines[#engine.lines + 1] = "the rest of a step is 0: all differences are attention's"
    return engine
  end,
  ["h200x8-tp8"] = function()
    local h20 = M.get "h20x8-tp8"
    local compute, memory = H20_TFLOPS / H200_TFLOPS, H20_TB_S / H200_TB_S
    local engine = measured("h200x8-tp8", "nvidia-h200", {
      draft = DRAFT, acceptance = h20.acceptance, rest = { step_us = h20.rest.step_us * memory,
        token_us = h20.rest.token_us * compute, context_us = h20.rest.context_us * compute },
    })
    engine.lines[#engine.lines + 1] = ("the rest is that of h20x8-tp8, scaled by tensor rate (%d to %d TFLOP/s) and memory "
      .. "bandwidth (%.1f to %.1f TB/s): an assumption"):format(H20_TFLOPS, H200_TFLOPS, H20_TB_S, H200_TB_S)
    return engine
  end,
  ["h20x8-tp8"] = function()
    local engine = engines.computed {
      name = "h20x8-tp8", preset = "v4.1-flash tp8", tflops = H20_TFLOPS, efficiency = H20_EFFICIENCY,
      ratio = published.kernel_ratio, draft = DRAFT, acceptance = published.acceptance[1].padded,
      rest = { step_us = 1e4, token_us = 50, context_us = 100 }, -- where the fit starts
      about = "the rest is fitted to the padded arm alone: C16x8kx48 total tokens a second, cold TTFT at 32k and 128k",
    }
    local observed = { padded("C16x8kx48", "total_tok_s"), padded("cold32k", "ttft_s"), padded("cold128k", "ttft_s") }
    return calibrate.fit(engine, observed, { "step_us", "token_us", "context_us" }).engine
  end,
}

--- Sorted names that get() knows.
function M.names()
  local list = {}
  for name in pairs(PRESETS) do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- An engine (fh.engine) by name; an unknown one raises with the names there are.
function M.get(name, level)
  args.enum("engine", name, M.names(), level or 2)
  return PRESETS[name]()
end

return M
