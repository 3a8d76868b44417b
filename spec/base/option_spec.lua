local option = require "fewhead.base.option"
local refusal = require("spec.helper").refusal

local rows = option.rows("tool", {
  { "--s-q", "INTEGER", "rows", default = 64, lo = 1 },
  { "--rate", "NUMBER", "rate", lo = 0, hi = 1 },
  { "--layout", "LIST", "layouts", choices = { "contiguous", "vllm" }, default = "vllm" },
  { "--pattern", "NAME", "pattern", choices = { "csa", "local" }, default = "csa" },
  { "--keep", "NUMBER", "kept", with = { pattern = { "local" } } },
  { "--alone", nil, "alone" },
  { "--load", "NUMBER", "load", default = 0.7, without = { "alone" } },
  { "--note", "TEXT", "note", repeated = true },
})

-- What option.table refuses these options with, on the caller's line.
local function refused(o) return refusal(function() option.table("tool", o, rows, 1) end) end

describe("option.table", function()
  it("fills in defaults in a table of its own", function()
    local given = { s_q = 8, note = { "a" } }
    local o = option.table("tool", given, rows)
    assert.same({ s_q = 8, layout = { "vllm" }, pattern = "csa", alone = false, load = 0.7, note = { "a" } }, o)
    assert.same({ s_q = 8, note = { "a" } }, given)
    assert.are_not.equal(given.note, o.note)
    assert.same({ s_q = 64, layout = { "vllm" }, pattern = "csa", alone = false, load = 0.7, note = {} },
      option.table("tool", nil, rows))
    assert.same({ "b" }, option.table("tool", { note = "b" }, rows).note)
  end)

  it("refuses values by their key, on the caller's line", function()
    assert.equal("tool: s_q: got 0, wanted a whole number >= 1", refused { s_q = 0 })
    assert.equal("tool: s_q: got {8, 16}, wanted a whole number >= 1", refused { s_q = { 8, 16 } })
    assert.equal('tool: s_q: got "8", wanted a whole number >= 1', refused { s_q = "8" })
    assert.equal("tool: rate: got NaN, wanted a number in 0 .. 1", refused { rate = 0 / 0 })
    assert.equal("tool: alone: got 1, wanted true or false", refused { alone = 1 })
    assert.equal('tool: pattern: got "locl", wanted one of csa, local; did you mean local?', refused { pattern = "locl" })
    assert.equal('tool: pattern: got {"csa"}, wanted one of csa, local', refused { pattern = { "csa" } })
    assert.equal('tool: layout: got {"vlm"}, wanted one of contiguous, vllm; did you mean vllm?', refused { layout = { "vlm" } })
    assert.equal('tool: unknown option "pattren"; did you mean "pattern"? known: s_q, rate, layout, pattern, keep, alone, load, '
      .. "note", refused { pattren = "csa" })
  end)

  it("refuses what has no effect on this call", function()
    assert.equal("tool: keep: has no effect without pattern local", refused { keep = 0.5 })
    assert.equal(0.5, option.table("tool", { keep = 0.5, pattern = "local" }, rows).keep)
    assert.equal("tool: load: has no effect with alone", refused { load = 0.5, alone = true })
    assert.equal(0.5, option.table("tool", { load = 0.5, alone = false }, rows).load)
  end)
end)

describe("option.one_of", function()
  it("tells few choices, and of many their number and the nearest", function()
    assert.equal("one of a, b", option.one_of("zzz", { "a", "b" }))
    local many = {}
    for i = 1, 13 do many[i] = "name" .. i end
    assert.equal("one of 13 names; did you mean name12?", option.one_of("nme12", many))
    assert.equal("one of 13 names", option.one_of("qqqqqqq", many))
  end)
end)
