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

local list = fh.options.axes { preset = fh.preset.default, layout = "vllm" }
local of = fh.sweep.rows.by_key -- the options of fh.sweep that this script has too
for _, row in ipairs {
  { "--min-sq", "AXIS", "thresholds to compare (default 0, 64, 128 .. 2048)", lo = 0 }, "provider", "device",
  fh.option.like(of.seconds, { default = 170 }), fh.option.like(of.cell_seconds, { default = fh.sweep.cell_seconds, lo = 1 }),
  of.max_bytes, of.cold, of.min_samples, of.samples, of.profile, of.shard, of.tags,
  { "--resume", "RUN", "go on with the run in this folder (default: the latest in --out); what it has is not measured again",
    optional = true },
  fh.option.like(of.retry_failed, { with = { resume = true } }),
  { "--bisect", nil, "measure between grid points until the crossover is known to 10 % or noise hides it" },
  { "--dry-run", nil, "print cells, bytes and an estimated time; measure nothing" },
  { "--list", nil, "print presets, patterns, layouts and axes" },
  { "--traffic", "FILE", "score gates on a Mooncake JSONL or Azure CSV trace" },
  { "--skip-bad", nil, "leave bad lines of the trace out and count them", with = { traffic = true } },
  { "--name", "NAME", "what the run's folder is called after the date", default = "gate_sweep" },
  "out",
} do list[#list + 1] = row end

local opt = fh.options {
  name = "gate_sweep", usage = "fewhead run experiments/gate_sweep.lua [options]",
  about = "Where native heads beat padded ones: a sweep of s_q, the gate that fits it, and what gates are worth on traffic.\n"
    .. 'Every axis takes a value, values with commas, "first:last:step" or "first:last:*k".',
  options = list,
}:read(arg)

-- What can be wrong with the command is found before anything is measured.
local function need(value, err)
  if not value then fh.cli.exit(fh.cli.FAILED, "gate_sweep: " .. err) end
  return value
end

if opt.list then
  print(fh.axis.list())
  return 0
end

local sizes = { cpu = "64:8192:*2", cuda = "64:16384:*2" }
local device = opt.device or fh.device.default_name()
local task = {
  paths = { "padded", "native", "auto", unpack(opt.provider) }, s_q = sizes[device:match("^%a+")] or sizes.cpu, device = device,
  cold = opt.cold or nil, seconds = opt.seconds, cell_seconds = opt.cell_seconds, max_bytes = opt.max_bytes, shard = opt.shard,
  min_samples = opt.min_samples, samples = opt.samples or nil, profile = opt.profile or nil, tags = opt.tags,
  retry_failed = opt.retry_failed or nil, worker = true, control = true, argv = arg,
}
for _, key in ipairs(fh.axis.keys) do task[key] = opt[key] or task[key] end

if opt.dry_run then
  print(fh.sweep.dry_run(task))
  return 0
end

local min_sq = opt.min_sq and fh.axis.integers("--min-sq", opt.min_sq, 0)
local environment = fh.gate.from_env { warn = true }
local traffic
if opt.traffic then
  local trace = need(fh.trace.read(opt.traffic, { skip_bad = opt.skip_bad }))
  traffic = { trace = trace, chunks = fh.trace.chunks(trace) }
end
need(fh.store.writable(opt.out))
task.store = { out = opt.out, name = opt.name, resume = opt.resume }

local line = fh.progress()
task.on_cell = function(i, n, cell)
  line:step(("s_q %s, %s, %s"):format(tostring(cell.s_q), cell.pattern or "csa", cell.layout), i, n)
end
task.on_record = function(record)
  if record.parity.status ~= "pass" then line:failed() end
end
task.on_plan = function(plan)
  if plan.changed then print("a new run, since " .. plan.changed) end
  if plan.reused > 0 then print(("%d of %d cells are there already"):format(plan.reused, plan.cells)) end
  if #plan.unfit > 0 then
    print(("%d of %d cells do not fit into --seconds %g and are left out: %s"):format(#plan.unfit, plan.cells, opt.seconds,
      table.concat(plan.unfit, "; ")))
  end
end
task.on_interrupt = function()
  line:clear()
  io.stderr:write(fh.interrupt.HEARD)
end
local sweep, failure = fh.interrupt.during(function(pressed)
  task.interrupted = pressed
  if opt.bisect then task.more = fh.gate_bisect.new(task) end
  return fh.sweep(task)
end)
line:clear()
need(sweep, failure and failure:gsub("^name:", "--device:"))
if #sweep.records == 0 then
  if sweep.interrupted then fh.cli.exit(fh.cli.INTERRUPTED, "gate_sweep: interrupted before the first cell was done") end
  print(opt.shard and sweep.planned == 0 and ("part %s: 0 cells"):format(opt.shard) or sweep:summary())
  return opt.shard and sweep.planned == 0 and 0 or fh.cli.FAILED
end

if opt.profile then
  print(("%s\n%s\nprofiled, not timed; written: %s/records.jsonl"):format(tostring(sweep), sweep:summary(), sweep.folder))
  return #sweep.failed == 0 and 0 or fh.cli.FAILED
end
local gate, gate_error = fh.gate.fit(sweep)
local report = fh.gate_report.make {
  title = "Gate sweep: " .. opt.preset, sweep = sweep, gate = gate, gate_error = gate_error, min_sq = min_sq,
  environment = environment, traffic = traffic,
}
print(report:text())
print("\n" .. sweep:summary())
local whole, err = report:write(sweep.folder .. "/report")
if gate and whole then
  local made = fh.gate_table.from(gate.curves, { run = sweep.run, noise_floor = sweep.noise_floor })
  whole, err = fh.gate_table.write(sweep.folder .. "/gates.json", made)
end
need(not sweep.write_error and whole, sweep.write_error or err)
print(("written: %s/records.jsonl, run.json, report.md%s"):format(sweep.folder, gate and ", report.svg, gates.json" or ""))
if sweep.interrupted then return fh.cli.INTERRUPTED end
if opt.shard then return #sweep.failed + #sweep.unfit == 0 and 0 or fh.cli.FAILED end -- a part alone has no gate to fail
return (gate and #sweep:failures().records == 0) and 0 or fh.cli.FAILED
