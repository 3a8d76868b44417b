--- Result: what objects that calls of the library return have in common: print, save, compare, and plot where there is a picture.
--
--     local old = fh.results "results/nvidia-h200"
--     local new = fh.sweep { s_q = "64:512:*2", heads = 8, max_seconds = 5 }
--     print(old:compare(new, { across = { "device" } }))
--     assert(new:print():save("sweep.csv"))                   -- .jsonl, .csv, .sqlite, .db, .md, .html, .svg
--
-- An object has a method where it makes sense: a plan of two gates can be compared, a list of what is installed cannot. The
-- facade gives the methods to the classes that it loads (attach).
local args = require "fewhead.base.arguments"
local file = require "fewhead.record.file"
local tables = require "fewhead.base.table"

local M = {}

local function ending(path) return path:match("%.(%w+)$") end

-- nil, and which endings would be good.
local function no_ending(path, endings)
  local last = table.remove(endings)
  return nil, ("got %s, wanted a file that ends in %s or %s"):format(args.show(path), table.concat(endings, ", "), last)
end

-- ---- All of them ------------------------------------------------------------------------------------------------------------

local all = {}

--- Print the object as text and a line end to standard output. Returns the object.
function all:print()
  print(tostring(self))
  return self
end

-- ---- Objects that hold records ----------------------------------------------------------------------------------------------

local records = {}

-- The records that v stands for: an object's, a list, or those of a file, folder, run or commit by its name. nil, err.
local function records_of(what, v, level)
  if type(v) == "string" then
    local found, err = require("fewhead.report.source").read(v)
    return found and found.records, err
  end
  local list = type(v) == "table" and (v.records or v)
  if type(list) ~= "table" or #list == 0 or type(list[1]) ~= "table" or not list[1].parity then
    error(("%s: other: got %s, wanted an object with records, a list of records, or the name of a file, folder, run or commit")
      :format(what, args.show(v)), level + 1)
  end
  return list
end

local function write_records(path, list)
  local ok, err = require("fewhead.record.record").write(path, list)
  return ok, err
end

local function write_page(path, list, o)
  local ok, err = require("fewhead.report.page").write(path, list, {
    title = o.title, marks = require("fewhead.report.pictures").marks(), skipped = o.skipped,
  })
  return ok, err
end

-- The picture that shows most: of a chunk through layers its bars, of other records their curves.
local function write_picture(path, list)
  local pictures = require "fewhead.report.pictures"
  local made = pictures.of(list, { marks = pictures.marks() })
  if #made == 0 then return nil, ("%s: no record has a time"):format(path) end
  local ok, err = file.write(path, made[1].svg)
  return ok, err
end

--- Write the object's records to a file of the kind that its ending names, whole or not at all: .jsonl, a record a line, which
-- fh.results reads; .csv, .sqlite, .db and .md (fh.export); .html, one page (fh.page); .svg, its first picture (fh.pictures).
-- options: title, of a page. true | nil, error.
function records:save(path, options)
  args.string("result:save: path", path)
  local o = args.options("result:save", options, { "title" })
  local list, kind = self.records, ending(path)
  if #list == 0 then return nil, path .. ": there is no record to save" end
  local ok, err
  if kind == "jsonl" then ok, err = write_records(path, list)
  elseif kind == "html" then ok, err = write_page(path, list, { title = o.title or self.name, skipped = self.skipped })
  elseif kind == "svg" then ok, err = write_picture(path, list)
  elseif kind == "csv" or kind == "md" or kind == "sqlite" or kind == "db" then
    ok, err = require("fewhead.report.export").write(path, list)
  else
    ok, err = no_ending(path, { ".jsonl", ".csv", ".sqlite", ".db", ".md", ".html", ".svg" })
  end
  return ok, err
end

--- Hold these records, the old ones, against others, the new ones, cell by cell (fh.diff). other: an object with records, a
-- list of records, or the name of a file, folder, run or commit. options: those of fh.diff. Returns the diff; nil, err.
function records:compare(other, options)
  local list, err = records_of("result:compare", other, 2)
  if not list then return nil, err end
  local found
  found, err = require("fewhead.report.diff").run(self.records, list, options)
  return found, err
end

-- ---- A diff ------------------------------------------------------------------------------------------------------------------

local diff = {}

--- Write the diff as text, whole or not at all: .md as markdown, .txt as printed. true | nil, error.
function diff:save(path)
  args.string("diff:save: path", path)
  local ok, err
  local kind = ending(path)
  if kind == "md" then ok, err = file.write(path, self:text { make = tables.markdown } .. "\n")
  elseif kind == "txt" then ok, err = file.write(path, self:text() .. "\n")
  else ok, err = no_ending(path, { ".md", ".txt" }) end
  return ok, err
end

-- ---- A gate ------------------------------------------------------------------------------------------------------------------

local gate = {}

--- Write the gate, whole or not at all: .json, the gate table of its curves, which fh_gate_load and fh.gate_table.load read;
-- .env, the lines that set it in an engine. A gate that no measurement stands behind has neither. true | nil, error.
function gate:save(path)
  args.string("gate:save: path", path)
  if not self.curves then return nil, path .. ": the gate has no measurements, wanted one that fh.gate.fit made" end
  local run = self.curves[1].points[1].padded.run
  if not (run and run.kind) then return nil, path .. ": the records do not say on which device they were measured" end
  local gate_table = require "fewhead.decide.gate_table"
  local made = gate_table.from(self.curves, { run = run })
  local ok, err
  local kind = ending(path)
  if kind == "json" then ok, err = gate_table.write(path, made)
  elseif kind == "env" then ok, err = file.write(path, gate_table.env_lines(made) .. "\n")
  else ok, err = no_ending(path, { ".json", ".env" }) end
  return ok, err
end

local GateDiff = { __name = "comparison of gates" }
GateDiff.__index = GateDiff

local function answer_of(curve)
  if not curve then return nil end
  return type(curve.crossover) == "table" and ("from %d"):format(curve.min_sq) or curve.crossover
end

--- Hold this gate against another one, curve by curve. Returns { rows = { { curve =, old =, new = "from N", "always", "never" or
-- "undecided" }, .. }, old =, new = the thresholds }; it prints as a table. For gates that fh.gate.fit made.
function gate:compare(other)
  if not self.curves or type(other) ~= "table" or type(other.curves) ~= "table" then
    error("gate:compare: got a gate without measurements, wanted two that fh.gate.fit made", 2)
  end
  local found, by_name = setmetatable({ rows = {} }, GateDiff), {}
  for side, one in pairs { old = self, new = other } do
    found[side] = one.undecided and "undecided" or one.enabled and one:threshold() or "never"
    for _, curve in ipairs(one.curves) do
      local name = ("%d heads, %s %s%s"):format(curve.heads, curve.pattern, curve.layout, curve.label)
      if not by_name[name] then
        by_name[name] = { curve = name }
        found.rows[#found.rows + 1] = by_name[name]
      end
      by_name[name][side] = answer_of(curve)
    end
  end
  table.sort(found.rows, function(a, b) return a.curve < b.curve end)
  return found
end

function GateDiff:__tostring()
  return ("%s\nMIN_SQ: %s, then %s"):format((tables.text(self.rows, {
    { key = "curve", align = "left" }, { key = "old", title = "native, OLD", align = "left" },
    { key = "new", title = "native, NEW", align = "left" },
  })), self.old, self.new)
end
GateDiff.print = all.print

-- ---- Serving A/B -------------------------------------------------------------------------------------------------------------

local serve = {}

-- The A/B as lines of JSON, one an arm, as experiments/serving_workloads.lua has them.
local function arms_of(ab)
  local list = {}
  for i, row in ipairs(ab.rows) do
    list[i] = require("fewhead.base.json").encode {
      kind = "serving", workload = ab.workload.name, engine = ab.engine.name, arm = row.name, figures = row.figures,
      change = row.change, counters = row.counters, error = row.error,
    }
  end
  return table.concat(list, "\n") .. "\n"
end

--- Write the A/B, whole or not at all: .jsonl, a line an arm; .md, its table; .svg, the time to first token over the run. true |
-- nil, error.
function serve:save(path)
  args.string("serve:save: path", path)
  local ok, err
  local kind = ending(path)
  if kind == "jsonl" then ok, err = file.write(path, arms_of(self))
  elseif kind == "md" then ok, err = file.write(path, (tables.markdown(self:table_rows())))
  elseif kind == "svg" then
    local svg = require("fewhead.report.pictures").ttft(self)
    if svg then ok, err = file.write(path, svg) else ok, err = nil, path .. ": no request finished" end
  else ok, err = no_ending(path, { ".jsonl", ".md", ".svg" }) end
  return ok, err
end

local ServeDiff = { __name = "comparison of serving A/Bs" }
ServeDiff.__index = ServeDiff

local function change(old, new) return old and new and old ~= 0 and new / old - 1 or nil end

local function percent(share) return ("%+.1f %%"):format(100 * share) end

--- Hold this A/B against another one, arm by arm: the other's total tokens a second and mean TTFT over this one's. Returns {
-- rows = { { arm =, old_total =, new_total =, total =, old_ttft =, new_ttft =, ttft = } in tokens/s and s, and shares, 0.1 is
-- 10 % more } }; it prints as a table.
function serve:compare(other)
  if type(other) ~= "table" or type(other.rows) ~= "table" or not other.workload then
    error(("serve:compare: other: got %s, wanted what fh.serve returned"):format(args.show(other)), 2)
  end
  local found, news = setmetatable({ rows = {} }, ServeDiff), {}
  for _, row in ipairs(other.rows) do news[row.name] = row.figures end
  for _, row in ipairs(self.rows) do
    local old, new = row.figures, news[row.name]
    if old and new then
      found.rows[#found.rows + 1] = {
        arm = row.name, old_total = old.total_tok_s, new_total = new.total_tok_s,
        total = change(old.total_tok_s, new.total_tok_s),
        old_ttft = old.ttft_s, new_ttft = new.ttft_s, ttft = change(old.ttft_s, new.ttft_s),
      }
    end
  end
  return found
end

function ServeDiff:__tostring()
  if #self.rows == 0 then return "nothing compared: no arm is in both" end
  return (tables.text(self.rows, {
    { key = "arm", align = "left" }, { key = "old_total", title = "tok/s, OLD", format = "%.0f" },
    { key = "new_total", title = "NEW", format = "%.0f" }, { key = "total", title = "change", format = percent },
    { key = "old_ttft", title = "mean TTFT s, OLD", format = "%.3f" }, { key = "new_ttft", title = "NEW", format = "%.3f" },
    { key = "ttft", title = "change", format = percent },
  }))
end
ServeDiff.print = all.print

-- ---- Who has what ------------------------------------------------------------------------------------------------------------

local BY_MODULE = {
  compare = records, sweep = records, layers = records, conformance = records, results = records, diff = diff, gate = gate,
  serve = serve, flips = {}, overlap = {}, traffic = {}, info = {}, bundle = {},
  gate_report = {}, regret = {},
}

--- Give the class of a module's objects its methods: print for all; save and compare where the module's kind of object has them.
-- name: the module's name on the facade; nothing happens for a module whose objects are no results.
function M.attach(name, class)
  local kind = BY_MODULE[name]
  if not kind then return end
  for _, methods in ipairs { all, kind } do
    for method, f in pairs(methods) do
      if rawget(class, method) == nil then class[method] = f end
    end
  end
end

return M
