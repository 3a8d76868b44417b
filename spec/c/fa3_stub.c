/*
 * _vllm_fa3_C for a spec: fwd for one token a sequence and pages of one row, in plain C on host memory, as particular
 * about its arguments as FlashAttention 3 is. SCHEMA: another text of its arguments than vLLM's.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "torch_stub.h"

#ifndef SCHEMA
#define SCHEMA                                                                                                         \
  "(Tensor!  q,    Tensor   k,    Tensor   v,    Tensor?  k_new,    Tensor?  v_new,    Tensor?  q_v,    Tensor!? out," \
  "    Tensor?  cu_seqlens_q,    Tensor?  cu_seqlens_k,    Tensor?  cu_seqlens_k_new,    Tensor?  seqused_q,"          \
  "    Tensor?  seqused_k,    int?     max_seqlen_q,    int?     max_seqlen_k,    Tensor?  page_table,"                \
  "    Tensor?  kv_batch_idx,    Tensor?  leftpad_k,    Tensor?  rotary_cos,    Tensor?  rotary_sin,"                  \
  "    Tensor?  seqlens_rotary,    Tensor?  q_descale,    Tensor?  k_descale,    Tensor?  v_descale,"                  \
  "    float    softmax_scale,    bool     is_causal,    int      window_size_left,    int      window_size_right,"    \
  "    float    softcap,    bool     is_rotary_interleaved,    Tensor?  scheduler_metadata,    int      num_splits,"   \
  "    bool?    pack_gqa,    int      sm_margin,    Tensor?  s_aux,    int      cp_world_size,    int      cp_rank,"   \
  "    Tensor?  cp_tot_seqused_k) -> Tensor[]"
#endif
const char schema[] = "\0fwd" SCHEMA;
static const char TYPES[] = "TTTttttttttt"
                            "ii"
                            "ttttttttt"
                            "FIIIFI"
                            "t"
                            "I"
                            "i"
                            "I"
                            "t"
                            "II"
                            "t";

enum { Q, K, V, Q_V = 5, OUT, CU_SEQLENS_Q, SEQUSED_K = 11, MAX_SEQLEN_Q, MAX_SEQLEN_K, PAGE_TABLE, SCALE = 23 };
enum { CAUSAL = 24, LEFT, RIGHT, SOFTCAP, SPLITS = 30, CP_WORLD_SIZE = 34, CP_RANK };

/* What the last call was given. */
const void *seen_q_v, *seen_v, *seen_table, *seen_stream;
int64_t seen_rope; /* how far K begins behind V, in elements */
int calls;
const char *raise_next; /* raise this instead of running, once */

static float f32(uint16_t x) {
  union {
    uint32_t word;
    float f;
  } v = {(uint32_t)x << 16};
  return v.f;
}

static uint16_t bf16(double x) {
  union {
    float f;
    uint32_t word;
  } v = {(float)x};
  return (uint16_t)((v.word + 0x7fff + (v.word >> 16 & 1)) >> 16);
}

static int is(const tensor *t, int64_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t sizes[MAX_RANK] = {a, b, c, d};
  for (int64_t i = 0; t && i < rank; i++)
    if (t->sizes[i] != sizes[i]) return 0;
  return t && t->rank == rank && t->strides[rank - 1] == 1;
}

static int is_aligned(const tensor *t) {
  int fits = (uintptr_t)stub_data(t) % 16 == 0;
  for (int64_t i = 0; i < t->rank - 1; i++) fits &= t->strides[i] * 2 % 16 == 0;
  return fits;
}

static int run(const argument given[MAX_ARGUMENTS], list **results) {
  const tensor *q = given[Q].tensor, *k = given[K].tensor, *v = given[V].tensor, *q_v = given[Q_V].tensor;
  const tensor *starts = given[CU_SEQLENS_Q].tensor, *used = given[SEQUSED_K].tensor;
  const tensor *table = given[PAGE_TABLE].tensor;
  tensor *out = given[OUT].tensor;
  const int64_t rows = q->sizes[0], heads = q->sizes[1], pages = k->sizes[0], width = table->sizes[1];
  seen_q_v = stub_data(q_v), seen_v = stub_data(v), seen_table = stub_data(table), seen_stream = stub_stream;
  seen_rope = (const uint16_t *)stub_data(k) - (const uint16_t *)seen_v;
  calls++;
  if (raise_next) {
    const char *what = raise_next;
    raise_next = NULL;
    return stub_raise(what);
  }
  if (!is(q, 3, rows, heads, 64, 0) || !is(q_v, 3, rows, heads, 512, 0) || !is(out, 3, rows, heads, 512, 0) ||
      !is(k, 4, pages, 1, 1, 64) || !is(v, 4, pages, 1, 1, 512) || !is(starts, 1, rows + 1, 0, 0, 0) ||
      !is(used, 1, rows, 0, 0, 0) || !is(table, 2, rows, width, 0, 0))
    return stub_raise("Invalid sizes");
  if (!is_aligned(q) || !is_aligned(q_v) || !is_aligned(k) || !is_aligned(v)) return stub_raise("misaligned");
  if (given[MAX_SEQLEN_Q].integer != 1 || given[MAX_SEQLEN_K].integer != width || !given[CAUSAL].integer ||
      given[LEFT].integer != -1 || given[RIGHT].integer != -1 || given[SOFTCAP].number != 0 ||
      given[SPLITS].integer != 0 || given[CP_WORLD_SIZE].integer != 1 || given[CP_RANK].integer != 0)
    return stub_raise("not as vLLM calls it");
  const int64_t lse_sizes[2] = {heads, rows}, lse_strides[2] = {rows, 1};
  tensor *lse;
  aoti_torch_empty_strided(2, lse_sizes, lse_strides, F32, 1, 0, &lse);
  for (int64_t s = 0; s < rows; s++)
    for (int64_t h = 0; h < heads; h++) {
      const uint16_t *rope = (const uint16_t *)stub_data(q) + s * q->strides[0] + h * q->strides[1];
      const uint16_t *main_part = (const uint16_t *)seen_q_v + s * q_v->strides[0] + h * q_v->strides[1];
      const int32_t *list_of = (const int32_t *)seen_table + s * table->strides[0];
      const int32_t count = ((const int32_t *)stub_data(used))[s];
      double sum = 0, sums[512] = {0}; /* logits are small here */
      if (((const int32_t *)stub_data(starts))[s] != s || count > width) abort();
      for (int32_t j = 0; j < count; j++) {
        if (list_of[j] < 0 || list_of[j] >= pages) abort(); /* FlashAttention reads there */
        const uint16_t *key = (const uint16_t *)stub_data(k) + list_of[j] * k->strides[0];
        const uint16_t *value = (const uint16_t *)seen_v + list_of[j] * v->strides[0];
        double dot = 0;
        for (int i = 0; i < 64; i++) dot += (double)f32(rope[i]) * f32(key[i]);
        for (int i = 0; i < 512; i++) dot += (double)f32(main_part[i]) * f32(value[i]);
        const double p = exp(dot * given[SCALE].number);
        sum += p;
        for (int i = 0; i < 512; i++) sums[i] += p * f32(value[i]);
      }
      uint16_t *row = (uint16_t *)out->memory->data + out->offset + s * out->strides[0] + h * out->strides[1];
      for (int i = 0; i < 512; i++) row[i] = count > 0 ? bf16(sums[i] / sum) : 0;
      ((float *)lse->memory->data)[h * rows + s] = (float)(count > 0 ? log(sum) : -INFINITY);
    }
  *results = calloc(1, sizeof **results);
  (*results)->count = 4; /* the parts of split work are given back empty */
  aoti_torch_new_tensor_handle(out, &(*results)->items[0]);
  (*results)->items[1] = lse;
  for (int i = 2; i < 4; i++)
    aoti_torch_empty_strided(2, (int64_t[]){0, 0}, lse_strides, F32, 1, 0, &(*results)->items[i]);
  return 0;
}

/* Also for a spec that has loaded another one since. */
void register_operator(void);
__attribute__((constructor)) void register_operator(void) { stub_register("_vllm_fa3_C::fwd", run, TYPES); }

/* What Python would start the module with. */
void *PyModule_Create2(void *definition, int version);
void *PyInit__vllm_fa3_C(void);
void *PyInit__vllm_fa3_C(void) { return PyModule_Create2((void *)0, 1013); }
