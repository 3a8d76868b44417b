local doctor = require "fewhead.cli.doctor"
local exit = require "fewhead.cli.exit"
local helper = require "spec.helper"
local process = require "spec.process"

-- The finding of that name: "state: text | remedy".
local function said(list, name)
  for _, one in ipairs(list) do
    if one.name == name then return ("%s: %s%s"):format(one.state, one.text, one.remedy and " | " .. one.remedy or "") end
  end
end

-- A machine whose files, commands and environment are these; what is not given is not there.
local function machine(given)
  given = given or {}
  local world = { root = "/fake" }
  function world.getenv(name) return (given.env or {})[name] end
  function world.read(path) return (given.files or {})[path] end
  function world.output(command)
    for pattern, answer in pairs(given.commands or {}) do
      if command:find(pattern, 1, true) then return unpack(answer) end
    end
    return nil, false
  end
  function world.load(library) return (given.libraries or {})[library] or false end
  function world.require(name)
    if (given.without or {})[name] then return false, (given.without)[name] end
    return pcall(require, name)
  end
  return world
end

local GOVERNOR = "/fake/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
local DRIVER = "/fake/proc/driver/nvidia/version"
local PLUGIN = "-m fewhead_vllm"
local QUESTION = "vllm fewhead fewhead-vllm"

describe("fewhead doctor", function()
  it("prints a line for each part, and ends with 0 where nothing is wrong", function()
    local status, out, err = process.run({ "./fewhead", "doctor" }, { env = {
      FEWHEAD_ISA = false, FEWHEAD_DEVICE = false, FEWHEAD_THREADS = false, VLLM_DSV41_FEWHEAD_MIN_SQ = false,
      VLLM_DSV41_FEWHEAD_PREFILL = false, FEWHEAD_FLASHMLA = false, VIRTUAL_ENV = false, CONDA_PREFIX = false } })
    assert.equal("", err)
    local count = 0
    for line in out:gmatch("[^\n]+") do
      if not (line:find("^ +to do: ") or line:find("^ok     %S+ +%S") or line:find("^note   %S+ +%S")) then
        count = count + 1
        assert.equal("nothing is wrong", line)
      end
    end
    assert.same({ 0, 1 }, { status, count })
    local names = "Lua cjson library cpu isas threads clock driver toolkit gate FlashMLA"
    for name in names:gmatch "%S+" do
      assert.matches("\n%l+ +" .. name .. " ", "\n" .. out)
    end
  end)

  it("ends with 1 without a library, says what helps, and goes on with the rest", function()
    local status, out, err = process.run({ "./fewhead", "doctor" }, { env = { FEWHEAD_LIB = "/no/where.so" } })
    assert.same({ 1, "" }, { status, err })
    assert.is_truthy(out:find("WRONG  library     no library: looked for FEWHEAD_LIB=/no/where.so (cannot open shared object "
      .. "file: No such file or directory)\n                   to do: unset FEWHEAD_LIB, or run make\n", 1, true), out)
    assert.matches("\nok +Lua ", "\n" .. out)
    assert.matches("\n%l+ +toolkit ", out)
    assert.matches("\n1 wrong\n$", out)
  end)

  it("names settings that cannot be used", function()
    local status, out = process.run({ "./fewhead", "doctor" }, { env = {
      FEWHEAD_ISA = "foo", VLLM_DSV41_FEWHEAD_MIN_SQ = "2k", FEWHEAD_DEVICE = "cuda:99" } })
    assert.equal(1, status)
    assert.is_truthy(out:find('WRONG  cpu         FEWHEAD_ISA: got "foo", wanted ', 1, true), out)
    assert.is_truthy(out:find('WRONG  device      FEWHEAD_DEVICE: got "cuda:99", ', 1, true), out)
    assert.is_truthy(out:find('VLLM_DSV41_FEWHEAD_MIN_SQ: got "2k", wanted a whole number >= 0; using 2048', 1, true), out)
    assert.matches("\n3 wrong\n$", out)
  end)

  it("says which packages bring what is missing; what some command cannot do without is wrong", function()
    local list = doctor.findings(machine { without = { cjson = "module 'cjson' not found", busted = "no" } })
    assert.equal("wrong: not found: for records | apt-get install lua-cjson, or make setup", said(list, "cjson"))
    assert.equal("wrong: not found: for the names of cells | apt-get install libxxhash0, or make setup", said(list, "xxhash"))
    assert.equal("note: not found: for specs | apt-get install lua-busted, or make setup", said(list, "busted"))
    assert.equal("ok: found: for line editing in the prompt",
      said(doctor.findings(machine { libraries = { ["libreadline.so.8"] = true } }), "readline"))
  end)

  it("asks nothing of a library that is not there", function()
    local list = doctor.findings(machine { without = { ["fewhead.base.ffi"] = "fewhead: no header: looked for a and b" } })
    assert.equal("wrong: no header: looked for a and b | run make", said(list, "library"))
    assert.is_nil(said(list, "cpu"))
    assert.is_truthy(said(list, "driver"))
  end)

  it("lists the instruction sets that work, and says of each other one why it is not taken", function()
    local device = require "fewhead.device.device"
    local list, works = doctor.findings(machine()), {}
    for _, isa in ipairs { "generic", "avx2", "avx512", "avx512_bf16", "amx" } do
      local dev = device.open("cpu", { isa = isa })
      if dev then
        works[#works + 1] = isa
        dev:close()
      else
        assert.matches("^note: not taken: %S", said(list, isa))
      end
    end
    assert.equal("ok: " .. table.concat(works, ", "), said(list, "isas"))
  end)

  it("compares the threads with the CPUs of the machine", function()
    local dev = require("fewhead.device.device").open "cpu"
    local threads = dev:info().threads
    dev:close()
    local cpuinfo = ("processor\t: 0\nflags\t: a\n\n"):rep(threads)
    local files = { ["/fake/proc/cpuinfo"] = cpuinfo }
    if (os.getenv "FEWHEAD_THREADS" or "") == "" then
      assert.equal(("ok: %d, every CPU"):format(threads), said(doctor.findings(machine { files = files }), "threads"))
    end
    files["/fake/proc/cpuinfo"] = cpuinfo .. cpuinfo
    assert.equal(("note: %d of %d CPUs: the affinity mask or the quota of a control group leaves so many | give the "
      .. "container or job more CPUs, if it should have them"):format(threads, 2 * threads),
      said(doctor.findings(machine { files = files }), "threads"))
    assert.equal(("ok: %d, as FEWHEAD_THREADS says"):format(threads),
      said(doctor.findings(machine { files = files, env = { FEWHEAD_THREADS = "1" } }), "threads"))
  end)

  it("reads the governor of the clock", function()
    local function clock(files) return said(doctor.findings(machine { files = files }), "clock") end
    assert.equal("note: unknown: the system does not say, as in most virtual machines", clock {})
    assert.equal("ok: governor performance, up to 3500 MHz",
      clock { [GOVERNOR] = "performance\n", [GOVERNOR:gsub("scaling_governor", "cpuinfo_max_freq")] = "3500000\n" })
    assert.equal("note: governor powersave: times depend on the load before | cpupower frequency-set -g performance, for "
      .. "steadier times", clock { [GOVERNOR] = "powersave\n" })
  end)

  it("reads the driver and the toolkit, and holds the library against them", function()
    local list = doctor.findings(machine {})
    assert.equal("note: no NVIDIA driver: the CPU device works all the same | nothing, on a machine without a GPU",
      said(list, "driver"))
    assert.equal("note: no nvcc in CUDA_HOME/bin, PATH or /usr/local/cuda/bin: make builds for the CPU alone | install the CUDA "
      .. "toolkit to build for GPUs", said(list, "toolkit"))
    list = doctor.findings(machine {
      files = { [DRIVER] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\nGCC version: gcc\n" },
      env = { CUDA_HOME = "/opt/a toolkit" },
      commands = { ["'/opt/a toolkit/bin/nvcc' --version"] = { "Cuda compilation tools, release 12.8, V12.8.61", true } },
    })
    assert.equal("ok: NVIDIA 570.86.15", said(list, "driver"))
    assert.equal("ok: CUDA 12.8, '/opt/a toolkit/bin/nvcc'", said(list, "toolkit"))
    local F = require "fewhead.base.ffi"
    if F.ffi.string(F.C.fh_build_info()):find("without CUDA", 1, true) then
      assert.equal("wrong: the library was built without CUDA, and a driver is here | install the CUDA toolkit, then make",
        said(list, "cuda"))
    end
  end)

  it("finds vLLM and asks the plug-in what it does there", function()
    local function engine(commands)
      local list = doctor.findings(machine { commands = commands })
      return said(list, "vLLM"), said(list, "plug-in")
    end
    assert.matches("^note: not found in the environment of ", (engine {}))
    assert.same({ "ok: 0.26.0", "note: not installed: vLLM runs its own kernels | make wheel wheel-vllm, and pip install both" },
      { engine { [QUESTION] = { "vllm 0.26.0\nfewhead 0.2.0", true } } })
    local both = { "vllm 0.26.0\nfewhead-vllm 0.2.0", true }
    assert.same({ "ok: 0.26.0", "ok: installed: fewhead-vllm; patched v32" },
      { engine { [QUESTION] = both, [PLUGIN] = { "installed: fewhead-vllm\npatched v32", true } } })
    local _, plugin = engine { [QUESTION] = both, [PLUGIN] = { "installed, but VLLM_PLUGINS excludes it: got 'x'", false } }
    assert.equal("wrong: installed, but VLLM_PLUGINS excludes it: got 'x' | see docs/engine.md", plugin)
    _, plugin = engine { [QUESTION] = both }
    assert.equal("wrong: it said nothing | see docs/engine.md", plugin)
  end)

  it("asks a Python of the active environment, and the plug-in that this checkout has", function()
    local folder = helper.folder()
    helper.shell(("mkdir -p %ssite/vllm-0.26.0.dist-info && python3 engines/vllm/package.py stage %ssite"):format(folder, folder))
    helper.write(folder .. "site/vllm-0.26.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    local _, out = process.run({ "./fewhead", "doctor" }, { env = {
      PYTHONPATH = folder .. "site", VLLM_PLUGINS = "other", VIRTUAL_ENV = false, CONDA_PREFIX = false } })
    process.remove(folder)
    assert.matches("\nok     vLLM        0.26.0\nWRONG  plug%-in     installed: fewhead%-vllm %S+ in [^\n]+/site; "
      .. "installed, but VLLM_PLUGINS excludes it: got 'other', wanted a list with fewhead, or the variable unset; ", out)
  end)

  it("makes a look that fails a finding", function()
    local world = machine()
    function world.read() error "no reading today" end
    local list = doctor.findings(world)
    assert.matches("^wrong: could not be looked at: .*no reading today$", said(list, "driver"))
    assert.is_truthy(said(list, "toolkit"))
  end)

  it("keeps control characters off the terminal", function()
    local findings = { { state = "wrong", name = "x", text = "a\27[2Jb" }, { state = "ok", name = "y", text = "c" } }
    local text, faults = doctor.report(findings)
    assert.same({ "WRONG  x           a?[2Jb\nok     y           c\n1 wrong", 1 }, { text, faults })
  end)

  it("refuses words after it and has a help", function()
    local status, _, err = process.run { "./fewhead", "doctor", "x" }
    assert.same({ exit.USAGE, 'fewhead: doctor: unexpected argument "x", wanted none\n' }, { status, err })
    local ok, out = process.run { "./fewhead", "doctor", "--help" }
    assert.equal(0, ok)
    assert.matches("^usage: fewhead doctor\n", out)
  end)
end)
