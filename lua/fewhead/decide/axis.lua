--- Axis: the values that an option of a case takes in a sweep, and how several axes make cells.
--
--   local axis = require "fewhead.decide.axis"
--   axis.values("s_q", "s_q", "64:512:*2,1000")     --> { 64, 128, 256, 512, 1000 }
--   axis.grid { heads = "8,16" }:zip { ratio = { 1, 2 }, topk = { 640, 384 } }
--     :derive("prior", function(cell) return 8192 - cell.s_q end)
--     :where(function(cell) return cell.heads * cell.topk <= 8192 end)
--
-- Grammar of numbers: a number, a list of numbers and texts, or a text of parts joined by commas, each part a number or a range
-- "first:last:step" (plus step; "+step" is the same) or "first:last:*k" (times k). A range keeps `last` when it meets it. Names
-- are joined by commas or stand in a list. A function(cell) returns a value or a list of values; it sees the axes before its
-- own. A pattern that is a function stands in a list, pattern = { f }, to tell it from a function of the cell.

local args = require "fewhead.base.arguments"
local case = require "fewhead.case.case"
local option = require "fewhead.base.option"

local M = {}

-- A sweep of more values than this on one axis is a slip of the keyboard ("1:1e9:1"), not a plan.
M.most_values = 4096

local DECIMAL = "%-?%d*%.?%d*[eE]?[+-]?%d*"
local NUMBER = "^%s*(" .. DECIMAL .. ")%s*$"
local RANGE = "^%s*(" .. DECIMAL .. ")%s*:%s*(" .. DECIMAL .. ")%s*:%s*([%*%+]?)(" .. DECIMAL .. ")%s*$"

local NUMBERS = 'numbers, "a,b,c" or a range "first:last:step" or "first:last:*k"'
local NAMES = 'names: "a,b" or { "a", "b" }'
local SLACK = 1e-9 -- of a step: 0.1 + 0.2 is meant to meet 0.3

-- The parts of a text between commas.
local function parts(text) return (text .. ","):gmatch("([^,]*),") end

-- A number in decimal notation, no hex, nan or inf; nil for another text.
local function decimal(text)
  local digits = text and text:match(NUMBER)
  return digits and digits:find("%d") and tonumber(digits) or nil
end

-- Appends the numbers of a range to list. Returns nothing; or what was given, what was wanted.
local function expand_range(part, first, last, op, step, list)
  if last < first then return part, "a range that rises: first <= last" end
  if op == "*" and (step <= 1 or first <= 0) then return part, 'first > 0 and a factor above 1 in "first:last:*k"' end
  if op ~= "*" and step <= 0 then return part, 'a step above 0 in "first:last:step"' end
  local value, i = first, 0
  while value <= last + (op == "*" and 0 or step * SLACK) do
    list[#list + 1] = value
    if #list > M.most_values then return part, ("at most %d values"):format(M.most_values) end
    i = i + 1
    value = op == "*" and value * step or first + i * step
  end
end

-- Appends the numbers of a text to list. Returns nothing; or what was given, what was wanted.
local function expand(text, list)
  for part in parts(text) do
    local one = decimal(part)
    local first, last, op, step = part:match(RANGE)
    first, last, step = decimal(first), decimal(last), decimal(step)
    if one then
      list[#list + 1] = one
    elseif first and last and step then
      local given, wanted = expand_range(part, first, last, op, step, list)
      if wanted then return given, wanted end
    else
      return text, NUMBERS
    end
  end
end

local function each_once(list)
  local once, seen = {}, {}
  for _, value in ipairs(list) do
    if not seen[value] then
      seen[value] = true
      once[#once + 1] = value
    end
  end
  return once
end

-- The numbers of a spec; nil, what was given, what was wanted. A table in a list is a value of its own: one number a request.
local function numbers(spec)
  local list, given, wanted = {}, nil, nil
  if type(spec) == "string" then
    given, wanted = expand(spec, list)
  elseif type(spec) == "table" and #spec > 0 then
    for _, item in ipairs(spec) do
      if type(item) == "string" then given, wanted = expand(item, list) else list[#list + 1] = item end
      if wanted then break end
    end
  elseif type(spec) == "number" then
    list[1] = spec
  else
    given, wanted = spec, NUMBERS
  end
  if wanted then return nil, given, wanted end
  return list
end

--- The whole numbers of an axis, each within lo .. hi, each once. Raises on anything else; level as in error(), 1 = the caller of
-- this.
function M.integers(what, spec, lo, hi, level)
  level = level or 1
  local list, given, wanted = numbers(spec)
  if not list then error(("%s: got %s, wanted %s"):format(what, args.show(given), wanted), level + 1) end
  for _, value in ipairs(list) do args.integer(what, value, lo, hi, level + 1) end
  return each_once(list)
end

-- The words of a text or list; nil where there are none. is_value: what may stand in a list besides words, or alone.
local function words(spec, is_value)
  if is_value and is_value(spec) then return { spec } end
  local list, good = {}, type(spec) == "string" or (type(spec) == "table" and #spec > 0)
  if type(spec) == "string" then
    for part in parts(spec) do list[#list + 1] = part:match("^%s*(.-)%s*$") end
  elseif good then
    for i, name in ipairs(spec) do list[i] = name end
  end
  for _, name in ipairs(list) do
    good = good and (type(name) == "string" and name ~= "" or is_value ~= nil and is_value(name))
  end
  return good and list or nil
end

--- The names of an axis: "a,b" or { "a", "b" }; every name must be one of `choices` when they are given. Raises as above.
function M.names(what, spec, choices, level)
  level = level or 1
  local list = words(spec)
  if not list then error(("%s: got %s, wanted %s"):format(what, args.show(spec), NAMES), level + 1) end
  for _, name in ipairs(list) do
    if choices then args.enum(what, name, choices, level + 1) end
  end
  return each_once(list)
end

-- ---- The axes ----------------------------------------------------------------------------------------------------------------

--- The axes: the rows of fh.case's options that a sweep takes several values of, the slowest-changing first. What a number may be
-- is for the case to say: a cell that it refuses is a row with its reason.
M.axes = {}

--- The axes by key.
M.by_key = {}

--- The keys in the order of the axes.
M.keys = {}

for _, row in ipairs(case.rows.list) do
  if row.axis then
    M.axes[#M.axes + 1], M.by_key[row.key], M.keys[#M.keys + 1] = row, row, row.key
  end
end

-- The values of an axis of true and false.
local function booleans(what, spec, level)
  local list = type(spec) == "boolean" and { spec } or spec
  if type(spec) == "string" then
    list = {}
    for part in parts(spec) do list[#list + 1] = part:match("^%s*(.-)%s*$") end
  end
  local values, good = {}, type(list) == "table" and #list > 0
  for i, item in ipairs(good and list or {}) do
    local text = tostring(item)
    good = good and (text == "true" or text == "false")
    values[i] = text == "true"
  end
  if not good then error(('%s: got %s, wanted true, false or "true,false"'):format(what, args.show(spec)), level + 1) end
  return values
end

-- Refuse a name that is none of an axis's.
local function check_name(what, name, row, level)
  if row.choices then args.enum(what, name, row.choices, level + 1, row.listed) end
end

-- The values of an axis of names and numbers.
local function mixed(what, spec, row, level)
  local list = {}
  for _, item in ipairs(type(spec) == "table" and spec or { spec }) do
    if type(item) == "string" then
      for part in parts(item) do list[#list + 1] = decimal(part) or part:match("^%s*(.-)%s*$") end
    else list[#list + 1] = item end
  end
  for _, item in ipairs(list) do
    if type(item) == "string" then check_name(what, item, row, level + 1) end
  end
  return list
end

--- The values of the axis `key`, in order, a value given twice twice. what: how an error calls the axis. Raises on what is no
-- axis, and on names that nothing has; level as in error(), 1 = the caller of this.
function M.values(what, key, spec, level)
  level = level or 1
  local row = M.by_key[key]
  local kind = row.kind.axis
  if kind == "boolean" then return booleans(what, spec, level + 1) end
  if kind == "mixed" then return mixed(what, spec, row, level + 1) end
  if kind == "name" then
    local list = words(spec, row.kind.is_value)
    if not list then error(("%s: got %s, wanted %s"):format(what, args.show(spec), NAMES), level + 1) end
    for _, name in ipairs(list) do
      if type(name) == "string" then check_name(what, name, row, level + 1) end
    end
    return list
  end
  local list, given, wanted = numbers(spec)
  if not list then error(("%s: got %s, wanted %s"):format(what, args.show(given), wanted), level + 1) end
  return list
end

-- Several values of an option: a text, a value, a list, or a function. The text of a command line is checked and stays text; its
-- files must be there. In Lua a sweep checks them when it makes its cells, and names the value that is wrong.
local VALUES = { check = function(value) return value end }
option.kinds.VALUES = VALUES
function VALUES.parse(text, row)
  if row.of.kind == option.kinds.FILE then
    for part in parts(text) do
      local good, wanted = row.of.kind.parse(part)
      if not good then return nil, wanted end
    end
  end
  local ok, err = pcall(M.values, row.key, row.of.key, text)
  if ok then return text end
  return nil, tostring(err):match(", wanted (.*)$")
end

-- Whole numbers that are no axis of a case: thresholds, say. The value stays as it is given.
local function check_integers(value, row)
  local ok, err = pcall(M.integers, row.key, value, row.lo, row.hi)
  if ok then return value end
  return nil, tostring(err):match(", wanted (.*)$")
end
option.kinds.AXIS = { check = check_integers, parse = check_integers }

-- What the help calls several values of a kind.
local METAVARS = { number = "AXIS" }

--- Rows for an option list in which every axis takes several values: for the command line and for fh.sweep. changes: by key,
-- fields of rows to change, such as a default; false leaves an axis out.
function M.rows(changes)
  local list = {}
  for _, row in ipairs(M.axes) do
    local change = changes and changes[row.key]
    if change ~= false then
      local fields = { [2] = METAVARS[row.kind.axis] or "LIST", kind = "VALUES", of = row }
      for key, value in pairs(change or {}) do fields[key] = value end
      local one = option.like(row, fields)
      one.default, one.choices = change and change.default, nil -- a default of one value is no axis; the values are the row's
      list[#list + 1] = one
    end
  end
  return list
end

--- What there is to sweep over, as text: presets, patterns, layouts, and the axes with their kinds.
function M.list()
  local lines = {}
  local function add(title, names) lines[#lines + 1] = ("%-9s %s"):format(title, table.concat(names, ", ")) end
  add("presets", require("fewhead.case.preset").names())
  add("patterns", require("fewhead.case.pattern").names)
  add("layouts", require("fewhead.case.layout").names)
  lines[#lines + 1] = "axes"
  for _, row in ipairs(M.axes) do lines[#lines + 1] = ("  %-13s %-8s %s"):format(row.key, row.kind.axis, row.about) end
  return table.concat(lines, "\n")
end

-- ---- Cells -------------------------------------------------------------------------------------------------------------------

local Space = { __name = "space of cells" }
Space.__index = Space

-- A space is a list of steps, each a function(cells) that returns the cells after it.
local function extended(space, step)
  local steps = { unpack(space.steps) }
  steps[#steps + 1] = step
  return setmetatable({ steps = steps }, Space)
end

local function with(cell, key, value)
  local copy = {}
  for k, v in pairs(cell) do copy[k] = v end
  if key then copy[key] = value end
  return copy
end

-- The keys of a table of axes in the order of M.keys. Raises for a key that is no axis.
local function ordered(what, axes, level)
  args.options(what, args.table(what, axes, level + 1), M.keys, level + 1)
  local list = {}
  for _, key in ipairs(M.keys) do
    if axes[key] ~= nil then list[#list + 1] = key end
  end
  if #list == 0 then error(what .. ": got no axis, wanted some, such as s_q = \"64:512:*2\"", level + 1) end
  return list
end

-- The values of an axis in a cell: a function is asked.
local function values_in(what, key, spec, cell, level)
  if type(spec) ~= "function" then return M.values(what, key, spec, level + 1) end
  local given = spec(with(cell))
  if given == nil then error(("%s: the function returned nil, wanted a value or a list"):format(what), level + 1) end
  return M.values(what, key, given, level + 1)
end

--- Every combination of each cell with the values of these axes: space:grid { heads = "8,16", keep = { 0.5, 0.9 } }. Returns a
-- new space, as all of these do.
function Space:grid(axes)
  local keys = ordered("axis.grid", axes, 2)
  local fixed = {}
  for _, key in ipairs(keys) do
    if type(axes[key]) ~= "function" then fixed[key] = M.values("axis.grid: " .. key, key, axes[key], 2) end
  end
  return extended(self, function(cells)
    for _, key in ipairs(keys) do
      local longer = {}
      for _, cell in ipairs(cells) do
        for _, value in ipairs(fixed[key] or values_in("axis.grid: " .. key, key, axes[key], cell, 1)) do
          longer[#longer + 1] = with(cell, key, value)
        end
      end
      cells = longer
    end
    return cells
  end)
end

--- Axes that change together, the first values of each, then the second ones: space:zip { ratio = { 1, 2 }, topk = { 640, 384 }
-- }. All must have as many values.
function Space:zip(axes)
  local keys = ordered("axis.zip", axes, 2)
  local lists, count = {}, nil
  for i, key in ipairs(keys) do
    lists[i] = M.values("axis.zip: " .. key, key, axes[key], 2)
    if count and #lists[i] ~= count then
      error(("axis.zip: %s: got %d values, but %s has %d, wanted as many"):format(key, #lists[i], keys[1], count), 2)
    end
    count = #lists[i]
  end
  return extended(self, function(cells)
    local longer = {}
    for _, cell in ipairs(cells) do
      for n = 1, count do
        local copy = with(cell)
        for i, key in ipairs(keys) do copy[key] = lists[i][n] end
        longer[#longer + 1] = copy
      end
    end
    return longer
  end)
end

local function check_function(what, f, level)
  if type(f) ~= "function" then error(("%s: got %s, wanted a function(cell)"):format(what, args.show(f)), level + 1) end
end

--- An option that follows from the others: space:derive("prior", function(cell) return 8192 - cell.s_q end). The function sees
-- all axes of the sweep, also those that stand beside the space.
function Space:derive(key, f)
  args.enum("axis.derive: key", key, M.keys, 2, "fh.axis.list()")
  check_function("axis.derive: " .. key, f, 2)
  return extended(self, { after = function(cells)
    local list = {}
    for i, cell in ipairs(cells) do list[i] = with(cell, key, f(with(cell))) end
    return list
  end })
end

--- Keep the cells for which f(cell) is true. The function sees all axes of the sweep.
function Space:where(f)
  check_function("axis.where", f, 2)
  return extended(self, { after = function(cells)
    local list = {}
    for _, cell in ipairs(cells) do
      if f(with(cell)) then list[#list + 1] = cell end
    end
    return list
  end })
end

--- The cells, tables of options of fh.case, in the order in which a sweep runs them. first: cells to begin with (one without
-- options), middle: a function(cells) that adds axes before derive and where look at the cells.
function Space:cells(first, middle)
  local cells = first or { {} }
  for _, step in ipairs(self.steps) do
    if type(step) == "function" then cells = step(cells) end
  end
  if middle then cells = middle(cells) end
  for _, step in ipairs(self.steps) do
    if type(step) == "table" then cells = step.after(cells) end
  end
  return cells
end

--- Whether v is a space of cells.
function M.is_space(v) return getmetatable(v) == Space end

local empty = setmetatable({ steps = {} }, Space)

-- A space that begins with a grid, a zip, a derive or a where, as the methods above make them.
for _, name in ipairs { "grid", "zip", "derive", "where" } do
  M[name] = function(...) return empty[name](empty, ...) end
end

return M
