-- cell: one cell of a sweep measured on an open device, and what else decides its result: the build, the device, the settings.
--
--   local cell = require "fewhead.decide.cell"
--   local bench = assert(cell.open { device = "cpu", paths = { "padded", "native" }, how = { cold = true } })
--   local records = cell.measure(bench, { s_q = 64, heads = 8 }, { max_seconds = 1 })
--
-- A sweep calls this in its own process, or has a worker process call it (fewhead.decide.worker).

local device = require "fewhead.device.device"
local F = require "fewhead.base.ffi"
local hash = require "fewhead.base.hash"
local providers = require "fewhead.device.provider"
local records = require "fewhead.record.record"

local M = {}

-- Variables of the environment that change what is measured and are not in the device's description.
local ENVIRONMENT = { "FEWHEAD_FORCE_PORTABLE", "FEWHEAD_FLASHMLA" }

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
  for key, value in pairs(how) do settings[#settings + 1] = ("%s=%s"):format(key, tostring(value)) end
  table.sort(settings)
  return {
    build = F.ffi.string(F.C.fh_build_info()), library = library_checksum(), device = info.name, kind = info.kind,
    threads = info.threads, isa = info.isa, multiprocessors = info.multiprocessors, capability = info.capability,
    environment = table.concat(environment, " "), paths = table.concat(names, ", "), settings = table.concat(settings, " "),
  }
end

--- Ready to measure cells: { dev =, paths =, how =, header = of fh.run, fingerprint =, rates = or nil } | nil, err. options:
-- device, a device or a name; paths, as fh.compare takes them; how, options of fh.compare that all cells share; argv; run, a
-- header to use; rates = true: measure what estimates need (fewhead.decide.rate).
function M.open(options)
  local dev, err = options.device, nil
  if type(dev) ~= "table" then dev, err = device.open(dev or device.default_name()) end
  if not dev then return nil, err end
  local bench = { dev = dev, how = options.how }
  bench.paths = require("fewhead.measure.compare").expand("sweep: paths", options.paths, dev, options.level or 1)
  bench.header = options.run or require("fewhead.record.run").header(dev, options.argv)
  bench.fingerprint = M.fingerprint(dev, bench.paths, options.how)
  if options.rates then
    bench.rates, err = require("fewhead.decide.rate").measure(dev)
    if not bench.rates then return nil, err end
  end
  return bench
end

--- The records of a cell that did not come to a comparison: one a path, with a status ("invalid", or "error" where it ran) and
-- the reason. more: further fields.
function M.refused(options, paths, how, status, reason, more)
  local list, case = {}, {}
  for key, value in pairs(options) do case[key] = value end
  case.h_q, case.heads = case.h_q or case.heads, nil
  for i, path in ipairs(paths) do
    list[i] = records.new {
      path = path, case = case, call = { group = how.group, row_invariant = how.row_invariant },
      parity = { status = status, against = "reference", compared = 0, reason = reason }, more = more,
    }
  end
  return list
end

--- Make and compare one cell. limits: max_seconds of timing, interrupted = function() -> true to stop, stopped = function() ->
-- true where the process stood still since the last call, phase = function(name, path), told what comes next. Returns a list of
-- records without `run`; nil when it was interrupted within.
function M.measure(bench, options, limits)
  local how = { device = bench.dev, run = bench.header }
  for key, value in pairs(bench.how) do how[key] = value end
  for key, value in pairs(limits) do how[key] = value end
  local phase = limits.phase or function() end
  phase("set-up")
  local ok, case, err = pcall(require("fewhead.case.case").new, options)
  if not ok then case, err = nil, tostring(case):gsub("^.-%.lua:%d+: ", "") end
  local result
  if case then
    result, err = require("fewhead.measure.compare").compare(case, bench.paths, how)
    case:free()
  end
  if not result then
    if limits.interrupted and limits.interrupted() then return nil end
    return M.refused(options, bench.paths, bench.how, "invalid", err)
  end
  for _, record in ipairs(result.records) do record.run = nil end
  return result.records
end

return M
