--- Parity: do two sets of outputs agree, where do they not, and whose fault is it?
--
--   local parity = require "fewhead.measure.parity"
--   local result = parity.check(problem, "gather")             -- against the reference, canaries included
--   print(result.status, result.max_abs, parity.three_way(problem, "gather").verdict)  --> pass  0.00097  agree
--
-- Positions of NaN and infinity are compared before any value, a place that holds the poison (bytes 0xFF, a NaN) was never
-- written or was computed from memory that must not be read, and nothing compared is not a pass. Rows, heads and dims in results
-- count from 0, as in the C contract.

local bit = require "bit"

local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"
local paths = require "fewhead.device.path"
local providers = require "fewhead.device.provider"

local ffi = F.ffi
local band, lshift = bit.band, bit.lshift

local M = {}

--- FlashMLA's tolerances against a float32 reference. A value fails only if its difference reaches both abs and rel times
-- (|reference| + rel_floor). cos bounds 1 - 2 a.b / (a.a + b.b) over the whole array, not asked where b.b < cos_floor.
M.tolerance = {
  out = { abs = 8e-4, rel = 3.01 / 128, cos = 7e-6 },
  lse = { abs = 1e-6, rel = 2.01 / 65536, cos = 1e-7 },
  max_logits = { abs = 1e-6, rel = 2.01 / 65536, cos = 1e-7 },
  rel_floor = 1e-6,
  cos_floor = 1e-12,
  source = "FlashMLA, tests/test_flash_mla_sparse_prefill.py and tests/kernelkit/compare.py (check_is_allclose)",
}

-- What FlashMLA's tests draw V from: its abs tolerance of out is meant for values of this deviation.
local FLASHMLA_DEVIATION = 0.1
local DEVIATION = { flashmla = FLASHMLA_DEVIATION, normal = 1 }

--- The tolerance of out that a path on this problem is held to, as M.check's option: nil = M.tolerance's as it stands, on a CPU,
-- whose kernels keep float32 weights, and on FlashMLA's own values. A GPU's kernels round the weights to bf16 before they
-- multiply V, as FlashMLA's do: their error grows with V, so abs is taken in proportion to V's deviation.
function M.tolerance_of(problem)
  local deviation = DEVIATION[problem.case.values]
  if problem.device.kind == "cpu" or deviation == FLASHMLA_DEVIATION then return nil end
  return { out = { abs = M.tolerance.out.abs * deviation / FLASHMLA_DEVIATION } }
end

local FIELDS = { "out", "lse", "max_logits" }

-- ---- Reading arrays

local WORDS, FLOATS, HALVES = ffi.typeof("int32_t *"), ffi.typeof("float *"), ffi.typeof("uint16_t *")
local BYTES, POISON = { bf16 = 2, f32 = 4 }, { bf16 = 0xffff, f32 = -1 } -- the words that 0xFF bytes make
local EXPONENT, POSITIVE_INF, NEGATIVE_INF = 0x7f800000, 0x7f800000, bit.tobit(0xff800000)

-- A tensor's elements as they are, row-major, bits untouched: a NaN that was loaded as a number would no longer be the poison.
local function read_array(what, tensor)
  local bytes = tensor.numel * BYTES[tensor.dtype]
  local memory = ffi.new("uint8_t[?]", math.max(1, bytes))
  local ok, err = F.check(F.C.fh_view_read(tensor.handle, memory, bytes))
  if not ok then return nil, ("%s: %s"):format(what, err) end
  return {
    what = what, dtype = tensor.dtype, poison = POISON[tensor.dtype], shape = tensor.shape, numel = tensor.numel,
    memory = memory, halves = ffi.cast(HALVES, memory), words = ffi.cast(WORDS, memory), -- pointers do not keep memory alive
  }
end

-- n elements from `at` as 32-bit words: in place, or widened into scratch. A bf16 is the upper half of the float it stands for.
local function widen(array, at, n, scratch)
  if array.dtype == "f32" then return array.words + at end
  local halves = array.halves + at
  for i = 0, n - 1 do scratch[i] = lshift(halves[i], 16) end
  return scratch
end

local function raw(array, at) return array.dtype == "f32" and array.words[at] or array.halves[at] end

-- The first element that still holds the poison, and how many do.
local function find_unwritten(array)
  local elements, poison, count, first = array.dtype == "f32" and array.words or array.halves, array.poison, 0, nil
  for i = 0, array.numel - 1 do
    if elements[i] == poison then
      first = first or i
      count = count + 1
    end
  end
  return first, count
end

local function kind_of(word)
  if word == POSITIVE_INF then return "inf" end
  if word == NEGATIVE_INF then return "-inf" end
  return band(word, EXPONENT) == EXPONENT and "NaN" or nil
end

-- ---- Comparing

local CHUNK = 4096 -- elements widened at a time: 16 KiB of scratch a side, which stays in the first cache

-- Sums over the finite pairs of one chunk; a pair that is not finite on both sides goes to odd(index, got word, want word).
local function add_chunk(sums, at, n, got, want, tolerance, odd)
  local got_float, want_float = ffi.cast(FLOATS, got), ffi.cast(FLOATS, want)
  local abs_limit, rel_limit, rel_floor = tolerance.abs, tolerance.rel, M.tolerance.rel_floor
  local count, total, squares, got_squares, want_squares, dot = 0, 0, 0, 0, 0, 0
  local max, max_at, failing, worst, worst_at = sums.max, sums.max_at, sums.failing, sums.worst, sums.worst_at
  for i = 0, n - 1 do
    if band(got[i], EXPONENT) == EXPONENT or band(want[i], EXPONENT) == EXPONENT then
      odd(at + i, got[i], want[i])
    else
      local a, b = got_float[i], want_float[i]
      local d = math.abs(a - b)
      count, total, squares = count + 1, total + d, squares + d * d
      got_squares, want_squares, dot = got_squares + a * a, want_squares + b * b, dot + a * b
      if d > max then max, max_at = d, at + i end
      if d >= abs_limit and d >= rel_limit * (math.abs(b) + rel_floor) then
        failing = failing + 1
        if d > worst then worst, worst_at = d, at + i end
      end
    end
  end
  sums.count, sums.total, sums.squares = sums.count + count, sums.total + total, sums.squares + squares
  sums.got_squares, sums.want_squares = sums.got_squares + got_squares, sums.want_squares + want_squares
  sums.dot = sums.dot + dot
  sums.max, sums.max_at, sums.failing, sums.worst, sums.worst_at = max, max_at, failing, worst, worst_at
end

-- Everything there is to know about one field.
local function compare_field(got, want, tolerance)
  local sums = {
    count = 0, total = 0, squares = 0, got_squares = 0, want_squares = 0, dot = 0, max = -1, max_at = 0, failing = 0, worst = -1,
    worst_at = 0, unwritten = 0, wanted_unwritten = 0, misplaced = 0, infinite = 0,
  }
  local function odd(at, got_word, want_word)
    local got_kind, want_kind = kind_of(got_word), kind_of(want_word)
    if want_kind == "inf" then sums.infinite = sums.infinite + 1 end
    if want_kind == "NaN" and raw(want, at) == want.poison then
      sums.wanted_unwritten, sums.wanted_unwritten_at = sums.wanted_unwritten + 1, sums.wanted_unwritten_at or at
    end
    if got_kind == "NaN" and raw(got, at) == got.poison then
      sums.unwritten, sums.unwritten_at = sums.unwritten + 1, sums.unwritten_at or at
    elseif got_kind ~= want_kind then
      sums.misplaced, sums.misplaced_at = sums.misplaced + 1, sums.misplaced_at or at
    end
  end
  local got_scratch, want_scratch = ffi.new("int32_t[?]", CHUNK), ffi.new("int32_t[?]", CHUNK)
  for at = 0, want.numel - 1, CHUNK do
    local n = math.min(CHUNK, want.numel - at)
    add_chunk(sums, at, n, widen(got, at, n, got_scratch), widen(want, at, n, want_scratch), tolerance, odd)
  end
  local both = sums.got_squares + sums.want_squares
  sums.cos_diff = sums.want_squares < M.tolerance.cos_floor and 0 or 1 - 2 * sums.dot / both
  return sums
end

-- ---- Words for it

-- The number at a place, as text where it is no number that JSON can hold.
local function value_at(array, at)
  local cell = ffi.new("union { int32_t word; float number; }")
  cell.word = array.dtype == "f32" and array.words[at] or lshift(array.halves[at], 16)
  return kind_of(cell.word) or cell.number
end

-- Row, head and (out only) dim of element `at`, row numbered as in the whole problem.
local function coordinates(array, at, rows)
  local inner, heads = array.shape[3] or 1, array.shape[2]
  local row = math.floor(at / (heads * inner))
  if rows then row = rows.first + row * rows.step end
  return { row = row, head = math.floor(at / inner) % heads, dim = array.shape[3] and at % inner or nil }
end

local function place_text(c)
  return ("row %d, head %d%s"):format(c.row, c.head, c.dim and (", dim %d"):format(c.dim) or "")
end

local function more(count) return count > 1 and (" and at %d more places"):format(count - 1) or "" end

local function unwritten_text(array, at, count, rows)
  local place = place_text(coordinates(array, at, rows))
  return ("%s: never written (or computed from poison) at %s%s"):format(array.what, place, more(count))
end

-- What is wrong with a field, worst news first: status, reason, where; nothing when all is well.
local function fault(got, want, sums, tolerance, rows)
  local name = got.what
  local function where(at) return coordinates(want, at, rows), at end
  if sums.wanted_unwritten > 0 then
    local c, at = where(sums.wanted_unwritten_at)
    return "invalid", ("%s: the reference was never written at %s%s"):format(name, place_text(c), more(sums.wanted_unwritten)), at
  end
  if sums.unwritten > 0 then
    return "fail", unwritten_text(got, sums.unwritten_at, sums.unwritten, rows), sums.unwritten_at
  end
  if sums.misplaced > 0 then
    local c, at = where(sums.misplaced_at)
    return "fail", ("%s: got %s, wanted %s at %s%s"):format(name, args.show(value_at(got, at)):gsub('"', ""),
      args.show(value_at(want, at)):gsub('"', ""), place_text(c), more(sums.misplaced)), at
  end
  if sums.failing > 0 then
    local c, at = where(sums.worst_at)
    return "fail", ("%s: got %.9g, wanted %.9g at %s; %d of %d values differ by abs >= %g and rel >= %g"):format(name,
      value_at(got, at), value_at(want, at), place_text(c), sums.failing, sums.count, tolerance.abs, tolerance.rel), at
  end
  if math.abs(sums.cos_diff) > tolerance.cos then
    return "fail", ("%s: cosine difference %.3g, wanted at most %g"):format(name, sums.cos_diff, tolerance.cos), sums.max_at
  end
end

-- M.tolerance's limits of each field with those given in their place.
local function limits_of(given, level)
  args.options("parity: tolerance", given, FIELDS, level + 1)
  local limits = {}
  for _, name in ipairs(FIELDS) do
    local own = args.options("parity: tolerance." .. name, given and given[name], { "abs", "rel", "cos" }, level + 1)
    limits[name] = {}
    for key, value in pairs(M.tolerance[name]) do limits[name][key] = own[key] or value end
  end
  return limits
end

-- Both sides of a field as arrays, or nil, err. What cannot be compared raises.
local function read_sides(name, got, want, level)
  for _, tensor in ipairs { got, want } do
    if not BYTES[tensor.dtype] then
      error(("parity.compare: %s: got dtype %s, wanted bf16 or f32"):format(name, args.show(tensor.dtype)), level + 1)
    end
  end
  local given, wanted = table.concat(got.shape, " x "), table.concat(want.shape, " x ")
  if given ~= wanted then error(("parity.compare: %s: got shape %s, wanted %s"):format(name, given, wanted), level + 1) end
  local mine, err = read_array(name, got)
  local theirs
  if mine then theirs, err = read_array(name, want) end
  if not theirs then return nil, err end
  return mine, theirs
end

local TINY = 1e-30 -- a norm under this counts as this, so that a ratio of norms stays finite

--- Compare { out =, lse =, max_logits = } tensors with those of the oracle; lse and max_logits count where both sides have them.
-- Options: tolerance = { out = { abs =, rel =, cos = }, .. } in place of M.tolerance's; rows = { first =, step = }: row i of the
-- tensors is row first + i * step of the problem, counted from 0 (only worst and reason use it); zero = true: out is 0
-- everywhere by convention.
--
-- Result: status "pass" | "fail" | "invalid" (nothing compared, an oracle that was not written or says nothing, memory that
-- could not be read), reason (nil for a pass), compared (finite pairs of out), failing (values of out outside tolerance),
-- lse_max_abs, max_logits_max_abs (where both sides have them); where compared > 0 mean_abs, max_abs, cos_diff, rel (norm of the
-- difference over the norm wanted); worst = { field, row, head, dim, got, want }, numbers or "NaN", "inf", "-inf".
function M.compare(got, want, opts)
  opts = args.options("parity.compare", opts, { "tolerance", "rows", "zero" })
  local limits = limits_of(opts.tolerance, 2)
  for _, side in ipairs { { "got", got }, { "want", want } } do
    args.table("parity.compare: " .. side[1], side[2])
    args.table(("parity.compare: %s.out"):format(side[1]), side[2].out)
  end
  local result = { status = "pass" }
  local worst, zero, empty
  for _, name in ipairs(FIELDS) do
    if got[name] and want[name] then
      local mine, theirs = read_sides(name, got[name], want[name], 2)
      if not mine then return { status = "invalid", compared = 0, reason = theirs } end
      local sums = compare_field(mine, theirs, limits[name])
      local status, reason, at = fault(mine, theirs, sums, limits[name], opts.rows)
      if status and (result.status == "pass" or status == "invalid" and result.status ~= "invalid") then
        result.status, result.reason, worst = status, reason, { mine, theirs, at, name }
      end
      if name == "out" then
        result.compared, result.failing = sums.count, sums.failing
        if sums.count > 0 then
          result.mean_abs, result.max_abs, result.cos_diff = sums.total / sums.count, sums.max, sums.cos_diff
          result.rel = math.sqrt(sums.squares) / math.max(math.sqrt(sums.want_squares), TINY)
          worst = worst or { mine, theirs, sums.max_at, name }
        end
        zero = sums.want_squares == 0
      else
        result[name .. "_max_abs"] = math.max(sums.max, 0)
        if name == "lse" then empty = sums.infinite == theirs.numel end
      end
    end
  end
  if result.status == "pass" and result.compared == 0 then
    result.status, result.reason = "invalid", "nothing compared"
  elseif result.status == "pass" and zero and not (empty or opts.zero) then
    result.status, result.reason = "invalid", "the reference is all zero: agreement would say nothing"
  end
  if worst then
    local mine, theirs, at, name = unpack(worst)
    result.worst = coordinates(theirs, at, opts.rows)
    result.worst.field, result.worst.got, result.worst.want = name, value_at(mine, at), value_at(theirs, at)
  end
  return result
end

-- ---- Running and comparing

local function gcd(a, b)
  while b ~= 0 do a, b = b, a % b end
  return a
end

--- Which rows of s_q a sample of at most `count` rows is: first (from 1), step, how many. The last row is one of them, since what
-- is cut short is cut at the end, and the step shares no factor with `group` (default 1), so that samples fall on every place of
-- a packed group in turn.
function M.sample_rows(s_q, count, group)
  args.integer("parity.sample_rows: s_q", s_q, 1)
  args.integer("parity.sample_rows: count", count, 1)
  local step = math.ceil(s_q / count)
  while gcd(step, group or 1) ~= 1 do step = step + 1 end
  local rows = math.ceil(s_q / step)
  return s_q - (rows - 1) * step, step, rows
end

-- What a GPU's reference computes in the time in which a CPU's computes 1: single precision on thousands of lanes beside scalar
-- doubles on a few cores. Rough, and on the low side.
local REFERENCE_SPEED_GPU = 500

--- How many rows of the problem the reference computes in the time that it takes for `flops` on a CPU: nil when that is all.
function M.affordable_rows(problem, flops)
  local s_q = problem.s_q
  if problem.device.kind ~= "cpu" then flops = flops * REFERENCE_SPEED_GPU end
  if problem.useful_flops <= flops then return nil end
  return math.max(1, math.floor(s_q * flops / problem.useful_flops))
end

local TILE_ROWS = 64 -- rows of a packed tile, filled with floor(64 / h_q) queries

local ORACLES = { "reference", "padded" }
-- A path by name, or a provider.
local function check_path(what, path, names, level)
  if not providers.is(path) then args.enum(what, path, names, level + 1) end
end

-- Options that all functions on problems have, checked for the caller `level` frames up.
local function check_problem(what, problem, opts, known, level)
  args.table(what .. ": problem", problem, level + 1)
  opts = args.options(what, opts, known, level + 1)
  if opts.sample ~= nil then args.integer(what .. ": sample", opts.sample, 1, nil, level + 1) end
  if opts.against ~= nil then check_path(what .. ": against", opts.against, ORACLES, level + 1) end
  return opts
end

--- The oracle's answer for a problem: { out =, lse =, max_logits =, against =, rows = {first, step, count} or nil, problem =,
-- free = function } | nil, err. Options: against = "reference" (default; float32 out), "padded" or a provider (bf16); sample = at
-- most how many rows.
function M.expected(problem, opts)
  opts = check_problem("parity.expected", problem, opts, { "against", "sample" }, 2)
  local against = opts.against or ORACLES[1]
  local asked, rows, err = problem
  if opts.sample and opts.sample < problem.s_q then
    local group = math.max(1, math.floor(TILE_ROWS / problem.case.h_q))
    local first, step, count = M.sample_rows(problem.s_q, opts.sample, group)
    rows = { first = first, step = step, count = count }
    asked, err = problem:rows(first, step)
    if not asked then return nil, err end
  end
  local outputs
  outputs, err = asked:outputs { float32 = against == "reference" }
  local ran = outputs
  if outputs then ran, err = asked:run(against, outputs) end
  if not ran then
    if outputs then outputs:free() end
    return nil, ("%s did not run: %s"):format(providers.name_of(against), err)
  end
  local function free()
    outputs:free()
    if rows then asked:free() end
  end
  return {
    out = outputs.out, lse = outputs.lse, max_logits = outputs.max_logits, against = providers.name_of(against), rows = rows,
    problem = problem, free = free,
  }
end

-- What a path wrote into outputs, for the rows that the oracle answered.
local function rows_of(outputs, rows)
  if not rows then return outputs end
  local some = {}
  for _, name in ipairs(FIELDS) do
    if outputs[name] then some[name] = outputs[name]:slice(1, rows.first, outputs[name].shape[1], rows.step) end
  end
  return some
end

-- Does every head have a sink of +inf, so that out is 0 by convention?
local function all_silent(problem)
  if not problem.attn_sink then return false end
  for _, sink in ipairs(problem.attn_sink:to_table()) do
    if sink ~= math.huge then return false end
  end
  return true
end

--- What a path wrote into a problem's outputs against the oracle's answer of M.expected: a result of M.compare, for the rows that
-- the oracle answered. tolerance: in place of M.tolerance_of's.
function M.judge(problem, outputs, want, tolerance)
  local rows = want.rows
  local result = M.compare(rows_of(outputs, rows), want, {
    tolerance = tolerance or M.tolerance_of(problem), zero = all_silent(problem),
    rows = rows and { first = rows.first - 1, step = rows.step },
  })
  result.sampled, result.against = rows and rows.count, want.against
  return result
end

-- Where outputs that were compared in part only still hold the poison: the reason, or nil.
local function unwritten(outputs)
  for _, name in ipairs(FIELDS) do
    if outputs[name] then
      local array, err = read_array(name, outputs[name])
      if not array then return err end
      local at, count = find_unwritten(array)
      if at then return unwritten_text(array, at, count) end
    end
  end
end

--- As judge, for outputs that were poison before the run: fails also when anything around the outputs was written, or when a row
-- that was not compared still holds the poison. Options: tolerance, as judge's; canaries = false: what lies around the outputs is
-- not looked at.
function M.judge_whole(problem, outputs, want, opts)
  opts = args.options("parity.judge_whole", opts, { "tolerance", "canaries" })
  local result = M.judge(problem, outputs, want, opts.tolerance)
  local intact, touched = true, nil
  if opts.canaries ~= false then intact, touched = problem:intact(outputs) end
  local reason = not intact and touched or want.rows and unwritten(outputs)
  if reason and result.status == "pass" then result.status, result.reason = "fail", reason end
  return result
end

-- Run and compare: a result without path and against.
local function run_and_compare(problem, path, want, opts)
  local outputs, err = problem:outputs()
  if not outputs then return { status = "invalid", compared = 0, reason = err } end
  local name = providers.name_of(path)
  local how = { plan = opts.plan, group = opts.group, row_invariant = opts.row_invariant, costs = opts.costs }
  local work, why, failed = problem:run(path, outputs, how)
  if not work then
    outputs:free()
    return {
      status = failed and "error" or "invalid", refused = not failed or nil, compared = 0,
      reason = ("%s %s: %s"):format(name, failed and "failed" or "did not run", why),
    }
  end
  local result = M.judge_whole(problem, outputs, want, { tolerance = opts.tolerance, canaries = opts.canaries })
  local other = path ~= "auto" and work.path ~= name and ("asked for %s, %s ran"):format(name, tostring(work.path))
  if other and result.status == "pass" then result.status, result.reason = "fail", other end
  outputs:free()
  result.work = work
  return result
end

--- Run `path`, a path's name or a provider, on the problem into poisoned outputs and compare. Options: against = "reference"
-- (default), "padded" or a provider; sample = at most how many rows to compare (nil: all; that all were written is checked
-- anyway); want = what M.expected gave, to use it again; plan, group, row_invariant, costs as problem:call takes them;
-- tolerance as M.compare (default: M.tolerance_of). Result: that of M.compare with path, against, sampled = rows compared
-- (nil: all) and work, the counters of the run. It fails also when another path ran than was asked for, or when anything
-- outside the real heads' outputs was written (canaries = false: not looked at). A call that is refused is "invalid" with the
-- reason and refused = true; a provider that fails while it runs is "error". It runs in this process: one that crashes ends
-- it. fh.compare, sweeps and `fewhead parity` run providers in a process of their own.
function M.check(problem, path, opts)
  opts = check_problem("parity.check", problem, opts,
    { "against", "sample", "want", "plan", "group", "row_invariant", "costs", "tolerance", "canaries" }, 2)
  if opts.canaries ~= nil then args.boolean("parity.check: canaries", opts.canaries) end
  check_path("parity.check: path", path, paths.names(), 2)
  limits_of(opts.tolerance, 2)
  local want, err = opts.want
  if not want then want, err = M.expected(problem, { against = opts.against, sample = opts.sample }) end
  local result = want and run_and_compare(problem, path, want, opts) or { status = "invalid", compared = 0, reason = err }
  if want and not opts.want then want.free() end
  result.path, result.against = providers.name_of(path), want and want.against or providers.name_of(opts.against or ORACLES[1])
  return result
end

--- Three answers beside each other: { padded =, native =, between = } results (padded and `path` against the reference, `path`
-- against padded) and the verdict: "agree", "padded is wrong", "<path> is wrong", "reference is doubtful" (two agree with each
-- other but not with it), "no two agree" or "not decided" (something was invalid). Options: sample, group; padded = a provider
-- that stands in padded's place, FlashMLA for one, with its name in the verdict. path may be a provider too.
function M.three_way(problem, path, opts)
  opts = check_problem("parity.three_way", problem, opts, { "sample", "group", "padded" }, 2)
  check_path("parity.three_way: path", path, { "auto", unpack(paths.candidates()) }, 2)
  local base = opts.padded or "padded"
  check_path("parity.three_way: padded", base, { "padded" }, 2)
  local want = M.expected(problem, { sample = opts.sample })
  local padded = M.check(problem, base, { want = want, sample = opts.sample })
  local native = M.check(problem, path, { want = want, sample = opts.sample, group = opts.group })
  local between = M.check(problem, path, { against = base, sample = opts.sample, group = opts.group })
  if want then want.free() end
  local function decided(result) return result.status == "pass" or result.status == "fail" end
  local verdict
  if not (decided(padded) and decided(native)) then verdict = "not decided"
  elseif padded.status == "pass" and native.status == "pass" then verdict = "agree"
  elseif padded.status == "pass" then verdict = providers.name_of(path) .. " is wrong"
  elseif native.status == "pass" then verdict = providers.name_of(base) .. " is wrong"
  else verdict = between.status == "pass" and "reference is doubtful" or "no two agree" end
  return { padded = padded, native = native, between = between, verdict = verdict }
end

return M
