--- Takes: which options and values a function of the library takes, for completion.
--
--     takes.options(fh.gate.fit, 2)             --> { "native" }, of its second argument
--     takes.values(fh.case.new, "layout")       --> { "contiguous", "offset", .. }
--     takes.argument(fh.tensor.new, 2)          --> { "bf16", "f32", "i32" }
--
-- Nothing is written twice here: a call with an option that there is not says which there are, a function's source says which
-- names it checks its argument against, and option rows say what values they choose from.
-- @module fewhead.cli.takes
local checkout = require "fewhead.base.checkout"

local M = {}

-- ---- The function's source ---------------------------------------------------------------------------------------------------

-- Whether a function stands in a file of the library; its path, first and last line.
local function place_of(f)
  if type(f) ~= "function" then return nil end
  local path, first, last = checkout.place(f)
  if path and path:sub(1, #checkout.modules) == checkout.modules then return path, first, last end
end

-- The text of a function of the library; nil for others.
local function source_of(f)
  local path, first, last = place_of(f)
  local file = path and io.open(path)
  if not file then return nil end
  local lines, at = {}, 0
  for line in file:lines() do
    at = at + 1
    if at >= first and at <= last then lines[#lines + 1] = line end
  end
  file:close()
  return table.concat(lines, "\n")
end

-- The loaded module of the function's file.
local function module_of(f)
  local path = place_of(f)
  local name = path and path:sub(#checkout.modules + 1):match("^(.*)%.lua$")
  return name and package.loaded["fewhead." .. name:gsub("/", ".")]
end

-- The names of a function's parameters, without self.
local function parameters(source)
  local names = {}
  for name in (source:match("%((.-)%)") or ""):gmatch("[%w_.]+") do names[#names + 1] = name end
  return names
end

-- What an expression of the function's source stands for: a local that it uses, or a field of its module.
local function value_of(f, expression)
  local field = expression:match("^M%.([%w_]+)$")
  local module = module_of(f)
  if field then return type(module) == "table" and rawget(module, field) or nil end
  local i = 1
  while true do
    local name, value = debug.getupvalue(f, i)
    if name == nil or name == expression then return value end
    i = i + 1
  end
end

-- ---- Options -----------------------------------------------------------------------------------------------------------------

-- The names in a list of names, or of option rows.
local function names_in(list)
  local names = {}
  for _, one in ipairs(type(list) == "table" and (rawget(list, "list") or list) or {}) do
    if type(one) == "string" then names[#names + 1] = one
    elseif type(one) == "table" and type(one.key) == "string" then names[#names + 1] = one.key end
  end
  return names
end

-- The option names that the source checks parameter `name` against.
local function names_in_source(f, source, name)
  local literal = source:match("args%.options%([^{}\n]-,%s*" .. name .. "[^,\n]*,%s*(%b{})")
  if literal then return names_in((loadstring("return " .. literal) or error)()) end
  local expression = source:match("args%.options%([^{}\n]-,%s*" .. name .. "[^,\n]*,%s*([%w_.]+)")
    or source:match("option%.table%([^{}\n]-,%s*" .. name .. "[^,\n]*,%s*([%w_.]+)")
  return expression and names_in(value_of(f, expression)) or {}
end

-- The option names that a call says it knows.
local function names_said(f, self)
  local ask = { [" "] = true }
  local ok, err
  if self ~= nil then ok, err = pcall(f, self, ask) else ok, err = pcall(f, ask) end
  local names = {}
  for name in (not ok and tostring(err):match("unknown option .*known: (.*)$") or ""):gmatch("[%w_]+") do
    names[#names + 1] = name
  end
  return names
end

-- Whether the function, or a function of the library that it calls, checks option names: only such a one is called to ask.
local function checks_options(f, depth)
  local source = source_of(f)
  if not source then return false end
  if source:find("args.options(", 1, true) or source:find("option.table(", 1, true) then return true end
  local i = 1
  while depth > 0 do
    local name, value = debug.getupvalue(f, i)
    if name == nil then return false end
    if source:find("%f[%w_]" .. name .. "%(") and checks_options(value, depth - 1) then return true end
    i = i + 1
  end
  return false
end

-- Functions that only hand on what they get.
local function real(f)
  local fh = require "fewhead"
  return f == fh.open and fh.device.open or f
end

--- The option names of a function's argument n, a table. self: the object of a method; then n counts the arguments after it.
function M.options(f, n, self)
  f = real(f)
  local source = source_of(f)
  local name = source and parameters(source)[n]
  if not name then return {} end
  local names = names_in_source(f, source, name)
  if #names == 0 and n == 1 and checks_options(f, 2) then names = names_said(f, self) end
  return names
end

-- ---- Values ------------------------------------------------------------------------------------------------------------------

local function strings_in(list)
  local found = {}
  for _, one in ipairs(list or {}) do
    if type(one) == "string" then found[#found + 1] = one end
  end
  return found
end

-- Values that are the same wherever a name stands for them.
local NAMED = {
  preset = function(fh) return fh.preset.names() end,
  pattern = function(fh) return fh.pattern.names end,
  layout = function(fh) return fh.layout.names end,
  device = function(fh) return fh.device.names() end,
  path = function(fh)
    local list = fh.path.names()
    list[#list + 1] = "native"
    return list
  end,
  dtype = function() return { "bf16", "f32", "i32" } end,
}
NAMED.paths = NAMED.path

--- The values of option `key` of a function, where they are names; {} else.
function M.values(f, key)
  local module = module_of(f)
  local rows = type(module) == "table" and rawget(module, "rows")
  local row = type(rows) == "table" and type(rows.by_key) == "table" and rows.by_key[key]
  local found = strings_in(row and row.choices)
  if #found > 0 then return found end
  if NAMED[key] then return NAMED[key](require "fewhead") end
  row = require("fewhead.case.case").rows.by_key[key]
  return strings_in(row and row.choices)
end

--- The values of a function's argument n, where they are names; {} else.
function M.argument(f, n)
  local fh = require "fewhead"
  f = real(f)
  if (f == fh.device.open or f == fh.device.set_default) and n == 1 then return fh.device.names() end
  local source = source_of(f)
  local name = source and parameters(source)[n]
  if not name then return {} end
  -- Messages may have another name for a parameter than the code: "compare: paths" for list.
  name = source:match(': ([%w_]+)", ' .. name .. "%f[^%w_]") or name
  if not NAMED[name] then return {} end
  -- A path of a file is called so too: such a function opens the file, or checks for text alone.
  if name == "path" and (source:find("args%.string%([^\n]-, path") or source:find("open%(path")) then return {} end
  return NAMED[name](fh)
end

return M
