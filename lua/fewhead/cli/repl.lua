--- An interactive prompt with the library loaded: expressions print themselves, errors do not end it.
--
--     $ ./fewhead repl
--     > fh.gate.new{ min_sq = 512 }:native(8, 1024)
--     true
--
-- Line editing, history and completion come from GNU readline where its library is installed. Without a terminal (a pipe, a file)
-- the same statements are read without prompt, and the exit status is 1 when one of them failed.
local args = require "fewhead.base.arguments"
local exit = require "fewhead.cli.exit"
local options = require "fewhead.cli.options"
local posix = require "fewhead.base.posix"
local readline = require "fewhead.cli.readline"

local M = {}

-- ---- Printing ----------------------------------------------------------------------------------------------------------------

-- A table is printed on one line up to WIDTH columns, else indented and wrapped there; DEPTH tables deep, ITEMS entries a table.
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
    return exit.text(a) < exit.text(b)
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
  local lines, last = {}, ""
  for i, part in ipairs(parts) do
    part = part:gsub("\n", "\n  ") .. (i < #parts and "," or "")
    if last ~= "" and (#last + #part >= WIDTH or part:find("\n")) then
      lines[#lines + 1], last = last, ""
    end
    last = last == "" and "  " .. part or last .. " " .. part
  end
  lines[#lines + 1] = last
  return "{\n" .. table.concat(lines, "\n") .. "\n}"
end

function show(value, depth, above)
  local meta = getmetatable(value)
  local speaks = type(meta) == "table" and meta.__tostring
  if type(value) == "table" and not speaks then return show_table(value, depth, above) end
  if type(value) == "number" or type(value) == "string" then return args.show(value) end
  local ok, text = pcall(tostring, value)
  if ok and type(text) == "string" then return text end
  return ("a %s whose __tostring fails: %s"):format(type(value), exit.text(text))
end

--- How the prompt prints a value: tables by their contents, anything with a __tostring by that, strings in quotes. Text of
-- several lines (a table of results, say) is printed as it is.
function M.show(value)
  if type(value) == "string" then return value:find("\n") and value or ("%q"):format(value) end
  return show(value, DEPTH, {})
end

-- ---- Statements --------------------------------------------------------------------------------------------------------------

-- Lua's own message for text that ends too early.
local function incomplete(err) return err:find("'<eof>'$") ~= nil end

-- A compiled loop does not look for Ctrl-C, an interpreted one does; what is typed here is short enough to be interpreted.
local function interruptible(chunk)
  jit.off(chunk, true)
  return chunk
end

local function drop_first(_, ...) return ... end

--- Compile what was typed so far. Returns a function; or nil and the error; or nil alone when more lines are needed. An
-- expression, with or without "=" before it, returns its values.
function M.compile(text)
  local expression = text:match("^%s*=(.*)$")
  -- A plain `return f()` would be a tail call, and an error in f would not name the line that was typed.
  local values, err = loadstring("return nil, " .. (expression or text), "=repl")
  if values then return function() return drop_first(interruptible(values)()) end end
  if incomplete(err) then return nil end
  if not expression then
    local statement
    statement, err = loadstring(text, "=repl")
    if statement then return interruptible(statement) end
    if incomplete(err) then return nil end
  end
  return nil, err
end

local function print_values(...)
  for i = 1, select("#", ...) do print(M.show((select(i, ...)))) end
end

-- ---- Completion --------------------------------------------------------------------------------------------------------------

local keywords = {
  "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or", "repeat",
  "return", "then", "true", "until", "while",
}

-- An object, its class and that one's classes; more than that nobody completes.
local CLASSES = 4

-- The names that may stand after an object's "." or ":": its own and those of its metatable's __index tables.
local function fields(object)
  local names = {}
  for _ = 1, CLASSES do
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

--- Every way to complete `word`, sorted: globals and keywords, or the fields of what stands before its last "." or ":".
function M.complete(word)
  local head, tail = word:match("^(.*[.:])([%w_]*)$")
  local names
  if head then
    local object = _G
    for name in head:gmatch("[^.:]+") do
      local ok, value = pcall(function() return object[name] end)
      if not ok or value == nil then return {} end
      object = value
    end
    names = fields(object)
  else
    head, tail, names = "", word, fields(_G)
    for _, name in ipairs(keywords) do names[name] = true end
  end
  local found = {}
  for name in pairs(names) do
    if name:find("^%a[%w_]*$") and name:sub(1, #tail) == tail then found[#found + 1] = head .. name end
  end
  table.sort(found)
  return found
end

-- ---- The loop ----------------------------------------------------------------------------------------------------------------

local parser = options.new {
  name = "repl",
  usage = "fewhead repl",
  about = "An interactive prompt with the library loaded as `fh`. Statements may come from a pipe too.",
  options = {},
}

local banner = "fewhead %s. The library is `fh`; expressions print themselves; Ctrl-D leaves."

--- Read and run statements until the end of input. Returns the exit status.
function M.main(argv)
  parser:read(argv)
  _G.fh = require "fewhead"
  local interactive = posix.is_terminal(0)
  local read = readline.open(interactive, M.complete)
  if interactive then print(banner:format(_G.fh.VERSION)) end

  local failed = false
  local function fail(err)
    failed = true
    io.stdout:flush()
    io.stderr:write(exit.is_interrupt(err) and "interrupted" or exit.text(err), "\n")
  end

  local typed -- lines of a statement that is not complete yet
  local function step()
    local line, dropped = read(typed ~= nil)
    if dropped then typed = nil end
    if not line then return true end
    local text = typed and typed .. "\n" .. line or line
    local chunk, err = M.compile(text)
    typed = nil
    if chunk then print_values(chunk())
    elseif err then error(err, 0)
    else typed = text
    end
  end
  repeat
    local ok, ended = pcall(step)
    if not ok then fail(ended) end
  until ok and ended
  if typed then fail((select(2, loadstring(typed, "=repl")))) end
  if interactive then print() end
  return failed and not interactive and exit.FAILED or 0
end

return M
