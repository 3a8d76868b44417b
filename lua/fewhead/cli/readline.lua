--- Lines from a person: with editing, history and completion where GNU readline is installed, plainly elsewhere.
--
--     local reader = readline.open { complete = complete, history = history.open(history.path()) }
--     local line, dropped = reader:read("> ")       -- nil at the end of input; dropped: Ctrl-C, and line is ""
--     reader:remember(statement)                    -- into the history
--
-- complete(text) -> first, list: text is what stands before the cursor; list, sorted, has what its part from `first` on may
-- become.
--
-- While a line is read SIGINT is blocked and looked for beside standard input, so no code runs inside a signal handler. readline
-- is driven by its callback interface: what Ctrl-C ends there, a search too, is really over.
local ffi = require "ffi"
local posix = require "fewhead.base.posix"

local M = {}

if not pcall(ffi.typeof, "fewhead_pollfd") then
  ffi.cdef [[
  typedef struct { int fd; short events; short revents; } fewhead_pollfd;
  int poll(fewhead_pollfd *fds, unsigned long count, int timeout_ms);
  int signalfd(int fd, const fewhead_sigset *mask, int flags);
  char *strdup(const char *);
  void *calloc(size_t, size_t);
  void free(void *);
  void (*signal(int, void (*)(int)))(int);
  extern void *stdout;
  extern void *stderr;
  ]]
end

-- readline(3) and history(3), version 8.
local LIBRARY = "libreadline.so.8"
local readline_declarations = [[
void add_history(const char *);
void stifle_history(int);
void rl_callback_handler_install(const char *, void (*)(char *));
void rl_callback_handler_remove(void);
void rl_callback_read_char(void);
void rl_callback_sigcleanup(void);
void rl_free_line_state(void);
void rl_cleanup_after_signal(void);
void rl_resize_terminal(void);
int rl_bind_key(int, int (*)(int, int));
int rl_complete(int, int);
int rl_insert(int, int);
int rl_initialize(void);
int rl_variable_bind(const char *, const char *);
extern char **(*rl_attempted_completion_function)(const char *, int, int);
extern int rl_attempted_completion_over;
extern int rl_completion_append_character;
extern const char *rl_basic_quote_characters;
extern const char *rl_completer_word_break_characters;
extern const char *rl_readline_name;
extern char *rl_line_buffer;
extern int rl_point;
extern int rl_catch_signals;
extern void *rl_outstream;
]]

local C = ffi.C
local STDIN, STDOUT = 0, 1
local POLLIN, TAB, HISTORY_LINES = 1, 9, 2000
local SFD_NONBLOCK_CLOEXEC = 0x80800

local function load()
  local installed, lib = pcall(ffi.load, LIBRARY)
  return installed and lib or nil
end

--- Whether the library for editing is on this machine.
function M.is_installed() return load() ~= nil end

-- ---- Waiting -----------------------------------------------------------------------------------------------------------------

-- What waits for input or Ctrl-C: wait() -> "input", "interrupt" or "other" (a resized window).
local function waiter()
  local mask = ffi.new("fewhead_sigset")
  C.sigemptyset(mask)
  C.sigaddset(mask, posix.SIGINT)
  local fds = ffi.new("fewhead_pollfd[2]")
  fds[0].fd, fds[0].events = STDIN, POLLIN
  fds[1].fd, fds[1].events = C.signalfd(-1, mask, SFD_NONBLOCK_CLOEXEC), POLLIN
  return function(token)
    local ready = C.poll(fds, 2, -1)
    if posix.take(token) then return "interrupt" end
    return ready > 0 and fds[0].revents ~= 0 and "input" or "other"
  end
end

-- Whether standard input has more to read at once: what a paste without marks looks like.
local function more_waits()
  local fds = ffi.new("fewhead_pollfd[1]")
  fds[0].fd, fds[0].events = STDIN, POLLIN
  return C.poll(fds, 1, 0) > 0
end

-- ---- With readline -----------------------------------------------------------------------------------------------------------

-- Where a word starts, to readline. What is completed may start earlier or later; the difference is added or taken away here.
local WORD_BREAKS = " \t\n\"'`><=;|&{}()[]+-*/%^~#,"

-- What readline wants and later frees: a char ** of the longest common beginning, the choices if there are several, and NULL.
local function c_matches(found)
  if #found == 0 then return nil end
  local common = found[1]
  for _, choice in ipairs(found) do
    while choice:sub(1, #common) ~= common do common = common:sub(1, -2) end
  end
  local list = ffi.cast("char **", C.calloc(#found + 2, ffi.sizeof("char *")))
  list[0] = C.strdup(common)
  if #found > 1 then
    for i, choice in ipairs(found) do list[i] = C.strdup(choice) end
  end
  return list
end

-- The choices for what stands before the cursor, as replacements of the text from `start` (counted from 0) on.
local function choices(complete, before, start)
  local ok, first, list = pcall(complete, before)
  if not ok or not first then return {} end
  local found = {}
  for i, choice in ipairs(list) do
    local cut = start - (first - 1) -- bytes of the choice that lie before readline's word
    found[i] = cut >= 0 and choice:sub(cut + 1) or before:sub(start + 1, first - 1) .. choice
  end
  return found
end

local Editor = {}
Editor.__index = Editor

-- The callbacks live as long as the process, since readline keeps their addresses; Editor's own state is what they look at.
local function open_editor(lib, options)
  local self = setmetatable({ lib = lib, history = options.history, wait = waiter() }, Editor)
  if not posix.is_terminal(STDOUT) then lib.rl_outstream = C.stderr end
  lib.rl_readline_name = "fewhead"
  lib.rl_catch_signals = 0
  lib.rl_initialize()
  if (os.getenv("TERM") or "dumb") ~= "dumb" then lib.rl_variable_bind("enable-bracketed-paste", "on") end
  lib.rl_variable_bind("show-all-if-ambiguous", "on") -- a second tab lists nothing where TAB calls a function of ours
  lib.rl_completer_word_break_characters = WORD_BREAKS
  lib.rl_basic_quote_characters = "" -- readline closes no quote: a folder's name goes on
  lib.rl_attempted_completion_function = function(_, start)
    lib.rl_attempted_completion_over = 1 -- no file names where nothing matches
    lib.rl_completion_append_character = 0 -- readline sets it to a space before every call
    return c_matches(choices(options.complete, ffi.string(lib.rl_line_buffer, lib.rl_point), start))
  end
  -- A tab before the first word, or with more input behind it, is pasted or meant as it is.
  lib.rl_bind_key(TAB, function(count, key)
    local blank = not ffi.string(lib.rl_line_buffer, lib.rl_point):match("[^\n]*$"):find("%S")
    if blank or more_waits() then return lib.rl_insert(count, key) end
    return lib.rl_complete(count, key)
  end)
  self.take_line = ffi.cast("void (*)(char *)", function(line)
    self.done = true
    self.line = line ~= nil and ffi.string(line) or nil
    if line ~= nil then C.free(line) end
    lib.rl_callback_handler_remove() -- else readline prompts anew at once
  end)
  lib.stifle_history(HISTORY_LINES)
  for _, entry in ipairs(options.history and options.history.entries or {}) do lib.add_history(entry) end
  return self
end

-- Reads with SIGINT blocked; token as posix.block gave it.
local function edit(self, prompt, token)
  local lib = self.lib
  self.done, self.line = false, nil
  lib.rl_callback_handler_install(prompt, self.take_line)
  while not self.done do
    local what = self.wait(token)
    if what == "input" then lib.rl_callback_read_char()
    elseif what == "other" then lib.rl_resize_terminal()
    else
      lib.rl_free_line_state()
      lib.rl_callback_sigcleanup()
      lib.rl_cleanup_after_signal()
      lib.rl_callback_handler_remove()
      return "", true
    end
  end
  return self.line, false
end
jit.off(edit) -- a C function called from compiled code must not call back

function Editor:edit(prompt, token) return edit(self, prompt, token) end

function Editor:remember(entry)
  if not self.history or self.history:add(entry) then self.lib.add_history(entry) end
end

-- ---- Without it --------------------------------------------------------------------------------------------------------------

local Plain = {}
Plain.__index = Plain

local function open_plain(options)
  local self = setmetatable({ history = options.history, wait = waiter() }, Plain)
  self.stream = posix.is_terminal(STDOUT) and io.stdout or io.stderr
  return self
end

-- A terminal hands over one line at a time, so nothing waits in Lua's buffer while the terminal is waited for.
function Plain:edit(prompt, token)
  self.stream:write(prompt)
  self.stream:flush()
  local what
  repeat what = self.wait(token) until what ~= "other"
  if what == "interrupt" then return "", true end
  return io.read("*l"), false
end

function Plain:remember(entry)
  if self.history then self.history:add(entry) end
end

-- ---- Both --------------------------------------------------------------------------------------------------------------------

-- read(prompt) -> line, dropped, for a reader with edit(prompt, token).
local function read(self, prompt)
  io.stdout:flush()
  -- luajit's handler for Ctrl-C removes itself when it was used, so it is set again before each statement.
  self.handler = self.handler or C.signal(posix.SIGINT, nil)
  C.signal(posix.SIGINT, self.handler)
  local token = posix.block(posix.SIGINT)
  local ok, line, dropped = pcall(self.edit, self, prompt, token)
  if dropped then
    local stream = posix.is_terminal(STDOUT) and io.stdout or io.stderr
    stream:write("\n")
    stream:flush()
  end
  posix.unblock(token)
  if not ok then error(line, 0) end
  return line, dropped
end
jit.off(read)
Editor.read, Plain.read = read, read

--- A reader for the terminal on standard input. options: complete, history (fewhead.cli.history), both may be nil. Prompts and
-- what is typed go to standard output, or to standard error where standard output is no terminal. .edits: whether lines can be
-- edited.
-- Returns an object with read(prompt) -> line without its end, dropped; and remember(entry).
function M.open(options)
  local lib = load()
  local reader
  if lib then
    if not pcall(function() return lib.rl_point end) then ffi.cdef(readline_declarations) end
    reader = open_editor(lib, { complete = options.complete or function() end, history = options.history })
  else
    reader = open_plain(options)
  end
  reader.edits = lib ~= nil
  return reader
end

return M
