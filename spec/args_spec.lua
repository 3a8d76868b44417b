local args = require "fewhead.args"
local ffi = require "ffi"

local NAN, INF = 0 / 0, math.huge

-- The message of f(...), which must fail.
local function message(f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "nothing was refused")
  return err
end

-- The line that stands where this is called.
local function here() return debug.getinfo(2, "l").currentline end

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
    assert.equal(-(2^53 - 1), args.integer("n", -(2^53 - 1)))
  end)

  it("refuses everything else, saying what was given and what was wanted", function()
    local function take(v, lo, hi) return (args.integer("case: s_q", v, lo, hi)) end
    local refused = {
      { 1.5, "1.5" }, { 11, "11" }, { -1, "-1" }, { NAN, "NaN" }, { INF, "inf" }, { -INF, "-inf" }, { true, "true" },
      { "5", '"5"' }, { {}, "{}" }, { 5LL, "cdata<int64_t>" },
    }
    for _, case in ipairs(refused) do
      assert.matches("case: s_q: got " .. case[2] .. ", wanted a whole number in 0 .. 10", message(take, case[1], 0, 10), 1, true)
    end
    assert.matches("case: s_q: got nil, wanted a whole number in 0 .. 10", message(take, nil, 0, 10), 1, true)
    assert.matches("got 9007199254740992, wanted a whole number$", message(take, 2^53))
    assert.matches("got 0, wanted a whole number >= 1", message(take, 0, 1), 1, true)
    assert.matches("got 6, wanted a whole number <= 5", message(take, 6, nil, 5), 1, true)
  end)
end)

describe("args.number", function()
  it("takes finite numbers only", function()
    local function take(v, lo, hi) return (args.number("sm_scale", v, lo, hi)) end
    assert.equal(0.25, take(0.25, 0, 1))
    for _, v in ipairs { NAN, INF, -INF, 1.25 } do
      assert.matches("sm_scale: got " .. args.show(v) .. ", wanted a finite number in 0 .. 1", message(take, v, 0, 1), 1, true)
    end
    assert.matches('sm_scale: got "1", wanted a finite number', message(take, "1"), 1, true)
  end)
end)

describe("args.boolean, string and table", function()
  it("take their type only", function()
    assert.is_false(args.boolean("cold", false))
    assert.equal("", args.string("name", ""))
    local t = {}
    assert.equal(t, args.table("list", t))
    assert.matches("cold: got 1, wanted true or false", message(args.boolean, "cold", 1), 1, true)
    assert.matches("name: got 1, wanted a string", message(args.string, "name", 1), 1, true)
    assert.matches('list: got "x", wanted a table', message(args.table, "list", "x"), 1, true)
  end)
end)

describe("args.enum", function()
  local layouts = { "packed", "vllm", "strided", "offset" }

  it("returns a listed value", function()
    assert.equal("vllm", args.enum("layout", "vllm", layouts))
    assert.equal(64, args.enum("h_pad", 64, { 64, 128 }))
  end)

  it("lists the choices and suggests the nearest", function()
    assert.matches('layout: got "vlm", wanted one of packed, vllm, strided, offset; did you mean "vllm"?',
      message(args.enum, "layout", "vlm", layouts), 1, true)
    assert.matches("layout: got nil, wanted one of packed, vllm, strided, offset$", message(args.enum, "layout", nil, layouts))
    assert.matches('d_v: got 576, wanted 512$', message(args.enum, "d_v", 576, { 512 }))
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
    assert.matches('case: unknown option "s_k"; did you mean "s_kv"? known: s_q, s_kv, pattern',
      message(args.options, "case", { s_k = 1 }, known), 1, true)
    assert.matches('did you mean "pattern"?', message(args.options, "case", { patern = "csa" }, known), 1, true)
    assert.matches('case: unknown option "zzz"; known: s_q, s_kv, pattern',
      message(args.options, "case", { zzz = 1 }, known), 1, true)
    assert.matches("case: unknown option 1; known: ", message(args.options, "case", { 7 }, known), 1, true)
  end)

  it("refuses what is no plain table", function()
    assert.matches("case: got 5, wanted a table of options", message(args.options, "case", 5, known), 1, true)
    assert.matches("case: got a tensor, wanted a table of options",
      message(args.options, "case", setmetatable({}, { __name = "tensor" }), known), 1, true)
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
end)

describe("every check blames the line of", function()
  -- One function for each check, so that all of them count frames alike.
  local checks = {
    integer = function(level) local v = args.integer("v", "x", 0, 1, level) return v end,
    number = function(level) local v = args.number("v", "x", 0, 1, level) return v end,
    boolean = function(level) local v = args.boolean("v", "x", level) return v end,
    string = function(level) local v = args.string("v", 1, level) return v end,
    table = function(level) local v = args.table("v", "x", level) return v end,
    enum = function(level) local v = args.enum("v", "x", { "a" }, level) return v end,
    options = function(level) local v = args.options("v", { x = 1 }, { "a" }, level) return v end,
  }

  for name, check in pairs(checks) do
    it("the caller, by default: " .. name, function()
      local line = here() + 1
      local _, err = pcall(function() check() end)
      assert.equal(("spec/args_spec.lua:%d: v: "):format(line), err:match("^.-:%d+: v: "))
    end)

    it("the checking function, at level 1, and the caller's caller, at level 3: " .. name, function()
      local _, err = pcall(function() check(1) end)
      assert.equal(("spec/args_spec.lua:%d: v: "):format(debug.getinfo(check, "S").linedefined), err:match("^.-:%d+: v: "))
      local function user() check(3) end
      local line = here() + 1
      _, err = pcall(function() user() end)
      assert.equal(("spec/args_spec.lua:%d: v: "):format(line), err:match("^.-:%d+: v: "))
    end)
  end
end)
