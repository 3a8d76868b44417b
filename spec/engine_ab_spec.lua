-- experiments/engine_ab.lua on records of the engine's bench, and with a stand-in for the Python that starts engines.
local helper = require "spec.helper"
local json = require "fewhead.base.json"
local process = require "spec.process"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() process.remove(folder) end)

local function record(arm, figures, work, more)
  local r = { path = arm, provider = (arm == "flashmla" or arm == "fa3") and "vllm" or "fewhead", part = "glm", note = "one rank",
    case = { model = "glm-5.2 tp8", layers = 78, workload = "cold8k", lists = "local" },
    parity = { status = "pass", max_abs = 0.004 }, engine = figures, work = work }
  for key, value in pairs(more or {}) do r[key] = value end
  return r
end

local function three()
  return {
    record("flashmla", { ttft_ms = { p50 = 500 }, attention_ms = 300, total_tok_s = 9000 }, { declined = { off = 78 } }),
    record("fa3", { ttft_ms = { p50 = 400 }, attention_ms = 290, total_tok_s = 10000 }, { fa3_calls = 78 }),
    record("auto-shared", { ttft_ms = { p50 = 240 }, attention_ms = 87, total_tok_s = 12000 },
      { calls = { auto = 78 }, plans = { built = 20, shared = 58 } }),
  }
end

local function read(records)
  local lines = {}
  for i, r in ipairs(records) do lines[i] = json.encode(r) .. "\n" end
  process.write(folder .. "engine.jsonl", table.concat(lines))
  return process.run { "./fewhead", "run", "experiments/engine_ab.lua", "--read", folder .. "engine.jsonl" }
end

describe("engine_ab", function()
  it("puts each arm beside the better of the engine's own", function()
    local status, out, err = read(three())
    assert.same({ 0, "" }, { status, err })
    assert.matches("\nglm%-5%.2 tp8, 78 layers, cold8k, local lists +auto%-shared +1 +240%.0 +0%.60 ", out)
    assert.matches(" auto%-shared +1 +240%.0 +0%.60 +%- +12000 +12000 +12000 +%+20%.0 +87%.0 +0%.30 +4%.0e%-03\n", out)
    assert.matches("\n[^\n]+ +flashmla +1 +500%.0 +1%.25 +%- +9000 +9000 +9000 +%-10%.0 +300%.0 +1%.03 +4%.0e%-03\n", out)
    assert.matches("\nglm%-5%.2 tp8: one rank\n$", out)
  end)

  it("refuses arms with equal counters", function()
    local records = three()
    records[4] = record("auto", { ttft_ms = { p50 = 250 } }, records[3].work)
    local status, out = read(records)
    assert.equal(1, status)
    assert.matches("\nERROR glm: arms auto and auto%-shared have equal counters\n$", out)
  end)

  it("refuses an arm that routed nothing, and one that is off", function()
    local records = three()
    records[2].work = { fa3_calls = 0 }
    records[3].parity = { status = "fail" }
    local status, out = read(records)
    assert.equal(1, status)
    assert.matches("\nERROR glm: arm fa3 routed nothing\nERROR glm: auto%-shared differs from the engine's own kernel\n$", out)
  end)

  it("refuses other records and files that are not there", function()
    local status, _, err = read { { path = "gather", provider = "fewhead", case = {}, parity = { status = "pass" } } }
    assert.equal(1, status)
    assert.matches("engine_ab: .*record 1 is not one of the engine's bench", err)
    status, _, err = process.run { "./fewhead", "run", "experiments/engine_ab.lua", "--read", folder .. "none.jsonl" }
    assert.equal(2, status)
    assert.matches("engine_ab: .*none%.jsonl", err)
  end)

  -- A stand-in for Python: keeps its words, adds a line to what it finds, and ends with the status in a file.
  local function stand_in(status)
    local lines = {}
    for i, r in ipairs(three()) do lines[i] = json.encode(r) end
    process.write(folder .. "records", table.concat(lines, "\n") .. "\n")
    process.write(folder .. "status", tostring(status))
    local python = process.write(folder .. "python", ([[#!/bin/sh
echo "$@" >%sargs
mkdir -p "$3"
[ -f "$3/engine.jsonl" ] && tail -n +2 %srecords >>"$3/engine.jsonl" || cp %srecords "$3/engine.jsonl"
echo '# A page' >"$3/engine.md"
exit $(cat %sstatus)
]]):format(folder, folder, folder, folder))
    helper.shell("chmod +x " .. python)
    return python
  end

  local function start(status, out, ...)
    return process.run { "./fewhead", "run", "experiments/engine_ab.lua", "--out", folder .. out, "--seconds", "30",
      "--parts", "glm", "--runs", "2", "--python", stand_in(status), ... }
  end

  local function lines_of(path) return select(2, helper.read(folder .. path):gsub("\n", "")) end

  it("starts the bench with what was asked for, in a folder of the run's own", function()
    local status, out = start(0, "out")
    assert.equal(0, status)
    assert.matches("auto%-shared", out)
    local run = out:match("\nwritten to (%S+): engine, records.jsonl, report.md, run.json\n$")
    assert.matches("%-engine_ab$", run)
    assert.equal(("engines/vllm/bench.py --out %s/engine --seconds 30 --parts glm --runs 2\n"):format(run),
      helper.read(folder .. "args"))
    assert.equal("# A page\n", helper.read(run .. "/report.md"))
    assert.same({ 3, "complete" }, { lines_of "out/latest/records.jsonl",
      json.decode(helper.read(folder .. "out/latest/run.json")).state })
  end)

  it("fails when the bench fails, goes on with that run, and copies it to the evidence when it is whole", function()
    local status, out = start(1, "results/box")
    assert.equal(1, status)
    assert.matches("\nnot copied to [^\n]+/results/box: the run is not whole\n$", out)
    assert.equal("partial", json.decode(helper.read(folder .. "results/local/latest/run.json")).state)
    local first = out:match("\nwritten to (%S+): ")
    status, out = start(0, "results/box", "--resume")
    assert.same({ 0, first }, { status, out:match("\nwritten to (%S+): ") })
    assert.matches(" %-%-resume\n$", helper.read(folder .. "args"))
    assert.equal(5, lines_of "results/local/latest/records.jsonl")
    assert.equal(5, lines_of "results/box/engine.jsonl")
    assert.equal("engine.jsonl\nengine.md", (helper.shell("ls " .. folder .. "results/box")))
  end)

  it("goes on with the evidence where there is no run of its own", function()
    helper.shell("mkdir -p " .. folder .. "results/box")
    process.write(folder .. "results/box/engine.jsonl", json.encode(three()[1]) .. "\n")
    local status = start(0, "results/box", "--resume")
    assert.same({ 0, 3 }, { status, lines_of "results/box/engine.jsonl" })
  end)
end)
