local stats = require "fewhead.measure.stats"

describe("stats.quantile", function()
  it("interpolates linearly between neighbours", function()
    local sorted = { 10, 20, 30, 40 }
    assert.equal(10, stats.quantile(sorted, 0))
    assert.equal(25, stats.quantile(sorted, 0.5))
    assert.equal(40, stats.quantile(sorted, 1))
    assert.near(11.5, stats.quantile(sorted, 0.05), 1e-12)
    assert.equal(7, stats.quantile({ 7 }, 0.95))
  end)

  it("refuses an empty list on the caller's line", function()
    local ok, err = pcall(function() local median = stats.quantile({}, 0.5) return median end)
    assert.is_false(ok)
    assert.matches("stats_spec%.lua:%d+: stats%.quantile: got an empty list, wanted at least one value$", err)
  end)
end)

describe("stats.median", function()
  it("takes a list in any order and leaves it as it was", function()
    local values = { 3, 1, 2 }
    assert.equal(2, stats.median(values))
    assert.same({ 3, 1, 2 }, values)
    assert.equal(2.5, stats.median { 4, 1, 3, 2 })
  end)
end)

describe("stats.median_rank", function()
  -- The printed tables of 95 % intervals of a median: n, rank, confidence reached.
  it("agrees with the published tables at 95 %", function()
    for _, row in ipairs { { 6, 1, 0.96875 }, { 8, 1, 0.9921875 }, { 9, 2, 0.9609375 }, { 20, 6, 0.9586 }, { 30, 10, 0.9572 },
      { 50, 18, 0.9672 }, { 100, 40, 0.9648 } } do
      local rank, reached = stats.median_rank(row[1], 0.95)
      assert.equal(row[2], rank)
      assert.near(row[3], reached, 5e-5)
    end
  end)

  it("says how little the whole range is worth where values are too few", function()
    assert.same({ 1, 0 }, { stats.median_rank(1, 0.95) })
    assert.same({ 1, 0.5 }, { stats.median_rank(2, 0.95) })
    assert.same({ 1, 0.9375 }, { stats.median_rank(5, 0.95) })
  end)

  it("covers the true median as often as it says", function()
    -- Exponential values from a fixed generator; the true median is ln 2.
    local state = 12345
    local function random()
      state = (state * 16807) % 2147483647
      return state / 2147483647
    end
    local hits, trials = 0, 4000
    for _ = 1, trials do
      local values = {}
      for i = 1, 15 do values[i] = -math.log(random()) end
      local low, high = stats.median_interval(stats.sorted(values), 0.95)
      if low <= math.log(2) and math.log(2) <= high then hits = hits + 1 end
    end
    local _, reached = stats.median_rank(15, 0.95)
    assert.near(reached, hits / trials, 0.01) -- three standard errors
  end)
end)

describe("stats.median_interval", function()
  it("returns the order statistics of the rank", function()
    local sorted = {}
    for i = 1, 20 do sorted[i] = i * 1.5 end
    local low, high, reached = stats.median_interval(sorted, 0.95)
    assert.equal(6 * 1.5, low)
    assert.equal(15 * 1.5, high)
    assert.is_true(reached >= 0.95)
  end)
end)
