/*
 * portable packed: `group` neighbouring queries x their h_q heads, 64 rows, over the union of the queries' lists, with
 * mma.sync and cp.async, sm_80 and up.
 *
 *   S^T[16 entries x rows] = K Q^T       A = K (ldmatrix),              B = Q in registers
 *   O^T[columns x rows]   += V^T P^T     A = the same bytes transposed, B = P through shared memory
 *
 * Row = query * h_q + head. A CTA is eight warps: four parts of the columns, 128 each, times two halves of the rows, 32
 * each, so that O (128) and Q (64 or 72) of a warp stand in registers. A warp adds up the scores of its rows over its
 * own columns and puts them in shared memory; the four warps of a half then make P of eight rows each; then each adds
 * P V over its own columns. The scores of the next tile are multiplied before the PV of this one, so that the softmax
 * alone stands between products.
 *
 * Shared memory: a ring of tiles (16 rows of KV, the first 512 columns of all rows, then the rest, then the 16 member
 * words), the parts of the scores, P with its rescale factors. At the end of a group the ring holds O, in rounds.
 * Rows that cp.async cannot take (not on 16 bytes) come element by element: correct, slow.
 *
 * Isolation: the P of a hidden pair, 0, times a NaN or an Inf of V would reach a row that never chose that key. Such a
 * KV row shows in the scores of every row, 0 * Inf = NaN included. A warp that sees a score that is not finite looks at
 * the V row in shared memory and overwrites it with zeros if it holds one; rows that list the key keep their NaN, which
 * their P carries.
 *
 * What the plan's memory holds is data: whatever it is, group numbers, rows and entries are clamped as they are read,
 * and no address is bad.
 */
#ifndef FEWHEAD_KERNELS_PORTABLE_PACKED_CUH
#define FEWHEAD_KERNELS_PORTABLE_PACKED_CUH

#include "cuda/common.cuh"
#include "cuda/cuda.h"

namespace fhk {
namespace portable_packed {

constexpr int kRows = 64, kTile = 16; /* rows of a group; entries of a tile: m16 */
constexpr int kDv = 512;
constexpr int kParts = 4, kHalves = 2, kWarps = kParts * kHalves, kThreads = 32 * kWarps;
constexpr int kBlocks = 4;             /* blocks of eight rows in a half; a warp makes P of one */
constexpr int kColumns = kDv / kParts; /* of a warp */
constexpr int kColumnBlocks = kColumns / 16;
constexpr int kLeastStages = 4, kMostStages = 8;
constexpr float kSlack = 8.f; /* P is at most 2^8: the maximum may lag by that much before O is rescaled */

constexpr uint32_t kRowBytes = kDv * 2;
constexpr uint32_t kMemberBytes = kTile * 8;
constexpr uint32_t kPartBytes = kHalves * kBlocks * kParts * 32 * 16, kPBytes = kHalves * kBlocks * 32 * 16;
constexpr uint32_t kFactorBytes = kRows * 4;
constexpr int kRounds = 4, kRoundColumns = kColumns / kRounds;
constexpr int kStagingStride = kRoundColumns + 4; /* floats: row 2 c, column r of a fragment are on bank 8 c + r */
constexpr uint32_t kStagingBytes = 32 * kStagingStride * 4;

template <int kD>
constexpr uint32_t kSlotBytes = kTile *kD * 2 + kMemberBytes;
template <int kD>
constexpr uint32_t bytes(int stages) {
  return stages * kSlotBytes<kD> + kPartBytes + kPBytes + kFactorBytes;
}
static_assert(kWarps * kStagingBytes <= kLeastStages * kSlotBytes<512>, "a round must fit the smallest ring");

struct Params {
  fh_call call;
  fh_plan plan;    /* packed_from NULL: all groups are packed */
  uint32_t over_h; /* ceil(2^16 / h_q): a row below 64 times this, shifted right by 16, is its query */
  int32_t stages;
  bool aligned_kv;  /* KV rows start on 16 bytes */
  bool aligned_q;   /* q rows start on 4 bytes */
  bool aligned_out; /* out rows start on 16 bytes */

  FHK_DEV int32_t left_out() const {
    return plan.packed_from ? min(static_cast<uint32_t>(__ldg(plan.packed_from)), static_cast<uint32_t>(plan.groups))
                            : 0;
  }
  FHK_DEV int query_of(int r) const { return static_cast<int>(static_cast<uint32_t>(r) * over_h >> 16); }
};

struct Group {
  int64_t first; /* row of the call */
  int64_t at;    /* of the first entry in the plan's arrays */
  int32_t rows;  /* queries * h_q */
  int32_t entries;
};

FHK_DEV Group group_of(const Params &p, int32_t looked) {
  const fh_plan &plan = p.plan;
  const uint32_t g = min(static_cast<uint32_t>(looked), static_cast<uint32_t>(plan.groups) - 1); /* -1 is a large one */
  const uint64_t all = static_cast<uint64_t>(p.call.s_q);
  const uint64_t first = min(static_cast<uint64_t>(__ldg(plan.first + g)), all);
  const uint64_t behind = min(static_cast<uint64_t>(__ldg(plan.first + g + 1)), all);
  const int32_t queries =
      behind > first ? static_cast<int32_t>(min(behind - first, static_cast<uint64_t>(plan.group))) : 0;
  const int32_t entries = min(static_cast<uint32_t>(__ldg(plan.entries + g)), static_cast<uint32_t>(plan.capacity));
  return {static_cast<int64_t>(first), g * plan.capacity, queries * p.call.h_q, entries};
}

/* 16-byte unit u of row r lies at unit u ^ (r % 8): ldmatrix reads eight rows without bank conflicts. */
FHK_DEV uint32_t unit_offset(uint32_t row, uint32_t unit) { return (unit ^ (row & 7)) << 4; }

FHK_DEV bool not_finite(float pair) { /* either bf16 of the two */
  const uint32_t bits = __float_as_uint(pair);
  return (bits & 0x7f80u) == 0x7f80u || (bits & 0x7f800000u) == 0x7f800000u;
}

/* A thread of a CTA. */
template <int kD>
struct Member {
  static constexpr int kSteps = kColumns / 16, kPastSteps = (kD - kDv) / 16 / kParts; /* k16 steps; those past d_v */
  using QueryFragments = uint32_t[kSteps + kPastSteps][kBlocks][2];
  using Output = float[kColumnBlocks][kBlocks][4]; /* O^T: 16 columns x 8 rows an entry */

  const Params &params;
  uint8_t *const ring;
  const int lane, part, half;
  const int c4, r8;     /* a lane holds entries (of O: columns) r8 and r8 + 8 against rows 2 c4 and 2 c4 + 1 */
  float4 *const parts;  /* [half][block][part][lane] */
  float4 *const passed; /* P and rescale factors, [half][block][lane] */
  float *const factors; /* of every row */
  const float scale;

  FHK_DEV Member(const Params &given, uint8_t *memory, int warp, int of_warp)
      : params(given), ring(memory), lane(of_warp), part(warp & (kParts - 1)), half(warp / kParts), c4(lane & 3),
        r8(lane >> 2),
        parts(reinterpret_cast<float4 *>(memory + given.stages * kSlotBytes<kD>) + half * kBlocks * kParts * 32 + lane),
        passed(reinterpret_cast<float4 *>(memory + given.stages * kSlotBytes<kD> + kPartBytes) + half * kBlocks * 32 +
               lane),
        factors(reinterpret_cast<float *>(memory + given.stages * kSlotBytes<kD> + kPartBytes + kPBytes)),
        scale(given.call.sm_scale * kLog2e) {}

  /* Row of the group that the warp makes P of, and that this lane has in its column e. */
  FHK_DEV int own_row(int e) const { return 32 * half + 8 * part + 2 * c4 + e; }

  /* The two entries that this warp brings of tile i; -1 past the end or where no KV row is named. */
  struct Pair {
    int32_t entry[2];
  };
  FHK_DEV Pair look(const Group &g, int32_t i) const {
    Pair pair;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int32_t pos = i * kTile + 2 * (part + kParts * half) + k;
      const int32_t entry = pos < g.entries ? __ldg(params.plan.token + g.at + pos) : -1;
      pair.entry[k] = static_cast<uint32_t>(entry) < static_cast<uint32_t>(params.call.s_kv) ? entry : -1;
    }
    return pair;
  }

  /* Copies the warp's two rows of tile i to its slot, and one warp the member words: 0, hidden, past the end. */
  FHK_DEV void copy_tile(const Group &g, int32_t i, int slot, const Pair &pair) const {
    const fh_call &call = params.call;
    uint8_t *const tile = ring + slot * kSlotBytes<kD>;
    const uint32_t dst = ptx::smem_addr(tile);
    const int first = 2 * (part + kParts * half);
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int r = first + k;
      const int32_t t = pair.entry[k];
      const uint16_t *src = call.kv + (t >= 0 ? t : 0) * call.kv_stride;
      const uint32_t row = r * kRowBytes;
      if (params.aligned_kv) {
        const uint32_t n = t >= 0 ? 16 : 0, at = dst + row + unit_offset(r, lane);
        ptx::cp_async16(at, src + lane * 8, n);
        ptx::cp_async16(at + 512, src + 256 + lane * 8, n);
        if constexpr (kD > kDv) {
          if (lane < 8) ptx::cp_async16(dst + kTile * kRowBytes + swizzled(r, lane), src + kDv + lane * 8, n);
        }
      } else {
        for (int d = lane; d < kD; d += 32) {
          const uint32_t at = d < kDv ? row + unit_offset(r, d / 8) : kTile * kRowBytes + swizzled(r, (d - kDv) / 8);
          *reinterpret_cast<uint16_t *>(tile + at + d % 8 * 2) = t >= 0 ? __ldg(src + d) : static_cast<uint16_t>(0);
        }
      }
    }
    if (part == 0 && half == 0 && lane < kTile) {
      const int32_t pos = i * kTile + lane;
      const uint64_t *from = params.plan.member + g.at + (pos < g.entries ? pos : 0);
      ptx::cp_async8(dst + kTile * kD * 2 + lane * 8, from, pos < g.entries ? 8 : 0);
    }
  }

  template <typename Load>
  FHK_DEV void load_query(QueryFragments &q, const Group &g, Load load) const {
    const fh_call &call = params.call;
#pragma unroll
    for (int b = 0; b < kBlocks; b++) {
      const int r = 32 * half + 8 * b + r8;
      const bool real = r < g.rows;
      const int query = params.query_of(r);
      const uint16_t *row = call.q + (real ? g.first + query : 0) * call.q_stride_s +
                            (real ? r - query * call.h_q : 0) * call.q_stride_h + 2 * c4;
#pragma unroll
      for (int k = 0; k < kSteps + kPastSteps; k++) {
        const int column = k < kSteps ? (part * kSteps + k) * 16 : kDv + (part * kPastSteps + k - kSteps) * 16;
        q[k][b][0] = real ? load(row + column) : 0;
        q[k][b][1] = real ? load(row + column + 8) : 0;
      }
    }
  }

  /* S^T = K Q^T of a tile over this warp's columns; the parts of the three blocks that other warps weigh go to shared
   * memory, `own` keeps the fourth. */
  FHK_DEV void scores(float (&own)[4], const QueryFragments &q, int slot) const {
    const uint32_t tile = ptx::smem_addr(ring + slot * kSlotBytes<kD>);
    float s[kBlocks][4] = {};
    const uint32_t k_row = (lane & 7) + ((lane >> 3) & 1) * 8, k_unit = lane >> 4;
#pragma unroll
    for (int k = 0; k < kSteps + kPastSteps; k++) {
      uint32_t a[4];
      if (k < kSteps) ptx::ldmatrix4(a, tile + k_row * kRowBytes + unit_offset(lane, 2 * (part * kSteps + k) + k_unit));
      else ptx::ldmatrix4(a, tile + kTile * kRowBytes + swizzled(k_row, 2 * (part * kPastSteps + k - kSteps) + k_unit));
#pragma unroll
      for (int b = 0; b < kBlocks; b++) ptx::mma_m16n8k16(s[b], a, q[k][b][0], q[k][b][1]);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; b++) {
      if (b == part) {
#pragma unroll
        for (int e = 0; e < 4; e++) own[e] = s[b][e];
      } else {
        parts[(b * kParts + part) * 32] = make_float4(s[b][0], s[b][1], s[b][2], s[b][3]);
      }
    }
  }

  /* Zeros for the V rows that hold a NaN or an Inf, of the entries whose scores are not finite. */
  FHK_DEV void silence(const float (&s)[4], int slot) const {
    uint8_t *const tile = ring + slot * kSlotBytes<kD>;
    const float x = s[0] * 0.f + s[1] * 0.f, y = s[2] * 0.f + s[3] * 0.f;             /* 0, or NaN */
    uint32_t low = __ballot_sync(~0u, x != 0.f), high = __ballot_sync(~0u, y != 0.f); /* NaN != 0 */
    for (int second = 0; second < 2; second++) {
      for (uint32_t who = second ? high : low; who;) {
        const int r = (__ffs(who) - 1) / 4 + 8 * second;
        who &= ~(0xfu << (r & 7) * 4);
        float4 *const row = reinterpret_cast<float4 *>(tile + r * kRowBytes) + lane;
        bool bad = false;
        for (const float4 &v : {row[0], row[32]})
          bad |= not_finite(v.x) || not_finite(v.y) || not_finite(v.z) || not_finite(v.w);
        if (__any_sync(~0u, bad)) row[0] = row[32] = make_float4(0.f, 0.f, 0.f, 0.f);
      }
    }
  }

  /* Of two rows: the largest logit, the maximum that P and the sum l stand for, times log2(e) both. */
  struct State {
    float most[2] = {kMaxStart, kMaxStart}, m[2] = {kMaxStart, kMaxStart}, l[2] = {0.f, 0.f};
  };

  /* P of the warp's eight rows, from the parts of the scores; the state is brought up to date. */
  FHK_DEV void softmax(float (&s)[4], int slot, const int (&query)[2], State &state) const {
    float(&m)[2] = state.m, (&l)[2] = state.l;
#pragma unroll
    for (int w = 1; w < kParts; w++) {
      const float4 v = parts[(part * kParts + (part + w) % kParts) * 32];
      s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
    }
    const uint64_t *const members = reinterpret_cast<const uint64_t *>(ring + slot * kSlotBytes<kD> + kTile * kD * 2);
    const uint64_t low = members[r8], high = members[r8 + 8];
    const bool finite =
        fabsf(s[0]) < INFINITY && fabsf(s[1]) < INFINITY && fabsf(s[2]) < INFINITY && fabsf(s[3]) < INFINITY;
    if (__any_sync(~0u, !finite)) silence(s, slot);
    if (!(low >> query[0] & 1)) s[0] = -INFINITY;
    if (!(low >> query[1] & 1)) s[1] = -INFINITY;
    if (!(high >> query[0] & 1)) s[2] = -INFINITY;
    if (!(high >> query[1] & 1)) s[3] = -INFINITY;
    float top[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])}, rescale[2];
#pragma unroll
    for (int d = 4; d < 32; d <<= 1) {
      top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], d));
      top[1] = fmaxf(top[1], __shfl_xor_sync(~0u, top[1], d));
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      state.most[e] = fmaxf(state.most[e], top[e] * scale);
      const float now = state.most[e] > m[e] + kSlack ? state.most[e] : m[e];
      rescale[e] = ptx::exp2(m[e] - now);
      m[e] = now;
    }
    const float p00 = ptx::exp2(fmaf(s[0], scale, -m[0])), p01 = ptx::exp2(fmaf(s[1], scale, -m[1]));
    const float p10 = ptx::exp2(fmaf(s[2], scale, -m[0])), p11 = ptx::exp2(fmaf(s[3], scale, -m[1]));
    l[0] = l[0] * rescale[0] + p00 + p10;
    l[1] = l[1] * rescale[1] + p01 + p11;
    /* the accumulator layout (entry, pair of rows), transposed, is the B layout */
    const uint32_t b0 = ptx::movmatrix_trans(ptx::pack_bf16(p00, p01)),
                   b1 = ptx::movmatrix_trans(ptx::pack_bf16(p10, p11));
    passed[part * 32] = make_float4(__uint_as_float(b0), __uint_as_float(b1), rescale[0], rescale[1]);
  }

  /* O^T += V^T P^T of a tile over this warp's columns, O rescaled before where a maximum grew. */
  FHK_DEV void pv(Output &o, int slot) const {
    const uint32_t tile = ptx::smem_addr(ring + slot * kSlotBytes<kD>);
    uint32_t p[kBlocks][2];
    float rescale[kBlocks][2];
    bool moved = false;
#pragma unroll
    for (int b = 0; b < kBlocks; b++) {
      const float4 v = passed[b * 32];
      p[b][0] = __float_as_uint(v.x), p[b][1] = __float_as_uint(v.y);
      rescale[b][0] = v.z, rescale[b][1] = v.w;
      moved |= (v.z != 1.f) | (v.w != 1.f);
    }
    if (__any_sync(~0u, moved)) {
#pragma unroll
      for (int j = 0; j < kColumnBlocks; j++) {
#pragma unroll
        for (int b = 0; b < kBlocks; b++) {
#pragma unroll
          for (int e = 0; e < 4; e++) o[j][b][e] *= rescale[b][e & 1];
        }
      }
    }
    const uint32_t v_row = (lane & 7) + (lane >> 4) * 8, v_unit = (lane >> 3) & 1;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; j++) {
      uint32_t a[4];
      ptx::ldmatrix4_trans(a, tile + v_row * kRowBytes + unit_offset(lane, 2 * (part * kColumnBlocks + j) + v_unit));
#pragma unroll
      for (int b = 0; b < kBlocks; b++) ptx::mma_m16n8k16(o[j][b], a, p[b][0], p[b][1]);
    }
  }

  /* Statistics, and what each row of O is multiplied by. The CTA has met when it returns. */
  FHK_DEV void finish_rows(const Group &g, State &state) const {
    const fh_call &call = params.call;
    float(&m)[2] = state.m, (&l)[2] = state.l;
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
      for (int d = 4; d < 32; d <<= 1) l[e] += __shfl_xor_sync(~0u, l[e], d);
      const int r = own_row(e), query = params.query_of(r), head = r - query * call.h_q;
      if (r8 == 0 && r < g.rows) {
        factors[r] = inverse_denominator(m[e], l[e], sink_log2(call, head));
        store_statistics(call, g.first + query, head, state.most[e], l[e] * ptx::exp2(m[e] - state.most[e]));
      }
    }
    __syncthreads(); /* also: nobody reads the ring any more */
  }

  /* O in rounds through the idle ring; each warp its own part. */
  FHK_DEV void store(const Group &g, const Output &o) const {
    const fh_call &call = params.call;
    float *const staging = reinterpret_cast<float *>(ring + (part + kParts * half) * kStagingBytes);
#pragma unroll
    for (int round = 0; round < kRounds; round++) {
      constexpr int kRoundBlocks = kColumnBlocks / kRounds;
#pragma unroll
      for (int j = 0; j < kRoundBlocks; j++) {
#pragma unroll
        for (int b = 0; b < kBlocks; b++) {
          const float(&v)[4] = o[round * kRoundBlocks + j][b];
          float *at = staging + (8 * b + 2 * c4) * kStagingStride + 16 * j + r8;
          at[0] = v[0];
          at[kStagingStride] = v[1];
          at[8] = v[2];
          at[kStagingStride + 8] = v[3];
        }
      }
      __syncwarp();
      constexpr int kUnits = kRoundColumns / 8;
#pragma unroll
      for (int unit = lane; unit < 32 * kUnits; unit += 32) {
        const int row = unit / kUnits, column = unit % kUnits * 8, r = 32 * half + row;
        if (r >= g.rows) break;
        const int query = params.query_of(r);
        const float factor = factors[r];
        const float4 *from = reinterpret_cast<const float4 *>(staging + row * kStagingStride + column);
        const float4 a = from[0], b = from[1];
        const uint32_t pairs[4] = {
            ptx::pack_bf16(a.x * factor, a.y * factor), ptx::pack_bf16(a.z * factor, a.w * factor),
            ptx::pack_bf16(b.x * factor, b.y * factor), ptx::pack_bf16(b.z * factor, b.w * factor)};
        uint16_t *to = static_cast<uint16_t *>(call.out) + (g.first + query) * call.out_stride_s +
                       (r - query * call.h_q) * call.out_stride_h + part * kColumns + round * kRoundColumns + column;
        if (params.aligned_out) {
          *reinterpret_cast<uint4 *>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        } else {
#pragma unroll
          for (int k = 0; k < 8; k++) to[k] = static_cast<uint16_t>(pairs[k / 2] >> (k % 2 * 16));
        }
      }
      __syncwarp();
    }
  }
};

/* Waits until no more than stages - 3 copies are under way: the tile after the one at work has landed. */
FHK_DEV void wait_for_next(int stages) {
  if (stages >= 8) ptx::cp_async_wait<5>();
  else if (stages >= 6) ptx::cp_async_wait<3>();
  else ptx::cp_async_wait<1>();
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ Params p) {
  using M = Member<kD>;
  extern __shared__ __align__(1024) uint8_t memory[];
  ptx::wait_for_grid_before();
  ptx::let_grid_behind_start();
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
  const M me(p, memory, warp, threadIdx.x & 31);
  const int32_t left_out = p.left_out(), count = static_cast<int32_t>(p.plan.groups) - left_out;
  const int32_t ctas = static_cast<int32_t>(gridDim.x), stages = p.stages, ahead = stages - 1;
  const int query[2] = {p.query_of(me.own_row(0)), p.query_of(me.own_row(1))};

  /* In plan order, the longest union first; every other round is dealt backwards. */
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < count; i = 2 * (i / ctas + 1) * ctas - 1 - i) {
    const Group g = group_of(p, __ldg(p.plan.order + left_out + i));
    const int32_t tiles = (g.entries + kTile - 1) / kTile;
    for (int32_t k = 0; k < ahead; k++) { /* groups of copies are counted, so empty ones are closed too */
      if (k < tiles) me.copy_tile(g, k, k, me.look(g, k));
      ptx::cp_async_commit();
    }
    typename M::Pair ready = me.look(g, ahead);

    typename M::QueryFragments q;
    if (p.aligned_q)
      me.load_query(q, g, [](const uint16_t *at) { return __ldg(reinterpret_cast<const uint32_t *>(at)); });
    else me.load_query(q, g, [](const uint16_t *at) { return __ldg(at) | static_cast<uint32_t>(__ldg(at + 1)) << 16; });
    typename M::Output o;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; j++) {
#pragma unroll
      for (int b = 0; b < kBlocks; b++) o[j][b][0] = o[j][b][1] = o[j][b][2] = o[j][b][3] = 0.f;
    }
    typename M::State state;

    /* Turn t: scores of tile t + 1, PV of tile t, softmax of tile t + 1. */
    int now = ahead, next = 0; /* slots of tiles t and t + 1; tile t + ahead goes where tile t - 1 was */
    for (int32_t t = -1; t < tiles; t++) {
      wait_for_next(stages);
      __syncthreads(); /* the copies of tile t + 1 have landed, P of tile t is there, and tile t - 1 is done with */
      if (t >= 0) {
        const int fill = now == 0 ? stages - 1 : now - 1;
        if (t + ahead < tiles) me.copy_tile(g, t + ahead, fill, ready);
        ptx::cp_async_commit();
        ready = me.look(g, t + ahead + 1);
      }
      float s[4] = {0.f, 0.f, 0.f, 0.f};
      if (t + 1 < tiles) me.scores(s, q, next);
      if (t >= 0) me.pv(o, now);
      __syncthreads(); /* the parts of the scores are there, and P of tile t is read */
      if (t + 1 < tiles) me.softmax(s, next, query, state);
      now = next;
      next = next + 1 == stages ? 0 : next + 1;
    }
    ptx::cp_async_wait<0>();
    me.finish_rows(g, state);
    me.store(g, o);
    __syncthreads(); /* before the ring is filled again */
  }
}

/* Shared memory that a CTA can have, KiB. */
inline uint32_t shared_kib(int32_t capability) {
  if (capability == 80 || capability == 87) return 163;
  if (capability >= 90 && capability < 120) return 227;
  return 99;
}

/* 8, 6 or 4 stages: those that wait_for_next knows. */
template <int kD>
int32_t stages_on(int32_t capability) {
  for (const int stages : {8, 6})
    if (bytes<kD>(stages) <= shared_kib(capability) * 1024) return stages;
  return kLeastStages;
}
static_assert(bytes<576>(kLeastStages) <= 99 * 1024, "the smallest ring fits every device");

template <int kD>
cudaError_t prepare() {
  int device, most;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(kernel<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

template <int kD>
cudaError_t launch(const fhk_gpu *gpu, const fh_call *call, cudaStream_t stream) {
  Params p;
  p.call = *call;
  p.plan = *call->plan;
  if (call->path != FH_AUTO) p.plan.packed_from = nullptr;
  p.over_h = (65536 + call->h_q - 1) / call->h_q;
  p.stages = stages_on<kD>(gpu->capability);
  p.aligned_kv = aligned(call->kv, call->kv_stride, 0, 2, 16);
  p.aligned_q = aligned(call->q, call->q_stride_s, call->q_stride_h, 2, 4);
  p.aligned_out = aligned(call->out, call->out_stride_s, call->out_stride_h, 2, 16);
  const int64_t ctas = p.plan.groups < gpu->multiprocessors ? p.plan.groups : gpu->multiprocessors;
  return launch_behind(gpu->capability, kernel<kD>, ctas, kThreads, bytes<kD>(p.stages), stream, p);
}

#define FHK_PORTABLE_PACKED_DECLARE(D)      \
  extern template cudaError_t prepare<D>(); \
  extern template cudaError_t launch<D>(const fhk_gpu *, const fh_call *, cudaStream_t);
#define FHK_PORTABLE_PACKED_DEFINE(D) \
  template cudaError_t prepare<D>();  \
  template cudaError_t launch<D>(const fhk_gpu *, const fh_call *, cudaStream_t);

}  // namespace portable_packed
}  // namespace fhk

#endif
