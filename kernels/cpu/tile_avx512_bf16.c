/*
 * Tiles with bf16 dot products, and whether they pay. vdpbf16ps does the work of two multiply-adds. But some cores
 * (Emerald Rapids, measured) start one vdpbf16ps in two cycles and two multiply-adds in one cycle. On such cores plain
 * AVX-512 is twice as fast.
 */
#include <time.h>

#include "cpu/tile.h"
#if defined(__AVX512BF16__)
#define TILE_OPS fhk_tile_avx512_bf16
#define TILE_DOT
#include "cpu/tile_template.h"

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

enum { CHAINS = 20, STEPS = 100, TRIES = 20 };

INLINE int64_t time_chains(const int dot) {
  vf sum[CHAINS], x = vset1(0);
  for (int i = 0; i < CHAINS; i++) sum[i] = x;
  __asm__ volatile("" : "+v"(x)); /* keeps the compiler from knowing what x is */
  const int64_t start = now_ns();
  for (int step = 0; step < STEPS; step++)
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] =
        dot ? _mm512_dpbf16_ps(sum[i], (__m512bh)x, (__m512bh)x) : vfma(x, x, sum[i]);
  for (int i = 0; i < CHAINS; i++) __asm__ volatile("" : : "v"(sum[i]));
  return now_ns() - start;
}

int32_t fhk_tile_dot_pays(void) {
  int64_t dot = INT64_MAX, fma = INT64_MAX;
  for (int i = 0; i < TRIES; i++) {
    const int64_t d = time_chains(1), f = time_chains(0);
    if (d < dot) dot = d;
    if (f < fma) fma = f;
  }
  return dot <
         fma +
             fma / 2; /* twice the work in less than 1.5 times the time; where dot products do not pay, it is 4 times */
}
#endif
