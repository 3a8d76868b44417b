--- Conformance: every path against the reference over the conformance grid, as one object: what `fewhead parity` runs.
--
--     local found = assert(fh.conformance { filter = "heads", paths = { "gather" } })
--     print(found, found.failed)
--     assert(found:save "conformance.jsonl")
--     print(found:compare "results/local/earlier.jsonl")     -- what passed and does not any more
local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local grid = require "fewhead.measure.grid"
local option = require "fewhead.base.option"
local paths = require "fewhead.device.path"
local records = require "fewhead.record.record"

local M = {}

local Conformance = { __name = "conformance" }
Conformance.__index = Conformance
M.class = Conformance -- a later room gives it further methods

--- The options of fh.conformance (fewhead.base.option).
M.rows = option.rows("conformance", {
  { "--path", "LIST", "paths to check", key = "paths", choices = { "auto", unpack(paths.computing()) } },
  { "--grid", "FILE", "cases of this file instead of our own and the production calls", repeated = true },
  { "--filter", "TEXT", "only cases whose group or description contains TEXT" },
  grid.rows.by_key.full, grid.rows.by_key.providers, grid.rows.by_key.device,
  { "on_start", "FUNCTION", "told the number of cases" },
  { "on_result", "FUNCTION", "called after each check" }, { "argv", "TABLE", "the words of the command" },
})

-- The cases of these files, or our own; nil, err.
local function cases_of(files)
  if #files == 0 then
    local cases = grid.own()
    for _, entry in ipairs(grid.production()) do cases[#cases + 1] = entry end
    return cases
  end
  local cases = {}
  for _, file in ipairs(files) do
    local list, err = grid.file(file)
    if not list then return nil, err end
    for _, entry in ipairs(list) do cases[#cases + 1] = entry end
  end
  return cases
end

-- Those whose "group: case" contains the text.
local function filtered(cases, text)
  if not text then return cases end
  local some = {}
  for _, entry in ipairs(cases) do
    if ("%s: %s"):format(entry.group, entry.case:id()):find(text, 1, true) then some[#some + 1] = entry end
  end
  return some
end

--- Check paths over the grid. Options: paths, names (default: what each case is for and the device has); providers, a list;
-- grid, a file or a list of files in place of our own cases and the production calls (fh.grid.file); filter, text that a
-- case's group or description contains; full, larger samples; device (default device.default()); on_start(cases);
-- on_result(entry, case, result, path or provider, record); argv. On a GPU its reference is checked against the CPU's too.
-- Returns { records = one a check, with `set`, the name of the cases, and `rows`, those of the whole case; passed =, failed =,
-- invalid =, refused =, sampled =, checks =, cases =, oracle = the same counts of the reference or nil, device_name =, run =
-- }; nil, err for a file that is no grid.
function M.run(options)
  local o = option.table("conformance", options, M.rows)
  local dev = device.check("conformance: device", o.device or device.default())
  local cases, err = cases_of(o.grid)
  if not cases then return nil, err end
  cases = filtered(cases, o.filter)
  local self = setmetatable({ records = {}, device_name = dev.name,
    run = require("fewhead.record.run").header(dev, o.argv) }, Conformance)
  local function on_result(entry, case, result, by)
    local record = records.new {
      path = by, case = case:describe(), call = entry.call, parity = result, work = result.work, run = self.run,
      more = { set = entry.group, rows = entry.case.s_q },
    }
    self.records[#self.records + 1] = record
    if o.on_result then o.on_result(entry, case, result, by, record) end
  end
  if o.on_start then o.on_start(#cases) end
  self.oracle = dev.kind ~= "cpu" and grid.check_oracle { device = dev, on_result = on_result } or nil
  local totals = grid.run {
    cases = cases, device = dev, paths = o.paths, providers = o.providers, full = o.full, on_result = on_result,
  }
  for key, count in pairs(totals) do self[key] = count end
  return self
end

--- Whether nothing failed, nothing was undecided and something ran.
function Conformance:ok() return grid.ok(self) and (not self.oracle or grid.ok(self.oracle)) end

--- The counts in one line, and a line for a GPU's reference.
function Conformance:summary()
  local refused = self.refused > 0 and (", %d refused by providers"):format(self.refused) or ""
  local text = ("%d passed, %d failed, %d invalid%s (%d on a sample of rows) of %d checks, %d cases"):format(self.passed,
    self.failed, self.invalid, refused, self.sampled, self.checks, self.cases)
  if not self.oracle then return text end
  return ("%s\nthe reference on %s against the CPU's: %d of %d passed"):format(text, self.device_name, self.oracle.passed,
    self.oracle.checks)
end

-- Checks that did not pass are shown up to this number.
local MOST_SHOWN = 20

function Conformance:__tostring()
  local lines, bad = {}, 0
  for _, record in ipairs(self.records) do
    if record.parity.status ~= "pass" then
      bad = bad + 1
      if bad <= MOST_SHOWN then
        lines[#lines + 1] = ("%s %s, %s, %d heads: %s"):format(record.parity.status, record.path, record.set, record.case.h_q,
          args.given(record.parity.reason, "no reason"))
      end
    end
  end
  if bad > MOST_SHOWN then lines[#lines + 1] = (".. and %d more that did not pass"):format(bad - MOST_SHOWN) end
  lines[#lines + 1] = self:summary()
  return table.concat(lines, "\n")
end

-- A tail call: errors blame the caller, as for M.run itself.
return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
