local fh = require "fewhead"
local pictures = fh.pictures
local some = require "spec.report.some_records"

local function has(text, part) assert.is_truthy(text:find(part, 1, true), part) end

-- Records of these paths at s_q 64 and 128, and the changes of each.
local function grid(paths, changes)
  local list = {}
  for i, path in ipairs(paths) do
    for _, s_q in ipairs { 64, 128 } do
      local case = { s_q = s_q }
      for key, value in pairs(changes or {}) do case[key] = value end
      list[#list + 1] = some.record(100 * s_q / i, { path = path, case = case })
    end
  end
  return list
end

local function joined(...)
  local all = {}
  for _, list in ipairs { ... } do
    for _, r in ipairs(list) do all[#all + 1] = r end
  end
  return all
end

describe("pictures.curves", function()
  it("draws every arm, auto and providers too, and says what does not vary, samples, noise and options", function()
    local svg = pictures.curves(grid { "padded", "gather", "packed", "auto", "flashmla" })
    for _, text in ipairs {
      ">padded<", ">gather<", ">packed<", ">auto<", ">flashmla<", ">over padded<",
      ">all: NVIDIA H200, 132 multiprocessors, csa lists, layout vllm, 8 heads, h_pad 64, d_qk 512, topk 640, hot caches, "
        .. "seed 0<",
      ">bars: 5th to 95th percentile of 30 samples; noise: medians are known to +-0.3 % or better (95 %)<",
      ">NVIDIA H200, commit aaaaaaaaaaaa, 2026-01-02T03:04:05Z; options: --device cuda:0<",
    } do has(svg, text) end
  end)

  it("has panels for each combination of the axes that vary, of priors other than the usual too", function()
    local svg = pictures.curves(joined(grid({ "padded", "gather" }, { ratio = 1, preset = "a" }),
      grid({ "padded", "gather" }, { ratio = 4, preset = "b" }), grid({ "padded" }, { ratio = 4, preset = "b", prior = 5 })))
    has(svg, ">a, ratio 1<")
    has(svg, ">b, ratio 4<")
    has(svg, ">b, ratio 4, prior 5<")
  end)

  it("has one panel for chunks behind the same prior, usual for one of them", function()
    local svg = pictures.curves(joined(grid({ "padded" }, { prior = 8128 })))
    has(svg, "prior 8128, ")
    local _, titles = svg:gsub(">prior 8128<", "")
    assert.equal(0, titles)
    local _, axes = svg:gsub(">time %(median%)<", "")
    assert.equal(1, axes)
  end)

  it("tells providers apart by colour and dash", function()
    local names, lines = { "padded" }, {}
    for i = 1, 12 do names[#names + 1] = ("provider %02d"):format(i) end
    local n = 0
    for line in pictures.curves(grid(names)):gmatch('<path d="[^"]+" (class="s%d fn" stroke%-width="1.8"[^/]*)/>') do
      n, lines[line] = n + 1, true
    end
    local different = 0
    for _ in pairs(lines) do different = different + 1 end
    assert.equal(25, n) -- 13 times, and 12 speed-ups over padded
    assert.equal(13, different)
  end)

  it("marks gates within what was measured; a gate of 0 at the first s_q", function()
    local marks = { { x = 0, label = "always" }, { x = 2048, label = "published" } }
    local svg = pictures.curves(grid { "padded", "gather" }, { marks = marks })
    has(svg, ">always<")
    assert.is_nil(svg:find("published", 1, true))
  end)

  it("draws for a terminal, and nothing for records without a time", function()
    has(pictures.curves(grid { "padded", "gather" }, { text = true }), "\na padded, b gather\n")
    assert.is_nil(pictures.curves { some.failed() })
    assert.is_nil(pictures.curves {})
  end)
end)

describe("pictures.heat", function()
  it("names the quickest path of each pair and its speed-up; padded alone is no choice", function()
    local list = joined(grid({ "padded", "gather", "packed" }, { h_q = 4 }), grid({ "padded", "gather" }, { h_q = 8 }),
      { some.record(5, { path = "padded", case = { h_q = 8, s_q = 256 } }) })
    local maps = pictures.heat(list, "h_q")
    assert.equal(1, #maps)
    local _, cells = maps[1]:gsub('class="p%d fw"', "")
    assert.equal(4, cells)
    assert.is_nil(maps[1]:find(">256<", 1, true)) -- no cell there has a choice
    has(maps[1], ">3x</text>")
    has(maps[1], ">2x</text>")
    assert.same({}, pictures.heat(list, "ratio"))
  end)
end)

describe("pictures.roofline", function()
  it("puts paths below the device's ceilings, and knows no ceilings of others", function()
    local svg = pictures.roofline(grid { "padded", "gather" })
    has(svg, ">memory, 4.28 TB/s<")
    has(svg, ">tensor cores, 813 TFLOP/s<")
    assert.is_nil(pictures.roofline { some.record(1, { run = { device = "CPU" } }) })
  end)
end)

describe("other pictures", function()
  it("draw the union of groups, layers, traffic and serving", function()
    local union = {}
    for i, group in ipairs { 4, 8 } do union[i] = some.record(1, { plan = { group = group, dedup = i + 1 } }) end
    has(pictures.union(union), ">lists, s_q 64<")
    assert.is_nil(pictures.union { union[1] })

    local layers = pictures.layers { some.record(10000, { case = { layers = 40 }, plans = { us = 1000 } }) }
    has(layers, ">10.00 ms</text>")
    has(layers, "<title>plans: 1.00 ms</title>")
    assert.is_nil(pictures.layers { some.record(1) })

    local timeline = pictures.timeline { some.record(10000, { path = "packed", case = { layers = 2 }, timeline = {
      { list = 1, ratio = 0, us = 500 }, { list = 1, layer = 1, ratio = 0, us = 1500 }, { list = 2, ratio = 4, us = 250 },
      { list = 2, layer = 2, ratio = 4, us = 2000 } } }) }
    for _, text in ipairs { ">plan</text>", ">layer, window only</text>", ">layer, ratio 4</text>", ">4.250 ms</text>",
      "<title>layer 2 of list 2: 2.000 ms</title>", "<title>plan of list 1: 0.500 ms</title>" } do
      has(timeline, text)
    end
    assert.is_nil(pictures.timeline { some.record(1, { case = { layers = 2 } }) })

    local chunks = { counts = { { s_q = 64, count = 3 }, { s_q = 128, count = 1 } }, chunks = 4, rows = 320 }
    local traffic = pictures.traffic(chunks, { marks = { { x = 100, label = "gate 100" } } })
    has(traffic, ">gate 100<")
    has(traffic, ">rows in them<")

    local seen = pictures.serving()
    local ab = fh.serve { workload = "C16x8kx48", engine = "h20x8-tp8", repetitions = 2, on_step = seen.on_step }
    has(seen:svg(), ">gate 2048</text>")
    for _, name in ipairs { "whole step", "attention", "all else" } do has(seen:svg(), ">" .. name .. "<") end
    local tops = 0 -- all arms on one axis, up to 1000 ms
    for _ in seen:svg():gmatch(">1000</text>") do tops = tops + 1 end
    assert.equal(2, tops)
    has(pictures.ttft(ab), ">Time to first token<")
    local count = 0
    for _ in pictures.ttft(ab):gmatch("<circle") do count = count + 1 end
    assert.equal(48 + 1, count) -- a request each, and the legend's
  end)
end)
