-- Records for specs of reports: the smallest that pass fh.record's check, with what a spec changes.
local json = require "fewhead.base.json"

local M = {}

local function run(id)
  return {
    id = id, commit = id:rep(40):sub(1, 40), device = "NVIDIA H200", kind = "cuda", driver = "580", date = "2026-01-02T03:04:05Z",
    multiprocessors = 132, capability = "9.0", argv = { "--device", "cuda:0" },
  }
end
M.run = run

--- A record of path "gather" that took `us`, spread of 1 % and 30 samples. changes: { case = {..}, time = {..}, run = {..} }
-- are merged into those parts; other fields replace the record's.
function M.record(us, changes)
  local r = {
    path = "gather", provider = "fewhead", provider_version = "0.2.0", run = run("a"),
    case = { s_q = 64, h_q = 8, h_pad = 64, d_qk = 512, topk = 640, pattern = "csa", layout = "vllm", seed = 0 },
    parity = { status = "pass", against = "reference", compared = 1, max_abs = 1e-4 },
    work = { useful_flops = 1e9, executed_flops = 8e9, bytes = 1e6, rows = 64, waste = 0.5 },
    time = { median_us = us, p05_us = us * 0.99, p95_us = us * 1.01, median_lo_us = us * 0.997, median_hi_us = us * 1.003, n = 30,
      l2 = "hot", stop = "max_samples" },
  }
  for name, value in pairs(changes or {}) do
    if type(value) == "table" and type(r[name]) == "table" then
      for key, each in pairs(value) do r[name][key] = each end
    else r[name] = value end
  end
  return r
end

--- One that failed parity and has no time.
function M.failed(changes)
  local r = M.record(1, changes)
  r.time, r.parity = nil, { status = "fail", against = "reference", compared = 1, reason = "7 of 8 elements" }
  return r
end

--- Records as the text of a file.
function M.text(list)
  local lines = {}
  for i, r in ipairs(list) do lines[i] = json.encode(r) end
  return table.concat(lines, "\n") .. "\n"
end

return M
