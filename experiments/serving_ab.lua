-- What is a kernel gain worth end to end? Replays a workload through a model of a chunked-prefill engine, arm by arm.
--
--   ./fewhead run experiments/serving_ab.lua --workload C16x8kx48 --device-preset h20x8-tp8
--   ./fewhead run experiments/serving_ab.lua --speedup 2 --min-sq 512           what if the kernel were twice as fast as padding
--   ./fewhead run experiments/serving_ab.lua --tp 4
--   ./fewhead run experiments/serving_ab.lua --traffic trace.jsonl --sweep results/nvidia-h200/gate_sweep.jsonl
--
-- Answer: on 8 H20 cards a kernel 1.51 times as fast was published as +5.8 % total tokens a second; the model, fitted to the
-- padded arm alone, predicts +7.4 %, and the cold TTFT at 32k to a tenth of a per cent.
local fh = require "fewhead"

local of = fh.serve.rows.by_key -- the options of fh.serve that this script has too
local opt = fh.options {
  name = "serving_ab", usage = "fewhead run experiments/serving_ab.lua [options]",
  about = "The same workload with each arm's attention: throughput, TTFT, TPOT, calls and rows by path.",
  options = {
    { "--workload", "NAME", "a published workload (default C16x8kx48)", choices = fh.workload.names() },
    { "--traffic", "FILE", "instead: a trace of requests", without = { "workload" } },
    { "--count", "INTEGER", "of the trace: its first requests", lo = 1, with = { traffic = true } },
    { "--rate", "NUMBER", "of the trace: arrivals this many times as fast", lo = 1e-6, with = { traffic = true },
      without = { "load" } },
    { "--load", "NUMBER", "of the trace: stretched to this share of --tokens-per-s", lo = 1e-6,
      with = { traffic = true, tokens_per_s = true } },
    { "--tokens-per-s", "NUMBER", "prompt tokens that the engine computes a second", lo = 1,
      with = { traffic = true, load = true } },
    { "--device-preset", "NAME", "an engine fitted to published figures (default h20x8-tp8)",
      choices = fh.engine_preset.names() },
    { "--sweep", "FILE", "instead: attention measured by gate_sweep.lua", without = { "device_preset" } },
    { "--step-us", "NUMBER", "with --sweep: what a step takes besides attention", lo = 0, with = { sweep = true } },
    { "--token-us", "NUMBER", "with --sweep: what each of its tokens adds", lo = 0, with = { sweep = true } },
    fh.option.like(of.arms, { [2] = "LIST", [3] = of.arms.about .. " (default: padded, the gate, native, auto)" }),
    { "--min-sq", "INTEGER", "the gate of the default arms", default = 2048, lo = 0, without = { "arms" } },
    fh.option.like(of.speedup, { without = { "sweep" } }), fh.option.like(of.tp, { without = { "sweep" } }),
    of.max_num_batched_tokens, of.repetitions,
    { "--pictures", "DIR", "folder for serving_steps.svg and serving_ttft.svg" },
  },
}:read(arg)

local function need(value, err)
  if not value then fh.cli.exit(fh.cli.FAILED, "serving_ab: " .. tostring(err)) end
  return value
end

local workload = opt.workload or "C16x8kx48"
if opt.traffic then
  local trace = need(fh.trace.read(opt.traffic))
  workload = fh.workload.trace(trace, { count = opt.count and math.min(opt.count, #trace.requests), rate = opt.rate,
    load = opt.load, tokens_per_s = opt.tokens_per_s })
end
-- auto is measured only: an engine fitted to published figures has no such arm.
local engine = opt.device_preset or "h20x8-tp8"
if opt.sweep then
  local fitted = fh.gate.fit(need(fh.sweep.read(opt.sweep)))
  engine = fh.engine.measured(fitted, { rest = { step_us = opt.step_us or 0, token_us = opt.token_us or 0 } })
end
local arms = opt.arms or { "padded", "gate " .. opt.min_sq, "native", opt.sweep and "auto" or nil }
local seen = fh.pictures.serving()
local line = fh.progress { noun = "runs" }
local function on_run(arm, repetition, i, n) line:step(("%s, repetition %d"):format(arm, repetition), i, n) end
local ab = fh.serve { on_run = on_run, on_step = opt.pictures and seen.on_step or nil,
  workload = workload, engine = engine, arms = arms, max_num_batched_tokens = opt.max_num_batched_tokens,
  repetitions = opt.repetitions, speedup = opt.speedup, tp = opt.tp }
line:clear()
print(ab)
if opt.pictures then
  for name, svg in pairs { steps = seen:svg() or false, ttft = fh.pictures.ttft(ab) or false } do
    if svg then need(fh.file.write(("%s/serving_%s.svg"):format(opt.pictures, name), svg)) end
  end
end
for _, row in ipairs(ab.rows) do
  if row.error then return 1 end
end
