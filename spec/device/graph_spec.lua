-- Graphs of more than one thing; spec/cuda_spec.lua has those of one problem.
local case = require "fewhead.case.case"
local graph = require "fewhead.device.graph"
local plan = require "fewhead.device.plan"
local F = require "fewhead.base.ffi"
local helper = require "spec.helper"

describe("graph", function()
  local dev
  setup(function() dev = helper.device() end)
  teardown(function() dev:close() end)

  it("is refused where the device records nothing, and nothing is given to it", function()
    if not helper.on_cpu() then pending("a GPU records") end
    local given = false
    local made, err = graph.record(dev, function() given = true end)
    assert.is_nil(made)
    assert.equal("graph: a CPU has none; wanted a CUDA device", err)
    assert.is_false(given)
  end)

  it("runs what was recorded, in order, on the memory as it is then #gpu", function()
    local p = assert(case { s_q = 2, topk = 2, s_kv = 9, pattern = "uniform" }:problem(dev))
    local made = assert(plan.build(p))
    local rebuild = assert(made:rebuilder(p))
    local recorded = assert(graph.record(dev, function() return F.check(rebuild()) end))
    assert(p.indices:from_table { { 5, 6 }, { 6, 7 } })
    assert.equal(0, recorded:launch())
    assert(dev:synchronize())
    assert.same({ token = { 5, 6, 7 }, member = { "10", "11", "01" } }, made:group_entries(1))
    recorded:free()
    recorded:free()
  end)

  it("says why what it was given failed, and leaves the stream usable #gpu", function()
    local made, err = graph.record(dev, function() return nil, "not today" end)
    assert.is_nil(made)
    assert.equal("not today", err)
    assert(dev:synchronize())
  end)

  it("refuses what it cannot call, on the caller's line", function()
    assert.equal("graph.record: give: got 3, wanted a function", helper.refusal(function() graph.record(dev, 3) end))
    assert.equal('graph.record: device: got nil, wanted a device, such as fh.open("cpu") gives',
      helper.refusal(function() graph.record(nil, print) end))
  end)
end)
