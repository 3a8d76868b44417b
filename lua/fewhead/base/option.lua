--- Option: one row describes an option for the command line (--s-q 64) and for Lua tables ({ s_q = 64 }), and is checked alike.
--
--     local rows = option.rows("tool", {
--       { "--rows", "INTEGER", "rows of a chunk", default = 64, lo = 1 },
--       { "--alone", nil, "every request alone" },
--       { "--load", "NUMBER", "share of the engine's speed", default = 0.7, without = { "alone" } },
--       { "on_row", "FUNCTION", "called after each row" },                   -- of Lua tables alone
--     })
--     local o = option.table("tool", { rows = 8 }, rows)      --> { rows = 8, alone = false, load = 0.7 }
--     option.table("tool", { rows = { 8 } }, rows)            --> user.lua:9: tool: rows: got {8}, wanted a whole number >= 1
--
-- A row: { NAME, KIND, about, .. }. NAME: "--s-q", or "on_row" for an option that the command line does not have. KIND nil: true
-- or false, false until given. Its other fields:
--   key        the field of a Lua table and of results; s_q for --s-q
--   kind       the kind, where KIND is only the word that the help shows
--   default    the value where none is given
--   lo, hi     range of numbers; choices: the names that text may be; listed: what lists the choices where they are many
--   axis       whether a sweep takes several values of it (fh.axis); an option that is no axis refuses lists
--   of         of kind VALUES: the row of a single value
--   repeated   values collect in a list
--   optional   the value may be left out on the command line: --resume, --resume RUN or --resume=RUN; true stands for none
--   without    keys of options beside which this one has no effect
--   with       { key = { values } }: this one has effect only where that option has one of the values; { key = true }: only where
--              that option is given
local args = require "fewhead.base.arguments"

local M = {}

local function range_words(row, noun)
  local lo, hi = row.lo, row.hi
  if lo and hi then return ("%s in %s .. %s"):format(noun, args.show(lo), args.show(hi)) end
  if lo then return ("%s >= %s"):format(noun, args.show(lo)) end
  if hi then return ("%s <= %s"):format(noun, args.show(hi)) end
  return noun
end

local function in_range(value, row) return value >= (row.lo or -math.huge) and value <= (row.hi or math.huge) end

-- Whole numbers past this are not told apart by a double.
local MAX_WHOLE = 2 ^ 53 - 1

--- What a value may be, by the name of the kind: { parse = function(text, row), check = function(value, row), axis = what several
-- values are to a sweep: "number", "boolean", "name" or "mixed", names and numbers }. parse takes the command line's text, check
-- the value in a Lua table; both return the value, or nil and what was wanted. join = function(first, second):
-- what an option is that was given twice; without it once is all. Rooms above add theirs here. A kind that is not
-- there is TEXT.
M.kinds = {}

local INTEGER = { axis = "number" }
M.kinds.INTEGER = INTEGER
function INTEGER.check(value, row)
  if type(value) == "number" and value == math.floor(value) and math.abs(value) <= MAX_WHOLE and in_range(value, row) then
    local good = not row.choices
    for _, choice in ipairs(row.choices or {}) do good = good or choice == value end
    if good then return value end
  end
  return nil, row.choices and args.one_of(value, row.choices) or range_words(row, "a whole number")
end
function INTEGER.parse(text, row) return INTEGER.check(text:find("^[+-]?%d+$") and tonumber(text), row) end

-- Decimal only: tonumber alone would take "0x10", "nan" and "inf" too.
local function decimal(text)
  if not (text:find("^[+-]?%d+%.?%d*[eE]?[+-]?%d*$") or text:find("^[+-]?%.%d+[eE]?[+-]?%d*$")) then return nil end
  return tonumber(text)
end

local NUMBER = { axis = "number" }
M.kinds.NUMBER = NUMBER
function NUMBER.check(value, row)
  if type(value) == "number" and math.abs(value) < math.huge and in_range(value, row) then return value end
  return nil, range_words(row, "a finite number")
end
function NUMBER.parse(text, row) return NUMBER.check(decimal(text), row) end

local TEXT = { axis = "name" }
M.kinds.TEXT = TEXT
function TEXT.check(value, row)
  if type(value) ~= "string" and not row.choices then return nil, "text" end
  for _, choice in ipairs(row.choices or { value }) do
    if value == choice then return value end
  end
  return nil, args.one_of(value, row.choices, row.listed)
end
TEXT.parse = TEXT.check

local LIST = {}
M.kinds.LIST = LIST
-- Each of a list once, by TEXT's rule.
function LIST.check(value, row)
  if type(value) ~= "table" or #value == 0 then return nil, "names with commas between them" end
  local list = {}
  for i, part in ipairs(value) do
    if part == "" then return nil, "names with commas between them" end
    local known, wanted = TEXT.check(part, row)
    if not known then return nil, wanted end
    list[i] = known
  end
  return list
end
function LIST.parse(text, row)
  local list = {}
  for part in (text .. ","):gmatch("([^,]*),") do list[#list + 1] = part end
  return LIST.check(list, row)
end

local FLAG = {}
M.kinds.FLAG = FLAG
function FLAG.check(value)
  if type(value) == "boolean" then return value end
  return nil, "true or false"
end

-- True or false with the value said: --lse false.
local BOOLEAN = { axis = "boolean", check = FLAG.check }
M.kinds.BOOLEAN = BOOLEAN
function BOOLEAN.parse(text)
  if text == "true" or text == "false" then return text == "true" end
  return nil, "true or false"
end

-- A file to read. On the command line it must open. Nothing is read from it, for it may be a pipe. In a Lua table it is a name:
-- whoever reads the file returns nil and what is wrong with it.
local FILE = { axis = "name" }
M.kinds.FILE = FILE
function FILE.check(text)
  if type(text) == "string" then return text end
  return nil, "the name of a file"
end
function FILE.parse(text)
  local file, err = io.open(text)
  local folder = io.open(text .. "/.") -- a folder opens like a file and fails when it is read
  if file then file:close() end
  if folder then folder:close() end
  if file and not folder then return text end
  return nil, ("a file that can be read (%s)"):format(folder and "it is a folder" or err:match(": (.*)$") or err)
end

-- A folder to write to, which need not be there yet. An empty name would be the root folder.
local DIR = {}
M.kinds.DIR = DIR
function DIR.check(text)
  if type(text) == "string" and text ~= "" then return text end
  return nil, "a folder's name"
end
DIR.parse = DIR.check

-- Of Lua tables alone. ANY: the module that takes it checks it.
M.kinds.FUNCTION = { check = function(value)
  if type(value) == "function" then return value end
  return nil, "a function"
end }
M.kinds.TABLE = { check = function(value)
  if type(value) == "table" then return value end
  return nil, "a table"
end }
M.kinds.ANY = { check = function(value) return value end }

local FIELDS = {
  1, 2, 3, "key", "kind", "default", "lo", "hi", "choices", "listed", "axis", "of", "repeated", "optional", "without", "with",
}

local Row = { __name = "option" }

-- The names of all kinds, sorted.
local function kind_names()
  local names = {}
  for name in pairs(M.kinds) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- A row from its description. It has flag (nil where the command line has no such option), key, metavar, about, kind = the kind
-- itself, kind_name, and the other fields as they were given.
local function new_row(where, given, level)
  level = level + 1
  args.options(where, given, FIELDS, level)
  local name, metavar = given[1], given[2]
  if not (type(name) == "string" and (name:find("^%-%-%l[%l%d-]*$") or name:find("^%l[%l%d_]*$"))) then
    error(('%s: got %s, wanted a name such as "--s-q"'):format(where, args.show(name)), level)
  end
  args.string(where .. ": help", given[3], level)
  if given.kind ~= nil then args.enum(where .. ": kind", given.kind, kind_names(), level, "option.kinds") end
  local row = { flag = name:sub(1, 2) == "--" and name or nil, metavar = metavar, about = given[3] }
  for key, value in pairs(given) do
    if type(key) == "string" then row[key] = value end
  end
  row.key = given.key or name:gsub("^%-%-", ""):gsub("-", "_")
  row.kind_name = metavar == nil and "FLAG" or given.kind or M.kinds[metavar] and metavar or "TEXT"
  row.kind = M.kinds[row.kind_name]
  return setmetatable(row, Row)
end

--- Whether v is a checked row.
function M.is_row(v) return getmetatable(v) == Row end

--- A description like that of a checked row, with some fields changed: for lists that have the row under another default, say.
-- changes[1], [2] and [3] stand for the name, the KIND and the help; a changed KIND without a kind is the kind.
function M.like(row, changes)
  local copy = { row.flag or row.key, row.metavar, row.about }
  for _, field in ipairs(FIELDS) do
    if type(field) == "string" then copy[field] = row[field] end
  end
  copy.kind = row.metavar and not (changes and changes[2]) and row.kind_name or nil
  for key, value in pairs(changes or {}) do copy[key] = value end
  return copy
end

--- Check a list of rows: { list = rows in order, by_flag =, by_key = }. An entry is a description as above, or a row of another
-- checked list. A wrong one raises on the line that `level` counts to.
function M.rows(what, list, level)
  level = (level or 2) + 1
  local rows = { list = {}, by_flag = {}, by_key = {} }
  for i, given in ipairs(args.table(what .. ": options", list, level)) do
    local where = ("%s: option %d"):format(what, i)
    local row = M.is_row(given) and given or new_row(where, given, level)
    local twice = row.flag and rows.by_flag[row.flag] or rows.by_key[row.key]
    if twice then error(("%s: %s stands there twice"):format(where, row.flag or row.key), level) end
    rows.list[i], rows.by_key[row.key] = row, row
    if row.flag then rows.by_flag[row.flag] = row end
  end
  return rows
end

--- The keys of rows, in order.
function M.keys(rows)
  local keys = {}
  for i, row in ipairs(rows.list) do keys[i] = row.key end
  return keys
end

--- The values where none is given: flags false, repeated options an empty list, the rest their default or nil.
function M.defaults(rows)
  local values = {}
  for _, row in ipairs(rows.list) do
    local value = row.default
    if row.kind == FLAG then value = value or false
    elseif value == nil and row.repeated then value = {}
    elseif row.kind == LIST and type(value) == "string" then value = LIST.parse(value, row) end
    values[row.key] = value
  end
  return values
end

-- The values of a `with` in a sentence.
local function words(values)
  local list = {}
  for i, value in ipairs(values) do list[i] = tostring(value) end
  return table.concat(list, " or ")
end

-- Whether an option's value is one that a `with` asks for.
local function has_one(value, wanted)
  if wanted == true then return value ~= nil and value ~= false end
  for _, one in ipairs(type(value) == "table" and value or { value }) do
    for _, good in ipairs(wanted) do
      if one == good then return true end
    end
  end
  return false
end

--- The first given option that has no effect on this call: its row, and why. given: the keys that were given, as a set; spell:
-- how a row is called where it was given. nil when all have effect.
function M.idle(rows, given, values, spell)
  for _, row in ipairs(rows.list) do
    if given[row.key] and not (row.kind == FLAG and values[row.key] == false) then
      for _, key in ipairs(row.without or {}) do
        local other = rows.by_key[key] -- a list that borrows the row need not have the other option
        if other and given[key] and values[key] ~= false then return row, "has no effect with " .. spell(other) end
      end
      local needed = {}
      for key in pairs(row.with or {}) do needed[#needed + 1] = rows.by_key[key] and key end
      table.sort(needed)
      for _, key in ipairs(needed) do
        local wanted = row.with[key]
        if not has_one(values[key], wanted) then
          return row, ("has no effect without %s%s"):format(spell(rows.by_key[key]),
            wanted == true and "" or " " .. words(wanted))
        end
      end
    end
  end
end

local function spell_key(row) return row.key end

--- Check a table of options against rows. Returns a table of its own with the defaults filled in; anything wrong raises on the
-- line that `level` counts to, in the table's words: `what: s_q: got -1, wanted a whole number >= 0`.
function M.table(what, t, rows, level)
  level = (level or 2) + 1
  local given, good_keys = {}, type(t) == "table" and getmetatable(t) == nil
  for key in pairs(good_keys and t or {}) do good_keys = good_keys and rows.by_key[key] ~= nil end
  if not good_keys then t = args.options(what, t, M.keys(rows), level) end -- the list of names is made for the message alone
  local values = M.defaults(rows)
  for _, row in ipairs(rows.list) do
    local value = t[row.key]
    if value ~= nil then
      local items = row.repeated and type(value) == "table" and { unpack(value) } or { value }
      for i, item in ipairs(items) do
        local good, wanted = (row.kind.check or TEXT.check)(item, row)
        if good == nil then error(("%s: %s: got %s, wanted %s"):format(what, row.key, args.show(item), wanted), level) end
        items[i] = good
      end
      values[row.key], given[row.key] = row.repeated and items or items[1], true
    end
  end
  local row, why = M.idle(rows, given, values, spell_key)
  if row then error(("%s: %s: %s"):format(what, row.key, why), level) end
  return values
end

return M
