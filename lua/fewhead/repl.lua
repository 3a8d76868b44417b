--- An interactive prompt with the library loaded: expressions print themselves, errors do not end it.
--
--     $ ./fewhead repl
--     > fh.gate.new{ min_sq = 512 }:native(8, 1024)
--     true
--
-- Line editing, history and completion come from GNU readline where its library is installed. Without a terminal (a pipe, a file)
-- the same statements are read without prompt, and the exit status is 1 when one of them failed.
local ffi = require "ffi"
local args = require "fewhead.args"
local cli = require "fewhead.cli"

local M = {}

ffi.cdef [[
int isatty(int);
int mkdir(const char *, unsigned int);
char *strdup(const char *);
void *calloc(size_t, size_t);
void free(void *);
void (*signal(int, void (*)(int)))(int);
int abs(int);
]]

-- ---- Printing -----------------------------------------------------------------------------------------------------------------

-- A table is printed on one line up to WIDTH columns, then with one entry a line; DEPTH tables deep, ITEMS entries a table.
local WIDTH, DEPTH, ITEMS = 100, 3, 32

local show

local function key_text(key)
  if type(key) == "string" and key:find("^[%a_][%w_]*$") then return key end
  return "[" .. args.show(key) .. "]"
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then return type(a) < type(b) end
    if type(a) == "number" or type(a) == "string" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

local function show_table(t, depth, above)
  if above[t] then return "{ itself }" end
  if next(t) == nil then return "{}" end
  if depth == 0 then return "{ .. }" end
  above[t] = true
  local parts, shown = {}, {}
  for i, value in ipairs(t) do
    if i > ITEMS then break end
    parts[i], shown[i] = show(value, depth - 1, above), true
  end
  for _, key in ipairs(sorted_keys(t)) do
    if #parts > ITEMS then break end
    local in_list = type(key) == "number" and key >= 1 and key <= #t and key == math.floor(key)
    if not shown[key] and not in_list then
      parts[#parts + 1] = key_text(key) .. " = " .. show(t[key], depth - 1, above)
    end
  end
  above[t] = nil
  local count = 0
  for _ in pairs(t) do count = count + 1 end
  if count > ITEMS then
    parts[ITEMS + 1] = (".. %d more"):format(count - ITEMS)
    for i = ITEMS + 2, #parts do parts[i] = nil end
  end
  local line = "{ " .. table.concat(parts, ", ") .. " }"
  if #line <= WIDTH and not line:find("\n") then return line end
  return "{\n  " .. table.concat(parts, ",\n"):gsub("\n", "\n  ") .. "\n}"
end

function show(value, depth, above)
  local meta = getmetatable(value)
  if type(value) == "table" and not (type(meta) == "table" and meta.__tostring) then return show_table(value, depth, above) end
  if type(value) == "number" or type(value) == "string" then return args.show(value) end
  return tostring(value)
end

--- How the prompt prints a value: tables by their contents, anything with a __tostring by that, strings in quotes. Text of several
-- lines (a table of results, say) is printed as it is.
function M.show(value)
  if type(value) == "string" then return value:find("\n") and value or ("%q"):format(value) end
  return show(value, DEPTH, {})
end

-- ---- Statements ---------------------------------------------------------------------------------------------------------------

-- Lua's own message for text that ends too early.
local function incomplete(err) return err:find("'<eof>'$") ~= nil end

--- Compile what was typed so far. Returns a function; or nil and the error; or nil alone when more lines are needed. An expression,
-- with or without "=" before it, returns its values.
function M.compile(text)
  local expression = text:match("^%s*=(.*)$")
  local chunk, err = loadstring("return " .. (expression or text), "=repl")
  if chunk then return chunk end
  if not expression then chunk, err = loadstring(text, "=repl") end
  if chunk then return chunk end
  if incomplete(err) then return nil end
  return nil, err
end

local function print_values(...)
  for i = 1, select("#", ...) do print(M.show((select(i, ...)))) end
end

-- ---- Line editing -------------------------------------------------------------------------------------------------------------

local HISTORY_LINES = 2000

-- Words end at these: not at "." and ":", which completion follows.
local WORD_BREAKS = " \t\n\"'`><=;|&{}()[]+-*/%^~#,"

local function history_path()
  local state = os.getenv("XDG_STATE_HOME")
  local home = os.getenv("HOME")
  if not state or state == "" then state = home and home ~= "" and home .. "/.local/state" end
  if not state then return nil end
  local folder = state .. "/fewhead"
  for at in folder:gmatch("()/") do
    if at > 1 then ffi.C.mkdir(folder:sub(1, at - 1), tonumber("700", 8)) end
  end
  ffi.C.mkdir(folder, tonumber("700", 8))
  return folder .. "/history"
end

local keywords = {
  "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or", "repeat",
  "return", "then", "true", "until", "while",
}

-- The names that may stand after the last "." or ":" of an object: its own and those of its metatable's __index tables.
local function fields(object)
  local names = {}
  for _ = 1, 4 do -- an object, its class and that one's classes; more than that nobody completes
    if type(object) ~= "table" then break end
    for key in pairs(object) do
      if type(key) == "string" then names[key] = true end
    end
    for _, name in ipairs(rawget(object, "_names") or {}) do names[name] = true end -- modules that are not loaded yet
    local meta = getmetatable(object)
    object = type(meta) == "table" and rawget(meta, "__index")
  end
  return names
end

--- Every way to complete `word`, sorted: globals and keywords, and the fields of what stands before the last "." or ":".
function M.complete(word)
  local head, mark, tail = word:match("^(.*)([.:])([%w_]*)$")
  local names
  if head then
    local object = _G
    for name in head:gmatch("[^.:]+") do
      local ok, value = pcall(function() return object[name] end)
      object = ok and value or nil
      if object == nil then return {} end
    end
    names = fields(object)
    head = head .. mark
  else
    head, tail, names = "", word, fields(_G)
    for _, name in ipairs(keywords) do names[name] = true end
  end
  local found = {}
  for name in pairs(names) do
    if name:sub(1, #tail) == tail and name:sub(1, 1) ~= "_" and name:find("^[%a_][%w_]*$") then found[#found + 1] = head .. name end
  end
  table.sort(found)
  return found
end

local SIGINT = 2

-- readline(3) and history(3) through ffi; nil where the library is not installed.
local function load_readline()
  local ok, lib = pcall(ffi.load, "libreadline.so.8")
  if not ok then return nil end
  ffi.cdef [[
  typedef char **fh_rl_completer(const char *, int, int);
  char *readline(const char *);
  void add_history(const char *);
  int read_history(const char *);
  int write_history(const char *);
  void stifle_history(int);
  void rl_replace_line(const char *, int);
  extern fh_rl_completer *rl_attempted_completion_function;
  extern int rl_attempted_completion_over;
  extern int rl_completion_append_character;
  extern const char *rl_completer_word_break_characters;
  extern const char *rl_readline_name;
  extern int (*rl_signal_event_hook)(void);
  extern int rl_done;
  ]]
  return lib
end

-- A char ** as readline wants it, which readline frees: the common beginning, the choices, NULL.
local function c_matches(found)
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

-- Returns read(prompt) -> line, or nil at the end of input.
local function editing_reader(lib)
  lib.rl_readline_name = "fewhead"
  lib.rl_completer_word_break_characters = WORD_BREAKS
  lib.rl_completion_append_character = 0
  -- The callbacks live as long as the process: readline keeps their addresses.
  lib.rl_attempted_completion_function = ffi.cast("fh_rl_completer *", function(word)
    lib.rl_attempted_completion_over = 1 -- do not fall back to file names
    local found = M.complete(ffi.string(word))
    return #found > 0 and c_matches(found) or nil
  end)
  -- Ctrl-C at the prompt drops the line that was being typed.
  lib.rl_signal_event_hook = ffi.cast("int (*)(void)", function()
    lib.rl_replace_line("", 0)
    lib.rl_done = 1
    return 0
  end)
  local path = history_path()
  lib.stifle_history(HISTORY_LINES)
  if path then lib.read_history(path) end
  local last
  local function read(prompt)
    -- While a statement runs Ctrl-C is luajit's: it interrupts the statement. Its handler is put aside here, because it would raise
    -- an error in the callbacks above; a handler must be there, or Ctrl-C would end the process, and abs does nothing.
    local running = ffi.C.signal(SIGINT, ffi.cast("void (*)(int)", ffi.C.abs))
    local line = lib.readline(prompt)
    ffi.C.signal(SIGINT, M.interrupt_handler or running)
    if line == nil then return nil end
    local text = ffi.string(line)
    ffi.C.free(line)
    if text:find("%S") and text ~= last then
      lib.add_history(text)
      if path then lib.write_history(path) end
      last = text
    end
    return text
  end
  jit.off(read) -- C code called from compiled code must not call back
  return read
end

local function plain_reader(prompting)
  return function(prompt)
    if prompting then
      io.stdout:write(prompt)
      io.stdout:flush()
    end
    return io.read("*l")
  end
end

-- ---- The loop -----------------------------------------------------------------------------------------------------------------

local options = cli.options {
  name = "repl",
  usage = "fewhead repl",
  about = "An interactive prompt with the library loaded as `fh`. Reads statements from a pipe too.",
  options = {},
}

--- Read and run statements until the end of input. Returns the exit status.
function M.main(argv)
  options:read(argv)
  local interactive = ffi.C.isatty(0) == 1
  _G.fh = require "fewhead"
  local lib = interactive and load_readline()
  local read = lib and editing_reader(lib) or plain_reader(interactive)
  if interactive then
    print(("fewhead %s on %s. The library is `fh`; expressions print themselves; Ctrl-D leaves."):format(_G.fh.VERSION, jit.version))
  end
  local failed = false
  local function fail(err)
    failed = true
    io.stdout:flush()
    io.stderr:write(cli.is_interrupt(err) and "interrupted" or tostring(err), "\n")
  end
  local text
  while true do
    local line = read(text and ">> " or "> ")
    if not line then break end
    text = text and text .. "\n" .. line or line
    local chunk, err = M.compile(text)
    if chunk then
      text = nil
      local function finish(ok, ...)
        if not ok then return fail((...)) end
        local printed, print_error = pcall(print_values, ...)
        if not printed then fail(print_error) end
      end
      finish(pcall(chunk))
    elseif err then
      text = nil
      fail(err)
    end
  end
  if text then
    local _, err = loadstring(text, "=repl")
    fail(err)
  end
  if interactive then print() end
  return failed and not interactive and cli.FAILED or 0
end

return M
