--- The worker process of a sweep: reads lines of JSON, opens a device, measures cells, answers with lines of JSON. What
-- fewhead.decide.worker starts; nobody types it.
--
--   fewhead worker PARENT        PARENT: the number of the process that it ends with
--
-- A line in: { op = "open", device =, paths =, how =, argv =, rates = } or { op = "cell", options =, max_seconds = }. Lines out:
-- { phase =, path = } as a cell goes on, then one answer. Standard output is the answers' alone: what a plug-in prints goes to
-- standard error.
local cell = require "fewhead.decide.cell"
local json = require "fewhead.base.json"
local posix = require "fewhead.base.posix"
local provider = require "fewhead.device.provider"

local M = {}

-- The paths of a message, plug-ins loaded. nil, err.
local function paths_of(list)
  local paths = {}
  for i, path in ipairs(list) do
    local err
    paths[i] = path
    if type(path) == "table" then paths[i], err = provider.load(path.path, path.name, path.options) end
    if not paths[i] then return nil, err end
  end
  return paths
end

local function open(message)
  local paths, err = paths_of(message.paths)
  if not paths then return nil, err end
  local ok, bench, reason = pcall(cell.open, {
    device = message.device, paths = paths, how = message.how, argv = message.argv, rates = message.rates,
  })
  if not ok then return nil, (tostring(bench):gsub("^.-%.lua:%d+: ", "")) end
  return bench, reason
end

local function described(bench)
  local names = {}
  for i, path in ipairs(bench.paths) do names[i] = provider.name_of(path) end
  return { header = bench.header, fingerprint = bench.fingerprint, rates = bench.rates, paths = names }
end

-- Whether the device has gone: after an error that stays, every later call fails.
local function lost(bench) return bench.dev.kind == "cuda" and not bench.dev:synchronize() end

local function measure(bench, message, tell, signals)
  local pressed = false
  local function interrupted()
    pressed = pressed or posix.take(signals.stop)
    return pressed
  end
  while posix.take(signals.continue) do end
  local list = cell.measure(bench, message.options, {
    max_seconds = message.max_seconds, interrupted = interrupted,
    stopped = function() return posix.take(signals.continue) end,
    phase = function(name, path) tell { phase = name, path = path } end,
  })
  if not list then return { interrupted = true } end
  return { records = list, lost = lost(bench) or nil }
end

--- Serve until standard input ends. Returns the exit status.
function M.main(argv)
  posix.end_with(tonumber(argv[1]))
  local answers = posix.take_stdout()
  local signals = { stop = posix.block(posix.SIGINT), continue = posix.block(posix.SIGCONT) }
  local function tell(message) posix.write_fd(answers, json.encode(message) .. "\n") end
  local bench
  for line in io.stdin:lines() do
    local message = assert(json.decode(line))
    if message.op == "open" then
      local err
      bench, err = open(message)
      tell(bench and described(bench) or { error = err })
    else
      tell(measure(bench, message, tell, signals))
    end
  end
  return 0
end

return M
