local engine = require "fewhead.serve.engine"
local gate = require "fewhead.decide.gate"
local helper = require "spec.helper"
local sweep = require "fewhead.decide.sweep"

local function computed(rest)
  return engine.computed { name = "toy", preset = "v4.1-flash tp8", tflops = 100, efficiency = 0.5, ratio = 2, rest = rest }
end

local function chunk(from, to, decodes)
  return { s_q = to - from, requests = 1, from = { from }, to = { to }, decodes = decodes or 0, decode_tokens = decodes or 0 }
end

describe("engine.keys", function()
  it("is the sum of what the engine's topk_length says", function()
    for _, case in ipairs { { 0, 0, 3 }, { 1, 0, 1000 }, { 2, 100, 1500 }, { 4, 3, 4100 }, { 128, 0, 300 }, { 1, 511, 513 } } do
      local ratio, from, to = unpack(case)
      local keys = 0
      for pos = from, to - 1 do
        keys = keys + math.min(pos + 1, 128) + (ratio > 0 and math.min(math.floor((pos + 1) / ratio), 512) or 0)
      end
      assert.equal(keys, engine.keys(ratio, 512, 128, from, to))
    end
  end)
end)

describe("engine.computed", function()
  it("multiplies h_pad heads of every key of every layer for padded, and divides by the ratio for native", function()
    local e, c = computed(), chunk(100000, 100001)
    -- one late row: 128 keys in 2 window layers, 640 in 38
    local keys = 2 * 128 + 38 * 640
    assert.equal(keys, e:keys(c))
    local us = keys * 2 * 64 * 1024 / 50e12 * 1e6
    assert.is_true(math.abs(e:attention("padded", c) - us) < 1e-9)
    assert.is_true(math.abs(e:attention("native", c) - us / 2) < 1e-9)
  end)

  it("adds the budget for everything else", function()
    local e = computed { step_us = 1000, token_us = 2, context_us = 3e6, decode_us = 5 }
    -- 10 prompt rows 20 .. 29: 245 tokens before them (as (to^2 - from^2) / 2 = 250)
    assert.equal(1000 + 2 * (10 + 7) + 3 * 250 + 5 * 7, e:rest_us(chunk(20, 30, 7)))
    assert.equal(0, computed():rest_us(chunk(20, 30, 7)))
  end)

  it("refuses what is no budget", function()
    assert.equal('engine.computed: rest: unknown option "token"; did you mean "token_us"? known: step_us, token_us, context_us, '
      .. "decode_us", helper.refusal(function() computed { token = 1 } end))
    assert.equal("engine.computed: efficiency: got 1.5, wanted a finite number in 0.001 .. 1",
      helper.refusal(function()
        engine.computed { name = "x", preset = "v4.1-flash tp8", tflops = 1, efficiency = 1.5, ratio = 1 }
      end))
  end)
end)

describe("engine.measured", function()
  local fitted = gate.fit(assert(sweep.read(helper.root .. "results/nvidia-h200/gate_sweep.jsonl")))

  it("takes the measured time at a measured s_q, scaled by the layers' keys", function()
    local e = engine.measured(fitted, { name = "h200" })
    local c = chunk(0, 8192)
    local point
    for _, p in ipairs(fitted.decides.points) do
      if p.s_q == 8192 then point = p end
    end
    local keys_measured = point.padded.work.useful_flops / (2 * 8 * 1024)
    local expected = point.padded.time.median_us * e:keys(c) / keys_measured
    assert.is_true(math.abs(e:attention("padded", c) / expected - 1) < 1e-12)
    assert.is_true(e:attention("packed", c) > point.packed.time.median_us * e:keys(c) / keys_measured) -- plans are paid
    assert.equal("packed", select(2, e:attention("auto", c)))
  end)

  it("counts rows outside the measured sizes", function()
    local e = engine.measured(fitted, { name = "h200" })
    e:attention("padded", chunk(0, 16))
    e:attention("padded", chunk(0, 64))
    assert.same({ 16, 80 }, { e.outside_rows, e.rows })
  end)

  it("refuses a preset with other heads", function()
    assert.equal("engine.measured: preset: got v4.1-flash tp4 with 16 heads, but the sweep measured 8 heads",
      helper.refusal(function() engine.measured(fitted, { preset = "v4.1-flash tp4" }) end))
  end)
end)
