-- What do paths and gates give end to end, workload by workload? Every workload and trace, through one engine.
--
--   ./fewhead run experiments/serving_workloads.lua --traffic conversation_trace.jsonl --out results/nvidia-h200
--
-- Answer on an H200 with V4.1-Flash at TP8 the published gate gives nearly all of the gain on 8k and 32k prompts; on short
-- chats, whose chunks are small, a third of the rows stay padded.
local fh = require "fewhead"

local opt = fh.options {
  name = "serving_workloads", about = "Throughput and TTFT of every workload by arm, beside the padded arm.",
  options = {
    { "--device-preset", "NAME", "the engine", default = "h200x8-tp8", choices = fh.engine_preset.names() },
    { "--traffic", "FILE", "a trace too, stretched to --load", repeated = true },
    { "--load", "NUMBER", "share of the engine's prefill speed that a trace asks for", default = 0.7, lo = 0.01, hi = 10 },
    { "--arms", "LIST", "arms", default = { "padded", "gate 2048", "native", "auto" } },
    "out", "name", "tags",
  },
}:read(arg)

local engine = fh.engine_preset.get(opt.device_preset)
-- Prompt tokens a second of cold 32k prompts, padded: what a load of 1 would be.
local speed = 32768 / fh.calibrate.figure(engine, fh.workload.get "cold32k", "ttft_s")

local list = {}
for _, name in ipairs(fh.workload.names()) do list[#list + 1] = fh.workload.get(name) end
for _, file in ipairs(opt.traffic) do
  local trace = fh.experiment.need("serving_workloads", fh.trace.read(file))
  list[#list + 1] = fh.workload.trace(trace, { load = opt.load, tokens_per_s = speed, name = file:match("[^/]+$") })
end

local e = fh.experiment.open("serving_workloads", opt, { evidence = "serving", unit = "workload", total = #list })
e:during(function(pressed)
  for _, workload in ipairs(list) do
    if pressed() then return end
    e.line:step(workload.name)
    e:add(fh.serve({ workload = workload, engine = engine, arms = opt.arms }):records(e.run))
  end
end)
local rows, columns = fh.serve.record_table(e.records)
return e:finish {
  title = "Serving, by workload", text = ("%s\n\n%s"):format(tostring(engine), fh.table.text(rows, columns)),
  markdown = ("```\n%s\n```\n\n%s\nA trace comes at %.0f %% of %.0f prompt tokens a second."):format(tostring(engine),
    fh.table.markdown(rows, columns), 100 * opt.load, speed),
}
