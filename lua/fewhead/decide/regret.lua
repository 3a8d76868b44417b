--- Regret: what FH_AUTO costs over the best path, cell by cell: as it was measured, and with costs that have not seen the cell.
--
--     local found = assert(fh.regret.of(records))            -- of results/nvidia-h200/packed.jsonl, for one
--     print(found)
--
-- The best path of a cell is the one with the least measured time, its plan included. Measured: the time of auto itself. Held
-- out: the cells are dealt into folds by their hashes; costs are fitted to the other folds (fewhead.decide.machine) and choose a
-- path for the cells of this one, whose own times say what that choice costs. auto decides group by group, these costs once a
-- cell.

local args = require "fewhead.base.arguments"
local hash = require "fewhead.base.hash"
local machine = require "fewhead.decide.machine"
local path_table = require "fewhead.device.path"
local records = require "fewhead.record.record"
local tables = require "fewhead.base.table"

local M = {}

-- The candidates with costs: auto takes no other path, and older records have no time of a newer candidate.
local CANDIDATES = path_table.costed()

local Regret = { __name = "regret" }
M.class = Regret -- a later room gives it print
Regret.__index = Regret

-- Cells that have a time for every candidate: { key, name, own = records by path, list }.
local function cells_of(list)
  local by_key, order, whole = {}, {}, {}
  for _, record in ipairs(list) do
    if records.is_own(record) and record.time and record.parity.status == "pass" then
      local key = records.key(record, { "path" })
      if not by_key[key] then
        by_key[key] = { key = key, own = {}, list = {}, name = ("%s, s_q %d, %d heads, d %d"):format(records.cell_name(record)
          or record.case.pattern, record.case.s_q, record.case.h_q, record.case.d_qk) }
        order[#order + 1] = by_key[key]
      end
      by_key[key].own[record.path], by_key[key].list[#by_key[key].list + 1] = record, record
    end
  end
  for _, cell in ipairs(order) do
    local all = true
    for _, path in ipairs(CANDIDATES) do all = all and cell.own[path] ~= nil end
    if all then whole[#whole + 1] = cell end
  end
  return whole
end

-- Microseconds of a path in a cell, its plan included.
local function us_of(cell, path)
  local time = cell.own[path].time
  return time.median_us + (path_table.get(path).wants_plan and time.plan_us or 0)
end

local function best_of(cell)
  local best
  for _, path in ipairs(CANDIDATES) do
    if not best or us_of(cell, path) < us_of(cell, best) then best = path end
  end
  return best
end

-- The path that a machine chooses for a cell; nil where it cannot say.
local function choice(made, cell)
  local shared = cell.own[CANDIDATES[1]].plan
  if not shared then return nil end
  local case = cell.own[CANDIDATES[1]].case
  return (made:predict({ rows = case.s_q, keys = shared.keys, group = shared.group, groups = shared.groups,
    entries = shared.entries }, case.h_q, case.d_qk))
end

local function add(sum, loss, name)
  sum.cells, sum.total = sum.cells + 1, sum.total + loss
  if loss > sum.worst then sum.worst, sum.at = loss, name end
end

--- The regret of auto in records that have times of all paths. folds: parts that the cells are dealt into (5). Returns { measured
-- =, held_out = { cells =, mean =, worst = shares over the best path, at = where it is worst, wrong = cells in which another
-- path than the best was chosen (held_out) } }, each nil without a cell: held_out needs the sizes of plans, which benches
-- record; prints as a table. nil, err where no cell has all paths.
function M.of(list, folds)
  args.table("regret.of: records", list)
  folds = args.integer("regret.of: folds", folds or 5, 2)
  local cells = cells_of(list)
  if #cells == 0 then return nil, ("regret: got %d records, wanted cells with a time of %s each"):format(#list,
    table.concat(CANDIDATES, ", ")) end
  local measured, held = { cells = 0, total = 0, worst = 0 }, { cells = 0, total = 0, worst = 0, wrong = 0 }
  for fold = 0, folds - 1 do
    local known, asked = {}, {}
    for _, cell in ipairs(cells) do
      local mine = hash.part(hash.text(cell.key), folds) == fold
      if mine then asked[#asked + 1] = cell end
      for _, record in ipairs(mine and {} or cell.list) do known[#known + 1] = record end
    end
    local made = #known > 0 and machine.from(known, "the other folds")
    for _, cell in ipairs(asked) do
      local best = best_of(cell)
      local least = us_of(cell, best)
      if cell.own.auto then add(measured, cell.own.auto.time.median_us / least - 1, cell.name) end
      local path = made and choice(made, cell)
      if path then
        add(held, us_of(cell, path) / least - 1, cell.name)
        if path ~= best then held.wrong = held.wrong + 1 end
      end
    end
  end
  local found = setmetatable({}, Regret)
  for name, sum in pairs { measured = measured, held_out = held } do
    if sum.cells > 0 then
      sum.mean, sum.total = sum.total / sum.cells, nil
      found[name] = sum
    end
  end
  return found
end

local function percent(share) return ("%.1f %%"):format(100 * share) end

function Regret:__tostring()
  local rows = {}
  for _, one in ipairs { { "auto, measured", self.measured }, { "costs that have not seen the cell", self.held_out } } do
    local sum = one[2]
    if sum then
      rows[#rows + 1] = { what = one[1], cells = sum.cells, wrong = sum.wrong, mean = sum.mean, worst = sum.worst, at = sum.at }
    end
  end
  return (tables.text(rows, {
    { key = "what", title = "regret of", align = "left" }, { key = "cells" }, { key = "wrong", title = "other path" },
    { key = "mean", format = percent }, { key = "worst", format = percent }, { key = "at", title = "there", align = "left" },
  }))
end

return M
