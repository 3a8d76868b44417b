/* What the library's files share among themselves and with the kernels; nothing here is public. */
#ifndef FEWHEAD_INTERNAL_H
#define FEWHEAD_INTERNAL_H

#include "fewhead.h"

/* Record the message of this thread and return `status`: `return fh_fail(FH_ERR_SHAPE, "s_q: got %lld, wanted >= 0", ...)`. */
fh_status fh_fail(fh_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Copies the caller's struct of struct_size bytes into `full` (of full_size bytes), the rest zero. FH_ERR_VERSION when struct_size
 * is 0, smaller than min_size or larger than full_size; `name` is the struct's for the message. */
fh_status fh_struct_in(const char *name, const void *given, uint64_t min_size, void *full, uint64_t full_size);

/* Philox4x32-10: the 128-bit block of (seed, stream, position). */
static inline void fh_philox(uint64_t seed, uint64_t stream, uint64_t position, uint32_t out[4]) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}

/* bf16 <-> float: round to nearest even, NaN stays a NaN. */
static inline uint16_t fh_bf16(float x) {
  union { float f; uint32_t u; } v = {x};
  if ((v.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((v.u >> 16) | 0x40u);
  return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}
static inline float fh_float(uint16_t h) {
  union { uint32_t u; float f; } v = {(uint32_t)h << 16};
  return v.f;
}

#endif
