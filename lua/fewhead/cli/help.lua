--- Help: the docstring of a function, the head comment of a module, the methods of an object, read from the sources as they run.
--
--     print(help.about("fh.case", fh.case))
--
-- A docstring is the comment right above a function; its first line starts with three dashes. Lines that start with @ are LDoc's.
local checkout = require "fewhead.base.checkout"

local M = {}

-- ---- Sources -----------------------------------------------------------------------------------------------------------------

-- The lines of a file; nil for none, or one that is gone.
local function lines_of(path)
  local file = path and io.open(path)
  if not file then return nil end
  local list = {}
  for line in file:lines() do list[#list + 1] = line end
  file:close()
  return list
end

-- The text of comment lines, without the tags that only LDoc reads.
local function text_of(lines, first, last)
  local text = {}
  for i = first, last do
    if not lines[i]:find("^%-%- @%a") then text[#text + 1] = (lines[i]:gsub("^%-%-%-? ?", "")) end
  end
  return #text > 0 and table.concat(text, "\n") or nil
end

-- The comment that ends above line `at`: its text, or nil.
local function comment_above(lines, at)
  local first = at
  while first > 1 and lines[first - 1]:find("^%-%-") do first = first - 1 end
  while first < at and not lines[first]:find("^%-%-%-") do first = first + 1 end -- what stands before is about something else
  if first == at then return nil end
  return text_of(lines, first, at - 1)
end

-- The comment at the head of a file, up to its first line of code.
local function head_comment(lines)
  local last = 0
  while lines[last + 1] and lines[last + 1]:find("^%-%-") do last = last + 1 end
  return text_of(lines, 1, last)
end

--- The name under which a module of this library was required; nil for a table that is none.
function M.module_name(value)
  for name, loaded in pairs(package.loaded) do
    if loaded == value and name:find("^fewhead") then return name end
  end
end

--- The function that a callable module of this library calls, fh.case.new for fh.case; nil for other values.
function M.main(value)
  local meta = type(value) == "table" and getmetatable(value)
  if type(meta) ~= "table" or not meta.__call then return nil end
  local name = M.module_name(value)
  return rawget(value, "new") or rawget(value, "run") or name and rawget(value, name:match("[^.]*$")) or nil
end

--- The head comment of a module of this library by its name in package.loaded form, "fewhead.case.case"; nil without one.
function M.of_module(name)
  local lines = lines_of((package.searchpath(name, package.path)))
  return lines and head_comment(lines)
end

--- The text of a function's docstring below its signature, nil for a function without one; and the signature, nil for one of C.
function M.of_function(f)
  local path, at = checkout.place(f)
  local lines = lines_of(path)
  local signature = lines and lines[at]
  if not signature then return nil end
  local text = comment_above(lines, at)
  signature = signature:gsub("^%s*local%s+", ""):gsub("^%s*function%s+", ""):match("^(.-%b())") or signature
  return text and signature .. "\n" .. text, signature
end

-- ---- Objects -----------------------------------------------------------------------------------------------------------------

--- The methods of an object: a list of { name, function }, sorted. Those of its metatable's __index, where that is a table.
function M.methods(object)
  local meta = getmetatable(object)
  local class = type(meta) == "table" and rawget(meta, "__index")
  if type(class) == "function" then -- a class that hides its methods in a table of its own
    local find, i = class, 1
    repeat
      local name, value = debug.getupvalue(find, i)
      if type(value) == "table" and (name == "method" or value == meta) then class = value end
      i = i + 1
    until not name or class ~= find
  end
  local list = {}
  for name, value in pairs(type(class) == "table" and class or {}) do
    if type(name) == "string" and type(value) == "function" and not name:find("^_") then list[#list + 1] = { name, value } end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

-- The first sentence of a docstring, without the signature above it.
local function first_sentence(doc)
  local text = (doc or ""):match("\n(.*)$") or ""
  text = text:gsub("\n", " ")
  return text:match("^(.-%.)%s") or text
end

local function list_functions(functions)
  local lines = {}
  for _, one in ipairs(functions) do
    local doc, signature = M.of_function(one[2])
    lines[#lines + 1] = ("  %-40s %s"):format((signature or one[1]):gsub("^%w+([.:])", "%1"), first_sentence(doc))
  end
  return lines
end

local function functions_of(module)
  local list = {}
  for name, value in pairs(module) do
    if type(name) == "string" and not name:find("^_") and type(value) == "function" then list[#list + 1] = { name, value } end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

-- A function's docstring below its signature, under the name that was asked for.
local function called(name, f)
  local doc, signature = M.of_function(f)
  return doc and name .. (signature:match("%b()") or "") .. doc:sub(#signature + 1)
end

--- Help on a value as text. name: how it was called.
function M.about(name, value)
  if value == nil then return ("%s is nil: no help"):format(name) end
  if type(value) == "function" then return called(name, value) or name .. " has no docstring" end
  local module = type(value) == "table" and M.module_name(value)
  if module then
    local parts = { M.of_module(module) or name }
    local main = M.main(value)
    parts[#parts + 1] = main and called(name, main) or nil
    local functions = list_functions(functions_of(value))
    if #functions > 0 then parts[#parts + 1] = "functions:\n" .. table.concat(functions, "\n") end
    return table.concat(parts, "\n\n")
  end
  local methods = (type(value) == "table" or type(value) == "userdata") and list_functions(M.methods(value)) or {}
  local meta = getmetatable(value)
  local kind = type(meta) == "table" and type(meta.__name) == "string" and meta.__name or type(value)
  local text = ("%s is a %s"):format(name, kind)
  return #methods > 0 and ("%s\nmethods:\n%s"):format(text, table.concat(methods, "\n")) or text
end

-- A line broken at spaces. What goes on stands below the line's second column where that begins in the left half, else below its
-- first word.
local function wrapped_line(line, columns)
  local hang = line:match("^%s*%S+.-%s%s+()%S") or line:match("^%s*()")
  hang = hang - 1 <= columns / 2 and hang - 1 or #line:match("^%s*")
  local lines, now = {}, ""
  for blank, word in line:gmatch("(%s*)(%S+)") do
    if now:find("%S") and #now + #blank + #word > columns then
      lines[#lines + 1], now, blank = now, (" "):rep(hang), ""
    end
    now = now .. blank .. word
  end
  lines[#lines + 1] = now
  return table.concat(lines, "\n")
end

--- Text whose lines are wider than so many columns, broken at spaces. columns: at least 1; nil leaves the text as it is.
function M.wrapped(text, columns)
  if not columns then return text end
  return (text:gsub("[^\n]+", function(line) return #line > columns and wrapped_line(line, columns) or nil end))
end

-- ---- What there is -----------------------------------------------------------------------------------------------------------

local function first_line(text) return (text or ""):match("^[^\n]*") end

--- The experiments that are here: a list of { name, path, about = the first line of the head comment }, sorted.
function M.experiments()
  local posix = require "fewhead.base.posix"
  local root, list = checkout.shipped() or ".", {}
  for _, pattern in ipairs { "/experiments/*.lua", "/experiments/*/*.lua" } do
    for _, path in ipairs(posix.glob(root, pattern)) do
      local lines = lines_of(path)
      local about = lines and head_comment(lines)
      if about then
        local name = path:sub(#root + #"/experiments/" + 1):gsub("%.lua$", "")
        list[#list + 1] = { name = name, path = path, about = first_line(about) }
      end
    end
  end
  return list
end

--- Modules, presets, patterns, layouts, paths and experiments, as text.
function M.overview()
  local fh = require "fewhead"
  local lines = { "modules, by room:" }
  for _, room in ipairs(fh._rooms) do
    for _, name in ipairs(room[2]) do
      local about = first_line(M.of_module(("fewhead.%s.%s"):format(room[1], name))):gsub("^[%w_ ]+: ", "")
      lines[#lines + 1] = ("  fh.%-16s %s"):format(name, about)
    end
  end
  local function names(title, list) lines[#lines + 1] = ("%s: %s"):format(title, table.concat(list, ", ")) end
  names("patterns", fh.pattern.names)
  names("layouts", fh.layout.names)
  names("paths", fh.path.names())
  names(('presets, such as "%s tp8"'):format(fh.preset.models()[1]), fh.preset.models())
  lines[#lines + 1] = "experiments (fewhead run NAME):"
  for _, one in ipairs(M.experiments()) do lines[#lines + 1] = ("  %-18s %s"):format(one.name, one.about) end
  return table.concat(lines, "\n")
end

return M
