--- Cost: what a chunk costs on each path, learned from measured cells: interpolated between them, modelled beyond them.
--
--   local cost = gate.fit(sweep).cost
--   print(cost:at("padded", 300), cost:at("native", 300))   -- microseconds
--   print(cost:auto(300))                                   -- what FH_AUTO would do, and its microseconds
--   call.costs = cost.costs                               -- the same costs for FH_AUTO
--
-- Between two measured s_q the median is interpolated linearly. Outside, the nearest median is scaled by the formula of fh_costs,
-- call_us + unit_us * units + gflop_us * GFLOP (fh_path_cost), fitted to all cells.

local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"
local devices = require "fewhead.device.device"
local paths = require "fewhead.device.path"
local records = require "fewhead.record.record"

local ffi, C = F.ffi, F.C

local M = {}

local PATHS = paths.candidates()
local COSTED = paths.costed() -- those in fh_costs

local function with_plan(names)
  local list = { unpack(names) }
  list[#list + 1] = "plan"
  return list
end

-- What works on groups, not on rows: plans and the paths that want one.
local ON_GROUPS = { plan = true }
for _, path in ipairs(paths.planned()) do ON_GROUPS[path] = true end

-- ---- Non-negative least squares --------------------------------------------------------------------------------------------

-- A pivot below this part of the largest is rounding: the columns depend on each other.
local SINGULAR = 1e-12

-- x with sum_j a[i][j] * x[j] = b[i] (n by n), or nil when singular. Gauss with row pivots; a and b are overwritten.
local function solve(a, b)
  local n = #b
  for k = 1, n do
    local pivot = k
    for i = k + 1, n do
      if math.abs(a[i][k]) > math.abs(a[pivot][k]) then pivot = i end
    end
    a[k], a[pivot], b[k], b[pivot] = a[pivot], a[k], b[pivot], b[k]
    local largest = 0
    for j = 1, n do largest = math.max(largest, math.abs(a[k][j])) end
    if math.abs(a[k][k]) <= SINGULAR * largest or largest == 0 then return nil end
    for i = k + 1, n do
      local f = a[i][k] / a[k][k]
      for j = k, n do a[i][j] = a[i][j] - f * a[k][j] end
      b[i] = b[i] - f * b[k]
    end
  end
  local x = {}
  for i = n, 1, -1 do
    local sum = b[i]
    for j = i + 1, n do sum = sum - a[i][j] * x[j] end
    x[i] = sum / a[i][i]
  end
  return x
end

--- x >= 0 that makes sum_i (rows[i] . x - want[i])^2 least, and that sum. Few columns only: every subset of them is tried, which
-- is exact, since the answer is the plain least-squares answer on the columns it uses. Ties go to fewer columns.
function M.nnls(rows, want)
  args.table("cost.nnls: rows", rows, 2)
  args.table("cost.nnls: want", want, 2)
  local columns = #rows[1]
  local scale = {} -- columns brought to one size, so that `solve` sees well-scaled equations
  for j = 1, columns do
    local sum = 0
    for i = 1, #rows do sum = sum + rows[i][j] ^ 2 end
    scale[j] = sum > 0 and math.sqrt(sum) or 1
  end
  local best, best_error = {}, 0
  for j = 1, columns do best[j] = 0 end
  for i = 1, #want do best_error = best_error + want[i] ^ 2 end
  local subsets = {}
  for set = 1, 2 ^ columns - 1 do
    local used = {}
    for j = 1, columns do
      if math.floor(set / 2 ^ (j - 1)) % 2 == 1 then used[#used + 1] = j end
    end
    subsets[set] = used
  end
  table.sort(subsets, function(a, b)
    if #a ~= #b then return #a < #b end
    for k = 1, #a do
      if a[k] ~= b[k] then return a[k] < b[k] end
    end
    return false
  end)
  for _, used in ipairs(subsets) do
    local a, b = {}, {}
    for p, jp in ipairs(used) do
      a[p], b[p] = {}, 0
      for i = 1, #rows do b[p] = b[p] + rows[i][jp] / scale[jp] * want[i] end
      for q, jq in ipairs(used) do
        local sum = 0
        for i = 1, #rows do sum = sum + rows[i][jp] / scale[jp] * rows[i][jq] / scale[jq] end
        a[p][q] = sum
      end
    end
    local x = #used <= #rows and solve(a, b)
    local feasible = x and true or false
    for p = 1, x and #used or 0 do feasible = feasible and x[p] >= 0 end
    if feasible then
      local full, err = {}, 0
      for j = 1, columns do full[j] = 0 end
      for p, j in ipairs(used) do full[j] = x[p] / scale[j] end
      for i = 1, #rows do
        local sum = -want[i]
        for j = 1, columns do sum = sum + rows[i][j] * full[j] end
        err = err + sum ^ 2
      end
      if err < best_error * (1 - 1e-9) then best, best_error = full, err end
    end
  end
  return best, best_error
end

-- ---- The model -------------------------------------------------------------------------------------------------------------

local Cost = {}
Cost.__index = Cost
Cost.__name = "cost model"

-- Queries of a packed group: what group = 0 means in fh_call.
local function group_of(heads) return math.max(1, math.floor(64 / heads)) end

local function units(path, s_q, group)
  return ON_GROUPS[path] and math.ceil(s_q / group) or s_q
end

--- The costs that fit measured points { us =, units =, gflop = } best, each divided by its time, so that small chunks count as
-- much as large ones: { call_us =, unit_us =, gflop_us =, error = root mean square of the relative error }.
function M.line(points)
  local rows, want = {}, {}
  for i, point in ipairs(points) do
    rows[i], want[i] = { 1 / point.us, point.units / point.us, point.gflop / point.us }, 1
  end
  local x, err = M.nnls(rows, want)
  return { call_us = x[1], unit_us = x[2], gflop_us = x[3], error = math.sqrt(err / #rows) }
end

-- The costs of one path in the records, or of the plans that paths ran on; nil where there are none.
local function fit_path(path, list, heads)
  local points = {}
  for _, record in ipairs(list) do
    local case, time, work = record.case, record.time, record.work
    local of = path == "plan" and ON_GROUPS[record.path] or record.path == path
    if of and records.is_own(record) and time and record.parity.status == "pass" and case.h_q == heads and case.s_q > 0 then
      local us, flops = time.median_us, work.executed_flops
      if path == "plan" then us, flops = time.plan_us, work.useful_flops end
      if us and us > 0 and flops then
        points[#points + 1] = { us = us, units = units(path, case.s_q, group_of(heads)), gflop = flops / 1e9 }
      end
    end
  end
  return #points > 0 and M.line(points) or nil
end

--- Learn from a curve of fh.curve: its medians are interpolated, and the costs are fitted to them or, better, to all
-- records of its head count in `list` (default: the curve's own). A record that does not say what was executed teaches nothing.
-- Returns { heads =, fit = { [path or "plan"] = { call_us =, unit_us =, gflop_us =, error = root mean square of the relative
-- error } }, costs = fh_costs cdata, nil when a path of it was not measured; plans that were not timed cost nothing in it }.
function M.fit(curve, list)
  args.table("cost.fit: curve", curve, 2)
  local native = curve.native == "best" and paths.native() or { curve.native }
  local self = setmetatable({ heads = curve.heads, native = native, fit = {}, medians = {} }, Cost)
  for _, path in ipairs(PATHS) do
    local points = {}
    for _, point in ipairs(curve.points) do
      local record = point[path]
      if record and record.work.executed_flops and point.s_q > 0 then
        points[#points + 1] = { s_q = point.s_q, us = record.time.median_us,
          gflop_a_row = record.work.executed_flops / 1e9 / point.s_q, record = record }
      end
    end
    if #points > 0 then
      self.medians[path], self.fit[path] = points, fit_path(path, list or curve.records, curve.heads)
    end
  end
  self.fit.plan = fit_path("plan", list or curve.records, curve.heads)
  local all = true
  for _, path in ipairs(COSTED) do all = all and self.fit[path] ~= nil end
  if all then
    self.costs = ffi.new("fh_costs", { struct_size = ffi.sizeof("fh_costs") })
    for _, name in ipairs(with_plan(COSTED)) do
      local x = self.fit[name]
      if x then self.costs[name] = ffi.new("fh_path_cost", x.call_us, x.unit_us, x.gflop_us) end
    end
  end
  return self
end

--- Lowest and highest s_q at which padded and a native path were measured.
function Cost:range()
  local padded, lowest, highest = self.medians.padded, math.huge, 0
  for _, path in ipairs(self.native) do
    local points = self.medians[path]
    if points then lowest, highest = math.min(lowest, points[1].s_q), math.max(highest, points[#points].s_q) end
  end
  return math.max(lowest, padded[1].s_q), math.min(highest, padded[#padded].s_q)
end

-- Time of s_q rows that are like those of `point`, by the formula of fh_costs.
local function model(self, path, s_q, point)
  local x = self.fit[path]
  return x.call_us + x.unit_us * units(path, s_q, group_of(self.heads)) + x.gflop_us * point.gflop_a_row * s_q
end

local function at(self, path, s_q)
  local points = self.medians[path]
  if not points then return nil end
  local first, last = points[1], points[#points]
  local nearest = s_q < first.s_q and first or s_q > last.s_q and last
  if nearest then
    return nearest.us * model(self, path, s_q, nearest) / model(self, path, nearest.s_q, nearest)
  end
  for i = 1, #points do
    if points[i].s_q == s_q then return points[i].us end
    if points[i].s_q > s_q then
      local a, b = points[i - 1], points[i]
      return a.us + (b.us - a.us) * (s_q - a.s_q) / (b.s_q - a.s_q)
    end
  end
end

-- The cheapest of the paths that count as native.
local function native_at(self, s_q)
  local us = math.huge
  for _, path in ipairs(self.native) do us = math.min(us, at(self, path, s_q) or math.huge) end
  return us
end

--- Expected microseconds of each measured path and of "native", the cheapest of those its curve counts: { padded =, .., native =
-- }.
function Cost:all(s_q)
  args.number("cost:all: s_q", s_q, 1, nil, 2)
  local us = {}
  for _, path in ipairs(PATHS) do us[path] = at(self, path, s_q) end
  us.native = native_at(self, s_q)
  return us
end

-- The point, of those of a path, whose lists stand for s_q rows: the point with the most rows up to s_q, else the first.
local function like_of(points, s_q)
  local like = points[1]
  for _, point in ipairs(points) do
    if point.s_q <= s_q then like = point end
  end
  return like
end

-- fh_work of s_q rows that are like those measured, and the record of those.
local function work_of(self, s_q)
  local gather, packed = like_of(self.medians.gather, s_q), like_of(self.medians.packed, s_q)
  local case, group = gather.record.case, group_of(self.heads)
  local per_key = 2 * (case.d_qk + case.d_v)
  local work = ffi.new("fh_work", { struct_size = ffi.sizeof("fh_work") })
  work.rows, work.h_q, work.h_pad, work.d_qk, work.d_v = s_q, case.h_q, case.h_pad, case.d_qk, case.d_v
  work.keys = gather.record.work.useful_flops / gather.s_q * s_q / (per_key * case.h_q)
  work.groups, work.group = group > 1 and math.ceil(s_q / group) or 0, group
  work.entries = packed.gflop_a_row * 1e9 * s_q / (per_key * case.h_q * group)
  return work, gather.record
end

--- What FH_AUTO does with a chunk of s_q >= 1 rows whose lists are like those measured, by the fitted costs and without a plan
-- at hand: the path that the library takes (fh_costs_packs, fh_costs_choose), the one of most groups where a plan decides, and
-- its expected microseconds, a plan that it builds included; nil without costs.
function Cost:auto(s_q)
  args.number("cost:auto: s_q", s_q, 1, nil, 2)
  if not self.costs then return nil end
  local work, packs, path = work_of(self, s_q), ffi.new("int32_t[1]"), ffi.new("int32_t[1]")
  assert(F.check(C.fh_costs_packs(self.costs, work, 0, 0, packs)))
  assert(F.check(C.fh_costs_choose(self.costs, work, 1 - packs[0], path, nil, 0)))
  local name, plan, x = F.path_names[path[0]], 0, self.costs.plan
  if packs[0] == 1 then
    plan = x.call_us + x.unit_us * tonumber(work.groups) + x.gflop_us * C.fh_work_gflop(work, F.paths.gather)
  end
  return name, at(self, name, s_q) + plan
end

local LINE_BYTES = 2048 -- more than any line of fh_explain
local cpu -- opened; whose costs do not matter

--- What FH_AUTO makes of such a chunk and why, in one line of the library (fh_explain) by the fitted costs; nil without costs.
function Cost:explain(s_q)
  args.integer("cost:explain: s_q", s_q, 1, nil, 2)
  if not self.costs then return nil end
  local work, record = work_of(self, s_q)
  local call, line = ffi.new("fh_call"), ffi.new("char[?]", LINE_BYTES)
  local keys = math.floor(tonumber(work.keys) / s_q + 0.5) -- of a row
  assert(F.check(C.fh_call_init(call, ffi.sizeof(call), s_q, record.case.s_kv, work.h_q, work.d_qk, keys)))
  call.h_pad, call.costs = work.h_pad, self.costs
  cpu = cpu or assert(devices.open("cpu", { threads = 1, isa = "generic" }))
  assert(F.check(C.fh_explain(cpu.handle, call, line, LINE_BYTES)))
  return ffi.string(line)
end

--- Expected microseconds of "padded", "gather", "packed" or "native" for a chunk of s_q >= 1 rows; nil when not measured.
function Cost:at(path, s_q)
  args.enum("cost:at: path", path, { "native", unpack(PATHS) }, 2)
  args.number("cost:at: s_q", s_q, 1, nil, 2)
  if path ~= "native" then return (at(self, path, s_q)) end
  return (native_at(self, s_q))
end

function Cost:__tostring()
  local lines = {}
  for _, path in ipairs(with_plan(PATHS)) do
    local x = self.fit[path]
    if x then
      lines[#lines + 1] = ("%-6s  us = %.4g + %.4g * %s + %.4g * GFLOP   (relative error %.1f %%)"):format(path, x.call_us,
        x.unit_us, ON_GROUPS[path] and "groups" or "rows", x.gflop_us, 100 * x.error)
    end
  end
  return table.concat(lines, "\n")
end

return M
