-- Clocks: what a tree of files like Linux's says, and what timing makes of a device that is held back.
local clocks = require "fewhead.device.clocks"
local device = require "fewhead.device.device"
local helper = require "spec.helper"
local timing = require "fewhead.measure.timing"

local folder = helper.folder()
teardown(function() helper.shell("rm -rf " .. folder) end)

local CPU = { kind = "cpu" } -- what open looks at

local function file(path, text)
  helper.shell(("mkdir -p $(dirname %s%s)"):format(folder, path))
  helper.write(folder .. path, text .. "\n")
end

describe("clocks of a CPU", function()
  it("are the fastest core's, and what held it back since the last question", function()
    file("a/cpu0/cpufreq/scaling_cur_freq", "2100000")
    file("a/cpu1/cpufreq/scaling_cur_freq", "3400000")
    file("a/cpu1/thermal_throttle/core_throttle_count", "7")
    local reader = clocks.open(CPU, folder .. "a")
    assert.equal("cpufreq", reader.source)
    assert.same({ 3400 }, { reader.read() })
    file("a/cpu1/thermal_throttle/core_throttle_count", "9")
    assert.same({ 3400, nil, "heat" }, { reader.read() })
    assert.same({ 3400 }, { reader.read() })
  end)

  it("are unknown, with the reason, where there is no such file", function()
    local reader = clocks.open(CPU, folder .. "none")
    assert.same({ ("unknown: no cpufreq/scaling_cur_freq in %snone/cpu0"):format(folder) }, { reader.source, reader.read })
    file("odd/cpu0/cpufreq/scaling_cur_freq", "<unknown>")
    assert.is_nil(clocks.open(CPU, folder .. "odd").read)
  end)
end)

describe("clocks of a GPU #gpu", function()
  it("are told by NVML", function()
    local reader = clocks.open(assert(device.open("cuda:0")))
    assert.equal("NVML", reader.source)
    local mhz, memory = reader.read()
    assert.is_true(mhz > 100 and mhz < 10000 and memory > 100 and memory < 10000)
  end)
end)

describe("timing", function()
  -- A measurement of 6 samples by a clock that goes on 10 ms with each question; held[n]: what holds the device back at the n-th.
  local function measured(held)
    local now, asked = 0, 0
    return assert(timing.measure({ { name = "a", run = function() end } }, {
      min_samples = 6, max_samples = 6, noise = false,
      clock = function() now = now + 10e6 return now end,
      clocks = { read = function()
        asked = asked + 1
        return 1500 + asked, 3000, held(asked)
      end },
    })).a
  end

  it("has the median of the clocks, and no word where nothing held back", function()
    local time = measured(function() end)
    assert.same({ 6, 1503.5, 3000 }, { time.n, time.clock_mhz, time.memory_mhz })
    assert.same({}, { time.throttle, time.throttled, time.dropped_throttled })
  end)

  it("takes samples again in which the device was held back, and says how many", function()
    local time = measured(function(n) return (n == 2 or n == 3) and "heat" or nil end)
    assert.same({ 6, "heat", 2 }, { time.n, time.throttle, time.dropped_throttled })
    assert.is_nil(time.throttled)
    assert.same({ 1505.5 }, { time.clock_mhz }) -- of 1501, 1504, 1505, 1506, 1507, 1508
  end)

  it("keeps and counts them where it is held back all the time", function()
    local time = measured(function() return "power cap" end)
    assert.same({ 6, "power cap", 10, 6 }, { time.n, time.throttle, time.dropped_throttled, time.throttled })
  end)
end)
