-- interrupt: Ctrl-C as a question instead of a death: a long run asks whether it was pressed, and ends in good order.
--
--   local watch = require("fewhead.interrupt").watch()
--   for .. do if watch:pressed() then break end .. end
--   watch:close()
--
-- SIGINT is blocked in this thread and taken from the pending set when asked: no code runs inside a signal handler. Threads that
-- were started before watch() must not take signals either; the library's do not.

local posix = require "fewhead.posix"

local M = {}

local Watch = {}
Watch.__index = Watch

--- Start watching, in the thread that runs Lua.
function M.watch()
  return setmetatable({ token = posix.block(posix.SIGINT), seen = false }, Watch)
end

--- true once Ctrl-C was pressed since watch(); stays true.
function Watch:pressed()
  if not self.seen and self.token then self.seen = posix.take(self.token) end
  return self.seen
end

--- Stop watching: Ctrl-C acts as before. Safe twice. A press that nobody asked about still counts as seen, and ends nothing.
function Watch:close()
  if not self.token then return end
  self:pressed()
  posix.unblock(self.token)
  self.token = nil
end

return M
