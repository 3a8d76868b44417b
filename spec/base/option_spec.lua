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
    assert.equal("tool: rate: got NaN, wanted a finite number in 0 .. 1", refused { rate = 0 / 0 })
    assert.equal("tool: alone: got 1, wanted true or false", refused { alone = 1 })
    assert.equal('tool: pattern: got "locl", wanted one of csa, local; did you mean "local"?', refused { pattern = "locl" })
    assert.equal('tool: pattern: got {"csa"}, wanted one of csa, local', refused { pattern = { "csa" } })
    assert.equal('tool: layout: got {"vlm"}, wanted one of contiguous, vllm; did you mean "vllm"?',
      refused { layout = { "vlm" } })
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

describe("option.rows", function()
  it("knows options of Lua tables alone", function()
    local some = option.rows("tool", { { "on_row", "FUNCTION", "x" }, { "list", "TABLE", "x" }, { "dev", "ANY", "x" } })
    assert.is_nil(some.by_key.on_row.flag)
    assert.same({ "on_row", "list", "dev" }, option.keys(some))
    local function f() end
    assert.same({ on_row = f, list = {}, dev = false }, option.table("tool", { on_row = f, list = {}, dev = false }, some))
    assert.equal("tool: on_row: got 1, wanted a function",
      refusal(function() option.table("tool", { on_row = 1 }, some, 1) end))
    assert.equal("tool: list: got 1, wanted a table", refusal(function() option.table("tool", { list = 1 }, some, 1) end))
  end)

  it("refuses what is no row, and a name that stands there twice", function()
    assert.equal('tool: option 1: got "On", wanted a name such as "--s-q"',
      refusal(function() local r = option.rows("tool", { { "On", "ANY", "x" } }, 1) return r end))
    assert.equal("tool: option 2: s_q stands there twice",
      refusal(function() local r = option.rows("tool", { { "--s-q", "ANY", "x" }, { "s_q", "ANY", "x" } }, 1) return r end))
  end)

  it("takes rows of other lists, and rows like them with other fields", function()
    local own = option.rows("own", { rows.by_key.keep, option.like(rows.by_key.s_q, { default = 8, [3] = "more" }) })
    assert.equal(rows.by_key.keep, own.by_key.keep)
    assert.same({ s_q = 8, keep = 2 }, option.table("own", { keep = 2 }, own)) -- pattern is no option here: nothing to depend on
    assert.same({ "--s-q", "more", 1 }, { own.by_key.s_q.flag, own.by_key.s_q.about, own.by_key.s_q.lo })
    assert.equal("own: s_q: got 0, wanted a whole number >= 1",
      refusal(function() option.table("own", { s_q = 0 }, own, 1) end))
    local list = option.rows("list", { option.like(rows.by_key.pattern, { [2] = "LIST" }) })
    assert.same({ pattern = { "csa", "local" } }, option.table("list", { pattern = { "csa", "local" } }, list))
  end)
end)

describe("a kind", function()
  it("of whole numbers may have choices", function()
    local some = option.rows("t", { { "--h-pad", "INTEGER", "x", choices = { 64, 128 } } })
    assert.equal("t: h_pad: got 96, wanted one of 64, 128", refusal(function() option.table("t", { h_pad = 96 }, some, 1) end))
    assert.equal(64, option.table("t", { h_pad = 64 }, some).h_pad)
  end)

  it("BOOLEAN is said, and not false where it is not said", function()
    local some = option.rows("t", { { "--lse", "BOOLEAN", "x" } })
    assert.same({}, option.table("t", {}, some))
    local parse = some.by_key.lse.kind.parse
    assert.same({ true, false }, { parse "true", (parse "false") })
    assert.same({ nil, "true or false" }, { parse "no" })
  end)

  it("FILE must open on the command line and is a name in Lua", function()
    local some = option.rows("t", { { "--indices", "FILE", "x" } })
    assert.equal("/no/such", option.table("t", { indices = "/no/such" }, some).indices)
    assert.equal("t: indices: got 1, wanted the name of a file",
      refusal(function() option.table("t", { indices = 1 }, some, 1) end))
    assert.same({ nil, "a file that can be read (No such file or directory)" }, { some.by_key.indices.kind.parse("/no/such") })
  end)
end)
