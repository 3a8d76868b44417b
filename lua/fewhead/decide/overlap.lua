--- Overlap: how much neighbouring rows of index lists share, group size by group size, counted by the library's own plans.
--
--     print(assert(fh.overlap { indices = "layer7.npy", shared = 4 }))      -- and what packing them would be worth on an H200
--     local lists = assert(fh.pattern.make("file", { indices = "layer7.npy" }))
--     for _, row in ipairs(assert(fh.overlap.measure(lists))) do print(row.group, row.union, row.dedup) end
--
-- Plans are built on a CPU, for one head, whatever the lists will run on: what neighbours share is a matter of the lists alone.
local args = require "fewhead.base.arguments"
local cases = require "fewhead.case.case"
local device = require "fewhead.device.device"
local machines = require "fewhead.decide.machine"
local npy = require "fewhead.base.npy"
local option = require "fewhead.base.option"
local paths = require "fewhead.device.path"
local pattern = require "fewhead.case.pattern"
local plan = require "fewhead.device.plan"
local presets = require "fewhead.case.preset"
local tables = require "fewhead.base.table"
local F = require "fewhead.base.ffi"

local ffi, C = F.ffi, F.C

local M = {}

--- Group sizes that measure() takes: those of 32, 16, 8, 4, 2 and 1 heads.
-- @value groups
M.groups = { 2, 4, 8, 16, 32, 64 }

-- Stands in for a problem where a plan is built: lists, and no q or KV.
local Lists = {}
Lists.__index = Lists

-- As problem:bare_call.
function Lists:bare_call(path, _, options)
  local given, call = self.given, ffi.new("fh_call")
  C.fh_call_init(call, ffi.sizeof(call), given.s_q, given.s_kv, 1, 512, given.topk)
  call.path, call.group, call.indices, call.topk_length = F.paths[path], options.group, given.indices, given.topk_length
  if self.offsets then call.requests, call.cu_seqlens_q = self.requests, self.offsets end
  return call
end

-- Request offsets as an array that starts with 0, ends with s_q and rises: int32_t[], requests | nil, err.
local function offsets_of(list, s_q)
  local count = #list
  if count < 2 then return nil, ("cu_seqlens_q: got %d offsets, wanted at least 2: 0 and s_q"):format(count) end
  local offsets = ffi.new("int32_t[?]", count)
  for i, offset in ipairs(list) do
    local least = i == 1 and 0 or list[i - 1]
    if offset ~= math.floor(offset) or offset < least or offset > s_q then
      return nil, ("cu_seqlens_q: offset %d: got %s, wanted a whole number in %d .. %d"):format(i, args.show(offset), least, s_q)
    end
    offsets[i - 1] = offset
  end
  if list[1] ~= 0 then return nil, ("cu_seqlens_q: got %d first, wanted 0"):format(list[1]) end
  if list[count] ~= s_q then return nil, ("cu_seqlens_q: got %d last, wanted s_q = %d"):format(list[count], s_q) end
  return offsets, count - 1
end

--- What rows of `lists`, such as fh.pattern's make gives, share in groups of each size. Options: groups, sizes in 1 .. 64
-- (M.groups); cu_seqlens_q, a list of where requests begin, 0 .. s_q: no group holds rows of two. Returns a list of { group =,
-- groups =, rows =, keys =, entries =, union = the union of a group beside one list, both on average, dedup = rows referenced
-- over distinct rows, keys / entries } | nil, err.
function M.measure(lists, options)
  args.table("overlap.measure: lists", lists)
  local o = args.options("overlap.measure", options, { "groups", "cu_seqlens_q" })
  local given = setmetatable({ given = lists, device = assert(device.open("cpu")) }, Lists)
  if o.cu_seqlens_q ~= nil then
    local offsets, requests = offsets_of(args.table("overlap.measure: cu_seqlens_q", o.cu_seqlens_q), lists.s_q)
    if not offsets then return nil, requests end
    given.offsets, given.requests = offsets, requests
  end
  local rows = {}
  for i, group in ipairs(args.given(o.groups, M.groups)) do
    args.integer(("overlap.measure: groups[%d]"):format(i), group, 1, 64)
    local made, err = plan.build(given, { group = group })
    if not made then return nil, err end
    local stats, groups = made:stats(), 0
    for g = 0, made.groups - 1 do -- those that are left over have no rows
      if made.struct.first[g + 1] > made.struct.first[g] then groups = groups + 1 end
    end
    made:free()
    local lists_length, union = stats.keys / math.max(1, lists.s_q), stats.entries / math.max(1, groups)
    rows[i] = {
      group = group, groups = groups, rows = lists.s_q, keys = stats.keys, entries = stats.entries,
      union = lists_length > 0 and union / lists_length or 1, dedup = stats.dedup,
    }
  end
  given.device:close()
  return rows
end

-- ---- With what it is worth
-- ------------------------------------------------------------------------------------------------------

local Overlap = { __name = "overlap" }
Overlap.__index = Overlap
M.class = Overlap -- a later room gives it print

-- Offsets of requests: a list of numbers, or "0,1024,8192".
option.kinds.OFFSETS = { check = function(value)
  if type(value) == "table" then return value end
  return nil, "a list of whole numbers, 0 first and s_q last"
end, parse = function(text)
  local list = {}
  for part in (text .. ","):gmatch("([^,]*),") do
    if not part:find("^%d+$") then return nil, "whole numbers, 0 first and s_q last" end
    list[#list + 1] = tonumber(part)
  end
  return list
end }

-- An option of a case that has effect with the patterns that take it.
local function of_pattern(key, changes)
  changes = changes or {}
  changes.axis, changes.with = false, { pattern = pattern.taking(key) }
  return option.like(cases.rows.by_key[key], changes)
end

--- The options of fh.overlap (fewhead.base.option).
M.rows = option.rows("overlap", {
  option.like(cases.rows.by_key.indices, { axis = false, without = { "pattern" } }),
  { "--topk-length", "FILE", "keys of each row that count, int32 .npy [s_q] (default: what the JSON header says, else all)",
    with = { indices = true } },
  { "--cu-seqlens-q", "LIST",
    "first row of each request and s_q, such as 0,1024,8192 (default: what the JSON header says, else one request)",
    kind = "OFFSETS" },
  option.like(cases.rows.by_key.pattern, { axis = false, choices = pattern.drawn,
    [3] = "drawn lists in place of captured ones" }),
  option.like(cases.rows.by_key.s_q, { axis = false, lo = 1,
    [3] = "rows: the first so many of a file; of a pattern 2048 unless said" }),
  of_pattern "keep", of_pattern "ratio",
  of_pattern("prior", { [2] = "INTEGER", [3] = "rows of the prompt before the chunk (default: the prompt is 8192 rows long)" }),
  option.like(cases.rows.by_key.preset, { axis = false, default = presets.default }),
  { "--shared", "INTEGER", "layers that use one list, and so pay for its plan together", default = 1, lo = 1 },
  { "--on", "MACHINE", "whose times: a folder of results/ with a packed.jsonl, such a file, cpu or cuda:N",
    default = "nvidia-h200" },
})

local ROWS = 2048 -- of a pattern where none are said

-- Captured lists with the lengths of a file of their own, where one is named; nil, err.
local function captured(o)
  local lists, err = pattern.make("file", { indices = o.indices, s_q = o.s_q })
  if not lists then return nil, err end
  if not o.topk_length then return lists end
  local lengths, whole
  lengths, err = npy.load(o.topk_length)
  if lengths then whole, err = npy.load(o.indices) end
  if not whole then return nil, err end
  if #lengths.shape ~= 1 or lengths.shape[1] ~= whole.shape[1] then
    return nil, ("topk_length: got %s of shape {%s}, wanted {%d}: one number for each row of indices"):format(o.topk_length,
      table.concat(lengths.shape, ", "), whole.shape[1])
  end
  lists.topk_length = lengths.data
  return lists
end

local function drawn(o)
  return cases.new({
    preset = o.preset, pattern = o.pattern, s_q = o.s_q or ROWS, keep = o.keep, ratio = o.ratio, prior = o.prior,
  }):lists()
end

-- Fill in what each path is expected to take with a row's group, and which is best.
local function predict(self, o)
  local d_qk = presets.get(o.preset).d_qk -- neither lists nor d_qk depend on how many ranks there are
  for _, row in ipairs(self.rows) do
    row.h_q = 64 / row.group
    local choice, us = self.machine:predict(row, row.h_q, d_qk, o.shared)
    if choice then
      for name, time in pairs(us) do row[name] = time end
      row.choice = choice
      row.gain = us.padded / (us[choice] + (paths.get(choice).wants_plan and us.plan / o.shared or 0))
      self.error = math.max(self.error or 0, self.machine:error(row.h_q, d_qk, self.lists.s_q) or 0)
    else self.missing = us end
  end
end

--- What neighbouring rows of lists share, and what packing them is worth on a machine, which need not be here. Options:
-- indices, a file of captured lists, with topk_length, a file; or pattern, a name or a function, with s_q (2048), keep, ratio,
-- prior; cu_seqlens_q, a list of where requests begin and s_q (what a capture says); preset, for d_qk and the pattern's sizes;
-- shared, layers that use one list (1); on, a machine (fh.machine; "nvidia-h200"). Returns { name =, lists =, machine =,
-- rows = those of measure(), each with h_q, the expected us of each path and of a plan, choice and gain = padded over the
-- choice, error = of the fits, missing = why a row has no times }, which prints as a table; nil, err.
function M.run(options)
  local o = option.table("overlap", options, M.rows)
  if o.indices == nil and o.pattern == nil then error("overlap: no lists, wanted indices or pattern", 2) end
  local lists, err
  if o.indices then lists, err = captured(o) else lists = drawn(o) end
  if not lists then return nil, err end
  local self = setmetatable({
    name = o.indices or "pattern " .. pattern.label(o.pattern), lists = lists, shared = o.shared,
  }, Overlap)
  local offsets = o.cu_seqlens_q or lists.cu_seqlens_q
  self.requests = offsets and #offsets - 1
  self.machine, err = machines.open(o.on)
  if not self.machine then return nil, err end
  self.rows, err = M.measure(lists, { cu_seqlens_q = offsets })
  if not self.rows then return nil, err end
  if self.rows[1].keys == 0 then
    return nil, self.name .. ": no list names a valid KV row, so there is nothing to share"
  end
  predict(self, o)
  return self
end

local function columns()
  local list = {
    { key = "group", title = "rows a group" }, { key = "union", title = "union / one list", format = "%.2f" },
    { key = "dedup", format = "%.2f" }, { key = "h_q", title = "for h_q" },
  }
  for _, path in ipairs(paths.candidates()) do list[#list + 1] = { key = path, title = path .. " us", format = "%.0f" } end
  list[#list + 1] = { key = "plan", title = "plan us", format = "%.0f" }
  list[#list + 1] = { key = "choice", align = "left" }
  list[#list + 1] = { key = "gain", title = "padded / choice", format = "%.2f" }
  return list
end

function Overlap:__tostring()
  local lists, rows = self.lists, self.rows
  local lines = {
    ("%s: %d rows%s, topk %d, %.1f keys a row, KV rows 0 .. %d"):format(self.name, lists.s_q,
      self.requests and (" of %d requests"):format(self.requests) or "", lists.topk, rows[1].keys / lists.s_q, lists.s_kv - 1),
    (tables.text(rows, columns())),
    "union / one list: KV rows that a group needs, beside those of one row; dedup: rows referenced over distinct rows",
    ("us: expected on %s%s; the choice pays for %s"):format(tostring(self.machine), (self.error or 0) > 0
      and (" (the fits are off by %.0f %% at most, root mean square)"):format(100 * self.error) or "",
      self.shared > 1 and ("1/%d of the plan"):format(self.shared) or "the plan"),
  }
  if self.missing then lines[#lines + 1] = "-: " .. self.missing end
  return table.concat(lines, "\n")
end

-- A tail call: errors blame the caller, as for M.run itself.
return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
