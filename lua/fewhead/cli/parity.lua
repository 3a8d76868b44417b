--- The command `fewhead parity`: the conformance grid on one device, a line a check (fewhead.measure.conformance).
local conformance = require "fewhead.measure.conformance"
local exit = require "fewhead.cli.exit"
local json = require "fewhead.base.json"
local options = require "fewhead.cli.options"
local progress = require "fewhead.cli.progress"

local M = {}

-- A result as one line for people.
local function text_line(entry, case, result)
  local status = result.status == "pass" and "pass" or result.status:upper()
  local words = { ("%-7s %-6s %s: %s"):format(status, result.path, entry.group, case:id()) }
  if result.status == "pass" then
    words[#words + 1] = (" max_abs %.1e rel %.1e cos %.1e"):format(result.max_abs, result.rel, result.cos_diff)
    if result.lse_max_abs then words[#words + 1] = (" lse %.1e"):format(result.lse_max_abs) end
  else
    words[#words + 1] = " " .. result.reason
  end
  if result.sampled then words[#words + 1] = (" (%d of %d rows)"):format(result.sampled, entry.case.s_q) end
  return table.concat(words)
end

local of = conformance.rows.by_key

local parser = options {
  name = "fewhead: parity", usage = "fewhead parity [options]",
  about = "Compares paths with the reference over the conformance grid; status 1 when a check does not pass or none ran.",
  options = {
    { "--json", nil, "one JSON line a check, and the summary on stderr" },
    of.paths, of.grid, of.full, of.filter, "provider", "device",
  },
}

--- `fewhead parity`: prints a line a check and the counts; the exit status: 0 all passed, 1 not, 2 wrong options.
function M.main(argv)
  local opt = parser:read(argv)
  local function need(status, value, err)
    if not value then exit.with(status, "fewhead: parity: " .. err) end
    return value
  end
  local dev = need(exit.USAGE, options.open_device(opt.device))
  local bar, last, number = nil, nil, 0
  local found = need(exit.FAILED, conformance.run {
    paths = opt.paths, grid = opt.grid, filter = opt.filter, full = opt.full, device = dev, providers = opt.provider, argv = argv,
    on_start = function(cases) bar = progress { total = cases, noun = "cases" } end,
    on_result = function(entry, case, result, _, record)
      bar:clear() -- what is printed may be on the same terminal
      io.stdout:write(opt.json and json.encode(record) or text_line(entry, case, result), "\n")
      io.stdout:flush()
      if entry.group:find("^oracle") then return end
      if entry ~= last then last, number = entry, number + 1 end
      if result.status == "fail" then bar:failed() end
      bar:step(case:id(), number)
    end,
  })
  bar:clear()
  local stream = opt.json and io.stderr or io.stdout
  stream:write(found:summary(), "\n")
  stream:flush()
  if found.checks == 0 then io.stderr:write("fewhead: parity: nothing ran\n") end
  return found:ok() and 0 or exit.FAILED
end

return M
