-- What the harness adds to a sweep, and how long a dry run of 10,000 cells takes.
--
--   luajit tools/bench_sweep.lua [OUT.md]         in the checkout's root, on an idle machine; OUT.md gets the same text
--
-- The sweep's cells run in the worker process and take 50 ms or more. Two figures say what is added to them:
--   wall   of the time from the first cell to the last, what is not spent in the worker's calls: messages, records, the disk
--   CPU    user and system time of this process over that of both processes, which other programs on the machine change little
package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
local fh = require "fewhead"
local worker = require "fewhead.measure.worker"

local WANTED_SHARE, WANTED_SECONDS, CELL_SECONDS, DRY_CELLS = 0.01, 1, 0.05, 10000
local TICKS = 100 -- of /proc/PID/stat a second

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

-- Seconds of CPU, user and system, of a process.
local function cpu(pid)
  local user, system = read(("/proc/%s/stat"):format(pid)):match("^.*%) %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (%d+)")
  return (user + system) / TICKS
end

local function yes(met) return met and "yes" or "no" end

-- ---- The dry run -------------------------------------------------------------------------------------------------------------

local own, start = cpu "self", worker.now()
local text = fh.sweep.dry_run { s_q = "1:2500:1", heads = "8,16", layout = "vllm,contiguous", pattern = "csa", device = "cpu" }
local dry = { wall = worker.now() - start, cpu = cpu "self" - own, cells = tonumber(text:match("(%d+) cells")) }
assert(dry.cells == DRY_CELLS, text)

-- ---- The sweep ---------------------------------------------------------------------------------------------------------------

local inside, cells, least, crew = 0, 0, math.huge, nil
local call = worker.class.call
function worker.class:call(...)
  crew = self
  local answer = call(self, ...)
  if answer.value and answer.value.records then
    inside, cells, least = inside + answer.seconds, cells + 1, math.min(least, answer.seconds)
  end
  return answer
end

local folder = os.tmpname()
os.remove(folder)
local begin, parent, child
local sweep = assert(fh.sweep {
  s_q = 8, seed = "0:39:1", heads = 8, pattern = "csa", layout = "vllm", paths = { "padded", "native", "auto" }, device = "cpu",
  seconds = 0, worker = true, store = { out = folder, name = "bench" },
  on_cell = function(i)
    if i == 1 then begin, parent, child = worker.now(), cpu "self", cpu(crew.process:get_pid()) end
  end,
  on_record = function(record)
    if record.case.seed == 39 and record.path == "auto" then
      begin, parent, child = worker.now() - begin, cpu "self" - parent, cpu(crew.process:get_pid()) - child
    end
  end,
})
os.execute("rm -r " .. folder)
assert(least >= CELL_SECONDS, ("a cell took %.0f ms, wanted %.0f or more"):format(1000 * least, 1000 * CELL_SECONDS))

-- ---- The answer --------------------------------------------------------------------------------------------------------------

local load = read("/proc/loadavg"):match("^%S+")
local added, share = (begin - inside) / begin, parent / (parent + child)
local lines = {
  ("# What the harness adds to a sweep\n\n`luajit tools/bench_sweep.lua`, %s, %s; commit %s%s, %s; load average %s"):format(
    sweep.run.device, fh.device.default():info().threads .. " threads", sweep.run.commit:sub(1, 12),
    sweep.run.dirty and " with changes" or "", sweep.run.date, load),
  "\n| what | measured | wanted | met |\n| --- | ---: | ---: | --- |",
  ("| sweep of %d cells of %.0f ms or more: wall time outside the worker's calls | %.2f %% | < %.0f %% | %s |"):format(cells,
    1000 * least, 100 * added, 100 * WANTED_SHARE, yes(added < WANTED_SHARE)),
  ("| the same: CPU time of the parent over that of both | %.2f %% (%.2f of %.2f s) | < %.0f %% | %s |"):format(100 * share,
    parent, parent + child, 100 * WANTED_SHARE, yes(share < WANTED_SHARE)),
  ("| dry run of %d cells: wall time, the worker's start and rates included | %.2f s | < %d s | %s |"):format(dry.cells, dry.wall,
    WANTED_SECONDS, yes(dry.wall < WANTED_SECONDS)),
  ("| the same: CPU time of the parent | %.2f s | < %d s | %s |"):format(dry.cpu, WANTED_SECONDS, yes(dry.cpu < WANTED_SECONDS)),
}
local report = table.concat(lines, "\n") .. "\n"
io.write(report)
if arg[1] then assert(fh.file.write(arg[1], report)) end
