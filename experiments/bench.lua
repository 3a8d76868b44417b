-- How fast are the CPU paths beside a good matrix product on the same threads?
-- One run, arms interleaved: OpenBLAS sgemm on 512 x 512 x 512 matrices, and every path on one case, parity first.
--
--   ./fewhead run experiments/bench.lua                    the few-head case of DeepSeek-V4.1-Flash at TP8, s_q 2048
--   ./fewhead run experiments/bench.lua --s-q 512 --pattern uniform
--
-- Answer on a Xeon with amx, 2 threads, csa, s_q 2048: gather runs at 1.42 and packed at 4.32 times the rate of sgemm.
-- Needs OpenBLAS (`make bench` installs it). Exit status 1 when a path fails parity.
local ffi = require "ffi"
local fh = require "fewhead"

local opt = fh.options {
  name = "bench", usage = "fewhead run experiments/bench.lua [options]",
  about = "GFLOP/s of every path beside OpenBLAS sgemm, equal threads, one run.",
  options = {
    "preset",
    { "s_q", "INTEGER", default = 2048 }, "pattern", "layout", "seconds", { "device", default = "cpu" },
    { "--blas", "LIBRARY", "what has cblas_sgemm", default = "libopenblas.so.0" },
  },
}:read(arg)

-- What the paths are meant to reach; of sgemm's rate, and for the better native path of padded's time.
local WANTED = { gather = { "useful", 0.5 }, padded = { "executed", 0.7 }, packed = { "executed", 0.7 }, speedup = 4 }
-- Rows of the chunk that are compared with the reference, spread evenly: the reference is slow, and paths treat rows alike.
local PARITY_ROWS = 64

-- ---- The measure: C = A B in single precision ---------------------------------------------------------------------------------

local N, RUNS = 512, 8 -- products in a sample, so that starting the threads does not weigh on one of a few milliseconds

ffi.cdef [[
int setenv(const char *name, const char *value, int overwrite);
void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc);
void openblas_set_num_threads(int);
char *openblas_get_corename(void);
char *openblas_get_config(void);
]]
local ROW_MAJOR, NO_TRANS = 101, 111

local dev, why = fh.cli.device(opt.device)
if dev and dev.kind ~= "cpu" then
  dev, why = nil, ('--device: got "%s", wanted a CPU, where OpenBLAS runs too'):format(opt.device)
end
if not dev then fh.cli.exit(fh.cli.FAILED, "bench: " .. why) end
local info = dev:info()

-- An OpenBLAS older than the CPU takes it for one of 2004 and uses SSE, so it is told; a setting of the caller's stays.
local CORE = { avx2 = "Haswell", avx512 = "SkylakeX", avx512_bf16 = "Cooperlake", amx = "Cooperlake" }
if CORE[info.isa] then ffi.C.setenv("OPENBLAS_CORETYPE", CORE[info.isa], 0) end
-- Its threads spin for work long after a product, which would slow the arm that follows; 2^20 cycles cost the product nothing.
ffi.C.setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0)
local found, blas = pcall(ffi.load, opt.blas)
if not found then fh.cli.exit(fh.cli.FAILED, "bench: " .. blas .. ": make bench installs OpenBLAS, --blas names another") end
blas.openblas_set_num_threads(info.threads)

local a, b, c = ffi.new("float[?]", N * N), ffi.new("float[?]", N * N), ffi.new("float[?]", N * N)
for i = 0, N * N - 1 do a[i], b[i] = (i % 7) / 7, (i % 5) / 5 end
local function sgemm()
  for _ = 1, RUNS do blas.cblas_sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, N, N, N, 1, a, N, b, N, 0, c, N) end
end

-- ---- The paths ----------------------------------------------------------------------------------------------------------------

local case = fh.case { preset = opt.preset, s_q = opt.s_q, pattern = opt.pattern, layout = opt.layout }
local problem, err = case:problem(dev)
if not problem then fh.cli.exit(fh.cli.FAILED, "bench: " .. err) end
local outputs = assert(problem:outputs())
local plan = assert(fh.plan.build(problem))

local paths = fh.path.candidates()
local arms, rows, wrong = { { name = "sgemm", run = sgemm } }, {}, false
local line = fh.progress { total = #paths + 1, noun = "steps" }
for i, path in ipairs(paths) do
  line:step("parity of " .. path)
  local with = { plan = fh.path.get(path).wants_plan and plan or nil }
  local parity = fh.parity.check(problem, path, { against = "reference", sample = math.min(opt.s_q, PARITY_ROWS) })
  if parity.status ~= "pass" then
    wrong = true
    line:failed()
  end
  rows[i] = { path = path, parity = parity.status, work = assert(problem:run(path, outputs, with)) }
  arms[i + 1] = { name = path, run = assert(problem:runner(path, outputs, with)) }
end

line:step(("times of sgemm and %d paths, up to %g s"):format(#paths, opt.seconds))
local time = assert(fh.timing.measure(arms, { max_seconds = opt.seconds }))
line:clear()

-- ---- The table ----------------------------------------------------------------------------------------------------------------

local blas_rate = 2 * N ^ 3 * RUNS / (time.sgemm.median_us * 1e3)
local native = math.huge
for _, path in ipairs(fh.path.native()) do native = math.min(native, time[path].median_us) end
for _, row in ipairs(rows) do
  local us = time[row.path].median_us
  row.time, row.n = fh.table.time(us), time[row.path].n
  row.useful, row.executed = row.work.useful_flops / (us * 1e3), row.work.executed_flops / (us * 1e3)
  local counted, share = WANTED[row.path][1], WANTED[row.path][2]
  row.share = row[counted] / blas_rate
  row.wanted = ("%s >= %.2f"):format(counted, share)
  row.met = row.share >= share and "yes" or "no"
end

local run = fh.run.header(dev, arg)
print(("%s, %d threads, %s; commit %s%s; %s"):format(info.name, info.threads, info.isa, run.commit:sub(1, 12),
  run.dirty and " with changes" or "", run.date))
print(("%s, s_q %d, %s, %s; plan built outside"):format(opt.preset, opt.s_q, opt.pattern, opt.layout))
local release = ffi.string(blas.openblas_get_config()):match("^%S+ %S+")
print(("sgemm %d x %d x %d: %.1f GFLOP/s (%s, %s kernels, %d samples of %d)\n"):format(N, N, N, blas_rate, release,
  ffi.string(blas.openblas_get_corename()), time.sgemm.n, RUNS))
print(fh.table.text(rows, {
  { key = "path", align = "left" }, { key = "time" }, { key = "n" }, { key = "parity" },
  { key = "useful", title = "useful GFLOP/s", format = "%.1f" },
  { key = "executed", title = "executed GFLOP/s", format = "%.1f" },
  { key = "share", title = "of sgemm", format = "%.2f" }, { key = "wanted" }, { key = "met" },
  { key = "work", title = "kernel", align = "left", format = function(work) return work.kernel end },
}))
local speedup = time.padded.median_us / native
print(("\nbetter native path: %.2fx as fast as padded, wanted >= %d: %s"):format(speedup, WANTED.speedup,
  speedup >= WANTED.speedup and "yes" or "no"))
return wrong and fh.cli.FAILED or 0
