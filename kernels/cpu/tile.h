/*
 * One tile kernel serves the paths padded, gather and packed: attention of up to 128 rows (a row is one head of one query) over one
 * list of KV rows, each of which all rows take, or only the members of its entry.
 *
 * tile.c drives the blocks; the inner loops come as one fhk_tile_ops for each instruction set.
 */
#ifndef FEWHEAD_KERNELS_CPU_TILE_H
#define FEWHEAD_KERNELS_CPU_TILE_H

#include <math.h>

#include "cpu/back_end.h"

enum {
  TILE_ROWS = 128,     /* most rows of a tile */
  TILE_KEYS = 48,      /* KV rows of a block: a multiple of every kernel's keys at a time (16, 12, 8, 6) */
  TILE_V = 512,        /* d_v */
  TILE_PAD = 16,       /* floats after each stored row, so that neighbours do not fall on the same cache sets */
  TILE_O = TILE_V + TILE_PAD,
  TILE_KV = 576 + TILE_PAD, /* 576: the larger d_qk; a constant stride spares the kernels their address arithmetic */
  TILE_PANELS = TILE_ROWS / 8 + 1 /* of two vectors of four floats, and what is left */
};

/* A run of rows that the QK product takes in one vector or several. `lanes` rows stand side by side; where they are fewer than a vector
 * has lanes, `split` = vector / lanes neighbouring columns of each row share it. */
typedef struct tile_panel {
  int32_t row, lanes, vectors, split;
} tile_panel;

/* The state of one tile; the pointers lie in the thread's scratch. */
typedef struct tile {
  int32_t rows;       /* 1 .. TILE_ROWS */
  int32_t s_stride;   /* floats between the keys of s: rows rounded up to whole vectors */
  int32_t d_qk;
  float scale;        /* sm_scale * log2(e) */
  int32_t panels;
  tile_panel panel[TILE_PANELS];
  float *q;           /* panel after panel, each [d_qk, lanes] in the order of vec.h */
  float *kv;          /* [TILE_KEYS, TILE_KV] KV rows of the block, widened, in the order of vec.h */
  float *s;           /* [TILE_KEYS, s_stride] logits of the block before scaling, then exp of them */
  float *o;           /* [rows, TILE_O] output so far, before division, in the order of vec.h */
  float *max;         /* [s_stride] largest logit so far, before scaling */
  float *sum;         /* [s_stride] sum of exp so far */
  float *alpha;       /* [s_stride] what the block shrinks o and sum by */
  uint32_t *lane_bit; /* [s_stride] the row's query as a bit of its half of a member word; 0 for rows past the last */
  uint8_t *lane_half; /* [s_stride] 1 where that is the upper half; one value for all rows of a vector */
  /* The next block's rows, brought into the second-level cache line by line while this block is computed. */
  const uint16_t *kv_base;
  int64_t kv_row;                  /* elements between KV rows */
  const int32_t *fetch_token;      /* rows not yet begun */
  int32_t fetch_tokens;
  const char *fetch_at, *fetch_end; /* what is left of the row begun last */
  float fetch_credit, fetch_rate;  /* lines that are due; lines per vector multiply-add */
} tile;

/* Called with the vector multiply-adds done since the last call. */
static inline void fetch_next(tile *t, int32_t work) {
  t->fetch_credit += (float)work * t->fetch_rate;
  int32_t due = (int32_t)t->fetch_credit;
  t->fetch_credit -= (float)due;
  for (; due > 0; due--) {
    if (t->fetch_at >= t->fetch_end) {
      if (t->fetch_tokens == 0) return;
      t->fetch_tokens--;
      t->fetch_at = (const char *)(t->kv_base + *t->fetch_token++ * t->kv_row);
      t->fetch_end = t->fetch_at + t->d_qk * (int32_t)sizeof(uint16_t);
    }
    __builtin_prefetch(t->fetch_at, 0, 2);
    t->fetch_at += 64;
  }
}

typedef struct fhk_tile_ops {
  int32_t vector;              /* floats in a vector */
  int32_t panel_vectors;       /* most vectors of a panel */
  const int32_t *keys_at_once; /* [panel_vectors] keys that `logits` takes at once for panels of 1, 2, .. vectors */
  /* Lay q out in panels; q[r] is NULL for a row of zeros. */
  void (*pack_q)(tile *t, const uint16_t *const *q);
  /* Widen KV row `row` into slot `key` of the block. */
  void (*widen)(tile *t, int32_t key, const uint16_t *row);
  /* s of the block's first `keys` KV rows, rounded up to keys_at_once. */
  void (*logits)(tile *t, int32_t keys);
  /* Masking, maxima, exp, sums. Without member (NULL) every row takes every key. Returns, with member, which keys hold NaN or Inf. */
  uint64_t (*softmax)(tile *t, int32_t keys, const uint64_t *member);
  /* o = o * alpha + s V; in the first block o = s V. */
  void (*values)(tile *t, int32_t keys, int32_t first);
  /* Row r of o times `factor`, rounded to bf16. */
  void (*store)(const tile *t, int32_t r, float factor, uint16_t *out);
} fhk_tile_ops;

extern const fhk_tile_ops fhk_tile_generic, fhk_tile_avx2, fhk_tile_avx512, fhk_tile_avx512_bf16;
const fhk_tile_ops *fhk_tile_ops_of(int32_t isa);

/* One tile's job: rows 0 .. rows - 1 over KV rows token[0 .. keys - 1], all of them valid. */
typedef struct fhk_tile_job {
  int32_t rows;
  const uint16_t *q[TILE_ROWS]; /* NULL: a row of zeros, computed and thrown away */
  uint16_t *out[TILE_ROWS];     /* NULL: not wanted; likewise lse and max_logits */
  float *lse[TILE_ROWS];
  float *max_logits[TILE_ROWS];
  float sink[TILE_ROWS];        /* -inf: none */
  const int32_t *token;
  int64_t keys;
  const uint64_t *member;       /* [keys] or NULL: every row takes every key */
  int32_t rows_per_query;       /* with member: row r belongs to query r / rows_per_query */
} fhk_tile_job;

/* Row `row` of the job is head h of query s. */
static inline void fhk_tile_row(const fh_call *call, int64_t s, int32_t h, fhk_tile_job *job, int32_t row) {
  job->q[row] = call->q + s * call->q_stride_s + h * call->q_stride_h;
  job->out[row] = (uint16_t *)call->out + s * call->out_stride_s + h * call->out_stride_h;
  job->lse[row] = call->lse ? call->lse + s * call->lse_stride + h : NULL;
  job->max_logits[row] = call->max_logits ? call->max_logits + s * call->max_logits_stride + h : NULL;
  job->sink[row] = call->attn_sink ? call->attn_sink[h] : -INFINITY;
}

/* Scratch of one thread for tiles of up to `rows` rows. */
uint64_t fhk_tile_scratch_bytes(const fhk_tile_ops *ops, int32_t rows, int32_t d_qk);
/* Returns the FLOPs multiplied. */
uint64_t fhk_tile_run(const fhk_tile_ops *ops, const fh_call *call, const fhk_tile_job *job, void *scratch);

#endif
