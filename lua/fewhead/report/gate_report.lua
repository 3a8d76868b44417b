-- gate_report: a measured gate as a person reads it: one text for the terminal, one for markdown, one picture.
--
--   local made = gate_report.make { sweep = sweep, gate = gate.fit(sweep), title = "v4.1-flash tp8" }
--   print(made:text())
--   assert(made:write("results/local/gate_sweep"))        -- .md and .svg

local args = require "fewhead.base.arguments"
local gate = require "fewhead.decide.gate"
local paths = require "fewhead.device.path"
local plot = require "fewhead.report.plot"
local file = require "fewhead.record.file"
local tables = require "fewhead.base.table"
local score = require "fewhead.decide.score"

local M = {}

local Report = {}
Report.__index = Report

-- s_q values as "64 .. 512" or "2048".
local function range(list)
  if #list == 1 then return tostring(list[1]) end
  return ("%d .. %d"):format(list[1], list[#list])
end

-- What the published gate does on one curve, in words.
local function published_text(curve)
  local unused, wrong, unused_best, wrong_worst = {}, {}, 0, 1
  for _, point in ipairs(curve.points) do
    local native = point.s_q >= gate.default_min_sq
    if point.verdict == "faster" and not native then
      unused[#unused + 1], unused_best = point.s_q, math.max(unused_best, point.ratio)
    elseif point.verdict == "slower" and native then
      wrong[#wrong + 1], wrong_worst = point.s_q, math.min(wrong_worst, point.ratio)
    end
  end
  local parts = {}
  if #unused > 0 then
    parts[#parts + 1] = ("pads at s_q %s, where native is up to %.2fx faster"):format(range(unused), unused_best)
  end
  if #wrong > 0 then
    parts[#parts + 1] = ("goes native at s_q %s, where that takes up to %.2fx as long"):format(range(wrong), 1 / wrong_worst)
  end
  return #parts > 0 and table.concat(parts, "; ") or "loses nothing at the s_q measured"
end

-- The lines about one fit.
local function gate_lines(fitted)
  local lines = {}
  for _, curve in ipairs(fitted.curves) do
    lines[#lines + 1] = tostring(curve)
    lines[#lines + 1] = ("the published gate (%d) on it: %s"):format(gate.default_min_sq, published_text(curve))
  end
  for _, note in ipairs(fitted.notes) do lines[#lines + 1] = "note: " .. note end
  for line in tostring(fitted.auto or ""):gmatch("[^\n]+") do lines[#lines + 1] = line end
  if fitted.undecided then
    lines[#lines + 1] = gate.UNDECIDED
  elseif fitted.enabled then
    lines[#lines + 1] = ("recommended MIN_SQ: %.0f, %s"):format(fitted.min_sq, fitted.min_sq == 0
      and "native is never slower at the s_q measured" or "the smallest measured s_q from which native is never slower")
  else
    lines[#lines + 1] = "recommended: native off"
  end
  return lines
end

local function head_lines(sweep)
  local run, lines = sweep.records[1].run or {}, {}
  for _, record in ipairs(sweep.records) do
    local case = record.case
    if record.time then
      lines[1] = ("%d of %s heads, d_qk %s, topk %s, %s caches"):format(case.h_q, tostring(case.h_pad), tostring(case.d_qk),
        tostring(case.topk), record.time.l2)
      break
    end
  end
  if run.device then
    lines[#lines + 1] = ("%s, %s; commit %s%s; %s"):format(run.device, require("fewhead.device.device").units(run),
      tostring(run.commit):sub(1, 12), run.dirty and " with changes" or "", run.date)
    local words = {}
    for i, word in ipairs(run.argv or {}) do
      words[i] = word:find("[^%w_./:,*=+-]") and "'" .. word:gsub("'", "'\\''") .. "'" or word
    end
    if #words > 0 then lines[#lines + 1] = "options: " .. table.concat(words, " ") end
  end
  local kernels = sweep:kernels()
  if kernels then lines[#lines + 1] = "kernels: " .. kernels end
  if sweep.interrupted then
    lines[#lines + 1] = ("interrupted: %d of %d cells measured"):format(sweep.cells, sweep.planned)
  end
  return lines
end

-- What the columns mean, and what packed's times leave out.
local function after_measured(sweep)
  local lines = { "ratio: padded over the better native path; waste: share of the executed FLOPs that multiplied padding" }
  local largest
  for _, record in ipairs(sweep.records) do
    if record.time and record.time.plan_us and (not largest or record.case.s_q > largest.case.s_q) then largest = record end
  end
  if largest then
    local plan = tables.time(largest.time.plan_us)
    lines[2] = ("packed runs on a plan built once an index list, which layers share; not in its times: %s at s_q %d"):format(plan,
      largest.case.s_q)
  end
  return lines
end

--- Put a report together. options: sweep; gate (from gate.fit) or gate_error (why there is none); title; min_sq (thresholds to
-- compare, a list); environment, a gate to compare with them; traffic = { trace =, chunks = } to score them on.
function M.make(options)
  options = args.options("gate_report", options,
    { "sweep", "gate", "gate_error", "title", "min_sq", "traffic", "environment" }, 2)
  local sweep, fitted = options.sweep, options.gate
  local self = setmetatable({ title = options.title, sweep = sweep, gate = fitted, sections = {} }, Report)
  local function section(part) self.sections[#self.sections + 1] = part end
  section { lines = head_lines(sweep) }
  local rows, columns = sweep:rows()
  section { title = "Measured", rows = rows, columns = columns, after = after_measured(sweep) }
  for _, record in ipairs(sweep:failures().records) do
    section { lines = { ("%s at s_q %s %s: %s: %s"):format(record.path, tostring(record.case.s_q), tostring(record.case.layout),
      record.parity.status, tostring(record.parity.reason)) } }
  end
  if not fitted then
    section { title = "Gate", lines = { options.gate_error } }
    return self
  end
  section { title = "Gate", lines = gate_lines(fitted), code = fitted:export_line() }
  local candidates = score.candidates(fitted, options.min_sq)
  if options.environment then
    local set = options.environment.enabled and options.environment:threshold() or "off"
    candidates[#candidates + 1] = { name = ("environment (%s)"):format(set), gate = options.environment }
  end
  section { title = "Gates on these cells", rows = score.cells(fitted.curves, candidates), columns = score.cell_columns,
    after = { "loss: time of the path taken over the better one, less 1; every cell counts once" } }
  if options.traffic then
    local scored, note = score.score(options.traffic.chunks, candidates, fitted.cost)
    section { title = "Gates on traffic", lines = { tostring(options.traffic.trace), tostring(options.traffic.chunks),
      ("times of one layer, from the %s %s cells: a chunk costs what the cell of its s_q costs; %s"):format(
        fitted.decides.pattern, fitted.decides.layout, tostring(note)) }, rows = scored, columns = score.columns }
  end
  section { title = "Fitted costs", code = tostring(fitted.cost) }
  return self
end

--- For a terminal.
function Report:text()
  local out = { self.title }
  for _, part in ipairs(self.sections) do
    if part.title then out[#out + 1] = "\n" .. part.title end
    for _, line in ipairs(part.lines or {}) do out[#out + 1] = line end
    if part.rows then out[#out + 1] = tables.text(part.rows, part.columns) end
    for _, line in ipairs(part.after or {}) do out[#out + 1] = line end
    if part.code then out[#out + 1] = part.code end
  end
  return table.concat(out, "\n")
end

--- For a file that people read in a browser; picture: the name of an SVG beside it.
function Report:markdown(picture)
  local out = { "# " .. self.title .. "\n" }
  for _, part in ipairs(self.sections) do
    if part.title then out[#out + 1] = "## " .. part.title .. "\n" end
    if part.lines then out[#out + 1] = "- " .. table.concat(part.lines, "\n- ") .. "\n" end
    if part.rows then out[#out + 1] = tables.markdown(part.rows, part.columns) end
    if part.after then out[#out + 1] = table.concat(part.after, "\n") .. "\n" end
    if part.code then out[#out + 1] = "```\n" .. part.code .. "\n```\n" end
    if part.title == "Measured" and picture then out[#out + 1] = ("![times and speed-up over s_q](%s)\n"):format(picture) end
  end
  return table.concat(out, "\n")
end

-- "100 ms" for an axis, where decimals say nothing.
local function short_time(us) return (tables.time(us):gsub("%.0+ ", " ")) end

--- The picture: time of each path and speed-up of the native ones over s_q, with spread bars, one dash a case, and the gate; nil
-- when nothing was measured.
function Report:svg()
  local curves = self.gate and self.gate.curves
  if not curves then return nil end
  local times, ratios, marks = {}, {}, {}
  local varies = {}
  for _, curve in ipairs(curves) do
    for _, key in ipairs { "pattern", "layout" } do varies[key] = varies[key] or curve[key] ~= curves[1][key] end
  end
  for c, curve in ipairs(curves) do
    local label = varies.pattern and ", " .. curve.pattern or ""
    if varies.layout then label = ("%s, %s layout"):format(label, curve.layout) end
    label = label .. curve.label
    local dash = plot.dashes[(c - 1) % #plot.dashes + 1]
    for p, path in ipairs(paths.candidates()) do
      local points, speedups = {}, {}
      for _, point in ipairs(curve.points) do
        local record = point[path]
        if record then
          local time = record.time
          points[#points + 1] = { x = point.s_q, y = time.median_us, lo = time.p05_us, hi = time.p95_us }
          local verdict = record.verdict
          if verdict then
            speedups[#speedups + 1] = { x = point.s_q, y = verdict.ratio, lo = verdict.lo, hi = verdict.hi }
          end
        end
      end
      local colour = plot.colours[(p - 1) % #plot.colours + 1]
      local function series(list) return { name = path .. label, colour = colour, dash = dash, points = list } end
      if #points > 0 then times[#times + 1] = series(points) end
      if #speedups > 0 then ratios[#ratios + 1] = series(speedups) end
    end
  end
  local highest = 0
  for _, curve in ipairs(curves) do highest = math.max(highest, curve.highest) end
  if self.gate.enabled then
    -- a logarithmic axis has no 0: "always" stands at the first s_q measured
    marks[1] = { x = math.max(self.gate.min_sq, self.gate.decides.lowest),
      label = ("MIN_SQ %.0f%s"):format(self.gate.min_sq, self.gate.min_sq == 0 and " (always)" or ""),
      colour = "#000000" }
  end
  if gate.default_min_sq <= highest then
    marks[#marks + 1] = { x = gate.default_min_sq, label = ("published %d"):format(gate.default_min_sq), colour = "#777777" }
  end
  local panels = { { y = { label = "time (median, p05 .. p95)", log = 10, format = short_time }, series = times } }
  if #ratios > 0 then
    panels[2] = { y = { label = "speed-up over padded", zero = true }, series = ratios,
      lines = { { y = 1, label = "as fast as padded" } } }
  end
  local head = head_lines(self.sweep)
  return plot.svg { title = self.title, subtitle = head[2], x = { label = "s_q, query rows of the chunk" },
    panels = panels, marks = marks }
end

--- Write <base>.md and, when something was measured, <base>.svg; each whole or not at all. true | nil, error.
function Report:write(base)
  local svg = self:svg()
  if svg then
    local ok, err = file.write(base .. ".svg", svg)
    if not ok then return nil, err end
  end
  return file.write(base .. ".md", self:markdown(svg and base:match("[^/]*$") .. ".svg"))
end

return M
