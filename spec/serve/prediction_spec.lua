local engine = require "fewhead.serve.engine"
local calibrate = require "fewhead.serve.calibrate"
local prediction = require "fewhead.serve.prediction"
local workload = require "fewhead.serve.workload"

-- Cells as fh.engine_ab has them of an engine whose budget is known: attention of one prompt takes 300 ms padded and 150 ms fast.
local ATTENTION_MS = { flashmla = 300, fast = 150 }

local function measured()
  local truth = engine.computed { name = "truth", preset = "glm-5.2 tp8", tflops = 1, efficiency = 1, ratio = 1,
    rest = { step_us = 7000, token_us = 20 } }
  local whole = truth:keys { s_q = 8192, requests = 1, from = { 0 }, to = { 8192 } }
  function truth.attention(self, arm, chunk)
    return ATTENTION_MS[arm == "padded" and "flashmla" or arm] * 1e3 * self:keys(chunk) / whole, arm
  end
  local one = workload.cold { input = 8192, count = 1 }
  local batch = workload.closed { concurrency = 4, count = 8, input = 8192, output = 20 }
  local function cell(name, case, metric, what, scale)
    local made = { model = "glm-5.2 tp8", layers = 78, workload = name, lists = "local", decode = "eager", case = case, arms = {},
      order = { "flashmla", "fast" } }
    for arm, ms in pairs(ATTENTION_MS) do
      local figure = calibrate.figure(truth, name == "cold8k" and one or batch, metric, arm)
      made.arms[arm] = { attention_ms = ms, [what] = figure * scale }
    end
    return made
  end
  return {
    cell("cold8k", { prompt = 8192 }, "ttft_s", "ttft_ms", 1e3),
    cell("C16x8kx48", { prompt = 8192, concurrency = 4, requests = 8, output = 20 }, "total_tok_s", "total_tok_s", 1),
  }
end

describe("a prediction", function()
  it("meets an engine that is as the model takes engines to be", function()
    local found = assert(prediction.of(measured()))
    assert.same({ "flashmla", "fast" }, { found.rows[1].arm, found.rows[2].arm })
    for i, row in ipairs(found.rows) do
      assert.is_true(math.abs(row.model / row.ttft - 1) < 1e-3, row.arm)
      assert.is_true(math.abs(row.model_change - row.change) < 0.1)
      assert.is_true(math.abs(row.model_total - row.total) < 0.1)
      assert.equal(i == 1, row.change == 0)
    end
    assert.is_true(found.rows[2].change < -20 and found.rows[2].total > 20)
    assert.matches("^lists +arm +TTFT ms +model +change %% +model +tok/s change %% +model\nlocal +flashmla +", tostring(found))
  end)

  it("reads eager cells of all layers alone, and has no throughput of an arm that the closed loop lacks", function()
    local cells = measured()
    cells[2].arms.fast = nil
    local few, graphs = measured()[1], measured()[1]
    few.layers, few.arms.flashmla.ttft_ms = 6, 1
    graphs.decode, graphs.arms.flashmla.ttft_ms = "graphs", 1
    table.insert(cells, 1, few)
    cells[#cells + 1] = graphs
    local rows = assert(prediction.of(cells)).rows
    assert.same({ 2, "fast" }, { #rows, rows[2].arm })
    assert.is_nil(rows[2].total)
    assert.is_true(rows[1].ttft > 300)
  end)

  it("says what is missing", function()
    local cells = measured()
    cells[1].arms.flashmla = nil
    assert.same({ nil, "no cold8k and C16x8kx48 of arm flashmla with the same lists" }, { prediction.of(cells) })
    assert.is_nil((prediction.of {}))
  end)
end)
