/*
 * The few vector operations that the tile kernels need, for the instruction set that the including file is compiled for: AVX-512, AVX2
 * with FMA, or four lanes of whatever the compiler makes of them.
 *
 * bf16 rows are widened without a shuffle: of 2 VL neighbouring elements the even ones become one vector (shift left by 16) and the odd
 * ones another (clear the lower half). Everything inside the kernels is kept in that order, evens before odds in each chunk of 2 VL,
 * and two such vectors are put back together when the result is stored (vnarrow).
 */
#ifndef FEWHEAD_KERNELS_CPU_VEC_H
#define FEWHEAD_KERNELS_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>
enum { VL = 16 };
typedef __m512 vf;
typedef __m512i vi;

INLINE vf vload(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vstore(float *p, vf v) { _mm512_storeu_ps(p, v); }
INLINE vf vset1(float x) { return _mm512_set1_ps(x); }
INLINE vf vadd(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vsub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vmul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); } /* a * b + c */
INLINE vi vload_bits(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vstore_bits(void *p, vi v) { _mm512_storeu_si512(p, v); }
INLINE vf veven(vi v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
INLINE vf vodd(vi v) { return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u))); }
/* The lanes whose bit is set in `bits` keep v, the others become `other`. */
INLINE vf vkeep(vf v, uint32_t bits, vi lane_bit, vf other) {
  return _mm512_mask_mov_ps(other, _mm512_test_epi32_mask(_mm512_set1_epi32((int)bits), lane_bit), v);
}
/* 1 when no lane is finite. */
INLINE int vnone_finite(vf v) { return _mm512_fpclass_ps_mask(v, 0x99) == 0xffff; }
/* 1 when every lane of a equals that of b. */
INLINE int vequal(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) == 0xffff; }
INLINE vf vround(vf y) { return _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vscale(vf v, vf n) { return _mm512_scalef_ps(v, n); } /* v * 2^n, n a whole number -200 .. 0; may be 0 below -126 */
/* split neighbouring floats over and over: x0 .. x(split - 1), x0 .. */
INLINE vf vrepeat(const float *p, int split) {
  return split == 1   ? _mm512_set1_ps(*p)
         : split == 2 ? _mm512_castpd_ps(_mm512_set1_pd(*(const double *)(const void *)p))
         : split == 4 ? _mm512_broadcast_f32x4(_mm_loadu_ps(p))
         : split == 8 ? _mm512_broadcast_f32x8(_mm256_loadu_ps(p))
                      : _mm512_loadu_ps(p);
}
/* Sums of `split` neighbouring lanes, side by side from lane 0 on; what the lanes behind them hold does not matter. */
INLINE vf vjoin(vf v, int split) {
  if (split >= 2) v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
  if (split >= 4) v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
  if (split >= 8) v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  if (split >= 16) v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
  const vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_permutexvar_ps(_mm512_mullo_epi32(lane, _mm512_set1_epi32(split)), v);
}
INLINE vi vround_bf16(vf v) { /* nearest even, in the upper half */
  const vi u = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}
INLINE vi vnarrow(vf even, vf odd) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(vround_bf16(even), 16), vround_bf16(odd));
}

#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { VL = 8 };
typedef __m256 vf;
typedef __m256i vi;

INLINE vf vload(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vstore(float *p, vf v) { _mm256_storeu_ps(p, v); }
INLINE vf vset1(float x) { return _mm256_set1_ps(x); }
INLINE vf vadd(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf vsub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf vmul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vi vload_bits(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void vstore_bits(void *p, vi v) { _mm256_storeu_si256((__m256i *)p, v); }
INLINE vf veven(vi v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
INLINE vf vodd(vi v) { return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u))); }
INLINE vf vkeep(vf v, uint32_t bits, vi lane_bit, vf other) {
  const vi absent = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), lane_bit), _mm256_setzero_si256());
  return _mm256_blendv_ps(v, other, _mm256_castsi256_ps(absent));
}
INLINE int vnone_finite(vf v) {
  const vf zero = _mm256_sub_ps(v, v); /* NaN for NaN and infinities */
  return _mm256_movemask_ps(_mm256_cmp_ps(zero, zero, _CMP_UNORD_Q)) == 0xff;
}
INLINE int vequal(vf a, vf b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) == 0xff; }
INLINE vf vround(vf y) { return _mm256_round_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vscale(vf v, vf n) {
  const vf low = _mm256_set1_ps(-126.0f);
  const vi exponent = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_max_ps(n, low)), _mm256_set1_epi32(127));
  const vf scaled = _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  return _mm256_andnot_ps(_mm256_cmp_ps(n, low, _CMP_LT_OQ), scaled);
}
INLINE vf vrepeat(const float *p, int split) {
  return split == 1   ? _mm256_broadcast_ss(p)
         : split == 2 ? _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)p))
         : split == 4 ? _mm256_broadcast_ps((const __m128 *)(const void *)p)
                      : _mm256_loadu_ps(p);
}
INLINE vf vjoin(vf v, int split) {
  if (split >= 2) v = _mm256_add_ps(v, _mm256_permute_ps(v, 0xb1));
  if (split >= 4) v = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4e));
  if (split >= 8) v = _mm256_add_ps(v, _mm256_permute2f128_ps(v, v, 1));
  const vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_permutevar8x32_ps(v, _mm256_mullo_epi32(lane, _mm256_set1_epi32(split)));
}
INLINE vi vround_bf16(vf v) {
  const vi u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
INLINE vi vnarrow(vf even, vf odd) {
  return _mm256_blend_epi16(_mm256_srli_epi32(vround_bf16(even), 16), vround_bf16(odd), 0xaa);
}

#else
#include <math.h>
enum { VL = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef uint32_t vi __attribute__((vector_size(16)));

INLINE vf vload(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
INLINE void vstore(float *p, vf v) { memcpy(p, &v, sizeof v); }
INLINE vf vset1(float x) { return (vf){x, x, x, x}; }
INLINE vf vadd(vf a, vf b) { return a + b; }
INLINE vf vsub(vf a, vf b) { return a - b; }
INLINE vf vmul(vf a, vf b) { return a * b; }
INLINE vf vselect(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); } /* lanes of mask: all ones or 0 */
INLINE vf vmax(vf a, vf b) { return vselect((vi)(a > b), a, b); }
INLINE vf vfma(vf a, vf b, vf c) { return a * b + c; }
INLINE vi vload_bits(const void *p) { vi v; memcpy(&v, p, sizeof v); return v; }
INLINE void vstore_bits(void *p, vi v) { memcpy(p, &v, sizeof v); }
INLINE vf veven(vi v) { return (vf)(v << 16); }
INLINE vf vodd(vi v) { return (vf)(v & 0xffff0000u); }
INLINE vf vkeep(vf v, uint32_t bits, vi lane_bit, vf other) {
  return vselect((vi)(((vi){bits, bits, bits, bits} & lane_bit) != 0), v, other);
}
INLINE int vnone_finite(vf v) {
  const vf zero = v - v;
  return zero[0] != zero[0] && zero[1] != zero[1] && zero[2] != zero[2] && zero[3] != zero[3];
}
INLINE int vequal(vf a, vf b) { return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3]; }
INLINE vf vround(vf y) { return (y + 12582912.0f) - 12582912.0f; } /* 1.5 * 2^23: whole numbers from there on, |y| < 2^22 */
INLINE vf vscale(vf v, vf n) {
  const vi low = (vi)(n < -126.0f);
  vi power;
  for (int i = 0; i < VL; i++) power[i] = (uint32_t)((int32_t)(n[i] > -126.0f ? n[i] : -126.0f) + 127) << 23;
  return vselect(low, vset1(0), v * (vf)power);
}
INLINE vf vrepeat(const float *p, int split) {
  return split == 1 ? vset1(*p) : split == 2 ? (vf){p[0], p[1], p[0], p[1]} : vload(p);
}
INLINE vf vjoin(vf v, int split) {
  return split == 1 ? v : split == 2 ? (vf){v[0] + v[1], v[2] + v[3], 0, 0} : (vf){(v[0] + v[1]) + (v[2] + v[3]), 0, 0, 0};
}
INLINE vi vround_bf16(vf v) {
  const vi u = (vi)v;
  return u + (u >> 16 & 1) + 0x7fff;
}
INLINE vi vnarrow(vf even, vf odd) { return vround_bf16(even) >> 16 | (vround_bf16(odd) & 0xffff0000u); }
#endif

/* 2^y for y <= 0, within 3e-7 relative down to y = -126, towards 0 below and 0 from -200 on; 1 at 0, NaN for NaN. The polynomial has
 * the least relative error, 1.1e-7, among those of degree 5 on [-1/2, 1/2] that are 1 at 0. */
INLINE vf vexp2(vf y) {
  y = vmax(vset1(-200.0f), y); /* a NaN in the second place stays */
  const vf n = vround(y), f = vsub(y, n);
  vf p = vset1(0x1.5bba14p-10f);
  p = vfma(p, f, vset1(0x1.3cea88p-7f));
  p = vfma(p, f, vset1(0x1.c6b752p-5f));
  p = vfma(p, f, vset1(0x1.ebf9bcp-3f));
  p = vfma(p, f, vset1(0x1.62e42ap-1f));
  p = vfma(p, f, vset1(1.0f));
  return vscale(p, n);
}

#endif
