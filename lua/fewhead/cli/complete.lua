--- What may stand at the cursor of a prompt: names, fields and methods, options of the library's calls, their values, files.
--
--     local first, list = complete.at(_G, "fh.case { pat")       --> 11, { "pattern" }
--
-- Nothing that was typed is called. What a call gives is known by the file of the function: an object of the class that stands
-- there. Option names and values come from the library itself (fewhead.cli.takes).
-- @module fewhead.cli.complete
local checkout = require "fewhead.base.checkout"
local command = require "fewhead.cli.command"
local F = require "fewhead.base.ffi"
local help = require "fewhead.cli.help"
local posix = require "fewhead.base.posix"
local statement = require "fewhead.cli.statement"
local takes = require "fewhead.cli.takes"

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

-- Those of the names after an object's ":" that can be called.
local function methods(object)
  local names, lazy = fields(object), type(object) == "table" and rawget(object, "_names") or {}
  for _, name in ipairs(lazy) do names[name] = nil end -- modules, which asking would load
  for name in pairs(names) do
    local ok, value = pcall(function() return object[name] end)
    if not ok or type(value) ~= "function" then names[name] = nil end
  end
  return names
end

-- The methods of the classes that a file defines, and those that later rooms give its class.
local function methods_in(path)
  local names = {}
  local module = path:sub(1, #checkout.modules) == checkout.modules
    and package.loaded["fewhead." .. path:sub(#checkout.modules + 1):gsub("%.lua$", ""):gsub("/", ".")]
  if type(module) == "table" and type(rawget(module, "class")) == "table" then names = table_fields(module.class) end
  for class, name in text_of(path):gmatch("\nfunction (%a%w*):([%a][%w_]*)%(") do
    if class:find("^%u") or class == "method" then names[name] = true end
  end
  return names
end

-- Functions that give an object of another file's class, by their name.
local ELSEWHERE = { problem = "fewhead.case.problem", open = "fewhead.device.device" }

-- ---- What stands before the cursor -------------------------------------------------------------------------------------------

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

-- The value of a word that is a number or a string; nil for another one.
local function literal(word)
  return (word.kind == "number" or word.kind == "string") and loadstring("return " .. word.text)() or nil
end

-- The steps of the expression that ends with words[last], first step first: { field = key }, { some = true } for an index that
-- only running could tell, or { call = true }; nil where it does not start with a name. Also the place of its first word.
local function steps_of(words, last)
  local steps, i = {}, last
  local function put(step) table.insert(steps, 1, step) end
  while i >= 1 do
    local word = words[i]
    if OPENING[word.text] then
      local first = opening(words, i)
      if not first then return nil end
      local key = first == i - 2 and literal(words[i - 1])
      put(word.text ~= "]" and { call = true } or key and { field = key } or { some = true })
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

-- Something that an index gives: an entry of a plain table; of an object the object, since t[{ {}, 1 }] is a tensor again.
local function entry_of(value)
  if getmetatable(value) then return value end
  return value[1] or select(2, next(value))
end

-- What an expression is without calling anything: { value = }, { path = of the file with its class }, or nil.
local function resolve(environment, steps)
  local now, name = { value = environment }, nil
  for _, step in ipairs(steps or {}) do
    if step.call then
      local f = help.main(now.value) or now.value
      local path = ELSEWHERE[name] and package.searchpath(ELSEWHERE[name], package.path)
        or (type(f) == "function" and checkout.place(f)) or now.path
      if not path then return nil end
      now = { path = path }
    elseif now.path then
      name = step.field -- a method of the class; what it gives is of the same file, unless ELSEWHERE says otherwise
    else
      local ok, value = pcall(function()
        if step.some then return entry_of(now.value) end
        return now.value[step.field]
      end)
      if not ok or value == nil then return nil end
      now, name = { value = value }, step.field
    end
  end
  return now
end

-- ---- Options -----------------------------------------------------------------------------------------------------------------

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

-- The call whose argument begins or goes on behind words[last]: { f =, self = of a method, n = number of the argument }; nil for
-- none. brace: the place of the brace that opens a table as an argument, nil where there is none.
local function call_at(environment, words, last, brace)
  local at, n = brace and brace - 1 or last, 1
  local direct = brace and words[at] and (words[at].kind == "name" or OPENING[words[at].text]) -- f { .. }
  if not direct then
    local depth = 0
    while at >= 1 do -- back to the bracket of the call
      local text = words[at].text
      if OPENING[text] then depth = depth + 1
      elseif text == "(" or text == "[" or text == "{" then
        if depth == 0 then break end
        depth = depth - 1
      elseif text == "," and depth == 0 then n = n + 1
      end
      at = at - 1
    end
    if at < 1 or words[at].text ~= "(" then return nil end
    at = at - 1
  end
  local steps, first = steps_of(words, at)
  local found = steps and resolve(environment, steps)
  if not found or not found.value then return nil end
  local self
  if words[at - 1] and words[at - 1].text == ":" and at > first then
    steps[#steps] = nil
    self = resolve(environment, steps)
  end
  return { f = help.main(found.value) or found.value, self = self and self.value, n = n }
end

-- The fields that records of a sweep have, as what sweep:filter takes: { [name] = { [value] = true } }.
local function fields_of_records(self)
  local fields_by_name = {}
  local function add(name, value)
    fields_by_name[name] = fields_by_name[name] or {}
    if type(value) == "string" then fields_by_name[name][value] = true end
  end
  for _, record in ipairs(self.records) do
    for name, value in pairs(record.case) do add(name, value) end
    add("path", record.path)
    add("status", record.parity.status)
    add("l2", record.time and record.time.l2)
  end
  return fields_by_name
end

local function is_filter(call)
  local class = package.loaded["fewhead.decide.sweep"] and package.loaded["fewhead.decide.sweep"].class
  return class and call.f == class.filter and type(call.self) == "table" and type(rawget(call.self, "records")) == "table"
end

local function option_names(call)
  if is_filter(call) then
    local names = {}
    for name in pairs(fields_of_records(call.self)) do names[#names + 1] = name end
    return names
  end
  return takes.options(call.f, call.n, call.self)
end

-- The values of option `key` in the call; without a call, what the name stands for everywhere.
local function values_of(call, key)
  if call and is_filter(call) then
    local values = {}
    for value in pairs(fields_of_records(call.self)[key] or {}) do values[#values + 1] = value end
    return values
  end
  return takes.values(call and call.f, key)
end

-- The option whose value stands at the end of words, KEY = or KEY = {: its name, and the place of the brace around it; nil for
-- none.
local function key_at(words, last)
  if words[last] and words[last].text == "=" and words[last - 1].kind == "name" then
    return words[last - 1].text, open_brace(words, last)
  end
  local brace = open_brace(words, last)
  if brace and brace > 2 and words[brace - 1].text == "=" then return words[brace - 2].text, open_brace(words, brace - 1) end
end

-- The names that may stand as a value behind words[last]: of an option, or of an argument of a call.
local function values_at(environment, words, last)
  local key, brace = key_at(words, last)
  if key then return values_of(brace and call_at(environment, words, last, brace), key) end
  brace = open_brace(words, last)
  local call = call_at(environment, words, last, brace) -- a list of names may be an argument: the paths of fh.compare
  return call and takes.argument(call.f, call.n) or {}
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

local function in_string(environment, words, string, text)
  local first = string.first + #(string.text:match("^%[=*%[") or " ")
  local tail = text:sub(first)
  local values = values_at(environment, words, #words)
  if #values > 0 then return first, starting(values, tail) end
  return first, files(tail)
end

-- Commands of the prompt, their files and settings: as M.at; nil where the text is none of these.
local function in_command(text)
  local begins, name = text:match("^%s*():([%a_]*)$")
  if name then
    local names = {}
    for each in pairs(command.commands) do names[#names + 1] = ":" .. each end
    return begins, starting(names, ":" .. name)
  end
  local rest
  name, begins, rest = text:match("^%s*:([%a_]+)%s+()(.*)$")
  if name == "load" or name == "run" or name == "save" then return begins, files(rest) end
  if name == "reload" or name == "doc" then return begins, {} end
  if name ~= "set" then return nil end
  local names, values = {}, {}
  for i, one in ipairs(command.settings) do names[i], values[one[1]] = one[1], one[4] end
  local setting, at, value = rest:match("^(%S+)%s+()(.*)$")
  if not setting then return begins, starting(names, rest) end
  return begins + at - 1, starting(values[setting] and values[setting]() or {}, value)
end

--- Every way to complete the end of `text`: the place in text from which on it is replaced, and the sorted choices. environment:
-- what names stand for, _G or that of a statement session, whose locals are in `locals`.
function M.at(environment, text, locals)
  local begins, choices = in_command(text)
  if begins then return begins, choices end
  local words, comment = words_of(text)
  if comment then return #text + 1, {} end
  local last = words[#words]
  if last and last.open then
    words[#words] = nil
    return in_string(environment, words, last, text)
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
    local names = before.text == ":" and methods or fields
    return first, starting(list_of(found.path and methods_in(found.path) or names(found.value)), tail)
  end
  local starts = before and (before.text == "{" or before.text == "," or before.text == ";" or before.text == "("
    or before.text == "=")
  local values = tail == "" and starts and values_at(environment, words, #words) or {}
  if #values > 0 then
    local quoted = {}
    for i, value in ipairs(values) do quoted[i] = ("%q"):format(value) end
    return first, starting(quoted, "")
  end
  local brace = open_brace(words, #words)
  local call = brace and starts and before.text ~= "=" and before.text ~= "("
    and call_at(environment, words, #words, brace)
  if call then
    local names = starting(option_names(call), tail)
    if #names > 0 then return first, names end
  end
  local known = fields(_G)
  for name in pairs(locals or {}) do known[name] = true end
  for _, name in ipairs(keywords) do known[name] = true end
  return first, starting(list_of(known), tail)
end

return M
