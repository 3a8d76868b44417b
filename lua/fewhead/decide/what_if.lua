--- What-if: what another threshold would cost, on the cells that a gate was fitted to or on traffic.
--
--     local gate = fh.gate.fit(fh.sweep.read "results/nvidia-h200/gate_sweep.jsonl")
--     print(gate:what_if { min_sq = 512 })
--     print(gate:what_if { min_sq = 512, traffic = fh.trace.chunks(trace) })
--
-- Loading this module gives gates the method what_if; the facade loads it with fh.gate.
local args = require "fewhead.base.arguments"
local gate_of = require "fewhead.decide.gate"
local score = require "fewhead.decide.score"
local tables = require "fewhead.base.table"

local M = {}

local WhatIf = { __name = "what-if" }
WhatIf.__index = WhatIf

-- Cells in which the answer changes things are listed up to this number.
local MOST_CHANGED = 8

-- The gates that stand beside the one in question: { name =, gate = }, each rule once.
local function compared(self, asked)
  local list, seen = {}, {}
  local function add(name, gate)
    local rule = gate.enabled and gate:threshold() or "never"
    if not seen[rule] then list[#list + 1] = { name = name, gate = gate } end
    seen[rule] = true
  end
  add(asked.enabled and ("what if: %s"):format(asked:threshold()) or "what if: never", asked)
  if not self.undecided then add(self.enabled and ("this gate: %s"):format(self:threshold()) or "this gate: never", self) end
  add("always (0)", gate_of.new { min_sq = 0 })
  add("never", gate_of.new { enabled = false })
  return list
end

-- ---- On the measured cells ---------------------------------------------------------------------------------------------------

local function taken(gate, curve, point)
  local native = gate:native(curve.heads, point.s_q)
  return (native and point.native or point.padded).time.median_us, native
end

-- The geometric mean over all cells of one gate's time over that of another.
local function ratio_on_cells(curves, gate, asked)
  local sum, n = 0, 0
  for _, curve in ipairs(curves) do
    for _, point in ipairs(curve.points) do
      sum, n = sum + math.log(taken(gate, curve, point) / taken(asked, curve, point)), n + 1
    end
  end
  return math.exp(sum / n)
end

-- Where two gates differ: { s_q =, where =, from =, to = paths, ratio = time then over time now }, the largest change first.
local function changes(curves, before, asked)
  local list = {}
  for _, curve in ipairs(curves) do
    for _, point in ipairs(curve.points) do
      local was_us, was = taken(before, curve, point)
      local is_us, is = taken(asked, curve, point)
      if was ~= is then
        local native = point.native.path
        list[#list + 1] = { s_q = point.s_q, where = ("%s, %s%s"):format(curve.pattern, curve.layout, curve.label),
          from = was and native or "padded", to = is and native or "padded", ratio = was_us / is_us }
      end
    end
  end
  table.sort(list, function(a, b)
    local x, y = math.abs(math.log(a.ratio)), math.abs(math.log(b.ratio))
    if x ~= y then return x > y end
    return a.s_q < b.s_q
  end)
  return list
end

local function on_cells(self, asked)
  local gates = compared(self, asked)
  local rows = score.cells(self.curves, gates)
  for i, entry in ipairs(gates) do rows[i].against = ratio_on_cells(self.curves, entry.gate, asked) end
  return { rows = rows, columns = score.cell_columns, changed = changes(self.curves, self, asked),
    head = ("%d measured cells, each counted once; times are medians"):format(rows[1].points) }
end

-- ---- On traffic --------------------------------------------------------------------------------------------------------------

local function on_traffic(self, asked, chunks)
  local gates = compared(self, asked)
  local rows, note = score.score(chunks, gates, self.cost)
  for _, row in ipairs(rows) do row.against = row.us / rows[1].us end
  return { rows = rows, columns = score.columns, changed = {}, note = note,
    head = ("%d chunks, %d rows; attention time of one layer by the gate's cost model"):format(chunks.chunks, chunks.rows) }
end

-- ---- The method --------------------------------------------------------------------------------------------------------------

--- What another threshold would cost: gate:what_if{ min_sq = rows, 0 = always | enabled = false for never; traffic = chunks of
-- fh.trace.chunks, default: the cells that the gate was fitted to, each counted once }. Returns { rows = one for the asked rule,
-- for this gate, for always and for never, columns = for fh.table, changed = cells in which this gate decides otherwise, note };
-- row.against = that rule's time over the asked one's: a geometric mean over cells, or the total over traffic. It prints as a
-- table, in which "25 % slower" means 1.25 of the other's time, "25 % faster" that the other takes 1.25 of this one's. Raises for
-- a gate without measurements.
function M.of(self, options)
  options = args.options("gate:what_if", options, { "min_sq", "enabled", "traffic" }, 2)
  if not self.curves then
    error("gate:what_if: got a gate without measurements, wanted one that fh.gate.fit made of a sweep", 2)
  end
  local traffic = options.traffic
  if options.enabled ~= nil then args.boolean("gate:what_if: enabled", options.enabled, 2) end
  if options.min_sq == nil and options.enabled ~= false then
    error("gate:what_if: min_sq: got nil, wanted rows of a chunk from which native is taken, or enabled = false", 2)
  end
  if options.min_sq ~= nil then args.integer("gate:what_if: min_sq", options.min_sq, 0, 2 ^ 53 - 1, 2) end
  if traffic ~= nil and (type(traffic) ~= "table" or type(traffic.counts) ~= "table" or not traffic.chunks) then
    error(("gate:what_if: traffic: got %s, wanted chunks of fh.trace.chunks"):format(args.show(traffic)), 2)
  end
  local asked = gate_of.new { min_sq = options.min_sq, enabled = options.enabled }
  local made = traffic and on_traffic(self, asked, traffic) or on_cells(self, asked)
  made.asked = asked
  return setmetatable(made, WhatIf)
end

-- "3.1 % faster" from that rule's time over the asked one's.
local function beside(ratio, row)
  if row.first then return "" end
  local change = 100 * (ratio - 1)
  if math.abs(change) < 0.05 then return "the same" end
  return change > 0 and ("%.1f %% faster"):format(change) or ("%.1f %% slower"):format(100 * (1 / ratio - 1))
end

function WhatIf:__tostring()
  local columns = { unpack(self.columns) }
  columns[#columns + 1] = { key = "against", title = "what-if beside it", format = beside }
  self.rows[1].first = true
  local lines = { self.head, tables.text(self.rows, columns) }
  local list = {}
  for i = 1, math.min(#self.changed, MOST_CHANGED) do list[i] = self.changed[i] end
  if #list > 0 then
    lines[#lines + 1] = ("decided otherwise in %d cell%s%s:"):format(#self.changed, #self.changed > 1 and "s" or "",
      #self.changed > #list and (", the largest %d of them"):format(#list) or "")
    lines[#lines + 1] = tables.text(list, {
      { key = "s_q" }, { key = "where", title = "lists", align = "left" }, { key = "from", title = "this gate", align = "left" },
      { key = "to", title = "what-if", align = "left" }, { key = "ratio", title = "speed-up", format = "%.2fx" },
    })
  end
  lines[#lines + 1] = self.note and tostring(self.note)
  return table.concat(lines, "\n")
end

gate_of.class.what_if = M.of

return M
