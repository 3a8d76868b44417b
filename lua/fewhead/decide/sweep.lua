-- sweep: many cases, one after the other: every combination of a few axes, each compared path by path, each a record a path.
--
--   local fh = require "fewhead"
--   local sweep = fh.sweep { s_q = "64:2048:*2", heads = 8, layout = "vllm,contiguous", out = "results/local/sweep.jsonl" }
--   print(sweep); print(fh.gate.fit(sweep))
--
-- A cell that the library refuses is a record too: its parity is "invalid" and says why. A single run is a sweep of one cell.

local args = require "fewhead.base.arguments"
local axis = require "fewhead.decide.axis"
local device = require "fewhead.device.device"
local path_table = require "fewhead.device.path"
local pattern = require "fewhead.case.pattern"
local preset = require "fewhead.case.preset"
local records = require "fewhead.record.record"
local tables = require "fewhead.base.table"

local M = {}

-- Axes: options of fh.case that take several values, the slowest-changing first. Sizes in the axis grammar; names with
-- commas.
local SIZES = { "s_q", "heads", "s_kv", "topk", "window", "index_topk", "ratio", "prior", "requests", "h_pad", "seed" }
local NAMES = { "preset", "pattern", "layout" }
local AXES = {
  "s_q", "preset", "heads", "pattern", "layout", "s_kv", "topk", "window", "index_topk", "ratio", "prior", "requests", "h_pad",
  "seed",
}

-- Options of the sweep itself, and those it hands on to fewhead.compare.
local OWN = { "paths", "device", "out", "on_record", "on_cell", "interrupted", "max_seconds", "argv", "run" }
local COMPARE = { "cold", "min_samples", "max_samples", "rel_ci", "sample", "group", "row_invariant" }

-- Sizes of a cell, as far as an axis can know them; the case says the rest.
local MOST = 2 ^ 31 - 1

-- ---- Cells -----------------------------------------------------------------------------------------------------------------

-- The values of an axis of names, each checked.
local function names_of(key, value, level)
  local what = "sweep: " .. key
  if key ~= "preset" then return axis.names(what, value, require("fewhead.case." .. key).names, level + 1) end
  local values = axis.names(what, value, nil, level + 1)
  for _, name in ipairs(values) do preset.check(what, name, level + 1) end
  return values
end

-- The axes of an option table as { { key =, values = }, .. }, and the rest of it, which every cell shares.
local function axes_of(options, level)
  local is_size, is_name, shared, axes = {}, {}, {}, {}
  for _, key in ipairs(SIZES) do is_size[key] = true end
  for _, key in ipairs(NAMES) do is_name[key] = true end
  for key, value in pairs(options) do
    if not is_size[key] and not is_name[key] then shared[key] = value end
  end
  for _, key in ipairs(AXES) do
    local value = options[key]
    if value ~= nil then
      local values = is_size[key] and axis.integers("sweep: " .. key, value, 0, MOST, level + 1)
        or names_of(key, value, level + 1)
      axes[#axes + 1] = { key = key, values = values }
    end
  end
  if options.s_q == nil then error('sweep: s_q: got nil, wanted numbers, such as "64:2048:*2"', level + 1) end
  return axes, shared
end

-- The pattern of cells: what the axis says, else what fh.case takes.
local function pattern_of(cell, shared) return cell.pattern or shared.pattern or (shared.indices and "file") or "csa" end

-- Every combination. A cell has no option that its pattern does not take.
local function product(axes, shared)
  local cells = { {} }
  for _, one in ipairs(axes) do
    local longer = {}
    for _, cell in ipairs(cells) do
      local fits = next(pattern.fitting(pattern_of(cell, shared), { [one.key] = true })) ~= nil
      for _, value in ipairs(fits and one.values or { false }) do
        local copy = {}
        for k, v in pairs(cell) do copy[k] = v end
        if fits then copy[one.key] = value end
        longer[#longer + 1] = copy
      end
    end
    cells = longer
  end
  for _, cell in ipairs(cells) do
    for k, v in pairs(pattern.fitting(pattern_of(cell, shared), shared)) do cell[k] = v end
  end
  return cells
end

-- Refuse a pattern's option that none of the sweep's patterns takes, and a pattern without the option that it needs.
local function check_patterns(options, axes, level)
  local names = { pattern_of({}, options) }
  for _, one in ipairs(axes) do
    if one.key == "pattern" then names = one.values end
  end
  for _, name in ipairs(names) do
    local needed = pattern.needs(name)
    if needed and options[needed] == nil then
      error(("sweep: %s: got nil, wanted the file of pattern %s"):format(needed, name), level + 1)
    end
  end
  for _, key in ipairs(pattern.options) do
    local taken = options[key] == nil
    for _, name in ipairs(names) do taken = taken or pattern.takes(name, key) end
    if not taken then
      error(("sweep: %s: has no effect with pattern %s; patterns that take it: %s"):format(key, table.concat(names, ", "),
        table.concat(pattern.taking(key), ", ")), level + 1)
    end
  end
end

-- ---- Running ---------------------------------------------------------------------------------------------------------------

-- The records of a cell that did not come to a comparison: one a path, with the reason.
local function refused(options, paths, reason, how)
  local list, case = {}, {}
  for key, value in pairs(options) do case[key] = value end
  case.h_q, case.heads = case.h_q or case.heads, nil
  for i, path in ipairs(paths) do
    list[i] = records.new {
      path = path, case = case, call = { group = how.group, row_invariant = how.row_invariant }, run = how.run,
      parity = { status = "invalid", against = "reference", compared = 0, reason = reason },
    }
  end
  return list
end

-- Makes and compares one cell. A list of records, or nil when it was interrupted within.
local function measure(options, paths, how)
  local ok, case, err = pcall(require("fewhead.case.case").new, options)
  if not ok then case, err = nil, tostring(case):gsub("^.-%.lua:%d+: ", "") end
  if not case then return refused(options, paths, err, how) end
  local result
  result, err = require("fewhead.measure.compare").compare(case, paths, how)
  case:free()
  if result then return result.records end
  if how.interrupted and how.interrupted() then return nil end
  return refused(options, paths, err, how)
end

local Sweep = { __name = "sweep" }
Sweep.__index = Sweep

local function new(list) return setmetatable({ records = list or {}, interrupted = false }, Sweep) end

-- What a sweep is to do: { cells =, paths =, own = options of its own, compare = options of fh.compare, run = the header }. Wrong
-- options raise; level as in error(), 1 = the caller of this.
local function task_of(options, level)
  local known = {}
  for _, list in ipairs { require("fewhead.case.case").options, OWN, COMPARE } do
    for _, key in ipairs(list) do known[#known + 1] = key end
  end
  args.options("sweep", args.table("sweep", options, level + 1), known, level + 1)
  local dev = device.check("sweep: device", options.device or device.default(), level + 1)
  local paths = require("fewhead.measure.compare").expand("sweep: paths", options.paths or { "padded", "native" }, dev, level + 1)
  local axes, shared = axes_of(options, level + 1)
  check_patterns(options, axes, level + 1)
  if options.max_seconds ~= nil then args.number("sweep: max_seconds", options.max_seconds, 0, nil, level + 1) end
  local own, compare = {}, {}
  for _, key in ipairs(OWN) do own[key], shared[key] = options[key], nil end
  for _, key in ipairs(COMPARE) do compare[key], shared[key] = options[key], nil end
  if options.indices and not options.pattern then shared.pattern = "file" end -- refused cells say so too
  local run = own.run or require("fewhead.record.run").header(dev, own.argv)
  compare.device, compare.run, compare.interrupted = dev, run, own.interrupted
  return { cells = product(axes, shared), paths = paths, own = own, compare = compare, run = run }
end

-- The seconds of those that are left that cell i gets: its share of the rows to come.
local function share_of(cells, i, left)
  local rows = 0
  for j = i, #cells do rows = rows + cells[j].s_q end
  return math.max(0, left) * (rows > 0 and cells[i].s_q / rows or 0)
end

-- Add the records of a cell to a sweep and, while it can be written, to the file.
local function take(sweep, measured, on_record)
  for _, record in ipairs(measured) do
    sweep.records[#sweep.records + 1] = record
    if sweep.writer then
      local ok
      ok, sweep.write_error = sweep.writer:add(record)
      if not ok then sweep.writer = nil end -- the file holds what came before; what is measured from here on is in the result
    end
    if on_record then on_record(record) end
  end
end

--- Run a sweep. Axes, each one value or several: s_q, heads, s_kv, topk, window, index_topk, ratio, prior, requests, h_pad, seed
-- in the axis grammar, preset, pattern, layout as names; every other option of fh.case holds for all cells. And
--   paths        as fh.compare takes them ({ "padded", "native" }), providers too
--   device       default device.default()
--   max_seconds  time to spend on the whole sweep; what is left is dealt over the cells to come in proportion to their s_q, and
--                each takes its fewest samples in any case. nil: each cell as long as compare takes
--   out          a JSONL file for the records, written line by line and put in place when the sweep ends
--   on_cell      function(number, of, options) before each cell;  on_record  function(record) after each record
--   interrupted  function() -> true to stop, asked between samples; the cell at hand is dropped, those before are kept
--   argv, run    the words of the command, or a whole header of fh.run, for the records
--   cold, min_samples, max_samples, rel_ci, sample, group, row_invariant   as fh.compare takes them
-- Returns { records =, cells = how many were measured or refused, planned = how many there were to be, interrupted = boolean,
-- write_error = why the file lacks records or is not there: a disk that was full, say }; nil, err when the file cannot be made.
function M.run(options)
  local task = task_of(options, 2)
  local cells, own, sweep = task.cells, task.own, new()
  sweep.cells, sweep.planned, sweep.run = 0, #cells, task.run
  if own.out then
    local writer, err = records.writer(own.out)
    if not writer then return nil, err end
    sweep.writer = writer
  end
  local clock = require("fewhead.base.ffi").C.fh_time_ns
  local start = clock()
  for i, cell in ipairs(cells) do
    local measured
    if not (own.interrupted and own.interrupted()) then
      if own.on_cell then own.on_cell(i, #cells, cell) end
      local left = own.max_seconds and own.max_seconds - tonumber(clock() - start) / 1e9
      task.compare.max_seconds = left and share_of(cells, i, left)
      measured = measure(cell, task.paths, task.compare)
    end
    if not measured then
      sweep.interrupted = true
      break
    end
    sweep.cells = i
    take(sweep, measured, own.on_record)
  end
  if sweep.writer then
    local _
    _, sweep.write_error = sweep.writer:commit() -- interrupted within the first cell it keeps what an earlier run left
    sweep.writer = nil
  end
  return sweep
end

-- ---- Reading back ----------------------------------------------------------------------------------------------------------

--- A sweep from the JSONL file of an earlier one; nil, "file:line: reason" for a line that is no record, and nothing is half
-- read.
function M.read(file)
  args.string("sweep.read: file", file, 2)
  local list, err = records.read(file)
  if not list then return nil, err end
  return new(list)
end

-- ---- Looking at it ---------------------------------------------------------------------------------------------------------

--- The records that match, as a sweep: fields of the case by name (s_q = 64, layout = "vllm", heads = 8), path, l2, status, or a
-- function(record) -> true.
function Sweep:filter(wanted)
  local keep = wanted
  if type(wanted) ~= "function" then
    args.table("sweep:filter", wanted, 2)
    keep = function(record)
      for key, value in pairs(wanted) do
        local own = record.case[key == "heads" and "h_q" or key]
        if key == "path" then own = record.path
        elseif key == "l2" then own = record.time and record.time.l2
        elseif key == "status" then own = record.parity.status end
        if own ~= value then return false end
      end
      return true
    end
  end
  local list = {}
  for _, record in ipairs(self.records) do
    if keep(record) then list[#list + 1] = record end
  end
  local some = new(list)
  some.interrupted, some.run = self.interrupted, self.run
  return some
end

-- Records of one cell side by side, in the order the cells came: { case =, own = of the library's paths by name, others = of
-- providers by name, list = all records }; and the names of the providers among them.
local function cells_of(list)
  local order, by_key, names, seen = {}, {}, {}, {}
  for _, record in ipairs(list) do
    local key = records.key(record, { "path" })
    local cell = by_key[key]
    if not cell then
      cell = { case = record.case, own = {}, others = {}, list = {} }
      by_key[key], order[#order + 1] = cell, cell
    end
    if records.is_own(record) then cell.own[record.path] = record
    else
      cell.others[record.path] = record
      if not seen[record.path] then seen[record.path], names[#names + 1] = true, record.path end
    end
    cell.list[#cell.list + 1] = record
  end
  return order, names
end

-- "pass", or the paths that did not and what became of them.
local function parity_text(cell)
  local bad = {}
  for _, record in ipairs(cell.list) do
    if record.parity.status ~= "pass" then bad[#bad + 1] = record.path .. " " .. record.parity.status end
  end
  return #bad == 0 and "pass" or table.concat(bad, ", ")
end

-- The kernels that ran in records, each once: "sm90 padded, sm90 gather"; nil where none is known.
local function kernels_text(list)
  local names, seen = {}, {}
  for _, record in ipairs(list) do
    local kernel = record.kernel
    if kernel and not seen[kernel] then names[#names + 1], seen[kernel] = kernel, true end
  end
  return #names > 0 and table.concat(names, ", ") or nil
end

local function percent(share) return ("%.1f %%"):format(100 * share) end

-- Fields of the case that have a column where they vary.
local SHOWN = { "pattern", "layout", "h_q" }

-- A row of a cell, without the fields of the case.
local function row_of(cell, names)
  local row, native = { parity = parity_text(cell), kernels = kernels_text(cell.list) }, nil
  for _, path in ipairs(path_table.names()) do
    local record = cell.own[path]
    if record and record.time then
      row[path] = record.time.median_us
      local quicker = not native or record.time.median_us < native.time.median_us
      if path_table.get(path).candidate and path_table.get(path).native and quicker then native = record end
    end
    local error = record and record.parity.max_abs
    if error then row.max_abs = math.max(row.max_abs or 0, error) end
  end
  for j, name in ipairs(names) do
    local record = cell.others[name]
    row[j] = record and record.time and record.time.median_us
  end
  row.native = native and native.path
  if native and native.verdict then row.ratio, row.verdict = native.verdict.ratio, native.verdict.verdict end
  row.padded_waste = cell.own.padded and cell.own.padded.work and cell.own.padded.work.waste
  row.native_waste = native and native.work.waste
  return row
end

-- Columns of rows in whose cells these fields of the case vary and these paths were measured.
local function columns_of(varies, measured, names)
  local columns = {}
  local function add(column) columns[#columns + 1] = column end
  for _, key in ipairs(SHOWN) do
    if varies[key] then add { key = key, align = key ~= "h_q" and "left" or nil } end
  end
  add { key = "s_q" }
  local auto
  for _, path in ipairs(path_table.names()) do
    if path_table.get(path).candidate then add { key = path, format = tables.time }
    elseif path == "auto" then auto = measured[path] end
  end
  if auto then add { key = "auto", format = tables.time } end
  for j, name in ipairs(names) do add { key = j, title = name, format = tables.time } end
  add { key = "ratio", format = "%.2fx" }
  add { key = "verdict", align = "left" }
  add { key = "native", title = "by", align = "left" }
  add { key = "parity", align = "left" }
  add { key = "max_abs", title = "max error", format = "%.1e" }
  add { key = "padded_waste", title = "waste padded", format = percent }
  add { key = "native_waste", title = "waste native", format = percent }
  if varies.kernels then add { key = "kernels", align = "left" } end
  return columns
end

--- One row a cell and the columns for fh.table: s_q, the median of each path that "auto" chooses among, of auto where it was
-- measured and, by number, of each provider, the ratio of padded to the better native path with its verdict, parity over all
-- paths with the largest error, the waste, the share of the executed FLOPs that multiplied padding, of padded and of that native
-- path, and the kernels that ran.
function Sweep:rows()
  local rows, varies, first, measured = {}, {}, {}, {} -- a refused cell may not know all of its case
  local cells, names = cells_of(self.records)
  for i, cell in ipairs(cells) do
    local row = row_of(cell, names)
    row.s_q = cell.case.s_q
    for _, key in ipairs(SHOWN) do row[key] = cell.case[key] end
    for _, key in ipairs { "kernels", unpack(SHOWN) } do
      if first[key] == nil then first[key] = row[key] end
      varies[key] = varies[key] or row[key] ~= nil and row[key] ~= first[key]
    end
    for path in pairs(cell.own) do measured[path] = true end
    rows[i] = row
  end
  return rows, columns_of(varies, measured, names)
end

--- The table as text.
function Sweep:table()
  return (tables.text(self:rows()))
end

--- The kernels that ran, each once, in one text; nil where none is known.
function Sweep:kernels() return (kernels_text(self.records)) end

function Sweep:__tostring()
  local kernels = self:kernels()
  return kernels and ("%s\nkernels: %s"):format(self:table(), kernels) or self:table()
end

--- The records whose parity is not "pass".
function Sweep:failures()
  return self:filter(function(record) return record.parity.status ~= "pass" end)
end

-- `return M.run(...)` is a tail call: errors blame the caller, as for M.run itself.
return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
