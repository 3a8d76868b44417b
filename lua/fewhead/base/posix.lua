--- Posix: the few calls to the operating system that files, terminals and Ctrl-C need and Lua lacks.
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
  typedef struct { unsigned short rows, columns, width, height; } fewhead_winsize;
  int ioctl(int fd, unsigned long request, ...);
  int fileno(void *stream);
  int ferror(void *stream);
  int fsync(int fd);
  int mkdir(const char *path, unsigned int mode);
  char *strerror(int number);
  int sigemptyset(fewhead_sigset *set);
  int sigaddset(fewhead_sigset *set, int signal);
  int pthread_sigmask(int how, const fewhead_sigset *set, fewhead_sigset *before);
  int sigtimedwait(const fewhead_sigset *set, void *info, const fewhead_timespec *timeout);
  int flock(int fd, int operation);
  int truncate(const char *path, long length);
  int fork(void);
  int waitpid(int pid, int *status, int options);
  int kill(int pid, int signal);
  int getppid(void);
  int prctl(int option, unsigned long value, unsigned long a, unsigned long b, unsigned long c);
  int usleep(unsigned int microseconds);
  int clock_gettime(int clock, fewhead_timespec *time);
  long write(int fd, const void *bytes, size_t count);
  int fflush(void *stream);
  void _exit(int status);
  char *strsignal(int number);
  int open(const char *path, int flags, ...);
  long read(int fd, void *to, size_t count);
  int close(int fd);
  void *mmap(void *at, size_t bytes, int protection, int flags, int fd, long offset);
  int munmap(void *at, size_t bytes);
  int memfd_create(const char *name, unsigned int flags);
  int ftruncate(int fd, long length);
  int symlink(const char *target, const char *path);
  int dup(int fd);
  int dup2(int fd, int as);
  void *memmem(const void *in, size_t bytes, const void *what, size_t what_bytes);
  unsigned long strtoul(const char *text, char **end, int base);
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

local TIOCGWINSZ = 0x5413

--- The columns of the terminal that a file descriptor is; nil for none, or one that does not say.
function M.columns(fd)
  local size = ffi.new("fewhead_winsize")
  if C.ioctl(fd, TIOCGWINSZ, size) ~= 0 or size.columns == 0 then return nil end
  return size.columns
end

--- Make every folder that leads to the file `path`. true | nil, error.
function M.make_folders(path)
  for position in path:gmatch("()/") do
    local folder = path:sub(1, position - 1)
    if folder ~= "" and C.mkdir(folder, MODE) ~= 0 and ffi.errno() ~= EEXIST then return failure(folder) end
  end
  return true
end

--- Make one folder. true; false where something stands there; nil, error.
function M.make_folder(path)
  if C.mkdir(path, MODE) == 0 then return true end
  if ffi.errno() == EEXIST then return false end
  return failure(path)
end

--- Make `path` a symbolic link to `target`; it takes the place of a link that stands there. true | nil, error.
function M.link(target, path)
  local beside = ("%s.%d.tmp"):format(path, C.getpid())
  os.remove(beside)
  if C.symlink(target, beside) ~= 0 then return failure(path) end
  local ok, err = os.rename(beside, path)
  if not ok then os.remove(beside) end
  return ok, err
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

-- ---- Locks and lengths -------------------------------------------------------------------------------------------------

local LOCK_EX, LOCK_NB, EWOULDBLOCK = 2, 4, 11

--- Lock an open Lua file for this process and its children; the lock ends with the last of them that has the file open,
-- however it ends. "locked"; "held" where another process has the lock; "unknown" where the file system has no locks.
function M.lock(file)
  if C.flock(C.fileno(file), LOCK_EX + LOCK_NB) == 0 then return "locked" end
  return ffi.errno() == EWOULDBLOCK and "held" or "unknown"
end

--- Cut a file to its first bytes. true | nil, error.
function M.truncate(path, bytes)
  if C.truncate(path, bytes) ~= 0 then return failure(path) end
  return true
end

-- ---- Processes ---------------------------------------------------------------------------------------------------------

local PR_SET_PDEATHSIG, SIGKILL, EINTR = 1, 9, 4

--- Run f in a child process, which ends when f returns or raises, without Lua's finalizers, and when this process ends.
-- What is buffered is written first, so that the child does not write it again. Returns the child's number | nil, error.
function M.fork(f)
  C.fflush(nil)
  local parent, child = C.getpid(), C.fork()
  if child < 0 then return failure("fork") end
  if child > 0 then return child end
  C.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
  if C.getppid() ~= parent then C._exit(1) end -- it ended before prctl
  collectgarbage("stop") -- what this process holds is the parent's: nothing of it is finalized here
  local ok = pcall(f)
  C.fflush(nil)
  C._exit(ok and 0 or 1)
end

local PROT_READ_WRITE, MAP_SHARED, MFD_CLOEXEC, PAGE = 3, 1, 1, 4096

--- A file in memory, a page of zeros without a name, for a process that is started with it: its descriptor | nil, error.
function M.memory_file()
  local fd = C.memfd_create("fewhead", MFD_CLOEXEC)
  if fd < 0 then return failure("memfd_create") end
  if C.ftruncate(fd, PAGE) == 0 then return fd end
  local _, err = failure("ftruncate")
  C.close(fd)
  return nil, err
end

local function unmap(page) C.munmap(page, PAGE) end

--- The memory of such a file, which all processes that map it share: int32_t * | nil, error. Closes the descriptor.
function M.map(fd)
  local page = C.mmap(nil, PAGE, PROT_READ_WRITE, MAP_SHARED, fd, 0)
  local ok, err = ffi.cast("intptr_t", page) ~= -1, nil
  if not ok then err = select(2, failure("mmap")) end
  C.close(fd)
  if not ok then return nil, err end
  return ffi.gc(ffi.cast("int32_t *", page), unmap)
end

--- Have this process end (SIGKILL) when its parent, process number `parent`, ends. Ends at once where the parent has ended.
function M.end_with(parent)
  C.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
  if C.getppid() ~= parent then C._exit(1) end
end

--- Keep standard output for the caller alone: returns a descriptor of it, and from now on what this process prints to standard
-- output goes to standard error.
function M.take_stdout()
  C.fflush(nil)
  local kept = C.dup(1)
  C.dup2(2, 1)
  return kept
end

--- The name of a signal: "Segmentation fault".
function M.signal_name(signal) return ffi.string(C.strsignal(signal)) end

--- End a child at once and wait until it is gone.
function M.finish(child)
  C.kill(child, SIGKILL)
  while C.waitpid(child, nil, 0) < 0 and ffi.errno() == EINTR do end
end

--- Send a signal to a process.
function M.kill(pid, signal) return C.kill(pid, signal) == 0 end

--- Sleep for this many microseconds, less than a second.
function M.sleep_us(us) C.usleep(us) end

local CLOCK_MONOTONIC = 1
local time = ffi.new("fewhead_timespec")

--- Seconds of a clock that never jumps.
function M.seconds()
  C.clock_gettime(CLOCK_MONOTONIC, time)
  return tonumber(time.sec) + tonumber(time.nsec) / 1e9
end

--- Write text to a file descriptor at once, past Lua's buffers. false where not all of it could be written.
function M.write_fd(fd, text)
  local at = 0
  while at < #text do
    local bytes = tonumber(C.write(fd, ffi.cast("const char *", text) + at, #text - at))
    if bytes < 0 and ffi.errno() ~= EINTR then return false end
    at = at + math.max(bytes, 0)
  end
  return true
end

-- ---- Signals -----------------------------------------------------------------------------------------------------------

M.SIGHUP, M.SIGINT, M.SIGPIPE, M.SIGTERM, M.SIGCONT = 1, 2, 13, 15, 18

local SIG_BLOCK, SIG_SETMASK = 0, 2

--- Block signals in this thread: from now on they wait until taken. Returns a token for take() and unblock().
function M.block(...)
  local token = { set = ffi.new("fewhead_sigset"), before = ffi.new("fewhead_sigset") }
  C.sigemptyset(token.set)
  for _, signal in ipairs { ... } do C.sigaddset(token.set, signal) end
  C.pthread_sigmask(SIG_BLOCK, token.set, token.before) -- fails only for a wrong SIG_ constant
  return token
end

local now = ffi.new("fewhead_timespec")

--- Whether this process was started with a signal ignored, as nohup does with SIGHUP, or ignores it by now.
function M.ignores(signal)
  local file = io.open("/proc/self/status")
  local mask = file and file:read("*a"):match("\nSigIgn:%s*(%x+)")
  if file then file:close() end
  return mask ~= nil and math.floor(tonumber(mask:sub(-8), 16) / 2 ^ (signal - 1)) % 2 == 1
end

local STATUS_BYTES = 4096 -- of /proc/PID/status; the masks stand in the first half of it
local status_text = ffi.new("char[?]", STATUS_BYTES + 1)

--- Whether one of these signals waits for another process, which has it blocked. Makes no garbage.
function M.waits(pid_status, signals)
  local fd = C.open(pid_status, 0)
  if fd < 0 then return false end
  local bytes = C.read(fd, status_text, STATUS_BYTES)
  C.close(fd)
  if bytes <= 0 then return false end
  status_text[bytes] = 0
  for i = 1, 2 do
    local name = i == 1 and "\nSigPnd:\t" or "\nShdPnd:\t" -- of its first thread, of the process
    local at = C.memmem(status_text, bytes, name, #name)
    local mask = at ~= nil and tonumber(C.strtoul(ffi.cast("const char *", at) + #name, nil, 16)) or 0
    for _, signal in ipairs(signals) do
      if math.floor(mask / 2 ^ (signal - 1)) % 2 == 1 then return true end
    end
  end
  return false
end

--- Take one of the blocked signals if it waits: true when one did. Does not wait itself.
function M.take(token) return C.sigtimedwait(token.set, nil, now) > 0 end

--- The thread's signal mask as it was before block().
function M.unblock(token) C.pthread_sigmask(SIG_SETMASK, token.before, nil) end

return M
