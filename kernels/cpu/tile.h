/*
 * One query's attention, block by block: the kernel behind padded, gather and packed.
 *
 * A tile holds the heads of one query as rows, their running softmax and their output so far. KV rows are handed to it
 * one after the other, in any order and as often as they count; every TILE_KEYS of them make a block, which the
 * instruction set's fhk_tile_ops computes. Packed keeps several tiles going at once, so that a KV row that came into
 * the cache serves the neighbours too.
 */
#ifndef FEWHEAD_KERNELS_CPU_TILE_H
#define FEWHEAD_KERNELS_CPU_TILE_H

#include <math.h>

#include "cpu/back_end.h"

enum {
  TILE_ROWS = 128, /* most rows of a tile */
  TILE_KEYS = 48,  /* KV rows of a block: 48 KiB of bf16 for the second-level cache, 48 pages for the TLB */
  TILE_SPARE = 16, /* most keys a kernel takes at once: room for those past the last */
  TILE_V = 512,    /* d_v */
  TILE_PAD = 16,   /* floats after each stored row, so that neighbours do not fall on the same cache sets */
  TILE_O = TILE_V + TILE_PAD,
  TILE_KV = 576 + TILE_PAD /* 576: the larger d_qk; a constant stride spares the kernels their address arithmetic */
};

typedef struct tile {
  int32_t rows;     /* 1 .. TILE_ROWS */
  int32_t few;      /* 1: few rows, which the kernel computes straight from bf16 KV rows; 0: from widened ones */
  int32_t s_stride; /* floats between the keys of s: a whole number of vectors, or a vector's half, quarter, .. */
  int32_t d_qk;
  float scale;    /* sm_scale * log2(e) */
  int32_t keys;   /* KV rows collected for the next block */
  int32_t blocks; /* blocks computed */
  uint64_t flops;
  const uint16_t *row[TILE_KEYS + TILE_SPARE];
  /* Of this tile */
  float *q;     /* [s_stride, d_qk] as the kernel packed it */
  float *o;     /* [rows, TILE_O] output so far, before division, in the order of vec.h */
  float *max;   /* [s_stride] largest logit so far, before scaling */
  float *sum;   /* [s_stride] sum of exp so far */
  float *alpha; /* [s_stride] what a block shrinks o and sum by */
  /* Shared by the tiles of a thread, nothing outlives a block */
  float *s;  /* [TILE_KEYS + TILE_SPARE, s_stride] logits, then exp of them */
  float *kv; /* [TILE_KEYS + TILE_SPARE, TILE_KV] widened KV rows; only where few is 0 */
} tile;

typedef struct fhk_tile_ops {
  int32_t vector;   /* floats in a vector */
  int32_t few_rows; /* tiles of up to this many rows are computed straight from bf16 */
  /* Lay q out; q[r] is NULL for a row of zeros. */
  void (*pack)(tile *t, const uint16_t *const *q);
  /* The t->keys rows in t->row, at least one. Returns the FLOPs multiplied. */
  uint64_t (*block)(tile *t);
  /* Row r of o times `factor`, rounded to bf16. */
  void (*store)(const tile *t, int32_t r, float factor, uint16_t *out);
} fhk_tile_ops;

extern const fhk_tile_ops fhk_tile_generic, fhk_tile_avx2, fhk_tile_avx512, fhk_tile_avx512_bf16;
/* NULL for FH_ISA_AMX, which has kernels of its own (amx.h). */
const fhk_tile_ops *fhk_tile_ops_of(int32_t isa);
/* Returns 1 if this CPU's bf16 dot products are faster than multiply-adds. Measures both, which takes about 20
 * microseconds. */
int32_t fhk_tile_dot_pays(void);

/* Bytes of memory for `count` tiles of `rows` rows that are worked on together. */
uint64_t fhk_tiles_bytes(const fhk_tile_ops *ops, const fh_call *call, int32_t rows, int32_t count);
/* Makes them there; returns the first. */
tile *fhk_tiles_make(const fhk_tile_ops *ops, const fh_call *call, int32_t rows, int32_t count, void *memory);
/* Starts query s: heads 0 .. h_q - 1 are real, rows past them zeros that are computed and thrown away. */
void fhk_tile_start(tile *t, const fhk_tile_ops *ops, const fh_call *call, int64_t s);
static inline void fhk_tile_add(tile *t, const fhk_tile_ops *ops, const uint16_t *row) {
  t->row[t->keys++] = row;
  if (t->keys == TILE_KEYS) t->flops += ops->block(t);
}
/* Computes what is left and writes query s's out, lse and max_logits. Returns the FLOPs multiplied since the start. */
uint64_t fhk_tile_finish(tile *t, const fhk_tile_ops *ops, const fh_call *call, int64_t s);

#endif
