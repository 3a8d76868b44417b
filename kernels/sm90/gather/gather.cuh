/*
 * sm90 gather: one query at its native heads, tokens on the M side of wgmma.
 *
 *   S^T[64 tokens x heads] = K Q^T        A = K from shared memory, K-major;     B = Q, K-major
 *   O^T[512 x heads]      += V^T P^T      A = the same bytes read MN-major;      B = P, K-major
 *
 * so 8, 16 or 32 heads fill N and no row is a zero. 16 and 32 heads go by wgmma; 8 heads by mma.sync m16n8k16 with Q in
 * registers, each warp 16 tokens of S^T and 128 columns of O^T, which moves less through shared memory than wgmma's
 * operands do.
 *
 * A CTA is one consumer warpgroup and one producer warpgroup around a ring of 8 KiB slices (64 tokens x 64 columns);
 * the tile of a step is d / 64 slices and every slice is given back as soon as its part of PV is done. Up to 16 heads
 * two CTAs share an SM: one's softmax hides behind the other's tensor work. More than 32 heads are cut into blocks of
 * 32 that walk the list anew. Few queries: the CTAs of a cluster share a query's tiles and combine through distributed
 * shared memory.
 *
 *   producer (4 warps)                      consumer (4 warps)
 *   wait empty[slot]  <-------------------  arrive after PV of the slice (after QK for columns past d_v)
 *   cp.async 64 x 128 B
 *   arrive full[slot]  -------------------> QK of the slice
 *   wait q_free, cp.async Q, arrive q_full  after the last QK of a query: arrive q_free
 *
 * Limits: shared memory moves a tile three times (written once, read twice): 1536 cycles; the L2 gather roof is 596 us
 * for 8192 x 640 random rows on an H200. Measured times are in results/, what was tried in README.md.
 */
#ifndef FEWHEAD_KERNELS_SM90_GATHER_CUH
#define FEWHEAD_KERNELS_SM90_GATHER_CUH

#include "sm90/gather/gather.h"
#include "cuda/rows.cuh"

namespace fhk {
namespace sm90_gather {

constexpr int kTile = 64; /* tokens of a step: the M of wgmma */
constexpr int kDv = 512;  /* columns of V */
constexpr int kValueSlices = kDv / 64;
constexpr int kThreads = 256;                          /* warps 0..3 consume, 4..7 produce */
constexpr int kConsumerRegs = 184, kProducerRegs = 72; /* with two CTAs an SM: 128 * (184 + 72) = half of 65536 */
constexpr int kMaxCluster = FHK_SM90_GATHER_CLUSTER;   /* 8, the largest portable cluster */

/* What d_qk and the head block decide. kHeads is 8, 16 or 32. */
template <int kD, int kHeads>
struct Shape {
  static constexpr int kSlices = kD / 64;
  static constexpr int kCtas = kHeads <= 16 ? 2 : 1; /* CTAs that share an SM */
  static constexpr bool kByWarp = kHeads == 8;       /* mma.sync with Q in registers; else wgmma */
  static constexpr int kSlots = kHeads == 8 ? 12 : kHeads == 16 ? 11 : 22;
  static constexpr int kQueryAfter = kSlots - kSlices < kSlices ? kSlots - kSlices : kSlices - 1;
  /* Shared memory, bytes from a 1024-byte boundary. */
  static constexpr uint32_t kQuery = kSlots * kSliceBytes;         /* kSlices x [kHeads x 128 B], swizzled */
  static constexpr uint32_t kP = kQuery + kSlices * kHeads * 128;  /* [kHeads x 64 tokens] bf16, swizzled */
  static constexpr uint32_t kReduce = kP + kHeads * 128;           /* 2 x 4 warps x kHeads floats; kHeads x
                                                                    kMaxCluster at the end */
  static constexpr uint32_t kFinal = kReduce + 2 * 4 * kHeads * 4; /* (m, l) of kHeads heads, for the cluster */
  static constexpr uint32_t kBarriers = kFinal + kHeads * 8;
  static constexpr uint32_t kBytes = kBarriers + (2 * kSlots + 3) * 8 + 1024; /* the last barrier is racecheck's */
  static_assert(kSlots > kSlices, "a tile must leave room for the next one's first slice");
  static_assert(kBytes <= (kCtas == 2 ? 113 : 227) * 1024, "more shared memory than the CTAs of an SM can have");
  static_assert(kHeads * kDv * 4 <= kQuery, "the cluster combine reuses the ring");
};

struct Params {
  fh_call call;
  Rows rows;
  int32_t head_blocks;
  uint32_t cluster; /* CTAs that share an item's tiles */
};

/*
 * The items of a CTA, or of a cluster: a row and a block of heads each, dealt round robin. Rows and the lengths of
 * their lists are looked up ahead, each step an item later than the one before it, so that nobody waits for them.
 */
template <int kHeads>
struct Walk {
  const Params &p;
  int32_t i, count;
  int32_t here, next, after; /* rows of this item and of the two that come then, -1: none */
  int32_t group;             /* the group of the third */
  uint32_t length, next_length;

  FHK_DEV Walk(const Params &params, int32_t first, int32_t items) : p(params), i(first), count(items) {
    here = row(i, look(i));
    next = row(i + step(), look(i + step()));
    after = row(i + 2 * step(), look(i + 2 * step()));
    group = look(i + 3 * step());
    length = length_of(here);
    next_length = length_of(next);
  }
  FHK_DEV bool there() const { return i < count; }
  FHK_DEV void advance() {
    i += step();
    here = next;
    next = after;
    length = next_length;
    next_length = length_of(next);
    after = row(i + 2 * step(), group);
    group = look(i + 3 * step());
  }
  /* One block of up to 16 heads holds all that there are. */
  FHK_DEV int head0() const { return kHeads < 32 ? 0 : i % p.head_blocks * kHeads; }
  FHK_DEV int next_head0() const { return kHeads < 32 ? 0 : (i + step()) % p.head_blocks * kHeads; }

private:
  FHK_DEV int32_t step() const { return static_cast<int32_t>(gridDim.x / p.cluster); }
  FHK_DEV int32_t number(int32_t item) const { return kHeads < 32 ? item : item / p.head_blocks; }
  FHK_DEV int32_t look(int32_t item) const { return item < count ? p.rows.look(number(item)) : 0; }
  FHK_DEV int32_t row(int32_t item, int32_t of) const { return item < count ? p.rows.row(number(item), of) : -1; }
  FHK_DEV uint32_t length_of(int32_t s) const { return s < 0 ? 0 : list_length(p.call, s); }
};

/*
 * Lists are read a tile ahead, as they stand: what an entry means is asked when its tile comes, so that nobody waits
 * for the load. Entries past the list's end read the last one.
 */
FHK_DEV int raw_token(const fh_call &call, int32_t s, uint32_t pos) {
  if (s < 0 || call.topk == 0) return -1;
  return __ldg(call.indices + s * call.indices_stride + min(pos, static_cast<uint32_t>(call.topk) - 1));
}
/* Is entry `pos`, read as `raw`, a key? */
FHK_DEV bool is_key(const fh_call &call, int raw, uint32_t pos, uint32_t length) {
  return pos < length && raw >= 0 && raw < call.s_kv;
}

template <int kSlots>
struct Barriers {
  uint32_t base;
  FHK_DEV uint32_t full(uint32_t slot) const { return base + slot * 8; }
  FHK_DEV uint32_t empty(uint32_t slot) const { return base + (kSlots + slot) * 8; }
  FHK_DEV uint32_t q_full() const { return base + 2 * kSlots * 8; }
  FHK_DEV uint32_t q_free() const { return base + (2 * kSlots + 1) * 8; }
#ifdef FHK_RACECHECK
  FHK_DEV uint32_t meeting() const { return base + (2 * kSlots + 2) * 8; }
#endif
  FHK_DEV void init(uint32_t readers) const {
#ifdef FHK_RACECHECK
    ptx::mbar_init(meeting(), 128);
#endif
    for (uint32_t i = 0; i < kSlots; i++) {
      ptx::mbar_init(full(i), 128);
      ptx::mbar_init(empty(i), readers * kWarpArrivals);
    }
    ptx::mbar_init(q_full(), 128);
    ptx::mbar_init(q_free(), 4 * kWarpArrivals);
    ptx::fence_mbar_init();
  }
};

/* Both roles step through the same sequence of slices. */
template <int kSlots>
struct Ring {
  uint32_t slot = 0, phase = 0;
  FHK_DEV void next() {
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

FHK_DEV uint32_t tile_count(uint32_t length, uint32_t rank, uint32_t cluster) {
  const uint32_t tiles = (length + kTile - 1) / kTile;
  if (cluster == 1) return tiles;
  return tiles > rank ? (tiles - rank + cluster - 1) / cluster : 0;
}

/* Producer: thread t copies 16-byte unit t % 8 of rows t / 8 + {0, 16, 32, 48}; eight threads cover 128 contiguous
 * bytes */
template <int kD, int kHeads>
FHK_DEV void produce(const Params &p, uint32_t smem, int t, int32_t first, int32_t items, uint32_t rank) {
  using X = Shape<kD, kHeads>;
  const fh_call &call = p.call;
  const Barriers<X::kSlots> bar{smem + X::kBarriers};
  const int row0 = t >> 3, unit = t & 7;
  const uint32_t mine = swizzled(row0, unit);
  Ring<X::kSlots> ring;
  uint32_t q_phase = 0;

  /* The list position of this thread's first row in a tile. */
  auto position = [&](uint32_t tile) { return (rank + tile * p.cluster) * kTile + row0; };
  int raw[4];
  auto load_tokens = [&](int32_t s, uint32_t tile) {
#pragma unroll
    for (int k = 0; k < 4; k++) raw[k] = raw_token(call, s, position(tile) + 16 * k);
  };
  auto load_query = [&](int32_t s, int head0) {
    ptx::mbar_wait(bar.q_free(), q_phase ^ 1);
    q_phase ^= 1;
    constexpr int kUnits = kD / 8; /* 16-byte units of a row */
    for (int i = t; i < kHeads * kUnits; i += 128) {
      const int h = i / kUnits, u = i % kUnits;
      const bool real = head0 + h < call.h_q;
      const uint16_t *src = call.q + s * call.q_stride_s + (real ? (head0 + h) * call.q_stride_h : 0) + u * 8;
      ptx::cp_async16(smem + X::kQuery + (u >> 3) * kHeads * 128 + swizzled(h, u & 7), src, real ? 16 : 0);
    }
    ptx::cp_async_arrive(bar.q_full());
  };

  Walk<kHeads> walk(p, first, items);
  load_tokens(walk.here, 0);
  for (; walk.there(); walk.advance()) {
    if (walk.next >= 0) { /* the next query's heads come from DRAM: start them towards L2 now */
      for (int line = t; line < kHeads * (kD / 64); line += 128) {
        const int head = walk.next_head0() + line / (kD / 64);
        if (head < call.h_q)
          ptx::prefetch_l2(call.q + walk.next * call.q_stride_s + head * call.q_stride_h + line % (kD / 64) * 64);
      }
    }
    const uint32_t length = walk.length, tiles = tile_count(length, rank, p.cluster);
    for (uint32_t n = 0; n < tiles; n++) {
      const uint16_t *src[4];
      uint32_t bytes[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const bool key = is_key(call, raw[k], position(n) + 16 * k, length);
        bytes[k] = key ? 16 : 0;
        src[k] = call.kv + (key ? raw[k] : 0) * call.kv_stride + unit * 8;
      }
      if (n + 1 < tiles) load_tokens(walk.here, n + 1);
      else load_tokens(walk.next, 0);
#pragma unroll
      for (int c = 0; c < X::kSlices; c++) {
        if (n == 0 && c == X::kQueryAfter) load_query(walk.here, walk.head0());
        ptx::mbar_wait(bar.empty(ring.slot), ring.phase ^ 1);
        const uint32_t dst = smem + ring.slot * kSliceBytes + mine;
#pragma unroll
        for (int k = 0; k < 4; k++) ptx::cp_async16(dst + k * 16 * 128, src[k] + c * 64, bytes[k]);
        ptx::cp_async_arrive(bar.full(ring.slot));
        ring.next();
      }
    }
    if (tiles == 0) load_tokens(walk.next, 0);
  }
}

/* ---- Consumer ---- */

/*
 * A consumer thread. Its two rows of a tile are tokens 16 warp + quad and the eighth after it, as the accumulators of
 * mma and wgmma have them; its kPairs heads are 8 j + pair + e, number 2 j + e. A product with the suffix `_by_warp` is
 * mma.sync's, `_by_group` is wgmma's.
 */
template <int kD, int kHeads>
struct Consumer {
  using X = Shape<kD, kHeads>;
  static constexpr int kBlocks = kHeads / 8; /* N of wgmma in eights; a thread holds 2 heads of each */
  static constexpr int kPairs = 2 * kBlocks;
  /* O^T: of head 8 j + pair + e, o[c][4 j + e] is column column(c) and o[c][4 j + 2 + e] the eighth after it. */
  using Output = float[kValueSlices][4 * kBlocks];
  /* S^T: st[4 j + e] is the score of the first token with head 8 j + pair + e, st[4 j + 2 + e] that of the second
   * token. */
  using Scores = float[4 * kBlocks];
  using QueryFragments = uint32_t[X::kByWarp ? kD / 16 : 1][2]; /* Q in registers: B fragments of the d / 16 steps */

  const Params &params;
  const uint32_t smem;
  const int t, warp, lane, quad, pair;
  const uint32_t rank;
  const float scale;
  const Barriers<X::kSlots> bar;
  /* stmatrix: lanes 0..7 name the head rows of the warp's tokens 0..7, lanes 8..15 those of tokens 8..15. */
  const uint32_t p_row;
  /* ldmatrix: tokens of the warp's 16 for K, of a k16 step for V (transposed). */
  const uint32_t k_row, v_row;
  Ring<X::kSlots> ring;
  uint32_t turn = 0; /* which half of `reduce` */
#ifdef FHK_RACECHECK
  uint32_t meetings = 0;
#endif

  FHK_DEV Consumer(const Params &given, uint32_t at, int thread, uint32_t of_cluster)
      : params(given), smem(at), t(thread), warp(t >> 5), lane(t & 31), quad(lane >> 2), pair(2 * (lane & 3)),
        rank(of_cluster), scale(given.call.sm_scale * kLog2e), bar{at + X::kBarriers},
        p_row(smem + X::kP + swizzled(lane & 7, 2 * warp + ((lane >> 3) & 1))), k_row(warp * 16 + (lane & 15)),
        v_row((lane & 7) + ((lane >> 4) << 3)) {}

  FHK_DEV int column(int c) const { return (X::kByWarp ? warp * 128 + c * 16 : c * 64 + warp * 16) + quad; }
  /* The list position of the thread's first token in a tile. */
  FHK_DEV uint32_t position(uint32_t tile) const { return (rank + tile * params.cluster) * kTile + warp * 16 + quad; }

  /* The consumer warpgroup meets. */
  FHK_DEV void meet() {
#ifdef FHK_RACECHECK /* the tool does not follow a barrier of a part of the CTA; an mbarrier says the same */
    ptx::mbar_arrive(bar.meeting());
    ptx::mbar_wait(bar.meeting(), meetings++ & 1);
#else
    ptx::bar_sync(1, 128);
#endif
  }

  /* Combine x over all tokens of the tile: the lanes that share heads, then the four warps. Leaves the total in
   * every thread. */
  template <typename Op>
  FHK_DEV void across(float (&x)[kPairs], float *reduce, Op op) {
#pragma unroll
    for (int d = 4; d < 32; d <<= 1) {
#pragma unroll
      for (int k = 0; k < kPairs; k++) x[k] = op(x[k], __shfl_xor_sync(~0u, x[k], d));
    }
    float *slots = reduce + (turn & 1) * 4 * kHeads;
    turn++;
    if (quad == 0) {
#pragma unroll
      for (int j = 0; j < kBlocks; j++)
        *reinterpret_cast<float2 *>(slots + warp * kHeads + 8 * j + pair) = make_float2(x[2 * j], x[2 * j + 1]);
    }
    meet();
#pragma unroll
    for (int j = 0; j < kBlocks; j++) {
      float2 total = *reinterpret_cast<const float2 *>(slots + 8 * j + pair);
#pragma unroll
      for (int w = 1; w < 4; w++) {
        const float2 other = *reinterpret_cast<const float2 *>(slots + w * kHeads + 8 * j + pair);
        total.x = op(total.x, other.x);
        total.y = op(total.y, other.y);
      }
      x[2 * j] = total.x;
      x[2 * j + 1] = total.y;
    }
  }

  /* ---- S^T = K Q^T, slice by slice as K lands; `then` is what can be done while the last products run */

  FHK_DEV void load_query(QueryFragments &q) const {
#pragma unroll
    for (int k = 0; k < kD / 16; k += 2) {
      uint32_t r[4];
      ptx::ldmatrix4(r, smem + X::kQuery + (k >> 2) * kHeads * 128 + swizzled(lane & 7, 2 * (k & 3) + (lane >> 3)));
      q[k][0] = r[0];
      q[k][1] = r[1];
      q[k + 1][0] = r[2];
      q[k + 1][1] = r[3];
    }
    warp_arrive(bar.q_free(), lane);
  }
  template <typename Then>
  FHK_DEV void scores_by_warp(Scores &st, const QueryFragments &q, Then then) {
    float part[4][4] = {}; /* four accumulators: the chain of steps is latency */
#pragma unroll
    for (int c = 0; c < X::kSlices; c++) {
      ptx::mbar_wait(bar.full(ring.slot), ring.phase);
      const uint32_t slice = smem + ring.slot * kSliceBytes;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        uint32_t a[4];
        ptx::ldmatrix4(a, slice + swizzled(k_row, 2 * k + (lane >> 4)));
        ptx::mma_m16n8k16(part[k], a, q[4 * c + k][0], q[4 * c + k][1]);
      }
      ring.next();
    }
#pragma unroll
    for (int k = 0; k < 4; k++) st[k] = (part[0][k] + part[1][k]) + (part[2][k] + part[3][k]);
    then();
  }
  template <typename Then>
  FHK_DEV void scores_by_group(Scores &st, bool last, Then then) {
    const uint64_t dq = ptx::desc_k_major(smem + X::kQuery);
#pragma unroll
    for (int c = 0; c < X::kSlices; c++) {
      ptx::mbar_wait(bar.full(ring.slot), ring.phase);
      ptx::fence_proxy_async(); /* landed cp.async writes, before wgmma reads them */
      ptx::wgmma_fence();
      const uint64_t dk = ptx::desc_k_major(smem + ring.slot * kSliceBytes);
#pragma unroll
      for (int k = 0; k < 4; k++) ptx::wgmma_ss<0, 0>(st, dk + 2 * k, dq + c * kHeads * 8 + 2 * k, (c | k) != 0);
      ptx::wgmma_commit();
      ring.next();
    }
    then();
    ptx::wgmma_wait<0>();
    ptx::keep(st);
    if (last) warp_arrive(bar.q_free(), lane);
  }

  /* Softmax over the tile's tokens: m and l brought up to date, P to shared memory. valid: is the first token, the
   * second, a key? O shrinks by rescale; returns whether that differs from 1 for a head of this thread. */
  FHK_DEV bool softmax(Scores &st, bool valid0, bool valid1, float (&m)[kPairs], float (&l)[kPairs],
                       float (&rescale)[kPairs], float *reduce) {
    float x[kPairs];
#pragma unroll
    for (int j = 0; j < kBlocks; j++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        if (!valid0) st[4 * j + e] = -INFINITY;
        if (!valid1) st[4 * j + 2 + e] = -INFINITY;
        x[2 * j + e] = fmaxf(st[4 * j + e], st[4 * j + 2 + e]);
      }
    }
    across(x, reduce, [](float a, float b) { return fmaxf(a, b); });
    bool moved = false;
#pragma unroll
    for (int k = 0; k < kPairs; k++) {
      const float m_new = fmaxf(m[k], x[k] * scale);
      rescale[k] = ptx::exp2(m[k] - m_new);
      moved |= m_new != m[k];
      m[k] = m_new;
    }
#pragma unroll
    for (int j = 0; j < kBlocks; j++) {
      const float p00 = ptx::exp2(fmaf(st[4 * j], scale, -m[2 * j])),
                  p01 = ptx::exp2(fmaf(st[4 * j + 1], scale, -m[2 * j + 1]));
      const float p10 = ptx::exp2(fmaf(st[4 * j + 2], scale, -m[2 * j])),
                  p11 = ptx::exp2(fmaf(st[4 * j + 3], scale, -m[2 * j + 1]));
      l[2 * j] = l[2 * j] * rescale[2 * j] + p00 + p10;
      l[2 * j + 1] = l[2 * j + 1] * rescale[2 * j + 1] + p01 + p11;
      ptx::stmatrix2_trans(p_row + j * 1024, ptx::pack_bf16(p00, p01), ptx::pack_bf16(p10, p11));
    }
    if constexpr (!X::kByWarp) ptx::fence_proxy_async(); /* stmatrix writes, before wgmma reads them */
    meet();
    return moved;
  }

  /* ---- O^T += V^T P^T, a slice of 64 columns at a time, of the tile whose first slice is in tile_slot */

  FHK_DEV void pv_by_warp(Output &o, uint32_t tile_slot, bool first) const {
    uint32_t p[8]; /* B fragments: head lane / 4, tokens of the four k16 steps */
#pragma unroll
    for (int k = 0; k < 2; k++) {
      uint32_t r[4];
      ptx::ldmatrix4(r, smem + X::kP + swizzled(lane & 7, 4 * k + (lane >> 3)));
#pragma unroll
      for (int e = 0; e < 4; e++) p[4 * k + e] = r[e];
    }
    if (first) {
#pragma unroll
      for (int c = 0; c < kValueSlices; c++) {
#pragma unroll
        for (int e = 0; e < 4; e++) o[c][e] = 0.f;
      }
    }
    uint32_t slot = tile_slot + 2 * warp; /* this warp's 128 columns: two slices */
    if (slot >= X::kSlots) slot -= X::kSlots;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint32_t slice = smem + slot * kSliceBytes;
#pragma unroll
      for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int b = 0; b < 4; b++) { /* 16 columns */
          uint32_t a[4];
          ptx::ldmatrix4_trans(a, slice + k * 2048 + swizzled(v_row, 2 * b + ((lane >> 3) & 1)));
          ptx::mma_m16n8k16(o[4 * half + b], a, p[2 * k], p[2 * k + 1]);
        }
      }
      warp_arrive(bar.empty(slot), lane);
      if (++slot == X::kSlots) slot = 0;
    }
  }
  FHK_DEV void pv_by_group(Output &o, uint32_t tile_slot, bool first) const {
    const uint64_t dp = ptx::desc_k_major(smem + X::kP);
#pragma unroll
    for (int c = 0; c < kValueSlices; c++) ptx::keep(o[c]);
    ptx::wgmma_fence();
    uint32_t slot = tile_slot;
#pragma unroll
    for (int c = 0; c < kValueSlices; c++) {
      const uint64_t dv = ptx::desc_mn_major(smem + slot * kSliceBytes, kSliceBytes);
#pragma unroll
      for (int k = 0; k < 4; k++) ptx::wgmma_ss<1, 0>(o[c], dv + 128 * k, dp + 2 * k, !first | (k > 0));
      ptx::wgmma_commit();
      if (++slot == X::kSlots) slot = 0;
    }
    slot = tile_slot;
    static_for<kValueSlices>([&](auto c) {
      ptx::wgmma_wait<kValueSlices - 1 - decltype(c)::value>();
      warp_arrive(bar.empty(slot), lane);
      if (++slot == X::kSlots) slot = 0;
    });
#pragma unroll
    for (int c = 0; c < kValueSlices; c++) ptx::keep(o[c]);
  }

  /* ---- Finish: out = O / (l + 2^(sink - m)); l is the whole sum by now, heads 0 where the row is lacking */

  FHK_DEV void store(const Output &o, const float (&m)[kPairs], const float (&l)[kPairs], int32_t s, int head0,
                     int heads, uint16_t *out) const {
    const fh_call &call = params.call;
    float factor[kPairs];
#pragma unroll
    for (int k = 0; k < kPairs; k++) {
      const int head = head0 + 8 * (k >> 1) + pair + (k & 1);
      factor[k] = head < heads ? inverse_denominator(m[k], l[k], sink_log2(call, head)) : 0.f;
      if (warp == 0 && quad == 0 && head < heads) store_statistics(call, s, head, m[k], l[k]);
    }
    /* Transpose 8 x 8 blocks in registers: a lane gets two neighbouring columns of head 8 j + lane / 4. */
#pragma unroll
    for (int j = 0; j < kBlocks; j++) {
      const int head = head0 + 8 * j + quad;
      uint16_t *row = out + head * call.out_stride_h + pair - quad;
#pragma unroll
      for (int c = 0; c < kValueSlices; c++) {
        const uint32_t lo =
            ptx::movmatrix_trans(ptx::pack_bf16(o[c][4 * j] * factor[2 * j], o[c][4 * j + 1] * factor[2 * j + 1]));
        const uint32_t hi =
            ptx::movmatrix_trans(ptx::pack_bf16(o[c][4 * j + 2] * factor[2 * j], o[c][4 * j + 3] * factor[2 * j + 1]));
        if (head < heads) {
          *reinterpret_cast<uint32_t *>(row + column(c)) = lo;
          *reinterpret_cast<uint32_t *>(row + column(c) + 8) = hi;
        }
      }
    }
  }

  /* The CTAs of a cluster have parts of the row: each leaves O and (m, l) in shared memory; after the cluster meets,
   * each finishes its share of the columns. */
  FHK_DEV void store_by_cluster(const Output &o, const float (&m)[kPairs], const float (&l)[kPairs], int32_t s,
                                int head0, int heads, uint16_t *out, uint8_t *generic) {
    const fh_call &call = params.call;
    float *reduce = reinterpret_cast<float *>(generic + X::kReduce);
    float2 *final_state = reinterpret_cast<float2 *>(generic + X::kFinal);
    float *mine = reinterpret_cast<float *>(generic); /* [kHeads][512]; the ring is idle: all its tiles were consumed */
#pragma unroll
    for (int k = 0; k < kPairs; k++) {
      const int h = 8 * (k >> 1) + pair + (k & 1);
      if (warp == 0 && quad == 0) final_state[h] = make_float2(m[k], l[k]);
#pragma unroll
      for (int c = 0; c < kValueSlices; c++) {
        mine[h * kDv + column(c)] = o[c][4 * (k >> 1) + (k & 1)];
        mine[h * kDv + column(c) + 8] = o[c][4 * (k >> 1) + 2 + (k & 1)];
      }
    }
    ptx::cluster_sync();
    /* share[h][r]: what the part of CTA r counts for in head h, the denominator included */
    float *share = reduce;
    for (int k = t; k < kHeads * params.cluster; k += 128) {
      const int h = k / params.cluster, r = k % params.cluster, head = head0 + h;
      if (head >= heads) continue;
      float best = kMaxStart, total = 0.f;
      for (int other = 0; other < params.cluster; other++)
        best = fmaxf(best, ptx::ld_cluster_f2(ptx::map_to_rank(smem + X::kFinal + h * 8, other)).x);
      for (int other = 0; other < params.cluster; other++) {
        const float2 state = ptx::ld_cluster_f2(ptx::map_to_rank(smem + X::kFinal + h * 8, other));
        total += ptx::exp2(state.x - best) * state.y;
      }
      const float own = ptx::ld_cluster_f2(ptx::map_to_rank(smem + X::kFinal + h * 8, r)).x;
      share[h * kMaxCluster + r] = ptx::exp2(own - best) * inverse_denominator(best, total, sink_log2(call, head));
      if (rank == 0 && r == 0) store_statistics(call, s, head, best, total);
    }
    meet();
    const int columns = kDv / params.cluster; /* a power of two, at least 64 */
    for (int k = 2 * t; k < kHeads * columns; k += 256) {
      const int h = k / columns, pos = rank * columns + k % columns, head = head0 + h;
      if (head >= heads) break;
      float2 total = make_float2(0.f, 0.f);
      for (int r = 0; r < params.cluster; r++) {
        const float2 part = ptx::ld_cluster_f2(ptx::map_to_rank(smem + (h * kDv + pos) * 4, r));
        total.x += share[h * kMaxCluster + r] * part.x;
        total.y += share[h * kMaxCluster + r] * part.y;
      }
      *reinterpret_cast<uint32_t *>(out + head * call.out_stride_h + pos) = ptx::pack_bf16(total.x, total.y);
    }
    ptx::cluster_sync(); /* nobody leaves, or refills its ring, while others read it */
  }
};

template <int kD, int kHeads>
FHK_DEV void consume(const Params &p, uint32_t smem, uint8_t *generic, int t, int32_t first, int32_t items,
                     uint32_t rank) {
  using C = Consumer<kD, kHeads>;
  using X = Shape<kD, kHeads>;
  const fh_call &call = p.call;
  C c(p, smem, t, rank);
  float *reduce = reinterpret_cast<float *>(generic + X::kReduce);
  uint32_t q_phase = 0;
  int raw0 = -1, raw1 = -1; /* list entries of this thread's two tokens of the coming tile */
  auto load_tokens = [&](int32_t s, uint32_t tile) {
    raw0 = raw_token(call, s, c.position(tile));
    raw1 = raw_token(call, s, c.position(tile) + 8);
  };

  Walk<kHeads> walk(p, first, items);
  load_tokens(walk.here, 0);
  for (; walk.there(); walk.advance()) {
    const uint32_t length = walk.length, tiles = tile_count(length, rank, p.cluster);
    typename C::Output o;
    typename C::QueryFragments q;
    float m[C::kPairs], l[C::kPairs];
#pragma unroll
    for (int k = 0; k < C::kPairs; k++) {
      m[k] = kMaxStart;
      l[k] = 0.f;
    }
    if (tiles == 0) {
#pragma unroll
      for (int k = 0; k < kValueSlices; k++) {
#pragma unroll
        for (int e = 0; e < 4 * C::kBlocks; e++) o[k][e] = 0.f;
      }
    }
    for (uint32_t n = 0; n < tiles; n++) {
      const bool valid0 = is_key(call, raw0, c.position(n), length),
                 valid1 = is_key(call, raw1, c.position(n) + 8, length);
      if (n == 0) {
        ptx::mbar_wait(c.bar.q_full(), q_phase);
        q_phase ^= 1;
      }
      auto load_next = [&]() {
        if (n + 1 < tiles) load_tokens(walk.here, n + 1);
        else load_tokens(walk.next, 0);
      };
      const uint32_t tile_slot = c.ring.slot;
      typename C::Scores st;
      if constexpr (X::kByWarp) {
        if (n == 0) c.load_query(q);
        c.scores_by_warp(st, q, load_next);
      } else {
        c.scores_by_group(st, n + 1 == tiles, load_next);
      }
      float rescale[C::kPairs];
      const bool moved = c.softmax(st, valid0, valid1, m, l, rescale, reduce);
      if constexpr (X::kSlices > kValueSlices) { /* columns past d_v are done: every warp is past QK */
        const uint32_t past = tile_slot + kValueSlices;
        if (!X::kByWarp || c.warp == 0) warp_arrive(c.bar.empty(past >= X::kSlots ? past - X::kSlots : past), c.lane);
      }
      if (n > 0 && __any_sync(~0u, moved)) {
#pragma unroll
        for (int k = 0; k < kValueSlices; k++) {
#pragma unroll
          for (int e = 0; e < 4 * C::kBlocks; e++) o[k][e] *= rescale[2 * (e >> 2) + (e & 1)];
        }
      }
      if constexpr (X::kByWarp) c.pv_by_warp(o, tile_slot, n == 0);
      else c.pv_by_group(o, tile_slot, n == 0);
    }
    if (tiles == 0) load_tokens(walk.next, 0);
    c.across(l, reduce, [](float a, float b) { return a + b; });
    const int32_t s = walk.here;
    const int head0 = walk.head0(), heads = s < 0 ? 0 : call.h_q; /* a row that is lacking has none */
    uint16_t *out = static_cast<uint16_t *>(call.out) + s * call.out_stride_s;
    if (p.cluster == 1) c.store(o, m, l, s, head0, heads, out);
    else c.store_by_cluster(o, m, l, s, head0, heads, out, generic);
  }
}

template <int kD, int kHeads>
__global__ void __launch_bounds__(kThreads, Shape<kD, kHeads>::kCtas) kernel(const __grid_constant__ Params p) {
  using X = Shape<kD, kHeads>;
  extern __shared__ uint8_t raw[];
  const uint32_t smem = (ptx::smem_addr(raw) + 1023) & ~1023u;
  uint8_t *generic = raw + (smem - ptx::smem_addr(raw));
  const uint32_t rank = p.cluster == 1 ? 0 : blockIdx.x % p.cluster;
  const int32_t first = blockIdx.x / p.cluster, items = p.rows.count() * p.head_blocks;
  /* Whoever waits for this grid counts on the one in front of it too, even where this one need not wait for that
   * one. */
  auto end = [] {
    if (blockIdx.x == 0) ptx::wait_for_grid_before();
  };
  if (first >= items) return end();
  if (threadIdx.x == 0) Barriers<X::kSlots>{smem + X::kBarriers}.init(X::kByWarp ? 1 : 4);
  __syncthreads();
  /* ptxas honours setmaxnreg only where each role is one branch of a single if/else. */
  if (threadIdx.x < 128) {
    if constexpr (X::kCtas == 2) ptx::setmaxnreg_inc<kConsumerRegs>();
    consume<kD, kHeads>(p, smem, generic, threadIdx.x, first, items, rank);
  } else {
    if constexpr (X::kCtas == 2) ptx::setmaxnreg_dec<kProducerRegs>();
    produce<kD, kHeads>(p, smem, threadIdx.x - 128, first, items, rank);
    if (p.cluster > 1) { /* the consumer meets the cluster twice an item; a split launch has one item a cluster */
      ptx::cluster_sync();
      ptx::cluster_sync();
    }
  }
  end();
}

/* How many CTAs share an item so that few items still fill the device. Clusters are placed whole, and filling every
 * slot with them takes a second wave: half of what would fit where two CTAs share a multiprocessor (64 queries, 8
 * heads: 15.0 us in pairs, 23.3 us in fours), three quarters where each has one to itself (16 queries, 32 heads: 33
 * us in eights that need them all). */
inline uint32_t cluster_size(int64_t items, int64_t tiles, int64_t multiprocessors, int ctas) {
  const int64_t most = ctas == 2 ? multiprocessors : multiprocessors * 3 / 4;
  uint32_t size = 1;
  while (size < kMaxCluster && items * size * 2 <= most && size * 2 <= tiles) size *= 2;
  return size;
}

template <int kD, int kHeads>
cudaError_t prepare() {
  return cudaFuncSetAttribute(kernel<kD, kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              Shape<kD, kHeads>::kBytes);
}

template <int kD, int kHeads>
cudaError_t launch(const fh_call *call, int32_t multiprocessors, cudaStream_t stream) {
  using X = Shape<kD, kHeads>;
  const int64_t head_blocks = (call->h_q + kHeads - 1) / kHeads, rows = most_rows(*call), items = rows * head_blocks;
  if (rows > kMostRows || items > kMostRows) return cudaErrorInvalidConfiguration;
  const bool some = call->path == FH_AUTO; /* behind the kernel that computes the others */
  Params p;
  p.call = *call;
  p.rows = rows_of(*call);
  p.head_blocks = static_cast<int32_t>(head_blocks);
  /* A split adds up in another order, so a row that must not depend on how many rows there are is never split; nor
   * is one where the host does not know how many there are. */
  p.cluster = call->row_invariant || some
                  ? 1
                  : cluster_size(items, (call->topk + kTile - 1) / kTile, multiprocessors, X::kCtas);
  const int64_t slots = static_cast<int64_t>(multiprocessors) * X::kCtas;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.cluster > 1 ? items * p.cluster : items < slots ? items : slots));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = X::kBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  if (some) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  } else {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(p.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  config.attrs = &attribute;
  config.numAttrs = some || p.cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel<kD, kHeads>, p);
}

#define FHK_SM90_GATHER_DECLARE(D, HEADS)          \
  extern template cudaError_t prepare<D, HEADS>(); \
  extern template cudaError_t launch<D, HEADS>(const fh_call *, int32_t, cudaStream_t);
#define FHK_SM90_GATHER_DEFINE(D, HEADS)    \
  template cudaError_t prepare<D, HEADS>(); \
  template cudaError_t launch<D, HEADS>(const fh_call *, int32_t, cudaStream_t);

}  // namespace sm90_gather
}  // namespace fhk

#endif
