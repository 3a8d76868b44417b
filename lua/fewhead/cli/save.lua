--- Save: what was typed at the prompt as a script that `fewhead run` takes.
--
--     local kept = { { n = 1, text = "x = 2" }, { n = 3, text = "x + 1", expression = true } }
--     local text = assert(save.text("first_try.lua", kept))
--
-- Only statements that succeeded are given to this module. A value that the prompt printed is printed by the script. Where a
-- later statement uses _ or Out[n], the script has them too.
local statement = require "fewhead.cli.statement"

local M = {}

-- What a script needs where _ or Out is used: n is the number that the statement had at the prompt.
local RESULTS = [[
local Out, _ = {}, nil
local function show(n, ...)
  local first = ...
  if first ~= nil then Out[n], _ = first, first end
  print(...)
end
]]

-- Whether a statement uses _ or Out.
local function uses_results(text)
  for _, word in ipairs(statement.words(text)) do
    local name = word.kind == "name" and text:sub(word.first, word.last)
    if name == "_" or name == "Out" then return true end
  end
  return false
end

-- The first word of a statement.
local function first_word(text) return text:match("^%s*([%a_]+)") end

-- The statement as the script has it. `with_results`: keep its value as _ and Out[n].
local function line_of(kept, with_results)
  if not kept.expression then return kept.text end
  local before, value = statement.split(kept.text)
  before, value = before or "", (value or kept.text:gsub("^%s*=", "")):gsub("^%s+", "")
  local last = statement.words(value)
  last = last[#last]
  local close = last and last.kind == "comment" and "\n)" or ")" -- a comment would hide the bracket
  return before .. (with_results and ("show(%d, "):format(kept.n) or "print(") .. value .. close
end

--- The script's text, and how many statements it has. name: of its file, for the head comment; kept: a list of { n = the
-- statement's number, text =, expression = whether it printed its value }. Returns nil and the reason where nothing was kept, or
-- where the statements make no script.
function M.text(name, kept)
  if #kept == 0 then return nil, "no statement has succeeded yet" end
  local with_results = false
  for _, one in ipairs(kept) do with_results = with_results or uses_results(one.text) end
  local head = {
    ("-- Saved from the prompt on %s, fewhead %s: the statements that succeeded, in their order."):format(os.date("%Y-%m-%d"),
      require("fewhead.base.ffi").version), "--", ("--     fewhead run %s"):format(name), 'local fh = require "fewhead"',
  }
  local lines = {}
  for _, one in ipairs(kept) do
    if first_word(one.text) ~= "return" then lines[#lines + 1] = line_of(one, with_results) end -- ends a script, not a prompt
  end
  local body = table.concat(lines, "\n")
  local function joined(script)
    return ("%s\n%s\n%s\n"):format(table.concat(head, "\n"), with_results and RESULTS or "", script)
  end
  local text = joined(body)
  local ok, err = loadstring(text, "=" .. name)
  if not ok and err:find("local variables", 1, true) then -- a script has at most 200 of them, a session any number
    text = joined(statement.without_locals(body))
    ok, err = loadstring(text, "=" .. name)
  end
  if not ok then return nil, err end
  return text, #lines
end

return M
