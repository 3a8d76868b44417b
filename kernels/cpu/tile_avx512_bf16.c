/*
 * Tiles with bf16 dot products, and whether they pay: vdpbf16ps does the work of two multiply-adds, but Intel's cores up to Emerald
 * Rapids start one every two cycles where they start four multiply-adds, while AMD's Zen 4 starts one a cycle and one multiply-add.
 */
#define TILE_OPS fhk_tile_avx512_bf16
#define TILE_DOT
#include "cpu/tile_template.h"

enum { CHAINS = 20, STEPS = 100, TRIES = 20 };

INLINE uint64_t time_chains(const int dot) {
  vf sum[CHAINS], x = vset1(0);
  for (int i = 0; i < CHAINS; i++) sum[i] = x;
  __asm__ volatile("" : "+v"(x)); /* keeps the compiler from knowing what x is */
  const uint64_t start = fh_time_ns();
  for (int step = 0; step < STEPS; step++) UNROLL for (int i = 0; i < CHAINS; i++)
    sum[i] = dot ? _mm512_dpbf16_ps(sum[i], (__m512bh)x, (__m512bh)x) : vfma(x, x, sum[i]);
  for (int i = 0; i < CHAINS; i++) __asm__ volatile("" : : "v"(sum[i]));
  return fh_time_ns() - start;
}

int32_t fhk_tile_dot_pays(void) {
  uint64_t dot = UINT64_MAX, fma = UINT64_MAX;
  for (int i = 0; i < TRIES; i++) {
    const uint64_t d = time_chains(1), f = time_chains(0);
    if (d < dot) dot = d;
    if (f < fma) fma = f;
  }
  return dot < fma + fma / 2; /* twice the work in less than one and a half times the time; the known cores lie far from it, at 1 and 4 */
}
