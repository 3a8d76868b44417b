/*
 * Attention on the tile unit: the instruction set `amx` of the paths padded, gather and packed.
 *
 * Up to 128 rows (a query's heads, or the heads of a group's queries) pass over a sequence of KV rows, block by block:
 *
 *   logits   s[key][row] = sum over d of kv[key][d] * q[d][row]: 16 KV rows are operand A as they come from memory, 64
 *            bytes of each at a time, brought together in a tile; q is operand B, laid out once a query or group
 *   softmax  rows in the lanes of a vector, so nothing is done across lanes; weights that do not count are 0
 *   values   o[row][c] += sum over keys of p[row][key] * v[key][c]: p is operand A, transposed once a block; pairs of
 *            KV rows are operand B, interleaved 64 bytes at a time
 *
 * KV rows are read twice, from the second-level cache, and only ever copied into a few tiles that stay in the first: a
 * tile's worth of stores that leave the first level takes as long as four products. While one block is computed, the
 * rows of the next are prefetched.
 *
 * p is fp32 cut into two bf16, p = high + low within 2^-17: one bf16 is out of FlashMLA's tolerances where outputs are
 * small against the values. With up to 8 rows the low halves ride in the unused half of the tile.
 *
 * A row's largest logit is followed with some slack: p is exp(logit - reference), and the reference is raised, and o
 * scaled, only where the largest logit comes to lie SLACK above it.
 *
 * packed multiplies every row of the group with every entry of the union and sets the weights of those that are not
 * members to 0. That does not undo a NaN or Inf in a value, so a KV row with one is left out; its members are computed
 * again, one by one.
 */
#include "cpu/amx.h"
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <float.h>
#include <math.h>
#include <time.h>

#include "cpu/amx_tiles.h"
#include "cpu/vec.h"

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

int32_t fhk_amx_built(void) { return 1; }

enum {
  MOST_ROWS = 128,
  MOST_KEYS = 1024,  /* KV rows of a block, at most */
  STEP = 64,         /* what its keys are rounded up to: KV rows that are brought together at a time */
  PRODUCT_KEYS = 32, /* KV rows of one product of the values */
  HALVES = 2,        /* bf16 that p is cut into */
  TWIN_ROWS = 8,     /* up to so many rows a tile holds the low halves of p as well */
  D_V = 512,
  CHUNK = 32, /* columns of a KV row in 64 bytes */
  O_TILES = D_V / 16,
  TILE_FLOATS = TILE_BYTES / 4
};
static const float SLACK = 8; /* of log2: p stays below 256 */

static const uint16_t zero_row[576] __attribute__((aligned(64)));

/* The KV rows of a block, and room for those that are brought together in vain, past the last. */
typedef struct row_block {
  int32_t keys;
  const uint16_t *row[MOST_KEYS + STEP];
  uint32_t member[MOST_KEYS][2]; /* who chose it; only where masked */
} row_block;

/* `rows` rows and their passage over KV rows. */
typedef struct passage {
  int32_t rows, vectors; /* vectors of 16 rows */
  int32_t twin;          /* lanes 8 .. 15 repeat lanes 0 .. 7 */
  int32_t masked;
  int32_t d_qk;
  int32_t window;               /* KV rows of a block */
  int32_t begun;                /* o holds something */
  float scale;                  /* sm_scale * log2(e) */
  uint64_t executed;            /* multiply-adds */
  uint64_t spoilt;              /* queries that list a KV row with NaN or Inf; only where masked */
  char *q;                      /* tiles [vector][chunk] of d_qk / CHUNK chunks */
  float *o;                     /* tiles [vector][O_TILES] */
  char *p;                      /* tiles [vector][window / PRODUCT_KEYS][half] */
  float *s;                     /* [window][16 * vectors] */
  char *stage;                  /* two times STAGE_BYTES */
  float *max, *reference, *sum; /* [16 * vectors]; before scaling */
  uint32_t *lane_bit;           /* [16 * vectors] the bit of the lane's query in member[..][lane_half] */
  int32_t *lane_half;           /* [vectors] */
  row_block *block;
  const uint16_t *kv; /* of the call */
  int64_t kv_stride;
  int32_t s_kv;
  const int32_t *ahead; /* KV rows that come after the block, for prefetching */
  int64_t ahead_count;
  int32_t ahead_offset; /* bytes of the first one that are done */
} passage;

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

typedef struct passage_layout {
  uint64_t q, o, p, s, stage, max, reference, sum, lane_bit, lane_half, block, total;
} passage_layout;

enum { STAGE_BYTES = STEP * TILE_STRIDE * 2 };

/* KV rows of a block: with all that belongs to them within half of a second-level cache of 2 MiB, and so many that
 * reading and writing o once a block counts little. Multiples of STEP. */
static int32_t window_for(int32_t vectors) { return vectors == 1 ? MOST_KEYS : vectors <= 4 ? 640 : 320; }

static passage_layout layout_of(int32_t d_qk, int32_t rows) {
  const uint64_t vectors = (uint64_t)(rows + 15) / 16, lanes = vectors * 16,
                 window = (uint64_t)window_for((int32_t)vectors);
  passage_layout at;
  at.q = fhk_align(sizeof(passage));
  at.o = at.q + vectors * (uint64_t)(d_qk / CHUNK) * TILE_BYTES;
  at.p = at.o + vectors * O_TILES * TILE_BYTES;
  at.s = at.p + vectors * (window / PRODUCT_KEYS) * HALVES * TILE_BYTES;
  at.stage = at.s + window * lanes * sizeof(float);
  at.max = at.stage + 2 * STAGE_BYTES;
  at.reference = at.max + fhk_part(lanes, sizeof(float));
  at.sum = at.reference + fhk_part(lanes, sizeof(float));
  at.lane_bit = at.sum + fhk_part(lanes, sizeof(float));
  at.lane_half = at.lane_bit + fhk_part(lanes, sizeof(uint32_t));
  at.block = at.lane_half + fhk_part(vectors, sizeof(int32_t));
  at.total = at.block + fhk_part(1, sizeof(row_block));
  return at;
}

static float *floats(char *at) { return (float *)(void *)at; }

static passage *make_passage(const fh_call *call, int32_t rows, void *memory) {
  const passage_layout at = layout_of(call->d_qk, rows);
  char *base = memory;
  passage *t = memory;
  *t = (passage){.rows = rows,
                 .vectors = (rows + 15) / 16,
                 .twin = rows <= TWIN_ROWS,
                 .d_qk = call->d_qk,
                 .window = window_for((rows + 15) / 16),
                 .kv = call->kv,
                 .kv_stride = call->kv_stride,
                 .s_kv = (int32_t)call->s_kv,
                 .scale = fminf(call->sm_scale * 1.44269504f, FLT_MAX),
                 .q = base + at.q,
                 .o = floats(base + at.o),
                 .p = base + at.p,
                 .s = floats(base + at.s),
                 .stage = base + at.stage,
                 .max = floats(base + at.max),
                 .reference = floats(base + at.reference),
                 .sum = floats(base + at.sum),
                 .lane_bit = (uint32_t *)(void *)(base + at.lane_bit),
                 .lane_half = (int32_t *)(void *)(base + at.lane_half),
                 .block = (row_block *)(void *)(base + at.block)};
  t->block->keys = 0;
  for (int32_t r = 0; r < 16 * t->vectors; r++) {
    t->max[r] = t->reference[r] = -INFINITY;
    t->sum[r] = 0;
  }
  return t;
}

/* 16 rows of 16 words, row `r` at from + r * stride words, to 16 columns side by side. */
INLINE void transpose(const vi *in, char *to) {
  vi a[16], b[16];
  UNROLL for (int i = 0; i < 8; i++) {
    a[2 * i] = _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  /* b[4 i + j], four words at 4 L: column 4 L + j of rows 4 i .. 4 i + 3. */
  UNROLL for (int j = 0; j < 4; j++) {
    const vi l = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88), m = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
    const vi n = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd), k = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
    vstore_bits(to + j * 64, _mm512_shuffle_i32x4(l, m, 0x88));
    vstore_bits(to + (4 + j) * 64, _mm512_shuffle_i32x4(n, k, 0x88));
    vstore_bits(to + (8 + j) * 64, _mm512_shuffle_i32x4(l, m, 0xdd));
    vstore_bits(to + (12 + j) * 64, _mm512_shuffle_i32x4(n, k, 0xdd));
  }
}

/* Lays q out as operand B; q[r] is row r's, NULL for a row of zeros. */
static void pack_q(passage *t, const uint16_t *const *q) {
  char *to = t->q;
  for (int32_t v = 0; v < t->vectors; v++)
    for (int32_t d = 0; d < t->d_qk; d += CHUNK, to += TILE_BYTES) {
      vi in[16];
      UNROLL for (int i = 0; i < 16; i++) {
        const uint16_t *row = q[16 * v + i];
        in[i] = row ? vload_bits(row + d) : _mm512_setzero_si512();
      }
      transpose(in, to);
    }
}

/* ---- The rows that come next ------------------------------------------------------------------------------------- */

/* Brings `lines` lines of them into the second-level cache. */
INLINE void fetch_ahead(passage *t, int lines) {
  const int32_t *ahead = t->ahead;
  int64_t left = t->ahead_count;
  int32_t offset = t->ahead_offset;
  while (lines > 0 && left > 0) {
    if (*ahead >= 0 && *ahead < t->s_kv) {
      const char *row = (const char *)(t->kv + *ahead * t->kv_stride);
      for (; lines > 0 && offset < 2 * t->d_qk; offset += 64, lines--) __builtin_prefetch(row + offset, 0, 2);
      if (offset < 2 * t->d_qk) break;
    }
    offset = 0;
    ahead++;
    left--;
  }
  t->ahead = ahead;
  t->ahead_count = left;
  t->ahead_offset = offset;
}

/* ---- Logits ------------------------------------------------------------------------------------------------------ */

/* Two chunks of `count` rows, those of the second STAGE_BYTES / 2 behind those of the first. Two, since
 * neighbouring lines of a row come faster than lines of different rows: 1.8 cycles a line instead of 3. */
INLINE void stage_rows(const int count, char *to, const uint16_t *const *row, int32_t d) {
  UNROLL for (int i = 0; i < count; i++) {
    vstore_bits(to + i * 64, vload_bits(row[i] + d));
    vstore_bits(to + STAGE_BYTES / 2 + i * 64, vload_bits(row[i] + d + CHUNK));
  }
}

INLINE void store_logits(float *s, int64_t first, int64_t second, int64_t third, int64_t stride) {
  TILE_STORE_TO(0, s, stride);
  TILE_STORE_TO(1, s + first, stride);
  TILE_STORE_TO(2, s + second, stride);
  TILE_STORE_TO(3, s + third, stride);
}

INLINE void clear_sums(void) {
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
}

/* One vector of rows against all KV rows, 64 at a time. Between two products stands the bringing together of a part
 * of what comes next, so that the tile unit and the vector unit work at the same time. */
static void logits_4x1(passage *t, const row_block *b, int32_t keys, int32_t v) {
  const char *const q_first = t->q + (int64_t)v * (t->d_qk / CHUNK) * TILE_BYTES;
  const int64_t stride = (int64_t)t->vectors * 64;
  const uint16_t *const *row = b->row, *const *next = row;
  char *stage = t->stage, *other = t->stage + STAGE_BYTES;
  stage_rows(STEP, stage, row, 0);
  for (int32_t k = 0; k < keys; k += STEP, row += STEP) {
    const char *q = q_first;
    clear_sums();
    for (int32_t d = 0; d < t->d_qk; d += 2 * CHUNK, q += 2 * TILE_BYTES) {
      int32_t then = d + 2 * CHUNK;
      next = row;
      if (then == t->d_qk) {
        then = 0;
        next = row + STEP;
      }
      const char *second = stage + STAGE_BYTES / 2;
      TILE_LOAD(6, q);
      TILE_LOAD(4, stage);
      TILE_PRODUCT(0, 4, 6);
      stage_rows(8, other, next, then);
      TILE_LOAD(5, stage + TILE_BYTES);
      TILE_PRODUCT(1, 5, 6);
      stage_rows(8, other + 8 * 64, next + 8, then);
      TILE_LOAD(4, stage + 2 * TILE_BYTES);
      TILE_PRODUCT(2, 4, 6);
      stage_rows(8, other + 16 * 64, next + 16, then);
      TILE_LOAD(5, stage + 3 * TILE_BYTES);
      TILE_PRODUCT(3, 5, 6);
      stage_rows(8, other + 24 * 64, next + 24, then);
      TILE_LOAD(7, q + TILE_BYTES);
      TILE_LOAD(4, second);
      TILE_PRODUCT(0, 4, 7);
      stage_rows(8, other + 32 * 64, next + 32, then);
      TILE_LOAD(5, second + TILE_BYTES);
      TILE_PRODUCT(1, 5, 7);
      stage_rows(8, other + 40 * 64, next + 40, then);
      TILE_LOAD(4, second + 2 * TILE_BYTES);
      TILE_PRODUCT(2, 4, 7);
      stage_rows(8, other + 48 * 64, next + 48, then);
      TILE_LOAD(5, second + 3 * TILE_BYTES);
      TILE_PRODUCT(3, 5, 7);
      stage_rows(8, other + 56 * 64, next + 56, then);
      char *swap = stage;
      stage = other;
      other = swap;
    }
    store_logits(t->s + k * (stride / 4) + 16 * v, 4 * stride, 8 * stride, 12 * stride, stride);
  }
}

/* Two vectors of rows against all KV rows, 32 at a time. */
static void logits_2x2(passage *t, const row_block *b, int32_t keys, int32_t v) {
  const int64_t stride = (int64_t)t->vectors * 64, apart = (int64_t)(t->d_qk / CHUNK) * TILE_BYTES;
  const char *const q_first = t->q + v * apart;
  const uint16_t *const *row = b->row, *const *next = row;
  char *stage = t->stage, *other = t->stage + STAGE_BYTES;
  stage_rows(32, stage, row, 0);
  for (int32_t k = 0; k < keys; k += 32, row += 32) {
    const char *q = q_first;
    clear_sums();
    for (int32_t d = 0; d < t->d_qk; d += 2 * CHUNK, q += 2 * TILE_BYTES) {
      int32_t then = d + 2 * CHUNK;
      next = row;
      if (then == t->d_qk) {
        then = 0;
        next = row + 32;
      }
      const char *second = stage + STAGE_BYTES / 2;
      TILE_LOAD(6, q);
      TILE_LOAD(4, stage);
      TILE_PRODUCT(0, 4, 6);
      stage_rows(4, other, next, then);
      TILE_LOAD(5, stage + TILE_BYTES);
      TILE_PRODUCT(1, 5, 6);
      stage_rows(4, other + 4 * 64, next + 4, then);
      TILE_LOAD(7, q + apart);
      TILE_PRODUCT(2, 4, 7);
      stage_rows(4, other + 8 * 64, next + 8, then);
      TILE_PRODUCT(3, 5, 7);
      stage_rows(4, other + 12 * 64, next + 12, then);
      TILE_LOAD(6, q + TILE_BYTES);
      TILE_LOAD(4, second);
      TILE_PRODUCT(0, 4, 6);
      stage_rows(4, other + 16 * 64, next + 16, then);
      TILE_LOAD(5, second + TILE_BYTES);
      TILE_PRODUCT(1, 5, 6);
      stage_rows(4, other + 20 * 64, next + 20, then);
      TILE_LOAD(7, q + apart + TILE_BYTES);
      TILE_PRODUCT(2, 4, 7);
      stage_rows(4, other + 24 * 64, next + 24, then);
      TILE_PRODUCT(3, 5, 7);
      stage_rows(4, other + 28 * 64, next + 28, then);
      char *swap = stage;
      stage = other;
      other = swap;
    }
    store_logits(t->s + k * (stride / 4) + 16 * v, 4 * stride, 16, 16 + 4 * stride, stride);
  }
}

/* Logits of the block. */
static void logits(passage *t, const row_block *b, int32_t keys) {
  int32_t v = 0;
  for (; v + 1 < t->vectors; v += 2) logits_2x2(t, b, keys, v);
  if (v < t->vectors) logits_4x1(t, b, keys, v);
  t->executed += (uint64_t)keys * (uint64_t)(t->twin ? TWIN_ROWS : 16 * t->vectors) * (uint64_t)t->d_qk;
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* The lanes of vector v that key k counts for. */
INLINE __mmask16 members(const passage *t, const row_block *b, int32_t v, int32_t k, vi bits) {
  return _mm512_test_epi32_mask(_mm512_set1_epi32((int)b->member[k][t->lane_half[v]]), bits);
}

/* o of vector v times alpha. */
static void rescale(passage *t, int32_t v, const float *alpha) {
  float *o = t->o + (int64_t)v * O_TILES * TILE_FLOATS;
  for (int32_t i = 0; i < O_TILES; i++, o += TILE_FLOATS)
    for (int r = 0; r < 16; r++) vstore(o + 16 * r, vmul(vload(o + 16 * r), vset1(alpha[r])));
}

/* The upper halves of a and b, a's lower: a pair for the tile unit. */
INLINE vi pair(vi a, vi b) {
  return _mm512_or_si512(_mm512_srli_epi32(a, 16), _mm512_and_si512(b, _mm512_set1_epi32((int)0xffff0000u)));
}

INLINE void softmax(const int masked, const int twin, passage *t, const row_block *b, int32_t keys, int32_t v) {
  const int32_t stride = 16 * t->vectors;
  const vf scale = vset1(t->scale);
  const vi bits = vload_bits(t->lane_bit + 16 * v);
  float *s = t->s + 16 * v;
  for (int32_t k = b->keys; k < keys; k++) vstore(s + (int64_t)k * stride, vset1(-INFINITY));

  vf part[4];
  UNROLL for (int i = 0; i < 4; i++) part[i] = vset1(-INFINITY);
  for (int32_t k = 0; k < keys; k += 4) UNROLL for (int i = 0; i < 4; i++) {
      const vf x = vload(s + (int64_t)(k + i) * stride);
      part[i] = masked ? _mm512_mask_max_ps(part[i], members(t, b, v, k + i, bits), part[i], x) : vmax(part[i], x);
    }
  const vf max = vmax(vload(t->max + 16 * v), vmax(vmax(part[0], part[1]), vmax(part[2], part[3])));
  vstore(t->max + 16 * v, max);

  vf reference = vload(t->reference + 16 * v), sum = vload(t->sum + 16 * v);
  const __mmask16 raised = _mm512_cmp_ps_mask(max, reference, _CMP_GT_OQ) &
                           (_mm512_cmp_ps_mask(vmul(vsub(max, reference), scale), vset1(SLACK), _CMP_GT_OQ) |
                            _mm512_cmp_ps_mask(reference, vset1(-INFINITY), _CMP_EQ_OQ));
  if (raised) {
    float alpha[16];
    const vf a = _mm512_mask_blend_ps(raised, vset1(1), vexp2(vmul(vsub(reference, max), scale)));
    reference = _mm512_mask_mov_ps(reference, raised, max);
    vstore(t->reference + 16 * v, reference);
    sum = vmul(sum, a);
    vstore(alpha, a);
    if (t->begun) rescale(t, v, alpha);
  }
  /* A row that no key counts for so far: anything finite will do. */
  const vf base = _mm512_mask_mov_ps(reference, _mm512_cmp_ps_mask(reference, vset1(-INFINITY), _CMP_EQ_OQ), vset1(0));

  char *to = t->p + (int64_t)v * (t->window / PRODUCT_KEYS) * HALVES * TILE_BYTES;
  const vi upper = _mm512_set1_epi32((int)0xffff0000u), half = _mm512_set1_epi32(0x8000);
  for (int32_t k = 0; k < keys; k += PRODUCT_KEYS, to += HALVES * TILE_BYTES) {
    vi high[16], low[16];
    /* Sums of a few keys each: many small numbers added to a large one would all be rounded the same way. */
    UNROLL for (int i = 0; i < 4; i++) part[i] = vset1(0);
    UNROLL for (int i = 0; i < 16; i++) {
      vi h[2], l[2];
      UNROLL for (int j = 0; j < 2; j++) {
        vf p = vexp2(vmul(vsub(vload(s + (int64_t)(k + 2 * i + j) * stride), base), scale));
        if (masked) p = _mm512_maskz_mov_ps(members(t, b, v, k + 2 * i + j, bits), p);
        part[2 * (i % 2) + j] = vadd(part[2 * (i % 2) + j], p);
        h[j] = _mm512_and_si512(_mm512_castps_si512(p), upper);
        l[j] = _mm512_add_epi32(_mm512_castps_si512(vsub(p, _mm512_castsi512_ps(h[j]))), half);
      }
      high[i] = pair(h[0], h[1]);
      low[i] = pair(l[0], l[1]);
      if (twin) high[i] = _mm512_mask_mov_epi32(high[i], 0xff00, low[i]);
    }
    sum = vadd(sum, vadd(vadd(part[0], part[1]), vadd(part[2], part[3])));
    transpose(high, to);
    if (!twin) transpose(low, to + TILE_BYTES);
  }
  vstore(t->sum + 16 * v, sum);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Columns d .. d + 31 of `count` pairs of rows, interleaved: columns 0..3, 8..11, .. of each 32 in one tile, the
 * others in the next. */
INLINE void stage_pairs(const int count, char *to, const uint16_t *const *row, int32_t d) {
  UNROLL for (int i = 0; i < count; i++) {
    const vi a = vload_bits(row[2 * i] + d), b = vload_bits(row[2 * i + 1] + d);
    vstore_bits(to + i * 64, _mm512_unpacklo_epi16(a, b));
    vstore_bits(to + TILE_BYTES + i * 64, _mm512_unpackhi_epi16(a, b));
  }
}

/* The same of two chunks: four tiles. */
INLINE void stage_pairs_2(const int count, char *to, const uint16_t *const *row, int32_t d) {
  UNROLL for (int i = 0; i < count; i++) {
    stage_pairs(1, to + i * 64, row + 2 * i, d);
    stage_pairs(1, to + 2 * TILE_BYTES + i * 64, row + 2 * i, d + CHUNK);
  }
}

INLINE void load_sums(const passage *t, const float *o, int64_t first, int64_t second, int64_t third) {
  if (!t->begun) {
    clear_sums();
    return;
  }
  TILE_LOAD(0, o);
  TILE_LOAD(1, o + first);
  TILE_LOAD(2, o + second);
  TILE_LOAD(3, o + third);
}

INLINE void store_sums(float *o, int64_t first, int64_t second, int64_t third) {
  TILE_STORE(0, o);
  TILE_STORE(1, o + first);
  TILE_STORE(2, o + second);
  TILE_STORE(3, o + third);
}

/* Two vectors of rows and the two tiles of chunk c; all KV rows, 64 at a time. */
static void values_2x2(passage *t, const row_block *b, int32_t keys, int32_t v, int32_t c) {
  const int64_t apart = (int64_t)(t->window / PRODUCT_KEYS) * HALVES * TILE_BYTES, below = O_TILES * TILE_FLOATS;
  const char *p = t->p + v * apart;
  float *o = t->o + (v * O_TILES + 2 * c) * TILE_FLOATS;
  const uint16_t *const *next = b->row;
  char *stage = t->stage, *other = t->stage + STAGE_BYTES;
  const int32_t d = c * CHUNK;
  stage_pairs(16, stage, next, d);
  stage_pairs(16, stage + 2 * TILE_BYTES, next + 32, d);
  load_sums(t, o, TILE_FLOATS, below, below + TILE_FLOATS);
  for (int32_t k = 0; k < keys; k += STEP) {
    next += STEP;
    for (int32_t half = 0; half < 2; half++, p += HALVES * TILE_BYTES) {
      const char *pairs = stage + half * 2 * TILE_BYTES;
      char *to = other + half * 2 * TILE_BYTES;
      const uint16_t *const *from = next + half * 32;
      TILE_LOAD(6, pairs);
      TILE_LOAD(4, p);
      TILE_PRODUCT(0, 4, 6);
      stage_pairs(2, to, from, d);
      TILE_LOAD(7, pairs + TILE_BYTES);
      TILE_PRODUCT(1, 4, 7);
      stage_pairs(2, to + 2 * 64, from + 4, d);
      TILE_LOAD(5, p + apart);
      TILE_PRODUCT(2, 5, 6);
      stage_pairs(2, to + 4 * 64, from + 8, d);
      TILE_PRODUCT(3, 5, 7);
      stage_pairs(2, to + 6 * 64, from + 12, d);
      TILE_LOAD(4, p + TILE_BYTES);
      TILE_PRODUCT(0, 4, 6);
      stage_pairs(2, to + 8 * 64, from + 16, d);
      TILE_PRODUCT(1, 4, 7);
      stage_pairs(2, to + 10 * 64, from + 20, d);
      TILE_LOAD(5, p + apart + TILE_BYTES);
      TILE_PRODUCT(2, 5, 6);
      stage_pairs(2, to + 12 * 64, from + 24, d);
      TILE_PRODUCT(3, 5, 7);
      stage_pairs(2, to + 14 * 64, from + 28, d);
    }
    fetch_ahead(t, 16);
    char *swap = stage;
    stage = other;
    other = swap;
  }
  store_sums(o, TILE_FLOATS, below, below + TILE_FLOATS);
}

/* One vector of rows, the four tiles of two chunks and 32 KV rows, while the same chunks of others are brought
 * together. Between two products of the same sums, which wait for each other, stand three others. */
INLINE void values_step(const int low, const char *p, const char *pairs, char *to, const uint16_t *const *from,
                        int32_t d) {
  UNROLL for (int half = 0; half <= low; half++) {
    const int count = low ? 2 : 4;
    TILE_LOAD(4, p + half * TILE_BYTES);
    TILE_LOAD(6, pairs);
    TILE_PRODUCT(0, 4, 6);
    stage_pairs_2(count, to, from, d);
    TILE_LOAD(7, pairs + TILE_BYTES);
    TILE_PRODUCT(1, 4, 7);
    stage_pairs_2(count, to + count * 64, from + 2 * count, d);
    TILE_LOAD(6, pairs + 2 * TILE_BYTES);
    TILE_PRODUCT(2, 4, 6);
    stage_pairs_2(count, to + 2 * count * 64, from + 4 * count, d);
    TILE_LOAD(7, pairs + 3 * TILE_BYTES);
    TILE_PRODUCT(3, 4, 7);
    stage_pairs_2(count, to + 3 * count * 64, from + 6 * count, d);
    to += 8 * 64;
    from += 16;
  }
}

/* One vector of rows and the four tiles of chunks c and c + 1; all KV rows, 64 at a time. */
INLINE void values_1x4(const int low, passage *t, const row_block *b, int32_t keys, int32_t v, int32_t c) {
  const char *p = t->p + (int64_t)v * (t->window / PRODUCT_KEYS) * HALVES * TILE_BYTES;
  float *o = t->o + (v * O_TILES + 2 * c) * TILE_FLOATS;
  const uint16_t *const *next = b->row;
  char *stage = t->stage, *other = t->stage + STAGE_BYTES;
  const int32_t d = c * CHUNK;
  stage_pairs_2(16, stage, next, d);
  stage_pairs_2(16, stage + 4 * TILE_BYTES, next + 32, d);
  load_sums(t, o, TILE_FLOATS, 2 * TILE_FLOATS, 3 * TILE_FLOATS);
  for (int32_t k = 0; k < keys; k += STEP, p += 2 * HALVES * TILE_BYTES) {
    next += STEP;
    values_step(low, p, stage, other, next, d);
    values_step(low, p + HALVES * TILE_BYTES, stage + 4 * TILE_BYTES, other + 4 * TILE_BYTES, next + 32, d);
    fetch_ahead(t, 128);
    char *swap = stage;
    stage = other;
    other = swap;
  }
  store_sums(o, TILE_FLOATS, 2 * TILE_FLOATS, 3 * TILE_FLOATS);
}

static void values(passage *t, const row_block *b, int32_t keys) {
  for (int32_t c = 0; c < D_V / CHUNK; c += 2) {
    int32_t v = 0;
    for (; v + 1 < t->vectors; v += 2) {
      values_2x2(t, b, keys, v, c);
      values_2x2(t, b, keys, v, c + 1);
    }
    if (v == t->vectors) continue;
    if (t->twin) values_1x4(0, t, b, keys, v, c);
    else values_1x4(1, t, b, keys, v, c);
  }
  t->executed += (uint64_t)keys * (uint64_t)(t->twin ? TWIN_ROWS : 16 * t->vectors) * D_V;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* Whether no real row's logit of key k is finite: then the KV row holds NaN or Inf, or its products overflow; or no
 * row of q is finite, and it does not matter. */
static int spoils(const passage *t, int32_t k) {
  const float *s = t->s + (int64_t)k * 16 * t->vectors;
  for (int32_t r = 0; r < t->rows; r++)
    if (isfinite(s[r])) return 0;
  return 1;
}

/* Takes KV rows that hold NaN or Inf out of the block. */
static void leave_out_spoilt(passage *t, row_block *b) {
  for (int32_t k = 0; k < b->keys; k++) {
    if (!spoils(t, k)) continue;
    t->spoilt |= (uint64_t)b->member[k][1] << 32 | b->member[k][0];
    b->member[k][0] = b->member[k][1] = 0;
    b->row[k] = zero_row;
  }
}

/* The block's KV rows; `count` of those at `ahead` come next. */
static void compute(passage *t, const int32_t *ahead, int64_t count) {
  row_block *b = t->block;
  if (b->keys == 0) return;
  const int32_t keys = (b->keys + STEP - 1) / STEP * STEP;
  for (int32_t k = b->keys; k < keys; k++) b->member[k][0] = b->member[k][1] = 0;
  for (int32_t k = b->keys; k < keys + STEP; k++) b->row[k] = zero_row;
  t->ahead = ahead;
  t->ahead_count = count;
  t->ahead_offset = 0;
  logits(t, b, keys);
  if (t->masked) leave_out_spoilt(t, b);
  for (int32_t v = 0; v < t->vectors; v++) {
    if (t->masked && t->twin) softmax(1, 1, t, b, keys, v);
    else if (t->masked) softmax(1, 0, t, b, keys, v);
    else if (t->twin) softmax(0, 1, t, b, keys, v);
    else softmax(0, 0, t, b, keys, v);
  }
  values(t, b, keys);
  t->begun = 1;
  b->keys = 0;
}

/* Adds a KV row, for which there is room; member is looked at where masked. Returns whether the block is full now. */
INLINE int add_row(passage *t, const uint16_t *row, uint64_t member) {
  row_block *b = t->block;
  b->row[b->keys] = row;
  b->member[b->keys][0] = (uint32_t)member;
  b->member[b->keys][1] = (uint32_t)(member >> 32);
  return ++b->keys == t->window;
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

/* Row r of o times factor, rounded to bf16. */
static void store_row(const passage *t, int32_t r, float factor, uint16_t *out) {
  const float *o = t->o + (int64_t)(r / 16) * O_TILES * TILE_FLOATS + 16 * (r % 16);
  const vf f = vset1(factor);
  const vi order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  for (int32_t c = 0; c < D_V; c += CHUNK, o += 2 * TILE_FLOATS) {
    vf x[2];
    UNROLL for (int i = 0; i < 2; i++) {
      x[i] = vload(o + i * TILE_FLOATS);
      if (t->twin) x[i] = vadd(x[i], vload(o + i * TILE_FLOATS + 16 * TWIN_ROWS));
      x[i] = vmul(x[i], f);
    }
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(vround_bf16(x[0]), 16));
    const __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(vround_bf16(x[1]), 16));
    const vi both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    vstore_bits(out + c, _mm512_permutexvar_epi64(order, both));
  }
}

/* Row r is head h of query s; keys: whether it has any. */
static void finish_row(const passage *t, const fh_call *call, int32_t r, int64_t s, int32_t h, int keys) {
  uint16_t *out = (uint16_t *)call->out + s * call->out_stride_s + h * call->out_stride_h;
  const double reference = (double)t->reference[r] * (double)call->sm_scale, sum = (double)t->sum[r];
  if (keys) {
    const double sink = call->attn_sink ? exp((double)call->attn_sink[h] - reference) : 0;
    store_row(t, r, (float)(1 / (sum + sink)), out);
  } else {
    memset(out, 0, D_V * sizeof *out);
  }
  if (call->lse) call->lse[s * call->lse_stride + h] = keys ? (float)(reference + log(sum)) : INFINITY;
  if (call->max_logits)
    call->max_logits[s * call->max_logits_stride + h] = (float)((double)t->max[r] * (double)call->sm_scale);
}

/* ---- One query --------------------------------------------------------------------------------------------------- */

uint64_t fhk_amx_query_bytes(const fh_call *call, int32_t rows) { return layout_of(call->d_qk, rows).total; }

static passage *start_query(const fh_call *call, int32_t rows, int64_t s, void *memory) {
  passage *t = make_passage(call, rows, memory);
  const uint16_t *q[MOST_ROWS] = {NULL};
  for (int32_t h = 0; h < call->h_q; h++) {
    q[h] = call->q + s * call->q_stride_s + h * call->q_stride_h;
    if (t->twin) q[h + TWIN_ROWS] = q[h];
  }
  pack_q(t, q);
  return t;
}

static uint64_t finish_query(passage *t, const fh_call *call, int64_t s, int64_t keys) {
  for (int32_t h = 0; h < call->h_q; h++) finish_row(t, call, h, s, h, keys > 0);
  return 2 * t->executed;
}

uint64_t fhk_amx_query(const fh_call *call, int32_t rows, int64_t s, int64_t then, void *memory, int64_t *keys) {
  const int32_t *list = fhk_list(call, s), *next = then < call->s_q ? fhk_list(call, then) : NULL;
  const int64_t length = fhk_list_length(call, s), next_count = next ? fhk_list_length(call, then) : 0;
  passage *t = start_query(call, rows, s, memory);
  tiles_begin();
  for (int64_t j = 0; j < length; j++) {
    if (list[j] < 0 || list[j] >= call->s_kv) continue;
    ++*keys;
    if (add_row(t, call->kv + list[j] * call->kv_stride, 0))
      compute(t, list + j + 1, fhk_clamp(length - j - 1, 0, t->window));
  }
  compute(t, next, next_count);
  const uint64_t executed = finish_query(t, call, s, *keys);
  tiles_end();
  return executed;
}

/* ---- A group ----------------------------------------------------------------------------------------------------- */

/* A group may be shorter than others, and one vector of rows takes longer blocks than several. */
uint64_t fhk_amx_group_bytes(const fh_call *call, int32_t group) {
  const uint64_t full = layout_of(call->d_qk, call->h_q * group).total, least = layout_of(call->d_qk, 1).total;
  return full > least ? full : least;
}

/* Query i of the group alone, over its keys in the plan's order. */
static uint64_t one_of_group(const fh_call *call, const fhk_group *g, int32_t i, void *memory) {
  int64_t keys = 0;
  passage *t = start_query(call, call->h_q, g->first + i, memory);
  for (int64_t e = 0; e < g->entries; e++) {
    if (!(g->member[e] >> i & 1) || g->token[e] < 0 || g->token[e] >= call->s_kv) continue;
    keys++;
    if (add_row(t, call->kv + g->token[e] * call->kv_stride, 0)) compute(t, NULL, 0);
  }
  compute(t, NULL, 0);
  return finish_query(t, call, g->first + i, keys);
}

/* Rows side by side, query by query. */
static passage *start_group(const fh_call *call, const fhk_group *g, void *memory) {
  const int32_t rows = g->queries * call->h_q;
  passage *t = make_passage(call, rows, memory);
  const uint16_t *q[MOST_ROWS] = {NULL};
  t->masked = 1;
  for (int32_t r = 0; r < 16 * t->vectors; r++) {
    const int32_t row = t->twin ? r % TWIN_ROWS : r, i = row / call->h_q;
    t->lane_bit[r] = row < rows ? (uint32_t)1 << i % 32 : 0;
    if (r % 16 == 0)
      t->lane_half[r / 16] = i / 32; /* of the whole vector: only with one head are there queries past 32 */
    if (row < rows) q[r] = call->q + (g->first + i) * call->q_stride_s + row % call->h_q * call->q_stride_h;
  }
  pack_q(t, q);
  return t;
}

uint64_t fhk_amx_group(const fh_call *call, const fhk_group *g, void *memory) {
  uint64_t listing = 0; /* queries that have a key */
  passage *t = start_group(call, g, memory);
  tiles_begin();
  for (int64_t e = 0; e < g->entries; e++) {
    if (g->token[e] < 0 || g->token[e] >= call->s_kv) continue;
    listing |= g->member[e];
    if (add_row(t, call->kv + g->token[e] * call->kv_stride, g->member[e]))
      compute(t, g->token + e + 1, fhk_clamp(g->entries - e - 1, 0, t->window));
  }
  compute(t, NULL, 0);
  for (int32_t r = 0; r < t->rows; r++) {
    const int32_t i = r / call->h_q;
    finish_row(t, call, r, g->first + i, r % call->h_q, listing >> i & 1);
  }
  uint64_t executed = 2 * t->executed;
  const uint64_t again = t->spoilt; /* t's memory is the next one's too */
  for (int32_t i = 0; i < g->queries; i++)
    if (again >> i & 1) executed += one_of_group(call, g, i, memory);
  tiles_end();
  return executed;
}

/* ---- Does it pay? ------------------------------------------------------------------------------------------------ */

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

enum { PRODUCTS = 256, PRODUCT_FMAS = 16 * 16 * 32 / 16, FMAS = 8192, CHAINS = 16, TRIES = 10 };

static int64_t time_tiles(void) {
  const int64_t start = now_ns();
  for (int i = 0; i < PRODUCTS; i += 4) {
    TILE_PRODUCT(0, 4, 6);
    TILE_PRODUCT(1, 4, 7);
    TILE_PRODUCT(2, 5, 6);
    TILE_PRODUCT(3, 5, 7);
  }
  return now_ns() - start;
}

static int64_t time_fmas(void) {
  vf sum[CHAINS], x = vset1(0);
  UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = x;
  __asm__ volatile("" : "+v"(x)); /* keeps the compiler from knowing what x is */
  const int64_t start = now_ns();
  for (int step = 0; step < FMAS; step += CHAINS) UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vfma(x, x, sum[i]);
  UNROLL for (int i = 0; i < CHAINS; i++) __asm__ volatile("" : : "v"(sum[i]));
  return now_ns() - start;
}

int32_t fhk_amx_pays(void) {
  int64_t tiles = INT64_MAX, fmas = INT64_MAX;
  tiles_begin();
  for (int i = 0; i < TRIES; i++) {
    const int64_t a = time_tiles(), b = time_fmas();
    if (a < tiles) tiles = a;
    if (b < fmas) fmas = b;
  }
  tiles_end();
  /* Time of the same multiply-adds; twice as fast at least, since the tile unit needs its operands laid out. */
  return (double)tiles / (PRODUCTS * PRODUCT_FMAS) * 2 < (double)fmas / FMAS;
}

#else
int32_t fhk_amx_built(void) { return 0; }
int32_t fhk_amx_pays(void) { return 0; }
uint64_t fhk_amx_query_bytes(const fh_call *call, int32_t rows) { return (void)call, (void)rows, 0; }
uint64_t fhk_amx_group_bytes(const fh_call *call, int32_t group) { return (void)call, (void)group, 0; }
uint64_t fhk_amx_query(const fh_call *call, int32_t rows, int64_t s, int64_t then, void *memory, int64_t *keys) {
  return (void)call, (void)rows, (void)s, (void)then, (void)memory, (void)keys, 0;
}
uint64_t fhk_amx_group(const fh_call *call, const fhk_group *group, void *memory) {
  return (void)call, (void)group, (void)memory, 0;
}
#endif
