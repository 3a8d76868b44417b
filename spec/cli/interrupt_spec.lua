local helper = require "spec.helper"
local interrupt = require "fewhead.cli.interrupt"

local pid = require("fewhead.base.posix").pid()

describe("interrupt.during", function()
  it("sees Ctrl-C instead of dying of it, remembers, and hands results on", function()
    local seen = {}
    local one, two = interrupt.during(function(pressed)
      seen[1] = pressed()
      os.execute("kill -INT " .. pid)
      seen[2], seen[3] = pressed(), pressed()
      return "one", "two"
    end)
    assert.same({ false, true, true }, seen)
    assert.same({ "one", "two" }, { one, two })
    assert.is_false(interrupt.during(function(pressed) return pressed() end))
  end)

  it("drops a press that nobody asked about", function()
    assert.equal(5, interrupt.during(function()
      os.execute("kill -INT " .. pid)
      return 5
    end))
  end)

  it("passes errors on as they are, and lets Ctrl-C end the program again", function()
    local thing = {}
    local ok, err = pcall(interrupt.during, function() error(thing) end)
    assert.is_false(ok)
    assert.equal(thing, err)
    local out, status = helper.luajit([[
      jit.off() -- compiled code asks for no signals
      local ffi = require "ffi"
      ffi.cdef "int raise(int signal);"
      pcall(require("fewhead.cli.interrupt").during, error)
      ffi.C.raise(2)
      for i = 1, 1e6 do i = i + 1 end
      print "survived"]])
    assert.matches("interrupted!", out)
    assert.equal(1, status)
  end)
end)
