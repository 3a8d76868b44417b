--- A tensor: typed, strided memory on a device, and views of it.
--
--     local q = fh.tensor(dev, "bf16", { 2048, 64, 512 }):random{ seed = 1 }
--     local real = q[{ {}, { 1, 8 } }]                  -- the first 8 heads: the same memory, shape 2048 x 8 x 512
--     print(real:get(1, 8, 512), real[{ 1, 8, 512 }], q)
--
-- dtype "bf16", "f32" or "i32"; rank 1 to 4; indices count from 1 and ranges include both ends. Fields, to be read only: dtype,
-- shape, stride and offset (in elements; the offset is from the buffer's base), rank, numel, device, handle (fh_view*; nil once
-- freed). Methods that change a tensor return it, or nil and the reason when the device fails; wrong arguments raise.
--
-- Lifetime. A view keeps the memory it looks at, whatever happens to the tensor it was made from. free() gives a tensor back at
-- once, the collector does the same for one that was dropped, in any order; the memory goes with its last view. Using a freed
-- tensor is an error. An address that data() or pointer() gave is good as long as some view of that memory is alive.
--
-- NaN. LuaJIT takes what it loads from a float pointer for a number or the one NaN it knows; other NaNs, such as those of 0xFF
-- poison, come out as nil or false. get, read and to_table bring them to the known one; read a raw one with tensor.float_at.
local bit = require "bit"

local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local F = require "fewhead.base.ffi"

local ffi, C = F.ffi, F.C

local NAN = 0 / 0
local MAX_RANK = C.FH_MAX_RANK
local MAX_WHOLE = 2^53 - 1 -- a double holds every whole number up to here
local INT32_MIN, INT32_MAX = -2^31, 2^31 - 1

local DTYPES = { "bf16", "f32", "i32" }
local C_TYPE = { bf16 = "uint16_t", f32 = "float", i32 = "int32_t" }
local BYTES, ARRAY, POINTER, ELEMENT = {}, {}, {}, {}
for dtype, c_type in pairs(C_TYPE) do
  BYTES[dtype] = C.fh_dtype_bytes(F.dtypes[dtype])
  ARRAY[dtype] = ffi.typeof(c_type .. "[?]")
  POINTER[dtype] = ffi.typeof(c_type .. " *")
  ELEMENT[dtype] = tostring(ffi.typeof(c_type)):match("^ctype<(.*)>$") -- as ctypes print it: "unsigned short"
end

-- `return M.new(...)` is a tail call, so that errors blame the caller as M.new's do.
local M = {}
setmetatable(M, { __call = function(_, ...) return M.new(...) end })

local Tensor = { __name = "tensor" }

-- ---- Scalars ------------------------------------------------------------------------------------------------------------------

local words = ffi.typeof("uint32_t *")
local cell = ffi.new("union { float f; int32_t i; }")

local QUIET_NAN = 0x7fc00000
local function is_nan(word) return bit.band(word, 0x7fffffff) > 0x7f800000 end

local function to_float(u16)
  if bit.band(u16, 0x7fff) > 0x7f80 then return NAN end
  cell.i = bit.lshift(u16, 16)
  return cell.f
end

-- To nearest even in one rounding. The float on the way is rounded already: where that made a tie of what was none, the float is
-- moved back to the side the number came from.
local function to_bf16(x)
  cell.f = x
  local word = cell.i
  if x ~= x then return bit.bor(bit.rshift(word, 16), 0x40) end
  if bit.band(word, 0xffff) == 0x8000 and cell.f ~= x then
    word = word + (math.abs(x) > math.abs(cell.f) and 1 or -1)
  end
  return bit.rshift(bit.tobit(word + 0x7fff + bit.band(bit.rshift(word, 16), 1)), 16)
end

--- The number that the 16 bits of a bf16 stand for.
function M.to_float(u16)
  args.integer("tensor.to_float: u16", u16, 0, 0xffff)
  return to_float(u16)
end

--- The 16 bits of the bf16 nearest to a number, ties to even; NaN stays NaN, what is too large becomes infinite.
function M.to_bf16(x)
  if type(x) ~= "number" then error(("tensor.to_bf16: x: got %s, wanted a number"):format(args.show(x)), 2) end
  return to_bf16(x)
end

--- pointer[i], counted from 0, of a float*; whatever NaN lies there comes out as NaN. Checks nothing.
function M.float_at(pointer, i)
  if is_nan(ffi.cast(words, pointer)[i]) then return NAN end
  return pointer[i]
end

-- ---- Checks -------------------------------------------------------------------------------------------------------------------
-- `level` counts as in fh.arguments: from the function that calls the check, 2 where it is left out. What may raise is never
-- called in tail position, which would drop a frame.

local function shape_text(shape)
  local text = {}
  for i = 1, #shape do text[i] = ("%.0f"):format(shape[i]) end
  return "[" .. table.concat(text, ", ") .. "]"
end

-- A tensor that was not freed.
local function check(what, v, level)
  level = (level or 2) + 1
  if getmetatable(v) ~= Tensor then error(("%s: got %s, wanted a tensor"):format(what, args.show(v)), level) end
  if not v.handle then error(("%s: got a tensor that was freed"):format(what), level) end
end

-- A number that an element can take, NaN and infinities too where there are such elements.
local function check_value(what, v, dtype, level)
  level = (level or 2) + 1
  if dtype == "i32" then
    args.integer(what, v, INT32_MIN, INT32_MAX, level)
  elseif type(v) ~= "number" then
    error(("%s: got %s, wanted a number"):format(what, args.show(v)), level)
  end
end

-- ---- Memory -------------------------------------------------------------------------------------------------------------------
-- The collector sees some hundred bytes where the device holds gigabytes, so it would let dropped tensors wait for long. It is
-- therefore run by hand when what was allocated since its last run, all of which may be garbage, exceeds what was alive then: at
-- most half of the memory waits. Below SLACK nothing is gained by collecting.
local SLACK = 256 * 2^20

local live = 0      -- bytes of all buffers
local since = 0     -- bytes allocated since the last collection
local survived = 0  -- bytes alive after it

local function collect()
  collectgarbage()
  since, survived = 0, live
end

-- Drop one view of the memory, whether free() or the collector ends it.
local function release(storage)
  storage.views = storage.views - 1
  if storage.views > 0 then return end
  live = live - storage.bytes
  C.fh_buffer_free(storage.buffer)
end

-- What all views of one buffer share.
local function allocate(dev, bytes)
  if since + bytes > math.max(SLACK, survived) then collect() end
  local buffer = ffi.new("fh_buffer *[1]")
  local status = C.fh_buffer_alloc(dev.handle, bytes, buffer)
  if status == C.FH_ERR_MEMORY then
    collect()
    status = C.fh_buffer_alloc(dev.handle, bytes, buffer)
  end
  local ok, err = F.check(status)
  if not ok then return nil, err end
  live, since = live + bytes, since + bytes
  return { buffer = buffer, bytes = bytes, views = 0 }
end

--- Bytes of device memory that tensors hold: those in use and those that wait for the collector.
function M.live_bytes() return live end

local function make_view(dev, storage, dtype, shape, stride, offset)
  local rank, box = #shape, ffi.new("fh_view *[1]")
  storage.views = storage.views + 1
  local ok, err = F.check(C.fh_view_create(storage.buffer[0], F.dtypes[dtype], rank, ffi.new("int64_t[?]", rank, shape),
    ffi.new("int64_t[?]", rank, stride), offset, box))
  if not ok then
    release(storage)
    return nil, err
  end
  ffi.gc(box, function(b)
    C.fh_view_free(b)
    release(storage)
  end)
  local info = ffi.new("fh_view_info")
  info.struct_size = ffi.sizeof(info)
  C.fh_view_get_info(box[0], info)
  local numel = 1
  for i = 1, rank do numel = numel * shape[i] end
  return setmetatable({
    dtype = dtype, shape = shape, stride = stride, offset = offset, rank = rank, numel = numel, device = dev, handle = box[0],
    box = box, storage = storage, address = info.data,
  }, Tensor)
end

--- Give the tensor back. Views made from it stay, and the memory with them. Freeing twice does nothing.
function Tensor:free()
  if getmetatable(self) ~= Tensor then error(("tensor:free: got %s, wanted a tensor"):format(args.show(self)), 2) end
  if not self.handle then return end
  self.handle, self.address = nil, nil
  ffi.gc(self.box, nil)
  C.fh_view_free(self.box)
  release(self.storage)
end

-- self for FH_OK: what methods return that work in place.
local function done(self, status)
  local ok, err = F.check(status)
  if not ok then return nil, err end
  return self
end

-- ---- Host memory --------------------------------------------------------------------------------------------------------------

-- Contiguous host memory for n elements; nil and the reason where LuaJIT cannot give that much in one piece.
local function host_array(what, dtype, n)
  local ok, host = pcall(ARRAY[dtype], n)
  if ok then return host end
  return nil, ("%s: LuaJIT has no %.0f bytes of host memory in one piece; go through slices"):format(what, n * BYTES[dtype])
end

-- Reads nested lists of this shape into host, row-major, from position `at`. Returns the position after the last element; or nil,
-- the indices of the place in doubt ("[3][1]"), what stands there and what was wanted.
local function flatten(list, shape, dim, dtype, host, at)
  local n = shape[dim]
  if type(list) ~= "table" or getmetatable(list) ~= nil then return nil, "", args.show(list), "a list of " .. n end
  local keys = 0
  for _ in pairs(list) do keys = keys + 1 end
  if keys ~= #list then return nil, "", "a table with other keys than 1, 2, ..", "a list of " .. n end
  if keys ~= n then return nil, "", "a list of " .. keys, "a list of " .. n end
  if dim < #shape then
    for i = 1, n do
      local next_at, where, got, wanted = flatten(list[i], shape, dim + 1, dtype, host, at)
      if not next_at then return nil, "[" .. i .. "]" .. where, got, wanted end
      at = next_at
    end
    return at
  end
  for i = 1, n do
    local v = list[i]
    if type(v) ~= "number" then return nil, "[" .. i .. "]", args.show(v), "a number" end
    if dtype == "bf16" then
      host[at] = to_bf16(v)
    else
      if dtype == "i32" and not (v >= INT32_MIN and v <= INT32_MAX and v == math.floor(v)) then
        return nil, "[" .. i .. "]", args.show(v), ("a whole number in %d .. %d"):format(INT32_MIN, INT32_MAX)
      end
      host[at] = v
    end
    at = at + 1
  end
  return at
end

-- Nested lists of this shape as a host array. Raises at `level` for lists that do not fit; nil and the reason without memory.
local function host_from(what, lists, shape, dtype, level)
  level = (level or 2) + 1
  local n = 1
  for i = 1, #shape do n = n * shape[i] end
  local host, err = host_array(what, dtype, n)
  if not host then return nil, err end
  local ok, where, got, wanted = flatten(lists, shape, 1, dtype, host, 0)
  if not ok then error(("%s%s: got %s, wanted %s"):format(what, where, got, wanted), level) end
  return host
end

-- Nested lists of numbers from a host array, and the position after the last one.
local function nest(host, shape, dim, dtype, at)
  local list, n = {}, shape[dim]
  if dim < #shape then
    for i = 1, n do list[i], at = nest(host, shape, dim + 1, dtype, at) end
  elseif dtype == "bf16" then
    for i = 1, n do list[i] = to_float(host[at + i - 1]) end
    at = at + n
  else
    for i = 1, n do list[i] = host[at + i - 1] end
    at = at + n
  end
  return list, at
end

-- ---- Making tensors -----------------------------------------------------------------------------------------------------------

local function contiguous(shape)
  local stride, step = {}, 1
  for i = #shape, 1, -1 do
    stride[i] = step
    step = step * math.max(shape[i], 1)
  end
  return stride
end

-- How far element (1, 1, ..) lies from the lowest one, and how many elements the whole stretch has.
local function extent(shape, stride)
  local low, high = 0, 0
  for i = 1, #shape do
    if shape[i] == 0 then return 0, 0 end
    local reach = (shape[i] - 1) * stride[i]
    low, high = low + math.min(reach, 0), high + math.max(reach, 0)
  end
  return -low, high - low + 1
end

--- A tensor of its own memory, contents undefined unless fill= gives a number. shape: a list of 1 to 4 sizes >= 0. stride=: a
-- list of as many steps in elements, any sign, 0 repeats (default: contiguous, row-major); the memory is as large as they reach.
-- Returns the tensor, or nil and the reason when the device has no such memory.
function M.new(dev, dtype, shape, options)
  device.check("tensor.new: device", dev)
  args.enum("tensor.new: dtype", dtype, DTYPES)
  args.list("tensor.new: shape", shape, 1, MAX_RANK)
  options = args.options("tensor.new", options, { "stride", "fill" })
  local sizes, numel = {}, 1
  for i = 1, #shape do
    sizes[i] = args.integer(("tensor.new: shape[%d]"):format(i), shape[i], 0)
    numel = numel * math.max(sizes[i], 1)
  end
  local stride = contiguous(sizes)
  if options.stride ~= nil then
    args.list("tensor.new: stride", options.stride, #shape, #shape)
    for i = 1, #shape do stride[i] = args.integer(("tensor.new: stride[%d]"):format(i), options.stride[i]) end
  end
  local offset, reach = extent(sizes, stride)
  if math.max(numel, reach) * BYTES[dtype] > MAX_WHOLE then
    error(("tensor.new: shape: got %s with stride %s, wanted less than 2^53 bytes"):format(shape_text(sizes),
      shape_text(stride)), 2)
  end
  if options.fill ~= nil then check_value("tensor.new: fill", options.fill, dtype) end

  local storage, tensor, err
  storage, err = allocate(dev, reach * BYTES[dtype])
  if not storage then return nil, err end
  tensor, err = make_view(dev, storage, dtype, sizes, stride, offset)
  if not tensor or options.fill == nil then return tensor, err end
  return done(tensor, C.fh_view_fill(tensor.handle, options.fill))
end

--- A tensor that holds nested lists of numbers, as deep as its rank: {{1, 2}, {3, 4}} is 2 x 2. nil, err
-- without memory.
function M.from_table(dev, dtype, lists)
  device.check("tensor.from_table: device", dev)
  args.enum("tensor.from_table: dtype", dtype, DTYPES)
  args.table("tensor.from_table: list", lists)
  -- The shape is that of the first list of every level; flatten compares the others with it.
  local shape, list = {}, lists
  while type(list) == "table" do
    shape[#shape + 1] = #list
    if #shape > MAX_RANK then error(("tensor.from_table: list: got lists deeper than the %d wanted"):format(MAX_RANK), 2) end
    list = list[1]
  end
  local host, tensor, err
  host, err = host_from("tensor.from_table: list", lists, shape, dtype)
  if not host then return nil, err end
  tensor, err = M.new(dev, dtype, shape)
  if not tensor then return nil, err end
  return done(tensor, C.fh_view_write(tensor.handle, host, tensor.numel * BYTES[dtype]))
end

-- ---- Views --------------------------------------------------------------------------------------------------------------------

-- first, first + step, .., last out of 1 .. n as (places to skip, count, step). last = first - 1 (or + 1, downwards) is no place.
local function range(what, n, first, last, step, level)
  level = (level or 2) + 1
  if step == nil then step = 1 end
  args.integer(what .. ": step", step, nil, nil, level)
  if step == 0 then error(what .. ": step: got 0, wanted another whole number", level) end
  local up = step > 0
  if type(first) == "number" and last == first + (up and -1 or 1) then
    args.integer(what .. ": first", first, up and 1 or 0, up and n + 1 or n, level)
    return first - 1, 0, step
  end
  args.integer(what .. ": first", first, 1, n, level)
  args.integer(what .. ": last", last, up and first or 1, up and n or first, level)
  return first - 1, math.floor((last - first) / step) + 1, step
end

--- The elements first, first + step, .., last of dimension dim, sharing the memory. step is 1 where left out and may be negative;
-- last = first - 1 gives no element.
function Tensor:slice(dim, first, last, step)
  check("tensor:slice", self)
  args.integer("tensor:slice: dim", dim, 1, self.rank)
  local skip, count, by = range("tensor:slice", self.shape[dim], first, last, step)
  local shape, stride = { unpack(self.shape) }, { unpack(self.stride) }
  shape[dim], stride[dim] = count, stride[dim] * by
  return make_view(self.device, self.storage, self.dtype, shape, stride,
    self.offset + (count > 0 and skip * self.stride[dim] or 0))
end

-- What t[{ .. }] names: offset, shape and stride; an empty shape for one element.
local function locate(self, index, level)
  level = (level or 2) + 1
  args.list("tensor: index", index, 1, self.rank, level)
  local offset, shape, stride = self.offset, {}, {}
  for i = 1, self.rank do
    local what, entry, n, step = ("tensor: index %d"):format(i), index[i], self.shape[i], self.stride[i]
    if type(entry) == "number" then
      offset = offset + (args.integer(what, entry, 1, n, level) - 1) * step
    else
      if entry ~= nil and type(entry) ~= "table" then
        error(("%s: got %s, wanted a number, {}, {first, last} or {first, last, step}"):format(what, args.show(entry)), level)
      end
      if entry ~= nil and next(entry) ~= nil then
        args.list(what, entry, 2, 3, level)
        local skip, count, by = range(what, n, entry[1], entry[2], entry[3], level)
        offset = offset + (count > 0 and skip * step or 0)
        n, step = count, step * by
      end
      shape[#shape + 1], stride[#stride + 1] = n, step
    end
  end
  return offset, shape, stride
end

-- ---- Elements -----------------------------------------------------------------------------------------------------------------

-- Where one element rests on its way from or to the device.
local staged = {}
for dtype in pairs(C_TYPE) do staged[dtype] = ARRAY[dtype](1) end

-- The element that lies `offset` elements from the buffer's base.
local function load(self, offset)
  local dtype = self.dtype
  local host = staged[dtype]
  local ok, err = F.check(C.fh_buffer_read(self.storage.buffer[0], offset * BYTES[dtype], host, BYTES[dtype]))
  if not ok then return nil, err end
  if dtype == "bf16" then return to_float(host[0]) end
  if dtype == "f32" then return M.float_at(host, 0) end
  return host[0]
end

local function store(self, offset, v)
  local dtype = self.dtype
  local host = staged[dtype]
  host[0] = dtype == "bf16" and to_bf16(v) or v
  return done(self, C.fh_buffer_write(self.storage.buffer[0], offset * BYTES[dtype], host, BYTES[dtype]))
end

-- Offset of the element whose indices are the first `rank` values of the list.
local function position(self, what, indices, count, level)
  level = (level or 2) + 1
  if count ~= self.rank then error(("%s: got %d indices, wanted %d"):format(what, count, self.rank), level) end
  local offset = self.offset
  for i = 1, self.rank do
    args.integer(("%s: index %d"):format(what, i), indices[i], 1, self.shape[i], level)
    offset = offset + (indices[i] - 1) * self.stride[i]
  end
  return offset
end

--- The element (i, j, ..) as a number.
function Tensor:get(...)
  check("tensor:get", self)
  local offset = position(self, "tensor:get", { ... }, select("#", ...))
  return load(self, offset)
end

--- tensor:set(i, j, .., v): set one element, rounded to nearest even.
function Tensor:set(...)
  check("tensor:set", self)
  local given, count = { ... }, select("#", ...)
  local offset = position(self, "tensor:set", given, count - 1)
  check_value("tensor:set: value", given[count], self.dtype)
  return store(self, offset, given[count])
end

-- ---- Contents -----------------------------------------------------------------------------------------------------------------

local function fill(self, what, v, level)
  level = (level or 2) + 1
  check_value(what, v, self.dtype, level)
  return done(self, C.fh_view_fill(self.handle, v))
end

local function copy(self, what, src, level)
  level = (level or 2) + 1
  check(what, src, level)
  if src.dtype ~= self.dtype or shape_text(src.shape) ~= shape_text(self.shape) then
    error(("%s: got %s %s, wanted %s %s"):format(what, src.dtype, shape_text(src.shape), self.dtype, shape_text(self.shape)),
      level)
  end
  return done(self, C.fh_view_copy(self.handle, src.handle))
end

local function take(self, what, lists, level, shape)
  level = (level or 2) + 1
  local host, err = host_from(what, lists, shape or self.shape, self.dtype, level)
  if not host then return nil, err end
  return done(self, C.fh_view_write(self.handle, host, self.numel * BYTES[self.dtype]))
end

--- Set every element to v, rounded to nearest even.
function Tensor:fill(v)
  check("tensor:fill", self)
  local ok, err = fill(self, "tensor:fill: value", v)
  return ok, err
end

--- Set every byte of the whole buffer, those between and around the elements too: how poison is laid (0xFF makes NaNs).
function Tensor:fill_bytes(byte)
  check("tensor:fill_bytes", self)
  args.integer("tensor:fill_bytes: byte", byte, 0, 255)
  return done(self, C.fh_buffer_fill(self.storage.buffer[0], byte))
end

--- Copy `count` bytes of the whole buffer, as they stand, from byte `first` (counted from 0) to host memory.
function Tensor:read_bytes(first, count, host)
  check("tensor:read_bytes", self)
  args.integer("tensor:read_bytes: first", first, 0)
  args.integer("tensor:read_bytes: count", count, 0)
  return done(self, C.fh_buffer_read(self.storage.buffer[0], first, host, count))
end

--- Fill with random numbers that depend on seed, stream and an element's place in row-major order alone: the same on every
-- device. { dist = "normal", mean = 0, sd = 1 } or { dist = "uniform", low = 0, high = 1 }, high excluded; seed and stream 0 ..
-- 2^53 - 1. What is left out is as shown, seed and stream 0. An i32 tensor takes "uniform", with low and high given.
function Tensor:random(options)
  local what = "tensor:random"
  check(what, self)
  options = args.options(what, options, { "dist", "seed", "stream", "mean", "sd", "low", "high" })
  local whole = self.dtype == "i32"
  local dist = args.given(options.dist, whole and "uniform" or "normal")
  args.enum(what .. ": dist", dist, whole and { "uniform" } or { "normal", "uniform" })
  for _, key in ipairs(dist == "normal" and { "low", "high" } or { "mean", "sd" }) do
    if options[key] ~= nil then error(("%s: %s: given, but dist is %s"):format(what, key, dist), 2) end
  end
  local seed = args.integer(what .. ": seed", args.given(options.seed, 0), 0)
  local stream = args.integer(what .. ": stream", args.given(options.stream, 0), 0)
  local a, b
  if dist == "normal" then
    a = args.number(what .. ": mean", args.given(options.mean, 0))
    b = args.number(what .. ": sd", args.given(options.sd, 1), 0)
  elseif whole then
    a = args.integer(what .. ": low", options.low, INT32_MIN, INT32_MAX)
    b = args.integer(what .. ": high", options.high, a + 1, INT32_MAX + 1)
  else
    a = args.number(what .. ": low", args.given(options.low, 0))
    b = args.number(what .. ": high", args.given(options.high, 1), a)
  end
  return done(self, C.fh_view_random(self.handle, F.dists[dist], seed, stream, a, b))
end

--- Copy the elements of another tensor of the same dtype and shape; their memory must not overlap.
function Tensor:copy_from(src)
  check("tensor:copy_from", self)
  local ok, err = copy(self, "tensor:copy_from: source", src)
  return ok, err
end

--- Set all elements from nested lists of numbers of the tensor's shape.
function Tensor:from_table(lists)
  check("tensor:from_table", self)
  local ok, err = take(self, "tensor:from_table: list", lists)
  return ok, err
end

--- Set all elements from a host array of their C type (uint16_t for bf16), with exactly as many, in row-major order; or from
-- numbers, in nested lists of the tensor's shape or in one flat list in row-major order.
function Tensor:write(source)
  check("tensor:write", self)
  if type(source) ~= "cdata" then
    args.table("tensor:write: source", source)
    local ok, err = take(self, "tensor:write: source", source, 2, type(source[1]) == "number" and { self.numel } or nil)
    return ok, err
  end
  -- Arrays only: how much lies behind a pointer cannot be checked.
  local element = tostring(ffi.typeof(source)):match("^ctype<(.*) %[[%d%?]+%]>$")
  local bytes, wanted = ffi.sizeof(source), self.numel * BYTES[self.dtype]
  if not element or element:gsub("^const ", "") ~= ELEMENT[self.dtype] or bytes ~= wanted then
    error(("tensor:write: source: got %s of %d bytes, wanted %s[%d], %d bytes"):format(args.show(source), bytes,
      C_TYPE[self.dtype], self.numel, wanted), 2)
  end
  return done(self, C.fh_view_write(self.handle, source, bytes))
end

--- The elements in row-major order: a host array of uint16_t (bf16), float or int32_t, counted from 0, and their number. NaNs of
-- an f32 tensor come out as the one that Lua knows. nil, err when the device cannot be read.
function Tensor:read()
  check("tensor:read", self)
  local n = self.numel
  local host, err = host_array("tensor:read", self.dtype, n)
  if not host then return nil, err end
  local ok
  ok, err = F.check(C.fh_view_read(self.handle, host, n * BYTES[self.dtype]))
  if not ok then return nil, err end
  if self.dtype == "f32" then
    local word = ffi.cast(words, host)
    for i = 0, n - 1 do
      if is_nan(word[i]) then word[i] = QUIET_NAN end
    end
  end
  return host, n
end

--- The elements as nested lists of numbers. nil, err when the device cannot be read.
function Tensor:to_table()
  check("tensor:to_table", self)
  local host, err = self:read()
  if not host then return nil, err end
  return (nest(host, self.shape, 1, self.dtype, 0))
end

-- ---- Memory as others see it --------------------------------------------------------------------------------------------------

--- The device address of element (1, 1, ..), a void*; NULL for a tensor without elements.
function Tensor:data()
  check("tensor:data", self)
  return self.address
end

--- The same as a pointer that Lua can index from 0, on a CPU device: uint16_t* (bf16), float* (see tensor.float_at) or int32_t*.
function Tensor:pointer()
  check("tensor:pointer", self)
  if self.device.kind ~= "cpu" then
    error(("tensor:pointer: the memory is not the host's but %s's; read() copies it"):format(self.device.name), 2)
  end
  return ffi.cast(POINTER[self.dtype], self.address)
end

--- Push the whole buffer out of the device's caches.
function Tensor:evict()
  check("tensor:evict", self)
  return done(self, C.fh_buffer_evict(self.storage.buffer[0]))
end

--- Whether the elements lie side by side in row-major order.
function Tensor:is_contiguous()
  check("tensor:is_contiguous", self)
  local step = 1
  for i = self.rank, 1, -1 do
    if self.shape[i] ~= 1 and self.stride[i] ~= step then return self.numel == 0 end
    step = step * self.shape[i]
  end
  return true
end

-- ---- Indexing and printing ----------------------------------------------------------------------------------------------------

--- t[{ .. }]: one entry for each dimension; dimensions left out at the end are whole. {} is all of it, {first, last} and
-- {first, last, step} a part, a number one place of it, which drops the dimension; numbers alone give the element.
function Tensor:__index(key)
  if type(key) == "string" then return Tensor[key] end
  check("tensor: index", self)
  local offset, shape, stride = locate(self, key)
  if #shape == 0 then return load(self, offset) end
  return make_view(self.device, self.storage, self.dtype, shape, stride, offset)
end

--- t[{ .. }] = v: a number sets the element or fills the part; a tensor or nested lists of the part's shape are copied in.
function Tensor:__newindex(key, v)
  if type(key) == "string" then
    rawset(self, key, v)
    return
  end
  check("tensor: index", self)
  local offset, shape, stride = locate(self, key)
  local ok, err
  if #shape == 0 then
    check_value("tensor: value", v, self.dtype)
    ok, err = store(self, offset, v)
  else
    local part
    part, err = make_view(self.device, self.storage, self.dtype, shape, stride, offset)
    if part then
      local set = getmetatable(v) == Tensor and copy or type(v) == "table" and take or fill
      ok, err = set(part, "tensor: value", v)
      part:free()
    end
  end
  if not ok then error(err, 2) end
end

-- How many elements tostring shows of each end.
local SHOWN = 4

-- Element k, counted from 0 in row-major order, as text.
local function element_text(self, k)
  local offset = self.offset
  for i = self.rank, 1, -1 do
    offset = offset + k % self.shape[i] * self.stride[i]
    k = math.floor(k / self.shape[i])
  end
  local v = load(self, offset)
  if v == nil then return "?" end
  if v ~= v then return "nan" end
  return (self.dtype == "i32" and "%d" or "%.4g"):format(v)
end

--- dtype, shape, stride unless contiguous, device, and the first and last elements in row-major order.
function Tensor:__tostring()
  local text = self.dtype .. " " .. shape_text(self.shape)
  if not self.handle then return text .. ", freed" end
  if not self:is_contiguous() then text = text .. " stride " .. shape_text(self.stride) end
  text = text .. " on " .. self.device.name
  local shown, n = {}, self.numel
  local skipped = n > 2 * SHOWN
  for k = 0, (skipped and SHOWN or n) - 1 do shown[#shown + 1] = element_text(self, k) end
  if skipped then
    shown[#shown + 1] = ".."
    for k = n - SHOWN, n - 1 do shown[#shown + 1] = element_text(self, k) end
  end
  return text .. ": " .. (n > 0 and table.concat(shown, " ") or "no elements")
end

M._kept = { "live", "since", "survived" } -- locals that outlive a reload at the prompt

return M
