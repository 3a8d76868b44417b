--- The command `fewhead export RUN`: records as CSV, SQLite or markdown (fewhead.report.export).
local export = require "fewhead.report.export"
local options = require "fewhead.cli.options"
local records = require "fewhead.cli.records"

local M = {}

local parser = options {
  name = "fewhead: export", usage = "fewhead export RUN --out FILE [options]", arguments = { 1, 1 },
  about = "Records of a file, a folder, a run or a commit as CSV, SQLite or markdown; without --out, markdown is printed.",
  options = records.with {
    { "--out", "FILE", "the file to write; its ending says what: .csv, .sqlite, .db, .md", kind = "TEXT" },
  },
}

--- `fewhead export`: the exit status.
function M.main(argv)
  local opt = parser:read(argv)
  local list = records.filtered("export", opt[1], opt).records
  if not opt.out then
    io.stdout:write(export.markdown(list))
    return 0
  end
  local ok, err = export.write(opt.out, list)
  records.need("export", ok, err and (err:find("^got ") and "--out: " .. err or err))
  print(("written: %s, %d records"):format(opt.out, #list))
  return 0
end

return M
