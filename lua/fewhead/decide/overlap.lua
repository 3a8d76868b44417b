--- Overlap: how much neighbouring rows of index lists share, group size by group size, counted by the library's own plans.
--
--     local lists = assert(fh.pattern.make("file", { indices = "layer7.npy" }))
--     for _, row in ipairs(assert(fh.overlap.measure(lists))) do print(row.group, row.union, row.dedup) end
--
-- Plans are built on a CPU, for one head, whatever the lists will run on: what neighbours share is a matter of the lists alone.
local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local plan = require "fewhead.device.plan"
local F = require "fewhead.base.ffi"

local ffi, C = F.ffi, F.C

local M = {}

--- Group sizes that measure() takes: those of 32, 16, 8, 4, 2 and 1 heads.
M.groups = { 2, 4, 8, 16, 32, 64 }

-- Stands in for a problem where a plan is built: lists, and no q or KV.
local Lists = {}
Lists.__index = Lists

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

return M
