--- The record: what one path did in one case. Every measurement writes records, and every table, fit and picture reads them.
--
--   local record = require "fewhead.record.record"
--   local r = record.new { path = "gather", case = case:describe(), parity = checked, time = time, work = work, run = header }
--   print(record.key(r))                               -- one text for one measured configuration
--   for r, line in record.lines("results/nvidia-h200/packed.jsonl") do print(line, r.path) end
--
-- Fields, in the order in which a file has them:
--   path              the path that was asked for, or the name of a provider
--   provider          "fewhead" for the library's own paths, else the name of the provider (fh.provider)
--   provider_version  text
--   kernel            the kernel that ran, nil where that is not known
--   case              what was run, all of it: case:describe() of fh.case, or the chunk through a model's layers of fh.layers
--   call              { group =, row_invariant =, plan = }, options of the call that were given; nil where none were
--   parity            { status = "pass" | "fail" | "invalid" | "error", reason, against, compared, max_abs, .. } of fh.parity
--   time              { median_us, p05_us, p95_us, n, l2 = "hot" | "cold", noise_floor, dropped, .. } of fh.timing; nil without
--                     a pass. noise_floor: of the comparison, how far one path differed from itself, 0.01 = 1 %; dropped: samples
--                     left out since the process was stopped in them; clock_mhz, memory_mhz, throttle, throttled,
--                     dropped_throttled: the clocks, where run.clocks says that they can be read; samples: where asked for,
--                     all of them in microseconds, in the order in which the paths took turns
--   work              { path = the path that ran, rows, by_path, useful_flops, executed_flops, bytes, waste }, where known; waste
--                     is the share of the executed FLOPs that multiplied padding
--   verdict           { verdict, ratio, lo, hi, against = a path }, beside another path of the same comparison
--   run               the header of fh.run; run.tags are words of the user's own (fewhead.record.tags)
--   cell              in the folder of a sweep: { id = hash of case, build, device and settings, at = place in the plan, of = how
--                     many records the cell has }
--   failure           of a cell that ended the worker process: { phase =, path =, code = signal or status, text = }
-- A record may have more fields than these. Whoever adds such a field documents it.

local args = require "fewhead.base.arguments"
local json = require "fewhead.base.json"

local M = {}

--- The names of the fields, in that order.
-- @value fields
M.fields = {
  "path", "provider", "provider_version", "kernel", "case", "call", "parity", "time", "work", "verdict", "run",
}

-- What a record keeps of a parity, of a time and of the counters of a run.
local KEPT = {
  parity = {
    "status", "against", "compared", "sampled", "mean_abs", "max_abs", "rel", "cos_diff", "failing", "lse_max_abs",
    "max_logits_max_abs", "worst", "refused", "reason",
  },
  time = {
    "median_us", "p05_us", "p95_us", "median_lo_us", "median_hi_us", "n", "l2", "stop", "plan_us", "noise_floor", "dropped",
    "clock_mhz", "memory_mhz", "throttle", "throttled", "dropped_throttled",
  },
  work = { "path", "rows", "by_path", "useful_flops", "executed_flops", "bytes" },
}

local function kept(part, source)
  if source == nil then return nil end
  local copy = {}
  for _, key in ipairs(KEPT[part]) do copy[key] = source[key] end
  return copy
end

-- ---- Making -----------------------------------------------------------------------------------------------------------------

local NEW = { "path", "case", "call", "parity", "time", "work", "verdict", "run", "more" }

--- A record. Options: path, the name of a path or a provider; case and parity, tables; call, time, work, verdict, run, nil where
-- there is none; more, a table of further fields. A provider's name is path and provider. Raises, on the caller's line, for a
-- time beside a parity that is no pass: a wrong answer has no speed.
function M.new(o)
  o = args.options("record.new", args.table("record.new", o), NEW)
  local providers = require "fewhead.device.provider" -- here: who only reads records needs no C library
  local name = providers.name_of(o.path)
  args.string("record.new: path", name)
  args.table("record.new: case", o.case)
  args.table("record.new: parity", o.parity)
  if o.time and o.parity.status ~= "pass" then
    error(("record.new: time: got one for %s, whose parity is %s; wanted none"):format(name, args.show(o.parity.status)), 2)
  end
  local provider, version = providers.provider_of(o.path)
  local work = kept("work", o.work)
  local executed = work and work.executed_flops -- nil: a provider, or a GPU that shared the rows out itself, does not tell
  if executed then work.waste = executed > 0 and 1 - work.useful_flops / executed or 0 end
  local kernel = o.work and o.work.kernel ~= "" and o.work.kernel or nil
  local r = {
    path = name, provider = provider, provider_version = version, kernel = kernel, case = o.case,
    call = o.call and next(o.call) ~= nil and o.call or nil, parity = kept("parity", o.parity), time = kept("time", o.time),
    work = work, verdict = o.verdict, run = o.run,
  }
  for key, value in pairs(o.more or {}) do
    for _, field in ipairs(M.fields) do
      if key == field then error(("record.new: more: got %s, wanted no field of every record"):format(args.show(key)), 2) end
    end
    r[key] = value
  end
  return json.ordered(r, M.fields)
end

--- What a record's cell is called: the name that a bench gave it, or the id that a run's store gave it; nil without one.
-- fewhead.record.store keeps { id =, at =, of = } there.
function M.cell_name(r)
  local cell = r.cell
  return type(cell) == "table" and cell.id or cell
end

--- Whether a record is of one of the library's own paths.
function M.is_own(r) return r.provider == "fewhead" end

-- ---- Checking ---------------------------------------------------------------------------------------------------------------

local function wanted(what, value, words) return ("%s: got %s, wanted %s"):format(what, args.show(value), words) end

-- Number fields that a part must have, all above 0, where the record has a time.
local NUMBERS = {
  case = { "s_q", "h_q" }, time = { "median_us", "p05_us", "p95_us", "n" }, verdict = { "ratio", "lo", "hi" },
}

-- What is wrong with the numbers of a part, or nil. zero: 0 is taken for all but a count of samples.
local function damaged_part(r, name, zero)
  local part = r[name]
  if type(part) ~= "table" then return wanted(name, part, "a table") end
  for _, key in ipairs(NUMBERS[name]) do
    local value = part[key]
    if type(value) ~= "number" or value < 0 or value == 0 and not (zero and key ~= "n") then
      return wanted(("%s.%s"):format(name, key), value, "a number > 0")
    end
  end
end

local function is_count(value) return type(value) == "number" and value >= 0 end

-- What is wrong with the numbers of a record with a time, or nil. zero: times of 0 us are taken.
local function damaged_numbers(r, zero)
  local damage = damaged_part(r, "case") or damaged_part(r, "time", zero) or r.verdict ~= nil and damaged_part(r, "verdict")
  if damage then return damage end
  local work = r.work
  if type(work) ~= "table" then return wanted("work", work, "a table") end
  if not is_count(work.useful_flops) then return wanted("work.useful_flops", work.useful_flops, "a number >= 0") end
  if work.executed_flops ~= nil and not is_count(work.executed_flops) then
    return wanted("work.executed_flops", work.executed_flops, "a number >= 0")
  end
end

-- Types of the fields that a record has, and of those that it may have.
local HAS = { { "path", "string" }, { "provider", "string" }, { "case", "table" }, { "parity", "table" } }
local MAY_HAVE = { { "call", "table" }, { "run", "table" }, { "kernel", "string" } }

--- What makes a value unfit to be a record of this version, as one line; nil for a record. zero: true takes times of 0 us, which
-- other tools write for what their clock cannot tell.
function M.check(r, zero)
  if type(r) ~= "table" then return "got " .. args.show(r) .. ", wanted a record" end
  for _, row in ipairs(HAS) do
    if type(r[row[1]]) ~= row[2] then return wanted(row[1], r[row[1]], "a " .. row[2]) end
  end
  for _, row in ipairs(MAY_HAVE) do
    local value = r[row[1]]
    if value ~= nil and type(value) ~= row[2] then return wanted(row[1], value, "a " .. row[2]) end
  end
  if type(r.parity.status) ~= "string" then return wanted("parity.status", r.parity.status, "a string") end
  if r.time == nil then return nil end
  if r.parity.status ~= "pass" then return wanted("time", r.time, "none beside a parity that is no pass") end
  return damaged_numbers(r, zero)
end

-- ---- Keys -------------------------------------------------------------------------------------------------------------------

--- What was measured, as one text: path, provider, the whole case, the call's options and hot or cold caches. Two records have
-- the same key when they measured the same configuration, on whatever device and with whatever build. leave_out: a list of fields
-- of the case that do not count, and "path" (with the provider), "l2", "call". The preset does not count: it is a name for sizes
-- that the case has.
function M.key(r, leave_out)
  local out = { preset = true }
  for _, name in ipairs(leave_out or {}) do out[name] = true end
  local case = {}
  for name, value in pairs(r.case) do
    if not out[name] then case[name] = value end
  end
  return json.encode {
    case = case, path = not out.path and r.path or nil, provider = not out.path and r.provider or nil,
    call = not out.call and r.call or nil, l2 = not out.l2 and r.time and r.time.l2 or nil,
  }
end

-- ---- Files ------------------------------------------------------------------------------------------------------------------

-- Version 0.1 wrote other words. A value of an unexpected type stays as it is: the check refuses it.
local function modernise(r)
  if type(r) ~= "table" then return r end
  if r.provider == nil then r.provider = "fewhead" end
  if r.case == nil and type(r.chunk) == "table" then -- fh.layers: a case of a chunk
    r.case, r.chunk = r.chunk, nil
    if r.case.model and r.case.tp then
      r.case.preset, r.case.model, r.case.tp = ("%s tp%d"):format(r.case.model, r.case.tp), nil, nil
    end
  end
  local case, run = r.case, r.run
  if type(case) == "table" then
    if case.layout == "packed" then case.layout = "contiguous" end
    if case.indices == nil then case.indices, case.file = case.file, nil end
  end
  if type(run) == "table" and run.kind == "cuda" and type(run.isa) == "string" then -- a GPU has no threads and no such isa
    run.multiprocessors, run.threads = run.threads, nil
    run.capability, run.isa = run.isa:gsub("^sm_(%d+)(%d)$", "%1.%2"), nil
  end
  return r
end

--- What a file of JSON lines holds: "case" for records as they are made here; another word where its first line has a text
-- `kind`, such as "engine", "serving" or "header" of the Python package: such lines are read by what wrote them. nil for a file
-- that cannot be read or has no line.
function M.kind_of(path)
  local handle = io.open(path, "rb")
  local line = handle and handle:read("*l")
  if handle then handle:close() end
  if not line then return nil end
  local ok, first = pcall(json.decode, line)
  return ok and type(first) == "table" and type(first.kind) == "string" and first.kind or "case"
end

-- Parts of a record that those of the next lines often repeat.
local SHARED = { "case", "run" }

--- Iterates over the records of a JSON-lines file, one at a time: `for r, line in record.lines(path)`. Blank lines are skipped.
-- Records that follow one another with the same case or run share its table: do not change it.
-- Records of version 0.1 come in today's words. A file that cannot be read raises `path: No such file or directory`, a line that
-- is no record `path:12: reason`: plain text, for pcall or the user. Options: bad, a function(message) that takes such a line's
-- message, and the line is left out; zero, as M.check takes it.
function M.lines(path, o)
  args.string("record.lines: path", path)
  o = args.options("record.lines", o or {}, { "bad", "zero" })
  local next_value = json.lines(path, o.bad, SHARED)
  return function()
    while true do
      local value, line = next_value()
      if value == nil then return nil end
      local r = modernise(value)
      local reason = M.check(r, o.zero)
      if not reason then return r, line end
      reason = ("%s:%d: %s"):format(path, line, reason)
      if not o.bad then error(reason, 0) end
      o.bad(reason)
    end
  end
end

--- The records of a file as a list; nil and one line, "path:12: reason" for a line that is no record, and then nothing is half
-- read.
function M.read(path)
  args.string("record.read: path", path)
  local list = {}
  local ok, err = pcall(function()
    for r in M.lines(path) do list[#list + 1] = r end
  end)
  if not ok then return nil, err end
  if #list == 0 then return nil, path .. ": no record in it" end
  return list
end

local Writer = {}
Writer.__index = Writer

--- A file of records, written one by one, that takes its name when commit() is called (fewhead.record.file). Returns the writer,
-- or nil and the reason.
function M.writer(path)
  args.string("record.writer: path", path)
  local file, err = require("fewhead.record.file").writer(path)
  if not file then return nil, err end
  return setmetatable({ file = file, count = 0 }, Writer)
end

--- Append a record and hand it to the system. Raises for what is no record. true | nil, error.
function Writer:add(r)
  local reason = M.check(r)
  if reason then error("record.writer: " .. reason, 2) end
  local ok, err = self.file:add(json.encode(r) .. "\n")
  if ok then self.count = self.count + 1 end
  return ok, err
end

--- Put the file in place. Without a record in it the file is dropped: what stood there is worth more. true | nil, error.
function Writer:commit()
  if self.count == 0 then
    self.file:discard()
    return true
  end
  local ok, err = self.file:commit()
  return ok, err
end

--- Drop what was written. Safe after commit and twice.
function Writer:discard() self.file:discard() end

--- Write a list of records at once. true | nil, error.
function M.write(path, list)
  args.table("record.write: records", list)
  local writer, err = M.writer(path)
  if not writer then return nil, err end
  for _, r in ipairs(list) do
    local ok
    ok, err = writer:add(r)
    if not ok then return nil, err end
  end
  return writer:commit()
end

return M
