local helper = require "spec.helper"
local some = require "spec.report.some_records"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

describe("fewhead page", function()
  it("writes one file of the records that are asked for", function()
    helper.write(folder .. "a.jsonl", some.text { some.record(1), some.record(2, { case = { s_q = 128 } }) } .. "{\n")
    local words = ("%sfewhead page %s --out %sa.html --where s_q=128 "):format(helper.root, folder, folder)
    local text, status = helper.shell(words)
    assert.equal(1, status)
    assert.matches("^fewhead: page: .*a%.jsonl:3: json: ", text)
    text, status = helper.shell(words .. "--skip-bad")
    assert.equal(0, status)
    assert.matches("^fewhead: page: left out: .*a%.jsonl:3: json: .*\nwritten: .*/a%.html, 1 records$", text)
    local html = helper.read(folder .. "a.html")
    assert.is_truthy(html:find("Lines left out, since they are no records: 1. The first: ", 1, true))
    assert.is_truthy(html:find("<title>" .. folder .. "</title>", 1, true))
  end)

  it("refuses wrong options with status 2 and names that are nothing with 1", function()
    local text, status = helper.shell(helper.root .. "fewhead page x --where y")
    assert.same({ 'fewhead: page: --where: got "y", wanted FIELD=VALUE or FIELD=VALUE,VALUE', 2 }, { text, status })
    text, status = helper.shell(helper.root .. "fewhead page 'no such'")
    assert.same({ "fewhead: page: no such: no file, folder, commit or run of that name", 1 }, { text, status })
  end)
end)
