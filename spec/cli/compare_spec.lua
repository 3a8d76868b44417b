local helper = require "spec.helper"
local some = require "spec.report.some_records"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

local function write(name, list)
  return helper.write(folder .. name, some.text(list))
end

local function compare(words) return helper.shell(helper.root .. "fewhead compare " .. words) end

local function last_line(text) return text:match("([^\n]*)$") end

-- Ten cells; `change(i, record)` may replace one or drop it (false).
local function cells(id, change)
  local list = {}
  for i = 1, 10 do
    local r = some.record(100, { case = { s_q = 64 * i } })
    r.run = some.run(id)
    if change then r = change(i, r) end
    if r then list[#list + 1] = r end
  end
  return list
end

describe("fewhead compare", function()
  it("finds a file the same as itself: status 0", function()
    local path = write("a.jsonl", cells "a")
    local text, status = compare(path .. " " .. path)
    assert.same({ "10 cells: 10 same", 0 }, { last_line(text), status })
  end)

  it("says that nothing was compared, with status 1", function()
    local a, b = write("a.jsonl", cells "a"), write("b.jsonl", { some.record(1, { case = { s_q = 7 } }) })
    local text, status = compare(a .. " " .. b)
    assert.same({ "nothing compared: 11 cells: 10 gone, 1 new", 1 }, { last_line(text), status })
  end)

  it("fails on what is slower, gone or failed only when asked", function()
    local a = write("a.jsonl", cells "a")
    local lists = {
      ["10 cells: 9 same, 1 slower"] = cells("b", function(i, r)
        return i == 3 and some.record(300, { case = r.case, run = r.run }) or r
      end),
      ["10 cells: 9 same, 1 gone"] = cells("b", function(i, r) return i ~= 3 and r end),
      ["10 cells: 9 same, 1 failed"] = cells("b", function(i, r) return i == 3 and some.failed { case = r.case } or r end),
    }
    for summary, list in pairs(lists) do
      local b = write("b.jsonl", list)
      local text, status = compare(a .. " " .. b)
      assert.same({ summary, 0 }, { last_line(text), status })
      assert.equal(1, (select(2, compare(a .. " " .. b .. " --fail-on slower"))))
      assert.equal(0, (select(2, compare(a .. " " .. b .. " --fail-on faster"))))
    end
  end)

  it("compares two commits whose records lie below a folder", function()
    write("x.jsonl", cells "a")
    write("y.jsonl", cells "b")
    local text, status = compare(("aaaaaaaa bbbbbbbb --results %s --where s_q=64,128"):format(folder))
    assert.same({ "2 cells: 2 same", 0 }, { last_line(text), status })
  end)

  it("names a damaged line, and what --skip-bad left out", function()
    local a = write("a.jsonl", cells "a")
    local b = helper.write(folder .. "b.jsonl", some.text(cells "b") .. "{\n")
    local text, status = compare(a .. " " .. b)
    assert.matches("^fewhead: compare: .*/b%.jsonl:11: json: ", text)
    assert.equal(1, status)
    text, status = compare(a .. " " .. b .. " --skip-bad")
    assert.matches("^fewhead: compare: left out: .*/b%.jsonl:11: json: ", text)
    assert.same({ "10 cells: 10 same", 0 }, { last_line(text), status })
  end)

  it("refuses wrong options with status 2", function()
    local a = write("a.jsonl", cells "a")
    for words, message in pairs {
      [a] = "fewhead: compare: 1 argument missing", [a .. " " .. a .. " --where s_q"] =
        'fewhead: compare: --where: got "s_q", wanted FIELD=VALUE or FIELD=VALUE,VALUE',
      [a .. " " .. a .. " --fail-on lower"] = 'fewhead: compare: --fail-on: got "lower", wanted one of slower, ',
    } do
      local text, status = compare(words)
      assert.equal(2, status)
      assert.equal(message, text:sub(1, #message))
    end
  end)

  it("takes nothing away from the table as markdown, with all cells", function()
    local path = write("a.jsonl", cells "a")
    local text = compare(path .. " " .. path .. " --all --markdown --where s_q=64")
    assert.is_truthy(text:find("| path | OLD | NEW | change | interval | outcome | note |\n"
      .. "| --- | ---: | ---: | ---: | --- | --- | --- |\n"
      .. "| gather | 100.0 us | 100.0 us | +0.0 % | +0.0 % .. +0.0 % | same | the same measurement |\n", 1, true), text)
  end)
end)
