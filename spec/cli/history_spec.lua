local helper = require "spec.helper"
local history = require "fewhead.cli.history"

describe("history", function()
  local folder
  before_each(function() folder = helper.folder() end)
  after_each(function() helper.shell("rm -rf " .. folder) end)

  it("gives back what was added, entries of several lines too", function()
    local path = folder .. "a/b/history"
    local one, two = history.open(path), history.open(path)
    assert.is_true(one:add("do\n\n\tx = 1\nend"))
    assert.is_true(two:add "y = 2")
    assert.is_false(two:add "y = 2")
    assert.is_false(one:add "  ")
    assert.same({ "do\n\n\tx = 1\nend", "y = 2" }, history.open(path).entries)
    assert.is_nil(one.problem)
  end)

  it("says why nothing can be kept, and goes on", function()
    local file = helper.write(folder .. "file", "")
    local nowhere = history.open(file .. "/history")
    assert.equal(file .. "/history: Not a directory", nowhere.problem)
    assert.is_true(nowhere:add "x = 1")
    assert.equal("neither XDG_STATE_HOME nor HOME is set", history.open(nil).problem)
  end)

  it("cuts a long file to the newest 2000 entries", function()
    local lines = {}
    for i = 1, 4001 do lines[i] = "x = " .. i end
    local path = helper.write(folder .. "history", table.concat(lines, "\n") .. "\n")
    local long = history.open(path)
    assert.same({ 2000, "x = 2002", "x = 4001" }, { #long.entries, long.entries[1], long.entries[2000] })
    assert.equal(2000, select(2, helper.read(path):gsub("\n", "")))
  end)
end)
