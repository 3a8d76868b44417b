-- Plug-ins that crash, end the process or hang: their own cells end, with the reason in their records, and nothing else does.
local case = require "fewhead.case.case"
local compare = require "fewhead.measure.compare"
local device = require "fewhead.device.device"
local helper = require "spec.helper"
local plugin = require "spec.plugin"
local process = require "spec.process"
local provider = require "fewhead.device.provider"
local sweep = require "fewhead.decide.sweep"

local dev = assert(device.open("cpu", { threads = 2 }))
local folder = helper.folder()
local loops, toy = plugin.example(folder), plugin.toy(folder, "toy")

teardown(function() process.remove(folder) end)

local function small()
  return assert(case { heads = 8, s_q = 6, pattern = "csa", window = 16, index_topk = 24, prior = 100, seed = 3 })
end

local function compared(list, more)
  local options = { device = dev, min_samples = 4, max_samples = 4 }
  for key, value in pairs(more or {}) do options[key] = value end
  return assert(compare(small(), list, options))
end

local function mannered(manner, name) return assert(provider.load(toy, name or "toy", manner)) end

local reasons = {
  crashes = "it ended the process by signal 11 (Segmentation fault)",
  aborts = "it ended the process by signal 6 (Aborted)",
  exits = "it ended the process with status 3",
  exits0 = "it ended the process with status 0",
}

describe("a plug-in #robustness", function()
  for manner, reason in pairs(reasons) do
    it(("that %s is out, and says so; the others are measured"):format(manner), function()
      local bad, good = mannered(manner), assert(provider.load(loops))
      local result = compared { "padded", bad, "gather", good }
      local names = {}
      for i, record in ipairs(result.records) do names[i] = record.path end
      assert.same({ "padded", "toy", "gather", "loops" }, names)
      local record = result:record("toy")
      assert.same({ status = "error", against = "reference", compared = 0, reason = "toy did not come back: " .. reason },
        record.parity)
      assert.same({ "toy", nil }, { record.provider, record.time })
      assert.same({ "parity", "toy" }, { record.failure.phase, record.failure.path })
      for _, name in ipairs { "padded", "gather", "loops" } do
        assert.equal("pass", result:record(name).parity.status)
        assert.is_true(result:record(name).time.median_us > 0)
      end
      assert.equal("pass", compared({ "padded", good }):record("loops").parity.status) -- the next comparison is right
    end)
  end

  it("takes part beside a pattern that is a function, in this process", function()
    local own = assert(case { heads = 8, s_q = 6, pattern = function(row) return { row, row + 1 } end })
    local result = assert(compare(own, { "padded", assert(provider.load(loops)) }, { device = dev, max_seconds = 0 }))
    local record = result:record("loops")
    assert.same({ "pass", "function", "script" }, { record.parity.status, record.case.pattern, record.run.process })
    own:free()
  end)

  it("that hangs is out after the time it has", function()
    local result = compared({ "padded", mannered("hangs") }, { provider_seconds = 0.5 })
    assert.equal("toy did not come back: one call took more than 0.5 s", result:record("toy").parity.reason)
    assert.is_true(result:record("padded").time.median_us > 0)
  end)

  it("that crashes in a later run, while it is timed, is out too", function()
    local result = compared { "padded", mannered("late") }
    assert.same({ "error", "toy did not come back: " .. reasons.crashes },
      { result:record("toy").parity.status, result:record("toy").parity.reason })
    assert.is_nil(result:record("toy").time)
    assert.is_true(result:record("padded").time.median_us > 0)
  end)

  it("that crashes beside another that does is told apart from it", function()
    local result = compared { mannered("aborts", "one"), "padded", mannered("exits", "two") }
    assert.equal("one did not come back: " .. reasons.aborts, result:record("one").parity.reason)
    assert.equal("two did not come back: " .. reasons.exits, result:record("two").parity.reason)
    assert.is_true(result:record("padded").time.median_us > 0)
  end)

  it("that is alone and crashes leaves its record", function()
    local result = compared { mannered("crashes") }
    assert.equal(1, #result.records)
    assert.equal("toy did not come back: " .. reasons.crashes, result.records[1].parity.reason)
  end)

  it("in a sweep: every cell is there, and the file", function()
    local file = folder .. "sweep.jsonl"
    local found = assert(sweep { s_q = "1,2,4", heads = 8, paths = { "padded", mannered("crashes") }, device = dev,
      max_seconds = 0.2, out = file })
    assert.same({ 3, 6 }, { found.cells, #found.records })
    assert.equal(6, #assert(sweep.read(file)).records)
    local good, bad = 0, 0
    for _, record in ipairs(found.records) do
      if record.path == "padded" and record.parity.status == "pass" then good = good + 1 end
      if record.path == "toy" and record.parity.status == "error" then bad = bad + 1 end
    end
    assert.same({ 3, 3 }, { good, bad })
  end)

  it("in a sweep in a worker process: phase, path, signal and text stand in its record of each cell", function()
    local found = assert(sweep { s_q = "1,2", heads = 8, paths = { "padded", mannered("crashes"), "gather" }, device = "cpu",
      seconds = 0, min_samples = 4, worker = true })
    local said = {}
    for i, record in ipairs(found.records) do said[i] = record.path .. " " .. record.parity.status end
    assert.same({ "padded pass", "toy error", "gather pass", "padded pass", "toy error", "gather pass" }, said)
    for i = 2, 5, 3 do
      assert.same({ phase = "parity", path = "toy", code = 11, text = "signal 11 (Segmentation fault)" },
        found.records[i].failure)
    end
  end)

  it("that hangs in a sweep whose cells have a second is out, and the others are measured", function()
    local found = assert(sweep { s_q = 2, heads = 8, paths = { "gather", mannered("hangs") }, device = "cpu", seconds = 0,
      min_samples = 4, worker = true, cell_seconds = 1 })
    assert.is_true(found.records[1].time.median_us > 0)
    assert.equal("toy did not come back: no answer in 1 s", found.records[2].parity.reason)
    assert.same({ phase = "parity", path = "toy", text = "no answer in 1 s" }, found.records[2].failure)
    assert.same({ "s_q 2" }, found.failed)
  end)

  it("behind a script: the table is printed, the status is 1, nothing hangs", function()
    local dead = plugin.library(folder, "dead", [[
#include <fewhead_provider.h>
#include <stdlib.h>
static fh_status run(void *state, void *job, const fh_call *call, char *text) {
  (void)state, (void)job, (void)call, (void)text;
  abort();
}
const fh_provider_table fewhead_provider = {
    FH_PROVIDER_HEAD, .devices = FH_PROVIDER_CPU, .name = "dead", .version = "1.0", .run = run};]])
    local status, out = process.run({ "./fewhead", "run", "experiments/layouts.lua", "--provider", "dead=" .. dead, "--s-q", "2",
      "--seconds", "0", "--layout", "vllm", "--out", folder .. "out" }, { env = { FEWHEAD_DEVICE = "cpu" } })
    assert.equal(1, status)
    assert.matches("\n +2 +%d[^\n]- dead error", out) -- in the row of its cell
  end)
end)

describe("parity of a plug-in #robustness", function()
  it("that crashes, exits or hangs is an error, beside others and in the conformance grid", function()
    local grid = require "fewhead.measure.grid"
    local results = grid.check(small(), { mannered("crashes"), "gather", mannered("exits", "two") }, { device = dev })
    local said = {}
    for i, result in ipairs(results) do said[i] = { result.path, result.status, result.against, result.reason } end
    assert.same({
      { "toy", "error", "reference", "toy did not come back: " .. reasons.crashes }, { "gather", "pass", "reference" },
      { "two", "error", "reference", "two did not come back: " .. reasons.exits },
    }, said)
    results = grid.check(small(), { "gather" }, { device = dev, against = mannered("aborts") })
    assert.same({ "error", "toy did not come back: " .. reasons.aborts }, { results[1].status, results[1].reason })
    local dead = folder .. "dead.so"
    local status, out = process.run { "./fewhead", "parity", "--provider", "dead=" .. dead, "--filter",
      "production: uniform s_q=64 ", "--device", "cpu" }
    assert.equal(1, status)
    assert.matches("dead did not come back: it ended the process by signal 6 %(Aborted%)", out)
  end)
end)
