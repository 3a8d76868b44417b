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
 * packed multiplies 16 rows of the group with 32 entries of the union at a time, unless none of the rows lists any of
 * the entries, and sets the weights of those that are not members to 0. So that few of these squares hold anything, the
 * entries are sorted by the vectors of rows that list them. A weight of 0 does not undo a NaN or Inf in a value, so a
 * KV row with one is left out; its members are computed again, one by one.
 */
#include "cpu/amx.h"
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <time.h>

#include "cpu/amx_rows.h"

int32_t fhk_amx_built(void) { return 1; }

enum {
  MOST_ROWS = 128,
  MOST_VECTORS = MOST_ROWS / 16,
  PATTERNS = 1 << MOST_VECTORS, /* sets of vectors */
  LIST_KEYS = 2048,             /* KV rows that are collected, and sorted by the vectors that list them */
  STEP_KEYS = 32,               /* KV rows of a step: of one product of the values, and of the softmax at a time */
  MOST_STEPS = MOST_KEYS / STEP_KEYS,
  HALVES = 2,  /* bf16 that p is cut into */
  VECTORS = 4, /* vectors of rows that the logits of 16 KV rows are computed for at a time */
  O_TILES = D_V / 16
};

/* KV rows, and room for those that are brought together in vain, past the last. */
typedef struct row_list {
  int32_t keys;
  const uint16_t *row[LIST_KEYS + 2 * STEP_KEYS];
  uint32_t member[LIST_KEYS + STEP_KEYS][2]; /* who chose it; only where masked */
  uint8_t vectors[LIST_KEYS + STEP_KEYS];    /* a bit each: those in which somebody chose it */
} row_list;

/* STEP_KEYS keys and a vector of rows: the softmax's piece of work. */
typedef struct square {
  int16_t k;
  uint8_t v;
  uint8_t ring; /* where its logits are */
} square;

/* The steps that two vectors of rows, or the last one alone, are multiplied with. */
typedef struct step_list {
  int32_t count; /* 2 or more */
  uint8_t step[MOST_STEPS + 2];
  uint8_t vectors[MOST_STEPS + 2]; /* bit 0: the first takes part, bit 1: the second */
} step_list;

/* `rows` rows and their passage over KV rows. */
typedef struct passage {
  int32_t rows, vectors; /* vectors of 16 rows */
  int32_t masked;
  int32_t d_qk;
  int32_t window;                            /* KV rows of a block, at most */
  int32_t begun;                             /* o holds something */
  float scale;                               /* sm_scale * log2(e) */
  uint64_t executed;                         /* multiply-adds */
  int32_t late;                              /* see softmax */
  uint64_t spoilt;                           /* queries that list a KV row with NaN or Inf; only where masked */
  char *q;                                   /* tiles [vector][chunk] of d_qk / CHUNK chunks */
  float *o;                                  /* tiles [vector][O_TILES] */
  char *p;                                   /* tiles [vector][window / STEP_KEYS][half] */
  float *s;                                  /* tiles [2][2][vectors]: the logits of two steps */
  char *pairs;                               /* [2][half][STEP_KEYS / 2] vectors: see weigh */
  char *stage;                               /* STAGES slots: what is multiplied, and what is being staged */
  float *max, *reference, *sum, *sum_before; /* [16 * vectors]; before scaling */
  float part[16];                            /* of the sum, of the keys of a step */
  uint32_t *lane_bit;                        /* [16 * vectors] the bit of the lane's query in member[..][lane_half] */
  int32_t *lane_half;                        /* [vectors] */
  row_list *list;
  int32_t keys; /* the block: KV rows, and the first of them */
  const uint16_t *const *row;
  uint32_t (*member)[2];
  uint8_t active[MOST_STEPS];          /* the vectors in which somebody chose a KV row of the step */
  square square[MOST_STEPS * VECTORS]; /* in the order in which their logits are computed */
  step_list steps[MOST_VECTORS / 2];   /* of vectors 2 i and 2 i + 1 */
} passage;

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

typedef struct passage_layout {
  uint64_t q, o, p, s, pairs, stage, max, reference, sum, sum_before, lane_bit, lane_half, list, total;
} passage_layout;

enum { STAGES = 4, SLOT_BYTES = 4 * TILE_BYTES };

/* KV rows of a block: with all that belongs to them within half of a second-level cache of 2 MiB, and so many that
 * reading and writing o once a block counts little. Multiples of STEP_KEYS. */
static int32_t window_for(int32_t vectors) { return vectors == 1 ? MOST_KEYS : vectors <= 4 ? 640 : 320; }

static passage_layout layout_of(int32_t d_qk, int32_t rows) {
  const uint64_t vectors = (uint64_t)(rows + 15) / 16, lanes = vectors * 16,
                 window = (uint64_t)window_for((int32_t)vectors);
  passage_layout at;
  at.q = fhk_align(sizeof(passage));
  at.o = at.q + vectors * (uint64_t)(d_qk / CHUNK) * TILE_BYTES;
  at.p = at.o + vectors * O_TILES * TILE_BYTES;
  at.s = at.p + vectors * (window / STEP_KEYS) * HALVES * TILE_BYTES;
  at.pairs = at.s + 4 * vectors * TILE_BYTES;
  at.stage = at.pairs + 2 * HALVES * TILE_BYTES;
  at.max = at.stage + STAGES * SLOT_BYTES;
  at.reference = at.max + fhk_part(lanes, sizeof(float));
  at.sum = at.reference + fhk_part(lanes, sizeof(float));
  at.sum_before = at.sum + fhk_part(lanes, sizeof(float));
  at.lane_bit = at.sum_before + fhk_part(lanes, sizeof(float));
  at.lane_half = at.lane_bit + fhk_part(lanes, sizeof(uint32_t));
  at.list = at.lane_half + fhk_part(vectors, sizeof(int32_t));
  at.total = at.list + fhk_part(1, sizeof(row_list));
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
                 .max = floats(base + at.max),
                 .reference = floats(base + at.reference),
                 .sum = floats(base + at.sum),
                 .sum_before = floats(base + at.sum_before),
                 .lane_bit = (uint32_t *)(void *)(base + at.lane_bit),
                 .lane_half = (int32_t *)(void *)(base + at.lane_half),
                 .list = (row_list *)(void *)(base + at.list)};
  t->list->keys = 0;
  for (int32_t r = 0; r < 16 * t->vectors; r++) {
    t->max[r] = t->reference[r] = -INFINITY;
    t->sum[r] = 0;
  }
  return t;
}

/* Lays q out as operand B; q[r] is row r's, NULL for a row of zeros. */
static void pack_q(passage *t, const uint16_t *const *q) {
  const size_t bytes = (size_t)(t->d_qk / CHUNK) * TILE_BYTES; /* of a vector */
  for (int32_t v = 0; v < t->vectors; v++) {
    const uint16_t *row[16];
    int zeros = 1;
    for (int32_t i = 0; i < 16; i++) {
      row[i] = q[16 * v + i] ? q[16 * v + i] : zero_row;
      zeros &= row[i] == zero_row;
    }
    char *to = t->q + (size_t)v * bytes;
    if (zeros) memset(to, 0, bytes);
    for (int32_t d = 0; d < t->d_qk && !zeros; d += CHUNK, to += TILE_BYTES) {
      vi in[16];
      UNROLL for (int i = 0; i < 16; i++) in[i] = vload_bits(row[i] + d);
      transpose(in, to);
    }
  }
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/*
 * A square is STEP_KEYS keys and one vector of rows. While the logits of the next step are multiplied, the squares of
 * the last one are done in SLICES slices each, one between two products: the tile unit works on while the vector unit
 * does. A slice weighs some keys of its square, and transposes as much of the square before. Slices are numbered
 * through.
 */
enum { SLICES = 4, SLICE_KEYS = STEP_KEYS / SLICES };

/* The logits of a square's key i. */
INLINE float *logits_of(const passage *t, square a, int32_t i) {
  return t->s + ((a.ring * 2 + i / 16) * t->vectors + a.v) * TILE_FLOATS + i % 16 * 16;
}

/* Takes KV rows that hold NaN or Inf out of the block: those of the square that give no finite logit with any real
 * row. */
static void leave_out_spoilt(passage *t, square a) {
  const vi bits = vload_bits(t->lane_bit + 16 * a.v);
  const __mmask16 real = _mm512_test_epi32_mask(bits, bits);
  for (int32_t i = 0; i < STEP_KEYS; i++) {
    uint32_t *member = t->member[a.k + i];
    if (real & ~not_finite(vload(logits_of(t, a, i)))) continue;
    t->spoilt |= (uint64_t)member[1] << 32 | member[0];
    member[0] = member[1] = 0;
    t->list->row[t->row - t->list->row + a.k + i] = zero_row;
  }
}

static int all_finite(const passage *t, square a) {
  vf zero[2] = {vset1(0), vset1(0)}; /* NaN after a NaN or Inf */
  const float *s = logits_of(t, a, 0), *then = logits_of(t, a, 16);
  UNROLL for (int i = 0; i < 16; i++) {
    zero[0] = vfma(vload(s + 16 * i), vset1(0), zero[0]);
    zero[1] = vfma(vload(then + 16 * i), vset1(0), zero[1]);
  }
  return !not_finite(vadd(zero[0], zero[1]));
}

/* The rows of vector v that list key k. */
INLINE __mmask16 members(const int masked, const passage *t, int32_t k, int32_t v) {
  if (!masked) return 0xffff;
  const vi member = _mm512_set1_epi32((int)t->member[k][t->lane_half[v]]);
  return _mm512_test_epi32_mask(member, vload_bits(t->lane_bit + 16 * v));
}

/* A row's first largest logit becomes its reference. */
INLINE void find_references(const int masked, passage *t, square a) {
  vf largest = vset1(-INFINITY);
  for (int i = 0; i < STEP_KEYS; i++)
    largest = _mm512_mask_max_ps(largest, members(masked, t, a.k + i, a.v), largest, vload(logits_of(t, a, i)));
  const vf reference = vload(t->reference + 16 * a.v);
  vstore(t->reference + 16 * a.v, _mm512_mask_mov_ps(reference, no_reference(reference), largest));
}

/* What comes before the weights of a square. A KV row with NaN or Inf gives no finite logit with any row, so the first
 * vector finds it. */
INLINE void begin_square(const int masked, passage *t, square a) {
  const unsigned active = t->active[a.k / STEP_KEYS];
  for (int64_t i = fhk_clamp(t->keys - a.k, 0, STEP_KEYS); i < STEP_KEYS; i++)
    vstore(logits_of(t, a, (int32_t)i), vset1(-INFINITY));
  if (masked && (active & -active) == 1u << a.v && !all_finite(t, a)) leave_out_spoilt(t, a);
  if (no_reference(vload(t->reference + 16 * a.v))) find_references(masked, t, a);
}

/* The upper halves of a and b, a's lower: a pair for the tile unit. */
INLINE vi pair(vi a, vi b) { return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b); }

/* A slice in progress: SLICE_KEYS keys for the rows of one vector. */
typedef struct slice {
  const float *s;
  const uint32_t *member; /* of every other word; only where masked */
  vi bits, high, low;     /* the lanes' bits; the weights of the last key, if the next one makes a pair */
  vf max, base, scale;
  vf part[2]; /* Sums of a few keys: many small numbers added to a large one would all be rounded the same way. */
  char *pairs;
} slice;

INLINE slice begin_slice(const int masked, passage *t, int32_t number) {
  const square a = t->square[number / SLICES];
  const int32_t part = number % SLICES, i = part * SLICE_KEYS;
  slice w;
  if (part == 0) begin_square(masked, t, a);
  w.s = logits_of(t, a, i);
  w.pairs = t->pairs + number / SLICES % 2 * HALVES * TILE_BYTES + i * 32;
  w.member = masked ? &t->member[a.k + i][t->lane_half[a.v]] : NULL;
  w.bits = masked ? vload_bits(t->lane_bit + 16 * a.v) : _mm512_setzero_si512();
  w.base = finite_reference(vload(t->reference + 16 * a.v));
  w.max = vload(t->max + 16 * a.v);
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

/* Where a largest logit has come to lie more than SLACK above the reference, the block is late: its weights are
 * computed again once its largest logits are known. */
INLINE void end_slice(passage *t, int32_t number, const slice *w) {
  const int32_t v = t->square[number / SLICES].v;
  const vf part = vadd(w->part[0], w->part[1]);
  if (number % SLICES < SLICES - 1) vstore(t->part, part);
  else vstore(t->sum + 16 * v, vadd(vload(t->sum + 16 * v), part));
  vstore(t->max + 16 * v, w->max);
  const vf rise = vmul(vsub(w->max, vload(t->reference + 16 * v)), w->scale);
  if (_mm512_cmp_ps_mask(rise, vset1(SLACK), _CMP_GT_OQ)) t->late = 1;
}

/* The weights of vector v and a step, high halves before low ones. */
INLINE char *weights_of(const passage *t, int32_t v, int32_t step) {
  return t->p + ((int64_t)v * (t->window / STEP_KEYS) + step) * HALVES * TILE_BYTES;
}

/* Half the rows of one half of the weights, to their place as operand A. */
INLINE void transpose_slice(passage *t, int32_t number) {
  const square a = t->square[number / SLICES];
  const int32_t part = number % SLICES;
  const char *pairs = t->pairs + (number / SLICES % 2 * HALVES + part / 2) * TILE_BYTES;
  char *to = weights_of(t, a.v, a.k / STEP_KEYS) + part / 2 * TILE_BYTES;
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

/* A tile of 16 KV rows times the same chunk, `at` bytes from the first, of q of `count` vectors. After every product
 * comes a part of what is staged, and of the slice w unless it is NULL, so that the tile unit and the vector unit
 * work at the same time. Much of a slice in one place would fill the scheduler, and no product behind it could
 * start. */
#define MULTIPLY(v, a, b)                                                                                 \
  if (count > (v)) {                                                                                      \
    TILE_LOAD_ONCE(b, q[v] + at);                                                                         \
    TILE_PRODUCT(v, a, b);                                                                                \
    stage_rows(8 * part + (v)*8 / count, 8 * part + ((v) + 1) * 8 / count, next->to, next->row, next->d); \
    if (w) weigh_keys(masked, w, part *count + (v), 2 * count);                                           \
  }
INLINE void multiply_chunk(const int masked, const int count, const int part, const char *const *q, int64_t at,
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

/* What is done of the weights of `squares` squares, whose logits are there. */
typedef struct progress {
  int32_t squares, number; /* the next slice */
  int32_t pending, due;    /* of the step in progress: slices for all of its turns, and for those so far */
  int32_t ring;            /* slot that is multiplied next */
} progress;

/* The same 16 KV rows times q of `count` vectors, whose logits go to s. Meanwhile the next 16 rows are staged, and some
 * slices are done. Rows are staged two turns before they are multiplied: their stores have left for the first level by
 * then. */
INLINE void multiply_rows(const int masked, const int count, passage *t, progress *g, const uint16_t *const *row,
                          const uint16_t *const *next_row, const char *const *q, float *const *s) {
  const int32_t turns = t->d_qk / (2 * CHUNK);
  clear_sums();
  for (int32_t i = 0; i < turns; i++, g->ring++) {
    const int64_t at = (int64_t)i * 2 * TILE_BYTES;
    const int ends = i + 2 >= turns;
    const upcoming next = {t->stage + (g->ring + 2) % STAGES * (2 * TILE_BYTES), ends ? next_row : row,
                           2 * CHUNK * (ends ? i + 2 - turns : i + 2)};
    const char *kv = t->stage + g->ring % STAGES * (2 * TILE_BYTES);
    g->due += g->pending;
    if (g->due < 2 * turns) {
      multiply_chunk(masked, count, 0, q, at, kv, &next, NULL);
      multiply_chunk(masked, count, 1, q, at + TILE_BYTES, kv + TILE_BYTES, &next, NULL);
      continue;
    }
    slice w = begin_slice(masked, t, g->number);
    multiply_chunk(masked, count, 0, q, at, kv, &next, &w);
    multiply_chunk(masked, count, 1, q, at + TILE_BYTES, kv + TILE_BYTES, &next, &w);
    end_slice(t, g->number, &w);
    if (g->number >= SLICES) transpose_slice(t, g->number - SLICES);
    g->number++;
    g->due -= 2 * turns;
  }
  TILE_STORE(0, s[0]);
  if (count > 1) TILE_STORE(1, s[1]);
  if (count > 2) TILE_STORE(2, s[2]);
  if (count > 3) TILE_STORE(3, s[3]);
}

/* One function each, all of the compiler's registers for one. */
typedef void multiply_fn(passage *t, progress *g, const uint16_t *const *row, const uint16_t *const *next_row,
                         const char *const *q, float *const *s);
#define MULTIPLY_ROWS(name, masked, count)                                                               \
  static void name(passage *t, progress *g, const uint16_t *const *row, const uint16_t *const *next_row, \
                   const char *const *q, float *const *s) {                                              \
    multiply_rows(masked, count, t, g, row, next_row, q, s);                                             \
  }
MULTIPLY_ROWS(rows_of_1, 0, 1)
MULTIPLY_ROWS(rows_of_2, 0, 2)
MULTIPLY_ROWS(rows_of_3, 0, 3)
MULTIPLY_ROWS(rows_of_4, 0, 4)
MULTIPLY_ROWS(masked_rows_of_1, 1, 1)
MULTIPLY_ROWS(masked_rows_of_2, 1, 2)
MULTIPLY_ROWS(masked_rows_of_3, 1, 3)
MULTIPLY_ROWS(masked_rows_of_4, 1, 4)

/* The slices that are left when there is nothing more to multiply. */
INLINE void finish_squares(const int masked, passage *t, progress *g) {
  for (const int32_t slices = g->squares * SLICES; g->number < slices + SLICES; g->number++) {
    if (g->number < slices) {
      slice w = begin_slice(masked, t, g->number);
      weigh_keys(masked, &w, 0, 1);
      end_slice(t, g->number, &w);
    }
    if (g->number >= SLICES) transpose_slice(t, g->number - SLICES);
  }
}

/* The next step from `step` on that some of the vectors in `mask` take part in; `steps` if none does. */
INLINE int32_t next_step(const passage *t, int32_t step, int32_t steps, unsigned mask) {
  while (step < steps && !(t->active[step] & mask)) step++;
  return step;
}

/* Vectors v to v + VECTORS - 1 against the keys that any of their rows lists, and their weights. */
static void weights_of_some(passage *t, int32_t steps, int32_t v) {
  static multiply_fn *const multiply[2][VECTORS] = {
      {rows_of_1, rows_of_2, rows_of_3, rows_of_4},
      {masked_rows_of_1, masked_rows_of_2, masked_rows_of_3, masked_rows_of_4}};
  const unsigned mask = (1u << VECTORS) - 1;
  progress g = {0};
  int32_t step = next_step(t, 0, steps, mask << v);
  if (step == steps) return;
  for (int turn = 0; turn < 2; turn++)
    stage_rows(0, 16, t->stage + turn * (2 * TILE_BYTES), t->row + step * STEP_KEYS, turn * 2 * CHUNK);
  for (uint8_t ring = 0; step < steps; ring ^= 1) {
    const uint16_t *const *row = t->row + step * STEP_KEYS;
    const int32_t next = next_step(t, step + 1, steps, mask << v);
    const char *q[VECTORS];
    float *s[2][VECTORS];
    int count = 0;
    for (unsigned left = t->active[step] >> v & mask; left; left &= left - 1, count++) {
      const square a = {(int16_t)(step * STEP_KEYS), (uint8_t)(v + __builtin_ctz(left)), ring};
      t->square[g.squares + count] = a;
      q[count] = t->q + (int64_t)a.v * (t->d_qk / CHUNK) * TILE_BYTES;
      s[0][count] = logits_of(t, a, 0);
      s[1][count] = logits_of(t, a, 16);
    }
    g.pending = g.squares * SLICES - g.number;
    g.due = 0;
    multiply[t->masked][count - 1](t, &g, row, row + 16, q, s[0]);
    multiply[t->masked][count - 1](t, &g, row + 16, t->row + next * STEP_KEYS, q, s[1]);
    g.squares += count;
    t->executed += (uint64_t)STEP_KEYS * 16 * (uint64_t)count * (uint64_t)t->d_qk;
    step = next;
  }
  if (t->masked) finish_squares(1, t, &g);
  else finish_squares(0, t, &g);
}

static void weights(passage *t, int32_t steps) {
  for (int32_t v = 0; v < t->vectors; v += VECTORS) weights_of_some(t, steps, v);
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

/* The rows and the columns of what is staged for entry i of a list of steps: of `next` where the list ends before. */
typedef struct turn {
  const step_list *steps;
  int32_t c; /* the chunk, or the first of two */
} turn;
INLINE upcoming entry_of(const passage *t, char *to, const turn *now, const turn *next, int32_t i) {
  const int ends = i >= now->steps->count;
  const turn *at = ends ? next : now;
  return (upcoming){to, t->row + STEP_KEYS * at->steps->step[ends ? i - now->steps->count : i], CHUNK * at->c};
}

/* One vector of the two, sums `a` and `b`. */
#define VALUES_OF_ONE(a, b, p, next)                       \
  TILE_LOAD_ONCE(4, p);                                    \
  TILE_PRODUCT(a, 4, 6);                                   \
  stage_pairs(4, next.to, next.row, next.d);               \
  TILE_LOAD(7, pairs + TILE_BYTES);                        \
  TILE_PRODUCT(b, 4, 7);                                   \
  stage_pairs(4, next.to + 4 * 64, next.row + 8, next.d);  \
  TILE_LOAD_ONCE(5, (p) + TILE_BYTES);                     \
  TILE_PRODUCT(a, 5, 6);                                   \
  stage_pairs(4, next.to + 8 * 64, next.row + 16, next.d); \
  TILE_PRODUCT(b, 5, 7);                                   \
  stage_pairs(4, next.to + 12 * 64, next.row + 24, next.d);

/* Vectors v and v + 1 and the two tiles of a chunk, step by step. */
static void values_2x2(passage *t, int32_t *ring, int32_t v, const turn *now, const turn *then) {
  float *o = t->o + (v * O_TILES + 2 * now->c) * TILE_FLOATS;
  load_sums(t, o, TILE_FLOATS, O_TILES * TILE_FLOATS, (O_TILES + 1) * TILE_FLOATS);
  const int32_t count = now->steps->count, begin = *ring;
  const uint8_t *step = now->steps->step, *vectors = now->steps->vectors;
  const turn here = *now, after = *then;
  char *const stage = t->stage;
  const char *const first = weights_of(t, v, 0), *const second = weights_of(t, v + 1, 0);
  const uint16_t *const *const rows = t->row;
  for (int32_t i = 0; i < count; i++) {
    const char *pairs = stage + (begin + i) % STAGES * (2 * TILE_BYTES);
    const char *p = first + step[i] * HALVES * TILE_BYTES, *p_next = second + step[i] * HALVES * TILE_BYTES;
    const int ends = i + 2 >= count;
    const turn *at = ends ? &after : &here;
    const upcoming next = {stage + (begin + i + 2) % STAGES * (2 * TILE_BYTES),
                           rows + STEP_KEYS * at->steps->step[ends ? i + 2 - count : i + 2], CHUNK * at->c};
    TILE_LOAD(6, pairs);
    if (vectors[i] == 1) {
      VALUES_OF_ONE(0, 1, p, next)
    } else if (vectors[i] == 2) {
      VALUES_OF_ONE(2, 3, p_next, next)
    } else if (vectors[i] == 3) {
      TILE_LOAD_ONCE(4, p);
      TILE_PRODUCT(0, 4, 6);
      stage_pairs(2, next.to, next.row, next.d);
      TILE_LOAD(7, pairs + TILE_BYTES);
      TILE_PRODUCT(1, 4, 7);
      stage_pairs(2, next.to + 2 * 64, next.row + 4, next.d);
      TILE_LOAD_ONCE(5, p_next);
      TILE_PRODUCT(2, 5, 6);
      stage_pairs(2, next.to + 4 * 64, next.row + 8, next.d);
      TILE_PRODUCT(3, 5, 7);
      stage_pairs(2, next.to + 6 * 64, next.row + 12, next.d);
      TILE_LOAD_ONCE(4, p + TILE_BYTES);
      TILE_PRODUCT(0, 4, 6);
      stage_pairs(2, next.to + 8 * 64, next.row + 16, next.d);
      TILE_PRODUCT(1, 4, 7);
      stage_pairs(2, next.to + 10 * 64, next.row + 20, next.d);
      TILE_LOAD_ONCE(5, p_next + TILE_BYTES);
      TILE_PRODUCT(2, 5, 6);
      stage_pairs(2, next.to + 12 * 64, next.row + 24, next.d);
      TILE_PRODUCT(3, 5, 7);
      stage_pairs(2, next.to + 14 * 64, next.row + 28, next.d);
    } else {
      stage_pairs(16, next.to, next.row, next.d);
    }
  }
  *ring += count;
  store_sums(o, TILE_FLOATS, O_TILES * TILE_FLOATS, (O_TILES + 1) * TILE_FLOATS);
}

/* Vector v and the four tiles of two chunks, step by step. */
static void values_1x4(passage *t, int32_t *ring, int32_t v, const turn *now, const turn *then) {
  float *o = t->o + (v * O_TILES + 2 * now->c) * TILE_FLOATS;
  load_sums(t, o, TILE_FLOATS, 2 * TILE_FLOATS, 3 * TILE_FLOATS);
  for (int32_t i = 0; i < now->steps->count; i++, ++*ring) {
    const char *pairs = t->stage + *ring % STAGES * SLOT_BYTES, *p = weights_of(t, v, now->steps->step[i]);
    const upcoming next = entry_of(t, t->stage + (*ring + 2) % STAGES * SLOT_BYTES, now, then, i + 2);
    if (!now->steps->vectors[i]) {
      stage_pairs_2(16, next.to, next.row, next.d);
      continue;
    }
    TILE_LOAD_ONCE(4, p);
    TILE_LOAD_ONCE(5, p + TILE_BYTES);
    TILE_LOAD(6, pairs);
    TILE_PRODUCT(0, 4, 6);
    TILE_PRODUCT(0, 5, 6);
    stage_pairs_2(4, next.to, next.row, next.d);
    TILE_LOAD(7, pairs + TILE_BYTES);
    TILE_PRODUCT(1, 4, 7);
    TILE_PRODUCT(1, 5, 7);
    stage_pairs_2(4, next.to + 4 * 64, next.row + 8, next.d);
    TILE_LOAD(6, pairs + 2 * TILE_BYTES);
    TILE_PRODUCT(2, 4, 6);
    TILE_PRODUCT(2, 5, 6);
    stage_pairs_2(4, next.to + 8 * 64, next.row + 16, next.d);
    TILE_LOAD(7, pairs + 3 * TILE_BYTES);
    TILE_PRODUCT(3, 4, 7);
    TILE_PRODUCT(3, 5, 7);
    stage_pairs_2(4, next.to + 12 * 64, next.row + 24, next.d);
  }
  store_sums(o, TILE_FLOATS, 2 * TILE_FLOATS, 3 * TILE_FLOATS);
}

/* The steps of vectors v and v + 1. There are two entries at least, since two are staged ahead. */
static void list_steps(passage *t, int32_t steps, int32_t v) {
  step_list *list = &t->steps[v / 2];
  list->count = 0;
  for (int32_t i = 0; i < steps; i++) {
    const unsigned both = t->active[i] >> v & 3;
    if (!both) continue;
    list->step[list->count] = (uint8_t)i;
    list->vectors[list->count++] = (uint8_t)both;
    t->executed += (uint64_t)STEP_KEYS * 16 * (uint64_t)__builtin_popcount(both) * D_V;
  }
  for (; list->count < 2; list->count++) list->step[list->count] = list->vectors[list->count] = 0;
}

/* The first entries of the first chunk are staged here; every other time the last ones of what comes before are being
 * multiplied. */
static void values(passage *t, int32_t steps) {
  const int32_t twos = t->vectors / 2, chunks = D_V / CHUNK;
  int32_t ring = 0;
  for (int32_t v = 0; v < t->vectors; v += 2) list_steps(t, steps, v);
  for (int32_t i = 0; i < 2 && twos; i++) {
    const turn first = {&t->steps[0], 0};
    const upcoming a = entry_of(t, t->stage + i * 2 * TILE_BYTES, &first, &first, i);
    stage_pairs(16, a.to, a.row, a.d);
  }
  for (int32_t n = 0; n < chunks * twos; n++) {
    const int32_t last = n + 1 == chunks * twos;
    const turn now = {&t->steps[n % twos], n / twos}, then = {&t->steps[(n + 1) % twos], last ? 0 : (n + 1) / twos};
    values_2x2(t, &ring, n % twos * 2, &now, &then);
  }
  if (t->vectors % 2 == 0) return;
  for (int32_t i = 0; i < 2; i++) {
    const turn first = {&t->steps[twos], 0};
    const upcoming a = entry_of(t, t->stage + (ring + i) % STAGES * SLOT_BYTES, &first, &first, i);
    stage_pairs_2(16, a.to, a.row, a.d);
  }
  for (int32_t c = 0; c < chunks; c += 2) {
    const turn now = {&t->steps[twos], c}, then = {&t->steps[twos], (c + 2) % chunks};
    values_1x4(t, &ring, twos * 2, &now, &then);
  }
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* `keys` KV rows of the list, from the first on. */
static void compute(passage *t, int32_t first, int32_t keys) {
  const int32_t steps = (keys + STEP_KEYS - 1) / STEP_KEYS;
  t->keys = keys;
  t->row = t->list->row + first;
  t->member = t->list->member + first;
  for (int32_t i = 0; i < steps; i++) {
    unsigned set = 0;
    for (int32_t k = 0; k < STEP_KEYS; k++) set |= t->list->vectors[first + i * STEP_KEYS + k];
    t->active[i] = (uint8_t)set;
  }
  t->late = 0;
  memcpy(t->sum_before, t->sum, (size_t)t->vectors * 64);
  weights(t, steps);
  if (t->late) {
    raise_references(t);
    weights(t, steps);
  }
  values(t, steps);
  t->begun = 1;
}

/* The list's KV rows, in blocks of about the same size. */
static void compute_list(passage *t) {
  row_list *list = t->list;
  const int32_t keys = list->keys, blocks = (keys + t->window - 1) / t->window;
  for (int32_t k = keys; k < keys + STEP_KEYS; k++) list->member[k][0] = list->member[k][1] = list->vectors[k] = 0;
  for (int32_t k = keys; k < keys + 2 * STEP_KEYS; k++) list->row[k] = zero_row;
  for (int32_t i = 0, first = 0; i < blocks; i++) {
    const int32_t share = (keys - first + blocks - i - 1) / (blocks - i);
    const int32_t count = (int32_t)fhk_clamp((share + STEP_KEYS - 1) / STEP_KEYS * STEP_KEYS, 0, keys - first);
    compute(t, first, count);
    first += count;
  }
  list->keys = 0;
}

/* Lists the KV rows of `count` tokens, LIST_KEYS at most, for all rows; where member is not NULL, of those tokens that
 * query i is a member of. */
static void list_all(passage *t, const fh_call *call, const int32_t *token, int64_t count, const uint64_t *member,
                     int32_t i) {
  int32_t keys = 0;
  for (int64_t j = 0; j < count; j++) {
    if (token[j] < 0 || token[j] >= call->s_kv || (member && !(member[j] >> i & 1))) continue;
    t->list->row[keys++] = call->kv + token[j] * call->kv_stride;
  }
  memset(t->list->vectors, (1 << t->vectors) - 1, (size_t)keys);
  t->list->keys = keys;
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
  for (int64_t j = 0; j < length; j += LIST_KEYS) {
    list_all(t, call, list + j, fhk_clamp(length - j, 0, LIST_KEYS), NULL, 0);
    *keys += t->list->keys;
    compute_list(t);
  }
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
  for (int64_t e = 0; e < g->entries; e += LIST_KEYS) {
    list_all(t, call, g->token + e, fhk_clamp(g->entries - e, 0, LIST_KEYS), g->member + e, i);
    keys += t->list->keys;
    compute_list(t);
  }
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

/* The queries of each vector's rows. */
static void queries_of_vectors(const fh_call *call, const fhk_group *g, uint64_t *queries) {
  memset(queries, 0, MOST_VECTORS * sizeof *queries);
  for (int32_t r = 0; r < g->queries * call->h_q; r++) queries[r / 16] |= (uint64_t)1 << r / call->h_q;
}

/* Where the set of vectors in which somebody lists an entry comes in the order of a Gray code, in which neighbours
 * differ by one vector: a step that holds entries of two sets then has one vector more than its entries need. 0 where
 * nobody lists the entry, or where its token is out of range. For `count` entries, and for up to 7 more in vain. */
static void rank_entries(const passage *t, const int32_t *token, const uint64_t *member, int64_t count, int32_t s_kv,
                         const uint64_t *queries, uint8_t *rank) {
  for (int64_t i = 0; i < count; i += 8) {
    const __mmask8 there = (__mmask8)(0xffu >> (8 - fhk_clamp(count - i, 0, 8)));
    const vi members = _mm512_maskz_loadu_epi64(there, member + i);
    const __mmask8 valid = _mm256_mask_cmplt_epu32_mask(there, _mm256_maskz_loadu_epi32(there, token + i),
                                                        _mm256_set1_epi32(s_kv)); /* below 0: large */
    vi set = _mm512_setzero_si512();
    for (int32_t v = 0; v < t->vectors; v++) {
      const __mmask8 some = _mm512_mask_test_epi64_mask(valid, members, _mm512_set1_epi64((int64_t)queries[v]));
      set = _mm512_mask_or_epi64(set, some, set, _mm512_set1_epi64(1 << v));
    }
    set = _mm512_xor_si512(set, _mm512_srli_epi64(set, 1));
    set = _mm512_xor_si512(set, _mm512_srli_epi64(set, 2));
    set = _mm512_xor_si512(set, _mm512_srli_epi64(set, 4));
    _mm_storel_epi64((__m128i *)(void *)(rank + i), _mm512_cvtepi64_epi8(set));
  }
}

/* Lists the KV rows of `count` entries from e on, LIST_KEYS at most, sorted by the vectors in which somebody lists
 * them. Adds to *listing the queries that have a key. */
static void list_sorted(passage *t, const fh_call *call, const fhk_group *g, int64_t e, int64_t count,
                        const uint64_t *queries, uint64_t *listing) {
  row_list *list = t->list;
  const int32_t *token = g->token + e;
  const uint64_t *member = g->member + e;
  int32_t place[PATTERNS + 1] = {0};
  uint8_t rank[LIST_KEYS];
  uint64_t all = 0;
  rank_entries(t, token, member, count, (int32_t)call->s_kv, queries, rank);
  for (int64_t i = 0; i < count; i++) place[rank[i] + 1]++;
  place[0] = place[1] = 0; /* those that nobody lists have no place */
  for (int32_t r = 1; r < PATTERNS; r++) place[r + 1] += place[r];
  list->keys = place[PATTERNS];
  for (int64_t i = 0; i < count; i++) {
    const unsigned r = rank[i];
    if (!r) continue;
    const int32_t k = place[r]++;
    all |= member[i];
    list->row[k] = call->kv + token[i] * call->kv_stride;
    memcpy(list->member[k], &member[i], sizeof member[i]); /* the lower word first: x86 */
    list->vectors[k] = (uint8_t)(r ^ r >> 1);
  }
  *listing |= all;
}

/* All rows of the group at once. Returns the FLOPs, and the queries that have to be computed alone. */
static uint64_t whole_group(const fh_call *call, const fhk_group *g, void *memory, uint64_t *again) {
  uint64_t listing = 0, queries[MOST_VECTORS]; /* listing: queries that have a key */
  passage *t = start_group(call, g, memory);
  queries_of_vectors(call, g, queries);
  tiles_begin();
  for (int64_t e = 0; e < g->entries; e += LIST_KEYS) {
    list_sorted(t, call, g, e, fhk_clamp(g->entries - e, 0, LIST_KEYS), queries, &listing);
    compute_list(t);
  }
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
