--- The worker process: reads lines of JSON, opens a device, calls functions there, answers with lines of JSON. What
-- fewhead.measure.worker starts; nobody types it.
--
--   fewhead worker PARENT        PARENT: the number of the process that it ends with
--
-- A line in: { open = true, device =, threads =, isa =, providers = } or { module =, name =, arguments =, tell = }. Lines out:
-- where tell is true { phase =, path = } as a call goes on, then one answer. Standard output is the answers' alone: what a
-- plug-in prints goes to standard error.
local json = require "fewhead.base.json"
local posix = require "fewhead.base.posix"
local provider = require "fewhead.device.provider"

local M = {}

local MARKS = 3 -- the descriptor of the memory shared with the parent

local worker = require "fewhead.measure.worker"
local now = worker.now

local LOST = {} -- what is raised where the device is lost

-- The device and the plug-ins of a message: { dev =, providers = by name, paths = function } | nil, err.
local function open(message)
  local bench = { providers = {} }
  for _, one in ipairs(message.providers) do
    local loaded, err = provider.load(one.path, one.name, one.options)
    if not loaded then return nil, err end
    bench.providers[one.name] = loaded
  end
  local err
  bench.dev, err = require("fewhead.device.device").open(message.device, { threads = message.threads, isa = message.isa })
  if not bench.dev then return nil, err end
  function bench.paths(names)
    local list = {}
    for i, name in ipairs(names) do list[i] = bench.providers[name] or name end
    return list
  end
  return bench
end

local function opened(bench)
  local numbers = {}
  for name, one in pairs(bench.providers) do numbers[name] = one.number end
  return { numbers = numbers }
end

-- What a function is told and may ask while it runs. After each phase it is looked whether the device is still there: the work
-- of a phase that lost it is the one to blame.
local function control_of(bench, note, signals)
  local control, pressed = { at = { phase = "set-up" } }, false
  note(control.at)
  function control.interrupted()
    pressed = pressed or posix.take(signals.stop)
    return pressed
  end
  function control.stopped() return posix.take(signals.continue) end
  function control.check_device()
    if bench.dev.kind ~= "cuda" then return end -- a CPU is not lost
    local status = require("fewhead.base.ffi").C.fh_device_synchronize(bench.dev.handle)
    if status == 0 then return end
    local _, text = require("fewhead.base.ffi").check(status)
    control.lost = { lost = true, phase = control.at.phase, path = control.at.path, code = status, text = text }
    error(LOST, 0)
  end
  function control.phase(name, path)
    control.check_device()
    control.at = { phase = name, path = path }
    note(control.at)
  end
  --- A path has failed: where the device has gone with it, that path is to blame.
  function control.failed(path)
    control.at.path = path
    control.check_device()
  end
  return control
end

local function call(bench, message, note, signals)
  while posix.take(signals.continue) do end
  local control, begin = control_of(bench, note, signals), now()
  local ok, value, err = pcall(function()
    local value, err = require("fewhead." .. message.module)[message.name](bench, message.arguments, control)
    control.check_device()
    return value, err
  end)
  if not ok and value ~= LOST then pcall(control.check_device) end
  if control.lost then return control.lost end
  if not ok then return { raised = tostring(value) } end
  if value then return { value = value, seconds = now() - begin } end
  if control.interrupted() then return { interrupted = true } end
  return { err = tostring(err) }
end

--- Serve until standard input ends. Returns the exit status.
function M.main(argv)
  posix.end_with(tonumber(argv[1]))
  local answers = posix.take_stdout()
  local signals = { stop = posix.block(posix.SIGINT), continue = posix.block(posix.SIGCONT) }
  local memory = assert(posix.map(MARKS))
  provider.note_in(memory)
  require("fewhead.measure.isolate").here = true
  local function tell(message)
    local ok, text = pcall(json.encode, message)
    posix.write_fd(answers, (ok and text or json.encode { raised = tostring(text) }) .. "\n")
  end
  local bench
  for line in io.stdin:lines() do
    local message = assert(json.decode(line))
    if message.open then
      local err
      bench, err = open(message)
      tell(bench and opened(bench) or { err = err })
    else
      local function note(at)
        worker.note(memory, at.phase, at.path)
        if message.tell and at.phase ~= "set-up" then tell(at) end
      end
      tell(call(bench, message, note, signals))
    end
  end
  return 0
end

return M
