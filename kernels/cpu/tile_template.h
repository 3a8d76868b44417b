/*
 * The inner loops of a tile for one instruction set; a tile_<isa>.c defines TILE_OPS, the name of its table, and
 * includes this.
 *
 * Both products keep up to 24 sums in registers and run one broadcast or loaded operand against the others; nothing is
 * transposed but q, once a tile.
 *
 *   many rows   a KV row is widened once and serves all rows. s[key][row] = sum over d of kv[key][d] * q[d][row]: rows
 *   in lanes, kv broadcast o[row][c]   = sum over key of s[key][row] * kv[key][c]: columns in lanes, s broadcast
 *   few rows    storing it widened would cost more than it saves: bf16 is widened in registers, once for each product.
 *   s: columns of a key in lanes, against every row of q, VL sums at a time that are then added up across their lanes
 *   o: as above
 *
 * In s the rows of a key lie side by side, so maxima and sums over keys need no work across lanes.
 *
 * With TILE_DOT, s comes from bf16 dot products, which take pairs of neighbouring columns as they are. Their products
 * are exact and summed in fp32. For o, the weights would have to be rounded to bf16, which costs more than FlashMLA's
 * tolerances allow where outputs are small against the values they come from; o always takes fp32 weights.
 */
#include "cpu/tile.h"
#include "cpu/vec.h"

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#define TWO_A_TURN _Pragma("clang loop unroll_count(2)")
#else
#define UNROLL _Pragma("GCC unroll 32")
/* Where it pays: a loop's own additions and compares may start on the two ports that multiply-adds need. */
#define TWO_A_TURN _Pragma("GCC unroll 2")
#endif

/* What fits in the registers. FEW_ROWS: measured, where the two ways meet. */
#if defined(__AVX512F__)
enum { FEW_ROWS = 24, FEW_AT_ONCE = 8, PANEL_VECTORS = 4 };
#elif defined(__AVX2__) && defined(__FMA__)
enum { FEW_ROWS = 12, FEW_AT_ONCE = 8, PANEL_VECTORS = 2 };
#else
enum { FEW_ROWS = 4, FEW_AT_ONCE = 4, PANEL_VECTORS = 2 };
#endif

/* An operand of q kv, and what 2 VL neighbouring bf16 make of it: a vector of pairs, or one of the even and one of
 * the odd. */
#ifdef TILE_DOT
enum { HALVES = 1 };
typedef vi vx;
INLINE vx vhalf(const uint16_t *p, int half) { return (void)half, vload_bits(p); }
INLINE vx vload_x(const float *p) { return vload_bits(p); }
INLINE vf vmac(vx a, vx b, vf c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
#else
enum { HALVES = 2 };
typedef vf vx;
INLINE vx vhalf(const uint16_t *p, int half) { return half ? vodd(vload_bits(p)) : veven(vload_bits(p)); }
INLINE vx vload_x(const float *p) { return vload(p); }
INLINE vf vmac(vx a, vx b, vf c) { return vfma(a, b, c); }
#endif

/* Brings what is read one step later into the first-level cache: 4 % of gather. Not where the step is a small part
 * of a line, or the work on it so little that the instruction costs more than it saves. */
INLINE void fetch(const int rows, const uint16_t *p) {
  if (VL >= 8 && rows >= 4) __builtin_prefetch(p, 0, 3);
}

/* ---- Logits of few rows ------------------------------------------------------------------------------------------ */

/* Rows that a pass takes from `left` that remain: 8, 4, 2 or 1; 7 and 3 are rounded up, being dearer in parts. */
static int32_t pass_rows(int32_t left) {
  const int32_t rounded = left == 7 || left == 3 ? left + 1 : left;
  int32_t rows = FEW_AT_ONCE;
  while (rows > rounded) rows /= 2;
  return rows;
}

/* Pass after pass; in a pass [slice of 2 VL columns][row][half][VL]. */
static void pack_few(tile *t, const uint16_t *const *q) {
  static const uint16_t zeros[2 * VL];
  float *to = t->q;
  for (int32_t first = 0, rows; first < t->rows; first += rows) {
    rows = pass_rows(t->rows - first);
    for (int32_t d = 0; d < t->d_qk; d += 2 * VL)
      for (int32_t r = first; r < first + rows; r++)
        for (int half = 0; half < HALVES; half++, to += VL) {
          const vx x = vhalf(r < t->rows && q[r] ? q[r] + d : zeros, half);
          memcpy(to, &x, sizeof x);
        }
  }
}

/* `rows` rows of q against VL / rows keys; the rows after them are the next KV rows, or copies of the last. */
INLINE void logits_few_block(const int rows, const float *q, const uint16_t *const *kv, int32_t d_qk, float *s,
                             int32_t s_stride) {
  const int keys = VL / rows;
  vf sum[VL];
  UNROLL for (int i = 0; i < VL; i++) sum[i] = vset1(0);
  TWO_A_TURN for (int32_t d = 0; d < d_qk; d += 2 * VL, q += rows * HALVES * VL) {
    UNROLL for (int m = 0; m < keys; m++) fetch(rows, kv[keys + m] + d);
    UNROLL for (int half = 0; half < HALVES; half++) {
      /* The fewer of the two operands wait in registers for the others to pass. */
      vx wait[VL];
      if (keys <= rows) {
        UNROLL for (int m = 0; m < keys; m++) wait[m] = vhalf(kv[m] + d, half);
        UNROLL for (int r = 0; r < rows; r++) {
          const vx x = vload_x(q + (r * HALVES + half) * VL);
          UNROLL for (int m = 0; m < keys; m++) sum[m * rows + r] = vmac(wait[m], x, sum[m * rows + r]);
        }
      } else {
        UNROLL for (int r = 0; r < rows; r++) wait[r] = vload_x(q + (r * HALVES + half) * VL);
        UNROLL for (int m = 0; m < keys; m++) {
          const vx x = vhalf(kv[m] + d, half);
          UNROLL for (int r = 0; r < rows; r++) sum[m * rows + r] = vmac(wait[r], x, sum[m * rows + r]);
        }
      }
    }
  }
  float logit[VL];
  vstore(logit, vjoin(sum));
  UNROLL for (int m = 0; m < keys; m++) memcpy(s + m * s_stride, logit + m * rows, (size_t)rows * sizeof *s);
}

/* Returns the multiply-adds, like all products below. */
static uint64_t logits_few(tile *t) {
  uint64_t products = 0;
  const float *q = t->q;
  for (int32_t first = 0, rows; first < t->rows; first += rows, q += rows * HALVES * (t->d_qk / 2)) {
    rows = pass_rows(t->rows - first);
    const int32_t step = VL / rows;
    for (int32_t k = 0; k < t->keys; k += step) {
      float *s = t->s + (int64_t)k * t->s_stride + first;
#define BLOCK(ROWS) logits_few_block(ROWS, q, t->row + k, t->d_qk, s, t->s_stride)
      if (rows == FEW_AT_ONCE) BLOCK(FEW_AT_ONCE);
      else if (rows == 4) BLOCK(4);
      else if (rows == 2) BLOCK(2);
      else BLOCK(1);
#undef BLOCK
      products += (uint64_t)(step * rows) * (uint64_t)t->d_qk;
    }
  }
  return products;
}

/* ---- Logits of many rows ----------------------------------------------------------------------------------------- */

/* Columns whose products are summed before they join the total: keeps the rounding of 512 additions near that of
 * 64, and what all keys of the block run over of q in the first-level cache. Divides 512 and 576. */
enum { STRETCH = 64 };

/* Panel after panel of up to PANEL_VECTORS vectors of rows; in a panel [slice][half][VL columns or pairs][lane]. */
static void pack_many(tile *t, const uint16_t *const *q) {
  float *to = t->q;
  for (int32_t first = 0, lanes; first < t->s_stride; first += lanes) {
    lanes = t->s_stride - first < PANEL_VECTORS * VL ? t->s_stride - first : PANEL_VECTORS * VL;
    for (int32_t d = 0; d < t->d_qk; d += 2 * VL, to += HALVES * VL * lanes) {
      for (int32_t lane = 0; lane < lanes; lane++) {
        const int32_t r = first + lane;
        for (int32_t i = 0; i < VL; i++) {
          uint32_t pair = 0;
          if (r < t->rows && q[r]) memcpy(&pair, q[r] + d + 2 * i, sizeof pair);
          memcpy(to + i * lanes + lane, &pair, sizeof pair);
        }
      }
      if (HALVES == 2) { /* pairs to two floats, a vector at a time */
        for (int32_t x = 0; x < VL * lanes; x += VL) {
          const vi pairs = vload_bits(to + x);
          vstore(to + x, veven(pairs));
          vstore(to + VL * lanes + x, vodd(pairs));
        }
      }
    }
  }
}

/* The block's KV rows as floats, [key][TILE_KV], evens before odds in each slice; dot products need the values
 * alone. */
static void widen(tile *t) {
  const int32_t columns = HALVES == 1 ? TILE_V : t->d_qk;
  for (int32_t k = 0; k < t->keys; k++) {
    float *to = t->kv + (int64_t)k * TILE_KV;
    for (int32_t d = 0; d < columns; d += 2 * VL) {
      const vi pairs = vload_bits(t->row[k] + d);
      vstore(to + d, veven(pairs));
      vstore(to + d + VL, vodd(pairs));
    }
  }
}

/* s[m][n] (+)= sum of kv[m][.] q[.][n] over STRETCH columns from d on. */
INLINE void logits_many_block(const int keys, const int vectors, const tile *t, int32_t k, int32_t d, const float *q,
                              float *s) {
  vf sum[16][4];
  UNROLL for (int m = 0; m < keys; m++) UNROLL for (int n = 0; n < vectors; n++) sum[m][n] = vset1(0);
#ifdef TILE_DOT
  const uint16_t *kv[16];
  UNROLL for (int m = 0; m < keys; m++) kv[m] = t->row[k + m] + d;
#else
  const float *kv = t->kv + (int64_t)k * TILE_KV + d;
#endif
  for (int32_t i = 0; i < STRETCH * HALVES / 2; i++, q += vectors * VL) {
    vx b[4];
    UNROLL for (int n = 0; n < vectors; n++) b[n] = vload_x(q + n * VL);
    UNROLL for (int m = 0; m < keys; m++) {
#ifdef TILE_DOT
      int32_t pair;
      memcpy(&pair, kv[m] + 2 * i, sizeof pair);
      const vx a = _mm512_set1_epi32(pair);
#else
      const vx a = vset1(kv[m * TILE_KV + i]);
#endif
      UNROLL for (int n = 0; n < vectors; n++) sum[m][n] = vmac(a, b[n], sum[m][n]);
    }
  }
  UNROLL for (int m = 0; m < keys; m++) UNROLL for (int n = 0; n < vectors; n++) {
    float *to = s + m * t->s_stride + n * VL;
    vstore(to, d ? vadd(vload(to), sum[m][n]) : sum[m][n]);
  }
}

static uint64_t logits_many(tile *t) {
  uint64_t products = 0;
  const float *q = t->q;
  for (int32_t first = 0, lanes; first < t->s_stride; first += lanes) {
    lanes = t->s_stride - first < PANEL_VECTORS * VL ? t->s_stride - first : PANEL_VECTORS * VL;
    for (int32_t d = 0; d < t->d_qk; d += STRETCH, q += STRETCH * HALVES / 2 * lanes) {
      for (int32_t k = 0, step; k < t->keys; k += step) {
        float *s = t->s + (int64_t)k * t->s_stride + first;
#define BLOCK(KEYS, VECTORS) step = KEYS, logits_many_block(KEYS, VECTORS, t, k, d, q, s)
#if defined(__AVX512F__)
        if (lanes == 4 * VL) BLOCK(6, 4);
        else if (lanes == 3 * VL) BLOCK(8, 3);
        else if (lanes == 2 * VL) BLOCK(12, 2);
        else BLOCK(16, 1);
#elif defined(__AVX2__) && defined(__FMA__)
        if (lanes == 2 * VL) BLOCK(6, 2);
        else BLOCK(12, 1);
#else
        if (lanes == 2 * VL) BLOCK(4, 2);
        else BLOCK(8, 1);
#endif
#undef BLOCK
        products += (uint64_t)(step * lanes * STRETCH);
      }
    }
  }
  return products;
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* The largest, or the sum, of the lanes that belong to the same row, in all of them. */
INLINE vf across_keys(vf v, int32_t lanes, int largest) {
  float x[VL];
  vstore(x, v);
  for (int32_t i = lanes; i < VL; i++) {
    float *to = &x[i % lanes];
    *to = largest ? (*to > x[i] ? *to : x[i]) : *to + x[i];
  }
  for (int32_t i = lanes; i < VL; i++) x[i] = x[i % lanes];
  return vload(x);
}

static void softmax(tile *t) {
  const vf scale = vset1(t->scale);
  /* A vector spans `lanes` rows of one key, or all rows of several; the last is filled up with keys of no weight. */
  const int32_t lanes = t->s_stride < VL ? t->s_stride : VL, step = t->s_stride < VL ? VL : t->s_stride;
  const int32_t numbers = t->keys * t->s_stride, end = (numbers + step - 1) / step * step;
  for (int32_t i = numbers; i < end; i++) t->s[i] = -INFINITY;
  for (int32_t r = 0; r < t->s_stride; r += lanes) {
    float *s = t->s + r;
    float before[VL], result[3][VL];
    for (int32_t i = 0; i < VL; i++) before[i] = t->max[r + i % lanes];
    vf max = vload(before);
    for (int32_t i = 0; i < end; i += step) max = vmax(max, vload(s + i));
    if (lanes < VL) max = across_keys(max, lanes, 1);
    const vf alpha = vexp2(vmul(vsub(vload(before), max), scale));
    /* Sums of a few keys each: many small numbers added to a large one would all be rounded the same way. */
    vf part[4] = {vset1(0), vset1(0), vset1(0), vset1(0)};
    for (int32_t i = 0, n = 0; i < end; i += step, n = (n + 1) % 4) {
      const vf p = vexp2(vmul(vsub(vload(s + i), max), scale));
      vstore(s + i, p);
      part[n] = vadd(part[n], p);
    }
    vf sum = vadd(vadd(part[0], part[1]), vadd(part[2], part[3]));
    if (lanes < VL) sum = across_keys(sum, lanes, 0);
    vstore(result[0], max);
    vstore(result[1], sum);
    vstore(result[2], alpha);
    for (int32_t i = 0; i < lanes; i++) {
      t->max[r + i] = result[0][i];
      t->sum[r + i] = t->sum[r + i] * result[2][i] + result[1][i];
      t->alpha[r + i] = result[2][i];
    }
  }
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

/* o[m][n] = o[m][n] * alpha[m] + sum over the block's keys of s[.][m] v[.][n], for rows m0 on and columns c on. */
INLINE void values_block(const int few, const int rows, const int vectors, const tile *t, int32_t m0, int32_t c) {
  vf sum[8][8];
  float *o = t->o + (int64_t)m0 * TILE_O + c;
  UNROLL for (int m = 0; m < rows; m++) {
    const vf alpha = vset1(t->alpha[m0 + m]);
    UNROLL for (int n = 0; n < vectors; n++) sum[m][n] =
        t->blocks ? vmul(vload(o + m * TILE_O + n * VL), alpha) : vset1(0);
  }
  const float *s = t->s + m0, *kv = t->kv + c;
  for (int32_t k = 0; k < t->keys; k++, s += t->s_stride, kv += few ? 0 : TILE_KV) {
    vf v[8];
    UNROLL for (int n = 0; n < vectors; n++) {
      const uint16_t *pairs = t->row[k] + c + n / 2 * 2 * VL;
      if (few && n % 2 == 0) fetch(rows, pairs + vectors * VL);
      v[n] = !few ? vload(kv + n * VL) : n % 2 ? vodd(vload_bits(pairs)) : veven(vload_bits(pairs));
    }
    UNROLL for (int m = 0; m < rows; m++) {
      const vf p = vset1(s[m]);
      UNROLL for (int n = 0; n < vectors; n++) sum[m][n] = vfma(p, v[n], sum[m][n]);
    }
  }
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int n = 0; n < vectors; n++)
      vstore(o + m * TILE_O + n * VL, sum[m][n]);
}

/* All rows from `from` on that fill whole passes of `rows`; returns the first that is left. */
INLINE int32_t values_pass(const int few, const int rows, const int vectors, const tile *t, int32_t from) {
  const int32_t end = from + (t->rows - from) / rows * rows;
  for (int32_t c = 0; c < TILE_V; c += vectors * VL)
    for (int32_t m = from; m < end; m += rows) values_block(few, rows, vectors, t, m, c);
  return end;
}

INLINE uint64_t values(const int few, const tile *t) {
  int32_t r = 0;
#if defined(__AVX512F__)
  r = values_pass(few, 8, 2, t, r);
  r = values_pass(few, 4, 4, t, r);
#elif defined(__AVX2__) && defined(__FMA__)
  if (!few) r = values_pass(few, 6, 2, t, r);
  r = values_pass(few, 4, 2, t, r);
#else
  r = values_pass(few, 4, 2, t, r);
#endif
  r = values_pass(few, 2, 4, t, r);
  values_pass(few, 1, 8, t, r);
  return (uint64_t)t->keys * (uint64_t)t->rows * TILE_V;
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static void pack(tile *t, const uint16_t *const *q) {
  if (t->few) pack_few(t, q);
  else pack_many(t, q);
}

static uint64_t block(tile *t) {
  /* Kernels that take several keys at once run past the last on copies of it, and leave what comes out alone. */
  for (int32_t k = t->keys; k < t->keys + TILE_SPARE; k++) t->row[k] = t->row[t->keys - 1];
  uint64_t products;
  if (t->few) {
    products = logits_few(t);
    softmax(t);
    products += values(1, t);
  } else {
    widen(t);
    products = logits_many(t);
    softmax(t);
    products += values(0, t);
  }
  t->keys = 0;
  t->blocks++;
  return 2 * products;
}

static void store(const tile *t, int32_t r, float factor, uint16_t *out) {
  const float *o = t->o + (int64_t)r * TILE_O;
  const vf f = vset1(factor);
  for (int32_t c = 0; c < TILE_V; c += 2 * VL)
    vstore_bits(out + c, vnarrow(vmul(vload(o + c), f), vmul(vload(o + c + VL), f)));
}

const fhk_tile_ops TILE_OPS = {VL, FEW_ROWS, pack, block, store};
