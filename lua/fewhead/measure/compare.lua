--- Compare: paths beside each other on one case: parity first, then time, then a verdict.
--
--   local fh = require "fewhead"
--   local case = fh.case { heads = 8, s_q = 2048, pattern = "csa", layout = "vllm" }
--   print(fh.compare(case, { "padded", "native" }))    -- parity, medians, ratio, verdict
--
-- "native" is gather and packed, both measured; the quicker one is called native(gather) or native(packed) in the table. A
-- provider (fh.provider) stands beside paths. What fails parity gets no time: a wrong answer has no speed.

local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local parity = require "fewhead.measure.parity"
local providers = require "fewhead.device.provider"
local timing = require "fewhead.measure.timing"

local M = {}

-- What the oracle computes for one comparison at most, useful flops; beyond it rows are sampled. Under a second on one core.
local REFERENCE_FLOPS = 5e8

local PATHS = { "reference", "padded", "gather", "packed", "native", "auto" }
local TIMING = {
  "min_samples", "max_samples", "max_seconds", "rel_ci", "confidence", "cold", "noise", "clock", "stopwatch", "interrupted",
}
local KNOWN = { "device", "run", "sample", "group", "row_invariant", "canaries", unpack(TIMING) }

-- Fields of a result that are not data of the record.
local PARITY_FIELDS = {
  "status", "against", "compared", "sampled", "mean_abs", "max_abs", "rel", "cos_diff", "failing", "lse_max_abs",
  "max_logits_max_abs", "worst", "refused", "reason",
}
local TIME_FIELDS = { "median_us", "p05_us", "p95_us", "median_lo_us", "median_hi_us", "n", "l2", "stop", "plan_us" }

local function pick(source, fields)
  local copy = {}
  for _, key in ipairs(fields) do copy[key] = source[key] end
  return copy
end

--- Those fields of a result of fh.timing that a record keeps.
function M.time_of(time) return pick(time, TIME_FIELDS) end

--- One JSONL record: { path, provider, provider_version, case, parity, time, work, run }. path is a path or a provider, whose
-- name then is path and provider; of the library's paths provider is "fewhead". parity is a result of fh.parity, time one of
-- fh.timing or nil, work the counters of one run or nil (its path is the one that ran, which auto chose), run a header of
-- fewhead.run. A time beside a parity that did not pass is refused.
function M.record(problem, path, checked, time, work, run)
  local name = providers.name_of(path)
  if time and checked.status ~= "pass" then
    error(("compare.record: time: got one for %s, whose parity is %s; wanted none"):format(name, args.show(checked.status)), 2)
  end
  local done
  if work then
    done = pick(work, { "path", "rows", "by_path", "useful_flops", "executed_flops", "bytes" })
    local executed = work.executed_flops -- nil: a provider, or a GPU that shared the rows out itself, does not tell
    done.waste = executed and (executed > 0 and 1 - work.useful_flops / executed or 0)
  end
  local provider, version = providers.provider_of(path)
  return {
    path = name, provider = provider, provider_version = version, case = problem.case:describe(),
    parity = pick(checked, PARITY_FIELDS), time = time and M.time_of(time), work = done, run = run,
  }
end

--- Paths and providers with "native" replaced by the paths it stands for on the device, gather and packed where it has them, none
-- twice, and whether it stood there. Wrong ones raise; level as in error(), 1 = the caller of this.
function M.expand(what, paths, dev, level)
  args.table(what, paths, level + 1)
  if #paths == 0 then error(what .. ": got none, wanted at least one", level + 1) end
  local list, seen, native = {}, {}, false
  for i, path in ipairs(paths) do
    local where = ("%s[%d]"):format(what, i)
    if providers.is(path) then
      providers.handle(where, path, level + 1)
      if (seen[path.name] or path) ~= path then
        error(("%s: two providers are called %s: load one under another name"):format(where, path.name), level + 1)
      end
    else args.enum(where, path, PATHS, level + 1) end
    native = native or path == "native"
    for _, one in ipairs(path == "native" and { "gather", "packed" } or { path }) do
      local name = providers.name_of(one)
      local wanted = not seen[name] and (path ~= "native" or dev:has_path(name))
      if wanted then list[#list + 1], seen[name] = one, one end
    end
  end
  return list, native
end

local Comparison = { __name = "comparison" }
Comparison.__index = Comparison

-- What the first path took beside each of the others, where both have a time.
local function add_verdicts(records, times)
  local base = times[records[1].path]
  for i = 2, #records do
    local own = times[records[i].path]
    if base and own then
      local verdict, ratio, interval = timing.verdict(own, base, times.noise)
      records[i].verdict = { verdict = verdict, ratio = ratio, lo = interval[1], hi = interval[2], against = records[1].path }
    end
  end
end

--- The record of a path ("native": the quicker of gather and packed), nil when it was not asked for or, for "native", has no
-- time.
function Comparison:record(path)
  local best
  for _, record in ipairs(self.records) do
    if record.path == path then return record end
    local quicker = record.time and (not best or record.time.median_us < best.time.median_us)
    if path == "native" and quicker and (record.path == "gather" or record.path == "packed") then best = record end
  end
  return best
end

local GIGA = 1e9

-- Columns of the printed table; a value that is not there prints as "-".
local function columns()
  local time = require("fewhead.report.report").time
  return {
    { key = "path", align = "left" }, { key = "parity", align = "left" }, { key = "max_abs", format = "%.2e" },
    { key = "median", format = time }, { key = "spread", title = "p05 .. p95" }, { key = "ratio", format = "%.2fx" },
    { key = "verdict", align = "left" }, { key = "useful", title = "useful GFLOP/s", format = "%.1f" },
    { key = "executed", format = "%.1f" }, { key = "waste", format = function(share) return ("%.1f %%"):format(share * 100) end },
    { key = "plan", format = time },
  }
end

local function row_of(record, best)
  local time, work, verdict = record.time, record.work, record.verdict
  local row = {
    path = record == best and ("native(%s)"):format(record.path) or record.path, parity = record.parity.status,
    max_abs = record.parity.max_abs, waste = work and work.waste,
  }
  if time then
    local format = require("fewhead.report.report").time
    row.median, row.plan = time.median_us, time.plan_us
    row.spread = format(time.p05_us) .. " .. " .. format(time.p95_us)
    row.useful = work.useful_flops / (time.median_us / 1e6) / GIGA
    row.executed = work.executed_flops and work.executed_flops / (time.median_us / 1e6) / GIGA
  end
  if verdict then row.ratio, row.verdict = verdict.ratio, verdict.verdict end
  return row
end

function Comparison:__tostring()
  local rows, best = {}, self.native and self:record("native")
  for i, record in ipairs(self.records) do rows[i] = row_of(record, best) end
  local lines = { ("%s on %s"):format(self.case:id(), self.device_name), require("fewhead.report.report").table(rows, columns()) }
  for _, record in ipairs(self.records) do
    if record.parity.reason then lines[#lines + 1] = ("%s: %s"):format(record.path, record.parity.reason) end
  end
  if self.sampled then lines[#lines + 1] = ("parity over %d of %d rows"):format(self.sampled, self.case.s_q) end
  if self.noise then
    lines[#lines + 1] = ("%s, %d samples, stopped by %s; noise floor %.1f %% (%s against itself)"):format(self.l2, self.noise.n,
      self.stop, self.noise.floor * 100, self.noise.arm)
  end
  return table.concat(lines, "\n")
end

-- Results of all paths against one answer of the oracle, and the plan that packed ran on, which is the one to be timed; nil when
-- interrupted.
local function check_all(problem, paths, opts)
  local want, refusal = parity.expected(problem, { sample = opts.sample or parity.affordable_rows(problem, REFERENCE_FLOPS) })
  local checks, plan = {}, nil
  for i, path in ipairs(paths) do
    if opts.interrupted and opts.interrupted() then
      checks = nil
      break
    end
    local how, err = pick(opts, { "group", "row_invariant", "canaries" }), refusal
    how.want = want
    if want and path == "packed" then
      plan, err = require("fewhead.device.plan").build(problem, { group = opts.group })
      how.plan = plan
    end
    checks[i] = not err and parity.check(problem, path, how)
      or { status = "invalid", against = "reference", compared = 0,
        reason = ("%s did not run: %s"):format(providers.name_of(path), err) }
  end
  if want then want.free() end
  return checks, plan
end

-- Times of the paths that passed. A provider that fails while it is timed is out: its check says why, and the others are timed
-- again. nil, err when a path of the library fails, or all is interrupted.
local function time_all(problem, paths, checks, how)
  while true do
    local passed = {}
    for i, path in ipairs(paths) do
      if checks[i].status == "pass" then passed[#passed + 1] = path end
    end
    if #passed == 0 then return {} end
    local times, err, culprit = timing.problem(problem, passed, how)
    if times then return times end
    local out
    for i, path in ipairs(paths) do
      if providers.is(path) and path.name == culprit then
        checks[i], out = { status = "error", against = checks[i].against, compared = checks[i].compared, reason = err }, true
      end
    end
    if not out then return nil, err end
  end
end

--- fh.compare(case, { "padded", "native" }, opts): check each path or provider against the reference, time those that pass in
-- turns, and give each a verdict against the first. Options: device (default device.default()); run, a header of fh.run (default:
-- a new one); sample, rows that parity compares at most (default: as many as the reference computes in under a second); group and
-- row_invariant, as problem:call takes them; canaries, as parity.check has it; and those of fewhead.timing. Returns an object
-- with .records (one JSONL record a path, in order, with .verdict = { verdict, ratio, lo, hi, against } beside the named
-- fields), .noise, :record(path) and tostring; nil, message where the case does not fit the device or a timed run fails. A
-- refused path is a record whose parity is "invalid" and says why; so is a provider that fails, with "error".
function M.compare(case, paths, opts)
  if type(case) ~= "table" or type(case.problem) ~= "function" then
    error(("compare: case: got %s, wanted a case, such as fh.case{..} gives"):format(args.show(case)), 2)
  end
  opts = args.options("compare", opts, KNOWN)
  local dev = device.check("compare: device", opts.device or device.default())
  local list, native = M.expand("compare: paths", paths, dev, 2)
  local problem, err = case:problem(dev)
  if not problem then return nil, err end
  local run = opts.run or require("fewhead.record.run").header(dev)

  local checks, plan = check_all(problem, list, opts)
  if not checks then return nil, "compare: interrupted" end
  local how = pick(opts, TIMING)
  how.plan, how.group, how.row_invariant = plan, opts.group, opts.row_invariant
  local times
  times, err = time_all(problem, list, checks, how)
  if plan then plan:free() end
  if not times then return nil, err end

  local self = { case = case, records = {}, native = native, noise = times.noise, device_name = run.device }
  for _, check in ipairs(checks) do self.sampled = self.sampled or check.sampled end
  for i, path in ipairs(list) do
    local time = times[providers.name_of(path)]
    self.records[i] = M.record(problem, path, checks[i], time, checks[i].work, run)
    if time then self.l2, self.stop = time.l2, time.stop end
  end
  add_verdicts(self.records, times)
  return setmetatable(self, Comparison)
end

return setmetatable(M, { __call = function(_, ...) return M.compare(...) end })
