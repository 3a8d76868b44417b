--- Compare: paths beside each other on one case: parity first, then time, then a verdict.
--
--   local fh = require "fewhead"
--   local case = fh.case { heads = 8, s_q = 2048, pattern = "csa", layout = "vllm" }
--   print(fh.compare(case, { "padded", "native" }))    -- parity, medians, ratio, verdict
--
-- "native" is gather and packed, both measured; the quicker one is called native(gather) or native(packed) in the table. A
-- provider (fh.provider) stands beside paths. What fails parity gets no time: a wrong answer has no speed.

local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"
local device = require "fewhead.device.device"
local option = require "fewhead.base.option"
local isolate = require "fewhead.measure.isolate"
local nvtx = require "fewhead.device.nvtx"
local json = require "fewhead.base.json"
local parity = require "fewhead.measure.parity"
local paths = require "fewhead.device.path"
local providers = require "fewhead.device.provider"
local records = require "fewhead.record.record"
local tables = require "fewhead.base.table"
local tags = require "fewhead.record.tags"
local timing = require "fewhead.measure.timing"

local M = {}

-- What the oracle computes for one comparison at most, useful flops; beyond it rows are sampled. Under a second on one core.
local REFERENCE_FLOPS = 5e8
-- The same for three answers beside each other.
local THREE_WAY_FLOPS = 1e9

local TIMING = option.keys(timing.rows)

--- The options of compare (fewhead.base.option): its own, and those of fewhead.timing.
M.rows = option.rows("compare", {
  { "device", "ANY", "default device.default()" },
  { "run", "TABLE", "a header of fh.run" }, tags.row,
  { "--sample", "INTEGER", "rows that parity compares at most", lo = 1 },
  { "--group", "INTEGER", "queries of a packed group; 0: as many as fill a tile", lo = 0, hi = 64 },
  { "--row-invariant", "BOOLEAN", "no row may depend on its neighbours: auto never packs" },
  { "costs", "COSTS", "what auto compares paths by (fh.costs)" },
  { "--canaries", "BOOLEAN", "whether the memory around outputs is looked at" },
  { "--provider-seconds", "NUMBER", "a provider hangs after this long", lo = 0 },
  { "phase", "FUNCTION", "told what comes next" },
  { "--three-way", "BOOLEAN", "each path beside the first one and the reference" },
  { "--samples", nil, "keep every sample in the records" },
  { "--profile", nil, "time nothing: one launch of each path in an NVTX range, for nsys profile" },
  unpack(timing.rows.list),
})
local HERE = { device = true, run = true, tags = true } -- stay here where a race runs in another process; functions do too
-- Options that are the call's, and so are in records.
local CALL = { "group", "row_invariant", "costs" }

local NATIVE = {}
for _, name in ipairs(paths.native()) do NATIVE[name] = true end

-- What may be named: the paths of the library, and "native" for those that compute native heads.
local NAMES = paths.names()
NAMES[#NAMES + 1] = "native"

local function pick(source, fields)
  local copy = {}
  for _, key in ipairs(fields) do copy[key] = source[key] end
  return copy
end

--- Paths and providers of a list with "native" replaced by the paths that compute native heads and that the device has, none
-- twice, and whether "native" stood there. Wrong ones raise; level as in error(), 1 = the caller of this.
function M.expand(what, list, dev, level)
  args.table(what, list, level + 1)
  if #list == 0 then error(what .. ": got none, wanted at least one", level + 1) end
  local expanded, seen, native = {}, {}, false
  for i, path in ipairs(list) do
    local where = ("%s[%d]"):format(what, i)
    if providers.is(path) then
      providers.handle(where, path, level + 1)
      if (seen[path.name] or path) ~= path then
        error(("%s: two providers are called %s: load one under another name"):format(where, path.name), level + 1)
      end
    else args.enum(where, path, NAMES, level + 1) end
    native = native or path == "native"
    for _, one in ipairs(path == "native" and paths.native() or { path }) do
      local name = providers.name_of(one)
      local wanted = not seen[name] and (path ~= "native" or dev:has_path(name))
      if wanted then expanded[#expanded + 1], seen[name] = one, one end
    end
  end
  return expanded, native
end

--- Refuse costs where no path reads them. level as in error(), 1 = the caller of this.
function M.check_costs(what, costs, list, level)
  local auto = costs == nil
  for _, path in ipairs(list) do auto = auto or path == "auto" end
  if not auto then error(what .. ": costs: has no effect without path auto", level + 1) end
end

--- The clocks of records in a line: "clocks 1755 to 1980 MHz, memory 3201 MHz; held back by power cap: 3 samples dropped, 2
-- kept", or why they are unknown.
function M.clocks_text(list, run)
  local low, high, memory, why, dropped, kept = math.huge, 0, nil, nil, 0, 0
  for _, record in ipairs(list) do
    local time = record.time or {}
    if time.clock_mhz then
      low, high, memory = math.min(low, time.clock_mhz), math.max(high, time.clock_mhz), time.memory_mhz
    end
    why, dropped, kept = why or time.throttle, dropped + (time.dropped_throttled or 0), kept + (time.throttled or 0)
  end
  if high == 0 then return "clocks " .. tostring(run and run.clocks or "unknown") end
  local text = ("clocks %.0f to %.0f MHz%s"):format(low, high, memory and (", memory %.0f MHz"):format(memory) or "")
  return why and ("%s; held back by %s: %d samples dropped, %d kept"):format(text, why, dropped, kept) or text
end

local Comparison = { __name = "comparison" }
Comparison.__index = Comparison
M.class = Comparison -- a later room gives comparisons further methods

--- The verdict on one path as records have it: its time beside that of the base path, both results of one fh.timing, whose noise
-- is given too. nil where one of the two has no time, or the path is the base itself.
function M.verdict(own, base, noise, against)
  if not (own and base) or own == base then return nil end
  local verdict, ratio, interval = timing.verdict(own, base, noise)
  return { verdict = verdict, ratio = ratio, lo = interval[1], hi = interval[2], against = against }
end

--- The record of a path ("native": the quicker of those that compute native heads), nil when it was not asked for or, for
-- "native", has no time.
function Comparison:record(path)
  local best
  for _, record in ipairs(self.records) do
    if record.path == path then return record end
    local quicker = record.time and (not best or record.time.median_us < best.time.median_us)
    if path == "native" and quicker and NATIVE[record.path] and records.is_own(record) then best = record end
  end
  return best
end

local GIGA = 1e9

-- Columns of the printed table; a value that is not there prints as "-".
local function columns()
  local time = tables.time
  return {
    { key = "path", align = "left" }, { key = "parity", align = "left" }, { key = "max_abs", format = "%.2e" },
    { key = "median", format = time }, { key = "spread", title = "p05 .. p95" }, { key = "ratio", format = "%.2fx" },
    { key = "verdict", align = "left" }, { key = "useful", title = "useful GFLOP/s", format = "%.1f" },
    { key = "executed", format = "%.1f" }, { key = "waste", format = function(share) return ("%.1f %%"):format(share * 100) end },
    { key = "plan", format = time }, { key = "kernel", align = "left" },
  }
end

local function row_of(record, best)
  local time, work, verdict = record.time, record.work, record.verdict
  local row = {
    path = record == best and ("native(%s)"):format(record.path) or record.path, kernel = record.kernel,
    parity = record.parity.status, max_abs = record.parity.max_abs, waste = work and work.waste,
  }
  if time then
    row.median, row.plan = time.median_us, time.plan_us
    row.spread = tables.time(time.p05_us) .. " .. " .. tables.time(time.p95_us)
    row.useful = work.useful_flops / (time.median_us / 1e6) / GIGA
    row.executed = work.executed_flops and work.executed_flops / (time.median_us / 1e6) / GIGA
  end
  if verdict then row.ratio, row.verdict = verdict.ratio, verdict.verdict end
  return row
end

function Comparison:__tostring()
  local rows, best = {}, self.native and self:record("native")
  for i, record in ipairs(self.records) do rows[i] = row_of(record, best) end
  local lines = { ("%s on %s"):format(self.case:id(), self.device_name), tables.text(rows, columns()) }
  for _, record in ipairs(self.records) do
    if record.parity.reason then lines[#lines + 1] = ("%s: %s"):format(record.path, record.parity.reason) end
  end
  if self.sampled then lines[#lines + 1] = ("parity over %d of %d rows"):format(self.sampled, self.case.s_q) end
  if self.noise then
    lines[#lines + 1] = ("%s, %d samples, stopped by %s; noise floor %.1f %% (%s against itself)"):format(self.l2, self.noise.n,
      self.stop, self.noise.floor * 100, self.noise.arm)
  end
  if self.clocks then lines[#lines + 1] = self.clocks end
  return table.concat(lines, "\n")
end

-- ---- The race ---------------------------------------------------------------------------------------------------------------
-- A race is what one comparison works on: { problem, list = the paths and providers, opts, want = the oracle's answer or nil,
-- refusal = why there is none, checks = parity by place in the list, plan, sums = checksums of the inputs where a provider
-- takes part }. Providers run code of others: what they read and wrote is checked after their first run and after the last.

local function is_provider(path) return providers.is(path) end

-- The name of an input that is not as it was, nil when all are.
local function changed_input(race)
  local now = race.problem:checksums()
  for name, sum in pairs(race.sums) do
    if now[name] ~= sum then return name end
  end
end

local function no_pass(check, status, reason)
  return { status = status, against = check.against, compared = check.compared, reason = reason, work = check.work }
end

local function blame(check, name, input) return no_pass(check, "fail", ("%s changed its input %s"):format(name, input)) end

-- Parity of one path. A provider that changed an input has failed, and the inputs are made anew.
local function check_one(race, path)
  local how, err = pick(race.opts, { "group", "row_invariant", "costs", "canaries" }), race.refusal
  how.want = race.want
  if race.want and not is_provider(path) and paths.get(path).wants_plan then
    if not race.plan then race.plan, err = require("fewhead.device.plan").build(race.problem, { group = race.opts.group }) end
    how.plan = race.plan
  end
  if err then
    return { status = "invalid", against = "reference", compared = 0,
      reason = ("%s did not run: %s"):format(providers.name_of(path), err) }
  end
  local check = parity.check(race.problem, path, how)
  local input = is_provider(path) and changed_input(race)
  if not input then return check end
  local ok
  ok, err = race.problem:renew()
  if not ok then return nil, err end
  return blame(check, path.name, input)
end

-- Parity of all paths against one answer of the oracle. Returns the reason when interrupted or out of memory, else nothing.
local function check_all(race)
  race.want, race.refusal = parity.expected(race.problem, {
    sample = race.opts.sample or parity.affordable_rows(race.problem, REFERENCE_FLOPS),
  })
  for _, path in ipairs(race.list) do
    if is_provider(path) then race.sums = race.sums or race.problem:checksums() end
  end
  for i, path in ipairs(race.list) do
    if race.opts.interrupted and race.opts.interrupted() then return "compare: interrupted" end
    race.opts.phase("parity", providers.name_of(path))
    local err
    race.checks[i], err = check_one(race, path)
    if err then return err end
  end
end

-- Run what was timed once more, the very job, and compare what it gives now: the result when it is no pass any more, else nil.
local function check_again(race, arm, outputs)
  local ok, err = outputs:poison()
  if ok then ok, err = F.check(arm.run()) end
  if ok then ok, err = arm.collect() end
  if ok then ok, err = race.problem.device:synchronize() end
  local result = ok and parity.judge_whole(race.problem, outputs, race.want, { canaries = race.opts.canaries })
    or { status = "error", compared = 0, against = race.want.against, reason = err }
  if result.status == "pass" then return nil end
  result.reason = ("%s was right in its first run and is not after it was timed: %s"):format(arm.name, result.reason)
  return result
end

-- Times of these paths: what timing.problem gives, then the results by name of those that turned wrong, then the name of an input
-- that was changed.
local function time_some(race, some)
  local how, wrong, input = pick(race.opts, TIMING), {}, nil
  how.plan, how.group, how.row_invariant, how.costs = race.plan, race.opts.group, race.opts.row_invariant, race.opts.costs
  how.after = function(arms, outputs)
    for _, arm in ipairs(arms) do
      if arm.collect then wrong[arm.name] = check_again(race, arm, outputs) end
    end
    input = race.sums and changed_input(race)
  end
  local times, err, culprit = timing.problem(race.problem, some, how)
  return times, err, culprit, wrong, input
end

-- Which of some providers changes an input while it is timed: each is timed alone. A set of names, all of them where none does it
-- alone; nil, err when that cannot be found out.
local function find_culprits(race, suspects)
  local names, found = {}, {}
  for _, provider in ipairs(suspects) do
    names[provider.name] = true
    local input
    if #suspects > 1 then
      local times, err, culprit, _, changed = time_some(race, { provider })
      input = changed
      if not times and not culprit then return nil, err end
      local ok
      ok, err = race.problem:renew()
      if not ok then return nil, err end
    end
    if input then found[provider.name] = true end
  end
  return next(found) and found or names
end

-- Put providers out of the race: make(check, path) gives the parity of one of `names`.
local function put_out(race, names, make)
  for i, path in ipairs(race.list) do
    if is_provider(path) and names[path.name] and race.checks[i].status == "pass" then
      race.checks[i] = make(race.checks[i], path)
    end
  end
end

-- Times of the paths that passed, by name. A provider that fails, turns wrong or changes an input while it is timed is out: its
-- check says why. Where the others were disturbed they are timed again. nil, err when a path of the library fails, or all is
-- interrupted.
local function time_all(race)
  while true do
    local passed, suspects = {}, {}
    for i, path in ipairs(race.list) do
      if race.checks[i].status == "pass" then
        passed[#passed + 1] = path
        if is_provider(path) then suspects[#suspects + 1] = path end
      end
    end
    if #passed == 0 then return {} end
    race.opts.phase("timing")
    local times, err, culprit, wrong, input = time_some(race, passed)
    if culprit and race.opts.failed then race.opts.failed(culprit) end
    if input then
      local ok, names
      ok, err = race.problem:renew()
      if ok then names, err = find_culprits(race, suspects) end
      if not names then return nil, err end
      put_out(race, names, function(check, path) return blame(check, path.name, input) end)
    elseif times then
      put_out(race, wrong, function(check, path)
        local result = wrong[path.name]
        result.work, times[path.name] = check.work, nil
        return result
      end)
      return times
    else
      local out = {}
      for _, provider in ipairs(suspects) do out[provider.name] = provider.name == culprit or nil end
      if not next(out) then return nil, err end
      put_out(race, out, function(check) return no_pass(check, "error", err) end)
    end
  end
end

-- What three answers say of each path beside the first one, by place in the list, where the first one ran.
local function look_three_ways(race)
  local found = {}
  for i, path in ipairs(race.list) do
    local ran = race.checks[i].status == "pass" or race.checks[i].status == "fail"
    if race.opts.three_way and i > 1 and ran then
      race.opts.phase("three ways", providers.name_of(path))
      local three = parity.three_way(race.problem, path, {
        padded = race.list[1], sample = parity.affordable_rows(race.problem, THREE_WAY_FLOPS),
      })
      found[i] = {
        padded = providers.name_of(race.list[1]), verdict = three.verdict, sampled = three.between.sampled,
        status = three.between.status, mean_abs = three.between.mean_abs, max_abs = three.between.max_abs,
      }
    end
  end
  return found
end

-- One launch of a path, warm, in an NVTX range of its name: true | nil, err.
local function profile_one(race, path, outputs, ranges)
  local name, with = providers.name_of(path), pick(race.opts, { "group", "row_invariant", "costs" })
  race.opts.phase("profile", name)
  if not is_provider(path) and paths.get(path).wants_plan then with.plan = race.plan end
  local run, release = race.problem:runner(path, outputs, with)
  if not run then return nil, release end
  local function launch()
    local ok, err = F.check(run())
    if ok then ok, err = race.problem.device:synchronize() end
    return ok, err
  end
  local ok, err = launch()
  if ok then
    ranges.push(("fewhead %s: %s"):format(name, race.problem.case:id()))
    ok, err = launch()
    ranges.pop()
  end
  release()
  return ok, err
end

-- That for each path that passed: no times | nil, err.
local function profile_all(race)
  local ranges, err = nvtx.open()
  if not ranges then return nil, "profile: " .. err end
  local outputs
  outputs, err = race.problem:outputs()
  local ok = outputs ~= nil
  for i, path in ipairs(race.list) do
    if ok and race.checks[i].status == "pass" then ok, err = profile_one(race, path, outputs, ranges) end
  end
  if outputs then outputs:free() end
  return ok and {} or nil, err
end

-- Records of a race that was run, in the order of its list.
local function records_of(race, times, three_ways)
  local list, base = {}, times[providers.name_of(race.list[1])]
  for i, path in ipairs(race.list) do
    local time = times[providers.name_of(path)]
    if time and times.noise then time.noise_floor = times.noise.floor end
    list[i] = records.new {
      path = path, case = race.problem.case:describe(), call = pick(race.opts, CALL), parity = race.checks[i], time = time,
      work = race.checks[i].work, verdict = M.verdict(time, base, times.noise, providers.name_of(race.list[1])),
      more = { three_way = three_ways[i] },
    }
    if time and race.opts.samples then list[i].time.samples = json.array(time.samples) end
  end
  return list
end

-- The race itself: { records = without `run`, noise =, sampled =, l2 =, stop = } | nil, err.
local function race_all(case, dev, list, opts)
  local problem, err = case:problem(dev)
  if not problem then return nil, err end
  local race, times = { problem = problem, list = list, opts = opts, checks = {} }, nil
  err = check_all(race)
  if not err then times, err = (opts.profile and profile_all or time_all)(race) end
  if race.want then race.want.free() end
  if race.plan then race.plan:free() end
  if not times then return nil, err end

  local found = { noise = times.noise, records = records_of(race, times, look_three_ways(race)) }
  for i, record in ipairs(found.records) do
    found.sampled = found.sampled or race.checks[i].sampled
    if record.time then found.l2, found.stop = record.time.l2, record.time.stop end
  end
  return found
end

local function silent() end

-- Of options, what another process can be told.
local function plain(how)
  local told = {}
  for key, value in pairs(how) do
    if type(value) ~= "function" and not HERE[key] then told[key] = value end
  end
  return told
end

--- The race of one case in a worker process (fewhead.measure.worker calls it). arguments: { case = its description, paths =
-- names, how = options of M.compare that JSON holds }. Returns what M.apart gives as value, with the case of all records once, as
-- `case`; nil, err without memory for the case.
function M.race(bench, arguments, control)
  local case, err = require("fewhead.case.case").new(arguments.case)
  if not case then return nil, err end
  local opts = plain(arguments.how)
  opts.interrupted, opts.stopped, opts.phase, opts.failed = control.interrupted, control.stopped, control.phase, control.failed
  local found
  found, err = race_all(case, bench.dev, bench.paths(arguments.paths), opts)
  case:free()
  if found then
    for _, record in ipairs(found.records) do found.case, record.case = record.case, nil end
  end
  return found, err
end

-- The records of the paths that are out, put in their places among the others'.
local function add_out(found, case, list, out, how)
  for i, path in ipairs(list) do
    local name = providers.name_of(path)
    if out[name] then
      local check, failure = isolate.parity_of(name, out[name])
      table.insert(found.records, i, records.new {
        path = path, case = case:describe(), call = pick(how, CALL), parity = check, more = { failure = failure },
      })
    end
  end
end

--- What crew:call is told to run that race: { module =, name =, arguments = }. case: options of fh.case; names of paths and
-- providers; how, options.
function M.race_call(case, names, how)
  return { module = "measure.compare", name = "race", arguments = { case = case, paths = names, how = plain(how) } }
end

--- That race for a caller: crew, a worker (fewhead.measure.worker); case; list, paths and providers; how, options; limits of
-- crew:call; limits.begun, what M.race_call gives for all paths, where the caller has that. A path that ends the process or loses
-- the device is out, its record says why, and the others race in a new process. Returns { value = { records = without `run`, all
-- with one table as case, noise =, sampled =, l2 =, stop = } }, or what else crew:call returns.
function M.apart(crew, case, list, how, limits)
  local answer, out = isolate.rounds(crew, list, function(names)
    local call = limits.begun and #names == #list and limits.begun or M.race_call(case:describe(), names, how)
    return call.module, call.name, call.arguments
  end, limits)
  local found = answer.value
  if not found then return answer end
  found.records = found.records or {}
  for _, record in ipairs(found.records) do
    record.case = found.case -- one table for all of them
    json.ordered(record, records.fields)
  end
  found.case = nil
  add_out(found, case, list, out, how)
  return answer
end

-- The race in this process, or where providers take part in another one: found | nil, err.
local function race_somewhere(case, dev, list, opts)
  local some = isolate.providers_of(list)
  -- A clock of the caller's cannot be asked from there, and a pattern that is a function is not there.
  if #some == 0 or isolate.here or opts.clock or opts.stopwatch or not case:portable() then
    opts.phase = opts.phase or silent
    return race_all(case, dev, list, opts)
  end
  local crew, err = isolate.crew(dev, some)
  if not crew then return nil, "compare: " .. err end
  local answer = M.apart(crew, case, list, opts, {
    provider_seconds = opts.provider_seconds, interrupted = opts.interrupted, phase = opts.phase,
  })
  if answer.raised then error(answer.raised, 0) end
  if answer.value then return answer.value end
  if answer.interrupted then return nil, "compare: interrupted" end
  local failure = answer.failure
  return nil, answer.err or ("compare: the worker process ended in %s: %s"):format(failure.phase, failure.text)
end

--- fh.compare(case, { "padded", "native" }, opts): check each path or provider against the reference, time those that pass in
-- turns, and give each a verdict against the first. Options: device (default device.default()); run, a header of fh.run
-- (default: a new one); tags, { name = value } for a new header (fewhead.record.tags); sample, rows that parity compares at most
-- (default: as many as the reference computes in under a second); group, row_invariant and costs, as problem:call takes them;
-- canaries, as parity.check has it; phase, a function("parity", path) or ("timing") called before each; three_way = true: records
-- get three_way, what parity.three_way says of the path beside the first one; samples = true: records keep every sample,
-- time.samples in microseconds; profile = true: no times, one launch of each path in an NVTX range (fewhead.device.nvtx); and
-- those of fewhead.timing. Returns an object with .records (fh.record, one a path, in order), .noise, :record(path) and tostring;
-- nil, message where the case does not fit the device or a timed run fails. A refused path is a record whose parity is "invalid"
-- and says why. A provider that fails to run is a record with "error"; one that changes its inputs, or that is wrong after it was
-- timed, is one with "fail": it has no time, and the others stand. A race with providers runs in a worker process
-- (fewhead.measure.worker), on a CPU and a GPU alike: one that crashes, ends the process, loses the device or takes longer than
-- provider_seconds (120) for one call is a record with "error" and `failure`, and the others are measured in a new process. Only
-- with clock or stopwatch, and where the case's pattern is a function, it runs in this one.
function M.compare(case, list, opts)
  if type(case) ~= "table" or type(case.problem) ~= "function" then
    error(("compare: case: got %s, wanted a case, such as fh.case{..} gives"):format(args.show(case)), 2)
  end
  opts = option.table("compare", opts, M.rows)
  local dev = device.check("compare: device", opts.device or device.default())
  local expanded, native = M.expand("compare: paths", list, dev, 2)
  M.check_costs("compare", opts.costs, expanded, 2)
  local run = opts.run or tags.into(require("fewhead.record.run").header(dev), opts.tags)
  local found, err = race_somewhere(case, dev, expanded, opts)
  if not found then return nil, err end
  for _, record in ipairs(found.records) do
    record.run = run
    json.ordered(record, records.fields)
  end
  found.case, found.native, found.device_name, found.clocks = case, native, run.device, M.clocks_text(found.records, run)
  return setmetatable(found, Comparison)
end

return setmetatable(M, { __call = function(_, ...) return M.compare(...) end })
