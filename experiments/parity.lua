-- Who is right? Compares padded and native heads with the reference and with each other on one case.
--
--   ./fewhead run experiments/parity.lua --s-q 256 --pattern local --layout vllm
--   ./fewhead run experiments/parity.lua --preset "v3.2 tp8" --s-q 64
--
-- Answer on an H200: they agree; 881 checks of the conformance grid passed, 0 failed.
-- Exit status: 0 when all agree, else 1. `./fewhead parity` checks the whole conformance grid.
local fh = require "fewhead"

local REFERENCE_FLOPS = 1e9 -- what the oracle computes of a case, about half a second on two cores; beyond it rows are sampled

local opt = fh.options {
  name = "parity", about = "Padded and native heads beside the reference and beside each other, and which side is wrong.",
  options = {
    "provider", "preset", "heads",
    { "s_q", "INTEGER", default = 256 },
    "layout", "pattern", "indices", "seed", "device",
  },
}:read(arg)

-- value, or the end of the script with the reason.
local function try(value, err)
  if not value then fh.cli.exit(1, "parity: " .. err) end
  return value
end

local dev = try(fh.cli.device(opt.device))
local case = try(fh.case {
  preset = opt.preset, s_q = opt.s_q, heads = opt.heads, pattern = not opt.indices and opt.pattern or nil, layout = opt.layout,
  indices = opt.indices, seed = opt.seed,
})
local problem = try(case:problem(dev))
local sample = fh.parity.affordable_rows(problem, REFERENCE_FLOPS)

local rows, verdicts, failed = {}, {}, false
for _, path in ipairs(fh.compare.expand("parity", { "native", unpack(opt.provider) }, dev, 1)) do
  local three = fh.parity.three_way(problem, path, { sample = sample })
  if #rows == 0 then rows[1] = three.padded end
  rows[#rows + 1] = three.native
  rows[#rows + 1] = three.between
  verdicts[#verdicts + 1] = ("padded and %s: %s"):format(fh.provider.name_of(path), three.verdict)
  failed = failed or three.verdict ~= "agree"
end
print(case)
print(fh.table.text(rows, {
  { key = "path", align = "left" }, { key = "against", align = "left" }, { key = "status", align = "left" }, { key = "compared" },
  { key = "mean_abs", format = "%.2e" }, { key = "max_abs", format = "%.2e" }, { key = "rel", format = "%.2e" },
  { key = "cos_diff", format = "%.1e" }, { key = "lse_max_abs", title = "lse", format = "%.1e" },
  { key = "work", title = "kernel", align = "left", format = function(work) return work.kernel or "-" end },
  { key = "reason", align = "left" },
}))
print(table.concat(verdicts, "\n"))
if sample then print(("over %d of %d rows"):format(rows[1].sampled, case.s_q)) end
case:free()
return failed and 1 or 0
