--- A device: where buffers lie and calls run.
--
--     local device = require "fewhead.device.device"
--     local dev = assert(device.open("cpu", { threads = 2, isa = "avx2" }))
--     print(dev, dev:info().threads)      --> cpu: Intel(R) Xeon(R) Processor, 2 threads, avx2   2
--     print(device.open("cuda:0"))        --> cuda:0: NVIDIA H200, 132 multiprocessors, compute capability 9.0
--
-- Fields: dev.name (as opened), dev.kind ("cpu" or "cuda"), dev.handle (fh_device*; nil once closed).
local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"

local ffi, C = F.ffi, F.C

local M = {}

local Device = { __name = "device" }
Device.__index = Device

local MAX_THREADS = 1024 -- fh_device_options
local ISAS = { unpack(F.isa_names) } -- without [0], which stands for none given

--- An open device: returns v, or blames a caller as the checks of fh.arguments do.
function M.check(what, v, level)
  if getmetatable(v) ~= Device then
    error(("%s: got %s, wanted a device, such as fh.open(\"cpu\") gives"):format(what, args.show(v)), (level or 2) + 1)
  end
  if not v.handle then error(("%s: the device was closed"):format(what), (level or 2) + 1) end
  return v
end

local function get_info(handle)
  local info = ffi.new("fh_device_info")
  info.struct_size = ffi.sizeof(info)
  local ok, err = F.check(C.fh_device_get_info(handle, info))
  return ok and info, err
end

--- The names of the devices of this machine: { "cpu", "cuda:0", .. }.
function M.names()
  local list = {}
  for kind, name in ipairs(F.device_kind_names) do
    for ordinal = 0, C.fh_device_count(kind) - 1 do list[#list + 1] = name == "cpu" and name or name .. ":" .. ordinal end
  end
  return list
end

--- Open a device: "cpu", "cuda:0" and on; "cuda" is "cuda:0". On a CPU threads: 1 .. 1024 (default: FEWHEAD_THREADS, or the CPUs
-- this process may use), isa: "generic", "avx2", "avx512", "avx512_bf16" or "amx" (default: FEWHEAD_ISA, or the best there is).
-- Returns the device; or nil and the reason, for a name that is no device here and an isa that the CPU lacks.
function M.open(name, options)
  args.string("device.open: name", name)
  options = args.options("device.open", options, { "threads", "isa" })
  local given = ffi.new("fh_device_options")
  given.struct_size = ffi.sizeof(given)
  if options.threads ~= nil then given.threads = args.integer("device.open: threads", options.threads, 1, MAX_THREADS) end
  if options.isa ~= nil then given.isa = F.isas[args.enum("device.open: isa", options.isa, ISAS)] end

  local box = ffi.gc(ffi.new("fh_device *[1]"), C.fh_device_close)
  local ok, err = F.check(C.fh_device_open(name, given, box))
  if not ok then return nil, err end
  local info
  info, err = get_info(box[0])
  if not info then return nil, err end
  return setmetatable({ name = name, kind = F.device_kind_names[info.kind], handle = box[0], box = box }, Device)
end

local default, default_is -- opened; the name that set_default was given

--- The name of the device that is used where none is named: what set_default was given, FEWHEAD_DEVICE, or "cpu".
function M.default_name()
  local named = os.getenv("FEWHEAD_DEVICE")
  return default_is or named ~= "" and named or "cpu"
end

--- That device, opened once. Raises when it cannot be opened.
function M.default()
  if not (default and default.handle) then
    local opened, err = M.open(M.default_name())
    if not opened then
      local named = os.getenv("FEWHEAD_DEVICE")
      error((named and named ~= "" and "FEWHEAD_DEVICE=" .. named .. ": " or "") .. err, 2)
    end
    default = opened
  end
  return default
end

--- Use this device where none is named from now on: "cpu", "cuda:0", .. Returns the device; or nil and the reason where it cannot
-- be opened, and then the default stays. What lies on the default before stays there and keeps working.
function M.set_default(name)
  args.string("device.set_default: name", name)
  local opened, err = M.open(name)
  if not opened then return nil, err end
  default, default_is = opened, name
  return opened
end

--- What the device is: { name= (the vendor's), kind=, ordinal=, cache_bytes= (last level), memory_bytes=, driver=, clock_mhz=,
-- memory_clock_mhz= (CUDA: the highest) }; 0 where unknown, driver "" on a CPU. On a CPU also threads= and isa= ("avx2"); on CUDA
-- multiprocessors= and capability= ("9.0").
function Device:info()
  M.check("device:info", self)
  local info = assert(get_info(self.handle))
  local function some(v) return v ~= 0 and v or nil end
  local capability = some(info.capability)
  return {
    name = ffi.string(info.name), kind = F.device_kind_names[info.kind], ordinal = info.ordinal, threads = some(info.threads),
    isa = info.isa ~= 0 and F.isa_names[info.isa] or nil, multiprocessors = some(info.multiprocessors),
    capability = capability and ("%d.%d"):format(math.floor(capability / 10), capability % 10),
    cache_bytes = tonumber(info.cache_bytes), memory_bytes = tonumber(info.memory_bytes), driver = ffi.string(info.driver),
    clock_mhz = info.clock_mhz, memory_clock_mhz = info.memory_clock_mhz,
  }
end

--- What computes on a device, from its info or a run's header, in words: "8 threads, avx512", or "132 multiprocessors, compute
-- capability 9.0". A header from before 0.2 has a GPU's multiprocessors as threads and "sm_90" as isa, and is shown as it stands.
function M.units(info)
  local words = {}
  if info.threads then words[#words + 1] = ("%d threads"):format(info.threads) end
  if info.isa then words[#words + 1] = info.isa end
  if info.multiprocessors then words[#words + 1] = ("%d multiprocessors"):format(info.multiprocessors) end
  if info.capability then words[#words + 1] = "compute capability " .. info.capability end
  return table.concat(words, ", ")
end

--- Wait until the device has done all it was given. Returns true, or nil and the reason.
function Device:synchronize()
  M.check("device:synchronize", self)
  local ok, err = F.check(C.fh_device_synchronize(self.handle))
  return ok, err
end

--- Whether the device can run a path: "auto", "reference", "padded", "gather" or "packed"; h_q: with so many heads.
function Device:has_path(path, h_q)
  M.check("device:has_path", self)
  args.string("device:has_path: path", path)
  if h_q ~= nil then args.integer("device:has_path: h_q", h_q, 1, 2^31 - 1) end
  return F.paths[path] ~= nil and C.fh_device_has_path(self.handle, F.paths[path], h_q or 0) == 1
end

--- Give the device back; tensors on it stay valid and keep what they need of it. Closing twice does nothing.
function Device:close()
  if getmetatable(self) ~= Device then error(("device:close: got %s, wanted a device"):format(args.show(self)), 2) end
  self.handle = nil
  C.fh_device_close(self.box)
end

function Device:__tostring()
  if not self.handle then return self.name .. " (closed)" end
  local info = self:info()
  return ("%s: %s, %s"):format(self.name, info.name, M.units(info))
end

M._kept = { "default", "default_is" } -- locals that outlive a reload at the prompt

return M
