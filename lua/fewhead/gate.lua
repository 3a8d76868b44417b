-- gate: the published rule that decides between padded and native heads, and the fit of its threshold to what was measured.
--
--   local gate = require "fewhead.gate"
--   print(gate.new { min_sq = 512 }:explain { s_q = 2048, heads = 8 })
--   print(gate.fit(fh.sweep { s_q = "64:2048:*2", heads = 8 }))
--
-- The rule and the reading of its two settings are the library's (fh_gate_*); this module wraps them.

local args = require "fewhead.args"
local F = require "fewhead.ffi"

local ffi, C = F.ffi, F.C

local M = {}

M.PREFILL = "VLLM_DSV41_FEWHEAD_PREFILL"
M.MIN_SQ = "VLLM_DSV41_FEWHEAD_MIN_SQ"

--- The published default threshold, rows of a chunk.
M.default_min_sq = tonumber(C.FH_GATE_MIN_SQ)

-- Rows a gate can ask for: whole numbers that a double holds.
local MOST_ROWS = 2 ^ 53 - 1
local MOST_HEADS = 2 ^ 31 - 1

local Gate = {}
Gate.__index = Gate
Gate.__name = "gate"

local function new(min_sq, enabled)
  local struct = ffi.new("fh_gate")
  struct.struct_size = ffi.sizeof("fh_gate")
  C.fh_gate_init(struct)
  struct.min_sq, struct.enabled = min_sq, enabled and 1 or 0
  return setmetatable({ struct = struct, min_sq = min_sq, enabled = enabled }, Gate)
end

--- A gate: native heads from min_sq rows up (default 2048; 0 = always), never when enabled is false. options.cost, from
-- fewhead.cost, lets explain() name times.
function M.new(options)
  options = args.options("gate.new", options, { "min_sq", "enabled", "cost" }, 2)
  local min_sq = args.integer("gate.new: min_sq", options.min_sq or M.default_min_sq, 0, MOST_ROWS, 2)
  if options.enabled ~= nil then args.boolean("gate.new: enabled", options.enabled, 2) end
  local gate = new(min_sq, options.enabled ~= false)
  gate.cost = options.cost
  return gate
end

-- Room for two lines of variable, value and what was wanted; the library cuts longer ones.
local WARNING_BYTES = 1024

local function read(parse, where)
  local struct, warning = ffi.new("fh_gate"), ffi.new("char[?]", WARNING_BYTES)
  struct.struct_size = ffi.sizeof("fh_gate")
  local ok, err = F.check(parse(struct, warning))
  if not ok then error(where .. ": " .. err, 3) end
  local text = ffi.string(warning)
  return new(tonumber(struct.min_sq), struct.enabled ~= 0), text ~= "" and text or nil
end

--- The gate that two setting texts mean, as vLLM spells them; nil or "" = default. Returns gate, warning: a text of one line for
-- every value that cannot be read (its default holds), or nil.
function M.parse(prefill, min_sq)
  if prefill ~= nil then args.string("gate.parse: prefill", prefill, 2) end
  if min_sq ~= nil then args.string("gate.parse: min_sq", min_sq, 2) end
  return read(function(struct, text) return C.fh_gate_parse(prefill, min_sq, struct, text, WARNING_BYTES) end, "gate.parse")
end

local warned = {}

--- The gate that the environment asks for. Returns gate, warning (or nil). With options.warn each line of the warning also goes
-- to standard error, once a process however often it is read.
function M.from_env(options)
  options = args.options("gate.from_env", options, { "warn" }, 2)
  local gate, warning = read(function(struct, text) return C.fh_gate_from_env(struct, text, WARNING_BYTES) end, "gate.from_env")
  for line in (options.warn and warning or ""):gmatch("[^\n]+") do
    if not warned[line] then
      warned[line] = true
      io.stderr:write("fewhead: ", line, "\n")
    end
  end
  return gate, warning
end

--- Heads the padded path computes for this many: 64 up to 64, 128 up to 128, 0 for any other number.
function M.padded_heads(heads)
  return C.fh_padded_heads(args.integer("gate.padded_heads: heads", heads, -MOST_HEADS, MOST_HEADS, 2))
end

--- true = native heads, false = padded. padded_heads: what the engine's kernel would compute, default gate.padded_heads(heads).
function Gate:native(heads, s_q, padded_heads)
  args.integer("gate:native: heads", heads, -MOST_HEADS, MOST_HEADS, 2)
  args.integer("gate:native: s_q", s_q, 0, MOST_ROWS, 2)
  padded_heads = args.integer("gate:native: padded_heads", padded_heads or C.fh_padded_heads(heads), 0, MOST_HEADS, 2)
  return C.fh_gate_native(self.struct, heads, padded_heads, s_q) == 1
end

local Explanation = {}
Explanation.__index = Explanation

--- Which path a chunk takes and why. query = { s_q =, heads =, padded_heads = }. Returns { path = "native" | "padded", reason =
-- in words, s_q =, heads =, padded_heads =, cost_us = { padded =, gather =, packed =, native = } when the gate has a cost model
-- whose case has this many heads }; it prints as one line.
function Gate:explain(query)
  query = args.options("gate:explain", query, { "s_q", "heads", "padded_heads" }, 2)
  local s_q = args.integer("gate:explain: s_q", query.s_q, 0, MOST_ROWS, 2)
  local heads = args.integer("gate:explain: heads", query.heads, -MOST_HEADS, MOST_HEADS, 2)
  local padded_heads = args.integer("gate:explain: padded_heads", query.padded_heads or C.fh_padded_heads(heads), 0, MOST_HEADS, 2)
  local native = C.fh_gate_native(self.struct, heads, padded_heads, s_q) == 1
  local reason
  if not self.enabled then
    reason = "the native path is off"
  elseif heads <= 0 then
    reason = ("%d local heads: nothing to run natively"):format(heads)
  elseif padded_heads == 0 then
    reason = ("%d local heads are more than the 128 a padded kernel takes"):format(heads)
  elseif heads >= padded_heads then
    reason = ("%d local heads fill the %d padded ones: no head is padding"):format(heads, padded_heads)
  elseif s_q < self.min_sq then
    reason = ("s_q %d < MIN_SQ %d"):format(s_q, self.min_sq)
  elseif self.min_sq == 0 then
    reason = ("MIN_SQ 0 takes every chunk, and %d of %d heads are real"):format(heads, padded_heads)
  else
    reason = ("s_q %d >= MIN_SQ %d, and %d of %d heads are real"):format(s_q, self.min_sq, heads, padded_heads)
  end
  local cost_us
  if self.cost and self.cost.heads == heads and s_q > 0 then cost_us = self.cost:all(s_q) end
  return setmetatable({ path = native and "native" or "padded", reason = reason, s_q = s_q, heads = heads,
    padded_heads = padded_heads, cost_us = cost_us }, Explanation)
end

function Explanation:__tostring()
  local text = ("%s: %s"):format(self.path, self.reason)
  if not self.cost_us then return text end
  local report = require "fewhead.report"
  local costs = {}
  for _, path in ipairs { "padded", "gather", "packed" } do
    if self.cost_us[path] then costs[#costs + 1] = ("%s %s"):format(path, report.time(self.cost_us[path])) end
  end
  return ("%s (expected: %s)"):format(text, table.concat(costs, ", "))
end

--- The shell line that sets this gate in an engine.
function Gate:export_line()
  if not self.enabled then return ("export %s=0"):format(M.PREFILL) end
  return ("export %s=%.0f"):format(M.MIN_SQ, self.min_sq)
end

-- ---- Tensor parallelism
-- --------------------------------------------------------------------------------------------------------

--- Heads of each rank. heads that do not divide by ranks are refused unless options.virtual: then every rank computes
-- ceil(heads / ranks) and zero heads are added at the end. Returns { n_local_heads = heads every rank computes, virtual = heads
-- added, ranks = { { first = from 0, real =, virtual = }, .. } }; the real heads of all ranks are exactly `heads`. nil, err when
-- refused.
function M.tp(heads, ranks, options)
  args.integer("gate.tp: heads", heads, 1, MOST_HEADS, 2)
  args.integer("gate.tp: ranks", ranks, 1, MOST_HEADS, 2)
  options = args.options("gate.tp", options, { "virtual" }, 2)
  if options.virtual ~= nil then args.boolean("gate.tp: virtual", options.virtual, 2) end
  local each, added = ffi.new("int64_t[1]"), ffi.new("int64_t[1]")
  local ok, err = F.check(C.fh_tp_heads(heads, ranks, options.virtual and 1 or 0, each, added))
  if not ok then return nil, err end
  local n_local = tonumber(each[0])
  local plan = { n_local_heads = n_local, virtual = tonumber(added[0]), ranks = {} }
  for rank = 0, ranks - 1 do
    local first = rank * n_local
    local real = math.max(0, math.min(n_local, heads - first))
    plan.ranks[rank + 1] = { first = first, real = real, virtual = n_local - real }
  end
  return plan
end

-- ---- Fit
-- -----------------------------------------------------------------------------------------------------------------------

-- The fields of a record's case that vary along one curve; everything else must be equal within it.
local ALONG = { s_q = true, s_kv = true, seed = true, requests = true, prior = true }

local function curve_key(record)
  local parts = {}
  for key, value in pairs(record.case) do
    if not ALONG[key] and type(value) ~= "table" then parts[#parts + 1] = key .. "=" .. tostring(value) end
  end
  table.sort(parts)
  return table.concat(parts, " ")
end

-- The records that can be fitted, as curves { name =, points = { { s_q =, padded = record, native = record }, .. by s_q } }, and
-- the number of records left out because they were not measured or not right.
local function curves_of(records, wanted)
  local by_key, list, left_out = {}, {}, 0
  for _, record in ipairs(records) do
    local case = record.case
    if (wanted.layout and case.layout ~= wanted.layout) or (wanted.pattern and case.pattern ~= wanted.pattern)
      or (wanted.heads and case.h_q ~= wanted.heads) or (wanted.l2 and record.time and record.time.l2 ~= wanted.l2) then
      -- asked for others
    elseif not record.time or record.parity.status ~= "pass" then
      left_out = left_out + 1
    else
      local key = curve_key(record) .. " l2=" .. tostring(record.time.l2)
      local curve = by_key[key]
      if not curve then
        curve = { at = {}, points = {}, heads = case.h_q, layout = case.layout, pattern = case.pattern, l2 = record.time.l2,
          h_pad = case.h_pad }
        by_key[key] = curve
        list[#list + 1] = curve
      end
      local point = curve.at[case.s_q]
      if not point then
        point = { s_q = case.s_q }
        curve.at[case.s_q] = point
        curve.points[#curve.points + 1] = point
      end
      if record.path == "padded" then
        point.padded = record
      elseif wanted.native == record.path or (wanted.native == "best" and (record.path == "gather" or record.path == "packed")) then
        if not point.native or record.time.median_us < point.native.time.median_us then point.native = record end
      end
    end
  end
  local whole = {}
  for _, curve in ipairs(list) do
    local points = {}
    for _, point in ipairs(curve.points) do
      if point.padded and point.native then points[#points + 1] = point end
    end
    table.sort(points, function(a, b) return a.s_q < b.s_q end)
    curve.points, curve.at = points, nil
    if #points > 0 then whole[#whole + 1] = curve end
  end
  return whole, left_out
end

-- Where the line through (log2 s_q, ln ratio) of two points meets ratio 1.
local function meet(a, ratio_a, b, ratio_b)
  local la, lb = math.log(ratio_a), math.log(ratio_b)
  local share = la / (la - lb)
  return a.s_q * (b.s_q / a.s_q) ^ math.max(0, math.min(1, share))
end

-- Fill in one curve's verdicts and its answer: min_sq (nil = never), crossover, notes.
local function fit_curve(curve)
  local timing = require "fewhead.timing"
  local points = curve.points
  local wins, last_slower, notes = 0, 0, {}
  for i, point in ipairs(points) do
    local interval
    point.verdict, point.ratio, interval = timing.verdict(point.native.time, point.padded.time, point.padded.noise)
    point.lo, point.hi = interval[1], interval[2]
    if point.verdict == "faster" then wins = wins + 1 end
    if point.verdict == "slower" then last_slower = i end
  end
  curve.lowest, curve.highest, curve.notes = points[1].s_q, points[#points].s_q, notes
  for i = 2, #points do
    if points[i].verdict == "slower" and points[i - 1].verdict == "faster" then
      notes[#notes + 1] = ("not monotone: native wins at s_q %d and loses at %d"):format(points[i - 1].s_q, points[i].s_q)
    end
  end
  if wins == 0 then
    curve.crossover = "never"
  elseif last_slower == 0 then
    curve.crossover, curve.min_sq = "always", 0
  elseif last_slower == #points then
    curve.crossover = "never"
    notes[#notes + 1] = "native loses at the largest s_q measured, so no MIN_SQ keeps its wins without its losses"
  else
    local a, b = points[last_slower], points[last_slower + 1]
    curve.min_sq = b.s_q
    local crossover = { at = b.ratio > 1 and meet(a, a.ratio, b, b.ratio) or b.s_q }
    -- The optimistic end: back from b while the upper end of the interval still says native.
    crossover.lo = curve.lowest
    for i = last_slower, 1, -1 do
      if points[i].hi < 1 then
        crossover.lo = points[i + 1].hi > 1 and meet(points[i], points[i].hi, points[i + 1], points[i + 1].hi) or points[i + 1].s_q
        break
      end
      crossover.lo_open = i == 1 or nil
    end
    -- The pessimistic end: on from a until the lower end says native.
    crossover.hi, crossover.hi_open = curve.highest, true
    for i = last_slower + 1, #points do
      if points[i].lo >= 1 then
        crossover.hi, crossover.hi_open = meet(points[i - 1], math.min(1, points[i - 1].lo), points[i], points[i].lo), nil
        break
      end
    end
    curve.crossover = crossover
  end
  return curve
end

local function crossover_text(curve)
  local c = curve.crossover
  if c == "always" then return ("always: native is never slower from s_q %d to %d"):format(curve.lowest, curve.highest) end
  if c == "never" then return ("never: native has no lasting win from s_q %d to %d"):format(curve.lowest, curve.highest) end
  return ("native pays from s_q %.0f on (%s%.0f to %s%.0f)"):format(c.at, c.lo_open and "below " or "", c.lo,
    c.hi_open and "beyond " or "", c.hi)
end

--- Fit the threshold to a sweep or a list of its records: the smallest measured s_q from which native is never slower than padded
-- beyond noise, in every case the records hold (layouts, patterns: the most careful one decides).
-- options: heads, layout, pattern, l2 (use these records only), native = "best" (of gather and packed, the default), "gather" or
-- "packed".
-- Returns a gate with .crossover = { at =, lo =, hi = (s_q; lo_open, hi_open: the end lies outside what was measured) } |
-- "always" | "never", .curves (one a case, with .points: s_q, ratio, lo, hi, verdict), .notes, .cost (fewhead.cost of the
-- deciding case); or nil, err when the records hold no padded and native pair.
function M.fit(sweep, options)
  local records = args.table("gate.fit: records", sweep, 2).records or sweep
  options = args.options("gate.fit", options, { "heads", "layout", "pattern", "l2", "native" }, 2)
  local native = args.enum("gate.fit: native", options.native or "best", { "best", "gather", "packed" }, 2)
  local curves, left_out = curves_of(records, { heads = options.heads, layout = options.layout, pattern = options.pattern,
    l2 = options.l2, native = native })
  if #curves == 0 then
    return nil, ("gate.fit: no s_q has both padded and %s measured with parity passed (%d records, %d left out)"):format(
      native == "best" and "a native path" or native, #records, left_out)
  end
  local decides
  for _, curve in ipairs(curves) do
    if curve.heads ~= curves[1].heads then
      return nil, ("gate.fit: records of %d and %d heads: name one with heads ="):format(curves[1].heads, curve.heads)
    end
    fit_curve(curve)
    -- never (nil) over the largest threshold; between equals the first
    if not decides or (decides.min_sq and (not curve.min_sq or curve.min_sq > decides.min_sq)) then decides = curve end
  end
  local gate = new(decides.min_sq or M.default_min_sq, decides.min_sq ~= nil)
  gate.crossover, gate.curves, gate.decides, gate.notes = decides.crossover, curves, decides, {}
  for _, curve in ipairs(curves) do
    for _, note in ipairs(curve.notes) do
      gate.notes[#gate.notes + 1] = ("%s %s: %s"):format(curve.pattern, curve.layout, note)
    end
  end
  if left_out > 0 then
    gate.notes[#gate.notes + 1] = ("%d records without a time or with a failed parity check left out"):format(left_out)
  end
  gate.cost = require("fewhead.cost").fit(decides)
  return gate
end

function Gate:__tostring()
  if not self.curves then
    if not self.enabled then return "gate: off, always padded" end
    return self.min_sq == 0 and "gate: native at every s_q" or ("gate: native from s_q %.0f up"):format(self.min_sq)
  end
  local lines = {}
  for _, curve in ipairs(self.curves) do
    lines[#lines + 1] = ("%s %s (%s): %s"):format(curve.pattern, curve.layout, curve.l2 or "hot", crossover_text(curve))
  end
  for _, note in ipairs(self.notes) do lines[#lines + 1] = "note: " .. note end
  lines[#lines + 1] = self.enabled and ("recommended MIN_SQ: %.0f"):format(self.min_sq) or "recommended: native off"
  lines[#lines + 1] = self:export_line()
  return table.concat(lines, "\n")
end

return M
