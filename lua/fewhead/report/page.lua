--- Page: one HTML file of a run: where its numbers come from, the pictures, a table that sorts and filters, and the command that
-- repeats each row. It works from a file, asks the network for nothing, and is readable without scripts.
--
--     local page = require "fewhead.report.page"
--     assert(page.write("run.html", found.records, { title = "H200" }))
--
-- All text goes into the page escaped, and no data into its script: a name with a closing script tag is shown like any other.
local args = require "fewhead.base.arguments"
local axes = require "fewhead.record.axes"
local file = require "fewhead.record.file"
local pictures = require "fewhead.report.pictures"
local plot = require "fewhead.report.plot"
local record_room = require "fewhead.record.record"
local source = require "fewhead.report.source"
local shell = require "fewhead.base.shell"

local M = {}

local escape = plot.escape

--- So many records have a row in the page. A browser sorts these at once; the page says how many it leaves out.
M.most_rows = 4000
-- So many records that did not pass are listed with their reasons.
local MOST_FAILURES = 200
-- Text longer than this is cut by the browser until its row is clicked; without scripts it breaks into lines.
local LONG = 36
-- Longer text scrolls in a box of its own, where rows cannot be clicked.
local SCROLLED = 600

local STYLE = [[
:root{color-scheme:light dark;--bg:#fff;--fg:#222;--dim:#595959;--line:#d8d8d8;--head:#f2f3f5;--link:#00539b;--bad:#a61c00}
@media screen and (prefers-color-scheme:dark){
:root{--bg:#16181c;--fg:#e6e6e6;--dim:#b4b4b4;--line:#3a3f46;--head:#23272d;--link:#8cc4ff;--bad:#ff9d8a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:1500px;background:var(--bg);color:var(--fg)}
body{font:15px/1.45 system-ui,"DejaVu Sans",sans-serif}
h1{font-size:1.5rem;margin:.2rem 0;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:1.6rem 0 .5rem}
p{margin:.4rem 0;max-width:75em;overflow-wrap:anywhere}.dim{color:var(--dim)}.bad{color:var(--bad)}a{color:var(--link)}
.wide{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:.22rem .55rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top}
td{max-width:60ch;overflow-wrap:anywhere}
th{background:var(--head);vertical-align:bottom}
th.l,td.l{text-align:left}
.wide td.l{min-width:9ch}.long{max-height:9em;overflow:auto;min-width:30ch}
.rows th{position:sticky;top:0;cursor:pointer}
.rows th[aria-sort=ascending]:after{content:" \2191"}.rows th[aria-sort=descending]:after{content:" \2193"}
.rows td{white-space:nowrap;overflow:hidden;text-overflow:ellipsis;max-width:36ch}
.rows td.c{min-width:36ch}
.rows tr.on td{white-space:normal;max-width:60ch}
body:not(.js) .rows td.c{white-space:normal;min-width:110ch}
.rows tr.on td{background:var(--head)}
.scroll{max-height:75vh;overflow:auto;border:1px solid var(--line)}
figure{margin:.8rem 0;overflow-x:auto}figure svg{max-width:100%;height:auto;min-width:560px;border:1px solid var(--line)}
.tools{display:flex;flex-wrap:wrap;gap:.5rem 1rem;margin:.5rem 0;align-items:center}
.tools label{display:flex;gap:.35rem;align-items:center;color:var(--dim);min-width:0;max-width:100%}
select{min-width:0;width:auto;flex:0 1 auto}
input,select,button{font:inherit;color:inherit;background:var(--bg);border:1px solid var(--line)}
input,select,button{padding:.2rem .4rem;max-width:100%}
pre{background:var(--head);padding:.6rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:12.5px;margin:.4rem 0}
body:not(.js) .js,.late{display:none}
@media print{.tools,body .js{display:none}.late{display:table-row}.scroll{max-height:none;overflow:visible;border:0}
.rows th{position:static}body{max-width:none;font-size:11px}figure{break-inside:avoid}table{font-size:9px}
.rows td,body:not(.js) .rows td.c{white-space:normal;min-width:0;overflow-wrap:normal}.rows td.c{overflow-wrap:anywhere}
.rows td,.rows th{padding:1px 3px;font-size:8px}@page{size:landscape;margin:1cm}
.rows td:last-child,.rows th:last-child{display:none}}
]]

-- Sorting, filters and the command of a row. It reads the table that is there; nothing is embedded.
local SCRIPT = [[
"use strict";
document.body.classList.add("js");
for (const box of document.querySelectorAll("section.data")) {
  const table = box.querySelector("table.rows"), body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const most = 200, more = box.querySelector("button.more");
  let rows = null, order = null, all = false;
  const text = box.querySelector("input"), selects = [...box.querySelectorAll("select")];
  const count = box.querySelector(".count");
  const load = () => rows ||
    (rows = [...body.rows].map((tr, i) => ({ tr, i, t: [...tr.cells].map(c => c.textContent) })));
  const value = text => { const n = parseFloat(text); return text === "" || text === "-" || isNaN(n) ? null : n; };
  // A browser lays out hundreds of rows at once and thousands slowly: the rest of the rows waits for the button.
  const show = () => {
    let n = 0;
    for (const r of order || load()) {
      if (!r.out) n++;
      r.tr.hidden = r.out || false;
      r.tr.classList.toggle("late", !all && n > most);
    }
    more.hidden = all || n <= most;
    more.textContent = "show all " + n + " rows";
    count.textContent = n + " of " + rows.length + " rows";
  };
  heads.forEach((th, k) => {
    th.tabIndex = 0;
    const sort = () => {
      const down = th.getAttribute("aria-sort") === "ascending";
      heads.forEach(h => h.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const numbers = !th.classList.contains("l"), sign = down ? -1 : 1;
      for (const r of load()) r.key = numbers ? value(r.t[k]) : r.t[k];
      order = [...rows].sort((a, b) => {
        if (a.key === b.key) return a.i - b.i;
        if (a.key === null) return 1;
        if (b.key === null) return -1;
        return (a.key < b.key ? -1 : 1) * sign;
      });
      table.removeChild(body);
      body.append(...order.map(r => r.tr));
      show();
      table.append(body);
    };
    th.addEventListener("click", sort);
    th.addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); sort(); } });
  });
  selects.forEach(select => {
    const k = +select.dataset.column, seen = new Set(load().map(r => r.t[k]));
    [...seen].sort((a, b) => (value(a) ?? 0) - (value(b) ?? 0) || (a < b ? -1 : 1)).forEach(v => {
      const option = document.createElement("option");
      option.value = option.textContent = v;
      select.append(option);
    });
  });
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(w => w);
    const wanted = selects.filter(s => s.selectedIndex > 0).map(s => [+s.dataset.column, s.value]);
    for (const r of load()) {
      const line = words.length ? r.t.join("\t").toLowerCase() : "";
      r.out = !(words.every(w => line.includes(w)) && wanted.every(([k, v]) => r.t[k] === v));
    }
    show();
  };
  more.addEventListener("click", () => { all = true; show(); });
  show();
  text.addEventListener("input", filter);
  selects.forEach(s => s.addEventListener("change", filter));
  const pre = box.querySelector("pre.command");
  body.addEventListener("click", e => {
    const tr = e.target.closest("tr");
    if (!tr || !pre) return;
    body.querySelectorAll("tr.on").forEach(r => r.classList.remove("on"));
    tr.classList.add("on");
    const cells = [...tr.cells].map(c => c.textContent), path = +pre.dataset.path;
    pre.textContent = pre.dataset.text.replace("ROW", () => cells[cells.length - 1]).replace("PATH", () => cells[path]);
  });
}
]]

-- ---- Pieces -----------------------------------------------------------------------------------------------------------------

-- A table of rows and columns { title, align, of = function(row) -> text or nil }.
local function add_table(out, rows, columns, class)
  out[#out + 1] = ("<table%s><thead><tr>"):format(class and (' class="%s"'):format(class) or "")
  for _, column in ipairs(columns) do
    out[#out + 1] = ("<th%s>%s</th>"):format(column.left and ' class="l"' or "", escape(column.title))
  end
  out[#out + 1] = "</tr></thead><tbody>\n"
  for _, row in ipairs(rows) do
    local cells = {}
    for j, column in ipairs(columns) do
      local text = column.of(row)
      text = text == nil and "-" or tostring(text)
      if #text > SCROLLED and not class then
        cells[j] = ('<td class="l"><div class="long">%s</div>'):format(escape(text))
      else
        cells[j] = (column.left and (#text > LONG and '<td class="l c">' or '<td class="l">') or "<td>") .. escape(text)
      end
    end
    out[#out + 1] = "<tr>" .. table.concat(cells) .. "\n"
  end
  out[#out + 1] = "</tbody></table>"
end

--- A markdown table as HTML.
function M.table_of_markdown(text)
  local rows, columns = {}, nil
  for line in text:gmatch("[^\n]+") do
    local cells = {}
    for cell in line:gsub("\\|", "\1"):gmatch("([^|]*)|") do cells[#cells + 1] = (cell:match("^%s*(.-)%s*$"):gsub("\1", "|")) end
    table.remove(cells, 1)
    if not columns then
      columns = {}
      for j, title in ipairs(cells) do columns[j] = { title = title, of = function(row) return row[j] end } end
    elseif cells[1] and cells[1]:find("^%-+:?$") then
      for j, rule in ipairs(cells) do columns[j].left = rule:sub(-1) ~= ":" end
    else rows[#rows + 1] = cells end
  end
  local out = { '<div class="wide">' }
  add_table(out, rows, columns)
  out[#out + 1] = "</div>"
  return table.concat(out)
end

local function number(format, value) return value and format:format(value) end

-- ---- The command of a row ---------------------------------------------------------------------------------------------------

-- A value as Lua's source has it.
local function lua_text(value)
  if type(value) == "table" then
    local parts = {}
    for i, each in ipairs(value) do parts[i] = lua_text(each) end
    return "{ " .. table.concat(parts, ", ") .. " }"
  end
  if type(value) == "number" then
    local short = ("%.14g"):format(value)
    return tonumber(short) == value and short or ("%.17g"):format(value)
  end
  if type(value) == "string" then return ("%q"):format(value):gsub("\\\n", "\\n") end
  return tostring(value)
end

-- Fields of a chunk's case that fh.layers takes.
local LAYERS = { "preset", "s_q", "prior", "pattern", "keep", "layout", "seed" }
local OF_LAYERS = {}
for _, name in ipairs(LAYERS) do OF_LAYERS[name] = true end

-- What a row's command needs: the fields that are the same in all cases as text, and a function that gives those of one case.
local function case_text(records, known)
  local first, varies, names = records[1].case, {}, {}
  for _, r in ipairs(records) do
    for name, value in pairs(r.case) do
      if names[name] == nil then names[name] = true end
      if varies[name] == nil then varies[name] = false end
      if type(value) == "table" or first[name] ~= value then varies[name] = true end
    end
    for name in pairs(first) do
      if r.case[name] == nil then varies[name] = true end
    end
  end
  local list = {}
  for name in pairs(names) do
    if not known or known[name] then list[#list + 1] = name end
  end
  table.sort(list)
  local function text(case, wanted)
    local parts = {}
    for _, name in ipairs(list) do
      if varies[name] == wanted and case[name] ~= nil then parts[#parts + 1] = ("%s = %s"):format(name, lua_text(case[name])) end
    end
    return table.concat(parts, ", ")
  end
  return text(first, false), function(case) return text(case, true) end
end

-- The command with ROW and PATH for what a row says.
local function command_text(records, constant, chunks)
  local env = records[1].run and records[1].run.kind == "cuda" and "FEWHEAD_DEVICE=cuda:0 " or ""
  local fields = constant ~= "" and constant .. ", ROW" or "ROW"
  local call = chunks and ('print(fh.layers { paths = { "padded", "PATH" }, %s })'):format(fields)
    or ('print(fh.compare(fh.case { %s }, { "padded", "PATH" }))'):format(fields)
  return ("echo %s | %s./fewhead repl"):format(shell.quote(call), env)
end

-- ---- The table of records ---------------------------------------------------------------------------------------------------

local function columns_of(records, found, row_text)
  local columns, any = {}, {}
  for _, r in ipairs(records) do
    for _, name in ipairs { "cell", "set", "kernel", "time", "verdict", "plan" } do any[name] = any[name] or r[name] ~= nil end
    if r.time and r.time.plan_us then any.plan_us = true end
    if r.work and r.work.waste then any.waste = true end
    if r.parity.status ~= "pass" then any.reason = true end
  end
  local function add(title, of, left) columns[#columns + 1] = { title = title, of = of, left = left } end
  for _, name in ipairs(found.varying) do
    local left = false
    for _, flat in ipairs(found.flats) do left = left or flat[name] ~= nil and type(flat[name]) ~= "number" end
    add(name, function(row) return row.flat[name] end, left)
    columns[#columns].choice = true
  end
  add("path", function(row) return row.r.path end, true)
  columns[#columns].choice, columns[#columns].path = true, true
  if any.time then
    local function time(key) return function(row) return row.r.time and number("%.1f", row.r.time[key]) end end
    add("median us", time "median_us")
    if any.verdict then
      add("speed-up", function(row) return row.r.verdict and number("%.2f", row.r.verdict.ratio) end)
      add("over", function(row)
        return row.r.verdict and ("%s: %s"):format(tostring(row.r.verdict.against), tostring(row.r.verdict.verdict))
      end, true)
    end
    add("p05", time "p05_us")
    add("p95", time "p95_us")
    add("n", function(row) return row.r.time and row.r.time.n end)
    add("noise %", function(row)
      local t = row.r.time
      local known = t and t.median_hi_us and t.median_us > 0
      return known and number("%.1f", 50 * (t.median_hi_us - t.median_lo_us) / t.median_us) or nil
    end)
    add("useful TFLOP/s", function(row)
      local r = row.r
      local us = r.time and r.time.median_us or 0
      return us > 0 and r.work and number("%.3g", r.work.useful_flops / us / 1e6) or nil
    end)
  end
  if any.waste then
    add("waste %", function(row) return row.r.work and row.r.work.waste and number("%.1f", 100 * row.r.work.waste) end)
  end
  if any.plan_us then add("plan us", function(row) return row.r.time and number("%.1f", row.r.time.plan_us) end) end
  if any.plan then
    add("dedup", function(row) return type(row.r.plan) == "table" and number("%.2f", row.r.plan.dedup) or nil end)
  end
  add("parity", function(row) return row.r.parity.status end, true)
  add("max error", function(row) return number("%.1e", row.r.parity.max_abs) end)
  if any.reason then
    add("reason", function(row) return row.r.parity.status ~= "pass" and row.r.parity.reason or nil end, true)
  end
  if any.kernel then add("kernel", function(row) return row.r.kernel end, true) end
  if any.cell then add("cell", function(row) return record_room.cell_name(row.r) end, true) end
  if any.set then add("set", function(row) return row.r.set end, true) end
  add("case", function(row) return row_text(row.r.case) end, true)
  return columns
end

-- Fields with more values than this have no list to choose from.
local MOST_CHOICES = 60

local function add_records(out, title, records, chunks, most)
  local found = axes.of(records)
  local constant, row_text = case_text(records, chunks and OF_LAYERS)
  local columns = columns_of(records, found, row_text)
  local rows = {}
  for i = 1, math.min(most, #records) do rows[i] = { r = records[i], flat = found.flats[i] } end
  out[#out + 1] = ('<section class="data" id="%s"><h2>%s</h2>'):format(chunks and "chunks" or "records", escape(title))
  out[#out + 1] = ("<p>All rows: %s.</p>"):format(escape(found:constant_text()))
  if #rows < #records then
    out[#out + 1] = ('<p class="bad">This page shows the first %d of %d records. The other %d are in the files; '
      .. "--where FIELD=VALUE makes a page of those that you name.</p>"):format(#rows, #records, #records - #rows)
  end
  out[#out + 1] = '<div class="tools js"><label>Filter <input type="search" placeholder="words that rows must have"></label>'
  local path_column
  for j, column in ipairs(columns) do
    if column.path then path_column = j - 1 end
    local seen, n = {}, 0
    for _, row in ipairs(column.choice and rows or {}) do
      local text = tostring(column.of(row))
      if not seen[text] then seen[text], n = true, n + 1 end
    end
    if n > 1 and n <= MOST_CHOICES then
      out[#out + 1] = ('<label>%s <select data-column="%d"><option>all</option></select></label>'):format(
        escape(column.title), j - 1)
    end
  end
  out[#out + 1] = ('<span class="count dim">%d rows</span> <button class="more" hidden></button></div>'):format(#rows)
  out[#out + 1] = '<div class="scroll">'
  add_table(out, rows, columns, "rows")
  out[#out + 1] = "</div>"
  for _, r in ipairs(records) do
    if r.case.pattern == "function" then -- no command holds the function
      out[#out + 1] = "<p>Rows whose pattern is a function cannot be repeated from here: the function is not in the records.</p>"
      out[#out + 1] = "</section>"
      return
    end
  end
  local text = command_text(records, constant, chunks)
  out[#out + 1] = ('<p>To repeat a row, run this with the row\'s column "case" for ROW and its path for PATH<span class="js">, '
    .. 'or click the row</span>:</p><pre class="command" data-path="%d" data-text="%s">%s</pre></section>'):format(path_column,
    escape(text), escape(text))
end

local function add_runs(out, records)
  local count = {}
  for _, r in ipairs(records) do
    local id = r.run and r.run.id
    if id then count[id] = (count[id] or 0) + 1 end
  end
  local runs = source.runs(records)
  if #runs == 0 then return end
  local function of(key, title)
    return { title = title or key, left = true, of = function(run) return run[key] end }
  end
  out[#out + 1] = "<section id=\"runs\"><h2>Where the numbers come from</h2><div class=\"wide\">"
  add_table(out, runs, {
    of "device", { title = "commit", left = true, of = function(run)
      return tostring(run.commit):sub(1, 12) .. (run.dirty and " with changes" or "")
    end },
    of "date", of "driver", { title = "threads, instruction set", left = true, of = function(run)
      return run.threads and ("%s, %s"):format(tostring(run.threads), tostring(run.isa)) or run.multiprocessors
        and ("%s multiprocessors, capability %s"):format(tostring(run.multiprocessors), tostring(run.capability)) or nil
    end },
    { title = "options", left = true, of = pictures.command_text }, of("build", "library"), of("id", "run"),
    { title = "records", of = function(run) return count[run.id] end },
  })
  out[#out + 1] = "</div></section>"
end

local function add_failures(out, records)
  local failed = {}
  for _, r in ipairs(records) do
    if r.parity.status ~= "pass" then failed[#failed + 1] = r end
  end
  if #failed == 0 then return 0 end
  out[#out + 1] = ('<section><h2>What did not pass: %d</h2><div class="wide">'):format(#failed)
  local some = { unpack(failed, 1, math.min(#failed, MOST_FAILURES)) }
  local found = axes.of(some)
  local rows = {}
  for i, r in ipairs(some) do rows[i] = { r = r, label = axes.label(found.flats[i], found.varying) } end
  add_table(out, rows, {
    { title = "path", left = true, of = function(row) return row.r.path end },
    { title = "case", left = true, of = function(row) return row.label end },
    { title = "status", left = true, of = function(row) return row.r.parity.status end },
    { title = "reason", left = true, of = function(row) return row.r.parity.reason end },
  })
  if #some < #failed then out[#out + 1] = ("<p>and %d more.</p>"):format(#failed - #some) end
  out[#out + 1] = "</div></section>"
  return #failed
end

-- ---- The page ---------------------------------------------------------------------------------------------------------------

--- The frame that pages share: title, parts of the body as text.
function M.frame(title, parts, script)
  return table.concat {
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n',
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; ",
    "script-src 'unsafe-inline'\">\n",
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>', escape(title), "</title>\n<style>\n", STYLE,
    plot.style, "\n</style></head><body>\n", table.concat(parts, "\n"), "\n",
    script and "<script>\n" .. script .. "</script>\n" or "", "</body></html>\n",
  }
end

--- The page of records as text. o = { title = "Results", marks = gates for pictures.curves, skipped = messages of lines that were
-- left out, most_rows = 4000, home = { href =, text = } a link at the top }.
function M.html(records, o)
  args.table("page: records", records)
  o = args.options("page", o or {}, { "title", "marks", "skipped", "most_rows", "home" })
  local title, most = o.title or "Results", o.most_rows or M.most_rows
  local head, out = {}, {}
  if o.home then head[1] = ('<p><a href="%s">%s</a></p>'):format(escape(o.home.href), escape(o.home.text)) end
  head[#head + 1] = ("<h1>%s</h1>"):format(escape(title))
  local failed = add_failures(out, records)
  for _, picture in ipairs(pictures.of(records, { marks = o.marks, inline = true })) do
    if #out == 0 or not out.pictures then
      out[#out + 1], out.pictures = "<h2>Pictures</h2>", true
    end
    out[#out + 1] = "<figure>" .. picture.svg .. "</figure>"
  end
  local calls, chunks = {}, {}
  for _, r in ipairs(records) do
    local into = r.case.layers and chunks or calls
    into[#into + 1] = r
  end
  if #calls > 0 then add_records(out, "Records", calls, false, most) end
  if #chunks > 0 then add_records(out, "Chunks through all layers", chunks, true, most) end
  local runs = source.runs(records)
  head[#head + 1] = ("<p>%d records of %d run%s; %s. "):format(#records, #runs, #runs == 1 and "" or "s",
    failed == 0 and (#records > 0 and "all passed parity" or "nothing was measured") or failed .. " did not pass")
    .. (#calls > 0 and '<a href="#records">The table</a>. ' or "") .. (#chunks > 0 and '<a href="#chunks">Chunks</a>. ' or "")
    .. (#runs > 0 and '<a href="#runs">Where the numbers come from</a>.</p>' or "</p>")
  if o.skipped and #o.skipped > 0 then
    head[#head + 1] = ('<p class="bad">Lines left out, since they are no records: %d. The first: %s</p>'):format(#o.skipped,
      escape(o.skipped[1]))
  end
  add_runs(out, records)
  local parts = {}
  for _, list in ipairs { head, out } do
    for _, text in ipairs(list) do parts[#parts + 1] = text end
  end
  return M.frame(title, parts, #records > 0 and SCRIPT or nil)
end

--- Write that page to a file, whole or not at all. true | nil, error.
function M.write(path, records, o)
  args.string("page.write: path", path)
  return file.write(path, M.html(records, o))
end

-- A tail call: errors blame the caller, as for M.html itself.
return setmetatable(M, { __call = function(_, ...) return M.html(...) end })
