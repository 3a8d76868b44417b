--- What may stand at the cursor of a prompt: names, fields and methods, options of the library's calls, their values, files.
--
--     local first, list = complete.at(_G, "fh.case { pat")       --> 11, { "pattern" }
--
-- Nothing that was typed is called. What a call gives is known by the file of the function: an object of the class that stands
-- there. Option names come from the library itself: a call with an option that there is not says which there are.
local checkout = require "fewhead.base.checkout"
local F = require "fewhead.base.ffi"
local help = require "fewhead.cli.help"
local posix = require "fewhead.base.posix"
local statement = require "fewhead.cli.statement"

local ffi = F.ffi
local M = {}

local keywords = {
  "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or", "repeat",
  "return", "then", "true", "until", "while",
}

local function text_of(path)
  local file = path and io.open(path)
  local text = file and file:read("*a")
  if file then file:close() end
  return text or ""
end

-- ---- What an object has ------------------------------------------------------------------------------------------------------

-- The declarations of the library's header without comments.
local function header()
  local text = text_of(checkout.modules .. "fewhead.h") -- of an installed copy
  if text == "" then text = text_of((checkout.root or "") .. "lib/include/fewhead.h") end
  return (text:gsub("/%*.-%*/", ""))
end

-- The fields of a C struct of the library by its type's name.
local function struct_fields(name)
  local names = {}
  local body = header():match("struct " .. name .. " (%b{})") or ""
  for field in body:gsub("%b[]", ""):gmatch("([%a_][%w_]*)%s*[;,]") do
    names[field] = true
  end
  return names
end

-- An object, its class and that one's classes; more than that nobody completes.
local CLASSES = 4

local function table_fields(object)
  local names = {}
  for _, one in ipairs(help.methods(object)) do names[one[1]] = true end
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

-- The names after an object's "." or ":".
local function fields(object)
  if rawequal(object, F.C) then
    local names = {}
    for name in header():gmatch("%f[%w_][Ff][Hh]_[%w_]+") do names[name] = true end
    return names
  end
  if type(object) == "cdata" then
    return struct_fields(tostring(ffi.typeof(object)):match("struct ([%w_]+)") or "")
  end
  return table_fields(type(object) == "string" and string or object)
end

-- The methods of the classes that a file defines.
local function methods_in(path)
  local names = {}
  for class, name in text_of(path):gmatch("\nfunction (%a%w*):([%a][%w_]*)%(") do
    if class:find("^%u") or class == "method" then names[name] = true end
  end
  return names
end

-- Functions that give an object of another file's class, by their name.
local ELSEWHERE = { problem = "fewhead.case.problem", open = "fewhead.device.device" }

-- ---- What stands before the cursor -------------------------------------------------------------------------------------------

local function is_callable_module(value)
  local meta = type(value) == "table" and getmetatable(value)
  return type(meta) == "table" and meta.__call and (rawget(value, "new") or rawget(value, "run"))
end

local OPENING = { [")"] = "(", ["]"] = "[", ["}"] = "{" }

-- The place of the bracket that words[i] closes; nil without one.
local function opening(words, i)
  local depth = 0
  for j = i, 1, -1 do
    local text = words[j].text
    if OPENING[text] then depth = depth + 1
    elseif text == "(" or text == "[" or text == "{" then
      depth = depth - 1
      if depth == 0 then return j end
    end
  end
end

-- The steps of the expression that ends with words[last], first step first: { field = name }, { index = word } or
-- { call = true }; nil where it does not start with a name. Also the place of its first word.
local function steps_of(words, last)
  local steps, i = {}, last
  local function put(step) table.insert(steps, 1, step) end
  while i >= 1 do
    local word = words[i]
    if OPENING[word.text] then
      local first = opening(words, i)
      if not first then return nil end
      if word.text == "]" then put { index = first == i - 2 and words[i - 1] or nil } else put { call = true } end
      i = first - 1
    elseif word.kind == "string" then
      put { call = true }
      i = i - 1
    elseif word.kind == "name" then
      put { field = word.text }
      if i == 1 or not (words[i - 1].text == "." or words[i - 1].text == ":") then return steps, i end
      i = i - 2
    else return nil
    end
  end
end

-- What an expression is without calling anything: { value = }, { path = of the file with its class }, or nil.
local function resolve(environment, steps)
  local now, name = { value = environment }, nil
  for _, step in ipairs(steps or {}) do
    if step.call then
      local f = is_callable_module(now.value) or now.value
      local path = ELSEWHERE[name] and package.searchpath(ELSEWHERE[name], package.path)
        or (type(f) == "function" and checkout.place(f)) or now.path
      if not path then return nil end
      now = { path = path }
    elseif now.path then
      name = step.field -- a method of the class; what it gives is of the same file, unless ELSEWHERE says otherwise
    else
      local key = step.field
      if step.index then
        local literal = (step.index.kind == "number" or step.index.kind == "string") and loadstring("return " .. step.index.text)
        key = literal and literal()
      end
      local ok, value = pcall(function() return now.value[key] end)
      if not ok or value == nil then return nil end
      now, name = { value = value }, step.field
    end
  end
  return now
end

-- ---- Options -----------------------------------------------------------------------------------------------------------------

-- The option names of the library's call of `f`: what it says when it is given one that there is not. self: of a method.
local function options_of(f, self)
  local path = type(f) == "function" and checkout.place(f)
  if not path or path:sub(1, #checkout.modules) ~= checkout.modules then return {} end
  local text = text_of(path)
  if not text:find("args.options(", 1, true) and not text:find("option.table(", 1, true) then return {} end
  local ask, names = { [" "] = true }, {}
  local ok, err
  if self ~= nil then ok, err = pcall(f, self, ask) else ok, err = pcall(f, ask) end
  for name in (not ok and tostring(err):match("unknown option .*known: (.*)$") or ""):gmatch("[%w_]+") do
    names[#names + 1] = name
  end
  return names
end

-- The values that an option takes, where they are names.
local function values_of(key)
  local fh = require "fewhead"
  if key == "preset" then return fh.preset.names() end
  if key == "pattern" or key == "layout" then return fh[key].names end
  if key == "device" then return fh.device.names() end
  if key == "path" or key == "paths" then
    local list = fh.path.names()
    list[#list + 1] = "native"
    return list
  end
  local row = require("fewhead.cli.options").shared()[key]
  return row and row.choices or {}
end

-- The innermost brace that is open at the end of words: its place; nil for none.
local function open_brace(words, last)
  local depth = 0
  for i = last, 1, -1 do
    local text = words[i].text
    if OPENING[text] then depth = depth + 1
    elseif text == "(" or text == "[" or text == "{" then
      if depth == 0 then return text == "{" and i or nil end
      depth = depth - 1
    end
  end
end

-- What is called with the table that words[brace] opens as its first argument: the function and, for a method, its object.
local function callee(environment, words, brace)
  local last = brace - 1
  if words[last] and words[last].text == "(" then last = last - 1 end
  local steps, first = steps_of(words, last)
  local found = steps and resolve(environment, steps)
  if not found or not found.value then return nil end
  local self
  if words[last - 1] and words[last - 1].text == ":" and last > first then
    steps[#steps] = nil
    self = resolve(environment, steps)
  end
  return is_callable_module(found.value) or found.value, self and self.value
end

-- The option whose value stands at the end of words, KEY = or KEY = {: its name; nil for none.
local function key_at(words, last)
  if words[last] and words[last].text == "=" and words[last - 1].kind == "name" then return words[last - 1].text end
  local brace = open_brace(words, last)
  if brace and brace > 2 and words[brace - 1].text == "=" then return words[brace - 2].text end
end

-- Whether the second argument of fh.compare is open: a list of paths.
local function is_paths(words, last)
  local brace = open_brace(words, last)
  if not brace or not words[brace - 1] or words[brace - 1].text ~= "," then return false end
  for i = brace, 1, -1 do
    if words[i].text == "compare" then return true end
  end
  return false
end

-- ---- Completing --------------------------------------------------------------------------------------------------------------

-- Those that start with `tail`, sorted.
local function starting(names, tail)
  local found = {}
  for _, name in ipairs(names) do
    if name:sub(1, #tail) == tail then found[#found + 1] = name end
  end
  table.sort(found)
  return found
end

local function list_of(set)
  local list = {}
  for name in pairs(set) do
    if name:find("^%a[%w_]*$") then list[#list + 1] = name end
  end
  return list
end

local function files(tail)
  local list = posix.glob(tail, "*")
  for i, path in ipairs(list) do
    local folder = io.open(path .. "/.")
    if folder then
      folder:close()
      list[i] = path .. "/"
    end
  end
  return list
end

-- The words of text, comments left out; whether the end lies in a comment.
local function words_of(text)
  local words, all = {}, statement.words(text)
  for _, word in ipairs(all) do
    word.text = text:sub(word.first, word.last)
    if word.kind ~= "comment" then words[#words + 1] = word end
  end
  local last = all[#all]
  return words, last ~= nil and last.kind == "comment" and last.last == #text
end

local function in_string(words, string, text)
  local first = string.first + #(string.text:match("^%[=*%[") or " ")
  local tail = text:sub(first)
  local key = key_at(words, #words) or (is_paths(words, #words) and "paths")
  local values = key and values_of(key) or {}
  if #values > 0 then return first, starting(values, tail) end
  return first, files(tail)
end

--- Every way to complete the end of `text`: the place in text from which on it is replaced, and the sorted choices. environment:
-- what names stand for, _G or that of a statement session, whose locals are in `locals`.
function M.at(environment, text, locals)
  local words, comment = words_of(text)
  if comment then return #text + 1, {} end
  local last = words[#words]
  if last and last.open then
    words[#words] = nil
    return in_string(words, last, text)
  end
  local tail = ""
  if last and last.kind == "name" and last.last == #text then
    tail = last.text
    words[#words] = nil
  end
  local first, before = #text + 1 - #tail, words[#words]
  if before and (before.text == "." or before.text == ":") then
    local found = resolve(environment, steps_of(words, #words - 1) or { { field = " " } })
    if not found then return first, {} end
    return first, starting(list_of(found.path and methods_in(found.path) or fields(found.value)), tail)
  end
  local key = tail == "" and key_at(words, #words)
  if key and #values_of(key) > 0 then
    local quoted = {}
    for i, value in ipairs(values_of(key)) do quoted[i] = ("%q"):format(value) end
    return first, starting(quoted, "")
  end
  local brace = open_brace(words, #words)
  if brace and (before.text == "{" or before.text == "," or before.text == ";") then
    local names = starting(options_of(callee(environment, words, brace)), tail)
    if #names > 0 then return first, names end
  end
  local known = fields(_G)
  for name in pairs(locals or {}) do known[name] = true end
  for _, name in ipairs(keywords) do known[name] = true end
  return first, starting(list_of(known), tail)
end

return M
