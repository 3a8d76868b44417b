--- JSON: one line out, checked values in; what reports, grids and traces are written in and read from.
--
--   local json = require "fewhead.base.json"
--   print(json.encode { path = "gather", time = { median_us = 0.1 }, argv = json.array {} })
--   for value, line in json.lines("records.jsonl") do print(line, value.path) end
--
-- Writing is ours: numbers round-trip (%.17g), and NaN and infinity are refused by their key path. Reading is lua-cjson's, which
-- is loaded at the first read. What lua-cjson takes and JSON does not hold is looked for afterwards and refused.

local bit = require "bit"
local ffi = require "ffi"

local M = {}

-- JSON's null; nil cannot stand in a Lua table.
M.null = setmetatable({}, { __tostring = function() return "null" end, __shown = "null" })

local MAX_DEPTH = 200       -- deeper than any record; stops a table that holds itself
local WHOLE_LIMIT = 2 ^ 53  -- a double holds every whole number up to it
local SHORT_LIMIT = 1e14    -- tostring writes all digits of whole numbers below it

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

local function quoted(s)
  if not s:find('[%z\1-\31"\\\128-\255]') then return '"' .. s .. '"' end
  if s:find("[\128-\255]") then s = repair(s) end
  return '"' .. s:gsub('[%z\1-\31"\\]', escape) .. '"'
end

-- Texts and keys as they are written, keys with the colon: records repeat theirs. So many of each are kept at most, and none that
-- is long.
local MOST_KEPT, LONGEST_KEPT = 1000, 64

-- f(text) with its results kept.
local function keeping(f)
  local kept, count = {}, 0
  return function(s)
    local text = kept[s]
    if text then return text end
    text = f(s)
    if count < MOST_KEPT and #s <= LONGEST_KEPT then kept[s], count = text, count + 1 end
    return text
  end
end

local quote = keeping(quoted)
local written_key = keeping(function(key) return quoted(key) .. ":" end)

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

-- Raised inside encode and given to its caller with the caller's line. at: the keys that lead to the value, outermost first;
-- depth: how many of them count.
local function refuse(at, depth, given, wanted)
  local path = ""
  for i = 1, depth do path = key_path(path, at[i]) end
  error({ refused = ("json: %s: got %s, wanted %s"):format(place(path), given, wanted) }, 0)
end

local function number(v, at, depth)
  if v == math.floor(v) and v > -SHORT_LIMIT and v < SHORT_LIMIT then return tostring(v) end
  if v == math.floor(v) and v >= -WHOLE_LIMIT and v <= WHOLE_LIMIT then return ("%.0f"):format(v) end
  if v ~= v then refuse(at, depth, "NaN", "a finite number") end
  if v == math.huge or v == -math.huge then refuse(at, depth, v > 0 and "inf" or "-inf", "a finite number") end
  local text = ("%.17g"):format(v)
  return text:find("[.e]") and text or text .. ".0" -- read back as a number that is not whole by its spelling
end

-- The keys of t in the order in which they are written; nil for a list, whose keys are 1 .. #t and nothing else. {} is an object
-- unless marked.
local function keys_of(t, at, depth)
  local found, texts, numbers, n = {}, 0, 0, #t
  local other, odd -- a key that is no number; the type of one that is no text either
  for key in pairs(t) do
    local kind = type(key)
    if kind == "string" then
      texts = texts + 1
      found[texts] = key
    elseif kind == "number" then
      numbers = numbers + 1
      if key < 1 or key ~= math.floor(key) then
        refuse(at, depth, ("key %.17g"):format(key), "a list from 1 up or text keys")
      end
    else other, odd = key, kind end
  end
  if other == nil then other = found[1] end
  if other ~= nil and (n > 0 or arrays[t]) then
    refuse(at, depth, ("a list of %d that also has key %q"):format(n, tostring(other)), "a list or an object")
  end
  if other == nil and numbers ~= n then refuse(at, depth, "a list with gaps", "none") end
  if other == nil and (arrays[t] or n > 0) then return nil end
  odd = odd or numbers > 0 and "number"
  if odd then refuse(at, depth, "a key that is a " .. odd, "text keys") end
  table.sort(found)
  local order = orders[t]
  if not order then return found end
  local keys, seen = {}, {}
  for _, key in ipairs(order) do
    if t[key] ~= nil then keys[#keys + 1], seen[key] = key, true end
  end
  for _, key in ipairs(found) do
    if not seen[key] then keys[#keys + 1] = key end
  end
  return keys
end

local write

local function write_parts(t, at, depth, out)
  if depth >= MAX_DEPTH then refuse(at, depth, ("more than %d levels"):format(MAX_DEPTH), "a tree") end
  local keys = keys_of(t, at, depth)
  if not keys then
    out[#out + 1] = "["
    for i = 1, #t do
      if i > 1 then out[#out + 1] = "," end
      at[depth + 1] = i
      write(t[i], at, depth + 1, out)
    end
    out[#out + 1] = "]"
  else
    out[#out + 1] = "{"
    for i, key in ipairs(keys) do
      if i > 1 then out[#out + 1] = "," end
      out[#out + 1] = written_key(key)
      at[depth + 1] = key
      write(t[key], at, depth + 1, out)
    end
    out[#out + 1] = "}"
  end
end

-- A table, or its text where out.kept has that.
local function write_table(t, at, depth, out)
  local kept = out.kept and out.kept[t]
  if kept == false then
    local parts = {}
    write_parts(t, at, depth, parts)
    kept = table.concat(parts)
    out.kept[t] = kept
  end
  if kept then out[#out + 1] = kept else write_parts(t, at, depth, out) end
end

function write(v, at, depth, out)
  local kind = type(v)
  if v == M.null then out[#out + 1] = "null"
  elseif kind == "table" then write_table(v, at, depth, out)
  elseif kind == "string" then out[#out + 1] = quote(v)
  elseif kind == "number" then out[#out + 1] = number(v, at, depth)
  elseif kind == "boolean" then out[#out + 1] = tostring(v)
  else refuse(at, depth, kind, "a table, text, a number, a boolean or json.null") end
end

-- Not compiled: LuaJIT 2.1.0-beta3 takes the deep recursion for a loop, and leaves levels out.
jit.off(write)
jit.off(write_table)
jit.off(write_parts)

--- The value as one line of JSON. kept: { [table] = false } for tables that stand in several values and do not change between
-- them: their text is made once and kept there. Raises `json: case.s_q: got NaN, wanted a finite number` at the caller's line for
-- NaN, infinity, cdata, functions, lists with gaps, tables that mix list and keys, and tables that hold themselves.
function M.encode(value, kept)
  local out = { kept = kept }
  local ok, err = pcall(write, value, {}, 0, out)
  if ok then return table.concat(out) end
  error(type(err) == "table" and err.refused or err, 2)
end

-- ---- Reading (RFC 8259, nothing more)

local WORDS = { ["true"] = true, ["false"] = true, null = true }
local LARGEST_WHOLE = "9007199254740992" -- WHOLE_LIMIT as text: a larger whole number may be another one when it is read

-- The parser, with settings of its own.
local cjson
local function parser()
  if cjson then return cjson end
  local found, module = pcall(require, "cjson")
  if not found then error("fewhead: no Lua module cjson: make setup installs lua-cjson", 0) end
  cjson = module.new()
  cjson.decode_invalid_numbers(false)
  cjson.decode_max_depth(MAX_DEPTH)
  return cjson
end

-- The text with each escape made two letters: every quote that is left begins or ends a string.
local function without_escapes(text) return text:find("\\", 1, true) and (text:gsub("\\.", "__")) or text end

-- Why this is no JSON number that a double holds, or nil.
local function number_fault(text)
  local whole, rest = text:match("^%-?(%d+)(.*)$")
  local exponent = rest and (rest:match("^%.%d+(.*)$") or rest:match("^[eE].*$") or rest == "" and "")
  if not exponent or #whole > 1 and whole:byte() == 48 or exponent ~= "" and not exponent:match("^[eE][+-]?%d+$") then
    return ("%q is not a JSON number"):format(text)
  end
  if math.abs(tonumber(text)) == math.huge then return text .. " does not fit a double" end
  if rest == "" and (#whole > #LARGEST_WHOLE or #whole == #LARGEST_WHOLE and whole > LARGEST_WHOLE) then
    return text .. " is a whole number above 2^53, which a double may not hold"
  end
end

-- The first thing in a text that JSON does not hold though lua-cjson may take it, with key path and place; nil when there is
-- none. Whether brackets and commas are right is not its matter.
local function objection(text)
  local plain, above, at = without_escapes(text), {}, 1
  local frame = {} -- where we are: name = the key or index, keys = those of this object so far
  local function path()
    local names = ""
    for _, outer in ipairs(above) do names = key_path(names, outer.name) end
    return place(key_path(names, frame.name))
  end
  local function bad(message) return ("%s: %s at character %d"):format(path(), message, at) end
  local function string_ends()
    local stop = plain:find('"', at + 1, true)
    if not stop then return nil end
    local control = text:find("[%z\1-\31]", at + 1)
    if control and control < stop then
      at = control
      return nil, bad("a raw control character in text")
    end
    if plain:find("^[ \t\r\n]*:", stop + 1) and frame.keys then
      local raw = text:sub(at + 1, stop - 1)
      local known, key = true, raw
      if raw:find("\\", 1, true) then known, key = pcall(parser().decode, text:sub(at, stop)) end
      if known and frame.keys[key] then
        frame.name = nil
        return nil, bad(("key %q stands twice"):format(key))
      end
      if known then frame.keys[key], frame.name = true, key end
    end
    return stop + 1
  end
  while true do
    at = text:find("[^ \t\r\n:]", at)
    if not at then return nil end
    local c, stop, fault = text:sub(at, at), at + 1, nil
    if c == '"' then stop, fault = string_ends()
    elseif c == "{" or c == "[" then
      above[#above + 1] = frame
      frame = c == "{" and { keys = {} } or { name = 1 }
    elseif c == "}" or c == "]" then
      frame = table.remove(above) or {}
    elseif c == "," then
      if type(frame.name) == "number" then frame.name = frame.name + 1 end
    else
      local word = text:match("^[%w_+.-]+", at)
      if not word then fault = bad(("byte %d is not JSON"):format(c:byte()))
      elseif word:find("^%-?%d") or word:find("^%-") then
        fault = number_fault(word)
        fault = fault and bad(fault)
      elseif not WORDS[word] then fault = bad(("%q is not JSON"):format(word)) end
      stop = word and at + #word
    end
    if fault or not stop then return fault end
    at = stop
  end
end

-- The survey of a text is a machine that reads byte after byte. Its states: inside text, after a backslash there, and outside of
-- text by the last byte that is no space: [, a digit, a point, or another.
-- Their numbers leave room for a byte, and for what a step finds: a key, something that lua-cjson takes and JSON may not hold,
-- a list without values.
local TEXT, ESCAPED, OPEN, DIGIT, POINT, OTHER, STATE = 0x000, 0x100, 0x200, 0x300, 0x400, 0x500, 0x700
local KEY, DOUBTFUL, EMPTY_LIST = 1, 2, 4

-- The state after a byte in a state, and what the byte shows there.
local function step(state, byte)
  local c = string.char(byte)
  if state == ESCAPED then return TEXT end
  if state == TEXT then
    if c == '"' then return OTHER end
    return c == "\\" and ESCAPED or TEXT + (byte < 32 and DOUBTFUL or 0)
  end
  local doubt = state == POINT and not c:find("%d") and DOUBTFUL or 0
  if c:find("[ \t\r\n]") then return state + doubt end
  if c == '"' then return TEXT + doubt end
  if c == "[" then return OPEN + doubt end
  if c:find("%d") then return DIGIT end
  if c == "." then return POINT + (state == DIGIT and 0 or DOUBTFUL) end
  if c == ":" then return OTHER + KEY + doubt end
  if c == "]" and state == OPEN then return OTHER + EMPTY_LIST end
  return OTHER + (byte < 32 and DOUBTFUL or doubt)
end

local STEPS = ffi.new("int32_t[?]", OTHER + 256)
for state = TEXT, OTHER, 0x100 do
  for byte = 0, 255 do STEPS[state + byte] = step(state, byte) end
end

-- One walk over the bytes of a text: how many keys it has, whether something is there that lua-cjson takes and JSON does not
-- hold, and whether a list without values is there. Text that is no JSON may give anything.
local function survey(text)
  local bytes, taken, keys, found = ffi.cast("const uint8_t *", text), OTHER, 0, 0
  for i = 0, #text - 1 do
    taken = STEPS[bit.bor(bit.band(taken, STATE), bytes[i])]
    keys = bit.tobit(keys + bit.band(taken, KEY))
    found = bit.bor(found, taken)
  end
  local doubtful = bit.band(found, DOUBTFUL) ~= 0 or bit.band(taken, STATE) == POINT
  return keys, doubtful, bit.band(found, EMPTY_LIST) ~= 0
end

-- lua-cjson reads [] and {} as the same table, so a list without values goes to it with this one in it. The byte is no UTF-8.
local EMPTY = "\255"

local function mark_empty_lists(text)
  local plain, parts, from, quotes = without_escapes(text), {}, 1, 0
  for first, last in plain:gmatch("()%[[ \t\r\n]*()%]") do
    local before = plain:sub(from, first - 1)
    quotes = quotes + select(2, before:gsub('"', ""))
    parts[#parts + 1] = text:sub(from, first - 1)
    parts[#parts + 1] = quotes % 2 == 0 and '["' .. EMPTY .. '"]' or text:sub(first, last)
    from = last + 1
  end
  return table.concat(parts) .. text:sub(from)
end

-- Turns what lua-cjson gave into what this module gives. Returns how many keys its objects have, and whether a number is so large
-- that its text must be looked at.
local function settle(t)
  local keys, large = 0, false
  if t[1] == EMPTY and #t == 1 then
    t[1] = nil
    arrays[t] = true
    return 0, false
  end
  for key, v in pairs(t) do
    if type(key) == "string" then keys = keys + 1 end
    local kind = type(v)
    if kind == "table" then
      local inner, inner_large = settle(v)
      keys, large = keys + inner, large or inner_large
    elseif kind == "number" then large = large or v >= WHOLE_LIMIT or v <= -WHOLE_LIMIT
    elseif kind == "userdata" then t[key] = M.null end
  end
  return keys, large
end

--- The value of a JSON text, objects and lists as tables (an empty list is marked), null as json.null | nil, message. The
-- message has the place, and the key path where lua-cjson does not speak for itself. Refused besides what is no JSON: NaN,
-- infinities, hexadecimal, numbers beyond a double, whole numbers above 2^53, keys given twice.
function M.decode(text)
  if type(text) ~= "string" then error("json.decode: got " .. type(text) .. ", wanted text", 2) end
  local keys, doubtful, empty_list = survey(text)
  local ok, value = pcall(parser().decode, empty_list and mark_empty_lists(text) or text)
  if not ok then
    local why = objection(text) or select(2, pcall(cjson.decode, text)):gsub("^%u%l", string.lower)
    return nil, "json: " .. why
  end
  local found, large = 0, false
  if type(value) == "table" then found, large = settle(value)
  elseif type(value) == "number" then large = true
  elseif type(value) == "userdata" then value = M.null end
  if doubtful or large or found ~= keys then -- a key that stands twice is there once
    local why = objection(text)
    if why then return nil, "json: " .. why end
  end
  return value
end

-- Stands for an object that was cut out of a text. The byte is no UTF-8.
local CUT_VALUE = "\255cut"
local CUT = '"' .. CUT_VALUE .. '"'

-- M.decode for texts that follow one another and repeat themselves. names: keys of objects. An object under such a key whose text
-- is that of the text before is not read again: both values hold one table. Text that is no JSON has M.decode's message.
local function decoder(names)
  -- By name: name":{ without its first quote, which texts are full of; { text = that and the object that was read last, value }.
  local marks, last = {}, {}
  for _, name in ipairs(names) do marks[name] = name .. '":' end
  -- Where the object of a name is in a text, without its key, and its table; nil where there is none or it is no JSON.
  local function find(text, name)
    local mark, known = marks[name], last[name]
    if known then
      local first, past = text:find(known.text, 1, true)
      if first then return first + #mark, past, known.value end
    end
    local first = text:find(mark .. "{", 1, true)
    local object = first and text:match("^%b{}", first + #mark)
    local value = object and M.decode(object) -- braces within text may have misled the match
    if not value then return nil end
    last[name] = { text = mark .. object, value = value }
    return first + #mark, first + #mark + #object - 1, value
  end
  local function read(text)
    local cut, taken = text, {}
    for _, name in ipairs(names) do
      local first, past, value = find(cut, name)
      if first then
        taken[name] = value
        cut = cut:sub(1, first - 1) .. CUT .. cut:sub(past + 1)
      end
    end
    local value = M.decode(cut)
    if type(value) ~= "table" then return nil end
    for name, inner in pairs(taken) do
      if value[name] ~= CUT_VALUE then return nil end -- the key was one of an inner object
      value[name] = inner
    end
    return value
  end
  return function(text)
    local value = read(text)
    if value ~= nil then return value end
    return M.decode(text)
  end
end

--- Iterates over the values of a JSON-lines file: `for value, line in json.lines(path)`; blank lines are skipped. A file that
-- cannot be read raises `path: No such file or directory`, a bad line `path:12: json: ...`: plain text, for pcall or the user.
-- bad: function(message) that takes such a line's message; the line is then left out. shared: keys of objects that lines repeat;
-- lines that follow one another with the same object under such a key share its table, so do not change it.
function M.lines(path, bad, shared)
  local file, err = io.open(path, "r")
  if not file then error(err, 0) end
  local line, decode = 0, shared and decoder(shared) or M.decode
  return function()
    while true do
      local text = file:read("*l")
      if text == nil then file:close() return nil end
      line = line + 1
      if text:find("%S") then
        local value, why = decode(text)
        if value ~= nil then return value, line end
        why = ("%s:%d: %s"):format(path, line, why)
        if not bad then
          file:close()
          error(why, 0)
        end
        bad(why)
      end
    end
  end
end

return M
