--- Lines from a person or a pipe: with editing, history and completion where GNU readline is installed, plainly elsewhere.
--
--     local read = readline.open(posix.is_terminal(0), complete)
--     local line = read(false)        -- nil at the end of input; true: the line continues a statement
--     -- complete(word) -> sorted list of whole words
local ffi = require "ffi"
local posix = require "fewhead.base.posix"

local M = {}

ffi.cdef [[
char *strdup(const char *);
void *calloc(size_t, size_t);
void free(void *);
void (*signal(int, void (*)(int)))(int);
int abs(int);
]]

-- readline(3) and history(3), version 8.
local LIBRARY = "libreadline.so.8"
local readline_declarations = [[
char *readline(const char *);
void add_history(const char *);
int read_history(const char *);
int write_history(const char *);
void stifle_history(int);
void rl_replace_line(const char *, int);
int rl_set_prompt(const char *);
int rl_crlf(void);
int rl_on_new_line(void);
void rl_redisplay(void);
extern char **(*rl_attempted_completion_function)(const char *, int, int);
extern int rl_attempted_completion_over;
extern int rl_completion_append_character;
extern const char *rl_completer_word_break_characters;
extern int (*rl_signal_event_hook)(void);
]]

local FIRST_PROMPT, NEXT_PROMPT = "> ", ">> "

local HISTORY_LINES = 2000

-- A word that is completed starts after one of these: "." and ":" are not among them.
local WORD_BREAKS = " \t\n\"'`><=;|&{}()[]+-*/%^~#,"

-- A handler for signal(2).
local do_nothing = ffi.cast("void (*)(int)", ffi.C.abs)

local function load()
  local installed, lib = pcall(ffi.load, LIBRARY)
  return installed and lib or nil
end

--- Whether the library for editing is on this machine.
function M.is_installed() return load() ~= nil end

-- fewhead/history in the person's folder for such things, $XDG_STATE_HOME or ~/.local/state, made if need be; nil without one.
local function history_file()
  local state, home = os.getenv("XDG_STATE_HOME"), os.getenv("HOME")
  if not state or state == "" then
    if not home or home == "" then return nil end
    state = home .. "/.local/state"
  end
  local path = state .. "/fewhead/history"
  return posix.make_folders(path) and path
end

-- What readline wants and later frees: a char ** of the longest common beginning, the choices if there are several, and NULL.
local function c_matches(found)
  if #found == 0 then return nil end
  local common = found[1]
  for _, choice in ipairs(found) do
    while choice:sub(1, #common) ~= common do common = common:sub(1, -2) end
  end
  local list = ffi.cast("char **", ffi.C.calloc(#found + 2, ffi.sizeof("char *")))
  list[0] = ffi.C.strdup(common)
  if #found > 1 then
    for i, choice in ipairs(found) do list[i] = ffi.C.strdup(choice) end
  end
  return list
end

local function editing_reader(lib, complete)
  lib.rl_completer_word_break_characters = WORD_BREAKS
  -- Both callbacks live as long as the process, since readline keeps their addresses.
  lib.rl_attempted_completion_function = function(word)
    lib.rl_attempted_completion_over = 1 -- no file names where nothing matches
    lib.rl_completion_append_character = 0 -- readline sets it to a space before every call
    return c_matches(complete(ffi.string(word)))
  end
  -- Ctrl-C drops what is being typed and starts afresh on the next line.
  local dropped
  lib.rl_signal_event_hook = function()
    dropped = true
    lib.rl_replace_line("", 0)
    lib.rl_set_prompt(FIRST_PROMPT)
    lib.rl_crlf()
    lib.rl_on_new_line()
    lib.rl_redisplay()
    return 0
  end
  local path = history_file()
  lib.stifle_history(HISTORY_LINES)
  if path then lib.read_history(path) end

  -- luajit's own handler interrupts the Lua code that runs. At the prompt it is put aside: it would raise its error inside the
  -- callbacks. Once used it removes itself, so it is set again after every line.
  local interrupt_lua = ffi.C.signal(posix.SIGINT, do_nothing)
  local last
  local function read(continued)
    dropped = false
    ffi.C.signal(posix.SIGINT, do_nothing)
    local line = lib.readline(continued and NEXT_PROMPT or FIRST_PROMPT)
    ffi.C.signal(posix.SIGINT, interrupt_lua)
    if line == nil then return nil end
    local text = ffi.string(line)
    ffi.C.free(line)
    if text:find("%S") and text ~= last then
      lib.add_history(text)
      if path then lib.write_history(path) end
      last = text
    end
    return text, dropped
  end
  jit.off(read) -- a C function called from compiled code must not call back
  return read
end

--- Returns read(continued) -> line, dropped. line is the next one without its end, nil at the end of input; `continued` chooses
-- the prompt, and there is none unless `interactive`. dropped: Ctrl-C threw away the lines that this one was to continue.
function M.open(interactive, complete)
  if not interactive then return function() return io.read("*l") end end
  local lib = load()
  if lib then
    ffi.cdef(readline_declarations)
    return editing_reader(lib, complete)
  end
  return function(continued)
    io.stdout:write(continued and NEXT_PROMPT or FIRST_PROMPT)
    io.stdout:flush()
    return io.read("*l")
  end
end

return M
