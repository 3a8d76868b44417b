-- Long commands say on a terminal how far they are, and nothing in a pipe.
local helper = require "spec.helper"
local process = require "spec.process"
local terminal = require "spec.terminal"

local is_here, why = terminal.is_here()
local folder = helper.folder()
teardown(function() process.remove(folder) end)

-- What each command shows while it runs.
local COMMANDS = {
  { "serving_ab --workload C16x8kx48 --repetitions 1000 --arms padded", " of 1000 runs, about " },
  { ("bench --s-q 512 --seconds 4 --blas %s --out %s"):format(require "spec.blas"(folder), folder),
    "s left: times of sgemm and 3 paths" },
}

describe("A long command", function()
  for _, row in ipairs(COMMANDS) do
    local command, shown = "./fewhead run " .. row[1], row[2]
    it("shows its progress on a terminal: " .. row[1]:match("^%l+[%l_]*"), function()
      if not is_here then return pending(why) end
      local t = terminal.open(command, { columns = 120 })
      t:wait(shown)
      t:close()
    end)
  end

  it("writes no progress into a pipe", function()
    local status, _, err = process.run "./fewhead run serving_ab --workload cold32k --repetitions 2"
    assert.same({ 0, "" }, { status, err })
  end)
end)
