local flips = require "fewhead.measure.flips"
local helper = require "spec.helper"

local function near(wanted, got)
  assert.is_true(math.abs(wanted - got) < 5e-4 * math.max(1, wanted), ("%g, %g"):format(wanted, got))
end

-- compare() on files of these lines, and what it says besides.
local function compare(a, b, options)
  local found, err
  helper.with_file(a, function(first)
    helper.with_file(b, function(second)
      found, err = flips.compare(first, second, options)
      if err then err = err:gsub(first, "A", 1):gsub(second, "B", 1) end
    end)
  end)
  return found, err
end

describe("flips.mcnemar", function()
  it("is the exact two-sided test", function()
    for _, case in ipairs { { 5, 7, 0.774 }, { 0, 0, 1 }, { 0, 6, 0.03125 }, { 1, 9, 0.021484375 }, { 6, 6, 1 }, { 0, 1, 1 } } do
      near(case[3], flips.mcnemar(case[1], case[2]))
      near(case[3], flips.mcnemar(case[2], case[1]))
    end
  end)

  it("does not overflow for many flips", function()
    near(1, flips.mcnemar(5000, 5000))
    assert.is_true(flips.mcnemar(4000, 6000) < 1e-80)
  end)
end)

describe("flips.wilson", function()
  it("is Wilson's interval", function()
    local lo, hi = flips.wilson(1275, 1319)
    near(0.95557, lo)
    near(0.97504, hi)
    assert.equal(0, (flips.wilson(0, 10)))
    near(0.2775, select(2, flips.wilson(0, 10)))
    assert.is_nil(flips.wilson(0, 0))
  end)
end)

describe("flips.smallest_seen", function()
  it("is the smallest net difference with p < 0.05", function()
    assert.is_nil(flips.smallest_seen(5))
    assert.equal(6, flips.smallest_seen(6))
    assert.equal(8, flips.smallest_seen(12)) -- 2 against 10: 0.0386; 3 against 9: 0.146
  end)
end)

describe("flips.compare", function()
  it("pairs items by id whatever their order", function()
    local a, b = {}, {}
    for i = 1, 1319 do
      local right_a = i > 44 -- 1275 right
      local right_b = right_a
      if i <= 7 then right_b = true elseif i > 44 and i <= 49 then right_b = false end
      a[i] = ('{"id": %d, "right": %s}'):format(i, tostring(right_a))
      b[1320 - i] = ('{"id": "%d", "right": %d}'):format(i, right_b and 1 or 0)
    end
    local found = compare(table.concat(a, "\n") .. "\n", table.concat(b, "\n"))
    assert.same({ 1319, 1275, 1277, 7, 5 }, { found.n, found.right_a, found.right_b, found.better, found.worse })
    near(0.774, found.p)
    local text = tostring(found)
    assert.matches("7 items turned right, 5 turned wrong: p = 0.7744 (McNemar's exact two-sided test)", text, 1, true)
    assert.matches("no difference seen; with 12 flips the smallest that could be seen is 8 right answers (0.61 % of the items)",
      text, 1, true)
  end)

  it("counts items of one file only and names them", function()
    local found = compare('{"id": 1, "right": true}\n{"id": 2, "right": true}',
      '{"id": 2, "right": false}\n{"id": 3, "right": 1}')
    assert.same({ 1, { "1" }, { "3" } }, { found.n, found.only_a, found.only_b })
    assert.matches("1 item of .- is not in .- and left out: 1\n", tostring(found))
  end)

  it("has no p where nothing is compared", function()
    local found = compare("", '{"id": 1, "right": true}')
    assert.is_nil(found.p)
    assert.matches("no item stands in both files: nothing compared$", tostring(found))
  end)

  it("says that a file equals itself in 0 flips", function()
    local line = '{"item": "x", "ok": false}\n'
    local found = compare(line, line, { id = "item", right = "ok" })
    assert.same({ 1, 0, 0, 1 }, { found.n, found.better, found.worse, found.p })
    assert.matches("no difference seen; 0 flips are too few to show one", tostring(found))
  end)

  it("refuses doubles and what is not right or wrong by file and line", function()
    local line = '{"id": 1, "right": true}\n'
    assert.equal('A:2: id: "1" stands twice', select(2, compare(line .. '{"id": "1", "right": false}', line)))
    assert.equal('A:1: right: got "p", wanted true, false, 1 or 0', select(2, compare('{"id": 1, "right": "p"}', line)))
    assert.equal("A:1: right: got 0.5, wanted true, false, 1 or 0", select(2, compare('{"id": 1, "right": 0.5}', line)))
    assert.equal("B:1: id: got nil, wanted a string or a number", select(2, compare(line, '{"right": true}')))
    assert.matches("^A:1: right: got .-, wanted true, false, 1 or 0$", select(2, compare('{"id": 1, "right": null}', line)))
  end)
end)
