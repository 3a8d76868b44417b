/*
 * The highest rate of this CPU's multiply-adds and bf16 dot products on one thread: independent chains in registers.
 * The CPU kernels are measured against this rate.
 */
#include <stdint.h>
#include <stdio.h>

#include "cpu/cpu.h"

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

static void clear(void) { __asm__ volatile("vzeroall" : : : "memory"); }
static void fma256(void) { CHAINS(FMA256); }
static void fma512(void) { CHAINS(FMA512); }
static void dot512(void) { CHAINS(DOT512); }

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
#endif
  printf("\ninstruction set of this CPU: %s; fastest for the kernels: %s\n\n", fhk_cpu_isa_name(isa),
         fhk_cpu_isa_name(fhk_cpu_fastest_isa()));
  return 0;
}
