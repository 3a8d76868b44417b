/* Random numbers on the CPU: blocks side by side, in the widest instructions that pay. */
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cpu_back_end.h"

enum { LANES = 64 }; /* blocks computed side by side, loops long enough for compilers to vectorise */

/* Words of LANES blocks from `block` on, word j of lane i in w[j][i]. */
typedef void lanes(uint64_t seed, uint64_t stream, uint64_t block, uint32_t w[4][LANES]);

static inline void lanes_generic(uint64_t seed, uint64_t stream, uint64_t block, uint32_t w[4][LANES]) {
  for (int i = 0; i < LANES; i++) {
    uint32_t words[4];
    fh_philox(seed, stream, block + (uint64_t)i, words);
    for (int j = 0; j < 4; j++) w[j][i] = words[j];
  }
}

#if defined(__x86_64__)
/* fh_philox on eight blocks: lane i of a word is the low half of a 64-bit lane of its pair, even lanes in [0], odd
 * ones in [1]; the upper halves hold leftovers that no operation reads. */
__attribute__((target("avx2,fma"))) static inline void lanes_avx2(uint64_t seed, uint64_t stream, uint64_t block,
                                                                  uint32_t w[4][LANES]) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  for (int i = 0; i < LANES; i += 8) {
    __m256i c[4][2];
    for (int odd = 0; odd < 2; odd++) {
      const __m256i step = _mm256_add_epi64(_mm256_setr_epi64x(0, 2, 4, 6), _mm256_set1_epi64x(i + odd));
      c[0][odd] = _mm256_add_epi64(_mm256_set1_epi64x((long long)block), step);
      c[1][odd] = _mm256_srli_epi64(c[0][odd], 32);
      c[2][odd] = _mm256_set1_epi64x((long long)stream);
      c[3][odd] = _mm256_srli_epi64(c[2][odd], 32);
    }
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
      const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
      for (int odd = 0; odd < 2; odd++) {
        const __m256i p0 = _mm256_mul_epu32(m0, c[0][odd]), p1 = _mm256_mul_epu32(m1, c[2][odd]);
        c[0][odd] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c[1][odd]), key0);
        c[1][odd] = p1;
        c[2][odd] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c[3][odd]), key1);
        c[3][odd] = p0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int j = 0; j < 4; j++)
      _mm256_storeu_si256((__m256i *)(w[j] + i), _mm256_blend_epi32(c[j][0], _mm256_slli_epi64(c[j][1], 32), 0xaa));
  }
}
#endif

/* One stretch of a view: positions first .. first + n - 1. `first` is a multiple of FH_CPU_STRETCH and `staged` has
 * room for a whole one, so that the loops have a fixed length and may write past n. */
static inline __attribute__((always_inline)) void make_stretch(const fh_generator *g, int64_t first, int64_t n,
                                                               void *restrict staged, lanes *philox) {
  uint32_t w[4][LANES];
  float x[4 * LANES];
  const int step = g->dist == FH_NORMAL ? LANES : 4 * LANES;
  for (int64_t at = 0; at < n; at += step) {
    const uint64_t position = (uint64_t)(first + at);
    philox(g->seed, g->stream, g->dist == FH_NORMAL ? position : position / 4, w);
    if (g->dtype == FH_I32) {
      int32_t *to = (int32_t *)staged + at;
      for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) to[4 * i + j] = (int32_t)(g->low + (int64_t)((w[j][i] * g->width) >> 32));
      continue;
    }
    if (g->dist == FH_NORMAL)
      for (int i = 0; i < LANES; i++) {
        uint32_t sum = 0;
        for (int j = 0; j < 4; j++) sum += (w[j][i] & 0xffffu) + (w[j][i] >> 16);
        x[i] = fmaf(g->scale, (float)((int32_t)sum - FH_NORMAL_MEAN) * FH_NORMAL_SCALE, g->a);
      }
    else
      for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) x[4 * i + j] = fmaf((float)(int32_t)(w[j][i] >> 8) * 0x1p-24f, g->scale, g->a);
    if (g->dtype == FH_F32) {
      memcpy((float *)staged + at, x, (size_t)step * sizeof *x);
    } else {
      uint16_t *to = (uint16_t *)staged + at;
      for (int i = 0; i < step; i++) to[i] = fh_bf16(x[i]);
    }
  }
}

_Static_assert(FH_CPU_STRETCH % (4 * LANES) == 0, "a stretch is made of whole batches");

static void make_generic(void *arg, int64_t first, int64_t n, void *staged) {
  make_stretch(arg, first, n, staged, lanes_generic);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void make_avx2(void *arg, int64_t first, int64_t n, void *staged) {
  make_stretch(arg, first, n, staged, lanes_avx2);
}
#else
#define make_avx2 make_generic
#endif

fh_cpu_make *fh_cpu_random_maker(int32_t isa) { return isa >= FH_ISA_AVX2 ? make_avx2 : make_generic; }
