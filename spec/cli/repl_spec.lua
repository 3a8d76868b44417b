local helper = require "spec.helper"
local process = require "spec.process"
local store = require "fewhead.record.store"

-- What the prompt prints when these lines come through a pipe.
local function piped(text)
  local status, out, err = process.run({ "./fewhead", "repl" }, { stdin = text })
  return { out, err, status }
end

describe("fewhead repl on a pipe", function()
  it("prints results and no prompt", function()
    assert.same({ '2\n"a"\nnil\n', "", 0 }, piped '1 + 1\n= "a"\nx = 3\nnil\n')
  end)

  it("has the library loaded as fh", function()
    assert.same({ ('"%s"\n'):format(require("fewhead").VERSION), "", 0 }, piped "fh.VERSION\n")
  end)

  it("prints no nil for the error that a result does not have, and every nil without a result", function()
    assert.equal("1\nnil\n2\n", piped("1, nil, nil\n")[1] .. piped("nil, 2\n")[1])
  end)

  it("joins lines until a statement is complete", function()
    assert.same({ "1\n2\n", "", 0 }, piped "for i = 1, 2 do\n  print(i)\nend\n")
    assert.same({ "7\n", "", 0 }, piped "3 +\n\n4")
  end)

  it("goes on after errors, which it tells on stderr and with status 1", function()
    assert.same({ "1\n2\n", "In[2]:1: oops\nIn[3]:1: '=' expected near 'bar'\n", 1 }, piped '1\nerror "oops"\nfoo bar\n2\n')
    assert.same({ "", "In[1]:1: attempt to index global 'nothing' (a nil value)\n", 1 }, piped "nothing.here\n")
  end)

  it("reports a statement that never ended", function()
    assert.same({ "", "In[1]:1: '<name>' expected near '<eof>'\n", 1 }, piped "function\n")
  end)

  it("takes no options but --help", function()
    local status, _, err = process.run { "./fewhead", "repl", "--frob" }
    assert.same({ 2, "repl: unknown option --frob (--help lists the options)\n" }, { status, err })
  end)

  it("prints nothing but what is asked for: two bytes for print(1)", function()
    assert.same({ "1\n", "", 0 }, piped "print(1)")
  end)

  it("keeps values as _ and Out[n], and locals from line to line", function()
    assert.same({ "41\n42\n42\n41\n", "", 0 }, piped "local a = 41\na\n_ + 1\n_\nOut[2]\n")
  end)

  it("shows the line of an error in a statement of several", function()
    assert.same({ "", "In[1]:2: oops\n  2 |   error 'oops'\n", 1 }, piped "do\n  error 'oops'\nend\n")
    assert.same({ "", "In[1]:2: '=' expected near 'bar'\n  2 |   foo bar\n", 1 }, piped "do\n  foo bar\n")
  end)

  it("leaves on exit and quit", function()
    for _, word in ipairs { "exit", "quit", " quit() " } do assert.same({ "1\n", "", 0 }, piped("1\n" .. word .. "\n2\n")) end
  end)

  it("prints docstrings: ?NAME, NAME?, :help NAME", function()
    local min_sq = "A gate: native heads from min_sq rows up"
    for _, line in ipairs { "?fh.gate.new", "fh.gate.new?", ":help fh.gate.new", "help(fh.gate.new)" } do
      local out, err, status = unpack(piped(line .. "\n"))
      assert.same({ "", 0 }, { err, status })
      assert.is_truthy(out:find("fh.gate.new(options)\n" .. min_sq, 1, true), out)
    end
    assert.is_truthy(piped("g = fh.gate.new()\ng:explain?\n")[1]:find("Which path a chunk takes and why.", 1, true))
    assert.is_truthy(piped("g = fh.gate.new()\ng?\n")[1]:find("g is a gate\nmethods:\n", 1, true))
    assert.is_truthy(piped("c = fh.case { s_q = 1 }\nc?\n")[1]:find("  :describe()", 1, true))
    assert.is_truthy(piped("fh.case?\n")[1]:find("Options, all but s_q with a default", 1, true))
    assert.same({ "nothing.here is nil: no help\n", "", 0 }, piped "nothing.here?\n")
  end)

  it(":doc lists modules, patterns, layouts, paths, presets and experiments", function()
    local out = piped(":doc\n")[1]
    for _, part in ipairs { "fh.sweep ", "patterns: ", "layouts: contiguous, ", "paths: auto, ", "v4.1-flash", "gate_sweep " } do
      assert.is_truthy(out:find(part, 1, true), part)
    end
  end)

  it(":time says how long a statement took, after what it prints", function()
    local out, err, status = unpack(piped ":time 1 + 1\n_\n:time\n")
    assert.matches("^2\n[%d.]+ %a+\n2\n$", out)
    assert.same({ ":time: got nothing complete, wanted an expression or a statement\n", 1 }, { err, status })
  end)

  it(":run runs a file that sees what was typed, and whose globals stay", function()
    local path = os.tmpname()
    process.write(path, "found = typed + 1")
    assert.same({ "42\n", "", 0 }, piped("local typed = 41\n:run " .. path .. "\nfound\n"))
    os.remove(path)
    local told = "cannot open /no/such: No such file or directory\n:run: got nothing, wanted a Lua file\n"
    assert.same({ "", told, 1 }, piped ":run /no/such\n:run\n")
  end)

  it(":load brings a stored sweep back as an object", function()
    local out, err, status = unpack(piped(":load results/nvidia-h200/gate_sweep.jsonl\n#_.records > 0\n"
      .. "#Out[1]:filter({ path = 'padded' }).records > 0\n"))
    assert.matches("^records of results/nvidia%-h200/gate_sweep%.jsonl\n[^\n]+verdict.*\ntrue\ntrue\n$", out)
    assert.same({ "", 0 }, { err, status })
    assert.equal(1, piped(":load /no/such\n")[3])
  end)

  it(":load says which run of a folder it takes", function()
    local folder = helper.folder()
    local run = assert(store.create(folder:sub(1, -2), "night", { plan = "p", cells = 1 }))
    assert(run:add("aa", 1, { { path = "padded", provider = "fewhead", case = { s_q = 4 }, parity = { status = "invalid" } } }))
    run:finish { state = "complete" }
    local out, err = unpack(piped((":load %s\n"):format(folder)))
    assert.equal("", err)
    assert.matches("^records of run %d+T%d+Z%-night: 1 cells, complete\n", out)
    helper.shell("rm -rf " .. folder)
  end)

  it("names the commands after an unknown one", function()
    local found = piped ":frob\n"
    assert.matches("^:frob: no such command; there are :doc, :help", found[2])
    assert.equal(1, found[3])
  end)
end)
