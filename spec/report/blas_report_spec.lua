local blas_report = require "fewhead.report.blas_report"

local SGEMM = setmetatable({ flops = 1e9, products = 8 }, { __tostring = function() return "sgemm" end })

local function record(path, us, useful, executed, status)
  return {
    path = path, kernel = "cpu " .. path, parity = { status = status or "pass" }, time = us and { median_us = us, n = 6 },
    work = { useful_flops = useful, executed_flops = executed },
  }
end

describe("blas report", function()
  it("compares rates with sgemm's, and the better native path with padded", function()
    local made = blas_report.make {
      sgemm = SGEMM, time = { median_us = 1e4, n = 7 }, -- 100 GFLOP/s
      records = { record("padded", 8000, 1e8, 6.4e8), record("gather", 2000, 1e8, 1e8), record("packed", 1600, 1e8, 1.04e8) },
    }
    assert.equal([[
sgemm: 100.0 GFLOP/s, 7 samples of 8 products

path       time  n  parity  useful GFLOP/s  executed GFLOP/s  of sgemm            wanted  met  kernel
padded  8.00 ms  6    pass            12.5              80.0      0.80  executed >= 0.70  yes  cpu padded
gather  2.00 ms  6    pass            50.0              50.0      0.50    useful >= 0.50  yes  cpu gather
packed  1.60 ms  6    pass            62.5              65.0      0.65  executed >= 0.70   no  cpu packed

better native path: 5.00x as fast as padded, wanted >= 4: yes]], made:text())
    assert.matches("\n\n| path | time | n | ", made:markdown(), 1, true)
  end)

  it("has no speed of a path that failed", function()
    local made = blas_report.make {
      sgemm = SGEMM, time = { median_us = 1e4, n = 6 },
      records = { record("padded", nil, 1e8, 1e8, "fail"), record("gather", 2000, 1e8, 1e8) },
    }
    assert.matches("\npadded +%- +%- +fail +%- ", made:text())
    assert.matches("\nbetter native path: not known, a path was not timed$", made:text())
  end)
end)
