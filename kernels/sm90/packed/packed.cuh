/*
 * sm90 packed: the 64 rows of a tile are `group` neighbouring queries x their h_q heads, over the union of the queries' lists, which
 * a plan holds with a bit per query for each entry. Row = query * h_q + head, so the 16 rows of a warp belong to few queries. The
 * machinery is sm90/tile.cuh; here are the row mapping and the mask.
 */
#ifndef FEWHEAD_KERNELS_SM90_PACKED_CUH
#define FEWHEAD_KERNELS_SM90_PACKED_CUH

#include "sm90/tile.cuh"

namespace fhk {
namespace sm90_packed {

using sm90_tile::kBlock;
using sm90_tile::kGranule;
using sm90_tile::kRows;

struct Packed {
  struct Tile {
    int32_t group;
    int32_t rows;     /* real rows: queries of the group * h_q */
    uint32_t entries; /* of the union */
  };

  fh_call call;
  fh_plan plan;
  int32_t tiles;      /* groups */
  uint32_t width;     /* plan.capacity */
  uint32_t over_h;    /* ceil(2^16 / h_q): a row below 64 times this, shifted right by 16, is its query */
  float scale;
  bool wide_out;

  FHK_DEV int query_of(int r) const { return static_cast<int>(static_cast<uint32_t>(r) * over_h >> 16); }

  /* i counts in plan order, the longest union first. Every other round is dealt backwards, so that no CTA gets the longest of
   * each. */
  FHK_DEV int32_t next(int32_t i) const {
    const int32_t ctas = static_cast<int32_t>(gridDim.x);
    return 2 * (i / ctas + 1) * ctas - 1 - i;
  }
  FHK_DEV int32_t look(int32_t i) const { return __ldg(plan.order + i); }
  FHK_DEV int32_t peek(int32_t, int32_t group) const { return __ldg(plan.entries + group); }
  FHK_DEV Tile tile(int32_t, int32_t group, int32_t entries) const {
    const int64_t left = call.s_q - static_cast<int64_t>(group) * plan.group;
    const int queries = left < plan.group ? static_cast<int>(left) : plan.group;
    return {group, queries * call.h_q, static_cast<uint32_t>(entries)};
  }
  FHK_DEV int32_t blocks(const Tile &tile) const { return tile.entries == 0 ? 1 : (tile.entries - 1) / kBlock + 1; }
  FHK_DEV const int32_t *list(int32_t, int32_t group) const { return plan.token + group * plan.capacity; }
  FHK_DEV bool valid(const Tile &tile, uint32_t pos, int32_t) const { return pos < tile.entries; }
  FHK_DEV const uint16_t *kv(int32_t entry) const { return call.kv + entry * call.kv_stride; }
  FHK_DEV int64_t query(const Tile &tile, int q) const { return static_cast<int64_t>(tile.group) * plan.group + q; }
  FHK_DEV const uint16_t *q_row(const Tile &tile, int r) const {
    const int q = query_of(r);
    return call.q + query(tile, q) * call.q_stride_s + (r - q * call.h_q) * call.q_stride_h;
  }
  FHK_DEV uint16_t *out_row(const Tile &tile, int r) const {
    const int q = query_of(r);
    return static_cast<uint16_t *>(call.out) + query(tile, q) * call.out_stride_s + (r - q * call.h_q) * call.out_stride_h;
  }
  FHK_DEV float sink(const Tile &, int r) const { return sink_log2(call, r - query_of(r) * call.h_q); }
  FHK_DEV void statistics(const Tile &tile, int r, float m, float l) const {
    const int q = query_of(r);
    store_statistics(call, query(tile, q), r - q * call.h_q, m, l);
  }

  /* Start the group's q towards L2; thread t of 128. A line is 128 bytes. The plan was written shortly before and lies there. */
  FHK_DEV void prefetch(int32_t i, int32_t group, int t) const {
    const Tile next = tile(i, group, 0);
    for (int r = t >> 3; r < next.rows; r += kGranule) {
      const uint16_t *row = q_row(next, r);
      for (int column = (t & 7) * 64; column < call.d_qk; column += 8 * 64) ptx::prefetch_l2(row + column);
    }
  }

  /* Masks of the group's first entry, as 32-bit words: entry e has queries 0..31 in word 2 e, 32..63 in word 2 e + 1. */
  using Marks = const uint32_t *;
  FHK_DEV Marks marks(int32_t, int32_t group) const {
    return reinterpret_cast<const uint32_t *>(plan.member + group * plan.capacity);
  }

  /* A row has a bit for each of the 64 entries: ballots turn the entries' masks round, query by query. */
  static constexpr bool kShared = true;
  struct Mask {
    uint32_t member0, member1; /* masks of entries lane and lane + 32 of the coming block, the half that this warp's queries are in */
    uint32_t low0, high0, low1, high1; /* entries 0..31 and 32..63 of the lane's two rows */

    FHK_DEV void start(const Packed &policy, Marks marks, int32_t n, int warp, int lane) {
      const uint32_t pos = n * kBlock + lane, half = policy.query_of(warp * kGranule) >> 5; /* 16 rows from there lie in one half */
      member0 = pos < policy.width ? __ldg(marks + 2 * static_cast<int64_t>(pos) + half) : 0;
      member1 = pos + 32 < policy.width ? __ldg(marks + 2 * static_cast<int64_t>(pos + 32) + half) : 0;
    }
    FHK_DEV void settle(const Packed &policy, const Tile &tile, int32_t n, int warp, int lane) {
      const uint32_t pos = n * kBlock + lane;
      const uint32_t mine0 = pos < tile.entries ? member0 : 0, mine1 = pos + 32 < tile.entries ? member1 : 0;
      const int row0 = warp * kGranule + (lane >> 2), query0 = policy.query_of(row0), query1 = policy.query_of(row0 + 8);
      const int last = policy.query_of(warp * kGranule + kGranule - 1);
      low0 = high0 = low1 = high1 = 0;
      for (int q = policy.query_of(warp * kGranule); q <= last; q++) {
        const uint32_t low = __ballot_sync(~0u, mine0 >> (q & 31) & 1), high = __ballot_sync(~0u, mine1 >> (q & 31) & 1);
        if (q == query0) low0 = low, high0 = high;
        if (q == query1) low1 = low, high1 = high;
      }
      /* Bit 8 (j % 4) + e: column 8 j + 2 (lane % 4) + e, as the accumulator has it. */
      const int shift = 2 * (lane & 3);
      low0 >>= shift, high0 >>= shift, low1 >>= shift, high1 >>= shift;
    }
    template <typename Replace>
    FHK_DEV void each(float (&s)[32], Replace &&replace) const {
#pragma unroll
      for (int j = 0; j < 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const uint32_t bit = 1u << (8 * (j & 3) + e);
          if (!((j < 4 ? low0 : high0) & bit)) s[4 * j + e] = replace(s[4 * j + e]);
          if (!((j < 4 ? low1 : high1) & bit)) s[4 * j + 2 + e] = replace(s[4 * j + 2 + e]);
        }
      }
    }
    FHK_DEV void hide(float (&s)[32], int) const {
      each(s, [](float x) { return fmaf(x, 0.f, -INFINITY); });
    }
    FHK_DEV void hide_all(float (&s)[32], int) const {
      Mask again = *this; /* looks new to the compiler, which would else keep 64 conditions of hide() for it */
      asm volatile("" : "+r"(again.low0), "+r"(again.high0), "+r"(again.low1), "+r"(again.high1));
      again.each(s, [](float) { return -INFINITY; });
    }
  };
};

template <int kD, bool kAligned>
cudaError_t prepare() {
  return sm90_tile::prepare<kD, kAligned, Packed>();
}

template <int kD, bool kAligned>
cudaError_t launch(const fh_call *call, const fh_plan *plan, int32_t multiprocessors, cudaStream_t stream) {
  Packed policy;
  policy.call = *call;
  policy.plan = *plan;
  policy.tiles = static_cast<int32_t>(plan->groups);
  policy.width = static_cast<uint32_t>(plan->capacity);
  policy.over_h = (65536 + call->h_q - 1) / call->h_q;
  policy.scale = call->sm_scale * kLog2e;
  policy.wide_out = aligned(call->out, call->out_stride_s, call->out_stride_h, 2, 16);
  return sm90_tile::launch<kD, kAligned>(policy, multiprocessors, stream);
}

#define FHK_SM90_PACKED_DECLARE(D, ALIGNED)          \
  extern template cudaError_t prepare<D, ALIGNED>(); \
  extern template cudaError_t launch<D, ALIGNED>(const fh_call *, const fh_plan *, int32_t, cudaStream_t);
#define FHK_SM90_PACKED_DEFINE(D, ALIGNED)    \
  template cudaError_t prepare<D, ALIGNED>(); \
  template cudaError_t launch<D, ALIGNED>(const fh_call *, const fh_plan *, int32_t, cudaStream_t);

}  // namespace sm90_packed
}  // namespace fhk

#endif
