local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local fh = require "fewhead"
local helper = require "spec.helper"

local refusal = helper.refusal

describe("device.open", function()
  it("opens a CPU with the threads and instruction set asked for", function()
    local dev = assert(device.open("cpu", { threads = 3, isa = "generic" }))
    assert.equal("cpu", dev.name)
    assert.equal("cpu", dev.kind)
    local info = dev:info()
    assert.equal("cpu", info.kind)
    assert.equal(0, info.ordinal)
    assert.equal(3, info.threads)
    assert.equal("generic", info.isa)
    assert.is_nil(info.multiprocessors)
    assert.is_nil(info.capability)
    assert.equal("", info.driver)
    assert.is_true(#info.name > 0)
    assert.is_true(info.memory_bytes > 2^20)
    assert.equal(("cpu: %s, 3 threads, generic"):format(info.name), tostring(dev))
    assert.is_true(dev:synchronize())
    dev:close()
  end)

  it("takes an instruction set and threads from the environment where none are given", function()
    local code = "local i = require('fewhead.device.device').open('cpu', %s):info() print(i.threads, i.isa)"
    local env = { env = "FEWHEAD_THREADS=5 FEWHEAD_ISA=generic" }
    assert.equal("5\tgeneric", (helper.luajit(code:format("nil"), env)))
    assert.equal("3\tgeneric", (helper.luajit(code:format("{ threads = 3 }"), env)))
  end)

  it("gives nil and the reason for a name that is no device", function()
    local dev, err = device.open("abacus")
    assert.is_nil(dev)
    assert.equal('name: got "abacus", wanted cpu, cuda or cuda:N', err)
  end)

  it("refuses wrong arguments on the caller's line", function()
    assert.equal("device.open: name: got nil, wanted a string", refusal(function() device.open() end))
    assert.equal('device.open: unknown option "thread"; did you mean "threads"? known: threads, isa',
      refusal(function() device.open("cpu", { thread = 2 }) end))
    for _, threads in ipairs { 0, 1025, 1.5, true, 0 / 0, 2^32 + 2 } do
      assert.equal(("device.open: threads: got %s, wanted a whole number in 1 .. 1024"):format(args.show(threads)),
        refusal(function() device.open("cpu", { threads = threads }) end))
    end
    assert.equal('device.open: isa: got "avx3", wanted one of generic, avx2, avx512, avx512_bf16, amx; did you mean "avx2"?',
      refusal(function() device.open("cpu", { isa = "avx3" }) end))
    assert.equal("device.open: isa: got 2, wanted one of generic, avx2, avx512, avx512_bf16, amx",
      refusal(function() device.open("cpu", { isa = 2 }) end))
  end)

  it("is fh.open", function()
    local dev = assert(fh.open("cpu", { threads = 1 }))
    assert.equal(1, dev:info().threads)
    assert.equal("device.open: name: got 1, wanted a string", refusal(function() fh.open(1) end))
  end)
end)

describe("device:has_path", function()
  it("knows the paths by name, and the heads they take", function()
    local dev = device.default()
    for _, path in ipairs { "auto", "reference", "padded", "gather", "packed" } do assert.is_true(dev:has_path(path)) end
    assert.is_false(dev:has_path("sideways"))
    assert.is_true(dev:has_path("packed", 128)) -- on a CPU
    assert.is_false(dev:has_path("packed", 129))
    assert.equal("device:has_path: h_q: got 0, wanted a whole number in 1 .. 2147483647",
      refusal(function() dev:has_path("packed", 0) end))
  end)
end)

describe("a closed device", function()
  it("may be closed again, and is refused by what would use it", function()
    local dev = assert(device.open("cpu", { threads = 1 }))
    dev:close()
    dev:close()
    assert.is_nil(dev.handle)
    assert.equal("cpu (closed)", tostring(dev))
    assert.equal("device:info: the device was closed", refusal(function() dev:info() end))
    assert.equal("device:synchronize: the device was closed", refusal(function() dev:synchronize() end))
    assert.equal("tensor.new: device: the device was closed", refusal(function() fh.tensor(dev, "f32", { 1 }) end))
  end)

  it("leaves tensors on it as they are", function()
    local dev = assert(device.open("cpu", { threads = 2 }))
    local t = assert(fh.tensor(dev, "f32", { 1000, 100 }, { fill = 2 }))
    dev:close()
    collectgarbage()
    assert.equal(2, t:get(1000, 100))
    assert.equal(3, t:fill(3):get(1, 1))
    assert.equal("f32 [1000, 100] on cpu: 3 3 3 3 .. 3 3 3 3", tostring(t))
  end)
end)

describe("device.check", function()
  it("takes open devices only", function()
    local dev = device.default()
    assert.equal(dev, device.check("timing: device", dev))
    local function user(v) device.check("timing: device", v) end
    assert.equal('timing: device: got "cpu", wanted a device, such as fh.open("cpu") gives', refusal(function() user("cpu") end))
    assert.equal('timing: device: got nil, wanted a device, such as fh.open("cpu") gives', refusal(function() user() end))
    assert.equal('device:info: got 5, wanted a device, such as fh.open("cpu") gives', refusal(function() dev.info(5) end))
    assert.equal("device:close: got 5, wanted a device", refusal(function() dev.close(5) end))
  end)
end)

describe("device.default", function()
  it("is opened once, and again after it was closed", function()
    local dev = device.default()
    assert.equal(dev, device.default())
    dev:close()
    assert.is_not.equal(dev, device.default())
    assert.is_not_nil(device.default().handle)
  end)

  it("is the one that FEWHEAD_DEVICE names; unset or empty, the CPU", function()
    local code = "print(select(2, pcall(function() return require('fewhead.device.device').default().name end)))"
    assert.equal("cpu", (helper.luajit(code, { env = "FEWHEAD_DEVICE=" })))
    assert.equal("cpu", (helper.luajit(code, { env = "FEWHEAD_DEVICE=cpu" })))
    assert.equal([[(command line):2: FEWHEAD_DEVICE=abacus: name: got "abacus", wanted cpu, cuda or cuda:N]],
      (helper.luajit(code, { env = "FEWHEAD_DEVICE=abacus" })))
  end)
end)
