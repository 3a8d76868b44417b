-- A stand-in for OpenBLAS: a plain product of the first and the last row. Its release is the threads that it was told, its
-- kernels are what OPENBLAS_CORETYPE names.
local plugin = require "spec.plugin"

local SOURCE = [[
#include <stdio.h>
#include <stdlib.h>
static int threads;
static char config[64], core[64];
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                 float beta, float *c, int ldc);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                 float beta, float *c, int ldc) {
  if (order != 101 || ta != 111 || tb != 111) return;
  for (int i = 0; i < m; i += m - 1) /* the first and the last row */
    for (int j = 0; j < n; j++) {
      float sum = 0;
      for (int p = 0; p < k; p++) sum += a[i * lda + p] * b[p * ldb + j];
      c[i * ldc + j] = alpha * sum + (beta != 0 ? beta * c[i * ldc + j] : 0);
    }
}
void openblas_set_num_threads(int n);
void openblas_set_num_threads(int n) { threads = n; }
char *openblas_get_corename(void);
char *openblas_get_corename(void) {
  const char *type = getenv("OPENBLAS_CORETYPE");
  snprintf(core, sizeof core, "%s", type ? type : "none");
  return core;
}
char *openblas_get_config(void);
char *openblas_get_config(void) {
  snprintf(config, sizeof config, "BLAS %d and more", threads);
  return config;
}]]

--- The library, compiled into a folder: its path.
return function(folder) return plugin.library(folder, "blas", SOURCE) end
