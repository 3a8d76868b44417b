local preset = require "fewhead.preset"

describe("preset", function()
  it("knows five models at five tensor-parallel sizes", function()
    local names = preset.names()
    assert.equal(25, #names)
    assert.same({ "glm-5 tp1", "glm-5 tp16", "glm-5 tp2" }, { names[1], names[2], names[3] })
    for _, model in ipairs { "v4.1-flash", "v4-flash", "v4-pro", "v3.2", "glm-5" } do
      for _, tp in ipairs { 1, 2, 4, 8, 16 } do assert.equal(tp, preset.get(("%s tp%d"):format(model, tp)).tp) end
    end
  end)

  it("describes a rank of DeepSeek-V4.1-Flash at TP8 to the last field", function()
    assert.same({
      name = "v4.1-flash tp8", model = "v4.1-flash", tp = 8, heads = 64, h_q = 8, h_pad = 64, d_qk = 512, d_v = 512, topk = 640,
      index_topk = 512, window = 128, ratios = { 0, 1, 2 }, layers_at = { [0] = 2, [1] = 20, [2] = 18 }, ratio = 1, layers = 40,
      hidden = 5120,
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
      ["v3.2"] = { 2048, 0, 1, 61 }, ["glm-5"] = { 2048, 0, 1, 78 },
    }
    for model, w in pairs(wanted) do
      local p = preset.get(model .. " tp8")
      assert.same(w, { p.topk, p.window, p.ratio, p.layers }, model)
      assert.equal(p.topk, p.index_topk + p.window)
    end
    assert.equal(576, preset.get("v3.2 tp8").d_qk)
    assert.equal(576, preset.get("glm-5 tp8").d_qk)
    assert.equal(512, preset.get("v4-pro tp8").d_qk)
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

  it("refuses an unknown name with the list of those there are", function()
    local ok, err = pcall(preset.get, "v4.1-flash tp3")
    assert.is_false(ok)
    assert.equal('preset: got "v4.1-flash tp3", wanted one of ' .. table.concat(preset.names(), ", ") ..
      '; did you mean "v4.1-flash tp1"?', err)
    ok, err = pcall(function() preset.get(8) end)
    assert.is_false(ok)
    assert.matches("^spec/preset_spec.lua:%d+: preset: got 8, wanted one of glm%-5 tp1, ", err)
  end)
end)
