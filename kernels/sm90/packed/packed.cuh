/*
 * sm90 packed: the 64 rows of a tile are `group` neighbouring queries x their h_q heads, over the union of the queries'
 * lists, which a plan holds with a bit per query for each entry. Row = query * h_q + head, so the 16 rows of a warp
 * belong to few queries. The machinery is sm90/tile.cuh; here is the row mapping.
 *
 * With fewer groups than half the multiprocessors a union is split: each of `splits` tiles takes its share of the
 * blocks and leaves O, maximum and sum in the workspace, and a second kernel combines them.
 *
 * What the plan's memory holds is data: whatever it is, group numbers, rows and entries are clamped as they are read,
 * and no address is bad.
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
using sm90_tile::Tile;

constexpr int kMostSplits = 16;
constexpr int64_t kPartialBytes = kRows * sm90_tile::kDv * 4, kSumsBytes = kRows * 8; /* of a tile */

/* Parts of each union: as many as multiprocessors are left for, but never more than a list of its own could fill
 * with blocks. */
inline int32_t splits_of(const fh_call *call, int32_t multiprocessors) {
  const int64_t groups = fh_groups_most(call->s_q, call->requests, call->group),
                blocks = (call->topk + kBlock - 1) / kBlock;
  const int64_t room = groups ? multiprocessors / groups : 1, most = room < kMostSplits ? room : kMostSplits;
  const int64_t splits = most < blocks ? most : blocks;
  return splits < 1 ? 1 : static_cast<int32_t>(splits);
}

template <bool kSplit>
struct Packed {
  fh_call call;
  fh_plan plan;  /* packed_from NULL: all groups are packed */
  int32_t tiles; /* groups * splits */
  int32_t splits;
  float4 *partials;     /* [tiles][2 * 32 * 128] */
  float2 *partial_sums; /* [tiles][64] */
  uint32_t kv_rows;     /* s_kv */
  uint32_t over_h;      /* ceil(2^16 / h_q): a row below 64 times this, shifted right by 16, is its query */
  float scale;
  bool aligned_out;

  FHK_DEV int32_t left_out() const {
    return plan.packed_from ? min(static_cast<uint32_t>(__ldg(plan.packed_from)), static_cast<uint32_t>(plan.groups))
                            : 0;
  }
  FHK_DEV int32_t count() const { return tiles - left_out() * splits; }
  /* What follows may begin: it reads no more than what lies before this grid, or waits. Not so combine, where no
   * other kernel is to run beside this one: its CTAs would crowd on the few multiprocessors that are free, and work
   * there. */
  FHK_DEV void enter() const {
    ptx::wait_for_grid_before();
    if (!kSplit || plan.packed_from) ptx::let_grid_behind_start();
  }
  FHK_DEV void leave() const {}

  FHK_DEV int query_of(int r) const { return static_cast<int>(static_cast<uint32_t>(r) * over_h >> 16); }

  /* i counts in plan order, the longest union first. Every other round is dealt backwards, so that no CTA gets the
   * longest of each. */
  FHK_DEV int32_t next(int32_t i) const {
    const int32_t ctas = static_cast<int32_t>(gridDim.x);
    return 2 * (i / ctas + 1) * ctas - 1 - i;
  }
  FHK_DEV int32_t look(int32_t i) const { return __ldg(plan.order + left_out() + (kSplit ? i / splits : i)); }
  /* First block of part i % splits. */
  FHK_DEV int32_t first_block(int32_t part, int32_t entries) const {
    return static_cast<int32_t>((entries + static_cast<int64_t>(kBlock) - 1) / kBlock * part / splits);
  }
  FHK_DEV Tile tile(int32_t i, int32_t looked) const {
    const uint32_t group =
        min(static_cast<uint32_t>(looked), static_cast<uint32_t>(plan.groups) - 1); /* a negative number is large */
    const int32_t entries =
        min(static_cast<uint32_t>(__ldg(plan.entries + group)), static_cast<uint32_t>(plan.capacity));
    const uint64_t all = static_cast<uint64_t>(call.s_q);
    const uint64_t first = min(static_cast<uint64_t>(__ldg(plan.first + group)), all);
    const uint64_t behind = min(static_cast<uint64_t>(__ldg(plan.first + group + 1)), all);
    const int32_t queries =
        behind > first ? static_cast<int32_t>(min(behind - first, static_cast<uint64_t>(plan.group))) : 0;
    const int32_t from = kSplit ? first_block(i % splits, entries) * kBlock : 0;
    const int32_t end = kSplit ? min(first_block(i % splits + 1, entries) * kBlock, entries) : entries;
    return {static_cast<int64_t>(first),
            plan.token + group * plan.capacity + from,
            queries * call.h_q,
            static_cast<uint32_t>(end - from),
            i,
            0};
  }
  /* Which of the queries 0..31 (half 0) or 32..63 chose the entry. */
  FHK_DEV uint32_t member(const Tile &tile, uint32_t pos, int half) const {
    return ptx::ld_global(reinterpret_cast<const uint32_t *>(plan.member + (tile.list - plan.token) + pos) + half);
  }
  FHK_DEV const uint16_t *kv(int32_t entry) const { return call.kv + entry * call.kv_stride; }
  FHK_DEV int64_t query(const Tile &tile, int q) const { return tile.first + q; }
  FHK_DEV const uint16_t *q_row(const Tile &tile, int r) const {
    const int q = query_of(r);
    return call.q + query(tile, q) * call.q_stride_s + (r - q * call.h_q) * call.q_stride_h;
  }
  FHK_DEV uint16_t *out_row(const Tile &tile, int r) const {
    const int q = query_of(r);
    return static_cast<uint16_t *>(call.out) + query(tile, q) * call.out_stride_s +
           (r - q * call.h_q) * call.out_stride_h;
  }
  FHK_DEV float sink(const Tile &, int r) const { return sink_of(call, r - query_of(r) * call.h_q); }
  FHK_DEV void statistics(const Tile &tile, int r, float m, float l) const {
    const int q = query_of(r);
    store_statistics(call, query(tile, q), r - q * call.h_q, m, l);
  }

  static constexpr bool kPartial = kSplit;
  FHK_DEV float4 *partial(const Tile &tile, int part = 0) const {
    return partials + (tile.part + part) * (kPartialBytes / 16);
  }
  FHK_DEV float2 *sums(const Tile &tile, int part = 0) const { return partial_sums + (tile.part + part) * kRows; }

  static constexpr bool kShared = true;
};

/* out = sum over parts of 2^(m_part - m) O_part / (l + sink). A CTA takes 64 columns of a group, a thread those that
 * a PV thread would hold. */
constexpr int kCombineParts = 8, kCombineVectors = 2 * 32 / kCombineParts;
template <int kD> /* the same for all: a template may stand in several files */
__global__ void __launch_bounds__(128) combine(const __grid_constant__ Packed<true> tiling) {
  ptx::wait_for_grid_before();
  const int t = threadIdx.x, lane = t & 31, vector0 = static_cast<int>(blockIdx.x % kCombineParts) * kCombineVectors;
  const int32_t i = static_cast<int32_t>(blockIdx.x / kCombineParts) * tiling.splits;
  if (i >= tiling.count()) return;
  const Tile tile = tiling.tile(i, tiling.look(i));
  const int r0 = (t >> 5) * kGranule + (lane >> 2), r1 = r0 + 8;
  float m0 = kMaxStart, m1 = kMaxStart;
  for (int32_t k = 0; k < tiling.splits; k++) {
    m0 = fmaxf(m0, tiling.sums(tile, k)[r0].x);
    m1 = fmaxf(m1, tiling.sums(tile, k)[r1].x);
  }
  float l0 = 0.f, l1 = 0.f;
  float4 o[kCombineVectors] = {};
  for (int32_t k = 0; k < tiling.splits; k++) {
    const float2 sum0 = tiling.sums(tile, k)[r0], sum1 = tiling.sums(tile, k)[r1];
    const float factor0 = ptx::exp2(sum0.x - m0), factor1 = ptx::exp2(sum1.x - m1);
    l0 = fmaf(sum0.y, factor0, l0);
    l1 = fmaf(sum1.y, factor1, l1);
    const float4 *from = tiling.partial(tile, k) + vector0 * 128 + t;
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
    if (vector0 == 0 && (lane & 3) == 0) tiling.statistics(tile, r, m, l);
    const float factor = inverse_denominator(m, l, tiling.sink(tile, r) * kLog2e);
    uint16_t *row = tiling.out_row(tile, r) + vector0 * 8 + 2 * (lane & 3);
#pragma unroll
    for (int v = 0; v < kCombineVectors; v++) {
      const float2 x = second ? make_float2(o[v].z, o[v].w) : make_float2(o[v].x, o[v].y);
      const uint32_t pair = ptx::pack_bf16(x.x * factor, x.y * factor);
      if (tiling.aligned_out) {
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
  Packed<kSplit> tiling;
  tiling.call = *call;
  tiling.plan = *plan;
  if (call->path != FH_AUTO) tiling.plan.packed_from = nullptr;
  tiling.splits = splits;
  tiling.tiles = static_cast<int32_t>(plan->groups) * splits;
  tiling.partials = static_cast<float4 *>(partials);
  tiling.partial_sums = reinterpret_cast<float2 *>(static_cast<char *>(partials) + tiling.tiles * kPartialBytes);
  tiling.kv_rows = static_cast<uint32_t>(call->s_kv);
  tiling.over_h = (65536 + call->h_q - 1) / call->h_q;
  tiling.scale = call->sm_scale * kLog2e;
  tiling.aligned_out = aligned(call->out, call->out_stride_s, call->out_stride_h, 2, 16);
  const cudaError_t status = sm90_tile::launch<kD, kAligned>(tiling, true, gpu->multiprocessors, stream);
  if constexpr (kSplit) {
    if (status == cudaSuccess)
      return launch_behind(gpu->capability, combine<kD>, plan->groups * kCombineParts, 128, 0, stream, tiling);
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
