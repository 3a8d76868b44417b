local fh = require "fewhead"
local helper = require "spec.helper"
local progress = require "fewhead.cli.progress"

local read = helper.read

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

describe("a progress line", function()
  it("writes, replaces and clears on a terminal, and cuts long texts", function()
    local file = io.open(folder .. "/terminal", "w")
    local line = progress.new { terminal = true, stream = file }
    line:show("1 of 2")
    line:show(("x"):rep(100))
    line:clear()
    line:clear()
    file:close()
    assert.equal("\r1 of 2\27[K\r" .. ("x"):rep(79) .. "\27[K\r\27[K", read(folder .. "/terminal"))
  end)

  it("writes nothing elsewhere", function()
    local file = io.open(folder .. "/log", "w")
    local line = progress.new { terminal = false, stream = file }
    line:show("1 of 2")
    line:clear()
    file:close()
    assert.equal("", read(folder .. "/log"))
  end)

  it("asks whether standard error is a terminal, and is fh.progress", function()
    local _, status = helper.luajit([[
      local fh = require "fewhead"
      local line = fh.progress()
      line:show("1 of 2")
      line:clear()
      os.exit(line.terminal and 1 or 0)]])
    assert.equal(0, status)
    local file = io.open(folder .. "log", "w")
    assert.is_true(fh.progress({ terminal = true, stream = file }).terminal)
    file:close()
  end)
end)
