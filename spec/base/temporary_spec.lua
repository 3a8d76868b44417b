local helper = require "spec.helper"
local temporary = require "fewhead.base.temporary"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

describe("temporary", function()
  it("makes a file of its own beside the path, twice at once too", function()
    local one, one_path = temporary.create(folder .. "x.jsonl")
    local two, two_path = temporary.create(folder .. "x.jsonl")
    local name = "^" .. folder:gsub("%p", "%%%0") .. "x%.jsonl%.%x+%.tmp$"
    assert.matches(name, one_path)
    assert.matches(name, two_path)
    assert.are_not.equal(one_path, two_path)
    one:write("one")
    one:close()
    two:close()
    assert.equal("one", helper.read(one_path))
  end)

  it("removes the files of dead runs, and none that a living one holds or that is called otherwise", function()
    local path = folder .. "x.jsonl"
    local dead = helper.write(path .. ".0123456789abcdef.tmp", "")
    local foreign = helper.write(path .. ".7.tmp", "")
    local held, held_path = temporary.create(path)
    assert.is_nil(io.open(dead))
    helper.write(dead, "")
    assert.equal(1, temporary.clear(path))
    assert.equal(0, temporary.clear(path))
    local left = { foreign:match("[^/]*$"), held_path:match("[^/]*$") }
    table.sort(left)
    assert.equal(table.concat(left, "\n"), (helper.shell("ls " .. folder .. " | LC_ALL=C sort")))
    held:close()
    assert.equal(1, temporary.clear(path))
  end)

  it("says why there can be no file", function()
    local file, err = temporary.create("/dev/null/x")
    assert.is_nil(file)
    assert.matches("Not a directory$", err)
  end)
end)
