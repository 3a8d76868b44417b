/*
 * What the two files of attention on the tile unit share: few_amx.c for up to 8 rows of q, kernels_amx.c for more.
 */
#ifndef FEWHEAD_KERNELS_CPU_AMX_ROWS_H
#define FEWHEAD_KERNELS_CPU_AMX_ROWS_H

#include <float.h>
#include <math.h>

#include "cpu/amx.h"
#include "cpu/amx_tiles.h"
#include "cpu/vec.h"

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

enum {
  FEW_ROWS = 8,
  MOST_KEYS = 1024, /* KV rows of a block, at most */
  D_V = 512,
  CHUNK = 32, /* columns of a KV row in 64 bytes */
  TILE_FLOATS = TILE_BYTES / 4
};
static const float SLACK = 40; /* of log2: weights stay below 1e12 */

static const uint16_t zero_row[576] __attribute__((aligned(64)));

INLINE float *floats(char *at) { return (float *)(void *)at; }

/* sm_scale * log2(e) */
INLINE float log2_scale(const fh_call *call) { return fminf(call->sm_scale * 1.44269504f, FLT_MAX); }

/* The lanes of x that are NaN or Inf. */
INLINE __mmask16 not_finite(vf x) { return _mm512_fpclass_ps_mask(x, 0x99); }

/* The rows that no key counts for so far. */
INLINE __mmask16 no_reference(vf reference) { return _mm512_cmp_ps_mask(reference, vset1(-INFINITY), _CMP_EQ_OQ); }

/* What logits are subtracted from: the reference, or anything finite where there is none. */
INLINE vf finite_reference(vf reference) { return _mm512_mask_mov_ps(reference, no_reference(reference), vset1(0)); }

static const float LEAST = -100; /* of log2: smaller weights are 0 */

/* 2^y for y up to SLACK in the lanes that count, 0 in the others and below LEAST, NaN for NaN. Results below the
 * smallest normal float, of the exponential or of the low halves of small weights, would take this CPU an assist
 * each: twice to three times a call's time where logits lie far apart. */
INLINE vf weight_of(__mmask16 counts, vf y) {
  const vf n = vround(y);
  counts = _mm512_mask_cmp_ps_mask(counts, y, vset1(LEAST), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(counts, vexp2_fraction(vsub(y, n)), n);
}
INLINE vf weight(vf y) { return weight_of(0xffff, y); }

/* 16 vectors of 16 words, each the row of a square: columns 2 `half`, 2 `half` + 1 and those 4, 8 and 12 after each, to
 * where 16 columns of 64 bytes lie side by side. */
INLINE void transpose_half(const int half, const vi *in, char *to) {
  vi a[8], b[8];
  UNROLL for (int i = 0; i < 8; i++) a[i] =
      half ? _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]) : _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
  UNROLL for (int i = 0; i < 4; i++) {
    b[2 * i] = _mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]);
  }
  /* b[2 i + j], four words at 4 L: column 4 L + 2 half + j of rows 4 i .. 4 i + 3. */
  to += half * 2 * 64;
  UNROLL for (int j = 0; j < 2; j++) {
    const vi l = _mm512_shuffle_i32x4(b[j], b[2 + j], 0x88), m = _mm512_shuffle_i32x4(b[4 + j], b[6 + j], 0x88);
    const vi n = _mm512_shuffle_i32x4(b[j], b[2 + j], 0xdd), k = _mm512_shuffle_i32x4(b[4 + j], b[6 + j], 0xdd);
    vstore_bits(to + j * 64, _mm512_shuffle_i32x4(l, m, 0x88));
    vstore_bits(to + (4 + j) * 64, _mm512_shuffle_i32x4(n, k, 0x88));
    vstore_bits(to + (8 + j) * 64, _mm512_shuffle_i32x4(l, m, 0xdd));
    vstore_bits(to + (12 + j) * 64, _mm512_shuffle_i32x4(n, k, 0xdd));
  }
}

/* All 16 columns. */
INLINE void transpose(const vi *in, char *to) {
  transpose_half(0, in, to);
  transpose_half(1, in, to);
}

/* Row r of a pass is head h of query s: writes lse and max_logits, and returns what the row of o is multiplied by. */
INLINE float finish_sums(const fh_call *call, int64_t s, int32_t h, int keys, double largest, double reference,
                         double sum) {
  reference *= (double)call->sm_scale;
  if (call->lse) call->lse[s * call->lse_stride + h] = keys ? (float)(reference + log(sum)) : INFINITY;
  if (call->max_logits) call->max_logits[s * call->max_logits_stride + h] = (float)(largest * (double)call->sm_scale);
  const double sink = call->attn_sink ? exp((double)call->attn_sink[h] - reference) : 0;
  return (float)(1 / (sum + sink));
}

INLINE uint16_t *out_row(const fh_call *call, int64_t s, int32_t h) {
  return (uint16_t *)call->out + s * call->out_stride_s + h * call->out_stride_h;
}

#endif
