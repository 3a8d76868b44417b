--- Rate: how fast a device is, about, from two short calls: what the time of a sweep is estimated with before it starts.
--
--   local rates = assert(require("fewhead.decide.rate").measure(dev))
--   print(rates.padded, rates.native, rates.bytes)      --> FLOP/s of padded, of gather; bytes filled a second

local F = require "fewhead.base.ffi"

local M = {}

-- gather: native heads, row by row.
local NATIVE = require("fewhead.device.path").native()[1]

-- Rows of the call that is measured: some milliseconds of work.
local ROWS_CPU, ROWS_GPU = 32, 2048
local HEADS, PADDED, TOPK, WIDTH = 8, 64, 640, 1024 -- WIDTH: d_qk + d_v

-- Seconds of the quicker of two runs of a path.
local function seconds_of(problem, outputs, path)
  local run, release = problem:runner(path, outputs, {})
  if not run then return nil, release end
  local best = math.huge
  for _ = 1, 2 do
    local start = F.C.fh_time_ns()
    local ok, err = F.check(run())
    if ok then ok, err = problem.device:synchronize() end
    if not ok then
      release()
      return nil, err
    end
    best = math.min(best, tonumber(F.C.fh_time_ns() - start) / 1e9)
  end
  release()
  return best
end

--- { padded =, native = FLOP/s of the padded path and of gather with 8 heads, bytes = bytes of tensors made and filled a second }
-- | nil, err.
function M.measure(dev)
  local rows = dev.kind == "cpu" and ROWS_CPU or ROWS_GPU
  local case = require("fewhead.case.case").new { heads = HEADS, s_q = rows, s_kv = 2048, topk = TOPK, pattern = "uniform" }
  local start = F.C.fh_time_ns()
  local problem, err = case:problem(dev)
  if not problem then return nil, err end
  local filled = tonumber(F.C.fh_time_ns() - start) / 1e9
  local outputs, padded, native
  outputs, err = problem:outputs()
  if outputs then
    padded, err = seconds_of(problem, outputs, "padded")
    if padded then native, err = seconds_of(problem, outputs, NATIVE) end
    outputs:free()
  end
  case:free()
  if not native then return nil, err end
  local flops = 2 * rows * TOPK * WIDTH
  local bytes = rows * HEADS * 512 * 2 + 2048 * 512 * 2 + rows * TOPK * 4
  return { padded = flops * PADDED / padded, native = flops * HEADS / native, bytes = bytes / filled }
end

return M
