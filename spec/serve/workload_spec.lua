local helper = require "spec.helper"
local workload = require "fewhead.serve.workload"

describe("workload", function()
  it("has the published ones by name", function()
    local there = {}
    for _, name in ipairs(workload.names()) do there[name] = true end
    for _, name in ipairs { "C16x8kx48", "C4x32kx12", "cold128k", "cold32k", "short-after-8k" } do
      assert.is_true(there[name], name)
    end
    assert.equal("C16x8kx48: 48 requests, 393216 prompt tokens (0 in the prefix cache), 6144 output tokens, at most 16 at a time",
      tostring(workload.get "C16x8kx48"))
    assert.equal("cold128k: 3 requests, 393216 prompt tokens (0 in the prefix cache), 3 output tokens, at most 1 at a time",
      tostring(workload.get "cold128k"))
  end)

  it("draws lengths that depend on the seed alone", function()
    local function inputs(seed)
      local list = {}
      local w = workload.closed { concurrency = 1, count = 200, input = { uniform = { 10, 20 } }, output = 1, seed = seed }
      for i, r in ipairs(w.requests) do list[i] = r.input end
      return list
    end
    assert.same(inputs(1), inputs(1))
    assert.not_same(inputs(1), inputs(2))
    local seen, lo, hi = {}, math.huge, 0
    for _, n in ipairs(inputs(1)) do seen[n], lo, hi = true, math.min(lo, n), math.max(hi, n) end
    assert.same({ 10, 20 }, { lo, hi })
    for n = 10, 20 do assert.is_true(seen[n]) end
  end)

  it("draws lognormal lengths around their median, cut at the most", function()
    local w = workload.closed { concurrency = 1, count = 999, input = { lognormal = { 1000, 0.5 }, most = 3000 }, output = 1 }
    local below, most = 0, 0
    for _, r in ipairs(w.requests) do
      below, most = below + (r.input < 1000 and 1 or 0), math.max(most, r.input)
    end
    assert.is_true(math.abs(below - 500) < 50)
    assert.equal(3000, most)
  end)

  it("sends Poisson arrivals at the rate", function()
    local w = workload.open { rate = 50, count = 2000, input = 1, output = 1, seed = 4 }
    assert.is_true(math.abs(w.requests[2000].sent_us / 1e6 - 40) < 3)
    for i = 2, 2000 do assert.is_true(w.requests[i].sent_us > w.requests[i - 1].sent_us) end
  end)

  it("shares beginnings of prompts in turn", function()
    local w = workload.closed { concurrency = 1, count = 4, input = 100, output = 1, prefix = 100, prefixes = 2 }
    local cached = {}
    for i, r in ipairs(w.requests) do cached[i] = r.cached end
    assert.same({ 0, 0, 99, 99 }, cached)
  end)

  it("takes a slice of a trace and scales its rate", function()
    local trace = { file = "t", requests = {
      { t_ms = 0, input = 10, output = 1, uncached = 10 }, { t_ms = 100, input = 20, output = 2, uncached = 5 },
      { t_ms = 300, input = 30, output = 3, uncached = 30 },
    } }
    local w = workload.trace(trace, { from = 2, rate = 2 })
    assert.same({ { input = 20, output = 2, cached = 15, sent_us = 0 }, { input = 30, output = 3, cached = 0, sent_us = 100e3 } },
      w.requests)
    assert.equal(0, workload.trace(trace, { prefix_cache = false }).requests[2].cached)
    w = workload.trace(trace, { load = 0.5, tokens_per_s = 90 }) -- 45 uncached tokens at 45 a second: one second
    assert.equal(1e6, w.requests[3].sent_us)
  end)

  it("mixes open workloads by time", function()
    local w = workload.mix("both", { workload.behind { first = 1, second = 2, after_us = 10 },
      workload.behind { first = 3, second = 4, after_us = 5 } })
    local order = {}
    for i, r in ipairs(w.requests) do order[i] = r.input end
    assert.same({ 1, 3, 4, 2 }, order)
  end)

  it("refuses what cannot be served", function()
    assert.equal("workload.closed: concurrency: got 0, wanted a whole number in 1 .. 2147483647",
      helper.refusal(function() workload.closed { concurrency = 0, count = 1, input = 1 } end))
    assert.equal("workload.closed: output: got 0, wanted a whole number in 1 .. 2147483647",
      helper.refusal(function() workload.closed { concurrency = 1, count = 1, input = 1, output = 0 } end))
    assert.equal('workload.open: unknown option "rtae"; did you mean "rate"? known: name, input, output, count, seed, prefix, '
      .. "prefixes, rate", helper.refusal(function() workload.open { rtae = 1 } end))
    assert.equal("workload.trace: rate and load: got both, wanted one of them",
      helper.refusal(function() workload.trace({ requests = { {} } }, { rate = 1, load = 1 }) end))
    assert.equal("workload.mix: workloads[1]: got a closed one, wanted an open workload",
      helper.refusal(function() workload.mix("m", { workload.cold { input = 1 } }) end))
    assert.matches("^workload: got \"C16\", wanted one of C16x8kx48, ", helper.refusal(function() workload.get "C16" end))
  end)

  it("takes a concurrency above the number of requests", function()
    assert.equal(3, #workload.closed { concurrency = 100, count = 3, input = 1 }.requests)
  end)
end)
