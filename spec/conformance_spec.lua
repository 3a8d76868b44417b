-- The conformance grid itself: every case of our own table on every path, with each instruction set that this CPU has.
local device = require "fewhead.device.device"
local grid = require "fewhead.measure.grid"
local F = require "fewhead.base.ffi"

-- Of every how many cases the instruction sets below the best one take one; no multiple of an axis's length, so all values come
-- up.
local EVERY = 7

local function run(dev, cases)
  local faults = {}
  local totals = grid.run {
    device = dev, cases = cases, on_result = function(entry, case, result)
      if result.status ~= "pass" then
        faults[#faults + 1] = ("%s %s %s: %s"):format(result.path, entry.group, case:id(), result.reason)
      end
    end,
  }
  assert.equal("", table.concat(faults, "\n"))
  local cases_of_device = 0
  for _, entry in ipairs(cases) do
    local packed_alone = entry.paths and entry.paths[1] == "packed" -- those need a device that packs
    if not packed_alone or dev:has_path("packed") then cases_of_device = cases_of_device + 1 end
  end
  assert.equal(cases_of_device, totals.cases)
  assert.is_true(grid.ok(totals))
end

describe("the conformance grid", function()
  it("passes on every path", function() run(device.default(), grid.own()) end)

  for number, isa in ipairs(F.isa_names) do
    it("passes with the " .. isa .. " kernels", function()
      local dev, err = device.open("cpu", { isa = isa })
      if not dev then
        assert.matches("isa", err)
        pending("this CPU has no " .. isa)
        return
      end
      local some = {}
      for i, entry in ipairs(grid.own()) do
        if (i + number) % EVERY == 0 then some[#some + 1] = entry end
      end
      run(dev, some)
      dev:close()
    end)
  end
end)
