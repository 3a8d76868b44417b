local exit = require "fewhead.cli.exit"

describe("exit.with", function()
  it("is an error that says its message where nobody catches it", function()
    local ok, err = pcall(exit.with, 3, "tool: it failed")
    assert.is_false(ok)
    assert.equal("tool: it failed", tostring(err))
    assert.equal("exit status 3", tostring(select(2, pcall(exit.with, 3))))
  end)

  it("refuses a status that a shell would cut or misread", function()
    for given, shown in pairs { [256] = "256", [-1] = "-1", [1.5] = "1.5", [126] = "126", [true] = "true" } do
      local _, err = pcall(function() exit.with(given) end)
      assert.matches(("exit_spec.lua:%%d+: exit: got %s, wanted an exit status in 0 .. 125, or 130 after Ctrl%%-C$"):format(
        (shown:gsub("%p", "%%%0"))), err)
    end
  end)
end)

describe("exit.status", function()
  it("is what the function returns, 0 for nothing", function()
    assert.equal(7, exit.status(function() return 7 end))
    assert.equal(0, exit.status(function() end))
  end)

  it("is what exit.with said, through every caller", function()
    assert.equal(130, exit.status(function()
      local function inner() exit.with(exit.INTERRUPTED) end
      inner()
      return 1
    end))
  end)

  it("does not hide the message of a pcall between them", function()
    assert.equal(5, exit.status(function()
      local ok, err = pcall(exit.with, 5)
      assert(not ok)
      error(err, 0)
    end))
  end)
end)

describe("exit.is_interrupt", function()
  it("knows luajit's Ctrl-C from other errors", function()
    assert.is_true(exit.is_interrupt "x.lua:3: interrupted!")
    assert.is_true(exit.is_interrupt "interrupted!")
    assert.is_false(exit.is_interrupt "x.lua:3: interrupted")
    assert.is_false(exit.is_interrupt {})
  end)
end)
