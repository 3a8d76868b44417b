local helper = require "spec.helper"
local scheduler = require "fewhead.serve.scheduler"
local workload = require "fewhead.serve.workload"

-- Runs a workload with steps of one length; returns the run and what each step held: { s_q, decodes, steps }.
local function run(w, us, options)
  local steps = {}
  options = options or {}
  options.on_step = function(chunk, _, _, n) steps[#steps + 1] = { chunk.s_q, chunk.decodes, n } end
  return scheduler.run(w, function() return us end, options), steps
end

describe("scheduler.run", function()
  it("cuts a prompt into chunks and gives the first token at the end of the last one", function()
    local result, steps = run(workload.cold { input = 20000, count = 1 }, 10)
    assert.same({ { 8192, 0, 1 }, { 8192, 0, 1 }, { 3616, 0, 1 } }, steps)
    local r = result.requests[1]
    assert.same({ 0, 30, 30 }, { r.sent_us, r.first_us, r.end_us })
    assert.equal(30, result.wall_us)
    assert.equal(20000, result.prompt_tokens)
  end)

  it("packs the prompts of several requests into one chunk and sends the next request when one ends", function()
    local result, steps = run(workload.closed { concurrency = 2, count = 3, input = 100, output = 3 }, 10)
    -- both prompts, two decode steps of two; then the third request alone
    assert.same({ { 200, 0, 1 }, { 0, 2, 2 }, { 100, 0, 1 }, { 0, 1, 2 } }, steps)
    assert.same({ 30, 30, 60 }, { result.requests[1].end_us, result.requests[2].end_us, result.requests[3].end_us })
    assert.equal(30, result.requests[3].sent_us)
    assert.same({ { 10, 4 }, { 10, 2 } }, result.gaps)
  end)

  it("serves decodes before prompts, and partly computed prompts before waiting ones", function()
    local w = workload.one_by_one("unused", { { 1, 1 } })
    w.kind, w.concurrency = "closed", 3
    w.requests = {
      { input = 4, output = 5, cached = 0 }, { input = 10, output = 1, cached = 0 }, { input = 6, output = 1, cached = 0 },
    }
    local result, steps = run(w, 10, { max_num_batched_tokens = 8 })
    -- 4 + 4 of 10; one decode and 6 left of 10 and 1 of 6; one decode and 5
    assert.same({ { 8, 0, 1 }, { 7, 1, 1 }, { 5, 1, 1 }, { 0, 1, 2 } }, steps)
    local first = {}
    for _, r in ipairs(result.requests) do first[r.input] = r.first_us end
    assert.same({ [4] = 10, [10] = 20, [6] = 30 }, first)
  end)

  it("computes no prompt token that the prefix cache holds", function()
    local result = run(workload.closed { concurrency = 1, count = 3, input = 1000, output = 1, prefix = 900 }, 10)
    assert.equal(1000 + 100 + 100, result.prompt_tokens)
  end)

  it("ends a run of decode steps when the next request of an open loop comes", function()
    local w = workload.behind { first = 8, second = 8, after_us = 35, output = 20 }
    local result, steps = run(w, 10)
    -- prompt, decode steps up to 40, then the second prompt beside one decode
    assert.same({ { 8, 0, 1 }, { 0, 1, 3 }, { 8, 1, 1 } }, { steps[1], steps[2], steps[3] })
    assert.equal(50, result.requests[2].first_us)
    assert.equal(35, result.requests[2].sent_us)
  end)

  it("gives a draft that is always accepted its tokens in fewer steps", function()
    local w = workload.closed { concurrency = 1, count = 1, input = 8, output = 9 }
    local result = run(w, 10, { draft = 1, acceptance = 1 })
    assert.equal(1 + 4, result.steps) -- eight tokens, two a step
    result = run(w, 10, { draft = 1, acceptance = 0 })
    assert.equal(1 + 8, result.steps)
  end)

  it("takes as many steps for a draft as its acceptance says", function()
    local w = workload.closed { concurrency = 1, count = 1, input = 8, output = 100001 }
    local result = run(w, 10, { draft = 1, acceptance = 0.25, seed = 3 })
    assert.is_true(math.abs(100000 / (result.steps - 1) - 1.25) < 0.01)
  end)

  it("keeps requests waiting while too many run or KV memory is short", function()
    local w = workload.closed { concurrency = 4, count = 4, input = 10, output = 2 }
    local _, steps = run(w, 10, { max_num_seqs = 2 })
    assert.same({ 20, 0, 1 }, steps[1])
    _, steps = run(w, 10, { max_kv_tokens = 36 })
    assert.same({ 30, 0 }, { steps[1][1], steps[1][2] })
  end)

  it("counts requests that cannot run as failed and says why", function()
    local result = run(workload.closed { concurrency = 1, count = 2, input = { choices = { 100 } }, output = 10 }, 10,
      { max_model_len = 50 })
    assert.equal(0, #result.requests)
    assert.same({ input = 100, output = 10, reason = "input + output: got 110 tokens, wanted at most max_model_len, 50" },
      result.failed[1])
    assert.equal(2, #result.failed)
    assert.equal(0, result.wall_us)
  end)

  it("gives the same run for the same seed", function()
    local w = workload.closed { concurrency = 8, count = 40, input = { uniform = { 10, 5000 } }, output = 50, seed = 5 }
    local options = { draft = 2, acceptance = 0.4, seed = 9 }
    local a, b = run(w, 10, options), run(w, 10, options)
    assert.equal(a.wall_us, b.wall_us)
    assert.equal(a.steps, b.steps)
    assert.not_equal(a.steps, run(w, 10, { draft = 2, acceptance = 0.4, seed = 10 }).steps)
  end)

  it("refuses wrong options on the caller's line", function()
    local w = workload.cold { input = 8 }
    assert.equal("scheduler.run: max_num_batched_tokens: got 0, wanted a whole number >= 1",
      helper.refusal(function() scheduler.run(w, function() end, { max_num_batched_tokens = 0 }) end))
    assert.equal("scheduler.run: acceptance: has no effect without draft",
      helper.refusal(function() scheduler.run(w, function() end, { acceptance = 0.5 }) end))
    assert.equal("scheduler.run: workload: got nil, wanted a workload, such as fh.workload.get gives",
      helper.refusal(function() scheduler.run(nil) end))
  end)
end)
