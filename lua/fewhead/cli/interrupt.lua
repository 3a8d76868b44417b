--- Interrupt: Ctrl-C as a question instead of a death: a long run asks whether it was pressed, and ends in good order.
--
--   local sweep = fh.interrupt.during(function(pressed) return fh.sweep { s_q = "64:8192:*2", interrupted = pressed } end)
--   print(sweep.interrupted)
--
-- Meanwhile SIGINT is blocked in this thread and taken from the pending set when asked: no code runs inside a signal handler. The
-- library's own threads take no signals.

local posix = require "fewhead.base.posix"

local M = {}

--- Call f(pressed) and return what it returns; pressed() is true once Ctrl-C was pressed since, and stays so. Afterwards, also
-- when f raises, Ctrl-C acts as before; a press that nobody asked about is dropped.
function M.during(f)
  local token, seen = posix.block(posix.SIGINT), false
  local function pressed()
    seen = seen or posix.take(token)
    return seen
  end
  local function finish(ok, ...)
    pressed()
    posix.unblock(token)
    if not ok then error((...), 0) end
    return ...
  end
  return finish(pcall(f, pressed))
end

return M
