--- Gate: the published rule that decides between padded and native heads, and the fit of its threshold to what was measured.
--
--   local gate = require "fewhead.decide.gate"
--   print(gate.new { min_sq = 512 }:explain { s_q = 2048, heads = 8 })
--   print(gate.fit(fh.sweep { s_q = "64:2048:*2", heads = 8 }))
--
-- The rule and the reading of its two settings are the library's (fh_gate_*); this module wraps them.

local args = require "fewhead.base.arguments"
local curves_of = require "fewhead.decide.curve"
local F = require "fewhead.base.ffi"

local ffi, C = F.ffi, F.C

local M = {}

M.PREFILL = "VLLM_DSV41_FEWHEAD_PREFILL"
M.MIN_SQ = "VLLM_DSV41_FEWHEAD_MIN_SQ"

--- The published default threshold, rows of a chunk.
M.default_min_sq = tonumber(C.FH_GATE_MIN_SQ)

--- What stands in place of a recommendation where noise hides it.
M.UNDECIDED = "not decided, measure longer (--seconds): no recommendation"

-- Rows a gate can ask for: whole numbers that a double holds.
local MOST_ROWS = 2 ^ 53 - 1
local MOST_HEADS = 2 ^ 31 - 1

local LINE_BYTES = 512 -- more than any line of fh_gate_explain

local Gate = {}
Gate.__index = Gate
Gate.__name = "gate"
M.class = Gate -- a later room gives gates further methods

-- A gate of the library's struct, which holds thresholds that no Lua number does: min_sq is then the nearest number.
local function of(struct)
  return setmetatable({ struct = struct, min_sq = tonumber(struct.min_sq), enabled = struct.enabled ~= 0 }, Gate)
end

local function new(min_sq, enabled)
  local struct = ffi.new("fh_gate")
  struct.struct_size = ffi.sizeof("fh_gate")
  C.fh_gate_init(struct, ffi.sizeof(struct))
  struct.min_sq, struct.enabled = min_sq, enabled and 1 or 0
  return of(struct)
end

--- The threshold in digits, exact up to 9223372036854775807.
function Gate:threshold() return (tostring(self.struct.min_sq):gsub("LL$", "")) end

--- A gate: native heads from min_sq rows up (default 2048; 0 = always), never when enabled is false. options.cost, from
-- fh.cost, lets explain() name times.
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
  return of(struct), text ~= "" and text or nil
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

--- Which path a chunk takes and why. query = { s_q =, heads = (default: those the gate was fitted to), padded_heads = }. Returns
-- { path = "native" | "padded", reason = in words, s_q =, heads =, padded_heads =, cost_us = { padded =, gather =, packed =,
-- native = } when the gate has a cost model whose case has this many heads, and with it auto = { path =, us =, why = in the
-- library's words }, what FH_AUTO would do instead (fh.cost) }; it prints as one line, and with auto as two.
function Gate:explain(query)
  query = args.options("gate:explain", query, { "s_q", "heads", "padded_heads" }, 2)
  local s_q = args.integer("gate:explain: s_q", query.s_q, 0, MOST_ROWS, 2)
  local heads = query.heads
  if heads == nil and self.cost then heads = self.cost.heads end
  args.integer("gate:explain: heads", heads, -MOST_HEADS, MOST_HEADS, 2)
  local padded_heads = query.padded_heads or C.fh_padded_heads(heads)
  args.integer("gate:explain: padded_heads", padded_heads, 0, MOST_HEADS, 2)
  local line = ffi.new("char[?]", LINE_BYTES)
  assert(F.check(C.fh_gate_explain(self.struct, heads, padded_heads, s_q, line, LINE_BYTES)))
  local path, reason = ffi.string(line):match("^(%a+): (.*)$")
  local cost_us, auto
  if self.cost and self.cost.heads == heads and s_q > 0 then
    local taken, us = self.cost:auto(s_q)
    cost_us, auto = self.cost:all(s_q), taken and { path = taken, us = us, why = self.cost:explain(s_q) }
  end
  return setmetatable({ path = path, reason = reason, s_q = s_q, heads = heads,
    padded_heads = padded_heads, cost_us = cost_us, auto = auto }, Explanation)
end

function Explanation:__tostring()
  local text = ("%s: %s"):format(self.path, self.reason)
  if not self.cost_us then return text end
  local tables = require "fewhead.base.table"
  local costs = {}
  for _, path in ipairs(require("fewhead.device.path").candidates()) do
    if self.cost_us[path] then costs[#costs + 1] = ("%s %s"):format(path, tables.time(self.cost_us[path])) end
  end
  local auto = self.auto and ("\nauto: %s"):format(self.auto.why) or ""
  return ("%s (expected: %s)%s"):format(text, table.concat(costs, ", "), auto)
end

--- The shell line that sets this gate in an engine; nil for a fit that did not come to an answer.
function Gate:export_line()
  if self.undecided then return nil end
  if not self.enabled then return ("export %s=0"):format(M.PREFILL) end
  return ("export %s=%s"):format(M.MIN_SQ, self:threshold())
end

-- ---- Tensor parallelism -------------------------------------------------------------------------------------------------

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

-- ---- Fit ----------------------------------------------------------------------------------------------------------------

-- How careful a curve's answer is: never stands whatever the others say, an open question before any threshold.
local function care(curve)
  return curve.crossover == "never" and math.huge or curve.crossover == "undecided" and MOST_ROWS or curve.min_sq
end

--- Fit the threshold to a sweep or a list of its records: the smallest measured s_q from which native is never slower than padded
-- beyond noise, in every case the records hold (layouts, patterns: the most careful one decides).
-- options.native: "best" (of the native paths, the default), or one of them.
-- Returns a gate with .curves (fh.curve, one a case), .decides (the curve that set the threshold), .crossover (its own),
-- .notes, .cost (fh.cost of that curve), and .auto where FH_AUTO was measured too (curve.auto); .undecided is true where
-- noise hides the answer: the gate is off and has no export line. Or nil, err when the records
-- hold no padded and native pair, or several head counts or devices.
function M.fit(sweep, options)
  local records = args.table("gate.fit: records", sweep, 2).records or sweep
  options = args.options("gate.fit", options, { "native" }, 2)
  local native = args.enum("gate.fit: native", options.native or "best", curves_of.natives, 2)
  local curves, left_out = curves_of.from(records, { native = native })
  if #curves == 0 then
    return nil, ("gate.fit: got %d records (%d without a time, parity or a valid key), wanted padded and %s of one s_q"):format(
      #records, left_out, native == "best" and "a native path" or native)
  end
  local decides, notes = curves[1], {}
  for _, curve in ipairs(curves) do
    for _, field in ipairs { "heads", "device" } do
      if curve[field] ~= curves[1][field] then
        return nil, ("gate.fit: got records of %s %s and %s, wanted one: filter the sweep"):format(field,
          tostring(curves[1][field]), tostring(curve[field]))
      end
    end
    if care(curve) > care(decides) then decides = curve end -- between equals the first stands
    for _, note in ipairs(curve.notes) do
      notes[#notes + 1] = ("%s %s%s: %s"):format(curve.pattern, curve.layout, curve.label, note)
    end
  end
  if left_out > 0 then
    notes[#notes + 1] = ("%d records left out: no time, no valid key, or parity did not pass"):format(left_out)
  end
  local gate = new(decides.min_sq or M.default_min_sq, decides.min_sq ~= nil)
  gate.curves, gate.decides, gate.crossover, gate.notes = curves, decides, decides.crossover, notes
  gate.undecided = decides.crossover == "undecided" or nil
  gate.cost = require("fewhead.decide.cost").fit(decides, records)
  gate.auto = curves_of.auto(curves)
  return gate
end

function Gate:__tostring()
  if not self.curves then
    if not self.enabled then return "gate: off, always padded" end
    return self.min_sq == 0 and "gate: native at every s_q" or ("gate: native from s_q %s up"):format(self:threshold())
  end
  local lines = {}
  for i, curve in ipairs(self.curves) do lines[i] = tostring(curve) end
  for _, note in ipairs(self.notes) do lines[#lines + 1] = "note: " .. note end
  lines[#lines + 1] = self.auto and tostring(self.auto)
  lines[#lines + 1] = self.undecided and M.UNDECIDED
    or self.enabled and ("recommended MIN_SQ: %s"):format(self:threshold()) or "recommended: native off"
  lines[#lines + 1] = self:export_line()
  return table.concat(lines, "\n")
end

return M
