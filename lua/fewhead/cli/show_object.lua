--- How the prompt prints objects that say more in a table than in a line: gates, plans, modules, functions, records.
--
--     local text = show_object.text(value)      -- nil for a value that is none of these
local axes = require "fewhead.record.axes"
local checkout = require "fewhead.base.checkout"
local help = require "fewhead.cli.help"
local tables = require "fewhead.base.table"

local M = {}

-- ---- Gates -------------------------------------------------------------------------------------------------------------------

local function threshold_text(curve)
  local c = curve.crossover
  return type(c) == "table" and ("%.0f"):format(c.at) or c == "undecided" and "not decided" or c
end

local function interval_text(curve)
  local c = curve.crossover
  if type(c) ~= "table" then return nil end
  return ("%s%.0f to %s%.0f"):format(c.lo_open and "below " or "", c.lo, c.hi_open and "beyond " or "", c.hi)
end

-- What follows from s_q differs between curves too, and says nothing.
local FOLLOWS = { s_q = true, s_kv = true, prior = true, pattern = true, layout = true }

-- One row a curve: pattern, layout, every other field in which curves differ, what was measured, and the answer.
local function curve_table(gate)
  local first = {}
  for i, curve in ipairs(gate.curves) do first[i] = curve.records[1] end
  local found, rows = axes.of(first), {}
  local columns = { { key = "pattern", align = "left" }, { key = "layout", align = "left" } }
  for _, name in ipairs(found.varying) do
    if not FOLLOWS[name] then columns[#columns + 1] = { key = name } end
  end
  for i, curve in ipairs(gate.curves) do
    local row = { pattern = curve.pattern, layout = curve.layout, mark = curve == gate.decides and "decides" or "",
      measured = ("%d to %d"):format(curve.lowest, curve.highest), points = #curve.points, at = threshold_text(curve),
      interval = interval_text(curve) }
    for _, name in ipairs(found.varying) do row[name] = row[name] or found.flats[i][name] end
    rows[i] = row
  end
  for _, column in ipairs {
    { key = "measured", title = "s_q" }, { key = "points" }, { key = "at", title = "native from" }, { key = "interval" },
    { key = "mark", title = "", align = "left" },
  } do columns[#columns + 1] = column end
  return tables.text(rows, columns)
end

-- A fitted gate: a table of its curves, then what its own text says below them.
local function gate_text(gate)
  if not gate.curves then return tostring(gate) end
  local lines, at = { curve_table(gate) }, 0
  for line in (tostring(gate) .. "\n"):gmatch("([^\n]*)\n") do
    at = at + 1
    if at > #gate.curves then lines[#lines + 1] = line end
  end
  return table.concat(lines, "\n")
end

-- ---- Plans -------------------------------------------------------------------------------------------------------------------

local function plan_text(plan)
  if plan.freed then return tostring(plan) end
  local stats, entries = plan:stats(), plan:entries()
  table.sort(entries)
  local row = { rows = plan.s_q, groups = stats.groups, group = plan.group, keys = stats.keys, entries = stats.entries,
    a_row = stats.union_per_row, dedup = stats.dedup, unpacked = stats.unpacked, path = plan.path, least = entries[1],
    median = entries[math.ceil(#entries / 2)], most = entries[#entries] }
  return ("plan for path %s on %s\n%s"):format(plan.path, plan.problem and plan.problem.device.name or plan.memory.device.name,
    tables.text({ row }, {
      { key = "rows" }, { key = "groups" }, { key = "group", title = "rows a group" }, { key = "keys" },
      { key = "entries", title = "fetched rows" }, { key = "a_row", title = "a row", format = "%.1f" },
      { key = "dedup", title = "keys a fetch", format = "%.2f" }, { key = "least", title = "a group: least" },
      { key = "median" }, { key = "most" }, { key = "unpacked", title = "row by row" },
    }))
end

-- ---- Records -----------------------------------------------------------------------------------------------------------------

local function is_record(value)
  return type(value) == "table" and type(value.case) == "table" and type(value.parity) == "table"
end

local MOST_ROWS = 40

-- A list of records: one row each, with every field that varies.
local function records_text(list)
  local found, rows = axes.of(list), {}
  local columns = {}
  for i, name in ipairs(found.varying) do
    local left
    for _, flat in ipairs(found.flats) do left = left or type(flat[name]) == "string" and "left" end
    columns[i] = { key = name, align = left }
  end
  columns[#columns + 1] = { key = "path_", title = "path", align = "left" }
  columns[#columns + 1] = { key = "median", format = tables.time }
  columns[#columns + 1] = { key = "status", title = "parity", align = "left" }
  for i = 1, math.min(#list, MOST_ROWS) do
    local record, row = list[i], {}
    for name, value in pairs(found.flats[i]) do row[name] = value end
    row.path_, row.median, row.status = record.path, record.time and record.time.median_us, record.parity.status
    rows[i] = row
  end
  local text = ("%d records: %s\n%s"):format(#list, found:constant_text(), tables.text(rows, columns))
  return #list > MOST_ROWS and ("%s\n.. %d more"):format(text, #list - MOST_ROWS) or text
end

-- ---- Modules and functions ---------------------------------------------------------------------------------------------------

local function module_text(value, name)
  local names = {}
  for key, field in pairs(value) do
    if type(key) == "string" and not key:find("^_") and type(field) == "function" then names[#names + 1] = key end
  end
  table.sort(names)
  local short = "fh." .. name:match("[^.]*$")
  local about = (help.of_module(name) or ""):match("^[^\n]*"):gsub("^[%w_ ]+: ", "")
  return ("module %s: %s\nfunctions: %s\n%s? says more"):format(short, about, table.concat(names, ", "), short)
end

local function facade_text(fh)
  return ("fewhead %s\nmodules: %s\n:doc says what each is for"):format(fh.VERSION, table.concat(fh._names, ", "))
end

local function function_text(f)
  local path, line = checkout.place(f)
  if not path then return tostring(f) end
  local _, signature = help.of_function(f)
  signature = (signature or ""):gsub("^M([.:])", path:match("([%w_]+)%.lua$") .. "%1")
  local root = checkout.root or ""
  if path:sub(1, #root) == root then path = path:sub(#root + 1) end
  return ("function %s, %s:%d"):format(signature, path, line)
end

-- ---- All of them -------------------------------------------------------------------------------------------------------------

local BY_NAME = { gate = gate_text, plan = plan_text }

--- A value's text; nil for a value that is none of these.
function M.text(value)
  if type(value) == "function" then return function_text(value) end
  if type(value) ~= "table" then return nil end
  local meta = getmetatable(value)
  local name = type(meta) == "table" and rawget(meta, "__name")
  if name == "fewhead library" then return facade_text(value) end
  if BY_NAME[name] then return BY_NAME[name](value) end
  local module = help.module_name(value)
  if module then return module_text(value, module) end
  if meta == nil and is_record(value[1]) and is_record(value[#value]) then return records_text(value) end
end

return M
