--- The command `fewhead compare OLD NEW`: two sets of records held against each other (fewhead.report.diff).
local axes = require "fewhead.report.axes"
local diff = require "fewhead.report.diff"
local exit = require "fewhead.cli.exit"
local options = require "fewhead.cli.options"
local source = require "fewhead.report.source"
local tables = require "fewhead.base.table"

local M = {}

-- Outcomes that --fail-on takes, as one word each.
local FAIL_ON = { "slower", "faster", "unclear", "differs", "gone", "failed", "new" }

local parser = options {
  name = "fewhead: compare", usage = "fewhead compare OLD NEW [options]", arguments = { 2, 2 },
  about = "Which cells got faster or slower from OLD to NEW, each a file of records, a folder, a run or a commit; status 1 when\n"
    .. "nothing could be compared, or when --fail-on finds something.",
  options = {
    { "--where", "FIELD=VALUE", "only records whose field has the value, or one of several with commas", repeated = true },
    { "--across", "LIST", "fields that may differ in cells that are compared: device, threads, isa, seed, .." },
    { "--fail-on", "LIST", "status 1 when a cell is one of these; slower: also when one is gone or failed", choices = FAIL_ON },
    { "--least", "NUMBER", "the smallest difference that counts, in percent", default = 100 * diff.least, lo = 0, hi = 1000 },
    { "--all", nil, "list the cells that are the same, too" },
    { "--markdown", nil, "the table as markdown" },
    { "--skip-bad", nil, "leave out lines that are no records, and name them" },
    { "--results", "DIR", "where the records of a commit or a run are looked for", default = "results" },
  },
}

--- `fewhead compare`: prints what changed and one summary line; the exit status.
function M.main(argv)
  local opt = parser:read(argv)
  local function need(value, err, status)
    if not value then exit.with(status or exit.FAILED, "fewhead: compare: " .. err) end
    return value
  end
  local where, err = axes.parse_where(opt.where)
  need(where, err and "--where: " .. err, exit.USAGE)
  local sides = {}
  for i = 1, 2 do
    sides[i] = need(source.read(opt[i], { results = opt.results, skip_bad = opt.skip_bad }))
    for _, message in ipairs(sides[i].skipped) do io.stderr:write("fewhead: compare: left out: ", message, "\n") end
  end
  local found
  found, err = diff(sides[1].records, sides[2].records, { where = where, across = opt.across, least = opt.least / 100 })
  need(found, err and "--" .. err, exit.USAGE)
  print(found:text { names = { opt[1], opt[2] }, all = opt.all, make = opt.markdown and tables.markdown or tables.text })
  if found.compared == 0 then return exit.FAILED end
  return found:failing(opt.fail_on or {}) > 0 and exit.FAILED or 0
end

return M
