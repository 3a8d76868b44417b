--- Timing: interleaved measurements of a few arms, and a verdict that knows how noisy the machine was.
--
--   local timing = require "fewhead.measure.timing"
--   local t = timing.measure { { name = "padded", run = run_padded }, { name = "gather", run = run_gather } }
--   print(t.gather.median_us, timing.verdict(t.gather, t.padded, t.noise)) --> 812.4  faster  3.91  { 3.88, 3.95 }
--
-- Every pass runs each arm once, every other pass in reverse order (A B, B A), so that drift falls on all arms alike and the i-th
-- samples of two arms are neighbours in time. Ratios are therefore taken pass by pass, and their median and its interval assume
-- nothing about the distribution. One arm runs twice in each pass: how far it differs from itself is the noise floor.

local args = require "fewhead.base.arguments"
local option = require "fewhead.base.option"
local path_table = require "fewhead.device.path"
local providers = require "fewhead.device.provider"
local stats = require "fewhead.measure.stats"

local M = {}

-- Samples of an arm that one may ask for, and seconds.
local MOST_SAMPLES, MOST_SECONDS = 1e6, 1e6

--- The options of measure (fewhead.base.option).
M.rows = option.rows("timing", {
  -- 6: the fewest for which a 95 % interval of a median exists
  { "--min-samples", "INTEGER", "samples of a path at least", default = 6, lo = 1, hi = MOST_SAMPLES },
  { "--max-samples", "INTEGER", "samples of a path at most", default = 100, lo = 1, hi = MOST_SAMPLES },
  { "--max-seconds", "NUMBER", "time to spend on timing, once each path has its fewest samples", default = 10, lo = 0,
    hi = MOST_SECONDS },
  { "--rel-ci", "NUMBER", "stop when half the interval of every median is under this share of it", default = 0.02, lo = 0,
    hi = 10 },
  { "--confidence", "NUMBER", "of intervals", default = 0.95, lo = 0.5, hi = 0.9999 },
  { "--cold", nil, "find caches cold in every run" },
  { "noise", "ANY", "the arm that runs twice, or false" },
  { "clock", "ANY", "a function that returns nanoseconds" },
  { "stopwatch", "FUNCTION", "function(run) that returns microseconds and the run's status" },
  { "interrupted", "FUNCTION", "asked before every sample: true ends the measurement" },
  { "stopped", "FUNCTION", "asked before and after every sample: true drops it" },
  { "clocks", "ANY", "a reader of fewhead.device.clocks, or false" },
})

-- What measure does unless told otherwise.
M.defaults = option.defaults(M.rows)

local WARMUP_SECONDS = 0.01  -- an arm is warm after this long or this many runs, whichever comes first; at least one run
local WARMUP_RUNS = 20
local PLAN_BUILDS = 5        -- timed builds of a plan; their median is reported
local PRIME_US = 20000       -- hot: a run shorter than this repeats once untimed first; a longer one warms the caches by itself
local QUEUED_BUILDS = 10     -- a GPU builds this many plans before one that is timed: what QUEUE_US is to calls
local QUEUE_US = 50          -- a GPU runs this much before what is timed, so that all of it is given to it before it begins
local CLOCK_TICK_US = 1e-3   -- the clock counts nanoseconds: a shorter time than one reads as one
local SAME_BAND = 0.02       -- a difference under 2 % is worth no change of path
local THROTTLED_DROPS = 10   -- samples of an arm taken again since the device was held back; beyond that it is so for good
local CLOCKS_NS = 5e6        -- clocks are read so often at most: asking takes as long as a short run
local VERDICT_CONFIDENCE = 0.9 -- an interval weaker than this (fewer than 5 samples) supports no verdict

local function settings(opts, level)
  local set = option.table("timing", opts, M.rows, level + 1)
  args.integer("timing: max_samples", set.max_samples, set.min_samples, MOST_SAMPLES, level + 1)
  if set.clock == nil then set.clock = require("fewhead.base.ffi").C.fh_time_ns end
  return set
end

-- Refuses what cannot be measured and returns the arms as slots of our own.
local function slots_of(arms, set, level)
  args.table("timing: arms", arms, level + 1)
  if #arms == 0 then error("timing: arms: got none, wanted at least one", level + 1) end
  local slots, seen = {}, { noise = "is what the noise floor is called" }
  for i, arm in ipairs(arms) do
    local what = ("timing: arms[%d]"):format(i)
    args.table(what, arm, level + 1)
    args.string(what .. ".name", arm.name, level + 1)
    if seen[arm.name] then error(("%s.name: %q %s"):format(what, arm.name, seen[arm.name]), level + 1) end
    if type(arm.run) ~= "function" then
      error(("%s.run: got %s, wanted a function"):format(what, args.show(arm.run)), level + 1)
    end
    if set.cold and type(arm.evict) ~= "function" then
      error(("%s.evict: got %s, wanted a function: cold timing calls it"):format(what, args.show(arm.evict)), level + 1)
    end
    seen[arm.name] = "stands twice"
    slots[i] = { name = arm.name, run = arm.run, evict = arm.evict, samples = {}, primes = 1,
      dropped = { count = 0, throttled = 0 }, clocks = { mhz = {}, memory = {}, throttled = 0 } }
  end
  if set.noise and seen[set.noise] ~= "stands twice" then
    error(("timing: noise: got %s, wanted the name of an arm, or false"):format(args.show(set.noise)), level + 1)
  end
  return slots
end

-- Microseconds of one run by a clock that counts nanoseconds, and what the run returned.
local function clock_stopwatch(clock)
  return function(run)
    local start = clock()
    local status = run()
    return tonumber(clock() - start) / 1000, status
  end
end

local function failed(slot, status)
  return nil, ("timing: %s: the run returned status %s"):format(slot.name, tostring(status)), status, slot.name
end

-- Run until the caches, threads and pages an arm needs are there; remembers about how long one run takes.
local function warm_up(slot, watch)
  local total = 0
  for _ = 1, WARMUP_RUNS do
    local us, status = watch(slot.run)
    if status and status ~= 0 then return failed(slot, status) end
    slot.estimate_us, total = us, total + us
    if total >= WARMUP_SECONDS * 1e6 then break end
  end
  return true
end

-- Notes the clocks after a sample. true: the device was held back, and the sample is to be taken again.
local function read_clocks(slot, set)
  if not (set.clocks and set.clocks.read) then return false end
  local last, now = set.last_clocks, tonumber(set.clock())
  if not last or last.throttle or now - last.at >= CLOCKS_NS then
    last = { at = now }
    last.mhz, last.memory, last.throttle = set.clocks.read()
    set.last_clocks = last
  end
  local seen, throttle = slot.clocks, last.throttle
  if throttle then
    seen.throttle = throttle
    if slot.dropped.throttled < THROTTLED_DROPS then
      slot.dropped.throttled = slot.dropped.throttled + 1
      return true
    end
    seen.throttled = seen.throttled + 1
  end
  seen.mhz[#seen.mhz + 1], seen.memory[#seen.memory + 1] = last.mhz, last.memory
  return false
end

local function sample(slot, watch, set)
  if set.interrupted and set.interrupted() then return nil, "timing: interrupted" end
  if set.cold then slot.evict()
  elseif slot.estimate_us < PRIME_US then
    for _ = 1, slot.primes do slot.run() end
  end
  if set.stopped then set.stopped() end
  local us, status = watch(slot.run)
  if status and status ~= 0 then return failed(slot, status) end
  if set.stopped and set.stopped() then -- the time holds a pause of the process: take the sample again
    slot.dropped.count = slot.dropped.count + 1
    return sample(slot, watch, set)
  end
  if read_clocks(slot, set) then return sample(slot, watch, set) end
  slot.samples[#slot.samples + 1] = math.max(us, CLOCK_TICK_US)
  return true
end

-- The arm that runs twice: the named one, else the quickest, which costs least and shows noise most.
local function twin_of(slots, noise)
  if noise == false then return nil end
  local chosen
  for _, slot in ipairs(slots) do
    if slot.name == noise or not noise and (not chosen or slot.estimate_us < chosen.estimate_us) then chosen = slot end
  end
  return setmetatable({ samples = {}, of = chosen }, { __index = chosen })
end

-- Half the interval of the least known median, relative; nil while there are too few samples for the confidence.
local function worst_precision(slots, confidence)
  local worst = 0
  for _, slot in ipairs(slots) do
    local sorted = stats.sorted(slot.samples)
    local low, high, reached = stats.median_interval(sorted, confidence)
    if reached < confidence then return nil end
    worst = math.max(worst, (high - low) / 2 / stats.quantile(sorted, 0.5))
  end
  return worst
end

-- Why to stop now, or nil. Asked after whole A B B A rounds, so that order favours no arm.
local function stop_reason(slots, set, seconds)
  local n = #slots[1].samples
  if n < set.min_samples then return nil end
  local precision = worst_precision(slots, set.confidence)
  if precision and precision <= set.rel_ci then
    return ("ci %.1f%% <= %g%%"):format(precision * 100, set.rel_ci * 100)
  end
  if n >= set.max_samples then return "max_samples" end
  if seconds >= set.max_seconds then return "max_seconds" end
  return nil
end

local function some(count) return count > 0 and count or nil end

local function summary(slot, set, stop)
  local sorted, seen = stats.sorted(slot.samples), slot.clocks
  local low, high = stats.median_interval(sorted, set.confidence)
  return {
    median_us = stats.quantile(sorted, 0.5), p05_us = stats.quantile(sorted, 0.05), p95_us = stats.quantile(sorted, 0.95),
    median_lo_us = low, median_hi_us = high, n = #sorted, l2 = set.cold and "cold" or "hot", stop = stop,
    samples = slot.samples, confidence = set.confidence, dropped = some(slot.dropped.count),
    clock_mhz = seen.mhz[1] and stats.median(seen.mhz), memory_mhz = seen.memory[1] and stats.median(seen.memory),
    throttle = seen.throttle, throttled = some(seen.throttled), dropped_throttled = some(slot.dropped.throttled),
  }
end

-- How much longer b took than a, pass by pass: the median of the ratios, its interval, and the confidence that interval has.
local function ratio_of(a, b, confidence)
  local ratios = {}
  for i = 1, math.min(#a, #b) do ratios[i] = b[i] / a[i] end
  table.sort(ratios)
  local low, high, reached = stats.median_interval(ratios, confidence)
  return stats.quantile(ratios, 0.5), low, high, reached
end

-- The whole of M.measure once its arguments are checked.
local function measure(slots, set)
  local watch = set.stopwatch or clock_stopwatch(set.clock)
  for _, slot in ipairs(slots) do
    local ok, err, status, name = warm_up(slot, watch)
    if not ok then return nil, err, status, name end
    if set.queue_us then slot.primes = math.max(1, math.ceil(set.queue_us / math.max(slot.estimate_us, 1))) end
  end
  local order, twin = {}, twin_of(slots, set.noise)
  for i, slot in ipairs(slots) do order[i] = slot end
  order[#order + 1] = twin

  local start, stop = set.clock(), false
  while not stop do
    for pass = 1, 2 do
      for i = 1, #order do
        local ok, err, status, name = sample(order[pass == 1 and i or #order + 1 - i], watch, set)
        if not ok then return nil, err, status, name end
      end
    end
    stop = stop_reason(slots, set, tonumber(set.clock() - start) / 1e9)
  end

  local result = {}
  for _, slot in ipairs(slots) do result[slot.name] = summary(slot, set, stop) end
  if twin then
    local ratio, low, high = ratio_of(twin.of.samples, twin.samples, set.confidence)
    result.noise = {
      arm = twin.name, ratio = ratio, lo = low, hi = high, floor = math.max(high, 1 / low) - 1, n = #twin.samples,
    }
  end
  return result
end

--- Measure arms = { { name =, run = function, evict = function (cold only) }, .. }. A run returns nothing or a status number,
-- 0 = ok. Options: those of M.defaults; cold = true evicts before every sample; noise = the arm that runs twice (default the
-- quickest), or false; clock = function returning nanoseconds; stopwatch = function(run) returning microseconds and run's status;
-- interrupted = function asked before every sample: true ends the measurement with nil, "timing: interrupted"; stopped = function
-- asked before and after every sample: true after it drops the sample, which is taken again.
-- Returns { [name] = { median_us, p05_us, p95_us, median_lo_us, median_hi_us, n, l2 = "hot" | "cold", stop, samples,
-- confidence, dropped = samples dropped, or nil; and where clocks can be read clock_mhz, memory_mhz = medians, throttle = in
-- words what held the device back, dropped_throttled = samples taken again for that, throttled = how many were kept }, noise =
-- { arm, ratio, lo, hi, floor, n } or nil } | nil, message, and where a run failed its status and the name of its arm.
-- samples[i] of all arms belong to one pass; stop is "ci 1.2% <= 2%", "max_samples" or "max_seconds".
function M.measure(arms, opts)
  local set = settings(opts, 2)
  local slots = slots_of(arms, set, 2)
  return measure(slots, set)
end

--- A stopwatch by the device's own timer, for measure: a function(run) that returns microseconds of one of the `calls` (1) that
-- the run is made of, and what the run returned | nil, message.
function M.stopwatch(dev, calls)
  calls = calls or 1
  local F = require "fewhead.base.ffi"
  local timer = F.ffi.gc(F.ffi.new("fh_timer *[1]"), F.C.fh_timer_free)
  local us = F.ffi.new("double[1]")
  local ok, err = F.check(F.C.fh_timer_create(dev.handle, timer))
  if not ok then return nil, err end
  return function(run)
    F.C.fh_timer_start(timer[0], nil)
    local status = run()
    F.C.fh_timer_stop(timer[0], nil)
    local ended = F.C.fh_timer_elapsed_us(timer[0], us) -- waits: a kernel that failed is heard of here
    return us[0] / calls, (status or 0) ~= 0 and status or ended
  end
end

-- Median microseconds of building a problem's plan again.
local function plan_us(plan, problem, watch)
  local build, err = plan:rebuilder(problem)
  if not build then return nil, err end
  local samples, queued = {}, problem.device.kind == "cuda" and QUEUED_BUILDS or 0
  for i = 0, PLAN_BUILDS do
    for _ = 1, queued do build() end
    local us, status = watch(build)
    local ok
    ok, err = require("fewhead.base.ffi").check(status)
    if not ok then return nil, err end
    if i > 0 then samples[i] = us end -- the first build warms up
  end
  return stats.median(samples)
end

local CALL_OPTIONS = { plan = true, group = true, row_invariant = true, costs = true, graph = true, after = true }

-- The plan that a path works on, built anew as long as it takes: the plan, microseconds of one build | nil, err. made collects
-- what is to be freed in the end.
local function timed_plan(problem, path, call_opts, watch, made)
  local plan, us, err = call_opts.plan, nil, nil
  if not plan then
    plan, err = require("fewhead.device.plan").build(problem, { group = call_opts.group })
    made[#made + 1] = plan
  end
  if plan then us, err = plan_us(plan, problem, watch) end
  if not us then return nil, ("%s: plan: %s"):format(path, err) end
  return plan, us
end

-- The arms of M.problem and the times of plans by path, or nil, err, and the arm that is at fault.
local function arms_of(problem, paths, call_opts, plan_watch, made, outputs)
  local function evict()
    outputs.out:evict()
    if problem.device.kind == "cuda" then return end -- there all that lies in the cache has gone now
    for _, tensor in ipairs { problem.q, problem.kv, problem.indices } do tensor:evict() end
  end
  local arms, build_us, err = {}, {}, nil
  for i, path in ipairs(paths) do
    local name, with = providers.name_of(path), { group = call_opts.group, row_invariant = call_opts.row_invariant,
      costs = call_opts.costs }
    if not providers.is(path) and path_table.get(path).wants_plan then
      with.plan, build_us[path] = timed_plan(problem, path, call_opts, plan_watch, made)
      if not with.plan then return nil, build_us[path] end
    end
    local run, release, collect, graph
    if call_opts.graph then
      graph, err = problem:graph(path, outputs, call_opts.graph, with)
      made[#made + 1] = graph
      run = graph and function() return graph:launch() end
    else
      run, release, collect = problem:runner(path, outputs, with)
      if run then made[#made + 1] = { free = release } else err = release end
    end
    if not run then return nil, ("%s: %s"):format(name, err), name end
    arms[i] = { name = name, run = run, evict = evict, collect = collect }
  end
  return arms, build_us
end

--- Measure paths of a problem, providers among them: timing.problem(problem, { "padded", "gather", "packed" }, opts). Options and
-- result are those of measure, on the device's own timer, and plan =, group =, row_invariant =, costs = as problem:call takes
-- them. The A path that wants a plan runs on one that is there before, as where layers share an index list: the one given,
-- else one built here; its result carries plan_us, microseconds of one build. graph = N, on a GPU: N calls to a launch, and
-- the time of one of them. after = function(arms, outputs), called when all is measured and nothing is freed yet: arms = { {
-- name =, run =, collect = of a provider (problem:runner) }, .. }. nil, message when a run fails, and the name of its arm.
function M.problem(problem, paths, opts)
  args.table("timing.problem: paths", paths)
  local how, call_opts = {}, {}
  for key, value in pairs(args.table("timing.problem: options", opts or {})) do
    local side = CALL_OPTIONS[key] and call_opts or how
    side[key] = value
  end
  local set = settings(how, 2)
  if call_opts.after ~= nil and type(call_opts.after) ~= "function" then
    error(("timing.problem: after: got %s, wanted a function"):format(args.show(call_opts.after)), 2)
  end
  if call_opts.graph ~= nil then args.integer("timing.problem: graph", call_opts.graph, 1) end
  if problem.device.kind == "cuda" and not call_opts.graph then set.queue_us = QUEUE_US end
  if set.clocks == nil then set.clocks = require("fewhead.device.clocks").open(problem.device) end
  local plan_watch, err = set.stopwatch
  if not set.stopwatch then
    set.stopwatch, err = M.stopwatch(problem.device, call_opts.graph)
    if not set.stopwatch then return nil, "timing: " .. err end
    plan_watch, err = M.stopwatch(problem.device) -- a plan is built once, whatever a launch holds
    if not plan_watch then return nil, "timing: " .. err end
  end

  local outputs
  outputs, err = problem:outputs() -- one set: paths take turns and only times are kept
  if not outputs then return nil, "timing: " .. err end
  local made = { outputs }
  local result, status, culprit
  local arms, build_us, unprepared = arms_of(problem, paths, call_opts, plan_watch, made, outputs)
  if arms then
    local slots = slots_of(arms, set, 2)
    result, err, status, culprit = measure(slots, set)
    if status then err = err .. ": " .. select(2, require("fewhead.base.ffi").check(status)) end
    for path, us in pairs(result and build_us or {}) do result[path].plan_us = us end
    if result and call_opts.after then call_opts.after(arms, outputs) end
  else
    err, culprit = "timing: " .. build_us, unprepared
  end
  for i = #made, 1, -1 do made[i]:free() end -- what uses memory before the memory
  return result, err, culprit
end

--- What a is beside b, two results of one measure: "faster", "slower", "same" or "unclear", then the median of b's time over a's
-- (2 = a takes half the time), then its interval { lo, hi }. Faster or slower: the whole interval lies beyond 1 by more than the
-- noise floor (nil = none known). Same: it lies within 2 % of 1 and the machine can tell 2 %. Everything else is unclear.
function M.verdict(a, b, noise)
  for i, side in ipairs { a or false, b or false } do
    if type(side) ~= "table" or type(side.samples) ~= "table" then
      error(("timing.verdict: argument %d: got %s, wanted a result of timing.measure"):format(i, args.show(side)), 2)
    end
  end
  local ratio, low, high, reached = ratio_of(a.samples, b.samples, a.confidence or M.defaults.confidence)
  local floor = noise and noise.floor or 0
  local verdict = "unclear"
  if reached >= VERDICT_CONFIDENCE then
    if low > 1 + floor then verdict = "faster"
    elseif high < 1 / (1 + floor) then verdict = "slower"
    elseif floor <= SAME_BAND and low >= 1 / (1 + SAME_BAND) and high <= 1 + SAME_BAND then verdict = "same" end
  end
  return verdict, ratio, { low, high }
end

return M
