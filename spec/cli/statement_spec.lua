local statement = require "fewhead.cli.statement"

describe("statement", function()
  local function run(session, text)
    local chunk = assert(session:compile(text))
    session:count(text)
    return chunk()
  end

  it("returns the values of an expression, nil ones too", function()
    local function count(...) return select("#", ...), ... end
    local session = statement.session()
    assert.same({ 3, 1, nil, 3 }, { count(run(session, "1, nil, 3")) })
    assert.equal(2, run(session, "= 1 + 1"))
    assert.equal(0, (count(run(session, "x_from_spec = 5"))))
    assert.equal(5, run(session, "x_from_spec"))
    assert.equal(5, rawget(_G, "x_from_spec"))
    x_from_spec = nil -- luacheck: ignore
  end)

  it("returns the values of an expression behind statements", function()
    local session = statement.session()
    assert.same({ 3, 2 }, { run(session, "local a, b = 2, 1; a + b, a") })
    assert.equal(4, run(session, "a = 4; for i = 1, 2 do b = i; end; a -- the last"))
    local chunk = session:compile "a = 1;\na;\nb.c.d"
    assert.is_nil(chunk) -- `a;` is no statement
    local failing, is_expression = session:compile "a = 1;\nstring.c.d"
    assert.is_true(is_expression)
    assert.same({ 4 }, { run(session, "a = 4; math.abs(-a)") })
    assert.same({ false, "In[3]:2: attempt to index field 'c' (a nil value)" }, { pcall(failing) })
    assert.same({ nil, nil }, { session:compile "function f() a = 1; a" })
    assert.same({ nil, nil }, { session:compile "a = 1; f(" })
  end)

  it("asks for more where a statement is not complete, and only there", function()
    local session = statement.session()
    for _, text in ipairs { "for i = 1, 2 do", "f(", "= 1 +", "x = {", "if a then b() else", "[[", "local x =", "local" } do
      assert.same({ nil, nil }, { session:compile(text) })
    end
    assert.same({ nil, "In[1]:1: '=' expected near 'bar'" }, { session:compile "foo bar" })
    assert.same({ nil, "In[1]:1: unexpected symbol near ')'" }, { session:compile "= )" })
    assert.same({ nil, "In[1]:1: '<name>' expected near '='" }, { session:compile "local = 1" })
  end)

  it("keeps the locals of the top level for later statements, and no global of their names", function()
    local session = statement.session()
    run(session, "local a, b = 1 -- local c = 2\nlocal function f(n) return n < 2 and 1 or n * f(n - 1) end")
    assert.same({ 1, nil, nil, 120 }, { run(session, "a, b, c, f(5)") })
    run(session, "local a = a + 1; local print, d")
    assert.same({ 2, nil, nil }, { run(session, "a, print, d") })
    run(session, "local counter = 0 function count_up() counter = counter + a return counter end")
    assert.same({ 2, 4, 4 }, { run(session, "count_up(), count_up(), counter") })
    assert.is_nil(rawget(_G, "a"))
    assert.is_function(print)
    count_up = nil -- luacheck: ignore
  end)

  it("leaves the locals of blocks and functions to them, whatever strings and comments say", function()
    local session = statement.session()
    run(session, [==[
do local inner = 1 end
for i = 1, 1 do local inner = 2 end
if true then local inner = 3 else local inner = 4 end
repeat local inner = 5 until inner == 5
while false do local inner end
local f = function() local inner = 6; return inner end --[[ local inner = 7 ]]
local s = "do local inner" .. [[ function ]] .. 'repeat\'' -- local inner]==])
    assert.same({ nil, 6, "do local inner function repeat'" }, { run(session, "inner, f(), s") })
  end)

  it("takes more locals than a function may have", function()
    local session, lines = statement.session(), {}
    for i = 1, 1100 do lines[i] = ("local x%d = %d"):format(i, i) end
    run(session, table.concat(lines, "\n"))
    assert.equal(1101, run(session, "x1 + x1100"))
  end)

  it("finds the line that an error names, in the statement that it stands in", function()
    local session = statement.session()
    run(session, "local function deep()\n  error 'oops'\nend")
    local ok, err = pcall(run, session, "deep()")
    assert.same({ false, "In[1]:2: oops", "  2 |   error 'oops'" }, { ok, err, session:line_of(err) })
    ok, err = pcall(run, session, "error 'here'")
    assert.same({ false, "In[3]:1: here" }, { ok, err, session:line_of(err) })
  end)
end)
