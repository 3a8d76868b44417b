-- What the harness adds to a sweep, and how long a dry run of 10,000 cells takes.
--
--   luajit tools/bench_sweep.lua [OUT.md]         in the checkout's root, on an idle machine; OUT.md gets the same text
--
-- The sweep's cells run in the worker process and take a little more than 50 ms. Two figures say what is added to them, each the
-- least of three runs, since other programs on the machine only add to it:
--   wall   of the time from the first cell to the last, what is not spent in the worker's calls: messages, records, the disk
--   CPU    time of this process over that of both processes
package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
local fh = require "fewhead"
local posix = require "fewhead.base.posix"
local worker = require "fewhead.measure.worker"

local WANTED_SHARE, WANTED_SECONDS, CELL_SECONDS, DRY_CELLS = 0.01, 1, 0.05, 10000
local CELLS, RUNS = 40, 3

-- Seconds of CPU of a process: nanoseconds of each of its threads.
local function cpu(pid)
  local ns = 0
  for _, path in ipairs(posix.glob(("/proc/%s/task"):format(pid), "/*/schedstat")) do
    ns = ns + tonumber((assert(fh.file.read(path)):match("^%d+")))
  end
  return ns / 1e9
end

local function yes(met) return met and "yes" or "no" end

-- ---- The dry run -------------------------------------------------------------------------------------------------------------

local own, start = cpu "self", worker.now()
local text = fh.sweep.dry_run { s_q = "1:2500:1", heads = "8,16", layout = "vllm,contiguous", pattern = "csa", device = "cpu" }
local dry = { wall = worker.now() - start, cpu = cpu "self" - own, cells = tonumber(text:match("(%d+) cells")) }
assert(dry.cells == DRY_CELLS, text)

-- ---- The sweep ---------------------------------------------------------------------------------------------------------------

local inside, cells, least, crew -- of the run at hand: seconds in the worker's calls, how many, the shortest
local call = worker.class.call
function worker.class:call(...)
  crew = self
  local answer = call(self, ...)
  if answer.value and answer.value.records then
    inside, cells, least = inside + answer.seconds, cells + 1, math.min(least, answer.seconds)
  end
  return answer
end

-- A sweep of n cells of so many rows: { added = share of the wall time, share = of the CPU time, least = shortest cell, parent =
-- CPU seconds, run = header }.
local function run(s_q, n)
  local folder = os.tmpname()
  os.remove(folder)
  inside, cells, least = 0, 0, math.huge
  local begin, parent, child
  local sweep = assert(fh.sweep {
    s_q = s_q, seed = ("0:%d:1"):format(n - 1), heads = 8, pattern = "csa", layout = "vllm", device = "cpu", seconds = 0,
    paths = { "padded", "native", "auto" }, worker = true, store = { out = folder, name = "bench" },
    on_cell = function(i)
      if i == 1 then begin, parent, child = worker.now(), cpu "self", cpu(crew.process:get_pid()) end
    end,
    on_record = function(record)
      if record.case.seed == n - 1 and record.path == "auto" then
        begin, parent, child = worker.now() - begin, cpu "self" - parent, cpu(crew.process:get_pid()) - child
      end
    end,
  })
  os.execute("rm -r " .. folder)
  return { added = (begin - inside) / begin, share = parent / (parent + child), least = least, parent = parent, run = sweep.run }
end

-- The least of several runs; nil where a cell was too short.
local function best_of(s_q)
  local best
  for _ = 1, RUNS do
    local found = run(s_q, CELLS)
    if found.least < CELL_SECONDS then return nil end
    best = best or found
    for _, key in ipairs { "added", "share", "parent", "least" } do best[key] = math.min(best[key], found[key]) end
  end
  return best
end

-- The fewest rows whose cells all take long enough.
local s_q, best = 1
while run(s_q, 3).least < CELL_SECONDS do s_q = s_q + 1 end
repeat
  best = best_of(s_q)
  s_q = s_q + 1
until best

-- ---- The answer --------------------------------------------------------------------------------------------------------------

local load = fh.file.read("/proc/loadavg"):match("^%S+")
local lines = {
  ("# What the harness adds to a sweep\n\n`luajit tools/bench_sweep.lua`, %s, %s; commit %s%s, %s; load average %s"):format(
    best.run.device, fh.device.default():info().threads .. " threads", best.run.commit:sub(1, 12),
    best.run.dirty and " with changes" or "", best.run.date, load),
  "\n| what | measured | wanted | met |\n| --- | ---: | ---: | --- |",
  ("| sweep of %d cells of %.0f ms or more: wall time outside the worker's calls | %.2f %% | < %.0f %% | %s |"):format(CELLS,
    1000 * best.least, 100 * best.added, 100 * WANTED_SHARE, yes(best.added < WANTED_SHARE)),
  ("| the same: CPU time of the parent over that of both | %.2f %% (%.2f ms a cell) | < %.0f %% | %s |"):format(100 * best.share,
    1000 * best.parent / CELLS, 100 * WANTED_SHARE, yes(best.share < WANTED_SHARE)),
  ("| dry run of %d cells: wall time, the worker's start and rates included | %.2f s | < %d s | %s |"):format(dry.cells, dry.wall,
    WANTED_SECONDS, yes(dry.wall < WANTED_SECONDS)),
  ("| the same: CPU time of the parent | %.2f s | < %d s | %s |"):format(dry.cpu, WANTED_SECONDS, yes(dry.cpu < WANTED_SECONDS)),
}
local report = table.concat(lines, "\n") .. "\n"
io.write(report)
if arg[1] then assert(fh.file.write(arg[1], report)) end
