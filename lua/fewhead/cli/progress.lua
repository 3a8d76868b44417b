--- Progress: one line that says how far a long run is, on a terminal only; a pipe or a log file gets nothing.
--
--   local line = fh.progress()
--   line:show("3 of 12: s_q 256"); line:clear()

local posix = require "fewhead.base.posix"

local M = {}

local STDERR = 2   -- the line goes to standard error, so that standard output stays a clean table
local COLUMNS = 79 -- longer text would wrap, and "\r" could not take it back

local Line = {}
Line.__index = Line

--- A progress line, also fh.progress(options). options.terminal overrides the question whether standard error is one;
-- options.stream takes the text.
function M.new(options)
  options = options or {}
  local terminal = options.terminal
  if terminal == nil then terminal = posix.is_terminal(STDERR) and os.getenv("TERM") ~= "dumb" end
  return setmetatable({ terminal = terminal, stream = options.stream or io.stderr, shown = false }, Line)
end

--- Replace the line by this text.
function Line:show(text)
  if not self.terminal then return end
  self.stream:write("\r", text:sub(1, COLUMNS), "\27[K")
  self.stream:flush()
  self.shown = true
end

--- Take the line away, so that what is printed next starts on a clean one.
function Line:clear()
  if not self.shown then return end
  self.stream:write("\r\27[K")
  self.stream:flush()
  self.shown = false
end

-- A tail call: errors blame the caller, as for M.new itself.
return setmetatable(M, { __call = function(_, ...) return M.new(...) end })
