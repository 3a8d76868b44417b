/*
 * sm90 packed: the 64 rows of a tile are `group` neighbouring queries x their h_q heads, over the union of the queries' lists,
 * which a plan holds with a bit per query for each entry. Row = query * h_q + head, so the 16 rows of a warp belong to few
 * queries. The machinery is sm90/tile.cuh; here are the row mapping and the mask.
 *
 * With fewer groups than half the multiprocessors a union is split: each of `splits` tiles takes its share of the blocks and
 * leaves O, maximum and sum in the workspace, and a second kernel combines them.
 */
#ifndef FEWHEAD_KERNELS_SM90_PACKED_CUH
#define FEWHEAD_KERNELS_SM90_PACKED_CUH

#include "cuda/cuda.h"
#include "groups.h"
#include "sm90/tile.cuh"

namespace fhk {
namespace sm90_packed {

using sm90_tile::kBlock;
using sm90_tile::kGranule;
using sm90_tile::kRows;

constexpr int kMostSplits = 16;
constexpr int64_t kPartialBytes = kRows * sm90_tile::kDv * 4, kSumsBytes = kRows * 8; /* of a tile */

/* Parts of each union: as many as multiprocessors are left for, but never more than a list of its own could fill with blocks. */
inline int32_t splits_of(const fh_call *call, int32_t multiprocessors) {
  const int64_t groups = fh_groups_most(call->s_q, call->requests, call->group), blocks = (call->topk + kBlock - 1) / kBlock;
  const int64_t room = groups ? multiprocessors / groups : 1, most = room < kMostSplits ? room : kMostSplits;
  const int64_t splits = most < blocks ? most : blocks;
  return splits < 1 ? 1 : static_cast<int32_t>(splits);
}

template <bool kSplit>
struct Packed {
  struct Tile {
    int64_t first;    /* its first query */
    int32_t rows;     /* real rows: queries of the group * h_q */
    uint32_t entries; /* of the union, or of this part of it */
  };

  fh_call call;
  fh_plan plan;       /* packed_from NULL: all groups are packed */
  int32_t tiles;      /* groups * splits */
  int32_t splits;
  float4 *partials;   /* [tiles][2 * 32 * 128] */
  float2 *partial_sums; /* [tiles][64] */
  uint32_t width;     /* plan.capacity */
  uint32_t over_h;    /* ceil(2^16 / h_q): a row below 64 times this, shifted right by 16, is its query */
  float scale;
  bool wide_out;

  FHK_DEV int32_t left_out() const { return plan.packed_from ? __ldg(plan.packed_from) : 0; }
  FHK_DEV int32_t count() const { return tiles - left_out() * splits; }
  /* What follows may begin: it reads no more than what lies before this grid, or waits. */
  FHK_DEV void enter() const {
    ptx::wait_for_grid_before();
    ptx::let_grid_behind_start();
  }
  FHK_DEV void leave() const {}

  FHK_DEV int query_of(int r) const { return static_cast<int>(static_cast<uint32_t>(r) * over_h >> 16); }

  /* i counts in plan order, the longest union first. Every other round is dealt backwards, so that no CTA gets the longest of
   * each. */
  FHK_DEV int32_t next(int32_t i) const {
    const int32_t ctas = static_cast<int32_t>(gridDim.x);
    return 2 * (i / ctas + 1) * ctas - 1 - i;
  }
  FHK_DEV int32_t look(int32_t i) const { return __ldg(plan.order + left_out() + (kSplit ? i / splits : i)); }
  FHK_DEV int32_t peek(int32_t, int32_t group) const { return __ldg(plan.entries + group); }
  /* First block of part i % splits. */
  FHK_DEV int32_t first_block(int32_t part, int32_t entries) const {
    return static_cast<int32_t>((entries + static_cast<int64_t>(kBlock) - 1) / kBlock * part / splits);
  }
  FHK_DEV int64_t skipped(int32_t i, int32_t entries) const {
    return kSplit ? static_cast<int64_t>(first_block(i % splits, entries)) * kBlock : 0;
  }
  FHK_DEV Tile tile(int32_t i, int32_t group, int32_t entries) const {
    const int64_t first = __ldg(plan.first + group);
    const int queries = static_cast<int>(__ldg(plan.first + group + 1) - first);
    if (kSplit) {
      const int32_t end = first_block(i % splits + 1, entries) * kBlock, from = static_cast<int32_t>(skipped(i, entries));
      entries = (end < entries ? end : entries) - from;
    }
    return {first, queries * call.h_q, static_cast<uint32_t>(entries)};
  }
  FHK_DEV int32_t blocks(const Tile &tile) const { return tile.entries == 0 ? 1 : (tile.entries - 1) / kBlock + 1; }
  /* A block's reads end at most 63 entries behind the group's room, inside the plan's memory. */
  FHK_DEV const int32_t *list(int32_t i, int32_t group, int32_t entries) const {
    return plan.token + group * plan.capacity + skipped(i, entries);
  }
  /* What stands behind the union was never written: any number. */
  FHK_DEV bool valid(const Tile &tile, uint32_t pos, int32_t) const { return pos < tile.entries; }
  FHK_DEV const uint16_t *kv(int32_t entry) const { return call.kv + entry * call.kv_stride; }
  FHK_DEV int64_t query(const Tile &tile, int q) const { return tile.first + q; }
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
  FHK_DEV Marks marks(int32_t i, int32_t group, int32_t entries) const {
    return reinterpret_cast<const uint32_t *>(plan.member + group * plan.capacity + skipped(i, entries));
  }
  static constexpr bool kPartial = kSplit;
  FHK_DEV float4 *partial(int32_t i) const { return partials + i * (kPartialBytes / 16); }
  FHK_DEV float2 *sums(int32_t i) const { return partial_sums + i * kRows; }

  /* A row has a bit for each of the 64 entries: ballots turn the entries' masks round, query by query. */
  static constexpr bool kShared = true;
  struct Mask {
    uint32_t member0, member1; /* masks of entries lane and lane + 32 of the coming block: the half with this warp's queries */
    uint32_t low0, high0, low1, high1; /* entries 0..31 and 32..63 of the lane's two rows */

    FHK_DEV void start(const Packed &policy, Marks marks, int32_t n, int warp, int lane) {
      const uint32_t pos = n * kBlock + lane, half = policy.query_of(warp * kGranule) >> 5; /* a warp's 16 rows lie in one half */
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

/* out = sum over parts of 2^(m_part - m) O_part / (l + sink). A CTA takes 64 columns of a group, a thread those that a blending
 * thread would hold. */
constexpr int kCombineParts = 8, kCombineVectors = 2 * 32 / kCombineParts;
template <int kD> /* the same for all: a template may stand in several files */
__global__ void __launch_bounds__(128) combine(const __grid_constant__ Packed<true> policy) {
  ptx::wait_for_grid_before();
  const int t = threadIdx.x, lane = t & 31, vector0 = static_cast<int>(blockIdx.x % kCombineParts) * kCombineVectors;
  const int32_t i = static_cast<int32_t>(blockIdx.x / kCombineParts) * policy.splits;
  if (i >= policy.count()) return;
  const Packed<true>::Tile tile = policy.tile(i, policy.look(i), 0);
  const int r0 = (t >> 5) * kGranule + (lane >> 2), r1 = r0 + 8;
  float m0 = kMaxStart, m1 = kMaxStart;
  for (int32_t k = 0; k < policy.splits; k++) {
    m0 = fmaxf(m0, policy.sums(i + k)[r0].x);
    m1 = fmaxf(m1, policy.sums(i + k)[r1].x);
  }
  float l0 = 0.f, l1 = 0.f;
  float4 o[kCombineVectors] = {};
  for (int32_t k = 0; k < policy.splits; k++) {
    const float2 sum0 = policy.sums(i + k)[r0], sum1 = policy.sums(i + k)[r1];
    const float factor0 = ptx::exp2(sum0.x - m0), factor1 = ptx::exp2(sum1.x - m1);
    l0 = fmaf(sum0.y, factor0, l0);
    l1 = fmaf(sum1.y, factor1, l1);
    const float4 *from = policy.partial(i + k) + vector0 * 128 + t;
#pragma unroll
    for (int v = 0; v < kCombineVectors; v++) {
      const float4 x = from[v * 128];
      o[v].x = fmaf(x.x, factor0, o[v].x), o[v].y = fmaf(x.y, factor0, o[v].y);
      o[v].z = fmaf(x.z, factor1, o[v].z), o[v].w = fmaf(x.w, factor1, o[v].w);
    }
  }
#pragma unroll
  for (int second = 0; second < 2; second++) {
    const int r = second ? r1 : r0;
    const float m = second ? m1 : m0, l = second ? l1 : l0;
    if (r >= tile.rows) continue;
    if (vector0 == 0 && (lane & 3) == 0) policy.statistics(tile, r, m, l);
    const float factor = inverse_denominator(m, l, policy.sink(tile, r));
    uint16_t *row = policy.out_row(tile, r) + vector0 * 8 + 2 * (lane & 3);
#pragma unroll
    for (int v = 0; v < kCombineVectors; v++) {
      const float2 x = second ? make_float2(o[v].z, o[v].w) : make_float2(o[v].x, o[v].y);
      const uint32_t pair = ptx::pack_bf16(x.x * factor, x.y * factor);
      if (policy.wide_out) {
        *reinterpret_cast<uint32_t *>(row + v * 8) = pair;
      } else {
        row[v * 8] = static_cast<uint16_t>(pair);
        row[v * 8 + 1] = static_cast<uint16_t>(pair >> 16);
      }
    }
  }
}

template <int kD, bool kAligned>
cudaError_t prepare() {
  const cudaError_t status = sm90_tile::prepare<kD, kAligned, Packed<false>>();
  return status != cudaSuccess ? status : sm90_tile::prepare<kD, kAligned, Packed<true>>();
}

template <int kD, bool kAligned, bool kSplit>
cudaError_t launch_tiles(const fh_call *call, const fh_plan *plan, int32_t splits, void *partials, const fhk_gpu *gpu,
                         cudaStream_t stream) {
  Packed<kSplit> policy;
  policy.call = *call;
  policy.plan = *plan;
  if (call->path != FH_AUTO) policy.plan.packed_from = nullptr;
  policy.splits = splits;
  policy.tiles = static_cast<int32_t>(plan->groups) * splits;
  policy.partials = static_cast<float4 *>(partials);
  policy.partial_sums = reinterpret_cast<float2 *>(static_cast<char *>(partials) + policy.tiles * kPartialBytes);
  policy.width = static_cast<uint32_t>(plan->capacity);
  policy.over_h = (65536 + call->h_q - 1) / call->h_q;
  policy.scale = call->sm_scale * kLog2e;
  policy.wide_out = aligned(call->out, call->out_stride_s, call->out_stride_h, 2, 16);
  const cudaError_t status = sm90_tile::launch<kD, kAligned>(policy, true, gpu->multiprocessors, stream);
  if constexpr (kSplit) {
    if (status == cudaSuccess)
      return launch_behind(gpu->capability, combine<kD>, plan->groups * kCombineParts, 128, 0, stream, policy);
  }
  return status;
}

/* partials: room for groups * splits tiles, where splits > 1. */
template <int kD, bool kAligned>
cudaError_t launch(const fh_call *call, const fh_plan *plan, int32_t splits, void *partials, const fhk_gpu *gpu,
                   cudaStream_t stream) {
  const auto one = splits > 1 ? launch_tiles<kD, kAligned, true> : launch_tiles<kD, kAligned, false>;
  return one(call, plan, splits, partials, gpu, stream);
}

#define FHK_SM90_PACKED_LAUNCH const fh_call *, const fh_plan *, int32_t, void *, const fhk_gpu *, cudaStream_t
#define FHK_SM90_PACKED_DECLARE(D, ALIGNED)          \
  extern template cudaError_t prepare<D, ALIGNED>(); \
  extern template cudaError_t launch<D, ALIGNED>(FHK_SM90_PACKED_LAUNCH);
#define FHK_SM90_PACKED_DEFINE(D, ALIGNED)    \
  template cudaError_t prepare<D, ALIGNED>(); \
  template cudaError_t launch<D, ALIGNED>(FHK_SM90_PACKED_LAUNCH);

}  // namespace sm90_packed
}  // namespace fhk

#endif
