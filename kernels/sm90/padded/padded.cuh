/*
 * sm90 padded: what engines do where the kernel takes 64 or 128 heads. A tile is one query: its real heads, then zero
 * heads up to 64, really multiplied; two tiles a query for 128. Only real heads are read from q and written to out. The
 * machinery is sm90/tile.cuh.
 */
#ifndef FEWHEAD_KERNELS_SM90_PADDED_CUH
#define FEWHEAD_KERNELS_SM90_PADDED_CUH

#include "cuda/rows.cuh"
#include "sm90/tile.cuh"

namespace fhk {
namespace sm90_padded {

using sm90_tile::kBlock;
using sm90_tile::kRows;
using sm90_tile::Tile;

struct Padded {
  fh_call call;
  Rows rows;
  int32_t tiles;      /* rows * head_tiles */
  int32_t head_tiles; /* h_pad / 64: 1 or 2 */
  uint32_t kv_rows;   /* s_kv */
  float scale;
  bool aligned_out;

  FHK_DEV int32_t count() const { return rows.count() * head_tiles; }
  /* Some of a call's rows are computed beside the grid in front, which has the others: whoever waits for this one
   * counts on that. */
  FHK_DEV void enter() const {}
  FHK_DEV void leave() const {
    if (blockIdx.x == 0) ptx::wait_for_grid_before();
  }

  FHK_DEV int32_t next(int32_t i) const { return i + static_cast<int32_t>(gridDim.x); }
  FHK_DEV int32_t look(int32_t i) const { return rows.look(i >> (head_tiles - 1)); }
  /* A tile's part is its first head. A row that is lacking has no heads and no entries. */
  FHK_DEV Tile tile(int32_t i, int32_t looked) const {
    const int32_t s = rows.row(i >> (head_tiles - 1), looked), head0 = i & (head_tiles - 1) ? kRows : 0;
    if (s < 0) return {0, call.indices, 0, 0, head0, 0};
    return {
        s, call.indices + s * call.indices_stride, min(max(call.h_q - head0, 0), kRows), list_length(call, s), head0,
        0};
  }
  /* All rows of a tile have the same keys. */
  static constexpr bool kShared = false, kPartial = false;
  FHK_DEV int query_of(int) const { return 0; }
  FHK_DEV uint32_t member(const Tile &tile, uint32_t pos, int) const {
    return ptx::ld_global(reinterpret_cast<const uint32_t *>(tile.list + pos)) < kv_rows;
  }
  FHK_DEV const uint16_t *kv(int32_t entry) const { return call.kv + entry * call.kv_stride; }
  FHK_DEV const uint16_t *q_row(const Tile &tile, int r) const {
    return call.q + tile.first * call.q_stride_s + (tile.part + r) * call.q_stride_h;
  }
  FHK_DEV uint16_t *out_row(const Tile &tile, int r) const {
    return static_cast<uint16_t *>(call.out) + tile.first * call.out_stride_s + (tile.part + r) * call.out_stride_h;
  }
  FHK_DEV float sink(const Tile &tile, int r) const { return sink_of(call, tile.part + r); }
  FHK_DEV void statistics(const Tile &tile, int r, float m, float l) const {
    store_statistics(call, tile.first, tile.part + r, m, l);
  }
};

template <int kD, bool kAligned>
cudaError_t prepare() {
  return sm90_tile::prepare<kD, kAligned, Padded>();
}

template <int kD, bool kAligned>
cudaError_t launch(const fh_call *call, int32_t multiprocessors, cudaStream_t stream) {
  Padded tiling;
  tiling.call = *call;
  tiling.head_tiles = call->h_pad / kRows;
  tiling.rows = rows_of(*call);
  tiling.tiles = static_cast<int32_t>(most_rows(*call) * tiling.head_tiles);
  tiling.kv_rows = static_cast<uint32_t>(call->s_kv);
  tiling.scale = call->sm_scale * kLog2e;
  tiling.aligned_out = aligned(call->out, call->out_stride_s, call->out_stride_h, 2, 16);
  return sm90_tile::launch<kD, kAligned>(tiling, call->path == FH_AUTO, multiprocessors, stream);
}

#define FHK_SM90_PADDED_DECLARE(D, ALIGNED)          \
  extern template cudaError_t prepare<D, ALIGNED>(); \
  extern template cudaError_t launch<D, ALIGNED>(const fh_call *, int32_t, cudaStream_t);
#define FHK_SM90_PADDED_DEFINE(D, ALIGNED)    \
  template cudaError_t prepare<D, ALIGNED>(); \
  template cudaError_t launch<D, ALIGNED>(const fh_call *, int32_t, cudaStream_t);

}  // namespace sm90_padded
}  // namespace fhk

#endif
