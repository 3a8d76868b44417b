--- A provider: a kernel of somebody else's, loaded from a plug-in, that takes part wherever a path of the library can.
--
--     local loops = assert(fh.provider.load("./loops.so"))
--     print(fh.compare(fh.case { s_q = 64 }, { "padded", "gather", loops }))
--     print(fh.provider.flashmla())              --> the FlashMLA of this machine; or nil and what was looked for where
--     print(fh.provider.fa3())                   --> the same for FlashAttention 3
--
-- fewhead_provider.h says how a plug-in is made. Where a path is named (problem:run, parity.check, fh.compare, fh.sweep, ..) the
-- object that load gives may stand; its records say provider = its name, those of the library's paths provider = "fewhead".
--
-- Fields: name, what records and tables call it; version, of the plug-in; description, what the plug-in found when it was opened
-- ("" for nothing); text, both in one line; kinds, { cpu = true, cuda = true } where it runs; path, the file; options, as given.
local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"

local ffi, C = F.ffi, F.C

local M = {}

local Provider = { __name = "provider" }
Provider.__index = Provider

-- Names that mean something else where a provider's name may stand.
local TAKEN = { native = true, noise = true, fewhead = true }
for name in pairs(F.paths) do TAKEN[name] = true end

-- [0]: the number of the provider whose code runs, 0 for none; [1]: how many times one was entered.
local marks = ffi.new("int32_t[2]")
local numbers = 0

local NAME = "^%a[%w._-]*$"
local WANTED = "a name of letters, digits, '.', '_', '-', a letter first, that is no path's"

local function is_name(name) return name:find(NAME) ~= nil and not TAKEN[name] end

local function info_of(handle)
  local info = ffi.new("fh_provider_info", { struct_size = ffi.sizeof("fh_provider_info") })
  assert(F.check(C.fh_provider_get_info(handle, info)))
  return info
end

--- Whether v is a provider.
function M.is(v) return getmetatable(v) == Provider end

--- What tables call a path or a provider.
function M.name_of(path) return M.is(path) and path.name or path end

--- Who made a path or a provider's kernel, as records have it: the name ("fewhead" for the library's own paths) and its version.
function M.provider_of(path)
  if M.is(path) then return path.name, path.text end
  return "fewhead", F.version
end

--- Load a plug-in. name: what to call it (default: what it calls itself); options: text that the plug-in understands. Returns the
-- provider; or nil and one line, for a file that is not there, is no plug-in, was built for another version, or does not open.
function M.load(path, name, options)
  args.string("provider.load: path", path)
  if name ~= nil then args.string("provider.load: name", name) end
  if options ~= nil then args.string("provider.load: options", options) end
  if name and not is_name(name) then error(("provider.load: name: got %s, wanted %s"):format(args.show(name), WANTED), 2) end
  local box = ffi.gc(ffi.new("fh_provider *[1]"), C.fh_provider_free)
  local ok, err = F.check(C.fh_provider_load(path, options, box))
  if not ok then return nil, err end
  local info = info_of(box[0])
  local called, version, description = ffi.string(info.name), ffi.string(info.version), ffi.string(info.description)
  if not name and TAKEN[called] then return nil, ("provider: %s calls itself %s: give it another name"):format(path, called) end
  local kinds = {}
  for kind, number in pairs(F.device_kinds) do
    if math.floor(info.devices / 2^number) % 2 == 1 then kinds[kind] = true end
  end
  numbers = numbers + 1
  return setmetatable({
    number = numbers, name = name or called, called = called, version = version, description = description, kinds = kinds,
    path = path, options = options,
    text = description == "" and version or ("%s (%s)"):format(version, description), box = box, handle = box[0],
  }, Provider)
end

-- A kernel as it is installed on this machine, or nil and one line.
local function installed(options, name, title, instead)
  local found, reason = require("fewhead.device.flashmla").find(options)
  if not found then return nil, reason end
  local provider, err = M.load(found.path, name, found.options)
  if not provider then return nil, ("no %s: %s%s"):format(title, err, instead) end
  return provider
end

--- FlashMLA as it is installed on this machine, called name ("flashmla"); options as fewhead.device.flashmla's find takes them.
-- Returns the provider; or nil and one line that says what was looked for, where, and how to install it.
function M.flashmla(options, name)
  return installed(options, name or "flashmla", "FlashMLA", "; the built-in padded path stands in")
end

--- FlashAttention 3 for sparse lists as vLLM has it on this machine, called name ("fa3"): native heads, one token a sequence.
-- Returns the provider; or nil and one line that says what was looked for, where, and how to install it.
function M.fa3(name) return installed({ kernel = "fa3" }, name or "fa3", "FlashAttention 3", "") end

--- The option that hands plug-ins to a script, for fh.options; opt.provider is then a list of providers.
M.option = { "--provider", "NAME=FILE", "race this plug-in too (see fewhead_provider.h)", kind = "PROVIDER", repeated = true }

--- The provider of that option's value; nil and what was wanted when there is none.
function M.from_option(text)
  local name, path = text:match("^([^=]*)=(.+)$")
  if not name then return nil, "NAME=FILE, a plug-in's file and what to call it" end
  if not is_name(name) then return nil, "NAME=FILE, where NAME is " .. WANTED end
  local provider, err = M.load(path, name)
  if not provider then return nil, ("NAME=FILE with a plug-in in FILE (%s)"):format(err) end
  return provider
end

--- The handle of a provider that was not freed, else an error; level as in error(), 1 = the caller of this.
function M.handle(what, provider, level)
  if not provider.handle then error(("%s: provider %s: used after free()"):format(what, provider.name), level + 1) end
  return provider.handle
end

--- F.check for what a provider's function returned: true; or nil, the message and the status's name. The message starts with the
-- plug-in's own name no more.
function Provider:check(status)
  local ok, err, name = F.check(status)
  if ok then return true end
  local own = self.called .. ": "
  return nil, err:sub(1, #own) == own and err:sub(#own + 1) or err, name
end

-- ---- Jobs -------------------------------------------------------------------------------------------------------------------
-- All code of a plug-in runs in load, workspace_bytes, prepare, run, collect, executed_flops and free of these two objects, and
-- nowhere else. Each notes which plug-in it enters, so that a process that watches knows whose code crashed or hangs.

--- Note what runs in this memory, two int32_t, from now on: the provider's number (0 for none), and how often one was entered.
function M.note_in(memory) marks = memory end

local function enter(provider)
  marks[1] = marks[1] + 1
  marks[0] = provider.number
end

local function leave(...)
  marks[0] = 0
  return ...
end

local Job = { __name = "job of a provider" }
Job.__index = Job

-- What a job points to, for as long as its box lives.
local anchors = setmetatable({}, { __mode = "k" })

--- Bytes of workspace that the plug-in wants for a call (fh_call cdata) on a device | nil, err.
function Provider:workspace_bytes(dev, call)
  local bytes = ffi.new("uint64_t[1]")
  enter(self)
  local ok, err = self:check(leave(C.fh_provider_workspace_bytes(self.handle, dev.handle, call, bytes)))
  if not ok then return nil, err end
  return tonumber(bytes[0])
end

--- Get ready to run a call. Returns the job; or nil and the reason, for a call that the plug-in does not take. The call and the
-- provider live as long as the job. job.run() runs it and returns its fh_status: what gets timed.
function Provider:prepare(dev, call)
  local box = ffi.gc(ffi.new("fh_provider_job *[1]"), C.fh_provider_job_free)
  anchors[box] = { call, self }
  enter(self)
  local ok, err = self:check(leave(C.fh_provider_prepare(self.handle, dev.handle, call, box)))
  if not ok then return nil, err end
  local function run()
    enter(self)
    return leave(C.fh_provider_run(box[0]))
  end
  return setmetatable({ box = box, provider = self, run = run }, Job)
end

--- Bring the results of a run to the outputs of the call: true | nil, err.
function Job:collect()
  enter(self.provider)
  local ok, err = self.provider:check(leave(C.fh_provider_collect(self.box[0])))
  return ok, err
end

--- FLOPs that a run multiplied, padding included; 0 where the plug-in does not tell.
function Job:executed_flops()
  enter(self.provider)
  return tonumber(leave(C.fh_provider_executed_flops(self.box[0])))
end

--- Give back what was made for the job; afterwards it must not run. Twice does nothing.
function Job:free()
  enter(self.provider)
  leave(C.fh_provider_job_free(self.box))
end

--- Give the plug-in back; it closes when its last job has gone. Twice does nothing.
function Provider:free()
  if not M.is(self) then error(("provider:free: got %s, wanted a provider"):format(args.show(self)), 2) end
  self.handle = nil
  C.fh_provider_free(self.box)
end

function Provider:__tostring() return ("%s %s"):format(self.name, self.text) end

M._kept = { "numbers", "marks" } -- locals that outlive a reload at the prompt

return M
