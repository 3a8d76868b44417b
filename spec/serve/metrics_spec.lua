local metrics = require "fewhead.serve.metrics"

local function request(sent, first, last, input, output)
  return { sent_us = sent, first_us = first, end_us = last, input = input, output = output }
end

describe("metrics", function()
  it("are defined as vllm bench serve defines them", function()
    local m = metrics.of {
      requests = { request(0, 1e6, 3e6, 100, 5), request(1e6, 3e6, 3e6, 200, 1) }, failed = { {} }, wall_us = 4e6,
      gaps = { { 500e3, 4 } },
    }
    assert.equal(2, m.requests)
    assert.equal(1, m.failed)
    assert.equal(0.5, m.requests_s)
    assert.equal(1.5, m.output_tok_s)
    assert.equal(306 / 4, m.total_tok_s)
    assert.equal(1500, m.ttft_ms.mean) -- 1 s and 2 s
    assert.equal(1500, m.ttft_ms.p50)
    assert.equal(1990, m.ttft_ms.p99)
    assert.same({ 1, 500 }, { m.tpot_ms.n, m.tpot_ms.mean }) -- one output token has no TPOT
    assert.same({ 4, 500, 500 }, { m.itl_ms.n, m.itl_ms.mean, m.itl_ms.p99 })
    assert.equal(2500, m.latency_ms.mean)
    assert.is_true(m.ttft_ms.p99_few)
  end)

  it("interpolate percentiles linearly, weighted ones like written-out ones", function()
    local sorted = { 1, 2, 3, 10 }
    assert.equal(2.5, metrics.percentile(sorted, 50))
    assert.equal(10, metrics.percentile(sorted, 100))
    assert.is_true(math.abs(metrics.percentile(sorted, 90) - 7.9) < 1e-12)
    local m = metrics.of { requests = {}, failed = {}, wall_us = 1, gaps = { { 10e3, 1 }, { 1e3, 1 }, { 2e3, 2 } } }
    assert.same({ 4, 3.75, 2 }, { m.itl_ms.n, m.itl_ms.mean, m.itl_ms.p50 })
    assert.is_true(math.abs(m.itl_ms.p90 - (2 + 0.7 * 8)) < 1e-12)
  end)

  it("leave undefined figures out", function()
    local m = metrics.of { requests = {}, failed = {}, wall_us = 0, gaps = {} }
    assert.same({ 0, 0 }, { m.requests, m.ttft_ms.n })
    assert.is_nil(m.total_tok_s)
    assert.is_nil(m.ttft_ms.mean)
    assert.is_nil(m.steady)
  end)

  it("have the middle of a run apart", function()
    local list = {}
    for i = 1, 20 do list[i] = request(0, i * 1e6, i * 1e6, 10, 1) end
    local steady = metrics.of({ requests = list, failed = {}, wall_us = 20e6, gaps = {} }).steady
    assert.same({ 2, 18, 16, 1 }, { steady.from_s, steady.to_s, steady.requests, steady.requests_s })
    assert.equal(11, steady.total_tok_s)
  end)
end)
