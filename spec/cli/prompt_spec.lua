-- The prompt as a person meets it: keys go into a terminal, the screen is compared.
local helper = require "spec.helper"
local process = require "spec.process"
local readline = require "fewhead.cli.readline"
local terminal = require "spec.terminal"

local here, why = terminal.is_here()
if here and not readline.is_installed() then here, why = nil, "the readline library is not here" end

describe("fewhead repl on a terminal", function()
  if not here then
    pending("was not tried: " .. why)
    return
  end

  local state, t
  local function open(options, command)
    options = options or {}
    options.env = options.env or {}
    options.env.XDG_STATE_HOME = options.env.XDG_STATE_HOME or state
    options.env.FEWHEAD_DEVICE = "cpu"
    t = terminal.open(command or "./fewhead repl", options)
    t:wait("1>")
    return t
  end
  local function line(text)
    t:type(text)
    t:key "Enter"
  end
  before_each(function() state = helper.folder() end)
  after_each(function()
    if t then t:close() end
    t = nil
    process.remove(state)
  end)

  it("greets, numbers its prompts, survives errors and leaves on Ctrl-D with 0", function()
    open()
    line "1 + 1"
    t:wait("1> 1 + 1\n2\n2>")
    line 'error "oops"'
    t:wait("In[2]:1: oops\n3>")
    line "for i = 7, 7 do"
    line "print(i) end"
    t:wait(">> print(i) end\n7\n4>")
    line "Out[1] + _"
    t:wait("\n4\n5>")
    t:key "C-d"
    local screen = t:wait("status 0")
    assert.is_truthy(screen:find("fewhead " .. require("fewhead").VERSION .. ": the library is `fh`", 1, true), screen)
  end)

  it("runs a pasted block once, as it was pasted: a tab, a blank line in a string, no last newline", function()
    open()
    t:paste("local text = [[a\n\nb]]\nif text then\n\tcount = (count or 0) + 1"
      .. "\n\tprint(#text .. ' ' .. tostring('\t' == '\\t')) end")
    t:wait("print(#text")
    t:key "Enter"
    t:wait("4 true\n")
    line "count, #Out"
    t:wait("\n1\n0\n")
  end)

  it("runs a paste of 1100 lines once", function()
    open { rows = 30 }
    local lines = {}
    for i = 1, 1100 do lines[i] = ("local x%d = %d; sum = (sum or 0) + 1"):format(i, i) end
    t:paste(table.concat(lines, "\n") .. "\n")
    t:wait("x1100 = 1100")
    t:key "Enter"
    t:wait("2>")
    line "sum, x1, x1100"
    t:wait("\n1100\n1\n1100\n")
  end)

  it("keeps locals from line to line: README's example runs when pasted", function()
    open()
    local block = helper.read(process.root .. "/README.md"):match("\n```lua\n(.-)```")
    t:paste(block)
    t:wait("which path and why")
    t:key "Enter"
    t:wait("\n2>")
    line "gate.enabled ~= nil, case.s_q"
    t:wait("\ntrue\n64\n")
  end)

  it("drops what is typed on Ctrl-C, and an interrupted search is over", function()
    open()
    line "stale = 1"
    t:wait("2>")
    t:type("dropped = 2")
    t:key "C-c"
    t:wait("2>", 2)
    line "dropped"
    t:wait("\nnil\n")
    t:key "C-r"
    t:wait("reverse-i-search")
    t:type("stale")
    t:wait("`stale'")
    t:key "C-c"
    t:wait("3>", 2)
    t:key "Enter"
    line "'fresh'"
    t:wait('\n"fresh"\n')
    line "for i = 1, 2 do"
    t:wait(">>")
    t:key "C-c"
    line "'new'"
    t:wait('\n"new"\n')
  end)

  it("stops a loop on Ctrl-C, twice in a row", function()
    open()
    for n = 1, 2 do
      line("print 'on'; while true do end -- " .. n)
      t:wait("\non\n", n)
      t:key "C-c"
      t:wait("\ninterrupted\n", n)
    end
  end)

  it("waits for a call of C on Ctrl-C, and says so", function()
    open()
    line [[f = io.popen("trap '' INT; echo on >&2; exec sleep 2"); text = f:read('*a'); print 'not reached']]
    t:wait("\non\n")
    t:key "C-c"
    t:wait("\n" .. require("fewhead.cli.interrupt").HEARD .. "\ninterrupted\n2>")
    line "1 + 1"
    t:wait("\n2\n3>")
  end)

  it("stops a sweep on Ctrl-C and keeps what was measured", function()
    open()
    line("sweep = fh.sweep { s_q = '1,2,3,4,5,6,7,8', min_samples = 6, max_seconds = 3000, on_record = function(r) print('one ' "
      .. ".. r.case.s_q) end }")
    t:wait("one 1")
    t:wait("2 of 8 cells, about ")
    t:key "C-c"
    t:wait("interrupted: ")
    t:wait(" of 8 cells are in the result\n2>")
    line "sweep.interrupted, #sweep.records > 0, sweep.cells < 8"
    t:wait("\ntrue\ntrue\ntrue\n")
    line "fh.sweep { s_q = 'x' }"
    t:wait('sweep: s_q: got "x"')
  end)

  it("completes names, options, values and files", function()
    open()
    local function tab(text, completed) -- keys behind a tab that come at once are a paste
      t:type(text)
      t:wait(text)
      t:key "Tab"
      t:wait(completed)
    end
    tab("g = fh.gate.n", "g = fh.gate.new")
    line "()"
    t:wait("2>")
    tab("g:", "g:export_line  g:plot") -- one tab lists the choices
    tab("expl", "g:explain")
    tab("{ s_q = 1, hea", "s_q = 1, heads")
    line " = 8 }"
    t:wait("3>")
    tab("c = fh.case { s_q = 1, preset = 'v4.1-flash tp1", "tp1")
    tab("6', patt", "pattern")
    tab(" = 'cs", "'csa")
    tab("' } f = 'READM", "README.md")
    line "'"
    t:wait("3> c = fh.case { s_q = 1, preset = 'v4.1-flash tp16', pattern = 'csa' } f = 'README.md'\n4>")
  end)

  it("keeps the lines of two sessions, the line that ended the process, and entries of several lines", function()
    open()
    local one = t
    line "first = 1"
    one:wait("2>")
    open()
    line "second = 2"
    t:wait("2>")
    line "do"
    line "  third = 3 end"
    t:wait("3>")
    line "require('ffi').cast('int *', 8)[0] = 1"
    t:wait("status 139")
    t:close()
    t = one
    line "last = 4"
    t:wait("3>")
    assert.equal("first = 1\nsecond = 2\ndo\n\t  third = 3 end\nrequire('ffi').cast('int *', 8)[0] = 1\nlast = 4\n",
      helper.read(state .. "fewhead/history"))
    one:close()
    open()
    t:key("Up", "Up", "Up")
    t:wait("third = 3 end")
    t:key "Enter"
    t:wait("2>")
    line "third"
    t:wait("\n3\n")
  end)

  it("says once that history cannot be kept", function()
    open { env = { XDG_STATE_HOME = "/dev/null/x" } }
    line "1 + 1"
    local screen = t:wait("\n2\n")
    assert.equal(1, select(2, screen:gsub("history: not kept: /dev/null/x: Not a directory\n", "")), screen)
    assert.equal(1, select(2, screen:gsub("history", "")), screen)
  end)

  it("shows the text as it is after the window became narrow and wide again", function()
    open { columns = 120 }
    local text = ("abcdefghij"):rep(10)
    t:type("x = '" .. text)
    t:wait("1> x = '" .. text)
    t:resize(40)
    t:wait("'")
    t:resize(120)
    t:type("'")
    t:wait("1> x = '" .. text .. "'")
    t:key "Enter"
    line "#x"
    t:wait("\n100\n")
  end)

  it("says in a line that readline is not there, and works without it", function()
    local load = "local ffi = require 'ffi'; local load = ffi.load; function ffi.load(name, ...) "
      .. "if name:find 'readline' then error 'none' end; return load(name, ...) end"
    open { env = { LUA_INIT = load } }
    t:wait("\nreadline: not found, so no line editing, history or completion (make repl installs it)\n1>")
    line "20 + 1"
    t:wait("\n21\n2>")
    t:key "C-c"
    t:wait("2>", 2)
    t:key "C-d"
    t:wait("status 0")
  end)

  it("breaks help at words where the terminal is narrow", function()
    open { columns = 60 }
    line "fh.preset.check?"
    t:wait('WHAT: got .., wanted one of 35 names (fewhead\nrun gate_sweep --list lists them)", and')
  end)

  it("loads changed modules anew on :reload, and objects go on working", function()
    local copy = state .. "copy/"
    local _, status = helper.shell(("mkdir %s && cd %s && R=%s && cp -R $R/fewhead $R/lua . && ln -s $R/lib $R/build ."):format(
      copy, copy, helper.quoted(process.root)))
    assert.equal(0, status)
    open({}, ("cd %s && ./fewhead repl"):format(copy))
    line "g = fh.gate.new { min_sq = 512 }"
    t:wait("2>")
    line "fh.preset.tp"
    t:wait("\n{ 1, 2, 4, 8, 16 }\n3>")
    local path = copy .. "lua/fewhead/case/preset.lua"
    local text, count = helper.read(path):gsub("local TP = { 1, 2, 4, 8, 16 }", "local TP = { 1, 2 }")
    assert.equal(1, count)
    helper.write(path, text)
    line ":reload"
    t:wait(" modules loaded anew; the C library stays as it was loaded\n3>")
    line "fh.preset.tp, g:native(8, 512)"
    t:wait("\n{ 1, 2 }\ntrue\n4>")
  end)

  it("sends no escape code to a dumb terminal, where Ctrl-C and Ctrl-D work", function()
    local log = state .. "log"
    open({ env = { TERM = "dumb", SHELL = "/bin/sh" } }, "script -qec 'exec ./fewhead repl' " .. log)
    line "1 + 1"
    t:wait("\n2\n")
    t:type("dropped = 1")
    t:key "C-c"
    t:wait("2>", 2)
    line "dropped"
    t:wait("\nnil\n")
    t:key "C-d"
    t:wait("status 0")
    assert.is_nil(helper.read(log):find("\27", 1, true))
  end)

  it("keeps prompts out of a pipe on standard output", function()
    local out = state .. "out"
    open({}, "./fewhead repl | tee " .. out .. " | sed 's/^/got /'")
    line "print(1)"
    t:wait("2>")
    t:key "C-d"
    t:wait("got 1")
    t:wait("status 0")
    assert.equal("1\n", helper.read(out))
  end)
end)
