local helper = require "spec.helper"
local process = require "spec.process"

-- Runs tools/setup.sh where only the named commands exist: true for the real one, text for a script of that name, in which HERE/
-- is the folder of them all. apt-get, sudo and id are always scripts, so nothing is installed. Returns status, output, errors and
-- what apt-get and sudo were called with.
local function setup(words, commands)
  local folder = helper.folder()
  for _, name in ipairs { "sh", "env", "ls" } do commands[name] = true end
  for name, script in pairs(commands) do
    local path = folder .. name
    if script == true then helper.shell(("ln -s $(command -v %s) %s"):format(name, path))
    else
      process.write(path, "#!/bin/sh\n" .. script:gsub("HERE/", folder))
      helper.shell("chmod +x " .. path)
    end
  end
  local status, out, err = process.run(("PATH=%s; exec tools/setup.sh %s"):format(folder:sub(1, -2), words))
  local log = io.open(folder .. "calls")
  local calls = log and log:read("*a") or ""
  if log then log:close() end
  process.remove(folder)
  return status, out, err, calls
end

-- A machine that lacks luajit, and so every Lua module; `more` adds commands or replaces them.
local function machine(more)
  local commands = {
    cc = "exit 0", id = "echo 0", ["apt-get"] = 'echo "apt-get $*" >>HERE/calls',
    sudo = 'echo "sudo $*" >>HERE/calls; [ "$1" != -n ] || shift; "$@"',
  }
  for name, value in pairs(more or {}) do commands[name] = value or nil end
  return commands
end

local PACKAGES = "luajit lua-cjson lua-luv libxxhash0"
local NAMES = "luajit, the Lua module cjson, the Lua module luv, the xxHash library"
local INSTALL = "apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends " .. PACKAGES .. "\n"

describe("tools/setup.sh", function()
  it("is silent where everything is there", function()
    local status, out, err = process.run { "tools/setup.sh", "run", "test" }
    assert.same({ 0, "", "" }, { status, out, err })
  end)

  it("installs what is missing as root, and checks that it is found then", function()
    local status, out, err, calls = setup("run", machine { ["apt-get"] = [[
      echo "apt-get $*" >>HERE/calls
      [ "$1" != install ] || { printf '#!/bin/sh\n' >HERE/luajit; chmod +x HERE/luajit; }]], chmod = true })
    assert.same({ 0, "fewhead: installing " .. PACKAGES .. "\n", "" }, { status, out, err })
    assert.equal(INSTALL, calls:match("apt%-get install.*"))
  end)

  it("does not believe apt-get alone", function()
    local status, _, err = setup("run", machine())
    assert.same({ 1, "fewhead: installed, yet not found: " .. NAMES .. "\n" }, { status, err })
  end)

  it("takes fresh package lists when an install fails, once", function()
    local status, _, err, calls = setup("run", machine { ["apt-get"] = 'echo "apt-get $*" >>HERE/calls; [ "$1" = update ]' })
    assert.same({ 1, "fewhead: apt-get could not install: " .. PACKAGES .. "\n" }, { status, err })
    assert.equal("apt-get update -qq\n" .. INSTALL, calls:sub(-#("apt-get update -qq\n" .. INSTALL)))
  end)

  it("uses a sudo that asks for no password", function()
    local _, _, _, calls = setup("run", machine { id = "echo 1000" })
    assert.is_truthy(calls:find("sudo -n env LC_ALL=C DEBIAN_FRONTEND=noninteractive " .. INSTALL, 1, true), calls)
  end)

  it("prints the exact command where it may not install", function()
    local missing = "fewhead: missing on this machine: " .. NAMES .. "\nfewhead: to install it, "
    local command = "apt-get install -y --no-install-recommends " .. PACKAGES .. "\n"
    local status, out, err, calls = setup("run", machine { id = "echo 1000", sudo = false })
    assert.same({ 1, "", missing .. "run as root:\n  apt-get update && " .. command, "" }, { status, out, err, calls })
    status, out, err, calls = setup("run", machine { id = "echo 1000", sudo = "exit 1" })
    assert.same({ 1, "", missing .. "run:\n  sudo apt-get update && sudo " .. command, "" }, { status, out, err, calls })
  end)

  it("says what is missing on a system without apt-get", function()
    local status, out, err = setup("run", machine { ["apt-get"] = false })
    assert.same({ 1, "", "fewhead: missing on this machine: " .. NAMES .. "\n"
      .. "fewhead: it has no apt-get; install these with its own package manager and run make again\n" }, { status, out, err })
  end)

  it("asks for a compiler and its headers by package where there is none", function()
    local _, _, err = setup("run", machine { cc = false, id = "echo 1000", sudo = false })
    assert.matches("missing on this machine: a C compiler %(cc%), the C library headers, " .. NAMES .. "\n", err)
    assert.matches("recommends gcc libc6%-dev " .. PACKAGES:gsub("%-", "%%-") .. "\n$", err)
  end)

  it("names each package once when several targets need it", function()
    local _, _, err = setup("run test bench", machine { id = "echo 1000", sudo = false })
    assert.matches("recommends " .. PACKAGES:gsub("%-", "%%-")
      .. " lua%-ldoc lua%-discount lua%-busted pkg%-config python3 libreadline8 libopenblas0%-pthread\n$", err)
  end)

  it("refuses a target that is none", function()
    local status, _, err = setup("rnu", machine())
    assert.same({ 1, 'setup: unknown target "rnu"; known: run, test, repl, lint, docs, bench, slurm\n' }, { status, err })
  end)
end)
