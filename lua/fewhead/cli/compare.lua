--- The command `fewhead compare OLD NEW`: two sets of records held against each other (fewhead.report.diff).
local diff = require "fewhead.report.diff"
local exit = require "fewhead.cli.exit"
local options = require "fewhead.cli.options"
local records = require "fewhead.cli.records"
local tables = require "fewhead.base.table"

local M = {}

-- Outcomes that --fail-on takes, as one word each.
local FAIL_ON = { "slower", "faster", "unclear", "differs", "gone", "failed", "new" }

local parser = options {
  name = "fewhead: compare", usage = "fewhead compare OLD NEW [options]", arguments = { 2, 2 },
  about = "Which cells got faster or slower from OLD to NEW, each a file of records, a folder, a run or a commit; status 1 when\n"
    .. "nothing could be compared, or when --fail-on finds something.",
  options = records.with {
    { "--across", "LIST", "fields that may differ in cells that are compared: device, threads, isa, seed, .." },
    { "--fail-on", "LIST", "status 1 when a cell is one of these; slower: also when one is gone or failed", choices = FAIL_ON },
    { "--least", "NUMBER", "the smallest difference that counts, in percent", default = 100 * diff.least, lo = 0, hi = 1000 },
    { "--all", nil, "list the cells that are the same, too" },
    { "--markdown", nil, "the table as markdown" },
  },
}

--- `fewhead compare`: prints what changed and one summary line; the exit status.
function M.main(argv)
  local opt = parser:read(argv)
  local where, sides = records.where("compare", opt), {}
  for i = 1, 2 do sides[i] = records.read("compare", opt[i], opt).records end
  local found, err = diff(sides[1], sides[2], { where = where, across = opt.across, least = opt.least / 100 })
  records.need("compare", found, err and "--" .. err, exit.USAGE)
  print(found:text { names = { opt[1], opt[2] }, all = opt.all, make = opt.markdown and tables.markdown or tables.text })
  if found.compared == 0 then return exit.FAILED end
  return found:failing(opt.fail_on or {}) > 0 and exit.FAILED or 0
end

return M
