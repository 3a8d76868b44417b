local helper = require "spec.helper"
local files = require "fewhead.record.file"

local folder

local read = helper.read

-- Names in the folder, so that a temporary file left behind shows.
local function listing()
  local names = {}
  for name in io.popen("ls -A '" .. folder .. "'"):lines() do names[#names + 1] = name end
  return names
end

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir '" .. folder .. "'"))
end)

after_each(function() os.execute("rm -rf '" .. folder .. "'") end)

describe("file.write", function()
  it("makes folders, writes the bytes and leaves no other file", function()
    assert.is_true(files.write(folder .. "/a/b/x.md", "one\r\n\0two"))
    assert.equal("one\r\n\0two", read(folder .. "/a/b/x.md"))
    assert.same({ "a" }, listing())
    assert.is_true(files.write(folder .. "/y", ""))
    assert.same({ "a", "y" }, listing())
  end)

  it("says why it cannot, and leaves what was there", function()
    assert.is_true(files.write(folder .. "/file", "old"))
    local ok, err = files.write(folder .. "/file/x.md", "new")
    assert.is_nil(ok)
    assert.matches("file/x%.md.*Not a directory$", err)
    assert.equal("old", read(folder .. "/file"))
    assert.is_true(files.write(folder .. "/place/inner", "old"))
    ok, err = files.write(folder .. "/place", "new") -- a folder stands there: the rename fails
    assert.is_nil(ok)
    assert.matches("^" .. folder:gsub("%p", "%%%0") .. "/place: ", err)
    assert.same({ "file", "place" }, listing())
  end)

  it("refuses a text that is none", function()
    local ok, err = pcall(function() files.write(folder .. "/x", 5) end)
    assert.is_false(ok)
    assert.matches("file_spec%.lua:%d+: file%.write: text: got 5, wanted a string$", err)
  end)
end)

describe("file.writer", function()
  it("keeps the old file until commit, and hands every piece to the system at once", function()
    local path = folder .. "/x.jsonl"
    assert(files.write(path, "whole\n"))
    local writer = assert(files.writer(path))
    assert.is_true(writer:add("one\n"))
    assert.equal("whole\n", read(path))
    assert.equal("one\n", read(writer.temporary))
    assert.is_true(writer:add("two\n"))
    assert.is_true(writer:commit())
    assert.equal("one\ntwo\n", read(path))
    assert.same({ "x.jsonl" }, listing())
  end)

  it("discards without a trace, and safely twice", function()
    local path = folder .. "/x.jsonl"
    assert(files.write(path, "whole\n"))
    local writer = assert(files.writer(path))
    assert(writer:add("half"))
    writer:discard()
    writer:discard()
    assert.equal("whole\n", read(path))
    assert.same({ "x.jsonl" }, listing())
  end)
end)
