--- Grid: the conformance cases that every path must pass, and the run that shows it.
--
--   local grid = require "fewhead.measure.grid"
--   local cases = grid.own()                                    -- { { group = "heads", options = { h_q = 1, .. } }, .. }
--   print(grid.run { cases = cases, device = dev }.failed)      --> 0
--
-- Three sources: a table of our own (here), the production calls, and files of FlashMLA's kind, one case a line.

local args = require "fewhead.base.arguments"
local option = require "fewhead.base.option"
local device = require "fewhead.device.device"
local isolate = require "fewhead.measure.isolate"
local json = require "fewhead.base.json"
local parity = require "fewhead.measure.parity"
local path_table = require "fewhead.device.path"
local patterns = require "fewhead.case.pattern"
local providers = require "fewhead.device.provider"

local new_case = require "fewhead.case.case"

local M = {}

-- ---- Our own cases

-- Native head counts: every divisor of 64 and 128 that a rank gets, odd ones that tiles do not like, and both sides of 64.
local HEADS = { 1, 2, 4, 5, 8, 12, 16, 20, 32, 48, 63, 64, 65, 66, 80, 96, 100, 127, 128 }
local D_QK = { 512, 576 }
local LAYOUTS = { "contiguous", "vllm", "strided", "offset" }
local SINKS = { "normal", "none", "flashmla" }

-- Index patterns small enough for every head count; topk is odd in some and s_kv is under it in others.
local PATTERNS = {
  { pattern = "uniform", s_kv = 200, topk = 70 },
  { pattern = "uniform", s_kv = 50, topk = 77, repeats = true },
  { pattern = "uniform", s_kv = 40, topk = 96, holes = 0.1 },
  { pattern = "window", window = 33 },
  { pattern = "csa", window = 16, index_topk = 49, ratio = 1, prior = 100 },
  { pattern = "csa", window = 16, index_topk = 48, ratio = 2, prior = 100, holes = 0.2 },
  { pattern = "csa", window = 16, index_topk = 48, ratio = 4, prior = 0 },
  { pattern = "csa", window = 32, index_topk = 24, ratio = 128, prior = 5000 },
  { pattern = "csa", window = 8, index_topk = 32, ratio = 2, requests = 3, prior = 40 },
  { pattern = "local", window = 16, index_topk = 48, ratio = 1, prior = 200, keep = 0.9 },
  { pattern = "local", window = 0, index_topk = 64, ratio = 1, prior = 300, keep = 0.5, requests = 2 },
  { pattern = "blocks", window = 16, index_topk = 48, ratio = 1, prior = 200 },
  { pattern = "pools", index_topk = 48, prior = 301 }, -- 51 wide
  { pattern = "all", window = 16, ratio = 16, prior = 600 },
  { pattern = "dense_prefix", topk = 65, prior = 20 },
}

-- A pattern that no row names is checked with its own defaults.
local has_row = {}
for _, row in ipairs(PATTERNS) do has_row[row.pattern] = true end
for _, name in ipairs(patterns.drawn) do
  if not has_row[name] then PATTERNS[#PATTERNS + 1] = { pattern = name } end
end

-- Groups of cases. cross: axes multiplied out; cycle: axes that go on by one from case to case, so that over a group their values
-- meet in many ways for little time. An axis is { key, value, .. } or, without a key, { {options}, .. }.
local GROUPS = {
  {
    name = "heads", fixed = { s_q = 19 },
    cross = { { "h_q", unpack(HEADS) }, { "d_qk", unpack(D_QK) } },
    cycle = { PATTERNS, { "layout", unpack(LAYOUTS) }, { "sink", unpack(SINKS) } },
  },
  {
    name = "patterns", fixed = { s_q = 37 },
    cross = { PATTERNS, { "layout", unpack(LAYOUTS) } },
    cycle = { { "h_q", 8, 5, 16, 12, 64 }, { "d_qk", unpack(D_QK) }, { "lengths", "natural", "uniform", "none" } },
  },
  {
    name = "sizes", fixed = { pattern = "uniform", lengths = "none" },
    cross = { { "s_q", 1, 2, 7, 8, 9, 62, 63, 64, 65 }, { "topk", 1, 2, 63, 64, 65, 127, 128, 384 } },
    cycle = { { "s_kv", 1, 95, 114, 128, 592 }, { "h_q", 8, 3, 16, 1, 64, 7 }, { "d_qk", unpack(D_QK) } },
  },
  {
    name = "features", fixed = { pattern = "uniform", s_q = 33, s_kv = 130, topk = 100 },
    cross = {
      { "sink", unpack(SINKS) }, { "lengths", "none", "uniform", 0, 37 }, { "invalid_rows", 0, 0.3 },
      { { holes = 0 }, { holes = 0.3 }, { repeats = true } },
    },
    cycle = { { "h_q", 8, 16, 4, 32, 5 }, { "d_qk", unpack(D_QK) }, { "layout", unpack(LAYOUTS) } },
  },
  {
    name = "empty", fixed = { pattern = "uniform", s_q = 11 },
    cross = {
      { { topk = 0, s_kv = 10 }, { topk = 64, s_kv = 0 }, { topk = 64, s_kv = 100, invalid_rows = 1 },
        { topk = 64, s_kv = 100, lengths = 0 } },
      { "h_q", 8, 64 }, { "sink", "normal", "none" },
    },
  },
  {
    -- Softmax that picks single keys, equal logits, FlashMLA's own inputs, and logits as large as bf16 attention meets.
    name = "values", fixed = { pattern = "uniform", s_q = 23, s_kv = 300, topk = 128 },
    cross = {
      { { scale_q = 8 }, { scale_q = 0 }, { values = "flashmla", sm_scale = 0.5 }, { scale_q = 2, sm_scale = 1 } },
      { "h_q", 8, 16 }, { "d_qk", unpack(D_QK) },
    },
  },
  {
    name = "outputs", fixed = { pattern = "csa", window = 16, index_topk = 40, s_q = 21, prior = 60 },
    cross = {
      { { lse = false }, { max_logits = false }, { lse = false, max_logits = false } }, { "layout", "contiguous", "vllm" },
    },
  },
  {
    name = "groups", paths = path_table.planned(),
    fixed = { s_q = 41, pattern = "local", window = 16, index_topk = 48, prior = 120 },
    cross = {
      { { h_q = 8, group = 1 }, { h_q = 8, group = 2 }, { h_q = 8, group = 3 }, { h_q = 8, group = 7 }, { h_q = 8, group = 8 },
        { h_q = 1, group = 64 }, { h_q = 1, group = 33 }, { h_q = 20, group = 3 }, { h_q = 128, group = 1 } },
      { "plan", true, false }, -- built beforehand, or by the call itself
    },
  },
  {
    name = "auto", paths = { "auto" }, fixed = { pattern = "csa", window = 16, index_topk = 48, prior = 120 },
    cross = { { "s_q", 1, 16, 200 }, { "h_q", 8, 64 }, { { row_invariant = true }, { row_invariant = false } } },
  },
  {
    name = "models", fixed = { s_q = 12, layout = "vllm" },
    cross = { { "preset", "v4.1-flash tp8", "v4-flash tp4", "v4-pro tp8", "v3.2 tp8", "glm-5 tp8" } },
  },
}

-- What belongs to the call, not to the case.
local CALL_KEYS = { "group", "row_invariant", "plan" }

-- Put an axis's i-th value (from 0, round and round) into options.
local function set_axis(options, axis, i)
  if type(axis[1]) == "string" then
    options[axis[1]] = axis[2 + i % (#axis - 1)]
  else
    for key, value in pairs(axis[1 + i % #axis]) do options[key] = value end
  end
end

local function axis_length(axis) return type(axis[1]) == "string" and #axis - 1 or #axis end

-- An entry: what to run and what it is called. Wrong options raise.
local function entry_of(group, options, more)
  local entry = { group = group, options = options, case = new_case(options), call = {} }
  for key, value in pairs(more or {}) do entry[key] = value end
  return entry
end

local function expand(group, seed)
  local cases, total = {}, 1
  for _, axis in ipairs(group.cross) do total = total * axis_length(axis) end
  for n = 0, total - 1 do
    local options, rest = { seed = seed + n }, n
    for key, value in pairs(group.fixed) do options[key] = value end
    for _, axis in ipairs(group.cycle or {}) do set_axis(options, axis, n) end
    for i = #group.cross, 1, -1 do
      local length = axis_length(group.cross[i])
      set_axis(options, group.cross[i], rest % length)
      rest = math.floor(rest / length)
    end
    local call = {}
    for _, key in ipairs(CALL_KEYS) do call[key], options[key] = options[key], nil end
    cases[#cases + 1] = entry_of("own/" .. group.name, options, { paths = group.paths, call = call })
  end
  return cases
end

--- The cases of our own table, a list of { group = name, case =, options = what the case was made of, call = { group =,
-- row_invariant =, plan = }, paths = those it is for, nil = all that "auto" chooses among }.
function M.own()
  local cases = {}
  for _, group in ipairs(GROUPS) do
    for _, entry in ipairs(expand(group, #cases)) do cases[#cases + 1] = entry end
  end
  return cases
end

local function published_options(s_q)
  return {
    preset = "v4.1-flash tp8", s_q = s_q, s_kv = 8192, h_q = 8, h_pad = 64, topk = 640, pattern = "uniform", lengths = 512,
    sink = "normal", layout = "vllm",
  }
end

--- The case that the published few-head kernel is tested with: 8 of 64 heads in vLLM's buffers, topk 640 of which 512 are
-- listed, sinks.
function M.published(s_q) return new_case(published_options(s_q)) end

--- How far that kernel's out lies from padding to 64 heads, as vLLM PR 57673 says: mean and largest distance.
M.published_errors = { mean_abs = 3.4e-5, max_abs = 3.91e-3 }

--- That case at the published sizes, and a chunk of real shape.
function M.production()
  local cases = {}
  for _, s_q in ipairs { 64, 2048, 8192 } do
    cases[#cases + 1] = entry_of("production", published_options(s_q), { whole = true })
  end
  cases[#cases + 1] = entry_of("production", {
    preset = "v4.1-flash tp8", s_q = 1024, pattern = "local", requests = 2, layout = "vllm",
  }, { whole = true })
  return cases
end

-- ---- Files of FlashMLA's kind

-- Head counts that each line is run at too.
local NATIVE_HEADS = { 1, 2, 4, 5, 8, 12, 16, 20, 32, 48, 63 }

local FILE_FIELDS = {
  { "group", "string" }, { "d_qk", "number" }, { "h_q", "number" }, { "s_q", "number" }, { "s_kv", "number" },
  { "topk", "number" }, { "attn_sink", "boolean" }, { "topk_length", "boolean" }, { "some_rows_all_invalid", "boolean" },
}
local INVALID_ROWS = 0.02 -- the share of rows that some_rows_all_invalid stands for

local function check_line(where, value)
  if type(value) ~= "table" or #value > 0 then error(("%s: got %s, wanted an object"):format(where, args.show(value)), 0) end
  for _, field in ipairs(FILE_FIELDS) do
    local key, kind = field[1], field[2]
    if type(value[key]) ~= kind then
      error(("%s: %s: got %s, wanted a %s"):format(where, key, args.show(value[key]), kind), 0)
    end
  end
end

local function file_case(group, line, h_q, seed)
  return entry_of(group, {
    d_qk = line.d_qk, h_q = h_q, s_q = line.s_q, s_kv = line.s_kv, topk = line.topk, pattern = "uniform", layout = "strided",
    values = "flashmla", sm_scale = 0.5, sink = line.attn_sink and "flashmla" or "none",
    lengths = line.topk_length and "uniform" or "none", invalid_rows = line.some_rows_all_invalid and INVALID_ROWS or 0,
    seed = seed,
  })
end

--- The cases of a file with one JSON object a line: d_qk, h_q, s_q, s_kv, topk, attn_sink, topk_length, some_rows_all_invalid,
-- group. Each line makes a case at its own head count and one each at 1, 2, 4, 5, 8, 12, 16, 20, 32, 48 and 63. Returns the list
-- | nil, "file:line: ..." .
function M.file(path)
  local cases = {}
  local name = path:match("([^/]+)/[^/]+$") or path
  local ok, err = pcall(function()
    for value, number in json.lines(path) do
      local where = ("%s:%d"):format(path, number)
      check_line(where, value)
      for _, h_q in ipairs { value.h_q, unpack(NATIVE_HEADS) } do
        local made, entry = pcall(file_case, ("%s/%s"):format(name, value.group), value, h_q, number)
        if not made then error(("%s: %s"):format(where, entry:match("case: .*") or entry), 0) end
        cases[#cases + 1] = entry
      end
    end
  end)
  if not ok then return nil, err end
  if #cases == 0 then return nil, path .. ": no cases" end
  return cases
end

-- ---- Running

-- Of one case at most: flops that the padded path multiplies, beyond which the case has fewer rows, and flops of the oracle on a
-- CPU, beyond which it answers for a sample of rows. About 0.1 s each on two cores.
local PADDED_FLOPS, REFERENCE_FLOPS = 8e9, 1.5e8
-- With full = true: up to some seconds a case, and no more memory than a small machine has.
local FULL_PADDED_FLOPS, FULL_REFERENCE_FLOPS = 4e11, 4e9

-- Rows of an oversized case that are run: index lists are drawn row by row, so the first rows are a sample of them.
local function affordable_rows(entry, full)
  local case = entry.case
  local row = 2 * case.h_pad * (case.d_qk + case.d_v) * case.topk
  if entry.whole or row == 0 then return case.s_q end
  return math.max(1, math.min(case.s_q, math.floor((full and FULL_PADDED_FLOPS or PADDED_FLOPS) / row)))
end

-- One path of a problem against the oracle's answer, as the entry calls it.
local function check_path(problem, path, want, call)
  local how, err = { want = want, row_invariant = call.row_invariant }, nil
  local on_plan = not providers.is(path) and path_table.get(path).wants_plan
  if on_plan then how.group = call.group end
  if on_plan and call.plan then how.plan, err = require("fewhead.device.plan").build(problem, { group = call.group }) end
  local result = not err and parity.check(problem, path, how)
    or { status = "invalid", path = path, against = "reference", compared = 0, reason = err }
  if how.plan then how.plan:free() end
  return result
end

-- The case of an entry that runs: its first rows where all of them take too long.
local function case_that_runs(entry, full)
  local rows = affordable_rows(entry, full)
  if rows == entry.case.s_q then return entry.case end
  local options = {}
  for key, value in pairs(entry.options) do options[key] = value end
  options.s_q = rows
  return new_case(options)
end

-- Results of paths of a case, in order, against one answer. o: against, whose answer; flops, as far as the reference gives it;
-- call, of an entry; phase, as fh.compare takes it.
local function check_paths(case, paths, dev, o)
  local results, want = {}, nil
  local problem, err = case:problem(dev)
  if problem then
    local sample = o.against == "reference" and parity.affordable_rows(problem, o.flops) or nil
    want, err = parity.expected(problem, { against = o.against, sample = sample })
  end
  for i, path in ipairs(paths) do
    if o.phase then o.phase("parity", providers.name_of(path)) end
    results[i] = want and check_path(problem, path, want, o.call)
      or { status = "invalid", path = providers.name_of(path), against = providers.name_of(o.against), compared = 0,
        reason = err }
  end
  if want then want.free() end
  case:free()
  return results
end

--- The same in a worker process (fewhead.measure.worker calls it): arguments = { case = its description, paths = names, against =
-- a name, call =, flops = }. Returns { results = list }; nil, err without memory for the case.
function M.check_there(bench, arguments, control)
  local case, err = new_case(arguments.case)
  if not case then return nil, err end
  return { results = check_paths(case, bench.paths(arguments.paths), bench.dev, {
    against = bench.paths({ arguments.against })[1], call = arguments.call, flops = arguments.flops, phase = control.phase,
  }) }
end

-- The same where providers take part: in a worker process, again without those that end it.
local function check_apart(case, paths, dev, o, guests)
  local crew, err = isolate.crew(dev, guests)
  if not crew then error("grid: " .. err, 0) end
  local against = providers.name_of(o.against)
  local answer, out = isolate.rounds(crew, paths, function(names)
    return "measure.grid", "check_there", {
      case = case:describe(), paths = names, against = against, call = o.call, flops = o.flops,
    }
  end)
  local results, failure = answer.value and answer.value.results or {}, answer.failure
  for i, path in ipairs(paths) do
    local name = providers.name_of(path)
    if out[name] then table.insert(results, i, (isolate.parity_of(name, out[name])))
    elseif not results[i] then
      results[i] = failure and isolate.parity_of(failure.path or "the worker process", failure)
        or { status = "error", compared = 0, reason = answer.err or answer.raised }
    end
    results[i].path, results[i].against = name, against
  end
  return results
end

local function check_somewhere(case, paths, dev, o)
  local all = { o.against, unpack(paths) }
  local guests = isolate.providers_of(all)
  local apart = #guests > 0 and not isolate.here and case:portable()
  return (apart and check_apart or check_paths)(case, paths, dev, o, guests)
end

--- Results of parity.check for paths and providers of one case, in order, against one answer. Options: device (default
-- device.default()); against = "reference" (default), another path or a provider; flops: the reference answers for as many rows
-- as it computes with these, other paths for all. Providers run in a worker process: one that crashes, hangs or loses the device
-- is an "error" with the reason, and the others are checked in a new process.
function M.check(case, paths, opts)
  opts = args.options("grid.check", opts, { "device", "against", "flops" })
  local dev = device.check("grid.check: device", opts.device or device.default())
  return check_somewhere(case, paths, dev, {
    against = opts.against or "reference", flops = opts.flops or REFERENCE_FLOPS, call = {},
  })
end

-- Results of one entry, path by path, to on_result(entry, the case that ran, result, path or provider).
local function run_entry(entry, paths, dev, full, on_result)
  local case = case_that_runs(entry, full)
  local results = check_somewhere(case, paths, dev, {
    against = "reference", call = entry.call, flops = full and FULL_REFERENCE_FLOPS or REFERENCE_FLOPS,
  })
  for i, path in ipairs(paths) do
    local result = results[i]
    if case.s_q < entry.case.s_q then result.sampled = result.sampled or case.s_q end
    on_result(entry, case, result, path)
  end
end

-- The paths of an entry that are asked for; where none are named, those of them that the device has. And the providers, but for
-- an entry that is about certain paths.
local function paths_of(entry, asked, dev, guests)
  local list = {}
  for _, path in ipairs(entry.paths or path_table.computing()) do
    local wanted = not asked and dev:has_path(path, entry.case.h_q)
    for _, name in ipairs(asked or {}) do wanted = wanted or name == path end
    if wanted then list[#list + 1] = path end
  end
  for _, provider in ipairs(entry.paths and {} or guests) do list[#list + 1] = provider end
  return list
end

local COUNTERS = { pass = "passed", fail = "failed", error = "failed", invalid = "invalid" }

-- Totals, and a function that adds a result to them and hands it on. What a path refuses it should do: it is invalid. A provider
-- need not run every case.
local function counting(on_result)
  local totals = { passed = 0, failed = 0, invalid = 0, refused = 0, sampled = 0, checks = 0, cases = 0 }
  return totals, function(entry, case, result, path)
    local counter = result.refused and providers.is(path) and "refused" or COUNTERS[result.status]
    totals[counter] = totals[counter] + 1
    totals.checks = totals.checks + 1
    if result.sampled then totals.sampled = totals.sampled + 1 end
    if on_result then on_result(entry, case, result, path) end
  end
end

-- Of every how many of our own cases a GPU's reference answers one.
local ORACLE_STEP = 16

--- The options of run (fewhead.base.option).
M.rows = option.rows("grid.run", {
  { "cases", "TABLE", "default own() and production()" },
  { "device", "ANY", "default device.default()" },
  { "paths", "TABLE", "names of those to run" },
  { "providers", "TABLE", "a list of those that run too" },
  { "--full", nil, "more rows of what is too large to be compared as a whole" },
  { "on_result", "FUNCTION", "called after each check" },
})
local ORACLE_ROWS = option.rows("grid.check_oracle", { M.rows.by_key.device, M.rows.by_key.on_result })

--- A GPU's reference is a kernel like others: is it right? Compares what it says to some of our own cases with what the CPU's
-- says, by the limits of single precision: it rounds no weight.
-- Options: device, on_result; result as run's.
function M.check_oracle(opts)
  opts = option.table("grid.check_oracle", opts, ORACLE_ROWS)
  local dev = device.check("grid.check_oracle: device", opts.device or device.default())
  local totals, on_result = counting(opts.on_result)
  local cpu, cases = assert(device.open("cpu")), M.own()
  for i = 1, #cases, ORACLE_STEP do
    totals.cases = totals.cases + 1
    local case = cases[i].case
    local there, here, want, err
    here, err = case:problem(cpu)
    if here then want, err = parity.expected(here) end
    if want then there, err = case:problem(dev) end
    local result = there and parity.check(there, "reference", { want = want, tolerance = {} })
      or { status = "invalid", path = "reference", compared = 0, reason = err }
    result.against = "reference on cpu"
    on_result({ group = "oracle" .. cases[i].group:match("/.*"), case = case }, case, result, "reference")
    if want then want.free() end
    case:free()
  end
  cpu:close()
  return totals
end

--- Check cases. Options: cases (default own() and production()); device (default device.default()); paths, names
-- of those to run (default: what each case is for and the device has); providers, a list of those that run too; full
-- = true: larger samples; on_result = function(entry, case, result, path or provider), called after each check. Returns { passed
-- =, failed =, invalid =, refused =, sampled =, checks =, cases = }: refused counts cases that a provider does not run, sampled
-- checks that compared a part of the rows.
function M.run(opts)
  opts = option.table("grid.run", opts, M.rows)
  local cases = opts.cases
  if not cases then
    cases = M.own()
    for _, entry in ipairs(M.production()) do cases[#cases + 1] = entry end
  end
  local dev = device.check("grid.run: device", opts.device or device.default())
  local totals, count = counting(opts.on_result)
  for i, path in ipairs(opts.paths or {}) do path_table.check(("grid.run: paths[%d]"):format(i), path) end
  for _, entry in ipairs(cases) do
    local paths = paths_of(entry, opts.paths, dev, opts.providers or {})
    if #paths > 0 then
      totals.cases = totals.cases + 1
      run_entry(entry, paths, dev, opts.full, count)
    end
  end
  return totals
end

--- Nothing failed, nothing was undecided, and something ran.
function M.ok(totals) return totals.failed == 0 and totals.invalid == 0 and totals.passed > 0 end

return M
