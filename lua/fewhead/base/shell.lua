--- Shell: words as a POSIX shell reads them back, for commands that are run and for commands that are printed.
--
--     print(shell.line { "./fewhead", "run", "gate_sweep", "--preset", "v3.2 tp8" })
--     --> ./fewhead run gate_sweep --preset 'v3.2 tp8'
local M = {}

-- Letters that mean themselves wherever they stand in a word.
local PLAIN = "^[%w_./:,*=+@%%-]+$"
-- "*" is plain for people who read "64:8192:*2": a shell leaves it where no file matches. In a command that is run it is quoted.
local SAFE = "^[%w_./:,=+@%%-]+$"

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

--- A text as one word of a shell, for a command that is run: quoted unless every letter means itself.
function M.quote(text)
  text = tostring(text)
  return text:find(SAFE) and text or quoted(text)
end

--- A list of words as the line that a person types; only words that need quotes have them.
function M.line(words)
  local list = {}
  for i, word in ipairs(words) do
    word = tostring(word)
    list[i] = word:find(PLAIN) and word or quoted(word)
  end
  return table.concat(list, " ")
end

return M
