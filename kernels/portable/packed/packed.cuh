/*
 * portable packed: `group` neighbouring queries x their h_q heads, 64 rows, over the union of the queries' lists, with
 * mma.sync and cp.async, sm_80 and up.
 *
 *   S[16 rows x entries]  = Q K^T    A = Q in registers, its last columns in shared memory; B = K (ldmatrix)
 *   O[64 rows x columns] += P V      A = P through shared memory, B = the same bytes of KV transposed (ldmatrix)
 *
 * Row = query * h_q + head. A CTA is four warps that score 16 rows each and eight that hold O, all rows x 64 columns
 * each: 168 registers a thread are the whole file. The scoring warps fetch KV, a quarter of a tile's rows each, score a
 * tile, weigh it and pass P on in two buffers; so they are up to two tiles ahead, and while they weigh, the tensor
 * cores multiply P V.
 *
 * Items pass from the scoring warps to the others: each tile's P with its events, and behind a group's last tile what
 * the rows of O are multiplied by at the end. Item i is in buffer i % 2: full[] says that it is there, empty[] that it
 * and, of a tile, the ring's slot, are read.
 *
 * Shared memory: a ring of tiles (rows of KV, the first 512 columns of all rows, then the rest), the rest of Q and P,
 * both in the order of fragments, factors, events, barriers. Rows that cp.async cannot take (not on 16 bytes) come
 * element by element: correct, slow.
 *
 * Isolation: the P of a hidden pair, 0, times a NaN or an Inf of V would reach a row that never chose that key. Such a
 * KV row shows in the scores of every row, 0 * Inf = NaN included. A warp that sees a score that is not finite reports
 * the entry, and each warp of O overwrites its columns of that entry with zeros if they hold a NaN or an Inf; rows that
 * list the key keep their NaN, which their P carries.
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

constexpr int kRows = 64; /* of a group */
constexpr int kDv = 512;
constexpr int kScoreWarps = 4, kOutWarps = 8, kThreads = 32 * (kScoreWarps + kOutWarps);
constexpr int kColumns = kDv / kOutWarps; /* of O in a warp */
constexpr int kLeastStages = 4, kMostStages = 8;
constexpr float kSlack = 8.f; /* P is at most 2^8: the maximum may lag by that much before O is rescaled */

constexpr uint32_t kRowBytes = kDv * 2;
constexpr uint32_t kFragmentBytes = 32 * 16; /* of an operand A, 16 x 16, in the order of lanes */

/* What scoring warps report of a tile. */
enum Event : uint32_t { kMoved = 1, kSuspect = 2 };

template <int D, int Tile>
struct Shape {
  static constexpr int kD = D, kTile = Tile;                                  /* entries of a tile */
  static constexpr int kBlocks = kTile / 8, kPvSteps = kTile / 16;            /* n8 of scores, k16 of PV */
  static constexpr int kChains = kTile == 16 ? 2 : 1;                         /* sums that a score is added up in */
  static constexpr int kSteps = kD / 16;                                      /* k16 of scores */
  static constexpr int kHeld = kTile == 16 ? 28 : 24, kKept = kSteps - kHeld; /* Q in registers, in shared memory */
  static constexpr int kAhead = 1;                                            /* steps that K is read ahead */
  static constexpr int kFetched = kTile / kScoreWarps;                        /* rows that a warp fetches */
  static constexpr uint32_t kSlotBytes = kTile * kD * 2;
  static constexpr uint32_t kWeightBytes = kPvSteps * kScoreWarps * kFragmentBytes;
  /* From the end of the ring: */
  static constexpr uint32_t kQuery = 0, kWeights = kQuery + kScoreWarps * kKept * kFragmentBytes;
  static constexpr uint32_t kFactors = kWeights + 2 * kWeightBytes;    /* [2][64]: rescale, or the last factor */
  static constexpr uint32_t kEvents = kFactors + 2 * kRows * 4;        /* [2][4] */
  static constexpr uint32_t kSuspects = kEvents + 2 * kScoreWarps * 4; /* [2][4]: bit e is entry e */
  static constexpr uint32_t kBarriers = kSuspects + 2 * kScoreWarps * 4;
  static constexpr uint32_t kEnd = kBarriers + (kMostStages + 4) * 8;

  static constexpr uint32_t bytes(int stages) { return stages * kSlotBytes + kEnd; }
};

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

/* Groups of a CTA: in plan order, the longest union first; every other round is dealt backwards. */
template <typename Work>
FHK_DEV void each_group(const Params &p, Work &&work) {
  const int32_t left_out = p.left_out(), count = static_cast<int32_t>(p.plan.groups) - left_out;
  const int32_t ctas = static_cast<int32_t>(gridDim.x);
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < count; i = 2 * (i / ctas + 1) * ctas - 1 - i)
    work(group_of(p, __ldg(p.plan.order + left_out + i)));
}

FHK_DEV bool not_finite(uint32_t pair) { /* either bf16 of the two */
  return (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
}

/* What both kinds of warps know. */
template <typename X>
struct Member {
  const Params &params;
  const uint32_t ring, rest; /* shared memory: the ring, and what is behind it */
  const int warp, lane;      /* warp: of its kind */
  const int c4, r8;          /* of fragments C: rows r8 and r8 + 8, columns 2 c4 and 2 c4 + 1 */

  FHK_DEV Member(const Params &given, uint8_t *memory, int of_kind, int of_warp)
      : params(given), ring(ptx::smem_addr(memory)), rest(ring + given.stages * X::kSlotBytes), warp(of_kind),
        lane(of_warp), c4(of_warp & 3), r8(of_warp >> 2) {}

  FHK_DEV uint32_t landed(int slot) const { return rest + X::kBarriers + slot * 8; }
  FHK_DEV uint32_t full(uint32_t item) const { return rest + X::kBarriers + (kMostStages + (item & 1)) * 8; }
  FHK_DEV uint32_t empty(uint32_t item) const { return full(item) + 2 * 8; }
  FHK_DEV uint32_t slot_at(int slot) const { return ring + slot * X::kSlotBytes; }
  FHK_DEV uint32_t factors(uint32_t item) const { return rest + X::kFactors + (item & 1) * kRows * 4; }
  FHK_DEV uint32_t events(uint32_t item) const { return rest + X::kEvents + (item & 1) * kScoreWarps * 4; }
  FHK_DEV uint32_t suspects(uint32_t item) const { return rest + X::kSuspects + (item & 1) * kScoreWarps * 4; }
  FHK_DEV uint32_t weights(uint32_t item) const {
    return rest + X::kWeights + (item & 1) * X::kWeightBytes + lane * 16;
  }
};

/* ---- Scoring warps ---- */

template <typename X>
struct Scorer : Member<X> {
  using M = Member<X>;
  using M::params, M::ring, M::rest, M::warp, M::lane, M::c4, M::r8;
  using Query = uint32_t[X::kHeld][4];
  using Scores = float[X::kBlocks][4];

  const float scale;
  const int query[2]; /* of rows r8 and r8 + 8 */

  FHK_DEV Scorer(const Params &given, uint8_t *memory, int of_kind, int of_warp)
      : M(given, memory, of_kind, of_warp),
        scale(given.call.sm_scale * kLog2e), query{given.query_of(row(0)), given.query_of(row(1))} {}

  FHK_DEV int row(int e) const { return 16 * warp + r8 + 8 * e; }

  /* Entries of the rows that the warp fetches, for as many tiles as lanes hold: tiles 32 / kFetched * chunk and on. */
  static constexpr int kChunk = 32 / X::kFetched;
  FHK_DEV int32_t look(const Group &g, int32_t chunk) const {
    const int32_t pos = (chunk * kChunk + lane / X::kFetched) * X::kTile + warp * X::kFetched + lane % X::kFetched;
    return pos < g.entries ? __ldg(params.plan.token + g.at + pos) : -1;
  }
  /* Word of the queries that the warp's rows are of, of entry `lane` of tile t. The 16 rows of a warp are of queries
   * below 32 or of queries from 32 on: h_q is 1 where there are as many. */
  FHK_DEV uint32_t members_of(const Group &g, int32_t t) const {
    const int32_t pos = t * X::kTile + lane;
    if ((X::kTile < 32 && lane >= X::kTile) || pos >= g.entries) return 0;
    return __ldg(reinterpret_cast<const uint32_t *>(params.plan.member + g.at + pos) + (query[0] >> 5));
  }

  /* The warp's rows of tile k on their way to a slot. */
  FHK_DEV void copy_tile(int32_t entries, int32_t k, int slot) const {
    const fh_call &call = params.call;
    const uint32_t tile = M::slot_at(slot);
    const int from = k % kChunk * X::kFetched; /* lane that holds the first entry */
    if (params.aligned_kv) {
#pragma unroll
      for (int j = 0; j < X::kFetched; j++) {
        const int r = warp * X::kFetched + j;
        const int32_t t = __shfl_sync(~0u, entries, from + j);
        const bool named = static_cast<uint32_t>(t) < static_cast<uint32_t>(call.s_kv);
        const uint16_t *src = call.kv + (named ? t : 0) * call.kv_stride + lane * 8;
        const uint32_t n = named ? 16 : 0, at = tile + r * kRowBytes + ((lane ^ (r & 7)) << 4);
        ptx::cp_async16(at, src, n);
        ptx::cp_async16(at + 512, src + 256, n);
      }
      if constexpr (X::kD > kDv) {
#pragma unroll
        for (int j = 0; j < X::kFetched; j += 4) {
          const int r = warp * X::kFetched + j + lane / 8;
          const int32_t t = __shfl_sync(~0u, entries, from + j + lane / 8);
          const bool named = static_cast<uint32_t>(t) < static_cast<uint32_t>(call.s_kv);
          ptx::cp_async16(tile + X::kTile * kRowBytes + swizzled(r, lane & 7),
                          call.kv + (named ? t : 0) * call.kv_stride + kDv + (lane & 7) * 8, named ? 16 : 0);
        }
      }
      ptx::cp_async_arrive(M::landed(slot));
    } else {
      for (int j = 0; j < X::kFetched; j++) {
        const int r = warp * X::kFetched + j;
        const int32_t t = __shfl_sync(~0u, entries, from + j);
        const bool named = static_cast<uint32_t>(t) < static_cast<uint32_t>(call.s_kv);
        const uint16_t *src = call.kv + (named ? t : 0) * call.kv_stride;
        for (int d = lane; d < X::kD; d += 32) {
          const uint32_t at =
              d < kDv ? r * kRowBytes + ((d / 8 ^ (r & 7)) << 4) : X::kTile * kRowBytes + swizzled(r, (d - kDv) / 8);
          ptx::st_shared_16(tile + at + d % 8 * 2, named ? __ldg(src + d) : static_cast<uint16_t>(0));
        }
      }
      ptx::mbar_arrive(M::landed(slot));
    }
  }

  template <typename Load>
  FHK_DEV void load_query(Query &q, const Group &g, Load load) const {
    const fh_call &call = params.call;
    const uint16_t *at[2];
    bool real[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      real[e] = row(e) < g.rows;
      at[e] = call.q + (real[e] ? g.first + query[e] : 0) * call.q_stride_s +
              (real[e] ? row(e) - query[e] * call.h_q : 0) * call.q_stride_h + 2 * c4;
    }
#pragma unroll
    for (int k = 0; k < X::kSteps; k++) {
      uint32_t a[4];
#pragma unroll
      for (int e = 0; e < 4; e++) a[e] = real[e & 1] ? load(at[e & 1] + 16 * k + 8 * (e >> 1)) : 0;
      if (k < X::kHeld) {
#pragma unroll
        for (int e = 0; e < 4; e++) q[k][e] = a[e];
      } else {
        ptx::st_shared4(kept(k), a[0], a[1], a[2], a[3]);
      }
    }
  }
  FHK_DEV uint32_t kept(int k) const {
    return rest + X::kQuery + (warp * X::kKept + k - X::kHeld) * kFragmentBytes + lane * 16;
  }

  FHK_DEV void scores(Scores &s, const Query &q, int slot) const {
    const uint32_t x = ((lane >> 3) & 1) ^ (lane & 7), r = (lane & 7) + (lane >> 4) * 8;
    const uint32_t tile = M::slot_at(slot), head = tile + r * kRowBytes, tail = tile + X::kTile * kRowBytes + r * 128;
    uint32_t unit[4];
#pragma unroll
    for (int k = 0; k < 4; k++) unit[k] = ((2 * k) ^ x) << 4;
    float sum[X::kChains][X::kBlocks][4] = {};
    constexpr int kBuffers = X::kAhead + 1;
    uint32_t b[kBuffers][X::kBlocks / 2][4], a[kBuffers][4];
    auto read = [&](int k) {
#pragma unroll
      for (int n = 0; n < X::kBlocks / 2; n++) {
        if (k < kDv / 16) ptx::ldmatrix4(b[k % kBuffers][n], head + unit[k & 3] + (k >> 2) * 128 + n * 16 * kRowBytes);
        else ptx::ldmatrix4(b[k % kBuffers][n], tail + unit[k & 3] + n * 16 * 128);
      }
      if (k >= X::kHeld) {
        const uint4 v = ptx::ld_shared4(kept(k));
        a[k % kBuffers][0] = v.x, a[k % kBuffers][1] = v.y, a[k % kBuffers][2] = v.z, a[k % kBuffers][3] = v.w;
      }
    };
#pragma unroll
    for (int k = 0; k < X::kAhead; k++) read(k);
#pragma unroll
    for (int k = 0; k < X::kSteps; k++) {
      if (k + X::kAhead < X::kSteps) read(k + X::kAhead);
#pragma unroll
      for (int n = 0; n < X::kBlocks; n++) {
        const uint32_t b0 = b[k % kBuffers][n / 2][n % 2 * 2], b1 = b[k % kBuffers][n / 2][n % 2 * 2 + 1];
        if (k < X::kHeld) ptx::mma_m16n8k16(sum[k % X::kChains][n], q[k < X::kHeld ? k : 0], b0, b1);
        else ptx::mma_m16n8k16(sum[k % X::kChains][n], a[k % kBuffers], b0, b1);
      }
    }
#pragma unroll
    for (int n = 0; n < X::kBlocks; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] = X::kChains == 1 ? sum[0][n][e] : sum[0][n][e] + sum[X::kChains - 1][n][e];
    }
  }

  /* Of two rows: the largest logit, the maximum that P and the sum l stand for, times log2(e) both. */
  struct State {
    float most[2] = {kMaxStart, kMaxStart}, m[2] = {kMaxStart, kMaxStart}, l[2] = {0.f, 0.f};
  };

  /* Entries of whose scores one is not finite. */
  FHK_DEV uint32_t find_suspects(const Scores &s) const {
    uint32_t found = 0;
#pragma unroll
    for (int n = 0; n < X::kBlocks; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (!(fabsf(s[n][e]) < INFINITY && fabsf(s[n][e + 2]) < INFINITY)) found |= 1u << (8 * n + 2 * c4 + e);
    }
    return __reduce_or_sync(~0u, found);
  }

  /* The scores become weights, which are passed on as an item; the state is brought up to date. */
  FHK_DEV void weigh(Scores &s, uint32_t members, State &state, uint32_t item) const {
    float zero[2] = {0.f, 0.f}; /* NaN where a score is not finite */
#pragma unroll
    for (int n = 0; n < X::kBlocks; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) zero[e & 1] = fmaf(s[n][e], 0.f, zero[e & 1]);
    }
    const bool suspect = __any_sync(~0u, !(zero[0] + zero[1] == 0.f));
    uint32_t suspects = 0;
    if (suspect) suspects = find_suspects(s);

    uint32_t seen[2] = {0, 0}; /* bit of an entry: the row's query lists it */
    const int last = params.query_of(16 * warp + 15);
#pragma unroll 1
    for (int k = params.query_of(16 * warp); k <= last; k++) {
      const uint32_t listed = __ballot_sync(~0u, members >> (k & 31) & 1);
      seen[0] = k == query[0] ? listed : seen[0];
      seen[1] = k == query[1] ? listed : seen[1];
    }
    seen[0] >>= 2 * c4, seen[1] >>= 2 * c4;
    float top[2] = {-INFINITY, -INFINITY}, rescale[2];
#pragma unroll
    for (int n = 0; n < X::kBlocks; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (!(seen[e >> 1] & 1u << (8 * n + (e & 1)))) s[n][e] = -INFINITY;
        top[e >> 1] = fmaxf(top[e >> 1], s[n][e]);
      }
    }
#pragma unroll
    for (int d = 1; d <= 2; d <<= 1) {
      const float a = __shfl_xor_sync(~0u, top[0], d), b = __shfl_xor_sync(~0u, top[1], d);
      top[0] = fmaxf(top[0], a), top[1] = fmaxf(top[1], b);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      state.most[e] = fmaxf(state.most[e], top[e] * scale);
      const float now = state.most[e] > state.m[e] + kSlack ? state.most[e] : state.m[e];
      rescale[e] = ptx::exp2(state.m[e] - now);
      state.m[e] = now;
      state.l[e] *= rescale[e];
    }
    const bool moved = __any_sync(~0u, (rescale[0] != 1.f) | (rescale[1] != 1.f));
    uint32_t p[X::kPvSteps][4]; /* two blocks of C make one A */
#pragma unroll
    for (int n = 0; n < X::kBlocks; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float x = ptx::exp2(fmaf(s[n][2 * e], scale, -state.m[e]));
        const float y = ptx::exp2(fmaf(s[n][2 * e + 1], scale, -state.m[e]));
        state.l[e] += x + y;
        p[n / 2][n % 2 * 2 + e] = ptx::pack_bf16(x, y);
      }
    }
    ptx::mbar_wait(M::empty(item), (item >> 1 & 1) ^ 1);
#pragma unroll
    for (int k = 0; k < X::kPvSteps; k++)
      ptx::st_shared4(M::weights(item) + (k * kScoreWarps + warp) * kFragmentBytes, p[k][0], p[k][1], p[k][2], p[k][3]);
    if (moved && c4 == 0) {
      ptx::st_shared_f(M::factors(item) + row(0) * 4, rescale[0]);
      ptx::st_shared_f(M::factors(item) + row(1) * 4, rescale[1]);
    }
    if (lane == 0) {
      ptx::st_shared_32(M::events(item) + warp * 4, (moved ? kMoved : 0) | (suspect ? kSuspect : 0));
      if (suspect) ptx::st_shared_32(M::suspects(item) + warp * 4, suspects);
    }
    warp_arrive(M::full(item), lane);
  }

  /* Statistics, and as an item what each row of O is multiplied by. */
  FHK_DEV void finish(const Group &g, State &state, uint32_t item) const {
    const fh_call &call = params.call;
    ptx::mbar_wait(M::empty(item), (item >> 1 & 1) ^ 1);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float l = state.l[e];
#pragma unroll
      for (int d = 1; d <= 2; d <<= 1) l += __shfl_xor_sync(~0u, l, d);
      const int r = row(e), head = r - query[e] * call.h_q;
      if (c4 == 0) {
        float factor = 0.f;
        if (r < g.rows) {
          factor = inverse_denominator(state.m[e], l, sink_log2(call, head));
          store_statistics(call, g.first + query[e], head, state.most[e], l * ptx::exp2(state.m[e] - state.most[e]));
        }
        ptx::st_shared_f(M::factors(item) + r * 4, factor);
      }
    }
    warp_arrive(M::full(item), lane);
  }

  FHK_DEV void run() const {
    const int stages = params.stages;
    int slot = 0;
    uint32_t phase = 0, item = 0;
    each_group(params, [&](const Group &g) {
      const int32_t tiles = (g.entries + X::kTile - 1) / X::kTile;
      /* Copies in the order of tiles: `entries` for those of a chunk, and the next chunk's under way. */
      int32_t entries = -1, next = look(g, 0), k = 0;
      auto fill = [&](int to) {
        if (k >= tiles) return;
        if (k % kChunk == 0) entries = next, next = look(g, k / kChunk + 1);
        copy_tile(entries, k, to < 0 ? to + stages : to >= stages ? to - stages : to);
        k++;
      };
      /* The slot of the last tile of the group before may still be read: it is filled in turn 0. */
      for (int s = 0; s < stages - 1; s++) fill(slot + s);
      uint32_t members = members_of(g, 0);
      Query q;
      if (params.aligned_q)
        load_query(q, g, [](const uint16_t *at) { return __ldg(reinterpret_cast<const uint32_t *>(at)); });
      else load_query(q, g, [](const uint16_t *at) { return __ldg(at) | static_cast<uint32_t>(__ldg(at + 1)) << 16; });
      State state;
      for (int32_t t = 0; t < tiles; t++) {
        ptx::mbar_wait(M::landed(slot), phase);
        Scores s;
        scores(s, q, slot);
        weigh(s, members, state, item);
        members = members_of(g, t + 1);
        if (t != 1) fill(t == 0 ? slot - 1 : slot - 2); /* what item - 2 had; in turn 1 that is no tile */
        item++;
        if (++slot == stages) slot = 0, phase ^= 1;
      }
      finish(g, state, item++);
    });
  }
};

/* ---- Warps of O ---- */

template <typename X>
struct Summer : Member<X> {
  using M = Member<X>;
  using M::M;
  using M::params, M::ring, M::rest, M::warp, M::lane, M::c4, M::r8;
  using Output = float[kScoreWarps][kColumns / 8][4]; /* 16 rows x 8 columns an entry */

  /* Zeros in the warp's columns of suspect entries where they hold a NaN or an Inf. */
  FHK_DEV void silence(uint32_t item, uint32_t tile) const {
    uint32_t suspects = 0;
    const uint4 event = ptx::ld_shared4(M::events(item)), found = ptx::ld_shared4(M::suspects(item));
    if (event.x & kSuspect) suspects |= found.x;
    if (event.y & kSuspect) suspects |= found.y;
    if (event.z & kSuspect) suspects |= found.z;
    if (event.w & kSuspect) suspects |= found.w;
    for (; suspects; suspects &= suspects - 1) {
      const uint32_t at = tile + (__ffs(suspects) - 1) * kRowBytes + warp * kColumns * 2 + lane * 4;
      if (__any_sync(~0u, not_finite(ptx::ld_shared_32(at)))) ptx::st_shared_32(at, 0);
    }
    __syncwarp();
  }

  FHK_DEV void rescale(float (&o)[kColumns / 8][4], uint32_t item, int m) const {
    const float upper = ptx::ld_shared_f(M::factors(item) + (16 * m + r8) * 4);
    const float lower = ptx::ld_shared_f(M::factors(item) + (16 * m + r8 + 8) * 4);
#pragma unroll
    for (int n = 0; n < kColumns / 8; n++) o[n][0] *= upper, o[n][1] *= upper, o[n][2] *= lower, o[n][3] *= lower;
  }

  FHK_DEV void pv(Output &o, uint32_t item, int slot) const {
    const uint32_t tile = M::slot_at(slot);
    const uint4 event = ptx::ld_shared4(M::events(item));
    if (event.x | event.y | event.z | event.w) {
      if ((event.x | event.y | event.z | event.w) & kSuspect) silence(item, tile);
      if (event.x & kMoved) rescale(o[0], item, 0);
      if (event.y & kMoved) rescale(o[1], item, 1);
      if (event.z & kMoved) rescale(o[2], item, 2);
      if (event.w & kMoved) rescale(o[3], item, 3);
    }
    const uint32_t v_at = tile + (lane & 15) * kRowBytes + warp * kColumns * 2 + (((lane >> 4) ^ (lane & 7)) << 4);
    const uint32_t p_at = M::weights(item);
#pragma unroll
    for (int k = 0; k < X::kPvSteps; k++) {
      uint32_t p[kScoreWarps][4], v[2][4];
      ptx::ldmatrix4_trans(v[0], v_at + k * 16 * kRowBytes);
#pragma unroll
      for (int m = 0; m < kScoreWarps; m++) {
        const uint4 a = ptx::ld_shared4(p_at + (k * kScoreWarps + m) * kFragmentBytes);
        p[m][0] = a.x, p[m][1] = a.y, p[m][2] = a.z, p[m][3] = a.w;
      }
#pragma unroll
      for (int j = 0; j < kColumns / 16; j++) {
        if (j + 1 < kColumns / 16) ptx::ldmatrix4_trans(v[(j + 1) & 1], (v_at ^ ((j + 1) << 5)) + k * 16 * kRowBytes);
#pragma unroll
        for (int m = 0; m < kScoreWarps; m++) {
          ptx::mma_m16n8k16(o[m][2 * j], p[m], v[j & 1][0], v[j & 1][1]);
          ptx::mma_m16n8k16(o[m][2 * j + 1], p[m], v[j & 1][2], v[j & 1][3]);
        }
      }
    }
  }

  /* Each row's columns times its factor. A 4 x 4 transpose in the quad gives the lane columns 8 c4 .. 8 c4 + 7 of each
   * 32. */
  FHK_DEV void store(const Group &g, const Output &o, const float (&factor)[kScoreWarps][2]) const {
    const fh_call &call = params.call;
#pragma unroll
    for (int m = 0; m < kScoreWarps; m++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        uint32_t v[kColumns / 32][4];
#pragma unroll
        for (int j = 0; j < kColumns / 32; j++) {
#pragma unroll
          for (int n = 0; n < 4; n++)
            v[j][n] = ptx::pack_bf16(o[m][4 * j + n][2 * e] * factor[m][e], o[m][4 * j + n][2 * e + 1] * factor[m][e]);
        }
#pragma unroll
        for (int d = 1; d <= 2; d <<= 1) {
          const bool right = c4 & d;
#pragma unroll
          for (int j = 0; j < kColumns / 32; j++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
              if (n & d) continue;
              const uint32_t other = __shfl_xor_sync(~0u, right ? v[j][n] : v[j][n + d], d);
              v[j][n] = right ? other : v[j][n];
              v[j][n + d] = right ? v[j][n + d] : other;
            }
          }
        }
        const int r = 16 * m + 8 * e + r8, query = params.query_of(r);
        if (r >= g.rows) continue;
        uint16_t *const to = static_cast<uint16_t *>(call.out) + (g.first + query) * call.out_stride_s +
                             (r - query * call.h_q) * call.out_stride_h + warp * kColumns + 8 * c4;
#pragma unroll
        for (int j = 0; j < kColumns / 32; j++) {
          if (params.aligned_out) {
            *reinterpret_cast<uint4 *>(to + 32 * j) = make_uint4(v[j][0], v[j][1], v[j][2], v[j][3]);
          } else {
#pragma unroll
            for (int k = 0; k < 8; k++) to[32 * j + k] = static_cast<uint16_t>(v[j][k / 2] >> (k % 2 * 16));
          }
        }
      }
    }
  }

  FHK_DEV void run() const {
    const int stages = params.stages;
    int slot = 0;
    uint32_t item = 0;
    each_group(params, [&](const Group &g) {
      const int32_t tiles = (g.entries + X::kTile - 1) / X::kTile;
      Output o;
#pragma unroll
      for (int m = 0; m < kScoreWarps; m++) {
#pragma unroll
        for (int n = 0; n < kColumns / 8; n++) o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0.f;
      }
      for (int32_t t = 0; t < tiles; t++) {
        ptx::mbar_wait(M::full(item), item >> 1 & 1);
        pv(o, item, slot);
        warp_arrive(M::empty(item), lane);
        item++;
        if (++slot == stages) slot = 0;
      }
      ptx::mbar_wait(M::full(item), item >> 1 & 1);
      float factor[kScoreWarps][2];
#pragma unroll
      for (int m = 0; m < kScoreWarps; m++) {
        factor[m][0] = ptx::ld_shared_f(M::factors(item) + (16 * m + r8) * 4);
        factor[m][1] = ptx::ld_shared_f(M::factors(item) + (16 * m + r8 + 8) * 4);
      }
      warp_arrive(M::empty(item), lane);
      item++;
      store(g, o, factor);
    });
  }
};

template <typename X>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  ptx::wait_for_grid_before();
  ptx::let_grid_behind_start();
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    const Member<X> me(p, memory, 0, 0);
    for (int k = 0; k < kMostStages; k++) ptx::mbar_init(me.landed(k), 32 * kScoreWarps);
    for (int k = 0; k < 2; k++) {
      ptx::mbar_init(me.full(k), kScoreWarps * kWarpArrivals);
      ptx::mbar_init(me.empty(k), kOutWarps * kWarpArrivals);
    }
  }
  __syncthreads();
  if (warp < kScoreWarps) Scorer<X>(p, memory, warp, lane).run();
  else Summer<X>(p, memory, warp - kScoreWarps, lane).run();
}

/* Shared memory that a CTA can have, KiB. */
inline uint32_t shared_kib(int32_t capability) {
  if (capability == 80 || capability == 87) return 163;
  if (capability >= 90 && capability < 120) return 227;
  return 99;
}

template <typename X>
int32_t stages_on(int32_t capability) {
  int32_t stages = kMostStages;
  while (stages > kLeastStages && X::bytes(stages) > shared_kib(capability) * 1024) stages--;
  return stages;
}
static_assert(Shape<576, 16>::bytes(kLeastStages) <= 99 * 1024, "the smallest ring fits every device");

template <typename X>
cudaError_t prepare_shape() {
  int device, most;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(kernel<X>, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

template <int kD>
cudaError_t prepare() {
  const cudaError_t status = prepare_shape<Shape<kD, 32>>();
  return status != cudaSuccess ? status : prepare_shape<Shape<kD, 16>>();
}

template <typename X>
cudaError_t launch_shape(const fhk_gpu *gpu, Params &p, cudaStream_t stream) {
  p.stages = stages_on<X>(gpu->capability);
  const int64_t ctas = p.plan.groups < gpu->multiprocessors ? p.plan.groups : gpu->multiprocessors;
  return launch_behind(gpu->capability, kernel<X>, ctas, kThreads, X::bytes(p.stages), stream, p);
}

template <int kD>
cudaError_t launch(const fhk_gpu *gpu, const fh_call *call, cudaStream_t stream) {
  Params p;
  p.call = *call;
  p.plan = *call->plan;
  if (call->path != FH_AUTO) p.plan.packed_from = nullptr;
  p.over_h = (65536 + call->h_q - 1) / call->h_q;
  p.aligned_kv = aligned(call->kv, call->kv_stride, 0, 2, 16);
  p.aligned_q = aligned(call->q, call->q_stride_s, call->q_stride_h, 2, 4);
  p.aligned_out = aligned(call->out, call->out_stride_s, call->out_stride_h, 2, 16);
  const bool wide = Shape<kD, 32>::bytes(kLeastStages) <= shared_kib(gpu->capability) * 1024;
  return wide ? launch_shape<Shape<kD, 32>>(gpu, p, stream) : launch_shape<Shape<kD, 16>>(gpu, p, stream);
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
