--- The command `fewhead bundle`: a run packed for somebody else (fewhead.report.bundle).
local bundle = require "fewhead.report.bundle"
local exit = require "fewhead.cli.exit"
local options = require "fewhead.cli.options"

local M = {}

local parser = options.new {
  name = "bundle", usage = "fewhead bundle [options] [RUN]",
  about = "Packs a sweep (default: the newest in results/local), its gate table and the fingerprint of build and device into\n"
    .. "NAME.tar. It holds the words of the command and the device's name, no name of a host, user or folder of this machine.",
  arguments = { 0, 1 },
  options = { { "--tar", "FILE", "the file to write (default: the run's name with .tar)", kind = "TEXT" } },
}

--- Returns the exit status; ends with 1 and one line where there is no run or the file cannot be written.
function M.main(argv)
  local opt = parser:read(argv)
  local made, err = bundle.run(opt[1] or "results/local", { tar = opt.tar })
  if not made then exit.with(exit.FAILED, "bundle: " .. tostring(err)) end
  print(made)
  return 0
end

return M
