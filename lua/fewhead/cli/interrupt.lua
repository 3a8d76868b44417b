--- Interrupt: Ctrl-C as a question instead of a death: a long run asks whether it was pressed, and ends in good order.
--
--   local sweep = fh.interrupt.during(function(pressed) return fh.sweep { s_q = "64:8192:*2", interrupted = pressed } end)
--   print(sweep.interrupted)
--
-- SIGTERM and SIGHUP (a closed terminal) are taken as Ctrl-C is. Meanwhile the three are blocked in this thread and taken from
-- the pending set when asked: no code runs inside a signal handler. The library's own threads take no signals.
--
-- A long kernel asks nothing for seconds. A child process looks after the signals that wait, and says once that one was heard.

local posix = require "fewhead.base.posix"

local M = {}

--- What the child says when a signal has waited for a moment.
M.HEARD = "interrupt heard: what runs now ends first\n"

local LOOK_US = 200000 -- between two looks; a signal that waits at two of them was not taken at once
local STDERR = 2

-- Those of the three that this process takes as Ctrl-C: what it ignores, SIGHUP under nohup, it goes on ignoring.
local function signals()
  local list = { posix.SIGINT }
  for _, signal in ipairs { posix.SIGTERM, posix.SIGHUP } do
    if not posix.ignores(signal) then list[#list + 1] = signal end
  end
  return list
end

-- Looks until a signal has waited at two looks in a row, says so, and ends. Runs in the child; prefix clears a progress line.
local function watch(status, asked, prefix)
  local before = false
  while true do
    posix.sleep_us(LOOK_US)
    local now = posix.waits(status, asked)
    if now and before then
      posix.write_fd(STDERR, prefix .. M.HEARD)
      return
    end
    before = now
  end
end

local listener -- the child that listens for the statement that runs, or nil

-- Waits for Ctrl-C, which a terminal sends to this child too, and says it unless the child is ended soon after: then a call of C
-- runs on, and Lua sees the signal when the call has ended.
local function listen()
  local token = posix.block(posix.SIGINT)
  while not posix.take(token) do posix.sleep_us(LOOK_US) end
  posix.sleep_us(2 * LOOK_US)
  posix.write_fd(STDERR, "\n" .. M.HEARD)
end

local function stop_listening()
  if listener then posix.finish(listener) end
  listener = nil
end

--- Call f() and return what it returns. Ctrl-C at the terminal acts as ever; where a call of C has to end first, standard error
-- says so.
function M.aloud(f)
  stop_listening()
  listener = posix.fork(listen) -- without one, nothing is said early
  local function finish(ok, ...)
    stop_listening()
    if not ok then error((...), 0) end
    return ...
  end
  return finish(pcall(f))
end

--- Call f(pressed) and return what it returns; pressed() is true once Ctrl-C was pressed since, and stays so. Afterwards, also
-- when f raises, Ctrl-C acts as before; a press that nobody asked about is dropped.
function M.during(f)
  stop_listening() -- the signal waits from here on, and another child looks after it
  local asked, seen = signals(), false
  local token = posix.block(unpack(asked))
  local status, prefix = ("/proc/%d/status"):format(posix.pid()), posix.is_terminal(STDERR) and "\r\27[K" or ""
  local watcher = posix.fork(function() watch(status, asked, prefix) end) -- without one, nothing is said early
  local function pressed()
    seen = seen or posix.take(token)
    return seen
  end
  local function finish(ok, ...)
    if watcher then posix.finish(watcher) end
    while posix.take(token) do seen = true end
    posix.unblock(token)
    if not ok then error((...), 0) end
    return ...
  end
  return finish(pcall(f, pressed))
end

return M
