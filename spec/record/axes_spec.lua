local axes = require "fewhead.record.axes"
local some = require "spec.report.some_records"

local record = some.record

describe("axes", function()
  it("finds what varies, in the order of columns, and says what does not", function()
    local found = axes.of {
      record(1), record(2, { case = { s_q = 128, ratio = 4 } }), record(3, { case = { ratio = 2, h_q = 4 } }),
    }
    assert.same({ "h_q", "ratio", "s_q" }, found.varying)
    assert.equal("NVIDIA H200, 132 multiprocessors, csa lists, layout vllm, h_pad 64, d_qk 512, topk 640, hot caches, seed 0",
      found:constant_text())
    assert.equal("csa lists, layout vllm, h_pad 64, d_qk 512, topk 640, hot caches, seed 0",
      found:constant_text { device = true, multiprocessors = true })
  end)

  it("has a column for what follows from other fields only where it does not follow", function()
    local function with(s_q, s_kv) return record(1, { case = { s_q = s_q, s_kv = s_kv } }) end
    assert.same({ "s_q" }, axes.of({ with(64, 256), with(128, 512) }).varying)
    assert.same({ "s_q", "s_kv" }, axes.of({ with(64, 256), with(128, 512), with(64, 512) }).varying)
  end)

  it("takes a field as constant only if every record with a time has it", function()
    local found = axes.of { record(1, { case = { preset = "v4.1-flash tp8" } }), record(2) }
    assert.is_nil(found.constant.preset)
    assert.same({}, found.varying)
  end)

  it("names a row by its fields", function()
    local flat = axes.settings(record(1, { call = { group = 4 } }))
    assert.equal("csa, 8 heads, s_q 64, call {\"group\":4}", axes.label(flat, { "pattern", "h_q", "s_q", "call" }))
  end)

  it("filters by any field, values with commas between them", function()
    local list = { record(1), record(2, { case = { s_q = 128 } }), record(3, { case = { s_q = 256 }, path = "packed" }) }
    local function count(where) return #assert(axes.filter(list, where)) end
    assert.equal(2, count { s_q = "64,256" })
    assert.equal(1, count { s_q = "64,256", path = "packed" })
    assert.equal(3, count { heads = "8", device = "NVIDIA H200", commit = "aaaa", status = "pass", l2 = "hot" })
    assert.equal(0, count { s_q = "6" })
    local none, err = axes.filter(list, { s_k = "64" })
    assert.is_nil(none)
    assert.matches('^no record has a field "s_k"; did you mean s_q%? fields: capability, ', err)
  end)

  it("reads FIELD=VALUE", function()
    assert.same({ s_q = "64,128", path = "a=b" }, axes.parse_where { "s_q=64,128", "path=a=b" })
    assert.same({ nil, 'got "s_q", wanted FIELD=VALUE or FIELD=VALUE,VALUE' }, { axes.parse_where { "s_q" } })
  end)
end)
