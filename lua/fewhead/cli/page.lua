--- The command `fewhead page RUN`: one HTML file of a run (fewhead.report.page).
local options = require "fewhead.cli.options"
local page = require "fewhead.report.page"
local pictures = require "fewhead.report.pictures"
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
  local found = records.filtered("page", opt[1], opt)
  records.need("page", page.write(opt.out, found.records, {
    title = opt.title or opt[1], marks = pictures.marks(), skipped = found.skipped }))
  print(("written: %s, %d records"):format(opt.out, #found.records))
  return 0
end

return M
