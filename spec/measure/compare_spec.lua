local case = require "fewhead.case.case"
local compare = require "fewhead.measure.compare"
local device = require "fewhead.device.device"
local paths_of = require "fewhead.device.path"
local json = require "fewhead.base.json"
local helper = require "spec.helper"

local dev = device.default()

local small = { heads = 8, s_q = 12, pattern = "csa", window = 16, index_topk = 48, prior = 100, layout = "vllm" }

-- A stopwatch that gives each run the next of these times the first time it sees it, and the same ever after: nothing here
-- depends on how long anything takes.
local function stopwatch(times)
  local known, seen = {}, 0
  return function(run)
    if not known[run] then
      seen = seen + 1
      known[run] = times[seen]
    end
    return known[run], run()
  end
end

-- The comparison of paths that take these microseconds.
local function compared(paths, times, more)
  local opts = { min_samples = 6, stopwatch = stopwatch(times), device = dev }
  for key, value in pairs(more or {}) do opts[key] = value end
  return assert(compare(case(small), paths, opts))
end

describe("fh.compare", function()
  it("gives a record a path, in the shape that reports read", function()
    local c = compared({ "padded", "gather" }, { 400, 100 }, { run = require("fewhead.record.run").header(dev, { "x.lua" }) })
    assert.equal(2, #c.records)
    for i, path in ipairs { "padded", "gather" } do
      local r = json.decode(json.encode(c.records[i]))
      assert.equal(path, r.path)
      assert.equal("fewhead", r.provider)
      assert.matches(path, r.kernel, 1, true)
      assert.same(json.decode(json.encode(case(small):describe())), r.case)
      assert.same({ "pass", "reference", 12 * 8 * 512 }, { r.parity.status, r.parity.against, r.parity.compared })
      for _, key in ipairs { "mean_abs", "max_abs", "rel", "cos_diff", "lse_max_abs" } do assert.is_number(r.parity[key]) end
      assert.same({ i == 1 and 400 or 100, i == 1 and 400 or 100, i == 1 and 400 or 100 },
        { r.time.median_us, r.time.p05_us, r.time.p95_us })
      assert.same({ 6, "hot", "ci 0.0% <= 2%" }, { r.time.n, r.time.l2, r.time.stop })
      assert.is_nil(r.time.samples)
      assert.is_true(r.work.executed_flops >= r.work.useful_flops and r.work.useful_flops > 0 and r.work.bytes > 0)
      assert.near(1 - r.work.useful_flops / r.work.executed_flops, r.work.waste, 1e-15)
      assert.same({ "x.lua" }, r.run.argv)
    end
    assert.is_nil(c.records[1].verdict)
    assert.same({ verdict = "faster", ratio = 4, lo = 4, hi = 4, against = "padded" }, c.records[2].verdict)
  end)

  it("counts the zero heads of the padded path as waste", function()
    local c = compared({ "padded", "gather" }, { 400, 100 })
    assert.near(7 / 8, c:record("padded").work.waste, 0.1)
    assert.is_true(c:record("gather").work.waste < c:record("padded").work.waste)
  end)

  it("measures gather and packed for native and shows the quicker as native", function()
    local c = assert(compare(case(small), { "padded", "native" }, { device = dev, min_samples = 6, noise = "padded" }))
    local measured = {}
    for i, record in ipairs(c.records) do measured[i] = record.path end
    assert.same(helper.paths(dev), measured)
    local best = c:record("native")
    local gather, packed = c:record("gather"), c:record("packed")
    assert.equal(math.min(gather.time.median_us, packed and packed.time.median_us or math.huge), best.time.median_us)
    assert.is_true(not packed or packed.time.plan_us > 0)
    assert.is_nil(gather.time.plan_us)
    assert.matches(("\nnative(%s) "):format(best.path), tostring(c), 1, true)
    assert.equal("padded", c.noise.arm)
  end)

  it("prints one aligned table", function()
    local c = compared({ "padded", "gather" }, { 400, 100 })
    local lines = {}
    for line in (tostring(c) .. "\n"):gmatch("(.-)\n") do lines[#lines + 1] = line end
    assert.equal(case(small):id() .. " on " .. dev:info().name, lines[1])
    assert.matches("^path +parity +max_abs +median +p05 .. p95 +ratio +verdict +useful GFLOP/s +executed +waste +plan +kernel$",
      lines[2])
    assert.matches("^padded +pass +%d%.%d%de%-%d%d +400%.0 us +400%.0 us %.%. 400%.0 us +%- +%- ", lines[3])
    assert.matches("^gather +pass +%d%.%d%de%-%d%d +100%.0 us +100%.0 us %.%. 100%.0 us +4%.00x +faster ", lines[4])
    assert.equal("hot, 6 samples, stopped by ci 0.0% <= 2%; noise floor 0.0 % (gather against itself)", lines[5])
    assert.matches("^clocks ", lines[6])
    assert.equal(6, #lines)
  end)

  it("gives no time to a path that fails parity, and says why", function()
    local real = case(small)
    -- A gather that answers for head 0 with what padding heads hold.
    local problem = assert(real:problem(dev))
    local broken = setmetatable({
      run = function(_, path, outputs, opts)
        local counters = problem:run(path, outputs, opts)
        if path == "gather" then outputs.out:slice(2, 1, 1):fill(0) end
        return counters
      end,
    }, {
      __index = function(_, key)
        local value = problem[key]
        if type(value) ~= "function" then return value end
        return function(_, ...) return value(problem, ...) end
      end,
    })
    local c = assert(compare({ problem = function() return broken end, id = function() return "broken" end },
      { "padded", "gather" }, { device = dev }))
    assert.equal("fail", c.records[2].parity.status)
    assert.is_nil(c.records[2].time)
    assert.is_nil(c.records[2].verdict)
    assert.is_table(c.records[1].time)
    assert.matches("\ngather +fail +%d%.%d%de[-+]%d%d +%- +%- +%- +%- ", tostring(c))
    assert.matches("\ngather: out: got 0, wanted ", tostring(c), 1, true)
  end)

  it("makes a record of a refused path", function()
    local c = compared({ "padded", "packed" }, { 400 }, { group = 9 })
    assert.equal("invalid", c.records[2].parity.status)
    assert.matches("^packed did not run: group: got 9", c.records[2].parity.reason)
    assert.is_nil(c.records[2].time)
  end)

  it("says which path auto chose", function()
    local r = compared({ "auto" }, { 100 }, { row_invariant = true }).records[1]
    assert.equal("auto", r.path)
    assert.is_true(r.work.path == "gather" or r.work.path == "padded") -- a row must not depend on its neighbours
  end)

  it("measures cold when asked", function()
    local c = compared({ "padded", "packed" }, { 400, 50, 100 }, { cold = true })
    assert.equal("cold", c.records[1].time.l2)
    assert.matches("\ncold, 6 samples", tostring(c), 1, true)
  end)

  it("ends when interrupted", function()
    local c, err = compare(case(small), { "padded" }, { device = dev, interrupted = function() return true end })
    assert.is_nil(c)
    assert.equal("compare: interrupted", err)
  end)

  it("samples rows for parity when asked and says so", function()
    local c = compared({ "gather" }, { 100 }, { sample = 5 })
    assert.equal(4, c.records[1].parity.sampled)
    assert.matches("\nparity over 4 of 12 rows\n", tostring(c), 1, true)
  end)

  it("refuses wrong calls on the caller's line", function()
    local function refused(message, paths, opts)
      local ok, err = pcall(function() local c = compare(case(small), paths, opts) return c end)
      assert.is_false(ok)
      assert.matches("compare_spec%.lua:%d+: ", err)
      assert.matches(message, err, 1, true)
    end
    refused("compare: paths: got none, wanted at least one", {})
    local ok, err = pcall(function() local c = compare("csa", { "padded" }) return c end)
    assert.is_false(ok)
    assert.matches('compare_spec%.lua:%d+: compare: case: got "csa", wanted a case, such as fh%.case{%.%.} gives$', err)
    refused('compare: paths[2]: got "gathr", wanted one of ' .. table.concat(paths_of.names(), ", ")
      .. ', native; did you mean "gather"?', { "padded", "gathr" })
    refused('compare: unknown option "sampels";', { "padded" }, { sampels = 3 })
  end)
end)
