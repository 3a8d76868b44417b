local helper = require "spec.helper"
local F = require "fewhead.base.ffi"

local luajit, shell = helper.luajit, helper.shell

local checksum = F.C.fh_header_checksum()

-- What the system's loader says of a file that is not there.
local ABSENT = "(cannot open shared object file: No such file or directory)"

-- Prints the message that loading the binding fails with.
local LOAD = "print(select(2, pcall(require, 'fewhead.base.ffi')))"

describe("fewhead.base.ffi", function()
  it("gives the enums of the header by name and by number", function()
    assert.same({ auto = 0, reference = 1, padded = 2, gather = 3, packed = 4 }, F.paths)
    assert.same({ [0] = "auto", "reference", "padded", "gather", "packed" }, F.path_names)
    assert.same({ bf16 = 1, f32 = 2, i32 = 3 }, F.dtypes)
    assert.same({ [0] = "best", "generic", "avx2", "avx512", "avx512_bf16", "amx" }, F.isa_names)
    assert.same({ cpu = 1, cuda = 2 }, F.device_kinds)
    assert.same({ uniform = 1, normal = 2 }, F.dists)
    for number, name in pairs(F.path_names) do assert.equal(name, F.ffi.string(F.C.fh_path_name(number))) end
  end)

  it("loads the library of this checkout", function()
    assert.equal(helper.root .. "build/libfewhead.so", F.path)
  end)

  it("turns a status into true, or nil, the message and the status's name", function()
    assert.is_true(F.check(0))
    local box = F.ffi.new("fh_device *[1]")
    local ok, message, status = F.check(F.C.fh_device_open(nil, nil, box))
    assert.is_nil(ok)
    assert.equal("FH_ERR_ARGUMENT", status)
    assert.equal("name: got NULL, wanted a pointer", message)
  end)

  it("is the only module that declares the library", function()
    local declaring = shell(("grep -rl 'ffi[.]cdef' %slua | xargs grep -l fh_"):format(helper.root))
    assert.equal(("%slua/fewhead/base/ffi.lua"):format(helper.root), declaring)
  end)
end)

-- In processes of their own, where busted has not replaced ffi.cdef by one that forgives repetition.
describe("the declarations", function()
  it("are made once, however often the module is loaded", function()
    assert.equal("200 200", luajit [[
      local first = require("fewhead.base.ffi").C.fh_version()
      package.loaded["fewhead.base.ffi"] = nil
      io.write(first, " ", require("fewhead.base.ffi").C.fh_version())]])
  end)

  it("of another header in the same process are not mistaken for these", function()
    local output = luajit([[require("ffi").cdef("typedef int fh_call;") ]] .. LOAD)
    local message = "fewhead: another fewhead.h is declared in this process already (checksum %s, %slib/include/fewhead.h: %.0f)"
    assert.equal(message:format("unknown", helper.root, checksum), output)
    output = luajit([[require("ffi").cdef("typedef int fh_call; static const uint32_t fh_declared_checksum = 7;") ]] .. LOAD)
    assert.equal(message:format("7", helper.root, checksum), output)
  end)

  it("outlive the module, and so does the library that handles are freed with", function()
    local output, status = luajit [[
      local tensor, device = require "fewhead.device.tensor", require "fewhead.device.device"
      local dev = device.open("cpu")
      local kept = { tensor(dev, "f32", { 10 }), tensor(dev, "f32", { 20 })[{ { 1, 2 } }] }
      local function unload()
        for name in pairs(package.loaded) do if name:find("^fewhead") then package.loaded[name] = nil end end
        tensor, device = nil, nil
        collectgarbage() collectgarbage()
      end
      unload()
      kept, dev = nil, nil
      collectgarbage() collectgarbage()
      dev = require("fewhead.device.device").open("cpu") -- alone: it alone keeps the library
      unload()
      dev = nil
      collectgarbage() collectgarbage()
      print("alive")]]
    assert.equal("alive", output)
    assert.equal(0, status)
  end)
end)

describe("a library", function()
  local folder
  local here = shell(("cd %s && pwd"):format(helper.root)) -- the checkout
  setup(function() folder = helper.folder() end)
  teardown(function() shell("rm -rf " .. folder) end)

  -- A shared library of these C lines, as a stale build would be.
  local function library(lines)
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write("#include <stdint.h>\n#include <string.h>\n", lines, "\n")
    file:close()
    local output, status = shell(("${CC:-cc} -shared -fPIC -x c -o %slibfewhead.so %s; rm %s"):format(folder, path, path))
    assert.equal("", output)
    assert.equal(0, status)
    return folder .. "libfewhead.so"
  end

  local function refusal(path) return (luajit(LOAD, { env = "FEWHEAD_LIB=" .. path })) end

  it("that is missing is asked for by the path that was tried", function()
    assert.equal("fewhead: no library: looked for FEWHEAD_LIB=/no/such.so " .. ABSENT .. ": run make", refusal("/no/such.so"))
  end)

  it("that is missing from a checkout was looked for in its build folder, and nowhere else", function()
    local fresh = folder .. "fresh/"
    shell(("mkdir -p %slua %slib"):format(fresh, fresh))
    shell(("cp -r %s/lua/fewhead %slua && cp -r %s/lib/include %slib"):format(here, fresh, here, fresh))
    assert.equal(("fewhead: no library: looked for %sbuild/libfewhead.so %s: run make"):format(fresh, ABSENT),
      (luajit(LOAD, { lua = fresh .. "lua" })))
    assert.equal(("fewhead: no library: looked for ./build/libfewhead.so %s: run make"):format(ABSENT),
      (luajit(LOAD, { lua = "lua", cd = fresh })))
  end)

  it("that is something else is refused by name", function()
    local path = library("int answer(void) { return 42; }")
    assert.equal(("fewhead: %s is not a fewhead library, it has no fh_header_checksum: run make"):format(path), refusal(path))
  end)

  it("built from another header is refused by name, with both checksums", function()
    local path = library("uint32_t fh_header_checksum(void) { return 123; }")
    assert.equal(("fewhead: %s was built from another fewhead.h (checksum 123, %slib/include/fewhead.h: %.0f): run make"):format(
      path, helper.root, checksum), refusal(path))
  end)

  it("that lays out a struct in other bytes is refused by name, with the struct", function()
    local path = library(([[
      uint32_t fh_header_checksum(void) { return %.0fu; }
      uint64_t fh_struct_bytes(const char *name) {
        return strcmp(name, "fh_device_options") == 0 ? 12 : 0;
      }]]):format(checksum))
    assert.equal(("fewhead: %s lays out fh_device_options in 12 bytes, %slib/include/fewhead.h in 16: run make"):format(path,
      helper.root), refusal(path))
  end)

  describe("that is installed", function()
    local modules
    setup(function()
      modules = folder .. "usr/share/lua/5.1"
      shell(("mkdir -p %s %susr/lib && cp -r %s/lua/fewhead %s"):format(modules, folder, here, modules))
      shell(("cp %s/lib/include/fewhead.h %s/fewhead && cp %s %susr/lib"):format(here, modules, F.path, folder))
    end)

    local VERSION = "local F = require 'fewhead.base.ffi' print(F.path, F.C.fh_version())"

    it("is found from where the modules lie", function()
      assert.equal(folder .. "usr/lib/libfewhead.so\t200", (luajit(VERSION, { lua = modules, cd = "/" })))
    end)

    it("is else found by the system's loader, and if nowhere, both places are named", function()
      local elsewhere = folder .. "elsewhere"
      shell(("mkdir %s && mv %susr/lib/libfewhead.so %s"):format(elsewhere, folder, elsewhere))
      assert.equal("libfewhead.so\t200", (luajit(VERSION, { lua = modules, env = "LD_LIBRARY_PATH=" .. elsewhere })))
      local message = "fewhead: no library: looked for %susr/lib/libfewhead.so %s and libfewhead.so in the system's library " ..
        "folders %s: run make install in a checkout of fewhead"
      assert.equal(message:format(folder, ABSENT, ABSENT), (luajit(LOAD, { lua = modules })))
    end)

    it("needs the header beside the modules", function()
      shell(("rm %s/fewhead/fewhead.h"):format(modules))
      assert.equal(("fewhead: no header: looked for %s/fewhead/../../lib/include/fewhead.h and %s/fewhead/fewhead.h"):format(
        modules, modules), (luajit(LOAD, { lua = modules })))
    end)
  end)
end)
