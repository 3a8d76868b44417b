/*
 * The few vector operations that the tile kernels need, for the instruction set that the including file is compiled
 * for: AVX-512, AVX2 with FMA, or four lanes of whatever the compiler makes of them.
 *
 * bf16 rows are widened without a shuffle: of 2 VL neighbouring elements the even ones become one vector (shift left
 * by 16) and the odd ones another (clear the lower half). Everything inside the kernels is kept in that order, evens
 * before odds in each slice of 2 VL, and two such vectors are put back together when the result is stored (vnarrow).
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
INLINE vf vround(vf y) { return _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* v * 2^n, n a whole number -200 .. 0 or NaN; may be 0 below -126. */
INLINE vf vscale(vf v, vf n) { return _mm512_scalef_ps(v, n); }
/* Lane i: the sum of the lanes of v[i]. */
INLINE vf vjoin(const vf *v) {
  vf a[8], b[4], c[2];
  for (int i = 0; i < 8; i++) /* within four lanes: 0 + 2 and 1 + 3 of the first, 0 + 2 and 1 + 3 of the second */
    a[i] = vadd(_mm512_mask_blend_ps(0xcccc, v[2 * i], v[2 * i + 1]), _mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0x4e));
  for (int i = 0; i < 4; i++)
    b[i] = vadd(_mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x88), _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xdd));
  for (int i = 0; i < 2; i++) /* the same again with four lanes for one */
    c[i] =
        vadd(_mm512_mask_blend_ps(0xff00, b[2 * i], b[2 * i + 1]), _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x4e));
  return vadd(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
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
INLINE vf vround(vf y) { return _mm256_round_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vscale(vf v, vf n) {
  const vf low = _mm256_set1_ps(-126.0f);
  const vi exponent = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_max_ps(n, low)), _mm256_set1_epi32(127));
  const vf scaled = _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  return _mm256_andnot_ps(_mm256_cmp_ps(n, low, _CMP_LT_OQ), scaled);
}
INLINE vf vjoin(const vf *v) {
  vf a[4], b[2];
  for (int i = 0; i < 4; i++)
    a[i] = vadd(_mm256_blend_ps(v[2 * i], v[2 * i + 1], 0xcc), _mm256_shuffle_ps(v[2 * i], v[2 * i + 1], 0x4e));
  for (int i = 0; i < 2; i++)
    b[i] = vadd(_mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x88), _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xdd));
  return vadd(_mm256_blend_ps(b[0], b[1], 0xf0), _mm256_permute2f128_ps(b[0], b[1], 0x21));
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

INLINE vf vload(const float *p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}
INLINE void vstore(float *p, vf v) { memcpy(p, &v, sizeof v); }
INLINE vf vset1(float x) { return (vf){x, x, x, x}; }
INLINE vf vadd(vf a, vf b) { return a + b; }
INLINE vf vsub(vf a, vf b) { return a - b; }
INLINE vf vmul(vf a, vf b) { return a * b; }
INLINE vf vselect(vi mask, vf yes, vf no) {
  return (vf)((mask & (vi)yes) | (~mask & (vi)no));
} /* lanes of mask: all ones or 0 */
INLINE vf vmax(vf a, vf b) { return vselect((vi)(a > b), a, b); }
INLINE vf vfma(vf a, vf b, vf c) { return a * b + c; }
INLINE vi vload_bits(const void *p) {
  vi v;
  memcpy(&v, p, sizeof v);
  return v;
}
INLINE void vstore_bits(void *p, vi v) { memcpy(p, &v, sizeof v); }
INLINE vf veven(vi v) { return (vf)(v << 16); }
INLINE vf vodd(vi v) { return (vf)(v & 0xffff0000u); }
INLINE vf vround(vf y) {
  return (y + 12582912.0f) - 12582912.0f;
} /* 1.5 * 2^23: whole numbers from there on, |y| < 2^22 */
INLINE vf vscale(vf v, vf n) {
  const vi low = (vi)(n < -126.0f);
  vi power;
  for (int i = 0; i < VL; i++) {
    /* cppcheck-suppress uninitvar; it sees no lane being set */
    power[i] = (uint32_t)((int32_t)(n[i] > -126.0f && n[i] <= 0 ? n[i] : -126.0f) + 127) << 23;
  }
  return vselect(low, vset1(0), v * (vf)power);
}
INLINE vf vjoin(const vf *v) {
  vf sum;
  /* cppcheck-suppress uninitvar; the same */
  for (int i = 0; i < VL; i++) sum[i] = (v[i][0] + v[i][1]) + (v[i][2] + v[i][3]);
  return sum;
}
INLINE vi vround_bf16(vf v) {
  const vi u = (vi)v;
  return u + (u >> 16 & 1) + 0x7fff;
}
INLINE vi vnarrow(vf even, vf odd) { return vround_bf16(even) >> 16 | (vround_bf16(odd) & 0xffff0000u); }
#endif

/* 2^f for f within [-1/2, 1/2]. The polynomial has the least relative error, 1.1e-7, among those of degree 5 that are 1
 * at 0. */
INLINE vf vexp2_fraction(vf f) {
  vf p = vset1(0x1.5bba14p-10f);
  p = vfma(p, f, vset1(0x1.3cea88p-7f));
  p = vfma(p, f, vset1(0x1.c6b752p-5f));
  p = vfma(p, f, vset1(0x1.ebf9bcp-3f));
  p = vfma(p, f, vset1(0x1.62e42ap-1f));
  return vfma(p, f, vset1(1.0f));
}

/* 2^y for y <= 0, within 3e-7 relative down to y = -126, towards 0 below and 0 from -200 on; 1 at 0, NaN for NaN. */
INLINE vf vexp2(vf y) {
  y = vmax(vset1(-200.0f), y); /* a NaN in the second place stays */
  const vf n = vround(y);
  return vscale(vexp2_fraction(vsub(y, n)), n);
}

#endif
