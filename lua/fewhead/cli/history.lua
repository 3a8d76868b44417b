--- What was typed at a prompt, kept across runs in a file that several sessions add to.
--
--     local history = history.open(history.path())
--     history:add("x = 1")                      -- on the disk before the statement runs: one that ends the process is kept
--
-- An entry is a line; the further lines of an entry of several start with a tab. Each is added in one write at the end of the
-- file, so two sessions keep both.
local posix = require "fewhead.base.posix"

local M = {}

-- Entries that are read back; a file of more than twice as many is cut to them.
local MOST = 2000

local History = { __name = "history" }
History.__index = History

--- fewhead/history in the person's folder for such things, $XDG_STATE_HOME or ~/.local/state; nil without one.
function M.path()
  local state, home = os.getenv("XDG_STATE_HOME"), os.getenv("HOME")
  if not state or state == "" then
    if not home or home == "" then return nil end
    state = home .. "/.local/state"
  end
  return state .. "/fewhead/history"
end

local function encoded(entry) return (entry:gsub("^%s+", ""):gsub("\n", "\n\t")) .. "\n" end

-- The entries of a file's text.
local function decoded(text)
  local entries = {}
  for line in text:gmatch("([^\n]*)\n") do
    if line:sub(1, 1) == "\t" and #entries > 0 then entries[#entries] = entries[#entries] .. "\n" .. line:sub(2)
    elseif line:find("%S") then entries[#entries + 1] = line
    end
  end
  return entries
end

-- Put the last entries in the file's place.
local function cut(path, entries)
  local file = io.open(path .. ".new", "w")
  if not file then return end
  for _, entry in ipairs(entries) do file:write(encoded(entry)) end
  if posix.written(file) and file:close() then os.rename(path .. ".new", path) end
end

--- The history in a file, which need not be there; path nil: one that is kept nowhere. .entries: what earlier sessions typed, the
-- newest last; .problem: why nothing can be kept, or nil.
function M.open(path)
  local self = setmetatable({ path = path, entries = {} }, History)
  if not path then
    self.problem = "neither XDG_STATE_HOME nor HOME is set"
    return self
  end
  local made, err = posix.make_folders(path)
  local file
  if made then file, err = io.open(path, "a") end
  if not file then self.problem, self.path = err, nil
  else file:close()
  end
  file = io.open(path, "rb")
  if not file then return self end
  local all = decoded(file:read("*a") or "")
  file:close()
  for i = math.max(1, #all - MOST + 1), #all do self.entries[#self.entries + 1] = all[i] end
  if self.path and #all > 2 * MOST then cut(path, self.entries) end
  return self
end

--- Add an entry unless it is blank or the same as the one before. Returns whether it is a new one.
function History:add(entry)
  if not entry:find("%S") or entry == self.last then return false end
  self.last = entry
  local file = self.path and io.open(self.path, "a")
  if file then
    local text = encoded(entry)
    file:setvbuf("full", #text + 1)
    file:write(text)
    file:close()
  end
  return true
end

return M
