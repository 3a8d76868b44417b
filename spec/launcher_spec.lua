local helper = require "spec.helper"
local process = require "spec.process"

local launcher = process.root .. "/fewhead"

-- Runs text as a script file through the launcher.
local function run_script(text, words, options)
  local folder = helper.folder()
  local path = process.write(folder .. "script.lua", text)
  local command = { launcher, "run", path }
  for _, word in ipairs(words or {}) do command[#command + 1] = word end
  local status, out, err = process.run(command, options)
  process.remove(folder)
  return status, out, (err:gsub(folder:gsub("%p", "%%%0"), ""))
end

describe("./fewhead", function()
  it("works in any folder, by a relative path, and through links to links", function()
    local folder = helper.folder() .. "with space/"
    helper.shell("mkdir " .. helper.quoted(folder))
    local link = helper.quoted(folder .. "link")
    assert.equal(0, (process.run(("ln -s %s %s && ln -s link %s"):format(helper.quoted(launcher), link,
      helper.quoted(folder .. "second")))))
    local _, want = process.run { launcher, "--help" }
    assert.matches("^usage: fewhead COMMAND", want)
    for _, command in ipairs { launcher, folder .. "link", "./second" } do
      local status, out, err = process.run({ command, "--help" }, { cwd = folder })
      assert.same({ 0, want, "" }, { status, out, err })
    end
    local status, out = process.run("PATH=" .. helper.quoted(folder) .. ":$PATH; second --help", { cwd = "/" })
    assert.same({ 0, want }, { status, out })
    process.remove(folder)
  end)

  it("hands a script its arguments untouched", function()
    local words = { "--s-q", "64:2048:*2", "", "two words", "-", "--", "'\"$HOME`*", "--help", "-e" }
    local status, out = run_script([[for i = 1, #arg do io.write("[", arg[i], "]") end io.write(#arg, " ", ...)]], words)
    assert.equal(0, status)
    assert.equal("[" .. table.concat(words, "][") .. "]9 " .. table.concat(words), out)
  end)

  it("lets a script load the library, whatever LUA_PATH says", function()
    local status, out = run_script([[io.write(require("fewhead").VERSION)]], {}, { env = { LUA_PATH = "/no" }, cwd = "/" })
    assert.same({ 0, require("fewhead").VERSION }, { status, out })
  end)

  it("finds a shipped script in any folder, but a file that is here first", function()
    local folder = helper.folder()
    assert.equal(0, (process.run({ launcher, "run", "experiments/gate_sweep.lua", "--help" }, { cwd = folder })))
    assert.equal(0, (process.run({ "mkdir", "experiments" }, { cwd = folder })))
    process.write(folder .. "experiments/gate_sweep.lua", "print 'mine'")
    local _, out = process.run({ launcher, "run", "experiments/gate_sweep.lua" }, { cwd = folder })
    assert.equal("mine\n", out)
    process.remove(folder)
  end)

  it("leaves with the status that a script returns", function()
    assert.equal(0, (run_script "return"))
    assert.equal(3, (run_script "return 3"))
    assert.equal(0, (run_script "return { gate = true }"))
    assert.equal(4, (run_script "os.exit(4)"))
    assert.equal(5, (run_script "require('fewhead.cli.cli').exit(5)"))
  end)

  it("refuses a status that a shell would cut or misread", function()
    for _, bad in ipairs { "256", "-1", "1.5", "126" } do
      local status, _, err = run_script("return " .. bad)
      assert.equal(1, status)
      assert.equal(("fewhead: script.lua returned %s, wanted an exit status in 0 .. 125, or 130 after Ctrl-C\n"):format(bad), err)
    end
  end)

  it("reports an error on one line, and with a trace when asked", function()
    local status, out, err = run_script "\nlocal x = nil\nprint(x.y)"
    assert.same({ 1, "", "fewhead: script.lua:3: attempt to index local 'x' (a nil value)\n" }, { status, out, err })
    status, out, err = run_script("error('two\\nlines')")
    assert.same({ 1, "", "fewhead: script.lua:1: two lines\n" }, { status, out, err })
    status, out, err = run_script("error({})")
    assert.same({ 1, "" }, { status, out })
    assert.matches("^fewhead: table: 0x%x+\n$", err)
    status, out, err = run_script("require 'no.such.module'")
    assert.same({ 1, "", "fewhead: script.lua:1: module 'no.such.module' not found\n" }, { status, out, err })
    status, out, err = run_script("x = = 1")
    assert.same({ 1, "", "fewhead: script.lua:1: unexpected symbol near '='\n" }, { status, out, err })
    err = select(3, run_script("error 'oops'", {}, { env = { FEWHEAD_TRACE = "1" } }))
    assert.matches("^fewhead: script.lua:1: oops\nstack traceback:\n", err)
  end)

  it("ends with 130 on Ctrl-C", function()
    -- The shell that io.popen starts sends the signal; os.execute would ignore it while it waits.
    local status, _, err = run_script [[
      local pid = io.open("/proc/self/stat"):read("*n")
      io.popen("kill -INT " .. pid):close()
      for _ = 1, 1e9 do tostring({}) end]]
    assert.same({ 130, "fewhead: interrupted\n" }, { status, err })
  end)

  it("names what is wrong with the command line, status 2", function()
    local status, out, err = process.run { launcher, "inof" }
    local want = 'fewhead: unknown command "inof", did you mean info? (fewhead --help lists them)\n'
    assert.same({ 2, "", want }, { status, out, err })
    status, out, err = process.run { launcher, "frobnicate" }
    assert.same({ 2, "", 'fewhead: unknown command "frobnicate" (fewhead --help lists them)\n' }, { status, out, err })
    status, out, err = process.run { launcher, "run" }
    assert.same({ 2, "", "fewhead: run: got no file, wanted FILE (fewhead run --help says more)\n" }, { status, out, err })
    status, out, err = process.run { launcher }
    assert.same({ 2, "" }, { status, out })
    assert.matches("^usage: fewhead COMMAND", err)
  end)

  it("names a file that is not there, status 1", function()
    local status, out, err = process.run { launcher, "run", "no_such.lua" }
    assert.same({ 1, "",
      "fewhead: run: no_such.lua: No such file or directory (fewhead experiments lists the names)\n" }, { status, out, err })
  end)

  it("prints one line of version", function()
    local status, out = process.run { launcher, "--version" }
    assert.equal(0, status)
    assert.matches("^fewhead " .. require("fewhead").VERSION:gsub("%.", "%%.") .. ", commit [^\n]+\n$", out)
  end)

  it("says `run make` where the library is not built", function()
    local folder = helper.folder() .. "a checkout/"
    helper.shell("mkdir " .. helper.quoted(folder))
    local to = helper.quoted(folder)
    local copy = ("cp -R fewhead lua %s && mkdir %slib && cp -R lib/include %slib"):format(to, to, to)
    assert.equal(0, (process.run(copy)))
    local status, out, err = process.run({ folder .. "fewhead", "info" }, { env = { FEWHEAD_LIB = false } })
    assert.same({ 1, "" }, { status, out })
    assert.matches("^fewhead: no library: [^\n]*: run make\n$", err)
    assert.equal(0, (process.run { folder .. "fewhead", "--help" }))
    process.remove(folder)
  end)

  it("fails when what it prints cannot be written", function()
    local status, _, err = process.run(helper.quoted(launcher) .. " --version >/dev/full")
    assert.same({ 1, "fewhead: standard output: No space left on device\n" }, { status, err })
    -- more than a buffer: a write in the middle fails, and the last one succeeds or not
    local folder = helper.folder()
    local script = process.write(folder .. "script.lua", "for _ = 1, 1e4 do print('a line') end")
    status, _, err = process.run(("%s run %s >/dev/full"):format(helper.quoted(launcher), helper.quoted(script)))
    assert.equal(1, status)
    assert.matches("^fewhead: standard output: ", err)
    process.remove(folder)
  end)

  it("says so where its folder's name means something else to Lua", function()
    local folder = helper.folder() .. "a;b"
    helper.shell(("mkdir %s && cd %s && cp -R fewhead lua %s"):format(helper.quoted(folder), helper.quoted(process.root),
      helper.quoted(folder)))
    local status, out, err = process.run { folder .. "/fewhead", "--help" }
    local wanted = "fewhead: it lies in %s/lua: Lua finds no modules in a folder with ; or ? in its name\n"
    assert.same({ 1, "", wanted:format(folder) }, { status, out, err })
    process.remove(folder)
  end)

  it("says what to install where luajit is missing", function()
    local status, out, err = process.run("PATH=/nowhere; exec " .. helper.quoted(launcher) .. " info")
    assert.same({ 1, "", "fewhead: needs luajit (Debian and Ubuntu: apt-get install luajit)\n" }, { status, out, err })
  end)
end)
