local fh = require "fewhead"
local axes = require "fewhead.record.axes"
local helper = require "spec.helper"
local some = require "spec.report.some_records"

-- One record for each value of a tag.
local function tagged(...)
  local list = {}
  for i, value in ipairs { ... } do
    list[i] = some.record(10 * i, { run = { id = "id" .. i, tags = value and { branch = value } or nil } })
  end
  return list
end

describe("tags", function()
  it("are in the records of a comparison and of a sweep, as text", function()
    local case = fh.case { heads = 8, s_q = 4, s_kv = 64, topk = 16, pattern = "uniform" }
    local found = assert(fh.compare(case, { "gather" }, { max_seconds = 0.01, tags = { night = 2, mine = true } }))
    assert.same({ night = "2", mine = "true" }, found.records[1].run.tags)
    case:free()
    local sweep = assert(fh.sweep { s_q = 4, s_kv = 64, topk = 16, pattern = "uniform", heads = 8, paths = { "gather" },
      max_seconds = 0.01, tags = { night = "3" } })
    assert.same({ night = "3" }, sweep.records[1].run.tags)
  end)

  it("are columns where they vary, in the title where they do not, and fields to filter by", function()
    local list = tagged("main", "mine")
    local found = axes.of(list)
    assert.same({ "branch" }, found.varying)
    assert.equal("mine", found.flats[2].branch)
    assert.truthy(axes.of(tagged("main", "main")):constant_text():find("branch main", 1, true))
    assert.same({ list[2] }, axes.filter(list, { branch = "mine" }))
    assert.truthy(fh.export.markdown(list):find("| branch | path |", 1, true))
    assert.truthy(fh.export.csv(list):find(",tags_branch\r\n", 1, true))
    assert.truthy(fh.page(list):find("<th class=\"l\">branch</th>", 1, true))
  end)

  it("do not tell cells apart: two runs with different tags are compared, and both tags are said", function()
    local diff = assert(fh.diff({ tagged("main")[1] }, { tagged("main", "mine")[2] }))
    assert.equal(1, diff.counts.slower)
    local rows = diff:rows()
    assert.equal("main -> mine", rows[1].branch)
    assert.truthy(tostring(diff):find("main -> mine", 1, true))
  end)

  it("come from the command line, one after the other", function()
    local options = fh.options { name = "x", options = { "tags" } }
    assert.same({ tags = { a = "1", b = "x=y" } }, options:parse { "--tag", "a=1", "--tag=b=x=y" })
    assert.same({}, options:parse {})
  end)

  it("are refused where the name is a record's own or no name, and beside a header", function()
    local options = fh.options { name = "x", options = { "tags" } }
    for _, text in ipairs { "s_q=1", "device=x", "heads=8", "path=x", "a b=1", "=1", "a", "1a=2" } do
      local opt, err = options:parse { "--tag", text }
      assert.is_nil(opt)
      assert.equal(("--tag: got %q, wanted KEY=VALUE; KEY: letters, digits and _, no field that records have"):format(text), err)
    end
    local case = fh.case { s_q = 4, s_kv = 64, topk = 16, pattern = "uniform" }
    assert.equal("compare: tags: got a table, wanted KEY=VALUE; KEY: letters, digits and _, no field that records have",
      helper.refusal(function() fh.compare(case, { "gather" }, { tags = { s_q = 1 } }) end))
    assert.equal("compare: tags: has no effect with run", helper.refusal(function()
      fh.compare(case, { "gather" }, { tags = { a = 1 }, run = { id = "x" } })
    end))
    case:free()
  end)
end)
