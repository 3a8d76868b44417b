local colour = require "fewhead.cli.colour"
local process = require "spec.process"
local terminal = require "spec.terminal"

describe("colour", function()
  after_each(function() colour.mode = "auto" end)

  it("paints words that say how an arm did, and leaves the others", function()
    colour.mode = "on"
    assert.equal("x \27[32mfaster\27[0m, \27[31mslower\27[0m, pass, fasters, slower_2",
      colour.words("x faster, slower, pass, fasters, slower_2", 1))
    assert.equal("\27[31moops\27[0m", colour.paint("oops", "bad", 2))
  end)

  it("changes nothing where it is off", function()
    colour.mode = "off"
    assert.equal("faster oops", colour.words("faster", 1) .. " " .. colour.paint("oops", "bad", 2))
  end)

  it("is off where standard output is a file", function()
    local _, out, err = process.run({ "./fewhead", "repl" }, { stdin = "fh.gate.new()\nnothing.here\n:set colour\n",
      env = { TERM = "xterm-256color", NO_COLOR = false } })
    assert.is_nil((out .. err):find("\27", 1, true))
    assert.matches("colour is auto\n$", out)
  end)

  -- What is drawn by a terminal whose error line is red.
  local here, why = terminal.is_here()
  for _, case in ipairs { { "has them", {}, true }, { "honours NO_COLOR", { NO_COLOR = "1" }, false },
    { "takes an empty NO_COLOR for none", { NO_COLOR = "" }, true }, { "has none with TERM=dumb", { TERM = "dumb" }, false } } do
    it("on a terminal " .. case[1], function()
      if not here then return pending("was not tried: " .. why) end
      local env = { FEWHEAD_DEVICE = "cpu", XDG_STATE_HOME = "/dev/null", NO_COLOR = false }
      for name, value in pairs(case[2]) do env[name] = value end
      local t = terminal.open("./fewhead repl", { env = env })
      t:wait("1>")
      t:type("error 'oops'")
      t:key "Enter"
      t:wait("In[1]:1: oops")
      local drawn = t:escapes()
      t:close()
      assert.equal(case[3], drawn:find("\27[31mIn[1]:1: oops", 1, true) ~= nil, drawn)
    end)
  end
end)
