/* Numbers that every device must compute alike: the random blocks and bf16. Read by C and by CUDA C++. */
#ifndef FEWHEAD_NUMBERS_H
#define FEWHEAD_NUMBERS_H

#include <stdint.h>

#if defined(__CUDACC__)
#define FH_NUMBERS static inline __host__ __device__
#else
#define FH_NUMBERS static inline
#endif

/* Philox4x32-10: the 128-bit block of (seed, stream, position). */
FH_NUMBERS void fh_philox(uint64_t seed, uint64_t stream, uint64_t position, uint32_t out[4]) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = (uint32_t)stream,
           c3 = (uint32_t)(stream >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/* The normal distribution: the sum of eight uniform 16-bit numbers, less its mean, times the float nearest
 * 1 / sqrt(2 * (2^32 - 1) / 3), one over its deviation. */
#define FH_NORMAL_SCALE 0x1.3988e2p-16f
#define FH_NORMAL_MEAN (8 * 65535 / 2)

/* bf16 <-> float: round to nearest even, NaN stays a NaN. */
FH_NUMBERS uint16_t fh_bf16(float x) {
  union {
    float f;
    uint32_t u;
  } v;
  v.f = x;
  if ((v.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((v.u >> 16) | 0x40u);
  return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}
FH_NUMBERS float fh_float(uint16_t h) {
  union {
    uint32_t u;
    float f;
  } v;
  v.u = (uint32_t)h << 16;
  return v.f;
}

#endif
