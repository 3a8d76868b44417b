/*
 * sm90 padded: what engines do where the kernel takes 64 or 128 heads. A tile is one query: its real heads, then zero heads up to
 * 64, really multiplied; two tiles a query for 128. Only real heads are read from q and written to out. The machinery is
 * sm90/tile.cuh.
 */
#ifndef FEWHEAD_KERNELS_SM90_PADDED_CUH
#define FEWHEAD_KERNELS_SM90_PADDED_CUH

#include "cuda/rows.cuh"
#include "sm90/tile.cuh"

namespace fhk {
namespace sm90_padded {

using sm90_tile::kBlock;
using sm90_tile::kRows;

struct Padded {
  struct Tile {
    int32_t s;        /* -1: a row that is lacking */
    int32_t head0;    /* first head */
    int32_t rows;     /* real heads, 0 .. 64 */
    uint32_t length;  /* entries of the list that count */
  };

  fh_call call;
  Rows rows;
  int32_t tiles;      /* rows * head_tiles */
  int32_t head_tiles; /* h_pad / 64: 1 or 2 */
  uint32_t width;     /* topk */
  float scale;
  bool wide_out;

  FHK_DEV int32_t count() const { return rows.count() * head_tiles; }
  /* Some of a call's rows are computed beside the grid in front, which has the others: whoever waits for this one counts on that. */
  FHK_DEV void enter() const {}
  FHK_DEV void leave() const {
    if (blockIdx.x == 0) ptx::wait_for_grid_before();
  }

  FHK_DEV int32_t next(int32_t i) const { return i + static_cast<int32_t>(gridDim.x); }
  FHK_DEV int32_t look(int32_t i) const { return rows.look(i >> (head_tiles - 1)); }
  FHK_DEV int32_t query(int32_t i, int32_t looked) const { return rows.row(i >> (head_tiles - 1), looked); }
  FHK_DEV int32_t peek(int32_t i, int32_t looked) const {
    const int32_t s = query(i, looked);
    return s < 0 ? 0 : call.topk_length ? __ldg(call.topk_length + s) : static_cast<int32_t>(width);
  }
  FHK_DEV Tile tile(int32_t i, int32_t looked, int32_t peeked) const {
    const int32_t s = query(i, looked), head0 = i & (head_tiles - 1) ? kRows : 0, left = s < 0 ? 0 : call.h_q - head0;
    const int32_t length = peeked < 0 ? 0 : peeked;
    return {s, head0, left < 0 ? 0 : left < kRows ? left : kRows, min(static_cast<uint32_t>(length), width)};
  }
  FHK_DEV int32_t blocks(const Tile &tile) const { return tile.length == 0 ? 1 : (tile.length - 1) / kBlock + 1; }
  FHK_DEV const int32_t *list(int32_t i, int32_t looked, int32_t) const {
    const int32_t s = query(i, looked);
    return call.indices + (s < 0 ? 0 : s) * call.indices_stride;
  }
  using Marks = const int32_t *;
  FHK_DEV Marks marks(int32_t i, int32_t looked, int32_t peeked) const { return list(i, looked, peeked); }
  FHK_DEV bool valid(const Tile &tile, uint32_t pos, int32_t entry) const {
    return pos < tile.length && static_cast<uint32_t>(entry) < static_cast<uint32_t>(call.s_kv);
  }
  FHK_DEV const uint16_t *kv(int32_t entry) const { return call.kv + entry * call.kv_stride; }
  FHK_DEV const uint16_t *q_row(const Tile &tile, int r) const {
    return call.q + tile.s * call.q_stride_s + (tile.head0 + r) * call.q_stride_h;
  }
  FHK_DEV uint16_t *out_row(const Tile &tile, int r) const {
    return static_cast<uint16_t *>(call.out) + tile.s * call.out_stride_s + (tile.head0 + r) * call.out_stride_h;
  }
  FHK_DEV float sink(const Tile &tile, int r) const { return sink_log2(call, tile.head0 + r); }
  FHK_DEV void statistics(const Tile &tile, int r, float m, float l) const {
    store_statistics(call, tile.s, tile.head0 + r, m, l);
  }

  /* Start tile i's heads and list towards L2; thread t of 128. A line is 128 bytes. */
  FHK_DEV void prefetch(int32_t i, int32_t looked, int t) const {
    const Tile next = tile(i, looked, 0);
    const int lines = (call.d_qk * 2 + 127) / 128;
    for (int line = t; line < next.rows * lines; line += 128) ptx::prefetch_l2(q_row(next, line / lines) + line % lines * 64);
    const int32_t *entries = list(i, looked, 0);
    for (uint32_t pos = t * 32; pos < width; pos += 128 * 32) ptx::prefetch_l2(entries + pos);
  }

  /* Every row of a tile has the same keys: bit j of `valid` belongs to entry j of the block. */
  static constexpr bool kShared = false, kPartial = false;
  struct Mask {
    int32_t entry0, entry1; /* entries lane and lane + 32 of the coming block */
    uint32_t low, high;
    FHK_DEV void start(const Padded &policy, const int32_t *list, int32_t n, int, int lane) {
      entry0 = sm90_tile::entry_at(list, policy.width, n * kBlock + lane);
      entry1 = sm90_tile::entry_at(list, policy.width, n * kBlock + lane + 32);
    }
    FHK_DEV void settle(const Padded &policy, const Tile &tile, int32_t n, int, int lane) {
      low = __ballot_sync(~0u, policy.valid(tile, n * kBlock + lane, entry0));
      high = __ballot_sync(~0u, policy.valid(tile, n * kBlock + lane + 32, entry1));
    }
    FHK_DEV void hide(float (&s)[32], int lane) const {
      if ((low & high) == ~0u) return;
      const uint32_t word0 = low >> 2 * (lane & 3), word1 = high >> 2 * (lane & 3);
#pragma unroll
      for (int j = 0; j < 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if (!((j < 4 ? word0 : word1) >> (8 * (j & 3) + e) & 1)) s[4 * j + e] = s[4 * j + 2 + e] = -INFINITY;
        }
      }
    }
  };
};

template <int kD, bool kAligned>
cudaError_t prepare() {
  return sm90_tile::prepare<kD, kAligned, Padded>();
}

template <int kD, bool kAligned>
cudaError_t launch(const fh_call *call, int32_t multiprocessors, cudaStream_t stream) {
  Padded policy;
  policy.call = *call;
  policy.head_tiles = call->h_pad / kRows;
  policy.rows = rows_of(*call);
  policy.tiles = static_cast<int32_t>(most_rows(*call) * policy.head_tiles);
  policy.width = static_cast<uint32_t>(call->topk);
  policy.scale = call->sm_scale * kLog2e;
  policy.wide_out = aligned(call->out, call->out_stride_s, call->out_stride_h, 2, 16);
  return sm90_tile::launch<kD, kAligned>(policy, call->path == FH_AUTO, multiprocessors, stream);
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
