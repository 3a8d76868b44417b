--- Store: the folders of runs. Every run has a folder of its own, DATE-NAME, and `latest` beside them is the one started last.
--
--   local store = require "fewhead.record.store"
--   local run = assert(store.create("results/local", "gate_sweep", { seconds = 60 }))
--   assert(run:add("9f3a61c25b0d7e48", 1, records)); run:finish { state = "complete" }
--   print(store.find("results/local"))           --> results/local/latest/records.jsonl
--
-- A folder holds run.json (what was asked for, and how it ended) and records.jsonl, to which each cell's records are appended as
-- soon as they are known. A run that is killed loses the cell at hand; the system keeps what it was handed. Only a power cut can
-- take more: the records of the last second. All cells of a folder have the same build, device and settings, and each cell stands
-- there once.
--
-- results/DEVICE is no folder of runs but the evidence of a device, NAME.jsonl and NAME.md for each experiment: a run that is to
-- go there has its folder in results/local, and publish() copies its files when the run is whole.

local args = require "fewhead.base.arguments"
local file = require "fewhead.record.file"
local json = require "fewhead.base.json"
local posix = require "fewhead.base.posix"
local records = require "fewhead.record.record"

local M = {}

local RECORDS, HEAD, LATEST = "records.jsonl", "run.json", "latest"
local SEQUENCE = ".sequence" -- in the folder of runs: how many were started there; its lock orders those that start at once

local LOCK_TRIES, LOCK_WAIT_US = 1000, 10000

-- Records are handed to the system at once, which a killed process does not lose; they are brought to the disk, which takes as
-- long as a short cell, at most so often.
local SYNC_SECONDS = 1

local Run = { __name = "run" }
Run.__index = Run

-- Opens a file and locks it; waits for who has it. Where the file system has no locks it is not locked. nil, error.
local function open_locked(path)
  local handle, err = io.open(path, "a+e")
  if not handle then return nil, err end
  for _ = 1, LOCK_TRIES do
    if posix.lock(handle) ~= "held" then return handle end
    posix.sleep_us(LOCK_WAIT_US)
  end
  handle:close()
  return nil, path .. ": another process has held its lock for 10 s"
end

-- A folder that nobody else has: DATE-NAME, or DATE-NAME-2 and so on for runs of one second. Returns its name, path | nil, error.
local function make_folder(out, name)
  local base = os.date("!%Y%m%dT%H%M%SZ") .. "-" .. name
  local try, n = base, 1
  while true do
    local made, err = posix.make_folder(out .. "/" .. try)
    if made then return try end
    if made == nil then return nil, err end
    n = n + 1
    try = ("%s-%d"):format(base, n)
  end
end

-- ---- Where runs go ----------------------------------------------------------------------------------------------------------

local LOCAL = "local" -- the folder of runs in results/

--- What `out` stands for: the folder of runs and, where `out` is a device's folder in results/ (any but results/local), that
-- folder, which gets a copy of the run's files (M.publish); else nil. "x" -> "x", nil; "a/results/h200" -> "a/results/local",
-- "a/results/h200".
function M.place(out)
  args.string("store.place: out", out)
  local results, device = out:match("^(.*)/([^/]+)/*$")
  local is_evidence = results and (results == "results" or results:find("/results$")) and device ~= LOCAL
  if is_evidence then return results .. "/" .. LOCAL, out end
  return out, nil
end

--- Whether a run can be written where `out` says, for a script that is about to measure; makes the folders. true; nil and the
-- reason, by the option --out. A folder with DEVICE in its name is looked at once the device is known.
function M.writable(out)
  for _, folder in ipairs { M.place(out) } do
    if not folder:find("DEVICE", 1, true) then
      local probe, err = file.writer(folder .. "/probe")
      if not probe then
        return nil, ("--out: got %s, wanted a folder to write to: %s"):format(args.show(out), err:match(": (.*)$") or err)
      end
      probe:discard()
    end
  end
  return true
end

local function is_file(path)
  local handle = io.open(path, "rb")
  local folder = io.open(path .. "/.")
  if handle then handle:close() end
  if folder then folder:close() end
  return handle ~= nil and folder == nil
end

--- Copy the files of the run in `folder` to `evidence`, run.json and folders left out: records.jsonl is called NAME.jsonl there,
-- report.md NAME.md and report_x.svg NAME_x.svg, in links between them too; other files keep their names. Each takes the place of
-- an earlier one. Returns the list of their names | nil, error.
function M.publish(folder, evidence, name)
  args.string("store.publish: folder", folder)
  args.string("store.publish: evidence", evidence)
  args.string("store.publish: name", name)
  local names = {}
  for _, path in ipairs(posix.glob(folder, "/*")) do
    local own = path:match("[^/]+$")
    if own ~= HEAD and is_file(path) then
      local text, err = file.read(path)
      if not text then return nil, err end
      local to = own == RECORDS and name .. ".jsonl" or own:gsub("^report", name)
      if own:find("%.md$") then text = text:gsub("%]%(report", "](" .. name) end
      local ok
      ok, err = file.write(evidence .. "/" .. to, text)
      if not ok then return nil, err end
      names[#names + 1] = to
    end
  end
  return names
end

-- ---- A run ------------------------------------------------------------------------------------------------------------------

local function write_head(run)
  local ok, err = file.write(run.folder .. "/" .. HEAD, json.encode(run.head) .. "\n")
  return ok, err
end

-- Opens the records for appending and locks them for this process.
local function open_records(run)
  local path = run.folder .. "/" .. RECORDS
  local handle, err = io.open(path, "abe")
  if not handle then return nil, err end
  handle:setvbuf("no")
  if posix.lock(handle) == "held" then
    handle:close()
    return nil, run.folder .. ": another process is writing to this run"
  end
  run.file, run.path = handle, path
  return true
end

--- Start a run: make its folder in `out` and the link `latest`. head: a table for run.json, which gets sequence, the number of
-- the run among those of `out`, that rises whatever the clock does. Returns the run | nil, error.
function M.create(out, name, head)
  args.string("store.create: out", out)
  args.string("store.create: name", name)
  local ok, err = posix.make_folders(out .. "/x")
  if not ok then return nil, err end
  local lock
  lock, err = open_locked(out .. "/" .. SEQUENCE)
  if not lock then return nil, ("%s: %s"):format(out, err:match(": (.*)$") or err) end
  local run = setmetatable({ head = {}, done = {}, order = {}, bytes = 0 }, Run)
  for key, value in pairs(head) do run.head[key] = value end
  lock:seek("set", 0)
  run.head.sequence = select(2, lock:read("*a"):gsub("\n", "")) + 1
  run.head.state = "running"
  local folder
  folder, err = make_folder(out, name)
  if folder then
    run.folder, run.name, run.head.name = out .. "/" .. folder, folder, folder
    ok, err = lock:write(folder, "\n")
    if ok then ok, err = write_head(run) end
    if ok then ok, err = open_records(run) end
    if ok then ok, err = posix.link(folder, out .. "/" .. LATEST) end
  end
  lock:close()
  if not (folder and ok) then return nil, err end
  return run
end

-- The records of a text by cell: { [id] = list }, ids in order, bytes up to the last whole cell; or nil, "line N: reason". Lines
-- of a cell stand together; the last line or cell may be torn.
local function read_cells(text)
  local done, order, whole, at, line = {}, {}, 0, 1, 0
  local id, list
  for body, stop in text:gmatch("([^\n]*)\n()") do
    line = line + 1
    local record = json.decode(body)
    local reason = record == nil and "no JSON" or records.check(record)
    if not reason and type(record.cell) ~= "table" then reason = "cell: got nothing, wanted a table" end
    if reason then
      if text:find("[^%z%s]", stop) then return nil, ("line %d: %s"):format(line, reason) end
      break -- the last line: torn
    end
    if record.cell.id ~= id then id, list = record.cell.id, {} end
    list[#list + 1] = record
    if #list == record.cell.of then
      if not done[id] then order[#order + 1] = id end
      done[id], whole, id = list, stop - 1, nil
    end
    at = stop
  end
  return done, order, whole, at
end

--- The head of the run in a folder | nil, error.
function M.head(folder)
  local path = folder .. "/" .. HEAD
  local handle, err = io.open(path, "rb")
  if not handle then return nil, err end
  local head, reason = json.decode(handle:read("*a") or "")
  handle:close()
  if type(head) ~= "table" then return nil, ("%s: %s"):format(path, reason or "wanted an object") end
  return head
end

--- Go on with the run in a folder, whatever its records are: they are not read. nil, error: no run, or another process is writing
-- to it.
function M.reopen(folder)
  args.string("store.reopen: folder", folder)
  local head, err = M.head(folder)
  if not head then return nil, err end
  folder = head.name and folder:gsub("/" .. LATEST .. "/*$", "/" .. head.name) or folder -- another run may become the latest
  local run = setmetatable({ head = head, folder = folder, name = folder:match("([^/]+)/*$"), done = {}, order = {} }, Run)
  local ok
  ok, err = open_records(run)
  if not ok then return nil, err end
  run.bytes = run.file:seek("end")
  return run
end

--- Go on with the run in a folder: run.done = { [id] = list of records } and run.order = the ids in the file's order are what it
-- has. A torn line or cell at the end is cut off. nil, error: no run, damaged, or another process is writing to it.
function M.resume(folder)
  local run, err = M.reopen(folder)
  if not run then return nil, err end
  local handle = assert(io.open(run.path, "rb"))
  local text = handle:read("*a")
  handle:close()
  local whole
  run.done, run.order, whole = read_cells(text)
  if not run.done then return nil, ("%s: %s"):format(run.path, run.order) end
  if whole < #text then
    local ok
    ok, err = posix.truncate(run.path, whole)
    if not ok then return nil, err end
  end
  run.bytes = whole
  return run
end

--- The cells of a run's folder without going on with it: { [id] = list }, ids in order | nil, error.
function M.cells(folder)
  local path = folder .. "/" .. RECORDS
  local handle, err = io.open(path, "rb")
  if not handle then return nil, err end
  local done, order = read_cells(handle:read("*a"))
  handle:close()
  if not done then return nil, ("%s: %s"):format(path, order) end
  return done, order
end

-- The lines of records. The header of the run, which all of them have, and a case, which the paths of a cell share, are written
-- as text once.
local function text_of(self, list)
  local lines, kept = {}, {}
  for i, record in ipairs(list) do
    if record.case then kept[record.case] = kept[record.case] or false end
    if record.run then kept[record.run] = self.header == record.run and self.header_text or kept[record.run] or false end
    lines[i] = json.encode(record, kept) .. "\n"
    self.header, self.header_text = record.run, record.run and kept[record.run]
  end
  return table.concat(lines)
end

-- Bring what was appended to the disk, where that was not done within the last second. true | nil, error.
local function sync(run)
  local now = posix.seconds()
  if run.synced and now - run.synced < SYNC_SECONDS then return true end
  local ok, err = posix.sync(run.file)
  run.synced = posix.seconds()
  return ok, err
end

--- Append records as they are. The system has them when this returns, and the disk a second later at most or with the next ones.
-- true | nil, error; after an error the file ends with what stood there before, and the run takes no more.
function Run:append(list)
  if not self.file then return nil, self.path .. ": closed" end
  local text = text_of(self, list)
  local ok, err = self.file:write(text)
  if ok then ok, err = sync(self) end
  if not ok then
    pcall(self.file.close, self.file)
    self.file = nil
    posix.truncate(self.path, self.bytes)
    return nil, ("%s: %s; the file ends before it"):format(self.path, (tostring(err):gsub("^fsync: ", "")))
  end
  self.bytes = self.bytes + #text
  return true
end
jit.off(Run.append) -- compiled, a write that fails is tried again by the interpreter, and the second time says nothing

--- Append the records of a cell, `id` at place `at` of the plan. true | nil, error, as append().
function Run:add(id, at, list)
  for _, record in ipairs(list) do
    record.cell = { id = id, at = at, of = #list }
    json.ordered(record, records.fields)
  end
  local ok, err = self:append(list)
  if not ok then return nil, err end
  self.done[id], self.order[#self.order + 1] = list, id
  return true
end

--- Put other records in the place of those of the file, at once. true | nil, error.
function Run:rewrite(list)
  local text = text_of(self, list)
  if self.file then self.file:close() end
  local ok, err = file.write(self.path, text)
  if ok then ok, err = open_records(self) end
  if not ok then return nil, err end
  self.bytes = #text
  return true
end

--- Take cells out of the file: drop(records of a cell) says which. The new file takes the old one's place at once. Returns how
-- many were taken out | nil, error.
function Run:drop(drop)
  local kept, list, dropped = {}, {}, 0
  for _, id in ipairs(self.order) do
    if drop(self.done[id]) then
      self.done[id], dropped = nil, dropped + 1
    else
      kept[#kept + 1] = id
      for _, record in ipairs(self.done[id]) do list[#list + 1] = record end
    end
  end
  if dropped == 0 then return 0 end
  self.order = kept
  local ok, err = self:rewrite(list)
  if not ok then return nil, err end
  return dropped
end

--- End the run: what stands in `head` goes to run.json, and the records are closed. true | nil, error.
function Run:finish(head)
  for key, value in pairs(head or {}) do self.head[key] = value end
  local synced, reason = true, nil
  if self.file then
    synced, reason = posix.sync(self.file)
    self.file:close()
    self.file = nil
  end
  local ok, err = write_head(self)
  if ok and synced then return true end
  return nil, err or ("%s: %s"):format(self.path, reason)
end

--- How two fingerprints differ: "library: a, here b; threads: 2, here 4"; nil where they do not.
function M.differences(before, here)
  local list, keys = {}, {}
  for _, one in ipairs { before, here } do
    for key in pairs(one) do
      if not keys[key] then keys[#keys + 1], keys[key] = key, true end
    end
  end
  table.sort(keys)
  for _, key in ipairs(keys) do
    if before[key] ~= here[key] then
      list[#list + 1] = ("%s: %s, here %s"):format(key, tostring(before[key]), tostring(here[key]))
    end
  end
  return #list > 0 and table.concat(list, "; ") or nil
end

-- ---- Finding runs ------------------------------------------------------------------------------------------------------------

--- Whether the run with this head is one of fh.sweep's, whose records stand by cells: for M.folder and M.find.
function M.is_sweep(head) return head.plan ~= nil end

--- The same for the runs of an experiment, whose head names it (fewhead.cli.experiment): a function of a head.
function M.is_of(experiment)
  return function(head) return head.experiment == experiment end
end

-- Whether `folder` is one of a run that `is` takes.
local function is_run(folder, is)
  if not is_file(folder .. "/" .. RECORDS) then return false end
  return not is or is(M.head(folder) or {})
end

-- The newest of the runs in a folder of runs that `is` takes: its folder, or nil.
local function newest(path, is)
  if is_run(path .. "/" .. LATEST, is) then return path .. "/" .. LATEST end
  local found, last
  for _, folder in ipairs(posix.glob(path, "/*-*/")) do
    folder = folder:gsub("/+$", "")
    local sequence = is_run(folder, is) and (M.head(folder) or {}).sequence or -1
    if sequence > (last or 0) then found, last = folder, sequence end
  end
  return found
end

--- The folder of a run: `path` itself, or the newest run in it. is: a function of a run's head (M.is_sweep); only runs for which
-- it is true are looked for in `path`. nil, error.
function M.folder(path, is)
  if is_run(path) then return path end
  local found = newest(path, is)
  if found then return found end
  local other = is and newest(path)
  if other then return nil, ("%s: no run of %s in it"):format(path, is == M.is_sweep and "a sweep" or "that kind") end
  return nil, ("%s: no run in it, wanted a folder with %s or %s in it"):format(path, RECORDS, LATEST)
end

--- The file of records that a path means: a file, the folder of a run, or a folder of runs, whose newest is meant; is: as for
-- M.folder. nil, error.
function M.find(path, is)
  args.string("store.find: path", path)
  if is_file(path) then return path end
  local handle, missing = io.open(path)
  if not handle then return nil, missing end
  handle:close()
  local folder, err = M.folder(path, is)
  return folder and folder .. "/" .. RECORDS, err
end

--- One line that says which run a file of records is of: "run 20260102T030405Z-gate_sweep: 12 cells, 60 s, complete"; the path
-- where there is no run.json.
function M.describe(path)
  local folder = path:match("^(.*)/[^/]+$") or "."
  local head = M.head(folder)
  if not head then return path end
  return ("run %s: %s%s, %s"):format(head.name or folder, head.cells and head.cells .. " cells" or "cells unknown",
    head.seconds and (", --seconds %g"):format(head.seconds) or "", tostring(head.state))
end

return M
