local helper = require "spec.helper"
local shell = require "fewhead.base.shell"

local WORDS = {
  "plain", "v3.2 tp8", "it's", "", "a\"b", "$HOME", "`id`", "a;b", "tab\there", "line\nend", "*", "~", "#x", "back\\slash", "ü",
  "a=b", "--x=1:2:+3", "{a,b}", "!!", "&", "(x)", "'",
}

describe("shell.quote", function()
  it("makes one word that a shell reads back as it was", function()
    for _, word in ipairs(WORDS) do
      assert.equal(word .. "|", (helper.shell(("printf '%%s|' %s"):format(shell.quote(word)))))
    end
  end)

  it("quotes what needs it alone", function()
    assert.equal("/a/b-c_d.npy", shell.quote "/a/b-c_d.npy")
    assert.equal("'64:8192:*2'", shell.quote "64:8192:*2")
    assert.equal("'it'\\''s'", shell.quote "it's")
    assert.equal("''", shell.quote "")
    assert.equal("7", shell.quote(7))
  end)
end)

describe("shell.line", function()
  it("is the line that a person types", function()
    assert.equal("./fewhead run gate_sweep --s-q 64:8192:*2 --preset 'v3.2 tp8' --note ''",
      shell.line { "./fewhead", "run", "gate_sweep", "--s-q", "64:8192:*2", "--preset", "v3.2 tp8", "--note", "" })
    assert.equal("", shell.line {})
  end)

  it("is read back by a shell word by word", function()
    local words = { "printf", "%s|" }
    for _, word in ipairs(WORDS) do
      if word ~= "*" then words[#words + 1] = word end -- the one word that a person need not quote
    end
    assert.equal(table.concat(words, "|", 3) .. "|", (helper.shell(shell.line(words))))
  end)
end)
