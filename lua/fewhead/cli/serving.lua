--- Serving: the workload, the engine and the arms that a script's options name, for fh.serve.
--
--     local opt = fh.options { name = "serving_ab", options = serving.options() }:read(arg)
--     print(fh.serve(serving.task("serving_ab", opt)))
local engines = require "fewhead.serve.engine"
local engine_preset = require "fewhead.serve.engine_preset"
local experiment = require "fewhead.cli.experiment"
local gate = require "fewhead.decide.gate"
local option = require "fewhead.base.option"
local serve = require "fewhead.serve.serve"
local sweeps = require "fewhead.decide.sweep"
local traces = require "fewhead.serve.trace"
local workloads = require "fewhead.serve.workload"

local M = {}

local DEFAULT_WORKLOAD, DEFAULT_ENGINE = "C16x8kx48", "h20x8-tp8"

local of = serve.rows.by_key

--- The options that name what is served: a workload or a trace, an engine or a sweep, the arms.
function M.options()
  return {
    { "--workload", "NAME", ("a published workload (default %s)"):format(DEFAULT_WORKLOAD), choices = workloads.names() },
    { "--traffic", "FILE", "instead: a trace of requests", without = { "workload" } },
    { "--count", "INTEGER", "of the trace: its first requests", lo = 1, with = { traffic = true } },
    { "--rate", "NUMBER", "of the trace: arrivals this many times as fast", lo = 1e-6, with = { traffic = true },
      without = { "load" } },
    { "--load", "NUMBER", "of the trace: stretched to this share of --tokens-per-s", lo = 1e-6,
      with = { traffic = true, tokens_per_s = true } },
    { "--tokens-per-s", "NUMBER", "prompt tokens that the engine computes a second", lo = 1,
      with = { traffic = true, load = true } },
    { "--device-preset", "NAME", ("an engine fitted to published figures (default %s)"):format(DEFAULT_ENGINE),
      choices = engine_preset.names() },
    { "--sweep", "FILE", "instead: attention measured by gate_sweep.lua", without = { "device_preset" } },
    { "--step-us", "NUMBER", "with --sweep: what a step takes besides attention", lo = 0, with = { sweep = true } },
    { "--token-us", "NUMBER", "with --sweep: what each of its tokens adds", lo = 0, with = { sweep = true } },
    option.like(of.arms, { [2] = "LIST", [3] = of.arms.about .. " (default: padded, the gate, native, auto)" }),
    { "--min-sq", "INTEGER", "the gate of the default arms", default = gate.default_min_sq, lo = 0, without = { "arms" } },
    option.like(of.speedup, { without = { "sweep" } }), option.like(of.tp, { without = { "sweep" } }),
    of.max_num_batched_tokens, of.repetitions,
  }
end

local function workload_of(name, opt)
  if not opt.traffic then return opt.workload or DEFAULT_WORKLOAD end
  local trace = experiment.need(name, traces.read(opt.traffic))
  return workloads.trace(trace, { count = opt.count and math.min(opt.count, #trace.requests), rate = opt.rate,
    load = opt.load, tokens_per_s = opt.tokens_per_s })
end

local function engine_of(name, opt)
  if not opt.sweep then return opt.device_preset or DEFAULT_ENGINE end
  local fitted = gate.fit(experiment.need(name, sweeps.read(opt.sweep)))
  return engines.measured(fitted, { rest = { step_us = opt.step_us or 0, token_us = opt.token_us or 0 } })
end

--- Options of fh.serve from the options of a script called name; ends the script where a file is wrong. The arm auto is measured
-- only: an engine fitted to published figures has none.
function M.task(name, opt)
  return {
    workload = workload_of(name, opt), engine = engine_of(name, opt),
    arms = opt.arms or { "padded", "gate " .. opt.min_sq, "native", opt.sweep and "auto" or nil },
    max_num_batched_tokens = opt.max_num_batched_tokens, repetitions = opt.repetitions, speedup = opt.speedup, tp = opt.tp,
  }
end

return M
