--- Sweeper: what a script that sweeps has on the command line: the options of a long run, a progress line, Ctrl-C as a question,
-- and words for what the sweep does and how it ended.
--
--     local opt = fh.options { name = "x", options = sweeper.options({ preset = "glm-5.2 tp8" }, { .. }) }:read(arg)
--     local s = sweeper.new("x", opt, { paths = { "padded", "native" }, s_q = { cpu = "64:512:*2", cuda = "64:8192:*2" } })
--     if s:answer() then return 0 end                      -- --list, --dry-run
--     local sweep, status = s:run()
--     if not sweep then return status end
--     print(sweep)
--     return s:finish(true)
local axis = require "fewhead.decide.axis"
local device = require "fewhead.device.device"
local exit = require "fewhead.cli.exit"
local experiment = require "fewhead.cli.experiment"
local interrupt = require "fewhead.cli.interrupt"
local option = require "fewhead.base.option"
local options = require "fewhead.cli.options"
local patterns = require "fewhead.case.pattern"
local progress = require "fewhead.cli.progress"
local store = require "fewhead.record.store"
local sweeps = require "fewhead.decide.sweep"

local M = {}

--- The longest that a sweep may take, seconds.
-- It holds where --seconds does not say: with the report of what was measured it ends in three minutes.
M.seconds = 170

local of = sweeps.rows.by_key

-- The options of a long run, in the order of the help.
local LONG = {
  "provider", "device", option.like(of.seconds, { default = M.seconds }),
  option.like(of.cell_seconds, { default = sweeps.cell_seconds, lo = 1 }),
  of.max_bytes, of.cold, of.min_samples, of.samples, of.profile, of.shard, of.tags,
  { "--resume", "RUN", "go on with the run in this folder (default: the newest sweep in --out); what it has stays",
    optional = true },
  option.like(of.retry_failed, { with = { resume = true } }),
  { "--dry-run", nil, "print cells, bytes and an estimated time; measure nothing" },
  { "--list", nil, "print presets, patterns, layouts and axes" },
}

--- The list of options of a script that sweeps: every axis, with these defaults by key; those of `own`, a list; those of a long
-- run; and --name and --out, the folder of runs. name: the default of --name.
function M.options(name, defaults, own)
  local list = options.axes(defaults)
  for _, rows in ipairs { own, LONG } do
    for _, row in ipairs(rows) do list[#list + 1] = row end
  end
  list[#list + 1] = { "name", default = name }
  list[#list + 1] = "out"
  return list
end

-- Options of the script that the sweep takes as they are.
local HANDED_ON = { "seconds", "cell_seconds", "max_bytes", "shard", "min_samples", "tags" }
-- Flags: false is as if nothing was said.
local FLAGS = { "cold", "samples", "profile", "retry_failed" }

local Sweeper = { __name = "sweeper" }
Sweeper.__index = Sweeper

--- A sweep to be run.
-- name: the script's; opt: its options; o: paths, to which the plug-ins of --provider are added; s_q, the default axis by kind of
-- device; control. Returns { task = options of fh.sweep, which the script may add to }.
function M.new(name, opt, o)
  local dev = opt.device or device.default_name()
  local task = {
    paths = { unpack(o.paths) }, s_q = o.s_q[dev:match("^%a+")] or o.s_q.cpu, device = dev, worker = true, control = o.control,
    argv = arg,
  }
  for _, guest in ipairs(opt.provider) do task.paths[#task.paths + 1] = guest end
  for _, key in ipairs(HANDED_ON) do task[key] = opt[key] end
  for _, key in ipairs(FLAGS) do task[key] = opt[key] or nil end
  for _, key in ipairs(axis.keys) do task[key] = opt[key] or task[key] end
  return setmetatable({ name = name, opt = opt, task = task }, Sweeper)
end

--- value, or the end of the script with the reason; where the sweep's records could not be written, that is the reason.
function Sweeper:need(value, err)
  return experiment.need(self.name, value, self.sweep and self.sweep.write_error or err)
end

--- Answer --list or --dry-run, where one was given: true.
function Sweeper:answer()
  if not self.opt.list and not self.opt.dry_run then return false end
  print(self.opt.list and axis.list() or sweeps.dry_run(self.task))
  return true
end

-- What the plan is, in words.
local function say_plan(plan, seconds)
  if plan.changed then print("a new run, since " .. plan.changed) end
  if plan.reused > 0 then print(("%d of %d cells are there already"):format(plan.reused, plan.cells)) end
  if #plan.unfit > 0 then
    print(("%d of %d cells do not fit into --seconds %g and are left out: %s"):format(#plan.unfit, plan.cells, seconds,
      table.concat(plan.unfit, "; ")))
  end
end

--- Have a sweep say on standard error, on a terminal only, which of its cells runs. task: the options of fh.sweep; callbacks that
-- it has stay. Returns the progress line, which is to be cleared when the sweep has ended.
function M.speak(task)
  local line = progress.new()
  task.on_cell = task.on_cell or function(i, n, cell)
    local pattern = patterns.label(cell.pattern or "csa")
    line:step(("s_q %s, %s, %s"):format(tostring(cell.s_q), pattern, tostring(cell.layout or "contiguous")), i, n)
  end
  task.on_record = task.on_record or function(record)
    if record.parity.status ~= "pass" then line:failed() end
  end
  task.on_interrupt = task.on_interrupt or function()
    line:clear()
    io.stderr:write(interrupt.HEARD)
  end
  return line
end

--- Run it. The sweep, with a record at least; or nil and the exit status, where a part of the cells has none or a profile has no
-- times; ends the script where a folder or the device is wrong, or Ctrl-C came before the first cell was done. before: a function
-- of the task, called when Ctrl-C is a question already, or nil.
function Sweeper:run(before)
  local opt, task = self.opt, self.task
  self:need(store.writable(opt.out))
  task.store = { out = opt.out, name = opt.name, resume = opt.resume }
  local line = M.speak(task)
  task.on_plan = function(plan) say_plan(plan, opt.seconds) end
  local sweep, failure = interrupt.during(function(pressed)
    task.interrupted = pressed
    if before then before(task) end
    return sweeps(task)
  end)
  line:clear()
  self.sweep = self:need(sweep, failure and failure:gsub("^name:", "--device:"))
  if #sweep.records == 0 then
    if sweep.interrupted then
      exit.with(exit.INTERRUPTED, self.name .. ": interrupted before the first cell was done")
    end
    local empty = opt.shard and sweep.planned == 0
    print(empty and ("part %s: 0 cells"):format(opt.shard) or sweep:summary())
    return nil, empty and 0 or exit.FAILED
  end
  if opt.profile then
    print(("%s\n%s\nprofiled, not timed; written: %s/records.jsonl"):format(tostring(sweep), sweep:summary(), sweep.folder))
    return nil, #sweep.failed == 0 and 0 or exit.FAILED
  end
  return sweep
end

--- Say where the run lies.
-- Where --out is a device's folder of results/, its files are copied there. good: whether the script found what
-- it looked for. Returns the exit status: 0; 1 where it is not good, or a part has cells that failed or did not fit; 130 after
-- Ctrl-C.
function Sweeper:finish(good)
  local sweep = self.sweep
  self:need(not sweep.write_error)
  self:need(experiment.publish(sweep.folder, sweep.evidence, self.opt.name, not sweep.interrupted and not self.opt.shard))
  if sweep.interrupted then return exit.INTERRUPTED end
  if self.opt.shard then good = #sweep.failed + #sweep.unfit == 0 end -- a part alone finds nothing
  return good and 0 or exit.FAILED
end

return M
