--- Merge: puts the parts of a sweep together. Behind `fewhead merge`.
local exit = require "fewhead.cli.exit"
local options = require "fewhead.cli.options"
local results = require "fewhead.report.results"

local M = {}

local parser = options.new {
  name = "merge", usage = "fewhead merge [options] RUN ..",
  about = "Puts the parts of a sweep, made with --shard i/N, together to one run. RUN: the folder of a part. Status 1 where a\n"
    .. "part is missing, double, not whole or of another sweep, build or device; then nothing is written.",
  arguments = { 1, math.huge },
  options = {
    { "name", default = "gate_sweep" },
    "out",
  },
}

--- Returns the exit status; ends with 1 and a line for each problem.
function M.main(argv)
  local opt = parser:read(argv)
  local folders = {}
  for i = 1, #opt do folders[i] = opt[i] end
  local run, _, problems = results.merge(folders, { out = opt.out, name = opt.name })
  if not run then exit.with(exit.FAILED, "merge: " .. table.concat(problems, "\nmerge: ")) end
  print(("%d parts, %d cells: %s"):format(run.head.parts, run.head.cells, run.folder))
  return 0
end

return M
