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
local json = require "fewhead.base.json"
local pattern = require "fewhead.case.pattern"
local preset = require "fewhead.case.preset"
local providers = require "fewhead.device.provider"

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
local function refused(options, paths, reason, run)
  local records = {}
  for i, path in ipairs(paths) do
    local case = {}
    for key, value in pairs(options) do case[key] = value end
    case.h_q, case.heads = case.h_q or case.heads, nil
    local provider, version = providers.provider_of(path)
    records[i] = { path = providers.name_of(path), provider = provider, provider_version = version, case = case, run = run,
      parity = { status = "invalid", against = "reference", compared = 0, reason = reason } }
  end
  return records
end

-- Makes and compares one cell. A list of records, or nil when it was interrupted within.
local function measure(options, paths, how)
  local ok, case, err = pcall(require("fewhead.case.case").new, options)
  if not ok then case, err = nil, tostring(case):gsub("^.-%.lua:%d+: ", "") end
  if not case then return refused(options, paths, err, how.run) end
  local result
  result, err = require("fewhead.measure.compare").compare(case, paths, how)
  case:free()
  if result then return result.records end
  if how.interrupted and how.interrupted() then return nil end
  return refused(options, paths, err, how.run)
end

local Sweep = { __name = "sweep" }
Sweep.__index = Sweep

local function new(records) return setmetatable({ records = records or {}, interrupted = false }, Sweep) end

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
-- Returns { records =, cells = how many were measured or refused, planned = how many there were to be, interrupted = boolean };
-- nil, err when the file cannot be written.
function M.run(options)
  local known = {}
  for _, list in ipairs { require("fewhead.case.case").options, OWN, COMPARE } do
    for _, key in ipairs(list) do known[#known + 1] = key end
  end
  args.options("sweep", args.table("sweep", options, 2), known, 2)
  local paths = options.paths or { "padded", "native" }
  local dev = device.check("sweep: device", options.device or device.default())
  local path_names = require("fewhead.measure.compare").expand("sweep: paths", paths, dev, 2)
  local axes, shared = axes_of(options, 2)
  check_patterns(options, axes, 2)
  local how = {}
  for _, list in ipairs { OWN, COMPARE } do
    for _, key in ipairs(list) do how[key], shared[key] = options[key], nil end
  end
  if options.indices and not options.pattern then shared.pattern = "file" end -- refused cells say so too
  if how.max_seconds ~= nil then args.number("sweep: max_seconds", how.max_seconds, 0, nil, 2) end
  local run = how.run or require("fewhead.record.run").header(dev, how.argv)
  local writer, err
  if how.out then
    writer, err = require("fewhead.report.report").writer(how.out)
    if not writer then return nil, err end
  end

  local sweep, cells = new(), product(axes, shared)
  sweep.cells, sweep.planned, sweep.run = 0, #cells, run
  local clock = require("fewhead.base.ffi").C.fh_time_ns
  local start = clock()
  local compare = { device = dev, run = run, interrupted = how.interrupted }
  for _, key in ipairs(COMPARE) do compare[key] = how[key] end
  for i, cell in ipairs(cells) do
    if how.interrupted and how.interrupted() then
      sweep.interrupted = true
      break
    end
    if how.on_cell then how.on_cell(i, #cells, cell) end
    if how.max_seconds then
      local left = how.max_seconds - tonumber(clock() - start) / 1e9
      local rows = 0
      for j = i, #cells do rows = rows + cells[j].s_q end
      compare.max_seconds = math.max(0, left) * (rows > 0 and cell.s_q / rows or 0)
    end
    local records = measure(cell, path_names, compare)
    if not records then
      sweep.interrupted = true
      break
    end
    sweep.cells = i
    for _, record in ipairs(records) do
      sweep.records[#sweep.records + 1] = record
      if writer then
        local ok
        ok, err = writer:add(json.encode(record) .. "\n")
        if not ok then return nil, err end
      end
      if how.on_record then how.on_record(record) end
    end
  end
  if writer and #sweep.records == 0 then
    writer:discard() -- interrupted within the first cell: what an earlier run left is worth more
  elseif writer then
    local ok
    ok, err = writer:commit()
    if not ok then return nil, err end
  end
  return sweep
end

-- ---- Reading back ----------------------------------------------------------------------------------------------------------

-- What a record must have for tables and fits; the reason why it has not, or nil.
local function damage(record)
  if type(record) ~= "table" then return "got " .. args.show(record) .. ", wanted a record" end
  if type(record.path) ~= "string" then return "path: got " .. args.show(record.path) .. ", wanted a string" end
  for _, part in ipairs { "case", "parity" } do
    if type(record[part]) ~= "table" then return ("%s: got %s, wanted a table"):format(part, args.show(record[part])) end
  end
  if record.run ~= nil and type(record.run) ~= "table" then
    return ("run: got %s, wanted a table"):format(args.show(record.run))
  end
  if type(record.parity.status) ~= "string" then
    return ("parity.status: got %s, wanted a string"):format(args.show(record.parity.status))
  end
  if record.time == nil then return nil end
  -- a provider need not tell what it executed, nor a GPU that shared the rows out itself
  local own = providers.is_own(record) and record.path ~= "auto"
  -- what a record with a time has: { part, its number fields }, all above 0 but for the work of lists without a valid key
  for _, wanted in ipairs {
    { "case", "s_q", "h_q" }, { "time", "median_us", "p05_us", "p95_us", "n" },
    { "work", own and "executed_flops" or "useful_flops" }, { "verdict", "ratio", "lo", "hi" },
  } do
    local name = wanted[1]
    local part = record[name]
    if name ~= "verdict" or part ~= nil then
      if type(part) ~= "table" then return ("%s: got %s, wanted a table"):format(name, args.show(part)) end
      for i = 2, #wanted do
        local value = part[wanted[i]]
        if type(value) ~= "number" or value < 0 or value == 0 and name ~= "work" then
          return ("%s.%s: got %s, wanted a number %s 0"):format(name, wanted[i], args.show(value), name == "work" and ">=" or ">")
        end
      end
    end
  end
end

--- A sweep from the JSONL file of an earlier one; nil, "file:line: reason" for a line that is no record, and nothing is half
-- read.
function M.read(file)
  args.string("sweep.read: file", file, 2)
  local handle, err = io.open(file, "rb")
  if not handle then return nil, err end
  local records, number = {}, 0
  for line in handle:lines() do
    number = number + 1
    if line:find("%S") then
      local record, reason = json.decode(line)
      if record ~= nil then reason = damage(record) end
      if reason then
        handle:close()
        return nil, ("%s:%d: %s"):format(file, number, reason)
      end
      records[#records + 1] = record
    end
  end
  handle:close()
  if #records == 0 then return nil, file .. ": no record in it" end
  return new(records)
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

local PATHS = { "padded", "gather", "packed" }

-- Records of one case side by side, in the order the cases came: { case =, padded =, gather =, .., providers = by name, list =
-- all records }; and the names of the providers among them.
local function cells_of(records)
  local order, by_key, names, seen = {}, {}, {}, {}
  for _, record in ipairs(records) do
    local key = json.encode(record.case) .. (record.time and record.time.l2 or "")
    local cell = by_key[key]
    if not cell then
      cell = { case = record.case, providers = {}, list = {} }
      by_key[key], order[#order + 1] = cell, cell
    end
    if providers.is_own(record) then cell[record.path] = record
    else
      cell.providers[record.path] = record
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

local function percent(share) return ("%.1f %%"):format(100 * share) end

--- One row a case and the columns for fh.report: s_q, the median of each path, of auto where it was measured and, by number,
-- of each provider, the ratio of padded to the better native path with its verdict, parity over all paths with the largest error,
-- and the waste, the share of the executed FLOPs that multiplied padding, of padded and of that native path.
function Sweep:rows()
  local report = require "fewhead.report.report"
  local rows, varies, first, with_auto = {}, {}, {}, nil -- a refused cell may not know all of its case
  local cells, names = cells_of(self.records)
  for i, cell in ipairs(cells) do
    local row = { parity = parity_text(cell) }
    for _, key in ipairs { "s_q", "h_q", "pattern", "layout" } do
      row[key] = cell.case[key]
      if first[key] == nil then first[key] = row[key] end
      varies[key] = varies[key] or row[key] ~= nil and row[key] ~= first[key]
    end
    local native
    for _, path in ipairs(PATHS) do
      local record = cell[path]
      if record and record.time then
        row[path] = record.time.median_us
        if path ~= "padded" and (not native or record.time.median_us < native.time.median_us) then native = record end
      end
      local error = record and record.parity.max_abs
      if error then row.max_abs = math.max(row.max_abs or 0, error) end
    end
    row.auto = cell.auto and cell.auto.time and cell.auto.time.median_us
    with_auto = with_auto or cell.auto
    for j, name in ipairs(names) do
      local record = cell.providers[name]
      row[j] = record and record.time and record.time.median_us
    end
    row.native = native and native.path
    if native and native.verdict then row.ratio, row.verdict = native.verdict.ratio, native.verdict.verdict end
    row.padded_waste = cell.padded and cell.padded.work and cell.padded.work.waste
    row.native_waste = native and native.work.waste
    rows[i] = row
  end
  local columns = {}
  for _, key in ipairs { "pattern", "layout", "h_q" } do
    if varies[key] then columns[#columns + 1] = { key = key, align = key ~= "h_q" and "left" or nil } end
  end
  columns[#columns + 1] = { key = "s_q" }
  for _, path in ipairs(PATHS) do columns[#columns + 1] = { key = path, format = report.time } end
  if with_auto then columns[#columns + 1] = { key = "auto", format = report.time } end
  for j, name in ipairs(names) do columns[#columns + 1] = { key = j, title = name, format = report.time } end
  for _, column in ipairs {
    { key = "ratio", format = "%.2fx" }, { key = "verdict", align = "left" }, { key = "native", title = "by", align = "left" },
    { key = "parity", align = "left" }, { key = "max_abs", title = "max error", format = "%.1e" },
    { key = "padded_waste", title = "waste padded", format = percent },
    { key = "native_waste", title = "waste native", format = percent },
  } do columns[#columns + 1] = column end
  return rows, columns
end

--- The table as text.
function Sweep:table()
  return (require("fewhead.report.report").table(self:rows()))
end

function Sweep:__tostring() return self:table() end

--- The records whose parity is not "pass".
function Sweep:failures()
  return self:filter(function(record) return record.parity.status ~= "pass" end)
end

-- `return M.run(...)` is a tail call: errors blame the caller, as for M.run itself.
return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
