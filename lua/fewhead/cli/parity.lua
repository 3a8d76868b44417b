--- The command `fewhead parity`: the conformance grid on one device, a line a check.
local exit = require "fewhead.cli.exit"
local grid = require "fewhead.measure.grid"
local header = require "fewhead.record.run"
local json = require "fewhead.base.json"
local options = require "fewhead.cli.options"
local path = require "fewhead.device.path"
local progress = require "fewhead.cli.progress"
local records = require "fewhead.record.record"

local M = {}

-- A result as one line for people.
local function text_line(entry, case, result)
  local status = result.status == "pass" and "pass" or result.status:upper()
  local words = { ("%-7s %-6s %s: %s"):format(status, result.path, entry.group, case:id()) }
  if result.status == "pass" then
    words[#words + 1] = (" max_abs %.1e rel %.1e cos %.1e"):format(result.max_abs, result.rel, result.cos_diff)
    if result.lse_max_abs then words[#words + 1] = (" lse %.1e"):format(result.lse_max_abs) end
  else
    words[#words + 1] = " " .. result.reason
  end
  if result.sampled then words[#words + 1] = (" (%d of %d rows)"):format(result.sampled, entry.case.s_q) end
  return table.concat(words)
end

-- A check as a record: with set, the name of the cases that it belongs to, and rows, those of the whole case.
local function record(entry, case, result, by, run)
  return records.new {
    path = by, case = case:describe(), call = entry.call, parity = result, work = result.work, run = run,
    more = { set = entry.group, rows = entry.case.s_q },
  }
end

-- The paths that can be asked for.
local checked = { "auto", unpack(path.computing()) }

local parser = options {
  name = "fewhead: parity", usage = "fewhead parity [options]",
  about = "Compares paths with the reference over the conformance grid; status 1 when a check does not pass or none ran.",
  options = {
    { "--json", nil, "one JSON line a check, and the summary on stderr" },
    { "--path", "LIST", "paths to check", choices = checked },
    { "--grid", "FILE", "cases of this file instead of our own and the production calls", repeated = true },
    grid.rows.by_key.full,
    { "--filter", "TEXT", "only cases whose group or description contains TEXT" },
    "provider", "device",
  },
}

local function cases_of(opt)
  local lists, cases = {}, {}
  local files = opt.grid
  if #opt.grid == 0 then lists = { grid.own(), grid.production() } end
  for _, file in ipairs(files) do
    local list, err = grid.file(file)
    if not list then return nil, err end
    lists[#lists + 1] = list
  end
  for _, list in ipairs(lists) do
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

--- `fewhead parity`: prints a line a check and the counts; the exit status: 0 all passed, 1 not, 2 wrong options.
function M.main(argv)
  local opt = parser:read(argv)
  local function need(status, value, err)
    if not value then exit.with(status, "fewhead: parity: " .. err) end
    return value
  end
  local cases = need(exit.FAILED, cases_of(opt))
  local dev = need(exit.USAGE, options.open_device(opt.device))
  local run = opt.json and header.header(dev, argv)
  local checks = filtered(cases, opt.filter)
  local function on_result(entry, case, result, by)
    local line = opt.json and json.encode(record(entry, case, result, by, run)) or text_line(entry, case, result)
    io.stdout:write(line, "\n")
    io.stdout:flush()
  end
  local bar, last, number = progress { total = #checks, noun = "cases" }, nil, 0
  local function on_check(entry, case, result, by)
    bar:clear() -- what is printed may be on the same terminal
    on_result(entry, case, result, by)
    if entry ~= last then last, number = entry, number + 1 end
    if result.status == "fail" then bar:failed() end
    bar:step(case:id(), number)
  end
  local oracle = dev.kind ~= "cpu" and grid.check_oracle { device = dev, on_result = on_result }
  local totals = grid.run {
    cases = checks, device = dev, paths = opt.path, providers = opt.provider, full = opt.full,
    on_result = on_check,
  }
  bar:clear()
  local refused = totals.refused > 0 and (", %d refused by providers"):format(totals.refused) or ""
  local summary = ("%d passed, %d failed, %d invalid%s (%d on a sample of rows) of %d checks, %d cases\n"):format(totals.passed,
    totals.failed, totals.invalid, refused, totals.sampled, totals.checks, totals.cases)
  local stream = opt.json and io.stderr or io.stdout
  stream:write(summary)
  if oracle then
    stream:write(("the reference on %s against the CPU's: %d of %d passed\n"):format(dev.name, oracle.passed, oracle.checks))
  end
  stream:flush()
  if totals.checks == 0 then io.stderr:write("fewhead: parity: nothing ran\n") end
  return grid.ok(totals) and (not oracle or grid.ok(oracle)) and 0 or exit.FAILED
end

return M
