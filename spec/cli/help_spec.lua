local help = require "fewhead.cli.help"
local fh = require "fewhead"

describe("help", function()
  it("shows a function's docstring below its signature, as it was called", function()
    assert.equal("fh.preset.models()\nSorted list of the models.", help.about("fh.preset.models", fh.preset.models))
    assert.equal("print has no docstring", help.about("print", print))
    assert.equal("x is nil: no help", help.about("x", nil))
  end)

  it("shows a module's head comment, its main function and the others", function()
    local text = help.about("fh.gate", fh.gate)
    assert.matches("^Gate: the published rule that decides", text)
    assert.is_truthy(text:find("  .fit(sweep, options)", 1, true), text)
    assert.is_truthy(help.about("fh.case", fh.case):find("fh.case(o)\nCheck the options and describe the call", 1, true))
  end)

  it("breaks lines at words, below the text of their second column", function()
    assert.equal("one two\nthree four\nfive", help.wrapped("one two three four five", 10))
    assert.equal("  name  of the\n        thing\nshort", help.wrapped("  name  of the thing\nshort", 16))
    assert.equal("    code(one,\n    two)", help.wrapped("    code(one, two)", 14))
    assert.equal("averylongword\nthat", help.wrapped("averylongword that", 5))
    assert.equal("one two three", help.wrapped("one two three", nil))
  end)

  it("leaves out the tags that only LDoc reads", function()
    local text = help.of_module("fewhead.cli.doctor")
    assert.matches("^Doctor: what fewhead finds", text)
    assert.is_nil(text:find("@module", 1, true))
  end)

  it("shows what an object can do, those that hide their methods too", function()
    assert.is_truthy(help.about("g", fh.gate.new()):find("^g is a gate\nmethods:\n"))
    local text = help.about("c", fh.case { s_q = 1 })
    assert.is_truthy(text:find("  :describe()", 1, true), text)
    assert.equal("n is a number", help.about("n", 1))
  end)

  it("lists the experiments with their head comment's first line", function()
    local found
    for _, one in ipairs(help.experiments()) do
      if one.name == "gate_sweep" then found = one end
    end
    assert.matches("experiments/gate_sweep.lua$", found.path)
    assert.matches("^Where do native heads beat padded ones", found.about)
  end)
end)
