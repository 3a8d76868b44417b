--- Export: records as CSV, as an SQLite database, and as a markdown table, for tools that read no JSON lines.
--
--     assert(export.write("h200.csv", records))           -- .csv, .sqlite or .db, .md: the ending says which
--
-- CSV and SQLite have one row a record and one column a field, "case_s_q", "time_median_us", "run_commit": the record's parts and
-- what is in them, lists and further tables as JSON text. Tags of a run are columns "tags_NAME". A whole number beyond 2^53 is
-- text: a double does not hold it. CSV is RFC 4180's, with a line of names first; an empty field is a value that is not there.
local args = require "fewhead.base.arguments"
local axes = require "fewhead.record.axes"
local file = require "fewhead.record.file"
local json = require "fewhead.base.json"
local records_of = require "fewhead.record.record"
local tables = require "fewhead.base.table"

local M = {}

local EXACT = 2 ^ 53

-- A value as a cell: a number, or text. Whole numbers that a double may not hold are text.
local function cell_of(value)
  local kind = type(value)
  if kind == "number" and value == math.floor(value) and math.abs(value) > EXACT then return ("%.0f"):format(value) end
  if kind == "table" then return (json.encode(value)) end
  if kind == "boolean" then return tostring(value) end
  return value
end

-- A part of a record as its columns. The tags of a run are columns of their own.
local function add_part(row, seen, field, part)
  for name, value in pairs(part) do
    if field == "run" and name == "tags" and type(value) == "table" then add_part(row, seen, "tags", value)
    else
      local column = field .. "_" .. name
      row[column], seen[column] = cell_of(value), field
    end
  end
end

-- Columns of records, those of fh.record in its order, then others by name; and a row of cells by column for each record.
local function flatten(list)
  local seen, rows = {}, {}
  for i, r in ipairs(list) do
    local row = {}
    for field, value in pairs(r) do
      if type(value) == "table" and #value == 0 then
        add_part(row, seen, field, value)
      else row[field], seen[field] = cell_of(value), field end
    end
    rows[i] = row
  end
  local rank, columns = {}, {}
  for i, field in ipairs(records_of.fields) do rank[field] = i end
  for column in pairs(seen) do columns[#columns + 1] = column end
  table.sort(columns, function(a, b)
    local i, j = rank[seen[a]] or #records_of.fields + 1, rank[seen[b]] or #records_of.fields + 1
    if i ~= j then return i < j end
    return a < b
  end)
  return columns, rows
end

local function number_text(v)
  if v == math.floor(v) then return ("%.0f"):format(v) end
  local short = ("%.15g"):format(v)
  return tonumber(short) == v and short or ("%.17g"):format(v)
end

local function text_of(value)
  if value == nil then return "" end
  return type(value) == "number" and number_text(value) or tostring(value)
end

-- ---- CSV --------------------------------------------------------------------------------------------------------------------

local function csv_field(value)
  local text = text_of(value)
  if text:find('[",\r\n]') then return '"' .. text:gsub('"', '""') .. '"' end
  return text
end

--- Records as CSV text; lines end with CR LF, as RFC 4180 has it.
function M.csv(list)
  local columns, rows = flatten(args.table("export.csv: records", list))
  local lines = {}
  local function add(of)
    local fields = {}
    for j, column in ipairs(columns) do fields[j] = csv_field(of(column)) end
    lines[#lines + 1] = table.concat(fields, ",") .. "\r\n"
  end
  add(function(column) return column end)
  for _, row in ipairs(rows) do add(function(column) return row[column] end) end
  return table.concat(lines)
end

-- ---- SQLite -----------------------------------------------------------------------------------------------------------------

local function driver()
  local found, module = pcall(require, "DBI")
  if not found then return nil, "no Lua module DBI (Debian and Ubuntu: apt-get install lua-dbi-sqlite3)" end
  return module
end

--- Whether SQLite can be written here: true | nil, why not.
function M.has_sqlite()
  local module, err = driver()
  return module and true, err
end

local function quoted(name) return '"' .. name:gsub('"', '""') .. '"' end

-- INTEGER, REAL or TEXT: what all values of a column are.
local function kind_of(rows, column)
  local kind = "INTEGER"
  for _, row in ipairs(rows) do
    local value = row[column]
    if type(value) == "string" then return "TEXT" end
    if value ~= nil and value ~= math.floor(value) then kind = "REAL" end
  end
  return kind
end

local function fill(db, columns, rows)
  local function run(text, ...)
    local statement = assert(db:prepare(text))
    assert(statement:execute(...))
    statement:close()
  end
  local kinds, declared, marks = {}, {}, {}
  for j, column in ipairs(columns) do
    kinds[j] = kind_of(rows, column)
    declared[j], marks[j] = ("%s %s"):format(quoted(column), kinds[j]), "?"
  end
  run(("CREATE TABLE records (%s)"):format(table.concat(declared, ", ")))
  local insert = assert(db:prepare(("INSERT INTO records VALUES (%s)"):format(table.concat(marks, ", "))))
  for _, row in ipairs(rows) do
    local values = {}
    for j, column in ipairs(columns) do
      local value = row[column]
      values[j] = kinds[j] == "TEXT" and value ~= nil and text_of(value) or value
    end
    assert(insert:execute(unpack(values, 1, #columns)))
  end
  insert:close()
  assert(db:commit())
end

--- Write records as table "records" of a new SQLite database, in place of what stood at path when it is whole. true | nil, error.
function M.sqlite(path, list)
  args.string("export.sqlite: path", path)
  args.list("export.sqlite: records", list, 1)
  local module, err = driver()
  if not module then return nil, ("%s: %s"):format(path, err) end
  local writer
  writer, err = file.writer(path)
  if not writer then return nil, err end
  local ok
  ok, err = pcall(function()
    local db = assert(module.Connect("SQLite3", writer.temporary))
    local good, why = pcall(fill, db, flatten(list))
    db:close()
    if not good then error(why, 0) end
  end)
  if not ok then
    writer:discard()
    return nil, ("%s: %s"):format(path, tostring(err))
  end
  return writer:commit()
end

-- ---- Markdown ---------------------------------------------------------------------------------------------------------------

local function percent(share) return ("%.1f %%"):format(100 * share) end

-- Records as a table that `make` makes: what varies, path, median with its spread, samples, speed-up, waste, parity; above it
-- what does not vary.
local function table_of(list, make)
  local found = axes.of(list)
  local columns, rows = {}, {}
  for _, name in ipairs(found.varying) do columns[#columns + 1] = { key = name } end
  for _, column in ipairs {
    { key = "path", align = "left" }, { key = "median", format = tables.time }, { key = "spread", title = "p05 .. p95" },
    { key = "n" }, { key = "speed_up", title = "speed-up", format = "%.2f" }, { key = "against", title = "over", align = "left" },
    { key = "waste", format = percent }, { key = "parity", align = "left" },
  } do columns[#columns + 1] = column end
  for i, r in ipairs(list) do
    local row, time, verdict = {}, r.time, r.verdict or {}
    for name, value in pairs(found.flats[i]) do row[name] = value end
    row.path, row.parity, row.speed_up, row.against = r.path, r.parity.status, verdict.ratio, verdict.against
    row.waste = r.work and r.work.waste
    if time then
      row.median, row.n = time.median_us, time.n
      row.spread = ("%s .. %s"):format(tables.time(time.p05_us), tables.time(time.p95_us))
    end
    rows[i] = row
  end
  return ("All rows: %s\n\n%s"):format(found:constant_text(), (make(rows, columns)))
end

--- Records as a markdown table for a page or a pull request: what varies, path, median with its spread, samples, speed-up, waste,
-- parity; above it what does not vary.
function M.markdown(list) return table_of(args.table("export.markdown: records", list), tables.markdown) end

--- The same table as text for a terminal.
function M.text(list) return table_of(args.table("export.text: records", list), tables.text) end

-- ---- Files ------------------------------------------------------------------------------------------------------------------

--- Write records to a file of the kind that its ending names, whole or not at all: .csv, .sqlite, .db, .md. true | nil, error.
function M.write(path, list)
  args.string("export.write: path", path)
  local ending = path:match("%.(%w+)$")
  if ending == "csv" then return file.write(path, M.csv(list)) end
  if ending == "md" then return file.write(path, M.markdown(list)) end
  if ending == "sqlite" or ending == "db" then return M.sqlite(path, list) end
  return nil, ("got %s, wanted a file that ends in .csv, .sqlite, .db or .md"):format(args.show(path))
end

return M
