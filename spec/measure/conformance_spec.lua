local fh = require "fewhead"
local helper = require "spec.helper"
local json = require "fewhead.base.json"

local LINE = '{"group":"g","d_qk":512,"h_q":8,"s_q":3,"s_kv":20,"topk":8,"attn_sink":true,"topk_length":true,'
  .. '"some_rows_all_invalid":false}\n'

describe("fh.conformance", function()
  it("checks the cases that the filter keeps, a record a check", function()
    local told, started = {}, nil
    local found = assert(fh.conformance { filter = "own/outputs", paths = { "padded", "gather" },
      on_start = function(cases) started = cases end,
      on_result = function(entry, _, result, by, record)
        told[#told + 1] = { entry.group, result.status, by, record.set }
      end })
    assert.equal(6, started)
    assert.same({ 12, 0, 0, 12, 6 }, { found.passed, found.failed, found.invalid, found.checks, found.cases })
    assert.same({ "own/outputs", "pass", "padded", "own/outputs" }, told[1])
    assert.same({ 12, 12 }, { #told, #found.records })
    local first = found.records[1]
    assert.same({ "padded", "own/outputs", 21, found.run.id }, { first.path, first.set, first.rows, first.run.id })
    assert.is_true(found:ok())
    assert.equal("12 passed, 0 failed, 0 invalid (0 on a sample of rows) of 12 checks, 6 cases", tostring(found))
  end)

  it("takes cases of a file, or says what is wrong with it", function()
    helper.with_file(LINE, function(path)
      local found = assert(fh.conformance { grid = path, paths = { "gather" } })
      assert.same({ 12, 12 }, { found.passed, found.cases })
      assert.equal(24, assert(fh.conformance { grid = { path, path }, paths = { "gather" } }).passed)
    end)
    helper.with_file("{}\n", function(path)
      assert.same({ nil, path .. ":1: group: got nil, wanted a string" }, { fh.conformance { grid = path } })
    end)
  end)

  it("is saved, read again and compared: a check that fails now is named", function()
    local folder = helper.folder()
    local found = assert(fh.conformance { filter = "own/outputs", paths = { "gather" } })
    assert(found:save(folder .. "c.jsonl"))
    assert.equal(6, found:compare(folder .. "c.jsonl").counts.same)
    local later = assert(fh.results(folder .. "c.jsonl"))
    later.records[2].parity = { status = "fail", against = "reference", compared = 1, reason = "wrong" }
    assert.same({ 5, 1 }, { found:compare(later).counts.same, found:compare(later).counts.failed })
    helper.shell("rm -rf " .. folder)
    assert.is_nil(found.plot)
    found.records[1].parity = { status = "fail", against = "reference", compared = 1, reason = "it is wrong" }
    assert.matches("^fail gather, own/outputs, 8 heads: it is wrong\n6 passed, ", tostring(found))
    json.encode(found.records[1])
  end)

  it("refuses paths that there are not and options it has not, on the caller's line", function()
    assert.equal('conformance: paths: got {"gahter"}, wanted one of auto, ' .. table.concat(fh.path.computing(), ", ")
      .. '; did you mean "gather"?',
      helper.refusal(function() local c = fh.conformance { paths = { "gahter" } } return c end))
    assert.matches('^conformance: unknown option "path"; did you mean "paths"%? known: ',
      helper.refusal(function() local c = fh.conformance { path = { "gather" } } return c end))
    assert.equal("conformance: filter: got {}, wanted text",
      helper.refusal(function() local c = fh.conformance { filter = {} } return c end))
  end)
end)
