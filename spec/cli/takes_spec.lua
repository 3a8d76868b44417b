local fh = require "fewhead"
local takes = require "fewhead.cli.takes"

local function sorted(list)
  table.sort(list)
  return list
end

describe("takes.options", function()
  it("knows the options of every argument", function()
    assert.same({ "native" }, takes.options(fh.gate.fit, 2))
    assert.same({ "fill", "stride" }, sorted(takes.options(fh.tensor.new, 4)))
    assert.same({ "isa", "threads" }, sorted(takes.options(fh.open, 2)))
    assert.same({ "decode_rows", "load", "max_tokens", "pack", "prefix_cache", "tokens_per_s" },
      sorted(takes.options(fh.trace.chunks, 2)))
    assert.same(sorted(fh.case.options), sorted(takes.options(fh.case.new, 1)))
  end)

  it("knows those of methods", function()
    local gate = fh.gate.new()
    assert.same({ "heads", "padded_heads", "s_q" }, sorted(takes.options(gate.explain, 1, gate)))
    assert.same({ "height", "width" }, sorted(takes.options(gate.plot, 1, gate)))
  end)

  it("calls nothing that checks no options", function()
    local dev = assert(fh.open "cpu")
    assert.same({}, takes.options(dev.close, 1, dev))
    assert.is_truthy(dev.handle)
    dev:close()
    local called = false
    assert.same({}, takes.options(function() called = true end, 1))
    assert.is_false(called)
  end)
end)

describe("takes.values", function()
  it("knows the names that an option takes", function()
    assert.same({ "flashmla", "none", "normal" }, sorted(takes.values(fh.case.new, "sink")))
    assert.same(fh.layout.names, takes.values(fh.sweep.run, "layout"))
    assert.same(fh.preset.names(), takes.values(nil, "preset"))
    assert.same({}, takes.values(fh.case.new, "s_q"))
  end)
end)

describe("takes.argument", function()
  it("knows the names that an argument takes", function()
    assert.same({ "bf16", "f32", "i32" }, takes.argument(fh.tensor.new, 2))
    assert.same(fh.device.names(), takes.argument(fh.open, 1))
    assert.equal("auto gather native packed padded reference", table.concat(sorted(takes.argument(fh.compare.compare, 2)), " "))
    assert.equal(6, #takes.argument(fh.parity.check, 2))
    assert.same({}, takes.argument(fh.provider.load, 1))
    assert.same({}, takes.argument(io.open, 1))
  end)
end)
