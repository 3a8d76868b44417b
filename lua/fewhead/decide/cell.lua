--- Cell: one cell of a sweep measured, and what else decides its result: the build, the device, the settings.
--
--   local cell = require "fewhead.decide.cell"
--   local bench = assert(cell.open { device = "cpu", paths = { "padded", "native" }, how = { cold = true }, worker = true })
--   local records = bench:measure({ s_q = 64, heads = 8 }, { max_seconds = 1 }).records
--   bench:close()
--
-- Cells run in this process, or in a worker process (fewhead.measure.worker).

local compare = require "fewhead.measure.compare"
local device = require "fewhead.device.device"
local F = require "fewhead.base.ffi"
local hash = require "fewhead.base.hash"
local json = require "fewhead.base.json"
local pattern = require "fewhead.case.pattern"
local posix = require "fewhead.base.posix"
local providers = require "fewhead.device.provider"
local records = require "fewhead.record.record"

local M = {}

-- Variables of the environment that change what is measured and are not in the device's description.
local ENVIRONMENT = { "FEWHEAD_FORCE_PORTABLE", "FEWHEAD_FLASHMLA", "FEWHEAD_FA3" }

-- The file that the library was loaded from: where it is mapped, since a name alone may be found anywhere.
local function library_file()
  local maps = io.open("/proc/self/maps")
  local path = maps and maps:read("*a"):match("(/[^\n]*libfewhead%.so[^\n]*)\n")
  if maps then maps:close() end
  return path or F.path
end

local checksum

-- The checksum of the library that is loaded; "unknown" where its file has gone.
local function library_checksum()
  checksum = checksum or hash.file(library_file()) or "unknown"
  return checksum
end

-- A path as a fingerprint has it: a plug-in is its version and its file's bytes too.
local function path_text(path)
  if not providers.is(path) then return path end
  return ("%s %s %s"):format(path.name, path.text, hash.file(path.path) or "unknown")
end

--- What decides the results of cells besides the cells: { build =, library = checksum of its file, device =, kind =, threads =,
-- isa =, multiprocessors =, capability =, environment = "NAME=value ..", paths = text, settings = text }. The driver is not part
-- of it: an update changes no kernel of the library.
function M.fingerprint(dev, paths, how)
  local info, environment, names, settings = dev:info(), {}, {}, {}
  for _, name in ipairs(ENVIRONMENT) do
    local value = os.getenv(name)
    if value and value ~= "" then environment[#environment + 1] = name .. "=" .. value end
  end
  for i, path in ipairs(paths) do names[i] = path_text(path) end
  for key, value in pairs(how) do
    settings[#settings + 1] = ("%s=%s"):format(key, type(value) == "table" and json.encode(value) or tostring(value))
  end
  table.sort(settings)
  return {
    build = F.ffi.string(F.C.fh_build_info()), library = library_checksum(), device = info.name, kind = info.kind,
    threads = info.threads, isa = info.isa, multiprocessors = info.multiprocessors, capability = info.capability,
    environment = table.concat(environment, " "), paths = table.concat(names, ", "), settings = table.concat(settings, " "),
  }
end

-- What is to be known of a device before the first cell: { header =, fingerprint =, rates = or nil, paths = list } | nil, err.
local function describe(dev, o)
  local list = compare.expand("sweep: paths", o.paths, dev, o.level or 1)
  local rates, err
  if o.rates then
    rates, err = require("fewhead.decide.rate").measure(dev)
    if not rates then return nil, err end
  end
  return {
    paths = list, header = o.run or require("fewhead.record.run").header(dev, o.argv), rates = rates,
    fingerprint = M.fingerprint(dev, list, o.how),
  }
end

--- The same for a worker process: paths are names, there and in what is returned. Paths that are none are nil and the reason.
function M.describe(bench, o)
  o.paths = bench.paths(o.paths)
  local ok, found, err = pcall(describe, bench.dev, o)
  if not ok then return nil, (tostring(found):gsub("^.-%.lua:%d+: ", "")) end
  for i, path in ipairs(found and found.paths or {}) do found.paths[i] = providers.name_of(path) end
  return found, err
end

local Bench = { __name = "bench of cells" }
Bench.__index = Bench

-- A worker and what it says of its device: true | nil, err.
local function open_worker(self, o)
  local names, by_name, argv = {}, {}, require("fewhead.base.json").array {}
  for i, path in ipairs(o.paths) do
    names[i] = providers.name_of(path)
    if providers.is(path) then by_name[path.name] = path end
  end
  for i, word in ipairs(o.argv or _G.arg or {}) do argv[i] = tostring(word) end
  local err
  self.crew, err = require("fewhead.measure.worker").open {
    device = o.device, providers = require("fewhead.measure.isolate").providers_of(o.paths),
  }
  if not self.crew then return nil, err end
  local answer = self.crew:call("decide.cell", "describe", { paths = names, how = o.how, argv = argv, rates = o.rates })
  local found = answer.value
  if not found then
    self.crew:close()
    return nil, answer.err or answer.raised or "the worker process ended in set-up: " .. answer.failure.text
  end
  self.header, self.fingerprint, self.rates, self.paths = found.header, found.fingerprint, found.rates, found.paths
  for i, name in ipairs(self.paths) do self.paths[i] = by_name[name] or name end
  return true
end

-- The same in this process.
local function open_here(self, o)
  local err
  self.dev = o.device
  if type(o.device) ~= "table" then self.dev, err = device.open(o.device or device.default_name()) end
  if not self.dev then return nil, err end
  local found
  found, err = describe(self.dev, o)
  if not found then return nil, err end
  self.header, self.fingerprint, self.rates, self.paths = found.header, found.fingerprint, found.rates, found.paths
  self.continued = posix.block(posix.SIGCONT)
  return true
end

--- Ready to measure cells: { header = of fh.run, fingerprint =, paths = "native" replaced, rates = or nil } | nil, err. options:
-- device, a name, or without worker a device; paths, as fh.compare takes them; how, options of fh.compare that all cells share;
-- worker = true: cells run in a process of their own; argv; run, a header to use without worker; rates = true: measure what
-- estimates need (fewhead.decide.rate).
function M.open(options)
  local self = setmetatable({ how = options.how }, Bench)
  local ok, err = (options.worker and open_worker or open_here)(self, options)
  if not ok then return nil, err end
  return self
end

--- The records of a cell that did not come to a comparison: one a path, with a status ("invalid", or "error" where it ran) and
-- the reason. more: further fields.
function M.refused(options, paths, how, status, reason, more)
  local list, case = {}, {}
  for key, value in pairs(options) do case[key] = value end
  case.h_q, case.heads = case.h_q or case.heads, nil
  if case.pattern then case.pattern, case.pattern_name = pattern.name_of(case.pattern), pattern.given_name(case.pattern) end
  for i, path in ipairs(paths) do
    list[i] = records.new {
      path = path, case = case, call = { group = how.group, row_invariant = how.row_invariant },
      parity = { status = status, against = "reference", compared = 0, reason = reason }, more = more,
    }
  end
  return list
end

-- In this process, as crew:call answers.
local function race_here(self, case, limits)
  while posix.take(self.continued) do end
  local how = { device = self.dev, run = self.header }
  for key, value in pairs(self.how) do how[key] = value end
  how.max_seconds, how.interrupted = limits.max_seconds, limits.interrupted
  how.stopped = function() return posix.take(self.continued) end
  local found, err = compare.compare(case, self.paths, how)
  case:free()
  if not found and limits.interrupted and limits.interrupted() then return { interrupted = true } end
  return found and { value = found } or { err = err }
end

-- Options of fh.compare for a cell with so many seconds of timing.
local function how_of(self, max_seconds)
  local how = { max_seconds = max_seconds }
  for key, value in pairs(self.how) do how[key] = value end
  return how
end

-- The call that measures a cell in a worker. The worker makes the case: here it would take time from the cell before.
local function call_of(self, options, max_seconds)
  local names = {}
  for i, path in ipairs(self.paths) do names[i] = providers.name_of(path) end
  return compare.race_call(options, names, how_of(self, max_seconds))
end

local function race_there(self, options, limits)
  local own, begun = {}, self.next
  for key, value in pairs(limits) do own[key] = value end
  own.begun = begun and begun.options == options and begun.call or call_of(self, options, limits.max_seconds)
  local ahead = limits.ahead
  self.next = ahead and { options = ahead.options, call = call_of(self, ahead.options, ahead.max_seconds) }
  own.ahead = self.next and self.next.call
  local case = { describe = function() return require("fewhead.case.case").new(options):describe() end } -- of a path that is out
  return compare.apart(self.crew, case, self.paths, how_of(self, limits.max_seconds), own)
end

--- Measure one cell: options of fh.case. limits: max_seconds of timing; interrupted = function() -> true to stop; and in a worker
-- seconds, the wall time after which the cell has hung, deadline and on_interrupt (fewhead.measure.worker), and ahead = { options
-- =, max_seconds = } of the cell that is expected to come next, which the worker begins as soon as it is done with this one.
-- Returns { records = without `run` }; { interrupted = true }; { late = true } where the deadline came; nil, err where no worker
-- can be started.
function Bench:measure(options, limits)
  local answer
  if self.crew then answer = race_there(self, options, limits)
  else
    local case, err = require("fewhead.case.case").try(options)
    answer = case and race_here(self, case, limits) or { err = err }
  end
  if answer.value then
    for _, record in ipairs(answer.value.records) do record.run = nil end
    return { records = answer.value.records }
  end
  if answer.interrupted or answer.late then return answer end
  if answer.err and self.crew and not self.crew.process then return nil, answer.err end
  if answer.err then return { records = M.refused(options, self.paths, self.how, "invalid", answer.err) } end
  local failure = answer.failure or { phase = "set-up", text = answer.raised }
  local reason = ("the worker process ended in %s%s: %s"):format(failure.phase, failure.path and " of " .. failure.path or "",
    failure.text)
  return { records = M.refused(options, self.paths, self.how, "error", answer.raised or reason, {
    failure = { phase = failure.phase, path = failure.path, code = failure.code, text = failure.text },
  }) }
end

--- End the worker, and give back what open took.
function Bench:close()
  if self.crew then self.crew:close() end
  if self.continued then posix.unblock(self.continued) end
end

return M
