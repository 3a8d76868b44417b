--- The command `fewhead plot RUN`: times as text in the terminal, or all pictures as SVG files (fewhead.report.pictures).
local file = require "fewhead.record.file"
local gate = require "fewhead.decide.gate"
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

--- The published gate as a mark of pictures.
function M.marks()
  return { { x = gate.default_min_sq, label = ("published %d"):format(gate.default_min_sq), colour = 6 } }
end

--- `fewhead plot`: the exit status.
function M.main(argv)
  local opt = parser:read(argv)
  local list = records.filtered("plot", opt[1], opt)
  if not opt.out then
    print(records.need("plot", pictures.curves(list, { marks = M.marks(), text = true }), "no record has a time"))
    return 0
  end
  local made = pictures.of(list, { marks = M.marks() })
  records.need("plot", #made > 0 or nil, "no record has a time")
  for _, picture in ipairs(made) do
    local path = ("%s/%s.svg"):format(opt.out, picture.name)
    records.need("plot", file.write(path, picture.svg))
    print("written: " .. path)
  end
  return 0
end

return M
