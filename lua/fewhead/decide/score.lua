--- Score: what gates are worth on traffic: predicted attention time of its chunks, against the best choice chunk by chunk.
--
--   local score = require "fewhead.decide.score"
--   local rows, note = score.score(chunks, score.candidates(fitted), fitted.cost)
--   print(tables.text(rows, score.columns)); print(note)

local args = require "fewhead.base.arguments"
local gate = require "fewhead.decide.gate"

local M = {}

-- Thresholds worth a row in a comparison: always, the doublings up to the published default.
local THRESHOLDS = { 0, 64, 128, 256, 512, 1024, gate.default_min_sq }

-- Microseconds of FH_AUTO, its plan included, by the points of a curve: between two measured s_q linear, outside in proportion to
-- the better of padded and native. nil where it was not measured at two s_q.
local function auto_of(curve, cost)
  local points = {}
  for _, point in ipairs(curve and curve.points or {}) do
    if point.auto and point.auto.time then points[#points + 1] = { s_q = point.s_q, us = point.auto.time.median_us } end
  end
  if #points < 2 then return nil end
  local function best(s_q) return math.min(cost:at("padded", s_q), cost:at("native", s_q)) end
  return function(s_q)
    local first, last = points[1], points[#points]
    local nearest = s_q < first.s_q and first or s_q > last.s_q and last
    if nearest then return nearest.us * best(s_q) / best(nearest.s_q) end
    for i = 1, #points do
      local a, b = points[i - 1], points[i]
      if b.s_q == s_q then return b.us end
      if b.s_q > s_q then return a.us + (b.us - a.us) * (s_q - a.s_q) / (b.s_q - a.s_q) end
    end
  end
end

--- The gates of a comparison, as score() takes them: off, each of min_sq (a list; default: the thresholds above), `fitted` (a
-- gate from gate.fit; left out when nil or not decided), and where its curve has times of FH_AUTO, these in a gate's place.
function M.candidates(fitted, min_sq_list)
  local list = { { name = "off", gate = gate.new { enabled = false } } }
  for _, min_sq in ipairs(min_sq_list or THRESHOLDS) do
    local remark = min_sq == 0 and " (always)" or min_sq == gate.default_min_sq and " (published)" or ""
    list[#list + 1] = { name = min_sq .. remark, gate = gate.new { min_sq = min_sq } }
  end
  if fitted and not fitted.undecided then
    list[#list + 1] = { name = fitted.enabled and ("fitted (%.0f)"):format(fitted.min_sq) or "fitted (off)", gate = fitted }
  end
  local us_at = fitted and fitted.cost and auto_of(fitted.decides, fitted.cost)
  if us_at then list[#list + 1] = { name = "auto (measured)", us_at = us_at } end
  return list
end

local Note = {}
Note.__index = Note

--- What each gate costs on the chunks of trace.chunks. gates = { { name =, gate = }, .. }, with us_at = function(s_q) -> us in
-- place of a gate for what decides by itself; cost from fewhead.cost.
-- Returns one row a gate { name =, native_chunks =, native_rows = (shares, 0 .. 1), us = predicted attention time of one layer
-- over all chunks, best_us = with the cheaper path for every chunk, regret_us = us - best_us, regret = regret_us / best_us }, and
-- a note { outside = share of rows in chunks of an s_q that was not measured, lowest =, highest = }, printable.
-- A chunk is taken to cost what the measured case of its s_q costs, whatever requests it holds and however long their context is.
function M.score(chunks, gates, cost)
  args.table("score: chunks", chunks, 2)
  args.table("score: gates", gates, 2)
  args.table("score: cost", cost, 2)
  local lowest, highest = cost:range()
  local padded, native, best_us, outside = {}, {}, 0, 0
  for i, chunk in ipairs(chunks.counts) do
    padded[i], native[i] = cost:at("padded", chunk.s_q), cost:at("native", chunk.s_q)
    best_us = best_us + chunk.count * math.min(padded[i], native[i])
    if chunk.s_q < lowest or chunk.s_q > highest then outside = outside + chunk.count * chunk.s_q end
  end
  local rows = {}
  for g, entry in ipairs(gates) do
    local us, native_chunks, native_rows = 0, 0, 0
    for i, chunk in ipairs(chunks.counts) do
      if entry.us_at then
        us = us + chunk.count * entry.us_at(chunk.s_q)
      elseif entry.gate:native(cost.heads, chunk.s_q) then
        us = us + chunk.count * native[i]
        native_chunks, native_rows = native_chunks + chunk.count, native_rows + chunk.count * chunk.s_q
      else
        us = us + chunk.count * padded[i]
      end
    end
    rows[g] = {
      name = entry.name, native_chunks = entry.gate and native_chunks / chunks.chunks,
      native_rows = entry.gate and native_rows / chunks.rows,
      us = us, best_us = best_us, regret_us = us - best_us, regret = (us - best_us) / best_us,
    }
  end
  return rows, setmetatable({ outside = outside / chunks.rows, lowest = lowest, highest = highest }, Note)
end

function Note:__tostring()
  if self.outside == 0 then return ("every chunk lies within the measured s_q %d to %d"):format(self.lowest, self.highest) end
  return ("%.1f %% of the rows lie in chunks outside the measured s_q %d to %d: their times are modelled, not measured"):format(
    100 * self.outside, self.lowest, self.highest)
end

-- ---- On the measured cells themselves -----------------------------------------------------------------------------------------

--- What each gate of such a list makes of the points of curves (fh.curve), each counted once: { name =, native = points taken
-- natively, points = of how many, mean = loss, worst = largest loss, at = "s_q 64 vllm csa" }; loss = time of the path taken
-- over the better one - 1.
function M.cells(curves, gates)
  args.table("score.cells: curves", curves, 2)
  args.table("score.cells: gates", gates, 2)
  local rows, rules = {}, {}
  for _, entry in ipairs(gates) do
    if entry.gate then rules[#rules + 1] = entry end
  end
  for g, entry in ipairs(rules) do
    local row = { name = entry.name, native = 0, points = 0, mean = 0, worst = 0 }
    for _, curve in ipairs(curves) do
      for _, point in ipairs(curve.points) do
        local native, padded = point.native.time.median_us, point.padded.time.median_us
        local taken = padded
        if entry.gate:native(curve.heads, point.s_q) then
          row.native, taken = row.native + 1, native
        end
        local loss = taken / math.min(native, padded) - 1
        row.points, row.mean = row.points + 1, row.mean + loss
        if loss > row.worst then
          row.worst, row.at = loss, ("s_q %d, %s, %s%s"):format(point.s_q, curve.pattern, curve.layout, curve.label)
        end
      end
    end
    row.mean = row.mean / row.points
    rows[g] = row
  end
  return rows
end

local function percent(digits) return function(share) return ("%." .. digits .. "f %%"):format(100 * share) end end

-- One unit for a table: the largest in which the best time is 1 or more.
local function duration(us, row)
  if row.best_us >= 1e6 then return ("%.2f s"):format(us / 1e6) end
  if row.best_us >= 1e3 then return ("%.2f ms"):format(us / 1e3) end
  return ("%.1f us"):format(us)
end

--- Columns of cells()'s rows, for fewhead.base.table.
-- @value cell_columns
M.cell_columns = {
  { key = "name", title = "gate", align = "left" },
  { key = "native", title = "native at", format = function(n, row) return ("%d of %d"):format(n, row.points) end },
  { key = "mean", title = "mean loss", format = percent(1) },
  { key = "worst", title = "worst", format = percent(1) },
  { key = "at", title = "there", align = "left" },
}

--- Columns of score()'s rows.
-- @value columns
M.columns = {
  { key = "name", title = "gate", align = "left" },
  { key = "native_chunks", title = "native chunks", format = percent(1) },
  { key = "native_rows", title = "native rows", format = percent(1) },
  { key = "us", title = "time", format = duration },
  { key = "regret_us", title = "over the best", format = duration },
  { key = "regret", title = "regret", format = percent(2) },
}

return M
