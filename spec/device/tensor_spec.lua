local ffi = require "ffi"
local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local tensor = require "fewhead.device.tensor"
local helper = require "spec.helper"

local refusal = helper.refusal

local NAN, INF = 0 / 0, math.huge

local dev = helper.device()

-- 1, 2, 3, .. as nested lists of this shape.
local function counted(shape)
  local n = 0
  local function level(dim)
    local list = {}
    for i = 1, shape[dim] do
      if dim < #shape then list[i] = level(dim + 1) else n = n + 1 list[i] = n end
    end
    return list
  end
  return level(1)
end

describe("tensor.new", function()
  it("makes contiguous row-major memory of each dtype", function()
    for _, dtype in ipairs { "bf16", "f32", "i32" } do
      local t = assert(tensor.new(dev, dtype, { 2, 3, 4 }))
      assert.equal(dtype, t.dtype)
      assert.same({ 2, 3, 4 }, t.shape)
      assert.same({ 12, 4, 1 }, t.stride)
      assert.equal(3, t.rank)
      assert.equal(24, t.numel)
      assert.equal(0, t.offset)
      assert.equal(dev, t.device)
      assert.is_true(t:is_contiguous())
    end
  end)

  it("is what calling the module does, and fills on request", function()
    assert.same({ { 2.5, 2.5 }, { 2.5, 2.5 } }, tensor(dev, "f32", { 2, 2 }, { fill = 2.5 }):to_table())
    assert.same({ -7 }, tensor(dev, "i32", { 1 }, { fill = -7 }):to_table())
    assert.same({ -INF, -INF }, tensor(dev, "f32", { 2 }, { fill = -INF }):to_table())
  end)

  it("takes any stride: gaps, repeats and backwards", function()
    local gaps = tensor(dev, "i32", { 2, 3 }, { stride = { 10, 2 } }):write { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.is_false(gaps:is_contiguous())
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, gaps:to_table())
    assert.equal(5, helper.peek(gaps, 12))
    local backwards = tensor(dev, "i32", { 3 }, { stride = { -2 } }):write { 1, 2, 3 }
    assert.equal(4, backwards.offset)
    assert.same({ 1, 2, 3 }, backwards:to_table())
    assert.equal(3, helper.peek(backwards, -4))
    assert.same({ { 9, 9 }, { 9, 9 } }, tensor(dev, "i32", { 2, 2 }, { stride = { 0, 0 } }):fill(9):to_table())
  end)

  it("makes tensors without elements", function()
    local t = tensor(dev, "bf16", { 0, 8, 512 }, { fill = 1 })
    assert.equal(0, t.numel)
    assert.same({}, t:to_table())
    assert.is_true(t:data() == nil)
    assert.is_true(t:is_contiguous())
    assert.equal("bf16 [0, 8, 512] on " .. dev.name .. ": no elements", tostring(t))
    assert.same({ {}, {} }, tensor(dev, "f32", { 2, 0 }):to_table())
  end)

  it("keeps nothing of the tables it was given", function()
    local shape, stride = { 2, 2 }, { 2, 1 }
    local t = tensor(dev, "f32", shape, { stride = stride })
    shape[1], stride[1] = 99, 99
    assert.same({ 2, 2 }, t.shape)
    assert.same({ 2, 1 }, t.stride)
  end)

  it("gives nil and the reason for memory that the device lacks", function()
    local t, err = tensor(dev, "f32", { 2^50 })
    assert.is_nil(t)
    assert.equal("bytes: got 4503599627370496, more than the device could allocate", err:match("^[^(]*[^( ]"))
  end)

  it("refuses wrong arguments on the caller's line", function()
    local function new(...)
      local given, n = { ... }, select("#", ...)
      return refusal(function() tensor.new(unpack(given, 1, n)) end)
    end
    assert.equal('tensor.new: device: got "cpu", wanted a device, such as fh.open("cpu") gives', new("cpu", "f32", { 1 }))
    assert.equal('tensor.new: dtype: got "f16", wanted one of bf16, f32, i32; did you mean "bf16"?', new(dev, "f16", { 1 }))
    assert.equal("tensor.new: shape: got 5, wanted a list of 1 .. 4 values", new(dev, "f32", 5))
    assert.equal("tensor.new: shape: got {}, wanted a list of 1 .. 4 values", new(dev, "f32", {}))
    assert.equal("tensor.new: shape: got {1, 1, 1, 1, 1}, wanted a list of 1 .. 4 values", new(dev, "f32", { 1, 1, 1, 1, 1 }))
    assert.equal("tensor.new: shape: got a table with other keys than 1, 2, .., wanted a list of 1 .. 4 values",
      new(dev, "f32", { 1, n = 2 }))
    assert.equal("tensor.new: shape[2]: got 9007199254740992, wanted a whole number in 0 .. 9007199254740991",
      new(dev, "f32", { 1, 2^53 }))
    for _, size in ipairs { -1, 1.5, NAN, INF, true, "3", 3LL } do
      assert.equal(("tensor.new: shape[2]: got %s, wanted a whole number >= 0"):format(args.show(size)),
        new(dev, "f32", { 1, size }))
    end
    assert.equal("tensor.new: shape: got [67108864, 67108864] with stride [67108864, 1], wanted less than 2^53 bytes",
      new(dev, "f32", { 2^26, 2^26 }))
    assert.equal("tensor.new: shape: got [2, 2] with stride [4503599627370496, 1], wanted less than 2^53 bytes",
      new(dev, "bf16", { 2, 2 }, { stride = { 2^52, 1 } }))
    assert.equal("tensor.new: stride: got {1}, wanted a list of 2 values", new(dev, "f32", { 1, 1 }, { stride = { 1 } }))
    assert.equal("tensor.new: stride[1]: got 0.5, wanted a whole number", new(dev, "f32", { 1 }, { stride = { 0.5 } }))
    assert.equal('tensor.new: fill: got "0", wanted a number', new(dev, "f32", { 1 }, { fill = "0" }))
    assert.equal("tensor.new: fill: got NaN, wanted a whole number in -2147483648 .. 2147483647",
      new(dev, "i32", { 1 }, { fill = NAN }))
    assert.equal('tensor.new: unknown option "strides"; did you mean "stride"? known: stride, fill',
      new(dev, "f32", { 1 }, { strides = { 1 } }))
    assert.equal("tensor.new: dtype: got 5, wanted one of bf16, f32, i32", refusal(function() tensor(dev, 5, { 1 }) end))
  end)
end)

describe("bf16", function()
  it("holds every one of its values exactly, and any NaN as NaN", function()
    local wrong = 0
    for word = 0, 0xffff do
      local x = tensor.to_float(word)
      if x ~= x then
        local back = tensor.to_bf16(x)
        if bit.band(word, 0x7fff) <= 0x7f80 or bit.band(back, 0x7fff) <= 0x7f80 then wrong = wrong + 1 end
      elseif tensor.to_bf16(x) ~= word or bit.band(word, 0x7fff) > 0x7f80 then
        wrong = wrong + 1
      end
    end
    assert.equal(0, wrong)
    assert.equal(1, tensor.to_float(0x3f80))
    assert.equal(-2.5, tensor.to_float(0xc020))
    assert.equal(2^-133, tensor.to_float(0x0001)) -- the smallest denormal
    assert.equal(-INF, tensor.to_float(0xff80))
    assert.equal(-INF, 1 / tensor.to_float(0x8000)) -- minus zero
  end)

  it("is rounded to from between two neighbours: to the nearer, from the middle to the even one", function()
    local wrong = 0
    for low = 0, 0x7f7e do
      local a, b = tensor.to_float(low), tensor.to_float(low + 1)
      local middle, even = (a + b) / 2, low + low % 2
      -- The doubles next to the middle, which a float does not tell from it.
      local step = (b - a) * 2^-40
      for sign = 0, 0x8000, 0x8000 do
        local s = sign == 0 and 1 or -1
        if tensor.to_bf16(s * middle) ~= even + sign or tensor.to_bf16(s * (middle - step)) ~= low + sign or
          tensor.to_bf16(s * (middle + step)) ~= low + 1 + sign then wrong = wrong + 1 end
      end
    end
    assert.equal(0, wrong)
  end)

  it("becomes infinite from halfway past its largest value, and zero up to half its smallest", function()
    local largest = tensor.to_float(0x7f7f)
    assert.equal(0x7f7f, tensor.to_bf16(largest + 2^118))
    assert.equal(0x7f80, tensor.to_bf16(largest + 2^119))
    assert.equal(0x7f80, tensor.to_bf16(1e308))
    assert.equal(0xff80, tensor.to_bf16(-INF))
    assert.equal(0x0000, tensor.to_bf16(2^-134))
    assert.equal(0x0001, tensor.to_bf16(2^-134 * (1 + 2^-52)))
    assert.equal(0x8000, tensor.to_bf16(-1e-300))
  end)

  it("is rounded alike by fill, set, write and from_table", function()
    local values = { 1 + 2^-8, 1 + 2^-8 + 2^-40, -1 - 3 * 2^-8, 1e-40, 2^-134, 3.39e38, 1e39, -INF, 0.1, 1 / 3 }
    local n = #values
    local by_write = tensor(dev, "bf16", { n }):write(values):read()
    local by_table = tensor.from_table(dev, "bf16", values):read()
    local t = tensor(dev, "bf16", { n })
    for i, v in ipairs(values) do t:set(i, v) end
    local by_set = t:read()
    for i, v in ipairs(values) do
      local want = tensor.to_bf16(v)
      assert.equal(want, t:fill(v):read()[0], args.show(v))
      assert.equal(want, by_set[i - 1])
      assert.equal(want, by_write[i - 1])
      assert.equal(want, by_table[i - 1])
    end
    assert.is_true(t:fill(NAN):get(1) ~= t:get(1))
  end)

  it("conversions refuse what is no number or no 16 bits", function()
    assert.equal('tensor.to_bf16: x: got "1", wanted a number', refusal(function() tensor.to_bf16("1") end))
    for _, word in ipairs { 65536, -1, 0.5, NAN } do
      assert.equal(("tensor.to_float: u16: got %s, wanted a whole number in 0 .. 65535"):format(args.show(word)),
        refusal(function() tensor.to_float(word) end))
    end
  end)
end)

describe("a NaN", function()
  -- LuaJIT takes these bits, loaded from a float*, for a nil, false or worse.
  local poisons = { 0xffffffff, 0xffff0000, 0xfff80000, 0xfff00001, 0x7fffffff, 0x7f800001, 0xffc00000 }

  it("of any bits is a number in Lua, by every way of reading", function()
    local t = tensor(dev, "f32", { #poisons })
    local bits, floats = ffi.new("uint32_t[?]", #poisons, poisons), ffi.new("float[?]", #poisons)
    ffi.copy(floats, bits, 4 * #poisons)
    t:write(floats)
    local host, list = t:read(), t:to_table()
    local seen = 0
    for i = 1, #poisons do
      for _, v in ipairs { t:get(i), t[{ i }], list[i], host[i - 1], tensor.float_at(floats, i - 1) } do
        assert.equal("number", type(v))
        if v ~= v then seen = seen + 1 end
      end
    end
    assert.equal(5 * #poisons, seen)
    assert.equal("f32 [7] on " .. dev.name .. ": nan nan nan nan nan nan nan", tostring(t))
  end)

  it("is what fill_bytes(0xFF) leaves in bf16 and f32", function()
    for _, dtype in ipairs { "bf16", "f32" } do
      local t = tensor(dev, dtype, { 2 }, { stride = { 3 } }):fill_bytes(0xff)
      assert.is_true(t:get(1) ~= t:get(1) and t:get(2) ~= t:get(2))
    end
  end)

  it("leaves infinities and denormals beside it alone", function()
    local t = tensor.from_table(dev, "f32", { INF, -INF, NAN, 2^-149, -0.0 })
    local list = t:to_table()
    assert.same({ INF, -INF }, { list[1], list[2] })
    assert.is_true(list[3] ~= list[3])
    assert.equal(2^-149, list[4])
    assert.equal(-INF, 1 / list[5])
  end)
end)

describe("tensor:slice", function()
  local t = tensor.from_table(dev, "i32", counted { 4, 5 })

  it("shares the memory of part of a dimension", function()
    local rows = t:slice(1, 2, 3)
    assert.same({ { 6, 7, 8, 9, 10 }, { 11, 12, 13, 14, 15 } }, rows:to_table())
    assert.is_true(rows:is_contiguous())
    local columns = t:slice(2, 2, 5, 3)
    assert.same({ { 2, 5 }, { 7, 10 }, { 12, 15 }, { 17, 20 } }, columns:to_table())
    assert.same({ 5, 3 }, columns.stride)
    assert.equal(1, columns.offset)
    assert.is_false(columns:is_contiguous())
    assert.same({ 5, 4, 3, 2, 1 }, t:slice(2, 5, 1, -1):to_table()[1])
    assert.same({ 4, 2 }, t:slice(2, 4, 1, -2):to_table()[1])
    local copy = tensor.from_table(dev, "i32", counted { 4, 5 })
    copy:slice(1, 4, 4):slice(2, 1, 2):fill(0)
    assert.same({ 0, 0, 18, 19, 20 }, copy:to_table()[4])
  end)

  it("gives no element where last is first - 1", function()
    for first = 1, 6 do assert.same({ 4, 0 }, t:slice(2, first, first - 1).shape) end
    assert.same({ 0, 5 }, t:slice(1, 3, 2, 7).shape)
    assert.same({ 0, 5 }, t:slice(1, 3, 4, -1).shape)
    assert.same({ 0, 0 }, t:slice(1, 1, 0):slice(2, 6, 5).shape)
  end)

  it("refuses what lies outside", function()
    assert.equal("tensor:slice: dim: got 3, wanted a whole number in 1 .. 2", refusal(function() t:slice(3, 1, 1) end))
    assert.equal("tensor:slice: first: got 0, wanted a whole number in 1 .. 4", refusal(function() t:slice(1, 0, 1) end))
    assert.equal("tensor:slice: last: got 5, wanted a whole number in 2 .. 4", refusal(function() t:slice(1, 2, 5) end))
    assert.equal("tensor:slice: last: got 1, wanted a whole number in 3 .. 4", refusal(function() t:slice(1, 3, 1) end))
    assert.equal("tensor:slice: last: got nil, wanted a whole number in 3 .. 4", refusal(function() t:slice(1, 3) end))
    assert.equal("tensor:slice: last: got 4, wanted a whole number in 1 .. 2", refusal(function() t:slice(1, 2, 4, -1) end))
    assert.equal("tensor:slice: first: got 6, wanted a whole number in 1 .. 5", refusal(function() t:slice(1, 6, 5) end))
    assert.equal("tensor:slice: step: got 0, wanted another whole number", refusal(function() t:slice(1, 1, 2, 0) end))
    assert.equal("tensor:slice: step: got 0.5, wanted a whole number", refusal(function() t:slice(1, 1, 2, 0.5) end))
    assert.equal("tensor:slice: first: got NaN, wanted a whole number in 1 .. 4", refusal(function() t:slice(1, NAN, 2) end))
  end)
end)

describe("t[{ .. }]", function()
  local t = tensor.from_table(dev, "i32", counted { 2, 3, 4 })

  it("takes whole dimensions, parts and single places", function()
    assert.same({ { { 1, 2 }, { 5, 6 }, { 9, 10 } }, { { 13, 14 }, { 17, 18 }, { 21, 22 } } }, t[{ {}, {}, { 1, 2 } }]:to_table())
    assert.same({ 12, 4, 1 }, t[{ {}, { 2, 3 } }].stride)
    assert.same({ { 5, 6, 7, 8 }, { 17, 18, 19, 20 } }, t[{ {}, 2 }]:to_table())
    assert.same({ 13, 17, 21 }, t[{ 2, {}, 1 }]:to_table())
    assert.same({ 23, 21 }, t[{ 2, 3, { 3, 1, -2 } }]:to_table())
    assert.same({ 2, 3, 0 }, t[{ {}, {}, { 5, 4 } }].shape)
    assert.equal(24, t[{ 2, 3, 4 }])
    assert.equal(1, t[{ 1, 1, 1 }])
  end)

  it("assigns numbers, lists and tensors", function()
    local u = tensor(dev, "i32", { 2, 3 }, { fill = 0 })
    u[{ 1, 2 }] = 5
    u[{ 2 }] = { 7, 8, 9 }
    assert.same({ { 0, 5, 0 }, { 7, 8, 9 } }, u:to_table())
    u[{ {}, { 2, 3 } }] = 1
    assert.same({ { 0, 1, 1 }, { 7, 1, 1 } }, u:to_table())
    u[{ 1 }] = u[{ 2 }]
    assert.same({ { 7, 1, 1 }, { 7, 1, 1 } }, u:to_table())
  end)

  it("refuses other indices", function()
    local forms = "wanted a number, {}, {first, last} or {first, last, step}"
    assert.equal("tensor: index 1: got 3, wanted a whole number in 1 .. 2", refusal(function() return t[{ 3 }] end))
    assert.equal("tensor: index 2: got 1.5, wanted a whole number in 1 .. 3", refusal(function() return t[{ 1, 1.5 }] end))
    assert.equal('tensor: index 2: got "1", ' .. forms, refusal(function() return t[{ 1, "1" }] end))
    assert.equal("tensor: index 1: got true, " .. forms, refusal(function() return t[{ true }] end))
    assert.equal("tensor: index 1: got {1}, wanted a list of 2 .. 3 values", refusal(function() return t[{ { 1 } }] end))
    assert.equal("tensor: index 3: last: got 5, wanted a whole number in 1 .. 4",
      refusal(function() return t[{ {}, {}, { 1, 5 } }] end))
    local list = ", wanted a list of 1 .. 3 values"
    assert.equal("tensor: index: got {}" .. list, refusal(function() return t[{}] end))
    assert.equal("tensor: index: got {1, 1, 1, 1}" .. list, refusal(function() return t[{ 1, 1, 1, 1 }] end))
    assert.equal("tensor: index: got a tensor" .. list, refusal(function() return t[t] end))
  end)

  it("refuses other values", function()
    assert.equal('tensor: value: got "x", wanted a whole number in -2147483648 .. 2147483647',
      refusal(function() t[{ 1, 1, 1 }] = "x" end))
    assert.equal("tensor: value: got 0.5, wanted a whole number in -2147483648 .. 2147483647",
      refusal(function() t[{ 1 }] = 0.5 end))
    assert.equal("tensor: value: got i32 [2, 3, 4], wanted i32 [3, 4]", refusal(function() t[{ 1 }] = t end))
    assert.equal("tensor: value[2]: got a list of 3, wanted a list of 4",
      refusal(function() t[{ 1 }] = { { 1, 2, 3, 4 }, { 1, 2, 3 }, { 1, 2, 3, 4 } } end))
    assert.equal("dst: its memory overlaps src's", refusal(function() t[{ { 1, 1 } }] = t[{ { 1, 1 } }] end))
    assert.same(counted { 2, 3, 4 }, t:to_table())
  end)
end)

describe("t[1]", function()
  it("is refused rather than nil, to read and to write", function()
    local t = tensor.new(dev, "f32", { 2, 3 })
    local ok, err = pcall(function() return t[1] end)
    assert.is_false(ok)
    assert.matches("tensor_spec.lua:%d+: tensor: index: got 1, wanted a list of 1 .. 2 values$", err)
    ok, err = pcall(function() t[1] = 5 end)
    assert.is_false(ok)
    assert.matches("tensor_spec.lua:%d+: tensor: index: got 1, wanted a list of 1 .. 2 values$", err)
  end)
end)

describe("tensor:get and set", function()
  it("read and write one element", function()
    for dtype, v in pairs { bf16 = -1.5, f32 = 2^-149, i32 = -2^31 } do
      local t = tensor(dev, dtype, { 2, 3 }, { fill = 0 })
      assert.equal(t, t:set(2, 3, v))
      assert.equal(v, t:get(2, 3))
      assert.same({ { 0, 0, 0 }, { 0, 0, v } }, t:to_table())
    end
  end)

  it("refuse a wrong number of indices, indices outside, and values that no element can hold", function()
    local t = tensor(dev, "i32", { 2, 3 })
    assert.equal("tensor:get: got 1 indices, wanted 2", refusal(function() t:get(1) end))
    assert.equal("tensor:get: got 3 indices, wanted 2", refusal(function() t:get(1, 1, 1) end))
    assert.equal("tensor:get: index 2: got 4, wanted a whole number in 1 .. 3", refusal(function() t:get(1, 4) end))
    assert.equal("tensor:get: index 1: got 0, wanted a whole number in 1 .. 2", refusal(function() t:get(0, 1) end))
    assert.equal("tensor:get: index 1: got nil, wanted a whole number in 1 .. 2", refusal(function() t:get(nil, 1) end))
    assert.equal("tensor:set: got 1 indices, wanted 2", refusal(function() t:set(1, 1) end))
    assert.equal("tensor:set: value: got 2147483648, wanted a whole number in -2147483648 .. 2147483647",
      refusal(function() t:set(1, 1, 2^31) end))
    assert.equal("tensor:set: value: got true, wanted a whole number in -2147483648 .. 2147483647",
      refusal(function() t:set(1, 1, true) end))
    assert.equal("tensor:set: value: got nil, wanted a number",
      refusal(function() tensor(dev, "f32", { 1 }):set(1, nil) end))
  end)
end)

describe("tensor:fill and fill_bytes", function()
  it("set the elements, and every byte of the buffer", function()
    local t = tensor(dev, "i32", { 2, 2 }, { stride = { 4, 1 } })
    assert.equal(t, t:fill_bytes(0x01))
    assert.equal(t, t:fill(7))
    assert.equal(0x01010101, helper.peek(t, 2))
    assert.same({ { 7, 7 }, { 7, 7 } }, t:to_table())
    t:slice(1, 2, 2):fill_bytes(0)
    assert.same({ { 0, 0 }, { 0, 0 } }, t:to_table())
  end)

  it("refuse other values", function()
    local t = tensor(dev, "f32", { 1 })
    assert.equal("tensor:fill: value: got nil, wanted a number", refusal(function() t:fill() end))
    assert.equal("tensor:fill: value: got cdata<int64_t>, wanted a number", refusal(function() t:fill(1LL) end))
    assert.equal("tensor:fill_bytes: byte: got 256, wanted a whole number in 0 .. 255", refusal(function() t:fill_bytes(256) end))
  end)
end)

describe("tensor:random", function()
  it("is Philox4x32-10: the published words for key 0, counter 0", function()
    local t = tensor(dev, "i32", { 4 }):random { low = -2^31, high = 2^31, seed = 0, stream = 0 }
    local words = {}
    for i, v in ipairs(t:to_table()) do words[i] = v + 2^31 end
    assert.same({ 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 }, words)
  end)

  it("depends on seed, stream and position alone, not on strides or threads", function()
    local one = assert(device.open("cpu", { threads = 1, isa = "generic" }))
    for _, dtype in ipairs { "bf16", "f32" } do
      local plain = tensor(dev, dtype, { 50, 100 }):random { seed = 7, stream = 3 }:to_table()
      assert.same(plain, tensor(one, dtype, { 50, 100 }):random { seed = 7, stream = 3 }:to_table())
      assert.same(plain, tensor(dev, dtype, { 50, 100 }, { stride = { 1, -51 } }):random { seed = 7, stream = 3 }:to_table())
      assert.is_not.same(plain, tensor(dev, dtype, { 50, 100 }):random { seed = 8, stream = 3 }:to_table())
      assert.is_not.same(plain, tensor(dev, dtype, { 50, 100 }):random { seed = 7, stream = 4 }:to_table())
    end
  end)

  it("has the mean and deviation asked for, normal unless told otherwise", function()
    local host, n = tensor(dev, "f32", { 100000 }):random { mean = 3, sd = 0.5, seed = 1 }:read()
    local sum, squares = 0, 0
    for i = 0, n - 1 do sum, squares = sum + host[i], squares + (host[i] - 3)^2 end
    assert.is_true(math.abs(sum / n - 3) < 0.5 * 5 / math.sqrt(n))
    assert.is_true(math.abs(squares / n - 0.25) < 0.25 * 5 * math.sqrt(2 / n))
  end)

  it("stays below high", function()
    local host, n = tensor(dev, "f32", { 100000 }):random { dist = "uniform", low = -1, high = 1, seed = 1 }:read()
    local low, high = INF, -INF
    for i = 0, n - 1 do low, high = math.min(low, host[i]), math.max(high, host[i]) end
    assert.is_true(low >= -1 and low < -0.999 and high > 0.999 and high < 1)
    local seen = {}
    for _, v in ipairs(tensor(dev, "i32", { 100 }):random { low = -1, high = 2 }:to_table()) do seen[v] = true end
    assert.same({ [-1] = true, [0] = true, [1] = true }, seen)
  end)

  it("refuses wrong options", function()
    local f, i = tensor(dev, "f32", { 1 }), tensor(dev, "i32", { 1 })
    assert.equal('tensor:random: unknown option "std"; did you mean "sd"? known: dist, seed, stream, mean, sd, low, high',
      refusal(function() f:random { std = 1 } end))
    assert.equal('tensor:random: dist: got "gauss", wanted one of normal, uniform',
      refusal(function() f:random { dist = "gauss" } end))
    assert.equal('tensor:random: dist: got "normal", wanted uniform', refusal(function() i:random { dist = "normal" } end))
    assert.equal("tensor:random: low: given, but dist is normal", refusal(function() f:random { low = 0 } end))
    assert.equal("tensor:random: sd: given, but dist is uniform", refusal(function() f:random { dist = "uniform", sd = 1 } end))
    assert.equal("tensor:random: seed: got 9007199254740992, wanted a whole number in 0 .. 9007199254740991",
      refusal(function() f:random { seed = 2^53 } end))
    for _, seed in ipairs { -1, 0.5, false } do
      assert.equal(("tensor:random: seed: got %s, wanted a whole number >= 0"):format(args.show(seed)),
        refusal(function() f:random { seed = seed } end))
    end
    assert.equal("tensor:random: sd: got -1, wanted a finite number >= 0", refusal(function() f:random { sd = -1 } end))
    assert.equal("tensor:random: mean: got NaN, wanted a finite number", refusal(function() f:random { mean = NAN } end))
    assert.equal("tensor:random: high: got -1, wanted a finite number >= 0",
      refusal(function() f:random { dist = "uniform", high = -1 } end))
    assert.equal("tensor:random: low: got nil, wanted a whole number in -2147483648 .. 2147483647",
      refusal(function() i:random { high = 1 } end))
    assert.equal("tensor:random: high: got 3, wanted a whole number in 4 .. 2147483648",
      refusal(function() i:random { low = 3, high = 3 } end))
  end)
end)

describe("lists and host arrays", function()
  it("go in and come out unchanged, at any rank and stride", function()
    for _, shape in ipairs { { 5 }, { 2, 3 }, { 2, 3, 4 }, { 2, 1, 3, 2 } } do
      local list = counted(shape)
      for _, dtype in ipairs { "bf16", "f32", "i32" } do
        local t = tensor.from_table(dev, dtype, list)
        assert.same(shape, t.shape)
        assert.same(list, t:to_table())
        local reversed = t:slice(1, shape[1], 1, -1)
        reversed:from_table(list)
        assert.same(list, reversed:to_table())
        assert.same(list[1], t:to_table()[shape[1]])
      end
    end
    assert.same({ 0 }, tensor.from_table(dev, "f32", {}).shape)
    assert.same({ 2, 0 }, tensor.from_table(dev, "f32", { {}, {} }).shape)
  end)

  it("hold millions of elements", function()
    local t = tensor(dev, "i32", { 2048, 1024 }):random { low = 0, high = 2^31 - 1, seed = 5 }
    local copy = tensor.from_table(dev, "i32", t:to_table())
    local a, n = t:read()
    local b = copy:read()
    assert.equal(2^21, n)
    local differing = 0
    for i = 0, n - 1 do if a[i] ~= b[i] then differing = differing + 1 end end
    assert.equal(0, differing)
  end)

  it("too large for the host's memory are nil and the reason", function()
    local t = tensor(dev, "f32", { 2^31, 4 }, { stride = { 0, 1 } })
    local host, err = t:read()
    assert.is_nil(host)
    assert.equal("tensor:read: LuaJIT has no 34359738368 bytes of host memory in one piece; go through slices", err)
    host, err = t:to_table()
    assert.is_nil(host)
    assert.equal("tensor:read: LuaJIT has no 34359738368 bytes of host memory in one piece; go through slices", err)
  end)

  it("write takes nested lists, a flat list and a host array of the C type", function()
    local want = { { 1, 2, 3 }, { 4, 5, 6 } }
    local t = tensor(dev, "f32", { 2, 3 }, { stride = { 7, 2 } })
    assert.same(want, t:fill(0):write(want):to_table())
    assert.same(want, t:fill(0):write({ 1, 2, 3, 4, 5, 6 }):to_table())
    assert.same(want, t:fill(0):write(ffi.new("float[6]", { 1, 2, 3, 4, 5, 6 })):to_table())
    assert.same(want, t:fill(0):write(ffi.new("const float[?]", 6, { 1, 2, 3, 4, 5, 6 })):to_table())
    assert.same({ 1, -2 }, tensor(dev, "bf16", { 2 }):write(ffi.new("uint16_t[2]", { 0x3f80, 0xc000 })):to_table())
    local host, n = t:read()
    assert.equal(6, n)
    assert.equal("ctype<float [?]>", tostring(ffi.typeof(host)))
    assert.same(want, tensor(dev, "f32", { 2, 3 }):write(host):to_table())
  end)

  it("are refused where they do not fit, with the place", function()
    local t = tensor(dev, "i32", { 2, 2 }, { fill = 5 })
    local function write(v) return refusal(function() t:write(v) end) end
    local function from_table(v) return refusal(function() t:from_table(v) end) end
    assert.equal("tensor:from_table: list: got 5, wanted a list of 2", from_table(5))
    assert.equal("tensor:from_table: list: got a list of 3, wanted a list of 2", from_table { {}, {}, {} })
    assert.equal("tensor:from_table: list[2]: got a list of 1, wanted a list of 2", from_table { { 1, 2 }, { 3 } })
    assert.equal("tensor:from_table: list[2]: got 3, wanted a list of 2", from_table { { 1, 2 }, 3 })
    assert.equal("tensor:from_table: list[1][2]: got {}, wanted a number", from_table { { 1, {} }, { 3, 4 } })
    assert.equal('tensor:from_table: list[2][1]: got "3", wanted a number', from_table { { 1, 2 }, { "3", 4 } })
    assert.equal("tensor:from_table: list[2][2]: got 4.5, wanted a whole number in -2147483648 .. 2147483647",
      from_table { { 1, 2 }, { 3, 4.5 } })
    assert.equal("tensor:from_table: list[2][2]: got NaN, wanted a whole number in -2147483648 .. 2147483647",
      from_table { { 1, 2 }, { 3, NAN } })
    assert.equal("tensor:from_table: list[1]: got a table with other keys than 1, 2, .., wanted a list of 2",
      from_table { { 1, 2, n = 2 }, { 3, 4 } })
    assert.equal("tensor:from_table: list: got a tensor, wanted a list of 2", from_table(t))
    assert.equal("tensor:write: source: got a list of 3, wanted a list of 4", write { 1, 2, 3 })
    assert.equal("tensor:write: source: got 1, wanted a table", write(1))
    for given, value in pairs {
      ["cdata<int [3]> of 12 bytes"] = ffi.new("int[3]"), ["cdata<float [4]> of 16 bytes"] = ffi.new("float[4]"),
      ["cdata<int *> of 8 bytes"] = ffi.new("int *"), ["cdata<int64_t> of 8 bytes"] = 5LL,
    } do
      assert.equal(("tensor:write: source: got %s, wanted int32_t[4], 16 bytes"):format(given), write(value))
    end
    assert.same({ { 5, 5 }, { 5, 5 } }, t:to_table())
    assert.equal("tensor.from_table: list[2]: got a list of 1, wanted a list of 2",
      refusal(function() tensor.from_table(dev, "f32", { { 1, 2 }, { 3 } }) end))
    assert.equal("tensor.from_table: list[2]: got cdata<int64_t>, wanted a number",
      refusal(function() tensor.from_table(dev, "f32", { 1, 3LL }) end))
    assert.equal("tensor.from_table: list: got lists deeper than the 4 wanted",
      refusal(function() tensor.from_table(dev, "f32", { { { { { 1 } } } } }) end))
  end)
end)

describe("tensor:copy_from", function()
  it("copies between any strides of one shape and dtype", function()
    local src = tensor.from_table(dev, "bf16", counted { 3, 4 })
    local dst = tensor(dev, "bf16", { 3, 4 }, { stride = { -5, 20 } })
    assert.equal(dst, dst:copy_from(src))
    assert.same(counted { 3, 4 }, dst:to_table())
  end)

  it("refuses others", function()
    local t = tensor(dev, "f32", { 2, 2 })
    assert.equal("tensor:copy_from: source: got {1}, wanted a tensor", refusal(function() t:copy_from { 1 } end))
    assert.equal("tensor:copy_from: source: got i32 [2, 2], wanted f32 [2, 2]",
      refusal(function() t:copy_from(tensor(dev, "i32", { 2, 2 })) end))
    assert.equal("tensor:copy_from: source: got f32 [4], wanted f32 [2, 2]",
      refusal(function() t:copy_from(tensor(dev, "f32", { 4 })) end))
    local gone = tensor(dev, "f32", { 2, 2 })
    gone:free()
    assert.equal("tensor:copy_from: source: got a tensor that was freed", refusal(function() t:copy_from(gone) end))
    local ok, err = t:copy_from(t)
    assert.is_nil(ok)
    assert.equal("dst: its memory overlaps src's", err)
  end)
end)

describe("tostring", function()
  it("shows dtype, shape, device and both ends", function()
    assert.equal("f32 [3] on " .. dev.name .. ": 1 2 3", tostring(tensor.from_table(dev, "f32", { 1, 2, 3 })))
    assert.equal("bf16 [2, 2] on " .. dev.name .. ": 0.334 -inf nan 9.999e+09",
      tostring(tensor.from_table(dev, "bf16", { { 1 / 3, -INF }, { NAN, 1e10 } })))
    assert.equal("i32 [3, 4] on " .. dev.name .. ": 1 2 3 4 .. 9 10 11 12",
      tostring(tensor.from_table(dev, "i32", counted { 3, 4 })))
    assert.equal("i32 [2, 4] on " .. dev.name .. ": 1 2 3 4 5 6 7 8", tostring(tensor.from_table(dev, "i32", counted { 2, 4 })))
  end)

  it("shows the stride of what is not contiguous", function()
    local t = tensor.from_table(dev, "i32", counted { 3, 4 })
    assert.equal("i32 [3, 2] stride [4, -3] on " .. dev.name .. ": 4 1 8 5 12 9", tostring(t:slice(2, 4, 1, -3)))
    assert.equal("i32 [1, 4] on " .. dev.name .. ": 9 10 11 12", tostring(t:slice(1, 3, 3)))
  end)
end)

describe("data, pointer and evict", function()
  it("give the address of the first element", function()
    local t = tensor.from_table(dev, "i32", counted { 3, 4 })
    local part = t[{ 2, { 3, 4 } }]
    assert.equal("ctype<void *>", tostring(ffi.typeof(t:data())))
    assert.is_true(ffi.cast("char *", part:data()) - ffi.cast("char *", t:data()) == 24)
    assert.is_true(tonumber(ffi.cast("uintptr_t", t:data())) % 256 == 0)
  end)

  it("give a pointer to what the host can reach", function()
    local cpu = assert(device.open("cpu", { threads = 1 }))
    local part = tensor.from_table(cpu, "i32", counted { 3, 4 })[{ 2, { 3, 4 } }]
    assert.equal("ctype<int *>", tostring(ffi.typeof(part:pointer())))
    assert.equal(7, part:pointer()[0])
    assert.equal("ctype<unsigned short *>", tostring(ffi.typeof(tensor(cpu, "bf16", { 1 }):pointer())))
  end)

  it("leave the contents alone", function()
    local t = tensor.from_table(dev, "i32", counted { 3, 4 })
    assert.equal(t, t:evict())
    assert.same(counted { 3, 4 }, t:to_table())
  end)
end)

describe("a method", function()
  it("called with a dot, or on something else, is refused", function()
    local t = tensor(dev, "f32", { 1 })
    for _, name in ipairs {
      "slice", "get", "set", "fill", "fill_bytes", "random", "copy_from", "from_table", "write", "read", "to_table", "data",
      "pointer", "evict", "is_contiguous", "free",
    } do
      assert.equal(("tensor:%s: got 5, wanted a tensor"):format(name), refusal(function() t[name](5) end))
    end
  end)
end)
