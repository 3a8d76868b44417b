/*
 * portable gather: one query at its native heads, mma.sync and cp.async, sm_80 and up.
 *
 *   S^T[16 tokens x heads] = K Q^T       A = K (ldmatrix),              B = Q in registers
 *   O^T[512 x heads]      += V^T P^T     A = the same bytes transposed, B = P by movmatrix
 *
 * so eight heads fill n8 and no row is a zero. A team of kWarps warps, 2 or 4, takes one query and kBlocks blocks of
 * eight heads; kBlocks is 1 or kWarps. The columns are split among its warps: each adds up the scores over its own
 * columns and puts its part in shared memory; with one block every warp does the softmax, with several each warp that
 * of one block, and passes P on; then each adds P V over its own columns of V for all heads. So a tile is read from
 * shared memory twice, whatever the head count. More heads than a team takes are cut into items that walk the list
 * anew.
 *
 * Many queries: a CTA is one team, and the device holds as many as registers and shared memory allow. Few: the teams of
 * a CTA share a query, tile by tile, and add up in shared memory at the end.
 *
 * Shared memory, bytes: teams x stages x tile (16 x d x 2; the first 512 columns of all rows, then the rest); parts of
 * the scores, 16 a lane, block and warp; P, 16 a lane and block; (max, sum) and factor of every head. At the end the
 * rings hold O, in rounds. Rows that cp.async cannot take (not on 16 bytes) come element by element: correct, slow.
 */
#ifndef FEWHEAD_KERNELS_PORTABLE_GATHER_CUH
#define FEWHEAD_KERNELS_PORTABLE_GATHER_CUH

#include "cuda/cuda.h"
#include "cuda/rows.cuh"

namespace fhk {
namespace portable_gather {

constexpr int kTile = 16; /* tokens: m16 */
constexpr int kDv = 512;
constexpr uint32_t kRowBytes = kDv * 2; /* the first 512 columns of a tile's row; columns past them lie behind
                                            all rows */
constexpr int kRounds = 4;              /* of the epilogue */
constexpr int kMaxTeams = 4, kMaxStages = 4;

template <int kD, int kWarps, int kBlocks>
struct Shape {
  static constexpr int kHeads = 8 * kBlocks;
  static constexpr int kSteps = kDv / 16 / kWarps,
                       kPastSteps = (kD - kDv) / 16 / kWarps; /* k16 steps; those past d_v */
  static_assert((kD - kDv) / 16 % kWarps == 0, "columns past d_v are split evenly");
  static constexpr int kColumnBlocks = kDv / 16 / kWarps; /* m16 blocks of O^T of a warp */
  static constexpr uint32_t kTileBytes = kTile * kD * 2;
  static_assert(kWarps == 2 || kWarps == 4, "a team is two or four warps");
  static_assert(kBlocks == 1 || kBlocks == kWarps, "every warp has one block to weigh, or the same one");
  static constexpr uint32_t kPartBytes = kWarps * kBlocks * 32 * 16, kPBytes = kBlocks > 1 ? kBlocks * 32 * 16 : 0;
  static constexpr int kRoundColumns = kDv / kWarps / kRounds;
  static constexpr int kStagingStride = kRoundColumns + 4; /* floats: head 2 c, column r of a fragment are on
                                                              bank 8 c + r */
  static constexpr uint32_t kStagingBytes = kHeads * kStagingStride * 4;
  static_assert(kWarps * kStagingBytes <= 2 * kTileBytes, "a round must fit the smallest ring");
  /* The registers that Q and O of a warp take limit a multiprocessor to this many warps. */
  static constexpr int kWarpsByRegisters = kBlocks == kWarps ? 8 : 12;
  static constexpr int kThreads = 32 * kWarpsByRegisters; /* the most a CTA can have, which caps a thread's registers */
  static constexpr uint32_t bytes(int teams, int stages) {
    return teams * (stages * kTileBytes + kPartBytes + kPBytes + kHeads * (sizeof(float2) + sizeof(float)));
  }
};

struct Params {
  fh_call call;
  Rows rows;
  int32_t head_groups; /* items of a query */
  int32_t teams;       /* of a CTA; more than one: they share an item */
  int32_t stages;
  int32_t resident; /* CTAs that the device holds at once */
  bool aligned_kv;  /* KV rows start on 16 bytes */
  bool aligned_q;   /* q rows start on 4 bytes */
  bool aligned_out; /* out rows start on 16 bytes */
};

/* Heads that are computed. On a device without a padded kernel this kernel takes padded calls too and computes the
 * zero heads. */
inline int32_t heads_of(const fh_call &call) { return call.path == FH_PADDED ? call.h_pad : call.h_q; }

/* 16-byte unit u of row r lies at unit u ^ (r % 8): ldmatrix reads eight rows without bank conflicts. */
FHK_DEV uint32_t unit_offset(uint32_t row, uint32_t unit) { return (unit ^ (row & 7)) << 4; }

/* What a later item will want first comes from DRAM: start its list and its heads towards L2, in lines of 128 bytes. */
template <int kD, int kHeads>
FHK_DEV void prefetch_item(const Params &p, int32_t item) {
  const fh_call &call = p.call;
  const int32_t coming = item / p.head_groups;
  const int64_t later = coming < p.rows.count() ? p.rows.row(coming, p.rows.look(coming)) : -1;
  if (later < 0) return;
  for (int64_t pos = threadIdx.x * 32; pos < call.topk; pos += blockDim.x * 32)
    ptx::prefetch_l2(call.indices + later * call.indices_stride + pos);
  constexpr int kLines = kD / 64;
  const int first = item % p.head_groups * kHeads;
  for (int k = threadIdx.x; k < kHeads * kLines && first + k / kLines < call.h_q; k += blockDim.x)
    ptx::prefetch_l2(call.q + later * call.q_stride_s + (first + k / kLines) * call.q_stride_h + k % kLines * 64);
}

/* A thread of a team, at work on heads head0 .. of row s. */
template <int kD, int kWarps, int kBlocks>
struct Member {
  using X = Shape<kD, kWarps, kBlocks>;
  using QueryFragments = uint32_t[X::kSteps + X::kPastSteps][kBlocks][2]; /* B fragments of the warp's k16 steps */
  using Output = float[X::kColumnBlocks][kBlocks][4];                     /* O^T: 16 columns x 8 heads an entry */
  using PFragments = uint32_t[kBlocks][2];                                /* P of a tile: B fragments */
  static constexpr uint32_t kExchangeBytes = X::kPartBytes + X::kPBytes;

  const Params &params;
  uint8_t *const memory;
  const int lane, team, member;
  const int c4, r8; /* a lane holds tokens (of O: columns) r8 and r8 + 8 against heads 2 c4 and 2 c4 + 1 */
  const int own;    /* the block whose softmax this warp does */
  const int64_t s;
  const int head0;
  const uint32_t ring_bytes;
  uint8_t *const ring;
  /* Parts of the scores, [warp][block][lane], and P with its rescale factors passed on, [block][lane]. */
  float4 *const parts, *const passed;
  float2 *const states;
  float *const factors;
  const float scale;
#ifdef FHK_RACECHECK
  uint32_t barrier, meetings = 0;
#endif

  FHK_DEV Member(const Params &given, uint8_t *at, int warp, int of_warp, int64_t row, int first_head)
      : params(given), memory(at), lane(of_warp), team(warp / kWarps), member(warp % kWarps), c4(lane & 3),
        r8(lane >> 2), own(kBlocks > 1 ? member : 0), s(row), head0(first_head),
        ring_bytes(given.stages * X::kTileBytes), ring(at + team * ring_bytes),
        parts(reinterpret_cast<float4 *>(at + given.teams * ring_bytes + team * kExchangeBytes) + lane),
        passed(parts + X::kPartBytes / sizeof(float4)),
        states(reinterpret_cast<float2 *>(at + given.teams * (ring_bytes + kExchangeBytes))),
        factors(reinterpret_cast<float *>(states + given.teams * X::kHeads)), scale(given.call.sm_scale * kLog2e) {}

  /* The team meets. */
#ifdef FHK_RACECHECK /* the tool does not follow a barrier of a part of the CTA; an mbarrier says the same */
  FHK_DEV void open_barriers(uint64_t *barriers) {
    barrier = ptx::smem_addr(&barriers[team]);
    if (threadIdx.x < params.teams) ptx::mbar_init(ptx::smem_addr(&barriers[threadIdx.x]), 32 * kWarps);
    __syncthreads();
  }
  FHK_DEV void meet() {
    ptx::mbar_arrive(barrier);
    ptx::mbar_wait(barrier, meetings++ & 1);
  }
#else
  FHK_DEV void meet() const { ptx::bar_sync(1 + team, 32 * kWarps); }
#endif

  FHK_DEV bool is_valid(int32_t entry) const {
    return static_cast<uint32_t>(entry) < static_cast<uint32_t>(params.call.s_kv);
  }

  /* Copies the team's tile to a slot of the ring; lane i and lane i + 16 bring its entry i. A warp copies a row at a
   * time, 512 contiguous bytes an instruction; the members of a team share the rows. */
  FHK_DEV void copy_tile(int slot, int32_t entry) const {
    constexpr int kRows = kTile / kWarps;
    const fh_call &call = params.call;
    const int32_t token = is_valid(entry) ? entry : -1;
    uint8_t *const tile = ring + slot * X::kTileBytes;
    if (params.aligned_kv) {
      const uint32_t dst = ptx::smem_addr(tile);
#pragma unroll
      for (int k = 0; k < kRows; k++) {
        const int r = member * kRows + k;
        const int32_t t = __shfl_sync(~0u, token, r);
        const uint16_t *src = call.kv + (t >= 0 ? t : 0) * call.kv_stride + lane * 8;
        const uint32_t bytes = t >= 0 ? 16 : 0, at = dst + r * kRowBytes + unit_offset(r, lane);
        ptx::cp_async16(at, src, bytes);
        ptx::cp_async16(at + 512, src + 256, bytes);
      }
      if constexpr (kD > kDv) { /* 128 bytes a row: four rows an instruction */
#pragma unroll
        for (int k = 0; k < kRows; k += 4) {
          const int r = member * kRows + k + (lane >> 3), unit = lane & 7;
          const int32_t t = __shfl_sync(~0u, token, r);
          const uint16_t *src = call.kv + (t >= 0 ? t : 0) * call.kv_stride + kDv + unit * 8;
          ptx::cp_async16(dst + kTile * kRowBytes + swizzled(r, unit), src, t >= 0 ? 16 : 0);
        }
      }
    } else {
      for (int k = 0; k < kRows; k++) {
        const int r = member * kRows + k;
        const int32_t t = __shfl_sync(~0u, token, r);
        const uint16_t *src = call.kv + (t >= 0 ? t : 0) * call.kv_stride;
        for (int d = lane; d < kD; d += 32) {
          const uint32_t at =
              d < kDv ? r * kRowBytes + unit_offset(r, d / 8) : kTile * kRowBytes + swizzled(r, (d - kDv) / 8);
          *reinterpret_cast<uint16_t *>(tile + at + d % 8 * 2) = t >= 0 ? __ldg(src + d) : static_cast<uint16_t>(0);
        }
      }
    }
    ptx::cp_async_commit();
  }

  template <typename Load>
  FHK_DEV void load_query(QueryFragments &q, Load load) const {
    const fh_call &call = params.call;
#pragma unroll
    for (int b = 0; b < kBlocks; b++) {
      const bool real = head0 + 8 * b + r8 < call.h_q;
      const uint16_t *row = call.q + s * call.q_stride_s + (real ? head0 + 8 * b + r8 : 0) * call.q_stride_h + 2 * c4;
#pragma unroll
      for (int k = 0; k < X::kSteps + X::kPastSteps; k++) {
        const int column =
            k < X::kSteps ? (member * X::kSteps + k) * 16 : kDv + (member * X::kPastSteps + k - X::kSteps) * 16;
        q[k][b][0] = real ? load(row + column) : 0;
        q[k][b][1] = real ? load(row + column + 8) : 0;
      }
    }
  }

  /* S^T = K Q^T over this warp's columns, then the sum over the team's warps: score is of block `own`, token r8
   * against both heads, then token r8 + 8. */
  FHK_DEV void scores(float (&score)[4], const QueryFragments &q, uint32_t tile) {
    constexpr int kChains = 4 / kBlocks; /* four accumulators break the chain of steps */
    float part[kBlocks][kChains][4] = {};
    const uint32_t k_row = (lane & 7) + ((lane >> 3) & 1) * 8, k_unit = lane >> 4;
#pragma unroll
    for (int k = 0; k < X::kSteps + X::kPastSteps; k++) {
      uint32_t a[4];
      if (k < X::kSteps)
        ptx::ldmatrix4(a, tile + k_row * kRowBytes + unit_offset(lane, 2 * (member * X::kSteps + k) + k_unit));
      else
        ptx::ldmatrix4(a, tile + kTile * kRowBytes +
                              swizzled(k_row, 2 * (member * X::kPastSteps + k - X::kSteps) + k_unit));
#pragma unroll
      for (int b = 0; b < kBlocks; b++) ptx::mma_m16n8k16(part[b][k % kChains], a, q[k][b][0], q[k][b][1]);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; b++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        score[e] = part[b][0][e];
#pragma unroll
        for (int c = 1; c < kChains; c++) score[e] += part[b][c][e];
      }
      parts[(member * kBlocks + b) * 32] = make_float4(score[0], score[1], score[2], score[3]);
    }
    meet();
#pragma unroll
    for (int w = 0; w < kWarps; w++) { /* the same order in all warps: those that do the same block must agree */
      const float4 v = parts[(w * kBlocks + own) * 32];
      score[0] = w ? score[0] + v.x : v.x;
      score[1] = w ? score[1] + v.y : v.y;
      score[2] = w ? score[2] + v.z : v.z;
      score[3] = w ? score[3] + v.w : v.w;
    }
  }

  /* Softmax over the tile: within the lane, then over the eight lanes that share two heads; m and l are brought up
   * to date. With several blocks each warp passes P and the rescale factors of its own on. Returns whether a rescale
   * factor of this thread differs from 1. */
  FHK_DEV bool softmax(float (&score)[4], int32_t entry, float (&m)[2], float (&l)[2], PFragments &p,
                       float (&rescale)[kBlocks][2]) {
    const uint32_t valid = __ballot_sync(~0u, is_valid(entry)); /* bits 0 .. 15 */
    if (!(valid >> r8 & 1)) score[0] = score[1] = -INFINITY;
    if (!(valid >> (r8 + 8) & 1)) score[2] = score[3] = -INFINITY;
    float top[2] = {fmaxf(score[0], score[2]), fmaxf(score[1], score[3])};
#pragma unroll
    for (int d = 4; d < 32; d <<= 1) {
      top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], d));
      top[1] = fmaxf(top[1], __shfl_xor_sync(~0u, top[1], d));
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const float now = fmaxf(m[e], top[e] * scale);
      rescale[0][e] = ptx::exp2(m[e] - now);
      m[e] = now;
    }
    {
      const float p00 = ptx::exp2(fmaf(score[0], scale, -m[0])), p01 = ptx::exp2(fmaf(score[1], scale, -m[1]));
      const float p10 = ptx::exp2(fmaf(score[2], scale, -m[0])), p11 = ptx::exp2(fmaf(score[3], scale, -m[1]));
      l[0] = l[0] * rescale[0][0] + p00 + p10;
      l[1] = l[1] * rescale[0][1] + p01 + p11;
      /* the accumulator layout (token, head pair), transposed, is the B layout */
      p[0][0] = ptx::movmatrix_trans(ptx::pack_bf16(p00, p01));
      p[0][1] = ptx::movmatrix_trans(ptx::pack_bf16(p10, p11));
    }
    if constexpr (kBlocks > 1) {
      passed[own * 32] = make_float4(__uint_as_float(p[0][0]), __uint_as_float(p[0][1]), rescale[0][0], rescale[0][1]);
      meet();
#pragma unroll
      for (int b = 0; b < kBlocks; b++) {
        const float4 v = passed[b * 32];
        p[b][0] = __float_as_uint(v.x);
        p[b][1] = __float_as_uint(v.y);
        rescale[b][0] = v.z;
        rescale[b][1] = v.w;
      }
    }
    bool moved = false;
#pragma unroll
    for (int b = 0; b < kBlocks; b++) moved |= (rescale[b][0] != 1.f) | (rescale[b][1] != 1.f);
    return moved;
  }

  /* O^T += V^T P^T over this warp's columns. */
  FHK_DEV void pv(Output &o, const PFragments &p, uint32_t tile) const {
    const uint32_t v_row = (lane & 7) + (lane >> 4) * 8, v_unit = (lane >> 3) & 1;
#pragma unroll
    for (int j = 0; j < X::kColumnBlocks; j++) {
      uint32_t a[4];
      ptx::ldmatrix4_trans(a,
                           tile + v_row * kRowBytes + unit_offset(lane, 2 * (member * X::kColumnBlocks + j) + v_unit));
#pragma unroll
      for (int b = 0; b < kBlocks; b++) ptx::mma_m16n8k16(o[j][b], a, p[b][0], p[b][1]);
    }
  }

  /* (max, sum) of every head over the teams; what each team's O is multiplied by goes to `factors`. The CTA has met
   * when it returns. */
  FHK_DEV void finish_heads(const float (&m)[2], float (&l)[2]) const {
    const fh_call &call = params.call;
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
      for (int d = 4; d < 32; d <<= 1) l[e] += __shfl_xor_sync(~0u, l[e], d);
      if (r8 == 0 && member < kBlocks) states[team * X::kHeads + 8 * own + 2 * c4 + e] = make_float2(m[e], l[e]);
    }
    __syncthreads(); /* also: nobody reads the rings any more */
    for (int h = threadIdx.x; h < X::kHeads && head0 + h < call.h_q; h += blockDim.x) {
      float most = kMaxStart, sum = 0.f;
      for (int k = 0; k < params.teams; k++) most = fmaxf(most, states[k * X::kHeads + h].x);
      for (int k = 0; k < params.teams; k++)
        sum += ptx::exp2(states[k * X::kHeads + h].x - most) * states[k * X::kHeads + h].y;
      const float inverse = inverse_denominator(most, sum, sink_log2(call, head0 + h));
      for (int k = 0; k < params.teams; k++)
        factors[k * X::kHeads + h] = ptx::exp2(states[k * X::kHeads + h].x - most) * inverse;
      store_statistics(call, s, head0 + h, most, sum);
    }
    __syncthreads();
  }

  /* O in rounds through the idle rings. */
  FHK_DEV void store(const Output &o) const {
    const fh_call &call = params.call;
    float *const staging = reinterpret_cast<float *>(ring + member * X::kStagingBytes);
    uint16_t *const row = static_cast<uint16_t *>(call.out) + s * call.out_stride_s + head0 * call.out_stride_h;
    uint16_t *const out = row + member * (kDv / kWarps);
    auto settle = [&]() { /* teams that share an item read each other's part, others only their own warp's */
                          if (params.teams > 1) __syncthreads();
                          else __syncwarp();
    };
#pragma unroll
    for (int round = 0; round < kRounds; round++) {
      constexpr int kRoundBlocks = X::kColumnBlocks / kRounds;
#pragma unroll
      for (int j = 0; j < kRoundBlocks; j++) {
#pragma unroll
        for (int b = 0; b < kBlocks; b++) {
          const float(&v)[4] = o[round * kRoundBlocks + j][b];
          float *at = staging + (8 * b + 2 * c4) * X::kStagingStride + 16 * j + r8;
          at[0] = v[0];
          at[X::kStagingStride] = v[1];
          at[8] = v[2];
          at[X::kStagingStride + 8] = v[3];
        }
      }
      settle();
      constexpr int kUnits = X::kRoundColumns / 8;
      for (int unit = team * 32 + lane; unit < X::kHeads * kUnits; unit += params.teams * 32) {
        const int h = unit / kUnits, column = unit % kUnits * 8;
        if (head0 + h >= call.h_q) break;
        float sum[8] = {};
        for (int k = 0; k < params.teams; k++) {
          const float factor = factors[k * X::kHeads + h];
          const float4 *from = reinterpret_cast<const float4 *>(memory + k * ring_bytes + member * X::kStagingBytes) +
                               (h * X::kStagingStride + column) / 4;
          const float4 a = from[0], b = from[1];
          sum[0] += factor * a.x, sum[1] += factor * a.y, sum[2] += factor * a.z, sum[3] += factor * a.w;
          sum[4] += factor * b.x, sum[5] += factor * b.y, sum[6] += factor * b.z, sum[7] += factor * b.w;
        }
        uint32_t pairs[4];
#pragma unroll
        for (int k = 0; k < 4; k++) pairs[k] = ptx::pack_bf16(sum[2 * k], sum[2 * k + 1]);
        uint16_t *to = out + h * call.out_stride_h + round * X::kRoundColumns + column;
        if (params.aligned_out) {
          *reinterpret_cast<uint4 *>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        } else {
#pragma unroll
          for (int k = 0; k < 8; k++) to[k] = static_cast<uint16_t>(pairs[k / 2] >> (k % 2 * 16));
        }
      }
      settle();
    }
  }
};

template <int kD, int kWarps, int kBlocks>
__global__ void __launch_bounds__(Shape<kD, kWarps, kBlocks>::kThreads, 1) kernel(const __grid_constant__ Params p) {
  using X = Shape<kD, kWarps, kBlocks>;
  using M = Member<kD, kWarps, kBlocks>;
  extern __shared__ __align__(1024) uint8_t memory[];
  const fh_call &call = p.call;
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const int32_t number = blockIdx.x / p.head_groups;
  if (number >= p.rows.count()) return;
  const int64_t s = p.rows.row(number, p.rows.look(number));
  if (s < 0) return;
  M me(p, memory, warp, lane, s, blockIdx.x % p.head_groups * X::kHeads);
  prefetch_item<kD, X::kHeads>(p, blockIdx.x + p.resident);
#ifdef FHK_RACECHECK
  __shared__ uint64_t barriers[kMaxTeams];
  me.open_barriers(barriers);
#endif

  const int64_t length = list_length(call, s);
  const int32_t tiles =
      static_cast<int32_t>(((length + kTile - 1) / kTile - me.team + p.teams - 1) / p.teams); /* of this team */
  const int32_t *const list = call.indices + s * call.indices_stride;
  auto entry_of = [&](int32_t i) { /* entry lane % 16 of the team's tile i, -1 past the list's end */
                                   const int64_t pos =
                                       (me.team + static_cast<int64_t>(i) * p.teams) * kTile + (lane & 15);
                                   return i < tiles && pos < length ? __ldg(list + pos) : -1;
  };
  const int ahead = p.stages - 1; /* tiles under way while one is computed. Groups are counted, so empty ones
                                     are closed too */
  for (int k = 0; k < ahead; k++) {
    if (k < tiles) me.copy_tile(k, entry_of(k));
    else ptx::cp_async_commit();
  }
  int32_t ready = entry_of(ahead);

  typename M::QueryFragments q;
  if (p.aligned_q) me.load_query(q, [](const uint16_t *at) { return __ldg(reinterpret_cast<const uint32_t *>(at)); });
  else me.load_query(q, [](const uint16_t *at) { return __ldg(at) | static_cast<uint32_t>(__ldg(at + 1)) << 16; });
  typename M::Output o;
#pragma unroll
  for (int j = 0; j < X::kColumnBlocks; j++) {
#pragma unroll
    for (int b = 0; b < kBlocks; b++) o[j][b][0] = o[j][b][1] = o[j][b][2] = o[j][b][3] = 0.f;
  }
  float m[2] = {kMaxStart, kMaxStart}, l[2] = {0.f, 0.f};

  int slot = 0, fill = ahead; /* of the ring: the tile to compute, the tile to copy */
  for (int32_t i = 0; i < tiles; i++) {
    const int32_t entry = entry_of(i); /* in L1 since its copy began */
    if (p.stages == 2) ptx::cp_async_wait<0>();
    else if (p.stages == 3) ptx::cp_async_wait<1>();
    else ptx::cp_async_wait<2>();
    me.meet(); /* everybody's copies of this tile have landed, and everybody is done with the slot that is
                  filled next */
    if (i + ahead < tiles) me.copy_tile(fill, ready);
    else ptx::cp_async_commit();
    ready = entry_of(i + ahead + 1);
    const uint32_t tile = ptx::smem_addr(me.ring) + slot * X::kTileBytes;
    slot = slot + 1 == p.stages ? 0 : slot + 1;
    fill = fill + 1 == p.stages ? 0 : fill + 1;

    float score[4], rescale[kBlocks][2];
    typename M::PFragments p_fragments;
    me.scores(score, q, tile);
    if (__any_sync(~0u, me.softmax(score, entry, m, l, p_fragments, rescale))) {
#pragma unroll
      for (int j = 0; j < X::kColumnBlocks; j++) {
#pragma unroll
        for (int b = 0; b < kBlocks; b++) {
#pragma unroll
          for (int e = 0; e < 4; e++) o[j][b][e] *= rescale[b][e & 1];
        }
      }
    }
    me.pv(o, p_fragments, tile);
  }
  ptx::cp_async_wait<0>();
  me.finish_heads(m, l);
  me.store(o);
}

/* Shared memory of a multiprocessor, KiB; a CTA can have one less, and one is kept back of each CTA. */
inline uint32_t shared_kib(int32_t capability) {
  if (capability == 80 || capability == 87) return 164;
  if (capability >= 90 && capability < 120) return 228;
  return 100;
}

template <int kD, int kWarps, int kBlocks>
cudaError_t prepare() {
  int device, most;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
#ifdef FHK_RACECHECK /* its barriers are static, and what is dynamic starts on 1024 bytes */
  most -= 1024;
#endif
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(kernel<kD, kWarps, kBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

template <int kD, int kWarps, int kBlocks>
cudaError_t launch(const fhk_gpu *gpu, const fh_call *call, cudaStream_t stream) {
  using X = Shape<kD, kWarps, kBlocks>;
  Params p;
  p.call = *call;
  p.head_groups = (heads_of(*call) + X::kHeads - 1) / X::kHeads;
  p.aligned_kv = aligned(call->kv, call->kv_stride, 0, 2, 16);
  p.aligned_q = aligned(call->q, call->q_stride_s, call->q_stride_h, 2, 4);
  p.aligned_out = aligned(call->out, call->out_stride_s, call->out_stride_h, 2, 16);
  p.rows = rows_of(*call);
  const int64_t rows = most_rows(*call), items = rows * p.head_groups;
  if (rows > kMostRows || items > kMostRows) return cudaErrorInvalidConfiguration;
  const uint32_t memory = shared_kib(gpu->capability) * 1024, kept = 1024;
  auto ctas = [&](int teams, int stages) { /* that a multiprocessor holds */
                                           const int by_memory =
                                               static_cast<int>(memory / (X::bytes(teams, stages) + kept));
                                           const int by_registers = X::kWarpsByRegisters / kWarps / teams;
                                           return by_memory < by_registers ? by_memory : by_registers;
  };
  /* While every item can have a CTA at once, its teams share it: as many as that allows. They add up in another
   * order than one team does, so a row that must not depend on how many rows there are has one. */
  p.teams = call->row_invariant || call->path == FH_AUTO ? 1 : kMaxTeams;
  while (p.teams > 1 && items > static_cast<int64_t>(ctas(p.teams, 2)) * gpu->multiprocessors) p.teams /= 2;
  /* Takes as many CTAs as two stages allow, then as many stages as fit. */
  const int resident = p.teams == 1 ? ctas(1, 2) : static_cast<int>((items - 1) / gpu->multiprocessors) + 1;
  p.stages = kMaxStages;
  while (p.stages > 2 && ctas(p.teams, p.stages) < resident) p.stages--;
  p.resident = resident * gpu->multiprocessors;
  kernel<kD, kWarps, kBlocks>
      <<<static_cast<unsigned>(items), 32 * kWarps * p.teams, X::bytes(p.teams, p.stages), stream>>>(p);
  return cudaGetLastError();
}

#define FHK_PORTABLE_GATHER_DECLARE(D, WARPS, BLOCKS)      \
  extern template cudaError_t prepare<D, WARPS, BLOCKS>(); \
  extern template cudaError_t launch<D, WARPS, BLOCKS>(const fhk_gpu *, const fh_call *, cudaStream_t);
#define FHK_PORTABLE_GATHER_DEFINE(D, WARPS, BLOCKS) \
  template cudaError_t prepare<D, WARPS, BLOCKS>();  \
  template cudaError_t launch<D, WARPS, BLOCKS>(const fhk_gpu *, const fh_call *, cudaStream_t);

}  // namespace portable_gather
}  // namespace fhk

#endif
