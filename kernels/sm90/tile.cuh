/*
 * The 64-row tile of sm90: O[64 x 512] = softmax(Q[64 x d] K^T) V over a list of KV rows; what a row is, a policy says.
 *
 * One persistent CTA of four warpgroups an SM. Blocks of 64 list entries, and the tiles they belong to, follow without a gap:
 *
 *   warpgroup 3: fetch            warpgroup 0: score                  warpgroups 1, 2: blend, 256 columns each
 *   wait empty[slot] <------------------------------------------------ arrive empty[slot] once PV has read it
 *   cp.async 64 rows x 256 B
 *   arrive full[slot] ----------> S += Q[quarter] K[quarter]^T
 *                                 after the first quarter:
 *                                 arrive given[warp] of block n - 1 > P = 2^(scale S - maximum), in registers
 *                                 mask, running row maximum           arrive taken[warp]
 *                                 wait taken[warp] <-----------------
 *                                 S and maximum to shared memory      O = O * shrink + P V
 *
 * The weights are computed twice, once by either PV warpgroup, so that the chain QK -> maximum -> next QK holds no exponential:
 * the tensor cores work on the scores of block n + 1 while block n is weighed. S travels in the order of the accumulator
 * fragments, which is also the order of the A fragments of P: no swizzle, no bank conflict, no proxy fence.
 *
 * Half of Q lives in the registers of warpgroup 0, the rest in shared memory: wgmma's operands may take at most 32 registers less
 * than a thread has, and O with a block's P take 144 of 176. A tile's Q passes through the ring, 16 rows a slot, so that few real
 * rows cost few slots. The scores of a block are given away once the first quarter of the next ones is queued: at once, PV would
 * fill the tensor pipe first, and the scores, which the longest chain waits for, would queue behind it.
 *
 * A policy is a struct that is passed to the kernel by value:
 *   int32_t tiles                        tiles of the launch at most, below 2^31 - 2^16
 *   int32_t count()                      how many there are
 *   void enter(), void leave()           first and last in every CTA: what the grid owes those in front of it and behind it
 *   uint32_t width                       entries of a list that may be read
 *   Tile                                 with int rows: rows 0 .. rows - 1 are real; the others are zeros and never stored
 *   int32_t next(int32_t i)              the tile that the CTA takes after tile i; the first one is blockIdx.x
 *   int32_t look(int32_t i)              a load that the others need, two tiles early
 *   int32_t peek(int32_t i, int32_t looked)              a load that tile() needs, one tile early
 *   Tile tile(int32_t i, int32_t looked, int32_t peeked) rows do not depend on peeked
 *   int32_t blocks(tile)                 at least 1
 *   const int32_t *list(int32_t i, int32_t looked, int32_t peeked) KV rows of the entries
 *   void prefetch(int32_t i, int32_t looked, int t)      start what tile i needs from DRAM towards L2; thread t of 128
 *   bool valid(tile, uint32_t pos, int32_t entry)
 *   const uint16_t *kv(int32_t entry)    the KV row
 *   const uint16_t *q_row(tile, int r), uint16_t *out_row(tile, int r)
 *   float sink(tile, int r), void statistics(tile, int r, float m, float l)
 *   float scale                          sm_scale * log2(e)
 *   bool wide_out                        out rows start on multiples of 16 bytes
 *   static constexpr bool kPartial       a tile has a part of its rows' keys. Then, in place of out_row, sink and statistics:
 *                                        float4 *partial(i): O before the division, in accumulator order: float4 k of the 32 of
 *                                        thread t of half h at (32 h + k) 128 + t; float2 *sums(i): (maximum, sum) of each row
 *   Marks marks(int32_t i, int32_t looked, int32_t peeked)         what Mask reads
 *   Mask                                 start(policy, marks, n, warp, lane): begin loading what block n needs, a block ahead;
 *                                        settle(policy, tile, n, warp, lane): make what hide needs of it;
 *                                        hide(s, lane): scores of pairs that do not belong together to -inf
 *   static constexpr bool kShared        rows of a tile have different keys. Then hide() makes NaN of a pair whose score is not
 *                                        finite, and hide_all(s, lane) hides every one
 *
 * Isolation, where kShared: the weight 0 of a masked pair times a NaN or an Inf of V would reach a row that never chose that key.
 * Such a KV row shows in the scores of every row, 0 * Inf = NaN included. So the row maximum, taken so that NaN wins, is the
 * test, at no cost beside one vote a block; the scoring warp that sees it overwrites the bad V rows with zeros before it gives
 * its scores away. Rows that did choose the key keep its NaN, which their weights carry.
 */
#ifndef FEWHEAD_KERNELS_SM90_TILE_CUH
#define FEWHEAD_KERNELS_SM90_TILE_CUH

#include "cuda/common.cuh"

namespace fhk {
namespace sm90_tile {

constexpr int kThreads = 512;
constexpr int kScoreRegs = 128, kBlendRegs = 176, kFetchRegs = 32; /* 128 + 2 * 176 + 32 = 4 * 128, what the launch allots */
constexpr int kRows = 64, kBlock = 64, kDv = 512;
constexpr int kGranule = 16;                        /* rows of a warp, and of Q in one slot of the ring */
constexpr uint32_t kSlotBytes = 2 * kChunkBytes;    /* a quarter of a block, 64 rows x 128 columns; or 16 rows of Q x 512 */
constexpr uint32_t kGranuleChunk = kGranule * 128;  /* 16 rows x 64 columns */
constexpr int kQuarters = 4;
constexpr int kRegisterSteps = 16;                  /* k16 steps of Q that live in registers */
constexpr int kTailChunks = kDv / 64 - kRegisterSteps / 4; /* chunks of Q up to column 511 that are read from shared memory */

template <int kD>
struct Shape {
  static_assert(kD == 512 || kD == 576, "columns past 512 are one chunk at most");
  static constexpr bool kRope = kD > kDv;           /* columns 512 .. 575: scores only */
  static constexpr int kSlots = kRope ? 10 : 11;
  /* Shared memory, bytes from a 1024-byte boundary. */
  static constexpr uint32_t kQueryTail = 0;         /* Q from column 256 on, [64 rows x 64 columns] chunks */
  static constexpr uint32_t kRing = kQueryTail + (kTailChunks + (kRope ? 1 : 0)) * kChunkBytes;
  static constexpr uint32_t kRopeSlot = kRing + kSlots * kSlotBytes;
  static constexpr uint32_t kScores = kRopeSlot + (kRope ? kChunkBytes : 0); /* fp32, eight float4 a thread */
  static constexpr uint32_t kMaxima = kScores + kRows * kBlock * 4;          /* two floats in 16 bytes a thread */
  static constexpr uint32_t kBarriers = kMaxima + 128 * 16;
  static constexpr uint32_t kBytes = kBarriers + (2 * kSlots + 2 + 8) * 8;
  static_assert(kBytes <= 227 * 1024, "more shared memory than a CTA can have");
};

template <int kD>
struct Barriers {
  using X = Shape<kD>;
  uint32_t base;
  FHK_DEV uint32_t full(uint32_t slot) const { return base + slot * 8; }                     /* 128 fetching threads */
  FHK_DEV uint32_t empty(uint32_t slot) const { return base + (X::kSlots + slot) * 8; }      /* the 4 warps that read it last */
  FHK_DEV uint32_t rope_full() const { return base + 2 * X::kSlots * 8; }                    /* 128 fetching threads */
  FHK_DEV uint32_t rope_empty() const { return base + (2 * X::kSlots + 1) * 8; }             /* 4 scoring warps */
  FHK_DEV uint32_t given(int warp) const { return base + (2 * X::kSlots + 2 + warp) * 8; }   /* scoring warp `warp` */
  FHK_DEV uint32_t taken(int warp) const { return base + (2 * X::kSlots + 6 + warp) * 8; }   /* warp `warp` of both others */
  FHK_DEV void init() const {
    for (uint32_t i = 0; i < X::kSlots; i++) {
      ptx::mbar_init(full(i), 128);
      ptx::mbar_init(empty(i), 4 * kWarpArrivals);
    }
    ptx::mbar_init(rope_full(), 128);
    ptx::mbar_init(rope_empty(), 4 * kWarpArrivals);
    for (int w = 0; w < 4; w++) {
      ptx::mbar_init(given(w), kWarpArrivals);
      ptx::mbar_init(taken(w), 2 * kWarpArrivals);
    }
    ptx::fence_mbar_init();
  }
};

/* Position in the ring. All roles step through the same slots: per tile those of Q, then four a block. */
template <int kSlots>
struct Ring {
  uint32_t slot = 0, phase = 0;
  FHK_DEV void skip(uint32_t n) { /* n <= kSlots */
    slot += n;
    const bool wrapped = slot >= kSlots;
    slot -= wrapped ? kSlots : 0;
    phase ^= wrapped ? 1 : 0;
  }
  FHK_DEV Ring ahead(uint32_t n) const {
    Ring r = *this;
    r.skip(n);
    return r;
  }
};

template <typename Tile>
FHK_DEV int granules(const Tile &tile) { return (tile.rows + kGranule - 1) / kGranule; }
/* Ring slots of a tile's Q: one a granule, and one for what all rows have past column 512. */
template <int kD, typename Tile>
FHK_DEV int query_slots(const Tile &tile) { return granules(tile) + (Shape<kD>::kRope && tile.rows > 0 ? 1 : 0); }

FHK_DEV int32_t entry_at(const int32_t *list, uint32_t width, uint32_t pos) { return pos < width ? __ldg(list + pos) : -1; }

/* ---- Warpgroup 3. Thread t copies 16-byte unit t % 8 of rows t / 8 + {0, 16, 32, 48}: eight threads cover 128 bytes ---- */

/* kAligned: rows of q and kv start on multiples of 16 bytes. Otherwise elements travel one by one, correct and slow. */
template <bool kAligned>
FHK_DEV void copy_unit(uint32_t dst, const uint16_t *src, bool real) {
  if constexpr (kAligned) {
    ptx::cp_async16(dst, src, real ? 16 : 0);
  } else {
    uint32_t v[4] = {0, 0, 0, 0};
    if (real) {
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = __ldg(src + 2 * i) | static_cast<uint32_t>(__ldg(src + 2 * i + 1)) << 16;
    }
    ptx::st_shared4(dst, v[0], v[1], v[2], v[3]);
  }
}
template <bool kAligned>
FHK_DEV void copies_arrive(uint32_t bar) {
  if constexpr (kAligned) ptx::cp_async_arrive(bar);
  else ptx::mbar_arrive(bar);
}

template <int kD, bool kAligned, typename Policy>
FHK_DEV void fetch(const Policy &policy, int32_t tiles, uint32_t smem, int t) {
  using X = Shape<kD>;
  const Barriers<kD> bar{smem + X::kBarriers};
  const int row0 = t >> 3, unit = t & 7;
  const uint32_t mine = swizzled(row0, unit);
  Ring<X::kSlots> ring;
  uint32_t rope_phase = 1;
  int32_t i = blockIdx.x, next = policy.next(i);
  int32_t looked = policy.look(i), looked_next = next < tiles ? policy.look(next) : 0;
  int32_t entries[4];
  int32_t peeked = policy.peek(i, looked);
  const int32_t *list = policy.list(i, looked, peeked);
  auto start_entries = [&](const int32_t *from, uint32_t width, int32_t n) {
#pragma unroll
    for (int k = 0; k < 4; k++) entries[k] = entry_at(from, width, n * kBlock + row0 + 16 * k);
  };
  start_entries(list, policy.width, 0);
  while (i < tiles) {
    const typename Policy::Tile tile = policy.tile(i, looked, peeked);
    const bool more = next < tiles;
    looked = looked_next;
    if (more) {
      const int32_t after = policy.next(next);
      if (after < tiles) looked_next = policy.look(after);
      peeked = policy.peek(next, looked);
      policy.prefetch(next, looked, t);
    }
    /* ---- Q: 16 rows a slot */
    for (int g = 0; g < granules(tile); g++) {
      const int r = g * kGranule + row0;
      const uint16_t *src = policy.q_row(tile, r < tile.rows ? r : 0) + unit * 8;
      const uint32_t dst = smem + X::kRing + ring.slot * kSlotBytes + mine;
      ptx::mbar_wait(bar.empty(ring.slot), ring.phase ^ 1);
#pragma unroll
      for (int c = 0; c < kDv / 64; c++) copy_unit<kAligned>(dst + c * kGranuleChunk, src + c * 64, r < tile.rows);
      copies_arrive<kAligned>(bar.full(ring.slot));
      ring.skip(1);
    }
    if (X::kRope && tile.rows > 0) {
      const uint32_t dst = smem + X::kRing + ring.slot * kSlotBytes + mine;
      ptx::mbar_wait(bar.empty(ring.slot), ring.phase ^ 1);
      for (int g = 0; g < granules(tile); g++) {
        const int r = g * kGranule + row0;
        copy_unit<kAligned>(dst + g * kGranuleChunk, policy.q_row(tile, r < tile.rows ? r : 0) + kDv + unit * 8, r < tile.rows);
      }
      copies_arrive<kAligned>(bar.full(ring.slot));
      ring.skip(1);
    }
    /* ---- K = V */
    const int32_t blocks = policy.blocks(tile);
    for (int32_t n = 0; n < blocks; n++) {
      const uint16_t *src[4];
      bool real[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        real[k] = policy.valid(tile, n * kBlock + row0 + 16 * k, entries[k]);
        src[k] = policy.kv(real[k] ? entries[k] : 0) + unit * 8;
      }
      if (n + 1 < blocks) {
        start_entries(list, policy.width, n + 1);
      } else if (more) {
        list = policy.list(next, looked, peeked);
        start_entries(list, policy.width, 0);
      }
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; quarter++) {
        const uint32_t dst = smem + X::kRing + ring.slot * kSlotBytes + mine;
        ptx::mbar_wait(bar.empty(ring.slot), ring.phase ^ 1);
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
          for (int k = 0; k < 4; k++)
            copy_unit<kAligned>(dst + c * kChunkBytes + k * kGranuleChunk, src[k] + (quarter * 2 + c) * 64, real[k]);
        }
        copies_arrive<kAligned>(bar.full(ring.slot));
        ring.skip(1);
      }
      if constexpr (X::kRope) {
        const uint32_t dst = smem + X::kRopeSlot + mine;
        ptx::mbar_wait(bar.rope_empty(), rope_phase);
        rope_phase ^= 1;
#pragma unroll
        for (int k = 0; k < 4; k++) copy_unit<kAligned>(dst + k * kGranuleChunk, src[k] + kDv, real[k]);
        copies_arrive<kAligned>(bar.rope_full());
      }
    }
    i = next;
    next = policy.next(i);
  }
}

/* ---- Warpgroup 0: S = Q K^T and the running maximum of each row ---- */

/* Reduction over the four lanes that share two rows, both rows in step: shuffles stay in program order. */
FHK_DEV float2 quad_sum(float2 x) {
#pragma unroll
  for (int d = 1; d <= 2; d <<= 1) {
    const float a = __shfl_xor_sync(~0u, x.x, d), b = __shfl_xor_sync(~0u, x.y, d);
    x = make_float2(x.x + a, x.y + b);
  }
  return x;
}

/* The largest score of each of the lane's two rows; NaN counts as the largest where rows share a tile. */
template <bool kShared>
FHK_DEV float2 row_max(const float (&s)[32]) {
  auto larger = [](float a, float b) { return kShared ? ptx::max_nan(a, b) : fmaxf(a, b); };
  float2 x = make_float2(larger(s[0], s[1]), larger(s[2], s[3]));
#pragma unroll
  for (int j = 1; j < 8; j++) {
    x.x = larger(x.x, larger(s[4 * j], s[4 * j + 1]));
    x.y = larger(x.y, larger(s[4 * j + 2], s[4 * j + 3]));
  }
#pragma unroll
  for (int d = 1; d <= 2; d <<= 1) { /* the four lanes that share the rows */
    const float a = __shfl_xor_sync(~0u, x.x, d), b = __shfl_xor_sync(~0u, x.y, d);
    x = make_float2(larger(x.x, a), larger(x.y, b));
  }
  return x;
}

/* Zero those V rows of the block before `after` that hold a NaN or an Inf, as far as this warp's scores show them. */
template <int kSlots>
FHK_DEV void silence(const float (&s)[32], uint32_t ring, const Ring<kSlots> &after, int lane) {
#pragma unroll
  for (int k = 0; k < 16; k++) {
    const int at = 4 * (k >> 1) + (k & 1);
    uint32_t who = __ballot_sync(~0u, !(s[at] < INFINITY) | !(s[at + 2] < INFINITY));
    who |= who >> 16, who |= who >> 8, who |= who >> 4, who &= 15; /* bit c: a lane with column 8 (k / 2) + 2 c + k % 2 */
    while (who) {
      const uint32_t row = 8 * (k >> 1) + 2 * (__ffs(who) - 1) + (k & 1);
      who &= who - 1;
      uint32_t to[2]; /* lane: unit lane % 8 of two of the row's eight chunks */
      bool bad = false;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint32_t chunk = 4 * h + (lane >> 3), slot = after.ahead(kSlots - kQuarters + (chunk >> 1)).slot;
        to[h] = ring + slot * kSlotBytes + (chunk & 1) * kChunkBytes + row * 128 + (lane & 7) * 16;
        const float4 v = ptx::ld_shared_f4(to[h]);
        for (const float pair : {v.x, v.y, v.z, v.w}) {
          const uint32_t bits = __float_as_uint(pair);
          bad |= (bits & 0x7f80u) == 0x7f80u || (bits & 0x7f800000u) == 0x7f800000u;
        }
      }
      if (__any_sync(~0u, bad)) { /* not so where q is to blame, or the scores overflow */
        ptx::st_shared4(to[0], 0, 0, 0, 0);
        ptx::st_shared4(to[1], 0, 0, 0, 0);
      }
    }
  }
  ptx::fence_proxy_async(); /* before the PV of those that `given` lets go */
}

template <int kD, typename Policy>
FHK_DEV void score(const Policy &policy, int32_t tiles, uint32_t smem, int warp, int lane) {
  using X = Shape<kD>;
  const Barriers<kD> bar{smem + X::kBarriers};
  /* This lane's row and first unit for ldmatrix: matrices 0, 1 are rows 0..7, 8..15 of the left 8 columns, 2, 3 of the right. */
  const uint32_t frag_row = (lane & 7) + ((lane >> 3) & 1) * 8, frag_unit = lane >> 4;
  const uint64_t tail = ptx::desc_k_major(smem + X::kQueryTail);
  const uint32_t scores = smem + X::kScores + (warp * 32 + lane) * 16;
  Ring<X::kSlots> ring;
  uint32_t turn = 0; /* blocks so far */
  int32_t i = blockIdx.x, next = policy.next(i);
  int32_t looked = policy.look(i), looked_next = next < tiles ? policy.look(next) : 0;
  int32_t peeked = policy.peek(i, looked);
  typename Policy::Marks marks = policy.marks(i, looked, peeked);
  typename Policy::Mask mask;
  mask.start(policy, marks, 0, warp, lane);
  while (i < tiles) {
    const typename Policy::Tile tile = policy.tile(i, looked, peeked);
    const int32_t blocks = policy.blocks(tile);
    const bool more = next < tiles;
    looked = looked_next;
    if (more) {
      const int32_t after = policy.next(next);
      if (after < tiles) looked_next = policy.look(after);
      peeked = policy.peek(next, looked);
    }
    /* ---- Q from the ring to registers, its tail to where wgmma reads it */
    uint32_t q[kRegisterSteps][4];
    {
      const int slots = query_slots<kD>(tile);
      for (int k = 0; k < slots; k++) {
        const Ring<X::kSlots> at = ring.ahead(k);
        ptx::mbar_wait(bar.full(at.slot), at.phase);
      }
      const bool real = warp < granules(tile);
      const uint32_t src = smem + X::kRing + ring.ahead(warp).slot * kSlotBytes;
      const uint32_t rope = smem + X::kRing + ring.ahead(slots - 1).slot * kSlotBytes + warp * kGranuleChunk;
      const uint32_t to = smem + X::kQueryTail + warp * kGranuleChunk + lane * 16;
      ptx::bar_sync(1, 128); /* all warps are done with the last tile's Q */
#pragma unroll 4
      for (int k = 0; k < 4 * (kTailChunks + (X::kRope ? 1 : 0)); k++) { /* 512 bytes; a chunk's 16 rows lie together */
        const uint32_t chunk = k < 4 * kTailChunks ? src + (kRegisterSteps / 4 + (k >> 2)) * kGranuleChunk : rope;
        const float4 v = real ? ptx::ld_shared_f4(chunk + (k & 3) * 512 + lane * 16) : make_float4(0.f, 0.f, 0.f, 0.f);
        ptx::st_shared_f4(to + (k >> 2) * kChunkBytes + (k & 3) * 512, v);
      }
      if (real) {
#pragma unroll
        for (int k = 0; k < kRegisterSteps; k++)
          ptx::ldmatrix4(q[k], src + (k >> 2) * kGranuleChunk + swizzled(frag_row, 2 * (k & 3) + frag_unit));
      } else {
#pragma unroll
        for (int k = 0; k < kRegisterSteps; k++) q[k][0] = q[k][1] = q[k][2] = q[k][3] = 0;
      }
      ptx::fence_proxy_async(); /* the tail, before wgmma reads it */
      ptx::bar_sync(1, 128);
      for (int k = 0; k < slots; k++) warp_arrive(bar.empty(ring.ahead(k).slot), lane);
      ring.skip(slots);
    }
    float m0 = kMaxStart, m1 = kMaxStart;
    for (int32_t n = 0; n < blocks; n++) {
      float s[32];
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; quarter++) {
        ptx::mbar_wait(bar.full(ring.slot), ring.phase);
        ptx::fence_proxy_async(); /* landed cp.async writes, before wgmma reads them */
        ptx::wgmma_fence();
        const uint64_t k_desc = ptx::desc_k_major(smem + X::kRing + ring.slot * kSlotBytes);
#pragma unroll
        for (int k = 0; k < 8; k++) {
          const int step = quarter * 8 + k, beyond = step - kRegisterSteps;
          const uint64_t k_step = k_desc + (k >> 2) * (kChunkBytes / 16) + (k & 3) * 2;
          if (beyond < 0) ptx::wgmma_rs<0>(s, q[step < kRegisterSteps ? step : 0], k_step, step != 0);
          else ptx::wgmma_ss<0, 0>(s, tail + (beyond >> 2) * (kChunkBytes / 16) + (beyond & 3) * 2, k_step, 1);
        }
        ptx::wgmma_commit();
        ring.skip(1);
        if (quarter == 0 && n > 0) warp_arrive(bar.given(warp), lane);
      }
      if constexpr (X::kRope) {
        ptx::mbar_wait(bar.rope_full(), turn & 1);
        ptx::fence_proxy_async();
        ptx::wgmma_fence();
        const uint64_t k_desc = ptx::desc_k_major(smem + X::kRopeSlot);
#pragma unroll
        for (int k = 0; k < 4; k++) ptx::wgmma_ss<0, 0>(s, tail + kTailChunks * (kChunkBytes / 16) + k * 2, k_desc + k * 2, 1);
        ptx::wgmma_commit();
      }
      mask.settle(policy, tile, n, warp, lane);
      if (n + 1 < blocks) {
        mask.start(policy, marks, n + 1, warp, lane);
      } else if (more) {
        marks = policy.marks(next, looked, peeked);
        mask.start(policy, marks, 0, warp, lane);
      }
      ptx::wgmma_wait<0>();
      ptx::keep(s);
      if constexpr (X::kRope) warp_arrive(bar.rope_empty(), lane);
      mask.hide(s, lane);
      float2 x = row_max<Policy::kShared>(s);
      if constexpr (Policy::kShared) {
        if (__any_sync(~0u, !(x.x < INFINITY) | !(x.y < INFINITY))) {
          silence(s, smem + X::kRing, ring, lane);
          mask.hide_all(s, lane);
          x = row_max<true>(s);
        }
      }
      m0 = fmaxf(m0, x.x * policy.scale);
      m1 = fmaxf(m1, x.y * policy.scale);
      ptx::mbar_wait(bar.taken(warp), (turn & 1) ^ 1);
#pragma unroll
      for (int j = 0; j < 8; j++)
        ptx::st_shared_f4(scores + j * 128 * 16, make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]));
      ptx::st_shared_f2(scores + (X::kMaxima - X::kScores), make_float2(m0, m1));
      if (n + 1 == blocks) warp_arrive(bar.given(warp), lane); /* no next scores to queue first: the tile's Q is done */
      turn++;
    }
    i = next;
    next = policy.next(i);
  }
}

/* ---- Warpgroups 1 and 2: P and O = P V, columns 256 half .. 256 half + 255 ---- */

/* Store 128 columns of one of the lane's two rows. */
template <int kHalf>
FHK_DEV void store_row(const float (&o)[64], float factor, uint16_t *row, bool wide, int lane) {
  const int c4 = lane & 3;
#pragma unroll
  for (int j = 0; j < 4; j++) { /* 32 columns: the lane holds the pairs 8 k + 2 c4, k = 0..3 */
    uint32_t v[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
      v[k] = ptx::pack_bf16(o[16 * j + 4 * k + 2 * kHalf] * factor, o[16 * j + 4 * k + 2 * kHalf + 1] * factor);
    if (wide) { /* a 4 x 4 transpose in the quad gives it columns 8 c4 .. 8 c4 + 7 */
      uint32_t a = c4 & 1 ? v[0] : v[1], b = c4 & 1 ? v[2] : v[3];
      a = __shfl_xor_sync(~0u, a, 1);
      b = __shfl_xor_sync(~0u, b, 1);
      if (c4 & 1) {
        v[0] = a;
        v[2] = b;
      } else {
        v[1] = a;
        v[3] = b;
      }
      a = c4 & 2 ? v[0] : v[2];
      b = c4 & 2 ? v[1] : v[3];
      a = __shfl_xor_sync(~0u, a, 2);
      b = __shfl_xor_sync(~0u, b, 2);
      if (c4 & 2) {
        v[0] = a;
        v[1] = b;
      } else {
        v[2] = a;
        v[3] = b;
      }
      if (row) *reinterpret_cast<uint4 *>(row + 32 * j + 8 * c4) = make_uint4(v[0], v[1], v[2], v[3]);
    } else if (row) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        row[32 * j + 8 * k + 2 * c4] = static_cast<uint16_t>(v[k]);
        row[32 * j + 8 * k + 2 * c4 + 1] = static_cast<uint16_t>(v[k] >> 16);
      }
    }
  }
}

template <int kD, typename Policy>
FHK_DEV void blend(const Policy &policy, int32_t tiles, uint32_t smem, int half, int warp, int lane) {
  using X = Shape<kD>;
  const Barriers<kD> bar{smem + X::kBarriers};
  const uint32_t scores = smem + X::kScores + (warp * 32 + lane) * 16;
  Ring<X::kSlots> ring;
  uint32_t turn = 0;
  int32_t i = blockIdx.x;
  int32_t looked = policy.look(i);
  int32_t peeked = policy.peek(i, looked);
  while (i < tiles) {
    int32_t blocks;
    {
      const typename Policy::Tile tile = policy.tile(i, looked, peeked);
      blocks = policy.blocks(tile);
      ring.skip(query_slots<kD>(tile));
    }
    const int32_t next = policy.next(i);
    if (next < tiles) {
      looked = policy.look(next); /* no hurry here: the first scores of a tile take longer than the loads */
      peeked = policy.peek(next, looked);
    }
    float o0[64], o1[64]; /* 128 columns each */
    float m0 = kMaxStart, m1 = kMaxStart, l0 = 0.f, l1 = 0.f;
    for (int32_t n = 0; n < blocks; n++) {
      ptx::mbar_wait(bar.given(warp), turn & 1); /* also says that K = V of this block has landed: its scores are done */
      turn++;
      {
        const float2 m = ptx::ld_shared_f2(scores + (X::kMaxima - X::kScores));
        const float shrink0 = ptx::exp2(m0 - m.x), shrink1 = ptx::exp2(m1 - m.y);
        m0 = m.x;
        m1 = m.y;
        l0 *= shrink0;
        l1 *= shrink1;
        if (n > 0 && __any_sync(~0u, (shrink0 != 1.f) | (shrink1 != 1.f))) {
#pragma unroll
          for (int j = 0; j < 16; j++) {
            o0[4 * j] *= shrink0, o0[4 * j + 1] *= shrink0, o0[4 * j + 2] *= shrink1, o0[4 * j + 3] *= shrink1;
            o1[4 * j] *= shrink0, o1[4 * j + 1] *= shrink0, o1[4 * j + 2] *= shrink1, o1[4 * j + 3] *= shrink1;
          }
        }
      }
      ptx::fence_proxy_async(); /* V, seen through `given`, before wgmma reads it */
      const uint32_t slot0 = ring.ahead(2 * half).slot, slot1 = ring.ahead(2 * half + 1).slot;
      const uint64_t v0 = ptx::desc_mn_major(smem + X::kRing + slot0 * kSlotBytes, kChunkBytes);
      const uint64_t v1 = ptx::desc_mn_major(smem + X::kRing + slot1 * kSlotBytes, kChunkBytes);
      auto weigh = [&](int step, uint32_t (&p)[4]) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float4 s = ptx::ld_shared_f4(scores + (2 * step + e) * 128 * 16);
          const float a = ptx::exp2(fmaf(s.x, policy.scale, -m0)), b = ptx::exp2(fmaf(s.y, policy.scale, -m0));
          const float c = ptx::exp2(fmaf(s.z, policy.scale, -m1)), d = ptx::exp2(fmaf(s.w, policy.scale, -m1));
          l0 += a + b;
          l1 += c + d;
          p[2 * e] = ptx::pack_bf16(a, b);
          p[2 * e + 1] = ptx::pack_bf16(c, d);
        }
      };
      uint32_t p[4][4];
      ptx::keep(o0);
      ptx::keep(o1);
#pragma unroll
      for (int step = 0; step < 4; step += 2) { /* the second half is weighed while the first is multiplied */
        weigh(step, p[step]);
        weigh(step + 1, p[step + 1]);
        if (step == 2) warp_arrive(bar.taken(warp), lane);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = step; k < step + 2; k++) ptx::wgmma_rs<1>(o0, p[k], v0 + k * 128, (k > 0) | (n > 0));
#pragma unroll
        for (int k = step; k < step + 2; k++) ptx::wgmma_rs<1>(o1, p[k], v1 + k * 128, (k > 0) | (n > 0));
        ptx::wgmma_commit();
      }
      ptx::wgmma_wait<0>();
      ptx::keep(o0);
      ptx::keep(o1);
      warp_arrive(bar.empty(slot0), lane);
      warp_arrive(bar.empty(slot1), lane);
      ring.skip(kQuarters);
    }
    /* ---- finish: out = O / (l + 2^(sink - m)) */
    const typename Policy::Tile tile = policy.tile(i, policy.look(i), 0); /* made anew: it would cost registers beside O */
    if constexpr (Policy::kPartial) {
      const float2 l = quad_sum(make_float2(l0, l1));
      float4 *to = policy.partial(i) + half * 32 * 128 + warp * 32 + lane;
#pragma unroll
      for (int j = 0; j < 16; j++) to[j * 128] = make_float4(o0[4 * j], o0[4 * j + 1], o0[4 * j + 2], o0[4 * j + 3]);
#pragma unroll
      for (int j = 0; j < 16; j++) to[(16 + j) * 128] = make_float4(o1[4 * j], o1[4 * j + 1], o1[4 * j + 2], o1[4 * j + 3]);
      if (half == 0 && (lane & 3) == 0) {
        float2 *sums = policy.sums(i) + warp * kGranule + (lane >> 2);
        sums[0] = make_float2(m0, l.x);
        sums[8] = make_float2(m1, l.y);
      }
    } else if (warp * kGranule < tile.rows) {
      const float2 l = quad_sum(make_float2(l0, l1));
      const int r0 = warp * kGranule + (lane >> 2), r1 = r0 + 8;
      if (half == 0 && (lane & 3) == 0) {
        if (r0 < tile.rows) policy.statistics(tile, r0, m0, l.x);
        if (r1 < tile.rows) policy.statistics(tile, r1, m1, l.y);
      }
      uint16_t *row = r0 < tile.rows ? policy.out_row(tile, r0) + half * 256 : nullptr;
      float factor = r0 < tile.rows ? inverse_denominator(m0, l.x, policy.sink(tile, r0)) : 0.f;
      store_row<0>(o0, factor, row, policy.wide_out, lane);
      store_row<0>(o1, factor, row ? row + 128 : nullptr, policy.wide_out, lane);
      if (warp * kGranule + 8 < tile.rows) {
        row = r1 < tile.rows ? policy.out_row(tile, r1) + half * 256 : nullptr;
        factor = r1 < tile.rows ? inverse_denominator(m1, l.y, policy.sink(tile, r1)) : 0.f;
        store_row<1>(o0, factor, row, policy.wide_out, lane);
        store_row<1>(o1, factor, row ? row + 128 : nullptr, policy.wide_out, lane);
      }
    }
    i = next;
  }
}

template <int kD, bool kAligned, typename Policy>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ Policy policy) {
  using X = Shape<kD>;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t smem = ptx::smem_addr(memory);
  const int all_warps = __shfl_sync(~0u, threadIdx.x >> 5, 0); /* the same in all lanes, and the compiler knows */
  const int group = all_warps >> 2, warp = all_warps & 3, t = threadIdx.x & 127, lane = t & 31;
  policy.enter();
  const int32_t tiles = policy.count();
  if (static_cast<int32_t>(blockIdx.x) >= tiles) return policy.leave();
  if (threadIdx.x == 0) Barriers<kD>{smem + X::kBarriers}.init();
  __syncthreads();
  /* ptxas honours setmaxnreg only where each role is one branch of a single if/else. */
  if (group == 3) {
    ptx::setmaxnreg_dec<kFetchRegs>();
    fetch<kD, kAligned>(policy, tiles, smem, t);
  } else if (group == 0) {
    ptx::setmaxnreg_inc<kScoreRegs>();
    score<kD>(policy, tiles, smem, warp, lane);
  } else {
    ptx::setmaxnreg_inc<kBlendRegs>();
    blend<kD>(policy, tiles, smem, group - 1, warp, lane);
  }
  policy.leave();
}

template <int kD, bool kAligned, typename Policy>
cudaError_t prepare() {
  return cudaFuncSetAttribute(kernel<kD, kAligned, Policy>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape<kD>::kBytes);
}

/* early: the policy's enter() keeps the order among grids, so that this one may start before the one in front has ended. */
template <int kD, bool kAligned, typename Policy>
cudaError_t launch(const Policy &policy, bool early, int32_t multiprocessors, cudaStream_t stream) {
  const int32_t ctas = policy.tiles < multiprocessors ? policy.tiles : multiprocessors;
  return launch_grid(early, kernel<kD, kAligned, Policy>, ctas, kThreads, Shape<kD>::kBytes, stream, policy);
}

}  // namespace sm90_tile
}  // namespace fhk

#endif
