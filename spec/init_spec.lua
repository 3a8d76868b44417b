local fh = require "fewhead"
local helper = require "spec.helper"

local refusal = helper.refusal

describe("fewhead", function()
  it("loads every module it names when it is first used, and none before", function()
    local output = helper.luajit [[
      local fh = require "fewhead"
      local loaded = {}
      for name in pairs(package.loaded) do if name:find("^fewhead%.") then loaded[#loaded + 1] = name end end
      print(table.concat(loaded, " "))
      for _, name in ipairs(fh._names) do assert(fh[name] == require(("fewhead.%s.%s"):format(fh._room[name], name)), name) end
      print("all")]]
    assert.equal("fewhead.base.arguments\nall", output)
  end)

  it("refuses a name that is none, on the caller's line, with the likely one", function()
    local list = table.concat(fh._names, ", ")
    assert.equal('fewhead: no module "tensr"; did you mean "tensor"? there are: ' .. list,
      refusal(function() return fh.tensr end))
    assert.equal('fewhead: no module "qqqq"; there are: ' .. list, refusal(function() return fh.qqqq end))
    assert.equal("fewhead: no module 1; there are: " .. list, refusal(function() return fh[1] end))
  end)

  it("has the version of the header, spelt out", function()
    local v = fh.ffi.C.fh_version()
    assert.equal(("%d.%d.%d"):format(math.floor(v / 10000), math.floor(v / 100) % 100, v % 100), fh.VERSION)
    assert.equal("0.2.0", fh.VERSION)
  end)
end)
