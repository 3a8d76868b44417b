/*
 * The highest rate of this CPU's multiply-adds, bf16 dot products and tile products on one thread, and the rate at
 * which all threads fetch KV rows picked at random. The CPU kernels are measured against these rates.
 */
#include <stdint.h>
#include <stdio.h>

#include <stdlib.h>
#include <string.h>

#include "limits.h"

enum { STEPS = 20000, TRIES = 30 };

#if defined(__x86_64__)
#include <immintrin.h>

/* 24 independent instructions, STEPS times. */
#define CHAINS(body)                                                                                                   \
  for (int i = 0; i < STEPS; i++)                                                                                      \
  __asm__ volatile(body(0) body(1) body(2) body(3) body(4) body(5) body(6) body(7) body(8) body(9) body(10) body(11)   \
                       body(0) body(1) body(2) body(3) body(4) body(5) body(6) body(7) body(8) body(9) body(10)        \
                           body(11)                                                                                    \
                   :                                                                                                   \
                   :                                                                                                   \
                   : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
                     "xmm14", "xmm15")
#define FMA256(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n"
#define FMA512(n) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #n "\n"
#define DOT512(n) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #n "\n"

/* Tile products, of registers and with operands from the first-level cache: two loads of 1 KiB for two products. */
static char operands[16 * TILE_BYTES] __attribute__((aligned(4096)));
static void load_operands(void) {
  fill_operands(operands, sizeof operands);
  TILE_LOAD(4, operands);
  TILE_LOAD(5, operands + TILE_BYTES);
  TILE_LOAD(6, operands + 2 * TILE_BYTES);
  TILE_LOAD(7, operands + 3 * TILE_BYTES);
}
static void tiles_of_registers(void) {
  for (int i = 0; i < STEPS; i++) {
    for (int j = 0; j < 6; j++) {
      TILE_PRODUCT(0, 4, 6);
      TILE_PRODUCT(1, 4, 7);
      TILE_PRODUCT(2, 5, 6);
      TILE_PRODUCT(3, 5, 7);
    }
  }
}
static void tiles_of_cache(void) {
  for (int i = 0; i < STEPS; i++) {
    for (int j = 0; j < 6; j++) {
      const char *at = operands + j % 4 * 4 * TILE_BYTES;
      TILE_LOAD(4, at);
      TILE_LOAD(6, at + TILE_BYTES);
      TILE_PRODUCT(0, 4, 6);
      TILE_LOAD(7, at + 2 * TILE_BYTES);
      TILE_PRODUCT(1, 4, 7);
      TILE_LOAD(5, at + 3 * TILE_BYTES);
      TILE_PRODUCT(2, 5, 6);
      TILE_PRODUCT(3, 5, 7);
    }
  }
}

static void clear(void) { __asm__ volatile("vzeroall" : : : "memory"); }
static void fma256(void) { CHAINS(FMA256); }
static void fma512(void) { CHAINS(FMA512); }
static void dot512(void) { CHAINS(DOT512); }

/* KV rows of 1 KiB picked at random from a table, each line loaded, the rows 16 further on prefetched: what gather
 * cannot be faster than where the lists share nothing. One thread a CPU. */
enum { ROW_BYTES = 1024, PICKED = 65536, AHEAD = 16 };
typedef struct fetching {
  const char *table;
  int32_t rows;
  uint32_t *picked; /* [threads][PICKED] */
} fetching;

__attribute__((target("avx512f"))) static void fetch_rows(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  const fetching *f = arg;
  const uint32_t *picked = f->picked + item * PICKED;
  __m512i sum = _mm512_setzero_si512();
  for (int i = 0; i < PICKED; i++) {
    const char *row = f->table + (uint64_t)picked[i] * ROW_BYTES;
    const char *ahead = f->table + (uint64_t)picked[i + AHEAD < PICKED ? i + AHEAD : i] * ROW_BYTES;
    for (int line = 0; line < ROW_BYTES; line += 64) {
      __builtin_prefetch(ahead + line, 0, 2);
      sum = _mm512_xor_si512(sum, _mm512_loadu_si512(row + line));
    }
  }
  __asm__ volatile("" : : "v"(sum));
}

static void show_fetching(int32_t threads) {
  fhk_cpu *cpu = fhk_cpu_create(threads, FH_ISA_GENERIC);
  printf("\n| rows of 1 KiB at random from, %d threads | GB/s |\n|---|---|\n", (int)threads);
  for (int32_t mib = 2; mib <= 16; mib *= 2) {
    fetching f = {NULL, mib * 1024, malloc((size_t)threads * PICKED * sizeof *f.picked)};
    char *table = aligned_alloc(4096, (size_t)mib << 20);
    if (!cpu || !table || !f.picked || fh_random_u32(1, 0, 0, (uint64_t)threads * PICKED, f.picked)) exit(1);
    memset(table, 1, (size_t)mib << 20);
    f.table = table;
    for (int64_t i = 0; i < (int64_t)threads * PICKED; i++) f.picked[i] %= (uint32_t)f.rows;
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
      const uint64_t start = fh_time_ns();
      fhk_cpu_parallel(cpu, threads, fetch_rows, &f);
      const uint64_t t = fh_time_ns() - start;
      if (t < best) best = t;
    }
    printf("| %d MiB | %.1f |\n", (int)mib, (double)threads * PICKED * ROW_BYTES / (double)best);
    free(table);
    free(f.picked);
  }
  fhk_cpu_destroy(cpu);
}

static void show(const char *name, void (*run)(void), double flops) {
  uint64_t best = UINT64_MAX;
  clear();
  for (int i = 0; i < TRIES; i++) {
    const uint64_t start = fh_time_ns();
    run();
    const uint64_t t = fh_time_ns() - start;
    if (t < best) best = t;
  }
  const double rate = 24.0 * STEPS / (double)best;
  printf("| %s | %.2f | %.0f |\n", name, rate, rate * flops);
}
#endif

int main(void) {
  const int32_t isa = fhk_cpu_best_isa();
  printf("| instruction, one thread | 10^9/s | GFLOP/s |\n|---|---|---|\n");
#if defined(__x86_64__)
  if (isa >= FH_ISA_AVX2) show("vfmadd231ps ymm", fma256, 16);
  if (isa >= FH_ISA_AVX512) show("vfmadd231ps zmm", fma512, 32);
  if (isa >= FH_ISA_AVX512_BF16) show("vdpbf16ps zmm", dot512, 64);
  if (isa >= FH_ISA_AMX) {
    tiles_begin();
    load_operands();
    show("tdpbf16ps, registers", tiles_of_registers, PRODUCT_FLOPS);
    show("tdpbf16ps, operands from the first-level cache", tiles_of_cache, PRODUCT_FLOPS);
    tiles_end();
  }
  if (isa >= FH_ISA_AVX512) {
    fh_device *device = NULL;
    fh_device_info info = {.struct_size = sizeof info};
    const fh_device_options options = {.struct_size = sizeof options, .isa = FH_ISA_GENERIC};
    if (fh_device_open("cpu", &options, &device) || fh_device_get_info(device, &info)) return 1;
    fh_device_close(&device);
    show_fetching(info.threads);
  }
#endif
  printf("\ninstruction set of this CPU: %s; fastest for the kernels: %s\n\n", fhk_cpu_isa_name(isa),
         fhk_cpu_isa_name(fhk_cpu_fastest_isa()));
  return 0;
}
