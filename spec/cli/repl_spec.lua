local helper = require "spec.helper"
local process = require "spec.process"
local readline = require "fewhead.cli.readline"
local repl = require "fewhead.cli.repl"

-- What the prompt prints when these lines come through a pipe.
local function piped(text)
  local status, out, err = process.run({ "./fewhead", "repl" }, { stdin = text })
  return { out, err, status }
end

-- The same on a terminal, with history below `state`: everything the terminal shows, without colours and cursor movements.
local function typed(text, state)
  local status, out = process.run({ "script", "-qec", "./fewhead repl", "/dev/null" },
    { stdin = text, env = { XDG_STATE_HOME = state, TERM = "dumb" } })
  return out:gsub("\27%[[%d;?]*%a", ""):gsub("\r", ""), status
end

describe("repl.show", function()
  it("prints plain values as they are written", function()
    assert.equal("nil true 0.1 9007199254740991 NaN", table.concat({ repl.show(nil), repl.show(true), repl.show(0.1),
      repl.show(2 ^ 53 - 1), repl.show(0 / 0) }, " "))
    assert.equal('"a\\"b"', repl.show('a"b'))
  end)

  it("prints text of several lines as it is", function() assert.equal("a\nb", repl.show "a\nb") end)

  it("prints a table on one line, lists first and keys sorted", function()
    assert.equal("{}", repl.show {})
    assert.equal('{ 1, "two", { 3 }, [10] = true, ["a b"] = 1, b = { c = 2 }, z = 0 }',
      repl.show { 1, "two", { 3 }, z = 0, b = { c = 2 }, ["a b"] = 1, [10] = true })
  end)

  it("wraps what is wider than a line", function()
    local text = repl.show { first = ("x"):rep(60), second = ("y"):rep(60), third = { 1, 2 } }
    assert.equal(('{\n  first = "%s",\n  second = "%s", third = { 1, 2 }\n}'):format(("x"):rep(60), ("y"):rep(60)), text)
  end)

  it("stops at depth, at length and at a table inside itself", function()
    assert.equal("{ { { { .. } } } }", repl.show { { { { 1 } } } })
    local long = {}
    for i = 1, 100 do long[i] = i end
    assert.matches("31, 32, %.%. 68 more\n}$", repl.show(long))
    local loop = { 1 }
    loop.again = loop
    assert.equal("{ 1, again = { itself } }", repl.show(loop))
    local shared = { 1 }
    assert.equal("{ { 1 }, { 1 } }", repl.show { shared, shared })
  end)

  it("lets objects speak for themselves", function()
    local object = setmetatable({ 1, 2 }, { __tostring = function() return "an object" end })
    assert.equal("an object", repl.show(object))
    assert.equal("{ an object }", repl.show { object })
    assert.equal("3ULL", repl.show(3ULL))
  end)
end)

describe("repl.compile", function()
  it("returns the values of an expression, nil ones too", function()
    local function count(...) return select("#", ...), ... end
    assert.same({ 3, 1, nil, 3 }, { count(repl.compile("1, nil, 3")()) })
    assert.equal(2, repl.compile("= 1 + 1")())
    assert.equal(0, (count(repl.compile("x_from_spec = 5")())))
    assert.equal(5, repl.compile("x_from_spec")())
    x_from_spec = nil -- luacheck: ignore
  end)

  it("asks for more where a statement is not complete, and only there", function()
    for _, text in ipairs { "for i = 1, 2 do", "f(", "= 1 +", "x = {", "if a then b() else", "[[" } do
      assert.same({ nil, nil }, { repl.compile(text) })
    end
    assert.same({ nil, "repl:1: '=' expected near 'bar'" }, { repl.compile "foo bar" })
    assert.same({ nil, "repl:1: unexpected symbol near ')'" }, { repl.compile "= )" })
  end)
end)

describe("repl.complete", function()
  it("knows globals and keywords", function()
    assert.same({ "function" }, repl.complete "func")
    assert.same({ "tonumber", "tostring" }, repl.complete "to")
  end)

  it("knows fields, those of classes, and modules that are not loaded yet", function()
    _G.fh = require "fewhead"
    assert.same({ "string.rep", "string.reverse" }, repl.complete "string.re")
    assert.same({ "fh.tensor" }, repl.complete "fh.ten")
    _G.thing = setmetatable({ own = 1 }, { __index = { open = 1, _hidden = 2 } })
    assert.same({ "thing:open", "thing:own" }, repl.complete "thing:")
    _G.fh, _G.thing = nil, nil
  end)

  it("is quiet about what is not there", function()
    assert.same({}, repl.complete "no_such.thing.x")
    assert.same({}, repl.complete "fh_nothing")
  end)
end)

describe("fewhead repl on a pipe", function()
  it("prints results and no prompt", function()
    assert.same({ '2\n"a"\nnil\n', "", 0 }, piped '1 + 1\n= "a"\nx = 3\nnil\n')
  end)

  it("has the library loaded as fh", function()
    assert.same({ ('"%s"\n'):format(require("fewhead").VERSION), "", 0 }, piped "fh.VERSION\n")
  end)

  it("joins lines until a statement is complete", function()
    assert.same({ "1\n2\n", "", 0 }, piped "for i = 1, 2 do\n  print(i)\nend\n")
    assert.same({ "7\n", "", 0 }, piped "3 +\n\n4")
  end)

  it("goes on after errors, which it tells on stderr and with status 1", function()
    assert.same({ "1\n2\n", "repl:1: oops\nrepl:1: '=' expected near 'bar'\n", 1 }, piped '1\nerror "oops"\nfoo bar\n2\n')
    assert.same({ "", "repl:1: attempt to index global 'nothing' (a nil value)\n", 1 }, piped "nothing.here\n")
  end)

  it("reports a statement that never ended", function()
    assert.same({ "", "repl:1: '<name>' expected near '<eof>'\n", 1 }, piped "function\n")
  end)

  it("takes no options but --help", function()
    local status, _, err = process.run { "./fewhead", "repl", "--frob" }
    assert.same({ 2, "repl: unknown option --frob (--help lists the options)\n" }, { status, err })
  end)
end)

describe("fewhead repl on a terminal", function()
  it("greets, prompts, survives errors and leaves on Ctrl-D with 0", function()
    local state = helper.folder()
    local out, status = typed('1 + 1\nfor i = 7, 7 do\nprint(i) end\nerror "oops"\n\4', state)
    process.remove(state)
    assert.equal(0, status)
    assert.matches("fewhead " .. require("fewhead").VERSION:gsub("%.", "%%.") .. "%.", out)
    for _, part in ipairs { "> 1 + 1\n2\n", ">> print(i) end\n7\n", "repl:1: oops\n" } do
      assert.is_truthy(out:find(part, 1, true), out)
    end
  end)

  it("keeps the history where line editing is installed, and none elsewhere", function()
    local state = helper.folder()
    typed("first_line = 1\n\4", state)
    typed("first_line\n\4", state)
    local file = io.open(state .. "fewhead/history")
    local kept = file and file:read("*a")
    if file then file:close() end
    process.remove(state)
    if readline.is_installed() then assert.equal("first_line = 1\nfirst_line\n", kept)
    else assert.is_nil(kept)
    end
  end)
end)
