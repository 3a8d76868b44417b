--- The command `fewhead page RUN`: one HTML file of a run (fewhead.report.page).
local axes = require "fewhead.report.axes"
local exit = require "fewhead.cli.exit"
local gate = require "fewhead.decide.gate"
local options = require "fewhead.cli.options"
local page = require "fewhead.report.page"
local source = require "fewhead.report.source"

local M = {}

local parser = options {
  name = "fewhead: page", usage = "fewhead page RUN [options]", arguments = { 1, 1 },
  about = "One HTML file of records: a file, a folder, a run or a commit. It needs no network.",
  options = {
    { "--out", "FILE", "the file to write", kind = "TEXT", default = "fewhead.html" },
    { "--title", "TEXT", "what the page is called (default: RUN)" },
    { "--where", "FIELD=VALUE", "only records whose field has the value, or one of several with commas", repeated = true },
    { "--skip-bad", nil, "leave out lines that are no records, and name them" },
    { "--results", "DIR", "where the records of a commit or a run are looked for", default = "results" },
  },
}

--- `fewhead page`: writes the page and prints its name; the exit status.
function M.main(argv)
  local opt = parser:read(argv)
  local function need(value, err, status)
    if not value then exit.with(status or exit.FAILED, "fewhead: page: " .. err) end
    return value
  end
  local where, err = axes.parse_where(opt.where)
  need(where, err and "--where: " .. err, exit.USAGE)
  local found = need(source.read(opt[1], { results = opt.results, skip_bad = opt.skip_bad }))
  for _, message in ipairs(found.skipped) do io.stderr:write("fewhead: page: left out: ", message, "\n") end
  local list
  list, err = axes.filter(found.records, where)
  need(list, err and "--where: " .. err, exit.USAGE)
  local marks = { { x = gate.default_min_sq, label = ("published %d"):format(gate.default_min_sq), colour = 6 } }
  need(page.write(opt.out, list, { title = opt.title or opt[1], marks = marks, skipped = found.skipped }))
  print(("written: %s, %d records"):format(opt.out, #list))
  return 0
end

return M
