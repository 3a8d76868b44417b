local helper = require "spec.helper"
local process = require "spec.process"
local readline = require "fewhead.cli.readline"

-- Lines that open's reader gives for this standard input, in a process of its own.
local function lines_of(interactive, stdin)
  local folder = helper.folder()
  process.write(folder .. "x.lua", ([[
    package.path = %q .. package.path
    local readline = require "fewhead.cli.readline"
    if %s then package.loaded["ffi"].load = function() error("not here") end end
    local read = readline.open(%s, function() return {} end)
    local continued = false
    for line in function() return (read(continued)) end do
      print("<" .. line .. ">")
      continued = true
    end]]):format(helper.root .. "lua/?.lua;", tostring(interactive), tostring(interactive)))
  local status, out, err = process.run({ "luajit", folder .. "x.lua" }, { stdin = stdin })
  process.remove(folder)
  return status, out, err
end

describe("readline", function()
  it("says whether the library is here", function()
    local installed = pcall(require("ffi").load, "libreadline.so.8")
    assert.equal(installed, readline.is_installed())
  end)

  it("reads a pipe's lines without a prompt, the last without its end too", function()
    assert.same({ 0, "<a>\n<>\n<b>\n", "" }, { lines_of(false, "a\n\nb") })
    assert.same({ 0, "", "" }, { lines_of(false, "") })
  end)

  it("prompts where the library is not here, otherwise while a statement goes on", function()
    assert.same({ 0, "> <a>\n>> <b>\n>> ", "" }, { lines_of(true, "a\nb\n") })
  end)
end)
