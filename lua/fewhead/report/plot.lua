--- Plot: pictures as SVG: curves, bars and heat maps with logarithmic axes, spread bars and marked thresholds; and curves as text
-- for a terminal. Plain shapes and text, no script; readable on a light and on a dark page.
--
--     local plot = require "fewhead.report.plot"
--     local spec = { title = "gate", x = { label = "s_q" }, panels = { { y = { label = "us", log = 10 }, series = {
--       { name = "padded", points = { { x = 64, y = 90, lo = 88, hi = 95 }, { x = 128, y = 170 } } } } } } }
--     local svg = plot.svg(spec)
--     print(plot.text(spec))
--
-- Where several panels stand, they are dealt over spec.columns columns. The legend stands above the panels, each name once, and
-- breaks into lines; text below the panels (notes) breaks too. So nothing overlaps, however many series there are.

local args = require "fewhead.base.arguments"

local M = {}

-- Okabe and Ito's colours, told apart with any colour vision and in grey, and lighter ones of the same hue for dark pages. The
-- last is text's own colour.
local LIGHT = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07c00", "#2f8fc4", "#222222" }
local DARK = { "#5ab4ec", "#ff9a4d", "#4fd6ac", "#eba6cb", "#e9b949", "#9ad3f5", "#e6e6e6" }
--- How many colours there are: a series' colour is 1 .. plot.colours.
M.colours = #LIGHT
M.dashes = { "", "7 4", "2 3", "9 3 2 3" }

-- The colours of paths are the same in all pictures.
local OF_PATH = { padded = 1, gather = 2, packed = 3, flashmla = 4, ["flashmla-few"] = 5, auto = 7 }

-- The order in which other names take the colours that are left.
local OTHER_COLOURS = { 6, 5, 4, 3, 2, 1, 7 }

--- How to draw paths and providers: { [name] = { colour =, dash = } } for a list of names. A usual name has its own colour. Other
-- names, in their order as text, take the colours that none of the names has yet, first without a dash, then with one of
-- plot.dashes. 28 names differ; further ones repeat the first styles.
function M.path_styles(names)
  local styles, taken, others = {}, {}, {}
  for _, name in ipairs(names) do
    local colour = OF_PATH[name]
    if colour then styles[name], taken[colour] = { colour = colour }, true
    elseif not styles[name] then
      styles[name] = {}
      others[#others + 1] = name
    end
  end
  table.sort(others)
  local free = {}
  for i, dash in ipairs(M.dashes) do
    for _, colour in ipairs(OTHER_COLOURS) do
      if i > 1 or not taken[colour] then free[#free + 1] = { colour = colour, dash = dash ~= "" and dash or nil } end
    end
  end
  for i, name in ipairs(others) do styles[name] = free[(i - 1) % #free + 1] end
  return styles
end

local WIDTH = 860
local LEFT, RIGHT = 74, 16        -- margins of a panel: y labels, air
local HEAD, LINE = 19, 15         -- heights of a panel's title and of a line of small text
local TITLE_RISE = 10             -- a title is above the next panel's topmost tick label, which is 4 pixels above the panel
local PANEL, GAP = 250, 52        -- height of a panel, and between two: x labels
local X_ROOM = 0.2                -- room left and right of the outermost points of a logarithmic axis, in octaves
local LETTER = 6.7                -- width of a letter of 12 pixels; text of 11 takes less, so lines have room to spare

local function escape(text)
  text = tostring(text):gsub("[%z\1-\8\11\12\14-\31]", "\239\191\189") -- XML knows no such characters
  return (text:gsub("[&<>\"']", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }))
end
--- Text as XML and HTML show it literally.
M.escape = escape

-- 0.1 of a pixel is finer than any screen shows.
local function px(v) return (("%.1f"):format(v):gsub("%.0$", "")) end

local function letters(text)
  local _, continuation = text:gsub("[\128-\191]", "")
  return #text - continuation
end

-- The first n letters of a text.
local function first_letters(text, n)
  local at = 1
  while n > 0 and at <= #text do
    at, n = at + 1, n - 1
    while (text:byte(at) or 0) >= 128 and text:byte(at) < 192 do at = at + 1 end
  end
  return text:sub(1, at - 1), text:sub(at)
end

-- Lines of at most `most` letters, broken at spaces, and within a word that is longer.
local function wrapped(text, most)
  local lines, line = {}, ""
  for word in tostring(text):gmatch("%S+") do
    if line ~= "" and letters(line) + 1 + letters(word) > most then
      lines[#lines + 1], line = line, ""
    end
    line = line == "" and word or line .. " " .. word
    while letters(line) > most do
      lines[#lines + 1], line = first_letters(line, most)
    end
  end
  if line ~= "" then lines[#lines + 1] = line end
  return lines
end

-- ---- Axes -------------------------------------------------------------------------------------------------------------------

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

-- A linear axis whose largest value is so many times the median would press the rest flat: it becomes logarithmic.
local FLAT = 8

local function is_flattened(values, lo, hi)
  if lo <= 0 then return false end
  local sorted = { unpack(values, 1, math.min(#values, 4000)) }
  table.sort(sorted)
  return hi > FLAT * sorted[math.ceil(#sorted / 2)]
end

-- The vertical axis of values: { lo, hi, log }, its ticks, and its label.
local function y_axis_of(y, values, level)
  local lo, hi = extent(values, y.log, "plot.svg: y", level + 1)
  local log, label = y.log, y.label
  if not log and is_flattened(values, lo, hi) then log, label = 2, label .. ", logarithmic" end
  if log then
    local ticks
    lo, hi, ticks = log_ticks(lo, hi, log, 8)
    return { lo = lo, hi = hi, log = true }, ticks, label
  end
  if y.zero then lo = math.min(0, lo) end
  hi = math.max(hi, y.most or hi) -- panels beside each other may share an axis
  local ticks
  lo, hi, ticks = linear_ticks(lo, hi, 6)
  return { lo = lo, hi = hi }, ticks, label
end

-- The horizontal axis: base-2 logarithmic, or x.log = 10 or false.
local function x_axis_of(x, values, width, level)
  local most = math.max(2, math.floor(width / 44))
  local log = x.log == nil and 2 or x.log
  local lo, hi = extent(values, log, "plot.svg: x", level + 1)
  local ticks
  if log then
    lo, hi, ticks = log_ticks(lo, hi, log, most)
    return { lo = lo / 2 ^ X_ROOM, hi = hi * 2 ^ X_ROOM, log = true }, ticks
  end
  lo, hi, ticks = linear_ticks(lo, hi, most)
  return { lo = lo, hi = hi }, ticks
end

-- ---- The frame of a picture -------------------------------------------------------------------------------------------------

local function style()
  local out = {
    ".fb{fill:#fff}.ft{fill:#222}.fm{fill:#595959}.fg{stroke:#e4e4e4}.ff{stroke:#8a8a8a}.fn{fill:none}.fw{stroke:#fff}",
  }
  for i, colour in ipairs(LIGHT) do out[#out + 1] = (".s%d{stroke:%s}.p%d{fill:%s}"):format(i, colour, i, colour) end
  out[#out + 1] = "@media screen and (prefers-color-scheme:dark){"
  out[#out + 1] = ".fb{fill:#16181c}.ft{fill:#e6e6e6}.fm{fill:#b4b4b4}.fg{stroke:#33373d}.ff{stroke:#80868e}.fw{stroke:#16181c}"
  for i, colour in ipairs(DARK) do out[#out + 1] = (".s%d{stroke:%s}.p%d{fill:%s}"):format(i, colour, i, colour) end
  out[#out + 1] = "}"
  return table.concat(out)
end

--- The rules that pictures need; a page with many of them has the rules once.
M.style = style()

local Canvas = {}
Canvas.__index = Canvas

local function canvas() return setmetatable({ out = {}, y = 0 }, Canvas) end

-- A piece of SVG, as a format and what goes into it.
function Canvas:add(format, ...)
  self.out[#self.out + 1] = select("#", ...) > 0 and format:format(...) or format
end

-- Text at a place, in pixels.
function Canvas:text(x, y, text, o)
  o = o or {}
  local anchor = o.anchor and (' text-anchor="%s"'):format(o.anchor) or ""
  self:add('<text x="%s" y="%s"%s%s%s class="%s">%s</text>', px(x), px(y), anchor,
    o.size and (' font-size="%s"'):format(o.size) or "", o.bold and ' font-weight="bold"' or "", o.class or "ft", escape(text))
end

-- A line between two places, in pixels.
function Canvas:line(x1, y1, x2, y2, class, more)
  self:add('<path d="M%s %sL%s %s" class="%s"%s/>', px(x1), px(y1), px(x2), px(y2), class, more or "")
end

-- Title and lines below it.
function Canvas:head(title, lines)
  for _, line in ipairs(wrapped(title or "", math.floor((WIDTH - 30) / 8.6))) do
    self.y = self.y + 22
    self:text(15, self.y, line, { size = 15, bold = true })
  end
  for _, text in ipairs(type(lines) == "table" and lines or { lines }) do
    for _, line in ipairs(wrapped(text, math.floor((WIDTH - 30) / 6.1))) do
      self.y = self.y + LINE
      self:text(15, self.y, line, { size = 11, class = "fm" })
    end
  end
  self.y = self.y + 8
end

local function stroke_more(series)
  return series.dash and series.dash ~= "" and (' stroke-dasharray="%s"'):format(series.dash) or ""
end

-- Marks of series, told apart without colour: circle, square, triangle, diamond.
local SHAPES = {
  function(x, y) return ('<circle cx="%s" cy="%s" r="3.2"'):format(px(x), px(y)) end,
  function(x, y) return ('<rect x="%s" y="%s" width="6" height="6"'):format(px(x - 3), px(y - 3)) end,
  function(x, y) return ('<path d="M%s %sl3.8 6.6h-7.6z"'):format(px(x), px(y - 4.2)) end,
  function(x, y) return ('<path d="M%s %sl4.2 4.2l-4.2 4.2l-4.2 -4.2z"'):format(px(x), px(y - 4.2)) end,
}
local function shape_of(colour) return SHAPES[(colour - 1) % #SHAPES + 1] end

-- The names of all series in lines above the panels.
function Canvas:legend(entries)
  local x = 15
  for _, entry in ipairs(entries) do
    local name = letters(entry.name) > 100 and first_letters(entry.name, 99) .. "\226\128\166" or entry.name
    local width = (entry.swatch and 20 or 36) + letters(name) * LETTER + 18
    if x > 15 and x + width > WIDTH then x, self.y = 15, self.y + 18 end
    local y = self.y + 10
    if entry.swatch then
      self:add('<rect x="%s" y="%s" width="13" height="11" class="p%d"%s/>', px(x), px(y - 6), entry.colour, entry.opacity or "")
      self:text(x + 19, y + 4, name)
    else
      if not entry.bare then
        self:line(x, y, x + 28, y, ("s%d fn"):format(entry.colour), ' stroke-width="2"' .. stroke_more(entry))
      end
      if not entry.markless then self:add('%s class="p%d"/>', shape_of(entry.colour)(x + 14, y), entry.colour) end
      self:text(x + 35, y + 4, name)
    end
    x = x + width
  end
  if #entries > 0 then self.y = self.y + 27 end
end

-- Lines below the panels.
function Canvas:notes(notes)
  for _, text in ipairs(notes or {}) do
    for _, line in ipairs(wrapped(text, math.floor((WIDTH - 30) / 6.1))) do
      self.y = self.y + LINE
      self:text(15, self.y, line, { size = 11, class = "fm" })
    end
  end
end

-- The picture; inline = true: without the rules, for a page that has them.
function Canvas:finish(title, inline)
  local height = math.ceil(self.y + 14)
  return table.concat {
    ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" '):format(
      WIDTH, height, WIDTH, height),
    'font-family="DejaVu Sans,Verdana,sans-serif" font-size="12">\n<title>', escape(title or ""), "</title>\n",
    inline and "" or "<style>" .. M.style .. "</style>\n",
    ('<rect width="%d" height="%d" class="fb"/>\n'):format(WIDTH, height), table.concat(self.out, "\n"), "\n</svg>\n",
  }
end

-- ---- Curves -----------------------------------------------------------------------------------------------------------------

local SPEC = { "title", "subtitle", "x", "panels", "marks", "columns", "notes", "inline", "plain", "legend" }
local PANEL_FIELDS = { "title", "y", "series", "lines", "height" }

local function check(what, spec, level)
  spec = args.options(what, spec, SPEC, level + 1)
  args.table(what .. ": panels", spec.panels, level + 1)
  local xs = {}
  for p, panel in ipairs(spec.panels) do
    args.options(("%s: panel %d"):format(what, p), panel, PANEL_FIELDS, level + 1)
    for _, series in ipairs(panel.series) do
      for _, point in ipairs(series.points) do xs[#xs + 1] = point.x end
    end
  end
  for _, mark in ipairs(spec.marks or {}) do xs[#xs + 1] = mark.x end
  if #xs == 0 then error(what .. ": panels: got no point, wanted at least one", level + 1) end
  return spec, xs
end

local function values_of(panel)
  local ys = {}
  for _, series in ipairs(panel.series) do
    for _, point in ipairs(series.points) do
      ys[#ys + 1] = point.y
      ys[#ys + 1] = point.lo
      ys[#ys + 1] = point.hi
    end
  end
  for _, line in ipairs(panel.lines or {}) do ys[#ys + 1] = line.y end
  return ys
end

local function legend_of(spec)
  local entries, seen = {}, {}
  for _, panel in ipairs(spec.panels) do
    for s, series in ipairs(panel.series) do
      local name = series.name or ""
      if name ~= "" and not seen[name] then
        seen[name] = true
        entries[#entries + 1] = { name = name, colour = series.colour or (s - 1) % M.colours + 1, dash = series.dash,
          bare = series.bare, markless = series.markless }
      end
    end
  end
  return entries
end

-- The points that do not fall on a pixel where another one is: all that can be seen of very many.
local function visible(points, x_of, y_of)
  local list, seen = {}, {}
  for _, point in ipairs(points) do
    local pixel = math.floor(x_of(point.x)) * 65536 + math.floor(y_of(point.y))
    if not seen[pixel] then
      seen[pixel] = true
      list[#list + 1] = point
    end
  end
  return list
end

local function draw_series(c, series, colour, x_of, y_of, y_text, plain)
  local path, bars = {}, {}
  local points = plain and visible(series.points, x_of, y_of) or series.points
  for i, point in ipairs(points) do
    local x, y = px(x_of(point.x)), px(y_of(point.y))
    path[i] = (i == 1 and "M" or "L") .. x .. " " .. y
    if point.lo and point.hi then
      local left, low, high = px(x_of(point.x) - 3), px(y_of(point.lo)), px(y_of(point.hi))
      bars[#bars + 1] = ("M%s %sV%sM%s %sh6M%s %sh6"):format(x, low, high, left, low, left, high)
    end
  end
  if #bars > 0 then c:add('<path d="%s" class="s%d fn"/>', table.concat(bars), colour) end
  if not series.bare and #path > 1 then
    c:add('<path d="%s" class="s%d fn" stroke-width="1.8"%s/>', table.concat(path), colour, stroke_more(series))
  end
  if series.markless then return end
  local shape = shape_of(colour)
  for _, point in ipairs(points) do
    local mark = shape(x_of(point.x), y_of(point.y))
    if plain then c:add('%s class="p%d"/>', mark, colour)
    else
      c:add('%s class="p%d"><title>%s: %s, %s%s</title></%s>', mark, colour, escape(series.name), escape(number_text(point.x)),
        escape(y_text(point.y)), point.note and escape(", " .. point.note) or "", mark:match("^<(%a+)"))
    end
    if point.label then c:text(x_of(point.x) + 7, y_of(point.y) + 4, point.label, { size = 10 }) end
  end
end

-- One panel in the box that begins at (left, top).
local function draw_panel(c, spec, panel, box, x_axis, x_ticks, level)
  local left, right, top, bottom = box.left, box.right, box.top, box.bottom
  local small = box.small
  local values = values_of(panel)
  if #values == 0 then values = { 1, 2 } end
  local y_axis, ticks, label = y_axis_of(panel.y, values, level + 1)
  local x_of, y_of = scale(x_axis, left, right), scale(y_axis, bottom, top)
  local y_text = panel.y.format or number_text
  if panel.title then
    local title = panel.title
    local most = math.floor(((box.wide or right) - left) / 6.9)
    if letters(title) > most then title = first_letters(title, most - 1) .. "\226\128\166" end
    c:text(left - 4, top - TITLE_RISE, title, { size = 11, bold = true })
  end
  local grid = {}
  for _, tick in ipairs(ticks) do
    local y = y_of(tick)
    grid[#grid + 1] = ("M%s %sH%s"):format(px(left), px(y), px(right))
    c:text(left - 7, y + 4, y_text(tick), { anchor = "end", size = small and 10 or 11, class = "fm" })
  end
  for _, tick in ipairs(x_ticks) do
    local x = x_of(tick)
    if x >= left and x <= right then
      grid[#grid + 1] = ("M%s %sV%s"):format(px(x), px(top), px(bottom))
      c:text(x, bottom + 15, number_text(tick), { anchor = "middle", size = small and 10 or 11, class = "fm" })
    end
  end
  table.insert(c.out, #c.out + 1, ('<path d="%s" class="fg fn"/>'):format(table.concat(grid)))
  c:add('<rect x="%s" y="%s" width="%s" height="%s" class="ff fn"/>', px(left), px(top), px(right - left), px(bottom - top))
  c:add('<text transform="translate(%s %s) rotate(-90)" text-anchor="middle" font-size="11" class="ft">%s</text>',
    px(left - LEFT + 16), px((top + bottom) / 2), escape(label))
  for _, line in ipairs(panel.lines or {}) do
    local y = y_of(line.y)
    c:line(left, y, right, y, "ff fn", ' stroke-width="1.5"')
    if line.label then c:text(right - 5, y + 13, line.label, { anchor = "end", size = 10, class = "fm" }) end
  end
  for s, series in ipairs(panel.series) do
    draw_series(c, series, series.colour or (s - 1) % M.colours + 1, x_of, y_of, y_text, spec.plain)
  end
  for i, mark in ipairs(spec.marks or {}) do
    local x = x_of(mark.x)
    c:line(x, top, x, bottom, ("s%d fn"):format(mark.colour or 7), ' stroke-width="1.5" stroke-dasharray="5 3"')
    if box.first then -- labels of neighbouring marks stand on different lines, inside the frame
      local at_right = x > (left + right) / 2
      local how = { anchor = at_right and "end" or "start", size = 11, bold = true }
      c:text(x + (at_right and -5 or 5), top + 15 * i, mark.label, how)
    end
  end
end

--- An SVG text. spec = {
--   title =, subtitle = text or a list of lines,
--   x = { label =, log = 2 (default) | 10 | false },          shared by all panels
--   columns = panels side by side (1), notes = lines below,
--   panels = { { title =, y = { label =, log = 2 | 10 | nil (linear), zero = true: start at 0,
--       format = function(value) -> text },
--     height = pixels,
--     series = { { name =, colour = 1 .. 7, dash =, bare = true: no line, markless = true: no marks,
--       points = { { x =, y =, lo =, hi =, label = text beside it, note = text of its tooltip }, .. } }, .. },
--     lines = { { y =, label = }, .. } }, .. },               horizontal marks
--   marks = { { x =, label =, colour = }, .. },               vertical marks through all panels
--   inline = true: without the style rules (plot.style), plain = true: without tooltips, and of points on one pixel one
-- }
-- Points without lo and hi have no spread bar. A linear axis on which an outlier would press the rest flat is drawn as a
-- logarithmic one and says so. Raises on values that a logarithm cannot take.
function M.svg(spec)
  local xs
  spec, xs = check("plot.svg", spec, 2)
  local columns = math.min(spec.columns or 1, #spec.panels)
  local small = columns > 1
  local cell = WIDTH / columns
  local width = cell - LEFT - RIGHT
  local x_axis, x_ticks = x_axis_of(spec.x or {}, xs, width, 2)
  local c = canvas()
  c:head(spec.title, spec.subtitle)
  c:legend(spec.legend or legend_of(spec))
  for p, panel in ipairs(spec.panels) do
    local column = (p - 1) % columns
    if column == 0 and p > 1 then c.y = c.y + GAP - 14 end
    if column == 0 then c.y = c.y + (panel.title and HEAD or 0) end
    local left = column * cell + LEFT
    local beside = column + 1 < columns and spec.panels[p + 1]
    local height = panel.height or (small and 150 or PANEL)
    draw_panel(c, spec, panel, { left = left, right = left + width, top = c.y, bottom = c.y + height, small = small,
      first = p == 1, wide = beside and not beside.title and left + width + cell or nil }, x_axis, x_ticks, 2)
    if column == columns - 1 or p == #spec.panels then c.y = c.y + height end
  end
  c:text(WIDTH / 2, c.y + 34, spec.x and spec.x.label or "x", { anchor = "middle" })
  c.y = c.y + 40
  c:notes(spec.notes)
  return c:finish(spec.title, spec.inline)
end

-- ---- Bars -------------------------------------------------------------------------------------------------------------------

local HAIRLINE = 1 -- pixels between the parts of a bar

--- Horizontal bars of parts: spec = { title =, subtitle =, notes =, unit = "ms", format = function(value) -> text,
-- bars = { { name =, parts = { { name =, value =, colour =, note = what the tooltip says in place of the name }, .. } }, .. },
-- gaps = true: a hairline between parts }. A part's name is in the legend once. The whole of a bar stands behind it.
function M.bars(spec)
  spec = args.options("plot.bars", spec, { "title", "subtitle", "notes", "unit", "bars", "format", "inline", "gaps" }, 2)
  local most, longest, entries, seen = 0, 0, {}, {}
  for _, bar in ipairs(args.list("plot.bars: bars", spec.bars, 1, nil, 2)) do
    local sum = 0
    for _, part in ipairs(bar.parts) do
      sum = sum + args.number("plot.bars: value", part.value, 0, nil, 2)
      if not seen[part.name] then
        seen[part.name] = true
        entries[#entries + 1] = { name = part.name, colour = part.colour or 1, swatch = true }
      end
    end
    bar.sum = sum
    most, longest = math.max(most, sum), math.max(longest, letters(bar.name))
  end
  local c = canvas()
  c:head(spec.title, spec.subtitle)
  c:legend(entries)
  local name_width = math.min(300, longest * LETTER + 12)
  local left, right = 15 + name_width, WIDTH - 90
  local text = spec.format or number_text
  for _, bar in ipairs(spec.bars) do
    local x = left
    local lines = wrapped(bar.name, math.floor(name_width / LETTER))
    for i, line in ipairs(lines) do c:text(left - 8, c.y + 15 + (i - 1) * 14, line, { anchor = "end" }) end
    for _, part in ipairs(bar.parts) do
      local width = most > 0 and (right - left) * part.value / most or 0
      local gap = spec.gaps and math.min(HAIRLINE, width / 4) or 0
      c:add('<rect x="%s" y="%s" width="%s" height="20" class="p%d"><title>%s: %s</title></rect>', px(x), px(c.y),
        px(width - gap), part.colour or 1, escape(part.note or part.name), escape(text(part.value)))
      x = x + width
    end
    c:text(x + 6, c.y + 14, text(bar.sum), { size = 11 })
    c.y = c.y + math.max(27, #lines * 14 + 8)
  end
  c:notes(spec.notes)
  return c:finish(spec.title, spec.inline)
end

-- ---- Heat maps --------------------------------------------------------------------------------------------------------------

--- A map of two axes: spec = { title =, subtitle =, notes =, x = { label =, values = {..} }, y = { label =, values = {..} },
-- cells = { { x =, y =, colour = 1 .. 7, strength = 0 .. 1, text =, name = what the colour means, note = tooltip }, .. } }.
-- Values stand in their order, one column or row each; cells without a value stay empty.
function M.heat(spec)
  spec = args.options("plot.heat", spec, { "title", "subtitle", "notes", "x", "y", "cells", "inline" }, 2)
  args.list("plot.heat: cells", spec.cells, 1, nil, 2)
  local entries, seen, longest = {}, {}, 4
  for _, cell in ipairs(spec.cells) do
    if cell.name and not seen[cell.name] then
      seen[cell.name] = true
      entries[#entries + 1] = { name = cell.name, colour = cell.colour, swatch = true }
    end
  end
  table.sort(entries, function(a, b) return a.colour < b.colour end)
  for _, value in ipairs(spec.y.values) do longest = math.max(longest, letters(tostring(value))) end
  local c = canvas()
  c:head(spec.title, spec.subtitle)
  c:legend(entries)
  local left = 40 + longest * LETTER
  local width = math.min(120, (WIDTH - RIGHT - left) / #spec.x.values)
  local height = 30
  local column, row, top = {}, {}, c.y
  for i, value in ipairs(spec.x.values) do
    column[value] = left + (i - 1) * width
    local how = { anchor = "middle", size = 11, class = "fm" }
    c:text(column[value] + width / 2, top + #spec.y.values * height + 16, tostring(value), how)
  end
  for i, value in ipairs(spec.y.values) do
    row[value] = top + (i - 1) * height
    c:text(left - 7, row[value] + 19, tostring(value), { anchor = "end", size = 11, class = "fm" })
  end
  for _, cell in ipairs(spec.cells) do
    local x, y = column[cell.x], row[cell.y]
    c:add('<rect x="%s" y="%s" width="%s" height="%s" class="p%d fw" fill-opacity="%.2f"><title>%s</title></rect>', px(x), px(y),
      px(width), px(height), cell.colour, 0.12 + 0.4 * math.max(0, math.min(1, cell.strength or 1)),
      escape(cell.note or cell.text or ""))
    if cell.text and letters(cell.text) * 5.8 < width then
      c:text(x + width / 2, y + 19, cell.text, { anchor = "middle", size = 11 })
    end
  end
  c.y = top + #spec.y.values * height
  c:add('<text transform="translate(20 %s) rotate(-90)" text-anchor="middle" font-size="11" class="ft">%s</text>',
    px((top + c.y) / 2), escape(spec.y.label))
  c:text(left + #spec.x.values * width / 2, c.y + 34, spec.x.label, { anchor = "middle" })
  c.y = c.y + 40
  c:notes(spec.notes)
  return c:finish(spec.title, spec.inline)
end

-- ---- Text -------------------------------------------------------------------------------------------------------------------

-- Letters of series in a terminal.
local LETTERS = "abcdefghijklmnopqrstuvwxyz"

--- The same spec as text for a terminal: each panel `height` (14) lines of `width` (72) columns, a letter a series, "*" where
-- several meet, a legend below. Takes what plot.svg takes; marks are columns of "|", lines rows of "-".
function M.text(spec, width, height)
  local xs
  spec, xs = check("plot.text", spec, 2)
  width, height = width or 72, height or 14
  local lines, names, letter_of = { spec.title }, {}, {}
  for _, entry in ipairs(legend_of(spec)) do
    local n = #names % #LETTERS + 1
    letter_of[entry.name] = LETTERS:sub(n, n)
    names[#names + 1] = ("%s %s"):format(letter_of[entry.name], entry.name)
  end
  for _, panel in ipairs(spec.panels) do
    local y_axis, _, label = y_axis_of(panel.y, values_of(panel), 2)
    local y_text = panel.y.format or number_text
    local texts = { y_text(y_axis.hi), y_text(y_axis.lo) }
    local margin = math.max(letters(texts[1]), letters(texts[2])) + 1
    local columns = math.max(10, width - margin - 1)
    local x_axis = x_axis_of(spec.x or {}, xs, columns * 8, 2)
    local x_of, y_of = scale(x_axis, 1, columns), scale(y_axis, height, 1)
    local grid = {}
    for row = 1, height do grid[row] = {} end
    local function at(v) return math.floor(v + 0.5) end
    for _, line in ipairs(panel.lines or {}) do
      for column = 1, columns do grid[at(y_of(line.y))][column] = "-" end
    end
    for _, mark in ipairs(spec.marks or {}) do
      for row = 1, height do grid[row][at(x_of(mark.x))] = "|" end
    end
    for _, series in ipairs(panel.series) do
      local letter = letter_of[series.name] or "o"
      for _, point in ipairs(series.points) do
        local row, column = grid[at(y_of(point.y))], at(x_of(point.x))
        row[column] = (row[column] or "-"):find("[%a*]") and "*" or letter
      end
    end
    lines[#lines + 1] = panel.title and ("%s: %s"):format(panel.title, label) or label
    for row = 1, height do
      local cells = {}
      for column = 1, columns do cells[column] = grid[row][column] or " " end
      local text = row == 1 and texts[1] or row == height and texts[2] or ""
      lines[#lines + 1] = ((" "):rep(margin - 1 - letters(text)) .. text .. " |" .. table.concat(cells)):gsub("%s+$", "")
    end
    local room_of = x_axis.log and 2 ^ X_ROOM or 1
    local lo, hi = number_text(x_axis.lo * room_of), number_text(x_axis.hi / room_of)
    local middle = spec.x and spec.x.label or "x"
    local room = columns - #lo - #hi - letters(middle)
    lines[#lines + 1] = (" "):rep(margin + 1) .. lo .. (" "):rep(math.max(1, math.floor(room / 2))) .. middle
      .. (" "):rep(math.max(1, math.ceil(room / 2))) .. hi
  end
  for _, line in ipairs(wrapped(table.concat(names, ", "), width)) do lines[#lines + 1] = line end
  for _, mark in ipairs(spec.marks or {}) do lines[#lines + 1] = ("| %s"):format(mark.label) end
  for _, note in ipairs(spec.notes or {}) do lines[#lines + 1] = note end
  return table.concat(lines, "\n")
end

return M
