--- npy: captured index lists in files: int32 arrays as NumPy saves them, or raw int32 beside a JSON header.
--
--     local npy = require "fewhead.base.npy"
--     local lists = assert(npy.load("layer7.npy"))
--     print(lists.shape[1], lists.shape[2], lists.data[0])
--
-- FILE.npy: format 1.0 or 2.0, dtype '<i4', C order. Any other FILE holds little-endian int32 alone, and FILE.json beside it
-- says { "dtype": "int32", "shape": [2048, 640] }. The header may also give "s_kv", the KV rows that the indices count in, and
-- "topk_length", a file in the same folder with one int32 a row; beside FILE.npy it is optional and has these two alone.
local ffi = require "ffi"
local json = require "fewhead.base.json"

local M = {}

local MAGIC = "\147NUMPY"
local ITEM = 4
-- Bytes of one file that are taken: what one array on this side may hold.
local MAX_BYTES = 2^30
-- NumPy pads its headers to some hundred bytes; one of this size is no header of an array of numbers.
local MAX_HEADER = 65536

local function contents(path)
  local file, err = io.open(path, "rb")
  if not file then return nil, err end
  local text, reason
  local _, unreadable = file:read(0) -- a folder opens, but does not read
  local bytes, unseekable = file:seek("end")
  if unreadable or unseekable then
    reason = unreadable or unseekable
  elseif bytes > MAX_BYTES then
    reason = ("got %.0f bytes, wanted at most %.0f"):format(bytes, MAX_BYTES)
  else
    file:seek("set")
    text, reason = file:read("*a")
  end
  file:close()
  if not text then return nil, ("%s: %s"):format(path, reason) end
  return text
end

-- The int32 array of `shape` that stands in text from byte `at` (0-based) to its end.
local function array(path, text, at, shape)
  local count = 1
  for i, size in ipairs(shape) do
    if type(size) ~= "number" or size ~= math.floor(size) or size < 1 then
      return nil, ("%s: shape: size %d is %s, wanted a whole number >= 1"):format(path, i, tostring(size))
    end
    count = count * size
  end
  if #shape == 0 then return nil, ("%s: shape: got no size, wanted 1 or more"):format(path) end
  local got, wanted = #text - at, count * ITEM
  if got ~= wanted then
    return nil, ("%s: %s: got %.0f bytes of data, wanted %.0f for shape {%s}"):format(
      path, got < wanted and "truncated" or "too long", got, wanted, table.concat(shape, ", "))
  end
  local data = ffi.new("int32_t[?]", count)
  ffi.copy(data, ffi.cast("const char *", text) + at, wanted)
  return { shape = shape, data = data }
end

-- text:byte() numbers, lowest first
local function little_endian(text, first, last)
  local value = 0
  for i = last, first, -1 do value = value * 256 + text:byte(i) end
  return value
end

--- An int32 .npy file: { shape = {..}, data = int32_t[] } or nil, "FILE: what is wrong".
function M.read(path)
  local text, err = contents(path)
  if not text then return nil, err end
  if text:sub(1, #MAGIC) ~= MAGIC then return nil, ("%s: not an .npy file: it does not start with \\x93NUMPY"):format(path) end
  if #text < 12 then return nil, ("%s: truncated: got %d bytes, wanted a header"):format(path, #text) end
  local major, minor = text:byte(7, 8)
  if (major ~= 1 and major ~= 2) or minor ~= 0 then
    return nil, ("%s: format version: got %d.%d, wanted 1.0 or 2.0"):format(path, major, minor)
  end
  local start = major == 1 and 10 or 12
  local length = little_endian(text, 9, start)
  if length > MAX_HEADER then return nil, ("%s: header: got %d bytes, wanted at most %d"):format(path, length, MAX_HEADER) end
  if start + length > #text then
    return nil, ("%s: truncated: got %d bytes, wanted a header of %d"):format(path, #text, start + length)
  end
  local header = text:sub(start + 1, start + length)

  local descr = header:match("['\"]descr['\"]%s*:%s*['\"]([^'\"]*)['\"]")
  if descr ~= "<i4" then
    return nil, ("%s: dtype: got %s, wanted '<i4' (int32, little-endian)"):format(path, descr and "'" .. descr .. "'" or "none")
  end
  local order = header:match("['\"]fortran_order['\"]%s*:%s*(%a+)")
  if order ~= "False" then
    return nil, ("%s: fortran_order: got %s, wanted False (C order)"):format(path, order or "none")
  end
  local sizes = header:match("['\"]shape['\"]%s*:%s*%(([^()]*)%)")
  if not sizes then return nil, ("%s: header: no shape in it"):format(path) end
  local shape = {}
  for size in sizes:gmatch("[^,%s]+") do shape[#shape + 1] = tonumber(size) or size end
  return array(path, text, start + length, shape)
end

-- What is wrong with the offsets of requests in a header, or nil: whole numbers, 0 first, none smaller than the one before.
local function offsets_fault(list)
  if type(list) ~= "table" or #list < 2 then return "wanted a list of at least 2 offsets: 0 and s_q" end
  for i, offset in ipairs(list) do
    local least = list[i - 1] or 0
    if type(offset) ~= "number" or offset ~= math.floor(offset) or offset < least or i == 1 and offset ~= 0 then
      return ("offset %d: got %s, wanted %s"):format(i, tostring(offset), i == 1 and "0" or "a whole number >= " .. least)
    end
  end
end

local KNOWN = { "dtype", "shape", "s_kv", "topk_length", "cu_seqlens_q" }
local IS_KNOWN = {}
for _, key in ipairs(KNOWN) do IS_KNOWN[key] = true end

-- FILE.json as a table; nil, nil where there is none.
local function sidecar(path)
  local name = path .. ".json"
  local file = io.open(name, "rb")
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  local header, err = json.decode(text or "")
  if type(header) ~= "table" then return nil, ("%s: %s"):format(name, err or "wanted a JSON object") end
  for key in pairs(header) do
    if not IS_KNOWN[key] then
      return nil, ("%s: unknown key %q; known: %s"):format(name, tostring(key), table.concat(KNOWN, ", "))
    end
  end
  local s_kv = header.s_kv
  if s_kv ~= nil and (type(s_kv) ~= "number" or s_kv ~= math.floor(s_kv) or s_kv < 1 or s_kv >= 2^31) then
    return nil, ("%s: s_kv: got %s, wanted a whole number in 1 .. 2147483647"):format(name, tostring(s_kv))
  end
  if header.topk_length ~= nil and type(header.topk_length) ~= "string" then
    return nil, ("%s: topk_length: got %s, wanted the name of a file beside it"):format(name, tostring(header.topk_length))
  end
  local fault = header.cu_seqlens_q ~= nil and offsets_fault(header.cu_seqlens_q)
  if fault then return nil, ("%s: cu_seqlens_q: %s"):format(name, fault) end
  return header
end

local function raw(path, header)
  local name = path .. ".json"
  if header.dtype ~= "int32" then
    return nil, ('%s: dtype: got %s, wanted "int32"'):format(name, tostring(header.dtype))
  end
  if type(header.shape) ~= "table" then
    return nil, ("%s: shape: got %s, wanted a list of sizes"):format(name, tostring(header.shape))
  end
  local text, err = contents(path)
  if not text then return nil, err end
  return array(path, text, 0, header.shape)
end

-- Raw int32 of a length that the file's size gives.
local function raw_vector(path)
  local text, err = contents(path)
  if not text then return nil, err end
  return array(path, text, 0, { math.floor(#text / ITEM) })
end

--- A file of lists, .npy or raw: { shape = {..}, data = int32_t[], s_kv = number or nil, topk_length = { shape, data } or nil,
-- cu_seqlens_q = list or nil, first row of each request and the number of rows }, or nil, "FILE: what is wrong".
function M.load(path)
  local header, err = sidecar(path)
  if err then return nil, err end
  local lists
  if path:match("%.npy$") then
    lists, err = M.read(path)
    if lists and header and (header.dtype ~= nil or header.shape ~= nil) then
      return nil, ("%s.json: dtype and shape stand in the .npy file, wanted neither here"):format(path)
    end
  elseif header then
    lists, err = raw(path, header)
  else
    return nil, ("%s: wanted an .npy file, or %s.json beside it to say what it holds"):format(path, path)
  end
  if not lists then return nil, err end
  if header then
    lists.s_kv, lists.cu_seqlens_q = header.s_kv, header.cu_seqlens_q
    local last = lists.cu_seqlens_q and lists.cu_seqlens_q[#lists.cu_seqlens_q]
    if last and last ~= lists.shape[1] then
      return nil, ("%s.json: cu_seqlens_q: got %d last, wanted the %d rows of the lists"):format(path, last, lists.shape[1])
    end
    if header.topk_length then
      local folder, name = path:match("^(.*/)") or "", header.topk_length
      if name:match("%.npy$") then
        lists.topk_length, err = M.read(folder .. name)
      else
        lists.topk_length, err = raw_vector(folder .. name)
      end
      if not lists.topk_length then return nil, err end
    end
  end
  return lists
end

return M
