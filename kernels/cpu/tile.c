/* What surrounds the blocks of a tile: memory, start and finish. */
#include <float.h>

#include "cpu/tile.h"

const fhk_tile_ops *fhk_tile_ops_of(int32_t isa) {
  switch (isa) {
#if defined(__x86_64__)
    case FH_ISA_AVX2: return &fhk_tile_avx2;
    case FH_ISA_AVX512: return &fhk_tile_avx512;
    case FH_ISA_AVX512_BF16: return &fhk_tile_avx512_bf16;
    case FH_ISA_AMX: return NULL;
#endif
    default: return &fhk_tile_generic;
  }
}

/* Rows that stand side by side in a vector: as many as it has lanes, or a power of two where fewer hold them all. */
static int32_t lanes_for(int32_t rows, int32_t vector) {
  int32_t lanes = vector;
  while (lanes / 2 >= rows) lanes /= 2;
  return (rows + lanes - 1) / lanes * lanes;
}

/* Where the parts lie, in bytes from the start: the tiles, what they share, then q .. alpha of each, `each` bytes a
 * tile. */
typedef struct tile_layout {
  uint64_t s, kv, q, o, max, sum, alpha, each, total;
} tile_layout;

static tile_layout layout_of(const fhk_tile_ops *ops, const fh_call *call, int32_t rows, int32_t count) {
  const uint64_t lanes = (uint64_t)lanes_for(rows, ops->vector), f = sizeof(float), keys = TILE_KEYS + TILE_SPARE;
  tile_layout at;
  at.s = fhk_part((uint64_t)count, sizeof(tile));
  at.kv = at.s + fhk_part(keys * lanes, f);
  at.q = at.kv + (rows <= ops->few_rows ? 0 : fhk_part(keys * TILE_KV, f));
  at.o = at.q + fhk_part(lanes * (uint64_t)call->d_qk, f);
  at.max = at.o + fhk_part((uint64_t)rows * TILE_O, f);
  at.sum = at.max + fhk_part(lanes, f);
  at.alpha = at.sum + fhk_part(lanes, f);
  at.each = at.alpha + fhk_part(lanes, f) - at.q;
  at.total = at.q + (uint64_t)count * at.each;
  return at;
}

uint64_t fhk_tiles_bytes(const fhk_tile_ops *ops, const fh_call *call, int32_t rows, int32_t count) {
  return layout_of(ops, call, rows, count).total;
}

static float *floats(char *at) { return (float *)(void *)at; }

tile *fhk_tiles_make(const fhk_tile_ops *ops, const fh_call *call, int32_t rows, int32_t count, void *memory) {
  const tile_layout at = layout_of(ops, call, rows, count);
  char *base = memory;
  tile *first = memory;
  for (int32_t i = 0; i < count; i++) {
    char *own = base + (uint64_t)i * at.each;
    first[i] = (tile){.rows = rows,
                      .few = rows <= ops->few_rows,
                      .s_stride = lanes_for(rows, ops->vector),
                      .d_qk = call->d_qk,
                      .scale = fminf(call->sm_scale * 1.44269504f, FLT_MAX),
                      .s = floats(base + at.s),
                      .kv = floats(base + at.kv),
                      .q = floats(own + at.q),
                      .o = floats(own + at.o),
                      .max = floats(own + at.max),
                      .sum = floats(own + at.sum),
                      .alpha = floats(own + at.alpha)};
  }
  /* Lanes past the last row are computed with the rest and never read; they must only be numbers from the start. */
  memset(first->s, 0, at.kv - at.s);
  return first;
}

void fhk_tile_start(tile *t, const fhk_tile_ops *ops, const fh_call *call, int64_t s) {
  const uint16_t *q[TILE_ROWS] = {NULL};
  for (int32_t h = 0; h < call->h_q; h++) q[h] = call->q + s * call->q_stride_s + h * call->q_stride_h;
  ops->pack(t, q);
  for (int32_t r = 0; r < t->s_stride; r++) {
    t->max[r] = -INFINITY;
    t->sum[r] = 0;
  }
}

uint64_t fhk_tile_finish(tile *t, const fhk_tile_ops *ops, const fh_call *call, int64_t s) {
  if (t->keys) t->flops += ops->block(t);
  for (int32_t h = 0; h < call->h_q; h++) {
    uint16_t *out = (uint16_t *)call->out + s * call->out_stride_s + h * call->out_stride_h;
    const double max = (double)t->max[h] * (double)call->sm_scale, sum = (double)t->sum[h];
    if (t->blocks) {
      const double sink = call->attn_sink ? exp((double)call->attn_sink[h] - max) : 0;
      ops->store(t, h, (float)(1 / (sum + sink)), out);
    } else {
      memset(out, 0, TILE_V * sizeof *out);
    }
    if (call->lse) call->lse[s * call->lse_stride + h] = t->blocks ? (float)(max + log(sum)) : INFINITY;
    if (call->max_logits) call->max_logits[s * call->max_logits_stride + h] = (float)max;
  }
  return t->flops;
}
