local args = require "fewhead.base.arguments"
local ffi = require "ffi"
local refusal = require("spec.helper").refusal

local NAN, INF = 0 / 0, math.huge

-- The message that a check refuses its arguments with, and that it blames the caller's line.
local function refused(check, ...)
  local given, n = { ... }, select("#", ...)
  local function user() local v = check(unpack(given, 1, n)) return v end
  return refusal(function() user() end)
end

describe("args.show", function()
  it("writes numbers so that they read back", function()
    assert.equal("0", args.show(0))
    assert.equal("-3", args.show(-3))
    assert.equal("9007199254740991", args.show(2^53 - 1))
    assert.equal("1e+17", args.show(1e17))
    assert.equal("0.1", args.show(0.1))
    assert.equal("0.30000000000000004", args.show(0.1 + 0.2))
    assert.equal("NaN", args.show(NAN))
    assert.equal("inf", args.show(INF))
    assert.equal("-inf", args.show(-INF))
  end)

  it("quotes strings, escapes them and cuts long ones", function()
    assert.equal('"cpu"', args.show("cpu"))
    assert.equal([["a\"b\\c\nd\te\000"]], args.show('a"b\\c\nd\te\0'))
    assert.equal('"' .. ("x"):rep(60) .. '.."', args.show(("x"):rep(61)))
  end)

  it("names everything else by what it is", function()
    assert.equal("nil", args.show(nil))
    assert.equal("true", args.show(true))
    assert.equal("a function", args.show(print))
    assert.equal("cdata<int64_t>", args.show(5LL))
    assert.equal("cdata<float [3]>", args.show(ffi.new("float[3]")))
    assert.equal("{}", args.show({}))
    assert.equal('{1, "a", NaN}', args.show({ 1, "a", NAN }))
    assert.equal("{1, 2, 3, 4, 5, 6, 7, 8, ..}", args.show({ 1, 2, 3, 4, 5, 6, 7, 8, 9 }))
    assert.equal("a table", args.show({ { 1 } }))
    assert.equal("a table", args.show({ x = 1 }))
    assert.equal("a tensor", args.show(setmetatable({}, { __name = "tensor" })))
  end)
end)

describe("args.integer", function()
  it("returns whole numbers that a double holds exactly", function()
    assert.equal(0, args.integer("n", 0, 0, 10))
    assert.equal(10, args.integer("n", 10, 0, 10))
    assert.equal(2^53 - 1, args.integer("n", 2^53 - 1))
    assert.equal(-(2^53 - 1), args.integer("n", -(2^53 - 1)))
  end)

  it("refuses everything else, saying what was given and what was wanted", function()
    local cases = {
      [1.5] = "1.5", [11] = "11", [-1] = "-1", [INF] = "inf", [-INF] = "-inf", [true] = "true", ["5"] = '"5"', [{}] = "{}",
      [5LL] = "cdata<int64_t>", [print] = "a function",
    }
    for given, shown in pairs(cases) do
      assert.equal("case: s_q: got " .. shown .. ", wanted a whole number in 0 .. 10",
        refused(args.integer, "case: s_q", given, 0, 10))
    end
    assert.equal("case: s_q: got NaN, wanted a whole number in 0 .. 10", refused(args.integer, "case: s_q", NAN, 0, 10))
    assert.equal("case: s_q: got nil, wanted a whole number in 0 .. 10", refused(args.integer, "case: s_q", nil, 0, 10))
    assert.equal("n: got 9007199254740992, wanted a whole number in -9007199254740991 .. 9007199254740991",
      refused(args.integer, "n", 2^53))
    assert.equal("n: got 0, wanted a whole number >= 1", refused(args.integer, "n", 0, 1))
    assert.equal("n: got 6, wanted a whole number <= 5", refused(args.integer, "n", 6, nil, 5))
  end)
end)

describe("args.number", function()
  it("takes finite numbers only", function()
    assert.equal(0.25, args.number("sm_scale", 0.25, 0, 1))
    for _, v in ipairs { NAN, INF, -INF, 1.25, -0.5 } do
      assert.equal("sm_scale: got " .. args.show(v) .. ", wanted a finite number in 0 .. 1",
        refused(args.number, "sm_scale", v, 0, 1))
    end
    assert.equal('sm_scale: got "1", wanted a finite number', refused(args.number, "sm_scale", "1"))
  end)
end)

describe("args.boolean, string and table", function()
  it("take their type only", function()
    assert.is_false(args.boolean("cold", false))
    assert.equal("", args.string("name", ""))
    local t = {}
    assert.equal(t, args.table("list", t))
    assert.equal("cold: got 1, wanted true or false", refused(args.boolean, "cold", 1))
    assert.equal("name: got 1, wanted a string", refused(args.string, "name", 1))
    assert.equal('list: got "x", wanted a table', refused(args.table, "list", "x"))
  end)
end)

describe("args.list", function()
  it("takes plain lists of the wanted length", function()
    local t = { 5, "a", {} }
    assert.equal(t, args.list("shape", t, 1, 4))
    assert.equal(t, args.list("shape", t, 3, 3))
    assert.equal(t, args.list("shape", t))
    assert.same({}, args.list("shape", {}, 0, 4))
  end)

  it("refuses other lengths, other keys, holes, objects and what is no table", function()
    assert.equal("shape: got {}, wanted a list of 1 .. 4 values", refused(args.list, "shape", {}, 1, 4))
    assert.equal("shape: got {1, 2, 3}, wanted a list of 2 values", refused(args.list, "shape", { 1, 2, 3 }, 2, 2))
    assert.equal("shape: got {1, 2, 3}, wanted a list of at most 2 values", refused(args.list, "shape", { 1, 2, 3 }, nil, 2))
    assert.equal("shape: got {1}, wanted a list of at least 2 values", refused(args.list, "shape", { 1 }, 2))
    assert.equal("shape: got a table with other keys than 1, 2, .., wanted a list of 1 .. 4 values",
      refused(args.list, "shape", { 1, 2, x = 3 }, 1, 4))
    assert.equal("shape: got a table with other keys than 1, 2, .., wanted a list", refused(args.list, "shape", { 1, nil, 3 }))
    assert.equal("shape: got a tensor, wanted a list", refused(args.list, "shape", setmetatable({ 1 }, { __name = "tensor" })))
    assert.equal("shape: got 5, wanted a list", refused(args.list, "shape", 5))
  end)
end)

describe("args.enum", function()
  local layouts = { "contiguous", "vllm", "strided", "offset" }

  it("returns a listed value", function()
    assert.equal("vllm", args.enum("layout", "vllm", layouts))
    assert.equal(64, args.enum("h_pad", 64, { 64, 128 }))
  end)

  it("lists the choices and suggests the nearest", function()
    assert.equal('layout: got "vlm", wanted one of contiguous, vllm, strided, offset; did you mean "vllm"?',
      refused(args.enum, "layout", "vlm", layouts))
    assert.equal("layout: got nil, wanted one of contiguous, vllm, strided, offset", refused(args.enum, "layout", nil, layouts))
    assert.equal("d_v: got 576, wanted 512", refused(args.enum, "d_v", 576, { 512 }))
  end)
end)

describe("args.options", function()
  local known = { "s_q", "s_kv", "pattern" }

  it("returns the table, and an empty one for nil", function()
    local t = { s_q = 1 }
    assert.equal(t, args.options("case", t, known))
    assert.same({}, args.options("case", nil, known))
  end)

  it("refuses unknown keys by name, with the known ones and the likely one", function()
    assert.equal('case: unknown option "s_k"; did you mean "s_kv"? known: s_q, s_kv, pattern',
      refused(args.options, "case", { s_k = 1 }, known))
    assert.equal('case: unknown option "patern"; did you mean "pattern"? known: s_q, s_kv, pattern',
      refused(args.options, "case", { patern = "csa" }, known))
    assert.equal('case: unknown option "zzz"; known: s_q, s_kv, pattern', refused(args.options, "case", { zzz = 1 }, known))
    assert.equal("case: unknown option 1; known: s_q, s_kv, pattern", refused(args.options, "case", { 7 }, known))
  end)

  it("refuses what is no plain table", function()
    assert.equal("case: got 5, wanted a table of options", refused(args.options, "case", 5, known))
    assert.equal("case: got a tensor, wanted a table of options",
      refused(args.options, "case", setmetatable({}, { __name = "tensor" }), known))
  end)
end)

describe("args.given", function()
  it("puts a default in the place of nil alone", function()
    assert.equal(5, args.given(nil, 5))
    assert.is_false(args.given(false, 5))
    assert.equal(0, args.given(0, 5))
  end)
end)

describe("args.nearest", function()
  it("finds a misspelt name and stays silent when nothing is near", function()
    local names = { "reference", "padded", "gather", "packed" }
    assert.equal("gather", args.nearest("gahter", names))
    assert.equal("padded", args.nearest("Padded", names))
    assert.equal("reference", args.nearest("referrence", names))
    assert.is_nil(args.nearest("qqq", names))
    assert.is_nil(args.nearest(5, names))
  end)

  it("offers the nearest of many names, or a few that begin as the value does", function()
    local names = {}
    for _, model in ipairs { "v4-flash", "v4-pro", "glm-5" } do
      for tp = 1, 5 do names[#names + 1] = ("%s tp%d"):format(model, tp) end
    end
    local function wanted(v) return args.one_of(v, names, "x") end
    assert.equal('one of 15 names (x lists them); did you mean "glm-5 tp4"?', wanted "glm5 tp4")
    assert.equal('one of 15 names (x lists them); did you mean "v4-flash tp1", "v4-flash tp2" or "v4-flash tp3"?', wanted "v4")
    assert.equal('one of 15 names (x lists them); did you mean "glm-5 tp1", "glm-5 tp2" or "glm-5 tp3"?', wanted "GLM5")
    for _, v in ipairs { "qq", "", 5 } do assert.equal("one of 15 names (x lists them)", wanted(v)) end
    assert.equal('one of padded, gather; did you mean "gather"?', args.one_of("gat", { "padded", "gather" }))
  end)
end)

describe("every check blames the line of", function()
  -- One function for each check, so that all of them count frames alike.
  local checks = {
    integer = function(level) local v = args.integer("v", "x", 0, 1, level) return v end,
    number = function(level) local v = args.number("v", "x", 0, 1, level) return v end,
    boolean = function(level) local v = args.boolean("v", "x", level) return v end,
    string = function(level) local v = args.string("v", 1, level) return v end,
    table = function(level) local v = args.table("v", "x", level) return v end,
    list = function(level) local v = args.list("v", "x", 0, 1, level) return v end,
    ["list with other keys"] = function(level) local v = args.list("v", { x = 1 }, 0, 1, level) return v end,
    enum = function(level) local v = args.enum("v", "x", { "a" }, level) return v end,
    options = function(level) local v = args.options("v", { x = 1 }, { "a" }, level) return v end,
  }

  for name, check in pairs(checks) do
    it("the caller, by default: " .. name, function()
      assert.matches("^v: ", refusal(function() check() end))
    end)

    it("the checking function, at level 1: " .. name, function()
      local _, err = pcall(check, 1)
      local at = debug.getinfo(check, "S")
      assert.equal(("%s:%d: v: "):format(at.short_src, at.linedefined), err:match("^.-:%d+: v: "))
    end)

    it("the caller's caller, at level 3: " .. name, function()
      local function user() check(3) end
      assert.matches("^v: ", refusal(function() user() end))
    end)
  end
end)
