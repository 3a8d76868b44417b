--- A machine: what calls cost on it, learned from its evidence, so that one can ask about a GPU on a laptop.
--
--     local machine = require "fewhead.decide.machine"
--     local h200 = assert(machine.open("nvidia-h200"))      -- results/nvidia-h200/packed.jsonl
--     local path, us = h200:predict({ rows = 8192, keys = 5e6, group = 8, groups = 1024, entries = 1.1e6 }, 8)
--     print(path, us.padded, us.packed, us.plan)
--
-- For every head count in the evidence and every path, microseconds = call_us + unit_us * units + gflop_us * GFLOP (fh_path_cost)
-- are fitted to the measured medians, and to the times of plans. A device of this machine has its built-in costs instead.
local args = require "fewhead.base.arguments"
local checkout = require "fewhead.base.checkout"
local cost = require "fewhead.decide.cost"
local device = require "fewhead.device.device"
local paths = require "fewhead.device.path"
local records = require "fewhead.record.record"
local F = require "fewhead.base.ffi"

local ffi, C = F.ffi, F.C

local M = {}

local Machine = { __name = "machine" }
Machine.__index = Machine

local PATHS = paths.costed()
-- Kernels multiply whole tiles: fewer heads than these cost gather what these do.
local GATHER_HEADS = 8
-- Heads that fh_costs_default's costs are for.
local DEFAULT_HEADS = 8
local D_V = 512

-- ---- Work -------------------------------------------------------------------------------------------------------------------

-- fh_work of { rows, keys, group, groups, entries } at so many heads.
local function work_of(w, h_q, d_qk)
  local work = ffi.new("fh_work", { struct_size = ffi.sizeof("fh_work") })
  work.rows, work.keys, work.groups, work.entries, work.group = w.rows, w.keys, w.groups, w.entries, w.group
  work.h_q, work.h_pad, work.d_qk, work.d_v = h_q, C.fh_padded_heads(h_q), d_qk, D_V
  return work
end

local function gflop(work, path) return C.fh_work_gflop(work, F.paths[path]) end

-- What building a plan reads and compares goes with the keys of all rows, which is what gather multiplies.
local function plan_gflop(work) return C.fh_work_gflop(work, F.paths.gather) end

-- ---- Evidence ---------------------------------------------------------------------------------------------------------------

-- Points of a record for cost.line, by path.
local function add(points, record)
  local time, shared, case = record.time, record.plan, record.case
  if not time or not shared or record.parity.status ~= "pass" or case.s_q < 1 then return end
  points.least = math.min(points.least or math.huge, case.s_q)
  local work = work_of({
    rows = case.s_q, keys = shared.keys, group = shared.group, groups = shared.groups, entries = shared.entries,
  }, case.h_q, case.d_qk)
  for _, path in ipairs(PATHS) do
    if record.path == path then
      local units = paths.get(path).wants_plan and shared.groups or case.s_q
      table.insert(points.by_name[path], { us = time.median_us, units = units, gflop = gflop(work, path) })
    end
  end
  if time.plan_us then
    table.insert(points.by_name.plan, { us = time.plan_us, units = shared.groups, gflop = plan_gflop(work) })
  end
end

-- Costs of all paths and of plans from their points; nil where one of them was not measured.
local function fit(points)
  local found = { least = points.least }
  for name, list in pairs(points.by_name) do
    if #list == 0 then return nil end
    found[name] = cost.line(list)
  end
  return found
end

--- A machine from a list of records that have plans (fewhead.cli.bench); source: where they are from, in words. Raises text where
-- none of them is of the library's own paths.
function M.from(list, source)
  local fits, run, count = {}, nil, 0
  for _, record in ipairs(list) do
    if records.is_own(record) then
      local d, h = record.case.d_qk, record.case.h_q
      fits[d] = fits[d] or {}
      if not fits[d][h] then
        fits[d][h] = { by_name = { plan = {} } }
        for _, name in ipairs(PATHS) do fits[d][h].by_name[name] = {} end
      end
      add(fits[d][h], record)
      run, count = record.run, count + 1
    end
  end
  if count == 0 then error(source .. ": no record in it", 0) end
  for _, by_heads in pairs(fits) do
    for h, points in pairs(by_heads) do by_heads[h] = fit(points) end
  end
  run = run or {}
  return setmetatable({ fits = fits, name = run.device or "an unknown device", source = source, commit = run.commit }, Machine)
end

-- The costs that the library has for a device that is here.
local function of_device(dev)
  local costs = ffi.new("fh_costs", { struct_size = ffi.sizeof("fh_costs") })
  local ok, err = F.check(C.fh_costs_default(dev.handle, costs))
  if not ok then return nil, err end
  return setmetatable({
    built_in = costs, kind = dev.kind, name = dev:info().name,
    source = "the library's built-in costs (good for choosing, not for predicting)",
  }, Machine)
end

--- Open a machine by name: a folder of results/ that holds a packed.jsonl ("nvidia-h200"), such a file itself, or a device of
-- this machine ("cpu", "cuda:0"). Returns the machine; or nil and one line.
function M.open(name)
  args.string("machine.open: name", name)
  if name == "cpu" or name:find("^cuda") then
    local dev, err = device.open(name)
    if not dev then return nil, err end
    local machine
    machine, err = of_device(dev)
    dev:close()
    return machine, err
  end
  local path = name
  if not name:find("%.jsonl$") then path = ("results/%s/packed.jsonl"):format(name) end
  local file = io.open(path)
  if not file and path ~= name and checkout.shipped() then
    path = ("%s/%s"):format(checkout.shipped(), path)
    file = io.open(path)
  end
  if not file then
    return nil, ("machine: got %s, wanted cpu, cuda:N, a FILE.jsonl, or a folder of results/ with packed.jsonl in it, such as "
      .. "nvidia-h200"):format(args.show(name))
  end
  file:close()
  local list, err = records.read(path)
  if not list then return nil, err end
  local ok, made = pcall(M.from, list, path)
  if not ok then return nil, made end
  return made
end

-- ---- Prediction -------------------------------------------------------------------------------------------------------------

local function path_cost(x, factor) return ffi.new("fh_path_cost", x.call_us, x.unit_us, x.gflop_us * (factor or 1)) end

-- The fewest heads from h_q up that were measured with so few rows. What a call takes however small it is cannot be learned from
-- large ones; what more rows add can.
local function nearest(by_heads, h_q, rows)
  local best
  for heads, found in pairs(by_heads or {}) do
    if heads >= h_q and found.least <= rows and (not best or heads < best) then best = heads end
  end
  return best
end

--- The costs at a head count, of chunks with `rows` rows or more: fh_costs cdata; nil and the reason where nothing says. Of
-- heads that were not measured those of the next more are taken: tiles are multiplied whole.
function Machine:costs(h_q, d_qk, rows)
  local costs = ffi.new("fh_costs", { struct_size = ffi.sizeof("fh_costs") })
  if self.built_in then
    if self.kind == "cuda" and h_q > DEFAULT_HEADS then
      return nil, ("the built-in costs are those of %d heads"):format(DEFAULT_HEADS)
    end
    ffi.copy(costs, self.built_in, ffi.sizeof("fh_costs"))
    if self.kind == "cuda" then costs.gather.gflop_us = costs.gather.gflop_us * GATHER_HEADS / h_q end
    return costs
  end
  local by_heads = self.fits[d_qk]
  local heads = nearest(by_heads, h_q, rows)
  if not heads then
    return nil, ("nothing measured with %d heads or more and %d rows or fewer, d %d"):format(h_q, rows, d_qk)
  end
  local found = by_heads[heads]
  for _, path in ipairs(PATHS) do costs[path] = path_cost(found[path]) end
  costs.gather = path_cost(found.gather, heads / h_q)
  costs.plan = path_cost(found.plan, heads / h_q)
  return costs
end

--- What a chunk is expected to cost at h_q heads and d_qk (512): work = { rows =, keys = valid keys of all rows, group =,
-- groups =, entries = union entries of all groups }; shared = layers that use one plan (1). Returns the path that is expected to
-- cost least, its share of the plan paid, and { padded =, gather =, packed = without its plan, plan = of one build } in us; nil
-- and the reason where nothing says.
function Machine:predict(work, h_q, d_qk, shared)
  d_qk, shared = d_qk or 512, shared or 1
  local costs, reason = self:costs(h_q, d_qk, work.rows)
  if not costs then return nil, reason end
  local given, us, choice = work_of(work, h_q, d_qk), ffi.new("double[?]", C.FH_PATHS), ffi.new("int32_t[1]")
  assert(F.check(C.fh_costs_choose(costs, given, 0, choice, us, C.FH_PATHS)))
  local plan = costs.plan
  local found = { plan = plan.call_us + plan.unit_us * work.groups + plan.gflop_us * plan_gflop(given) }
  local best, least
  for _, path in ipairs(PATHS) do
    found[path] = us[F.paths[path]]
    local whole = found[path] + (paths.get(path).wants_plan and found.plan / shared or 0)
    if not best or whole < least then best, least = path, whole end
  end
  return best, found
end

--- The largest root mean square of the relative error of the fits behind a prediction; nil for built-in costs.
function Machine:error(h_q, d_qk, rows)
  local heads = self.fits and nearest(self.fits[d_qk], h_q, rows)
  if not heads then return nil end
  local found = self.fits[d_qk][heads]
  local worst = found.plan.error
  for _, path in ipairs(PATHS) do worst = math.max(worst, found[path].error) end
  return worst
end

function Machine:__tostring()
  if not self.commit then return ("%s, %s"):format(self.name, self.source) end
  return ("%s, costs fitted to %s of commit %s"):format(self.name, self.source, self.commit:sub(1, 12))
end

return M
