/*
 * The plan on the device (fh_plan): for each group of neighbouring queries the union of their lists and who chose what. A CTA
 * takes one group. Any device from sm_80 on.
 *
 * ranked: a bit per KV row says that somebody chose it; the bits before a row, counted, are its place in the union. Two passes
 *   over the lists, which lie in L1: the first sets bits, the second finds places and sets the bit of its query there. What is
 *   beyond the window of kWindow rows waits for the next one, which starts at the smallest row that is left: the cost follows the
 *   lists and the span of rows they touch, not s_kv.
 * counted: a counter per (KV row, query), window by window as above. A row has as many copies as the query that lists it most
 *   often says. A group with a row twice in one list falls back to it, and it is the route where the member bits of a group do
 *   not fit in shared memory.
 * order: a warp counts for its group those that go before it; past kOrderDirect groups one CTA sorts by digits.
 */
#include <cuda_runtime.h>

#include "cuda/common.cuh"
#include "cuda/cuda.h"
#include "groups.h"

namespace fhk {
namespace plan {

constexpr int kMaxThreads = 1024, kMaxGroup = 64;
constexpr uint32_t kWindow = 65536;             /* KV rows: places in a window are 16-bit numbers */
constexpr uint32_t kNone = 0xffffffffu;
constexpr uint32_t kRowByRow = 1u << 31;        /* above all numbers of entries */
constexpr uint32_t kRankedBytes = 200 * 1024;   /* shared memory of `ranked` at most */
constexpr uint32_t kCountedBytes = 96 * 1024;   /* and of `counted` where it comes first: two CTAs an SM */
constexpr uint32_t kLeastBytes = 16 * 1024;     /* room for counters when `ranked` falls back */
constexpr int64_t kOrderDirect = 16384;         /* groups: up to there counting, groups^2 / 32 steps, beats one CTA's digits */
constexpr int kOrderThreads = 256, kSortThreads = 1024, kDigit = 16;

struct Build {
  fh_call call;
  fh_plan plan;
  fh_group_costs costs;
  uint32_t *rank;      /* [groups] entries, and kRowByRow where packing does not pay: the order, falling */
  int32_t *saves;      /* [groups] fh_group_saves */
  uint32_t window;     /* rows of a window of `ranked`, a multiple of 32 */
  uint32_t shared;     /* bytes */
  int log_bits;        /* `ranked`: log2 of the bits an entry has for its members */
  bool ranked;
};

struct Shared {
  int64_t first;    /* row of the group */
  int queries;
  uint32_t warp_sum[32];
  uint32_t keys[kMaxGroup];
  uint32_t next;    /* smallest KV row behind the window */
  int repeats;
};

/* Exclusive sum over the CTA; *total is the whole. */
FHK_DEV uint32_t block_scan(uint32_t x, uint32_t *total, Shared &sh) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  uint32_t upto = x;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const uint32_t y = __shfl_up_sync(~0u, upto, d);
    if (lane >= d) upto += y;
  }
  __syncthreads(); /* the last sum has been read */
  if (lane == 31) sh.warp_sum[warp] = upto;
  __syncthreads();
  uint32_t of_warp = lane < warps ? sh.warp_sum[lane] : 0;
  const uint32_t before = __reduce_add_sync(~0u, lane < warp ? of_warp : 0);
  *total = __reduce_add_sync(~0u, of_warp);
  return before + upto - x;
}

/* A warp cuts the rows into groups, 32 requests a step, until it has met the CTA's group. */
FHK_DEV void find_rows(const Build &b, Shared &sh) {
  const int lane = threadIdx.x & 31, group = b.plan.group;
  const int64_t s_q = b.call.s_q;
  if (b.call.requests < 2) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * group, left = s_q - first;
    if (lane == 0) sh.first = first, sh.queries = left < group ? static_cast<int>(left) : group;
    return;
  }
  int32_t row = 0; /* where the requests of this step begin */
  uint32_t groups = 0; /* of all before them */
  for (int64_t r = lane; r - lane < b.call.requests; r += 32) {
    const int64_t offset = r + 1 < b.call.requests ? __ldg(b.call.cu_seqlens_q + r + 1) : s_q;
    int32_t end = static_cast<int32_t>(fh_request_end(offset, row, s_q));
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
      const int32_t before = __shfl_up_sync(~0u, end, d);
      if (lane >= d) end = max(end, before);
    }
    const int32_t before = __shfl_up_sync(~0u, end, 1), start = lane ? before : row;
    uint32_t upto = static_cast<uint32_t>((end - start) / group + ((end - start) % group != 0));
    const uint32_t mine = upto;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
      const uint32_t y = __shfl_up_sync(~0u, upto, d);
      if (lane >= d) upto += y;
    }
    const uint32_t nth = blockIdx.x - groups - (upto - mine); /* of this request's groups; wraps where it is one before */
    if (nth < mine) {
      sh.first = start + static_cast<int64_t>(nth) * group;
      sh.queries = min(group, end - static_cast<int32_t>(sh.first));
    }
    if (__any_sync(~0u, nth < mine)) return;
    row = __shfl_sync(~0u, end, 31);
    groups += __shfl_sync(~0u, upto, 31);
  }
  if (lane == 0) sh.first = s_q, sh.queries = 0;
}

/* f(query, KV row) for every valid entry of the group's lists. Warps take whole lists, or parts where there are more warps. */
template <typename F>
FHK_DEV void each_key(const Build &b, int queries, bool count, Shared &sh, F &&f) {
  constexpr int kAhead = 4;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const int parts = warps > queries ? warps / queries : 1;
  for (int item = warp; item < queries * parts; item += warps) {
    const int q = item % queries, part = item / queries;
    const int64_t s = sh.first + q;
    const int32_t *list = b.call.indices + s * b.call.indices_stride;
    const uint32_t length = list_length(b.call, s), step = parts * 32;
    uint32_t found = 0;
    for (uint32_t j = part * 32 + lane; j < length; j += kAhead * step) { /* length < 2^31: no sum here wraps */
      int32_t row[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; k++) row[k] = j + k * step < length ? __ldg(list + j + k * step) : -1;
#pragma unroll
      for (int k = 0; k < kAhead; k++) {
        if (static_cast<uint32_t>(row[k]) >= static_cast<uint32_t>(b.call.s_kv)) continue;
        found++;
        f(q, static_cast<uint32_t>(row[k]));
      }
    }
    if (count) {
      found = __reduce_add_sync(~0u, found);
      if (lane == 0) atomicAdd(&sh.keys[q], found);
    }
  }
}

/* Smallest of the threads' numbers to sh.next; the CTA has met since sh.next was last read. */
FHK_DEV void offer_next(uint32_t row, Shared &sh) {
  row = __reduce_min_sync(~0u, row);
  if ((threadIdx.x & 31) == 0 && row != kNone) atomicMin(&sh.next, row);
}
FHK_DEV uint32_t take_next(Shared &sh) {
  __syncthreads();
  const uint32_t next = sh.next;
  __syncthreads();
  if (threadIdx.x == 0) sh.next = kNone;
  __syncthreads();
  return next;
}
FHK_DEV uint32_t first_row(const Build &b, int queries, Shared &sh) {
  uint32_t least = kNone;
  each_key(b, queries, false, sh, [&](int, uint32_t row) { least = min(least, row); });
  offer_next(least, sh);
  return take_next(sh);
}

FHK_DEV uint32_t counted(const Build &b, int queries, bool count_keys, uint32_t *counter, Shared &sh) {
  const uint32_t rows = b.shared / 4 / queries;
  int32_t *token = b.plan.token + blockIdx.x * b.plan.capacity;
  uint64_t *member = b.plan.member + blockIdx.x * b.plan.capacity;
  uint32_t entries = 0;
  for (uint32_t start = first_row(b, queries, sh); start != kNone;) {
    for (uint32_t k = threadIdx.x; k < rows * queries; k += blockDim.x) counter[k] = 0;
    __syncthreads();
    uint32_t least = kNone;
    each_key(b, queries, count_keys, sh, [&](int q, uint32_t row) {
      if (row < start) return;
      if (row - start < rows) atomicAdd(&counter[(row - start) * queries + q], 1u);
      else least = min(least, row);
    });
    count_keys = false;
    offer_next(least, sh);
    const uint32_t next = take_next(sh);
    for (uint32_t first = 0; first < rows; first += blockDim.x) {
      const uint32_t k = first + threadIdx.x;
      uint32_t copies = 0, here;
      if (k < rows)
        for (int q = 0; q < queries; q++) copies = max(copies, counter[k * queries + q]);
      const uint32_t at = entries + block_scan(copies, &here, sh);
      for (uint32_t copy = 0; copy < copies; copy++) {
        uint64_t mask = 0;
        for (int q = 0; q < queries; q++) mask |= static_cast<uint64_t>(counter[k * queries + q] > copy) << q;
        token[at + copy] = static_cast<int32_t>(start + k);
        member[at + copy] = mask;
      }
      entries += here;
    }
    __syncthreads(); /* counters have been read */
    start = next;
  }
  return entries;
}

/* Returns the number of entries, or kNone when a list holds a row twice. */
FHK_DEV uint32_t ranked(const Build &b, int queries, uint8_t *memory, Shared &sh) {
  const uint32_t words = b.window / 32;
  uint2 *chosen = reinterpret_cast<uint2 *>(memory);                       /* x: a bit a row; y: bits of the words before */
  uint32_t *mask = reinterpret_cast<uint32_t *>(memory + words * 8);       /* 2^log_bits bits an entry */
  const uint32_t mask_words = static_cast<uint32_t>(((b.plan.capacity << b.log_bits) + 31) / 32);
  uint16_t *row_of = reinterpret_cast<uint16_t *>(mask + mask_words);      /* entry: row in the window */
  int32_t *token = b.plan.token + blockIdx.x * b.plan.capacity;
  uint64_t *member = b.plan.member + blockIdx.x * b.plan.capacity;
  const uint32_t share = (words + blockDim.x - 1) / blockDim.x;
  const bool one = b.window >= b.call.s_kv;
  bool count_keys = true;
  uint32_t entries = 0;
  for (uint32_t start = one ? 0 : first_row(b, queries, sh); start != kNone;) {
    start &= ~31u;
    for (uint32_t w = threadIdx.x; w < words; w += blockDim.x) chosen[w] = make_uint2(0, 0);
    for (uint32_t w = threadIdx.x; w < mask_words; w += blockDim.x) mask[w] = 0;
    __syncthreads();
    uint32_t least = kNone;
    each_key(b, queries, count_keys, sh, [&](int, uint32_t row) {
      const uint32_t at = row - start;
      if (at < b.window) atomicOr(&chosen[at >> 5].x, 1u << (at & 31));
      else if (row > start) least = min(least, row);
    });
    count_keys = false;
    uint32_t next = kNone;
    if (!one) {
      offer_next(least, sh);
      next = take_next(sh);
    }
    __syncthreads();
    uint32_t bits = 0, here;
    for (uint32_t k = 0; k < share; k++) {
      const uint32_t w = threadIdx.x * share + k;
      if (w < words) bits += __popc(chosen[w].x);
    }
    uint32_t before = block_scan(bits, &here, sh);
    for (uint32_t k = 0; k < share; k++) {
      const uint32_t w = threadIdx.x * share + k;
      if (w >= words) break;
      chosen[w].y = before;
      before += __popc(chosen[w].x);
    }
    __syncthreads();
    each_key(b, queries, false, sh, [&](int q, uint32_t row) {
      const uint32_t at = row - start;
      if (at >= b.window) return;
      const uint2 word = chosen[at >> 5];
      const uint32_t entry = word.y + __popc(word.x & ((1u << (at & 31)) - 1)), bit = (entry << b.log_bits) + q;
      const uint32_t old = atomicOr(&mask[bit >> 5], 1u << (bit & 31));
      if (old >> (bit & 31) & 1) sh.repeats = 1;
      row_of[entry] = static_cast<uint16_t>(at); /* all members write the same */
    });
    __syncthreads();
    if (sh.repeats) return kNone;
    for (uint32_t k = threadIdx.x; k < here; k += blockDim.x) {
      const uint32_t bit = k << b.log_bits;
      uint64_t who = mask[bit >> 5];
      if (b.log_bits == 6) who |= static_cast<uint64_t>(mask[(bit >> 5) + 1]) << 32;
      else if (b.log_bits < 5) who = who >> (bit & 31) & ((1u << (1 << b.log_bits)) - 1);
      token[entries + k] = static_cast<int32_t>(start + row_of[k]);
      member[entries + k] = who;
    }
    entries += here;
    start = next;
    if (start != kNone) __syncthreads(); /* what is overwritten now has been read */
  }
  return entries;
}

__global__ void __launch_bounds__(kMaxThreads, 2) build_group(const __grid_constant__ Build b) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ Shared sh;
  if (threadIdx.x < 32) find_rows(b, sh);
  if (threadIdx.x < kMaxGroup) sh.keys[threadIdx.x] = 0;
  if (threadIdx.x == 0) sh.next = kNone, sh.repeats = 0;
  __syncthreads();
  const int64_t first = sh.first;
  const int queries = sh.queries;
  uint32_t entries = 0;
  if (queries > 0) {
    entries = b.ranked ? ranked(b, queries, memory, sh) : kNone;
    if (entries == kNone) entries = counted(b, queries, !b.ranked, reinterpret_cast<uint32_t *>(memory), sh);
  }
  __syncthreads();
  if (threadIdx.x < queries) b.plan.keys[first + threadIdx.x] = static_cast<int32_t>(sh.keys[threadIdx.x]);
  if (threadIdx.x == 0) {
    int64_t keys = 0;
    for (int q = 0; q < queries; q++) keys += sh.keys[q];
    b.plan.first[blockIdx.x] = first;
    if (blockIdx.x == gridDim.x - 1) b.plan.first[gridDim.x] = b.call.s_q;
    b.plan.entries[blockIdx.x] = static_cast<int32_t>(entries);
    const int32_t saves = fh_group_saves(&b.costs, entries, queries, keys);
    b.saves[blockIdx.x] = saves;
    b.rank[blockIdx.x] = entries | (saves < 0 ? kRowByRow : 0);
  }
}

/* A warp decides how many groups at the start of the order are not packed. */
FHK_DEV int32_t packed_from(const int32_t *saves, int32_t groups, const fh_group_costs &costs) {
  const int lane = threadIdx.x & 31;
  int64_t saved = 0, lost = 0;
  int32_t fewer = 0;
#pragma unroll 8
  for (int32_t k = lane; k < groups; k += 32) {
    const int32_t here = saves[k];
    saved += max(here, 0);
    lost += max(-here, 0);
    fewer += here < 0;
  }
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    saved += __shfl_xor_sync(~0u, saved, d);
    lost += __shfl_xor_sync(~0u, lost, d);
  }
  fewer = __reduce_add_sync(~0u, fewer);
  return static_cast<int32_t>(fh_packed_from(&costs, groups, fewer, saved, lost));
}

/* What the order is made of, and where it goes. */
struct Order {
  const uint32_t *rank;
  const int32_t *saves;
  fh_group_costs costs;
  int32_t *order, *packed_from;
  int32_t groups;
};

/* A warp a group, and one more. */
__global__ void __launch_bounds__(kOrderThreads) order_direct(const __grid_constant__ Order o) {
  const int lane = threadIdx.x & 31, g = (blockIdx.x * kOrderThreads + threadIdx.x) >> 5;
  ptx::wait_for_grid_before();
  if (g == o.groups) {
    const int32_t from = packed_from(o.saves, o.groups, o.costs);
    if (lane == 0) *o.packed_from = from;
  }
  if (g >= o.groups) return;
  const uint32_t mine = o.rank[g];
  int32_t before = 0;
#pragma unroll 8
  for (int32_t k = lane; k < o.groups; k += 32) {
    const uint32_t other = o.rank[k];
    before += other > mine || (other == mine && k < g);
  }
  before = __reduce_add_sync(~0u, before);
  if (lane == 0) o.order[before] = g;
}

/* One CTA, stable, digit by digit from the lowest; `passes` is even, so that the last one writes `order`. */
__global__ void __launch_bounds__(kSortThreads) order_sorted(const __grid_constant__ Order o, int32_t *spare, int passes) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ Shared sh;
  uint32_t *count = reinterpret_cast<uint32_t *>(memory); /* [kDigit][kSortThreads] */
  const int t = threadIdx.x;
  const int64_t share = (static_cast<int64_t>(o.groups) + kSortThreads - 1) / kSortThreads;
  const int64_t first = min(t * share, static_cast<int64_t>(o.groups)), last = min(first + share, static_cast<int64_t>(o.groups));
  ptx::wait_for_grid_before();
  if (t < 32) {
    const int32_t from = packed_from(o.saves, o.groups, o.costs);
    if (t == 0) *o.packed_from = from;
  }
  for (int pass = 0; pass < passes; pass++) {
    const int32_t *from = pass % 2 ? spare : o.order;
    int32_t *to = pass % 2 ? o.order : spare;
    auto group = [&](int64_t k) { return pass == 0 ? static_cast<int32_t>(k) : from[k]; };
    auto digit = [&](int32_t g) { return kDigit - 1 - (o.rank[g] >> 4 * pass & (kDigit - 1)); };
    for (int d = 0; d < kDigit; d++) count[d * kSortThreads + t] = 0;
    for (int64_t k = first; k < last; k++) count[digit(group(k)) * kSortThreads + t]++;
    uint32_t before = 0;
    for (int d = 0; d < kDigit; d++) {
      uint32_t all;
      const uint32_t mine = block_scan(count[d * kSortThreads + t], &all, sh);
      count[d * kSortThreads + t] = before + mine;
      before += all;
    }
    for (int64_t k = first; k < last; k++) {
      const int32_t g = group(k);
      to[count[digit(g) * kSortThreads + t]++] = g;
    }
    __syncthreads();
  }
}

/* ---- Host ---- */

/* Sizes of memory stop at the largest number instead of wrapping. */
inline uint64_t add(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
inline uint64_t part(uint64_t count, uint64_t size) {
  constexpr uint64_t kLine = 256;
  if (count > (UINT64_MAX - kLine) / size) return UINT64_MAX;
  return (count * size + kLine - 1) / kLine * kLine;
}

struct Layout {
  uint64_t groups, token, member, entries, order, keys, first, packed_from, rank, saves, spare, total;
};
Layout layout_of(const fh_call *call) {
  Layout at;
  at.groups = static_cast<uint64_t>(fh_groups_most(call->s_q, call->requests, call->group));
  const uint64_t capacity = static_cast<uint64_t>(call->topk) * call->group;
  const uint64_t all = capacity && at.groups > UINT64_MAX / capacity ? UINT64_MAX : at.groups * capacity;
  at.token = 0;
  at.member = add(at.token, part(all, 4));
  at.entries = add(at.member, part(all, 8));
  at.order = add(at.entries, part(at.groups, 4));
  at.keys = add(at.order, part(at.groups, 4));
  at.first = add(at.keys, part(call->s_q, 4));
  at.packed_from = add(at.first, part(at.groups + 1, 8));
  at.rank = add(at.packed_from, part(1, 4));
  at.saves = add(at.rank, part(at.groups, 4));
  at.spare = add(at.saves, part(at.groups, 4));
  at.total = add(at.spare, at.groups > kOrderDirect ? part(at.groups, 4) : 0);
  return at;
}

}  // namespace plan
}  // namespace fhk

using namespace fhk::plan;

int fhk_plan_prepare(void) {
  const cudaError_t status = cudaFuncSetAttribute(build_group, cudaFuncAttributeMaxDynamicSharedMemorySize, kRankedBytes);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(order_sorted, cudaFuncAttributeMaxDynamicSharedMemorySize, kDigit * kSortThreads * 4);
}

uint64_t fhk_plan_bytes(const fhk_gpu *, const fh_call *call) { return layout_of(call).total; }

int fhk_plan_build(const fhk_gpu *gpu, const fh_call *call, void *memory, fh_plan *plan, void *given_stream) {
  const Layout at = layout_of(call);
  const cudaStream_t stream = static_cast<cudaStream_t>(given_stream);
  char *base = static_cast<char *>(memory);
  plan->struct_size = sizeof *plan;
  plan->s_q = call->s_q;
  plan->groups = static_cast<int64_t>(at.groups);
  plan->requests = call->requests;
  plan->group = call->group;
  plan->s_kv = static_cast<int32_t>(call->s_kv);
  plan->capacity = call->topk * call->group;
  plan->token = reinterpret_cast<int32_t *>(base + at.token);
  plan->member = reinterpret_cast<uint64_t *>(base + at.member);
  plan->entries = reinterpret_cast<int32_t *>(base + at.entries);
  plan->order = reinterpret_cast<int32_t *>(base + at.order);
  plan->keys = reinterpret_cast<int32_t *>(base + at.keys);
  plan->first = reinterpret_cast<int64_t *>(base + at.first);
  plan->packed_from = reinterpret_cast<int32_t *>(base + at.packed_from);
  if (plan->groups == 0) /* first[0], and packed_from behind it */
    return cudaMemsetAsync(plan->first, 0, at.rank - at.first, stream);
  if (plan->groups > INT32_MAX || plan->capacity > INT32_MAX) return cudaErrorInvalidConfiguration;

  Build b;
  b.call = *call;
  b.plan = *plan;
  b.rank = reinterpret_cast<uint32_t *>(base + at.rank);
  b.saves = reinterpret_cast<int32_t *>(base + at.saves);
  b.costs = fh_group_costs_of(call);
  const int64_t rows = call->s_kv < kWindow ? call->s_kv : kWindow;
  b.window = static_cast<uint32_t>(rows < 32 ? 32 : (rows + 31) / 32 * 32);
  b.log_bits = 3;
  while (1 << b.log_bits < call->group) b.log_bits++;
  const uint64_t ranked_bytes = b.window / 4 + ((plan->capacity << b.log_bits) + 31) / 32 * 4 + plan->capacity * 2;
  b.ranked = ranked_bytes <= kRankedBytes;
  const uint32_t least = ranked_bytes < kLeastBytes ? kLeastBytes : static_cast<uint32_t>(ranked_bytes + 3) / 4 * 4;
  b.shared = b.ranked ? least : kCountedBytes;
  /* The fewer groups, the more threads each: as many warps as the device holds. */
  const int64_t per_sm = (plan->groups + gpu->multiprocessors - 1) / gpu->multiprocessors;
  const int threads = per_sm > 4 ? 256 : per_sm > 2 ? 512 : 1024;
  build_group<<<static_cast<unsigned>(plan->groups), threads, b.shared, stream>>>(b);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  const Order o = {b.rank, b.saves, b.costs, plan->order, plan->packed_from, static_cast<int32_t>(plan->groups)};
  if (o.groups <= kOrderDirect)
    return fhk::launch_behind(gpu->capability, order_direct, o.groups / (kOrderThreads / 32) + 1, kOrderThreads, 0, stream, o);
  int passes = 2;
  while (passes < 8 && (call->path == FH_AUTO || plan->capacity >> 4 * passes)) passes += 2;
  return fhk::launch_behind(gpu->capability, order_sorted, 1, kSortThreads, kDigit * kSortThreads * 4, stream, o,
                            reinterpret_cast<int32_t *>(base + at.spare), passes);
}
