/* The padded path against the oracle, and what it computes besides. */
#include "attention.h"

/* It computes h_pad heads, whatever h_q is: with as many keys as every kernel takes at once, exactly as many FLOPs
 * as h_q = h_pad. */
static void check_zero_heads(void) {
  fhk_cpu *pools[FH_ISA_AMX + 1];
  open_pools(pools, 2);
  for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++) {
    for (int32_t h_pad = 64; h_pad <= 128; h_pad += 64) {
      attention a = make_attention(3, 200, 8, 512, 192, PADDED, 9);
      a.call.h_pad = h_pad;
      const fh_counters counters = run_path(&a, pools[isa], FH_PADDED);
      CHECK_INT(counters.useful_flops, 2ull * 3 * 192 * 8 * 1024);
      CHECK_INT(counters.executed_flops, 2ull * 3 * 192 * (uint64_t)h_pad * 1024);
      CHECK_INT(counters.bytes, 3ull * (192 * 1024 + 192 * 4 + 8 * (1024 + 1024 + 4 + 4)));
      result got = take_result(&a), want = reference_result(&a, pools[isa]);
      check_result(&a, &got, &want, fhk_cpu_isa_name(isa));
      free_result(&got);
      free_result(&want);
      free_attention(&a);
    }
  }
  close_pools(pools);
}

int main(void) {
  check_grid(FH_PADDED);
  check_edges(FH_PADDED);
  check_threads(FH_PADDED);
  check_zero_heads();
  return check_summary();
}
