--- The command line. One option parser for every experiment, and the commands behind ./fewhead.
--
--   local options = cli.options{ name = "gate_sweep", options = { { "--s-q", "AXIS", "chunk rows", default = "64:2048:*2" } } }
--   local opt = options:read(arg)       -- --help and wrong options end the script with status 0 and 2
--   print(opt.s_q)                      -- "64:2048:*2"
local args = require "fewhead.args"
local axis = require "fewhead.axis"

local M = {}

-- Exit statuses: 0 done, 1 it failed (a parity case, a missing file), 2 the command line was wrong, 130 Ctrl-C.
M.FAILED, M.USAGE, M.INTERRUPTED = 1, 2, 130

-- Above this a shell gives statuses meanings of its own (126 not runnable, 127 not found, 128 + n signal n); of those a script
-- may give INTERRUPTED alone, when it ended in good order after Ctrl-C.
local MAX_STATUS = 125

local Exit = {}
Exit.__index = Exit
function Exit:__tostring() return self.message or ("exit status " .. self.status) end

--- End the script that ./fewhead runs, with `status` (0 .. 125, INTERRUPTED) and, on stderr, one line `message` (may be nil).
-- Unlike os.exit it passes through the callers' cleanups; in the prompt, or under plain luajit, it is an error like any other.
function M.exit(status, message)
  if status ~= M.INTERRUPTED then args.integer("cli.exit: status", status, 0, MAX_STATUS) end
  error(setmetatable({ status = status, message = message }, Exit), 0)
end

-- ---- Options ------------------------------------------------------------------------------------------------------------------

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

-- A file to read: it must open. One to write is a PATH.
function kinds.FILE(text)
  local file, err = io.open(text, "r")
  if not file then return nil, "a file that can be read (" .. (err:match(": (.*)$") or err) .. ")" end
  -- A folder opens and then fails on the first read.
  local _, unreadable = file:read(0)
  file:close()
  if unreadable then return nil, "a file that can be read (" .. unreadable .. ")" end
  return text
end

function kinds.TEXT(text, option)
  if not option.choices then return text end
  for _, choice in ipairs(option.choices) do
    if text == choice then return text end
  end
  local near = args.nearest(text, option.choices)
  return nil, ("one of %s%s"):format(table.concat(option.choices, ", "), near and ("; did you mean %s?"):format(near) or "")
end

local Options = {}
Options.__index = Options

--- cli.options{ name =, usage =, about =, options = {..}, arguments = {lo, hi} } -> parser.
--   name       what errors and the help call the program: "gate_sweep"
--   usage      the command as a person types it; default "fewhead run experiments/NAME.lua [options]"
--   about      lines for the head of the help
--   arguments  how many values without an option are allowed, {least, most}; default none. They come back as opt[1], opt[2], ..
--   options    a list of { "--s-q", METAVAR, "help", key =, default =, lo =, hi =, choices =, repeated = }
--                METAVAR nil: a flag, false until given. Else the kind of value: INTEGER, NUMBER, AXIS (checked, kept as text),
--                LIST (commas, comes back as a table), FILE (must be readable), any other word: text, one of `choices` if those
--                are given. A kind may carry another name in the help: { "--rows", "N", "help", kind = "INTEGER" }.
--                key is the field of the result, s_q for --s-q; repeated = true collects values in a list.
function M.options(spec)
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

--- Parse, or end the script: with status 0 after --help, with status 2 and one line on stderr when the options are wrong.
function Options:read(argv)
  local opt, err = self:parse(argv)
  if opt then return opt end
  if not err then M.exit(0) end
  M.exit(M.USAGE, ("%s: %s (--help lists the options)"):format(self.name, err))
end

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
    if option.metavar and default ~= nil then notes[#notes + 1] = "default " .. tostring(default) end
    local note = #notes > 0 and (" (%s)"):format(table.concat(notes, "; ")) or ""
    row(option.flag .. (option.metavar and " " .. option.metavar or ""), option.help .. note)
  end
  row("--help", "print this")
  return table.concat(lines, "\n") .. "\n"
end

-- ---- Commands -----------------------------------------------------------------------------------------------------------------

-- An error on one line. What follows the first line of a failed require is the list of files tried: FEWHEAD_TRACE=1 shows it.
local function one_line(message)
  message = tostring(message)
  local head = message:match("^(.-module '[^']*' not found):")
  return head or (message:gsub("%s*\n%s*", " "))
end

local function say(message) io.stderr:write(message, "\n") end

--- Whether an error caught by pcall is Ctrl-C: luajit's handler raises this text in whatever Lua code runs.
function M.is_interrupt(err) return type(err) == "string" and err:find("interrupted!$") ~= nil end

--- Call f(...) and turn how it ended into an exit status; errors go to stderr as one line, with a stack trace if FEWHEAD_TRACE=1.
function M.guard(f, ...)
  local trace = os.getenv("FEWHEAD_TRACE") == "1"
  local argv, n = { ... }, select("#", ...)
  local ok, result = xpcall(function() return f(unpack(argv, 1, n)) end, function(err)
    if getmetatable(err) == Exit then return err end
    if M.is_interrupt(err) then return setmetatable({ status = M.INTERRUPTED, message = "fewhead: interrupted" }, Exit) end
    return trace and debug.traceback(tostring(err), 2) or one_line(err)
  end)
  if ok then return result or 0 end
  if getmetatable(result) == Exit then
    if result.message then say(result.message) end
    return result.status
  end
  say(result:find("^fewhead: ") and result or "fewhead: " .. result)
  return M.FAILED
end

-- The folder that `experiments` lies in: the checkout, or PREFIX/share/fewhead of an installation; nil when neither is there.
local function shipped()
  local modules = debug.getinfo(1, "S").source:match("^@(.*)/fewhead/cli%.lua$")
  for _, folder in ipairs { modules .. "/..", modules .. "/../../fewhead" } do
    local file = io.open(folder .. "/experiments/gate_sweep.lua")
    if file then
      file:close()
      return folder
    end
  end
end

local commands = {}

local run_usage = [[
usage: fewhead run FILE [options of the script]

Runs a Lua file with the library at hand: `require "fewhead"` works and `arg` holds the words after FILE. A FILE that is not here
is looked for where fewhead is installed, so `fewhead run experiments/gate_sweep.lua` works in any folder.
A whole number that the script returns is the exit status.
]]

function commands.run(argv)
  local name = argv[1]
  if name == "--help" or name == "-h" then
    io.stdout:write(run_usage)
    return 0
  end
  if not name then M.exit(M.USAGE, "fewhead: run: got no file, wanted FILE (fewhead run --help says more)") end
  local path = name
  local file, err = io.open(path)
  if not file and name:sub(1, 1) ~= "/" and shipped() then
    path = shipped() .. "/" .. name
    file = io.open(path)
  end
  if not file then M.exit(M.FAILED, "fewhead: run: " .. err) end
  file:close()
  local chunk, syntax = loadfile(path)
  if not chunk then error(syntax, 0) end
  local words = { [0] = name }
  for i = 2, #argv do words[i - 1] = argv[i] end
  _G.arg = words
  local status = chunk(unpack(words))
  if type(status) ~= "number" then return 0 end
  if status ~= M.INTERRUPTED and (status ~= math.floor(status) or status < 0 or status > MAX_STATUS) then
    error(("%s returned %s, wanted an exit status in 0 .. %d"):format(name, args.show(status), MAX_STATUS), 0)
  end
  return status
end

function commands.info(argv) return require("fewhead.info").main(argv) end
function commands.parity(argv) return require("fewhead.parity").main(argv) end
function commands.repl(argv) return require("fewhead.repl").main(argv) end

local names = { "run", "info", "parity", "repl" }

local usage = [[
usage: fewhead COMMAND [options]

  run FILE [options]   run a Lua script, such as experiments/gate_sweep.lua
  info                 what is here: version, library, devices, settings in force
  parity               compare every path with the reference over the conformance grid; status 1 when a case fails
  repl                 an interactive prompt with the library loaded
  --help, --version

Each command has its own --help. FEWHEAD_TRACE=1 adds a stack trace to errors.
]]

--- Run the command in argv (a list of words, without the program's name); returns the exit status.
function M.main(argv)
  local name = argv[1]
  return M.guard(function()
    if name == "--help" or name == "-h" or name == "help" then
      io.stdout:write(usage)
      return 0
    end
    if name == "--version" then
      print(require("fewhead.info").version())
      return 0
    end
    if not name then M.exit(M.USAGE, (usage:gsub("\n$", ""))) end
    local command = commands[name]
    if not command then
      local near = args.nearest(name, names)
      M.exit(M.USAGE, ("fewhead: unknown command %s%s (fewhead --help lists them)"):format(args.show(name),
        near and (", did you mean %s?"):format(near) or ""))
    end
    local rest = {}
    for i = 2, #argv do rest[i - 1] = argv[i] end
    return command(rest)
  end)
end

return M
