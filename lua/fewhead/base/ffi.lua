--- The C library: declared from its own header, loaded once, and refused when it was built from another header.
--
--     local F = require "fewhead.base.ffi"
--     local ok, err, status = F.check(F.C.fh_device_synchronize(handle))  --> true, or nil, "what went wrong", "FH_ERR_DEVICE"
--     print(F.path, F.paths.gather, F.path_names[3])                      --> ./build/libfewhead.so  3  gather
--
-- No other module declares anything of it. What stands between the header's cdef marks is declared as it is, never typed twice.
-- The header is lib/include/fewhead.h of the checkout, or fewhead.h beside this file where `make install` put it. The library is
-- the file that FEWHEAD_LIB names; else the checkout's build/libfewhead.so; else PREFIX/lib/libfewhead.so of the PREFIX that this
-- file is installed under, and after it what the system's loader finds by that name.
local ffi = require "ffi"
local bit = require "bit"
local checkout = require "fewhead.base.checkout"

local M = { ffi = ffi }

-- A failure here is nobody's wrong argument: no line is blamed.
local function fail(format, ...) error("fewhead: " .. format:format(...), 0) end

-- ---- The header ---------------------------------------------------------------------------------------------------------------

local here, root = checkout.modules, checkout.root or checkout.modules .. "../../"

local function read_file(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end

local header, installed = root .. "lib/include/fewhead.h", false
local text = read_file(header)
if not text then
  header, installed = here .. "fewhead.h", true
  text = read_file(header) or fail("no header: looked for %slib/include/fewhead.h and %s", root, header)
end
local declarations = text:match("\n/%* cdef:begin %*/\n(.-\n)/%* cdef:end %*/\n") or fail("%s has no cdef marks", header)

-- POSIX cksum, as the Makefile computes it: CRC-32 (polynomial 0x04C11DB7, high bit first) of the bytes and then of their number,
-- low byte first and only as many bytes as it needs, complemented.
local function cksum(bytes)
  local crc = 0
  local function add(byte)
    crc = bit.bxor(crc, bit.lshift(byte, 24))
    for _ = 1, 8 do
      crc = bit.bxor(bit.lshift(crc, 1), bit.band(bit.arshift(crc, 31), 0x04C11DB7))
    end
  end
  for i = 1, #bytes do add(bytes:byte(i)) end
  local length = #bytes
  while length > 0 do
    add(length % 256)
    length = math.floor(length / 256)
  end
  return bit.bnot(crc) % 2^32
end
local checksum = cksum(declarations)

-- Declarations live as long as the process, longer than this module when package.loaded is emptied, so what was declared is asked
-- of the ffi itself: a constant declared with the rest holds the checksum.
if pcall(ffi.typeof, "fh_call") then
  local known, declared = pcall(function() return ffi.C.fh_declared_checksum end)
  if not known or declared ~= checksum then
    fail("another fewhead.h is declared in this process already (checksum %s, %s: %.0f)", known and ("%.0f"):format(declared) or
      "unknown", header, checksum)
  end
else
  local ok, err = pcall(ffi.cdef, ("%s\nstatic const uint32_t fh_declared_checksum = %.0f;"):format(declarations, checksum))
  if not ok then fail("%s: %s", header, err) end
end

-- ---- The library --------------------------------------------------------------------------------------------------------------

local remedy = installed and "run make install in a checkout of fewhead" or "run make"

-- What to try, in order, as { what ffi.load takes, what a message calls it }.
local function candidates()
  local named = os.getenv("FEWHEAD_LIB")
  if named and named ~= "" then return { { named, "FEWHEAD_LIB=" .. named } } end
  if not installed then
    -- A name without a slash would be looked up in the system's folders.
    local built = root .. "build/libfewhead.so"
    return { { built, built } }
  end
  local list = {}
  local prefix = checkout.prefix
  if prefix then
    local placed = prefix .. "lib/lua/5.1/libfewhead.so" -- where luarocks puts libraries
    local file = io.open(placed)
    if file then file:close() else placed = prefix .. "lib/libfewhead.so" end
    list[1] = { placed, placed }
  end
  list[#list + 1] = { "fewhead", "libfewhead.so in the system's library folders" }
  return list
end

local reasons = {}
for _, candidate in ipairs(candidates()) do
  local ok, loaded = pcall(ffi.load, candidate[1])
  if ok then
    M.C, M.path = loaded, candidate[1] == "fewhead" and "libfewhead.so" or candidate[1]
    break
  end
  -- The loader's message starts with the file's name.
  reasons[#reasons + 1] = ("%s (%s)"):format(candidate[2], (tostring(loaded):gsub("^[^:]*: ", "")))
end
if not M.C then fail("no library: looked for %s: %s", table.concat(reasons, " and "), remedy) end

-- Handles may be finalized after this module is gone from package.loaded; the code that frees them must still be there.
debug.getregistry()[M.C] = true

-- ---- Do they agree? -----------------------------------------------------------------------------------------------------------

-- Declarations without comments: what is searched for names.
local plain = declarations:gsub("/%*.-%*/", "")

do
  local known, built_from = pcall(function() return M.C.fh_header_checksum() end)
  if not known then fail("%s is not a fewhead library, it has no fh_header_checksum: %s", M.path, remedy) end
  if built_from ~= checksum then
    fail("%s was built from another fewhead.h (checksum %.0f, %s: %.0f): %s", M.path, built_from, header, checksum, remedy)
  end
  for name in plain:gmatch("struct%s+(fh_[%w_]+)%s*{") do
    local theirs, ours = tonumber(M.C.fh_struct_bytes(name)), ffi.sizeof("struct " .. name)
    if theirs ~= ours then
      fail("%s lays out %s in %.0f bytes, %s in %.0f: %s", M.path, name, theirs, header, ours, remedy)
    end
  end
end

-- ---- What the library says ----------------------------------------------------------------------------------------------------

--- The version of the header, "0.2.0", which the library was checked to have.
M.version = ("%d.%d.%d"):format(math.floor(M.C.FH_VERSION / 10000), math.floor(M.C.FH_VERSION / 100) % 100, M.C.FH_VERSION % 100)

--- true for FH_OK; else nil, the library's message and the status's name ("FH_ERR_SHAPE"). Call it before the next C call.
function M.check(status)
  if status == 0 then return true end
  return nil, ffi.string(M.C.fh_error()), ffi.string(M.C.fh_status_name(status))
end

-- The constants of one enum as { name = number } and { [number] = name }, names in lower case without the prefix.
local function enum(name, prefix)
  local numbers, names = {}, {}
  for constant in plain:match("enum%s+" .. name .. "%s*(%b{})"):gmatch(prefix .. "([%u%d_]+)%s*=") do
    local number = tonumber(M.C[prefix .. constant])
    numbers[constant:lower()], names[number] = number, constant:lower()
  end
  return numbers, names
end

M.paths, M.path_names = enum("fh_path", "FH_")
M.dtypes, M.dtype_names = enum("fh_dtype", "FH_")
M.isas, M.isa_names = enum("fh_isa", "FH_ISA_")
M.device_kinds, M.device_kind_names = enum("fh_device_kind", "FH_DEVICE_")
M.dists, M.dist_names = enum("fh_dist", "FH_")

return M
