--- The one parser of command-line options: long options, typed values, help text, errors that name option, given and wanted.
--
--     local options = options.new { name = "gate_sweep", options = { { "--s-q", "AXIS", "rows", default = "64:2048:*2" } } }
--     local opt = options:read(arg)       -- --help and wrong options end the script with status 0 and 2
--     print(opt.s_q)                      --> 64:2048:*2
local args = require "fewhead.base.arguments"
local axis = require "fewhead.decide.axis"
local exit = require "fewhead.cli.exit"

local M = {}

-- What a value may be, by the word that stands for it in the help. Each takes (text, option) and returns the value, or nil and
-- what was wanted.
local kinds = {}

local function range_words(option, noun)
  local lo, hi = option.lo, option.hi
  if lo and hi then return ("%s in %s .. %s"):format(noun, args.show(lo), args.show(hi)) end
  if lo then return ("%s >= %s"):format(noun, args.show(lo)) end
  if hi then return ("%s <= %s"):format(noun, args.show(hi)) end
  return noun
end

local function in_range(value, option)
  return value >= (option.lo or -math.huge) and value <= (option.hi or math.huge)
end

-- Whole numbers past this are not told apart by a double.
local MAX_WHOLE = 2 ^ 53 - 1

function kinds.INTEGER(text, option)
  local value = text:find("^[+-]?%d+$") and tonumber(text)
  if value and math.abs(value) <= MAX_WHOLE and in_range(value, option) then return value end
  return nil, range_words(option, "a whole number")
end

-- Decimal only: tonumber alone would take "0x10", "nan" and "inf" too.
local function decimal(text)
  if not (text:find("^[+-]?%d+%.?%d*[eE]?[+-]?%d*$") or text:find("^[+-]?%.%d+[eE]?[+-]?%d*$")) then return nil end
  local value = tonumber(text)
  return value and math.abs(value) < math.huge and value or nil
end

function kinds.NUMBER(text, option)
  local value = decimal(text)
  if value and in_range(value, option) then return value end
  return nil, range_words(option, "a number")
end

-- A sweep's axis of whole numbers; the value stays text, as the sweep takes it.
function kinds.AXIS(text, option)
  local ok, err = pcall(axis.integers, option.flag, text, option.lo, option.hi)
  if ok then return text end
  return nil, err:match(", wanted (.*)$")
end

function kinds.LIST(text, option)
  local list = {}
  for part in (text .. ","):gmatch("([^,]*),") do
    local value, wanted = part, "names with commas between them"
    if part == "" then return nil, wanted end
    if option.choices then
      value, wanted = kinds.TEXT(part, option)
      if not value then return nil, wanted end
    end
    list[#list + 1] = value
  end
  return list
end

-- A file to read: it must open. Nothing is read from it, for it may be a pipe.
function kinds.FILE(text)
  local file, err = io.open(text)
  local folder = io.open(text .. "/.") -- a folder opens like a file and fails when it is read
  if file then file:close() end
  if folder then folder:close() end
  if file and not folder then return text end
  return nil, ("a file that can be read (%s)"):format(folder and "it is a folder" or err:match(": (.*)$") or err)
end

-- A folder to write to, which need not be there yet. An empty name would be the root folder.
function kinds.DIR(text)
  if text ~= "" then return text end
  return nil, "a folder's name"
end

-- A plug-in and what to call it; the value is a provider (fh.provider).
function kinds.PROVIDER(text) return require("fewhead.device.provider").from_option(text) end

function kinds.TEXT(text, option)
  if not option.choices then return text end
  for _, choice in ipairs(option.choices) do
    if text == choice then return text end
  end
  local near = args.nearest(text, option.choices)
  return nil, ("one of %s%s"):format(table.concat(option.choices, ", "), near and ("; did you mean %s?"):format(near) or "")
end

local KINDS = {}
for name in pairs(kinds) do KINDS[#KINDS + 1] = name end
table.sort(KINDS)

local Options = {}
Options.__index = Options

--- A parser from { name =, usage =, about =, options = {..}, arguments = {lo, hi} }; scripts call this cli.options.
--   name       what errors and the help call the program: "gate_sweep"
--   usage      the command as a person types it; default "fewhead run experiments/NAME.lua [options]"
--   about      lines for the head of the help
--   arguments  how many values without an option are allowed, {least, most}; default none. They come back as opt[1], opt[2], ..
--   options    a list of { "--s-q", METAVAR, "help", key =, default =, lo =, hi =, choices =, repeated = }
--                METAVAR nil: a flag, false until given. Else the kind of value: INTEGER, NUMBER, AXIS (checked, kept as text),
--                LIST (commas, comes back as a table), FILE (must be readable), DIR (not empty), PROVIDER (NAME=FILE, comes
--                back as a provider), any other word: text, one of `choices` if those are given. A kind may carry
--                another name in the help: { "--rows", "N", "help", kind = "INTEGER" }.
--                key is the field of the result, s_q for --s-q; repeated = true collects values in a list.
function M.new(spec)
  args.options("cli.options", spec, { "name", "usage", "about", "options", "arguments" })
  args.string("cli.options: name", spec.name)
  local self = setmetatable({ name = spec.name, about = spec.about, list = {}, by_flag = {} }, Options)
  self.arguments = spec.arguments or { 0, 0 }
  self.usage = spec.usage or ("fewhead run experiments/%s.lua [options]"):format(spec.name)
  for i, given in ipairs(args.table("cli.options: options", spec.options)) do
    local where = ("cli.options: option %d"):format(i)
    args.options(where, given, { 1, 2, 3, "key", "kind", "default", "lo", "hi", "choices", "repeated" })
    local flag, metavar, help = given[1], given[2], given[3]
    if not (type(flag) == "string" and flag:find("^%-%-%l[%l%d-]*$")) then
      error(('%s: got %s, wanted a name such as "--s-q"'):format(where, args.show(flag)), 2)
    end
    if self.by_flag[flag] then error(("%s: %s stands there twice"):format(where, flag), 2) end
    args.string(where .. ": help", help)
    if given.kind ~= nil then args.enum(where .. ": kind", given.kind, KINDS) end
    local option = {
      flag = flag, metavar = metavar, help = help, key = given.key or flag:sub(3):gsub("-", "_"), default = given.default,
      kind = metavar and (kinds[given.kind or metavar] or kinds.TEXT), lo = given.lo, hi = given.hi, choices = given.choices,
      repeated = given.repeated,
    }
    self.list[i], self.by_flag[flag] = option, option
  end
  return self
end

--- The option called `flag`, or nil and a message that offers the nearest one.
function Options:find(flag)
  local option = self.by_flag[flag]
  if option then return option end
  local known = { "--help" }
  for _, each in ipairs(self.list) do known[#known + 1] = each.flag end
  local near = args.nearest(flag, known)
  return nil, ("unknown option %s%s"):format(flag, near and ("; did you mean %s?"):format(near) or "")
end

--- Parse a list of words. Returns the table of values; or nil and a message; or nil alone after --help, which it prints.
-- Forms: --name value, --name=value, --flag, and -- before words that are not options. Of an option given twice the last counts.
function Options:parse(argv)
  local opt = {}
  for _, option in ipairs(self.list) do
    local default = option.default
    if not option.metavar then default = false
    elseif default == nil and option.repeated then default = {}
    elseif option.kind == kinds.LIST and type(default) == "string" then default = kinds.LIST(default, option)
    end
    opt[option.key] = default
  end
  local given = {}
  local i, n = 1, #argv
  local only_words = false
  while i <= n do
    local word = argv[i]
    i = i + 1
    if only_words or word == "-" or word:sub(1, 1) ~= "-" then
      opt[#opt + 1] = word
    elseif word == "--" then
      only_words = true
    elseif word == "--help" or word == "-h" then
      io.stdout:write(self:help())
      return nil
    else
      local flag, value = word:match("^(%-%-[^=]+)=(.*)$")
      flag = flag or word
      local option, err = self:find(flag)
      if not option then return nil, err end
      if not option.metavar then
        if value then return nil, ("%s: got %s, wanted no value"):format(flag, args.show(value)) end
        opt[option.key] = true
      else
        if not value then
          if i > n then return nil, ("%s: got nothing, wanted %s"):format(flag, option.metavar) end
          value, i = argv[i], i + 1
        end
        local parsed, wanted = option.kind(value, option)
        if parsed == nil then return nil, ("%s: got %s, wanted %s"):format(flag, args.show(value), wanted) end
        if option.repeated then
          -- The first one given replaces the default list.
          if not given[option] then opt[option.key] = {} end
          table.insert(opt[option.key], parsed)
        else
          opt[option.key] = parsed
        end
        given[option] = true
      end
    end
  end
  local least, most = self.arguments[1], self.arguments[2]
  if #opt > most then return nil, ("unexpected argument %s"):format(args.show(opt[most + 1])) end
  if #opt < least then return nil, ("%d argument%s missing"):format(least - #opt, least - #opt == 1 and "" or "s") end
  return opt
end

-- The parser that read the options of the script that runs.
local reader

--- An error that blames a line of code for a value which an option brought, in the words of that option: "x.lua:54: pattern file:
-- s_q: got 257, wanted .." becomes "overlap: --s-q: got 257, wanted ..". nil for a message about anything else.
function M.in_option_words(message)
  local what, rest = tostring(message):match("^(.-): (got .*)$")
  local key = what and what:match("([%w_]+)$")
  if not reader or not key then return nil end
  for _, option in ipairs(reader.list) do
    if option.metavar and option.key == key then return ("%s: %s: %s"):format(reader.name, option.flag, rest) end
  end
end

--- Parse, or end the script: with status 0 after --help, with status 2 and one line on stderr when the options are wrong. A value
-- that is refused later, where it is used, is blamed on its option too.
function Options:read(argv)
  reader = self
  local opt, err = self:parse(argv)
  if opt then return opt end
  if not err then exit.with(0) end
  exit.with(exit.USAGE, ("%s: %s (--help lists the options)"):format(self.name, err))
end

-- A default as the help shows it; a number that was computed is not worth all its digits.
local function brief(v) return type(v) == "number" and v % 1 ~= 0 and ("%.6g"):format(v) or tostring(v) end

-- The help's right column starts here and breaks there.
local HELP_COLUMN, HELP_WIDTH = 28, 110

-- Text broken at spaces into lines that fit between the two.
local function wrapped(text)
  local lines, line = {}, ""
  for word in text:gmatch("%S+") do
    if line ~= "" and HELP_COLUMN + #line + 1 + #word > HELP_WIDTH then
      lines[#lines + 1], line = line, ""
    end
    line = line == "" and word or line .. " " .. word
  end
  lines[#lines + 1] = line
  return lines
end

--- The text that --help prints.
function Options:help()
  local lines = { "usage: " .. self.usage }
  if self.about then lines[#lines + 1] = self.about end
  lines[#lines + 1] = ""
  local function row(left, right)
    left = "  " .. left
    if #left >= HELP_COLUMN then
      lines[#lines + 1] = left
      left = ""
    end
    for _, line in ipairs(wrapped(right)) do
      lines[#lines + 1] = left .. (" "):rep(HELP_COLUMN - #left) .. line
      left = ""
    end
  end
  for _, option in ipairs(self.list) do
    local notes = {}
    if option.choices then notes[1] = table.concat(option.choices, ", ") end
    if option.repeated then notes[#notes + 1] = "may be repeated" end
    local default = option.default
    if type(default) == "table" then default = #default > 0 and table.concat(default, ",") or nil end
    if option.metavar and default ~= nil then notes[#notes + 1] = "default " .. brief(default) end
    local note = #notes > 0 and (" (%s)"):format(table.concat(notes, "; ")) or ""
    row(option.flag .. (option.metavar and " " .. option.metavar or ""), option.help .. note)
  end
  row("--help", "print this")
  return table.concat(lines, "\n") .. "\n"
end

return M
