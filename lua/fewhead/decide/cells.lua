--- Cells: what a sweep is to measure: the axes multiplied out, each cell named, its memory and work estimated. Opens no device.
--
--   local plan = require("fewhead.decide.cells").plan { s_q = "64:512:*2", heads = { 8, 16 } }
--   print(#plan.cells, plan.cells[1].config, plan.cells[1].bytes)
--
-- A cell's `config` is the hash of the case that its options make. Options in another order, "64.0" for 64 and a preset beside
-- the sizes that it stands for make the same case, so they make the same cell.

local args = require "fewhead.base.arguments"
local axis = require "fewhead.decide.axis"
local cases = require "fewhead.case.case"
local hash = require "fewhead.base.hash"
local pattern = require "fewhead.case.pattern"

local M = {}

-- The pattern of cells: what the axis says, else what fh.case takes.
local function pattern_of(cell, options)
  local preset = cell.preset or type(options.preset) == "string" and options.preset or nil
  return cell.pattern or cases.default_pattern(preset, options.indices)
end

-- The values of the axes that are not functions. Raises for what is no axis.
local function fixed_values(options, level)
  local fixed = {}
  for _, key in ipairs(axis.keys) do
    if options[key] ~= nil and type(options[key]) ~= "function" then
      fixed[key] = axis.values("sweep: " .. key, key, options[key], level + 1)
    end
  end
  return fixed
end

-- What the function of an axis returns for a cell, as values. A pattern that is a function is easily given in its place.
local function asked(key, f, cell)
  local hint = key == "pattern" and "; a pattern that is a function stands in braces: pattern = { f }" or ""
  local ok, given = pcall(f, cell)
  if not ok then error(("sweep: %s: the function raised %s%s"):format(key, tostring(given), hint), 0) end
  local good, values = pcall(axis.values, "sweep: " .. key, key, given, 1)
  if not good then error(tostring(values):gsub("^.-%.lua:%d+: ", "") .. hint, 0) end
  return values
end

-- Cells with the values of one more axis. A cell has no option that its pattern does not take.
local function longer_by(cells, key, fixed, options)
  local longer = {}
  for _, cell in ipairs(cells) do
    local fits = next(pattern.fitting(pattern_of(cell, options), { [key] = true })) ~= nil
    local values = fixed
    if fits and not fixed then values = asked(key, options[key], cell) end
    for _, value in ipairs(fits and values or { false }) do
      local copy = {}
      for k, v in pairs(cell) do copy[k] = v end
      if fits then copy[key] = value end
      longer[#longer + 1] = copy
    end
  end
  return longer
end

-- Refuse a pattern's option that none of the sweep's patterns takes, and a pattern without the option that it needs.
local function check_patterns(options, fixed, level)
  if type(options.pattern) == "function" or options.axes then return end -- each case says it
  local names, labels, seen = fixed.pattern or { pattern_of({}, options) }, {}, {}
  for i, name in ipairs(names) do
    labels[i] = pattern.label(name)
    if type(name) ~= "string" and seen[labels[i]] then
      error(('sweep: pattern: got two functions called %s, wanted { row = f, name = "mine" } with a name for each'):format(
        labels[i]), level + 1)
    end
    seen[labels[i]] = true
    local needed = pattern.needs(name)
    if needed and options[needed] == nil then
      error(("sweep: %s: got nil, wanted the file of pattern %s"):format(needed, name), level + 1)
    end
  end
  for _, key in ipairs(pattern.options) do
    local taken = options[key] == nil
    for _, name in ipairs(names) do taken = taken or pattern.takes(name, key) end
    if not taken then
      error(("sweep: %s: has no effect with pattern %s; patterns that take it: %s"):format(key, table.concat(labels, ", "),
        table.concat(pattern.taking(key), ", ")), level + 1)
    end
  end
end

-- Every combination of the axes of `options` with the cells of its space.
local function product(options, level)
  local fixed = fixed_values(options, level + 1)
  if options.heads ~= nil and options.h_q ~= nil then
    error("sweep: heads and h_q: got both, wanted one: two names of one axis", level + 1)
  end
  check_patterns(options, fixed, level + 1)
  local function multiplied(cells)
    for _, key in ipairs(axis.keys) do
      if options[key] ~= nil then cells = longer_by(cells, key, fixed[key], options) end
    end
    return cells
  end
  local cells
  if options.axes == nil then cells = multiplied { {} }
  elseif axis.is_space(options.axes) then cells = options.axes:cells(nil, multiplied)
  else error(("sweep: axes: got %s, wanted what fh.axis.grid and its like make"):format(args.show(options.axes)), level + 1) end
  for _, cell in ipairs(cells) do
    if cell.s_q == nil then error('sweep: s_q: got nil, wanted numbers, such as "64:2048:*2"', level + 1) end
    if cell.indices and not cell.pattern then cell.pattern = "file" end -- refused cells say so too
  end
  return cells
end

-- ---- What a cell is ----------------------------------------------------------------------------------------------------------

local BF16, F32, I32 = 2, 4, 4
local PADS = { vllm = true, strided = true } -- layouts that hold h_pad heads of q and out

-- Bytes of the tensors of a case, about: inputs, one set of outputs, and the reference's answer.
local function bytes_of(case)
  local heads = PADS[case.layout] and case.h_pad or case.h_q
  local inputs = case.s_q * heads * case.d_qk * BF16 + case.s_kv * case.d_qk * BF16 + case.s_q * (case.topk + 1) * I32
  local outputs = case.s_q * heads * (case.d_v * BF16 + 2 * F32)
  return inputs + outputs + case.s_q * case.h_q * case.d_v * F32
end

-- FLOPs of one run over so many heads: QK and PV, a multiplication and an addition each.
local function flops_of(case, heads) return 2 * case.s_q * heads * case.topk * (case.d_qk + case.d_v) end

-- One text for options that make no case.
local function text_of(options)
  local keys = {}
  for key in pairs(options) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do
    local value = options[key]
    keys[i] = ("%s=%s"):format(key, key == "pattern" and type(value) ~= "string" and pattern.label(value)
      or args.show(value))
  end
  return "no case: " .. table.concat(keys, " ")
end

-- The cell of these options. files: the hashes of the files seen so far.
local function cell_of(options, files)
  local case, err = require("fewhead.case.case").try(options)
  if not case then return { options = options, text = text_of(options), reason = err, bytes = 0, flops = {} } end
  local text = case:id()
  if case.indices then -- another file of the same name is another case
    files[case.indices] = files[case.indices] or hash.file(case.indices)
    text = text .. " " .. files[case.indices]
  end
  return {
    options = options, text = text, bytes = bytes_of(case),
    flops = { padded = flops_of(case, case.h_pad), native = flops_of(case, case.h_q) },
  }
end

--- The plan of a sweep from its options: the axes of fh.axis, and `axes`, a space of cells. Returns { cells = list, duplicates =
-- how many cells were there before and are left out, config = one hash of all cells, whatever their order }. A cell is { options
-- = for fh.case, text = the case in a line, config = its hash, reason = why it is no case, or nil, bytes = of its tensors, about,
-- flops = { padded =, native = } of one run }. Wrong options raise; level as in error(), 1 = the caller of this.
function M.plan(options, level)
  level = level or 1
  local plan, seen, files, all = { cells = {}, duplicates = 0 }, {}, {}, {}
  for _, one in ipairs(product(options, level + 1)) do
    local cell = cell_of(one, files)
    if seen[cell.text] then
      plan.duplicates = plan.duplicates + 1
    else
      seen[cell.text], cell.config = true, hash.text(cell.text)
      cell.at = #plan.cells + 1
      plan.cells[cell.at], all[cell.at] = cell, cell.config
    end
  end
  table.sort(all)
  plan.config = hash.text(table.concat(all))
  return plan
end

--- A cell for options that a sweep finds out it needs while it runs; nil where the plan has it. plan: what M.plan gave.
function M.add(plan, options)
  local cell = cell_of(options, {})
  for _, one in ipairs(plan.cells) do
    if one.text == cell.text then return nil end
  end
  cell.config, cell.at = hash.text(cell.text), #plan.cells + 1
  plan.cells[cell.at] = cell
  return cell
end

--- The cells of part i of n, 1 .. n, by their hashes: every cell is in exactly one part, whatever the order and the other cells.
function M.shard(cells, i, n)
  local list = {}
  for _, cell in ipairs(cells) do
    if hash.part(cell.config, n) == i - 1 then list[#list + 1] = cell end
  end
  return list
end

-- ---- How long a cell takes ---------------------------------------------------------------------------------------------------

-- Runs of a path besides its samples: parity and the warm-up. A run under PRIME_SECONDS is repeated before each sample.
local OTHER_RUNS, PRIME_SECONDS = 2, 0.02
local FIXED_SECONDS = 0.05 -- a case, its reference answer for sampled rows, its calls

--- Seconds of a cell at least, about, set-up included, with so many samples of each path. rates: { padded =, native = FLOP/s,
-- bytes = bytes/s filled }, as fewhead.decide.rate measures them.
function M.seconds(cell, paths, samples, rates)
  if cell.reason then return 0 end
  local seconds, quickest = FIXED_SECONDS + cell.bytes / rates.bytes, math.huge
  for _, path in ipairs(paths) do
    local kind = path == "padded" and "padded" or "native"
    local one = cell.flops[kind] / rates[kind]
    quickest = math.min(quickest, one)
    seconds = seconds + one * (OTHER_RUNS + samples * (one < PRIME_SECONDS and 2 or 1))
  end
  return seconds + quickest * samples * (quickest < PRIME_SECONDS and 2 or 1) -- the arm that runs twice
end

return M
