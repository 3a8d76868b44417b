-- Who is blamed where a worker process does not come back, and what becomes of the others. Real plug-ins that crash and hang:
-- spec/robustness/providers_spec.lua.
local device = require "fewhead.device.device"
local helper = require "spec.helper"
local isolate = require "fewhead.measure.isolate"
local plugin = require "spec.plugin"
local provider = require "fewhead.device.provider"

local folder = helper.folder()
local loops = plugin.example(folder)
local one, two = assert(provider.load(loops, "one")), assert(provider.load(loops, "two"))
teardown(function() helper.shell("rm -rf " .. folder) end)

-- A worker that gives these answers, and the names that it was asked for each time.
local function fake(...)
  local answers, asked = { ... }, {}
  return { call = function(_, _, _, names)
    asked[#asked + 1] = table.concat(names, " ")
    return table.remove(answers, 1)
  end }, asked
end

local function ask(names) return "module", "name", names end

local LIST = { "padded", one, "gather", two }

describe("isolate.rounds", function()
  it("returns the answer where nothing ends", function()
    local crew, asked = fake { value = { n = 1 } }
    local answer, out = isolate.rounds(crew, LIST, ask)
    assert.same({ { value = { n = 1 } }, {}, { "padded one gather two" } }, { answer, out, asked })
  end)

  it("leaves out the plug-in whose code ran, and asks again", function()
    local failure = { provider = "one", ended = true, text = "status 3", reason = "it ended the process with status 3" }
    local crew, asked = fake({ failure = failure }, { value = {} })
    local _, out = isolate.rounds(crew, LIST, ask)
    assert.same({ "padded one gather two", "padded gather two" }, asked)
    assert.same({ one = failure }, out)
  end)

  it("suspects every plug-in where the process crashed in the code of none", function()
    local crew, asked = fake({ failure = { ended = true, path = "gather", reason = "it ended" } }, { value = {} })
    local _, out = isolate.rounds(crew, LIST, ask)
    assert.same({ "padded one gather two", "padded gather" }, asked)
    assert.same({ "it ended, or another plug-in of this cell did", "it ended, or another plug-in of this cell did" },
      { out.one.reason, out.two.reason })
  end)

  it("leaves out whatever path lost the device", function()
    local crew, asked = fake({ failure = { lost = true, path = "padded", reason = "the device was lost: trap" } }, { value = {} })
    local _, out = isolate.rounds(crew, LIST, ask)
    assert.same({ "padded one gather two", "one gather two" }, asked)
    assert.equal("the device was lost: trap", out.padded.reason)
  end)

  it("blames nobody for time that ran out in no plug-in's code, nor for a crash without plug-ins", function()
    for _, failure in ipairs { { text = "no answer in 1 s", path = "gather" }, { ended = true, path = "gather" } } do
      local crew, asked = fake { failure = failure }
      local answer, out = isolate.rounds(crew, failure.ended and { "padded", "gather" } or LIST, ask)
      assert.same({ failure, {}, 1 }, { answer.failure, out, #asked })
    end
  end)
end)

describe("isolate.crew", function()
  it("keeps one worker for as long as device and plug-ins stay the same", function()
    local dev = assert(device.open("cpu", { threads = 1 }))
    local first = assert(isolate.crew(dev, { one }))
    assert.equal(first, isolate.crew(dev, { one }))
    local second = assert(isolate.crew(dev, { one, two }))
    assert.not_equal(first, second)
    assert.is_nil(first.process)
    local other = assert(device.open("cpu", { threads = 2 }))
    assert.not_equal(second, isolate.crew(other, { one, two }))
    dev:close()
    other:close()
  end)
end)
