/* NaN and Inf in KV rows and in q reach nobody but those who read them, and padding heads are neither read nor
 * written. */
#include "attention.h"

enum { ROWS = 9, KEYS = 100, WIDTH = 53 };

static int lists_key(const fh_call *c, int64_t s, int32_t key) {
  for (int64_t j = 0; j < c->topk; j++)
    if (c->indices[s * c->indices_stride + j] == key) return 1;
  return 0;
}

static int same_rows(const result *a, const result *b, int64_t first, int64_t count) {
  return memcmp(a->out + first * 512, b->out + first * 512, (size_t)count * 512 * 4) == 0 &&
         memcmp(a->lse + first, b->lse + first, (size_t)count * 4) == 0 &&
         memcmp(a->max_logits + first, b->max_logits + first, (size_t)count * 4) == 0;
}

/* Every query that does not list the spoilt KV rows has the very bits it had before. */
static void check_kv(fhk_cpu *cpu, const char *isa, int32_t path, int32_t h_q) {
  static const float poison[] = {NAN, INFINITY, -INFINITY};
  attention a = make_attention(ROWS, KEYS, h_q, 512, WIDTH, 0, 4);
  run_path(&a, cpu, path);
  result clean = take_result(&a);
  for (int p = 0; p < 3; p++) {
    attention b = make_attention(ROWS, KEYS, h_q, 512, WIDTH, 0, 4);
    /* The first key of one query, the last of another; one has it in a single column, one everywhere. */
    const int32_t bad[2] = {b.indices[3 * WIDTH], b.indices[8 * WIDTH + WIDTH - 1]};
    b.kv[bad[0] * 512 + 300] = fh_bf16(poison[p]);
    for (int d = 0; d < 512; d++) b.kv[bad[1] * 512 + d] = fh_bf16(poison[p]);
    run_path(&b, cpu, path);
    result got = take_result(&b);
    int reached = 0, spared = 0;
    for (int64_t s = 0; s < ROWS; s++) {
      if (lists_key(&b.call, s, bad[0]) || lists_key(&b.call, s, bad[1])) {
        reached++;
        for (int64_t row = s * h_q; row < (s + 1) * h_q; row++) { /* and those who do, cannot miss it */
          int finite = 1;
          for (int d = 0; d < 512; d++) finite &= isfinite(got.out[row * 512 + d]) != 0;
          CHECK(!finite);
        }
      } else {
        spared++;
        if (!CHECK(same_rows(&got, &clean, s * h_q, h_q)))
          printf("    path %d, %s, h_q %d, query %d\n", (int)path, isa, (int)h_q, (int)s);
      }
    }
    CHECK(reached >= 2 && spared >= 2);
    free_result(&got);
    free_attention(&b);
  }
  free_result(&clean);
  free_attention(&a);
}

/* A head of q with NaN spoils itself alone. */
static void check_q(fhk_cpu *cpu, const char *isa, int32_t path, int32_t h_q) {
  attention a = make_attention(ROWS, KEYS, h_q, 576, WIDTH, SINK, 5);
  run_path(&a, cpu, path);
  result clean = take_result(&a);
  const int64_t bad = 5 * h_q + h_q / 2;
  a.q[bad * 576 + 17] = fh_bf16(NAN);
  run_path(&a, cpu, path);
  result got = take_result(&a);
  for (int64_t row = 0; row < ROWS * h_q; row++) {
    if (row == bad) CHECK(isnan(got.lse[row]));
    else if (!CHECK(same_rows(&got, &clean, row, 1)))
      printf("    path %d, %s, h_q %d, row %d\n", (int)path, isa, (int)h_q, (int)row);
  }
  free_result(&got);
  free_result(&clean);
  free_attention(&a);
}

int main(void) {
  fhk_cpu *pools[FH_ISA_AMX + 1];
  open_pools(pools, 2);
  static const int32_t heads[] = {3, 8, 20, 64}; /* few rows that share a vector or fill it, and many */
  for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++)
    for (int32_t path = FH_REFERENCE; path <= FH_PACKED; path++)
      for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
        if (path == FH_REFERENCE && (isa != FH_ISA_GENERIC || heads[h] != 3))
          continue; /* one for all, and it is slow */
        if (path == FH_PADDED && heads[h] != 8 && heads[h] != 64)
          continue; /* computes 64 heads whatever
                                                                                        they are */
        check_kv(pools[isa], fhk_cpu_isa_name(isa), path, heads[h]);
        check_q(pools[isa], fhk_cpu_isa_name(isa), path, heads[h]);
      }
  close_pools(pools);
  return check_summary();
}
