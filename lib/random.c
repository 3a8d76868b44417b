/*
 * Random numbers: Philox4x32-10, the same bits on every device.
 *
 * The formulas of fewhead.h use single IEEE operations in float, rounded to nearest even, so that any device with an fma
 * reproduces them bit for bit. Uniform numbers take one word each, normal ones a block of four.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "internal.h"

enum { LANES = 64 }; /* blocks computed side by side, loops long enough for compilers to vectorise */

typedef struct generator {
  uint64_t seed, stream;
  int32_t dtype, dist, isa;
  int32_t low;    /* i32: a */
  uint64_t width; /* i32: b - a, up to 2^32 */
  float a, scale; /* uniform: D; normal: B */
} generator;

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
/* fh_philox on eight blocks: lane i of a word is the low half of a 64-bit lane of its pair, even lanes in [0], odd ones in [1];
 * the upper halves hold leftovers that no operation reads. */
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

/* One chunk of a view: positions first .. first + n - 1. `first` is a multiple of FH_VIEW_CHUNK and `staged` has room for a whole
 * one, so that the loops have a fixed length and may write past n. */
static inline __attribute__((always_inline)) void make_chunk(const generator *g, int64_t first, int64_t n, void *restrict staged,
                                                             lanes *philox) {
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

_Static_assert(FH_VIEW_CHUNK % (4 * LANES) == 0, "a chunk is made of whole batches");

static void make_generic(void *arg, int64_t first, int64_t n, void *staged) {
  make_chunk(arg, first, n, staged, lanes_generic);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void make_avx2(void *arg, int64_t first, int64_t n, void *staged) {
  make_chunk(arg, first, n, staged, lanes_avx2);
}
#else
#define make_avx2 make_generic
#endif

fh_status fh_view_random(fh_view *view, int32_t dist, uint64_t seed, uint64_t stream, double a, double b) {
  if (!view) return fh_fail_null("view");
  generator g = {.seed = seed, .stream = stream, .dtype = view->info.dtype, .dist = dist};
  if (dist != FH_UNIFORM && dist != FH_NORMAL)
    return fh_fail(FH_ERR_ARGUMENT, "dist: got %d, wanted 1 (uniform) or 2 (normal)", (int)dist);
  if (g.dtype == FH_I32) {
    if (dist == FH_NORMAL) return fh_fail(FH_ERR_ARGUMENT, "dist: got normal for an i32 view, wanted uniform");
    if (!(a >= INT32_MIN && b <= (double)INT32_MAX + 1 && a < b && a == floor(a) && b == floor(b)))
      return fh_fail(FH_ERR_ARGUMENT, "a, b: got %.17g and %.17g, wanted whole numbers a < b in -2^31 .. 2^31 for an i32 view", a,
                     b);
    g.low = (int32_t)a;
    g.width = (uint64_t)(b - a);
  } else {
    g.a = (float)a;
    g.scale = dist == FH_NORMAL ? (float)b : (float)(b - a);
    if (!isfinite(g.a) || !isfinite((float)b) || !isfinite(g.scale))
      return fh_fail(FH_ERR_ARGUMENT, "a, b: got %.17g and %.17g, wanted numbers, and a difference, within float's range", a, b);
  }
  fh_view_set(view, view->buffer->device->info.isa >= FH_ISA_AVX2 ? make_avx2 : make_generic, &g);
  return FH_OK;
}

fh_status fh_random_u32(uint64_t seed, uint64_t stream, uint64_t first, uint64_t n, uint32_t *dst) {
  if (!n) return FH_OK;
  if (!dst) return fh_fail_null("dst");
  if (n - 1 > UINT64_MAX - first)
    return fh_fail(FH_ERR_SHAPE, "n: got %" PRIu64 " words from %" PRIu64 ", wanted them to end within 64 bits", n, first);
  uint32_t block[4];
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t word = first + i;
    if (i == 0 || word % 4 == 0) fh_philox(seed, stream, word / 4, block);
    dst[i] = block[word % 4];
  }
  return FH_OK;
}
