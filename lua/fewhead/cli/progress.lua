--- Progress: one line that says how far a long run is, on a terminal only; a pipe or a log file gets nothing.
--
--     local line = fh.progress { total = 12, noun = "cells" }
--     line:step("s_q 256, csa")      --> 3 of 12 cells, 1 failed, about 2 min left: s_q 256, csa
--     line:failed()                  -- one of the cells failed
--     line:clear()

local posix = require "fewhead.base.posix"

local M = {}

local STDERR = 2   -- the line goes to standard error, so that standard output stays a clean table
local COLUMNS = 79 -- longer text would wrap, and "\r" could not take it back

local Line = {}
Line.__index = Line

local function default_clock() return require("fewhead.base.ffi").C.fh_time_ns() end

--- A progress line, also fh.progress(options). Options: total, how many steps there will be, nil where that is not known; noun,
-- what steps are ("cells"); terminal, true or false: overrides the question whether standard error is a terminal; stream, what
-- takes the text; clock, a function that returns nanoseconds.
function M.new(options)
  options = options or {}
  local terminal = options.terminal
  if terminal == nil then terminal = posix.is_terminal(STDERR) and os.getenv("TERM") ~= "dumb" end
  return setmetatable({
    terminal = terminal, stream = options.stream or io.stderr, shown = false, total = options.total,
    noun = options.noun or "cells", clock = options.clock or default_clock, begun = 0, failures = 0,
  }, Line)
end

--- Replace the line by this text.
function Line:show(text)
  if not self.terminal then return end
  self.stream:write("\r", text:sub(1, COLUMNS), "\27[K")
  self.stream:flush()
  self.shown = true
end

-- "about 40 s left": the steps to come take as long as those before did on average.
local function left_text(seconds)
  if seconds < 90 then return ("about %.0f s left"):format(seconds) end
  if seconds < 5400 then return ("about %.0f min left"):format(seconds / 60) end
  return ("about %.1f h left"):format(seconds / 3600)
end

--- Say that another step begins, and which. i: its number, where steps do not come one after the other; total: how many there
-- are, where that has changed.
function Line:step(text, i, total)
  self.begun, self.total = i or self.begun + 1, total or self.total
  if not self.terminal then return end
  local now = self.clock()
  self.start, self.first = self.start or now, self.first or self.begun
  local parts = { self.total and ("%d of %d %s"):format(self.begun, self.total, self.noun)
    or ("%d %s"):format(self.begun, self.noun) }
  if self.failures > 0 then parts[#parts + 1] = ("%d failed"):format(self.failures) end
  local done = self.begun - self.first
  if self.total and done > 0 then
    parts[#parts + 1] = left_text(tonumber(now - self.start) / 1e9 / done * (self.total - self.begun + 1))
  end
  self:show(("%s: %s"):format(table.concat(parts, ", "), text))
end

--- Count failures, one where n is not given. They stand in the line from the next step on.
function Line:failed(n) self.failures = self.failures + (n or 1) end

--- Take the line away, so that what is printed next starts on a clean one.
function Line:clear()
  if not self.shown then return end
  self.stream:write("\r\27[K")
  self.stream:flush()
  self.shown = false
end

-- A tail call: errors blame the caller, as for M.new itself.
return setmetatable(M, { __call = function(_, ...) return M.new(...) end })
