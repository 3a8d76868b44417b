-- How long the serving model takes for a trace in two arms, and how much memory: CPU seconds and MiB of the Lua heap.
--
--   luajit tools/bench_serving.lua TRACE            attention from results/nvidia-h200/gate_sweep.jsonl
--
-- Run it in the checkout's root, on an idle machine.
package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
local fh = require "fewhead"

local file = arg[1]
if not file then
  io.stderr:write("usage: luajit tools/bench_serving.lua TRACE\n")
  os.exit(2)
end
local start = os.clock()
local trace = assert(fh.trace.read(file))
local read = os.clock() - start
local engine = fh.engine_preset.get "h200x8-tp8"
start = os.clock()
local workload = fh.workload.trace(trace, { load = 0.7, tokens_per_s = 47000 })
local ab = fh.serve { workload = workload, engine = engine, arms = { "padded", "auto" }, repetitions = 1 }
local ran = os.clock() - start
print(("%d requests: read in %.2f s, two arms in %.2f s, %d and %d steps, heap %.0f MiB"):format(#trace.requests, read, ran,
  ab.rows[1].counters.steps, ab.rows[2].counters.steps, collectgarbage "count" / 1024))
