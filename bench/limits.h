/* What a CPU kernel cannot be faster than, measured: tile products, and fetching the KV rows that lists name. */
#ifndef FEWHEAD_BENCH_LIMITS_H
#define FEWHEAD_BENCH_LIMITS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu/amx_tiles.h"
#include "cpu/back_end.h"

enum { PRODUCTS = 4096, PRODUCT_FLOPS = 2 * 16 * 16 * 32, ITEMS_PER_THREAD = 16, LIMIT_TRIES = 20 };

/* Best of LIMIT_TRIES runs of `fn` over `items` items, in ns. */
static inline double time_items(fhk_cpu *cpu, int64_t items, void (*fn)(void *, int64_t, int32_t), void *arg) {
  double best = INFINITY;
  for (int i = 0; i < LIMIT_TRIES; i++) {
    const uint64_t start = fh_time_ns();
    fhk_cpu_parallel(cpu, items, fn, arg);
    const double t = (double)(fh_time_ns() - start);
    if (t < best) best = t;
  }
  return best;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* bf16 between 0.5 and 2 with random signs and last bits: with zeros the tile unit draws less power, and the clock is
 * a quarter higher. */
static inline void fill_operands(char *to, int bytes) {
  uint32_t x = 12345;
  for (int i = 0; i < bytes; i += 2) {
    x = x * 1664525u + 1013904223u;
    const uint16_t value = (uint16_t)(0x3f00 | (x >> 24) | (x >> 8 & 0x8000));
    memcpy(to + i, &value, 2);
  }
}

static inline void multiply_tiles(void *arg, int64_t item, int32_t thread) {
  (void)item, (void)thread;
  const char *operands = arg;
  tiles_begin();
  TILE_LOAD(4, operands);
  TILE_LOAD(5, operands + TILE_BYTES);
  TILE_LOAD(6, operands + 2 * TILE_BYTES);
  TILE_LOAD(7, operands + 3 * TILE_BYTES);
  for (int i = 0; i < PRODUCTS; i += 4) {
    TILE_PRODUCT(0, 4, 6);
    TILE_PRODUCT(1, 4, 7);
    TILE_PRODUCT(2, 5, 6);
    TILE_PRODUCT(3, 5, 7);
  }
  tiles_end();
}

/* GFLOP/s of tile products of registers, on all threads of cpu. Only where fhk_amx_missing() is NULL. */
static inline double tile_gflops(fhk_cpu *cpu) {
  static char operands[4 * TILE_BYTES];
  fill_operands(operands, sizeof operands);
  const int64_t items = (int64_t)fhk_cpu_threads(cpu) * ITEMS_PER_THREAD;
  return (double)items * PRODUCTS * PRODUCT_FLOPS / time_items(cpu, items, multiply_tiles, operands);
}

/* Loads every line of the KV rows that query s lists, row by row. */
__attribute__((target("avx512f"))) static inline void fetch_query(void *arg, int64_t s, int32_t thread) {
  (void)thread;
  const fh_call *call = arg;
  const int32_t *list = fhk_list(call, s);
  __m512i sum = _mm512_setzero_si512();
  for (int64_t j = 0; j < fhk_list_length(call, s); j++) {
    if (list[j] < 0 || list[j] >= call->s_kv) continue;
    const uint16_t *row = call->kv + list[j] * call->kv_stride;
    for (int32_t d = 0; d < call->d_qk; d += 32) sum = _mm512_xor_si512(sum, _mm512_loadu_si512(row + d));
  }
  __asm__ volatile("" : : "v"(sum));
}

/* ms that all threads of cpu take to load the KV rows of all queries, query by query. Only with AVX-512. */
static inline double fetch_ms(fhk_cpu *cpu, fh_call *call) {
  return time_items(cpu, call->s_q, fetch_query, call) * 1e-6;
}
#endif
#endif
