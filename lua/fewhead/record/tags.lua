--- Tags: words of a person's own that the records of a run carry, to find and to tell them apart: night = "2", branch = "mine".
--
--     local sweep = fh.sweep { s_q = "64,128", tags = { branch = "mine" } }
--     ./fewhead run gate_sweep --tag branch=mine --tag night=2            # the same on the command line
--     ./fewhead page results/local --where branch=mine
--
-- Tags lie in a record's run (fh.run): tags = { [name] = text }. Tables, pages and pictures have a column for a tag that varies,
-- CSV and SQLite the column tags_NAME, and filters take the name as they take any field.
local args = require "fewhead.base.arguments"
local axes = require "fewhead.record.axes"
local option = require "fewhead.base.option"

local M = {}

local WANTED = "KEY=VALUE; KEY: letters, digits and _, no field that records have"

local function is_name(name) return type(name) == "string" and name:find("^%a[%w_]*$") and not axes.is_field(name) end

-- A copy of a table of tags, values as text; nil and what was wanted.
local function check(t)
  if type(t) ~= "table" then return nil, "a table of names and values" end
  local copy = {}
  for name, value in pairs(t) do
    local kind = type(value)
    if not is_name(name) or kind ~= "string" and kind ~= "number" and kind ~= "boolean" then return nil, WANTED end
    copy[name] = tostring(value)
  end
  return next(copy) and copy
end

local function parse(text)
  local name, value = text:match("^([^=]*)=(.*)$")
  if not name then return nil, WANTED end
  return check { [name] = value }
end

-- The tags of two options given one after the other.
local function join(first, second)
  for name, value in pairs(second) do first[name] = value end
  return first
end

option.kinds.TAGS = { parse = parse, check = check, join = join }

--- The option that scripts share.
-- On the command line --tag KEY=VALUE, as often as there are tags; in Lua { tags = { KEY = VALUE } }.
M.row = option.rows("tags", {
  { "--tag", "KEY=VALUE", "a word of your own that records carry; may be given several times", key = "tags", kind = "TAGS",
    without = { "run" } },
}).list[1]

--- Put tags into a header of fh.run. tags: nil for none. Returns the header.
function M.into(run, tags)
  args.table("tags.into: run", run)
  run.tags = tags
  return run
end

return M
