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

local options = fh.serving.options()
options[#options + 1] = { "--pictures", "DIR", "folder for serving_steps.svg and serving_ttft.svg" }
local opt = fh.options {
  name = "serving_ab", options = options,
  about = "The same workload with each arm's attention: throughput, TTFT, TPOT, calls and rows by path.",
}:read(arg)

local task = fh.serving.task("serving_ab", opt)
local seen = fh.pictures.serving()
local line = fh.progress { noun = "runs" }
task.on_run = function(arm, repetition, i, n) line:step(("%s, repetition %d"):format(arm, repetition), i, n) end
task.on_step = opt.pictures and seen.on_step or nil
local ab = fh.serve(task)
line:clear()
print(ab)
if opt.pictures then
  for name, svg in pairs { steps = seen:svg() or false, ttft = fh.pictures.ttft(ab) or false } do
    if svg then
      fh.experiment.need("serving_ab", fh.file.write(("%s/serving_%s.svg"):format(opt.pictures, name), svg))
    end
  end
end
for _, row in ipairs(ab.rows) do
  if row.error then return 1 end
end
