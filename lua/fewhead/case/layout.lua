--- Layouts: how a call's tensors lie in memory, with poison where nothing may be read and canaries where nothing may be written.
--
--     local layout = require "fewhead.case.layout"
--     local sizes = { s_q = 64, s_kv = 8192, h_q = 8, h_pad = 64, d_qk = 512, d_v = 512, topk = 640 }
--     print(assert(layout.make("vllm", dev, sizes)).q)       --> bf16 [64, 8, 512] stride [32768, 512, 1] on cpu: ..
--
-- A tensor is a box of real elements in a larger, contiguous box; the layout says how much larger on each side:
--   contiguous  rows follow each other without a gap; guard rows lie before and after.
--   vllm     q and out are heads 0 .. h_q - 1 of a buffer of h_pad heads, lse and max_logits too, and rows in the middle of the
--            token buffer of a step whose decode rows come first. attn_sink has h_pad entries, -inf in the padding heads.
--   strided  every row and head has an odd stride: q 517 or 581 elements a head, kv 519 or 583, out 515.
--   offset   every row starts one element past an aligned address: 2 bytes for bf16, 4 for f32 and int32.
-- Around the real elements of q, kv and attn_sink lie NaNs (bytes 0xFF), around those of indices zeros (row 0, which is a key),
-- around topk_length -1 (no key): a kernel that reads them shows it in its result. Outputs are 0xFF as a whole.
local ffi = require "ffi"
local args = require "fewhead.base.arguments"
local tensor = require "fewhead.device.tensor"

local floor, min = math.floor, math.min

local M = {}

M.names = { "contiguous", "vllm", "strided", "offset" }

-- Rows (or entries) of padding around a box: with 16 of them whatever comes after is as well aligned as an array of its own, at
-- least to 64 bytes.
local GUARD = 16
-- Rows of other requests in vLLM's token buffer: decodes come first; a few rows past the chunk belong to nobody.
local DECODES, SPARE = 5, 3

local POISON = 0xFF

-- Elements to add so that n becomes odd, at least one.
local function to_odd(n) return 1 + n % 2 end

-- For each tensor a list over its dimensions of { elements before, elements after }.
local NONE = { 0, 0 }
local MARGINS = {
  contiguous = function()
    local guard = { GUARD, GUARD }
    return {
      q = { guard, NONE, NONE }, kv = { guard, NONE }, indices = { guard, NONE }, topk_length = { guard },
      attn_sink = { guard }, out = { guard, NONE, NONE }, lse = { guard, NONE }, max_logits = { guard, NONE },
    }
  end,
  vllm = function(s)
    local guard, tokens, heads = { GUARD, GUARD }, { DECODES, SPARE }, { 0, s.h_pad - s.h_q }
    return {
      q = { tokens, heads, NONE }, kv = { guard, NONE }, indices = { guard, NONE }, topk_length = { guard },
      attn_sink = { heads }, out = { tokens, heads, NONE }, lse = { tokens, heads }, max_logits = { tokens, heads },
    }
  end,
  strided = function(s)
    local one, heads = { 1, 1 }, { 0, to_odd(s.h_q) }
    return {
      q = { one, heads, { 0, 5 } }, kv = { one, { 0, 7 } }, indices = { one, { 0, to_odd(s.topk) } }, topk_length = { one },
      attn_sink = { one }, out = { one, heads, { 0, 3 } }, lse = { one, heads }, max_logits = { one, heads },
    }
  end,
  offset = function()
    -- Together eight bf16 or four words: 16 bytes, so that every row is off by the same.
    local after, half, word = { 0, 1 }, { 1, 7 }, { 1, 3 }
    return {
      q = { after, NONE, half }, kv = { after, half }, indices = { after, word }, topk_length = { word }, attn_sink = { word },
      out = { after, NONE, half }, lse = { after, word }, max_logits = { after, word },
    }
  end,
}

local SIZES = { "s_q", "s_kv", "h_q", "h_pad", "d_qk", "d_v", "topk", "topk_length", "attn_sink", "lse", "max_logits", "float32" }

local function check_sizes(what, s, level)
  args.options(what, s, SIZES, level + 1)
  for _, key in ipairs { "s_q", "s_kv", "topk" } do args.integer(("%s: %s"):format(what, key), s[key], 0, nil, level + 1) end
  for _, key in ipairs { "h_q", "h_pad", "d_qk", "d_v" } do
    args.integer(("%s: %s"):format(what, key), s[key], 1, nil, level + 1)
  end
  if s.h_pad < s.h_q then
    error(("%s: h_pad: got %d, wanted at least h_q = %d"):format(what, s.h_pad, s.h_q), level + 1)
  end
  return s
end

-- A box of `shape` inside a contiguous one: { view = the real elements, whole = everything, margin = given }, or nil, err.
local function box(dev, dtype, shape, margin, byte)
  local outer = {}
  for i, n in ipairs(shape) do outer[i] = margin[i][1] + n + margin[i][2] end
  local whole, err = tensor.new(dev, dtype, outer)
  if not whole then return nil, err end
  local ok
  ok, err = whole:fill_bytes(byte)
  if not ok then return nil, err end
  local index = {}
  for i, n in ipairs(shape) do index[i] = { margin[i][1] + 1, margin[i][1] + n } end
  return { view = assert(whole[index]), whole = whole, margin = margin }
end

-- Boxes of the named tensors into `into`, or nil, err with all memory given back.
local function boxes(name, dev, s, list, into)
  local margins, made = MARGINS[name](s), {}
  for _, b in ipairs(list) do
    local key, dtype, shape, byte = b[1], b[2], b[3], b[4]
    local one, err = box(dev, dtype, shape, margins[key], byte)
    if not one then
      for _, other in pairs(made) do other.view:free() other.whole:free() end
      return nil, ("%s: %s"):format(key, err)
    end
    made[key], into[key] = one, one.view
  end
  return made
end

--- Input tensors: q bf16 [s_q, h_q, d_qk], kv bf16 [s_kv, d_qk], indices i32 [s_q, topk], topk_length i32 [s_q] where
-- sizes.topk_length is true, attn_sink f32 [h_q] where sizes.attn_sink is. The elements themselves hold the poison too until
-- they are written. Returns nil, err when there is no memory for them.
function M.make(name, dev, sizes)
  args.enum("layout", name, M.names)
  local s = check_sizes("layout.make", sizes, 2)
  local list = {
    { "q", "bf16", { s.s_q, s.h_q, s.d_qk }, POISON }, { "kv", "bf16", { s.s_kv, s.d_qk }, POISON },
    { "indices", "i32", { s.s_q, s.topk }, 0 },
  }
  if s.topk_length then list[#list + 1] = { "topk_length", "i32", { s.s_q }, POISON } end
  if s.attn_sink then list[#list + 1] = { "attn_sink", "f32", { s.h_q }, POISON } end
  local inputs = {}
  local made, err = boxes(name, dev, s, list, inputs)
  if not made then return nil, err end
  if name == "vllm" and s.attn_sink then made.attn_sink.whole:fill(-math.huge) end
  for _, one in pairs(made) do one.whole:free() end -- the view keeps the memory
  return inputs
end

-- ---- Outputs ----------------------------------------------------------------------------------------------------------------

local Outputs = { __name = "outputs" }
Outputs.__index = Outputs

--- Output tensors: out [s_q, h_q, d_v] (bf16, f32 where sizes.float32 is true), lse and max_logits f32 [s_q, h_q] unless sizes
-- say false. All bytes of their memory are 0xFF, so every element that is not written stays a NaN. canaries is what intact()
-- looks at. Returns nil, err when there is no memory for them.
function M.outputs(name, dev, sizes)
  args.enum("layout", name, M.names)
  local s = check_sizes("layout.outputs", sizes, 2)
  local list = { { "out", s.float32 and "f32" or "bf16", { s.s_q, s.h_q, s.d_v }, POISON } }
  if s.lse ~= false then list[#list + 1] = { "lse", "f32", { s.s_q, s.h_q }, POISON } end
  if s.max_logits ~= false then list[#list + 1] = { "max_logits", "f32", { s.s_q, s.h_q }, POISON } end
  local outputs = setmetatable({}, Outputs)
  local canaries, err = boxes(name, dev, s, list, outputs)
  if not canaries then return nil, err end
  outputs.canaries = canaries
  return outputs
end

--- Poison everything again, as it came. Returns true, or nil, err.
function Outputs:poison()
  for _, one in pairs(self.canaries) do
    local ok, err = one.whole:fill_bytes(POISON)
    if not ok then return nil, err end
  end
  return true
end

--- Give the memory back; twice does nothing.
function Outputs:free()
  for _, one in pairs(self.canaries) do
    one.view:free()
    one.whole:free()
  end
end

local words, octets = ffi.typeof("const int32_t *"), ffi.typeof("const uint8_t *")

-- The first byte from p[first] to p[last - 1] that is not poison, or nil. Four at a time: what lies around the heads of a vLLM
-- buffer is seven times what lies in it.
local function touched(p, first, last)
  local quads, count, i = ffi.cast(words, p + first), floor((last - first) / 4), 0
  while i < count and quads[i] == -1 do i = i + 1 end
  for at = first + 4 * i, last - 1 do
    if p[at] ~= POISON then return at end
  end
end

-- Bytes of device memory that are looked at at a time, and where they lie then: as large as copies need for full speed.
local PIECE = 16 * 2^20
local piece

-- A function that is touched() of a whole box, or nil, err when its memory cannot be read. It is asked for rising places, so what
-- the host cannot reach is copied piece by piece, each once.
local function looker(whole, size)
  if whole.device.kind == "cpu" then
    local p = ffi.cast(octets, whole:data())
    return function(first, last) return touched(p, first, last) end
  end
  piece = piece or ffi.new("uint8_t[?]", PIECE)
  local start, stop = 0, 0 -- what lies in the piece
  return function(first, last)
    while first < last do
      if first >= stop then
        start, stop = first, min(size, first + PIECE)
        local ok, err = whole:read_bytes(start, stop - start, piece)
        if not ok then return nil, err end
      end
      local upto = min(last, stop)
      local at = touched(piece, first - start, upto - start)
      if at then return start + at end
      first = upto
    end
  end
end

-- The first byte outside the real elements that is not poison, or nil; or nil, err. step[i] is the bytes of one place of
-- dimension i.
local function first_touched(one, size, step)
  local look = looker(one.whole, size)
  local shape, margin = one.view.shape, one.margin
  local rank, known, found, err = #shape, 0, nil, nil -- everything before `known` is real or has been looked at
  local function walk(dim, at)
    at = at + margin[dim][1] * step[dim]
    if dim < rank then
      for i = 0, shape[dim] - 1 do
        if walk(dim + 1, at + i * step[dim]) then return true end
      end
    else
      found, err = look(known, at)
      known = at + shape[dim] * step[dim]
    end
    return found or err
  end
  if walk(1, 0) then return found, err end
  return look(known, size)
end

local PLACES = { "row", "head", "column" }

--- Whether nothing outside the real elements of `outputs` was written. Returns true, or nil and the first place that was,
-- tensor by tensor in the order out, lse, max_logits, its row, head and column counted from the first real element, 0: what
-- lies before has negative numbers.
function M.intact(outputs)
  if getmetatable(outputs) ~= Outputs then
    error(("layout.intact: got %s, wanted outputs, such as layout.outputs gives"):format(args.show(outputs)), 2)
  end
  for _, key in ipairs { "out", "lse", "max_logits" } do
    local one = outputs.canaries[key]
    if one then
      local whole, step = one.whole, {}
      local size = whole.numel * ffi.sizeof(whole.dtype == "bf16" and "uint16_t" or "float")
      for i, elements in ipairs(whole.stride) do step[i] = elements * size / whole.numel end
      local at, err = first_touched(one, size, step)
      if err then return nil, ("%s: %s"):format(key, err) end
      if at then
        local place, rest = {}, at
        for i = 1, whole.rank do
          place[i] = ("%s %d"):format(PLACES[i], floor(rest / step[i]) - one.margin[i][1])
          rest = rest % step[i]
        end
        return nil, ("%s: written outside its elements, at %s"):format(key, table.concat(place, ", "))
      end
    end
  end
  return true
end

return M
