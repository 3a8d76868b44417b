local axis = require "fewhead.decide.axis"
local pattern = require "fewhead.case.pattern"

-- The line of this file that called `f`'s check, and the message after it.
local function refusal(f)
  local ok, err = pcall(f)
  assert.is_false(ok)
  return (err:match("^.-spec/decide/axis_spec%.lua:%d+: (.*)$"))
end

describe("axis.integers", function()
  it("takes a number, a list and a text", function()
    assert.same({ 64 }, axis.integers("s_q", 64))
    assert.same({ 64, 1, 0 }, axis.integers("s_q", { 64, 1, 0 }))
    assert.same({ 3, 1, 2 }, axis.integers("s_q", " 3, 1,2 "))
  end)

  it("takes ranges that multiply or add, and keeps the last when it is met", function()
    assert.same({ 64, 128, 256, 512 }, axis.integers("s_q", "64:512:*2"))
    assert.same({ 64, 128, 256, 512 }, axis.integers("s_q", "64:1000:*2"))
    assert.same({ 0, 5, 10 }, axis.integers("s_q", "0:10:+5"))
    assert.same({ -2, 1 }, axis.integers("s_q", "-2:3:+3"))
    assert.same({ 7 }, axis.integers("s_q", "7:7:*2"))
  end)

  it("joins numbers and ranges, each value once, in order", function()
    assert.same({ 64, 128, 256, 1000, 96 }, axis.integers("s_q", "64:256:*2,1000,128,96"))
    assert.same({ 1, 2, 4, 9 }, axis.integers("s_q", { "1:4:*2", 9, "2" }))
  end)

  it("refuses what is no axis, naming what was given and what was wanted", function()
    local wanted = 'wanted numbers, "a,b,c" or a range "first:last:step" or "first:last:*k"'
    assert.equal('s_q: got "64:x", ' .. wanted, refusal(function() axis.integers("s_q", "64:x") end))
    assert.equal('s_q: got "", ' .. wanted, refusal(function() axis.integers("s_q", "") end))
    assert.equal('s_q: got "64:128", ' .. wanted, refusal(function() axis.integers("s_q", "64:128") end))
    assert.equal("s_q: got 1.5, wanted a whole number", refusal(function() axis.integers("s_q", "1.5") end))
    assert.equal("s_q: got true, " .. wanted, refusal(function() axis.integers("s_q", true) end))
    assert.equal("s_q: got {}, " .. wanted, refusal(function() axis.integers("s_q", {}) end))
    assert.equal('s_q: got "9:1:*2", wanted a range that rises: first <= last',
      refusal(function() axis.integers("s_q", "9:1:*2") end))
    assert.equal('s_q: got "0:8:*2", wanted first > 0 and a factor above 1 in "first:last:*k"',
      refusal(function() axis.integers("s_q", "0:8:*2") end))
    assert.equal('s_q: got "2:8:*1", wanted first > 0 and a factor above 1 in "first:last:*k"',
      refusal(function() axis.integers("s_q", "2:8:*1") end))
    assert.equal('s_q: got "2:8:+0", wanted a step above 0 in "first:last:step"',
      refusal(function() axis.integers("s_q", "2:8:+0") end))
  end)

  it("stops a range that would never end", function()
    assert.equal('s_q: got "0:1000000000000:+1", wanted at most 4096 values',
      refusal(function() axis.integers("s_q", "0:1000000000000:+1") end))
  end)

  it("holds every value to the bounds", function()
    local wanted = "wanted a whole number in 0 .. 10"
    assert.equal("s_q: got 16, " .. wanted, refusal(function() axis.integers("s_q", "1:16:*2", 0, 10) end))
    assert.equal("s_q: got 1.5, " .. wanted, refusal(function() axis.integers("s_q", { 1, 1.5 }, 0, 10) end))
    assert.equal("s_q: got NaN, " .. wanted, refusal(function() axis.integers("s_q", 0 / 0, 0, 10) end))
  end)

  it("blames the caller that `level` names", function()
    local function sweep(spec) return { axis.integers("s_q", spec, 0, 10, 2) } end
    local line = debug.getinfo(1, "l").currentline + 1
    local _, err = pcall(function() return { sweep(11) } end)
    assert.matches("axis_spec%.lua:" .. line .. ": s_q: got 11", err)
  end)
end)

describe("axis.names", function()
  it("takes a text or a list, each name once", function()
    assert.same({ "vllm", "contiguous" }, axis.names("layout", "vllm, contiguous,vllm"))
    assert.same({ "csa" }, axis.names("pattern", { "csa" }))
  end)

  it("refuses empty names, other values, and names that are no choice", function()
    local wanted = 'wanted names: "a,b" or { "a", "b" }'
    assert.equal('layout: got "vllm,", ' .. wanted, refusal(function() axis.names("layout", "vllm,") end))
    assert.equal("layout: got 5, " .. wanted, refusal(function() axis.names("layout", 5) end))
    assert.equal("layout: got {1}, " .. wanted, refusal(function() axis.names("layout", { 1 }) end))
    assert.equal('layout: got "vlm", wanted one of contiguous, vllm; did you mean "vllm"?',
      refusal(function() axis.names("layout", "contiguous,vlm", { "contiguous", "vllm" }) end))
  end)
end)

describe("a space of cells", function()
  local helper = require "spec.helper"

  it("composes grid, zip, derive and where; each step makes a new space", function()
    local grid = axis.grid { heads = "4,8", keep = { 0.5, 0.9 } }
    assert.same({ { heads = 4, keep = 0.5 }, { heads = 4, keep = 0.9 }, { heads = 8, keep = 0.5 }, { heads = 8, keep = 0.9 } },
      grid:cells())
    local some = grid:where(function(cell) return cell.heads == 8 end):derive("seed", function(cell) return 10 * cell.keep end)
    assert.same({ { heads = 8, keep = 0.5, seed = 5 }, { heads = 8, keep = 0.9, seed = 9 } }, some:cells())
    assert.equal(4, #grid:cells())
    assert.same({ { ratio = 1, topk = 640 }, { ratio = 2, topk = 384 } },
      axis.zip({ ratio = "1,2", topk = { 640, 384 } }):cells())
  end)

  it("refuses what does not compose, by name", function()
    assert.equal("axis.zip: topk: got 1 values, but s_q has 2, wanted as many",
      helper.refusal(function() local s = axis.zip { s_q = "1,2", topk = 5 } return s end))
    assert.matches('^axis.grid: unknown option "head"; did you mean "heads"%?',
      helper.refusal(function() local s = axis.grid { head = 8 } return s end))
    assert.equal('axis.grid: got no axis, wanted some, such as s_q = "64:512:*2"',
      helper.refusal(function() local s = axis.grid {} return s end))
    assert.equal("axis.where: got 5, wanted a function(cell)",
      helper.refusal(function() local s = axis.where(5) return s end))
  end)
end)

describe("axis.list", function()
  it("names presets, patterns, layouts and every axis", function()
    local text = axis.list()
    assert.matches("^presets   [^\n]*v4%.1%-flash tp8", text)
    assert.is_truthy(text:find("\npatterns  " .. table.concat(pattern.names, ", ") .. "\n", 1, true))
    assert.matches("\nlayouts   contiguous, vllm, strided, offset\naxes\n", text)
    for _, key in ipairs(axis.keys) do assert.is_truthy(text:find("\n  " .. key .. " ", 1, true), key) end
  end)
end)
