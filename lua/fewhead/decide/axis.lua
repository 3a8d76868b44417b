-- axis: the values one parameter of a sweep takes, from a short text.
--
--   local axis = require "fewhead.decide.axis"
--   axis.integers("s_q", "64:512:*2,1000")   --> { 64, 128, 256, 512, 1000 }
--   axis.names("layout", "vllm,contiguous")      --> { "vllm", "contiguous" }
--
-- Grammar of numbers: a number, a list of numbers and texts, or a text of parts joined by commas, each part a number or a range
-- "first:last:*k" (times k each step) or "first:last:+k" (plus k). A range keeps `last` when it meets it. A value given twice
-- counts once. Order is kept.

local args = require "fewhead.base.arguments"

local M = {}

-- A sweep of more values than this on one axis is a slip of the keyboard ("1:1e9:+1"), not a plan.
M.most_values = 4096

local NUMBER = "^%s*(%-?%d+)%s*$"
local RANGE = "^%s*(%-?%d+)%s*:%s*(%-?%d+)%s*:%s*([%*%+])%s*(%d+)%s*$"

local NUMBERS = 'numbers, "a,b,c" or a range "first:last:*k" or "first:last:+k"'
local NAMES = 'names: "a,b" or { "a", "b" }'

-- The parts of a text between commas.
local function parts(text) return (text .. ","):gmatch("([^,]*),") end

-- Appends the numbers of a text to list. Returns nothing; or what was given, what was wanted.
local function expand(text, list)
  for part in parts(text) do
    local one = part:match(NUMBER)
    local first, last, op, step = part:match(RANGE)
    if one then
      list[#list + 1] = tonumber(one)
    elseif first then
      first, last, step = tonumber(first), tonumber(last), tonumber(step)
      if last < first then return part, "a range that rises: first <= last" end
      if op == "*" and (step < 2 or first < 1) then return part, 'first >= 1 and a factor of at least 2 in "first:last:*k"' end
      if op == "+" and step < 1 then return part, 'a step of at least 1 in "first:last:+k"' end
      while first <= last do
        list[#list + 1] = first
        if #list > M.most_values then return part, ("at most %d values"):format(M.most_values) end
        first = op == "*" and first * step or first + step
      end
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

--- The whole numbers of an axis, each within lo .. hi. Raises on anything else; level as in error(), 1 = the caller of this.
function M.integers(what, spec, lo, hi, level)
  level = level or 1
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
  if wanted then error(("%s: got %s, wanted %s"):format(what, args.show(given), wanted), level + 1) end
  for _, value in ipairs(list) do args.integer(what, value, lo, hi, level + 1) end
  return each_once(list)
end

--- The names of an axis: "a,b" or { "a", "b" }; every name must be one of `choices` when they are given. Raises as above.
function M.names(what, spec, choices, level)
  level = level or 1
  local list, good = {}, type(spec) == "string" or (type(spec) == "table" and #spec > 0)
  if type(spec) == "string" then
    for part in parts(spec) do list[#list + 1] = part:match("^%s*(.-)%s*$") end
  elseif good then
    for i, name in ipairs(spec) do list[i] = name end
  end
  for _, name in ipairs(list) do good = good and type(name) == "string" and name ~= "" end
  if not good then error(("%s: got %s, wanted %s"):format(what, args.show(spec), NAMES), level + 1) end
  for _, name in ipairs(list) do
    if choices then args.enum(what, name, choices, level + 1) end
  end
  return each_once(list)
end

return M
