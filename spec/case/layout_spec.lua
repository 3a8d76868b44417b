local bit = require "bit"
local ffi = require "ffi"
local layout = require "fewhead.case.layout"
local helper = require "spec.helper"

local peek, poke = helper.peek, helper.poke

local SIZES = { s_q = 6, s_kv = 40, h_q = 8, h_pad = 64, d_qk = 512, d_v = 512, topk = 64, topk_length = true, attn_sink = true }

local function with(changes)
  local s = {}
  for key, v in pairs(SIZES) do s[key] = v end
  for key, v in pairs(changes) do s[key] = v end
  return s
end

local function output_sizes(changes)
  local s = with(changes or {})
  s.topk_length, s.attn_sink = nil, nil
  return s
end

local function alignment(t, bytes) return tonumber(ffi.cast("uintptr_t", t:data()) % bytes) end

describe("layout", function()
  local dev
  setup(function() dev = helper.device() end)
  teardown(function() dev:close() end)

  describe("inputs", function()
    it("have the call's shapes and dtypes in every layout", function()
      for _, name in ipairs(layout.names) do
        local t = assert(layout.make(name, dev, SIZES))
        assert.same({ "bf16", { 6, 8, 512 } }, { t.q.dtype, t.q.shape }, name)
        assert.same({ "bf16", { 40, 512 } }, { t.kv.dtype, t.kv.shape }, name)
        assert.same({ "i32", { 6, 64 } }, { t.indices.dtype, t.indices.shape }, name)
        assert.same({ "i32", { 6 } }, { t.topk_length.dtype, t.topk_length.shape }, name)
        assert.same({ "f32", { 8 } }, { t.attn_sink.dtype, t.attn_sink.shape }, name)
        for _, one in pairs(t) do assert.equal(1, one.stride[one.rank]) end
      end
    end)

    it("leave out lengths and sink that the call does not have", function()
      local t = assert(layout.make("contiguous", dev, with { topk_length = false, attn_sink = false }))
      assert.is_nil(t.topk_length)
      assert.is_nil(t.attn_sink)
    end)

    it("are without gaps and aligned when contiguous", function()
      local t = assert(layout.make("contiguous", dev, SIZES))
      for _, key in ipairs { "q", "kv", "indices", "topk_length", "attn_sink" } do
        assert.is_true(t[key]:is_contiguous(), key)
        assert.equal(0, alignment(t[key], 64), key)
      end
    end)

    it("are a slice of a 64-head token buffer in vllm", function()
      local t = assert(layout.make("vllm", dev, SIZES))
      assert.same({ 64 * 512, 512, 1 }, t.q.stride)
      assert.is_true(t.q.offset >= 64 * 512) -- decode rows come first
      assert.equal(0, t.q.offset % (64 * 512))
      assert.same({ 512, 1 }, t.kv.stride)
      for h = 8, 63 do assert.equal(bit.tobit(0xff800000), peek(t.attn_sink, h)) end -- -inf
      t = assert(layout.make("vllm", dev, with { h_q = 65, h_pad = 128 }))
      assert.same({ 128 * 512, 512, 1 }, t.q.stride)
    end)

    it("have odd strides everywhere when strided", function()
      for _, h_q in ipairs { 1, 8, 63, 64, 128 } do
        for _, d in ipairs { 512, 576 } do
          for _, topk in ipairs { 0, 1, 64, 127 } do
            local t = assert(layout.make("strided", dev, with { h_q = h_q, h_pad = 128, d_qk = d, topk = topk }))
            for _, stride in ipairs { t.q.stride[1], t.q.stride[2], t.kv.stride[1], t.indices.stride[1] } do
              assert.equal(1, stride % 2)
            end
            assert.is_true(t.q.stride[2] > d and t.kv.stride[1] > d and t.indices.stride[1] > topk)
          end
        end
      end
    end)

    it("start every row one element past an aligned address when offset", function()
      for _, d in ipairs { 512, 576 } do
        local t = assert(layout.make("offset", dev, with { d_qk = d }))
        assert.equal(2, alignment(t.q, 16))
        assert.equal(2, alignment(t.kv, 16))
        assert.equal(0, t.q.stride[1] % 8 + t.q.stride[2] % 8 + t.kv.stride[1] % 8)
        assert.equal(4, alignment(t.indices, 16))
        assert.equal(4, alignment(t.topk_length, 16))
        assert.equal(4, alignment(t.attn_sink, 16))
      end
    end)

    it("lie among poison: NaN around floats, row 0 around indices, no key around lengths", function()
      for _, name in ipairs(layout.names) do
        local t = assert(layout.make(name, dev, SIZES))
        t.q:fill(1)
        t.kv:fill(1)
        t.indices:fill(7)
        t.topk_length:fill(64)
        t.attn_sink:fill(1)
        -- what lies right behind the last element of each, and right before the first where the layout has room there
        for key, poison in pairs { q = 0xffff, kv = 0xffff, indices = 0, topk_length = -1 } do
          local one = t[key]
          local last = 0
          for i, n in ipairs(one.shape) do last = last + (n - 1) * one.stride[i] end
          assert.equal(poison, peek(one, last + 1), name .. " " .. key)
          if one.offset > 0 then assert.equal(poison, peek(one, -1), name .. " " .. key) end
        end
        if name ~= "vllm" then assert.equal(-1, peek(t.attn_sink, 8)) end
        if name == "vllm" or name == "strided" then -- the head after the last real one
          assert.equal(0xffff, peek(t.q, 8 * t.q.stride[2]))
          assert.equal(0xffff, peek(t.q, 8 * t.q.stride[2] + 511))
        end
        if name == "strided" then assert.equal(0, peek(t.indices, 64)) end
      end
    end)
  end)

  describe("outputs", function()
    it("are NaN as they come, in the layout of q", function()
      for _, name in ipairs(layout.names) do
        local o = assert(layout.outputs(name, dev, output_sizes()))
        assert.same({ "bf16", { 6, 8, 512 } }, { o.out.dtype, o.out.shape })
        assert.same({ "f32", { 6, 8 } }, { o.lse.dtype, o.lse.shape })
        assert.same({ "f32", { 6, 8 } }, { o.max_logits.dtype, o.max_logits.shape })
        for _, place in ipairs { { 1, 1, 1 }, { 6, 8, 512 }, { 3, 4, 100 } } do
          local v = o.out:get(unpack(place))
          assert.is_true(v ~= v)
        end
        local v = o.lse:get(6, 8)
        assert.is_true(v ~= v)
        assert.is_true(layout.intact(o))
      end
      assert.same({ 64 * 512, 512, 1 }, assert(layout.outputs("vllm", dev, output_sizes())).out.stride)
      assert.same({ 64, 1 }, assert(layout.outputs("vllm", dev, output_sizes())).lse.stride)
      assert.same({ 9 * 515, 515, 1 }, assert(layout.outputs("strided", dev, output_sizes())).out.stride)
      assert.equal(2, alignment(assert(layout.outputs("offset", dev, output_sizes())).out, 16))
    end)

    it("are f32 where asked, and fewer where the call wants fewer", function()
      local o = assert(layout.outputs("vllm", dev, output_sizes { float32 = true, lse = false, max_logits = false }))
      assert.equal("f32", o.out.dtype)
      assert.is_nil(o.lse)
      assert.is_nil(o.max_logits)
      assert.is_true(layout.intact(o))
    end)

    it("may be written in every real element", function()
      for _, name in ipairs(layout.names) do
        for _, float32 in ipairs { false, true } do
          local o = assert(layout.outputs(name, dev, output_sizes { float32 = float32 }))
          o.out:fill(1)
          o.lse:fill(2)
          o.max_logits:fill(3)
          assert.is_true(layout.intact(o))
          assert.equal(1, o.out:get(6, 8, 512))
          assert(o:poison())
          local v = o.out:get(6, 8, 512)
          assert.is_true(v ~= v)
        end
      end
    end)

    it("tell of a single byte written anywhere else", function()
      for _, name in ipairs(layout.names) do
        for _, key in ipairs { "out", "lse", "max_logits" } do
          local o = assert(layout.outputs(name, dev, output_sizes()))
          local view, whole = o[key], o.canaries[key].whole
          local size = key == "out" and 2 or 4
          local real = {}
          for s = 0, 5 do
            for h = 0, 7 do
              for d = 0, key == "out" and 511 or 0 do
                real[view.offset + s * view.stride[1] + h * view.stride[2] + d] = true
              end
            end
          end
          local outside = {}
          for i = 0, whole.numel - 1 do if not real[i] then outside[#outside + 1] = i end end
          assert.is_true(#outside >= 8)
          -- the two ends, and others spread over what lies between
          for k = 0, 40 do
            local element = outside[1 + math.floor(k * (#outside - 1) / 40)]
            for byte = 0, size - 1 do
              poke(whole, element * size + byte, 0xfe)
              local ok, err = layout.intact(o)
              assert.is_nil(ok)
              assert.equal(key .. ": written outside its elements, at ", err:match("^.-, at "))
              poke(whole, element * size + byte, 0xff)
            end
          end
          assert.is_true(layout.intact(o))
        end
      end
    end)

    it("name the first place by row, head and column", function()
      local o = assert(layout.outputs("vllm", dev, output_sizes()))
      local function touched(key, element, message)
        local at = (o[key].offset + element) * (key == "out" and 2 or 4)
        poke(o[key], at, 0)
        local ok, err = layout.intact(o)
        assert.is_nil(ok)
        assert.equal(message, err)
        poke(o[key], at, 0xff)
      end
      touched("out", 8 * 512, "out: written outside its elements, at row 0, head 8, column 0")
      touched("out", 5 * 64 * 512 + 63 * 512 + 511, "out: written outside its elements, at row 5, head 63, column 511")
      touched("out", -1, "out: written outside its elements, at row -1, head 63, column 511")
      touched("out", 6 * 64 * 512, "out: written outside its elements, at row 6, head 0, column 0")
      touched("lse", 2 * 64 + 9, "lse: written outside its elements, at row 2, head 9")
      touched("max_logits", -64, "max_logits: written outside its elements, at row -1, head 0")
      o = assert(layout.outputs("strided", dev, output_sizes()))
      touched("out", 3 * 9 * 515 + 7 * 515 + 512, "out: written outside its elements, at row 3, head 7, column 512")
      o = assert(layout.outputs("offset", dev, output_sizes()))
      touched("out", -1, "out: written outside its elements, at row 0, head 0, column -1")
      o = assert(layout.outputs("contiguous", dev, output_sizes()))
      touched("lse", -1, "lse: written outside its elements, at row -1, head 7")
    end)

    it("may have no row at all", function()
      for _, name in ipairs(layout.names) do
        local o = assert(layout.outputs(name, dev, output_sizes { s_q = 0 }))
        assert.is_true(layout.intact(o))
        assert(layout.make(name, dev, with { s_q = 0, s_kv = 0, topk = 0 }))
      end
    end)

    it("are given back once, however often", function()
      local o = assert(layout.outputs("vllm", dev, output_sizes()))
      local tensor = require "fewhead.device.tensor"
      local before = tensor.live_bytes()
      o:free()
      assert.is_true(tensor.live_bytes() < before)
      local after = tensor.live_bytes()
      o:free()
      assert.equal(after, tensor.live_bytes())
    end)
  end)

  it("gives inputs back with their tensors", function()
    local tensor = require "fewhead.device.tensor"
    collectgarbage()
    collectgarbage()
    local before = tensor.live_bytes()
    for _, name in ipairs(layout.names) do
      for _, one in pairs(assert(layout.make(name, dev, SIZES))) do one:free() end
      assert.equal(before, tensor.live_bytes())
    end
  end)

  it("refuses what is no layout and no size, on the caller's line", function()
    local function refused(message, f)
      local ok, err = pcall(f)
      assert.is_false(ok)
      assert.matches("layout_spec%.lua:%d+: ", err)
      assert.equal(message, (err:gsub("^.*layout_spec%.lua:%d+: ", "")))
    end
    refused('layout: got "vlm", wanted one of contiguous, vllm, strided, offset; did you mean "vllm"?',
      function() layout.make("vlm", dev, SIZES) end)
    refused("layout.make: s_q: got 1.5, wanted a whole number >= 0",
      function() layout.make("contiguous", dev, with { s_q = 1.5 }) end)
    refused("layout.make: h_pad: got 4, wanted at least h_q = 8",
      function() layout.make("contiguous", dev, with { h_pad = 4 }) end)
    refused('layout.outputs: unknown option "top_k"; did you mean "topk"? known: s_q, s_kv, h_q, h_pad, d_qk, d_v, topk, ' ..
      "topk_length, attn_sink, lse, max_logits, float32",
      function() layout.outputs("contiguous", dev, output_sizes { top_k = 1 }) end)
    refused("layout.intact: got {}, wanted outputs, such as layout.outputs gives", function() layout.intact {} end)
  end)
end)
