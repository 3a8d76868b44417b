local helper = require "spec.helper"
local posix = require "fewhead.base.posix"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

describe("posix", function()
  it("knows this process by its number", function()
    assert.equal(helper.read("/proc/self/stat"):match("^%d+"), tostring(posix.pid()))
  end)

  it("tells a terminal from a pipe", function()
    local out, status = helper.luajit('print(require("fewhead.base.posix").is_terminal(1))')
    assert.same({ "false", 0 }, { out, status })
  end)

  it("makes the folders that lead to a file, those that are there included", function()
    assert.is_true(posix.make_folders(folder .. "a/b/file"))
    assert.is_true(posix.make_folders(folder .. "a/b/c/file"))
    assert.equal("a\na/b\na/b/c", (helper.shell("cd " .. folder .. " && find * -type d | sort")))
    assert.is_true(posix.make_folders("file"))
  end)

  it("says which folder could not be made, and why", function()
    helper.write(folder .. "file", "kept")
    assert.same({ nil, folder .. "file/b: Not a directory" }, { posix.make_folders(folder .. "file/b/c/x") })
    assert.equal("kept", helper.read(folder .. "file"))
  end)

  it("finds files by a pattern below a folder whose name is taken as it stands", function()
    local odd = folder .. "a[1]*/"
    assert.is_true(posix.make_folders(odd))
    helper.write(odd .. "two.so", "")
    helper.write(odd .. "one.so", "")
    helper.write(odd .. "one.txt", "")
    assert.same({ odd .. "one.so", odd .. "two.so" }, posix.glob(odd, "*.so"))
    assert.same({}, posix.glob(odd, "*.none"))
  end)

  it("remembers a write that failed until it is asked", function()
    local good = io.open(folder .. "x", "w")
    good:write("text")
    assert.is_true(posix.written(good))
    assert.is_true(posix.sync(good))
    good:close()
    assert.equal("text", helper.read(folder .. "x"))
    local full = io.open("/dev/full", "w")
    full:write("text")
    local ok, err = posix.written(full)
    assert.is_nil(ok)
    assert.is_string(err)
    full:close()
  end)

  it("blocks a signal, takes it when asked, once, and lets go of it", function()
    local token = posix.block(posix.SIGINT)
    assert.is_false(posix.take(token))
    os.execute("kill -INT " .. posix.pid())
    assert.is_true(posix.take(token))
    assert.is_false(posix.take(token))
    posix.unblock(token)
  end)
end)
