-- Makes the tables in the documents, and the pages and pictures in results/, from the records there, so that a number stands in
-- one place.
--
--   luajit tools/docs.lua                  writes the tables anew in README.md, docs/ and the READMEs of results/ and kernels/,
--                                          and results/index.html, results/DEVICE/index.html, results/DEVICE/speedup.svg
--   luajit tools/docs.lua --check          writes nothing; names all that differs and each link to no file; status 1 then
--   luajit tools/docs.lua [--check] FILE.. only these documents
--
-- A document marks a table with two comments, and this program writes the lines between them:
--
--   <!-- table: packed nvidia-h200 s_q=8192 h_q=8 -->
--   <!-- end -->
--
-- The first word is the kind of table, a function in KINDS below. The second is a folder of results/. The rest are values that a
-- record must have: its case's field is one of the listed ones. Run it in the checkout's root.
package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
local engine_ab = require "fewhead.serve.engine_ab"
local files = require "fewhead.record.file"
local json = require "fewhead.base.json"
local page = require "fewhead.report.page"
local pictures = require "fewhead.report.pictures"
local record_files = require "fewhead.record.record"
local source = require "fewhead.report.source"
local tables = require "fewhead.base.table"

-- ---- Records ----------------------------------------------------------------------------------------------------------------

-- The records of results/FOLDER/NAME.jsonl in the order of the file; nil where the file is not there.
local function read(folder, name)
  local path = ("results/%s/%s.jsonl"):format(folder, name)
  local file = io.open(path)
  if not file then return nil end
  file:close()
  return assert(record_files.read(path))
end

local function need(folder, name)
  return read(folder, name) or error(("no results/%s/%s.jsonl"):format(folder, name), 0)
end

-- Whether each wanted field of the record's case has one of the wanted values: where = { s_q = "64,1024" }.
local function fits(record, where)
  for field, values in pairs(where) do
    local value = record.case[field]
    if not (","..values .. ","):find((",%s,"):format(tostring(value)), 1, true) then return false end
  end
  return true
end

-- One row for each combination of these fields, in the order of the file: { first = record, times = { [path] = median_us },
-- records = { [path] = record } }. A field is the record's own or its case's. Records without a time are left out.
local function rows_of(records, where, fields)
  local rows, by_key = {}, {}
  for _, record in ipairs(records) do
    if record.time and fits(record, where) then
      local values = {}
      for i, name in ipairs(fields) do values[i] = tostring(record[name] or record.case[name]) end
      local k = table.concat(values, "\n")
      local row = by_key[k]
      if not row then
        row = { first = record, times = {}, records = {} }
        by_key[k], rows[#rows + 1] = row, row
      end
      row.times[record.path], row.records[record.path] = record.time.median_us, record
    end
  end
  return rows
end

-- ---- Columns ----------------------------------------------------------------------------------------------------------------

local function us(path, title)
  return { key = path, title = title or path, format = tables.time, of = function(row) return row.times[path] end }
end
local function field(name, title, align)
  local function of(row) return row.first.case[name] end
  return { key = name, title = title or name, align = align, of = of }
end
-- Times of path `over` in times of path `under` (a name, or a function of the row that returns one). A record that was measured
-- against `over` holds that ratio, taken from runs side by side; else it is that of the medians.
local function ratio(title, over, under)
  return { key = title, format = "%.2f", of = function(row)
    local a = type(over) == "function" and over(row) or over
    local b = type(under) == "function" and under(row) or under
    local verdict = row.records[b] and row.records[b].verdict
    if verdict and verdict.against == a then return verdict.ratio end
    return row.times[a] and row.times[b] and row.times[a] / row.times[b]
  end }
end
local OVER_AUTO = ratio("padded / auto", "padded", "auto")
local CELL = { key = "cell", title = "lists", align = "left", of = function(row) return row.first.cell end }

-- The fastest native path that is this library's own; of equals the first by name.
local function best(row)
  local found
  for path, record in pairs(row.records) do
    local a, b = row.times[path], row.times[found or path]
    local native = record.provider == "fewhead" and path ~= "padded" and path ~= "auto"
    if native and (not found or a < b or a == b and path < found) then found = path end
  end
  return found
end

local function markdown(rows, columns)
  local cells = {}
  for i, row in ipairs(rows) do
    cells[i] = {}
    for _, column in ipairs(columns) do cells[i][column.key] = column.of(row) end
  end
  if #cells == 0 then error("no record fits", 0) end
  return tables.markdown(cells, columns)
end

-- ---- Kinds of table ---------------------------------------------------------------------------------------------------------

local KINDS = {}

-- FlashMLA, or padded where there is no FlashMLA, beside auto: every device of results/ but results/local, GPUs first. where
-- leaves one shape.
function KINDS.summary(_, where)
  local rows, cpus = {}, {}
  for folder in assert(io.popen("LC_ALL=C ls results")):lines() do
    local records = folder ~= "local" and (read(folder, "peers") or read(folder, "gate_sweep"))
    for _, row in ipairs(records and rows_of(records, where, { "pattern", "s_q" }) or {}) do
      local run = row.first.run
      local list = run.kind == "cpu" and cpus or rows
      row.device = run.kind == "cpu" and ("%s, %s, %d threads"):format(run.device, run.isa, run.threads) or run.device
      list[#list + 1] = row
    end
  end
  for _, row in ipairs(cpus) do rows[#rows + 1] = row end
  return markdown(rows, {
    { key = "device", align = "left", of = function(row) return row.device end }, field("pattern", "lists", "left"), field "s_q",
    us("flashmla", "FlashMLA"), us "padded", us "gather", us "packed", us "auto",
    ratio("baseline / auto", function(row) return row.times.flashmla and "flashmla" or "padded" end, "auto"),
  })
end

-- The fastest kernel of others; of equals the first by name.
local function best_other(row)
  local found
  for path, record in pairs(row.records) do
    local a, b = row.times[path], row.times[found or path]
    if record.provider ~= "fewhead" and (not found or a < b or a == b and path < found) then found = path end
  end
  return found
end

-- The library's paths beside the kernels that engines run.
function KINDS.peers(folder, where)
  local rows = rows_of(need(folder, "peers"), where, { "d_qk", "h_q", "pattern", "s_q" })
  return markdown(rows, {
    field "d_qk", field "h_q", field("pattern", "lists", "left"), field "s_q", us("flashmla", "flashmla, 64 heads"),
    us("flashmla-few", "flashmla-few, h_q heads"), us "fa3", us "padded", us "gather", us "packed", us "auto",
    ratio("best other / best", best_other, best),
  })
end

-- Every path by the lists' kind. name: of the records.
local function by_lists(folder, where, name)
  local rows = rows_of(need(folder, name), where, { "cell", "s_q", "h_q" })
  return markdown(rows, {
    CELL, field "s_q", field "h_q", us "padded", us "gather", us "packed",
    { key = "plan", format = tables.time, of = function(row) return row.records.packed and row.records.packed.time.plan_us end },
    us "auto", ratio("padded / packed", "padded", "packed"), OVER_AUTO,
  })
end
function KINDS.packed(folder, where) return by_lists(folder, where, "packed") end
function KINDS.packed_tile(folder, where) return by_lists(folder, where, "packed_tile") end

-- padded over auto: a row for each kind of lists, a column for each s_q.
function KINDS.auto(folder, where)
  local cells = rows_of(need(folder, "packed"), where, { "cell", "s_q" })
  local rows, by_cell, columns, seen = {}, {}, { CELL }, {}
  for _, cell in ipairs(cells) do
    local name, s_q = cell.first.cell, cell.first.case.s_q
    local row = by_cell[name]
    if not row then
      row = { first = cell.first, ratios = {} }
      by_cell[name], rows[#rows + 1] = row, row
    end
    row.ratios[s_q] = OVER_AUTO.of(cell)
    if not seen[s_q] then
      seen[s_q] = true
      columns[#columns + 1] = { key = ("%d"):format(s_q), s_q = s_q, format = "%.2f", of = function(r) return r.ratios[s_q] end }
    end
  end
  table.sort(columns, function(a, b) return (a.s_q or 0) < (b.s_q or 0) end)
  local whole = {} -- lists that were measured at every s_q
  for _, row in ipairs(rows) do
    local n = 0
    for _ in pairs(row.ratios) do n = n + 1 end
    if n == #columns - 1 then whole[#whole + 1] = row end
  end
  return markdown(whole, columns)
end

-- The kernels that work query by query.
function KINDS.kernels(folder, where)
  local rows = rows_of(need(folder, "kernels"), where, { "cell", "s_q", "h_q" })
  return markdown(rows, {
    { key = "cell", title = "sizes", align = "left", of = function(row) return row.first.cell end }, field "s_q", field "h_q",
    us "padded", us "gather", ratio("padded / gather", "padded", "gather"),
  })
end

-- One chunk through all layers of a model: every file of the folder whose name begins with "layers".
function KINDS.layers(folder, where)
  local rows = {}
  for path in assert(io.popen(("LC_ALL=C ls results/%s/layers*.jsonl 2>/dev/null"):format(folder))):lines() do
    local records = need(folder, path:match("([^/]+)%.jsonl$"))
    for _, row in ipairs(rows_of(records, where, { "preset", "prior" })) do rows[#rows + 1] = row end
  end
  return markdown(rows, {
    field("preset", "preset", "left"), field "s_q", field("prior", "rows before"), field "layers",
    us "padded", us "gather", us "packed", us "auto", OVER_AUTO,
    { key = "plans", title = "plans' share of auto", format = function(share) return ("%.1f %%"):format(100 * share) end,
      of = function(row) return row.records.auto and row.records.auto.plans.share end },
  })
end

-- s_q by s_q, of one memory layout.
function KINDS.gate_sweep(folder, where)
  local rows = rows_of(need(folder, "gate_sweep"), where, { "pattern", "layout", "s_q" })
  return markdown(rows, {
    field("pattern", "lists", "left"), field("layout", "layout", "left"), field "s_q",
    us "padded", us "gather", us "packed", us "auto", ratio("padded / best", "padded", best),
  })
end

-- What vLLM's own arms and the plug-in's took, by workload and lists (engine.jsonl, of experiments/engine_ab.lua).
function KINDS.engine(folder, where)
  local fitting = {}
  for _, r in ipairs(engine_ab.read(("results/%s/engine.jsonl"):format(folder))) do
    if fits(r, where) then fitting[#fitting + 1] = r end
  end
  if #fitting == 0 then error("no record fits", 0) end
  local function arm(name)
    return { key = name, title = name, of = function(cell)
      local found = cell.arms[name]
      if not found then return nil end
      if found.total_tok_s then return ("%.0f tok/s"):format(found.total_tok_s) end
      return ("%.0f ms"):format(found.ttft_ms)
    end }
  end
  return markdown(engine_ab.cells(fitting), {
    { key = "model", align = "left", of = function(cell) return ("%s, %d layers"):format(cell.model, cell.layers) end },
    { key = "workload", align = "left", of = function(cell) return cell.name end },
    arm "flashmla", arm "fa3", arm "gather", arm "auto", arm "auto-shared",
  })
end

-- What an engine's model predicts of workloads, arm by arm (serving.jsonl, of experiments/serving_workloads.lua).
function KINDS.serving(folder)
  local rows = {}
  for r in json.lines(("results/%s/serving.jsonl"):format(folder)) do
    local f, changes = r.figures or {}, r.change or {}
    local function change(name) return changes[name] and ("%+.1f %%"):format(100 * changes[name].mean) end
    rows[#rows + 1] = { workload = r.workload, arm = r.arm, total = f.total_tok_s, ttft = f.ttft_s, p99 = f.ttft_p99_s,
      change = change "total_tok_s", ttft_change = change "ttft_s" }
  end
  local function of(key, title, format)
    return { key = key, title = title, format = format, align = not format and not title and "left" or nil,
      of = function(row) return row[key] end }
  end
  return markdown(rows, {
    of "workload", of "arm", of("total", "total tok/s", "%.0f"), of("change", "change of it"),
    of("ttft", "mean TTFT s", "%.3f"), of("ttft_change", "change of it "), of("p99", "p99 TTFT s", "%.3f"),
  })
end

-- Which run made each file of the folder.
function KINDS.runs(folder)
  local rows = {}
  for path in assert(io.popen(("LC_ALL=C ls results/%s/*.jsonl"):format(folder))):lines() do
    if record_files.kind_of(path) == "case" then
      local run = need(folder, path:match("([^/]+)%.jsonl$"))[1].run
      rows[#rows + 1] = { file = path:match("[^/]+$"), options = ("`%s`"):format(table.concat(run.argv, " ")), run = run }
    end
  end
  local function of_run(key, title, format)
    return { key = key, title = title or key, align = "left", format = format, of = function(row) return row.run[key] end }
  end
  return markdown(rows, {
    { key = "file", align = "left", of = function(row) return ("[%s](%s)"):format(row.file, row.file) end },
    { key = "options", align = "left", of = function(row) return row.options end },
    of_run("commit", "commit", function(commit) return commit:sub(1, 12) end), of_run "date", of_run "driver",
  })
end

-- ---- Documents --------------------------------------------------------------------------------------------------------------

local function lines_of(path)
  local lines = {}
  for line in io.lines(path) do lines[#lines + 1] = line end
  return lines
end

-- The lines of the table that a marker asks for.
local function table_of(marker)
  local words = {}
  for word in marker:gmatch("%S+") do words[#words + 1] = word end
  local make = KINDS[words[1]]
  if not make then error(("no kind of table %q"):format(tostring(words[1])), 0) end
  local folder, where = nil, {}
  for i = 2, #words do
    local name, values = words[i]:match("^([%w_]+)=(.+)$")
    if name then where[name] = values else folder = words[i] end
  end
  local lines = {}
  for line in make(folder, where):gmatch("[^\n]+") do lines[#lines + 1] = line end
  return lines
end

-- The document with its tables made anew; problems gets a line for each table that differs or cannot be made.
local function rebuild(path, problems)
  local old, new, i = lines_of(path), {}, 1
  while i <= #old do
    local marker = old[i]:match("^<!%-%- table: (.-) %-%->$")
    new[#new + 1] = old[i]
    i = i + 1
    if marker then
      local first, stop = i, i
      while old[stop] and old[stop] ~= "<!-- end -->" do stop = stop + 1 end
      local ok, made = pcall(table_of, marker)
      if not old[stop] then ok, made = false, "no <!-- end --> after it" end
      if not ok then
        problems[#problems + 1] = ("%s:%d: table: %s: %s"):format(path, first - 1, marker, made)
      else
        if table.concat(made, "\n") ~= table.concat(old, "\n", first, stop - 1) then
          problems[#problems + 1] = ("%s:%d: table: %s: differs from the records; run make docs"):format(path, first - 1, marker)
        end
        for _, line in ipairs(made) do new[#new + 1] = line end
        i = stop
      end
    end
  end
  return table.concat(new, "\n") .. "\n"
end

-- Links to files of the checkout that are not there.
local function check_links(path, problems)
  local folder, fenced = path:match("^(.*/)") or "", false
  for number, line in ipairs(lines_of(path)) do
    if line:find("^```") then fenced = not fenced end
    for target in (fenced and "" or line):gmatch("%]%(([^)#%s]+)[^)]*%)") do
      local file = not target:find("^%a+:") and io.open(folder .. target)
      if file then file:close()
      elseif file == nil then problems[#problems + 1] = ("%s:%d: link: %s is not there"):format(path, number, target) end
    end
  end
end

-- ---- Pages and pictures -----------------------------------------------------------------------------------------------------

-- The published gate: native heads from so many rows up.
local MARKS = { { x = 2048, label = "published 2048", colour = 6 } }

-- The folders of devices in results/, results/local left out.
local function device_folders()
  local list = {}
  for folder in assert(io.popen("LC_ALL=C ls results 2>/dev/null")):lines() do
    if folder ~= "local" and source.read("results/" .. folder) then list[#list + 1] = folder end
  end
  return list
end

-- The shape that devices are compared on: that of DeepSeek-V4.1-Flash at TP8.
local ONE_SHAPE = { d_qk = "512", h_q = "8" }

-- The records that the picture of a device is made of.
local function pictured(folder)
  local list = {}
  for _, record in ipairs(read(folder, "peers") or read(folder, "gate_sweep") or {}) do
    if fits(record, ONE_SHAPE) then list[#list + 1] = record end
  end
  return list
end

-- What results/index.html shows of a device, or of all: title, kind of table, what the table is, and what a record's case must
-- have (nil for anything).
local OF_ALL = {
  { "Devices side by side", "summary", "The attention of one layer, 8 heads. csa draws each row's picks afresh; local keeps 90 % "
    .. "of them from row to row. FlashMLA, where it is there, pads to 64 heads and is the baseline; else padded is.", ONE_SHAPE },
}
local OF_DEVICE = {
  { "Beside what engines run", "peers", "All paths, both kernels of FlashMLA and FlashAttention 3 in one process on the same "
    .. "memory." },
  { "Kernels", "kernels", "The kernels that work query by query." },
  { "By what neighbouring rows share", "auto", "The time of padded over the time of auto, for each s_q." },
  { "One chunk through all layers", "layers", "The attention of a whole model, plans included." },
  { "In an engine", "engine", "vLLM with its own attention and with the plug-in; TTFT, or total tokens a second." },
  { "Workloads", "serving", "What the model of an engine predicts of the same workload with each arm's attention." },
  { "Layouts", "gate_sweep", "The gate sweep: every s_q and memory layout." },
}

local function add_tables(parts, list, folder)
  for _, row in ipairs(list) do
    local ok, text = pcall(KINDS[row[2]], folder, row[4] or {})
    if ok then -- a device need not have every file
      parts[#parts + 1] = ("<h3>%s</h3><p class=\"dim\">%s</p>%s"):format(row[1], row[3], page.table_of_markdown(text))
    end
  end
end

local function index_html(folders)
  local parts = { "<h1>fewhead: results</h1><p>Made by <code>make docs</code> from the records in results/. Every path passed "
    .. "the comparison with the reference before it was timed; what did not pass is named on the device's page.</p>" }
  local rows = {}
  for i, folder in ipairs(folders) do
    local found = assert(source.read("results/" .. folder))
    local runs = source.runs(found.records)
    local last = runs[#runs] or found.records[1].run
    rows[i] = { device = last.device, files = #found.files, records = #found.records,
      commit = tostring(last.commit):sub(1, 12), date = last.date, driver = last.driver }
  end
  parts[#parts + 1] = "<h2>Devices</h2>" .. page.table_of_markdown(tables.markdown(rows, {
    { key = "device", align = "left" }, { key = "files" }, { key = "records" }, { key = "commit", align = "left" },
    { key = "date", align = "left" }, { key = "driver", align = "left" },
  }))
  for i, folder in ipairs(folders) do
    parts[#parts + 1] = ('<p><a href="%s/index.html">All records of %s</a>, with pictures and commands</p>'):format(
      folder, tostring(rows[i].device))
  end
  add_tables(parts, OF_ALL)
  for i, folder in ipairs(folders) do
    parts[#parts + 1] = ("<h2>%s</h2>"):format(tostring(rows[i].device))
    local made = pictures.curves(pictured(folder), { marks = MARKS, inline = true })
    if made then parts[#parts + 1] = "<figure>" .. made .. "</figure>" end
    add_tables(parts, OF_DEVICE, folder)
  end
  return page.frame("fewhead: results", parts)
end

-- All files that are made whole, path -> text.
local function generated()
  local folders, list = device_folders(), {}
  for _, folder in ipairs(folders) do
    local found = assert(source.read("results/" .. folder))
    local device = found.records[1].run.device
    list[#list + 1] = { ("results/%s/index.html"):format(folder), page.html(found.records, { title = device, marks = MARKS,
      home = { href = "../index.html", text = "All devices" } }) }
    local picture = pictures.curves(pictured(folder), { marks = MARKS,
      title = "Attention of one layer on " .. device })
    if picture then list[#list + 1] = { ("results/%s/speedup.svg"):format(folder), picture } end
  end
  if #folders > 0 then list[#list + 1] = { "results/index.html", index_html(folders) } end
  return list
end

-- Write what differs; with check, only name it. Returns how many problems there were.
local function make_files(check)
  local failed = 0
  for _, entry in ipairs(generated()) do
    local path, text = entry[1], entry[2]
    local old = io.open(path, "rb")
    local same = old and old:read("*a") == text
    if old then old:close() end
    if not same and check then
      print(path .. ": differs from the records; run make docs")
      failed = failed + 1
    elseif not same then assert(files.write(path, text)) end
  end
  return failed
end

local DOCUMENTS = "ls README.md docs/*.md results/*/README.md kernels/*/README.md kernels/*/*/README.md 2>/dev/null"

local function main(arg)
  local check, paths = false, {}
  for _, word in ipairs(arg) do
    if word == "--check" then check = true else paths[#paths + 1] = word end
  end
  local failed = 0
  if #paths == 0 then
    for path in assert(io.popen(DOCUMENTS)):lines() do paths[#paths + 1] = path end
    failed = make_files(check) -- first: documents link to these files
  end
  for _, path in ipairs(paths) do
    local problems = {}
    local text = rebuild(path, problems)
    if not check then
      if #problems > 0 then assert(files.write(path, text)) end
      problems = {}
      rebuild(path, problems) -- what is left could not be made
    end
    check_links(path, problems)
    for _, problem in ipairs(problems) do print(problem) end
    failed = failed + #problems
  end
  return failed == 0 and 0 or 1
end

os.exit(main(arg), true)
