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
  options = { { "--read", "FILE", "what engine_ab.lua wrote", default = "results/nvidia-h200/engine.jsonl" } },
}:read(arg)

local ok, cells = pcall(function() return fh.engine_ab.cells(fh.engine_ab.read(opt.read)) end)
fh.experiment.need("serving_engine", ok, tostring(cells))
local found, err = fh.prediction.of(cells)
print(fh.experiment.need("serving_engine", found, err and ("%s: %s"):format(opt.read, err)))
