-- plot: a measured curve as SVG: logarithmic axes, spread bars, marked thresholds; plain shapes and text, no script.
--
--   local plot = require "fewhead.report.plot"
--   local svg = plot.svg { title = "gate", panels = { { y = { label = "us" }, series = { { name = "padded", points = {
--     { x = 64, y = 90, lo = 88, hi = 95 }, { x = 128, y = 170 } } } } } }, x = { label = "s_q" } }

local args = require "fewhead.base.arguments"

local M = {}

-- Okabe and Ito's colours, told apart with any colour vision and in grey; black comes last.
M.colours = { "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000" }
M.dashes = { "", "7 4", "2 3", "9 3 2 3" }

local WIDTH = 850
local LEFT, RIGHT, TOP, BOTTOM = 78, 220, 54, 52 -- margins: y labels, legend, title, x labels
local PANEL, GAP = 270, 36                       -- height of a panel, and between two
local GRID, FRAME, TEXT = "#e4e4e4", "#666666", "#222222"

local function escape(text)
  return (tostring(text):gsub("[&<>\"']", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }))
end

-- 0.1 of a pixel is finer than any screen shows.
local function px(v) return (("%.1f"):format(v):gsub("%.0$", "")) end

-- Room left and right of the outermost points, in octaves, so that their bars clear the frame.
local X_ROOM = 0.2

-- Powers of `base` that enclose lo .. hi, thinned to at most `most` ticks.
local function log_ticks(lo, hi, base, most)
  local first, last = math.floor(math.log(lo) / math.log(base) + 1e-9), math.ceil(math.log(hi) / math.log(base) - 1e-9)
  if last == first then last = first + 1 end
  local step = math.ceil((last - first) / most)
  local ticks = {}
  for e = first, last, step do ticks[#ticks + 1] = base ^ e end
  return base ^ first, base ^ last, ticks
end

-- Steps of 1, 2 or 5 times a power of ten that enclose lo .. hi.
local function linear_ticks(lo, hi, most)
  if hi <= lo then hi = lo + 1 end
  local raw = (hi - lo) / most
  local power = 10 ^ math.floor(math.log10(raw))
  local step = power
  for _, k in ipairs { 1, 2, 5, 10 } do
    step = k * power
    if step >= raw then break end
  end
  local first, last = math.floor(lo / step + 1e-9), math.ceil(hi / step - 1e-9)
  local ticks = {}
  for i = first, last do ticks[#ticks + 1] = i * step end
  return first * step, last * step, ticks
end

local function number_text(v)
  return (("%.6g"):format(v):gsub("e%+0*", "e"))
end

-- Pixels of a value on an axis that runs from `from` to `to` pixels.
local function scale(axis, from, to)
  local lo, hi = axis.lo, axis.hi
  if axis.log then lo, hi = math.log(lo), math.log(hi) end
  return function(v)
    if axis.log then v = math.log(v) end
    return from + (to - from) * (v - lo) / (hi - lo)
  end
end

local function extent(values, log, what, level)
  local lo, hi = math.huge, -math.huge
  for _, v in ipairs(values) do
    args.number(what, v, log and 1e-300 or nil, nil, level + 1)
    lo, hi = math.min(lo, v), math.max(hi, v)
  end
  return lo, hi
end

--- An SVG text. spec = {
--   title =, subtitle =,
--   x = { label = },                                          log2 axis, shared by all panels
--   panels = { { y = { label =, log = 2 | 10 | nil (linear), zero = true: start at 0, format = function(value) -> text },
--     height = pixels,
--     series = { { name =, colour =, dash =, points = { { x =, y =, lo =, hi = }, .. } }, .. },
--     lines = { { y =, label = }, .. } }, .. },               horizontal marks
--   marks = { { x =, label =, colour = }, .. },               vertical marks through all panels
-- }
-- Points without lo and hi have no spread bar. Raises on values that a logarithm cannot take.
function M.svg(spec)
  spec = args.options("plot.svg", spec, { "title", "subtitle", "x", "panels", "marks" }, 2)
  args.table("plot.svg: panels", spec.panels, 2)
  local xs = {}
  for p, panel in ipairs(spec.panels) do
    args.options(("plot.svg: panel %d"):format(p), panel, { "y", "series", "lines", "height" }, 2)
    for _, series in ipairs(panel.series) do
      for _, point in ipairs(series.points) do xs[#xs + 1] = point.x end
    end
  end
  for _, mark in ipairs(spec.marks or {}) do xs[#xs + 1] = mark.x end
  if #xs == 0 then error("plot.svg: panels: got no point, wanted at least one", 2) end
  local x_axis = { log = true }
  local lo, hi = extent(xs, true, "plot.svg: x", 2)
  local x_ticks
  x_axis.lo, x_axis.hi, x_ticks = log_ticks(lo, hi, 2, 16)
  x_axis.lo, x_axis.hi = x_axis.lo / 2 ^ X_ROOM, x_axis.hi * 2 ^ X_ROOM
  local x_of = scale(x_axis, LEFT, WIDTH - RIGHT)

  local out = {}
  local function add(format, ...) out[#out + 1] = select("#", ...) > 0 and format:format(...) or format end
  local top, bottoms = TOP, {}
  for p, panel in ipairs(spec.panels) do
    local height = panel.height or PANEL
    local bottom = top + height
    bottoms[p] = { top, bottom }
    local ys = {}
    for _, series in ipairs(panel.series) do
      for _, point in ipairs(series.points) do
        ys[#ys + 1] = point.y
        ys[#ys + 1] = point.lo
        ys[#ys + 1] = point.hi
      end
    end
    for _, line in ipairs(panel.lines or {}) do ys[#ys + 1] = line.y end
    local log = panel.y.log
    local y_axis = { log = log and true }
    local ticks
    lo, hi = extent(ys, log, "plot.svg: y", 2)
    if panel.y.zero then lo = math.min(0, lo) end
    if log then
      y_axis.lo, y_axis.hi, ticks = log_ticks(lo, hi, log, 8)
    else
      y_axis.lo, y_axis.hi, ticks = linear_ticks(lo, hi, 6)
    end
    local y_of = scale(y_axis, bottom, top)

    local y_text = panel.y.format or number_text
    for _, tick in ipairs(ticks) do
      local y = y_of(tick)
      add('<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s"/>', px(LEFT), px(y), px(WIDTH - RIGHT), px(y), GRID)
      add('<text x="%s" y="%s" text-anchor="end">%s</text>', px(LEFT - 8), px(y + 4), escape(y_text(tick)))
    end
    for _, tick in ipairs(x_ticks) do
      local x = x_of(tick)
      add('<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s"/>', px(x), px(top), px(x), px(bottom), GRID)
      if p == #spec.panels then
        add('<text x="%s" y="%s" text-anchor="middle">%s</text>', px(x), px(bottom + 18), escape(number_text(tick)))
      end
    end
    add('<rect x="%s" y="%s" width="%s" height="%s" fill="none" stroke="%s"/>', px(LEFT), px(top), px(WIDTH - RIGHT - LEFT),
      px(height), FRAME)
    add('<text transform="translate(18 %s) rotate(-90)" text-anchor="middle">%s</text>', px((top + bottom) / 2),
      escape(panel.y.label))
    for _, line in ipairs(panel.lines or {}) do
      local y = y_of(line.y)
      add('<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-width="1.3"/>', px(LEFT), px(y), px(WIDTH - RIGHT), px(y),
        FRAME)
      if line.label then
        add('<text x="%s" y="%s" text-anchor="end" font-size="11">%s</text>', px(WIDTH - RIGHT - 6), px(y + 13),
          escape(line.label))
      end
    end
    for s, series in ipairs(panel.series) do
      local colour = series.colour or M.colours[(s - 1) % #M.colours + 1]
      local path = {}
      for i, point in ipairs(series.points) do
        local x, y = px(x_of(point.x)), px(y_of(point.y))
        path[i] = x .. "," .. y
        if point.lo and point.hi then
          local left, low, high = px(x_of(point.x) - 3), px(y_of(point.lo)), px(y_of(point.hi))
          add('<path d="M%s %sV%sM%s %sh6M%s %sh6" stroke="%s" fill="none"/>', x, low, high, left, low, left, high, colour)
        end
        add('<circle cx="%s" cy="%s" r="3.2" fill="%s"><title>%s: s_q %s, %s</title></circle>', x, y, colour, escape(series.name),
          escape(number_text(point.x)), escape(number_text(point.y)))
      end
      local dash = series.dash and series.dash ~= "" and (' stroke-dasharray="%s"'):format(series.dash) or ""
      add('<polyline points="%s" fill="none" stroke="%s" stroke-width="1.8"%s/>', table.concat(path, " "), colour, dash)
      local y = top + 12 + (s - 1) * 19
      add('<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-width="2"%s/>', px(WIDTH - RIGHT + 14), px(y),
        px(WIDTH - RIGHT + 42), px(y), colour, dash)
      add('<text x="%s" y="%s">%s</text>', px(WIDTH - RIGHT + 48), px(y + 4), escape(series.name))
    end
    top = bottom + GAP
  end

  local first, last = bottoms[1][1], bottoms[#bottoms][2]
  for i, mark in ipairs(spec.marks or {}) do
    local x, colour = x_of(mark.x), mark.colour or "#000000"
    add('<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-width="1.6" stroke-dasharray="5 3"/>', px(x), px(first), px(x),
      px(last), colour)
    -- labels of neighbouring marks stand on different lines, inside the frame
    local right = x > (LEFT + WIDTH - RIGHT) / 2
    add('<text x="%s" y="%s" text-anchor="%s" fill="%s" font-weight="bold" font-size="11">%s</text>', px(x + (right and -5 or 5)),
      px(first + 15 * i), right and "end" or "start", colour, escape(mark.label))
  end
  add('<text x="%s" y="%s" text-anchor="middle">%s</text>', px((LEFT + WIDTH - RIGHT) / 2), px(last + 40),
    escape(spec.x and spec.x.label or "x"))

  local height = last + BOTTOM
  local size = ('width="%d" height="%d" viewBox="0 0 %d %d"'):format(WIDTH, height, WIDTH, height)
  local head = {
    ('<svg xmlns="http://www.w3.org/2000/svg" %s font-family="sans-serif" font-size="12" fill="%s">'):format(size, TEXT),
    ('<rect width="%d" height="%d" fill="#ffffff"/>'):format(WIDTH, height),
    ('<text x="%d" y="22" font-size="15" font-weight="bold">%s</text>'):format(LEFT, escape(spec.title or "")),
    ('<text x="%d" y="40" font-size="11">%s</text>'):format(LEFT, escape(spec.subtitle or "")),
  }
  return table.concat(head, "\n") .. "\n" .. table.concat(out, "\n") .. "\n</svg>\n"
end

return M
