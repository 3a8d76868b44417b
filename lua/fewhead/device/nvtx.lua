--- NVTX: names for what runs, as NVIDIA's profilers show them.
--
--     local ranges = assert(nvtx.open())                  -- under `nsys profile` or `ncu`
--     ranges.push("packed, s_q 2048"); run(); ranges.pop()
--
-- NVTX version 3 has no library of its own: a program hands its table of functions to the profiler's library, which
-- NVTX_INJECTION64_PATH names, and the profiler fills it in (nvtx3/nvtxDetail/nvtxTypes.h and nvtxInit.h).
-- @module fewhead.device.nvtx

local ffi = require "ffi"

local M = {}

-- Declarations outlive this module when package.loaded is emptied.
if not pcall(ffi.typeof, "fewhead_nvtx_callbacks") then
  ffi.cdef [[
  typedef void (*fewhead_nvtx_function)(void);
  typedef int (*fewhead_nvtx_get_module)(int module, fewhead_nvtx_function ***table, unsigned int *size);
  typedef struct { size_t struct_size; fewhead_nvtx_get_module get_module; } fewhead_nvtx_callbacks;
  typedef struct { size_t struct_size; unsigned int version; unsigned int reserved[7]; } fewhead_nvtx_version;
  typedef const void *(*fewhead_nvtx_get_table)(unsigned int id);
  int InitializeInjectionNvtx2(fewhead_nvtx_get_table get_table);
  typedef int (*fewhead_nvtx_push)(const char *name);
  typedef int (*fewhead_nvtx_pop)(void);
  ]]
end

local VERSION = 3
local CALLBACKS, VERSION_INFO = 1, 3               -- NvtxExportTableID
local CORE, CORE_SIZE, PUSH_A, POP = 1, 16, 9, 11  -- NvtxCallbackModule, NvtxCallbackIdCore

--- What a profiler's absence is called.
M.none = "no profiler: NVTX_INJECTION64_PATH is not set; start the command under nsys profile"

--- Whether a profiler is there: true | nil, one line that says what is missing. Loads nothing.
function M.find()
  local path = os.getenv("NVTX_INJECTION64_PATH")
  if not path or path == "" then return nil, M.none end
  local file, err = io.open(path, "rb")
  if not file then return nil, ("NVTX_INJECTION64_PATH: %s"):format(err) end
  file:close()
  return true
end

local opened

-- Hands the table over: { push =, pop = } | nil, err.
local function inject()
  local ok, err = M.find()
  if not ok then return nil, err end
  local path = os.getenv("NVTX_INJECTION64_PATH")
  local loaded, library = pcall(ffi.load, path)
  if not loaded then return nil, "NVTX_INJECTION64_PATH: " .. library end
  if not pcall(function() return library.InitializeInjectionNvtx2 end) then
    return nil, ("NVTX_INJECTION64_PATH: %s: no InitializeInjectionNvtx2 in it"):format(path)
  end
  local functions = ffi.new("fewhead_nvtx_function[?]", CORE_SIZE)
  local slots = ffi.new("fewhead_nvtx_function *[?]", CORE_SIZE + 1) -- ends with NULL
  for i = 0, CORE_SIZE - 1 do slots[i] = functions + i end
  local callbacks = ffi.new("fewhead_nvtx_callbacks", { struct_size = ffi.sizeof("fewhead_nvtx_callbacks") })
  callbacks.get_module = function(module, table_, size)
    if module ~= CORE then return 0 end
    table_[0] = slots
    if size ~= nil then size[0] = CORE_SIZE end
    return 1
  end
  local version = ffi.new("fewhead_nvtx_version", { struct_size = ffi.sizeof("fewhead_nvtx_version"), version = VERSION })
  local get_table = ffi.cast("fewhead_nvtx_get_table", function(id)
    if id == CALLBACKS then return callbacks end
    if id == VERSION_INFO then return version end
    return nil
  end)
  local keep = { library, functions, slots, callbacks, version, get_table } -- for as long as the process lives
  if library.InitializeInjectionNvtx2(get_table) == 0 then return nil, "the profiler refused: " .. path end
  local push, pop = ffi.cast("fewhead_nvtx_push", functions[PUSH_A]), ffi.cast("fewhead_nvtx_pop", functions[POP])
  return {
    keep = keep, push = function(name) return push ~= nil and push(name) end, pop = function() return pop ~= nil and pop() end,
  }
end
jit.off(inject) -- the profiler calls back

--- Ranges for the profiler that this process runs under: { push = function(name), pop = function() } | nil, one line that says
-- what is missing.
function M.open()
  if not opened then
    local err
    opened, err = inject()
    if not opened then return nil, err end
  end
  return opened
end

return M
