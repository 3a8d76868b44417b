local device = require "fewhead.device"
local parity = require "fewhead.parity"
local tensor = require "fewhead.tensor"

local NAN, INF = 0 / 0, math.huge
local dev = device.default()

-- Outputs of the sizes of a small call, equal on every call: out [6, 3, 512], lse and max_logits [6, 3].
local S, H, D = 6, 3, 512
local function outputs(dtype)
  return {
    out = tensor.new(dev, dtype or "bf16", { S, H, D }):random { dist = "normal", seed = 7, sd = 0.1 },
    lse = tensor.new(dev, "f32", { S, H }):random { dist = "uniform", seed = 8, low = 5, high = 7 },
    max_logits = tensor.new(dev, "f32", { S, H }):random { dist = "uniform", seed = 9, low = 1, high = 2 },
  }
end

describe("parity.tolerance", function()
  it("is FlashMLA's", function()
    assert.same({ abs = 8e-4, rel = 3.01 / 128, cos = 7e-6 }, parity.tolerance.out)
    assert.same({ abs = 1e-6, rel = 2.01 / 65536, cos = 1e-7 }, parity.tolerance.lse)
    assert.same(parity.tolerance.lse, parity.tolerance.max_logits)
  end)
end)

describe("parity.compare", function()
  it("passes what differs by rounding to bf16 alone and counts what it compared", function()
    local r = parity.compare(outputs("bf16"), outputs("f32"))
    assert.equal("pass", r.status)
    assert.is_nil(r.reason)
    assert.equal(S * H * D, r.compared)
    assert.equal(0, r.failing)
    assert.near(0.00165, r.rel, 0.0001) -- the published error of rounding alone
    assert.is_true(r.cos_diff > 0 and r.cos_diff < 2e-6)
    assert.equal(0, r.lse_max_abs)
    assert.equal(0, r.max_logits_max_abs)
  end)

  it("finds exact agreement exact", function()
    local r = parity.compare(outputs(), outputs())
    assert.equal("pass", r.status)
    assert.same({ 0, 0, 0 }, { r.mean_abs, r.max_abs, r.rel })
  end)

  it("measures mean, largest, relative and cosine difference", function()
    local want = tensor.new(dev, "f32", { 1, 2, 2 }):from_table { { { 1, 2 }, { 2, 4 } } }
    local got = tensor.new(dev, "f32", { 1, 2, 2 }):from_table { { { 1, 2 }, { 2.5, 4 } } }
    local r = parity.compare({ out = got }, { out = want })
    assert.equal("fail", r.status)
    assert.equal(0.125, r.mean_abs)
    assert.equal(0.5, r.max_abs)
    assert.equal(0.5 / 5, r.rel)
    assert.near(1 - 2 * 26 / (27.25 + 25), r.cos_diff, 1e-15)
    assert.equal(1, r.failing)
    assert.same({ field = "out", row = 0, head = 1, dim = 0, got = 2.5, want = 2 }, r.worst)
    assert.equal("out: got 2.5, wanted 2 at row 0, head 1, dim 0; 1 of 4 values differ by abs >= 0.0008 and rel >= 0.0235156",
      r.reason)
  end)

  it("fails a value only when it breaks both the absolute and the relative limit", function()
    local function status(got, want)
      -- The rest of the array agrees, and is large enough for the cosine not to see one value.
      local a = tensor.new(dev, "f32", { 1, 1, 8 }, { fill = 100 })
      local b = tensor.new(dev, "f32", { 1, 1, 8 }, { fill = 100 })
      a:set(1, 1, 3, got)
      b:set(1, 1, 3, want)
      return parity.compare({ out = a }, { out = b }).status
    end
    assert.equal("pass", status(0.0007, 0))           -- within abs, far beyond rel
    assert.equal("fail", status(0.0009, 0))           -- beyond both: rel is taken over |0| + 1e-6
    assert.equal("pass", status(1.02, 1))             -- within rel, beyond abs
    assert.equal("fail", status(1.024, 1))            -- 3.01 / 128 = 0.02352
    assert.equal("pass", status(-1.02, -1))
    assert.equal("fail", status(-1, 1))
  end)

  it("holds lse and max_logits to their own limits", function()
    for _, name in ipairs { "lse", "max_logits" } do
      local got, want = outputs(), outputs()
      local base = want[name]:get(5, 2)
      got[name]:set(5, 2, base * (1 + 1.5 / 65536))
      assert.equal("pass", parity.compare(got, want).status)
      got[name]:set(5, 2, base * (1 + 2.5 / 65536))
      local r = parity.compare(got, want)
      assert.equal("fail", r.status)
      assert.matches(("^%s: got [%%d.]+, wanted [%%d.]+ at row 4, head 1; 1 of 18 values"):format(name), r.reason)
      assert.near(base * 2.5 / 65536, r[name .. "_max_abs"], 1e-6)
      assert.equal(name, r.worst.field)
      assert.is_nil(r.worst.dim)
    end
  end)

  it("fails on the cosine alone when every value is within its own limit", function()
    local want = tensor.new(dev, "f32", { 4, 2, 64 }):random { dist = "normal", seed = 1, sd = 1 }
    local got = tensor.new(dev, "f32", { 4, 2, 64 })
    local values = want:read()
    for i = 0, 511 do values[i] = values[i] * (1 + (i % 2 == 0 and 0.02 or -0.02)) end
    got:write(values)
    local r = parity.compare({ out = got }, { out = want })
    assert.equal("fail", r.status)
    assert.equal(0, r.failing)
    assert.matches("^out: cosine difference 0%.000%d+, wanted at most 7e%-06$", r.reason)
    assert.equal("pass", parity.compare({ out = got }, { out = want }, { tolerance = { out = { cos = 1e-3 } } }).status)
  end)

  it("compares the positions of NaN and infinity before values", function()
    for _, odd in ipairs { { NAN, "NaN" }, { INF, "inf" }, { -INF, "-inf" } } do
      local got, want = outputs(), outputs("f32")
      got.out:set(1, 1, 1, 50) -- a wrong value as well: the position is the worse news
      got.out:set(3, 2, 8, odd[1])
      local r = parity.compare(got, want)
      assert.equal("fail", r.status)
      assert.matches(("^out: got %s, wanted %%-?[%%d.]+ at row 2, head 1, dim 7$"):format(odd[2]:gsub("%-", "%%-")), r.reason)
      assert.same({ "out", 2, 1, 7, odd[2] }, { r.worst.field, r.worst.row, r.worst.head, r.worst.dim, r.worst.got })
      assert.is_true(r.max_abs < INF and r.mean_abs == r.mean_abs) -- sums are over finite pairs alone
      assert.equal(S * H * D - 1, r.compared)

      want.out:set(3, 2, 8, odd[1])
      got.out:set(1, 1, 1, want.out:get(1, 1, 1))
      assert.equal("pass", parity.compare(got, want).status)
    end
  end)

  it("tells +inf from -inf", function()
    local got, want = outputs(), outputs()
    got.lse:set(2, 3, -INF)
    want.lse:set(2, 3, INF)
    local r = parity.compare(got, want)
    assert.equal("lse: got -inf, wanted inf at row 1, head 2", r.reason)
    assert.same({ field = "lse", row = 1, head = 2, got = "-inf", want = "inf" }, r.worst)
  end)

  it("names the first place that was never written", function()
    for _, dtype in ipairs { "bf16", "f32" } do
      local got = outputs(dtype)
      local place = got.out:slice(1, 4, 5):slice(2, 3, 3) -- rows 3 and 4, head 2
      local poison = tensor.new(dev, dtype, { 2, 1, D }):fill_bytes(0xFF)
      assert(place:copy_from(poison))
      local r = parity.compare(got, outputs("f32"))
      assert.equal("fail", r.status)
      assert.equal("out: never written at row 3, head 2, dim 0 and at 1023 more places", r.reason)
      assert.equal("NaN", r.worst.got)
    end
    local got = outputs()
    got.lse:fill_bytes(0xFF)
    assert.equal("lse: never written at row 0, head 0 and at 17 more places", parity.compare(got, outputs()).reason)
  end)

  it("fails a poisoned place even where the oracle has NaN too", function()
    local got, want = outputs(), outputs("f32")
    want.out:set(1, 1, 1, NAN)
    assert(got.out:slice(3, 1, 1):copy_from(tensor.new(dev, "bf16", { S, H, 1 }):fill_bytes(0xFF)))
    assert.equal("out: never written at row 0, head 0, dim 0 and at 17 more places", parity.compare(got, want).reason)
  end)

  it("is invalid when the oracle itself was never written", function()
    local want = outputs("f32")
    want.out:fill_bytes(0xFF)
    local r = parity.compare(outputs(), want)
    assert.equal("invalid", r.status)
    assert.equal("out: the reference was never written at row 0, head 0, dim 0 and at 9215 more places", r.reason)
  end)

  it("is invalid when nothing was compared", function()
    local none = { out = tensor.new(dev, "bf16", { 0, H, D }) }
    local r = parity.compare(none, none)
    assert.same({ status = "invalid", reason = "nothing compared", compared = 0, failing = 0 }, r)
    local nans = { out = tensor.new(dev, "f32", { 1, 1, 4 }, { fill = NAN }) }
    assert.equal("nothing compared", parity.compare(nans, nans).reason)
  end)

  it("is invalid when the oracle is all zero, unless every row is empty", function()
    local function zeros(lse)
      return { out = tensor.new(dev, "f32", { 2, 2, 4 }, { fill = 0 }), lse = tensor.new(dev, "f32", { 2, 2 }, { fill = lse }) }
    end
    local r = parity.compare(zeros(1), zeros(1))
    assert.equal("invalid", r.status)
    assert.equal("the reference is all zero: agreement would say nothing", r.reason)
    assert.equal("invalid", parity.compare({ out = zeros(1).out }, { out = zeros(1).out }).status)
    r = parity.compare(zeros(INF), zeros(INF))
    assert.equal("pass", r.status)
    assert.equal(16, r.compared)
    assert.equal("pass", parity.compare(zeros(1), zeros(1), { zero = true }).status)
    local one = zeros(INF)
    one.lse:set(2, 2, 0)
    assert.equal("invalid", parity.compare(one, one).status)
  end)

  it("compares views with any strides", function()
    local wide = tensor.new(dev, "bf16", { S, 64, D }):fill_bytes(0xFF)
    local want = outputs("f32")
    local got = { out = wide:slice(2, 1, H) }
    assert(got.out:copy_from(outputs().out))
    assert.equal("pass", parity.compare(got, want).status)
    assert.equal("out: never written at row 0, head 3, dim 0 and at 3071 more places",
      parity.compare({ out = wide:slice(2, 1, H + 1) }, { out = tensor.new(dev, "f32", { S, H + 1, D }, { fill = 1 }) }).reason)
  end)

  it("names rows as in the whole problem when only some were compared", function()
    local got, want = outputs(), outputs()
    got.out:set(3, 1, 1, 9)
    local r = parity.compare(got, want, { rows = { first = 5, step = 11 } })
    assert.equal(5 + 2 * 11, r.worst.row)
    assert.matches("at row 27, head 0, dim 0;", r.reason, 1, true)
  end)

  it("refuses outputs of different shapes and unknown options on the caller's line", function()
    local function refused(message, ...)
      local line, packed = debug.getinfo(1, "l").currentline + 1, { ... }
      local ok, err = pcall(function() local r = parity.compare(unpack(packed)) return r end)
      assert.is_false(ok)
      assert.equal(("parity_spec.lua:%d: %s"):format(line, message), err:match("parity_spec.*"))
    end
    refused("parity.compare: out: got shape 6 x 3 x 512, wanted 6 x 2 x 512", outputs(), { out = outputs().out:slice(2, 1, 2) })
    refused("parity.compare: want.out: got nil, wanted a table", outputs(), {})
    refused('parity.compare: unknown option "tolerances"; did you mean "tolerance"? known: tolerance, rows, zero', outputs(), outputs(),
      { tolerances = {} })
  end)
end)

describe("parity.sample_rows", function()
  -- The rows of a sample, counted from 1.
  local function rows(...)
    local first, step, count = parity.sample_rows(...)
    return first, step, count, first + (count - 1) * step
  end

  it("spreads rows over the whole chunk and ends on its last row", function()
    assert.same({ 1, 1, 10, 10 }, { rows(10, 10) })
    assert.same({ 4, 4, 25, 100 }, { rows(100, 25) })
    assert.same({ 8192, 8192, 1, 8192 }, { rows(8192, 1) })
    for _, s_q in ipairs { 1, 2, 63, 64, 65, 8191, 8192 } do
      for count = 1, 70 do
        local first, _, n, last = rows(s_q, count, 8)
        assert.is_true(first >= 1 and n >= 1 and n <= count and last == s_q)
      end
    end
  end)

  it("visits every place of a packed group", function()
    for _, group in ipairs { 1, 2, 3, 4, 5, 6, 8, 12, 16, 64 } do
      local first, step, count = parity.sample_rows(8192, 256, group)
      local seen, places = {}, 0
      for i = 0, count - 1 do
        local place = (first + i * step) % group
        if not seen[place] then seen[place], places = true, places + 1 end
      end
      assert.equal(group, places)
    end
  end)
end)
