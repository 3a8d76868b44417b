--- The paths of the library, read from its table (fh_path_info): the one place where Lua learns what a path is.
--
--     local path = require "fewhead.device.path"
--     print(table.concat(path.names(), " "))               --> auto reference padded gather packed
--     print(path.get("packed").wants_plan)                 --> true
--     path.check("bench: path", "gathr")                   --> bench: path: got "gathr", wanted one of auto, .. mean "gather"?
local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"

local bit, ffi, C = require "bit", F.ffi, F.C

local M = {}

local rows, names = {}, {}

for number = 0, C.FH_PATHS - 1 do
  local info = ffi.new("fh_path_info", { struct_size = ffi.sizeof("fh_path_info") })
  assert(F.check(C.fh_path_get_info(number, info)))
  local devices = {}
  for kind, name in pairs(F.device_kind_names) do devices[name] = bit.band(info.devices, bit.lshift(1, kind)) ~= 0 end
  local name = ffi.string(info.name)
  names[#names + 1] = name
  rows[name] = {
    name = name, number = number, candidate = info.candidate == 1, native = info.native == 1, wants_plan = info.wants_plan == 1,
    shares_tile = info.shares_tile == 1, writes_f32 = info.writes_f32 == 1, max_heads = info.max_heads, devices = devices,
  }
end

local function select(wanted)
  local list = {}
  for _, name in ipairs(names) do
    if wanted(rows[name]) then list[#list + 1] = name end
  end
  return list
end

--- The names of all paths in the order of fh_path: { "auto", "reference", "padded", "gather", "packed" }. A new list each time.
function M.names()
  return select(function() return true end)
end

--- The names of the paths that "auto" chooses among: { "padded", "gather", "packed" }.
function M.candidates()
  return select(function(row) return row.candidate end)
end

--- The names of those candidates that the cost model has costs of, a field of fh_costs: { "padded", "gather", "packed" }. A
-- candidate without is measured, and "auto" never takes it.
function M.costed()
  return select(function(row) return row.candidate and ffi.offsetof("fh_costs", row.name) ~= nil end)
end

--- The names of the paths that stand on their own, chosen by "auto" or not: all but "auto" and the oracle, "reference".
function M.computing()
  return select(function(row) return row.name ~= "auto" and row.name ~= "reference" end)
end

--- The names of those that "auto" chooses among and that compute native heads: { "gather", "packed" }.
function M.native()
  return select(function(row) return row.candidate and row.native end)
end

--- The names of those that "auto" chooses among and that work on a plan: { "packed" }.
function M.planned()
  return select(function(row) return row.candidate and row.wants_plan end)
end

--- `name`, when it is a path's name. Else blames a caller, with the names of the table; level as in fh.arguments.
function M.check(what, name, level)
  return (args.enum(what, name, names, (level or 2) + 1))
end

--- What a path is: a new table { name, number (fh_path), candidate (one of those "auto" chooses among), native (computes
-- h_q heads a row, not padded ones), wants_plan, shares_tile (rows of neighbours share a tile), writes_f32, max_heads (the
-- largest h_q on any device), devices = { cpu = true, cuda = true }: kinds for which this library has kernels of the path }.
-- Booleans but for name, number and max_heads. Refuses an unknown name.
function M.get(name)
  local copy = {}
  for k, v in pairs(rows[M.check("path.get: name", name)]) do copy[k] = v end
  copy.devices = {}
  for kind, has in pairs(rows[name].devices) do copy.devices[kind] = has end
  return copy
end

return M
