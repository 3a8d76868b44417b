local F = require "fewhead.base.ffi"
local checkout = require "fewhead.base.checkout"
local device = require "fewhead.device.device"
local json = require "fewhead.base.json"
local run = require "fewhead.record.run"

local dev = device.default()

-- First line of what a command prints.
local function output(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*l")
  pipe:close()
  return text
end

-- A folder with a copy of the modules in it, gone when the test ends. use(folder, what `luajit -e script` prints there).
local function with_copy(use)
  local folder = output("mktemp -d")
  local modules, header = checkout.modules, checkout.root .. "lib/include/fewhead.h"
  local function sh(command)
    assert(os.execute(("cd '%s' && { %s; } >/dev/null 2>&1"):format(folder, command)) == 0, command)
  end
  sh("mkdir -p lua lib/include")
  os.execute(("cp -r '%s' '%s/lua/fewhead' && cp '%s' '%s/lib/include/'"):format(modules, folder, header, folder))
  local library = F.path:gsub("^%./", os.getenv("PWD") .. "/")
  local function version()
    return output(("cd / && FEWHEAD_LIB='%s' LUA_PATH='%s/lua/?.lua' luajit -e '%s'"):format(library, folder,
      'local c, d = require("fewhead.record.run").version() print(c, d)'))
  end
  local ok, err = pcall(use, sh, version)
  os.execute(("rm -rf '%s'"):format(folder))
  assert(ok, err)
end

describe("run.header", function()
  it("says where, when and with what", function()
    local info = dev:info()
    local header = run.header(dev, { "run", "x.lua", "--s-q", "64" })
    assert.equal(info.name, header.device)
    assert.equal(info.threads, header.threads)
    assert.equal(info.isa, header.isa)
    assert.equal(info.multiprocessors, header.multiprocessors)
    assert.equal(info.capability, header.capability)
    assert.equal(info.kind, header.kind)
    assert.equal(info.driver, header.driver)
    assert.equal(info.kind == "cpu", header.driver == "")
    assert.matches("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%dZ$", header.date)
    assert.matches("^fewhead %d+%.%d+%.%d+, commit ", header.build)
    assert.same({ "run", "x.lua", "--s-q", "64" }, header.argv)
  end)

  it("dates in UTC", function()
    local before, header, after = os.time(), run.header(dev, {}), os.time()
    local year, month, day, hour, minute, second = header.date:match("(%d+)-(%d+)-(%d+)T(%d+):(%d+):(%d+)Z")
    local utc = os.time { year = year, month = month, day = day, hour = hour, min = minute, sec = second, isdst = false }
    local offset = os.difftime(os.time(os.date("*t", before)), os.time(os.date("!*t", before)))
    assert.is_true(utc + offset >= before - 1 and utc + offset <= after + 1)
  end)

  it("has an id of its own each time", function()
    local seen = {}
    for _ = 1, 100 do
      local id = run.header(dev, {}).id
      assert.matches("^%d%d%d%d%d%d%d%dT%d%d%d%d%d%dZ%-%x%x%x%x%x%x%x%x$", id)
      assert.is_nil(seen[id])
      seen[id] = true
    end
  end)

  it("is a JSON record as it stands, an empty argv a list", function()
    local header = run.header(dev, {})
    assert.same(header, json.decode(json.encode(header)))
    assert.matches('"argv":[]', json.encode(header), 1, true)
  end)

  it("holds no host name, user or folder that was not typed", function()
    local text = json.encode(run.header(dev, {}))
    for _, secret in ipairs { output("uname -n"), output("echo ~"), output("pwd") } do
      assert.is_nil(#secret > 2 and text:find(secret, 1, true) or nil)
    end
  end)

  it("refuses what is no device", function()
    local ok, err = pcall(function() local header = run.header("cpu") return header end)
    assert.is_false(ok)
    assert.matches('run_spec.lua:%d+: run.header: device: got "cpu", wanted a device', err)
  end)
end)

describe("run.version", function()
  it("is the checkout's commit, dirty when a tracked file outside results/ changed", function()
    with_copy(function(sh, version)
      sh "mkdir results && echo > results/x.md"
      sh "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -q -m x && git rev-parse HEAD > id"
      local commit, dirty = version():match("^(%x+)\t(.*)$")
      assert.equal(40, #commit)
      assert.equal("false", dirty)
      sh "echo >> results/x.md" -- a run's own doing
      assert.same({ commit, "false" }, { version():match("^(%x+)\t(.*)$") })
      sh "echo >> lua/fewhead/record/run.lua"
      assert.same({ commit, "true" }, { version():match("^(%x+)\t(.*)$") })
    end)
  end)

  it("is the library's where the modules lie in no checkout, and dirty is not known", function()
    with_copy(function(_, version)
      local built = F.ffi.string(F.C.fh_build_info()):match("commit (%w+)")
      assert.equal(built .. "\tnil", version())
    end)
  end)

  it("names a folder by the device", function()
    local header = { device = "NVIDIA H200 (rev. 2)" }
    assert.equal("results/nvidia-h200-rev-2-/x", run.folder("results/DEVICE/x", header))
    assert.equal("results/local", run.folder("results/local", header))
  end)
end)
