local calibrate = require "fewhead.serve.calibrate"
local engine = require "fewhead.serve.engine"
local engine_preset = require "fewhead.serve.engine_preset"
local helper = require "spec.helper"
local published = require "fewhead.serve.published"
local process = require "spec.process"
local serve = require "fewhead.serve.serve"
local trace = require "fewhead.serve.trace"
local workload = require "fewhead.serve.workload"

local function toy(ratio)
  return engine.computed { name = "toy", preset = "v4.1-flash tp8", tflops = 100, efficiency = 0.5, ratio = ratio or 2,
    rest = { step_us = 1000 } }
end

describe("calibrate.fit", function()
  it("finds the budget that figures were made with", function()
    local truth = toy():with { step_us = 5000, token_us = 30 }
    local w = workload.closed { concurrency = 4, count = 8, input = 9000, output = 20 }
    local cold = workload.cold { input = 30000, count = 1 }
    local found = calibrate.fit(toy(), {
      { workload = w, metric = "total_tok_s", value = calibrate.figure(truth, w, "total_tok_s") },
      { workload = cold, metric = "ttft_s", value = calibrate.figure(truth, cold, "ttft_s") },
    }, { "step_us", "token_us" })
    assert.is_true(math.abs(found.engine.rest.step_us - 5000) < 5)
    assert.is_true(math.abs(found.engine.rest.token_us - 30) < 0.03)
    assert.is_true(found.residual < 1e-4)
  end)
end)

describe("the published A/B, its budget fitted to the padded arm alone", function()
  local e = engine_preset.get "h20x8-tp8"

  -- Published and predicted relative change of a figure.
  local function both(name, metric, options)
    options.workload, options.engine, options.arms = name, e, { "padded", "gate 2048" }
    local change = serve.run(options).rows[2].change[metric].mean
    local figures = published.figures[name]
    return 100 * (figures.native[metric] / figures.padded[metric] - 1), 100 * change
  end

  it("gives the padded arm's figures", function()
    assert.is_true(math.abs(calibrate.figure(e, workload.get "C16x8kx48", "total_tok_s") / 8939 - 1) < 1e-3)
    assert.is_true(math.abs(calibrate.figure(e, workload.get "cold32k", "ttft_s") / 3.49 - 1) < 1e-3)
    assert.is_true(math.abs(calibrate.figure(e, workload.get "cold128k", "ttft_s") / 15.38 - 1) < 1e-3)
  end)

  it("predicts throughput and cold TTFT within 2 points", function()
    for _, case in ipairs { { "C16x8kx48", "total_tok_s" }, { "C16x8kx48", "output_tok_s" }, { "cold32k", "ttft_s" } } do
      local reported, predicted = both(case[1], case[2], {})
      assert.is_true(math.abs(predicted - reported) < 2, ("%s %s: %.2f, %.2f"):format(case[1], case[2], reported, predicted))
    end
  end)

  it("predicts the mean TTFT of the closed loop only within 4 points", function()
    local reported, predicted = both("C16x8kx48", "ttft_s", {})
    assert.is_true(predicted < -7 and math.abs(predicted - reported) < 4)
  end)
end)

describe("the engine of an H200", function()
  it("takes attention from the evidence in results/ and says what is assumed", function()
    local e = engine_preset.get "h200x8-tp8"
    local text = tostring(e)
    assert.matches("attention: measured, csa .* on NVIDIA H200", text)
    assert.matches("the rest is that of h20x8%-tp8, scaled by tensor rate %(148 to 813 TFLOP/s%) .*: an assumption", text)
    local h20 = engine_preset.get "h20x8-tp8"
    assert.is_true(math.abs(e.rest.token_us / (h20.rest.token_us * 148 / 813) - 1) < 1e-12)
    local rows = serve.run({ workload = "cold32k", engine = e, arms = { "padded", "auto" } }).rows
    assert.is_true(rows[2].change.ttft_s.mean < -0.05)
  end)
end)

describe("traces of every format", function()
  local samples = helper.root .. "spec/serve/samples/" -- twenty requests each, made for this spec

  for name, format in pairs {
    ["mooncake.jsonl"] = "mooncake", ["lengths.jsonl"] = "lengths", ["azure_2023.csv"] = "azure", ["azure_2024.csv"] = "azure",
    ["burstgpt_1.csv"] = "burstgpt", ["burstgpt_2.csv"] = "burstgpt",
  } do
    it("replay on the CPU's engine: " .. name, function()
      local t = assert(trace.read(samples .. name))
      assert.same({ format, 20, 0 }, { t.format, #t.requests, t.skipped })
      assert.equal(62506, t:total("input"))
      assert.equal(format == "mooncake", t:total("uncached") < 62506)
      local ab = serve.run { workload = workload.trace(t), engine = "cpu", arms = { "padded", "native" } }
      assert.equal(20, ab.rows[1].metrics.requests)
      assert.equal(t:total("uncached"), ab.rows[2].counters.rows.gather or ab.rows[2].counters.rows.native)
      assert.is_true(ab.rows[2].change.ttft_s.mean < 0)
    end)
  end

  it("run from the command line, and an empty one says so", function()
    local status, out = process.run({ "./fewhead", "run", "serving_ab", "--traffic", samples .. "azure_2024.csv",
      "--device-preset", "cpu", "--arms", "padded,auto" }, { cwd = process.root })
    assert.equal(0, status)
    assert.matches("20 requests, 62506 prompt tokens", out)
    helper.with_file("TIMESTAMP,ContextTokens,GeneratedTokens\n", function(path)
      local failed, _, err = process.run({ "./fewhead", "run", "serving_ab", "--traffic", path, "--device-preset", "cpu" },
        { cwd = process.root })
      assert.equal(1, failed)
      assert.equal(("serving_ab: %s: no request in it\n"):format(path), err)
    end)
  end)
end)

describe("serve", function()
  local w = workload.closed { concurrency = 2, count = 6, input = 3000, output = 4 }

  it("routes each chunk by the arm's gate and counts calls and rows by path", function()
    local ab = serve { workload = w, engine = toy(), arms = { "padded", "gate 4000", "native" } }
    local counters = ab.rows[2].counters
    assert.same({ padded = 18000 }, ab.rows[1].counters.rows)
    assert.same({ native = 18000 }, ab.rows[3].counters.rows)
    assert.equal(18000, (counters.rows.padded or 0) + counters.rows.native)
    assert.is_true(ab.rows[3].change.total_tok_s.mean > 0)
    local attention = ab.rows[1].counters.attention_s
    assert.is_true(math.abs(ab.rows[3].counters.attention_s - attention / 2) < 1e-9 * attention)
  end)

  it("shows the middle of a run of twenty requests or more beside the whole", function()
    local few = serve { workload = w, engine = toy(), arms = { "padded" } }
    assert.is_nil(tostring(few):find("steady"))
    local more = workload.closed { concurrency = 2, count = 24, input = 3000, output = 4 }
    local ab = serve { workload = more, engine = toy(), arms = { "padded" } }
    assert.matches("steady tok/s", tostring(ab))
    assert.is_true(math.abs(ab.rows[1].metrics.steady.total_tok_s / ab.rows[1].figures.total_tok_s - 1) < 0.2)
  end)

  it("says before each run which one it is", function()
    local seen = {}
    serve { workload = w, engine = toy(), arms = { "padded", "native" }, repetitions = 2,
      on_run = function(...) seen[#seen + 1] = table.concat({ ... }, " ") end }
    assert.same({ "padded 1 1 4", "padded 2 2 4", "native 1 3 4", "native 2 4 4" }, seen)
  end)

  it("gives two equal arms equal figures", function()
    local ab = serve { workload = w, engine = toy(1), arms = { "padded", "native" } }
    assert.equal(0, ab.rows[2].change.total_tok_s.mean)
    assert.equal(0, ab.rows[2].change.ttft_s.mean)
  end)

  it("takes an arm that routed nothing for no result", function()
    local ab = serve { workload = w, engine = toy(), arms = { "padded", "gate 100000" } }
    assert.equal("no row was routed to native heads: this arm is the padded one", ab.rows[2].error)
    assert.is_nil(ab.rows[2].change)
    assert.matches("\ngate 100000: no result: no row was routed", tostring(ab))
  end)

  it("repeats with other seeds where chance has a part, paired by seed", function()
    local ab = serve { workload = function(seed)
      return workload.open { rate = 20, count = 40, input = { uniform = { 500, 6000 } }, output = 8, seed = seed }
    end, engine = toy(), arms = { "padded", "native" }, repetitions = 4 }
    local change = ab.rows[2].change.ttft_s
    assert.is_true(change.lo < change.mean and change.mean < change.hi and change.hi < 0)
  end)

  it("says so when every request failed", function()
    local ab = serve { workload = w, engine = toy(), arms = { "padded" }, max_model_len = 100 }
    assert.equal("no request finished: 6 failed", ab.rows[1].error)
    assert.matches("6 requests failed and are left out", tostring(ab))
  end)

  it("refuses wrong arms and options without effect", function()
    assert.equal('serve: arms[2]: got "auto", wanted "native", "gate N" or a path that engine toy has: padded, native',
      helper.refusal(function() serve.run { workload = w, engine = toy(), arms = { "padded", "auto" } } end))
    assert.equal("serve: acceptance: has no effect, the engine decodes without draft tokens",
      helper.refusal(function() serve.run { workload = w, engine = toy(), acceptance = 0.5 } end))
    assert.equal("serve: workload: got nil, wanted a name, a workload or a function",
      helper.refusal(function() serve.run { engine = toy() } end))
    assert.matches('^engine: got "h20", wanted .*h20x8%-tp8',
      helper.refusal(function() serve.run { workload = w, engine = "h20" } end))
  end)
end)

describe("What if", function()
  local one = workload.cold { input = 8192, count = 1 }
  local function attention(o)
    o.workload, o.engine, o.arms = one, o.engine or toy(), o.arms or { "padded", "native" }
    local rows = serve(o).rows
    return rows[#rows].counters.attention_s, rows[#rows]
  end

  it("the kernel were faster: native attention shrinks by that ratio, padded attention stays", function()
    local padded = attention { arms = { "padded" } }
    assert.near(padded / 2, attention {}, 1e-12)
    assert.near(padded / 4, attention { speedup = 4 }, 1e-12)
    assert.near(padded, attention { speedup = 4, arms = { "native", "padded" } }, 1e-12)
  end)

  it("fewer cards shared the heads: each rank pads to the same tile, and the rest of a step grows", function()
    local before, after = toy(), toy():what_if { tp = 2 }
    assert.equal(32, after.preset.h_q)
    assert.equal(4 * before.rest.step_us, after.rest.step_us)
    assert.near(attention { arms = { "padded" } }, attention { arms = { "padded" }, tp = 2 }, 1e-12)
    assert.matches("\nwhat if: 2 cards in place of 8; .*an assumption\n", tostring(after))
  end)

  it("the gate were another", function()
    local _, row = attention { arms = { "padded", "gate 8192" } }
    assert.same({ native = 8192 }, row.counters.rows)
    _, row = attention { arms = { "padded", "gate 8193" } }
    assert.same({ padded = 8192 }, row.counters.rows)
  end)

  it("another path took all chunks", function()
    local _, row = attention { engine = engine_preset.get "h200x8-tp8", arms = { "padded", "gather" } }
    assert.same({ gather = 8192 }, row.counters.rows)
  end)

  it("chunks were smaller", function()
    local _, row = attention { max_num_batched_tokens = 1024 }
    assert.same({ native = 8 }, row.counters.calls)
  end)

  it("the device were another", function()
    local _, h20 = attention { engine = "h20x8-tp8", arms = { "padded" } }
    local _, h200 = attention { engine = "h200x8-tp8", arms = { "padded" } }
    assert.is_true(h200.figures.ttft_s < h20.figures.ttft_s / 2)
  end)

  it("is refused where it has no effect, and where nothing is padded", function()
    local function refused(message, o)
      assert.equal(message, helper.refusal(function() o.workload = one serve.run(o) end))
    end
    refused("serve: speedup: has no effect on arm padded alone", { engine = toy(), speedup = 2, arms = { "padded" } })
    refused("serve: speedup: has no effect on engine h200x8-tp8, whose attention is measured",
      { engine = "h200x8-tp8", speedup = 2 })
    refused("serve: tp: has no effect on engine h200x8-tp8, whose attention is measured", { engine = "h200x8-tp8", tp = 4 })
    refused("serve: tp: got 1, wanted one at which heads of v4.1-flash are padded: 2, 4, 8, 16", { engine = toy(), tp = 1 })
  end)

  it("comes from the command line", function()
    local run = "./fewhead run experiments/serving_ab.lua --workload cold32k --repetitions 1 "
    local status, out = process.run(run .. "--speedup 2 --tp 4 --min-sq 512 --max-tokens 4096")
    assert.equal(0, status)
    assert.matches("engine h20x8%-tp8 what if: v4.1%-flash tp4", out)
    assert.matches("native = padded / 2.00", out)
    assert.matches("at most 4096 tokens a step", out)
    assert.matches("\ngate 512 ", out)
    local _, err
    status, _, err = process.run(run .. "--speedup 2 --device-preset h200x8-tp8")
    assert.same({ 2, "serving_ab: --speedup: has no effect on engine h200x8-tp8, whose attention is measured\n" },
      { status, err })
    status, _, err = process.run(run .. "--min-sq 512 --arms padded,native")
    assert.same({ 2, "serving_ab: --min-sq: has no effect with --arms (--help lists the options)\n" }, { status, err })
  end)
end)

describe("records of serving", function()
  it("are one an arm, with the share of rows that native heads got", function()
    local ab = serve.run { workload = "cold32k", engine = toy(), arms = { "padded", "gate 2048" } }
    local list = ab:records { id = "x" }
    assert.same({ "serving", "cold32k", "toy", "padded", "x" },
      { list[1].kind, list[1].workload, list[1].engine, list[1].arm, list[1].run.id })
    assert.equal(ab.rows[2].figures.ttft_s, list[2].figures.ttft_s)
    local rows, columns = serve.record_table(list)
    assert.same({ "gate 2048", ab.rows[2].change.ttft_s.mean, 1 }, { rows[2].arm, rows[2].ttft_change, rows[2].native })
    assert.same({ 0, nil }, { rows[1].native, rows[1].ttft_change })
    assert.equal("workload", columns[1].key)
  end)

  it("are what serving_workloads keeps, in a folder of its own and in a device's evidence", function()
    local folder = helper.folder()
    local status, out, err = process.run { "./fewhead", "run", "serving_workloads", "--arms", "padded,gate 2048", "--out",
      folder .. "results/box" }
    assert.same({ 0, "" }, { status, err })
    assert.matches("\nwritten to [^\n]+%-serving_workloads: records.jsonl, report.md, run.json\n"
      .. "copied to [^\n]+/results/box: serving.jsonl, serving.md\n$", out)
    local arms = {}
    for record in require("fewhead.base.json").lines(folder .. "results/box/serving.jsonl") do
      assert.equal("serving", record.kind)
      arms[record.arm] = (arms[record.arm] or 0) + 1
    end
    assert.same({ padded = #workload.names(), ["gate 2048"] = #workload.names() }, arms)
    process.remove(folder)
  end)
end)
