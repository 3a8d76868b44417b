--- Results: records that are on the disk, as one object that prints, plots, saves and compares.
--
--     local h200 = assert(fh.results "results/nvidia-h200")   -- a file, a folder, a run or a commit
--     h200:filter({ s_q = "64,128", path = "gather" }):print()
--     print(h200:plot())
--     assert(h200:save "h200.html")
--     print(h200:compare "results/local/latest")
--     print(fh.results.merge { "results/local/part1", "results/local/part2" })
--
-- What `fewhead page`, plot, export, compare and merge do.
local args = require "fewhead.base.arguments"
local axes = require "fewhead.record.axes"
local source = require "fewhead.report.source"

local M = {}

local Results = { __name = "results" }
Results.__index = Results
M.class = Results -- fewhead.report.result gives it print, save and compare

local function new(list, name, skipped)
  return setmetatable({ records = list, name = name, skipped = skipped or {} }, Results)
end

--- The records of a file, folder, run or commit (fh.source). options: results, where commits and runs are looked for ("results");
-- skip_bad = true: leave out lines that are no records, and name them in .skipped; where, as filter takes it. Returns {
-- records =, name =, skipped = messages }; nil, err.
function M.read(name, options)
  args.string("results: name", name)
  local o = args.options("results", options, { "results", "skip_bad", "where" })
  local found, err = source.read(name, { results = o.results, skip_bad = o.skip_bad })
  if not found then return nil, err end
  local all = new(found.records, name, found.skipped)
  if o.where == nil then return all end
  return Results.filter(all, o.where)
end

--- The results whose fields have these values: { s_q = "64,128", device = "NVIDIA H200" } (fh.axes.filter). nil, err for a
-- field that no record has, and where nothing is left.
function Results:filter(where)
  args.table("results:filter: where", where)
  local list, err = axes.filter(self.records, where)
  if not list then return nil, err end
  if #list == 0 then return nil, "no record fits" end
  return new(list, self.name, self.skipped)
end

--- Time and speed-up over s_q, or the axis with the most values, as text for a terminal. options: width = columns (72), height =
-- lines of a panel (14). nil, err where no record has a time.
function Results:plot(options)
  local o = args.options("results:plot", options, { "width", "height" })
  local pictures = require "fewhead.report.pictures"
  local text = pictures.curves(self.records, { marks = pictures.marks(), text = true, width = o.width, height = o.height })
  if not text then return nil, "no record has a time" end
  return text
end

function Results:__tostring() return (require("fewhead.report.export").text(self.records)) end

--- Put the parts of a sweep, made with shard = "i/N", together to one run. folders: of the parts; options: out
-- ("results/local"), the folder of runs; name ("merged"), what the new run is called after the date. Returns the results of
-- the new run with .folder and .head; nil, one line, and a list with a line for each problem: then nothing is written.
function M.merge(folders, options)
  args.list("results.merge: folders", folders, 1)
  local o = args.options("results.merge", options, { "out", "name" })
  local run, problems = require("fewhead.record.merge").merge(folders, o.out or "results/local", o.name or "merged")
  if not run then return nil, problems[1], problems end
  local merged, err = M.read(run.folder .. "/records.jsonl")
  if not merged then return nil, err, { err } end
  merged.folder, merged.head = run.folder, run.head
  return merged
end

-- A tail call: errors blame the caller, as for M.read itself.
return setmetatable(M, { __call = function(_, ...) return M.read(...) end })
