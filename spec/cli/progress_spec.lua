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

  it("counts steps and failures, and says how long what is left will take", function()
    local now, out = 0, {}
    local stream = { flush = function() end }
    function stream.write(_, ...) out[#out + 1] = table.concat({ ... }):match("^\r(.*)\27%[K$") end
    local line = progress.new { terminal = true, stream = stream, total = 4, noun = "cells", clock = function() return now end }
    for i, seconds in ipairs { 0, 10, 30, 13000 } do
      now = seconds * 1e9
      if i == 3 then line:failed() end
      line:step("s_q " .. i)
    end
    assert.same({
      "1 of 4 cells: s_q 1", "2 of 4 cells, about 30 s left: s_q 2", "3 of 4 cells, 1 failed, about 30 s left: s_q 3",
      "4 of 4 cells, 1 failed, about 72 min left: s_q 4",
    }, out)
    out = {}
    line = progress.new { terminal = true, stream = stream, noun = "records", clock = function() return now end }
    line:step("a")
    line:step("b", 7)
    assert.same({ "1 records: a", "7 records: b" }, out)
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
