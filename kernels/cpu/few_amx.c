/*
 * Attention on the tile unit for up to 8 rows of q: a query's heads, or those of a group of few queries.
 *
 * Few rows need little multiplying, so what counts is how often a KV row comes from the second-level cache: once here,
 * twice in kernels_amx.c. 16 KV rows at a time are copied into tiles (`stage`), 64 bytes of each a tile, and one copy
 * serves both products:
 *
 *   logits   s[key][row]: a tile is operand A, q is operand B, laid out once
 *   softmax  two keys of 8 rows in a vector
 *   values   o[row][column]: the same tile is operand B. The unit adds products of pairs that lie side by side there:
 *            two columns of one key, not one column of two keys. So p stands in A twice: rows 0 .. 7 hold (p, 0) and
 *            give the even columns, rows 8 .. 15 hold (0, p) and give the odd ones.
 *
 * The next 16 KV rows take a tile's place as soon as the values have loaded it. In the first-level cache: o 16 KiB,
 * stage 16 KiB, q 8 KiB, and the KV rows that pass by.
 *
 * p is fp32 cut into two bf16, p = high + low within 2^-17. 0 times NaN or Inf is NaN, so a row with one would spoil
 * the neighbouring column, and in a group the other queries. Such a row has no finite logit: the caller is told, and
 * computes anew with kernels_amx.c.
 */
#include "cpu/amx.h"
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include "cpu/amx_rows.h"

enum {
  STEP = 16, /* KV rows of a step */
  Q_BYTES = TILE_BYTES / 2,
  O_TILES = D_V / CHUNK,
  HALF_VECTOR = 8 /* lanes: the rows of one key */
};

typedef struct few {
  int32_t chunks; /* of d_qk */
  int32_t keys;   /* collected, and not computed yet */
  int32_t spoilt; /* some KV row holds NaN or Inf */
  float scale;
  char *q;                                   /* [chunks], half tiles of 8 rows */
  char *stage;                               /* [chunks] tiles */
  char *p;                                   /* tiles: high halves, low halves */
  float *s;                                  /* [2][STEP][8]: logits of even chunks, of odd chunks */
  float *o;                                  /* [O_TILES] tiles */
  float largest[16], reference[16], sum[16]; /* lanes 8 .. 15 repeat 0 .. 7; of sum they are added */
  const uint16_t *row[MOST_KEYS];
  uint8_t lanes[MOST_KEYS]; /* the rows that a key counts for */
} few;

uint64_t fhk_few_bytes(const fh_call *call) {
  const uint64_t chunks = (uint64_t)call->d_qk / CHUNK;
  return fhk_align(sizeof(few)) + chunks * (Q_BYTES + TILE_BYTES) + (2 + 1 + O_TILES) * TILE_BYTES;
}

static few *make_few(const fh_call *call, void *memory) {
  few *t = memory;
  char *at = (char *)memory + fhk_align(sizeof(few));
  t->chunks = call->d_qk / CHUNK;
  t->keys = t->spoilt = 0;
  t->scale = log2_scale(call);
  t->o = floats(at);
  t->stage = at + O_TILES * TILE_BYTES;
  t->p = t->stage + t->chunks * TILE_BYTES;
  t->s = floats(t->p + 2 * TILE_BYTES);
  t->q = t->p + 3 * TILE_BYTES;
  for (int32_t r = 0; r < 16; r++) {
    t->largest[r] = t->reference[r] = -INFINITY;
    t->sum[r] = 0;
  }
  memset(t->o, 0, O_TILES * TILE_BYTES);
  return t;
}

/* Tiles 0 .. 2 hold what has 8 columns: logits and q. */
static void begin_tiles(void) {
  tile_config config = tiles_of_full_size();
  for (int i = 0; i < 3; i++) config.row_bytes[i] = TILE_STRIDE / 2;
  tiles_configure(&config);
}

/* q[r] is row r's, NULL for a row of zeros. */
static void pack_q(few *t, const uint16_t *const *q) {
  for (int32_t c = 0; c < t->chunks; c++) {
    char wide[TILE_BYTES] __attribute__((aligned(64)));
    vi in[16];
    UNROLL for (int i = 0; i < 16; i++) in[i] =
        i < FEW_ROWS && q[i] ? vload_bits(q[i] + c * CHUNK) : _mm512_setzero_si512();
    transpose(in, wide);
    for (int32_t i = 0; i < 16; i++) memcpy(t->q + c * Q_BYTES + i * 32, wide + i * 64, 32);
  }
}

/* Chunks c and c + 1 of a step's rows. */
INLINE void stage_chunks(few *t, const uint16_t *const *row, int32_t c) {
  char *to = t->stage + c * TILE_BYTES;
  UNROLL for (int i = 0; i < STEP; i++) {
    vstore_bits(to + i * 64, vload_bits(row[i] + c * CHUNK));
    vstore_bits(to + TILE_BYTES + i * 64, vload_bits(row[i] + (c + 1) * CHUNK));
  }
}

static void logits(few *t) {
  const char *q = t->q, *kv = t->stage;
  TILE_ZERO(0);
  TILE_ZERO(1);
  for (int32_t c = 0; c < t->chunks; c += 2, q += 2 * Q_BYTES, kv += 2 * TILE_BYTES) {
    TILE_LOAD_FROM(2, q, 32);
    TILE_LOAD(5, kv);
    TILE_PRODUCT(0, 5, 2);
    TILE_LOAD_FROM(2, q + Q_BYTES, 32);
    TILE_LOAD(7, kv + TILE_BYTES);
    TILE_PRODUCT(1, 7, 2);
  }
  TILE_STORE_TO(0, t->s, 32);
  TILE_STORE_TO(1, t->s + STEP * HALF_VECTOR, 32);
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* The logits of keys k and k + 4. */
INLINE vf two_keys(const few *t, int k) {
  const float *s = t->s + k * HALF_VECTOR, *odd = s + STEP * HALF_VECTOR;
  const vf a = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(s)), _mm256_loadu_ps(s + 4 * HALF_VECTOR), 1);
  const vf b =
      _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(odd)), _mm256_loadu_ps(odd + 4 * HALF_VECTOR), 1);
  return vadd(a, b);
}

static void rescale(few *t, vf alpha) {
  float factor[16];
  vstore(factor, alpha);
  vstore(t->sum, vmul(vload(t->sum), alpha));
  for (int32_t i = 0; i < O_TILES * 16; i++) vstore(t->o + 16 * i, vmul(vload(t->o + 16 * i), vset1(factor[i % 16])));
}

/* Follows the largest logits of x, of which the lanes in `counts` count. Raises the references, and scales o and the
 * sums, where they come to lie more than SLACK above. */
INLINE vf follow_largest(few *t, const vf *x, const __mmask16 *counts) {
  vf part[2] = {vset1(-INFINITY), vset1(-INFINITY)};
  UNROLL for (int i = 0; i < 8; i++) part[i % 2] = _mm512_mask_max_ps(part[i % 2], counts[i], part[i % 2], x[i]);
  vf largest = vmax(part[0], part[1]);
  largest = vmax(vload(t->largest), vmax(largest, _mm512_shuffle_f32x4(largest, largest, 0x4e)));
  vstore(t->largest, largest);
  vf reference = vload(t->reference);
  const vf rise = vmul(vsub(largest, reference), vset1(t->scale));
  const __mmask16 first = no_reference(reference);
  const __mmask16 raised = first | _mm512_cmp_ps_mask(rise, vset1(SLACK), _CMP_GT_OQ);
  if (raised) {
    const vf alpha = _mm512_mask_blend_ps(raised, vset1(1), weight(vsub(vset1(0), rise)));
    rescale(t, _mm512_mask_mov_ps(alpha, first, vset1(0)));
    reference = _mm512_mask_mov_ps(reference, raised, largest);
    vstore(t->reference, reference);
  }
  return reference;
}

/* x[i], keys i % 4 + 8 (i / 4) and four further on, to row[r]: row r of the 16 keys. */
INLINE void rows_of(const vf *x, vi *row) {
  vi a[8];
  UNROLL for (int i = 0; i < 8; i += 4) {
    const vi v0 = _mm512_castps_si512(x[i]), v1 = _mm512_castps_si512(x[i + 1]);
    const vi v2 = _mm512_castps_si512(x[i + 2]), v3 = _mm512_castps_si512(x[i + 3]);
    const vi low01 = _mm512_unpacklo_epi32(v0, v1), high01 = _mm512_unpackhi_epi32(v0, v1);
    const vi low23 = _mm512_unpacklo_epi32(v2, v3), high23 = _mm512_unpackhi_epi32(v2, v3);
    a[i] = _mm512_unpacklo_epi64(low01, low23);
    a[i + 1] = _mm512_unpackhi_epi64(low01, low23);
    a[i + 2] = _mm512_unpacklo_epi64(high01, high23);
    a[i + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    row[i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
    row[4 + i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
  }
}

/* Row r of p, whose bf16 are the upper halves of `value`: (p, 0) in row r and (0, p) in row 8 + r. */
INLINE void store_weights(char *tile, int r, vi value) {
  vstore_bits(tile + r * 64, _mm512_srli_epi32(value, 16));
  vstore_bits(tile + (FEW_ROWS + r) * 64, value);
}

/* Whether some key has no finite logit. */
static int has_spoilt(const vf *x) {
  int spoilt = 0;
  for (int i = 0; i < 8; i++) {
    const unsigned odd = not_finite(x[i]);
    spoilt |= (odd & 0xff) == 0xff || odd >> 8 == 0xff;
  }
  return spoilt;
}

static void softmax(few *t, const uint8_t *lanes) {
  vf x[8], part[2] = {vset1(0), vset1(0)};
  __mmask16 counts[8], odd = 0;
  UNROLL for (int i = 0; i < 8; i++) {
    const int k = i % 4 + i / 4 * 8;
    x[i] = two_keys(t, k);
    counts[i] = (__mmask16)(lanes[k] | lanes[k + 4] << 8);
    odd |= not_finite(x[i]);
  }
  if (odd) t->spoilt |= has_spoilt(x);
  const vf base = finite_reference(follow_largest(t, x, counts)), scale = vset1(t->scale);
  UNROLL for (int i = 0; i < 8; i++) {
    x[i] = _mm512_maskz_mov_ps(counts[i], weight(vmul(vsub(x[i], base), scale)));
    part[i % 2] = vadd(part[i % 2], x[i]);
  }
  vstore(t->sum, vadd(vload(t->sum), vadd(part[0], part[1])));

  vi row[8];
  rows_of(x, row);
  const vi upper = _mm512_set1_epi32((int)0xffff0000u), half = _mm512_set1_epi32(0x8000);
  UNROLL for (int r = 0; r < FEW_ROWS; r++) {
    const vi high = _mm512_and_si512(row[r], upper);
    const vi rest = _mm512_castps_si512(vsub(_mm512_castsi512_ps(row[r]), _mm512_castsi512_ps(high)));
    store_weights(t->p, r, high);
    store_weights(t->p + TILE_BYTES, r, _mm512_and_si512(_mm512_add_epi32(rest, half), upper));
  }
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* The values of a step; stages the rows at `next` in the places that become free. */
INLINE void values(const int stage_next, few *t, const uint16_t *const *next) {
  TILE_LOAD(3, t->p);
  TILE_LOAD(4, t->p + TILE_BYTES);
  for (int32_t c = 0; c < O_TILES; c += 2) {
    const char *kv = t->stage + c * TILE_BYTES;
    float *o = t->o + c * TILE_FLOATS;
    TILE_LOAD(6, o);
    TILE_LOAD(5, kv);
    TILE_PRODUCT(6, 3, 5);
    TILE_PRODUCT(6, 4, 5);
    TILE_LOAD(7, o + TILE_FLOATS);
    TILE_LOAD(5, kv + TILE_BYTES);
    TILE_PRODUCT(7, 3, 5);
    TILE_PRODUCT(7, 4, 5);
    if (stage_next) stage_chunks(t, next, c);
    TILE_STORE(6, o);
    TILE_STORE(7, o + TILE_FLOATS);
  }
  for (int32_t c = O_TILES; stage_next && c < t->chunks; c += 2) stage_chunks(t, next, c);
}

/* The KV rows collected so far. */
static void compute(few *t) {
  const int32_t steps = (t->keys + STEP - 1) / STEP;
  for (int32_t k = t->keys; k < STEP * steps; k++) {
    t->row[k] = zero_row;
    t->lanes[k] = 0;
  }
  t->keys = 0;
  if (steps == 0) return;
  for (int32_t c = 0; c < t->chunks; c += 2) stage_chunks(t, t->row, c);
  for (int32_t n = 0; n < steps; n++) {
    logits(t);
    softmax(t, t->lanes + STEP * n);
    if (n + 1 < steps) values(1, t, t->row + STEP * (n + 1));
    else values(0, t, NULL);
  }
}

INLINE void add_row(few *t, const uint16_t *row, uint32_t lanes) {
  t->row[t->keys] = row;
  t->lanes[t->keys] = (uint8_t)lanes;
  if (++t->keys == MOST_KEYS) compute(t);
}

/* ---- Queries and groups ------------------------------------------------------------------------------------------ */

static void finish_row(const few *t, const fh_call *call, int32_t r, int64_t s, int32_t h, int keys) {
  uint16_t *out = out_row(call, s, h);
  const double sum = (double)t->sum[r] + (double)t->sum[FEW_ROWS + r];
  const vf factor = vset1(finish_sums(call, s, h, keys, (double)t->largest[r], (double)t->reference[r], sum));
  if (!keys) {
    memset(out, 0, D_V * sizeof *out);
    return;
  }
  const float *even = t->o + 16 * r, *odd = t->o + 16 * (FEW_ROWS + r);
  for (int32_t c = 0; c < D_V; c += CHUNK, even += TILE_FLOATS, odd += TILE_FLOATS)
    vstore_bits(out + c, vnarrow(vmul(vload(even), factor), vmul(vload(odd), factor)));
}

int32_t fhk_few_query(const fh_call *call, int64_t s, void *memory, int64_t *keys) {
  const int32_t *list = fhk_list(call, s);
  const int64_t length = fhk_list_length(call, s);
  const uint16_t *q[FEW_ROWS] = {NULL};
  int64_t count = 0;
  few *t = make_few(call, memory);
  for (int32_t h = 0; h < call->h_q; h++) q[h] = call->q + s * call->q_stride_s + h * call->q_stride_h;
  pack_q(t, q);
  begin_tiles();
  for (int64_t j = 0; j < length; j++) {
    if (list[j] < 0 || list[j] >= call->s_kv) continue;
    count++;
    add_row(t, call->kv + list[j] * call->kv_stride, 0xff);
  }
  compute(t);
  tiles_end();
  *keys = count;
  for (int32_t h = 0; h < call->h_q && !t->spoilt; h++) finish_row(t, call, h, s, h, count > 0);
  return !t->spoilt;
}

/* The rows of the queries whose bits are set. */
static uint32_t lanes_of(uint64_t queries, int32_t h_q) {
  const uint32_t heads = (1u << h_q) - 1;
  uint32_t lanes = 0;
  for (; queries; queries &= queries - 1) lanes |= heads << __builtin_ctzll(queries) * h_q;
  return lanes;
}

int32_t fhk_few_group(const fh_call *call, const fhk_group *g, void *memory, int64_t *keys) {
  const uint16_t *q[FEW_ROWS] = {NULL};
  uint64_t listing = 0; /* queries that have a key */
  few *t = make_few(call, memory);
  for (int32_t r = 0; r < g->queries * call->h_q; r++)
    q[r] = call->q + (g->first + r / call->h_q) * call->q_stride_s + r % call->h_q * call->q_stride_h;
  pack_q(t, q);
  begin_tiles();
  for (int64_t e = 0; e < g->entries; e++) {
    if (g->token[e] < 0 || g->token[e] >= call->s_kv) continue;
    const uint64_t member = g->member[e] & g->everyone;
    listing |= member;
    ++*keys;
    add_row(t, call->kv + g->token[e] * call->kv_stride, lanes_of(member, call->h_q));
  }
  compute(t);
  tiles_end();
  for (int32_t r = 0; r < g->queries * call->h_q && !t->spoilt; r++) {
    const int32_t i = r / call->h_q;
    finish_row(t, call, r, g->first + i, r % call->h_q, listing >> i & 1);
  }
  return !t->spoilt;
}
#endif
