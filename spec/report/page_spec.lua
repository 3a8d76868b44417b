local fh = require "fewhead"
local helper = require "spec.helper"
local page = fh.page
local some = require "spec.report.some_records"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

local function has(text, part) assert.is_truthy(text:find(part, 1, true), part) end

local function count(text, pattern) return select(2, text:gsub(pattern, "")) end

-- n records of several axes and paths.
local function many(n)
  local list = {}
  for i = 1, n do
    list[i] = some.record(100 + (i * 7919) % 1000, { path = ({ "padded", "gather", "packed", "auto" })[i % 4 + 1],
      case = { s_q = 64 * math.floor(i / 4 + 1), ratio = i % 3 + 1 } })
  end
  return list
end

-- Names that broke other pages.
local HOSTILE = {
  "</ScRiPt><script>document.title='broken'</script>", "<!-- open", '"\\"oops\\""', "&lt;", "]]>", "\226\128\168",
  ("x"):rep(10240),
}

local function hostile()
  local list = {}
  for i, name in ipairs(HOSTILE) do
    list[i] = some.record(i, { path = name, case = { pattern = name }, run = { device = name, id = name } })
    list[#HOSTILE + i] = some.failed { path = name, case = { indices = name } }
    list[#HOSTILE + i].parity.reason = name
  end
  return list
end

describe("a page", function()
  it("has the pictures, a table with a row a record, where numbers come from and the command of a row", function()
    local html = page.html(many(8), { title = "H200", marks = { { x = 100, label = "gate 100" } } })
    has(html, "<title>H200</title>")
    has(html, "<p>8 records of 1 run; all passed parity. ")
    has(html, ">gate 100</text>")
    assert.equal(8, count(html:match('<table class="rows">.-</table>'), "\n<tr>"))
    has(html, '<td class="l">aaaaaaaaaaaa<')
    has(html, '<td class="l">--device cuda:0<')
    has(html, "echo &#39;print(fh.compare(fh.case { d_qk = 512, h_pad = 64, h_q = 8, layout = &quot;vllm&quot;, "
      .. "pattern = &quot;csa&quot;, seed = 0, topk = 640, ROW }, { &quot;padded&quot;, &quot;PATH&quot; }))&#39; "
      .. "| FEWHEAD_DEVICE=cuda:0 ./fewhead repl")
    has(html, '<td class="l">ratio = 2, s_q = 64\n')
  end)

  it("gives a command that runs", function()
    local case = { s_q = 4, h_q = 8, topk = 64, pattern = "uniform", s_kv = 128 }
    local r = some.record(1, { case = case, run = { kind = "cpu" } })
    local html = page.html { r }
    local command = html:match('<pre class="command"[^>]*>(.-)</pre>'):gsub("&#39;", "'"):gsub("&quot;", '"'):gsub("&gt;", ">")
    command = command:gsub(", ROW", ""):gsub("PATH", "gather")
    local text, status = helper.shell(("cd %s && FEWHEAD_DEVICE=cpu FEWHEAD_THREADS=1 sh -c %s"):format(helper.root,
      helper.quoted(command)))
    assert.equal(0, status, text)
    assert.matches("gather", text)
    assert.matches("padded", text)
  end)

  it("asks the network for nothing", function()
    local html = page.html(many(4))
    has(html, "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\"")
    local rest = html:gsub('xmlns="http://www.w3.org/2000/svg"', "")
    for _, pattern in ipairs { "https?:", "src=", "url%(", "@import", "<link", "<iframe" } do
      assert.is_nil(rest:find(pattern), pattern)
    end
  end)

  it("shows hostile names literally", function()
    local html = page.html(hostile(), { title = HOSTILE[1], skipped = { HOSTILE[1] } })
    assert.equal(1, count(html, "<script>"))
    assert.equal(1, count(html, "</script>"))
    assert.is_nil(html:find("<!-- open", 1, true))
    has(html, "&lt;/ScRiPt&gt;&lt;script&gt;document.title=&#39;broken&#39;&lt;/script&gt;")
    has(html, "&lt;!-- open")
    has(html, "&quot;\\&quot;oops\\&quot;&quot;")
    has(html, "&amp;lt;")
    has(html, "]]&gt;")
    has(html, ">" .. ("x"):rep(10240) .. "<")
  end)

  it("takes no records, one, failures only, and says what it leaves out beyond its limit", function()
    has(page.html {}, "<p>0 records of 0 runs; nothing was measured. ")
    assert.is_nil(page.html({}):find("<script", 1, true))
    has(page.html { some.record(1) }, "<p>1 records of 1 run; all passed parity. ")
    local failures = page.html { some.failed(), some.failed() }
    has(failures, "<p>2 records of 1 run; 2 did not pass. ")
    has(failures, '<td class="l">7 of 8 elements\n')
    local html = page.html(many(30), { most_rows = 10 })
    assert.equal(10, count(html:match('<table class="rows">.-</table>'), "\n<tr>"))
    has(html, "This page shows the first 10 of 30 records. The other 20 are in the files; "
      .. "--where FIELD=VALUE makes a page of those that you name.")
  end)

  it("stays under 2 MB with 2,000 records, and in proportion with 20,000", function()
    assert.is_true(#page.html(many(2000)) < 2e6)
    assert.is_true(#page.html(many(20000)) < 4e6)
  end)

  it("is written whole or not at all", function()
    assert.is_true(page.write(folder .. "x.html", many(2)))
    assert.matches("</html>\n$", helper.read(folder .. "x.html"))
    assert.same({ nil, "/dev/null/x: Not a directory" }, { page.write("/dev/null/x", many(2)) })
  end)
end)

-- What a browser makes of a page: the page with a script of the spec behind its own, printed as the browser holds it then.
local function browsed(html, script)
  local path = helper.write(folder .. "page.html", (html:gsub("</body>", function()
    return ("<pre id=result></pre><script>%s</script></body>"):format(script)
  end)))
  local text = helper.shell(("timeout 120 chromium --headless --no-sandbox --disable-gpu --window-size=400,800 "
    .. "--user-data-dir=%sprofile --virtual-time-budget=5000 --dump-dom file://%s 2>/dev/null"):format(folder, path))
  return text:match('<pre id="result">(.-)</pre>')
end

local found, absent = helper.shell("command -v chromium")
local in_browser = absent == 0 and found ~= "" and it
  or function(name) pending(name .. ": not run, chromium is not installed", function() end) end

describe("a page in a browser", function()
  in_browser("sorts by a click, the other way by a second one, filters, and gives a row's command", function()
    local result = browsed(page.html(many(40)), [==[
      const table = document.querySelector("table.rows"), heads = [...table.tHead.rows[0].cells].map(th => th.textContent);
      const k = heads.indexOf("median us"), out = [];
      const column = () => [...table.tBodies[0].rows].filter(r => !r.hidden).map(r => +r.cells[k].textContent);
      const rising = list => list.every((v, i) => i === 0 || list[i - 1] <= v);
      out.push(rising(column()));
      table.tHead.rows[0].cells[k].click();
      out.push(rising(column()), table.tHead.rows[0].cells[k].getAttribute("aria-sort"));
      table.tHead.rows[0].cells[k].click();
      out.push(rising(column().reverse()), column().length);
      const input = document.querySelector("input");
      input.value = "packed"; input.dispatchEvent(new Event("input"));
      out.push(column().length, document.querySelector(".count").textContent);
      const row = [...table.tBodies[0].rows].find(r => !r.hidden);
      row.cells[0].click();
      out.push(document.querySelector("pre.command").textContent.includes(row.cells[heads.indexOf("case")].textContent + " }, "
        + '{ "padded", "packed" }'));
      document.getElementById("result").textContent = out.join("; ");]==])
    assert.equal("false; true; ascending; true; 40; 10; 10 of 40 rows; true", result)
  end)

  in_browser("shows 200 rows at first and all at a click", function()
    local result = browsed(page.html(many(250)), [==[
      const shown = () => [...document.querySelectorAll("table.rows tbody tr")].filter(r => r.getClientRects().length).length;
      const out = [shown(), document.querySelector("button.more").textContent];
      document.querySelector("button.more").click();
      out.push(shown(), document.querySelector("button.more").hidden);
      document.getElementById("result").textContent = out.join("; ");]==])
    assert.equal("200; show all 250 rows; 250; true", result)
  end)

  in_browser("prints all rows and no tools", function()
    local html = page.html(many(250)):gsub("@media print", "@media all")
    assert.equal("250; false", browsed(html, [==[
      const seen = e => e.getClientRects().length > 0;
      document.getElementById("result").textContent = [...document.querySelectorAll("table.rows tbody tr")].filter(seen).length
        + "; " + seen(document.querySelector(".tools"));]==]))
  end)

  in_browser("shows hostile names as text: title untouched, no error, every picture valid XML", function()
    local html = page.html(hostile(), { title = "plain" }):gsub("<script>", function()
      return "<script>window.errors=0;window.onerror=()=>{window.errors++}</script><script>"
    end, 1)
    local result = browsed(html, [==[
      const cells = [...document.querySelectorAll("td")].map(c => c.textContent), out = [document.title, window.errors];
      const names = ["<" + "/ScRiPt><scr" + "ipt>document.title='broken'</scr" + "ipt>", "<" + "!-- open", '"\\"oops\\""',
        "&" + "lt;", "]]>", "\u2028", "x".repeat(10240)];
      out.push(names.filter(n => cells.includes(n)).length);
      out.push([...document.querySelectorAll("svg")].every(s => !new DOMParser().parseFromString(
        new XMLSerializer().serializeToString(s), "image/svg+xml").querySelector("parsererror")));
      document.getElementById("result").textContent = out.join("; ");]==])
    assert.equal("plain; 0; 7; true", result)
  end)

  in_browser("keeps within the window's width, and has a contrast of at least 4.5 in both schemes", function()
    local script = [==[
      const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const rgb = t => t.match(/[\d.]+/g).slice(0, 3).map(v => linear(v / 255));
      const light = c => { const [r, g, b] = rgb(c); return .2126 * r + .7152 * g + .0722 * b; };
      const contrast = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05);
      const ground = getComputedStyle(document.body).backgroundColor;
      let least = 99;
      for (const e of document.querySelectorAll("p,td,h1,h2,a,label,pre")) {
        least = Math.min(least, contrast(getComputedStyle(e).color, ground));
      }
      for (const e of document.querySelectorAll("svg text")) {
        const paper = e.closest("svg").querySelector("rect");
        least = Math.min(least, contrast(getComputedStyle(e).fill, getComputedStyle(paper).fill));
      }
      const fits = document.documentElement.scrollWidth <= innerWidth;
      document.getElementById("result").textContent = [least >= 4.5, fits].join("; ");]==]
    local html = page.html(hostile())
    assert.equal("true; true", browsed(html, script))
    local dark = html:gsub("@media screen and %(prefers%-color%-scheme:dark%)", "@media all")
    assert.equal("true; true", browsed(dark, script))
  end)
end)

describe("a page of records whose pattern is a function", function()
  it("has no command that repeats a row", function()
    local html = page.html { some.record(100, { case = { pattern = "function", pattern_name = "mine" } }) }
    assert.is_truthy(html:find("the function is not in the records", 1, true))
    assert.is_nil(html:find('<pre class="command"', 1, true))
  end)
end)
