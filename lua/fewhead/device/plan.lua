--- A plan: what the packed path knows of a problem's index lists: for each group of neighbouring rows the union of their keys,
-- and who chose which. Built once, used by every call on the same lists.
--
--     local plan = assert(fh.plan.build(problem))
--     print(plan.groups, plan:stats().dedup, plan:group_entries(1).member[1])    --> 256  5.1  "11111111"
--     problem:run("packed", outputs, { plan = plan })
--
-- Fields: s_q, groups (with a case's `boundaries` some may have no rows), group (the most rows of a group), capacity (entries
-- there is room for in a group), struct (fh_plan cdata). The order of entries and the meaning of repeats stand in fewhead.h.
local ffi = require "ffi"
local args = require "fewhead.base.arguments"
local paths = require "fewhead.device.path"
local tensor = require "fewhead.device.tensor"
local F = require "fewhead.base.ffi"

local C = F.C

local M = {}

local Plan = { __name = "plan" }
Plan.__index = Plan

-- The paths that a plan can be for: those that work on one, and "auto", which may take them.
local PATHS = paths.planned()
PATHS[#PATHS + 1] = "auto"

local WORD = ffi.sizeof("int32_t")
local words, members, rows_of = ffi.typeof("const int32_t *"), ffi.typeof("const uint64_t *"), ffi.typeof("const int64_t *")

--- Build the plan of a problem's lists. Options: group, rows of a group; left out or 0 = as many as fill a tile of 64 with their
-- heads. path = "auto": a plan for calls with that path, which says which groups they pack (fewhead.h); default "packed", which
-- packs all. Returns nil and the library's message when it refuses, or when there is no memory.
function M.build(problem, options)
  if type(problem) ~= "table" or type(problem.bare_call) ~= "function" then
    error(("plan.build: problem: got %s, wanted a problem, such as case:problem(dev) gives"):format(args.show(problem)), 2)
  end
  local o = args.options("plan.build", options, { "group", "path" })
  if o.group ~= nil then args.integer("plan.build: group", o.group, 0, 64) end
  local path = args.enum("plan.build: path", args.given(o.path, PATHS[1]), PATHS)
  local call = problem:bare_call(path, nil, { group = o.group })
  local bytes = ffi.new("uint64_t[1]")
  local ok, err = F.check(C.fh_plan_bytes(problem.device.handle, call, bytes))
  if not ok then return nil, err end
  local memory
  memory, err = tensor.new(problem.device, "i32", { math.ceil(tonumber(bytes[0]) / WORD) })
  if not memory then return nil, "plan: " .. err end
  local struct = ffi.new("fh_plan")
  struct.struct_size = ffi.sizeof(struct)
  local self = setmetatable({ struct = struct, memory = memory, bytes = bytes[0], group = o.group, path = path }, Plan)
  ok, err = self:rebuilder(problem)
  if not ok then
    memory:free()
    return nil, err
  end
  self.s_q, self.groups, self.group = tonumber(struct.s_q), tonumber(struct.groups), struct.group
  self.capacity = tonumber(struct.capacity)
  return self
end

local function check(self, name)
  if getmetatable(self) ~= Plan then
    error(("plan:%s: got %s, wanted a plan: a method is called with a colon"):format(name, args.show(self)), 3)
  end
  if self.freed then error(("plan:%s: used after free()"):format(name), 3) end
end

--- A function that builds the plan again in its memory from what the lists of `problem` hold then, and returns an fh_status:
-- lists change in place from chunk to chunk. On a GPU it works in the order of the device's stream and may be recorded in a
-- graph. The problem is the plan's own, or one of the same sizes; path: what the plan is for, if not for what it was. nil and the
-- library's message when it refuses.
function Plan:rebuilder(problem, path)
  check(self, "rebuilder")
  path = args.enum("plan:rebuilder: path", args.given(path, self.path), PATHS)
  local call, handle = problem:bare_call(path, nil, { group = self.group }), problem.device.handle
  local function build() return C.fh_plan_build(handle, call, self.memory:data(), self.bytes, self.struct) end
  local ok, err = F.check(build())
  if ok then ok, err = problem.device:synchronize() end
  if not ok then return nil, err end
  return build
end

-- `count` words of one of the plan's arrays from word `first` of it on, on the host.
local function words_of(self, array, first, count)
  if count == 0 then return ffi.new("int32_t[1]") end
  local base = ffi.cast(words, self.memory:data())
  local at = tonumber(ffi.cast(words, array) - base) + first
  local view = assert(self.memory:slice(1, at + 1, at + count))
  local host = assert(view:read())
  view:free()
  return host
end

local function list(host, count)
  local t = {}
  for i = 1, count do t[i] = host[i - 1] end
  return t
end

--- Where the groups' rows begin: a list of groups + 1 row numbers, counted from 1. Group g is rows list[g] .. list[g + 1] - 1.
function Plan:first()
  check(self, "first")
  local host = words_of(self, self.struct.first, 0, 2 * (self.groups + 1))
  local first, rows = {}, ffi.cast(rows_of, host) -- host is kept: the cast does not keep it alive
  for g = 0, self.groups do first[g + 1] = tonumber(rows[g]) + 1 end
  return first
end

--- Entries of each group: a list.
function Plan:entries()
  check(self, "entries")
  return list(words_of(self, self.struct.entries, 0, self.groups), self.groups)
end

--- Entries of group g, counted from 1: { token = KV row of each, member = strings, one character for each row of the group in
-- order: "1" where that row chose the entry }.
function Plan:group_entries(g)
  check(self, "group_entries")
  args.integer("plan:group_entries: g", g, 1, self.groups)
  local starts = self:first()
  local count, rows, first = self:entries()[g], starts[g + 1] - starts[g], (g - 1) * self.capacity
  local token = list(words_of(self, self.struct.token, first, count), count)
  -- kept in a local: the cast does not keep it alive
  local pairs_of_words = words_of(self, self.struct.member, 2 * first, 2 * count)
  local bits, member = ffi.cast(members, pairs_of_words), {}
  for i = 1, count do
    local text, rest = {}, bits[i - 1]
    for r = 1, rows do
      text[r] = rest % 2 == 1 and "1" or "0"
      rest = rest / 2
    end
    member[i] = table.concat(text)
  end
  return { token = token, member = member }
end

--- { entries = KV rows that the packed path fetches, keys = valid keys of all rows, union_per_row = entries / rows, dedup =
-- keys / entries: how many rows one fetch serves (1 where there is nothing to fetch), groups = those that have rows, unpacked =
-- those that a call with path "auto" computes row by row }.
function Plan:stats()
  check(self, "stats")
  local entries, keys = 0, 0
  for _, n in ipairs(self:entries()) do entries = entries + n end
  local host = words_of(self, self.struct.keys, 0, self.s_q)
  for i = 0, self.s_q - 1 do keys = keys + host[i] end
  local groups, first = 0, self:first()
  for g = 1, self.groups do groups = groups + (first[g + 1] > first[g] and 1 or 0) end
  return {
    entries = entries, keys = keys, union_per_row = self.s_q > 0 and entries / self.s_q or 0,
    dedup = entries > 0 and keys / entries or 1, groups = groups, unpacked = math.min(self:unpacked(), groups),
  }
end

--- Group numbers, counted from 1, in the order in which they are taken: first those that a call with path "auto" computes row by
-- row, unpacked() of them.
function Plan:order()
  check(self, "order")
  local order = list(words_of(self, self.struct.order, 0, self.groups), self.groups)
  for i = 1, self.groups do order[i] = order[i] + 1 end
  return order
end

--- Groups that a call with path "auto" computes row by row: 0 for a plan that is not for such calls.
function Plan:unpacked()
  check(self, "unpacked")
  return self.groups > 0 and words_of(self, self.struct.packed_from, 0, 1)[0] or 0
end

--- Give the memory back; twice does nothing. Calls that use the plan must not run any more.
function Plan:free()
  if getmetatable(self) ~= Plan then error(("plan:free: got %s, wanted a plan"):format(args.show(self)), 2) end
  self.freed = true
  self.memory:free()
end

function Plan:__tostring()
  if self.freed then return "plan (freed)" end
  local s = self:stats()
  return ("plan of %d rows in %d groups of %d: %.0f keys in %.0f entries"):format(
    self.s_q, self.groups, self.group, s.keys, s.entries)
end

return M
