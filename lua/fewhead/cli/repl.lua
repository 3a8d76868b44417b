--- An interactive prompt with the library loaded: expressions print themselves, errors do not end it.
--
--     $ ./fewhead repl
--     1> fh.gate.new{ min_sq = 512 }:native(8, 1024)
--     true
--
-- Line editing, history and completion come from GNU readline where its library is installed. Without a terminal (a pipe, a file)
-- the same statements are read without prompt, and the exit status is 1 when one of them failed.
local colour = require "fewhead.cli.colour"
local command = require "fewhead.cli.command"
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
  io.stderr:write(colour.paint(text, "bad", STDERR), "\n", line and line .. "\n" or "")
end

local LEAVES = { exit = true, quit = true, ["exit()"] = true, ["quit()"] = true }

-- ---- Statements --------------------------------------------------------------------------------------------------------------

-- Print the values of an expression and keep the first as _ and Out[n]. Returns whether there was one. The nil that stands for no
-- error behind a result is not printed.
local function print_values(self, ...)
  local count = select("#", ...)
  while count > 1 and (select(count, ...)) == nil and (...) ~= nil do count = count - 1 end
  for i = 1, count do
    local value = select(i, ...)
    local text = show.text(value)
    say(type(value) == "table" and colour.words(text, STDOUT) or text)
  end
  local first = ...
  if first ~= nil then _G._, self.out[self.session.number - 1] = first, first end
  return count > 0
end

--- Remember Lua that succeeded, for :save. n: the statement's number; expression: whether its value was printed.
function Prompt:keep(text, n, expression)
  if text then self.kept[#self.kept + 1] = { text = text, n = n, expression = expression } end
end

-- The same function for a person, who is told when Ctrl-C waits for a call of C.
local function aloud(chunk)
  return function() return require("fewhead.cli.interrupt").aloud(chunk) end
end

--- Run a complete statement. as_lua: the Lua that does the same, where `text` is none.
function Prompt:run(chunk, text, is_expression, as_lua)
  local n = self.session.number
  self.session:count(text)
  if self.attended then chunk = aloud(chunk) end
  local printed = is_expression and print_values(self, chunk())
  if not is_expression then chunk() end
  self:keep(as_lua or text, n, printed)
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
  local run = not self.typed and command.of(self, text)
  if run then
    self.reader:remember(text)
    return run()
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
  local self = setmetatable({ reader = reader, session = session, out = {}, kept = {}, failed = false }, Prompt)
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

--- Have sweeps that are given no `interrupted` say how far they are, stop after Ctrl-C and return what was measured. A prompt
-- without a person does not: there Ctrl-C ends the process.
function Prompt:attend()
  if not self.attended then return end
  require("fewhead.decide.sweep").attend = function(own, run)
    local line = require("fewhead.cli.sweeper").speak(own)
    local ok, sweep, err = pcall(require("fewhead.cli.interrupt").during, function(pressed)
      own.interrupted = pressed
      return run()
    end)
    line:clear()
    if not ok then error(sweep, 0) end
    if sweep and sweep.interrupted then
      io.stderr:write(("\ninterrupted: %d of %d cells are in the result\n"):format(sweep.cells, sweep.planned))
    end
    return sweep, err
  end
end

local parser = options.new {
  name = "repl",
  usage = "fewhead repl",
  about = "An interactive prompt with the library loaded as `fh`. Statements may come from a pipe too.",
  options = {},
}

local banner = "fewhead %s: the library is `fh`; help says more; Ctrl-D leaves.\n"
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
  end
  local prompt = M.new(reader, session)
  prompt.attended = interactive
  prompt:attend()
  local failed = prompt:loop()
  if interactive then
    io.stdout:flush()
    stream:write("\n")
  end
  return failed and not interactive and exit.FAILED or 0
end

return M
