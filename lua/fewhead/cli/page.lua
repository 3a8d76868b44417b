--- The command `fewhead page RUN`: one HTML file of a run (fewhead.report.page).
local options = require "fewhead.cli.options"
local page = require "fewhead.report.page"
local plot = require "fewhead.cli.plot"
local records = require "fewhead.cli.records"

local M = {}

local parser = options {
  name = "fewhead: page", usage = "fewhead page RUN [options]", arguments = { 1, 1 },
  about = "One HTML file of records: a file, a folder, a run or a commit. It needs no network.",
  options = records.with {
    { "--out", "FILE", "the file to write", kind = "TEXT", default = "fewhead.html" },
    { "--title", "TEXT", "what the page is called (default: RUN)" },
  },
}

--- `fewhead page`: writes the page and prints its name; the exit status.
function M.main(argv)
  local opt = parser:read(argv)
  local list, skipped = records.filtered("page", opt[1], opt)
  records.need("page", page.write(opt.out, list, { title = opt.title or opt[1], marks = plot.marks(), skipped = skipped }))
  print(("written: %s, %d records"):format(opt.out, #list))
  return 0
end

return M
