-- What scripts that sweep share; experiments/gate_sweep.lua, started as a person starts it, stands in spec/gate_sweep_spec.lua.
local cell = require "fewhead.decide.cell"
local helper = require "spec.helper"
local options = require "fewhead.cli.options"
local process = require "spec.process"
local sweep = require "fewhead.decide.sweep"
local sweeper = require "fewhead.cli.sweeper"

local folder
before_each(function() folder = helper.folder() end)
after_each(function() process.remove(folder) end)

-- The options of experiments/gate_sweep.lua, as it makes them: nothing is run.
local function gate_sweep_options()
  local parser
  options.on_read = function(found)
    parser = found
    error("read", 0)
  end
  local ok, err = pcall(dofile, helper.root .. "experiments/gate_sweep.lua")
  options.on_read = nil
  assert.same({ false, "read" }, { ok, err })
  return parser
end

local THREE_MINUTES, START_AND_REPORT = 180, 10

-- What fewhead.decide.rate measured of two cores of a Xeon with AVX2, and without any vectors.
local AVX2 = { padded = 135e9, native = 114e9, bytes = 0.5e9 }
local GENERIC = { padded = 40e9, native = 39e9, bytes = 0.2e9 }

-- Calls f with benches that say they are so fast and measure nothing.
local function with_rates(speed, f)
  local open = cell.open
  cell.open = function(o)
    return {
      paths = { "padded", "gather", "packed", "auto" }, rates = o.rates and speed, header = { device = "a box" },
      fingerprint = {}, close = function() end,
    }
  end
  local ok, err = pcall(f)
  cell.open = open
  assert(ok, err)
end

describe("the default sweep of a CPU", function()
  -- The task that `fewhead run gate_sweep` makes on a CPU.
  local function task()
    local opt = gate_sweep_options():parse { "--device", "cpu" }
    local made = sweeper.new("gate_sweep", opt, {
      paths = { "padded", "native", "auto" }, s_q = { cpu = "64:8192:*2", cuda = "64:16384:*2" }, control = true,
    }).task
    made.interrupted = function() return true end -- before the first cell
    return made
  end

  it("is bounded so that it ends in three minutes, its start and its report included", function()
    assert.is_true(sweeper.seconds + START_AND_REPORT <= THREE_MINUTES)
    assert.equal(sweeper.seconds, task().seconds)
    assert.matches("\n  %-%-seconds NUMBER [^\n]*\n?[^\n]*default 170", gate_sweep_options():help())
  end)

  it("reaches the chunks of real traffic in one layout, and fits into that bound on two cores", function()
    with_rates(AVX2, function()
      local plan
      local made = task()
      assert.same({ "64:8192:*2", "vllm" }, { made.s_q, made.layout })
      assert.is_true(made.min_samples >= 5)
      made.on_plan = function(found) plan = found end
      assert(sweep(made))
      assert.same({ 8, 0 }, { plan.cells, #plan.unfit })
      assert.is_true(plan.seconds > 60 and plan.seconds <= sweeper.seconds)
    end)
  end)

  it("leaves out on a slower machine what would go beyond it, and says so before the first cell", function()
    with_rates(GENERIC, function()
      local plan
      local made = task()
      made.on_plan = function(found) plan = found end
      assert(sweep(made))
      assert.same({ "s_q 4096, vllm", "s_q 8192, vllm" }, plan.unfit)
      assert.is_true(plan.seconds <= sweeper.seconds)
      local text = sweep.dry_run(made)
      assert.matches("\ncsa s_q=8192 [^\n]+ s, does not fit\n", text)
      assert.is_nil(text:find("s_q=2048 [^\n]+does not fit"))
      assert.matches("\n2 of 8 cells do not fit into 170 s and would be left out$", text)
    end)
  end)
end)

describe("a script that sweeps", function()
  local function run(...)
    return process.run({ "./fewhead", "run", "gate_sweep", "--s-q", "2,4", "--s-kv", "64", "--topk", "16", "--pattern",
      "uniform", "--seconds", "0", ... }, { env = { FEWHEAD_DEVICE = "cpu" } })
  end

  it("copies a whole run to the evidence of a device, under its name", function()
    local status, out, err = run("--out", folder .. "results/DEVICE")
    assert.same({ 0, "" }, { status, err })
    local run_folder, files, to, names = out:match("\nwritten to (%S+): ([^\n]+)\ncopied to (%S+): ([^\n]+)\n$")
    assert.equal("gates.json, records.jsonl, report.md, report.svg, run.json", files)
    assert.equal("gates.json, gate_sweep.jsonl, gate_sweep.md, gate_sweep.svg", names)
    assert.matches("/results/local/%d+T%d+Z%-gate_sweep$", run_folder)
    assert.equal(helper.read(run_folder .. "/records.jsonl"), helper.read(to .. "/gate_sweep.jsonl"))
    assert.is_truthy(helper.read(to .. "/gate_sweep.md"):find("](gate_sweep.svg)", 1, true))
    status, out = run("--out", folder .. "results/DEVICE", "--resume")
    assert.equal(0, status)
    assert.matches("\nmeasured 0, reused 2\n", out)
    assert.matches("\nwritten to " .. run_folder:gsub("%p", "%%%0"), out)
  end)

  it("copies no part of a sweep", function()
    local status, out = run("--out", folder .. "results/box", "--shard", "1/1")
    assert.equal(0, status)
    assert.matches("\nnot copied to [^\n]+/results/box: the run is not whole\n$", out)
    assert.equal("", (helper.shell("ls -A " .. folder .. "results/box")))
  end)

  it("goes on with the newest sweep, whatever else was run since", function()
    run("--out", folder .. "runs")
    assert.equal(0, (process.run({ "./fewhead", "run", "layouts", "--s-q", "2", "--seconds", "0", "--layout", "vllm", "--out",
      folder .. "runs" }, { env = { FEWHEAD_DEVICE = "cpu" } })))
    local status, out = run("--out", folder .. "runs", "--resume")
    assert.equal(0, status)
    assert.matches("\nmeasured 0, reused 2\n", out)
  end)
end)
