/*
 * The inner loops of the tile kernel for one vector length; a tile_<isa>.c defines TILE_OPS, the name of its table, and includes this.
 *
 * Both products are the same small kernel: c[m][n] = sum over i of a(m, i) * b[i][n], `m` times `n` vectors of sums in registers, one
 * number of a broadcast against vectors of b. Nothing is transposed but q, once a tile:
 *
 *   logits   s[key][row]    = sum over d   of kv[key][d] * q[d][row]        a = kv, b = q
 *   values   o[row][column] = sum over key of s[key][row] * kv[key][column] a = s,  b = kv
 *
 * Rows lie side by side in the vectors of s, so maxima and sums over keys need no work across lanes, and a mask is one test.
 */
#include "cpu/tile.h"
#include "cpu/vec.h"

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Sums in registers at once: keys for panels of 1, 2, .. vectors, and rows for the widths of output columns below. */
#if defined(__AVX512F__)
enum { PANEL_VECTORS = 4 };
static const int32_t keys_at_once[] = {16, 12, 8, 6};
#elif defined(__AVX2__) && defined(__FMA__)
enum { PANEL_VECTORS = 2 };
static const int32_t keys_at_once[] = {12, 6};
#else
enum { PANEL_VECTORS = 2 };
static const int32_t keys_at_once[] = {8, 4};
#endif

/* Columns of q and kv summed before they join the total: keeps the rounding of 512 additions near that of 128, and the stretch of q
 * that all keys of the block run over in the first-level cache. */
enum { STRETCH = 64 };

static void pack_q(tile *t, const uint16_t *const *q) {
  for (int32_t p = 0; p < t->panels; p++) {
    const tile_panel *panel = &t->panel[p];
    const int32_t lanes = panel->lanes, split = panel->split, half = VL * lanes;
    float *to = t->q + (int64_t)panel->row * t->d_qk;
    for (int32_t chunk = 0; chunk < t->d_qk / (2 * VL); chunk++, to += 2 * half) {
      for (int32_t lane = 0; lane < lanes; lane++) { /* pairs of bf16 to their places ... */
        const int32_t row = panel->row + lane;
        const uint16_t *from = row < t->rows && q[row] ? q[row] + chunk * 2 * VL : NULL;
        for (int32_t i = 0; i < VL; i++) {
          uint32_t pair = 0;
          if (from) memcpy(&pair, from + 2 * i, sizeof pair);
          memcpy(to + i / split * split * lanes + lane * split + i % split, &pair, sizeof pair);
        }
      }
      for (int32_t x = 0; x < half; x += VL) { /* ... then whole vectors of pairs to floats */
        const vi pairs = vload_bits(to + x);
        vstore(to + x, veven(pairs));
        vstore(to + half + x, vodd(pairs));
      }
    }
  }
}

static void widen(tile *t, int32_t key, const uint16_t *row) {
  float *to = t->kv + (int64_t)key * TILE_KV;
  for (int32_t d = 0; d < t->d_qk; d += 2 * VL) {
    const vi pairs = vload_bits(row + d);
    vstore(to + d, veven(pairs));
    vstore(to + d + VL, vodd(pairs));
  }
}

/* s[m][n] (+)= sum of kv[m][.] q[.][n] over `columns` columns. */
INLINE void logits_block(const int keys, const int vectors, const int split, int32_t columns, const float *kv, const float *q,
                         float *s, int32_t s_stride, int add) {
  vf sum[16][4];
  UNROLL for (int m = 0; m < keys; m++) UNROLL for (int n = 0; n < vectors; n++) sum[m][n] = vset1(0);
  for (int32_t d = 0; d < columns; d += split, q += vectors * VL) {
    vf b[4];
    UNROLL for (int n = 0; n < vectors; n++) b[n] = vload(q + n * VL);
    UNROLL for (int m = 0; m < keys; m++) {
      const vf a = vrepeat(kv + m * TILE_KV + d, split);
      UNROLL for (int n = 0; n < vectors; n++) sum[m][n] = vfma(a, b[n], sum[m][n]);
    }
  }
  UNROLL for (int m = 0; m < keys; m++) UNROLL for (int n = 0; n < vectors; n++) {
    float *to = s + m * s_stride + n * VL;
    vstore(to, add ? vadd(vload(to), sum[m][n]) : sum[m][n]);
  }
}

static void logits(tile *t, int32_t keys) {
  for (int32_t p = 0; p < t->panels; p++) {
    const tile_panel *panel = &t->panel[p];
    const float *q = t->q + (int64_t)panel->row * t->d_qk;
    const int32_t step = keys_at_once[panel->vectors - 1];
    const int32_t stretch = STRETCH * panel->split;
    for (int32_t d = 0; d < t->d_qk; d += stretch) {
      const int32_t columns = t->d_qk - d < stretch ? t->d_qk - d : stretch;
      for (int32_t k = 0; k < keys; k += step) {
        const float *kv = t->kv + (int64_t)k * TILE_KV + d, *qd = q + (int64_t)d * panel->lanes;
        float *s = t->s + (int64_t)k * t->s_stride + panel->row;
#define BLOCK(M, N, SPLIT) logits_block(M, N, SPLIT, columns, kv, qd, s, t->s_stride, d > 0)
#if defined(__AVX512F__)
        if (panel->vectors == 4) BLOCK(6, 4, 1);
        else if (panel->vectors == 3) BLOCK(8, 3, 1);
        else if (panel->vectors == 2) BLOCK(12, 2, 1);
        else if (panel->split == 1) BLOCK(16, 1, 1);
        else if (panel->split == 2) BLOCK(16, 1, 2);
        else if (panel->split == 4) BLOCK(16, 1, 4);
        else if (panel->split == 8) BLOCK(16, 1, 8);
        else BLOCK(16, 1, 16);
#elif defined(__AVX2__) && defined(__FMA__)
        if (panel->vectors == 2) BLOCK(6, 2, 1);
        else if (panel->split == 1) BLOCK(12, 1, 1);
        else if (panel->split == 2) BLOCK(12, 1, 2);
        else if (panel->split == 4) BLOCK(12, 1, 4);
        else BLOCK(12, 1, 8);
#else
        if (panel->vectors == 2) BLOCK(4, 2, 1);
        else if (panel->split == 1) BLOCK(8, 1, 1);
        else if (panel->split == 2) BLOCK(8, 1, 2);
        else BLOCK(8, 1, 4);
#endif
#undef BLOCK
        fetch_next(t, step * panel->vectors * (columns / panel->split));
      }
    }
    if (panel->split > 1) {
      float *s = t->s + panel->row;
      for (int32_t k = 0; k < keys; k++, s += t->s_stride) vstore(s, vjoin(vload(s), panel->split));
    }
  }
}

static uint64_t softmax(tile *t, int32_t keys, const uint64_t *member) {
  const vf none = vset1(-INFINITY), scale = vset1(t->scale);
  uint64_t bad = 0;
  for (int32_t r = 0; r < t->s_stride; r += VL) {
    float *s = t->s + r;
    const int32_t stride = t->s_stride;
    const vf max_before = vload(t->max + r);
    vf max = max_before;
    if (member) {
      const vi lane_bit = vload_bits(t->lane_bit + r);
      const int half = t->lane_half[r] ? 32 : 0;
      for (int32_t k = 0; k < keys; k++) {
        const vf x = vload(s + k * stride);
        if (r == 0) bad |= (uint64_t)vnone_finite(x) << k; /* a bad KV row spoils its product with every row of q */
        const vf kept = vkeep(x, (uint32_t)(member[k] >> half), lane_bit, none);
        vstore(s + k * stride, kept);
        max = vmax(max, kept);
      }
    } else {
      for (int32_t k = 0; k < keys; k++) max = vmax(max, vload(s + k * stride));
    }
    const vf base = vmax(max, vset1(-3.0e38f)); /* rows without a key yet: keeps -inf - -inf out */
    const vf alpha = vexp2(vmul(vsub(max_before, base), scale));
    vf sum = vmul(vload(t->sum + r), alpha);
    for (int32_t k = 0; k < keys; k++) {
      const vf p = vexp2(vmul(vsub(vload(s + k * stride), base), scale));
      vstore(s + k * stride, p);
      sum = vadd(sum, p);
    }
    vstore(t->max + r, max);
    vstore(t->alpha + r, alpha);
    vstore(t->sum + r, sum);
  }
  return bad;
}

/* o[m][n] = o[m][n] * alpha[m] + sum over the block's keys of s[.][m] kv[.][n]. */
INLINE void values_block(const int rows, const int vectors, int32_t keys, const float *s, int32_t s_stride, const float *kv,
                         float *o, const float *alpha, int first) {
  vf sum[8][8];
  if (first) {
    UNROLL for (int m = 0; m < rows; m++) UNROLL for (int n = 0; n < vectors; n++) sum[m][n] = vset1(0);
  } else {
    UNROLL for (int m = 0; m < rows; m++) {
      const vf shrink = vset1(alpha[m]);
      UNROLL for (int n = 0; n < vectors; n++) sum[m][n] = vmul(vload(o + m * TILE_O + n * VL), shrink);
    }
  }
  for (int32_t k = 0; k < keys; k++, s += s_stride, kv += TILE_KV) {
    vf b[8];
    UNROLL for (int n = 0; n < vectors; n++) b[n] = vload(kv + n * VL);
    UNROLL for (int m = 0; m < rows; m++) {
      const vf a = vset1(s[m]);
      UNROLL for (int n = 0; n < vectors; n++) sum[m][n] = vfma(a, b[n], sum[m][n]);
    }
  }
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int n = 0; n < vectors; n++)
    vstore(o + m * TILE_O + n * VL, sum[m][n]);
}

static void values(tile *t, int32_t keys, int32_t first) {
  int32_t r = 0;
#define ROWS(M, N)                                                                                                      \
  for (int32_t c = 0; c < TILE_V; c += (N) * VL) {                                                                      \
    for (int32_t m = r; m + (M) <= t->rows; m += (M)) {                                                                 \
      values_block(M, N, keys, t->s + m, t->s_stride, t->kv + c, t->o + (int64_t)m * TILE_O + c,          \
                   t->alpha + m, first);                                                                                \
      fetch_next(t, (M) * (N) * keys);                                                                                  \
    }                                                                                                                   \
  }                                                                                                                     \
  r += (t->rows - r) / (M) * (M)
#if defined(__AVX512F__)
  ROWS(8, 2);
  ROWS(4, 4);
  ROWS(2, 8);
  ROWS(1, 8);
#elif defined(__AVX2__) && defined(__FMA__)
  ROWS(6, 2);
  ROWS(4, 2);
  ROWS(2, 4);
  ROWS(1, 8);
#else
  ROWS(4, 2);
  ROWS(2, 4);
  ROWS(1, 8);
#endif
#undef ROWS
}

static void store(const tile *t, int32_t r, float factor, uint16_t *out) {
  const float *o = t->o + (int64_t)r * TILE_O;
  const vf f = vset1(factor);
  for (int32_t c = 0; c < TILE_V; c += 2 * VL)
    vstore_bits(out + c, vnarrow(vmul(vload(o + c), f), vmul(vload(o + c + VL), f)));
}

const fhk_tile_ops TILE_OPS = {VL, PANEL_VECTORS, keys_at_once, pack_q, widen, logits, softmax, values, store};
