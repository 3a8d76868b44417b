local case = require "fewhead.case.case"
local compare = require "fewhead.measure.compare"
local costs = require "fewhead.device.costs"
local ffi = require "ffi"
local helper = require "spec.helper"
local sweep = require "fewhead.decide.sweep"

local dev = assert(require("fewhead.device.device").open("cpu", { threads = 2 }))

local function one(unit_us) return { call_us = 0, unit_us = unit_us, gflop_us = 0 } end
-- Costs with which a row or group of the named path takes 1 us and of the others 1000; plans cost nothing.
local function cheap(path)
  local list = { padded = one(1000), gather = one(1000), packed = one(1000), plan = one(0) }
  list[path] = one(1)
  return list
end

local function small() return assert(case { heads = 8, s_q = 32, pattern = "window", window = 16, prior = 64 }) end

local refused = helper.refusal
local WANTED = "wanted costs of padded, gather, packed, plan, each { call_us =, unit_us =, gflop_us = } in microseconds >= 0"

describe("costs.check", function()
  it("copies a table, fh_costs and what has costs", function()
    local given = cheap "packed"
    local copy = costs.check("x", given)
    assert.same(given, copy)
    assert.not_equal(given, copy)
    local struct = costs.struct("x", given)
    assert.equal(ffi.sizeof("fh_costs"), tonumber(struct.struct_size))
    assert.same({ 1, 1000, 0 }, { struct.packed.unit_us, struct.padded.unit_us, struct.plan.unit_us })
    assert.same(given, costs.check("x", struct))
    assert.same(given, costs.check("x", setmetatable({ costs = struct }, { __name = "cost model" })))
  end)

  it("refuses what is not whole, on the caller's line, and says what is missing", function()
    local function with(change)
      local list = cheap "gather"
      change(list)
      return refused(function() local c = costs.check("x", list) return c end)
    end
    assert.equal(("x: got a table, %s; plan is nil"):format(WANTED), with(function(l) l.plan = nil end))
    assert.equal(("x: got a table, %s; packed.unit_us is nil"):format(WANTED), with(function(l) l.packed.unit_us = nil end))
    assert.equal(("x: got a table, %s; gather.call_us is -1"):format(WANTED), with(function(l) l.gather.call_us = -1 end))
    assert.equal(("x: got a table, %s; plan.gflop_us is NaN"):format(WANTED), with(function(l) l.plan.gflop_us = 0 / 0 end))
    assert.equal(('x: got a table, %s; padded.unit_us is "1"'):format(WANTED), with(function(l) l.padded.unit_us = "1" end))
    assert.equal(('x: got a table, %s; "paked" is none of them'):format(WANTED), with(function(l) l.paked = one(1) end))
    assert.equal("x: got 5, " .. WANTED, refused(function() local c = costs.check("x", 5) return c end))
    assert.equal("x: got a cost model, " .. WANTED, -- packed was not measured
      refused(function() local c = costs.check("x", setmetatable({}, { __name = "cost model" })) return c end))
  end)
end)

describe("costs.default", function()
  it("is a whole table of the device", function()
    local found = assert(costs.default(dev))
    assert.same(found, costs.check("x", found))
    assert.is_true(found.padded.gflop_us > 0)
  end)
end)

describe("path auto with costs of the caller's", function()
  it("takes the path that they make cheapest, in explain and in a run", function()
    local c = small()
    local problem = assert(c:problem(dev))
    local outputs = assert(problem:outputs())
    for _, path in ipairs { "padded", "gather", "packed" } do
      local options = { costs = cheap(path) }
      local said = path == "packed" and ": auto builds a plan, " or ": auto takes " .. path .. " for all rows"
      assert.matches(said, assert(problem:explain(options)))
      assert.equal(path, assert(problem:run("auto", outputs, options)).path)
    end
    collectgarbage()
    collectgarbage()
    assert.equal("problem:call: costs: got {}, " .. WANTED .. "; padded is nil",
      refused(function() local call = problem:call("auto", outputs, { costs = {} }) return call end))
    c:free()
  end)

  it("is compared and swept, and records say the costs", function()
    local c = small()
    for _, path in ipairs { "padded", "gather", "packed" } do
      local found = assert(compare(c, { path, "auto" }, { device = dev, costs = cheap(path), max_seconds = 0 }))
      assert.equal(found:record(path).kernel, found:record("auto").kernel)
      assert.same({ costs = cheap(path) }, found:record("auto").call)
    end
    c:free()
    assert.equal("compare: costs: has no effect without path auto", refused(function()
      local r = compare(c, { "padded" }, { device = dev, costs = cheap "padded" })
      return r
    end))
    local options = { s_q = "16,32", heads = 8, pattern = "window", window = 16, paths = { "padded", "auto" }, max_seconds = 0,
      costs = cheap "padded" }
    for _, worker in ipairs { false, true } do
      options.worker, options.device = worker, worker and "cpu" or dev
      local swept = assert(sweep(options))
      assert.equal(4, #swept.records)
      for i = 1, 4, 2 do
        assert.equal("padded", swept.records[i + 1].work.path)
        assert.same({ costs = cheap "padded" }, swept.records[i + 1].call)
      end
    end
    options.costs = { padded = one(1) }
    assert.equal(("sweep: costs: got a table, %s; gather is nil"):format(WANTED),
      refused(function() local s = sweep(options) return s end))
    options.costs, options.paths = cheap "padded", { "padded" }
    assert.equal("sweep: costs: has no effect without path auto", refused(function() local s = sweep(options) return s end))
  end)
end)
