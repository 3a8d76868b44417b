/* Arithmetic on sizes of memory that stops at UINT64_MAX instead of wrapping. A size of UINT64_MAX is always
 * refused. */
#ifndef FEWHEAD_KERNEL_MEMORY_H
#define FEWHEAD_KERNEL_MEMORY_H

#include <stdint.h>

static inline uint64_t fhk_add(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
static inline uint64_t fhk_mul(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }

/* Rounded up to a multiple of `line`, a power of two. */
static inline uint64_t fhk_round_up(uint64_t bytes, uint64_t line) {
  return bytes > UINT64_MAX - (line - 1) ? UINT64_MAX : (bytes + line - 1) & ~(line - 1);
}

#endif
