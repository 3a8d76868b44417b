local fh = require "fewhead"
local helper = require "spec.helper"
local some = require "spec.report.some_records"

local folder

before_each(function()
  folder = helper.folder()
  helper.write(folder .. "a.jsonl", some.text {
    some.record(100, { path = "padded" }), some.record(50), some.record(80, { path = "padded", case = { s_q = 128 } }),
  })
end)
after_each(function() helper.shell("rm -rf " .. folder) end)

describe("fh.results", function()
  it("is the records of a file or folder by its name, filtered or not", function()
    local found = assert(fh.results(folder))
    assert.same({ 3, folder, 0 }, { #found.records, found.name, #found.skipped })
    local few = assert(fh.results(folder .. "a.jsonl", { where = { s_q = "64", path = "gather" } }))
    assert.same({ 1, 50 }, { #few.records, few.records[1].time.median_us })
    assert.equal(2, #found:filter({ path = "padded" }).records)
    assert.same({ nil, "no record fits" }, { found:filter { s_q = 9 } })
    assert.same({ nil, folder .. "no: no file, folder, commit or run of that name" }, { fh.results(folder .. "no") })
    assert.equal('results: unknown option "whre"; did you mean "where"? known: results, skip_bad, where',
      helper.refusal(function() local r = fh.results(folder, { whre = {} }) return r end))
  end)

  it("leaves out lines that are no records when told to", function()
    helper.write(folder .. "b.jsonl", "{\n")
    assert.is_nil((fh.results(folder)))
    local found = assert(fh.results(folder, { skip_bad = true }))
    assert.same({ 3, 1 }, { #found.records, #found.skipped })
  end)

  it("prints a table of what varies below what does not", function()
    local text = tostring(assert(fh.results(folder)))
    assert.matches("^All rows: NVIDIA H200, .*csa lists, layout vllm, .*\n\ns_q +path +median +p05 %.%. p95 ", text)
    assert.matches("\n 64 +gather +50%.0 us ", text)
  end)

  it("plots in a terminal, and says where there is nothing to plot", function()
    local found = assert(fh.results(folder))
    assert.matches("^Time and speed%-up\n.*\na padded, b gather\n", assert(found:plot()))
    for line in found:plot({ width = 40, height = 5 }):gmatch("[^\n]+") do
      assert.is_true(not line:find("|", 1, true) or #line <= 60)
    end
    helper.write(folder .. "a.jsonl", some.text { some.failed() })
    assert.same({ nil, "no record has a time" }, { assert(fh.results(folder)):plot() })
  end)

  it("puts the parts of a sweep together", function()
    local parts = {}
    for i = 1, 2 do
      local sweep = assert(fh.sweep { s_q = "1:6:1", s_kv = 16, topk = 4, pattern = "uniform", paths = { "gather" },
        max_seconds = 0, shard = i .. "/2", store = { out = folder .. "part" .. i, name = "x" } })
      parts[i] = sweep.folder
    end
    local merged = assert(fh.results.merge(parts, { out = folder .. "merged", name = "whole" }))
    assert.same({ 6, 2 }, { #merged.records, merged.head.parts })
    assert.matches("/merged/[%dTZ]+%-whole$", merged.folder)
    assert.equal(6, merged:compare(merged).counts.same + merged:compare(merged).counts.unclear)
    local none, err, problems = fh.results.merge({ parts[1] }, { out = folder .. "merged" })
    assert.is_nil(none)
    assert.same({ err }, problems)
    assert.matches("^part [12]/2: missing$", err)
  end)
end)
