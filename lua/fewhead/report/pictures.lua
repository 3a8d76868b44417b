--- Pictures: what records, traffic and serving runs look like: one function a picture, each returns SVG, or nil where the data
-- has nothing for the picture.
--
--     local made = pictures.of(records)                       -- { { name = "curves", title =, svg = }, .. }
--     print(pictures.curves(records, { text = true }))        -- the same for a terminal
--
-- Every picture shows the axes that vary, says in its subtitle what does not, and draws all arms: the library's paths, auto and
-- providers. Spread bars run from the 5th to the 95th percentile of the samples.
local args = require "fewhead.base.arguments"
local axes = require "fewhead.record.axes"
local plot = require "fewhead.report.plot"
local records_of = require "fewhead.record.record"
local tables = require "fewhead.base.table"
local shell = require "fewhead.base.shell"

local M = {}

local TERA = 1e12

-- Families of curves that one picture draws at most; heat maps likewise.
local MOST_FAMILIES, MOST_MAPS = 10, 4
-- Above so many points a picture has no tooltips.
local MOST_TOOLTIPS = 600

-- "100 ms" for an axis, where decimals say nothing.
local function short_time(us) return (tables.time(us):gsub("%.0+ ", " ")) end

local function times_text(v) return ("%.3gx"):format(v) end

-- ---- What is beside a picture -----------------------------------------------------------------------------------------------

--- The published gate as a mark of pictures.
function M.marks()
  local least = require("fewhead.serve.published").min_sq -- pictures are made where no library is built
  return { { x = least, label = ("published %d"):format(least), colour = 6 } }
end

--- The command that a run's header remembers, as far as it does: the words after the script.
function M.command_text(run)
  return shell.line(run and run.argv or {})
end

-- Lines below a picture: spread, samples, how well medians are known, and the runs.
local function notes_of(records, bars)
  local least, most, worst = math.huge, 0, 0
  local runs, seen = {}, {}
  for _, r in ipairs(records) do
    local time, run = r.time, r.run
    if time then
      least, most = math.min(least, time.n), math.max(most, time.n)
      if time.median_hi_us and time.median_us > 0 then
        worst = math.max(worst, (time.median_hi_us - time.median_lo_us) / 2 / time.median_us)
      end
    end
    if run and run.id and not seen[run.id] then
      seen[run.id] = true
      runs[#runs + 1] = run
    end
  end
  local notes = {}
  if most > 0 then
    notes[1] = ("%s%s samples; noise: medians are known to +-%.1f %% or better (95 %%)"):format(
      bars and "bars: 5th to 95th percentile of " or "", least == most and tostring(most) or ("%d to %d"):format(least, most),
      100 * worst)
  end
  for i, run in ipairs(runs) do
    if i == 3 and #runs > 3 then
      notes[#notes + 1] = ("and %d more runs"):format(#runs - 2)
      break
    end
    local words = M.command_text(run)
    notes[#notes + 1] = ("%s, commit %s%s, %s%s"):format(tostring(run.device), tostring(run.commit):sub(1, 12),
      run.dirty and " with changes" or "", tostring(run.date), words ~= "" and "; options: " .. words or "")
  end
  return notes
end

-- ---- Families ---------------------------------------------------------------------------------------------------------------

-- The axis that curves run along: s_q where it varies, else the number field with the most values.
local function x_axis(found)
  local best, most
  for _, name in ipairs(found.varying) do
    local seen, n, number = {}, 0, true
    for _, flat in ipairs(found.distinct) do
      local value = flat[name]
      if value ~= nil and not seen[value] then
        seen[value] = true
        n, number = n + 1, number and type(value) == "number" and value > 0
      end
    end
    if number and name == "s_q" then return "s_q" end
    if number and (not best or n > most) then best, most = name, n end
  end
  return best or "s_q"
end

-- Where no prior is given, a prompt of so many tokens ends with the chunk (fh.case): that prior goes with s_q.
local PROMPT = 8192

-- The prior where it is another one; nil else.
local function own_prior(flat)
  local usual = type(flat.s_q) == "number" and math.max(0, PROMPT - flat.s_q)
  return flat.prior ~= usual and flat.prior or nil
end

-- Records with a time as families: { label =, points = { [path] = list }, paths = in order } for each combination of the fields
-- that vary besides x; and x, what does not vary, and the records.
local function families_of(records, also_out)
  local timed = {}
  for _, r in ipairs(records) do
    if r.time and r.time.median_us > 0 then timed[#timed + 1] = r end
  end
  if #timed == 0 then return nil end
  local found = axes.of(timed)
  local x = x_axis(found)
  local names, prior_varies = {}, false
  for i = 2, #timed do prior_varies = prior_varies or found.flats[i].prior ~= found.flats[1].prior end
  for _, name in ipairs(found.varying) do
    local implied = x == "s_q" and (name == "s_kv" or name == "prior")
    if name ~= x and name ~= also_out and not implied then names[#names + 1] = name end
  end
  local list, by_label, label, labelled = {}, {}, nil, nil
  for i, r in ipairs(timed) do
    local flat = found.flats[i]
    if flat ~= labelled then
      local prior = x == "s_q" and prior_varies and own_prior(flat)
      label, labelled = axes.label(flat, names), flat
      if prior then label = label .. (label ~= "" and ", " or "") .. "prior " .. prior end
    end
    local family = by_label[label]
    if not family then
      family = { label = label, points = {}, paths = {}, base = {} }
      by_label[label], list[#list + 1] = family, family
    end
    if type(flat[x]) == "number" then
      local points = family.points[r.path]
      if not points then
        points = {}
        family.points[r.path] = points
        family.paths[#family.paths + 1] = r.path
      end
      points[#points + 1] = { x = flat[x], record = r, flat = flat }
    end
  end
  for _, family in ipairs(list) do
    for _, points in pairs(family.points) do table.sort(points, function(a, b) return a.x < b.x end) end
    local base = family.points.padded and "padded" or family.paths[1]
    family.against = base
    for _, point in ipairs(family.points[base] or {}) do family.base[point.x] = point.record.time.median_us end
  end
  return list, x, found, timed
end

-- Speed-up of a record over its family's base at this x: ratio, lo, hi; nil where it has none.
local function speedup(family, point)
  local r = point.record
  local verdict = r.verdict
  if verdict and verdict.against == family.against then return verdict.ratio, verdict.lo, verdict.hi end
  local base = family.base[point.x]
  return base and base / r.time.median_us
end

local X_LABELS = { s_q = "s_q, query rows of the chunk", h_q = "h_q, heads of this rank" }

-- ---- Time and speed-up ------------------------------------------------------------------------------------------------------

-- How to draw the paths of records (plot.path_styles).
local function styles_of(records)
  local names, seen = {}, {}
  for _, r in ipairs(records) do
    if not seen[r.path] then
      seen[r.path] = true
      names[#names + 1] = r.path
    end
  end
  return plot.path_styles(names)
end

local function series_of(family, styles, y_of)
  local list = {}
  for _, path in ipairs(family.paths) do
    local points = {}
    for _, point in ipairs(family.points[path]) do
      local y, lo, hi = y_of(point)
      if y and y > 0 then
        points[#points + 1] = { x = point.x, y = y, lo = lo and lo > 0 and lo or nil, hi = hi,
          note = ("%d samples"):format(point.record.time.n) }
      end
    end
    local style = styles[path]
    if #points > 0 then list[#list + 1] = { name = path, colour = style.colour, dash = style.dash, points = points } end
  end
  return list
end

--- Time of every arm over s_q (or the axis with the most values) and speed-up over padded, one row of panels for each combination
-- of the other axes. o = { title =, marks = { { x =, label = } } gates, inline =, text = true: for a terminal, of width columns
-- and height lines a panel }.
function M.curves(records, o)
  o = args.options("pictures.curves", o or {}, { "title", "marks", "inline", "text", "width", "height" })
  local families, x, found, timed = families_of(records)
  if not families then return nil end
  local panels, points, shown, styles = {}, 0, {}, styles_of(timed)
  table.sort(families, function(a, b) -- those with the longest curves first; stable by label
    local m, n = 0, 0
    for _, path in ipairs(a.paths) do m = math.max(m, #a.points[path]) end
    for _, path in ipairs(b.paths) do n = math.max(n, #b.points[path]) end
    if m ~= n then return m > n end
    return a.label < b.label
  end)
  for i = 1, math.min(MOST_FAMILIES, #families) do shown[i] = families[i] end
  local lowest, highest = math.huge, 0
  for _, family in ipairs(shown) do
    local times = series_of(family, styles, function(point)
      local time = point.record.time
      return time.median_us, time.p05_us, time.p95_us
    end)
    local ratios = series_of(family, styles, function(point)
      if point.record.path ~= family.against then return speedup(family, point) end
    end)
    for _, series in ipairs(times) do
      points = points + #series.points
      for _, point in ipairs(series.points) do lowest, highest = math.min(lowest, point.x), math.max(highest, point.x) end
    end
    local label = family.label ~= "" and family.label or nil
    if #times > 0 then
      panels[#panels + 1] = { title = label, y = { label = "time (median)", log = 10, format = short_time }, series = times }
      if #ratios > 0 then
        panels[#panels + 1] = { y = { label = "over " .. family.against, zero = true, format = times_text }, series = ratios,
          lines = { { y = 1 } } }
      end
    end
  end
  if #panels == 0 then return nil end
  local marks = {}
  for _, mark in ipairs(o.marks or {}) do
    -- a logarithmic axis has no 0: "always" stands at the first x measured
    if x == "s_q" and mark.x <= highest then
      marks[#marks + 1] = { x = math.max(mark.x, lowest), label = mark.label, colour = mark.colour }
    end
  end
  local notes = notes_of(timed, true)
  if #families > #shown then
    table.insert(notes, 1, ("%d of %d combinations are drawn; filter the records to see others"):format(#shown, #families))
  end
  local spec = { title = o.title or "Time and speed-up", subtitle = "all: " .. found:constant_text(),
    x = { label = X_LABELS[x] or x }, panels = panels, columns = #shown > 1 and 2 or 1, marks = marks, notes = notes,
    inline = o.inline, plain = points > MOST_TOOLTIPS }
  if o.text then return plot.text(spec, o.width, o.height) end
  return plot.svg(spec)
end

-- ---- Heat maps --------------------------------------------------------------------------------------------------------------

local function sorted_keys(set)
  local list = {}
  for value in pairs(set) do list[#list + 1] = value end
  table.sort(list)
  return list
end

-- The library's own paths but these are what auto chooses among. Pictures are made where no library is built, so the table of
-- paths cannot be asked.
local NO_CANDIDATE = { auto = true, reference = true }

-- The quickest path that auto could choose, of records of one cell by path.
local function best_of(by_path)
  local best
  for path, r in pairs(by_path) do
    if records_of.is_own(r) and not NO_CANDIDATE[path] and (not best or r.time.median_us < best.time.median_us) then best = r end
  end
  return best
end

--- Maps of the quickest path over two axes, `row` ("h_q" or "ratio") and s_q, with its speed-up over padded: a list of SVG texts,
-- one for each combination of the other axes (4 at most, the fullest first).
function M.heat(records, row, o)
  o = args.options("pictures.heat", o or {}, { "inline" })
  local families, x, found, timed = families_of(records, row)
  local maps = {}
  if not families or x ~= "s_q" then return maps end
  local varies = false
  for _, name in ipairs(found.varying) do varies = varies or name == row end
  if not varies then return maps end
  local styles = styles_of(timed)
  for _, family in ipairs(families) do
    local cells, xs, ys, n = {}, {}, {}, 0
    for path, points in pairs(family.points) do
      for _, point in ipairs(points) do
        local y = point.flat[row]
        if type(y) == "number" then
          local key = y .. " " .. point.x
          if not cells[key] then
            cells[key], n = { x = point.x, y = y, by_path = {} }, n + 1
          end
          cells[key].by_path[path] = point.record
        end
      end
    end
    local list = {}
    for _, key in ipairs(sorted_keys(cells)) do
      local cell = cells[key]
      local best, padded = best_of(cell.by_path), cell.by_path.padded
      if best and padded and (cell.by_path.gather or cell.by_path.packed) then -- padded alone is no choice
        local ratio = padded.time.median_us / best.time.median_us
        xs[cell.x], ys[cell.y] = true, true
        list[#list + 1] = { x = cell.x, y = cell.y, colour = styles[best.path].colour,
          strength = math.log(ratio) / math.log(8), text = times_text(ratio), name = best.path,
          note = ("%s, s_q %d: %s, %s; padded %s"):format(row .. " " .. cell.y, cell.x, best.path,
            tables.time(best.time.median_us), tables.time(padded.time.median_us)) }
      end
    end
    local x_values, y_values = sorted_keys(xs), sorted_keys(ys)
    if #list > 3 and #x_values > 1 and #y_values > 1 then
      maps[#maps + 1] = { n = #list, spec = { title = ("Quickest path: %s over s_q"):format(row), inline = o.inline,
        subtitle = { family.label, "all: " .. found:constant_text(), "numbers: speed-up over padded" },
        x = { label = X_LABELS.s_q, values = x_values }, y = { label = row, values = y_values }, cells = list,
        notes = notes_of(timed) } }
    end
  end
  table.sort(maps, function(a, b)
    if a.n ~= b.n then return a.n > b.n end
    return a.spec.subtitle[1] < b.spec.subtitle[1]
  end)
  local svgs = {}
  for i = 1, math.min(MOST_MAPS, #maps) do svgs[i] = plot.heat(maps[i].spec) end
  return svgs
end

-- ---- Roofline ---------------------------------------------------------------------------------------------------------------

--- Ceilings of devices by name: tensor in TFLOP/s of dense bf16 products, l2 and memory in TB/s, source.
M.ceilings = {
  ["NVIDIA H200"] = { tensor = 813, l2 = 9.2, memory = 4.28,
    source = "measured on an H200: a bf16 product of 8192^3, 1 KiB rows gathered at random from 8 MB, a copy in memory" },
}

--- Where paths stand below a device's ceilings: useful TFLOP/s over useful FLOP for each byte that the call moves. nil for
-- devices without ceilings in pictures.ceilings, and for records without bytes. Formula: attainable = min(tensor, bytes/s *
-- FLOP/byte) (Williams et al., Roofline, CACM 2009).
function M.roofline(records, o)
  o = args.options("pictures.roofline", o or {}, { "inline" })
  local by_path, order, device, used = {}, {}, nil, {}
  local lo, hi = math.huge, 0
  for _, r in ipairs(records) do
    local work = r.work
    if r.time and r.time.median_us > 0 and work and work.bytes and work.bytes > 0 and r.run and M.ceilings[r.run.device]
      and (work.useful_flops or 0) > 0 and (not device or r.run.device == device) then
      device = r.run.device
      if not by_path[r.path] then
        by_path[r.path] = {}
        order[#order + 1] = r.path
      end
      local intensity = work.useful_flops / work.bytes
      local points = by_path[r.path]
      points[#points + 1] = { x = intensity, y = work.useful_flops / r.time.median_us * 1e6 / TERA,
        note = axes.label(axes.settings(r), { "pattern", "ratio", "h_q", "s_q" }) }
      lo, hi = math.min(lo, intensity), math.max(hi, intensity)
      used[#used + 1] = r
    end
  end
  if not device then return nil end
  local top = M.ceilings[device]
  lo, hi = lo / 2, math.max(hi * 2, 1.5 * top.tensor / top.memory)
  local series, styles = {}, plot.path_styles(order)
  for _, path in ipairs(order) do
    series[#series + 1] = { name = path, colour = styles[path].colour, bare = true, points = by_path[path] }
  end
  local function ceiling(name, rate, dash)
    local knee = top.tensor / rate
    local points = { { x = lo, y = lo * rate } }
    if knee > lo then points[2] = { x = math.min(knee, hi), y = math.min(knee, hi) * rate } end
    series[#series + 1] = { name = ("%s, %g TB/s"):format(name, rate), colour = 7, dash = dash, markless = true, points = points }
  end
  ceiling("L2", top.l2, "7 4")
  ceiling("memory", top.memory, "2 3")
  series[#series + 1] = { name = ("tensor cores, %g TFLOP/s"):format(top.tensor), colour = 7, markless = true,
    points = { { x = lo, y = top.tensor }, { x = hi, y = top.tensor } } }
  return plot.svg { title = "Roofline: " .. device, inline = o.inline, plain = #used > MOST_TOOLTIPS,
    subtitle = "all: " .. axes.of(used):constant_text { device = true },
    x = { label = "useful FLOP for each byte that the call moves" },
    panels = { { y = { label = "useful TFLOP/s", log = 10 }, series = series, height = 360 } },
    notes = { "ceilings: " .. top.source, unpack(notes_of(used)) } }
end

-- ---- What groups share ------------------------------------------------------------------------------------------------------

--- Keys for each row of a group's union over the group's size, from the plans that records have: how often a fetched row is used.
function M.union(records, o)
  o = args.options("pictures.union", o or {}, { "inline" })
  local best, used = {}, {}
  local vary = axes.of(records)
  local names = {}
  for _, name in ipairs(vary.varying) do
    if name == "pattern" or name == "ratio" or name == "topk" or name == "keep" then names[#names + 1] = name end
  end
  for i, r in ipairs(records) do
    local plan = r.plan
    if type(plan) == "table" and plan.group and plan.dedup and plan.dedup > 0 then
      local label = axes.label(vary.flats[i], names)
      local by_rows = best[label] or {}
      best[label] = by_rows
      by_rows[r.case.s_q] = by_rows[r.case.s_q] or {}
      by_rows[r.case.s_q][plan.group] = plan.dedup
      used[#used + 1] = r
    end
  end
  local series, groups = {}, {}
  for _, label in ipairs(sorted_keys(best)) do
    local s_q, sizes = nil, {} -- the s_q with the most sizes of groups, the largest of equals
    for _, rows in ipairs(sorted_keys(best[label])) do
      local list = sorted_keys(best[label][rows])
      if #list >= #sizes then s_q, sizes = rows, list end
    end
    local points = {}
    for i, group in ipairs(sizes) do
      points[i] = { x = group, y = best[label][s_q][group], note = ("s_q %d"):format(s_q) }
    end
    if #points > 1 then
      for _, group in ipairs(sizes) do groups[group] = true end
      local n = #series
      series[n + 1] = { name = ("%s, s_q %d"):format(label ~= "" and label or "lists", s_q), points = points,
        colour = n % (plot.colours - 1) + 1, dash = plot.dashes[math.floor(n / (plot.colours - 1)) % #plot.dashes + 1] }
    end
  end
  if #sorted_keys(groups) < 2 then return nil end
  local ideal = {}
  for _, group in ipairs(sorted_keys(groups)) do ideal[#ideal + 1] = { x = group, y = group } end
  series[#series + 1] = { name = "all rows list the same", points = ideal, colour = 7, dash = "2 3", markless = true }
  return plot.svg { title = "What a group's rows share", inline = o.inline,
    subtitle = "all: " .. axes.of(used):constant_text(), x = { label = "rows of a group" },
    panels = { { y = { label = "keys for each fetched row", log = 2 }, series = series, height = 300 } },
    notes = notes_of(used) }
end

-- ---- Layers -----------------------------------------------------------------------------------------------------------------

--- One chunk through a model's layers, path by path: the time in the building of plans and in attention, from fh.layers' records.
function M.layers(records, o)
  o = args.options("pictures.layers", o or {}, { "inline" })
  local used, bars = {}, {}
  for _, r in ipairs(records) do
    if r.time and r.case.layers then used[#used + 1] = r end
  end
  if #used == 0 then return nil end
  local found = axes.of(used)
  for i, r in ipairs(used) do
    local flat, names = found.flats[i], {}
    for _, name in ipairs(found.varying) do
      local implied = name == "layers" and flat.preset -- the preset is a model: it says how many
      if name ~= "keep" and name ~= "h_pad" and name ~= "d_qk" and not implied then names[#names + 1] = name end
    end
    local plans = r.plans and r.plans.us or 0
    local label = axes.label(flat, names)
    bars[i] = { name = r.path .. (label ~= "" and ": " .. label or ""), parts = {
      { name = "attention of all layers", value = (r.time.median_us - plans) / 1e3, colour = 1 },
      { name = "plans", value = plans / 1e3, colour = 2 },
    } }
  end
  return plot.bars { title = "One chunk through all layers", subtitle = "all: " .. found:constant_text(), bars = bars,
    inline = o.inline, format = function(ms) return ("%.2f ms"):format(ms) end, notes = notes_of(used) }
end

-- The kinds of a timeline's steps: layers of one ratio, and plans.
local function step_name(step)
  if not step.layer then return "plan" end
  return step.ratio == 0 and "layer, window only" or ("layer, ratio %d"):format(step.ratio)
end

--- The same chunk layer by layer: each step where it begins, in order, plans between the layers that share them. From fh.layers'
-- records; nil without any.
function M.timeline(records, o)
  o = args.options("pictures.timeline", o or {}, { "inline" })
  local used, bars, colours, count = {}, {}, { plan = 2 }, 0
  for _, r in ipairs(records) do
    if r.timeline and r.case.layers then used[#used + 1] = r end
  end
  if #used == 0 then return nil end
  local free = { 1, 3, 4, 5, 6, 7 } -- 2 is the colour of plans
  for i, r in ipairs(used) do
    local parts = {}
    for k, step in ipairs(r.timeline) do
      local name = step_name(step)
      if not colours[name] then
        count = count + 1
        colours[name] = free[(count - 1) % #free + 1]
      end
      parts[k] = { name = name, value = step.us / 1e3, colour = colours[name],
        note = step.layer and ("layer %d of list %d"):format(step.layer, step.list) or ("plan of list %d"):format(step.list) }
    end
    bars[i] = { name = r.path, parts = parts }
  end
  return plot.bars { title = "One chunk layer by layer", subtitle = "all: " .. axes.of(used):constant_text(), bars = bars,
    inline = o.inline, gaps = true, format = function(ms) return ("%.3f ms"):format(ms) end,
    notes = { "every step timed alone, median of 3; the sum is above the time of the chunk in one launch",
      unpack(notes_of(used)) } }
end

-- ---- Traffic ----------------------------------------------------------------------------------------------------------------

--- The distribution of s_q of a trace's chunks (fh.trace.chunks): which share of the chunks, and of their rows, has at most so
-- many rows; marks = { { x =, label = } }: gates. o as for curves.
function M.traffic(chunks, o)
  o = args.options("pictures.traffic", o or {}, { "title", "marks", "inline", "text" })
  if chunks.chunks == 0 then return nil end
  local of_chunks, of_rows, n, rows = {}, {}, 0, 0
  for _, entry in ipairs(chunks.counts) do
    n, rows = n + entry.count, rows + entry.count * entry.s_q
    if entry.s_q > 0 then
      of_chunks[#of_chunks + 1] = { x = entry.s_q, y = 100 * n / chunks.chunks }
      of_rows[#of_rows + 1] = { x = entry.s_q, y = chunks.rows > 0 and 100 * rows / chunks.rows or 0 }
    end
  end
  if #of_chunks == 0 then return nil end
  local spec = { title = o.title or "Chunks of the traffic", subtitle = tostring(chunks), inline = o.inline,
    x = { label = X_LABELS.s_q }, marks = o.marks,
    panels = { { y = { label = "% with at most s_q rows", zero = true }, series = {
      { name = "chunks", colour = 1, markless = true, points = of_chunks },
      { name = "rows in them", colour = 2, dash = "7 4", markless = true, points = of_rows },
    } } } }
  if o.text then return plot.text(spec) end
  return plot.svg(spec)
end

-- ---- Serving ----------------------------------------------------------------------------------------------------------------

local Serving = {}
Serving.__index = Serving

-- Slices of a run's duration that the timeline of steps has.
local SLICES = 80

--- A recorder of an A/B's steps: pass its on_step to fh.serve, then draw:
--     local seen = pictures.serving()
--     local ab = fh.serve { .., on_step = seen.on_step }
--     local steps, ttft = seen:svg(), pictures.ttft(ab)
function M.serving()
  local self = setmetatable({ arms = {}, order = {} }, Serving)
  self.on_step = function(arm, _, us, start_us, steps, attention_us)
    local list = self.arms[arm]
    if not list then
      list = {}
      self.arms[arm], self.order[#self.order + 1] = list, arm
    end
    local last = list[#list]
    if last and start_us < last.start_us then list.over = true end -- a further repetition begins: the first one is drawn
    if not list.over then list[#list + 1] = { start_us = start_us, us = us, steps = steps, attention_us = attention_us } end
  end
  return self
end

--- How long a step takes over the run, arm by arm, and which part of it is attention: means over slices of the run. nil without
-- steps.
function Serving:svg(o)
  local panels, last, longest = {}, 0, 0
  for _, arm in ipairs(self.order) do
    for _, step in ipairs(self.arms[arm]) do last = math.max(last, step.start_us) end
  end
  for _, arm in ipairs(self.order) do
    local slices = {}
    for _, step in ipairs(self.arms[arm]) do
      local i = math.min(SLICES, 1 + math.floor(SLICES * step.start_us / math.max(1, last)))
      local slice = slices[i] or { n = 0, us = 0, attention = 0 }
      slices[i] = slice
      local count = step.steps or 1
      slice.n, slice.us, slice.attention = slice.n + count, slice.us + step.us * count, slice.attention + step.attention_us
    end
    local whole, attention, rest = {}, {}, {}
    for i = 1, SLICES do
      local slice = slices[i]
      if slice then
        local x = (i - 0.5) / SLICES * last / 1e6
        whole[#whole + 1] = { x = x, y = slice.us / slice.n / 1e3 }
        attention[#attention + 1] = { x = x, y = slice.attention / slice.n / 1e3 }
        rest[#rest + 1] = { x = x, y = (slice.us - slice.attention) / slice.n / 1e3 }
        longest = math.max(longest, whole[#whole].y)
      end
    end
    panels[#panels + 1] = { title = arm, y = { label = "ms a step", zero = true }, height = 170, series = {
      { name = "whole step", colour = 7, markless = true, points = whole },
      { name = "attention", colour = 1, markless = true, points = attention },
      { name = "all else", colour = 2, dash = "7 4", markless = true, points = rest },
    } }
  end
  for _, panel in ipairs(panels) do panel.y.most = longest end
  if #panels == 0 then return nil end
  return plot.svg { title = "Step time over the run", subtitle = "means over 1/80 of the run",
    x = { label = "seconds", log = false }, panels = panels, columns = 2, inline = o and o.inline }
end

--- Time to first token of every request over the time when it was sent, arm by arm; ab is what fh.serve returned.
function M.ttft(ab, o)
  local series, count = {}, 0
  for i, row in ipairs(ab.rows) do
    local points = {}
    count = count + #(row.first_tokens or points)
    for _, request in ipairs(row.first_tokens or {}) do points[#points + 1] = { x = request.sent_s, y = request.ttft_s } end
    if #points > 0 then
      series[#series + 1] = { name = row.name, colour = (i - 1) % plot.colours + 1, bare = true, points = points }
    end
  end
  if #series == 0 then return nil end
  return plot.svg { title = "Time to first token", subtitle = { tostring(ab.workload), tostring(ab.engine):match("^[^\n]*") },
    x = { label = "sent after seconds", log = false },
    panels = { { y = { label = "TTFT, seconds", zero = true }, series = series } }, inline = o and o.inline,
    plain = count > MOST_TOOLTIPS }
end

-- ---- All of them ------------------------------------------------------------------------------------------------------------

--- All pictures that records have something for: { { name = "curves", svg = }, .. }, names usable as file names. o = { marks =,
-- inline = }, as for curves.
function M.of(records, o)
  o = args.options("pictures.of", o or {}, { "marks", "inline" })
  local list = {}
  local function add(name, svg)
    if svg then list[#list + 1] = { name = name, svg = svg } end
  end
  local single, chunks = {}, {} -- a chunk through layers is no call: they share no axis of time
  for _, r in ipairs(records) do
    local into = r.case.layers and chunks or single
    into[#into + 1] = r
  end
  add("curves", M.curves(single, { marks = o.marks, inline = o.inline }))
  for _, row in ipairs { "h_q", "ratio" } do
    for i, svg in ipairs(M.heat(single, row, { inline = o.inline })) do add(("heat_%s_%d"):format(row, i), svg) end
  end
  add("roofline", M.roofline(single, { inline = o.inline }))
  add("union", M.union(single, { inline = o.inline }))
  add("layers", M.layers(chunks, { inline = o.inline }))
  add("timeline", M.timeline(chunks, { inline = o.inline }))
  return list
end

return M
