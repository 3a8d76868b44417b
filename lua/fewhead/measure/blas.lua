--- BLAS: OpenBLAS's matrix product in single precision, a yardstick of what a CPU's threads can do.
--
--     local sgemm = assert(blas.open("libopenblas.so.0", dev:info()))
--     local time = fh.timing.measure { { name = "sgemm", run = sgemm.run }, { name = "gather", run = run_gather } }
--     print(sgemm, sgemm.flops / (time.sgemm.median_us * 1e3))             -- GFLOP/s
local ffi = require "ffi"

local M = {}

-- Declarations outlive this module when package.loaded is emptied.
if not pcall(ffi.typeof, "fewhead_blas_declared") then
  ffi.cdef [[
  typedef int fewhead_blas_declared;
  int setenv(const char *name, const char *value, int overwrite);
  void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                   const float *b, int ldb, float beta, float *c, int ldc);
  void openblas_set_num_threads(int);
  char *openblas_get_corename(void);
  char *openblas_get_config(void);
  ]]
end

local ROW_MAJOR, NO_TRANS = 101, 111

-- Rows and columns of each matrix, and products in a run: so many that starting the threads does not weigh on one of a few
-- milliseconds.
local N, PRODUCTS = 512, 8

-- An OpenBLAS older than the CPU takes it for one of 2004 and uses SSE, so it is told by the instruction set of the device.
local CORE = { avx2 = "Haswell", avx512 = "SkylakeX", avx512_bf16 = "Cooperlake", amx = "Cooperlake" }
-- Its threads spin for work long after a product, which would slow the arm that follows; 2^20 cycles cost the product nothing.
local TIMEOUT = "20"

local Blas = { __name = "blas" }
Blas.__index = Blas

--- Open the library called `name` for a CPU with this info (dev:info()): its threads and instruction set. Settings of OpenBLAS in
-- the environment stay as they are. Returns { run = a function that multiplies `products` pairs of n x n matrices, n, products,
-- flops = of a run, text = release and kernels }; nil and the loader's reason.
function M.open(name, info)
  if CORE[info.isa] then ffi.C.setenv("OPENBLAS_CORETYPE", CORE[info.isa], 0) end
  ffi.C.setenv("OPENBLAS_THREAD_TIMEOUT", TIMEOUT, 0)
  local found, lib = pcall(ffi.load, name)
  if not found then return nil, lib end
  lib.openblas_set_num_threads(info.threads)
  local a, b, c = ffi.new("float[?]", N * N), ffi.new("float[?]", N * N), ffi.new("float[?]", N * N)
  for i = 0, N * N - 1 do a[i], b[i] = (i % 7) / 7, (i % 5) / 5 end
  local release = ffi.string(lib.openblas_get_config()):match("^%S+ %S+")
  return setmetatable({
    n = N, products = PRODUCTS, flops = 2 * N ^ 3 * PRODUCTS, c = c,
    text = ("%s, %s kernels"):format(release, ffi.string(lib.openblas_get_corename())),
    run = function()
      for _ = 1, PRODUCTS do lib.cblas_sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, N, N, N, 1, a, N, b, N, 0, c, N) end
    end,
  }, Blas)
end

function Blas:__tostring() return ("sgemm %d x %d x %d (%s)"):format(self.n, self.n, self.n, self.text) end

return M
