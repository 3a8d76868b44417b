--- Temporary files beside the file they will become: one that nobody else uses, and those of dead runs cleared away.
--
--   local temporary = require "fewhead.base.temporary"
--   local file, path = assert(temporary.create("results/local/gate_sweep.jsonl"))
--   --> an open file; results/local/gate_sweep.jsonl.9f3a61c25b0d7e48.tmp
--
-- The name is random and the file is made anew, so two runs never share one, whatever machine or container they run in. A run
-- holds a lock on its file, which ends with the run however that ends. So a file whose lock is free was left behind (by
-- SIGKILL, a crash or a power failure) and is removed when the next run writes to the same path.

local posix = require "fewhead.base.posix"

local M = {}

local RANDOM_BYTES = 8
local TRIES = 16 -- of names; a clash of two is one in 2^64, a lock held by a cleaner as rare

-- What follows the path in a name.
local SUFFIX = "^%.(%x+)%.tmp$"

local function random_hex()
  local source = assert(io.open("/dev/urandom", "rb"))
  local bytes = source:read(RANDOM_BYTES)
  source:close()
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

--- Remove the temporary files of `path` that no living process holds. Returns how many there were.
function M.clear(path)
  local removed = 0
  for _, name in ipairs(posix.glob(path, ".*.tmp")) do
    local hex = name:sub(#path + 1):match(SUFFIX)
    local file = hex and #hex == 2 * RANDOM_BYTES and io.open(name, "rbe")
    if file then
      if posix.lock(file) == "locked" and os.remove(name) then removed = removed + 1 end
      file:close()
    end
  end
  return removed
end

--- Make and lock a temporary file for `path`, whose folder is there; those of dead runs are removed first. Returns the open
-- file and its path | nil, error.
function M.create(path)
  M.clear(path)
  local err
  for _ = 1, TRIES do
    local name = ("%s.%s.tmp"):format(path, random_hex())
    local file
    file, err = io.open(name, "wbxe") -- x: fails where the file is there; e: no child program inherits it
    if file then
      -- Another run's clear() may have found the file before it was locked.
      if posix.lock(file) ~= "held" and exists(name) then return file, name end
      file:close()
      os.remove(name)
    elseif exists(name) == false then
      return nil, err
    end
  end
  return nil, err or "no name for a temporary file was free"
end

return M
