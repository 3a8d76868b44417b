--- Hash: xxHash of a text or a file, 64 bits as 16 hex digits: the name of a configuration, not a protection.
--
--   local hash = require "fewhead.base.hash"
--   print(hash.text(""))               --> ef46db3751d8e999
--   print(hash.file("build/libfewhead.so"))
--
-- Needs libxxhash (Debian: libxxhash0), which tools/setup.sh installs.
local ffi = require "ffi"

-- Declarations outlive this module when package.loaded is emptied.
ffi.cdef [[uint64_t XXH64(const void *input, size_t length, uint64_t seed);]]

local M = {}

--- What a machine without the library is told.
M.missing = "fewhead: no libxxhash.so.0, which names the cells of a sweep: apt-get install libxxhash0, or run make setup"

local library

local function loaded()
  if library then return library end
  local ok, found = pcall(ffi.load, "libxxhash.so.0")
  if not ok then error(M.missing, 0) end
  library = found
  return library
end

--- The 16 hex digits of XXH64, seed 0, of a text's bytes. Raises M.missing without the library.
function M.text(text)
  require("fewhead.base.arguments").string("hash.text: text", text)
  local number = loaded().XXH64(text, #text, 0)
  return ("%08x%08x"):format(tonumber(number / 2 ^ 32), tonumber(number % 2ULL ^ 32))
end

--- The same of a file's bytes; nil, "file: reason".
function M.file(path)
  require("fewhead.base.arguments").string("hash.file: path", path)
  local file, err = io.open(path, "rb")
  if not file then return nil, err end
  local text, failure = file:read("*a")
  file:close()
  if not text then return nil, ("%s: %s"):format(path, failure) end
  return M.text(text)
end

--- Which of n parts a hash falls into, 0 .. n - 1, by its lower 32 bits.
function M.part(digits, n) return tonumber(digits:sub(9), 16) % n end

return M
