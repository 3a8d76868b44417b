--- Costs: a cost model from Lua: what "auto" compares paths by, in place of the device's own (fh_costs).
--
--     local costs = assert(fh.costs.default(dev))           -- { padded = { call_us =, unit_us =, gflop_us = }, gather =, .. }
--     costs.plan.call_us, costs.plan.unit_us, costs.plan.gflop_us = 0, 0, 0
--     print(problem:explain { costs = costs })              -- plans that cost nothing
--     print(fh.compare(case, { "padded", "auto" }, { costs = costs }))
--
-- microseconds = call_us + unit_us * units + gflop_us * GFLOP executed (fh_path_cost). A unit is a row of padded and gather,
-- and a group of packed and plan. They hold for one number of heads.
local args = require "fewhead.base.arguments"
local option = require "fewhead.base.option"
local paths = require "fewhead.device.path"
local F = require "fewhead.base.ffi"

local ffi, C = F.ffi, F.C

local M = {}

--- What has costs: the paths that "auto" chooses among, and "plan".
M.names = paths.costed()
M.names[#M.names + 1] = "plan"

local FIELDS = { "call_us", "unit_us", "gflop_us" }
local WANTED = ("costs of %s, each { call_us =, unit_us =, gflop_us = } in microseconds >= 0"):format(table.concat(M.names, ", "))

-- A table from what may stand for costs: itself, fh_costs, or an object that has them, such as fh.cost.fit makes. nil: none.
local function table_of(v)
  if type(v) == "table" and getmetatable(v) ~= nil then v = v.costs end
  if type(v) == "table" then return v end
  if not ffi.istype("fh_costs", v) then return nil end
  local list = {}
  for _, name in ipairs(M.names) do
    list[name] = {}
    for _, field in ipairs(FIELDS) do list[name][field] = v[name][field] end
  end
  return list
end

-- A copy that is whole; nil and what was wanted.
local function checked(v)
  local from, copy = table_of(v), {}
  if not from then return nil, WANTED end
  for key in pairs(from) do
    local known = false
    for _, name in ipairs(M.names) do known = known or name == key end
    if not known then return nil, ("%s; %s is none of them"):format(WANTED, args.show(key)) end
  end
  for _, name in ipairs(M.names) do
    local one = from[name]
    if type(one) ~= "table" then return nil, ("%s; %s is %s"):format(WANTED, name, args.show(one)) end
    copy[name] = {}
    for _, field in ipairs(FIELDS) do
      local us = one[field]
      if type(us) ~= "number" or us ~= us or us < 0 or us == math.huge then
        return nil, ("%s; %s.%s is %s"):format(WANTED, name, field, args.show(us))
      end
      copy[name][field] = us
    end
  end
  return copy
end

-- The kind of an option that takes costs.
option.kinds.COSTS = { check = checked }

--- A copy of costs as a plain table. v: such a table, fh_costs, or a cost model of fh.cost. Raises where a number is missing,
-- negative or not finite; level as in error(), 1 = the caller of this.
function M.check(what, v, level)
  local good, wanted = checked(v)
  if not good then error(("%s: got %s, wanted %s"):format(what, args.show(v), wanted), (level or 1) + 1) end
  return good
end

--- The same as fh_costs, for a call's `costs`.
function M.struct(what, v, level)
  local good = M.check(what, v, (level or 1) + 1)
  local costs = ffi.new("fh_costs", { struct_size = ffi.sizeof("fh_costs") })
  for _, name in ipairs(M.names) do
    for _, field in ipairs(FIELDS) do costs[name][field] = good[name][field] end
  end
  return costs
end

--- The device's built-in costs as a table (fh_costs_default); nil, err.
function M.default(dev)
  require("fewhead.device.device").check("costs.default: device", dev)
  local costs = ffi.new("fh_costs", { struct_size = ffi.sizeof("fh_costs") })
  local ok, err = F.check(C.fh_costs_default(dev.handle, costs))
  if not ok then return nil, err end
  return table_of(costs)
end

return M
