-- How fast are the CPU paths beside a good matrix product on the same threads?
-- One run, arms interleaved: OpenBLAS sgemm on 512 x 512 x 512 matrices, and every path on one case, parity first.
--
--   ./fewhead run experiments/bench.lua                    the few-head case of DeepSeek-V4.1-Flash at TP8, s_q 2048
--   ./fewhead run experiments/bench.lua --s-q 512 --pattern uniform
--
-- Answer on a Xeon with amx, 2 threads, csa, s_q 2048: gather runs at 1.42 and packed at 4.32 times the rate of sgemm.
-- Needs OpenBLAS (`make bench` installs it). Exit status 1 when a path fails parity.
local fh = require "fewhead"

local opt = fh.options {
  name = "bench", about = "GFLOP/s of every path beside OpenBLAS sgemm, equal threads, one run.",
  options = {
    "preset", { "s_q", "INTEGER", default = 2048 }, "pattern", "layout", "seconds", { "device", default = "cpu" },
    { "--blas", "LIBRARY", "what has cblas_sgemm", default = "libopenblas.so.0" }, "out", "name", "tags",
  },
}:read(arg)

-- Rows of the chunk that are compared with the reference, spread evenly: the reference is slow, and paths treat rows alike.
local PARITY_ROWS = 64

local paths = fh.path.candidates()
local e = fh.experiment.open("bench", opt, { unit = "step", total = #paths + 1 })
e:need(e.on_cpu, ('--device: got "%s", wanted a CPU, where OpenBLAS runs too'):format(opt.device))
local sgemm, why = fh.blas.open(opt.blas, e.device:info())
e:need(sgemm, why and why .. ": make bench installs OpenBLAS, --blas names another")

local case = fh.case { preset = opt.preset, s_q = opt.s_q, pattern = opt.pattern, layout = opt.layout }
local problem = e:need(case:problem(e.device))
local outputs, plan = assert(problem:outputs()), assert(fh.plan.build(problem))

local arms, checked = { { name = "sgemm", run = sgemm.run } }, {}
for i, path in ipairs(paths) do
  e.line:step("parity of " .. path)
  local with = { plan = fh.path.get(path).wants_plan and plan or nil }
  local parity = fh.parity.check(problem, path, { against = "reference", sample = math.min(opt.s_q, PARITY_ROWS) })
  checked[i] = { path = path, parity = parity, work = assert(problem:run(path, outputs, with)) }
  arms[i + 1] = { name = path, run = assert(problem:runner(path, outputs, with)) }
end
e.line:step(("times of sgemm and %d paths, up to %g s"):format(#checked, opt.seconds))
local time = assert(fh.timing.measure(arms, { max_seconds = opt.seconds }))

for _, one in ipairs(checked) do
  local passed = one.parity.status == "pass"
  e:add { fh.record.new {
    path = one.path, case = case:describe(), parity = one.parity, time = passed and time[one.path] or nil, work = one.work,
    run = e.run, more = { sgemm = { flops = sgemm.flops, median_us = time.sgemm.median_us, text = sgemm.text } },
  } }
end
local report = fh.blas_report.make { sgemm = sgemm, time = time.sgemm, records = e.records }
local what = ("%s, %d threads, %s; %s, s_q %d, %s, %s; plan built outside"):format(e.run.device, e.run.threads, e.run.isa,
  opt.preset, opt.s_q, opt.pattern, opt.layout)
return e:finish { title = "CPU paths beside sgemm", text = what .. "\n" .. report:text(),
  markdown = what .. "\n\n" .. report:markdown() }
