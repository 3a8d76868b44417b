-- Where do native heads beat padded ones on this machine? Sweeps s_q and fits the gate.
-- What it found goes to a folder of its own.
--
--   ./fewhead run experiments/gate_sweep.lua                                 the few-head case of DeepSeek-V4.1-Flash at TP8
--   ./fewhead run experiments/gate_sweep.lua --preset "glm-5 tp8" --pattern local --ratio 1,2,4 --keep 0.5:0.9:0.2
--   ./fewhead run experiments/gate_sweep.lua --resume                        goes on with the run that was started last
--   ./fewhead run experiments/gate_sweep.lua --traffic trace.jsonl           and scores gates on recorded traffic
--
-- Answer on an H200, V4.1-Flash at TP8, csa lists: from s_q 64, the smallest that was measured, up; 1.10 to 1.99 times as fast.
-- Ctrl-C keeps what was measured. Exit status: 0, 1 when a path failed parity or nothing could be measured, 130 after Ctrl-C.
local fh = require "fewhead"

local opt = fh.options {
  name = "gate_sweep",
  about = "Where native heads beat padded ones: a sweep of s_q, the gate that fits it, and what gates are worth on traffic.\n"
    .. 'Every axis takes a value, values with commas, "first:last:step" or "first:last:*k".',
  options = fh.sweeper.options("gate_sweep", { preset = fh.preset.default, layout = "vllm" }, {
    { "--min-sq", "AXIS", "thresholds to compare (default 0, 64, 128 .. 2048)", lo = 0 },
    { "--bisect", nil, "measure between grid points until the crossover is known to 10 % or noise hides it" },
    { "--traffic", "FILE", "score gates on a Mooncake JSONL or Azure CSV trace" },
    { "--skip-bad", nil, "leave bad lines of the trace out and count them", with = { traffic = true } },
  }),
}:read(arg)

local s = fh.sweeper.new("gate_sweep", opt, {
  paths = { "padded", "native", "auto" }, s_q = { cpu = "64:8192:*2", cuda = "64:16384:*2" }, control = true,
})
if s:answer() then return 0 end

-- What can be wrong with the command is found before anything is measured.
local min_sq = opt.min_sq and fh.axis.integers("--min-sq", opt.min_sq, 0)
local environment = fh.gate.from_env { warn = true }
local traffic
if opt.traffic then
  local trace = s:need(fh.trace.read(opt.traffic, { skip_bad = opt.skip_bad }))
  traffic = { trace = trace, chunks = fh.trace.chunks(trace) }
end

local sweep, status = s:run(function(task)
  if opt.bisect then task.more = fh.gate_bisect.new(task) end
end)
if not sweep then return status end

local gate, gate_error = fh.gate.fit(sweep)
local report = fh.gate_report.make {
  title = "Gate sweep: " .. opt.preset, sweep = sweep, gate = gate, gate_error = gate_error, min_sq = min_sq,
  environment = environment, traffic = traffic,
}
print(report:text() .. "\n\n" .. sweep:summary())
s:need(report:write(sweep.folder .. "/report"))
if gate then
  local made = fh.gate_table.from(gate.curves, { run = sweep.run, noise_floor = sweep.noise_floor })
  s:need(fh.gate_table.write(sweep.folder .. "/gates.json", made))
end
return s:finish(gate ~= nil and #sweep:failures().records == 0)
