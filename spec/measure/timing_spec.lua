local timing = require "fewhead.measure.timing"

-- A world where time passes only as told: a clock in nanoseconds and arms that take what `cost(run number)` says, microseconds.
local function world()
  local now, log = 0, {}
  local w = { log = log, clock = function() return now end, evicted = 0 }
  function w.arm(name, cost, status)
    local runs = 0
    return {
      name = name,
      run = function()
        runs = runs + 1
        log[#log + 1] = name
        now = now + (type(cost) == "function" and cost(runs) or cost) * 1000
        return status and status(runs)
      end,
      evict = function() w.evicted = w.evicted + 1 end,
    }
  end
  function w.pass(us) now = now + us * 1000 end
  return w
end

-- Longer than any run that is primed, so that only warm-up and samples run.
local LONG = 30000

describe("timing.measure", function()
  it("reports median, spread, count and heat of every arm", function()
    local w = world()
    local t = timing.measure({ w.arm("padded", 2 * LONG), w.arm("gather", LONG) }, { clock = w.clock })
    assert.equal(2 * LONG, t.padded.median_us)
    assert.equal(LONG, t.gather.median_us)
    assert.equal(LONG, t.gather.p05_us)
    assert.equal(LONG, t.gather.p95_us)
    assert.equal(6, t.gather.n)
    assert.equal("hot", t.gather.l2)
    assert.equal("ci 0.0% <= 2%", t.gather.stop)
    assert.equal(6, #t.padded.samples)
  end)

  it("takes arms in turns, every other pass in reverse, the quickest of them twice", function()
    local w = world()
    timing.measure({ w.arm("a", 2 * LONG), w.arm("b", LONG) }, { clock = w.clock, min_samples = 2 })
    local text = table.concat(w.log, "")
    -- Warm-up, then A B B' and back, until two samples are there: too few for the default interval, so it goes on to six.
    assert.equal("ab" .. ("abb" .. "bba"):rep(3), text)
  end)

  it("ends within a sample of being asked to", function()
    local w = world()
    local asked = 0
    local function interrupted()
      asked = asked + 1
      return asked == 4
    end
    local t, err = timing.measure({ w.arm("a", LONG), w.arm("b", LONG) },
      { clock = w.clock, noise = false, interrupted = interrupted })
    assert.is_nil(t)
    assert.equal("timing: interrupted", err)
    assert.equal("ab" .. "abb", table.concat(w.log, ""))
  end)

  it("warms up before the first sample", function()
    local w = world()
    local t = timing.measure({ w.arm("a", function(run) return run == 1 and 100 * LONG or LONG end) }, { clock = w.clock })
    assert.equal(LONG, t.a.p95_us)
    -- A short arm warms up for 10 ms or 20 runs.
    w = world()
    local first = {}
    timing.measure({ w.arm("a", 1000), w.arm("b", 1) }, { clock = function()
      first.log = first.log or table.concat(w.log)
      return w.clock()
    end, stopwatch = function(run) run() return #w.log <= 10 and 1000 or 1 end })
    assert.equal(("a"):rep(10) .. ("b"):rep(20), first.log)
  end)

  it("runs a short arm once untimed before each hot sample", function()
    local w = world()
    local odd = timing.measure({ w.arm("a", function(run) return run % 2 == 0 and 100 or 900 end) },
      { clock = w.clock, noise = false })
    -- Warm-up ends after an even number of runs: the odd, slow ones prime and the even ones count.
    assert.equal(100, odd.a.median_us)
    assert.equal(100, odd.a.p95_us)
  end)

  it("evicts before every cold sample and primes nothing", function()
    local w = world()
    local t = timing.measure({ w.arm("a", 100) }, { clock = w.clock, cold = true, noise = false })
    assert.equal("cold", t.a.l2)
    assert.equal(t.a.n, w.evicted)
    assert.equal(20 + t.a.n, #w.log)
  end)

  it("says why it stopped", function()
    local function spread(run) return LONG * (1 + run % 5) end
    local w = world()
    local t = timing.measure({ w.arm("a", spread) }, { clock = w.clock, max_samples = 10, max_seconds = 1e4 })
    assert.equal("max_samples", t.a.stop)
    assert.equal(10, t.a.n)
    w = world()
    t = timing.measure({ w.arm("a", spread) }, { clock = w.clock, max_seconds = 3 })
    assert.equal("max_seconds", t.a.stop)
    assert.is_true(w.clock() / 1e9 >= 3 and w.clock() / 1e9 < 4)
    w = world()
    t = timing.measure({ w.arm("a", function(run) return LONG * (1 + 0.01 * (run % 3)) end) }, { clock = w.clock, rel_ci = 0.03 })
    assert.equal("ci 1.0% <= 3%", t.a.stop)
  end)

  it("takes its least samples even when the time is up", function()
    local w = world()
    local t = timing.measure({ w.arm("a", function(run) return LONG * (1 + run % 4) end) },
      { clock = w.clock, max_seconds = 0, min_samples = 8 })
    assert.equal(8, t.a.n)
    assert.equal("max_seconds", t.a.stop)
  end)

  it("measures how far the same arm differs from itself", function()
    local w = world()
    local t = timing.measure({ w.arm("a", 2 * LONG), w.arm("b", LONG) }, { clock = w.clock })
    assert.same({ arm = "b", ratio = 1, lo = 1, hi = 1, floor = 0, n = 6 }, t.noise)
    w = world()
    local function uneven(run) return run % 2 == 0 and LONG or 1.1 * LONG end
    t = timing.measure({ w.arm("a", uneven) }, { clock = w.clock, noise = "a" })
    assert.equal("a", t.noise.arm)
    assert.near(0.1, t.noise.floor, 1e-9)
    w = world()
    assert.is_nil(timing.measure({ w.arm("a", LONG) }, { clock = w.clock, noise = false }).noise)
  end)

  it("gives back the failure of a run instead of a time", function()
    local w = world()
    local t, err, status = timing.measure({ w.arm("a", LONG), w.arm("b", LONG, function(run) return run == 3 and 60 or 0 end) },
      { clock = w.clock })
    assert.is_nil(t)
    assert.equal("timing: b: the run returned status 60", err)
    assert.equal(60, status)
  end)

  it("never reports a time of zero from a coarse clock", function()
    local w = world()
    local t = timing.measure({ w.arm("a", 0) }, { clock = w.clock })
    assert.equal(0.001, t.a.median_us)
  end)

  it("refuses wrong calls on the caller's line", function()
    local w = world()
    local arm = w.arm("a", 1)
    local function refused(message, arms, opts)
      local line = debug.getinfo(1, "l").currentline + 1
      local ok, err = pcall(function() local t = timing.measure(arms, opts) return t end)
      assert.is_false(ok)
      assert.equal(("timing_spec.lua:%d: %s"):format(line, message), err:match("timing_spec.*"))
    end
    -- A clock is given: nothing here needs the library.
    local clock = { clock = w.clock }
    refused("timing: arms: got none, wanted at least one", {}, clock)
    refused("timing: arms: got nil, wanted a table", nil, clock)
    refused("timing: arms[1].name: got nil, wanted a string", { { run = print } }, clock)
    refused('timing: arms[2].name: "a" stands twice', { arm, arm }, clock)
    refused('timing: arms[1].name: "noise" is what the noise floor is called', { w.arm("noise", 1) }, clock)
    refused("timing: arms[1].run: got 1, wanted a function", { { name = "a", run = 1 } }, clock)
    refused("timing: arms[1].evict: got nil, wanted a function: cold timing calls it", { { name = "a", run = print } },
      { cold = true, clock = w.clock })
    refused('timing: unknown option "max_sample"; did you mean "max_samples"? known: min_samples, max_samples, max_seconds, '
      .. "rel_ci, confidence, cold, noise, clock, stopwatch, interrupted, stopped, clocks", { arm }, { max_sample = 3 })
    refused("timing: max_samples: got 5, wanted a whole number in 6 .. 1000000", { arm }, { max_samples = 5 })
    refused("timing: rel_ci: got NaN, wanted a finite number in 0 .. 10", { arm }, { rel_ci = 0 / 0 })
    refused('timing: noise: got "b", wanted the name of an arm, or false', { arm }, { noise = "b", clock = w.clock })
  end)
end)

describe("timing.problem", function()
  local dev = require("fewhead.device.device").default()
  local case = require("fewhead.case.case") { heads = 8, s_q = 10, pattern = "window", window = 20, prior = 30 }

  -- A stopwatch that knows how often it was asked, and a time for each run: 1 us the first one it sees, 2 us the second ..
  local function stopwatch()
    local known, count, calls = {}, 0, {}
    return function(run)
      if not known[run] then
        count = count + 1
        known[run] = count
      end
      calls[known[run]] = (calls[known[run]] or 0) + 1
      return known[run], run()
    end, calls
  end

  it("times the paths of a problem, packed on a plan that is timed apart", function()
    if not dev:has_path("packed") then pending("the device does not pack") end
    local watch, calls = stopwatch()
    local t = assert(timing.problem(assert(case:problem(dev)), { "padded", "packed" }, { stopwatch = watch, cold = true }))
    -- The build of the plan is the first thing the stopwatch sees: one to warm up and five that count.
    assert.same({ 1, 2, 3 }, { t.packed.plan_us, t.padded.median_us, t.packed.median_us })
    assert.equal(6, calls[1])
    assert.is_nil(t.padded.plan_us)
    assert.same({ "cold", "cold" }, { t.padded.l2, t.packed.l2 })
    assert.equal("padded", t.noise.arm)
  end)

  it("takes a plan that is there and leaves it to its owner", function()
    if not dev:has_path("packed") then pending("the device does not pack") end
    local problem = assert(case:problem(dev))
    local plan = assert(require("fewhead.device.plan").build(problem, { group = 2 }))
    assert(timing.problem(problem, { "packed" }, { plan = plan, group = 2, stopwatch = stopwatch() }))
    assert.equal(5, #plan:entries())
    plan:free()
  end)

  it("measures microseconds with the device's own timer", function()
    local t = assert(timing.problem(assert(case:problem(dev)), { "gather" }, { max_seconds = 0 }))
    assert.is_true(t.gather.median_us > 0 and t.gather.p05_us <= t.gather.median_us and t.gather.median_us <= t.gather.p95_us)
  end)

  it("calls after() once, when all is measured and everything still runs", function()
    local seen = {}
    local t = assert(timing.problem(assert(case:problem(dev)), { "padded", "gather" }, {
      stopwatch = stopwatch(), after = function(arms, outputs)
        assert(outputs:poison())
        for i, arm in ipairs(arms) do seen[i] = ("%s %d %s"):format(arm.name, arm.run(), tostring(arm.collect)) end
      end,
    }))
    assert.same({ "padded 0 nil", "gather 0 nil" }, seen)
    assert.is_number(t.gather.median_us)
    assert.equal("timing.problem: after: got 5, wanted a function", require("spec.helper").refusal(function()
      local r = timing.problem(assert(case:problem(dev)), { "gather" }, { after = 5 })
      return r
    end))
  end)

  it("gives back why a path was refused", function()
    local t, err = timing.problem(assert(case:problem(dev)), { "packed" }, { group = 9 })
    assert.is_nil(t)
    assert.matches("^timing: packed: plan: group: got 9", err)
  end)
end)

describe("timing.verdict", function()
  -- A result of measure with these samples.
  local function result(samples) return { samples = samples, confidence = 0.95 } end
  local function around(us, spread)
    local samples = {}
    for i = 1, 9 do samples[i] = us * (1 + spread * (i - 5) / 4) end
    return result(samples)
  end

  it("says what the first is beside the second", function()
    local verdict, ratio, interval = timing.verdict(around(100, 0), around(391, 0))
    assert.equal("faster", verdict)
    assert.equal(3.91, ratio)
    assert.same({ 3.91, 3.91 }, interval)
    assert.equal("slower", (timing.verdict(around(391, 0), around(100, 0))))
  end)

  it("pairs samples of one pass, so drift that hits both arms changes nothing", function()
    local a, b = {}, {}
    for i = 1, 9 do a[i], b[i] = 100 * i, 110 * i end
    local verdict, ratio = timing.verdict(result(a), result(b))
    assert.equal("faster", verdict)
    assert.near(1.1, ratio, 1e-12)
  end)

  it("needs the whole interval beyond the noise floor", function()
    local a, b = around(100, 0), around(105, 0)
    assert.equal("faster", (timing.verdict(a, b, { floor = 0.03 })))
    assert.equal("unclear", (timing.verdict(a, b, { floor = 0.06 })))
    assert.equal("slower", (timing.verdict(b, a, { floor = 0.03 })))
    assert.equal("unclear", (timing.verdict(b, a, { floor = 0.06 })))
    -- Ratios from 0.95 to 1.25: the median is above 1, the interval is not.
    assert.equal("unclear", (timing.verdict(a, around(110, 0.14))))
  end)

  it("calls equal what lies within 2 %, if the machine can tell 2 %", function()
    assert.equal("same", (timing.verdict(around(100, 0), around(101, 0), { floor = 0.015 })))
    assert.equal("unclear", (timing.verdict(around(100, 0), around(101, 0), { floor = 0.05 })))
    assert.equal("same", (timing.verdict(around(100, 0), around(100, 0))))
  end)

  it("gives no verdict on four samples, however far apart", function()
    assert.equal("unclear", (timing.verdict(result { 1, 1, 1, 1 }, result { 9, 9, 9, 9 })))
    assert.equal("faster", (timing.verdict(result { 1, 1, 1, 1, 1 }, result { 9, 9, 9, 9, 9 })))
  end)

  it("refuses what is no result of measure", function()
    local ok, err = pcall(function() local v = timing.verdict(around(1, 0), { median_us = 3 }) return v end)
    assert.is_false(ok)
    assert.matches("timing_spec%.lua:%d+: timing%.verdict: argument 2: got a table, wanted a result of timing%.measure$", err)
  end)
end)
