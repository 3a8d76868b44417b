--- Argument checks: what a caller passes is refused here, in the caller's words and on the caller's line, before C sees it.
--
--     local args = require "fewhead.base.arguments"
--     function M.rows(n) n = args.integer("rows: n", n, 0, 2^31 - 1) ... end
--     M.rows(1.5)      --> user.lua:7: rows: n: got 1.5, wanted a whole number in 0 .. 2147483647
--
-- `level` counts as error()'s does, from the function that calls the check: 1 blames that function, 2 (the default) its caller, 3
-- the caller of that one. A check in tail position, `return args.integer(...)`, drops a frame and with it one level: write
-- `return (args.integer(...))`.
local ffi = require "ffi"

local M = {}

-- Whole numbers past this are not told apart by a double.
local EXACT = 2^53 - 1

-- How much of a value a message shows.
local SHOWN_TEXT, SHOWN_ITEMS = 60, 8

local function show_number(v)
  if v ~= v then return "NaN" end
  if v == math.huge then return "inf" end
  if v == -math.huge then return "-inf" end
  if v == math.floor(v) and math.abs(v) <= EXACT then return ("%.0f"):format(v) end
  local short = ("%.14g"):format(v)
  return tonumber(short) == v and short or ("%.17g"):format(v)
end

--- A short printable form of any value: numbers so that they read back, strings quoted and cut, cdata by its type, short lists of
-- plain values in full, objects by the __name of their metatable, and JSON's null, which is a table, by its __shown.
function M.show(v)
  local kind = type(v)
  if kind == "number" then return show_number(v) end
  if kind == "string" then
    local text = #v > SHOWN_TEXT and v:sub(1, SHOWN_TEXT) .. ".." or v
    text = text:gsub('[%c"\\]', function(c)
      return c == "\n" and "\\n" or c == "\t" and "\\t" or c:match('["\\]') and "\\" .. c or ("\\%03d"):format(c:byte())
    end)
    return '"' .. text .. '"'
  end
  if kind == "cdata" then return "cdata" .. tostring(ffi.typeof(v)):match("^ctype(.*)$") end
  if kind == "nil" or kind == "boolean" then return tostring(v) end
  if kind ~= "table" then return "a " .. kind end
  local meta = getmetatable(v)
  if type(meta) == "table" and type(meta.__shown) == "string" then return meta.__shown end
  if type(meta) == "table" and type(meta.__name) == "string" then return "a " .. meta.__name end
  local shown = {}
  for i = 1, math.min(#v, SHOWN_ITEMS) do
    if type(v[i]) == "table" then return "a table" end
    shown[i] = M.show(v[i])
  end
  if #v > SHOWN_ITEMS then shown[#shown + 1] = ".." end
  if #v == 0 and next(v) ~= nil then return "a table" end
  return "{" .. table.concat(shown, ", ") .. "}"
end

-- Letters to insert or delete to get from a to b, and to b's nearest beginning: a missing letter costs 1, a wrong one 2.
local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local above = row[j]
      row[j] = a:byte(i) == b:byte(j) and diagonal or math.min(above, row[j - 1]) + 1
      diagonal = above
    end
  end
  local beginning = row[0]
  for j = 1, #b do beginning = math.min(beginning, row[j]) end
  return row[#b], beginning
end

-- So many letters at least are taken for the beginning of a choice.
local BEGINNING = 3

--- The choice that `name` most likely meant, or nil when none is near: up to one letter in three may be wrong. Else
-- the first choice that begins with the name.
function M.nearest(name, choices)
  if type(name) ~= "string" then return nil end
  local best, best_distance = nil, 2 + math.floor(#name / 3)
  for _, choice in ipairs(choices) do
    local d = distance(name:lower(), tostring(choice):lower())
    if d < best_distance then best, best_distance = choice, d end
  end
  if best or #name < BEGINNING then return best end
  for _, choice in ipairs(choices) do
    if tostring(choice):sub(1, #name):lower() == name:lower() then return choice end
  end
end

-- Called, never tail-called, from a check: two frames stand between error() and the function that made the check.
local function refuse(what, v, wanted, level)
  error(("%s: got %s, wanted %s"):format(what, M.show(v), wanted), (level or 2) + 2)
end

local function within(kind, lo, hi)
  if lo and hi then return ("%s in %s .. %s"):format(kind, show_number(lo), show_number(hi)) end
  if lo then return ("%s >= %s"):format(kind, show_number(lo)) end
  if hi then return ("%s <= %s"):format(kind, show_number(hi)) end
  return kind
end

--- A whole number in lo .. hi (either may be nil) that a double holds exactly. Returns it.
function M.integer(what, v, lo, hi, level)
  if type(v) ~= "number" or v ~= math.floor(v) or math.abs(v) > EXACT or (lo and v < lo) or (hi and v > hi) then
    -- A whole number that is refused only since a double does not hold it exactly: the message names that limit.
    local large = type(v) == "number" and math.abs(v) > EXACT and math.abs(v) < math.huge
    refuse(what, v, within("a whole number", large and (lo or -EXACT) or lo, large and (hi or EXACT) or hi), level)
  end
  return v
end

--- A finite number in lo .. hi (either may be nil). Returns it.
function M.number(what, v, lo, hi, level)
  if type(v) ~= "number" or v ~= v or math.abs(v) == math.huge or (lo and v < lo) or (hi and v > hi) then
    refuse(what, v, within("a finite number", lo, hi), level)
  end
  return v
end

--- true or false. Returns it.
function M.boolean(what, v, level)
  if type(v) ~= "boolean" then refuse(what, v, "true or false", level) end
  return v
end

--- A text. Returns it.
function M.string(what, v, level)
  if type(v) ~= "string" then refuse(what, v, "a string", level) end
  return v
end

--- Any table. Returns it.
function M.table(what, v, level)
  if type(v) ~= "table" then refuse(what, v, "a table", level) end
  return v
end

--- A plain list of lo .. hi values (either may be nil): the keys 1 to its length and no others, no metatable. Returns it.
function M.list(what, v, lo, hi, level)
  local wanted = "a list"
  if lo and hi then
    wanted = ("a list of %s values"):format(lo == hi and show_number(lo) or show_number(lo) .. " .. " .. show_number(hi))
  elseif lo or hi then
    wanted = ("a list of at %s %s values"):format(lo and "least" or "most", show_number(lo or hi))
  end
  if type(v) ~= "table" or getmetatable(v) ~= nil then refuse(what, v, wanted, level) end
  local keys = 0
  for _ in pairs(v) do keys = keys + 1 end
  for i = 1, keys do
    if v[i] == nil then
      error(("%s: got a table with other keys than 1, 2, .., wanted %s"):format(what, wanted), (level or 2) + 1)
    end
  end
  if (lo and keys < lo) or (hi and keys > hi) then refuse(what, v, wanted, level) end
  return v
end

-- The choices whose beginnings are nearest to `name`, at most three, in their order; an empty list when none is near.
local MOST_OFFERED = 3
local function nearest_beginnings(name, choices)
  local near, least = {}, math.ceil(#name / 3)
  for _, choice in ipairs(choices) do
    local _, d = distance(name:lower(), tostring(choice):lower())
    if d < least then near, least = {}, d end
    if d == least and d < #name / 3 and #near < MOST_OFFERED then near[#near + 1] = tostring(choice) end
  end
  return near
end

-- More choices than this are not told one by one: their number, and the nearest few.
local MOST_TOLD = 12

--- What is wanted of a value that is none of the choices, in words; the nearest choice is offered. where: what lists the choices
-- where they are too many to be told, "fh.preset.names()"; then a few that begin alike are offered.
function M.one_of(v, choices, where)
  local near = { M.nearest(v, choices) }
  if #choices > MOST_TOLD and type(v) == "string" and (not near[1] or near[1]:sub(1, #v):lower() == v:lower()) then
    near = nearest_beginnings(v, choices)
  end
  for i, one in ipairs(near) do near[i] = ('"%s"'):format(tostring(one)) end
  local last = table.remove(near)
  near = last and ("; did you mean %s%s?"):format(#near > 0 and table.concat(near, ", ") .. " or " or "", last) or ""
  if #choices > MOST_TOLD then
    return ("one of %d names%s%s"):format(#choices, where and (" (%s lists them)"):format(where) or "", near)
  end
  local shown = {}
  for i, choice in ipairs(choices) do shown[i] = tostring(choice) end
  return (#shown == 1 and "" or "one of ") .. table.concat(shown, ", ") .. near
end

--- One of the listed values. Returns it. where: as M.one_of has it.
function M.enum(what, v, choices, level, where)
  for _, choice in ipairs(choices) do
    if rawequal(choice, v) then return v end
  end
  refuse(what, v, M.one_of(v, choices, where), level)
end

--- v, or default where v is nil. Unlike `v or default` it lets false through, to be refused by the check around it.
function M.given(v, default)
  if v == nil then return default end
  return v
end

--- A table of options with no key but the known ones; nil counts as an empty one. Returns the table.
function M.options(what, t, known, level)
  if t == nil then return {} end
  if type(t) ~= "table" or getmetatable(t) ~= nil then refuse(what, t, "a table of options", level) end
  local is_known = {}
  for _, key in ipairs(known) do is_known[key] = true end
  for key in pairs(t) do
    if not is_known[key] then
      local near = M.nearest(key, known)
      error(("%s: unknown option %s;%s known: %s"):format(what, M.show(key), near and (' did you mean "%s"?'):format(near) or "",
        table.concat(known, ", ")), (level or 2) + 1)
    end
  end
  return t
end

return M
