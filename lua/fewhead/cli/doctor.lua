--- Doctor: what fewhead finds on this machine, what is missing, and what to do about it. Behind `fewhead doctor`.
--
--     local doctor = require "fewhead.cli.doctor"
--     for _, one in ipairs(doctor.findings()) do print(one.state, one.name, one.text, one.remedy) end
--
-- It reads and changes nothing, and works where the library or any other part is missing. A finding is { state =, name =, text =,
-- remedy = }. state: "ok"; "note", an optional part is missing or unknown; "wrong", something does not work that should.
-- @module fewhead.cli.doctor
local checkout = require "fewhead.base.checkout"
local exit = require "fewhead.cli.exit"
local args = require "fewhead.base.arguments"

local M = {}

-- ---- What is read -----------------------------------------------------------------------------------------------------------

-- The machine as this module sees it. Specs give another one. root comes before the names of system files.
local HERE = { root = "", getenv = os.getenv }

function HERE.read(path)
  local file = io.open(path)
  local text = file and file:read("*a")
  if file then file:close() end
  return text
end

-- What a shell command prints, nil where it prints nothing; and whether it ended with status 0.
function HERE.output(command)
  local pipe = io.popen(("{ %s\n} 2>&1 </dev/null; echo \"status $?\""):format(command))
  local text = pipe and pipe:read("*a") or ""
  if pipe then pipe:close() end
  local printed, status = text:match("^(.-)\n?status (%d+)\n$")
  return printed ~= "" and printed or nil, status == "0"
end

function HERE.load(library) return (pcall(require("ffi").load, library)) end
function HERE.require(name) return pcall(require, name) end

local function first_line(text) return (tostring(text):match("^[^\n]*")) end

local function found(name, text) return { state = "ok", name = name, text = text } end
local function note(name, text, remedy) return { state = "note", name = name, text = text, remedy = remedy } end
local function wrong(name, text, remedy) return { state = "wrong", name = name, text = text, remedy = remedy } end

-- ---- Lua --------------------------------------------------------------------------------------------------------------------

-- What is looked for: Lua modules, and libraries that the ffi loads. needed: without it some command stops.
local PARTS = {
  { name = "cjson", module = "cjson", package = "lua-cjson", needed = true, for_what = "records" },
  { name = "luv", module = "luv", package = "lua-luv", needed = true, for_what = "the worker process of sweeps" },
  { name = "xxhash", library = "libxxhash.so.0", package = "libxxhash0", needed = true, for_what = "the names of cells" },
  { name = "readline", library = "libreadline.so.8", package = "libreadline8", for_what = "line editing in the prompt" },
  { name = "busted", module = "busted", package = "lua-busted", for_what = "specs" },
  { name = "OpenBLAS", library = "libopenblas.so.0", package = "libopenblas0-pthread", for_what = "make bench" },
}

local function look_at_parts(world)
  local list = { found("Lua", jit.version .. ", " .. jit.arch) }
  for _, part in ipairs(PARTS) do
    local there
    if part.module then there = world.require(part.module) else there = world.load(part.library) end
    local state = there and found or part.needed and wrong or note
    list[#list + 1] = state(part.name, (there and "found: for %s" or "not found: for %s"):format(part.for_what),
      not there and ("apt-get install %s, or make setup"):format(part.package) or nil)
  end
  return list
end

-- ---- The library ------------------------------------------------------------------------------------------------------------

-- The library's findings; and whether it is there.
local function look_at_library(world)
  local ok, F = world.require "fewhead.base.ffi"
  if not ok then
    local text, remedy = first_line(F):gsub("^fewhead: ", ""), "run make"
    local said, advice = text:match("^(.*): (run make.*)$")
    if (world.getenv "FEWHEAD_LIB" or "") ~= "" then advice = "unset FEWHEAD_LIB, or " .. (advice or remedy) end
    return { wrong("library", said or text, advice or remedy) }, false
  end
  local list = { found("library", ("%s, %s"):format(F.path, F.ffi.string(F.C.fh_build_info()))) }
  local built = F.ffi.string(F.C.fh_build_info()):match("commit (%w+)")
  local commit, _, reason = require("fewhead.record.run").version()
  if reason then list[2] = note("commit", "unknown: " .. reason)
  elseif built and checkout.root and commit:sub(1, #built) ~= built then
    list[2] = note("commit", ("%s; the library was built at %s"):format(commit:sub(1, 12), built), "run make")
  else
    list[2] = found("commit", commit:sub(1, 12))
  end
  return list, true
end

-- ---- The CPU ----------------------------------------------------------------------------------------------------------------

-- The instruction sets, slowest first: those that work, and why the others do not.
local function look_at_isas(device, F)
  local works, list = {}, {}
  for _, isa in ipairs(F.isa_names) do
    local dev, err = device.open("cpu", { threads = 1, isa = isa })
    if dev then
      works[#works + 1] = isa
      dev:close()
    else
      list[#list + 1] = note(isa, "not taken: " .. (err:match("up to [%w_]+: (.*)$") or first_line(err)))
    end
  end
  table.insert(list, 1, found("isas", table.concat(works, ", ")))
  return list
end

local function count_cpus(world)
  local _, count = (world.read(world.root .. "/proc/cpuinfo") or ""):gsub("%f[^\n%z]processor%s*:", "")
  return count
end

local function look_at_threads(world, threads)
  local all, asked = count_cpus(world), world.getenv "FEWHEAD_THREADS"
  if asked and asked ~= "" then return found("threads", ("%d, as FEWHEAD_THREADS says"):format(threads)) end
  if all <= threads then return found("threads", ("%d, every CPU"):format(threads)) end
  return note("threads", ("%d of %d CPUs: the affinity mask or the quota of a control group leaves so many"):format(threads, all),
    "give the container or job more CPUs, if it should have them")
end

local function look_at_clock(world)
  local folder = world.root .. "/sys/devices/system/cpu/cpu0/cpufreq/"
  local governor = world.read(folder .. "scaling_governor")
  if not governor then return note("clock", "unknown: the system does not say, as in most virtual machines") end
  governor = governor:gsub("%s+$", "")
  local khz = tonumber(world.read(folder .. "cpuinfo_max_freq") or "")
  local text = ("governor %s%s"):format(governor, khz and (", up to %d MHz"):format(khz / 1000) or "")
  if governor == "performance" then return found("clock", text) end
  return note("clock", text .. ": times depend on the load before", "cpupower frequency-set -g performance, for steadier times")
end

local function look_at_cpu(world)
  local device, F = require "fewhead.device.device", require "fewhead.base.ffi"
  local dev, err = device.open "cpu"
  if not dev then
    return { wrong("cpu", err, "change FEWHEAD_THREADS or FEWHEAD_ISA, or unset them"), unpack(look_at_isas(device, F)) }
  end
  local info = dev:info()
  dev:close()
  local list = { found("cpu", ("%s, %s"):format(info.name, device.units(info))), unpack(look_at_isas(device, F)) }
  list[#list + 1] = look_at_threads(world, info.threads)
  list[#list + 1] = look_at_clock(world)
  return list
end

-- ---- GPUs -------------------------------------------------------------------------------------------------------------------

local function driver_version(world)
  local text = world.read(world.root .. "/proc/driver/nvidia/version")
  return text and (text:match("Kernel Module[^\n]-%s(%d[%d.]+)") or first_line(text))
end

local function look_at_driver(world)
  local version = driver_version(world)
  if version then return found("driver", "NVIDIA " .. version) end
  return note("driver", "no NVIDIA driver: the CPU device works all the same", "nothing, on a machine without a GPU")
end

-- As the Makefile looks for it.
local function look_at_toolkit(world)
  local home, looked = world.getenv "CUDA_HOME", {}
  if home and home ~= "" then looked[1] = require("fewhead.base.shell").quote(home .. "/bin/nvcc") end
  looked[#looked + 1] = "nvcc"
  looked[#looked + 1] = world.root .. "/usr/local/cuda/bin/nvcc"
  for _, nvcc in ipairs(looked) do
    local text = world.output(nvcc .. " --version")
    local release = text and text:match("release ([%d.]+)")
    if release then return found("toolkit", ("CUDA %s, %s"):format(release, nvcc)) end
  end
  return note("toolkit", "no nvcc in CUDA_HOME/bin, PATH or /usr/local/cuda/bin: make builds for the CPU alone",
    "install the CUDA toolkit to build for GPUs")
end

local function look_at_gpus(world)
  local device, F = require "fewhead.device.device", require "fewhead.base.ffi"
  local list = {}
  for _, name in ipairs(device.names()) do
    local dev, err
    if name ~= "cpu" then dev, err = device.open(name) end
    if dev then
      local info = dev:info()
      list[#list + 1] = found(name, ("%s, %s, driver %s, clock up to %d MHz"):format(info.name, device.units(info), info.driver,
        info.clock_mhz))
      dev:close()
    elseif err then
      list[#list + 1] = wrong(name, first_line(err), "see docs/settings.md for the GPUs and drivers that work")
    end
  end
  if #list > 0 then return list end
  local _, err = device.open "cuda"
  if F.ffi.string(F.C.fh_build_info()):find("without CUDA", 1, true) then
    if driver_version(world) then
      return { wrong("cuda", "the library was built without CUDA, and a driver is here", "install the CUDA toolkit, then make") }
    end
    return { note("cuda", "the library was built without CUDA") }
  end
  return { (driver_version(world) and wrong or note)("cuda", first_line(err or "no device")) }
end

-- ---- Settings ---------------------------------------------------------------------------------------------------------------

local function look_at_settings(world)
  local device, gate = require "fewhead.device.device", require "fewhead.decide.gate"
  local list = {}
  local chosen = world.getenv "FEWHEAD_DEVICE"
  if chosen and chosen ~= "" and chosen ~= "cpu" then
    local dev, err = device.open(chosen)
    if dev then dev:close() end
    list[1] = dev and found("device", chosen .. ", as FEWHEAD_DEVICE says")
      or wrong("device", "FEWHEAD_DEVICE: " .. first_line(err):gsub("^name: ", ""), "unset FEWHEAD_DEVICE, or name another one")
  end
  local in_force, warning = gate.from_env()
  local text = tostring(in_force):gsub("^gate: ", "")
  list[#list + 1] = warning and wrong("gate", ("%s; %s"):format(text, warning:gsub("\n", "; ")), "correct the variable")
    or found("gate", text)
  return list
end

-- ---- The engine -------------------------------------------------------------------------------------------------------------

local function look_at_flashmla()
  local here, absent = require("fewhead.device.flashmla").find()
  if here then return found("FlashMLA", ("%s, %s"):format(here.package, here.extension)) end
  local said, remedy = absent:gsub("^no FlashMLA: ", ""):match("^(.-); (.*)$")
  return note("FlashMLA", "not found: " .. (said or absent), remedy)
end

-- Prints "NAME VERSION" for each of the distributions that the words name and Python finds.
local QUESTION = [[
import sys
from importlib import metadata
for name in sys.argv[1:]:
    try: print(name, metadata.version(name))
    except metadata.PackageNotFoundError: pass
]]

local PLUGIN_SECONDS = 120 -- the plug-in imports vLLM, which imports PyTorch

-- vLLM, and what the plug-in says of itself (python -m fewhead_vllm).
local function look_at_engine(world)
  local shell = require "fewhead.base.shell"
  local python = require("fewhead.device.flashmla").python()
  local answer = world.output(("%s -c %s vllm fewhead fewhead-vllm"):format(python, shell.quote(QUESTION))) or ""
  local version = {}
  for line in answer:gmatch("[^\n]+") do
    local name, one = line:match("^([%w-]+) (%S+)$")
    if name then version[name] = one end
  end
  if not version.vllm then
    return { note("vLLM", "not found in the environment of " .. python, "activate its environment, if there is one") }
  end
  local list = { found("vLLM", version.vllm) }
  if not version["fewhead-vllm"] then
    list[2] = note("plug-in", "not installed: vLLM runs its own kernels", "make wheel wheel-vllm, and pip install both")
    return list
  end
  local text, good = world.output(("timeout %d %s -m fewhead_vllm"):format(PLUGIN_SECONDS, python))
  local said = (text or "it said nothing"):gsub("\n", "; ")
  list[2] = good and found("plug-in", said) or wrong("plug-in", said, "see docs/engine.md")
  return list
end

-- ---- All of it --------------------------------------------------------------------------------------------------------------

-- A list of findings, or one; a look that fails is a finding too.
local function add(list, name, look, world)
  local ok, some, good = pcall(look, world)
  if not ok then
    list[#list + 1] = wrong(name, "could not be looked at: " .. first_line(exit.text(some)))
    return false
  end
  for _, one in ipairs(some.state and { some } or some) do list[#list + 1] = one end
  return good
end

--- What is found, as a list of findings in the order in which they print. world: in place of this machine, for specs.
function M.findings(world)
  world = setmetatable(world or {}, { __index = HERE })
  local list = {}
  add(list, "Lua", look_at_parts, world)
  local library = add(list, "library", look_at_library, world)
  if library then add(list, "cpu", look_at_cpu, world) end
  add(list, "driver", look_at_driver, world)
  add(list, "toolkit", look_at_toolkit, world)
  if library then
    add(list, "cuda", look_at_gpus, world)
    add(list, "gate", look_at_settings, world)
    add(list, "FlashMLA", look_at_flashmla, world)
    add(list, "vLLM", look_at_engine, world)
  end
  return list
end

--- Findings as text, a line each and one for each remedy; and how many are wrong.
function M.report(findings)
  local lines, faults = {}, 0
  for _, one in ipairs(findings) do
    if one.state == "wrong" then faults = faults + 1 end
    local text = one.text:gsub("%c", "?")
    lines[#lines + 1] = ("%-7s%-12s%s"):format(one.state == "wrong" and "WRONG" or one.state, one.name, text)
    if one.remedy then lines[#lines + 1] = ("%19sto do: %s"):format("", one.remedy) end
  end
  lines[#lines + 1] = faults == 0 and "nothing is wrong" or ("%d wrong"):format(faults)
  return table.concat(lines, "\n"), faults
end

local usage = [[
usage: fewhead doctor

What fewhead finds on this machine: Lua modules, the library, CPU, driver, CUDA toolkit, GPUs, settings, FlashMLA, vLLM and its
plug-in. Each line says ok, note (an optional part is missing) or WRONG; "to do" says what helps. It changes nothing. Status 1
when a line says WRONG.
]]

--- The command. argv: a list of words. Returns the exit status.
function M.main(argv)
  if argv[1] == "--help" or argv[1] == "-h" then
    io.stdout:write(usage)
    return 0
  end
  if argv[1] then
    exit.with(exit.USAGE, ("fewhead: doctor: unexpected argument %s, wanted none"):format(args.show(argv[1])))
  end
  local text, faults = M.report(M.findings())
  print(text)
  return faults == 0 and 0 or exit.FAILED
end

return M
