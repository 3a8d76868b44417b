local device = require "fewhead.device.device"
local entrants = require "fewhead.measure.entrants"
local helper = require "spec.helper"
local provider = require "fewhead.device.provider"
local plugin = require "spec.plugin"

local folder, real, real_fa3 = nil, provider.flashmla, provider.fa3
before_each(function() folder = helper.folder() end)
after_each(function()
  provider.flashmla, provider.fa3 = real, real_fa3
  helper.shell("rm -rf " .. folder)
end)

-- Stand-ins for FlashMLA: `one` of the 64 heads, `few` of fewer heads.
local function with_flashmla(one, few, reason)
  provider.flashmla = function(_, name)
    if name == "flashmla-few" then return few end
    return one, reason
  end
end

local function names(list)
  local found = {}
  for i, one in ipairs(list) do found[i] = provider.name_of(one) end
  return table.concat(found, " ")
end

describe("entrants", function()
  local dev = device.open "cpu"

  it("are padded as the base and the native paths where there is no FlashMLA", function()
    with_flashmla(nil, nil, "no FlashMLA here")
    local mine = assert(provider.load(plugin.example(folder), "mine"))
    local field = entrants.of(dev, { heads = 8, providers = { mine } })
    assert.equal("padded", field.base)
    assert.is_nil(field.flashmla)
    assert.equal("padded gather packed auto mine", names(field.list))
    assert.equal("padded gather packed mine", names(field.checked))
    assert.equal("gather packed mine", names(field.native))
    assert.same({ "no FlashMLA here", "mine: version 1.0" }, field.lines)
  end)

  it("leave out a path that cannot take so many heads", function()
    with_flashmla(nil, nil, "none")
    local box = { kind = "cpu", name = "box", has_path = function(_, path, heads) return path ~= "packed" or heads <= 32 end }
    assert.equal("padded gather auto", names(entrants.of(box, { heads = 64 }).list))
    assert.equal("padded gather packed auto", names(entrants.of(box, { heads = 32 }).list))
  end)

  it("have FlashMLA first, and its kernel for few heads, where the device runs it", function()
    local function stand_in(name, text) return { name = name, text = text, kinds = { cpu = true } } end
    local one, few = stand_in("flashmla", "0.33, 64 heads"), stand_in("flashmla-few", "0.33, 8 heads")
    with_flashmla(one, few)
    local field = entrants.of(dev, { heads = 8 })
    assert.equal(one, field.base)
    assert.same({ one, "padded", "gather", "packed", "auto", few }, field.list)
    assert.same({ "gather", "packed", few }, field.native)
    assert.same({ "FlashMLA: 0.33, 64 heads", "flashmla-few: 0.33, 8 heads" }, field.lines)
    with_flashmla(one, one)
    assert.same({ one, "padded", "gather", "packed", "auto" }, entrants.of(dev, { heads = 8 }).list)
    one.kinds = { cuda = true }
    field = entrants.of(dev, { heads = 8 })
    assert.equal("padded", field.base)
    assert.same({ ("FlashMLA 0.33, 64 heads does not run on %s; the built-in padded path stands in"):format(dev.name) },
      field.lines)
  end)

  it("have FlashAttention 3 on a GPU, or say why there is none, and look for it nowhere else", function()
    with_flashmla(nil, nil, "none")
    local gpu = { kind = "cuda", name = "gpu", has_path = function() return true end }
    local fa3 = { name = "fa3", text = "0.33, native heads" }
    provider.fa3 = function() return fa3 end
    local field = entrants.of(gpu, { heads = 8 })
    assert.same({ "padded", "gather", "packed", "auto", fa3 }, field.list)
    assert.same({ "gather", "packed", fa3 }, field.native)
    assert.same({ "none", "fa3: 0.33, native heads" }, field.lines)
    assert.same({ "padded", "gather", "packed", "auto" }, entrants.of(dev, { heads = 8 }).list)
    provider.fa3 = function() return nil, "no FlashAttention 3 here" end
    field = entrants.of(gpu, { heads = 8 })
    assert.same({ "padded", "gather", "packed", "auto" }, field.list)
    assert.same({ "none", "no FlashAttention 3 here" }, field.lines)
  end)
end)
