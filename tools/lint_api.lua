-- Checks that the API is documented: luajit tools/lint_api.lua. Prints what is missing, a line each; status 1 then.
--
-- Lua: LDoc reads every docstring and warns of nothing (config.ld). Every module of the facade has a head comment that starts
-- with three dashes. Every public function and method of it has a docstring, which says how it fails where it returns nil and a
-- reason, the shape where it takes tensors, and the unit where an argument has one. That wrong arguments raise on the caller's
-- line holds for all of them (docs/api.md).
-- C: every function of lib/include/fewhead.h that returns an fh_status has a comment above it, or above the group it stands in,
-- which says how it fails.
package.path = "lua/?.lua;lua/?/init.lua;" .. package.path

local fh = require "fewhead"

local missing = {}
local function miss(path, line, text) missing[#missing + 1] = ("%s:%d: %s"):format(path, line, text) end

-- The lines of a file.
local function lines_of(path)
  local list = {}
  for line in assert(io.open(path)):lines() do list[#list + 1] = line end
  return list
end

-- ---- Lua --------------------------------------------------------------------------------------------------------------------

-- LDoc takes a comment for a ruled line, and not for a docstring, where its first line has two dashes in the text, as an option's
-- name has.
local function check_first_lines(path)
  for at, line in ipairs(lines_of(path)) do
    if line:find "^%-%-%-.*[^%-]%-%-+[^%-]*$" then
      miss(path, at, "LDoc reads no docstring with two dashes in its first line: name options below that line")
    end
  end
end

-- What LDoc reads in lua/fewhead, by file: { [file] = { [name] = docstring } } with names such as open or Tensor:free. What LDoc
-- complains about is missing too; nil where it stops.
local function items_by_file()
  local dump = os.tmpname()
  local ldoc = assert(io.popen("ldoc --filter pl.pretty.dump . 2>&1 >" .. dump))
  for line in ldoc:lines() do
    missing[#missing + 1] = "ldoc: " .. line:gsub("^.-/(lua/fewhead/)", "%1")
  end
  ldoc:close()
  local list = table.concat(lines_of(dump), "\n")
  os.remove(dump)
  local modules, by_file = loadstring("return " .. list)(), {}
  if not modules then return nil end
  for _, module in ipairs(modules) do
    local items = {}
    for _, item in ipairs(module.items) do items[item.name] = item.summary .. " " .. item.description end
    local path = module.file:match "lua/fewhead/.*"
    by_file[path] = items
    check_first_lines(path)
  end
  return by_file
end

-- A function's lines, from the one that begins it to its end.
local function body(lines, at)
  local last = at
  if not lines[at]:find "%f[%w]end%s*$" then
    while last < #lines and not lines[last]:find "^end" do last = last + 1 end
  end
  return table.concat(lines, "\n", at, last)
end

-- Words one of which a docstring has that says how a function fails.
local FAILS = { "nil", "raise", "refus", "error", "fail" }
-- Arguments that are tensors, and what the docstring then has. Elsewhere `out` is a folder and q a share.
local TENSORS = { outputs = true, indices = true, lists = true, kv = true }
local SHAPES = { "%[%a", "shape", "outputs", "tensor", "M%.expected", "lists", "as deep as" }
-- Arguments with a unit, by the end of their name.
local UNITS = { us = { "microsecond", " us" }, ms = { "millisecond", " ms" }, bytes = { "byte" }, seconds = { "second" } }

local function has_one(text, words)
  for _, word in ipairs(words) do
    if text:find(word) then return true end
  end
  return false
end

-- doc: its docstring, nil for none.
local function check_function(path, lines, at, name, arguments, doc)
  local private = name:find ":" and lines[at - 1]:find "^%-%- " -- of the module's own classes
  if not doc and private then return end
  if not doc then return miss(path, at, name .. ": no docstring") end
  local text = body(lines, at)
  if text:find "return nil, " and not has_one(doc:lower(), FAILS) then
    miss(path, at, name .. ": returns nil and a reason, and the docstring does not say so")
  end
  for argument in arguments:gmatch "[%w_]+" do
    if TENSORS[argument] and not has_one(doc, SHAPES) then
      miss(path, at, ("%s: no shape of %s in the docstring"):format(name, argument))
    end
    local words = UNITS[argument:match "_?(%a+)$"]
    if words and not has_one(doc:lower(), words) then
      miss(path, at, ("%s: no unit of %s in the docstring"):format(name, argument))
    end
  end
end

local function check_module(name, items)
  local path = ("lua/fewhead/%s/%s.lua"):format(fh._room[name], name)
  local lines, docs = lines_of(path), items[path] or {}
  if not lines[1]:find "^%-%-%- %S" then miss(path, 1, "no head comment that starts with three dashes") end
  for at, line in ipairs(lines) do
    local owner, sign, method, arguments = line:match "^function ([%w_]+)([.:])([%w_]+)(%b())"
    if owner and not method:find "^_" and (owner == "M" or sign == ":") then
      local doc = docs[owner == "M" and method or owner .. sign .. method]
      check_function(path, lines, at, (owner == "M" and name or owner:lower()) .. sign .. method, arguments, doc)
    end
  end
end

local items = items_by_file()
for _, name in ipairs(items and fh._names or {}) do check_module(name, items) end

-- ---- C ----------------------------------------------------------------------------------------------------------------------

-- Words one of which the comment of a function has that says how it fails.
local STATUS = { "FH_ERR", "FH_OK", "[Ff]ail", "[Rr]efuse", "[Ee]rror", "[Rr]eturns", "as fh_", "must be" }

local function check_header(path)
  local lines, comment, at, inside = lines_of(path), "", 0, false
  for i, line in ipairs(lines) do
    if line:find "^/%*" then comment, at, inside = "", i, true end
    if inside then
      comment = comment .. " " .. line:gsub("^ %* ", "")
      if line:find "%*/" then inside = false end
    else
      local kind, name = line:match "^([%w_ ]+[ *])(fh_[%w_]+)%("
      if line == "" then comment = "" end
      if name and comment == "" then miss(path, i, name .. ": no comment above it")
      elseif name and kind:find "fh_status" and not has_one(comment, STATUS) then
        miss(path, i, ("%s: the comment at line %d does not say how it fails"):format(name, at))
      end
    end
  end
end

check_header "lib/include/fewhead.h"

for _, line in ipairs(missing) do print(line) end
os.exit(#missing == 0 and 0 or 1)
