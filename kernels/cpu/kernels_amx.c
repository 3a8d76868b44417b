/*
 * Attention on the tile unit: the instruction set `amx` of the paths padded, gather and packed. Calls and groups with
 * up to 8 rows go to few_amx.c.
 *
 * Up to 128 rows (a query's heads, or the heads of a group's queries) pass over a sequence of KV rows, block by block:
 *
 *   logits   s[key][row] = sum over d of kv[key][d] * q[d][row]: 16 KV rows are operand A as they come from memory, 64
 *            bytes of each at a time, brought together in a tile; q is operand B, laid out once a query or group
 *   softmax  every 32 keys, rows in the lanes of a vector, so nothing is done across lanes; weights that do not count
 *            are 0. A key after each product of the next 32 keys' logits, so that both units work
 *   values   o[row][c] += sum over keys of p[row][key] * v[key][c]: p is operand A, transposed; pairs of KV rows are
 *            operand B, interleaved 64 bytes at a time
 *
 * KV rows are read twice, from the second-level cache, and only ever copied into a few tiles that stay in the first: a
 * tile's worth of stores that leave the first level takes as long as four products. q and p come from the second-level
 * cache each time and do not enter the first.
 *
 * p is fp32 cut into two bf16, p = high + low within 2^-17: one bf16 is out of FlashMLA's tolerances where outputs are
 * small against the values.
 *
 * p is exp(logit - reference), and a row's first largest logit is its reference. Where a later one comes to lie SLACK
 * above it, the reference is raised, o scaled, and the block's weights are computed again.
 *
 * packed multiplies every row of the group with every entry of the union and sets the weights of those that are not
 * members to 0. That does not undo a NaN or Inf in a value, so a KV row with one is left out; its members are computed
 * again, one by one.
 */
#include "cpu/amx.h"
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <time.h>

#include "cpu/amx_rows.h"

int32_t fhk_amx_built(void) { return 1; }

enum {
  MOST_ROWS = 128,
  STEP = 64,         /* what a block's keys are rounded up to: KV rows that are brought together at a time for values */
  PRODUCT_KEYS = 32, /* KV rows of one product of the values, and of a step of the softmax */
  HALVES = 2,        /* bf16 that p is cut into */
  VECTORS = 4,       /* vectors of rows that the logits of 16 KV rows are computed for at a time */
  O_TILES = D_V / 16
};

/* The KV rows of a block, and room for those that are brought together in vain, past the last. */
typedef struct row_block {
  int32_t keys;
  const uint16_t *row[MOST_KEYS + STEP];
  uint32_t member[MOST_KEYS][2]; /* who chose it; only where masked */
} row_block;

/* `rows` rows and their passage over KV rows. */
typedef struct passage {
  int32_t rows, vectors; /* vectors of 16 rows */
  int32_t masked;
  int32_t d_qk;
  int32_t window;                            /* KV rows of a block */
  int32_t begun;                             /* o holds something */
  float scale;                               /* sm_scale * log2(e) */
  uint64_t executed;                         /* multiply-adds */
  int32_t late;                              /* see softmax */
  uint64_t spoilt;                           /* queries that list a KV row with NaN or Inf; only where masked */
  char *q;                                   /* tiles [vector][chunk] of d_qk / CHUNK chunks */
  float *o;                                  /* tiles [vector][O_TILES] */
  char *p;                                   /* tiles [vector][window / PRODUCT_KEYS][half] */
  float *s;                                  /* tiles [4][vectors]: the logits of two steps of the softmax */
  char *pairs;                               /* [2][half][PRODUCT_KEYS / 2] vectors: see weigh */
  char *stage, *other;                       /* STAGE_BYTES each: what is multiplied, and what is being staged */
  float *max, *reference, *sum, *sum_before; /* [16 * vectors]; before scaling */
  float part[16];                            /* of the sum, of the keys of a step */
  uint32_t *lane_bit;                        /* [16 * vectors] the bit of the lane's query in member[..][lane_half] */
  int32_t *lane_half;                        /* [vectors] */
  row_block *block;
} passage;

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

typedef struct passage_layout {
  uint64_t q, o, p, s, pairs, stage, max, reference, sum, sum_before, lane_bit, lane_half, block, total;
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
  at.pairs = at.s + 4 * vectors * TILE_BYTES;
  at.stage = at.pairs + 2 * HALVES * TILE_BYTES;
  at.max = at.stage + 2 * STAGE_BYTES;
  at.reference = at.max + fhk_part(lanes, sizeof(float));
  at.sum = at.reference + fhk_part(lanes, sizeof(float));
  at.sum_before = at.sum + fhk_part(lanes, sizeof(float));
  at.lane_bit = at.sum_before + fhk_part(lanes, sizeof(float));
  at.lane_half = at.lane_bit + fhk_part(lanes, sizeof(uint32_t));
  at.block = at.lane_half + fhk_part(vectors, sizeof(int32_t));
  at.total = at.block + fhk_part(1, sizeof(row_block));
  return at;
}

static passage *make_passage(const fh_call *call, int32_t rows, void *memory) {
  const passage_layout at = layout_of(call->d_qk, rows);
  char *base = memory;
  passage *t = memory;
  *t = (passage){.rows = rows,
                 .vectors = (rows + 15) / 16,
                 .d_qk = call->d_qk,
                 .window = window_for((rows + 15) / 16),
                 .scale = log2_scale(call),
                 .q = base + at.q,
                 .o = floats(base + at.o),
                 .p = base + at.p,
                 .s = floats(base + at.s),
                 .pairs = base + at.pairs,
                 .stage = base + at.stage,
                 .other = base + at.stage + STAGE_BYTES,
                 .max = floats(base + at.max),
                 .reference = floats(base + at.reference),
                 .sum = floats(base + at.sum),
                 .sum_before = floats(base + at.sum_before),
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

INLINE void swap_stages(passage *t) {
  char *stage = t->stage;
  t->stage = t->other;
  t->other = stage;
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/*
 * A step is PRODUCT_KEYS keys and one vector of rows. While the logits of the next PRODUCT_KEYS keys are multiplied, the
 * steps of the last ones are done in SLICES slices each, one between two products: the tile unit works on while the
 * vector unit does. A slice weighs some keys of its step, and transposes as much of the step before. The steps of
 * `count` vectors from v on are numbered through, key by key.
 */
enum { SLICES = 4, SLICE_KEYS = PRODUCT_KEYS / SLICES };

/* The logits of key k and the rows of vector v. */
INLINE float *logits_of(const passage *t, int32_t k, int32_t v) {
  return t->s + (k / 16 % 4 * t->vectors + v) * TILE_FLOATS + k % 16 * 16;
}

/* Takes KV rows that hold NaN or Inf out of the block: those among PRODUCT_KEYS from k on that give no finite logit
 * with any real row of vector v. */
static void leave_out_spoilt(passage *t, int32_t k, int32_t v) {
  row_block *b = t->block;
  const vi bits = vload_bits(t->lane_bit + 16 * v);
  const __mmask16 real = _mm512_test_epi32_mask(bits, bits);
  for (const int32_t end = k + PRODUCT_KEYS; k < end; k++) {
    if (real & ~not_finite(vload(logits_of(t, k, v)))) continue;
    t->spoilt |= (uint64_t)b->member[k][1] << 32 | b->member[k][0];
    b->member[k][0] = b->member[k][1] = 0;
    b->row[k] = zero_row;
  }
}

static int all_finite(const passage *t, int32_t k, int32_t v) {
  vf zero[2] = {vset1(0), vset1(0)}; /* NaN after a NaN or Inf */
  const float *s = logits_of(t, k, v), *then = logits_of(t, k + 16, v);
  UNROLL for (int i = 0; i < 16; i++) {
    zero[0] = vfma(vload(s + 16 * i), vset1(0), zero[0]);
    zero[1] = vfma(vload(then + 16 * i), vset1(0), zero[1]);
  }
  return !not_finite(vadd(zero[0], zero[1]));
}

/* The rows of vector v that list key k. */
INLINE __mmask16 members(const int masked, const passage *t, int32_t k, int32_t v) {
  if (!masked) return 0xffff;
  const vi member = _mm512_set1_epi32((int)t->block->member[k][t->lane_half[v]]);
  return _mm512_test_epi32_mask(member, vload_bits(t->lane_bit + 16 * v));
}

/* A row's first largest logit becomes its reference. */
INLINE void find_references(const int masked, passage *t, int32_t k, int32_t v) {
  vf largest = vset1(-INFINITY);
  for (int i = 0; i < PRODUCT_KEYS; i++)
    largest = _mm512_mask_max_ps(largest, members(masked, t, k + i, v), largest, vload(logits_of(t, k + i, v)));
  const vf reference = vload(t->reference + 16 * v);
  vstore(t->reference + 16 * v, _mm512_mask_mov_ps(reference, no_reference(reference), largest));
}

/* What comes before the weights of the step of key k and vector v. A KV row with NaN or Inf gives no finite logit with
 * any row, so the first vector finds it. */
INLINE void begin_step(const int masked, passage *t, int32_t k, int32_t v) {
  for (int64_t i = fhk_clamp(t->block->keys, k, k + PRODUCT_KEYS); i < k + PRODUCT_KEYS; i++)
    vstore(logits_of(t, (int32_t)i, v), vset1(-INFINITY));
  if (masked && v == 0 && !all_finite(t, k, v)) leave_out_spoilt(t, k, v);
  if (no_reference(vload(t->reference + 16 * v))) find_references(masked, t, k, v);
}

/* The upper halves of a and b, a's lower: a pair for the tile unit. */
INLINE vi pair(vi a, vi b) { return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b); }

/* A slice in progress: SLICE_KEYS keys for the rows of one vector. */
typedef struct slice {
  const float *s;
  const uint32_t *member; /* of every other word */
  vi bits, high, low;     /* the lanes' bits; the weights of the last key, if the next one makes a pair */
  vf max, base, scale;
  vf part[2]; /* Sums of a few keys: many small numbers added to a large one would all be rounded the same way. */
  char *pairs;
} slice;

INLINE slice begin_slice(const int masked, const int count, passage *t, int32_t v, int32_t number) {
  const int32_t step = number / SLICES, part = number % SLICES, k = step / count * PRODUCT_KEYS;
  slice w;
  v += step % count;
  if (part == 0) begin_step(masked, t, k, v);
  w.s = logits_of(t, k + part * SLICE_KEYS, v);
  w.pairs = t->pairs + step % 2 * HALVES * TILE_BYTES + part * SLICE_KEYS * 32;
  w.member = &t->block->member[k + part * SLICE_KEYS][t->lane_half[v]];
  w.bits = vload_bits(t->lane_bit + 16 * v);
  w.base = finite_reference(vload(t->reference + 16 * v));
  w.max = vload(t->max + 16 * v);
  w.scale = vset1(t->scale);
  w.part[0] = part ? vload(t->part) : vset1(0);
  w.part[1] = vset1(0);
  return w;
}

/* The weights of the slice's key i, in two halves. Two neighbouring keys of a row come to lie side by side. */
INLINE void weigh(const int masked, slice *w, int i) {
  const vi upper = _mm512_set1_epi32((int)0xffff0000u), half = _mm512_set1_epi32(0x8000);
  const __mmask16 counts = masked ? _mm512_test_epi32_mask(_mm512_set1_epi32((int)w->member[2 * i]), w->bits) : 0xffff;
  const vf x = vload(w->s + 16 * i);
  w->max = masked ? _mm512_mask_max_ps(w->max, counts, w->max, x) : vmax(w->max, x);
  const vf p = weight_of(counts, vmul(vsub(x, w->base), w->scale));
  w->part[i % 2] = vadd(w->part[i % 2], p);
  const vi high = _mm512_and_si512(_mm512_castps_si512(p), upper);
  const vi low = _mm512_add_epi32(_mm512_castps_si512(vsub(p, _mm512_castsi512_ps(high))), half);
  if (i % 2) {
    vstore_bits(w->pairs + i / 2 * 64, pair(w->high, high));
    vstore_bits(w->pairs + TILE_BYTES + i / 2 * 64, pair(w->low, low));
  }
  w->high = high;
  w->low = low;
}

/* Part `part` of `parts` of the slice. */
INLINE void weigh_keys(const int masked, slice *w, const int part, const int parts) {
  for (int i = part * SLICE_KEYS / parts; i < (part + 1) * SLICE_KEYS / parts; i++) weigh(masked, w, i);
}

/* Where a largest logit has come to lie more than SLACK above the reference, the block is late: its weights are computed
 * again once its largest logits are known. */
INLINE void end_slice(const int count, passage *t, int32_t v, int32_t number, const slice *w) {
  v += number / SLICES % count;
  const vf part = vadd(w->part[0], w->part[1]);
  if (number % SLICES < SLICES - 1) vstore(t->part, part);
  else vstore(t->sum + 16 * v, vadd(vload(t->sum + 16 * v), part));
  vstore(t->max + 16 * v, w->max);
  const vf rise = vmul(vsub(w->max, vload(t->reference + 16 * v)), w->scale);
  if (_mm512_cmp_ps_mask(rise, vset1(SLACK), _CMP_GT_OQ)) t->late = 1;
}

/* Half the rows of one half of the weights, to their place as operand A. */
INLINE void transpose_slice(const int count, passage *t, int32_t v, int32_t number) {
  const int32_t step = number / SLICES, part = number % SLICES, k = step / count * PRODUCT_KEYS;
  const char *pairs = t->pairs + (step % 2 * HALVES + part / 2) * TILE_BYTES;
  char *to = t->p + (((int64_t)(v + step % count) * t->window + k) / PRODUCT_KEYS * HALVES + part / 2) * TILE_BYTES;
  vi in[16];
  UNROLL for (int i = 0; i < 16; i++) in[i] = vload_bits(pairs + i * 64);
  if (part % 2) transpose_half(1, in, to);
  else transpose_half(0, in, to);
}

/* ---- Logits ------------------------------------------------------------------------------------------------------ */

/* Two chunks of rows `from` .. `to` - 1, those of the second behind the 16 of the first. Two, since neighbouring
 * lines of a row come faster than lines of different rows. */
INLINE void stage_rows(const int from, const int to, char *stage, const uint16_t *const *row, int32_t d) {
  UNROLL for (int i = from; i < to; i++) {
    vstore_bits(stage + i * 64, vload_bits(row[i] + d));
    vstore_bits(stage + TILE_BYTES + i * 64, vload_bits(row[i] + d + CHUNK));
  }
}

/* What is staged while something else is multiplied: columns d .. d + 63 of 16 rows. */
typedef struct upcoming {
  char *to;
  const uint16_t *const *row;
  int32_t d;
} upcoming;

/* A tile of 16 KV rows times the same chunk of `count` vectors' q, `apart` bytes from each other. After every product
 * comes a part of what is staged, and of the slice w unless it is NULL, so that the tile unit and the vector unit work at
 * the same time. Much of a slice in one place would fill the scheduler, and no product behind it could start. */
#define MULTIPLY(v, a, b)                                                                                 \
  if (count > (v)) {                                                                                      \
    TILE_LOAD_ONCE(b, q + (v)*apart);                                                                     \
    TILE_PRODUCT(v, a, b);                                                                                \
    stage_rows(8 * part + (v)*8 / count, 8 * part + ((v) + 1) * 8 / count, next->to, next->row, next->d); \
    if (w) weigh_keys(masked, w, part *count + (v), 2 * count);                                           \
  }
INLINE void multiply_chunk(const int masked, const int count, const int part, const char *q, int64_t apart,
                           const char *kv, const upcoming *next, slice *w) {
  if (part == 0) {
    TILE_LOAD(4, kv);
    MULTIPLY(0, 4, 6)
    MULTIPLY(1, 4, 7)
    MULTIPLY(2, 4, 6)
    MULTIPLY(3, 4, 7)
  } else {
    TILE_LOAD(5, kv);
    MULTIPLY(0, 5, 6)
    MULTIPLY(1, 5, 7)
    MULTIPLY(2, 5, 6)
    MULTIPLY(3, 5, 7)
  }
}

INLINE void clear_sums(void) {
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
}

INLINE void store_logits(const int count, float *s) {
  TILE_STORE(0, s);
  if (count > 1) TILE_STORE(1, s + TILE_FLOATS);
  if (count > 2) TILE_STORE(2, s + 2 * TILE_FLOATS);
  if (count > 3) TILE_STORE(3, s + 3 * TILE_FLOATS);
}

/* `count` vectors of rows from v on against all keys of the block, 16 at a time, and their weights. Rows are staged two
 * turns before they are multiplied: their stores have left for the first level by then. */
INLINE void logits(const int masked, const int count, passage *t, int32_t keys, int32_t v) {
  const uint16_t *const *row = t->block->row;
  const int64_t apart = (int64_t)(t->d_qk / CHUNK) * TILE_BYTES;
  const int32_t turns = t->d_qk / (2 * CHUNK); /* of 16 keys; half as many as there are slices, or more */
  const int32_t slices = keys / PRODUCT_KEYS * count * SLICES;
  int32_t number = 0, due = 0, ring = 0;
  stage_rows(0, 16, t->stage, row, 0);
  stage_rows(0, 16, t->stage + 2 * TILE_BYTES, row, 2 * CHUNK);
  for (int32_t k = 0; k < keys; k += 16, row += 16) {
    const char *q = t->q + v * apart;
    clear_sums();
    for (int32_t i = 0; i < turns; i++, q += 2 * TILE_BYTES, ring++) {
      const int ends = i + 2 >= turns;
      const upcoming next = {t->stage + (ring + 2) % 4 * 2 * TILE_BYTES, ends ? row + 16 : row,
                             2 * CHUNK * (ends ? i + 2 - turns : i + 2)};
      const char *kv = t->stage + ring % 4 * 2 * TILE_BYTES;
      if (k >= PRODUCT_KEYS) due += count * SLICES;
      if (due < 2 * turns) {
        multiply_chunk(masked, count, 0, q, apart, kv, &next, NULL);
        multiply_chunk(masked, count, 1, q + TILE_BYTES, apart, kv + TILE_BYTES, &next, NULL);
        continue;
      }
      slice w = begin_slice(masked, count, t, v, number);
      multiply_chunk(masked, count, 0, q, apart, kv, &next, &w);
      multiply_chunk(masked, count, 1, q + TILE_BYTES, apart, kv + TILE_BYTES, &next, &w);
      end_slice(count, t, v, number, &w);
      if (number >= SLICES) transpose_slice(count, t, v, number - SLICES);
      number++;
      due -= 2 * turns;
    }
    store_logits(count, logits_of(t, k, v));
  }
  for (; number < slices + SLICES; number++) {
    if (number < slices) {
      slice w = begin_slice(masked, count, t, v, number);
      weigh_keys(masked, &w, 0, 1);
      end_slice(count, t, v, number, &w);
    }
    if (number >= SLICES) transpose_slice(count, t, v, number - SLICES);
  }
}

/* One function each, all of the compiler's registers for one. */
static void logits_of_1(passage *t, int32_t keys, int32_t v) { logits(0, 1, t, keys, v); }
static void logits_of_2(passage *t, int32_t keys, int32_t v) { logits(0, 2, t, keys, v); }
static void logits_of_3(passage *t, int32_t keys, int32_t v) { logits(0, 3, t, keys, v); }
static void logits_of_4(passage *t, int32_t keys, int32_t v) { logits(0, 4, t, keys, v); }
static void masked_logits_of_1(passage *t, int32_t keys, int32_t v) { logits(1, 1, t, keys, v); }
static void masked_logits_of_2(passage *t, int32_t keys, int32_t v) { logits(1, 2, t, keys, v); }
static void masked_logits_of_3(passage *t, int32_t keys, int32_t v) { logits(1, 3, t, keys, v); }
static void masked_logits_of_4(passage *t, int32_t keys, int32_t v) { logits(1, 4, t, keys, v); }

static void weights(passage *t, int32_t keys) {
  static void (*const run[2][VECTORS])(passage *, int32_t, int32_t) = {
      {logits_of_1, logits_of_2, logits_of_3, logits_of_4},
      {masked_logits_of_1, masked_logits_of_2, masked_logits_of_3, masked_logits_of_4}};
  for (int32_t v = 0; v < t->vectors; v += VECTORS)
    run[t->masked][fhk_clamp(t->vectors - v, 1, VECTORS) - 1](t, keys, v);
  t->executed += (uint64_t)keys * 16 * (uint64_t)t->vectors * (uint64_t)t->d_qk;
}

/* Makes the largest logits the references: scales o, and the sums as they were before this block. */
static void raise_references(passage *t) {
  for (int32_t v = 0; v < t->vectors; v++) {
    const vf max = vload(t->max + 16 * v), reference = vload(t->reference + 16 * v);
    const vf a = weight(vmul(vsub(reference, max), vset1(t->scale)));
    const vf factor = _mm512_mask_mov_ps(a, no_reference(max), vset1(1));
    float alpha[16], *o = t->o + (int64_t)v * O_TILES * TILE_FLOATS;
    vstore(alpha, factor);
    vstore(t->reference + 16 * v, max);
    vstore(t->sum + 16 * v, vmul(vload(t->sum_before + 16 * v), factor));
    for (int32_t i = 0; t->begun && i < O_TILES * 16; i++)
      vstore(o + 16 * i, vmul(vload(o + 16 * i), vset1(alpha[i % 16])));
  }
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
static void values_2x2(passage *t, const row_block *b, int32_t keys, int32_t v, int32_t c, int32_t then) {
  const int64_t apart = (int64_t)(t->window / PRODUCT_KEYS) * HALVES * TILE_BYTES, below = O_TILES * TILE_FLOATS;
  const char *p = t->p + v * apart;
  float *o = t->o + (v * O_TILES + 2 * c) * TILE_FLOATS;
  load_sums(t, o, TILE_FLOATS, below, below + TILE_FLOATS);
  for (int32_t k = 0; k < keys; k += STEP) {
    const int last = k + STEP == keys;
    const uint16_t *const *next = last ? b->row : b->row + k + STEP;
    const int32_t d = CHUNK * (last ? then : c);
    const char *stage = t->stage;
    char *other = t->other;
    for (int32_t half = 0; half < 2; half++, p += HALVES * TILE_BYTES) {
      const char *pairs = stage + half * 2 * TILE_BYTES;
      char *to = other + half * 2 * TILE_BYTES;
      const uint16_t *const *from = next + half * 32;
      TILE_LOAD(6, pairs);
      TILE_LOAD_ONCE(4, p);
      TILE_PRODUCT(0, 4, 6);
      stage_pairs(2, to, from, d);
      TILE_LOAD(7, pairs + TILE_BYTES);
      TILE_PRODUCT(1, 4, 7);
      stage_pairs(2, to + 2 * 64, from + 4, d);
      TILE_LOAD_ONCE(5, p + apart);
      TILE_PRODUCT(2, 5, 6);
      stage_pairs(2, to + 4 * 64, from + 8, d);
      TILE_PRODUCT(3, 5, 7);
      stage_pairs(2, to + 6 * 64, from + 12, d);
      TILE_LOAD_ONCE(4, p + TILE_BYTES);
      TILE_PRODUCT(0, 4, 6);
      stage_pairs(2, to + 8 * 64, from + 16, d);
      TILE_PRODUCT(1, 4, 7);
      stage_pairs(2, to + 10 * 64, from + 20, d);
      TILE_LOAD_ONCE(5, p + apart + TILE_BYTES);
      TILE_PRODUCT(2, 5, 6);
      stage_pairs(2, to + 12 * 64, from + 24, d);
      TILE_PRODUCT(3, 5, 7);
      stage_pairs(2, to + 14 * 64, from + 28, d);
    }
    swap_stages(t);
  }
  store_sums(o, TILE_FLOATS, below, below + TILE_FLOATS);
}

/* One vector of rows, the four tiles of two chunks and 32 KV rows, while the same chunks of others are brought
 * together. */
INLINE void values_step(const char *p, const char *pairs, char *to, const uint16_t *const *from, int32_t d) {
  TILE_LOAD_ONCE(4, p);
  TILE_LOAD_ONCE(5, p + TILE_BYTES);
  TILE_LOAD(6, pairs);
  TILE_PRODUCT(0, 4, 6);
  TILE_PRODUCT(0, 5, 6);
  stage_pairs_2(4, to, from, d);
  TILE_LOAD(7, pairs + TILE_BYTES);
  TILE_PRODUCT(1, 4, 7);
  TILE_PRODUCT(1, 5, 7);
  stage_pairs_2(4, to + 4 * 64, from + 8, d);
  TILE_LOAD(6, pairs + 2 * TILE_BYTES);
  TILE_PRODUCT(2, 4, 6);
  TILE_PRODUCT(2, 5, 6);
  stage_pairs_2(4, to + 8 * 64, from + 16, d);
  TILE_LOAD(7, pairs + 3 * TILE_BYTES);
  TILE_PRODUCT(3, 4, 7);
  TILE_PRODUCT(3, 5, 7);
  stage_pairs_2(4, to + 12 * 64, from + 24, d);
}

/* One vector of rows and the four tiles of chunks c and c + 1; all KV rows, 64 at a time. */
static void values_1x4(passage *t, const row_block *b, int32_t keys, int32_t v, int32_t c) {
  const char *p = t->p + (int64_t)v * (t->window / PRODUCT_KEYS) * HALVES * TILE_BYTES;
  float *o = t->o + (v * O_TILES + 2 * c) * TILE_FLOATS;
  load_sums(t, o, TILE_FLOATS, 2 * TILE_FLOATS, 3 * TILE_FLOATS);
  for (int32_t k = 0; k < keys; k += STEP, p += 2 * HALVES * TILE_BYTES) {
    const int last = k + STEP == keys;
    const uint16_t *const *next = last ? b->row : b->row + k + STEP;
    const int32_t d = CHUNK * (last ? c + 2 : c) % D_V;
    values_step(p, t->stage, t->other, next, d);
    values_step(p + HALVES * TILE_BYTES, t->stage + 4 * TILE_BYTES, t->other + 4 * TILE_BYTES, next + 32, d);
    swap_stages(t);
  }
  store_sums(o, TILE_FLOATS, 2 * TILE_FLOATS, 3 * TILE_FLOATS);
}

/* The first rows of the first chunk are staged here; every other time the last rows of what comes before are being
 * multiplied. */
static void values(passage *t, const row_block *b, int32_t keys) {
  const int32_t twos = t->vectors / 2 * 2;
  for (int32_t half = 0; half < 2 && twos; half++)
    stage_pairs(16, t->stage + half * 2 * TILE_BYTES, b->row + 32 * half, 0);
  for (int32_t c = 0; c < D_V / CHUNK && twos; c++)
    for (int32_t v = 0; v < twos; v += 2) values_2x2(t, b, keys, v, c, v + 2 < twos ? c : (c + 1) % (D_V / CHUNK));
  if (twos < t->vectors) {
    for (int32_t half = 0; half < 2; half++) stage_pairs_2(16, t->stage + half * 4 * TILE_BYTES, b->row + 32 * half, 0);
    for (int32_t c = 0; c < D_V / CHUNK; c += 2) values_1x4(t, b, keys, twos, c);
  }
  t->executed += (uint64_t)keys * 16 * (uint64_t)t->vectors * D_V;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* The block's KV rows. */
static void compute(passage *t) {
  row_block *b = t->block;
  if (b->keys == 0) return;
  const int32_t keys = (b->keys + STEP - 1) / STEP * STEP;
  for (int32_t k = b->keys; k < keys; k++) b->member[k][0] = b->member[k][1] = 0;
  for (int32_t k = b->keys; k < keys + STEP; k++) b->row[k] = zero_row;
  t->late = 0;
  memcpy(t->sum_before, t->sum, (size_t)t->vectors * 64);
  weights(t, keys);
  if (t->late) {
    raise_references(t);
    weights(t, keys);
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
    UNROLL for (int i = 0; i < 2; i++) x[i] = vmul(vload(o + i * TILE_FLOATS), f);
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(vround_bf16(x[0]), 16));
    const __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(vround_bf16(x[1]), 16));
    const vi both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    vstore_bits(out + c, _mm512_permutexvar_epi64(order, both));
  }
}

/* Row r is head h of query s; keys: whether it has any. */
static void finish_row(const passage *t, const fh_call *call, int32_t r, int64_t s, int32_t h, int keys) {
  const double reference = (double)t->reference[r], sum = (double)t->sum[r];
  const float factor = finish_sums(call, s, h, keys, (double)t->max[r], reference, sum);
  if (keys) store_row(t, r, factor, out_row(call, s, h));
  else memset(out_row(call, s, h), 0, D_V * sizeof(uint16_t));
}

/* ---- One query --------------------------------------------------------------------------------------------------- */

/* With few rows both kernels need room, one after the other. */
static uint64_t bytes_for(const fh_call *call, int32_t rows) {
  const uint64_t bytes = layout_of(call->d_qk, rows).total, few = fhk_few_bytes(call);
  return bytes > few ? bytes : few;
}

uint64_t fhk_amx_query_bytes(const fh_call *call, int32_t rows) { return bytes_for(call, rows); }

static passage *start_query(const fh_call *call, int32_t rows, int64_t s, void *memory) {
  passage *t = make_passage(call, rows, memory);
  const uint16_t *q[MOST_ROWS] = {NULL};
  for (int32_t h = 0; h < call->h_q; h++) q[h] = call->q + s * call->q_stride_s + h * call->q_stride_h;
  pack_q(t, q);
  return t;
}

static uint64_t finish_query(passage *t, const fh_call *call, int64_t s, int64_t keys) {
  for (int32_t h = 0; h < call->h_q; h++) finish_row(t, call, h, s, h, keys > 0);
  return 2 * t->executed;
}

static uint64_t few_executed(const fh_call *call, int64_t keys) {
  return 2 * (uint64_t)keys * FEW_ROWS * (uint64_t)(call->d_qk + D_V);
}

uint64_t fhk_amx_query(const fh_call *call, int32_t rows, int64_t s, void *memory, int64_t *keys) {
  const int32_t *list = fhk_list(call, s);
  const int64_t length = fhk_list_length(call, s);
  uint64_t executed = 0;
  if (rows <= FEW_ROWS) {
    const int32_t done = fhk_few_query(call, s, memory, keys);
    executed = few_executed(call, *keys);
    if (done) return executed;
    *keys = 0;
  }
  passage *t = start_query(call, rows, s, memory);
  tiles_begin();
  for (int64_t j = 0; j < length; j++) {
    if (list[j] < 0 || list[j] >= call->s_kv) continue;
    ++*keys;
    if (add_row(t, call->kv + list[j] * call->kv_stride, 0)) compute(t);
  }
  compute(t);
  executed += finish_query(t, call, s, *keys);
  tiles_end();
  return executed;
}

/* ---- A group ----------------------------------------------------------------------------------------------------- */

/* A group may be shorter than others, and one vector of rows takes longer blocks than several. */
uint64_t fhk_amx_group_bytes(const fh_call *call, int32_t group) {
  const uint64_t full = bytes_for(call, call->h_q * group), least = bytes_for(call, 1);
  return full > least ? full : least;
}

/* Query i of the group alone, over its keys in the plan's order. */
static uint64_t one_of_group(const fh_call *call, const fhk_group *g, int32_t i, void *memory) {
  int64_t keys = 0;
  passage *t = start_query(call, call->h_q, g->first + i, memory);
  for (int64_t e = 0; e < g->entries; e++) {
    if (!(g->member[e] >> i & 1) || g->token[e] < 0 || g->token[e] >= call->s_kv) continue;
    keys++;
    if (add_row(t, call->kv + g->token[e] * call->kv_stride, 0)) compute(t);
  }
  compute(t);
  return finish_query(t, call, g->first + i, keys);
}

/* Rows side by side, query by query. */
static passage *start_group(const fh_call *call, const fhk_group *g, void *memory) {
  const int32_t rows = g->queries * call->h_q;
  passage *t = make_passage(call, rows, memory);
  const uint16_t *q[MOST_ROWS] = {NULL};
  t->masked = 1;
  for (int32_t r = 0; r < 16 * t->vectors; r++) {
    const int32_t i = r / call->h_q;
    t->lane_bit[r] = r < rows ? (uint32_t)1 << i % 32 : 0;
    if (r >= rows) t->reference[r] = 0; /* which no key will set */
    if (r % 16 == 0)
      t->lane_half[r / 16] = i / 32; /* of the whole vector: only with one head are there queries past 32 */
    if (r < rows) q[r] = call->q + (g->first + i) * call->q_stride_s + r % call->h_q * call->q_stride_h;
  }
  pack_q(t, q);
  return t;
}

/* All rows of the group at once. Returns the FLOPs, and the queries that have to be computed alone. */
static uint64_t whole_group(const fh_call *call, const fhk_group *g, void *memory, uint64_t *again) {
  uint64_t listing = 0; /* queries that have a key */
  passage *t = start_group(call, g, memory);
  tiles_begin();
  for (int64_t e = 0; e < g->entries; e++) {
    if (g->token[e] < 0 || g->token[e] >= call->s_kv) continue;
    listing |= g->member[e];
    if (add_row(t, call->kv + g->token[e] * call->kv_stride, g->member[e])) compute(t);
  }
  compute(t);
  for (int32_t r = 0; r < t->rows; r++) {
    const int32_t i = r / call->h_q;
    finish_row(t, call, r, g->first + i, r % call->h_q, listing >> i & 1);
  }
  *again = t->spoilt;
  tiles_end();
  return 2 * t->executed;
}

static uint64_t few_of_group(const fh_call *call, const fhk_group *g, void *memory, uint64_t *again) {
  int64_t keys = 0;
  *again = fhk_few_group(call, g, memory, &keys) ? 0 : g->everyone;
  return few_executed(call, keys);
}

uint64_t fhk_amx_group(const fh_call *call, const fhk_group *g, void *memory) {
  uint64_t again;
  uint64_t executed =
      g->queries * call->h_q <= FEW_ROWS ? few_of_group(call, g, memory, &again) : whole_group(call, g, memory, &again);
  if (!again) return executed;
  tiles_begin();
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
uint64_t fhk_amx_query(const fh_call *call, int32_t rows, int64_t s, void *memory, int64_t *keys) {
  return (void)call, (void)rows, (void)s, (void)memory, (void)keys, 0;
}
uint64_t fhk_amx_group(const fh_call *call, const fhk_group *group, void *memory) {
  return (void)call, (void)group, (void)memory, 0;
}
#endif
