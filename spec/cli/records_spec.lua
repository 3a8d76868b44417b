-- The commands that read records: page, plot and export. What they share stands in fewhead.cli.records.
local helper = require "spec.helper"
local some = require "spec.report.some_records"

local folder

before_each(function()
  folder = helper.folder()
  helper.write(folder .. "a.jsonl", some.text {
    some.record(100, { path = "padded" }), some.record(50), some.record(80, { path = "padded", case = { s_q = 128 } }),
  } .. "{\n")
end)
after_each(function() helper.shell("rm -rf " .. folder) end)

local function run(words) return helper.shell(helper.root .. "fewhead " .. words) end

describe("commands on records", function()
  it("name a damaged line, and leave it out only when told to", function()
    for _, command in ipairs { "page", "plot", "export" } do
      local text, status = run(("%s %s"):format(command, folder))
      assert.equal(1, status)
      assert.matches("^fewhead: " .. command .. ": .*a%.jsonl:4: json: ", text)
    end
  end)

  it("filter: fewhead page", function()
    local text, status = run(("page %s --out %sa.html --where s_q=128 --skip-bad"):format(folder, folder))
    assert.equal(0, status)
    assert.matches("^fewhead: page: left out: .*a%.jsonl:4: json: .*\nwritten: .*/a%.html, 1 records$", text)
    local html = helper.read(folder .. "a.html")
    assert.is_truthy(html:find("Lines left out, since they are no records: 1. The first: ", 1, true))
    assert.is_truthy(html:find("<title>" .. folder .. "</title>", 1, true))
  end)

  it("draw: fewhead plot", function()
    local text, status = run(("plot %s --skip-bad 2>/dev/null"):format(folder))
    assert.equal(0, status)
    assert.matches("^Time and speed%-up\n", text)
    assert.matches("\na padded, b gather\n", text)
    text, status = run(("plot %s --skip-bad --out %sx 2>/dev/null"):format(folder, folder))
    assert.equal(0, status)
    assert.equal(("written: %sx/curves.svg\nwritten: %sx/roofline.svg"):format(folder, folder), text)
  end)

  it("export: fewhead export", function()
    local text, status = run(("export %s --skip-bad --out %sa.csv 2>/dev/null"):format(folder, folder))
    assert.same({ ("written: %sa.csv, 3 records"):format(folder), 0 }, { text, status })
    text = run(("export %s --skip-bad --where path=gather 2>/dev/null"):format(folder))
    assert.matches("\n| gather | 50%.0 us | ", text)
    text, status = run(("export %s --skip-bad --out a.xls 2>/dev/null; echo $?"):format(folder))
    assert.same({ "1", 0 }, { text, status })
  end)

  it("refuse wrong options with status 2 and names that are nothing with 1", function()
    for _, command in ipairs { "page", "plot", "export" } do
      local text, status = run(command .. " x --where y")
      assert.same({ ('fewhead: %s: --where: got "y", wanted FIELD=VALUE or FIELD=VALUE,VALUE'):format(command), 2 },
        { text, status })
      text, status = run(command .. " 'no such'")
      assert.same({ ("fewhead: %s: no such: no file, folder, commit or run of that name"):format(command), 1 }, { text, status })
      text, status = run(("%s %s --skip-bad --where s_q=9 2>&1 | tail -1"):format(command, folder))
      assert.same({ ("fewhead: %s: --where: no record fits"):format(command), 0 }, { text, status })
    end
  end)
end)
