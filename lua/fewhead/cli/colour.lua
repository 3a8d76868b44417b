--- Colours of the prompt: only on a terminal that has them, and never where NO_COLOR is set.
--
--     io.stderr:write(colour.paint("oops", "bad", 2), "\n")       -- red where descriptor 2 is such a terminal
--
-- The prompt's :set colour says "auto" (as above), "on" or "off".
local posix = require "fewhead.base.posix"

local M = {}

--- "auto", "on" or "off".
M.mode = "auto"

local CODES = { bad = "\27[31m", good = "\27[32m", quiet = "\27[2m" }
local PLAIN = "\27[0m"

-- Words of results that have a colour.
local WORDS = { slower = "bad", fail = "bad", error = "bad", invalid = "bad", faster = "good" }

--- Whether what goes to this file descriptor has colours: a terminal, TERM neither unset nor "dumb", NO_COLOR unset or empty.
function M.on(fd)
  if M.mode ~= "auto" then return M.mode == "on" end
  local no, term = os.getenv("NO_COLOR"), os.getenv("TERM")
  return posix.is_terminal(fd) and (no == nil or no == "") and term ~= nil and term ~= "dumb"
end

--- Text in the colour of its kind, "bad", "good" or "quiet", for a file descriptor; as it is where there are none.
function M.paint(text, kind, fd)
  return M.on(fd) and CODES[kind] .. text .. PLAIN or text
end

--- The same for a text of results: the words that say how an arm did.
function M.words(text, fd)
  if not M.on(fd) then return text end
  return (text:gsub("%f[%w_]%l+%f[^%w_]", function(word) return WORDS[word] and CODES[WORDS[word]] .. word .. PLAIN end))
end

return M
