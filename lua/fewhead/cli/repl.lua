--- An interactive prompt with the library loaded: expressions print themselves, errors do not end it.
--
--     $ ./fewhead repl
--     1> fh.gate.new{ min_sq = 512 }:native(8, 1024)
--     true
--
-- Line editing, history and completion come from GNU readline where its library is installed. Without a terminal (a pipe, a file)
-- the same statements are read without prompt, and the exit status is 1 when one of them failed.
local exit = require "fewhead.cli.exit"
local history = require "fewhead.cli.history"
local options = require "fewhead.cli.options"
local posix = require "fewhead.base.posix"
local readline = require "fewhead.cli.readline"
local show = require "fewhead.cli.show"
local statement = require "fewhead.cli.statement"

local M = {}

local STDIN, STDOUT, STDERR = 0, 1, 2

local Prompt = {}
Prompt.__index = Prompt

-- ---- What is said ------------------------------------------------------------------------------------------------------------

local function say(text) io.stdout:write(text, "\n") end

--- Tell an error on standard error, with the typed line that it names.
function Prompt:fail(err)
  self.failed = true
  io.stdout:flush()
  if exit.is_interrupt(err) then
    io.stderr:write(self.reader.edits ~= nil and "\n" or "", "interrupted\n") -- a terminal shows ^C first
    return
  end
  local text = exit.text(err)
  local line = self.session:line_of(text)
  io.stderr:write(text, "\n", line and line .. "\n" or "")
end

-- ---- Words that are no Lua ---------------------------------------------------------------------------------------------------

local HELP = [[
Type Lua; the library is `fh`. An expression prints its value, which is then `_` and Out[n]; a `local` stays for the next lines.
  ?NAME, NAME?, :help NAME   the docstring of a function, module or method, or what an object can do
  :doc                       modules, patterns, layouts, paths, presets, experiments
  :time STATEMENT            run it and say how long it took;  :run FILE runs a Lua file
  :load FILE                 a sweep from its records, as _ and Out[n]
  exit, quit, Ctrl-D         leave; Ctrl-C drops what is typed, or stops what runs
Tab completes names, options and their values, and files in strings. Ctrl-R searches what was typed before.]]

-- The value of a dotted name; nil where there is none.
local function value_of(self, name)
  local compiled = self.session:compile(name:gsub(":([%a_][%w_]*)$", ".%1"))
  local ok, value = pcall(compiled or error)
  if ok then return value end
end

local function help(self, name)
  if name == "" then return say(HELP) end
  say(require("fewhead.cli.help").about(name, value_of(self, name)))
end

--- What stands after ":" and does something with the rest of the line: command(prompt, rest). Errors are told as those of
-- statements are.
M.commands = {
  help = help,
  time = function(self, text)
    local chunk, err = self.session:compile(text)
    if not chunk then error(err or ":time: got nothing complete, wanted an expression or a statement", 0) end
    local clock = require("fewhead.base.ffi").C.fh_time_ns
    local start = clock()
    self:run(chunk, text, err)
    say(require("fewhead.base.table").time(tonumber(clock() - start) / 1e3))
  end,
  load = function(self, path)
    if path == "" then error(":load: got nothing, wanted a JSONL file of records", 0) end
    local sweep, err = require("fewhead.decide.sweep").read(path)
    if not sweep then error(err, 0) end
    self:run(function() return sweep end, (":load %s"):format(path), true)
  end,
  run = function(self, path)
    if path == "" then error(":run: got nothing, wanted a Lua file", 0) end
    local chunk, err = loadfile(path)
    if not chunk then error(err, 0) end
    setfenv(chunk, self.session.environment)()
  end,
  doc = function() say(require("fewhead.cli.help").overview()) end,
}

-- A line that is no Lua: what to do, or nil. NAME? must be a name, since "?" ends no Lua.
local function command_of(self, text)
  local line = text:match("^%s*(.-)%s*$")
  if line == "help" or line == "?" then return function() say(HELP) end end
  local asked = line:match("^%?%s*([%a_][%w_.:]*)$") or line:match("^([%a_][%w_.:]*)%s*%?$")
    or line:match("^help%s*%(?%s*([%a_][%w_.:]*)%s*%)?$")
  if asked then return function() help(self, asked) end end
  local name, rest = line:match("^:([%a_]+)%s*(.*)$")
  if not name then return nil end
  local known = {}
  for each in pairs(M.commands) do known[#known + 1] = each end
  table.sort(known)
  local command = M.commands[name]
  if command then return function() command(self, rest) end end
  return function() error((":%s: no such command; there are :%s"):format(name, table.concat(known, ", :")), 0) end
end

local LEAVES = { exit = true, quit = true, ["exit()"] = true, ["quit()"] = true }

-- ---- Statements --------------------------------------------------------------------------------------------------------------

-- Print the values of an expression and keep the first as _ and Out[n].
local function print_values(self, ...)
  local count = select("#", ...)
  for i = 1, count do say(show.text((select(i, ...)))) end
  local first = ...
  if first ~= nil then _G._, self.out[self.session.number - 1] = first, first end
end

--- Run a complete statement.
function Prompt:run(chunk, text, is_expression)
  self.session:count(text)
  if is_expression then print_values(self, chunk()) else chunk() end
end

-- ---- The loop ----------------------------------------------------------------------------------------------------------------

-- Read a line and run what it completes. Returns true at the end.
local function step(self)
  local prompt = self.typed and ">> " or ("%d> "):format(self.session.number)
  local line, dropped = self.reader:read(prompt)
  if dropped then
    if self.typed then self.reader:remember(self.typed) end
    self.typed = nil
    return
  end
  if not line then return true end
  local text = (self.typed and self.typed .. "\n" .. line or line):gsub("[\r\n]+$", "")
  if not self.typed and LEAVES[text:match("^%s*(.-)%s*$")] then return true end
  if not text:find("%S") then
    self.typed = self.typed and text
    return
  end
  local command = not self.typed and command_of(self, text)
  if command then
    self.reader:remember(text)
    return command()
  end
  local chunk, result = self.session:compile(text)
  if not chunk and not result then
    self.typed = text
    return
  end
  self.typed = nil
  self.reader:remember(text) -- before it runs: it may be the last one
  if not chunk then
    self.session:count(text)
    error(result, 0)
  end
  self:run(chunk, text, result)
end

-- Lines of a pipe, behind the same calls as a person's.
local piped = {
  read = function() return io.read("*l") end,
  remember = function() end,
}

--- A prompt over a reader (fewhead.cli.readline) and a session (fewhead.cli.statement).
function M.new(reader, session)
  local self = setmetatable({ reader = reader, session = session, out = {}, failed = false }, Prompt)
  _G.Out = self.out
  return self
end

--- Read and run until the end of input. Returns whether a statement failed.
function Prompt:loop()
  repeat
    local ok, ended = pcall(step, self)
    if not ok then
      self.typed = nil
      self:fail(ended)
    end
  until ok and ended
  if self.typed then self:fail((select(2, loadstring(self.typed, "=" .. statement.chunk_name(self.session.number))))) end
  return self.failed
end

-- From now on a sweep that is given no `interrupted` stops after Ctrl-C and returns what was measured. Its errors
-- are told without a line: the one that called it is the one that was typed.
local function stop_sweeps_in_good_order()
  local sweep = require "fewhead.decide.sweep"
  local run = sweep.run
  function sweep.run(given)
    if type(given) ~= "table" or given.interrupted ~= nil then return run(given) end
    local copy = {}
    for key, value in pairs(given) do copy[key] = value end
    local function during(pressed)
      copy.interrupted = pressed
      return run(copy)
    end
    local function hand_on(ok, ...)
      if not ok then error((exit.text((...)):gsub("^[^%s]+%.lua:%d+: ", "")), 0) end
      return ...
    end
    return hand_on(pcall(require("fewhead.cli.interrupt").during, during))
  end
end

local parser = options.new {
  name = "repl",
  usage = "fewhead repl",
  about = "An interactive prompt with the library loaded as `fh`. Statements may come from a pipe too.",
  options = {},
}

local banner = "fewhead %s. The library is `fh`; expressions print themselves; help says more; Ctrl-D leaves.\n"
local no_readline = "readline: not found, so no line editing, history or completion (make repl installs it)\n"

-- A reader for the person at the terminal, who is greeted.
local function greeted(session)
  local stream = posix.is_terminal(STDOUT) and io.stdout or io.stderr
  stream:write(banner:format(_G.fh.VERSION))
  local past = history.open(history.path())
  local reader = readline.open {
    history = past,
    complete = function(text) return require("fewhead.cli.complete").at(session.environment, text, session.locals) end,
  }
  if not reader.edits then stream:write(no_readline) end
  if past.problem then stream:write("history: not kept: ", past.problem, "\n") end
  return reader, stream
end

--- Read and run statements until the end of input. Returns the exit status.
function M.main(argv)
  parser:read(argv)
  _G.fh = require "fewhead"
  local interactive = posix.is_terminal(STDIN) and (posix.is_terminal(STDOUT) or posix.is_terminal(STDERR))
  local session, reader, stream = statement.session(), piped, nil
  if interactive then
    reader, stream = greeted(session)
    stop_sweeps_in_good_order()
  end
  local failed = M.new(reader, session):loop()
  if interactive then
    io.stdout:flush()
    stream:write("\n")
  end
  return failed and not interactive and exit.FAILED or 0
end

return M
