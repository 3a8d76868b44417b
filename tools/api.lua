-- Writes the reference of the Lua modules from their docstrings: luajit tools/api.lua FILE.md
--
-- Each module of the facade, by room: its head comment, then its functions and the methods of its objects with their docstrings.
-- The prompt shows the same texts: `:help fh.case`.
package.path = "lua/?.lua;lua/?/init.lua;" .. package.path

local fh = require "fewhead"
local source = require "fewhead.cli.help"

local out = { [[
# Lua modules

Made by `make docs` from the docstrings in lua/fewhead/. Wrong arguments raise on the caller's line, with what was given and what
was wanted.
]] }
local function add(format, ...) out[#out + 1] = format:format(...) end

for _, room in ipairs(fh._rooms) do
  for _, name in ipairs(room[2]) do
    local module = ("fewhead.%s.%s"):format(room[1], name)
    add("## fh.%s\n\n```text\n%s\n```\n", name, source.of_module(module) or "")
    for _, one in ipairs(source.public(module)) do
      add("### %s\n\n```text\n%s\n```\n", one.signature, one.text)
    end
  end
end

local file = assert(io.open(assert(arg[1], "wanted the name of a file"), "w"))
assert(file:write(table.concat(out, "\n")))
assert(file:close())
