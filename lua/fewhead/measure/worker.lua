--- Worker: a process of its own that opens a device and runs functions there, so that a crash, a hang or a lost device ends the
-- call at hand and no more.
--
--   local worker = require "fewhead.measure.worker"
--   local crew = assert(worker.open { device = "cpu", providers = { toy } })
--   local answer = crew:call("measure.compare", "race", { case = { s_q = 64 }, paths = { "padded", "toy" } }, { seconds = 60 })
--   print(answer.value or answer.failure.text)
--   crew:close()
--
-- The two processes talk in lines of JSON through the worker's standard input and output, and share a page of memory in which
-- the worker notes whose code runs (fewhead.device.provider) and what it does. This process opens no device. The worker is
-- `fewhead worker` (fewhead.cli.worker); lua-luv starts it, which tools/setup.sh installs.

local checkout = require "fewhead.base.checkout"
local ffi = require "ffi"
local json = require "fewhead.base.json"
local posix = require "fewhead.base.posix"

local M = {}

--- What a machine without lua-luv is told.
M.missing = "fewhead: no Lua module luv, which runs the worker process: apt-get install lua-luv, or run make setup"

--- The longest that one call of a plug-in's code may take, seconds, before it counts as hanging.
M.provider_seconds = 120

local LOOK_MS = 100 -- between two looks at the clock and at Ctrl-C; each look takes time from what is measured

-- In the shared page, behind the numbers of fewhead.device.provider: "PHASE\nPATH" and a byte 0, so many bytes at most.
local NOTE_AT, NOTE_BYTES = 64, 512

local function luv()
  local ok, found = pcall(require, "luv")
  if not ok then error(M.missing, 0) end
  return found
end

--- Seconds of a clock that never jumps: what limits.deadline is measured by.
function M.now() return tonumber(require("fewhead.base.ffi").C.fh_time_ns()) / 1e9 end
local now = M.now

--- Note in the shared memory what a worker does now: a phase, and a path's name or nil.
function M.note(memory, phase, path)
  ffi.copy(ffi.cast("char *", memory) + NOTE_AT, (phase .. "\n" .. (path or "")):sub(1, NOTE_BYTES - 1))
end

-- What a worker noted last: phase, path or nil.
local function noted(memory)
  local phase, path = ffi.string(ffi.cast("const char *", memory) + NOTE_AT):match("^(.-)\n(.*)$")
  return phase, path ~= "" and path or nil
end

local Worker = { __name = "worker" }
Worker.__index = Worker
--- The class, for who measures its calls.
M.class = Worker

-- Starts the process; its lines go to self.lines, and its end to self.ended.
local function start(self)
  local uv = luv()
  local fd, err = posix.memory_file()
  if not fd then return nil, "worker: " .. err end
  self.lines, self.rest, self.ended, self.closed = {}, "", nil, false
  self.input, self.output = uv.new_pipe(false), uv.new_pipe(false)
  self.process, err = uv.spawn("luajit", {
    args = { checkout.modules .. "cli/main.lua", "worker", tostring(posix.pid()) },
    stdio = { self.input, self.output, 2, fd }, detached = true, -- a session of its own: Ctrl-C comes from this process alone
  }, function(code, signal) self.ended = { code = code, signal = signal } end)
  self.timer = uv.new_timer() -- so that a wait ends for the next look
  self.marks, self.unmapped = posix.map(fd)
  if not self.process then return nil, "worker: luajit: " .. tostring(err) end
  self.output:read_start(function(_, chunk)
    if not chunk then
      self.closed = true
      return
    end
    self.rest = self.rest .. chunk
    self.rest = self.rest:gsub("([^\n]*)\n", function(line)
      self.lines[#self.lines + 1] = line
      return ""
    end)
  end)
  return true
end

-- Ends the process at once, and gives back what belonged to it.
local function stop(self)
  local uv = luv()
  if self.process and not self.ended then
    self.process:kill("sigkill")
    while not self.ended do uv.run("once") end
  end
  for _, handle in ipairs { self.process, self.input, self.output, self.timer } do
    if not handle:is_closing() then handle:close() end
  end
  uv.run("nowait")
  self.process, self.sent = nil, nil
end

-- Hands a text to the process; where it is gone, its end says so.
local function write(self, text)
  local pipe = posix.block(posix.SIGPIPE)
  self.input:write(text .. "\n")
  while posix.take(pipe) do end
  posix.unblock(pipe)
end

-- The next line that is an answer, or nil. Lines on the way say what comes next, to who asked for that.
local function take_answer(self, limits)
  while #self.lines > 0 do
    local said = assert(json.decode(table.remove(self.lines, 1)))
    if not said.phase or said.lost then return said end
    limits.phase(said.phase, said.path)
  end
end

-- The text of a call. tell: whether it is to say what comes next.
local function text_of(call, tell)
  return json.encode { module = call.module, name = call.name, arguments = call.arguments, tell = tell or nil }
end

-- Sends a message, a text, unless it was sent ahead, then the one that comes next, and waits for the answer to the first. Returns
-- it; nil, "ended"; nil, "late" | "hung", seconds that it had.
local function ask(self, text, limits)
  local uv = luv()
  if not self.sent then write(self, text) end
  self.sent = limits.ahead and { arguments = limits.ahead.arguments, text = text_of(limits.ahead, limits.phase ~= nil) }
  if self.sent then write(self, self.sent.text) end
  local begin = now()
  local seconds = math.min(limits.seconds or math.huge, (limits.deadline or math.huge) - begin)
  local told = false
  self.timer:start(LOOK_MS, LOOK_MS, function() end)
  local most = limits.provider_seconds or M.provider_seconds
  local entered, since = -1, begin -- when plug-in code was entered last
  local answer, why, had
  while not answer and not why do
    answer = take_answer(self, limits)
    if not answer then
      local time = now()
      if self.marks[1] ~= entered or self.marks[0] == 0 then entered, since = self.marks[1], time end
      if self.ended and self.closed then why = "ended"
      elseif time >= begin + seconds then why, had = "late", seconds
      elseif time - since > most then why, had = "hung", most
      else
        if not told and limits.interrupted and limits.interrupted() then
          told = true
          self.process:kill("sigint")
          if limits.on_interrupt then limits.on_interrupt() end
        end
        uv.run("once")
      end
    end
  end
  self.told = told
  self.timer:stop()
  return answer, why, had
end
jit.off(ask) -- the worker writes to the marks at any time

-- Starts the process and has it open the device. true | nil, err.
local function open(self)
  local ok, err = start(self)
  if ok and not self.marks then ok, err = nil, "worker: " .. self.unmapped end
  if not ok then return nil, err end
  local answer = ask(self, json.encode(self.task), {})
  if not answer then
    local how = self.ended or { code = -1, signal = 0 }
    stop(self)
    return nil, ("the worker process ended while it opened the device (status %d, signal %d)"):format(how.code, how.signal)
  end
  if answer.err then
    stop(self)
    return nil, answer.err
  end
  self.names = {} -- of the plug-ins, by the number that the marks have
  for name, number in pairs(answer.numbers) do self.names[number] = name end
  return true
end

--- Start a worker. options: device = its name; threads and isa, of a CPU; providers, a list of those whose code runs there.
-- Returns it | nil, err.
function M.open(options)
  local list = json.array {}
  for i, provider in ipairs(options.providers or {}) do
    list[i] = { name = provider.name, path = provider.path, options = provider.options }
  end
  local self = setmetatable({ task = {
    open = true, device = options.device or require("fewhead.device.device").default_name(), threads = options.threads,
    isa = options.isa, providers = list,
  } }, Worker)
  local ok, err = open(self)
  if not ok then return nil, err end
  return self
end

-- How a call ended that has no answer, for a record.
local function failure_of(self, why, seconds)
  local inside = self.names[self.marks[0]]
  local phase, path = noted(self.marks)
  local failure = { phase = phase or "set-up", path = inside or path, provider = inside }
  if why == "late" then
    failure.text = ("no answer in %.3g s"):format(seconds)
    failure.reason = failure.text
  elseif why == "hung" then
    failure.text = ("one call took more than %.3g s"):format(seconds)
    failure.reason = failure.text
  elseif self.ended.signal ~= 0 then
    failure.code = self.ended.signal
    failure.text = ("signal %d (%s)"):format(self.ended.signal, posix.signal_name(self.ended.signal))
    failure.reason, failure.ended = "it ended the process by " .. failure.text, true
  else
    failure.code, failure.text = self.ended.code, ("status %d"):format(self.ended.code)
    failure.reason, failure.ended = "it ended the process with " .. failure.text, true
  end
  return failure
end

--- Have the worker call fewhead.MODULE's function `name` as name(bench, arguments, control): bench = { dev =, paths = a function
-- that puts providers in the place of their names in a list }; control = { interrupted, stopped, phase, failed = functions }. It
-- returns a table that JSON holds, or nil and a text. limits: seconds for the call; provider_seconds for one call of a plug-in's
-- code (M.provider_seconds); deadline on M.now's clock; interrupted, on_interrupt, phase = functions; ahead = { module =, name =,
-- arguments = }, the call that is expected to come next: the process goes on with it as soon as it has answered this one, and
-- its answer waits for that call. Where another call comes, the process is ended, and a new one takes that.
-- Returns one of { value = table, seconds = that the function took there }; { err = text }, also where no process can be
-- started; { raised = text }; { interrupted = true }; { late = true } where the deadline came; { failure = { phase, path, code,
-- text, provider = whose code ran, or nil, reason = in words, ended = true where the process ended by itself, lost = true where
-- the device is lost } }. After the last two the next call gets a new process.
function Worker:call(module, name, arguments, limits)
  limits = limits or {}
  local sent = self.sent
  local text = sent and sent.arguments == arguments and sent.text
    or text_of({ module = module, name = name, arguments = arguments }, limits.phase ~= nil)
  if sent and sent.text ~= text then stop(self) end
  if not self.process then
    local ok, err = open(self)
    if not ok then return { err = err } end
  end
  if not self.sent then self.marks[0] = 0 end -- else the call may have begun, and note whose code runs
  local answer, why, seconds = ask(self, text, limits)
  if answer and answer.lost then
    stop(self)
    return { failure = { phase = answer.phase, path = answer.path, code = answer.code, text = answer.text, lost = true,
      reason = "the device was lost: " .. answer.text } }
  end
  if answer then
    if self.told and (self.sent or not answer.interrupted) then stop(self) end -- what it was told would end its next call
    return answer
  end
  local pressed = limits.interrupted and limits.interrupted()
  local failure = failure_of(self, why, seconds)
  stop(self)
  if why == "late" and limits.deadline and now() >= limits.deadline then return { late = true } end
  if pressed then return { interrupted = true } end
  return { failure = failure }
end

--- End the process. Twice does nothing.
function Worker:close()
  if self.process then stop(self) end
end

return M
