--- Curve: padded against native over s_q for one case, and the s_q from which native pays.
--
--   local curves = require("fewhead.decide.curve").from(records)
--   for _, c in ipairs(curves) do print(c, c.min_sq) end     -- "csa vllm hot: native pays from s_q 181 on (160 to 205)"
--
-- The one question a gate asks of a measurement. Ratios are padded time over native time: above 1, native is faster.

local args = require "fewhead.base.arguments"
local cases = require "fewhead.case.case"
local json = require "fewhead.base.json"
local paths = require "fewhead.device.path"
local records = require "fewhead.record.record"

local M = {}

-- The paths that count as native: those that "auto" chooses among and that compute native heads.
local NATIVE = {}
for _, name in ipairs(paths.native()) do NATIVE[name] = true end

--- What may be asked for as native: "best" of them, or one.
-- @value natives
M.natives = { "best", unpack(paths.native()) }

-- ---- How sure a ratio is -----------------------------------------------------------------------------------------------------

-- Half the distance between the 5 % and 95 % quantiles of a normal distribution, in deviations; the deviation of a median of n
-- values is 1.2533 / sqrt(n) of theirs; 1.96 deviations make a 95 % interval. Used on logarithms, where timing noise is nearest
-- to normal.
local Q95, MEDIAN, CONFIDENCE = 1.6449, 1.2533, 1.96

local function log_deviation(time)
  return MEDIAN * math.log(time.p95_us / time.p05_us) / (2 * Q95) / math.sqrt(time.n)
end

-- ratio of padded's time to native's, its interval and verdict, for a point: what fh.compare found, sample by sample; from
-- records without it, medians and their spread. Faster or slower is beyond the noise floor of the comparison, where the records
-- have it.
local function judge(native, padded)
  local found = native.verdict
  if found and found.against == "padded" then return found.ratio, found.lo, found.hi, found.verdict end
  local ratio = padded.time.median_us / native.time.median_us
  local half = CONFIDENCE * math.sqrt(log_deviation(native.time) ^ 2 + log_deviation(padded.time) ^ 2)
  local lo, hi = ratio * math.exp(-half), ratio * math.exp(half)
  local beyond = 1 + math.max(native.time.noise_floor or 0, padded.time.noise_floor or 0)
  return ratio, lo, hi, lo > beyond and "faster" or hi < 1 / beyond and "slower" or "unclear"
end

-- Where an interval reaches no further than this from 1, either path will do and measuring longer changes nothing: an "unclear"
-- within it is a tie, one beyond it is no answer.
local TIE = 1.1

local function may_be_slower(verdict, lo) return verdict == "unclear" and lo < 1 / TIE end
local function may_be_faster(verdict, hi) return verdict == "unclear" and hi > TIE end

-- What auto took beside padded, and beside the best path there is, its plan included.
local function judge_auto(point)
  local best = math.huge
  for _, path in ipairs(paths.candidates()) do
    local time = point[path] and point[path].time
    if time then best = math.min(best, time.median_us + (time.plan_us or 0)) end
  end
  local ratio, lo, _, verdict = judge(point.auto, point.padded)
  if may_be_slower(verdict, lo) then verdict = "undecided" end
  return { ratio = ratio, verdict = verdict, loss = point.auto.time.median_us / best - 1 }
end

-- ---- Where it crosses --------------------------------------------------------------------------------------------------------

-- The s_q between points a and b at which `field` passes 1, on the line through (ln s_q, ln field); b's own where it does not.
local function meet(a, b, field)
  local la, lb = math.log(a[field]), math.log(b[field])
  if la >= 0 then return a.s_q end
  if lb <= 0 then return b.s_q end
  return a.s_q * (b.s_q / a.s_q) ^ (la / (la - lb))
end

-- The answer of a curve whose points have verdicts: min_sq (nil: native off, or not decided), crossover, notes.
local function answer(curve)
  local points = curve.points
  local wins, last, won = 0, 0, false -- last: the last point where native is slower; wins: those after it where it is faster
  curve.lowest, curve.highest, curve.notes = points[1].s_q, points[#points].s_q, {}
  local function note(text, ...) curve.notes[#curve.notes + 1] = text:format(...) end
  for i, point in ipairs(points) do
    if point.verdict == "faster" then wins = wins + 1 end
    if point.verdict == "slower" then
      if i > 1 and points[i - 1].verdict == "faster" then
        note("not monotone: native wins at s_q %d and loses at %d", points[i - 1].s_q, point.s_q)
      end
      if i == #points and won then
        note("native loses at the largest s_q measured: no MIN_SQ keeps its wins without its losses")
      end
      wins, last = 0, i
    end
    won = won or wins > 0
  end
  -- After the last loss, what may still be one stands against a threshold, and what may be a win against giving native up.
  local undecided = false
  for i = last + 1, #points do
    local point = points[i]
    if wins > 0 and may_be_slower(point.verdict, point.lo) or wins == 0 and may_be_faster(point.verdict, point.hi) then
      undecided = true
      note("unclear at s_q %d, %.2fx (%.2f to %.2f)", point.s_q, point.ratio, point.lo, point.hi)
    end
  end
  if undecided then
    curve.crossover = "undecided"
  elseif wins == 0 then
    curve.crossover = "never"
  elseif last == 0 then
    curve.crossover, curve.min_sq = "always", 0
  else
    curve.min_sq = points[last + 1].s_q
    local crossover = { at = meet(points[last], points[last + 1], "ratio") }
    local i = last -- the early end: as far back as the upper end of the interval still says native
    while i > 1 and points[i].hi >= 1 do i = i - 1 end
    crossover.lo, crossover.lo_open = meet(points[i], points[i + 1], "hi"), points[i].hi >= 1 or nil
    i = last + 1 -- the late end: the first point whose lower end says native
    while i < #points and points[i].lo < 1 do i = i + 1 end
    crossover.hi, crossover.hi_open = meet(points[i - 1], points[i], "lo"), points[i].lo < 1 or nil
    curve.crossover = crossover
  end
end

-- ---- Curves of records -------------------------------------------------------------------------------------------------------

local Curve = {}
Curve.__index = Curve
Curve.__name = "curve"

-- What is measured on one cell: all records that agree in everything but the path. { key =, case =, s_q =, l2 =, device =,
-- records = list, own = records of the library's paths by name }; in the order in which cells first appear. Second result: how
-- many records have no time, did not pass or are of lists without a valid key.
local function cells_of(list)
  local cells, by_key, left_out = {}, {}, 0
  for _, record in ipairs(list) do
    -- what multiplied nothing says nothing about what multiplying costs
    if not record.time or record.parity.status ~= "pass" or record.work.useful_flops == 0 then
      left_out = left_out + 1
    else
      local device = record.run and record.run.device
      local key = ("%s %s"):format(tostring(device), records.key(record, { "path" }))
      local cell = by_key[key]
      if not cell then
        cell = { record = record, case = record.case, s_q = record.case.s_q, l2 = record.time.l2, device = device, records = {},
          own = {} }
        by_key[key], cells[#cells + 1] = cell, cell
      end
      cell.records[#cell.records + 1] = record
      if records.is_own(record) then cell.own[record.path] = record end
    end
  end
  return cells, left_out
end

-- Fields of a case that follow from s_q, so that they vary within a curve: KV memory grows with a prompt and with the rows that
-- are taken from a file.
local function following(case)
  if case.prior ~= nil then return { "path", "s_q", "s_kv", "prior" } end
  return case.indices ~= nil and { "path", "s_q", "s_kv" } or { "path", "s_q" }
end

-- Lists of cells that differ in nothing but s_q and what follows from it. A prior that was left out shrinks as s_q grows; one
-- that was given stays. A cell may fit both; then it belongs to the list that holds the other one whole.
local function families_of(cells)
  local bases, order = {}, {}
  for _, cell in ipairs(cells) do
    local key = ("%s %s"):format(tostring(cell.device), records.key(cell.record, following(cell.case)))
    local base = bases[key] or { by_rule = {}, rules = {} }
    if not bases[key] then bases[key], order[#order + 1] = base, base end
    local rules = { "prior " .. json.encode(cell.case.prior == nil and json.null or cell.case.prior) }
    if cases.has_default_prior(cell.case) then table.insert(rules, 1, ("prompts of %d"):format(cases.prompt)) end
    for _, rule in ipairs(rules) do
      if not base.by_rule[rule] then base.by_rule[rule], base.rules[#base.rules + 1] = { rule = rule, holds = {} }, rule end
      local family = base.by_rule[rule]
      family[#family + 1], family.holds[cell] = cell, true
    end
  end
  local function held_by(family, other, later)
    if #other < #family or #other == #family and later then return false end
    for _, cell in ipairs(family) do
      if not other.holds[cell] then return false end
    end
    return true
  end
  local families = {}
  for _, base in ipairs(order) do
    for i, rule in ipairs(base.rules) do
      local held = false
      for k, other in ipairs(base.rules) do
        held = held or k ~= i and held_by(base.by_rule[rule], base.by_rule[other], k > i)
      end
      if not held then families[#families + 1] = base.by_rule[rule] end
    end
  end
  return families
end

-- A point of a cell, nil when it has no padded path or none that counts as native.
local function point_of(cell, wanted)
  local point = { s_q = cell.s_q }
  for name, record in pairs(cell.own) do
    point[name] = record
    local counts = NATIVE[name] and (wanted == "best" or wanted == name)
    if counts and (not point.native or record.time.median_us < point.native.time.median_us) then point.native = record end
  end
  if not (point.padded and point.native) then return nil end
  point.ratio, point.lo, point.hi, point.verdict = judge(point.native, point.padded)
  point.beside = point.auto and judge_auto(point)
  return point
end

-- Curves of one family: the first cell of each s_q, the second ones, .. A family has one cell of an s_q unless something that
-- follows from s_q was given.
local function add_curves(family, wanted, curves)
  local own, taken = {}, {}
  for _, cell in ipairs(family) do
    local nth = (taken[cell.s_q] or 0) + 1
    taken[cell.s_q] = nth
    local curve = own[nth]
    if not curve then
      local case = cell.case
      curve = setmetatable({ pattern = case.pattern, layout = case.layout, heads = case.h_q, l2 = cell.l2, device = cell.device,
        native = wanted, points = {}, records = {}, case = case, rule = family.rule, nth = nth, label = "" }, Curve)
      own[nth] = curve
    end
    for _, record in ipairs(cell.records) do curve.records[#curve.records + 1] = record end
    curve.points[#curve.points + 1] = point_of(cell, wanted)
  end
  for _, curve in ipairs(own) do
    table.sort(curve.points, function(a, b) return a.s_q < b.s_q end)
    if #curve.points > 0 then
      answer(curve)
      curves[#curves + 1] = curve
    end
  end
end

-- What tells a curve from the others of its pattern, layout and caches, field by field in words.
local function traits_of(curve)
  local traits = { prior = curve.rule, s_kv = curve.nth > 1 and "s_kv " .. tostring(curve.case.s_kv) or nil }
  local follows = { preset = true }
  for _, name in ipairs(following(curve.case)) do follows[name] = true end
  for name, value in pairs(curve.case) do
    local text = type(value) == "table" and json.encode(value) or tostring(value)
    if not follows[name] then traits[name] = name .. " " .. text end
  end
  return traits
end

-- Give curves that share pattern, layout and caches a label that says in what they differ: ", seed 1, prior 0".
local function label(curves)
  local groups = {}
  for _, curve in ipairs(curves) do
    local key = ("%s %s %s"):format(tostring(curve.pattern), tostring(curve.layout), tostring(curve.l2))
    groups[key] = groups[key] or {}
    table.insert(groups[key], curve)
  end
  for _, group in pairs(groups) do
    local names, differs, traits = {}, {}, {}
    for i, curve in ipairs(group) do
      traits[i] = traits_of(curve)
      for name in pairs(traits[i]) do names[name] = true end
    end
    for name in pairs(names) do
      for i = 2, #group do
        if traits[i][name] ~= traits[1][name] then differs[#differs + 1] = name break end
      end
    end
    table.sort(differs)
    for i, curve in ipairs(group) do
      for _, name in ipairs(differs) do
        if traits[i][name] then curve.label = ("%s, %s"):format(curve.label, traits[i][name]) end
      end
    end
  end
end

--- The curves that records hold, in the order they first appear. A curve holds cells that differ in s_q alone, and in what
-- follows from s_q: the KV rows, and a prior that was left out. s_q without both padded and a native path are left out, and so
-- are curves without a point. options.native: "best" of the native paths (the default), or one of them.
-- A curve: pattern, layout, label (in what it differs from other curves of that pattern and layout, or ""), heads, l2, device,
-- native (the option), case (of its first cell); points = { { s_q =, [path] = its record, native = the native record that counts,
-- ratio =, lo =, hi =, verdict =, and where auto was measured beside = { ratio =, verdict = to padded, loss = its time over that
-- of the best path and its plan, less 1 } }, .. } by rising s_q; lowest, highest s_q; crossover = { at =, lo =, hi = (s_q;
-- lo_open, hi_open: the end lies outside what was measured) } | "always" | "never" | "undecided", where an unclear point could
-- turn the answer; min_sq = the smallest measured s_q from which native is never slower, 0 for always, nil for never and
-- undecided; notes; records. Prints as one line.
-- Second result: how many records were left out because they have no time, their parity did not pass or no list had a valid key.
function M.from(list, options)
  args.table("curve.from: records", list, 2)
  options = args.options("curve.from", options, { "native" }, 2)
  local wanted = args.enum("curve.from: native", options.native or "best", M.natives, 2)
  local cells, left_out = cells_of(list)
  local curves = {}
  for _, family in ipairs(families_of(cells)) do add_curves(family, wanted, curves) end
  label(curves)
  return curves, left_out
end

local Auto = {}
Auto.__index = Auto
Auto.__name = "auto"

--- What FH_AUTO is worth in the cells of curves: { cells = where it was measured, slower = a list of those where it is slower
-- than padded, undecided = of those where it may be, mean =, worst = loss over the best path, at = where it is worst }; nil when
-- it was not measured. Prints as two or three lines.
function M.auto(curves)
  args.table("curve.auto: curves", curves, 2)
  local found = setmetatable({ cells = 0, slower = {}, undecided = {}, mean = 0, worst = 0 }, Auto)
  for _, curve in ipairs(curves) do
    for _, point in ipairs(curve.points) do
      local beside = point.beside
      if beside then
        local where = ("s_q %d, %s, %s%s"):format(point.s_q, curve.pattern, curve.layout, curve.label)
        found.cells, found.mean = found.cells + 1, found.mean + beside.loss
        if beside.loss > found.worst then found.worst, found.at = beside.loss, where end
        local list = found[beside.verdict] -- slower, undecided
        if list then list[#list + 1] = ("%s: %.2fx"):format(where, beside.ratio) end
      end
    end
  end
  if found.cells == 0 then return nil end
  found.mean = found.mean / found.cells
  return found
end

function Auto:__tostring()
  local first
  if #self.slower > 0 then
    first = ("auto is slower than padded in %d of %d cells (%s): there a gate is better"):format(#self.slower, self.cells,
      table.concat(self.slower, "; "))
  elseif #self.undecided == 0 then
    first = ("auto is nowhere slower than padded in %d cells, its plan included: with it no gate is needed"):format(self.cells)
  end
  if #self.undecided > 0 then
    first = ("%sauto beside padded is not decided in %d of %d cells (%s): measure longer (--seconds)"):format(
      first and first .. "\n" or "", #self.undecided, self.cells, table.concat(self.undecided, "; "))
  end
  return ("%s\nauto over the best path and its plan: %.1f %% on average, at most %.1f %%%s"):format(first, 100 * self.mean,
    100 * self.worst, self.at and (" (%s)"):format(self.at) or "")
end

function Curve:__tostring()
  local c = self.crossover
  local range = ("s_q %d to %d"):format(self.lowest, self.highest)
  local text
  if c == "always" then
    text = "always: native is never slower from " .. range
  elseif c == "never" then
    text = "never: native has no lasting win from " .. range
  elseif c == "undecided" then
    text = ("not decided from %s: measure longer (--seconds)"):format(range)
  else
    text = ("native pays from s_q %.0f on (%s%.0f to %s%.0f)"):format(c.at, c.lo_open and "below " or "", c.lo,
      c.hi_open and "beyond " or "", c.hi)
  end
  return ("%s %s %s%s: %s"):format(self.pattern, self.layout, self.l2, self.label, text)
end

return M
