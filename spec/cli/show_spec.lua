local helper = require "spec.helper"
local show = require "fewhead.cli.show"

describe("show.text", function()
  it("prints plain values as they are written", function()
    assert.equal("nil true 0.1 9007199254740991 NaN", table.concat({ show.text(nil), show.text(true), show.text(0.1),
      show.text(2 ^ 53 - 1), show.text(0 / 0) }, " "))
    assert.equal('"a\\"b"', show.text('a"b'))
  end)

  it("prints text of several lines as it is", function() assert.equal("a\nb", show.text "a\nb") end)

  it("sends no control character of a value to the terminal", function()
    assert.equal('"a\\27[31mb"', show.text "a\27[31mb")
    assert.equal("a\\27[31m\n\tb", show.text "a\27[31m\n\tb")
    assert.equal("\\27[2J", show.text(setmetatable({}, { __tostring = function() return "\27[2J" end })))
  end)

  it("prints a table on one line, lists first and keys sorted", function()
    assert.equal("{}", show.text {})
    assert.equal('{ 1, "two", { 3 }, [10] = true, ["a b"] = 1, b = { c = 2 }, z = 0 }',
      show.text { 1, "two", { 3 }, z = 0, b = { c = 2 }, ["a b"] = 1, [10] = true })
  end)

  it("wraps what is wider than a line", function()
    local text = show.text { first = ("x"):rep(60), second = ("y"):rep(60), third = { 1, 2 } }
    assert.equal(('{\n  first = "%s",\n  second = "%s", third = { 1, 2 }\n}'):format(("x"):rep(60), ("y"):rep(60)), text)
  end)

  it("stops at depth, at length and at a table inside itself", function()
    assert.equal("{ { { { .. } } } }", show.text { { { { 1 } } } })
    local long = {}
    for i = 1, 100 do long[i] = i end
    assert.matches("31, 32, %.%. 68 more\n}$", show.text(long))
    local loop = { 1 }
    loop.again = loop
    assert.equal("{ 1, again = { itself } }", show.text(loop))
    local shared = { 1 }
    assert.equal("{ { 1 }, { 1 } }", show.text { shared, shared })
  end)

  it("lets objects speak for themselves", function()
    local object = setmetatable({ 1, 2 }, { __tostring = function() return "an object" end })
    assert.equal("an object", show.text(object))
    assert.equal("{ an object }", show.text { object })
    assert.equal("3ULL", show.text(3ULL))
  end)
end)

describe("show.text of a tensor", function()
  local tensor = require "fewhead.device.tensor"

  it("has corner values, the least and the largest element and the number of NaNs", function()
    local dev = helper.device()
    local t = tensor.new(dev, "f32", { 8, 9 }):fill(0)
    t[{ 1, 1 }], t[{ 2, 2 }], t[{ 8, 9 }] = -1.5, 0 / 0, 2
    assert.equal(([[
f32 [8, 9] on %s
  -1.5     0     0    ..     0     0     0
     0   nan     0    ..     0     0     0
     0     0     0    ..     0     0     0
    ..    ..    ..    ..    ..    ..    ..
     0     0     0    ..     0     0     0
     0     0     0    ..     0     0     0
     0     0     0    ..     0     0     2
  min -1.5, max 2, 1 NaN]]):format(dev.name), show.text(t))
    assert.equal(("i32 [3] on %s\n  7  7  7\n  min 7, max 7"):format(dev.name),
      show.text(tensor.new(dev, "i32", { 3 }):fill(7)))
    assert.matches("^bf16 %[2%].*\n  2 NaN, nothing else$", show.text(tensor.new(dev, "bf16", { 2 }):fill(0 / 0)))
    local freed = tensor.new(dev, "f32", { 2 })
    freed:free()
    assert.equal("f32 [2], freed", show.text(freed))
    dev:close()
  end)
end)
