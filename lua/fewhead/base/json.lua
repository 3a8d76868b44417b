--- JSON: one line out, checked values in; what reports, grids and traces are written in and read from.
--
--   local json = require "fewhead.base.json"
--   print(json.encode { path = "gather", time = { median_us = 0.1 }, argv = json.array {} })
--   for value, line in json.lines("records.jsonl") do print(line, value.path) end
--
-- Numbers round-trip (%.17g), NaN and infinity can be neither written nor read, and every refusal names the key path. It needs
-- nothing but LuaJIT, so that a checkout can be driven before anything is installed.

local M = {}

-- JSON's null; nil cannot stand in a Lua table.
M.null = setmetatable({}, { __tostring = function() return "null" end })

local MAX_DEPTH = 200       -- deeper than any record; stops a table that holds itself
local WHOLE_LIMIT = 2 ^ 63  -- whole numbers below it are written without an exponent

local arrays = setmetatable({}, { __mode = "k" })
local orders = setmetatable({}, { __mode = "k" })

--- Mark t as a list, so that an empty one is written []. Returns t.
function M.array(t)
  if type(t) ~= "table" then error("json.array: got " .. type(t) .. ", wanted a table", 2) end
  arrays[t] = true
  return t
end

--- Write these keys of t first and in this order; the rest follow sorted. Returns t.
function M.ordered(t, keys)
  if type(t) ~= "table" then error("json.ordered: got " .. type(t) .. ", wanted a table", 2) end
  orders[t] = keys
  return t
end

-- ---- Writing

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape(c) return ESCAPES[c] or ("\\u%04x"):format(c:byte()) end

-- Length of the UTF-8 sequence that starts at byte i, or nil where there is none (RFC 3629: no surrogates, no overlong forms).
local function utf8_length(s, i)
  local a, b, c, d = s:byte(i, i + 3)
  local function tail(x) return x and x >= 0x80 and x <= 0xBF end
  if a < 0x80 then return 1 end
  if a >= 0xC2 and a <= 0xDF then return tail(b) and 2 or nil end
  if a >= 0xE0 and a <= 0xEF then
    local low, high = a == 0xE0 and 0xA0 or 0x80, a == 0xED and 0x9F or 0xBF
    return b and b >= low and b <= high and tail(c) and 3 or nil
  end
  if a >= 0xF0 and a <= 0xF4 then
    local low, high = a == 0xF0 and 0x90 or 0x80, a == 0xF4 and 0x8F or 0xBF
    return b and b >= low and b <= high and tail(c) and tail(d) and 4 or nil
  end
  return nil
end

-- A file name may hold any bytes; JSON must be UTF-8, so a byte that is not becomes U+FFFD.
local function repair(s)
  local out, i = {}, 1
  while i <= #s do
    local n = utf8_length(s, i)
    out[#out + 1] = n and s:sub(i, i + n - 1) or "\239\191\189"
    i = i + (n or 1)
  end
  return table.concat(out)
end

local function quote(s)
  if s:find("[\128-\255]") then s = repair(s) end
  return '"' .. s:gsub('[%z\1-\31"\\]', escape) .. '"'
end

local SHOWN_PATH = 80 -- characters of a key path that a message shows

local function place(path)
  if path == "" then return "the value" end
  return #path > SHOWN_PATH and path:sub(1, SHOWN_PATH) .. ".." or path
end

local function key_path(path, key)
  if key == nil then return path end
  if type(key) == "number" then return ("%s[%d]"):format(path, key) end
  return path == "" and key or path .. "." .. key
end

-- Raised inside encode and given to its caller with the caller's line.
local function refuse(path, given, wanted)
  error({ refused = ("json: %s: got %s, wanted %s"):format(place(path), given, wanted) }, 0)
end

local function number(v, path)
  if v ~= v then refuse(path, "NaN", "a finite number") end
  if v == math.huge or v == -math.huge then refuse(path, v > 0 and "inf" or "-inf", "a finite number") end
  if v == math.floor(v) and math.abs(v) < WHOLE_LIMIT then return ("%.0f"):format(v) end
  return ("%.17g"):format(v)
end

-- Is t a list? Its keys are 1 .. #t and nothing else; {} is an object unless marked.
local function is_list(t, path)
  local count, n = 0, #t
  local other
  for key in pairs(t) do
    count = count + 1
    if type(key) ~= "number" then other = key
    elseif key < 1 or key ~= math.floor(key) then refuse(path, ("key %.17g"):format(key), "a list from 1 up or text keys") end
  end
  if other ~= nil and (n > 0 or arrays[t]) then
    refuse(path, ("a list of %d that also has key %q"):format(n, tostring(other)), "a list or an object")
  end
  if other == nil and count ~= n then refuse(path, "a list with gaps", "none") end
  return arrays[t] or n > 0
end

local function object_keys(t, path)
  local keys, seen = {}, {}
  for _, key in ipairs(orders[t] or {}) do
    if t[key] ~= nil then keys[#keys + 1], seen[key] = key, true end
  end
  local rest = {}
  for key in pairs(t) do
    if type(key) ~= "string" then refuse(path, "a key that is a " .. type(key), "text keys") end
    if not seen[key] then rest[#rest + 1] = key end
  end
  table.sort(rest)
  for _, key in ipairs(rest) do keys[#keys + 1] = key end
  return keys
end

local write

local function write_table(t, path, depth, out)
  if depth > MAX_DEPTH then refuse(path, ("more than %d levels"):format(MAX_DEPTH), "a tree") end
  if is_list(t, path) then
    out[#out + 1] = "["
    for i = 1, #t do
      if i > 1 then out[#out + 1] = "," end
      write(t[i], key_path(path, i), depth + 1, out)
    end
    out[#out + 1] = "]"
  else
    out[#out + 1] = "{"
    for i, key in ipairs(object_keys(t, path)) do
      if i > 1 then out[#out + 1] = "," end
      out[#out + 1] = quote(key)
      out[#out + 1] = ":"
      write(t[key], key_path(path, key), depth + 1, out)
    end
    out[#out + 1] = "}"
  end
end

function write(v, path, depth, out)
  local kind = type(v)
  if v == M.null then out[#out + 1] = "null"
  elseif kind == "table" then write_table(v, path, depth, out)
  elseif kind == "string" then out[#out + 1] = quote(v)
  elseif kind == "number" then out[#out + 1] = number(v, path)
  elseif kind == "boolean" then out[#out + 1] = tostring(v)
  else refuse(path, kind, "a table, text, a number, a boolean or json.null") end
end

--- The value as one line of JSON. Raises `json: case.s_q: got NaN, wanted a finite number` at the caller's line for NaN,
-- infinity, cdata, functions, lists with gaps, tables that mix list and keys, and tables that hold themselves.
function M.encode(value)
  local out = {}
  local ok, err = pcall(write, value, "", 1, out)
  if ok then return table.concat(out) end
  error(type(err) == "table" and err.refused or err, 2)
end

-- ---- Reading (RFC 8259, nothing more)

local UNESCAPES = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }
local LITERALS = { t = { "true", true }, f = { "false", false }, n = { "null", M.null } }

local SHORT_DIGITS = 15 -- a whole number this short is exact in a double and needs no further check

local function bad(path, at, message)
  error({ refused = ("%s: %s at character %d"):format(place(path), message, at) }, 0)
end

local function skip(s, i) return s:find("[^ \t\r\n]", i) or #s + 1 end

-- The code point as UTF-8.
local function utf8_char(code)
  local function tail(shift) return 0x80 + math.floor(code / 2 ^ shift) % 64 end
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), tail(0)) end
  if code < 0x10000 then return string.char(0xE0 + math.floor(code / 4096), tail(6), tail(0)) end
  return string.char(0xF0 + math.floor(code / 262144), tail(12), tail(6), tail(0))
end

-- An escape whose backslash stands at i: its text and where it ends.
local function read_escape(s, i, path)
  local c = s:sub(i + 1, i + 1)
  if UNESCAPES[c] then return UNESCAPES[c], i + 2 end
  local code = tonumber(s:match("^\\u(%x%x%x%x)", i) or "", 16)
  if not code then bad(path, i, "unknown escape") end
  if code >= 0xDC00 and code <= 0xDFFF then bad(path, i, "half a surrogate pair") end
  if code < 0xD800 or code > 0xDBFF then return utf8_char(code), i + 6 end
  local low = tonumber(s:match("^\\u(%x%x%x%x)", i + 6) or "", 16)
  if not low or low < 0xDC00 or low > 0xDFFF then bad(path, i, "half a surrogate pair") end
  return utf8_char(0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00), i + 12
end

local function read_string(s, i, path)
  local stop = s:find('["\\%z\1-\31]', i + 1)
  if stop and s:byte(stop) == 34 then return s:sub(i + 1, stop - 1), stop + 1 end
  local parts, from = {}, i + 1
  while true do
    stop = s:find('["\\%z\1-\31]', from)
    if not stop then bad(path, i, "text without its closing quote") end
    parts[#parts + 1] = s:sub(from, stop - 1)
    local byte = s:byte(stop)
    if byte == 34 then return table.concat(parts), stop + 1 end
    if byte ~= 92 then bad(path, stop, "a raw control character in text") end
    parts[#parts + 1], from = read_escape(s, stop, path)
  end
end

local function read_number(s, i, path)
  local stop = select(2, s:find("^[%w_+.-]+", i))
  local text = s:sub(i, stop)
  local whole, rest = text:match("^%-?(%d+)(.*)$")
  local exponent = rest and (rest:match("^%.%d+(.*)$") or rest:match("^[eE].*$") or rest == "" and "")
  if not exponent or #whole > 1 and whole:byte() == 48 or exponent ~= "" and not exponent:match("^[eE][+-]?%d+$") then
    bad(path, i, ("%q is not a JSON number"):format(text))
  end
  local v = tonumber(text)
  if v == math.huge or v == -math.huge then bad(path, i, ("%s does not fit a double"):format(text)) end
  return v, stop + 1
end

local read

local function read_list(s, i, path, depth)
  local list, n = M.array {}, 0
  i = skip(s, i + 1)
  if s:byte(i) == 93 then return list, i + 1 end
  while true do
    n = n + 1
    list[n], i = read(s, i, path, n, depth + 1)
    i = skip(s, i)
    local byte = s:byte(i)
    if byte == 93 then return list, i + 1 end
    if byte ~= 44 then bad(path, i, "wanted , or ]") end
    i = skip(s, i + 1)
  end
end

local function read_object(s, i, path, depth)
  local object = {}
  i = skip(s, i + 1)
  if s:byte(i) == 125 then return object, i + 1 end
  while true do
    if s:byte(i) ~= 34 then bad(path, i, "wanted a quoted key") end
    local key
    key, i = read_string(s, i, path)
    if object[key] ~= nil then bad(path, i, ("key %q stands twice"):format(key)) end
    i = skip(s, i)
    if s:byte(i) ~= 58 then bad(path, i, ("wanted : after key %q"):format(key)) end
    object[key], i = read(s, skip(s, i + 1), path, key, depth + 1)
    i = skip(s, i)
    local byte = s:byte(i)
    if byte == 125 then return object, i + 1 end
    if byte ~= 44 then bad(path, i, "wanted , or }") end
    i = skip(s, i + 1)
  end
end

-- The value that starts at i and the first character after it. (parent, key) is where it stands: they become text only for tables
-- and messages, since what files mostly hold is lists of numbers.
function read(s, i, parent, key, depth)
  local byte = s:byte(i)
  if byte == 34 then return read_string(s, i, key_path(parent, key)) end
  if byte == 45 or byte and byte >= 48 and byte <= 57 then
    local from, to = s:find("^[1-9]%d*", i)
    if from and to - from < SHORT_DIGITS and not s:find("^[%w_+.-]", to + 1) then
      return tonumber(s:sub(from, to)), to + 1
    end
    return read_number(s, i, key_path(parent, key))
  end
  local path = key_path(parent, key)
  if depth > MAX_DEPTH then bad(path, i, ("more than %d levels"):format(MAX_DEPTH)) end
  if byte == 123 then return read_object(s, i, path, depth) end
  if byte == 91 then return read_list(s, i, path, depth) end
  local literal = byte and LITERALS[string.char(byte)]
  local word = literal and literal[1]
  if word and s:sub(i, i + #word - 1) == word and not s:find("^[%w_]", i + #word) then return literal[2], i + #word end
  local given = s:match("^[%w_+.-]+", i)
  bad(path, i, given and ("%q is not JSON"):format(given) or byte and "wanted a value" or "the text ends too early")
end

--- The value of a JSON text, objects and lists as tables (lists marked, null as json.null) | nil, message with key path and
-- place. What no record may hold is refused: NaN, infinities, hexadecimal, numbers beyond a double, keys given twice.
function M.decode(text)
  if type(text) ~= "string" then error("json.decode: got " .. type(text) .. ", wanted text", 2) end
  local ok, value, stop = pcall(read, text, skip(text, 1), "", nil, 1)
  if ok then
    stop = skip(text, stop)
    if stop > #text then return value end
    return nil, ("json: text after the value at character %d"):format(stop)
  end
  if type(value) ~= "table" then error(value, 0) end
  return nil, "json: " .. value.refused
end

--- Iterates over the values of a JSON-lines file: `for value, line in json.lines(path)`; blank lines are skipped. A file that
-- cannot be read raises `path: No such file or directory`, a bad line `path:12: json: ...`: plain text, for pcall or the user.
function M.lines(path)
  local file, err = io.open(path, "r")
  if not file then error(err, 0) end
  local line = 0
  return function()
    while true do
      local text = file:read("*l")
      if text == nil then file:close() return nil end
      line = line + 1
      if text:find("%S") then
        local value, why = M.decode(text)
        if value == nil then file:close() error(("%s:%d: %s"):format(path, line, why), 0) end
        return value, line
      end
    end
  end
end

return M
