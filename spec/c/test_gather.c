/* The gather path against the oracle, and the exponential that all tile kernels share. */
#include "attention.h"

/* One key with logit 0 and `copies` with logit -x: lse = ln(1 + copies exp(-x)). Many copies bring small exp(-x) up
 * to where an error of theirs shows in lse, so lse tells how good the exponential is; it includes the rounding of
 * the sum, always the same way here. */
static void check_exponential(fhk_cpu *cpu, const char *isa) {
  enum { COPIES = 200 };
  attention a = make_attention(1, 2, 8, 512, COPIES + 1, 0, 0);
  memset(a.q, 0, (uint64_t)a.q_elements * 2);
  memset(a.kv, 0, (uint64_t)a.kv_elements * 2);
  for (int32_t h = 0; h < 8; h++) a.q[h * a.call.q_stride_h] = fh_bf16(1);
  for (int i = 0; i <= COPIES; i++) a.indices[i] = i > 0;
  for (int step = 1; step <= 400; step++) {
    const uint16_t bits = fh_bf16(1 + (float)(step % 16) / 16);
    a.kv[a.call.kv_stride] = bits ^ 0x8000; /* -1 .. -1.9375 */
    a.call.sm_scale = (float)step / 64;
    const int copies = step % 2 ? 1 : COPIES;
    a.call.topk = copies + 1;
    run_path(&a, cpu, FH_GATHER);
    const double x = (double)fh_float(bits) * (double)a.call.sm_scale, want = log1p(copies * exp(-x));
    for (int32_t h = 0; h < 8; h++) {
      const double error = fabs((double)a.lse[h] - want);
      if (!CHECK(error < 4e-7 * (copies == 1 ? 1 : 2) + 1e-7 * want))
        printf("    %s: x %.9g, %d copies: off by %.3g\n", isa, x, copies, error);
    }
  }
  /* Far below: nothing is left, and nothing wraps around. */
  a.call.topk = COPIES + 1;
  a.kv[a.call.kv_stride] = fh_bf16(-1);
  double scale = 89;
  while (scale < 3.4e38) {
    a.call.sm_scale = (float)scale;
    scale *= 1.7;
    run_path(&a, cpu, FH_GATHER);
    for (int32_t h = 0; h < 8; h++) CHECK(fabsf(a.lse[h]) < 1e-35f && a.max_logits[h] == 0);
  }
  free_attention(&a);
}

int main(void) {
  check_grid(FH_GATHER);
  check_edges(FH_GATHER);
  check_threads(FH_GATHER);
  fhk_cpu *pools[FH_ISA_AMX + 1];
  open_pools(pools, 1);
  for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++)
    check_exponential(pools[isa], fhk_cpu_isa_name(isa));
  close_pools(pools);
  return check_summary();
}
