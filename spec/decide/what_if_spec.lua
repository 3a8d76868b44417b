local fh = require "fewhead"
local helper = require "spec.helper"
local speedups = require "spec.decide.speedups"

-- Native wins from 128 rows up.
local function fitted() return assert(fh.gate.fit(speedups { [64] = 0.5, [128] = 2, [256] = 2 })) end

describe("gate:what_if", function()
  it("compares a threshold with the gate, with always and with never, cell by cell", function()
    assert.equal([[
3 measured cells, each counted once; times are medians
gate            native at  mean loss    worst  there               what-if beside it
what if: 256       1 of 3     33.3 %  100.0 %  s_q 128, csa, vllm
this gate: 128     2 of 3      0.0 %    0.0 %  -                       26.0 % slower
always (0)         3 of 3     33.3 %  100.0 %  s_q 64, csa, vllm            the same
never              0 of 3     66.7 %  100.0 %  s_q 128, csa, vllm      26.0 % faster
decided otherwise in 1 cell:
s_q  lists      this gate  what-if  speed-up
128  csa, vllm  gather     padded      0.50x]], tostring(fitted():what_if { min_sq = 256 }))
  end)

  it("gives the numbers as fields", function()
    local found = fitted():what_if { min_sq = 0 }
    assert.same({ "what if: 0", "this gate: 128", "never" }, { found.rows[1].name, found.rows[2].name, found.rows[3].name })
    assert.equal(1, found.rows[1].against)
    assert.near(0.5 ^ (1 / 3), found.rows[2].against, 1e-12) -- one cell of three in half the time
    assert.near(2 ^ (1 / 3), found.rows[3].against, 1e-12)
    assert.same({ { s_q = 64, where = "csa, vllm", from = "padded", to = "gather", ratio = 0.5 } }, found.changed)
  end)

  it("asks what never would cost", function()
    local found = fitted():what_if { enabled = false }
    assert.equal("what if: never", found.rows[1].name)
    assert.equal(2, #found.changed)
    assert.equal("256 128", found.changed[2].s_q .. " " .. found.changed[1].s_q)
  end)

  it("adds up traffic by the gate's cost model", function()
    local chunks = { counts = { { s_q = 64, count = 3 }, { s_q = 128, count = 1 } }, chunks = 4, rows = 320 }
    local found = fitted():what_if { min_sq = 256, traffic = chunks }
    assert.equal(3 * 6400 + 12800, found.rows[1].us)
    assert.equal(3 * 6400 + 6400, found.rows[2].us)
    assert.equal(25600 / 32000, found.rows[2].against)
    local text = tostring(found)
    assert.is_truthy(text:find("^4 chunks, 320 rows; attention time of one layer by the gate's cost model\n"), text)
    assert.is_truthy(text:find("this gate: 128 .*25.0 %% slower\n"), text)
    assert.is_truthy(text:find("\nevery chunk lies within the measured s_q 64 to 256$"), text)
  end)

  it("refuses what it cannot answer", function()
    local gate = fitted()
    assert.equal("gate:what_if: got a gate without measurements, wanted one that fh.gate.fit made of a sweep",
      helper.refusal(function() fh.gate.new():what_if { min_sq = 1 } end))
    assert.equal("gate:what_if: min_sq: got nil, wanted rows of a chunk from which native is taken, or enabled = false",
      helper.refusal(function() gate:what_if() end))
    assert.equal("gate:what_if: min_sq: got -1, wanted a whole number in 0 .. 9007199254740991",
      helper.refusal(function() gate:what_if { min_sq = -1 } end))
    assert.equal("gate:what_if: traffic: got 5, wanted chunks of fh.trace.chunks",
      helper.refusal(function() gate:what_if { min_sq = 1, traffic = 5 } end))
    assert.matches('^gate:what_if: unknown option "minsq"', helper.refusal(function() gate:what_if { minsq = 1 } end))
  end)
end)
