local fh = require "fewhead"
local helper = require "spec.helper"
local speedups = require "spec.decide.speedups"

-- A sweep as read from a file.
local function sweep_of(list)
  local path = os.tmpname()
  local writer = assert(fh.record.writer(path))
  for _, record in ipairs(list) do assert(writer:add(record)) end
  assert(writer:commit())
  local sweep = assert(fh.sweep.read(path))
  os.remove(path)
  return sweep
end

describe("gate:plot", function()
  it("draws the speed-up over s_q, the line of no change and the threshold", function()
    local gate = assert(fh.gate.fit(speedups { [64] = 0.5, [128] = 1.5, [256] = 2 }))
    assert.equal([[
Native heads over padded ones, 8 heads, cpu
speed-up (above 1 native is faster)
2x |                  |             a
   |                  |
   |                  a
   |                  |
   |------------------|-----------------
   |                  |
   |   a              |
   |                  |
0x |                  |
    64    s_q, rows of the chunk     256
a csa vllm, which decides
| MIN_SQ 128]], gate:plot { width = 40, height = 9 })
  end)

  it("names the curve that decides and counts the others", function()
    local list = speedups { [64] = 0.5, [128] = 1.5 }
    for _, record in ipairs(speedups({ [64] = 2, [128] = 2 }, { layout = "contiguous" })) do list[#list + 1] = record end
    assert.is_truthy(assert(fh.gate.fit(list)):plot():find("a csa vllm, which decides, b 1 other curve\n", 1, true))
  end)

  it("says so where there is no threshold to draw", function()
    assert.matches("\nnative off$", assert(fh.gate.fit(speedups { [64] = 0.5 })):plot())
  end)

  it("refuses a gate without measurements and a width that is too small", function()
    assert.equal("gate:plot: got a gate without measurements, wanted one that fh.gate.fit made of a sweep",
      helper.refusal(function() fh.gate.new():plot() end))
    local gate = assert(fh.gate.fit(speedups { [64] = 2 }))
    assert.equal("gate:plot: width: got 5, wanted a whole number in 24 .. 1000",
      helper.refusal(function() gate:plot { width = 5 } end))
  end)
end)

describe("sweep:plot", function()
  it("is the picture of its curves as text", function()
    local sweep = sweep_of(speedups { [64] = 0.5, [128] = 2 })
    assert.equal(fh.pictures.curves(sweep.records, { text = true }), sweep:plot())
    assert.is_truthy(sweep:filter { s_q = 64 }:plot { width = 40, height = 5 })
  end)

  it("gives the reason where there is nothing to draw", function()
    local sweep = sweep_of(speedups { [64] = 2 }):filter { s_q = 1 }
    assert.same({ n = 2, nil, "sweep:plot: no record has a time" }, { n = 2, sweep:plot() })
  end)
end)
