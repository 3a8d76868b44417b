/*
 * _flashmla_C for a spec: sparse_prefill_fwd in plain C on host memory, as particular about its arguments as FlashMLA
 * is. OPTIONAL: arguments after d_v (0, 2, default 3). LOGARITHM: of what base max_logits and lse are, default e.
 * SCHEMA: its text, as an extension with a written schema has it; none: as one whose schema PyTorch infers.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "torch_stub.h"

#ifndef OPTIONAL
#define OPTIONAL 3
#endif

#ifdef SCHEMA
const char schema[] = "\0sparse_prefill_fwd" SCHEMA;
#else
/* What C++ calls the type of such a function. */
const char inferred[3][80] = {
#if OPTIONAL == 0
    "\0FSt6vectorIN2at6TensorESaIS1_EERKS1_S5_S5_dlE",
#elif OPTIONAL == 2
    "\0FSt6vectorIN2at6TensorESaIS1_EERKS1_S5_S5_dlRKSt8optionalIS1_ES9_E",
#else
    "\0FSt6vectorIN2at6TensorESaIS1_EERKS1_S5_S5_dlRKSt8optionalIS1_ES9_S9_E",
#endif
};
const char name[] = "sparse_prefill_fwd";
#endif

#if OPTIONAL == 0
#define TYPES "TTTFI"
#elif OPTIONAL == 2
#define TYPES "TTTFItt"
#else
#define TYPES "TTTFIttt"
#endif

#ifndef LOGARITHM
#define LOGARITHM exp(1)
#endif

#ifdef MISSING
void symbol_of_another_pytorch(void);
#endif

/* What the last call was given. */
const void *seen_q, *seen_kv, *seen_indices, *seen_topk_length, *seen_stream;
int64_t seen_heads, seen_width;
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

static tensor *fresh(int64_t rank, int64_t a, int64_t b, int64_t c, int32_t dtype) {
  const int64_t sizes[3] = {a, b, c}, strides[3] = {rank == 3 ? b * c : b, rank == 3 ? c : 1, 1};
  tensor *t;
  aoti_torch_empty_strided(rank, sizes, strides, dtype, 1, 0, &t);
  return t;
}

static int few(int64_t heads) {
#ifdef FEW_HEADS
  extern int launch_small_heads;
  return launch_small_heads && (heads == 8 || heads == 16 || heads == 32);
#else
  (void)heads;
  return 0;
#endif
}
#ifdef FEW_HEADS
int launch_small_heads = 1;
#endif

static int run(const argument given[MAX_ARGUMENTS], list **results) {
  const tensor *q = given[0].tensor, *kv = given[1].tensor, *indices = given[2].tensor, *sink = given[5].tensor,
               *length = given[6].tensor;
  const double scale = given[3].number;
  const int64_t d_v = given[4].integer;
  const int64_t rows = q->sizes[0], heads = q->sizes[1], d = q->sizes[2], width = indices->sizes[2];
  seen_q = stub_data(q), seen_kv = stub_data(kv), seen_indices = stub_data(indices),
  seen_topk_length = stub_data(length);
  seen_stream = stub_stream, seen_heads = heads, seen_width = width;
  calls++;
  if (raise_next) {
    const char *what = raise_next;
    raise_next = NULL;
    return stub_raise(what);
  }
  if (heads != 64 && heads != 128 && !few(heads)) return stub_raise("Unsupported h_q");
  if (width % 128 != 0 || width == 0) return stub_raise("topk must be a multiple of 128");
  if (d_v != 512 || kv->sizes[1] != 1 || indices->sizes[1] != 1) return stub_raise("Invalid sizes");
  if (((uintptr_t)seen_q | (uintptr_t)seen_kv | (uintptr_t)(kv->strides[0] * 2)) % 16 != 0)
    return stub_raise("misaligned");
  if (sink && sink->sizes[0] != heads) return stub_raise("attn_sink must have shape (h_q)");
  tensor *out = given[7].tensor;
  if (out) aoti_torch_new_tensor_handle(out, &out);
  else out = fresh(3, rows, heads, d_v, BF16);
  tensor *max_logits = fresh(2, rows, heads, 1, F32), *lse = fresh(2, rows, heads, 1, F32);
  double *weights = malloc((size_t)width * sizeof *weights);
  for (int64_t s = 0; s < rows; s++)
    for (int64_t h = 0; h < heads; h++) {
      const uint16_t *query = (const uint16_t *)seen_q + s * q->strides[0] + h * q->strides[1];
      const int32_t *list_of = (const int32_t *)seen_indices + s * indices->strides[0];
      const int64_t count = length ? ((const int32_t *)seen_topk_length)[s] : width;
      double most = -INFINITY, sum = 0, sums[512] = {0};
      if (count < 0 || count > width) abort(); /* FlashMLA reads past the list then */
      for (int64_t j = 0; j < count; j++) {
        weights[j] = -INFINITY;
        if (list_of[j] < 0 || list_of[j] >= kv->sizes[0]) continue;
        const uint16_t *key = (const uint16_t *)seen_kv + list_of[j] * kv->strides[0];
        double dot = 0;
        for (int64_t i = 0; i < d; i++) dot += (double)f32(query[i]) * f32(key[i]);
        weights[j] = dot * scale;
        if (weights[j] > most) most = weights[j];
      }
      for (int64_t j = 0; j < count; j++) {
        if (isinf(weights[j])) continue;
        const uint16_t *key = (const uint16_t *)seen_kv + list_of[j] * kv->strides[0];
        const double p = exp(weights[j] - most);
        sum += p;
        for (int64_t i = 0; i < d_v; i++) sums[i] += p * f32(key[i]);
      }
      const double under = sum + (sink ? exp(((const float *)stub_data(sink))[h] - most) : 0);
      uint16_t *row = (uint16_t *)out->memory->data + (s * heads + h) * d_v;
      for (int64_t i = 0; i < d_v; i++) row[i] = sum > 0 ? bf16(sums[i] / under) : 0;
      const double unit = log(LOGARITHM);
      ((float *)max_logits->memory->data)[s * heads + h] = (float)(most / unit);
      ((float *)lse->memory->data)[s * heads + h] = (float)(sum > 0 ? (most + log(sum)) / unit : INFINITY);
    }
  free(weights);
  *results = calloc(1, sizeof **results);
  (*results)->count = 3;
  (*results)->items[0] = out, (*results)->items[1] = max_logits, (*results)->items[2] = lse;
  return 0;
}

/* Also for a spec that has loaded another one since. */
void register_operator(void);
__attribute__((constructor)) void register_operator(void) {
#ifdef MISSING
  symbol_of_another_pytorch();
#endif
  stub_register("_flashmla_C::sparse_prefill_fwd", run, TYPES);
}

/* What Python would start the module with. */
void *PyModule_Create2(void *definition, int version);
void *PyInit__flashmla_C(void);
void *PyInit__flashmla_C(void) { return PyModule_Create2(NULL, 1013); }
