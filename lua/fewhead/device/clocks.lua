--- Clocks: how fast a device runs now, and whether something holds it back.
--
--     local reader = clocks.open(dev)
--     print(reader.source, reader.read())        --> NVML  1980  3201  power cap
--     print(clocks.open(cpu).source)             --> unknown: no cpufreq/scaling_cur_freq in /sys/devices/system/cpu/cpu0
--
-- A GPU is asked by NVML, the driver's library, which is loaded at the first question. A CPU is read from Linux's files, which a
-- virtual machine often lacks.

local ffi = require "ffi"
local posix = require "fewhead.base.posix"

local M = {}

-- ---- GPUs --------------------------------------------------------------------------------------------------------------------

-- Declarations outlive this module when package.loaded is emptied.
if not pcall(ffi.typeof, "fewhead_nvml_device") then
  ffi.cdef [[
  typedef struct { void *handle; } fewhead_nvml_device; /* nvmlDevice_t */
  int cuInit(unsigned int flags);
  int cuDeviceGet(int *device, int ordinal);
  int cuDeviceGetPCIBusId(char *text, int bytes, int device);
  int nvmlInit_v2(void);
  int nvmlDeviceGetHandleByPciBusId_v2(const char *text, fewhead_nvml_device *device);
  int nvmlDeviceGetClockInfo(fewhead_nvml_device device, int type, unsigned int *mhz);
  int nvmlDeviceGetCurrentClocksThrottleReasons(fewhead_nvml_device device, unsigned long long *reasons);
  const char *nvmlErrorString(int status);
  ]]
end

local SM, MEMORY, BUS_ID_BYTES = 1, 2, 32 -- nvmlClockType_t

-- What slows a GPU down under work, of nvmlClocksThrottleReasons: bit and words. The others are settings, or say that it idles.
local REASONS = { { 0x4, "power cap" }, { 0x8, "hardware slowdown" }, { 0x20, "heat" }, { 0x40, "heat, by hardware" },
  { 0x80, "power brake" } }

-- The words of these bits, nil for none.
local function reasons_text(bits)
  local words = {}
  for _, reason in ipairs(REASONS) do
    if math.floor(bits / reason[1]) % 2 == 1 then words[#words + 1] = reason[2] end
  end
  return #words > 0 and table.concat(words, ", ") or nil
end

-- A reader of the GPU with this number | nil, why there is none.
local function open_gpu(ordinal)
  local found, nvml = pcall(ffi.load, "libnvidia-ml.so.1")
  local has_driver, driver = pcall(ffi.load, "libcuda.so.1")
  if not (found and has_driver) then return nil, "no libnvidia-ml.so.1" end
  local device, bus, handle = ffi.new("int[1]"), ffi.new("char[?]", BUS_ID_BYTES), ffi.new("fewhead_nvml_device[1]")
  local failed = driver.cuInit(0) ~= 0 or driver.cuDeviceGet(device, ordinal) ~= 0
    or driver.cuDeviceGetPCIBusId(bus, BUS_ID_BYTES, device[0]) ~= 0
  if failed then return nil, "the driver does not say where the GPU is" end
  local status = nvml.nvmlInit_v2()
  if status == 0 then status = nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, handle) end
  if status ~= 0 then return nil, "NVML: " .. ffi.string(nvml.nvmlErrorString(status)) end
  local mhz, bits = ffi.new("unsigned int[1]"), ffi.new("unsigned long long[1]")
  local function clock(type)
    return nvml.nvmlDeviceGetClockInfo(handle[0], type, mhz) == 0 and mhz[0] or nil
  end
  return { source = "NVML", read = function()
    local known = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle[0], bits) == 0
    return clock(SM), clock(MEMORY), known and reasons_text(tonumber(bits[0])) or nil
  end }
end

-- ---- CPUs --------------------------------------------------------------------------------------------------------------------

local MOST_CPUS = 16 -- of them are read: each costs some microseconds

local function number_in(path)
  local file = io.open(path)
  local value = file and file:read("*n")
  if file then file:close() end
  return value
end

-- A reader of the files in a folder like /sys/devices/system/cpu | nil, why there is none.
local function open_cpu(folder)
  if not number_in(folder .. "/cpu0/cpufreq/scaling_cur_freq") then
    return nil, ("no cpufreq/scaling_cur_freq in %s/cpu0"):format(folder)
  end
  local cpus = {}
  for i, path in ipairs(posix.glob(folder, "/cpu[0-9]*/cpufreq")) do
    if i <= MOST_CPUS then cpus[i] = path:match("^(.*)/cpufreq$") end
  end
  local before
  return { source = "cpufreq", read = function()
    local khz, events = 0, 0
    for _, cpu in ipairs(cpus) do
      khz = math.max(khz, number_in(cpu .. "/cpufreq/scaling_cur_freq") or 0)
      for _, name in ipairs { "core", "package" } do
        events = events + (number_in(("%s/thermal_throttle/%s_throttle_count"):format(cpu, name)) or 0)
      end
    end
    local hot = before ~= nil and events > before
    before = events
    return khz > 0 and khz / 1000 or nil, nil, hot and "heat" or nil
  end }
end

-- ---- Either ------------------------------------------------------------------------------------------------------------------

local readers = setmetatable({}, { __mode = "k" })

--- A reader for a device: { source = "NVML", "cpufreq", or "unknown: " and why, read = nil where unknown, else function() -> MHz
-- of its cores (of a CPU the fastest one's), MHz of its memory (nil on a CPU), and in words what holds it back, or nil }. A CPU
-- says only what has happened since the last question. folder: in place of /sys/devices/system/cpu.
function M.open(dev, folder)
  if readers[dev] and not folder then return readers[dev] end
  local reader, why
  if dev.kind == "cpu" then reader, why = open_cpu(folder or "/sys/devices/system/cpu")
  else reader, why = open_gpu(dev:info().ordinal) end
  reader = reader or { source = "unknown: " .. why }
  if not folder then readers[dev] = reader end
  return reader
end

return M
