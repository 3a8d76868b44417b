--- Source: records by the name of where they are: a file, a folder with files, a run, a commit.
--
--     local found = assert(source.read("results/nvidia-h200"))
--     print(#found.records, #found.files, #found.skipped)
--     local old = assert(source.read("80de97a0834", { results = "results" }))   -- all records of that commit
local args = require "fewhead.base.arguments"
local posix = require "fewhead.base.posix"
local records = require "fewhead.record.record"

local M = {}

-- A folder of results holds folders of devices, and those of runs: no file lies deeper.
local DEEPEST = 4
-- The link to the newest of the runs beside it (fewhead.record.store): its records would count twice.
local LATEST = "/latest/$"
-- So few digits of a commit or a run name one.
local FEWEST_DIGITS = 7

local function is_folder(path)
  local file = io.open(path .. "/.")
  if file then file:close() end
  return file ~= nil
end

-- The files of records in a folder and in the folders below it, sorted. Files of another kind are not for these pages.
local function files_in(folder, depth, list)
  folder = folder:gsub("/+$", "")
  for _, path in ipairs(posix.glob(folder, "/*.jsonl")) do
    if (records.kind_of(path) or "case") == "case" then list[#list + 1] = path end
  end
  if depth > 0 then
    for _, path in ipairs(posix.glob(folder, "/*/")) do
      if not path:find(LATEST) then files_in(path, depth - 1, list) end
    end
  end
  return list
end

-- Reads files one after another. Lines that are no records stop it, or are left out and named in found.skipped.
local function read_files(files, o, keep)
  local found = { records = {}, files = {}, skipped = {} }
  local how = { zero = true, bad = o.skip_bad and function(message) found.skipped[#found.skipped + 1] = message end or nil }
  collectgarbage "stop" -- nearly all that is read stays: to look for garbage meanwhile takes a fifth of the time and finds little
  local ok, err = pcall(function()
    for _, path in ipairs(files) do
      local before = #found.records
      for r in records.lines(path, how) do
        if not keep or keep(r) then found.records[#found.records + 1] = r end
      end
      if #found.records > before then found.files[#found.files + 1] = path end
    end
  end)
  collectgarbage "restart"
  if not ok then return nil, err end
  return found
end

--- The records that `name` stands for: { records =, files = where they lie, skipped = messages of lines left out }, in the order
-- of files and lines. name: a file of records; a folder, with all *.jsonl in it and below it, or its name in results/local
-- or results; or at least 7 first digits of a commit, or of a run's id, whose records are looked for below options.results
-- ("results"). options.skip_bad: leave lines out that
-- are no records. nil and one line: "path:12: reason", a name that is nothing of this, no record.
function M.read(name, options)
  args.string("source.read: name", name)
  local o = args.options("source.read", options or {}, { "results", "skip_bad" })
  local found, err
  local results = o.results or "results"
  for _, folder in ipairs { results .. "/local/", results .. "/" } do -- a run, a device
    local path = folder .. name
    if not name:find("^[./]") and not is_folder(name) and is_folder(path) then name = path end
  end
  if is_folder(name) then found, err = read_files(files_in(name, DEEPEST, {}), o)
  else
    local file = io.open(name)
    if file then
      file:close()
      found, err = read_files({ name }, o)
    elseif #name >= FEWEST_DIGITS and name:find("^%x[%x%-TZ]*$") then
      local function keep(r)
        local run = r.run or {}
        return tostring(run.commit):sub(1, #name) == name or tostring(run.id):sub(1, #name) == name
      end
      found, err = read_files(files_in(results, DEEPEST, {}), o, keep)
      if found and #found.records == 0 then
        return nil, ("%s: no file or folder, and no record below %s/ is of such a commit or run"):format(name, results)
      end
    else
      return nil, ("%s: no file, folder, commit or run of that name"):format(name)
    end
  end
  if not found then return nil, err end
  if #found.records == 0 then return nil, name .. ": no record in it" end
  return found
end

--- What runs made records, newest last: a list of headers of fh.run, each once.
function M.runs(list)
  local runs, seen = {}, {}
  for _, r in ipairs(list) do
    local id = r.run and r.run.id
    if id and not seen[id] then
      seen[id] = true
      runs[#runs + 1] = r.run
    end
  end
  table.sort(runs, function(a, b)
    if a.date ~= b.date then return tostring(a.date) < tostring(b.date) end
    return a.id < b.id
  end)
  return runs
end

return M
