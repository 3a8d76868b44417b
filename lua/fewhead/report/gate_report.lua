--- Gate report: a measured gate as a person reads it: one text for the terminal, one for markdown, one picture.
--
--   local made = gate_report.make { sweep = sweep, gate = gate.fit(sweep), title = "v4.1-flash tp8" }
--   print(made:text())
--   assert(made:write("results/local/gate_sweep"))        -- .md and .svg

local args = require "fewhead.base.arguments"
local gate = require "fewhead.decide.gate"
local pictures = require "fewhead.report.pictures"
local file = require "fewhead.record.file"
local tables = require "fewhead.base.table"
local score = require "fewhead.decide.score"
local shell = require "fewhead.base.shell"

local M = {}

local Report = {}
Report.__index = Report
M.class = Report -- fewhead.report.result gives it print

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
    if #(run.argv or {}) > 0 then lines[#lines + 1] = "options: " .. shell.line(run.argv) end
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

--- Put a report together; also fh.gate_report { sweep = sweep }. options: sweep; gate (from gate.fit) or gate_error (why there is
-- none), else the gate is fitted here; title ("Gate sweep"); min_sq (thresholds to compare, a list); environment, a gate to
-- compare with them; traffic = { trace =, chunks = } to score them on. Returns an object that prints as text, with text(),
-- markdown(), svg(), write(base) and save(path).
function M.make(options)
  options = args.options("gate_report", options,
    { "sweep", "gate", "gate_error", "title", "min_sq", "traffic", "environment" }, 2)
  local sweep, fitted, gate_error = options.sweep, options.gate, options.gate_error
  if type(sweep) ~= "table" or type(sweep.records) ~= "table" or #sweep.records == 0 then
    error(("gate_report: sweep: got %s, wanted a sweep with records"):format(args.show(sweep)), 2)
  end
  if fitted == nil and gate_error == nil then fitted, gate_error = gate.fit(sweep) end
  local self = setmetatable({ title = options.title or "Gate sweep", sweep = sweep, gate = fitted, sections = {} }, Report)
  local function section(part) self.sections[#self.sections + 1] = part end
  section { lines = head_lines(sweep) }
  local rows, columns = sweep:rows()
  section { title = "Measured", rows = rows, columns = columns, after = after_measured(sweep) }
  for _, record in ipairs(sweep:failures().records) do
    section { lines = { ("%s at s_q %s %s: %s: %s"):format(record.path, tostring(record.case.s_q), tostring(record.case.layout),
      record.parity.status, tostring(record.parity.reason)) } }
  end
  if not fitted then
    section { title = "Gate", lines = { gate_error } }
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
    self.chunks = options.traffic.chunks
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

--- For a file that people read in a browser; picture, traffic: the names of SVG files beside it.
function Report:markdown(picture, traffic)
  local out = { "# " .. self.title .. "\n" }
  for _, part in ipairs(self.sections) do
    if part.title then out[#out + 1] = "## " .. part.title .. "\n" end
    if part.lines then out[#out + 1] = "- " .. table.concat(part.lines, "\n- ") .. "\n" end
    if part.rows then out[#out + 1] = tables.markdown(part.rows, part.columns) end
    if part.after then out[#out + 1] = table.concat(part.after, "\n") .. "\n" end
    if part.code then out[#out + 1] = "```\n" .. part.code .. "\n```\n" end
    if part.title == "Gates on traffic" and traffic then out[#out + 1] = ("![chunks of the traffic](%s)\n"):format(traffic) end
    if part.title == "Measured" and picture then out[#out + 1] = ("![times and speed-up over s_q](%s)\n"):format(picture) end
  end
  return table.concat(out, "\n")
end

function Report:__tostring() return self:text() end

--- Write the report, whole or not at all: .md as markdown, with its pictures beside it as write() has them; .txt as printed;
-- .svg, the picture alone. true | nil, error.
function Report:save(path)
  args.string("gate_report:save: path", path)
  local base, ending = path:match("^(.*)%.(%w+)$")
  local ok, err
  if ending == "md" then ok, err = self:write(base)
  elseif ending == "txt" then ok, err = file.write(path, self:text() .. "\n")
  elseif ending == "svg" then
    local svg = self:svg()
    if svg then ok, err = file.write(path, svg) else ok, err = nil, path .. ": no record has a time" end
  else ok, err = nil, ("got %s, wanted a file that ends in .md, .txt or .svg"):format(args.show(path)) end
  return ok, err
end

-- The published gate and, where there is one, the gate of this report, as marks of a picture.
local function marks_of(fitted)
  local marks = pictures.marks()
  if fitted.enabled then
    local always = fitted.min_sq == 0 and " (always)" or ""
    table.insert(marks, 1, { x = fitted.min_sq, label = ("MIN_SQ %.0f%s"):format(fitted.min_sq, always) })
  end
  return marks
end

--- The picture: time of every arm and speed-up over padded, one row of panels for each combination of axes, with the gates
-- marked; nil when nothing was measured.
function Report:svg()
  return self.gate and pictures.curves(self.sweep.records, { title = self.title, marks = marks_of(self.gate) })
end

--- The distribution of s_q in the traffic, with the gates; nil without traffic.
function Report:traffic_svg()
  if not self.chunks then return nil end
  local marks = {}
  for _, mark in ipairs(marks_of(self.gate)) do
    if mark.x > 0 then marks[#marks + 1] = mark end -- the axis is logarithmic
  end
  return pictures.traffic(self.chunks, { marks = marks })
end

--- Write <base>.md, <base>.svg when something was measured, and <base>_traffic.svg when there was traffic; each whole or not at
-- all. true | nil, error.
function Report:write(base)
  local name = base:match("[^/]*$")
  local svg, traffic = self:svg(), self:traffic_svg()
  for ending, text in pairs { [".svg"] = svg, ["_traffic.svg"] = traffic } do
    local ok, err = file.write(base .. ending, text)
    if not ok then return nil, err end
  end
  return file.write(base .. ".md", self:markdown(svg and name .. ".svg", traffic and name .. "_traffic.svg"))
end

-- A tail call: errors blame the caller, as for M.make itself.
return setmetatable(M, { __call = function(_, ...) return M.make(...) end })
