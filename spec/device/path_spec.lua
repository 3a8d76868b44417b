local helper = require "spec.helper"
local path = require "fewhead.device.path"
local F = require "fewhead.base.ffi"

local refusal = helper.refusal

describe("path", function()
  it("names what the library has, in its order", function()
    assert.same({ "auto", "reference", "padded", "gather", "packed" }, path.names())
    for number, name in ipairs(path.names()) do
      assert.equal(number - 1, path.get(name).number)
      assert.equal(F.paths[name], path.get(name).number)
      assert.equal(name, F.ffi.string(F.C.fh_path_name(number - 1)))
    end
  end)

  it("says which ones auto chooses among, and which of them are native", function()
    assert.same({ "padded", "gather", "packed" }, path.candidates())
    assert.same({ "gather", "packed" }, path.native())
  end)

  it("says what a path is", function()
    local both = { cpu = true, cuda = true }
    assert.same({
      name = "packed", number = 4, candidate = true, native = true, wants_plan = true, shares_tile = true, writes_f32 = false,
      max_heads = 128, devices = both,
    }, path.get("packed"))
    assert.same({
      name = "padded", number = 2, candidate = true, native = false, wants_plan = false, shares_tile = false, writes_f32 = false,
      max_heads = 128, devices = both,
    }, path.get("padded"))
    assert.same({
      name = "auto", number = 0, candidate = false, native = false, wants_plan = false, shares_tile = false, writes_f32 = false,
      max_heads = 128, devices = both,
    }, path.get("auto"))
    assert.is_true(path.get("reference").writes_f32)
  end)

  it("hands out copies", function()
    path.names()[1], path.get("packed").native, path.get("packed").devices.cpu = "other", false, false
    assert.equal("auto", path.names()[1])
    assert.is_true(path.get("packed").native)
    assert.is_true(path.get("packed").devices.cpu)
  end)

  it("refuses a name that is not in the table with the names that are", function()
    local wanted = "wanted one of auto, reference, padded, gather, packed"
    assert.equal(('bench: path: got "gathr", %s; did you mean "gather"?'):format(wanted),
      refusal(function() path.check("bench: path", "gathr", 1) end))
    assert.equal(("path.get: name: got nil, %s"):format(wanted), refusal(function() path.get(nil) end))
    assert.equal("packed", path.check("path", "packed"))
  end)
end)
