--- Sweep: many cases, one after the other: every combination of a few axes, each compared path by path, each a record a path.
--
--   local fh = require "fewhead"
--   local sweep = fh.sweep { s_q = "64:2048:*2", heads = 8, layout = "vllm,contiguous", out = "results/local/sweep.jsonl" }
--   print(sweep); print(fh.gate.fit(sweep))
--
-- A cell that the library refuses is a record too: its parity is "invalid" and says why. A single run is a sweep of one cell.

local args = require "fewhead.base.arguments"
local axes = require "fewhead.record.axes"
local axis = require "fewhead.decide.axis"
local cells = require "fewhead.decide.cells"
local compare = require "fewhead.measure.compare"
local device = require "fewhead.device.device"
local hash = require "fewhead.base.hash"
local json = require "fewhead.base.json"
local option = require "fewhead.base.option"
local pattern = require "fewhead.case.pattern"
local path_table = require "fewhead.device.path"
local records = require "fewhead.record.record"
local tables = require "fewhead.base.table"
local tags = require "fewhead.record.tags"

local M = {}

--- The paths where none are named.
-- @value paths
M.paths = { "padded", "native" }

--- The longest that a cell may take in a worker, seconds, before it counts as hanging.
M.cell_seconds = 600

--- How a sweep without `interrupted` runs where somebody waits for it: function(own, run), which may set callbacks in own, the
-- sweep's own options, and returns what run() returns. nil: it just runs. The prompt sets it.
M.attend = nil

-- A part of a sweep: "2/8".
option.kinds.SHARD = { check = function(text)
  local i, n = tostring(text):match("^(%d+)/(%d+)$")
  i, n = tonumber(i), tonumber(n)
  if type(text) == "string" and i and i >= 1 and i <= n then return text end
  return nil, '"I/N" with I in 1 .. N'
end }
option.kinds.SHARD.parse = option.kinds.SHARD.check

-- Options of the sweep itself.
local OWN = option.rows("sweep", {
  { "axes", "ANY", "a space of cells" },
  { "paths", "TABLE", "as fh.compare takes them" }, { "device", "ANY", "a device, or its name" },
  { "out", "TEXT", "a JSONL file for the records" },
  { "on_record", "FUNCTION", "called after each record" }, { "on_cell", "FUNCTION", "called before each cell" },
  { "on_plan", "FUNCTION", "called before the first cell" },
  { "on_interrupt", "FUNCTION", "called when an interrupt is heard while a cell runs", with = { worker = { true } } },
  { "interrupted", "FUNCTION", "true to stop" },
  { "--seconds", "NUMBER", "bound for the whole sweep, set-up included; 0: no bound, the fewest samples", lo = 0 },
  { "--max-seconds", "NUMBER", "time to spend on timing all cells, without a bound for the sweep", lo = 0,
    without = { "seconds" } },
  { "--cell-seconds", "NUMBER", "a cell hangs after this long", lo = 0, with = { worker = { true } } },
  { "--max-bytes", "INTEGER", "cells whose tensors take more are refused", lo = 0 },
  { "--shard", "I/N", "part I of N of the cells; fewhead merge puts the parts together", kind = "SHARD" },
  { "--worker", nil, "the cells run in a process of their own" },
  { "store", "TABLE", "the folder of the run" },
  { "--retry-failed", nil, "measure again what failed in the run that is resumed", with = { store = true } },
  { "more", "FUNCTION", "options of one more cell" },
  { "--control", nil, "measure the first cell once more behind the last one" },
  { "argv", "TABLE", "the words of the command" }, { "run", "TABLE", "a header of fh.run" }, tags.row,
})

-- Options that a sweep hands on to fewhead.compare.
local COMPARE = {}
for i, key in ipairs {
  "cold", "min_samples", "max_samples", "rel_ci", "sample", "group", "row_invariant", "costs", "samples",
  "profile",
} do
  COMPARE[i] = compare.rows.by_key[key]
end

--- The options of fh.sweep (fewhead.base.option): every axis, its own, and those of fewhead.compare that all cells share.
M.rows = axis.rows()
for _, list in ipairs { OWN.list, COMPARE } do
  for _, row in ipairs(list) do M.rows[#M.rows + 1] = row end
end
M.rows = option.rows("sweep", M.rows)

-- Of a cell's share of the seconds, what timing gets; the rest is set-up and parity.
local TIMING_SHARE = 0.7

local Sweep = { __name = "sweep" }
Sweep.__index = Sweep
M.class = Sweep -- a later room gives sweeps further methods

local function new(list) return setmetatable({ records = list or {}, interrupted = false }, Sweep) end

-- ---- The task ----------------------------------------------------------------------------------------------------------------

-- { i, n } of a shard's text "2/8".
local function shard_of(text)
  local i, n = text:match("^(%d+)/(%d+)$")
  return { tonumber(i), tonumber(n) }
end

-- What a sweep is to do: { plan =, own = options of its own, how = options of fh.compare, shard = }. Wrong options raise; level
-- as in error(), 1 = the caller of this.
local function task_of(options, level)
  local o = option.table("sweep", args.table("sweep", options, level + 1), M.rows, level + 1)
  local task = { own = {}, how = {} }
  for _, row in ipairs(OWN.list) do task.own[row.key] = o[row.key] end
  for _, row in ipairs(COMPARE) do -- what was said alone: it tells runs apart
    if options[row.key] ~= nil then task.how[row.key] = o[row.key] end
  end
  local own = task.own
  if own.worker and type(own.device) == "table" then
    error("sweep: device: got a device, wanted its name: the worker process opens it", level + 1)
  end
  compare.check_costs("sweep", task.how.costs, own.paths or M.paths, level + 1)
  if own.seconds == 0 then own.seconds, own.max_seconds = nil, 0 end -- the fewest samples, however long they take
  if not own.worker then -- else the worker process says what is wrong with the two
    local dev = own.device or device.default()
    if type(dev) == "string" then dev = device.open(dev) end -- nil: the run says why
    task.device = dev and device.check("sweep: device", dev, level + 1)
    if dev then compare.expand("sweep: paths", own.paths or M.paths, dev, level + 1) end
  end
  local of_cells = { axes = options.axes }
  for _, key in ipairs(axis.keys) do of_cells[key] = options[key] end
  task.plan = cells.plan(of_cells, level + 1)
  for _, cell in ipairs(task.plan.cells) do -- another process has no such function
    if cell.options.pattern and type(cell.options.pattern) ~= "string" then own.worker = false end
  end
  task.cells = task.plan.cells
  if options.shard then
    task.shard = shard_of(options.shard)
    task.cells = cells.shard(task.cells, unpack(task.shard))
  end
  return task
end

--- The fewest samples that a path gets.
local function samples_of(how) return how.min_samples or require("fewhead.measure.timing").defaults.min_samples end

-- Bytes and seconds as a person reads them.
local function bytes_text(bytes) return ("%.1f MiB"):format(bytes / 2 ^ 20) end

-- Which cells of a list, whose `seconds` are known, do not fit into a limit: those whose least time, after the ones before, goes
-- beyond the limit. done: cells that take none. Returns { [cell] = true }.
local function unfit_of(list, limit, done)
  local unfit, total = {}, 0
  for _, cell in ipairs(list) do
    if limit and not done[cell] then
      if total + cell.seconds > limit then unfit[cell] = true else total = total + cell.seconds end
    end
  end
  return unfit
end

local DRY_CELLS = 40 -- a dry run shows so many cells and counts the rest

-- A cell of a dry run in a line.
local function dry_line(cell, unfit)
  if cell.reason then return ("%s: refused: %s"):format(cell.text:gsub("^no case: ", ""), cell.reason) end
  return ("%s: %s, %.1f s%s"):format(cell.text, bytes_text(cell.bytes), cell.seconds, unfit and ", does not fit" or "")
end

--- What a sweep with these options would do, as text: its cells with their memory and time, about; the reasons of those that are
-- refused; and which do not fit into `seconds`. A worker process measures how fast the device is; nothing else runs. Wrong
-- options raise.
function M.dry_run(options)
  local task = task_of(options, 2)
  local bench, err = require("fewhead.decide.cell").open {
    device = task.own.device, paths = task.own.paths or M.paths, how = task.how, argv = {}, rates = true, worker = true,
  }
  if not bench then error("sweep: " .. err, 0) end
  bench:close()
  local lines, total, largest, left_out = {}, 0, 0, 0
  for _, cell in ipairs(task.cells) do
    cell.seconds = cells.seconds(cell, bench.paths, samples_of(task.how), bench.rates)
    total, largest = total + cell.seconds, math.max(largest, cell.bytes)
  end
  local unfit = unfit_of(task.cells, task.own.seconds, {})
  for i, cell in ipairs(task.cells) do
    if unfit[cell] then left_out = left_out + 1 end
    if i <= DRY_CELLS then lines[i] = dry_line(cell, unfit[cell]) end
  end
  if #task.cells > DRY_CELLS then lines[#lines + 1] = (".. and %d more"):format(#task.cells - DRY_CELLS) end
  lines[#lines + 1] = ("%d cells, %d duplicates counted once, largest %s, at least about %.0f s on %s"):format(#task.cells,
    task.plan.duplicates, bytes_text(largest), total, bench.header.device)
  if left_out > 0 then
    lines[#lines + 1] = ("%d of %d cells do not fit into %g s and would be left out"):format(left_out, #task.cells,
      task.own.seconds)
  end
  return table.concat(lines, "\n")
end

-- ---- Running one cell --------------------------------------------------------------------------------------------------------

local function open_bench(task)
  local own = task.own
  return require("fewhead.decide.cell").open {
    device = task.device or own.device, paths = own.paths or M.paths, how = task.how, argv = own.argv, run = own.run,
    worker = own.worker, rates = own.seconds ~= nil,
  }
end

local function refused(job, cell, reason)
  return require("fewhead.decide.cell").refused(cell.options, job.bench.paths, job.task.how, "invalid", reason)
end

-- The records of a cell that is not to be measured, or nil.
local function unmeasured(job, cell)
  if cell.reason then return refused(job, cell, cell.reason) end
  local most = job.task.own.max_bytes
  if most and cell.bytes > most then
    return refused(job, cell, ("max_bytes: the cell needs about %.0f bytes, wanted at most %.0f"):format(cell.bytes,
      most))
  end
end

local function seconds_left(job)
  return job.limit and job.limit - tonumber(job.clock() - job.start) / 1e9
end

-- Seconds of timing that cell j gets, told before cell i begins: its share of those that are left, by the work of the cells to
-- come.
local function timing_seconds(job, i, j)
  local own, sum = job.task.own, 0
  local left = job.limit and seconds_left(job) or own.max_seconds and own.max_seconds - tonumber(job.clock() - job.start) / 1e9
  if not left then return nil end
  for k = i, #job.list do
    if not job.unfit[job.list[k]] then sum = sum + job.list[k].weight end
  end
  local share = sum > 0 and math.max(0, left) * job.list[j].weight / sum or 0
  return job.limit and share * TIMING_SHARE or share
end

-- How much longer cells take than their estimates said, so far; 1 at least.
local function estimates_off(job) return job.guessed > 0 and math.max(1, job.took / job.guessed) or 1 end

-- Whether a cell is to be measured: nothing is known of it, and it may fit.
local function is_wanted(job, cell)
  local most = job.task.own.max_bytes
  return not (job.done[cell] or job.unfit[cell] or cell.reason or most and cell.bytes > most)
end

-- The cell behind cell i that is to be measured next, for bench:measure, which has so many seconds of timing for i; nil where
-- there is none, or it may not fit. The worker begins it while this process takes the records of cell i.
local function ahead_of(job, i, timing)
  for j = i + 1, #job.list do
    local cell = job.list[j]
    if is_wanted(job, cell) then
      local left = seconds_left(job)
      local least = left and math.max(job.list[i].seconds, timing / TIMING_SHARE)
      if left and left - least < cell.seconds * estimates_off(job) then return nil end
      job.ahead = { cell = cell, options = cell.options, max_seconds = timing_seconds(job, i, j) }
      return job.ahead
    end
  end
end

-- The records of cell i; nil, "interrupted" | "late"; or nil, nil, err where no worker can be started.
local function measure(job, i)
  local cell, own = job.list[i], job.task.own
  local before, begun = job.clock(), job.ahead
  local timing
  if begun and begun.cell == cell then timing = begun.max_seconds else timing = timing_seconds(job, i, i) end
  job.ahead = nil
  local left = seconds_left(job)
  local answer, err = job.bench:measure(cell.options, {
    max_seconds = timing, seconds = own.cell_seconds or M.cell_seconds,
    deadline = left and require("fewhead.measure.worker").now() + left,
    interrupted = own.interrupted, on_interrupt = own.on_interrupt, ahead = own.worker and ahead_of(job, i, timing) or nil,
  })
  if not answer then return nil, nil, err end
  if answer.interrupted then return nil, "interrupted" end
  if answer.late then return nil, "late" end
  if cell.seconds and cell.seconds > 0 then -- how far the estimates are off on this machine
    local share = job.limit and timing / TIMING_SHARE or 0 -- a cell that had more time than it needs may use it
    job.took, job.guessed = job.took + tonumber(job.clock() - before) / 1e9, job.guessed + math.max(cell.seconds, share)
  end
  job.first = job.first or { cell = cell, records = answer.records, timing = timing,
    seconds = tonumber(job.clock() - before) / 1e9 }
  return answer.records
end

-- ---- The sweep ---------------------------------------------------------------------------------------------------------------

local function id_of(job, cell) return hash.text(cell.config .. " " .. job.fingerprint) end

local function prepare(job, cell)
  local bench = job.bench
  cell.id = id_of(job, cell)
  cell.seconds = bench.rates and cells.seconds(cell, bench.paths, samples_of(job.task.how), bench.rates)
  cell.weight = cell.seconds or cell.flops.native or 0
  job.done[cell] = job.store and job.store.done[cell.id]
end

-- Whether a cell failed: a path was wrong, or its process ended. A cell that is refused has not failed.
local function failed(list)
  for _, record in ipairs(list) do
    if record.parity.status == "fail" or record.parity.status == "error" then return true end
  end
  return false
end

-- A name for a cell in messages.
local function name_of(cell)
  local o = cell.options
  local lists = o.pattern and ", " .. pattern.label(o.pattern) or ""
  return ("s_q %s%s%s"):format(tostring(o.s_q), lists, o.layout and ", " .. o.layout or "")
end

-- Add the records of a cell to a sweep and, while they can be written, to the file and the store.
local function take(job, cell, list)
  local sweep = job.sweep
  for _, record in ipairs(list) do
    record.run = record.run or job.bench.header
    json.ordered(record, records.fields)
  end
  if job.store and not sweep.write_error then
    local ok, err = job.store:add(cell.id, cell.at, list)
    if not ok then sweep.write_error = err end
  end
  for _, record in ipairs(list) do
    sweep.records[#sweep.records + 1] = record
    if job.writer then
      local ok
      ok, sweep.write_error = job.writer:add(record)
      if not ok then job.writer = nil end -- the file holds what came before; what is measured from here on is in the result
    end
    if job.task.own.on_record then job.task.own.on_record(record) end
  end
  if failed(list) then sweep.failed[#sweep.failed + 1] = name_of(cell) end
end

-- One cell of the list: measured, reused or left out. false where the sweep ends here; then why, an error or nil.
local function step(job, i)
  local cell, sweep, own = job.list[i], job.sweep, job.task.own
  if job.done[cell] then
    for _, record in ipairs(job.done[cell]) do sweep.records[#sweep.records + 1] = record end
    if failed(job.done[cell]) then sweep.failed[#sweep.failed + 1] = name_of(cell) end
    sweep.reused = sweep.reused + 1
    return true
  end
  if own.interrupted and own.interrupted() then
    sweep.interrupted = true
    return false
  end
  if own.on_cell then own.on_cell(i, #job.list, cell.options) end
  local list, why, err = unmeasured(job, cell), nil, nil
  if not list then
    local left = seconds_left(job)
    if job.unfit[cell] or left and cell.seconds * estimates_off(job) > left then why = "late"
    else list, why, err = measure(job, i) end
  end
  if err then return false, err end
  if why == "interrupted" then
    sweep.interrupted = true
    return false
  end
  if why == "late" then
    sweep.unfit[#sweep.unfit + 1] = name_of(cell)
    return true
  end
  sweep.measured = sweep.measured + 1
  take(job, cell, list)
  return true
end

-- The fingerprint as one hash.
local function fingerprint_id(fingerprint) return hash.text(json.encode(fingerprint)) end

-- What run.json says of a sweep that is about to begin.
local function head_of(job)
  local task, bench = job.task, job.bench
  return {
    fingerprint = bench.fingerprint, plan = task.plan.config, planned = #task.plan.cells, cells = #task.cells,
    shard = task.shard, seconds = job.limit, argv = bench.header.argv, date = bench.header.date, commit = bench.header.commit,
  }
end

-- Opens the store of a sweep. own.store: { out =, name =, resume = a folder or nil }. true | nil, err.
local function open_store(job)
  local store, wanted, sweep = require "fewhead.record.store", job.task.own.store, job.sweep
  local err
  local out
  out, sweep.evidence = store.place(require("fewhead.record.run").folder(wanted.out, job.bench.header))
  local before, none = wanted.resume, nil
  if before then before, none = store.folder(before == true and out or before, store.is_sweep) end
  if none and wanted.resume ~= true then return nil, none end
  if before then
    local head, no_head = store.head(before)
    if not head then return nil, no_head end
    if head.fingerprint and fingerprint_id(head.fingerprint) == job.fingerprint then
      job.store, err = store.resume(before)
      if not job.store then return nil, err end
      local next_head = head_of(job)
      next_head.state = "running"
      for key, value in pairs(next_head) do job.store.head[key] = value end
      if job.task.own.retry_failed then
        local dropped
        dropped, err = job.store:drop(failed)
        if not dropped then return nil, err end
      end
    else
      sweep.changed = ("%s has %s"):format(before, store.differences(head.fingerprint or {}, job.bench.fingerprint))
    end
  end
  if not job.store then
    job.store, err = store.create(out, wanted.name, head_of(job))
    if not job.store then return nil, err end
  end
  sweep.folder = job.store.folder
  return true
end

-- The first cell that this run measured, once more behind the last one: equal configurations that were measured far apart. { cell
-- = its name, path = the path whose time moved most, ratio = its second time over its first }; nil where there is no second cell,
-- nothing was timed, or the time is up.
local function control(job)
  local own, first, sweep = job.task.own, job.first, job.sweep
  local left = seconds_left(job)
  if not own.control or not first or sweep.measured < 2 or sweep.interrupted or left and left < first.seconds then return nil end
  local answer = job.bench:measure(first.cell.options, {
    max_seconds = first.timing, seconds = own.cell_seconds or M.cell_seconds,
    deadline = left and require("fewhead.measure.worker").now() + left,
    interrupted = own.interrupted, on_interrupt = own.on_interrupt,
  })
  local worst
  for i, record in ipairs(answer and answer.records or {}) do
    local before, now = first.records[i].time, record.time
    if before and now then
      local ratio = now.median_us / before.median_us
      if not worst or math.abs(math.log(ratio)) > math.abs(math.log(worst.ratio)) then
        worst = { cell = name_of(first.cell), path = record.path, ratio = ratio }
      end
    end
  end
  return worst
end

-- The median of the noise floors of a sweep's comparisons, nil without one.
local function noise_floor(list)
  local floors = {}
  for _, record in ipairs(list) do floors[#floors + 1] = record.time and record.time.noise_floor end
  return #floors > 0 and require("fewhead.measure.stats").median(floors) or nil
end

-- Puts the files in place.
local function close(job)
  local sweep = job.sweep
  job.bench:close()
  sweep.noise_floor = noise_floor(sweep.records)
  if job.writer then
    local _
    _, sweep.write_error = job.writer:commit() -- interrupted within the first cell it keeps what an earlier run left
  end
  if job.store then
    local _, err = job.store:finish {
      state = sweep.interrupted and "interrupted" or #sweep.unfit > 0 and "out of time" or "complete",
      measured = sweep.measured, reused = sweep.reused, noise_floor = sweep.noise_floor, control = sweep.control,
    }
    sweep.write_error = sweep.write_error or err
  end
end

-- Everything that is there before the first cell. A job | nil, err.
local function open_job(task)
  local sweep = new()
  local found, err = not task.how.profile, nil
  if not found then found, err = require("fewhead.device.nvtx").find() end
  if not found then return nil, "profile: " .. err end
  sweep.cells, sweep.planned, sweep.measured, sweep.reused, sweep.unfit, sweep.failed = 0, #task.cells, 0, 0, {}, {}
  sweep.duplicates, sweep.shard = task.plan.duplicates, task.shard
  local job = { task = task, sweep = sweep, list = {}, done = {}, took = 0, guessed = 0 }
  for i, cell in ipairs(task.cells) do job.list[i] = cell end
  job.clock = require("fewhead.base.ffi").C.fh_time_ns
  job.start, job.limit = job.clock(), task.own.seconds
  if task.own.out then
    job.writer, err = records.writer(task.own.out)
    if not job.writer then return nil, err end
  end
  job.bench, err = open_bench(task)
  if not job.bench then
    if job.writer then job.writer:discard() end
    return nil, err
  end
  sweep.run = job.bench.header
  if task.own.tags then tags.into(sweep.run, task.own.tags) end
  sweep.run.process = task.own.worker and "worker" or "script"
  job.fingerprint = fingerprint_id(job.bench.fingerprint)
  if task.own.store then
    local ok
    ok, err = open_store(job)
    if not ok then
      job.bench:close()
      return nil, err
    end
  end
  for _, cell in ipairs(job.list) do prepare(job, cell) end
  job.unfit = unfit_of(job.list, job.limit, job.done)
  return job
end

-- What the plan is, for whoever wants to say it before the first cell.
local function announce(job)
  local sweep = job.sweep
  local said = {
    cells = #job.list, duplicates = sweep.duplicates, reused = 0, unfit = {}, seconds = 0, folder = sweep.folder,
    changed = sweep.changed,
  }
  for _, cell in ipairs(job.list) do
    if job.done[cell] then said.reused = said.reused + 1
    elseif job.unfit[cell] then said.unfit[#said.unfit + 1] = name_of(cell)
    else said.seconds = said.seconds + (cell.seconds or 0) end
  end
  job.task.own.on_plan(said)
end

-- Every cell of a task, one after the other: what M.run returns.
local function run(task)
  local job, err = open_job(task)
  if not job then return nil, err end
  local sweep, i = job.sweep, 0
  if task.own.on_plan then announce(job) end
  while true do
    i = i + 1
    if i > #job.list then
      local one = task.own.more and task.own.more(sweep)
      local cell = one and cells.add(task.plan, one)
      if not cell then break end
      prepare(job, cell)
      job.list[i] = cell
    end
    local ok, why = step(job, i)
    if why then
      close(job)
      return nil, why
    end
    if not ok then break end
    sweep.cells = sweep.measured + sweep.reused
  end
  sweep.control = control(job)
  close(job)
  return sweep
end

--- Run a sweep. Axes, each one value, several or a function (fh.axis): every option of fh.case; and `axes`, a space of cells that
-- fh.axis.grid, zip, derive and where make. The cells are every combination, s_q the slowest; a cell that stands there twice is
-- measured once. And
--   paths        as fh.compare takes them ({ "padded", "native" }), providers too
--   device       a device or its name, default device.default(); its name where worker is true
--   worker       true: the cells run in a process of their own (fewhead.measure.worker); one that crashes, hangs or loses the
--                device is a record with status "error" and `failure`, and the next cell runs in a new process. Where a pattern
--                is a function all cells run in this process, and run.process of the records says "script"
--   cell_seconds with worker: a cell hangs after this long (600)
--   seconds      bound for the whole sweep, set-up included: cells whose estimate does not fit are left out, and with worker a
--                cell is ended when the time is over. 0: no bound, each path its fewest samples
--   max_seconds  time to spend on timing: dealt over the cells to come by their work. It bounds nothing: every cell is measured,
--                and each path takes its fewest samples. Not beside seconds. nil: each cell as long as compare takes
--   max_bytes    a cell whose tensors take more, about, is refused
--   shard        "i/N": the cells of part i alone, chosen by their hashes
--   store        { out = folder of runs, name =, resume = the folder of a run, or true for the latest in out }: a folder for this
--                run (fewhead.record.store); with resume, the run goes on in its folder where build, device and settings are the
--                same, and what it has is not measured again
--   retry_failed with resume: measure again what failed
--   out          a JSONL file for the records, put in place when the sweep ends
--   more         function(sweep) -> options of one more cell, or nil: asked when all cells are done
--   control      true: the first cell is measured once more behind the last one, and the sweep's `control` says how far it moved;
--                no records of it
--   on_plan      function(plan) before the first cell: { cells, duplicates, reused, unfit = names, seconds = estimate, folder,
--                changed = why nothing of the resumed run is used }
--   on_cell      function(i, of, options) before each cell;  on_record  function(record) after each record
--   interrupted  function() -> true to stop; the cell at hand is dropped, those before are kept
--   on_interrupt with worker: function() called when an interrupt is heard while a cell runs
--   tags         { name = value }: words of your own that the records carry (fewhead.record.tags)
--   argv, run    the words of the command, or a whole header of fh.run, for the records
--   cold, min_samples, max_samples, rel_ci, sample, group, row_invariant, costs, samples, profile   as fh.compare takes them
-- Returns { records =, cells = how many were measured, reused or refused, planned =, measured =, reused =, duplicates =, unfit =
-- names of cells that time ran out for, failed = names, interrupted = boolean, noise_floor =, control = { cell =, path = the
-- path that moved most, ratio = its second time over its first } or nil, folder =, evidence = the folder of results/ that `store`
-- names, or nil, write_error = why the file lacks records: a disk that was full, say }; nil, err when the file cannot be made or
-- the device not be opened.
function M.run(options)
  local task = task_of(options, 2)
  if M.attend and not task.own.interrupted then return M.attend(task.own, function() return run(task) end) end
  return run(task)
end

--- One line of what a sweep did: "measured 5, reused 3; 1 duplicate left out; ..".
function Sweep:summary()
  local parts = { ("measured %d, reused %d"):format(self.measured, self.reused) }
  local function add(...) parts[#parts + 1] = (...):format(select(2, ...)) end
  if self.duplicates > 0 then add("%d duplicate cells counted once", self.duplicates) end
  if #self.unfit > 0 then add("%d cells not measured, out of time: %s", #self.unfit, table.concat(self.unfit, "; ")) end
  if #self.failed > 0 then add("%d cells failed: %s", #self.failed, table.concat(self.failed, "; ")) end
  if self.noise_floor then add("noise floor %.1f %%", 100 * self.noise_floor) end
  if self.control then
    local moved = math.exp(math.abs(math.log(self.control.ratio))) - 1
    local beyond = self.noise_floor and moved > self.noise_floor and ", more than the noise floor: the machine changed" or ""
    add("control: %s once more at the end: %s took %.3f of its first time%s", self.control.cell, self.control.path,
      self.control.ratio, beyond)
  end
  add("%s", compare.clocks_text(self.records, self.run))
  return table.concat(parts, "\n")
end

-- ---- Reading back ----------------------------------------------------------------------------------------------------------

--- A sweep from the JSONL file of an earlier one; nil, "file:line: reason" for a line that is no record, and nothing is half
-- read.
function M.read(file)
  args.string("sweep.read: file", file, 2)
  local path, list, err
  local store = require "fewhead.record.store"
  path, err = store.find(file, store.is_sweep)
  if path then list, err = records.read(path) end
  if not list then return nil, err end
  return new(list)
end

-- ---- Looking at it ---------------------------------------------------------------------------------------------------------

--- The records that match, as a sweep: fields of the case by name (s_q = 64, layout = "vllm", heads = 8), path, l2, status, or a
-- function(record) -> true.
function Sweep:filter(wanted)
  local keep = wanted
  if type(wanted) ~= "function" then
    args.table("sweep:filter", wanted, 2)
    keep = function(record)
      for key, value in pairs(wanted) do
        local own = record.case[key == "heads" and "h_q" or key]
        if key == "path" then own = record.path
        elseif key == "l2" then own = record.time and record.time.l2
        elseif key == "status" then own = record.parity.status end
        if own ~= value then return false end
      end
      return true
    end
  end
  local list = {}
  for _, record in ipairs(self.records) do
    if keep(record) then list[#list + 1] = record end
  end
  local some = new(list)
  some.interrupted, some.run = self.interrupted, self.run
  return some
end

-- Records of one cell side by side, in the order the cells came: { case =, own = of the library's paths by name, others = of
-- providers by name, list = all records }; and the names of the providers among them.
local function cells_of(list)
  local order, by_key, names, seen, keys, heat = {}, {}, {}, {}, {}, {}
  for i, record in ipairs(list) do
    keys[i] = records.key(record, { "path", "l2" })
    heat[keys[i]] = heat[keys[i]] or record.time and record.time.l2
  end
  for i, record in ipairs(list) do
    heat[keys[i]] = record.time and record.time.l2 or heat[keys[i]] -- what has no time was hot or cold as its neighbour was
    local key = ("%s %s"):format(keys[i], tostring(heat[keys[i]]))
    local cell = by_key[key]
    if not cell then
      cell = { case = record.case, own = {}, others = {}, list = {} }
      by_key[key], order[#order + 1] = cell, cell
    end
    if records.is_own(record) then cell.own[record.path] = record
    else
      cell.others[record.path] = record
      if not seen[record.path] then seen[record.path], names[#names + 1] = true, record.path end
    end
    cell.list[#cell.list + 1] = record
  end
  return order, names
end

-- "pass", or the paths that did not and what became of them.
local function parity_text(cell)
  local bad = {}
  for _, record in ipairs(cell.list) do
    if record.parity.status ~= "pass" then bad[#bad + 1] = record.path .. " " .. record.parity.status end
  end
  return #bad == 0 and "pass" or table.concat(bad, ", ")
end

-- The kernels that ran in records, each once: "sm90 padded, sm90 gather"; nil where none is known.
local function kernels_text(list)
  local names, seen = {}, {}
  for _, record in ipairs(list) do
    local kernel = record.kernel
    if kernel and not seen[kernel] then names[#names + 1], seen[kernel] = kernel, true end
  end
  return #names > 0 and table.concat(names, ", ") or nil
end

local function percent(share) return ("%.1f %%"):format(100 * share) end


-- A row of a cell, without the fields of the case.
local function row_of(cell, names)
  local row, native = { parity = parity_text(cell), kernels = kernels_text(cell.list) }, nil
  for _, path in ipairs(path_table.names()) do
    local record = cell.own[path]
    if record and record.time then
      row[path] = record.time.median_us
      local quicker = not native or record.time.median_us < native.time.median_us
      if path_table.get(path).candidate and path_table.get(path).native and quicker then native = record end
    end
    local error = record and record.parity.max_abs
    if error then row.max_abs = math.max(row.max_abs or 0, error) end
  end
  for j, name in ipairs(names) do
    local record = cell.others[name]
    row[j] = record and record.time and record.time.median_us
  end
  row.native = native and native.path
  if native and native.verdict then row.ratio, row.verdict = native.verdict.ratio, native.verdict.verdict end
  row.padded_waste = cell.own.padded and cell.own.padded.work and cell.own.padded.work.waste
  row.native_waste = native and native.work.waste
  return row
end

-- Columns of rows in whose cells these fields vary and these paths were measured.
local function columns_of(varies, measured, names)
  local columns = {}
  local function add(column) columns[#columns + 1] = column end
  for _, column in ipairs(varies) do add(column) end
  local auto
  for _, path in ipairs(path_table.names()) do
    if path_table.get(path).candidate then add { key = path, format = tables.time }
    elseif path == "auto" then auto = measured[path] end
  end
  if auto then add { key = "auto", format = tables.time } end
  for j, name in ipairs(names) do add { key = j, title = name, format = tables.time } end
  add { key = "ratio", format = "%.2fx" }
  add { key = "verdict", align = "left" }
  add { key = "native", title = "by", align = "left" }
  add { key = "parity", align = "left" }
  add { key = "max_abs", title = "max error", format = "%.1e" }
  add { key = "padded_waste", title = "waste padded", format = percent }
  add { key = "native_waste", title = "waste native", format = percent }
  if varies.kernels then add { key = "kernels", align = "left" } end
  return columns
end

-- A column for each field that varies in records, s_q among them in any case. The key keeps the case's ratio apart from that of
-- times.
local function axis_columns(list)
  local names, columns = axes.of(list).varying, {}
  local function add(name)
    local left = false
    for _, record in ipairs(list) do left = left or type(axes.settings(record)[name]) == "string" end
    columns[#columns + 1] = { key = name == "ratio" and "case_ratio" or name, name = name, align = left and "left" or nil,
      title = name == "ratio" and "case ratio" or name }
  end
  local has_s_q = false
  for _, name in ipairs(names) do
    add(name)
    has_s_q = has_s_q or name == "s_q"
  end
  if not has_s_q then add "s_q" end
  return columns
end

--- One row a cell and the columns for fh.table: every field of the case or the run that varies, and s_q; the median of each path
-- that "auto" chooses among, of auto where it was measured and, by number, of each provider; the ratio of padded to the better
-- native path with its verdict; parity over all paths with the largest error; the waste, the share of the executed FLOPs that
-- multiplied padding, of padded and of that native path; and the kernels that ran.
function Sweep:rows()
  local rows, varies, kernels, measured = {}, axis_columns(self.records), nil, {}
  local found, names = cells_of(self.records)
  for i, cell in ipairs(found) do
    local row = row_of(cell, names)
    row.s_q = cell.case.s_q
    local settings = axes.settings(cell.list[1])
    for _, column in ipairs(varies) do row[column.key] = settings[column.name] end
    kernels = kernels or row.kernels
    varies.kernels = varies.kernels or row.kernels ~= nil and row.kernels ~= kernels
    for path in pairs(cell.own) do measured[path] = true end
    rows[i] = row
  end
  return rows, columns_of(varies, measured, names)
end

--- The table as text.
function Sweep:table()
  return (tables.text(self:rows()))
end

--- The kernels that ran, each once, in one text; nil where none is known.
function Sweep:kernels() return (kernels_text(self.records)) end

function Sweep:__tostring()
  local kernels = self:kernels()
  return kernels and ("%s\nkernels: %s"):format(self:table(), kernels) or self:table()
end

--- The records whose parity is not "pass".
function Sweep:failures()
  return self:filter(function(record) return record.parity.status ~= "pass" end)
end

-- `return M.run(...)` is a tail call: errors blame the caller, as for M.run itself.
return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
