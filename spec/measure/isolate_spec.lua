-- Work in a process of its own: what comes back, and who is blamed where nothing does. Real
-- plug-ins that hang: spec/robustness/providers_spec.lua.
local isolate = require "fewhead.measure.isolate"
local ffi = require "ffi"

local TOY, OTHER = { name = "toy", number = 1 }, { name = "other", number = 2 }

ffi.cdef "int raise(int); void _exit(int);"

describe("isolate.call", function()
  it("returns the table of the function, as JSON holds it", function()
    assert.same({ n = 3, list = { 1, 2 } }, isolate.call(function() return { n = 3, list = { 1, 2 } } end, {}))
  end)

  it("runs the function in another process", function()
    local seen = 0
    assert.same({ seen = 1 }, isolate.call(function() seen = seen + 1 return { seen = seen } end, {}))
    assert.equal(0, seen)
  end)

  it("returns nil and the text of a function that fails", function()
    local answer, culprits, text = isolate.call(function() return nil, "no memory" end, { TOY })
    assert.is_nil(answer)
    assert.is_nil(culprits)
    assert.equal("no memory", text)
  end)

  it("raises what the function raises", function()
    local ok, err = pcall(isolate.call, function() error("wrong", 0) end, { TOY })
    assert.same({ false, "wrong" }, { ok, err })
  end)

  it("blames the plug-in for a signal and for an end of the process", function()
    local _, culprits = isolate.call(function() ffi.C.raise(11) end, { TOY })
    assert.same({ { name = "toy", reason = "it ended the process by signal 11 (Segmentation fault)" } }, culprits)
    _, culprits = isolate.call(function() ffi.C._exit(3) end, { TOY })
    assert.same({ { name = "toy", reason = "it ended the process with status 3" } }, culprits)
  end)

  it("suspects every plug-in where it crashed in the code of none", function()
    local _, culprits = isolate.call(function() ffi.C._exit(3) end, { TOY, OTHER })
    local reason = "it ended the process with status 3, or another plug-in of this cell did"
    assert.same({ { name = "toy", reason = reason }, { name = "other", reason = reason } }, culprits)
  end)
end)
