-- worker: a process of its own that runs the cells of a sweep, so that a crash, a hang or a lost device ends a cell and no more.
--
--   local worker = require "fewhead.decide.worker"
--   local crew = assert(worker.open { device = "cpu", paths = { "padded", "native" }, how = {} })
--   local answer = crew:measure({ s_q = 64, heads = 8 }, { max_seconds = 1, seconds = 60 })
--   crew:close()
--
-- The two processes talk in lines of JSON through the worker's standard input and output. This process opens no device. The
-- worker is `fewhead worker` (fewhead.cli.worker); it is started with lua-luv, which tools/setup.sh installs.

local checkout = require "fewhead.base.checkout"
local json = require "fewhead.base.json"
local posix = require "fewhead.base.posix"
local providers = require "fewhead.device.provider"

local M = {}

--- What a machine without lua-luv is told.
M.missing = "fewhead: no Lua module luv, which runs the worker process of a sweep: apt-get install lua-luv, or run make setup"

local LOOK_MS = 20 -- between two looks at the clock and at Ctrl-C

local function luv()
  local ok, found = pcall(require, "luv")
  if not ok then error(M.missing, 0) end
  return found
end

local function now() return tonumber(require("fewhead.base.ffi").C.fh_time_ns()) / 1e9 end

local Worker = { __name = "worker" }
Worker.__index = Worker

-- Starts the process; its lines go to self.lines, and its end to self.ended.
local function start(self)
  local uv = luv()
  self.lines, self.rest, self.ended = {}, "", nil
  self.input, self.output = uv.new_pipe(false), uv.new_pipe(false)
  local err
  self.process, err = uv.spawn("luajit", {
    args = { checkout.modules .. "cli/main.lua", "worker", tostring(posix.pid()) },
    stdio = { self.input, self.output, 2 }, detached = true, -- a session of its own: Ctrl-C comes from this process alone
  }, function(code, signal) self.ended = { code = code, signal = signal } end)
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
  self.closed = false
  return true
end

-- Ends the process at once, and gives back what belonged to it.
local function stop(self)
  local uv = luv()
  if self.process and not self.ended then
    self.process:kill("sigkill")
    while not self.ended do uv.run("once") end
  end
  for _, handle in ipairs { self.process, self.input, self.output } do
    if not handle:is_closing() then handle:close() end
  end
  uv.run("nowait")
  self.process = nil
end

-- Sends a message and waits for the answer. on_line(message) -> true for what is not the answer yet. options: seconds, after
-- which the worker is ended; interrupted. Returns the answer; nil, "ended" | "late".
local function ask(self, message, options)
  local uv = luv()
  local pipe = posix.block(posix.SIGPIPE) -- the worker may be gone: then its end says so
  self.input:write(json.encode(message) .. "\n")
  local limit = now() + (options.seconds or math.huge)
  local timer, told = uv.new_timer(), false
  timer:start(LOOK_MS, LOOK_MS, function() end)
  local answer, why
  while not answer and not why do
    while #self.lines > 0 and not answer do
      local said = json.decode(table.remove(self.lines, 1))
      if said and said.phase then
        self.phase, self.path = said.phase, said.path
      else answer = said end
    end
    if not answer then
      if self.ended and self.closed then why = "ended"
      elseif now() >= limit then why = "late"
      else
        if not told and options.interrupted and options.interrupted() then
          told = true
          self.process:kill("sigint")
          if options.on_interrupt then options.on_interrupt() end
        end
        uv.run("once")
      end
    end
  end
  timer:stop()
  timer:close()
  while posix.take(pipe) do end
  posix.unblock(pipe)
  return answer, why
end

-- Starts the process and has it open the device. true | nil, err.
local function open(self)
  local ok, err = start(self)
  if not ok then return nil, err end
  local answer = ask(self, self.task, {})
  if not answer then
    local how = self.ended
    stop(self)
    return nil, ("the worker process ended while it opened the device (status %d, signal %d)"):format(how.code, how.signal)
  end
  if answer.error then
    stop(self)
    return nil, answer.error
  end
  return true, answer
end

--- Start a worker: device = name, paths, how, argv, rates as fewhead.decide.cell.open takes them; run, a header to use. Returns
-- it with .header, .fingerprint, .rates and .paths (names and providers, "native" replaced) | nil, err.
function M.open(options)
  local argv, by_name, list = json.array {}, {}, {}
  for i, word in ipairs(options.argv or _G.arg or {}) do argv[i] = tostring(word) end
  local task = { op = "open", how = options.how, argv = argv, rates = options.rates }
  for i, path in ipairs(options.paths) do
    list[i] = path
    if providers.is(path) then
      list[i] = { name = path.name, path = path.path, options = path.options }
      by_name[path.name] = path
    end
  end
  task.paths, task.device = list, options.device or require("fewhead.device.device").default_name()
  local self = setmetatable({ task = task }, Worker)
  local ok, answer = open(self)
  if not ok then return nil, answer end
  self.header, self.fingerprint, self.rates, self.paths = answer.header, answer.fingerprint, answer.rates, {}
  for i, name in ipairs(answer.paths) do self.paths[i] = by_name[name] or name end
  return self
end

-- How the process ended, for a record: { phase =, path =, code =, text = }.
local function failure_of(self, why, seconds)
  local where = { phase = self.phase or "set-up", path = self.path }
  if why == "late" then
    where.text = ("no answer in %.3g s"):format(seconds)
  elseif self.ended.signal ~= 0 then
    where.code, where.text = self.ended.signal, ("signal %d (%s)"):format(self.ended.signal, posix.signal_name(self.ended.signal))
  else
    where.code, where.text = self.ended.code, ("status %d"):format(self.ended.code)
  end
  return where
end

--- Measure one cell. limits: max_seconds of timing; seconds, the wall time after which the cell has hung; left, the wall time
-- that is left of the whole sweep, or nil; interrupted, on_interrupt = functions. Returns { records = list } without `run`; {
-- interrupted = true }; { late = true } where the sweep's time ended within; { failure = { phase, path, code, text } } where the
-- process ended or hung, and the next cell gets a new one; nil, err where no new one can be started.
function Worker:measure(options, limits)
  if not self.process then
    local ok, err = open(self)
    if not ok then return nil, err end
  end
  self.phase, self.path = nil, nil
  local seconds = math.min(limits.seconds, limits.left or math.huge)
  local answer, why = ask(self, { op = "cell", options = options, max_seconds = limits.max_seconds }, {
    seconds = seconds, interrupted = limits.interrupted, on_interrupt = limits.on_interrupt,
  })
  if answer then
    for _, record in ipairs(answer.records or {}) do json.ordered(record, require("fewhead.record.record").fields) end
    if answer.lost then stop(self) end
    return answer
  end
  local pressed = limits.interrupted and limits.interrupted()
  local failure = failure_of(self, why, seconds)
  stop(self)
  if why == "late" and limits.left and limits.left <= limits.seconds then return { late = true } end
  if pressed then return { interrupted = true } end
  return { failure = failure }
end

--- End the process. Twice does nothing.
function Worker:close()
  if self.process then stop(self) end
end

return M
