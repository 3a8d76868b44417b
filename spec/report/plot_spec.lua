local plot = require "fewhead.report.plot"

local function spec(points, changes)
  local s = {
    title = 'a < b & "c"', x = { label = "s_q" },
    panels = { { y = { label = "us", log = 10 }, series = { { name = "padded", points = points } } } },
  }
  for key, value in pairs(changes or {}) do s[key] = value end
  return s
end

-- Every tag opened is closed, in order: what a browser's XML parser asks for.
local function well_formed(svg)
  local open = {}
  for slash, name, rest in svg:gmatch("<(/?)(%a+)([^>]*)>") do
    if slash == "/" then
      assert.equal(table.remove(open), name)
    elseif rest:sub(-1) ~= "/" then
      open[#open + 1] = name
    end
  end
  assert.equal(0, #open)
end

describe("plot.svg", function()
  it("is well-formed, white, plain and labelled", function()
    local svg = plot.svg(spec({ { x = 64, y = 90, lo = 80, hi = 99 }, { x = 128, y = 170 } },
      { marks = { { x = 100, label = "MIN_SQ 100" } } }))
    well_formed(svg)
    assert.matches('^<svg xmlns="http://www.w3.org/2000/svg" ', svg)
    assert.matches("</svg>\n$", svg)
    assert.matches('<rect width="%d+" height="%d+" fill="#ffffff"/>', svg)
    assert.is_nil(svg:find("<script"))
    assert.is_truthy(svg:find("a &lt; b &amp; &quot;c&quot;", 1, true))
    for _, text in ipairs { ">s_q</text>", ">us</text>", ">padded</text>", ">64</text>", ">128</text>", ">MIN_SQ 100</text>" } do
      assert.is_truthy(svg:find(text, 1, true), text)
    end
  end)

  it("places points on a base-2 axis and a base-10 axis", function()
    -- x from 64 to 256 and 0.2 octaves more on either side over 78 .. 630, y from 10 to 1000 over 324 .. 54
    local svg = plot.svg(spec { { x = 64, y = 10 }, { x = 128, y = 100 }, { x = 256, y = 1000 } })
    assert.is_truthy(svg:find('<polyline points="124,324 354,189 584,54"', 1, true))
  end)

  it("draws a spread bar where lo and hi are given, and only there", function()
    local svg = plot.svg(spec { { x = 64, y = 10, lo = 10, hi = 1000 }, { x = 256, y = 100 } })
    assert.is_truthy(svg:find('<path d="M124 324V54M121 324h6M121 54h6"', 1, true))
    local _, bars = svg:gsub("<path ", "")
    assert.equal(1, bars)
  end)

  it("takes a linear axis from zero, with a line across", function()
    local svg = plot.svg(spec(nil, { panels = { { y = { label = "speed-up", zero = true }, lines = { { y = 1, label = "even" } },
      series = { { name = "n", points = { { x = 1, y = 0.5 }, { x = 4, y = 2 } } } } } } }))
    -- ticks every 0.5 from 0 to 2 over 324 .. 54
    assert.is_truthy(svg:find('<polyline points="124,256.5 584,54"', 1, true))
    assert.is_truthy(svg:find('y1="189" x2="630" y2="189" stroke="#666666"', 1, true))
    assert.is_truthy(svg:find(">even</text>", 1, true))
  end)

  it("stands a single point, and equal values", function()
    well_formed(plot.svg(spec { { x = 64, y = 10 } }))
    local flat = { { name = "n", points = { { x = 2, y = 1 }, { x = 4, y = 1 } } } }
    well_formed(plot.svg(spec(nil, { panels = { { y = { label = "r" }, series = flat } } })))
  end)

  it("refuses what it cannot draw on the caller's line", function()
    local function refusal(s)
      local ok, err = pcall(function() plot.svg(s) end)
      assert.is_false(ok)
      return (err:match("plot_spec%.lua:%d+: (.*)$"))
    end
    assert.equal("plot.svg: panels: got no point, wanted at least one", refusal(spec {}))
    assert.equal("plot.svg: x: got 0, wanted a finite number >= 1e-300", refusal(spec { { x = 0, y = 1 } }))
    assert.equal("plot.svg: y: got NaN, wanted a finite number >= 1e-300", refusal(spec { { x = 1, y = 0 / 0 } }))
    assert.equal("plot.svg: y: got inf, wanted a finite number >= 1e-300",
      refusal(spec { { x = 1, y = 1, lo = 1, hi = math.huge } }))
  end)
end)
