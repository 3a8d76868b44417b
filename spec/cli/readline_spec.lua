local readline = require "fewhead.cli.readline"

describe("readline", function()
  it("says whether the library is here", function()
    local installed = pcall(require("ffi").load, "libreadline.so.8")
    assert.equal(installed, readline.is_installed())
  end)
end)
