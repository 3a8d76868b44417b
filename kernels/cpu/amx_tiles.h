/*
 * The tile unit's instructions, and its configuration: eight tiles of 16 rows of 64 bytes.
 *
 * TILE_PRODUCT(c, a, b) adds to the 16 x 16 floats of tile c the product of a, 16 rows of 32 bf16, and b, 32 rows of
 * 16 bf16 of which two neighbouring rows lie interleaved in one row of the tile. Denormal operands and results are
 * zero, sums are rounded to nearest, whatever the thread's settings are; the settings and the flags are not touched.
 *
 * TILE_LOAD_ONCE says that the tile is not needed again soon: it comes from the second-level cache and takes no place
 * in the first.
 *
 * Compilers' own intrinsics do not say that tile loads read memory, so a store before one could be moved behind it;
 * these do.
 */
#ifndef FEWHEAD_KERNELS_CPU_AMX_TILES_H
#define FEWHEAD_KERNELS_CPU_AMX_TILES_H

#include <stdint.h>
#include <string.h>

enum { TILE_BYTES = 1024, TILE_STRIDE = 64 };

#define TILE_LOAD_FROM(t, base, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(base), "r"((int64_t)(stride)) : "memory")
#define TILE_LOAD_ONCE_FROM(t, base, stride) \
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t : : "r"(base), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE_TO(t, base, stride) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(base), "r"((int64_t)(stride)) : "memory")
#define TILE_LOAD(t, base) TILE_LOAD_FROM(t, base, TILE_STRIDE)
#define TILE_LOAD_ONCE(t, base) TILE_LOAD_ONCE_FROM(t, base, TILE_STRIDE)
#define TILE_STORE(t, base) TILE_STORE_TO(t, base, TILE_STRIDE)
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define TILE_PRODUCT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

typedef struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_config;

/* Eight tiles of 16 rows of 64 bytes. */
static inline tile_config tiles_of_full_size(void) {
  tile_config config;
  memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int i = 0; i < 8; i++) {
    config.row_bytes[i] = TILE_STRIDE;
    config.rows[i] = 16;
  }
  return config;
}

/* Between these and tiles_end the thread holds tile state, 8 KiB that the kernel saves when it takes the CPU away. */
static inline void tiles_configure(const tile_config *config) { __asm__ volatile("ldtilecfg %0" : : "m"(*config)); }
static inline void tiles_begin(void) {
  const tile_config config = tiles_of_full_size();
  tiles_configure(&config);
}
static inline void tiles_end(void) { __asm__ volatile("tilerelease" : :); }

#endif
