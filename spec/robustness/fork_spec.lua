-- Worker processes load the library before a fork or after it, in LuaJIT and in Python; the C side is spec/c/test_fork.c.
local F = require "fewhead.base.ffi"
local helper = require "spec.helper"
local plugin = require "spec.plugin"
local process = require "spec.process"

local library = F.path:sub(1, 1) == "/" and F.path or process.root .. "/" .. F.path:gsub("^%./", "")

-- q = 0, KV row j equal to j, every list {3, 5}: the mean is 4.0 and lse is ln 2. `check(dev)` raises where it is not.
local LUA = [[
local fh = require "fewhead"
local device = require "fewhead.device.device"
local ffi = require "ffi"
ffi.cdef "int fork(void); int waitpid(int, int *, int); unsigned int alarm(unsigned int);"
local function check(dev, path)
  local case = assert(fh.case { heads = 8, s_q = 24, pattern = "csa", window = 16, index_topk = 24, prior = 100, seed = 3 })
  local problem = assert(case:problem(dev))
  local result = assert(fh.parity.check(problem, path or "gather"))
  assert(result.status == "pass", result.reason)
  problem:free()
  case:free()
end
-- Runs f in a child that leaves as a script does, finalizers and all; its status, or -1 where it hung.
local function in_child(f)
  io.stdout:flush()
  local child = ffi.C.fork()
  if child == 0 then
    ffi.C.alarm(60)
    local ok, err = pcall(f)
    if not ok then io.stderr:write(tostring(err), "\n") end
    os.exit(ok and 42 or 1, true)
  end
  local status = ffi.new("int[1]")
  assert(ffi.C.waitpid(child, status, 0) == child)
  return status[0] % 128 == 0 and math.floor(status[0] / 256) or -1
end
]]

local function lua(code)
  return helper.luajit(LUA .. code, { env = "FEWHEAD_DEVICE=cpu FEWHEAD_THREADS=3" })
end

describe("a forked child #robustness", function()
  it("LuaJIT: closes, leaves and computes with a device that its parent opened", function()
    assert.same({ "42 42 42 42", 0 }, { lua [[
      local dev = assert(device.open("cpu"))
      check(dev)
      local closed = in_child(function() dev:close() end)
      local left = in_child(function() end)
      local computed = in_child(function() check(dev); check(dev, "packed") end)
      check(dev)
      local nested = in_child(function() assert(in_child(function() check(dev) end) == 42); check(dev) end)
      io.write(closed, " ", left, " ", computed, " ", nested)]] })
  end)

  it("LuaJIT: opens a device of its own, whether the library was loaded before or after the fork", function()
    assert.same({ "42", 0 }, { lua [[io.write(in_child(function() check(assert(device.open("cpu"))) end))]] })
    local late = LUA:gsub('local fh = require "fewhead"\nlocal device = require "fewhead.device.device"\n', "local fh, device\n")
    assert.same({ "42", 0 }, { helper.luajit(late .. [[io.write(in_child(function()
      fh, device = require "fewhead", require "fewhead.device.device"
      check(assert(device.open("cpu")))
    end))]], { env = "FEWHEAD_DEVICE=cpu FEWHEAD_THREADS=3" }) })
  end)

  it("LuaJIT: runs a plug-in that was loaded before the fork, and one after it", function()
    local folder = helper.folder()
    local loops = plugin.example(folder)
    local out, status = lua(([[
      local provider = require "fewhead.device.provider"
      local dev, before = assert(device.open("cpu")), assert(provider.load(%q, "loops"))
      check(dev, before)
      local first = in_child(function() check(dev, before); before:free(); dev:close() end)
      local second = in_child(function() check(dev, assert(provider.load(%q, "again"))) end)
      check(dev, before)
      io.write(first, " ", second)]]):format(loops, loops))
    helper.shell("rm -rf " .. folder)
    assert.same({ "42 42", 0 }, { out, status })
  end)

  -- ctypes, as an engine's worker would: fork by os.fork and by multiprocessing, before and after the library is loaded.
  it("Python: both orders, with os.fork and multiprocessing", function()
    local code = ([[
import ctypes, multiprocessing, os, signal, sys
def load():
    lib = ctypes.CDLL(%q)
    lib.fh_device_open.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    lib.fh_device_close.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
    lib.fh_device_close.restype = None
    lib.fh_buffer_alloc.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)]
    lib.fh_buffer_free.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
    lib.fh_buffer_free.restype = None
    lib.fh_buffer_fill.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    lib.fh_buffer_read.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64]
    return lib
def opened(lib):
    device = ctypes.c_void_p()
    assert lib.fh_device_open(b"cpu", None, ctypes.byref(device)) == 0
    return device
def work(lib, device):  # a fill of 8 MiB is dealt over the threads
    buffer, got = ctypes.c_void_p(), (ctypes.c_ubyte * (8 << 20))()
    assert lib.fh_buffer_alloc(device, len(got), ctypes.byref(buffer)) == 0
    assert lib.fh_buffer_fill(buffer, 0x5a) == 0
    assert lib.fh_buffer_read(buffer, 0, got, len(got)) == 0
    assert bytes(got) == b"\x5a" * len(got)
    lib.fh_buffer_free(ctypes.byref(buffer))
def whole(lib, device):
    work(lib, device)
    lib.fh_device_close(ctypes.byref(device))
def fork(f):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        f()
        os._exit(42)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def spawn(f):
    child = multiprocessing.get_context("fork").Process(target=f)
    child.start()
    child.join(60)
    return child.exitcode
def fresh():
    lib = load()
    whole(lib, opened(lib))
after = [fork(fresh), spawn(fresh)]
lib = load()
device = opened(lib)
work(lib, device)
before = [fork(lambda: whole(lib, device)), spawn(lambda: whole(lib, device)),
          fork(lambda: lib.fh_device_close(ctypes.byref(device))),
          fork(lambda: whole(lib, opened(lib)))]
whole(lib, device)
print(after, before)
]]):format(library)
    local status, out, err = process.run("python3 -", { stdin = code, env = { FEWHEAD_THREADS = "3" } })
    assert.same({ 0, "[42, 0] [42, 0, 42, 42]\n", "" }, { status, out, err })
  end)
end)
