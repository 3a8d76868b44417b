local helper = require "spec.helper"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

describe("a progress line", function()
  local progress = require "fewhead.cli.progress"

  it("writes, replaces and clears on a terminal, and cuts long texts", function()
    local file = io.open(folder .. "terminal", "w")
    local line = progress.new { terminal = true, stream = file }
    line:show("1 of 2")
    line:show(("x"):rep(100))
    line:clear()
    line:clear()
    file:close()
    assert.equal("\r1 of 2\27[K\r" .. ("x"):rep(79) .. "\27[K\r\27[K", helper.read(folder .. "terminal"))
  end)

  it("writes nothing elsewhere", function()
    local file = io.open(folder .. "log", "w")
    local line = progress.new { terminal = false, stream = file }
    line:show("1 of 2")
    line:clear()
    file:close()
    assert.equal("", helper.read(folder .. "log"))
  end)
end)
