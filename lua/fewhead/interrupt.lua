-- interrupt: Ctrl-C as a question instead of a death: a long run asks whether it was pressed, and ends in good order.
--
--   local interrupt = require "fewhead.interrupt"
--   local watch = interrupt.watch()
--   for .. do if watch:pressed() then break end .. end; watch:close()
--
-- SIGINT is blocked in this thread and taken from the pending set when asked: no code runs inside a signal handler. It must be
-- watched from the thread that runs Lua; the library's own threads take no signals.

local ffi = require "ffi"

ffi.cdef [[
typedef struct { unsigned long bits[128 / sizeof(unsigned long)]; } fewhead_sigset; /* sigset_t of Linux */
typedef struct { long sec; long nsec; } fewhead_timespec;
int sigemptyset(fewhead_sigset *set);
int sigaddset(fewhead_sigset *set, int signal);
int pthread_sigmask(int how, const fewhead_sigset *set, fewhead_sigset *before);
int sigtimedwait(const fewhead_sigset *set, void *info, const fewhead_timespec *timeout);
]]

local SIGINT, SIG_BLOCK, SIG_SETMASK = 2, 0, 2

local M = {}

--- What a shell reports for a process that Ctrl-C ended: 128 + SIGINT.
M.exit_code = 128 + SIGINT

local Watch = {}
Watch.__index = Watch

--- Start watching. Call it before devices are opened, and close() at the end.
function M.watch()
  local set, before = ffi.new("fewhead_sigset"), ffi.new("fewhead_sigset")
  ffi.C.sigemptyset(set)
  ffi.C.sigaddset(set, SIGINT)
  if ffi.C.pthread_sigmask(SIG_BLOCK, set, before) ~= 0 then error("interrupt.watch: cannot block SIGINT", 2) end
  return setmetatable({ set = set, before = before, now = ffi.new("fewhead_timespec"), seen = false, open = true }, Watch)
end

--- true once Ctrl-C was pressed since watch(); stays true.
function Watch:pressed()
  if not self.seen and self.open then self.seen = ffi.C.sigtimedwait(self.set, nil, self.now) == SIGINT end
  return self.seen
end

--- Stop watching; SIGINT acts as before. Safe twice. A press that nobody asked about is dropped.
function Watch:close()
  if not self.open then return end
  self:pressed()
  ffi.C.pthread_sigmask(SIG_SETMASK, self.before, nil)
  self.open = false
end

return M
