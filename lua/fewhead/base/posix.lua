-- posix: the few calls to the operating system that files, terminals and Ctrl-C need and Lua lacks.
--
--   local posix = require "fewhead.base.posix"
--   if posix.is_terminal(2) then io.stderr:write("..") end
--   assert(posix.make_folders("results/local/x.md"))
--
-- Numbers and layouts are those of Linux, the same on every architecture.

local ffi = require "ffi"

-- Declarations outlive this module when package.loaded is emptied; a struct cannot be declared twice.
if not pcall(ffi.typeof, "fewhead_sigset") then
  ffi.cdef [[
  typedef struct { unsigned long bits[16]; } fewhead_sigset; /* at least sigset_t, which is 128 bytes */
  typedef struct { long sec; long nsec; } fewhead_timespec;
  typedef struct { size_t count; char **paths; size_t rest[7]; } fewhead_glob; /* at least glob_t, which is 72 bytes */
  int getpid(void);
  int isatty(int fd);
  int fileno(void *stream);
  int ferror(void *stream);
  int fsync(int fd);
  int mkdir(const char *path, unsigned int mode);
  char *strerror(int number);
  int sigemptyset(fewhead_sigset *set);
  int sigaddset(fewhead_sigset *set, int signal);
  int pthread_sigmask(int how, const fewhead_sigset *set, fewhead_sigset *before);
  int sigtimedwait(const fewhead_sigset *set, void *info, const fewhead_timespec *timeout);
  int glob(const char *pattern, int flags, void *failed, fewhead_glob *found);
  void globfree(fewhead_glob *found);
  ]]
end

local C = ffi.C
local M = {}

local EEXIST = 17
local MODE = 511 -- 0777, less the umask

local function failure(what)
  return nil, ("%s: %s"):format(what, ffi.string(C.strerror(ffi.errno())))
end

--- This process's number.
function M.pid() return C.getpid() end

--- Is this file descriptor a terminal?
function M.is_terminal(fd) return C.isatty(fd) == 1 end

--- Make every folder that leads to the file `path`. true | nil, error.
function M.make_folders(path)
  for position in path:gmatch("()/") do
    local folder = path:sub(1, position - 1)
    if folder ~= "" and C.mkdir(folder, MODE) ~= 0 and ffi.errno() ~= EEXIST then return failure(folder) end
  end
  return true
end

--- The files and folders whose path is `folder`, as it stands, followed by something that matches the shell's `pattern`; sorted.
function M.glob(folder, pattern)
  local found, list = ffi.new("fewhead_glob"), {}
  if C.glob(folder:gsub("[*?%[\\]", "\\%0") .. pattern, 0, nil, found) == 0 then
    for i = 0, tonumber(found.count) - 1 do list[i + 1] = ffi.string(found.paths[i]) end
  end
  C.globfree(found)
  return list
end

--- Did everything written to an open Lua file get to where it goes? Remembers writes that nobody checked. true | nil, error.
function M.written(file)
  local ok, err = file:flush()
  if not ok then return nil, err end
  if C.ferror(file) ~= 0 then return nil, "a write failed" end
  return true
end
jit.off(M.written) -- compiled, a flush that fails is tried again by the interpreter, and the second time says nothing

--- Have what was written to an open Lua file on the disk. true | nil, error.
function M.sync(file)
  local ok, err = file:flush()
  if not ok then return nil, err end
  if C.fsync(C.fileno(file)) ~= 0 then return failure("fsync") end
  return true
end
jit.off(M.sync) -- compiled, a flush that fails is tried again by the interpreter, and the second time says nothing

M.SIGINT = 2

local SIG_BLOCK, SIG_SETMASK = 0, 2

--- Block a signal in this thread: from now on it waits until taken. Returns a token for take() and unblock().
function M.block(signal)
  local token = { set = ffi.new("fewhead_sigset"), before = ffi.new("fewhead_sigset"), signal = signal }
  C.sigemptyset(token.set)
  C.sigaddset(token.set, signal)
  C.pthread_sigmask(SIG_BLOCK, token.set, token.before) -- fails only for a wrong SIG_ constant
  return token
end

local now = ffi.new("fewhead_timespec")

--- Take the blocked signal if it waits: true when it did. Does not wait itself.
function M.take(token) return C.sigtimedwait(token.set, nil, now) == token.signal end

--- The thread's signal mask as it was before block().
function M.unblock(token) C.pthread_sigmask(SIG_SETMASK, token.before, nil) end

return M
