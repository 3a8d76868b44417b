/* What the tests of the CPU kernels share: cases with data of their own, runs on a path, and a comparison with the
 * oracle. */
#ifndef FEWHEAD_SPEC_ATTENTION_H
#define FEWHEAD_SPEC_ATTENTION_H

#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "cpu/cpu.h"
#include "internal.h"

/* FlashMLA's tolerances for its sparse prefill (tests/test_flash_mla_sparse_prefill.py): a value is right when
 * either holds. */
#define OUT_ABS 8e-4
#define OUT_REL (3.01 / 128)
#define OUT_COSINE 7e-6
#define LSE_ABS 1e-6
#define LSE_REL (2.01 / 65536)

static const int32_t all_heads[] = {1, 2, 3, 5, 8, 12, 16, 20, 32, 48, 63, 64, 65, 128};
enum { HEAD_COUNTS = sizeof all_heads / sizeof *all_heads };

enum {              /* features of a case, ored together */
       LENGTHS = 1, /* topk_length: ragged, with zero, negative ones and ones past topk */
       HOLES = 2,   /* invalid indices of every kind inside the lists */
       REPEATS = 4, /* a row may stand in a list several times */
       SINK = 8,    /* finite, -inf and +inf */
       ODD = 16,    /* rows of odd strides, on addresses that are multiples of 2 bytes only; KV and q backwards */
       PADDED = 32, /* q and out lie in a buffer of 128 heads whose other heads hold NaN */
       EMPTY = 64   /* some rows have no valid key at all */
};

/* Words of the counter-based generator, one after the other. */
typedef struct stream {
  uint64_t seed, position;
} stream;
static inline uint32_t next_u32(stream *s) {
  uint32_t block[4];
  fh_philox(s->seed, 0, s->position / 4, block);
  return block[s->position++ % 4];
}
static inline int64_t next_below(stream *s, int64_t n) { return (int64_t)((uint64_t)next_u32(s) * (uint64_t)n >> 32); }
static inline double next_normal(stream *s) {
  double sum = 0;
  for (int i = 0; i < 6; i++) sum += next_u32(s) * 0x1p-32 - 0.5;
  return sum * 1.4142135623730951;
}

typedef struct attention {
  fh_call call;     /* inputs, strides and sizes; outputs point to `out`, `lse`, `max_logits` below */
  uint16_t *q, *kv; /* what was allocated */
  int32_t *indices, *length;
  float *sink;
  void *out;
  float *lse, *max_logits;
  int64_t q_elements, kv_elements, out_elements;
} attention;

static inline void *must_alloc(uint64_t bytes) {
  void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
  if (!p) abort();
  memset(p, 0xff, (bytes + 127) / 64 * 64); /* NaN wherever nothing is written */
  return p;
}

static inline attention make_attention(int64_t s_q, int64_t s_kv, int32_t h_q, int32_t d_qk, int64_t topk, int features,
                                       uint64_t seed) {
  stream r = {seed, 0};
  attention a = {0};
  const int odd = (features & ODD) != 0;
  const int32_t heads = features & PADDED ? 128 : h_q;
  fh_call *c = &a.call;
  c->struct_size = sizeof *c;
  c->s_q = s_q;
  c->s_kv = s_kv;
  c->h_q = h_q;
  c->h_pad = h_q <= 64 ? 64 : 128;
  c->group = h_q <= 64 ? 64 / h_q : 1;
  c->d_qk = d_qk;
  c->d_v = 512;
  c->topk = topk;
  c->sm_scale = 1 / sqrtf((float)d_qk);
  c->out_dtype = FH_BF16;

  c->q_stride_h = d_qk + (odd ? 3 : 0);
  c->q_stride_s = heads * c->q_stride_h + (odd ? 5 : 0);
  a.q_elements = s_q * c->q_stride_s + 8;
  a.q = must_alloc((uint64_t)a.q_elements * 2);
  c->q = a.q + odd;
  if (odd && s_q) { /* rows from the last to the first */
    c->q += (s_q - 1) * c->q_stride_s;
    c->q_stride_s = -c->q_stride_s;
  }
  for (int64_t s = 0; s < s_q; s++)
    for (int32_t h = 0; h < h_q; h++) {
      uint16_t *row = a.q + (c->q - a.q) + s * c->q_stride_s + h * c->q_stride_h;
      for (int32_t d = 0; d < d_qk; d++) row[d] = fh_bf16((float)next_normal(&r));
    }

  c->kv_stride = d_qk + (odd ? 7 : 0);
  a.kv_elements = s_kv * c->kv_stride + 8;
  a.kv = must_alloc((uint64_t)a.kv_elements * 2);
  c->kv = a.kv + odd;
  if (odd && s_kv) {
    c->kv += (s_kv - 1) * c->kv_stride;
    c->kv_stride = -c->kv_stride;
  }
  for (int64_t t = 0; t < s_kv; t++)
    for (int32_t d = 0; d < d_qk; d++) a.kv[c->kv - a.kv + t * c->kv_stride + d] = fh_bf16((float)next_normal(&r));

  c->indices_stride = topk + (odd ? 3 : 0);
  a.indices = must_alloc((uint64_t)(s_q * c->indices_stride + 1) * 4);
  c->indices = a.indices + odd;
  static const int32_t invalid[] = {INT32_MIN, -123456, -1, 114514, 1919810, INT32_MAX};
  for (int64_t s = 0; s < s_q; s++)
    for (int64_t j = 0; j < topk; j++) {
      int32_t *at = a.indices + odd + s * c->indices_stride + j;
      const int hole = s_kv == 0 || (features & HOLES && next_below(&r, 5) == 0);
      if (hole) *at = next_below(&r, 2) ? (int32_t)s_kv : invalid[next_below(&r, 6)];
      else if (features & REPEATS) *at = (int32_t)next_below(&r, s_kv < topk ? s_kv : (topk + 1) / 2);
      else
        *at = (int32_t)((s * 3 + j * 7) % s_kv); /* distinct if topk <= s_kv, no multiple of 7; neighbours
                                                       share most */
      if (features & EMPTY && s % 3 == 1) *at = invalid[j % 6];
    }
  if (features & LENGTHS) {
    const int64_t some[] = {topk, 0, topk / 2, -5, topk + 100, 1, topk - 1};
    c->topk_length = a.length = must_alloc((uint64_t)s_q * 4);
    for (int64_t s = 0; s < s_q; s++) a.length[s] = (int32_t)(s < 7 ? some[s] : next_below(&r, topk + 1));
  }
  if (features & SINK) {
    c->attn_sink = a.sink = must_alloc((uint64_t)h_q * 4);
    for (int32_t h = 0; h < h_q; h++)
      a.sink[h] = h % 4 == 1 ? -INFINITY : h % 4 == 2 ? INFINITY : (float)next_normal(&r) * 3;
  }

  c->out_stride_h = 512 + (odd ? 1 : 0);
  c->out_stride_s = heads * c->out_stride_h + (odd ? 9 : 0);
  a.out_elements = s_q * c->out_stride_s + 8;
  a.out = must_alloc((uint64_t)a.out_elements * 4);
  c->out = (uint16_t *)a.out + odd;
  c->lse_stride = h_q + (odd ? 2 : 0);
  a.lse = must_alloc((uint64_t)(s_q * c->lse_stride) * 4);
  c->lse = a.lse;
  c->max_logits_stride = h_q + (odd ? 4 : 0);
  a.max_logits = must_alloc((uint64_t)(s_q * c->max_logits_stride) * 4);
  c->max_logits = a.max_logits;
  return a;
}

static inline void free_attention(attention *a) {
  free(a->q);
  free(a->kv);
  free(a->indices);
  free(a->length);
  free(a->sink);
  free(a->out);
  free(a->lse);
  free(a->max_logits);
}

/* Runs `path` on outputs that held NaN before. */
static inline fh_counters run_path(attention *a, fhk_cpu *cpu, int32_t path) {
  fh_counters counters = {.struct_size = sizeof counters};
  memset(a->out, 0xff, (uint64_t)a->out_elements * 4);
  memset(a->lse, 0xff, (uint64_t)(a->call.s_q * a->call.lse_stride) * 4);
  memset(a->max_logits, 0xff, (uint64_t)(a->call.s_q * a->call.max_logits_stride) * 4);
  a->call.path = path;
  a->call.workspace_bytes = fhk_cpu_workspace_bytes(cpu, &a->call);
  a->call.workspace = must_alloc(a->call.workspace_bytes);
  /* the library brings a plan to every call that wants one */
  const fh_plan *given = a->call.plan;
  fh_plan own = {.struct_size = sizeof own};
  void *memory = NULL;
  if (path == FH_PACKED && !given) {
    memory = must_alloc(fhk_cpu_plan_bytes(cpu, &a->call));
    fhk_cpu_plan_build(cpu, &a->call, memory, &own);
    a->call.plan = &own;
  }
  fhk_cpu_run(cpu, &a->call, &counters);
  a->call.plan = given;
  free(memory);
  free(a->call.workspace);
  return counters;
}

/* What a path wrote, dense: out [s_q, h_q, 512], lse and max_logits [s_q, h_q]. */
typedef struct result {
  float *out, *lse, *max_logits;
} result;

static inline result take_result(const attention *a) {
  const fh_call *c = &a->call;
  const uint64_t rows = (uint64_t)c->s_q * (uint64_t)c->h_q;
  result r = {must_alloc(rows * 512 * 4), must_alloc(rows * 4), must_alloc(rows * 4)};
  for (int64_t s = 0; s < c->s_q; s++)
    for (int32_t h = 0; h < c->h_q; h++) {
      const int64_t row = s * c->h_q + h, at = s * c->out_stride_s + h * c->out_stride_h;
      const float *wide = (const float *)c->out + at;
      const uint16_t *narrow = (const uint16_t *)c->out + at;
      for (int32_t d = 0; d < 512; d++) r.out[row * 512 + d] = c->out_dtype == FH_F32 ? wide[d] : fh_float(narrow[d]);
      r.lse[row] = c->lse[s * c->lse_stride + h];
      r.max_logits[row] = c->max_logits[s * c->max_logits_stride + h];
    }
  return r;
}

static inline void free_result(result *r) {
  free(r->out);
  free(r->lse);
  free(r->max_logits);
}

/* The first place where got is further from want than allowed, or -1; places of NaN and infinities must be the same. */
static inline int64_t first_wrong(const float *got, const float *want, int64_t n, double abs_tolerance,
                                  double rel_tolerance) {
  for (int64_t i = 0; i < n; i++) {
    if (!isfinite(want[i]) || !isfinite(got[i])) {
      if (memcmp(&got[i], &want[i], 4) != 0 && !(isnan(got[i]) && isnan(want[i]))) return i;
      continue;
    }
    const double error = fabs((double)got[i] - (double)want[i]);
    if (error > abs_tolerance && error > rel_tolerance * fabs((double)want[i])) return i;
  }
  return -1;
}

static inline double cosine_difference(const float *got, const float *want, int64_t n) {
  double product = 0, squares = 0;
  for (int64_t i = 0; i < n; i++) {
    product += (double)got[i] * (double)want[i];
    squares += (double)got[i] * (double)got[i] + (double)want[i] * (double)want[i];
  }
  return squares > 0 ? 1 - 2 * product / squares : 0;
}

/* CHECKs result against the oracle's, naming the run when it is wrong. */
static inline void check_result(const attention *a, const result *got, const result *want, const char *what) {
  const int64_t rows = a->call.s_q * a->call.h_q;
  const int64_t out = first_wrong(got->out, want->out, rows * 512, OUT_ABS, OUT_REL);
  const int64_t lse = first_wrong(got->lse, want->lse, rows, LSE_ABS, LSE_REL);
  const int64_t max = first_wrong(got->max_logits, want->max_logits, rows, LSE_ABS, LSE_REL);
  const double cosine = cosine_difference(got->out, want->out, rows * 512);
  const char *place = "    %s: %s[%" PRId64 "] %.9g, want %.9g\n";
  if (!CHECK(out < 0)) printf(place, what, "out", out, (double)got->out[out], (double)want->out[out]);
  if (!CHECK(lse < 0)) printf(place, what, "lse", lse, (double)got->lse[lse], (double)want->lse[lse]);
  if (!CHECK(max < 0))
    printf(place, what, "max_logits", max, (double)got->max_logits[max], (double)want->max_logits[max]);
  if (!CHECK(cosine < OUT_COSINE)) printf("    %s: cosine difference %.3g\n", what, cosine);
}

/* The oracle's result. */
static inline result reference_result(attention *a, fhk_cpu *cpu) {
  run_path(a, cpu, FH_REFERENCE);
  return take_result(a);
}

/* Every 16-bit word of out that belongs to no real head still holds what it held. */
static inline int padding_intact(const attention *a) {
  const fh_call *c = &a->call;
  uint8_t *mine = must_alloc((uint64_t)a->out_elements * 2);
  memset(mine, 0, (uint64_t)a->out_elements * 2);
  for (int64_t s = 0; s < c->s_q; s++)
    for (int32_t h = 0; h < c->h_q; h++)
      memset(mine + ((uint16_t *)c->out - (uint16_t *)a->out) + s * c->out_stride_s + h * c->out_stride_h, 1, 512);
  int intact = 1;
  for (int64_t i = 0; i < a->out_elements * 2; i++) intact &= mine[i] || ((uint16_t *)a->out)[i] == 0xffff;
  free(mine);
  return intact;
}

/* Valid keys of row s, repeats counted. */
static inline int64_t valid_keys(const fh_call *c, int64_t s) {
  int64_t length = c->topk_length ? c->topk_length[s] : c->topk, keys = 0;
  length = length < 0 ? 0 : length > c->topk ? c->topk : length;
  for (int64_t j = 0; j < length; j++) {
    const int32_t key = c->indices[s * c->indices_stride + j];
    keys += key >= 0 && key < c->s_kv;
  }
  return keys;
}

/* A pool for each instruction set of this CPU; pools[isa], the others NULL. */
static inline void open_pools(fhk_cpu *pools[FH_ISA_AMX + 1], int32_t threads) {
  memset(pools, 0, (FH_ISA_AMX + 1) * sizeof *pools);
  for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++) {
    pools[isa] = fhk_cpu_create(threads, isa);
    CHECK(pools[isa] != NULL);
  }
}
static inline void close_pools(fhk_cpu *pools[FH_ISA_AMX + 1]) {
  for (int32_t isa = 0; isa <= FH_ISA_AMX; isa++) fhk_cpu_destroy(pools[isa]);
}

/* A path against the oracle: every instruction set, both widths, every head count, features in turn so that each
 * meets each width. */
static inline void check_grid(int32_t path) {
  static const int features[] = {0, LENGTHS | HOLES | SINK, REPEATS | ODD, PADDED | LENGTHS | REPEATS | HOLES,
                                 EMPTY | SINK | ODD | HOLES};
  enum { FEATURES = sizeof features / sizeof *features };
  fhk_cpu *pools[FH_ISA_AMX + 1];
  open_pools(pools, 2);
  for (int wide = 0; wide < 2; wide++)
    for (int h = 0; h < HEAD_COUNTS; h++) {
      const int f = features[(h + wide * 3) % FEATURES];
      attention a = make_attention(3 + h % 2, 150, all_heads[h], wide ? 576 : 512, 55, f, (uint64_t)(h * 2 + wide));
      result want = reference_result(&a, pools[FH_ISA_GENERIC]);
      for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++) {
        char what[96];
        snprintf(what, sizeof what, "path %d, %s, h_q %d, d_qk %d, features %d", (int)path, fhk_cpu_isa_name(isa),
                 (int)a.call.h_q, (int)a.call.d_qk, f);
        const fh_counters counters = run_path(&a, pools[isa], path);
        result got = take_result(&a);
        check_result(&a, &got, &want, what);
        if (!CHECK(padding_intact(&a))) printf("    %s\n", what);
        CHECK_INT(counters.rows[path], a.call.s_q);
        uint64_t keys = 0;
        for (int64_t s = 0; s < a.call.s_q; s++) keys += (uint64_t)valid_keys(&a.call, s);
        CHECK_INT(counters.useful_flops, 2 * keys * (uint64_t)a.call.h_q * (uint64_t)(a.call.d_qk + 512));
        CHECK(counters.executed_flops >= counters.useful_flops);
        CHECK_INT(counters.calls[path], 0); /* the library counts those */
        free_result(&got);
      }
      free_result(&want);
      free_attention(&a);
    }
  close_pools(pools);
}

/* Edges that every path meets alike. */
static inline void check_edges(int32_t path) {
  fhk_cpu *pools[FH_ISA_AMX + 1];
  open_pools(pools, 3);
  static const int64_t sizes[][3] = {{0, 50, 20}, {5, 0, 20}, {5, 50, 0}, {1, 1, 1}, {3, 7, 49}, {2, 300, 97}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    attention a = make_attention(sizes[i][0], sizes[i][1], 3, 512, sizes[i][2], 0, i);
    if (a.call.topk == 0) a.call.indices = NULL; /* as the library allows */
    if (a.call.s_kv == 0) a.call.kv = NULL;
    result want = reference_result(&a, pools[FH_ISA_GENERIC]);
    for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++) {
      run_path(&a, pools[isa], path);
      result got = take_result(&a);
      check_result(&a, &got, &want, fhk_cpu_isa_name(isa));
      free_result(&got);
    }
    for (int64_t row = 0; row < a.call.s_q * 3 && (a.call.topk == 0 || a.call.s_kv == 0); row++) {
      CHECK(want.lse[row] == INFINITY && want.max_logits[row] == -INFINITY);
      for (int d = 0; d < 512; d++) CHECK_INT(want.out[row * 512 + d] == 0 && !signbit(want.out[row * 512 + d]), 1);
    }
    free_result(&want);
    free_attention(&a);
  }
  /* Outputs that are not wanted are not written: lse and max_logits NULL. Large logits of both signs: nothing
   * overflows. */
  for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++) {
    attention a = make_attention(4, 60, 8, 512, 60, SINK, 77);
    a.call.sm_scale = 9;
    result want = reference_result(&a, pools[FH_ISA_GENERIC]);
    run_path(&a, pools[isa], path);
    result got = take_result(&a);
    check_result(&a, &got, &want, "sm_scale 9");
    free_result(&got);
    a.call.lse = a.call.max_logits = NULL;
    run_path(&a, pools[isa], path);
    a.call.lse = a.lse;
    a.call.max_logits = a.max_logits;
    got = take_result(&a);
    CHECK_INT(first_wrong(got.out, want.out, 4 * 8 * 512, OUT_ABS, OUT_REL), -1);
    for (int64_t row = 0; row < 4 * 8; row++) CHECK(isnan(got.lse[row]) && isnan(got.max_logits[row]));
    free_result(&got);
    free_result(&want);
    free_attention(&a);
  }
  close_pools(pools);
}

/* The same bits whatever the number of threads. */
static inline void check_threads(int32_t path) {
  for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++) {
    attention a = make_attention(23, 90, 8, 512, 80, LENGTHS | HOLES | REPEATS | SINK, 5);
    result one = {0};
    fh_counters first = {0};
    for (int32_t threads = 1; threads <= 4; threads++) {
      fhk_cpu *cpu = fhk_cpu_create(threads, isa);
      const fh_counters counters = run_path(&a, cpu, path);
      result got = take_result(&a);
      fhk_cpu_destroy(cpu);
      if (threads == 1) {
        one = got;
        first = counters;
        continue;
      }
      CHECK(memcmp(got.out, one.out, 23 * 8 * 512 * 4) == 0);
      CHECK(memcmp(got.lse, one.lse, 23 * 8 * 4) == 0);
      CHECK(memcmp(got.max_logits, one.max_logits, 23 * 8 * 4) == 0);
      CHECK(memcmp(&counters, &first, sizeof first) == 0);
      free_result(&got);
    }
    free_result(&one);
    free_attention(&a);
  }
}

#endif
