--- What is here: version, library, devices, the settings in force and which optional parts were found. Behind `fewhead info`.
--
--     print(fh.info())
--     print(fh.info.version())       --> fewhead 0.2.0, commit 1f2e3d4c5b6a, gcc 12.2.0, without CUDA
local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local exit = require "fewhead.cli.exit"
local flashmla = require "fewhead.device.flashmla"
local F = require "fewhead.base.ffi"
local gate = require "fewhead.decide.gate"
local options = require "fewhead.cli.options"
local readline = require "fewhead.cli.readline"
local run = require "fewhead.record.run"

local M = {}

local parser = options.new {
  name = "info",
  usage = "fewhead info [options]",
  about = "Version, library, devices, settings in force and optional parts found.",
  options = {
    { "--device", "NAME", "only open this device and describe it; status 1 when it is not there" },
  },
}

-- Every environment variable that fewhead reads, and what it does.
local settings = {
  { "FEWHEAD_LIB", "the library to load" },
  { "FEWHEAD_DEVICE", "the device used where none is named" },
  { "FEWHEAD_THREADS", "threads of the CPU device" },
  { "FEWHEAD_ISA", "instruction set of the CPU device" },
  { "FEWHEAD_FORCE_PORTABLE", "1: CUDA devices keep to the kernels that run on any of them" },
  { "FEWHEAD_FLASHMLA", "the library with FlashMLA in it, or a folder that holds it" },
  { "FEWHEAD_FA3", "the library with FlashAttention 3 in it, or a folder that holds it" },
  { "FEWHEAD_TRACE", "1: errors with a stack trace" },
  { gate.PREFILL, "0: native heads off" },
  { gate.MIN_SQ, "native heads from this s_q up" },
}

--- One line: version, commit, compiler, CUDA or not.
function M.version() return F.ffi.string(F.C.fh_build_info()) end

-- Bytes in the largest binary unit that leaves at least 1.
local function bytes_text(bytes)
  if bytes == 0 then return "unknown" end
  local units = { "B", "KiB", "MiB", "GiB", "TiB" }
  local unit = 1
  while bytes >= 1024 and unit < #units do bytes, unit = bytes / 1024, unit + 1 end
  return ("%.4g %s"):format(bytes, units[unit])
end

local Info = { __name = "info" }
Info.__index = Info
M.class = Info -- fewhead.report.result gives it print

local function add(self, name, value) self.rows[#self.rows + 1] = { name = name, value = value } end

-- Adds a device's row: true; or nil and why it cannot be opened.
local function describe(self, name)
  local dev, err = device.open(name)
  if not dev then return nil, err end
  local info = dev:info()
  add(self, name, ("%s, %s, last-level cache %s, memory %s%s%s"):format(info.name, device.units(info),
    bytes_text(info.cache_bytes), bytes_text(info.memory_bytes),
    info.clock_mhz > 0 and (", clock up to %d MHz"):format(info.clock_mhz) or "",
    info.driver ~= "" and ", driver " .. info.driver or ""))
  dev:close()
  return true
end

-- Adds what this machine lacks for AMX, unless another instruction set was asked for or nothing is missing.
local function describe_amx(self)
  if (os.getenv("FEWHEAD_ISA") or "") ~= "" then return end
  local dev, err = device.open("cpu", { isa = "amx" })
  if dev then dev:close() else add(self, "", "no amx: " .. (err:match("up to [%w_]+: (.*)$") or err)) end
end

-- The rows of all devices. Returns why one cannot be opened that should be there, or nil.
local function describe_devices(self)
  local names, wrong = device.names(), nil
  if #names == 1 then names[2] = "cuda" end -- to hear why there is none
  for _, name in ipairs(names) do
    local ok, err = describe(self, name)
    if not ok then add(self, name, "none: " .. err) end
    if ok and name == "cpu" then describe_amx(self) end
    if not ok and name == "cpu" then wrong = err end -- its own settings alone keep a CPU from being opened
  end
  local chosen = device.default_name()
  if not wrong and chosen ~= "cpu" then
    local dev, err = device.open(chosen)
    if dev then dev:close() else wrong = "FEWHEAD_DEVICE: " .. err:gsub("^name: ", "") end
  end
  return wrong
end

local function describe_settings(self)
  local name = "settings"
  for _, setting in ipairs(settings) do
    local value = os.getenv(setting[1])
    if value then
      add(self, name, ("%s=%s (%s)"):format(setting[1], value:gsub("%c", "?"), setting[2]))
      name = ""
    end
  end
  if name ~= "" then add(self, name, "none of fewhead's variables is set") end
end

--- What is here. options: device, the name of the only device to describe. Returns { rows = { { name =, value = }, .. }, wrong
-- = why a setting keeps the CPU or the chosen device from being opened, or nil }, which prints as a table; nil, err where the
-- named device cannot be opened.
function M.new(options_given)
  local o = args.options("info", options_given, { "device" })
  local self = setmetatable({ rows = {} }, Info)
  if o.device then
    local ok, err = describe(self, args.string("info: device", o.device))
    if not ok then return nil, err end
    return self
  end
  add(self, "version", M.version())
  local commit, dirty, reason = run.version()
  if reason then commit = commit .. (commit == "unknown" and ": " or ", the library's: ") .. reason end
  add(self, "commit", commit .. (dirty and ", with changes" or ""))
  add(self, "library", F.path)
  add(self, "Lua", jit.version .. ", " .. jit.arch)
  self.wrong = describe_devices(self)

  local in_force, warning = gate.from_env()
  add(self, "gate", (tostring(in_force):gsub("^gate: ", "")))
  for line in (warning or ""):gmatch("[^\n]+") do add(self, "", "warning: " .. line) end
  describe_settings(self)

  for _, row in ipairs { { "FlashMLA", "flashmla" }, { "FA3", "fa3" } } do
    local found, absent = flashmla.find { kernel = row[2] }
    add(self, row[1], found and ("found: %s, %s"):format(found.package, found.extension) or "not found: "
      .. absent:gsub("^no [^:]*: ", ""))
  end
  add(self, "readline", readline.is_installed() and "found: the prompt has line editing, history and completion"
    or "not found: the prompt reads plain lines")
  return self
end

function Info:__tostring()
  local lines = {}
  for i, row in ipairs(self.rows) do lines[i] = ("%-12s%s"):format(row.name, row.value) end
  return table.concat(lines, "\n")
end

--- Print it. Returns the exit status; ends with 1 and one line where a setting keeps the CPU or the chosen device from being
-- opened.
function M.main(argv)
  local opt = parser:read(argv)
  local self, err = M.new { device = opt.device }
  if not self then exit.with(exit.FAILED, ("info: device %s: %s"):format(opt.device, err)) end
  print(self)
  if self.wrong then exit.with(exit.FAILED, "info: " .. self.wrong) end
  return 0
end

-- A tail call: errors blame the caller, as for M.new itself.
return setmetatable(M, { __call = function(_, ...) return M.new(...) end })
