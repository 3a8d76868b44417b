--- Diff: two sets of records held against each other, cell by cell: what got faster, slower, stayed, came, went and failed.
--
--     local d = assert(fh.diff(old, new))                     -- lists of records
--     print(d)                                                -- a table of what is not the same, and a summary line
--     print(d.counts.slower, d.compared)
--
-- A cell is one path in one case on one device with one set of settings. What happened to a cell is one of fh.diff.outcomes:
--   same       no difference is seen, and one of 20 % would be
--   faster, slower    NEW beside OLD: the medians differ by more than `least` (2 %) and by more than the noise
--   unclear    the noise hides what happened: too few samples, a time of 0 us, or intervals too wide
--   differs    a setting (device, threads, isa, seed, topk, ..) is not the same on both sides, so the times are not compared
--   failed     OLD passed parity and NEW did not;  mended: the other way round;  both failed: neither passed
--   gone, new  the cell is in OLD alone, in NEW alone
--
-- Noise: each record stores the 95 % interval of its median and the 5th and 95th percentile of its samples. The interval of the
-- change runs from NEW's lower end over OLD's upper end to the reverse. A change counts when this interval lies beyond 1 by more
-- than `least` and than the noise floors of both records (how far a path differed from itself), and each median lies outside the
-- other's percentiles: runs made at different times also differ by drift, which the interval of a median does not contain. Drift
-- that moves all arms of a case alike is named in the note.
local args = require "fewhead.base.arguments"
local axes = require "fewhead.record.axes"
local records = require "fewhead.record.record"
local stats = require "fewhead.measure.stats"
local tables = require "fewhead.base.table"

local M = {}

--- What may have happened to a cell, in the order in which summaries have it.
-- @value outcomes
M.outcomes = { "same", "faster", "slower", "unclear", "differs", "failed", "mended", "both failed", "gone", "new" }

--- A difference of the medians under this share counts as none, unless `least` says another.
M.least = 0.02

local VISIBLE = 0.2     -- "same" needs noise under which a change of this share would be seen
local CONFIDENCE = 0.95 -- that of the stored intervals; fewer samples give less
local FEWEST = 0.9      -- an interval weaker than this (fewer than 5 samples) supports no verdict

local Diff = { __name = "diff" }
Diff.__index = Diff
M.class = Diff -- fewhead.report.result gives it print and save

-- ---- One cell ---------------------------------------------------------------------------------------------------------------

local function interval(time)
  return time.median_lo_us or time.p05_us, time.median_hi_us or time.p95_us
end

local function is_weak(time)
  local _, reached = stats.median_rank(time.n, CONFIDENCE)
  return reached < FEWEST
end

-- Whether both are the same measurement: a file beside itself.
local function is_itself(old, new)
  return old.run and new.run and old.run.id == new.run.id and old.time.median_us == new.time.median_us
    and old.time.n == new.time.n
end

-- What two records with times say: outcome, change = NEW over OLD, its interval lo, hi (nil where there is none), a note.
local function judge(old, new, least)
  local a, b = old.time, new.time
  if a.median_us == 0 or b.median_us == 0 then return "unclear", nil, nil, nil, "a time of 0 us" end
  local change = b.median_us / a.median_us
  if is_itself(old, new) then return "same", change, 1, 1, "the same measurement" end
  if is_weak(a) or is_weak(b) then
    return "unclear", change, nil, nil, ("samples: %d and %d, too few"):format(a.n, b.n)
  end
  local a_lo, a_hi = interval(a)
  local b_lo, b_hi = interval(b)
  if a_lo == 0 or b_lo == 0 then return "unclear", change, nil, nil, "a time of 0 us" end
  local lo, hi = b_lo / a_hi, b_hi / a_lo
  local floor = math.max(least, a.noise_floor or 0, b.noise_floor or 0) -- less than a path differed from itself shows nothing
  local outcome = lo > 1 + floor and "slower" or hi < 1 / (1 + floor) and "faster" or nil
  if outcome then
    local apart = outcome == "slower" and b.median_us > a.p95_us and a.median_us < b.p05_us
      or outcome == "faster" and b.median_us < a.p05_us and a.median_us > b.p95_us
    if apart then return outcome, change, lo, hi end
    return "unclear", change, lo, hi, "within the spread of the samples"
  end
  if floor > VISIBLE then
    return "unclear", change, lo, hi, ("a path differed from itself by %.0f %%"):format(100 * floor)
  end
  if hi > 1 + VISIBLE or lo < 1 / (1 + VISIBLE) then
    return "unclear", change, lo, hi, ("noise hides changes up to %.0f %%"):format(100 * (math.sqrt(hi / lo) - 1))
  end
  local close = change <= 1 + least and change >= 1 / (1 + least)
  if close or lo <= 1 and hi >= 1 then return "same", change, lo, hi end
  return "unclear", change, lo, hi, "a change smaller than the noise can settle"
end

-- ---- Pairs ------------------------------------------------------------------------------------------------------------------

-- Settings of a case: lists drawn otherwise, or another call. The other fields of a case are axes.
local CASE_SETTINGS = {
  "seed", "topk", "index_topk", "window", "h_pad", "holes", "keep", "repeats", "values", "scale_q", "sink", "sm_scale", "lse",
  "max_logits", "invalid_rows", "boundaries", "lengths", "call", "l2",
}
-- Settings of a run that belong to a device: who compares across devices compares across them.
local WITH_DEVICE = { device = axes.run_settings }

-- What is the same about two records of one cell: everything but the fields in `out`.
local function key_of(r, out)
  local parts = {}
  for i, name in ipairs(axes.run_settings) do parts[i] = out[name] and "" or tostring(r.run and r.run[name]) end
  local leave_out = {}
  for name in pairs(out) do leave_out[#leave_out + 1] = name end
  return records.key(r, leave_out) .. table.concat(parts, "\n")
end

-- The newest record of each cell, in the order in which cells come, and how many cells stand there more than once.
local function newest(list, out)
  local order, by_key, double = {}, {}, {}
  for i, r in ipairs(list) do
    local key = key_of(r, out)
    local date = tostring(r.run and r.run.date)
    local cell = by_key[key]
    if not cell then
      cell = { key = key }
      by_key[key], order[#order + 1] = cell, cell
    else double[key] = true end
    if not cell.record or date >= cell.date then cell.record, cell.date, cell.at = r, date, i end
  end
  local n = 0
  for _ in pairs(double) do n = n + 1 end
  return order, n
end

-- "seed 0 -> 1, threads 10 -> 35": the settings in which two records differ.
local function differences(old, new, out)
  local a, b, names, parts = axes.settings(old), axes.settings(new), {}, {}
  for name, value in pairs(a) do
    if b[name] ~= nil and b[name] ~= value and not out[name] and name ~= "preset" then names[#names + 1] = name end
  end
  table.sort(names)
  for i, name in ipairs(names) do parts[i] = ("%s %s -> %s"):format(name, tostring(a[name]), tostring(b[name])) end
  return table.concat(parts, ", ")
end

-- Pairs of cells by key; what is left over on either side.
local function pair(olds, news, key)
  local by_key, pairs_, left_old, left_new = {}, {}, {}, {}
  for _, cell in ipairs(news) do
    local k = key(cell)
    by_key[k] = by_key[k] or {}
    table.insert(by_key[k], cell)
  end
  local taken = {}
  for _, cell in ipairs(olds) do
    local list = by_key[key(cell)]
    local other = list and table.remove(list, 1)
    if other then
      taken[other] = true
      pairs_[#pairs_ + 1] = { old = cell.record, new = other.record, at = cell.at }
    else left_old[#left_old + 1] = cell end
  end
  for _, cell in ipairs(news) do
    if not taken[cell] then left_new[#left_new + 1] = cell end
  end
  return pairs_, left_old, left_new
end

local function outcome_of(cell, least, out)
  local old, new = cell.old, cell.new
  if not new then return "gone" end
  if not old then return "new", nil, nil, nil, new.parity.status ~= "pass" and new.parity.status or nil end
  local passed, passes = old.parity.status == "pass", new.parity.status == "pass"
  if not passed and not passes then return "both failed", nil, nil, nil, new.parity.status end
  if not passes then
    return "failed", nil, nil, nil, ("%s%s"):format(new.parity.status, new.parity.reason and ": " .. new.parity.reason or "")
  end
  if not passed then return "mended", nil, nil, nil, "was " .. old.parity.status end
  local differs = differences(old, new, out)
  if differs ~= "" then return "differs", nil, nil, nil, differs end
  if not old.time and not new.time then return "same", nil, nil, nil, "passed parity; not timed" end
  if not old.time or not new.time then return "unclear", nil, nil, nil, "timed on one side only" end
  return judge(old, new, least)
end

-- ---- The whole --------------------------------------------------------------------------------------------------------------

-- Arms of one case took turns: when all of them changed by about the same factor, the machine changed, or all kernels did. The
-- outcome stands and says so.
local ALIKE = 1.25

local function note_alike(cells)
  local by_case = {}
  for _, cell in ipairs(cells) do
    if cell.change then
      local key = key_of(cell.new, { path = true })
      local group = by_case[key] or { n = 0, lo = math.huge, hi = 0, outcome = cell.outcome }
      by_case[key], group[#group + 1] = group, cell
      group.n, group.lo, group.hi = group.n + 1, math.min(group.lo, cell.change), math.max(group.hi, cell.change)
      if cell.outcome ~= group.outcome then group.outcome = nil end
    end
  end
  for _, group in pairs(by_case) do
    local moved = group.outcome == "faster" or group.outcome == "slower"
    if group.n > 1 and moved and group.hi / group.lo < ALIKE then
      for _, cell in ipairs(group) do cell.note = ("all %d arms alike: the machine's load?"):format(group.n) end
    end
  end
end

-- Fields that do not count, as a set: those of `across`, and what belongs to them.
local function across_set(list)
  local out = {}
  for _, name in ipairs(list) do
    if name == "heads" then name = "h_q" end
    if name == "path" then error("diff: across: got path, wanted a field of the case or the run", 3) end
    out[name] = true
    for _, each in ipairs(WITH_DEVICE[name] or {}) do out[each] = true end
  end
  return out
end

--- Hold records against each other. old, new: lists of records (fh.record, fh.source). options:
--   where    { field = "value,value" }: these cells alone (axes.filter)
--   across   a list of fields that may differ in cells that are compared: { "device" } holds devices against each other (with
--            their threads, instruction set and so on)
--   least    the smallest share that counts as a difference (0.02)
-- Returns { cells = { { outcome =, old = record or nil, new = record or nil, change = NEW's median over OLD's, lo =, hi =,
-- note = }, .. }, counts = by outcome, compared = how many are same, faster, slower or unclear, old =, new = the records,
-- doubles = { old =, new = } cells that stand there more than once, of which the newest run's counts }; nil and a message.
function M.run(old, new, options)
  args.table("diff: old", old)
  args.table("diff: new", new)
  local o = args.options("diff", options or {}, { "where", "across", "least" })
  local least = args.number("diff: least", args.given(o.least, M.least), 0, 10)
  local out = across_set(args.table("diff: across", o.across or {}))
  for _, side in ipairs { "old", "new" } do
    local list, err = axes.filter(side == "old" and old or new, args.table("diff: where", o.where or {}))
    if not list then return nil, "where: " .. err end
    if side == "old" then old = list else new = list end
  end
  local olds, old_doubles = newest(old, out)
  local news, new_doubles = newest(new, out)
  local self = setmetatable({ old = old, new = new, cells = {}, counts = {}, across = o.across or {}, least = least,
    doubles = { old = old_doubles, new = new_doubles } }, Diff)
  for _, outcome in ipairs(M.outcomes) do self.counts[outcome] = 0 end
  local function add(cells)
    for _, cell in ipairs(cells) do
      cell.outcome, cell.change, cell.lo, cell.hi, cell.note = outcome_of(cell, least, out)
      self.counts[cell.outcome] = self.counts[cell.outcome] + 1
      self.cells[#self.cells + 1] = cell
    end
  end
  local found, left_old, left_new = pair(olds, news, function(cell) return cell.key end)
  add(found)
  -- Cells that are the same but for settings: they are named with what differs.
  local loose = across_set(CASE_SETTINGS)
  for name in pairs(out) do loose[name] = true end
  for _, name in ipairs(axes.run_settings) do loose[name] = true end
  found, left_old, left_new = pair(left_old, left_new, function(cell) return key_of(cell.record, loose) end)
  add(found)
  local alone = {}
  for _, cell in ipairs(left_old) do alone[#alone + 1] = { old = cell.record } end
  for _, cell in ipairs(left_new) do alone[#alone + 1] = { new = cell.record } end
  add(alone)
  note_alike(self.cells)
  self.compared = self.counts.same + self.counts.faster + self.counts.slower + self.counts.unclear
  return self
end

--- What a list of outcomes finds: the number of cells. A cell that got slower, is gone or failed is no pass for "slower".
function Diff:failing(outcomes)
  local n = 0
  for _, outcome in ipairs(outcomes) do
    n = n + (self.counts[outcome] or error(("diff:failing: got %s, wanted one of %s"):format(args.show(outcome),
      table.concat(M.outcomes, ", ")), 2))
    if outcome == "slower" then n = n + self.counts.gone + self.counts.failed end
  end
  return n
end

--- One line: "428 cells: 420 same, 3 faster, 1 slower, 4 unclear; 1 gone"; "nothing compared: .." where no cell is on both sides.
function Diff:summary()
  local parts = {}
  for _, outcome in ipairs(M.outcomes) do
    local n = self.counts[outcome]
    if n > 0 then parts[#parts + 1] = ("%d %s"):format(n, outcome) end
  end
  local text = ("%d cells: %s"):format(#self.cells, table.concat(parts, ", "))
  if self.compared > 0 then return text end
  return #self.cells == 0 and "nothing compared: no cell" or "nothing compared: " .. text
end

-- The tags of a cell: one that is another on the two sides as "old -> new".
local function tags_of(cell)
  local old, new, found = cell.old and axes.tags(cell.old) or {}, cell.new and axes.tags(cell.new) or {}, {}
  for _, side in ipairs { old, new } do
    for name in pairs(side) do
      local a, b = old[name], new[name]
      found[name] = a == b and a or ("%s -> %s"):format(a or "-", b or "-")
      if not cell.old then found[name] = b elseif not cell.new then found[name] = a end
    end
  end
  return found
end

-- Cells in the order of a table: what is worst first, each outcome by its change.
local SHOWN_FIRST = { "failed", "gone", "slower", "faster", "differs", "unclear", "mended", "both failed", "new", "same" }
local PLACE = {}
for i, outcome in ipairs(SHOWN_FIRST) do PLACE[outcome] = i end

local function percent(change) return ("%+.1f %%"):format(100 * (change - 1)) end

--- Rows and columns for fh.table: a row for each cell that is not the same, all = true for every cell. Columns: what varies,
-- path, OLD's and NEW's median, the change in percent (negative: NEW takes less time) with its interval, the outcome and a note.
function Diff:rows(all)
  local cells, list = {}, {}
  for i, cell in ipairs(self.cells) do
    list[#list + 1] = cell.old
    list[#list + 1] = cell.new
    if all or cell.outcome ~= "same" then cells[#cells + 1] = { i = i, cell = cell } end
  end
  table.sort(cells, function(a, b)
    local i, j = PLACE[a.cell.outcome], PLACE[b.cell.outcome]
    if i ~= j then return i < j end
    local x, y = math.abs(math.log(a.cell.change or 1)), math.abs(math.log(b.cell.change or 1))
    if x ~= y then return x > y end
    return a.i < b.i
  end)
  local found, columns, rows = axes.of(list), {}, {}
  local skip = across_set(self.across)
  for _, name in ipairs(found.varying) do
    local align = type(list[1].case[name]) ~= "number" and "left" or nil
    if not skip[name] then columns[#columns + 1] = { key = name, align = align } end
  end
  columns[#columns + 1] = { key = "path", align = "left" }
  columns[#columns + 1] = { key = "old_us", title = "OLD", format = tables.time }
  columns[#columns + 1] = { key = "new_us", title = "NEW", format = tables.time }
  columns[#columns + 1] = { key = "change", format = percent }
  columns[#columns + 1] = { key = "interval", align = "left" }
  columns[#columns + 1] = { key = "outcome", align = "left" }
  columns[#columns + 1] = { key = "note", align = "left" }
  for i, entry in ipairs(cells) do
    local cell = entry.cell
    local record = cell.new or cell.old
    local row = axes.settings(record)
    for name, value in pairs(tags_of(cell)) do row[name] = value end
    row.path, row.change, row.outcome, row.note = record.path, cell.change, cell.outcome, cell.note or ""
    row.old_us = cell.old and cell.old.time and cell.old.time.median_us
    row.new_us = cell.new and cell.new.time and cell.new.time.median_us
    row.interval = cell.lo and ("%s .. %s"):format(percent(cell.lo), percent(cell.hi))
    rows[i] = row
  end
  return rows, columns, found:constant_text(skip)
end

-- "NVIDIA H200, commit 80de97a08343, 2026-11-30T04:53:12Z, 428 records" of one side.
local function side_text(list)
  local runs = require("fewhead.report.source").runs(list)
  local last = runs[#runs]
  if not last then return ("%d records"):format(#list) end
  local more = #runs > 1 and (", and %d earlier run%s"):format(#runs - 1, #runs > 2 and "s" or "") or ""
  return ("%s, commit %s%s, %s%s%s; %d records"):format(tostring(last.device), tostring(last.commit):sub(1, 12),
    last.dirty and " with changes" or "", tostring(last.date),
    last.driver and last.driver ~= "" and ", driver " .. last.driver or "", more, #list)
end

--- The whole comparison as text. make: fh.table's text or markdown; names = { OLD's, NEW's }; all: same cells too.
function Diff:text(o)
  o = args.options("diff:text", o or {}, { "make", "names", "all" })
  local make, lines = o.make or tables.text, {}
  local function side(title, i, list, doubles)
    local text = ("%s %s: %s"):format(title, o.names and o.names[i] or "", side_text(list)):gsub(" :", ":")
    if doubles > 0 then
      text = ("%s; cells that stand there more than once: %d, the newest counts"):format(text, doubles)
    end
    lines[#lines + 1] = text
  end
  side("OLD", 1, self.old, self.doubles.old)
  side("NEW", 2, self.new, self.doubles.new)
  local rows, columns, constant = self:rows(o.all)
  if constant ~= "" then lines[#lines + 1] = "all cells: " .. constant end
  if #self.across > 0 then lines[#lines + 1] = "compared across: " .. table.concat(self.across, ", ") end
  if #rows > 0 then
    lines[#lines + 1] = ""
    lines[#lines + 1] = (make(rows, columns):gsub("\n$", ""))
  end
  lines[#lines + 1] = ""
  lines[#lines + 1] = self:summary()
  return table.concat(lines, "\n")
end

function Diff:__tostring() return self:text() end

-- A tail call: errors blame the caller, as for M.run itself.
return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
