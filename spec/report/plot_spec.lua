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

local function has(text, part) assert.is_truthy(text:find(part, 1, true), part) end

-- Whether all text that begins at an x lies within the picture: a letter takes 6.7 pixels at most.
local function inside(svg)
  local width, height = svg:match('width="(%d+)" height="(%d+)"')
  for x, y, rest, text in svg:gmatch('<text x="([%d.]+)" y="([%d.]+)"([^>]*)>([^<]*)<') do
    local plain = text:gsub("&%a+;", "x")
    local letter = tonumber(rest:match('font%-size="(%d+)"') or 12) * 6.7 / 12
    local anchor = rest:match('text%-anchor="(%a+)"')
    local room = #plain * letter * (anchor == "end" and 0 or anchor == "middle" and 0.5 or 1)
    assert.is_true(x + room <= tonumber(width) + 1, text)
    assert.is_true(tonumber(y) <= tonumber(height), text)
  end
end

describe("plot.path_styles", function()
  it("keeps the colours of usual names, and gives other names what is left, in the order of their names", function()
    assert.same({ padded = { colour = 1 }, b = { colour = 5 }, a = { colour = 6 } }, plot.path_styles { "padded", "b", "a" })
    assert.same({ auto = { colour = 7 }, flashmla = { colour = 4 } }, plot.path_styles { "auto", "flashmla" })
  end)

  it("tells 28 names apart", function()
    local names, seen, n = {}, {}, 0
    for i = 1, 29 do names[i] = ("n%02d"):format(i) end
    local styles = plot.path_styles(names)
    for i = 1, 28 do
      local style = styles[names[i]]
      local key = style.colour .. " " .. (style.dash or "")
      assert.is_nil(seen[key], names[i])
      seen[key], n = true, n + 1
    end
    assert.equal(28, n)
    assert.same(styles.n01, styles.n29)
  end)
end)

describe("plot.svg", function()
  it("is well-formed, plain and labelled, with colours for light and dark pages", function()
    local svg = plot.svg(spec({ { x = 64, y = 90, lo = 80, hi = 99 }, { x = 128, y = 170 } },
      { marks = { { x = 100, label = "MIN_SQ 100" } }, subtitle = "all: 8 heads", notes = { "30 samples" } }))
    well_formed(svg)
    assert.matches('^<svg xmlns="http://www.w3.org/2000/svg" ', svg)
    assert.matches("</svg>\n$", svg)
    has(svg, '<rect width="860" height="')
    has(svg, ".fb{fill:#fff}.ft{fill:#222}")
    has(svg, "@media screen and (prefers-color-scheme:dark){.fb{fill:#16181c}.ft{fill:#e6e6e6}")
    assert.is_nil(svg:find("<script"))
    has(svg, "a &lt; b &amp; &quot;c&quot;")
    for _, text in ipairs { ">s_q<", ">us<", ">padded<", ">64<", ">128<", ">MIN_SQ 100<", ">all: 8 heads<", ">30 samples<" } do
      has(svg, text)
    end
    assert.is_nil(plot.svg(spec({ { x = 1, y = 1 } }, { inline = true })):find("<style", 1, true))
  end)

  it("places points on a base-2 axis and a base-10 axis", function()
    -- x from 64 to 256 and 0.2 octaves more on either side over 74 .. 844, y from 10 to 1000 over 307 .. 57
    local svg = plot.svg(spec { { x = 64, y = 10 }, { x = 128, y = 100 }, { x = 256, y = 1000 } })
    has(svg, '<path d="M138.2 307L459 182L779.8 57" class="s1 fn"')
  end)

  it("draws a spread bar where lo and hi are given, and only there", function()
    local svg = plot.svg(spec { { x = 64, y = 10, lo = 10, hi = 1000 }, { x = 256, y = 100 } })
    has(svg, '<path d="M138.2 307V57M135.2 307h6M135.2 57h6" class="s1 fn"/>')
  end)

  it("takes a linear axis from zero, with a line across", function()
    local svg = plot.svg(spec(nil, { panels = { { y = { label = "speed-up", zero = true }, lines = { { y = 1, label = "even" } },
      series = { { name = "n", points = { { x = 1, y = 0.5 }, { x = 4, y = 2 } } } } } } }))
    -- ticks every 0.5 from 0 to 2 over 307 .. 57
    has(svg, '<path d="M138.2 244.5L779.8 57" class="s1 fn"')
    has(svg, '<path d="M74 182L844 182" class="ff fn"')
    has(svg, ">even</text>")
  end)

  it("takes another axis for an outlier that would press the rest flat, and says so", function()
    local function drawn(last)
      local points = {}
      for i = 1, 5 do points[i] = { x = 2 ^ i, y = 1 + i / 10 } end
      points[6] = { x = 64, y = last }
      local panel = { y = { label = "speed-up", zero = true }, series = { { name = "n", points = points } } }
      return plot.svg(spec(nil, { panels = { panel } }))
    end
    has(drawn(2), ">speed-up</text>")
    has(drawn(50), ">speed-up, logarithmic</text>")
  end)

  it("keeps legends, titles and notes apart and inside, however many and long they are", function()
    local series = {}
    for i = 1, 30 do
      local points = { { x = 64, y = i }, { x = 128, y = 2 * i } }
      series[i] = { name = ("arm %d of a kind with a long name"):format(i), points = points }
    end
    local panels = {}
    for i = 1, 5 do panels[i] = { title = ("title "):rep(40), y = { label = "us", log = 10 }, series = series } end
    local svg = plot.svg { title = ("word "):rep(60), subtitle = ("x"):rep(400), x = { label = "s_q" }, panels = panels,
      columns = 2, notes = { ("n"):rep(500) }, plain = true }
    well_formed(svg)
    inside(svg)
    local _, names = svg:gsub(">arm %d+ of a kind", "")
    assert.equal(30, names)
    -- no two names of the legend meet
    local rows = {}
    for x, y, text in svg:gmatch('<text x="([%d.]+)" y="([%d.]+)" class="ft">(arm [^<]*)<') do
      rows[y] = rows[y] or {}
      table.insert(rows[y], { from = tonumber(x) - 35, to = x + #text * 6.7 })
    end
    for _, row in pairs(rows) do
      for i = 2, #row do assert.is_true(row[i].from >= row[i - 1].to) end
    end
  end)

  it("has a panel's title above the topmost tick label of the panel beside it", function()
    local points = { { x = 1, y = 1 }, { x = 2, y = 2 } }
    local series = { { name = "a", points = points } }
    local svg = plot.svg { title = "t", x = { label = "s_q" }, columns = 2, panels = {
      { title = ("long "):rep(20), y = { label = "us" }, series = series },
      { y = { label = "ratio", format = function(v) return v .. "x" end }, series = series },
    } }
    local title = tonumber(svg:match('y="([%d.]+)"[^>]*>long long'))
    local tick = tonumber(svg:match('y="([%d.]+)"[^>]*>2x<'))
    assert.equal(14, tick - title) -- letters of 11 pixels, 3 of them below the line
  end)

  it("stands a single point, and equal values", function()
    well_formed(plot.svg(spec { { x = 64, y = 10 } }))
    local flat = { { name = "n", points = { { x = 2, y = 1 }, { x = 4, y = 1 } } } }
    well_formed(plot.svg(spec(nil, { panels = { { y = { label = "r" }, series = flat } } })))
  end)

  it("shows hostile names literally", function()
    local series = { { name = '"&lt;', points = { { x = 1, y = 1 } } } }
    local svg = plot.svg(spec(nil, { title = "</ScRiPt><script>x</script>\1",
      panels = { { title = "<!-- ]]>", y = { label = "us" }, series = series } } }))
    well_formed(svg)
    has(svg, "&lt;/ScRiPt&gt;&lt;script&gt;x&lt;/script&gt;\239\191\189")
    has(svg, "&lt;!-- ]]&gt;")
    has(svg, "&quot;&amp;lt;")
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

describe("plot.bars", function()
  it("draws parts in proportion, the whole behind the bar", function()
    local svg = plot.bars { title = "t", bars = {
      { name = "a", parts = { { name = "one", value = 3, colour = 1 }, { name = "two", value = 1, colour = 2 } } },
      { name = "b", parts = { { name = "one", value = 2, colour = 1 } } },
    } }
    well_formed(svg)
    local widths = {}
    for width in svg:gmatch('width="([%d.]+)" height="20"') do widths[#widths + 1] = tonumber(width) end
    assert.is_true(math.abs(widths[1] / widths[2] - 3) < 0.01 and math.abs(widths[1] / widths[3] - 1.5) < 0.01)
    has(svg, ">4</text>")
  end)
end)

describe("plot.heat", function()
  it("draws a cell for each pair of values, and a legend of what colours mean", function()
    local svg = plot.heat { title = "t", x = { label = "s_q", values = { 64, 128 } }, y = { label = "h_q", values = { 4, 8 } },
      cells = { { x = 64, y = 4, colour = 1, text = "2x", name = "padded" },
        { x = 128, y = 8, colour = 3, text = "3x", name = "packed" } } }
    well_formed(svg)
    inside(svg)
    for _, text in ipairs { ">2x<", ">3x<", ">padded<", ">packed<", ">s_q<", ">h_q<", ">128<" } do has(svg, text) end
    local _, cells = svg:gsub('class="p%d fw"', "")
    assert.equal(2, cells)
  end)
end)

describe("plot.text", function()
  it("draws curves for a terminal, a letter a series", function()
    local text = plot.text({ title = "t", x = { label = "s_q" }, panels = { { y = { label = "us", log = 10 }, series = {
      { name = "padded", points = { { x = 1, y = 1 }, { x = 4, y = 100 } } },
      { name = "gather", points = { { x = 1, y = 1 }, { x = 4, y = 10 } } },
    } } } }, 30, 5)
    assert.equal(table.concat({
      "t",
      "us",
      "100 |                      a",
      "    |",
      "    |                      b",
      "    |",
      "  1 |  *",
      "     1          s_q          4",
      "a padded, b gather",
    }, "\n"), text)
  end)
end)
