/* The oracle: values worked out by hand, then the definition written once more, in long double and with no maximum
 * taken out. */
#include "attention.h"

enum { HAND_KEYS = 4 };

/* One query, one head, q = (1, 0, ..): key t has logit x[t] * sm_scale and the values 10, 20, 30, 40 in its first
 * column. */
static attention by_hand(const float *x, int64_t topk) {
  attention a = make_attention(1, HAND_KEYS, 1, 512, topk, 0, 0);
  memset(a.q, 0, (uint64_t)a.q_elements * 2);
  memset(a.kv, 0, (uint64_t)a.kv_elements * 2);
  a.q[511] = fh_bf16(1); /* a column of its own for logits, so that column 0 is free for values */
  for (int t = 0; t < HAND_KEYS; t++) {
    a.kv[t * 512] = fh_bf16(10.0f * (float)(t + 1));
    a.kv[t * 512 + 511] = fh_bf16(x[t]);
  }
  a.call.sm_scale = 1;
  a.call.out_dtype = FH_F32;
  return a;
}

static double out0(const attention *a) { return (double)((float *)a->call.out)[0]; }
static int near(double got, double want) { return fabs(got - want) <= 2e-7 * fabs(want); }

static void check_by_hand(fhk_cpu *cpu) {
  const float zeros[HAND_KEYS] = {0, 0, 0, 0}, x[HAND_KEYS] = {0, 1, -2, 0.5f};
  attention a = by_hand(zeros, 4);
  const int32_t all[] = {0, 1, 2, 3}, twice[] = {1, 1, -1, 0}, none[] = {-1, 4, INT32_MIN, INT32_MAX};
  memcpy(a.indices, all, sizeof all);
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(out0(&a) == 25); /* equal weights: the mean */
  CHECK(near((double)a.lse[0], log(4)));
  CHECK(a.max_logits[0] == 0);
  memcpy(a.indices, twice, sizeof twice);
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(near(out0(&a), 50.0 / 3)); /* (20 + 20 + 10) / 3: a repeat counts as often as it stands */
  CHECK(near((double)a.lse[0], log(3)));
  memcpy(a.indices, none, sizeof none);
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(out0(&a) == 0 && a.lse[0] == INFINITY && a.max_logits[0] == -INFINITY);
  free_attention(&a);

  a = by_hand(x, 4);
  memcpy(a.indices, all, sizeof all);
  a.call.sm_scale = 2;
  const double e[] = {exp(0), exp(2), exp(-4), exp(1)}, sum = e[0] + e[1] + e[2] + e[3];
  const double values = 10 * e[0] + 20 * e[1] + 30 * e[2] + 40 * e[3];
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(near(out0(&a), values / sum));
  CHECK(near((double)a.lse[0], log(sum)));
  CHECK(a.max_logits[0] == 2);

  /* The sink is one more term of the denominator, and of nothing else. */
  float sink = 1.5f;
  a.call.attn_sink = &sink;
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(near(out0(&a), values / (sum + exp(1.5))));
  CHECK(near((double)a.lse[0], log(sum)));
  sink = -INFINITY;
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(near(out0(&a), values / sum));
  sink = INFINITY;
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(out0(&a) == 0 && near((double)a.lse[0], log(sum)));
  a.call.attn_sink = NULL;

  /* Lengths: what lies past them does not count; negative is 0, past topk is topk. */
  int32_t length = 2;
  a.call.topk_length = &length;
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(near(out0(&a), (10 * e[0] + 20 * e[1]) / (e[0] + e[1])));
  length = 400;
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(near(out0(&a), values / sum));
  length = -1;
  run_path(&a, cpu, FH_REFERENCE);
  CHECK(out0(&a) == 0 && a.lse[0] == INFINITY);

  /* bf16 results are rounded to nearest even: 20 / 3 = 6.6667 lies between 6.65625 and 6.6875. */
  const float same[HAND_KEYS] = {0, 0, 0, 0};
  attention b = by_hand(same, 3);
  b.call.out_dtype = FH_BF16;
  b.kv[512] = 0;
  const int32_t three[] = {0, 0, 1};
  memcpy(b.indices, three, sizeof three);
  run_path(&b, cpu, FH_REFERENCE);
  CHECK(fh_float(((uint16_t *)b.call.out)[0]) == 6.65625f);
  free_attention(&b);
  free_attention(&a);
}

/* The definition again. */
static void naive(const fh_call *c, int64_t s, int32_t h, long double out[512], long double *lse, long double *max) {
  const int64_t length = !c->topk_length ? c->topk : c->topk_length[s] > c->topk ? c->topk : c->topk_length[s];
  long double sum = 0;
  *max = -INFINITY;
  for (int d = 0; d < 512; d++) out[d] = 0;
  for (int64_t j = 0; j < length; j++) {
    const int32_t key = c->indices[s * c->indices_stride + j];
    if (key < 0 || key >= c->s_kv) continue;
    long double logit = 0;
    const uint16_t *q = c->q + s * c->q_stride_s + h * c->q_stride_h, *kv = c->kv + key * c->kv_stride;
    for (int32_t d = 0; d < c->d_qk; d++) logit += (long double)fh_float(q[d]) * (long double)fh_float(kv[d]);
    logit *= (long double)c->sm_scale;
    if (logit > *max) *max = logit;
    sum += expl(logit);
    for (int d = 0; d < 512; d++) out[d] += expl(logit) * (long double)fh_float(kv[d]);
  }
  *lse = sum > 0 ? logl(sum) : INFINITY;
  const long double all = sum + (c->attn_sink ? expl((long double)c->attn_sink[h]) : 0);
  for (int d = 0; d < 512; d++) out[d] = sum > 0 ? out[d] / all : 0;
}

static void check_against_naive(fhk_cpu *cpu) {
  for (int f = 0; f < 3; f++) {
    const int features = f == 0 ? 0 : f == 1 ? LENGTHS | HOLES | SINK | ODD : REPEATS | EMPTY | PADDED;
    attention a = make_attention(7, 60, 5, f ? 576 : 512, 33, features, 40 + (uint64_t)f);
    a.call.out_dtype = FH_F32;
    if (features & ODD) { /* floats need addresses of their own kind */
      a.call.out = (float *)a.out + 1;
    }
    run_path(&a, cpu, FH_REFERENCE);
    result got = take_result(&a);
    for (int64_t s = 0; s < 7; s++)
      for (int32_t h = 0; h < 5; h++) {
        long double out[512], lse, max;
        naive(&a.call, s, h, out, &lse, &max);
        float want[512];
        for (int d = 0; d < 512; d++) want[d] = (float)out[d];
        const int64_t row = s * 5 + h;
        const float want_lse = (float)lse, want_max = (float)max;
        CHECK_INT(first_wrong(got.out + row * 512, want, 512, 1e-9, 1e-6), -1);
        CHECK_INT(first_wrong(got.lse + row, &want_lse, 1, 1e-9, 1e-6), -1);
        CHECK_INT(first_wrong(got.max_logits + row, &want_max, 1, 1e-9, 1e-6), -1);
      }
    free_result(&got);
    free_attention(&a);
  }
}

static void check_counters(fhk_cpu *cpu) {
  attention a = make_attention(5, 60, 6, 576, 20, LENGTHS | HOLES, 8);
  const fh_counters counters = run_path(&a, cpu, FH_REFERENCE);
  uint64_t keys = 0, listed = 20 + 0 + 10 + 0 + 20; /* lengths as make_attention gives them, clamped */
  for (int64_t s = 0; s < 5; s++) keys += (uint64_t)valid_keys(&a.call, s);
  CHECK(keys > 0 && keys < listed);
  CHECK_INT(counters.rows[FH_REFERENCE], 5);
  CHECK_INT(counters.useful_flops, 2 * keys * 6 * (576 + 512));
  CHECK_INT(counters.executed_flops, counters.useful_flops);
  CHECK_INT(counters.bytes, keys * 576 * 2 + listed * 4 + 5 * 4 + 5 * 6 * (576 * 2 + 512 * 2 + 4 + 4));
  free_attention(&a);
}

int main(void) {
  fhk_cpu *cpu = fhk_cpu_create(2, FH_ISA_GENERIC);
  check_by_hand(cpu);
  check_against_naive(cpu);
  check_counters(cpu);
  fhk_cpu_destroy(cpu);
  check_edges(FH_REFERENCE);
  check_threads(FH_REFERENCE);
  return check_summary();
}
