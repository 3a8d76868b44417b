local preset = require "fewhead.case.preset"
local refusal = require("spec.helper").refusal

describe("preset", function()
  it("knows every model at the tensor-parallel sizes that divide its heads", function()
    local names = preset.names()
    assert.same({ "glm-5 tp1", "glm-5 tp16", "glm-5 tp2" }, { names[1], names[2], names[3] })
    local here = {}
    for _, model in ipairs(preset.models()) do here[model] = true end
    for _, model in ipairs { "glm-5", "glm-5.2", "glm-5.3-flash", "v3.2", "v4-flash", "v4-pro", "v4.1-flash" } do
      assert.is_true(here[model], model)
    end
    for _, model in ipairs(preset.models()) do
      for _, tp in ipairs(preset.tp) do assert.equal(tp, preset.get(("%s tp%d"):format(model, tp)).tp) end
    end
  end)

  it("describes a rank of DeepSeek-V4.1-Flash at TP8 to the last field", function()
    assert.same({
      name = "v4.1-flash tp8", model = "v4.1-flash", tp = 8, heads = 64, h_q = 8, h_pad = 64, d_qk = 512, d_v = 512, topk = 640,
      index_topk = 512, window = 128, ratios = { 0, 1, 2 }, layers_at = { [0] = 2, [1] = 20, [2] = 18 }, ratio = 1, layers = 40,
      hidden = 5120, lists = {
        { ratio = 0, layers = 2 }, { ratio = 2, layers = 6 }, { ratio = 2, layers = 6 }, { ratio = 2, layers = 6 },
        { ratio = 1, layers = 4 }, { ratio = 1, layers = 4 }, { ratio = 1, layers = 4 }, { ratio = 1, layers = 4 },
        { ratio = 1, layers = 4 },
      },
    }, preset.get("v4.1-flash tp8"))
  end)

  it("gives each rank its heads, and the tile that they are padded to", function()
    local heads = {
      ["v4.1-flash tp4"] = { 16, 64 }, ["v4-flash tp8"] = { 8, 64 }, ["v4-pro tp8"] = { 16, 64 }, ["v4-pro tp4"] = { 32, 64 },
      ["v4-pro tp1"] = { 128, 128 }, ["v3.2 tp8"] = { 16, 64 }, ["v3.2 tp2"] = { 64, 64 }, ["glm-5 tp8"] = { 8, 64 },
      ["glm-5 tp16"] = { 4, 64 },
    }
    for name, wanted in pairs(heads) do
      local p = preset.get(name)
      assert.same(wanted, { p.h_q, p.h_pad }, name)
    end
  end)

  it("has the list widths, compression ratios and layers of the models", function()
    local wanted = {
      ["v4.1-flash"] = { 640, 128, 1, 40 }, ["v4-flash"] = { 640, 128, 4, 43 }, ["v4-pro"] = { 1152, 128, 4, 61 },
      ["v3.2"] = { 2048, 0, 1, 61 }, ["glm-5"] = { 2048, 0, 1, 78 }, ["glm-5.2"] = { 2048, 0, 1, 78 },
      ["glm-5.3-flash"] = { 2051, 0, 1, 1 },
    }
    for model, w in pairs(wanted) do
      local p = preset.get(model .. " tp8")
      assert.same(w, { p.topk, p.window, p.ratio, p.layers }, model)
      assert.equal(p.topk, p.index_topk + p.window + (p.block or 1) - 1)
    end
    assert.equal(576, preset.get("v3.2 tp8").d_qk)
    assert.equal(576, preset.get("glm-5 tp8").d_qk)
    assert.equal(512, preset.get("v4-pro tp8").d_qk)
  end)

  it("gives every layer of a model one index list", function()
    local wanted = { ["v4.1-flash"] = 9, ["v4-flash"] = 42, ["v4-pro"] = 61, ["v3.2"] = 61, ["glm-5"] = 78, ["glm-5.2"] = 21,
      ["glm-5.3-flash"] = 1 }
    for model, count in pairs(wanted) do
      local p, at = preset.get(model .. " tp8"), {}
      assert.equal(count, #p.lists, model)
      for _, list in ipairs(p.lists) do at[list.ratio] = (at[list.ratio] or 0) + list.layers end
      assert.same(p.layers_at, at, model)
    end
    assert.same({ ratio = 1, layers = 1 }, preset.get("glm-5.2 tp8").lists[2])
    assert.same({ ratio = 1, layers = 4 }, preset.get("glm-5.2 tp8").lists[3])
  end)

  it("names the pattern of lists that are no picks and window", function()
    local p = preset.get("v4-flash tp8")
    assert.same({ ratio = 4, layers = 1 }, p.lists[2])
    assert.same({ ratio = 128, layers = 1, pattern = "all" }, p.lists[42])
    assert.is_nil(p.pattern)
    p = preset.get("glm-5.3-flash tp8")
    assert.same({ "pools", 4, 8 }, { p.pattern, p.block, p.h_q })
    assert.same({ ratio = 1, layers = 1, pattern = "pools" }, p.lists[1])
  end)

  it("hands out a table of one's own each time", function()
    preset.get("glm-5 tp8").h_q = 3
    preset.names()[1] = "mine"
    assert.equal(8, preset.get("glm-5 tp8").h_q)
    assert.equal("glm-5 tp1", preset.names()[1])
  end)

  it("names the default", function()
    assert.equal("v4.1-flash tp8", preset.default)
  end)

  it("refuses an unknown name with the nearest one and where the list is", function()
    assert.equal(
      'preset: got "v4.1-flash tp3", wanted one of ' .. #preset.names()
        .. ' names (fewhead run gate_sweep --list lists them); did you mean '
        .. '"v4.1-flash tp1"?',
      refusal(function() preset.get("v4.1-flash tp3") end))
    assert.equal("preset: got 8, wanted one of " .. #preset.names() .. " names (fewhead run gate_sweep --list lists them)",
      refusal(function() preset.get(8) end))
    assert.equal("mine: got nil, wanted one of " .. #preset.names() .. " names (fewhead run gate_sweep --list lists them)",
      refusal(function() preset.check("mine", nil, 1) end))
    assert.equal("glm-5 tp8", preset.check("mine", "glm-5 tp8"))
  end)
end)
