--- The command `fewhead plot RUN`: times as text in the terminal, or all pictures as SVG files (fewhead.report.pictures).
local file = require "fewhead.record.file"
local options = require "fewhead.cli.options"
local pictures = require "fewhead.report.pictures"
local records = require "fewhead.cli.records"

local M = {}

local parser = options {
  name = "fewhead: plot", usage = "fewhead plot RUN [options]", arguments = { 1, 1 },
  about = "Time and speed-up over s_q of a file, a folder, a run or a commit, as text; with --out, all pictures as SVG files.",
  options = records.with {
    { "--out", "DIR", "the folder for SVG files" },
  },
}

--- `fewhead plot`: the exit status.
function M.main(argv)
  local opt = parser:read(argv)
  local found = records.filtered("plot", opt[1], opt)
  if not opt.out then
    print(records.need("plot", found:plot()))
    return 0
  end
  local made = pictures.of(found.records, { marks = pictures.marks() })
  records.need("plot", #made > 0 or nil, "no record has a time")
  for _, picture in ipairs(made) do
    local path = ("%s/%s.svg"):format(opt.out, picture.name)
    records.need("plot", file.write(path, picture.svg))
    print("written: " .. path)
  end
  return 0
end

return M
