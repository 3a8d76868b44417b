/* The blocks of a tile: what tile.h describes, driven over a list of KV rows. */
#include "cpu/tile.h"

const fhk_tile_ops *fhk_tile_ops_of(int32_t isa) {
  switch (isa) {
#if defined(__x86_64__)
    case FH_ISA_AVX2: return &fhk_tile_avx2;
    case FH_ISA_AVX512:
    case FH_ISA_AVX512_BF16: return &fhk_tile_avx512;
#endif
    default: return &fhk_tile_generic;
  }
}

static int32_t round_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

/* Whole vectors in panels as wide as the kernel takes; what is left over in the narrowest split of a vector that holds it. */
static void make_panels(tile *t, const fhk_tile_ops *ops) {
  const int32_t vector = ops->vector;
  t->panels = 0;
  for (int32_t row = 0; row < t->rows;) {
    tile_panel *p = &t->panel[t->panels++];
    const int32_t left = t->rows - row;
    int32_t vectors = left / vector;
    p->split = 1;
    if (vectors == 0) {
      vectors = 1;
      while (vector / (p->split * 2) >= left) p->split *= 2;
    } else if (left % vector > vector / 2) {
      vectors++;
    }
    p->row = row;
    p->vectors = vectors < ops->panel_vectors ? vectors : ops->panel_vectors;
    p->lanes = p->vectors * vector / p->split;
    row += p->lanes;
  }
}

static void *take(char **at, uint64_t bytes) {
  void *part = *at;
  *at += fhk_align(bytes);
  return part;
}

/* Lays the parts of a tile of t->rows rows out from `base` on; returns their bytes. */
static uint64_t lay_out(tile *t, const fhk_tile_ops *ops, void *base) {
  char *at = base;
  const uint64_t f = sizeof(float), rows = (uint64_t)t->s_stride;
  t->q = take(&at, rows * (uint64_t)t->d_qk * f);
  t->kv = take(&at, TILE_KEYS * TILE_KV * f);
  t->s = take(&at, (TILE_KEYS * rows + (uint64_t)ops->vector) * f);
  t->o = take(&at, (uint64_t)t->rows * TILE_O * f);
  t->max = take(&at, rows * f);
  t->sum = take(&at, rows * f);
  t->alpha = take(&at, rows * f);
  t->lane_bit = take(&at, rows * sizeof(uint32_t));
  t->lane_half = take(&at, rows);
  return (uint64_t)(at - (char *)base);
}

static void shape(tile *t, const fhk_tile_ops *ops, int32_t rows, int32_t d_qk) {
  t->rows = rows;
  t->d_qk = d_qk;
  t->s_stride = round_up(rows, ops->vector);
}

uint64_t fhk_tile_scratch_bytes(const fhk_tile_ops *ops, int32_t rows, int32_t d_qk) {
  tile t;
  static char base[64];
  shape(&t, ops, rows, d_qk);
  return lay_out(&t, ops, base);
}

/* A KV row with NaN or Inf must reach only the rows that list it, but 0 * NaN is NaN: such a row leaves the block's product, and is
 * added to its members one by one. */
static void drop_from_block(tile *t, int32_t key) { memset(t->kv + (int64_t)key * TILE_KV, 0, TILE_V * sizeof(float)); }

static void add_to_members(tile *t, const fhk_tile_ops *ops, const fhk_tile_job *job, int32_t key, uint64_t member, const uint16_t *row) {
  ops->widen(t, key, row);
  const float *v = t->kv + (int64_t)key * TILE_KV;
  for (int32_t r = 0; r < t->rows; r++) {
    if (!(member >> (r / job->rows_per_query) & 1)) continue;
    const float p = t->s[(int64_t)key * t->s_stride + r];
    for (int32_t c = 0; c < TILE_V; c++) t->o[(int64_t)r * TILE_O + c] += p * v[c];
  }
}

uint64_t fhk_tile_run(const fhk_tile_ops *ops, const fh_call *call, const fhk_tile_job *job, void *scratch) {
  tile t;
  shape(&t, ops, job->rows, call->d_qk);
  lay_out(&t, ops, scratch);
  make_panels(&t, ops);
  t.scale = call->sm_scale * 1.44269504f;
  t.kv_base = call->kv;
  t.kv_row = call->kv_stride;
  t.fetch_at = t.fetch_end = NULL;
  for (int32_t r = 0; r < t.s_stride; r++) {
    t.max[r] = -INFINITY;
    t.sum[r] = 0;
    const int32_t query = job->member ? r / job->rows_per_query : 0;
    t.lane_bit[r] = r < t.rows ? (uint32_t)1 << (query & 31) : 0;
    t.lane_half[r] = (uint8_t)(query >> 5);
  }
  if (job->keys) ops->pack_q(&t, job->q);

  uint64_t flops = 0;
  for (int64_t first = 0; first < job->keys; first += TILE_KEYS) {
    const int32_t keys = (int32_t)(job->keys - first < TILE_KEYS ? job->keys - first : TILE_KEYS);
    const int32_t *token = job->token + first;
    const uint64_t *member = job->member ? job->member + first : NULL;
    for (int32_t k = 0; k < keys; k++) ops->widen(&t, k, call->kv + token[k] * call->kv_stride);
    uint64_t products = 0; /* of one column, over the panels; and the rows past the last key that a panel's kernel takes along */
    int32_t taken = keys;
    for (int32_t p = 0; p < t.panels; p++) {
      const int32_t computed = round_up(keys, ops->keys_at_once[t.panel[p].vectors - 1]);
      products += (uint64_t)computed * (uint64_t)t.panel[p].lanes;
      if (computed > taken) taken = computed;
    }
    memset(t.kv + (int64_t)keys * TILE_KV, 0, (size_t)(taken - keys) * TILE_KV * sizeof(float));
    products *= (uint64_t)t.d_qk;
    products += (uint64_t)keys * (uint64_t)t.rows * TILE_V;
    flops += 2 * products;

    const int64_t left = job->keys - first - keys;
    t.fetch_token = token + keys;
    t.fetch_tokens = (int32_t)(left < TILE_KEYS ? left : TILE_KEYS);
    t.fetch_credit = 0;
    t.fetch_rate = (float)(t.fetch_tokens * t.d_qk / 32 * ops->vector) / (float)products;

    ops->logits(&t, keys);
    const uint64_t bad = ops->softmax(&t, keys, member);
    for (uint64_t b = bad; b; b &= b - 1) drop_from_block(&t, __builtin_ctzll(b));
    ops->values(&t, keys, first == 0);
    for (uint64_t b = bad; b; b &= b - 1) {
      const int32_t k = __builtin_ctzll(b);
      add_to_members(&t, ops, job, k, member[k], call->kv + token[k] * call->kv_stride);
    }
  }

  for (int32_t r = 0; r < t.rows; r++) {
    const int empty = t.max[r] == -INFINITY;
    const double max = (double)t.max[r] * (double)call->sm_scale, sum = (double)t.sum[r];
    if (job->out[r]) {
      if (empty) memset(job->out[r], 0, TILE_V * sizeof(uint16_t));
      else ops->store(&t, r, (float)(1 / (sum + exp((double)job->sink[r] - max))), job->out[r]);
    }
    if (job->lse[r]) *job->lse[r] = empty ? INFINITY : (float)(max + log(sum));
    if (job->max_logits[r]) *job->max_logits[r] = empty ? -INFINITY : (float)max;
  }
  return flops;
}
