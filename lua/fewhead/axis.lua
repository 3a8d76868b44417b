-- axis: the values one parameter of a sweep takes, from a short text.
--
--   local axis = require "fewhead.axis"
--   axis.integers("s_q", "64:512:*2,1000")   --> { 64, 128, 256, 512, 1000 }
--   axis.names("layout", "vllm,packed")      --> { "vllm", "packed" }
--
-- Grammar of numbers: a number, a list of numbers and texts, or a text of parts joined by commas, each part a number or a range
-- "first:last:*k" (times k each step) or "first:last:+k" (plus k). A range keeps `last` when it meets it. A value given twice counts
-- once. Order is kept.

local args = require "fewhead.args"

local M = {}

-- A sweep of more values than this on one axis is a slip of the keyboard ("1:1e9:+1"), not a plan.
M.most_values = 4096

local NUMBER = "^%s*(%-?%d+)%s*$"
local RANGE = "^%s*(%-?%d+)%s*:%s*(%-?%d+)%s*:%s*([%*%+])%s*(%d+)%s*$"

local function refuse(what, given, wanted, level)
  error(("%s: got %s, wanted %s"):format(what, args.show(given), wanted), level + 1)
end

local WANTED = 'numbers, "a,b,c" or a range "first:last:*k" or "first:last:+k"'

local function each_number(what, text, level, add)
  for part in (text .. ","):gmatch("([^,]*),") do
    local one = part:match(NUMBER)
    local first, last, op, step = part:match(RANGE)
    if one then
      add(tonumber(one), level + 1)
    elseif first then
      first, last, step = tonumber(first), tonumber(last), tonumber(step)
      if last < first then refuse(what, part, "a range that rises: first <= last", level + 1) end
      if op == "*" and (step < 2 or first < 1) then refuse(what, part, 'a factor of at least 2 and first >= 1 in "first:last:*k"', level + 1) end
      if op == "+" and step < 1 then refuse(what, part, 'a step of at least 1 in "first:last:+k"', level + 1) end
      local v = first
      while v <= last do
        add(v, level + 1)
        v = op == "*" and v * step or v + step
      end
    else
      refuse(what, text, WANTED, level + 1)
    end
  end
end

--- The whole numbers of an axis, each within lo .. hi. Raises on anything else, blaming the caller (level as in error()).
function M.integers(what, spec, lo, hi, level)
  level = (level or 1) + 1
  local list, seen = {}, {}
  local function add(v, at)
    args.integer(what, v, lo, hi, at + 1)
    if seen[v] then return end
    seen[v] = true
    list[#list + 1] = v
    if #list > M.most_values then refuse(what, spec, ("at most %d values"):format(M.most_values), at) end
  end
  if type(spec) == "number" then
    add(spec, level)
  elseif type(spec) == "string" then
    each_number(what, spec, level, add)
  elseif type(spec) == "table" and #spec > 0 then
    for _, v in ipairs(spec) do
      if type(v) == "string" then each_number(what, v, level, add) else add(v, level) end
    end
  else
    refuse(what, spec, WANTED, level)
  end
  return list
end

--- The names of an axis: "a,b" or { "a", "b" }; every name must be one of `choices` when they are given.
function M.names(what, spec, choices, level)
  level = (level or 1) + 1
  local list, seen = {}, {}
  local function add(name)
    if type(name) ~= "string" or not name:find("%S") then refuse(what, spec, 'names: "a,b" or { "a", "b" }', level + 1) end
    name = name:match("^%s*(.-)%s*$")
    if choices then args.enum(what, name, choices, level + 2) end
    if not seen[name] then
      seen[name] = true
      list[#list + 1] = name
    end
  end
  if type(spec) == "string" then
    for part in (spec .. ","):gmatch("([^,]*),") do add(part) end
  elseif type(spec) == "table" and #spec > 0 then
    for _, name in ipairs(spec) do add(name) end
  else
    refuse(what, spec, 'names: "a,b" or { "a", "b" }', level)
  end
  return list
end

return M
