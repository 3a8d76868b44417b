--- Sketch: what a gate and a sweep look like, as text for a terminal.
--
--     print(fh.gate.fit(sweep):plot())
--     print(sweep:filter{ layout = "vllm" }:plot())
--
-- Loading this module gives gates and sweeps the method plot; the facade loads it with fh.gate and fh.sweep.
local args = require "fewhead.base.arguments"
local gate = require "fewhead.decide.gate"
local plot = require "fewhead.report.plot"

local M = {}

local LEAST_WIDTH = 24 -- columns, below which axis labels do not fit

local function size(what, options, level)
  options = args.options(what, options, { "width", "height" }, level + 1)
  local width = options.width and args.integer(what .. ": width", options.width, LEAST_WIDTH, 1000, level + 1)
  local height = options.height and args.integer(what .. ": height", options.height, 4, 200, level + 1)
  return width, height
end

local function points_of(curve, list)
  for _, point in ipairs(curve.points) do
    if point.s_q > 0 then list[#list + 1] = { x = point.s_q, y = point.ratio } end
  end
  return list
end

-- The threshold as a mark, nil where there is none. A logarithmic axis has no 0: there it stands at the smallest s_q.
local function mark_of(self, lowest)
  if self.undecided or not self.enabled then return nil end
  return { x = math.max(self.min_sq, lowest), label = ("MIN_SQ %s"):format(self:threshold()) }
end

--- A gate that was fitted: the speed-up of native heads over padded ones over s_q, of the curve that decides and of the others,
-- with the threshold as a column. options: width = columns (72), height = lines (14). Returns text. Raises for a gate without
-- measurements.
function M.gate(self, options)
  local width, height = size("gate:plot", options, 2)
  if not self.curves then
    error("gate:plot: got a gate without measurements, wanted one that fh.gate.fit made of a sweep", 2)
  end
  local decides, others, lowest = self.decides, {}, math.huge
  for _, curve in ipairs(self.curves) do
    if curve ~= decides then points_of(curve, others) end
    for _, point in ipairs(curve.points) do
      if point.s_q > 0 then lowest = math.min(lowest, point.s_q) end
    end
  end
  local series = { { name = ("%s %s%s, which decides"):format(decides.pattern, decides.layout, decides.label),
    points = points_of(decides, {}) } }
  if #others > 0 then
    local count = #self.curves - 1
    series[2] = { name = ("%d other curve%s"):format(count, count > 1 and "s" or ""), points = others }
  end
  local mark = mark_of(self, lowest)
  local text = plot.text({
    title = ("Native heads over padded ones, %d heads, %s"):format(decides.heads, tostring(decides.device)),
    x = { label = "s_q, rows of the chunk" }, marks = { mark }, panels = { {
      y = { label = "speed-up (above 1 native is faster)", zero = true, format = function(v) return ("%.3gx"):format(v) end },
      series = series, lines = { { y = 1 } },
    } },
  }, width, height)
  if mark then return text end
  return ("%s\n%s"):format(text, self.undecided and gate.UNDECIDED or "native off")
end

--- A sweep: time and speed-up over padded, of every arm over s_q, for each combination of the other axes: fh.pictures.curves as
-- text. options: width = columns (72), height = lines of a panel (14). Returns text, or nil and the reason where no record has a
-- time.
function M.sweep(self, options)
  local width, height = size("sweep:plot", options, 2)
  local text = require("fewhead.report.pictures").curves(self.records, { text = true, width = width, height = height })
  if not text then return nil, "sweep:plot: no record has a time" end
  return text
end

gate.class.plot = M.gate
require("fewhead.decide.sweep").class.plot = M.sweep

return M
