--- The one parser of command-line options: long options, typed values, help text, errors that name option, given and wanted.
--
--     local opt = fh.options {
--       name = "tool", about = "Does it.",
--       options = { "preset", { "layout", default = "offset" }, { "--rows", "INTEGER", "how many" } },
--     }:read(arg)                         -- --help and wrong options end the script with status 0 and 2
--     print(opt.preset, opt.rows)         --> v4.1-flash tp8  nil
--
-- A row of options is fewhead.base.option's, which checks Lua tables by the same rows. Names stand for the rows that experiments
-- share: see M.shared.
local args = require "fewhead.base.arguments"
local exit = require "fewhead.cli.exit"
local option = require "fewhead.base.option"

local M = {}

-- Kinds of rooms that need the C library, loaded where a row asks for them: commands that only read records need no library.
local ROOM_OF_KIND = { AXIS = "fewhead.decide.axis", TAGS = "fewhead.record.tags" }
setmetatable(option.kinds, { __index = function(kinds, name)
  if not ROOM_OF_KIND[name] then return nil end
  require(ROOM_OF_KIND[name])
  return rawget(kinds, name)
end })

-- ---- Kinds of this room -------------------------------------------------------------------------------------------------------

-- A plug-in and what to call it; the value is a provider (fh.provider).
option.kinds.PROVIDER = {
  parse = function(text) return require("fewhead.device.provider").from_option(text) end,
  check = function(value)
    if require("fewhead.device.provider").is(value) then return value end
    return nil, "a provider"
  end,
}

-- ---- Rows that experiments share ----------------------------------------------------------------------------------------------

local shared

--- The shared rows by name: preset, heads, s_q, pattern, indices, layout, seed, device, provider, seconds, cold, out, name, tags.
-- Where several values make sense a script says so: { "layout", "LIST", default = "vllm" }. The library is loaded when the rows
-- are first asked for.
function M.shared()
  if shared then return shared end
  local device, case = require "fewhead.device.device", require "fewhead.case.case"
  local pattern, preset = require "fewhead.case.pattern", require "fewhead.case.preset"
  local provider = require "fewhead.device.provider"
  local function of_case(key, changes) return option.like(case.rows.by_key[key], changes) end
  shared = {
    preset = of_case("preset", { default = preset.default }),
    heads = of_case("heads", { [3] = "heads of this rank, if not the preset's" }),
    s_q = of_case("s_q", { [2] = "AXIS", lo = 1 }),
    pattern = of_case("pattern", { default = "csa", choices = pattern.drawn }),
    indices = of_case("indices", { without = { "pattern" } }),
    layout = of_case("layout", { default = "vllm" }),
    seed = of_case("seed", { default = 0 }),
    device = { "--device", "NAME", "device to run on: cpu, cuda:0", default = device.default_name() },
    provider = provider.option,
    seconds = { "--seconds", "NUMBER", "time to spend on timing", default = 60, lo = 0 },
    tags = option.like(require("fewhead.record.tags").row),
    cold = { "--cold", nil, "find caches cold in every run" },
    out = { "--out", "DIR", "folder of runs; results/DEVICE, with the device's name: its evidence, a copy of the run's files",
      default = "results/local" },
    name = { "--name", "NAME", "what the run's folder is called after the date, and its files in results/DEVICE" },
  }
  return shared
end

--- A row for every axis of a sweep, for a script's list of options.
-- The rows are --s-q to --seed; opt[key] is text for fh.sweep. defaults: by key.
function M.axes(defaults)
  local changes = { h_q = false, indices = { without = { "pattern" } } } -- --heads says h_q
  for key, value in pairs(defaults or {}) do
    changes[key] = changes[key] or {}
    changes[key].default = value
  end
  return require("fewhead.decide.axis").rows(changes)
end

--- The device of a script.
-- name: what --device says. nil and the reason, by that option.
function M.open_device(name)
  local dev, err = require("fewhead.device.device").open(name)
  return dev, err and err:gsub("^name:", "--device:")
end

-- The row that an entry of a script's list stands for: a row, checked or not, the name of a shared one, or that name with fields
-- of the script's own.
local function row_of(where, entry, level)
  if option.is_row(entry) then return entry end
  local name = type(entry) == "table" and entry[1] or entry
  if type(name) ~= "string" or name:sub(1, 1) == "-" then return args.table(where, entry, level + 1) end
  local names, row = {}, {}
  for each in pairs(M.shared()) do names[#names + 1] = each end
  table.sort(names)
  args.enum(where, name, names, level + 1)
  for key, value in pairs(M.shared()[name]) do row[key] = value end
  if type(entry) == "table" and entry[2] then row.kind = nil end
  for key, value in pairs(type(entry) == "table" and entry or {}) do
    if key ~= 1 then row[key] = value end
  end
  return row
end

local Options = {}
Options.__index = Options

--- A parser from { name =, usage =, about =, options = {..}, arguments = {lo, hi} }; also fh.options { .. }.
--   name       what errors and the help call the program: "gate_sweep"
--   usage      the command as a person types it; default "fewhead run experiments/NAME.lua [options]"
--   about      lines for the head of the help
--   arguments  how many values without an option are allowed, {least, most}; default none. They come back as opt[1], opt[2], ..
--   options    a list of rows (fewhead.base.option), also checked ones, such as fh.layers.rows.by_key.keep:
--                { "--s-q", KIND, "help", key =, kind =, default =, lo =, hi =, choices =,
--                repeated =, optional =, without =, with = }, and of names of shared rows: "preset", or { "layout",
--                default = "offset" } with other fields. KIND nil: a flag. Else INTEGER, NUMBER, AXIS (checked, kept as text),
--                LIST (commas, comes back as a table), BOOLEAN (true or false), FILE (must be readable), DIR (not empty),
--                PROVIDER (NAME=FILE, comes back as a provider), any other word: text, one of `choices` if those are given.
function M.new(spec)
  args.options("cli.options", spec, { "name", "usage", "about", "options", "arguments" })
  args.string("cli.options: name", spec.name)
  local self = setmetatable({ name = spec.name, about = spec.about }, Options)
  self.arguments = spec.arguments or { 0, 0 }
  self.usage = spec.usage or ("fewhead run experiments/%s.lua [options]"):format(spec.name)
  local list = {}
  for i, entry in ipairs(args.table("cli.options: options", spec.options)) do
    list[i] = row_of(("cli.options: option %d"):format(i), entry, 2)
  end
  self.rows = option.rows("cli.options", list, 2)
  for i, row in ipairs(self.rows.list) do
    if not row.flag then
      error(("cli.options: option %d: got %s, wanted a name such as \"--s-q\""):format(i, args.show(row.key)), 2)
    end
  end
  self.list, self.by_flag = self.rows.list, self.rows.by_flag
  return self
end

--- The row of the option called `flag`, or nil and a message that offers the nearest one.
function Options:find(flag)
  local row = self.by_flag[flag]
  if row then return row end
  local known = { "--help" }
  for _, each in ipairs(self.list) do known[#known + 1] = each.flag end
  local near = args.nearest(flag, known)
  return nil, ("unknown option %s%s"):format(flag, near and ("; did you mean %s?"):format(near) or "")
end

-- The options among the words, { row =, text = of its value or nil for a flag } each, and the words that are none; nil and a
-- message; or nil alone after --help.
function Options:split(argv)
  local found, words, only_words, i = {}, {}, false, 1
  while i <= #argv do
    local word = argv[i]
    i = i + 1
    if only_words or word == "-" or word:sub(1, 1) ~= "-" then words[#words + 1] = word
    elseif word == "--" then only_words = true
    elseif word == "--help" or word == "-h" then return nil
    else
      local flag, value = word:match("^(%-%-[^=]+)=(.*)$")
      local row, err = self:find(flag or word)
      if not row then return nil, err end
      if not row.metavar then
        if value then return nil, ("%s: got %s, wanted no value"):format(flag, args.show(value)) end
      elseif not value and row.optional and (i > #argv or argv[i]:sub(1, 1) == "-") then
        value = true
      elseif not value then
        if i > #argv then return nil, ("%s: got nothing, wanted %s"):format(row.flag, row.metavar) end
        value, i = argv[i], i + 1
      end
      found[#found + 1] = { row = row, text = value }
    end
  end
  return found, words
end

local function spell_flag(row) return row.flag end

--- Parse a list of words.
-- Returns the table of values; or nil and a message; or nil alone after --help, which it prints.
-- Forms: --name value, --name=value, --flag, and -- before words that are not options. An option whose
-- row is not repeated may be given once.
function Options:parse(argv)
  local found, words = self:split(argv)
  if not found then
    if not words then io.stdout:write(self:help()) end
    return nil, words
  end
  local opt, given = option.defaults(self.rows), {}
  for _, one in ipairs(found) do
    local row, value = one.row, true
    local join = row.kind.join
    if given[row.key] and not row.repeated and not join then return nil, ("%s: given twice, wanted once"):format(row.flag) end
    if row.metavar and one.text ~= true then
      local wanted
      value, wanted = row.kind.parse(one.text, row)
      if value == nil then return nil, ("%s: got %s, wanted %s"):format(row.flag, args.show(one.text), wanted) end
    end
    if row.repeated then
      if not given[row.key] then opt[row.key] = {} end -- the first one given replaces the default list
      table.insert(opt[row.key], value)
    else
      opt[row.key] = join and given[row.key] and join(opt[row.key], value) or value
    end
    given[row.key] = true
  end
  local idle, why = option.idle(self.rows, given, opt, spell_flag)
  if idle then return nil, ("%s: %s"):format(idle.flag, why) end
  local least, most = self.arguments[1], self.arguments[2]
  if #words > most then return nil, ("unexpected argument %s"):format(args.show(words[most + 1])) end
  if #words < least then return nil, ("%d argument%s missing"):format(least - #words, least - #words == 1 and "" or "s") end
  for i, word in ipairs(words) do opt[i] = word end
  return opt
end

-- The parser that read the options of the script that runs.
local reader

--- An error that blames a line of code for a value which an option brought, in the words of that option: "x.lua:54: pattern file:
-- s_q: got 257, wanted .." becomes "overlap: --s-q: got 257, wanted ..". nil for a message about anything else.
function M.in_option_words(message)
  local what, rest = tostring(message):match("^(.-): (got .*)$")
  if not what then what, rest = tostring(message):match("^(.-): (has no effect .*)$") end
  local key = what and what:match("([%w_]+)$")
  if not reader or not key then return nil end
  for _, one in ipairs(reader.list) do
    if one.metavar and one.key == key then return ("%s: %s: %s"):format(reader.name, one.flag, rest) end
  end
end

--- A function that gets the parser in place of reading any words: how fewhead.cli.completion learns the options of a script that
-- it starts. It must not return. nil: words are read.
M.on_read = nil

--- Parse, or end the script.
-- The status is 0 after --help, 2 when the options are wrong, with one line on stderr. A value that is refused later, where it is
-- used, is blamed on its option too.
function Options:read(argv)
  if M.on_read then M.on_read(self) end
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

--- The help as text, as the option of that name prints it.
function Options:help()
  local lines = { "usage: " .. self.usage }
  if self.about then lines[#lines + 1] = self.about end
  lines[#lines + 1] = ""
  local function add(left, right)
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
  for _, row in ipairs(self.list) do
    local notes = {}
    if row.choices then notes[1] = table.concat(row.choices, ", ") end
    if row.repeated then notes[#notes + 1] = "may be repeated" end
    local default = row.default
    if type(default) == "table" then default = #default > 0 and table.concat(default, ",") or nil end
    if row.metavar and default ~= nil then notes[#notes + 1] = "default " .. brief(default) end
    local note = #notes > 0 and (" (%s)"):format(table.concat(notes, "; ")) or ""
    local value = row.metavar and (row.optional and " [%s]" or " %s"):format(row.metavar) or ""
    add(row.flag .. value, row.about .. note)
  end
  add("--help", "print this")
  return table.concat(lines, "\n") .. "\n"
end

-- A tail call: errors blame the caller, as for M.new itself.
return setmetatable(M, { __call = function(_, ...) return M.new(...) end })
