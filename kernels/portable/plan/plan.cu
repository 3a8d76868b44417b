/*
 * The plan on the device (fh_plan): for each group of neighbouring queries the union of their lists and who chose what.
 * A CTA takes one group. Any device from sm_80 on.
 *
 * The map has 1, 2, 4 or 8 bytes for each place, a bit a query. One pass over the lists sets bits; a second over the
 * map, 16 bytes a lane, notes which places are not zero and counts them, so that each warp knows where in the union its
 * stretch begins; a third lists those places and writes them out. What does not fit in one window of the map is done
 * window by window.
 *
 * A place is a KV row. Where the map of all rows would take more than two windows, it is a row of a page that somebody
 * chose: pages of 16 rows, found by one more pass over the lists, which sets a bit for each; the bits before a page,
 * counted, say where its places are. So the cost follows the lists, not s_kv. Pages beyond a span of kMostPages wait
 * for the next one, which starts at the smallest row that is left.
 *
 * A list that holds a row twice has set fewer bits than it has keys. Its group is done again with a counter for each
 * (place, query) in place of a bit, window by window: a row has as many copies as the query that lists it most often
 * says.
 *
 * The order: a warp counts for its group those that go before it; past kOrderDirect groups one CTA sorts by digits.
 */
#include <cuda_runtime.h>

#include "cuda/common.cuh"
#include "cuda/cuda.h"
#include "plan_layout.h"

namespace fhk {
namespace plan {

constexpr int kMaxThreads = 1024, kMaxGroup = 64;
constexpr int kPage = 16; /* KV rows of a page */
constexpr uint32_t kNone = 0xffffffffu;
constexpr uint32_t kUnit = 16;                 /* bytes of the map that a lane looks at */
constexpr uint32_t kFlush = 96;                /* entries that a warp collects before it writes them */
constexpr uint32_t kBuffer = 32 * 16 + kFlush; /* and those that a step may find */
constexpr uint32_t kMostPlaces = 65536;        /* of a window: places are 16-bit numbers */
constexpr uint32_t kLeastMap = 10 << 10;       /* bytes: room for the counters of 32 places and 64 queries */
constexpr int kAhead = 2;                      /* loads of 4 entries by a thread */
constexpr int64_t kResident = 8;               /* CTAs of a multiprocessor */
constexpr int64_t kKeysPerThread = 10;         /* fewer are not worth a thread */
/* Neighbours choose the same pages: a look at a bit that others may be setting spares most atomics. racecheck calls
 * it a hazard. */
#ifdef FHK_RACECHECK
constexpr bool kLookFirst = false;
#else
constexpr bool kLookFirst = true;
#endif
constexpr uint32_t kMostPages = 8448 * 32; /* of a span: 4,325,376 rows */
constexpr int64_t kOrderDirect = 2048;     /* groups: up to there counting, groups^2 / 32 steps, beats a
                                                    sort by one CTA */
constexpr int kOrderThreads = 256, kOrderAhead = 32;
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits; /* of the sort: one pass for 8,128 entries a group */

struct Build {
  fh_call call;
  fh_plan plan;
  fh_group_costs costs;
  uint32_t *rank;  /* [groups] fh_group_rank */
  int32_t *saves;  /* [groups] fh_group_saves */
  uint32_t places; /* of a window, a multiple of 32 */
  uint32_t words;  /* of the pages' bitmap; 0: places are KV rows */
  bool aligned;    /* lists start on 16 bytes and are a multiple of 4 wide */
};

struct Rows {
  int64_t first;
  int queries;
};

struct Shared {
  uint32_t warp_sum[32];
  uint32_t length[kMaxGroup]; /* of the lists */
  uint32_t keys[kMaxGroup];
  uint32_t bits; /* members of all entries */
  uint32_t next; /* smallest KV row behind the span */
};

/* Dynamic shared memory. */
template <int kBytes>
struct Memory {
  uint8_t *map;      /* kBytes a place: a bit a query */
  uint2 *pages;      /* x: a bit a page; y: pages chosen before these 32 */
  uint32_t *page_of; /* page of each kPage places of the window */
  uint32_t *chosen;  /* a bit a place: somebody chose it */
  uint16_t *buffer;  /* kBuffer places of this warp's */

  FHK_DEV Memory(const Build &b, uint8_t *memory) {
    map = memory;
    pages = reinterpret_cast<uint2 *>(map + b.places * kBytes);
    page_of = reinterpret_cast<uint32_t *>(pages + b.words);
    chosen = page_of + (b.words ? b.places / kPage : 0);
    buffer = reinterpret_cast<uint16_t *>(chosen + b.places / 32) + (threadIdx.x >> 5) * kBuffer;
  }
};

/* Sum up to this lane and with it. */
FHK_DEV uint32_t warp_scan(uint32_t x) {
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const uint32_t y = __shfl_up_sync(~0u, x, d);
    if ((threadIdx.x & 31) >= d) x += y;
  }
  return x;
}

/* Exclusive sum over the CTA; *total is the whole. */
FHK_DEV uint32_t block_scan(uint32_t x, uint32_t *total, Shared &sh) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const uint32_t upto = warp_scan(x);
  __syncthreads(); /* the last sum has been read */
  if (lane == 31) sh.warp_sum[warp] = upto;
  __syncthreads();
  uint32_t of_warp = lane < warps ? sh.warp_sum[lane] : 0;
  const uint32_t before = __reduce_add_sync(~0u, lane < warp ? of_warp : 0);
  *total = __reduce_add_sync(~0u, of_warp);
  return before + upto - x;
}

/* The CTA's group. Each warp cuts the rows into groups, 32 requests a step, until it has met it. */
FHK_DEV Rows find_rows(const Build &b) {
  const int lane = threadIdx.x & 31, group = b.plan.group;
  const int64_t s_q = b.call.s_q;
  if (b.call.requests < 2) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * group, left = s_q - first;
    return {first, left < group ? static_cast<int>(left) : group};
  }
  int32_t row = 0;     /* where the requests of this step begin */
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
    const uint32_t mine = static_cast<uint32_t>((end - start) / group + ((end - start) % group != 0)),
                   upto = warp_scan(mine);
    const uint32_t nth = blockIdx.x - groups - (upto - mine); /* of this request's groups; wraps where it is one
                                                                 before */
    const uint32_t met = __ballot_sync(~0u, nth < mine);
    if (met) {
      const int32_t first = start + static_cast<int32_t>(nth) * group;
      return {__shfl_sync(~0u, first, __ffs(met) - 1), __shfl_sync(~0u, min(group, end - first), __ffs(met) - 1)};
    }
    row = __shfl_sync(~0u, end, 31);
    groups += __shfl_sync(~0u, upto, 31);
  }
  return {s_q, 0};
}

/* Four entries of a list of which `left` are there; the others are -1. aligned: they lie on 16 bytes, and those
 * behind may be read. */
FHK_DEV int4 load4(const int32_t *from, int32_t left, bool aligned) {
  int4 v = make_int4(-1, -1, -1, -1);
  if (aligned) {
    if (left > 0) v = __ldg(reinterpret_cast<const int4 *>(from));
    if (left < 2) v.y = -1;
    if (left < 3) v.z = -1;
    if (left < 4) v.w = -1;
  } else {
    if (left > 0) v.x = __ldg(from);
    if (left > 1) v.y = __ldg(from + 1);
    if (left > 2) v.z = __ldg(from + 2);
    if (left > 3) v.w = __ldg(from + 3);
  }
  return v;
}

/* f(query, KV row) for every entry of the group's lists, and -1 for some that are not there; it returns whether the
 * entry is one to count in sh.keys, where `count` asks for that. Warps take whole lists, or parts where there are
 * more warps; what comes next is on its way while f works. */
template <typename F>
FHK_DEV void each_key(const Build &b, const Rows &rows, bool count, Shared &sh, F &&f) {
  const int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  const int parts = warps > rows.queries ? warps / rows.queries : 1, items = rows.queries * parts;
  const uint32_t step = parts * 128;
  int item = threadIdx.x >> 5, q = 0;
  uint32_t at = 0, length = 0;
  const int32_t *list = nullptr;
  auto open = [&]() { /* the next list, or part of one, that has entries */
                      for (; item < items; item += warps) {
                        q = item % rows.queries, at = item / rows.queries * 128, length = sh.length[q];
                        list = b.call.indices + (rows.first + q) * b.call.indices_stride + lane * 4;
                        if (at < length) return;
                      }
                      q = -1;
  };
  auto fetch = [&](int4 *v) {
#pragma unroll
    for (int k = 0; k < kAhead; k++, at += step) /* below 2^32 */
      v[k] = load4(list + at, static_cast<int32_t>(length - min(length, at + lane * 4)), b.aligned);
    if (at >= length) item += warps, open();
  };
  int4 next[kAhead];
  open();
  int q_next = q;
  if (q >= 0) fetch(next);
  while (q_next >= 0) {
    int4 now[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; k++) now[k] = next[k];
    const int q_now = q_next;
    q_next = q;
    if (q >= 0) fetch(next);
    uint32_t found = 0;
#pragma unroll
    for (int k = 0; k < kAhead; k++) {
      const int32_t row[4] = {now[k].x, now[k].y, now[k].z, now[k].w};
#pragma unroll
      for (int e = 0; e < 4; e++) found += f(q_now, static_cast<uint32_t>(row[e]));
    }
    if (count) {
      found = __reduce_add_sync(~0u, found);
      if (lane == 0) atomicAdd(&sh.keys[q_now], found);
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
FHK_DEV uint32_t first_row(const Build &b, const Rows &rows, Shared &sh) {
  uint32_t least = kNone;
  each_key(b, rows, false, sh, [&](int, uint32_t row) {
    if (row < static_cast<uint32_t>(b.call.s_kv)) least = min(least, row);
    return false;
  });
  offer_next(least, sh);
  return take_next(sh);
}

/* ---- Places: the KV rows of a span, or those of its pages that somebody chose ---- */

/* Marks and counts the pages that hold a key; returns how many places they have. What lies behind the span is left
 * to the next one. */
template <int kBytes>
FHK_DEV uint32_t number_pages(const Build &b, const Rows &rows, const Memory<kBytes> &at, uint32_t start, Shared &sh) {
  for (uint32_t w = threadIdx.x; w < b.words; w += blockDim.x) at.pages[w] = make_uint2(0, 0);
  __syncthreads();
  uint32_t least = kNone;
  each_key(b, rows, false, sh, [&](int, uint32_t row) {
    const uint32_t page = (row - start) / kPage, bit = 1u << (page & 31);
    if (row < start || row >= static_cast<uint32_t>(b.call.s_kv)) return false;
    if (page >= b.words * 32) least = min(least, row);
    else if (!kLookFirst || !(at.pages[page >> 5].x & bit)) atomicOr(&at.pages[page >> 5].x, bit);
    return false;
  });
  offer_next(least, sh);
  __syncthreads();
  const uint32_t share = (b.words + blockDim.x - 1) / blockDim.x | 1; /* odd: threads start in different banks */
  uint32_t pages = 0, all;
  for (uint32_t k = 0, w = threadIdx.x * share; k < share && w < b.words; k++, w++) pages += __popc(at.pages[w].x);
  uint32_t before = block_scan(pages, &all, sh);
  for (uint32_t k = 0, w = threadIdx.x * share; k < share && w < b.words; k++, w++) {
    at.pages[w].y = before;
    before += __popc(at.pages[w].x);
  }
  return all * kPage;
}

/* Says of each page of the window which it is. */
template <int kBytes>
FHK_DEV void name_pages(const Build &b, const Memory<kBytes> &at, uint32_t from) {
  const uint32_t slots = b.places / kPage;
  for (uint32_t w = threadIdx.x; w < b.words; w += blockDim.x) {
    const uint2 word = at.pages[w];
    uint32_t slot = word.y - from / kPage;
    for (uint32_t bits = word.x; bits; bits &= bits - 1, slot++)
      if (slot < slots) at.page_of[slot] = w * 32 + __ffs(bits) - 1;
  }
}

/* Counted from the start of the span; past all places for a row that has none there. */
template <bool kPaged, int kBytes>
FHK_DEV uint32_t place_of(const Build &b, const Memory<kBytes> &at, uint32_t start, uint32_t row) {
  if (!kPaged) return row;
  const uint32_t page = (row - start) / kPage, bit = page & 31;
  const uint2 word = at.pages[min(page >> 5, b.words - 1)];
  const uint32_t place = (word.y + __popc(word.x & ((1u << bit) - 1))) * kPage + row % kPage; /* spans start on pages */
  return page < b.words * 32 && row < static_cast<uint32_t>(b.call.s_kv) ? place : kNone;
}
/* The way back: from a place in the window that starts at place `from` to a row of the span. */
template <bool kPaged, int kBytes>
FHK_DEV uint32_t row_of(const Memory<kBytes> &at, uint32_t from, uint32_t place) {
  return kPaged ? at.page_of[place / kPage] * kPage + place % kPage : from + place;
}

/* ---- The map ---- */

/* A bit for each place of a unit that is not zero. */
template <int kBytes>
FHK_DEV uint32_t not_zero(uint4 v) {
  const uint32_t x[4] = {v.x, v.y, v.z, v.w};
  uint32_t bits = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (kBytes == 1) { /* the top bit of each byte, then all four side by side */
      const uint32_t top = (((x[k] & 0x7f7f7f7f) + 0x7f7f7f7f) | x[k]) & 0x80808080;
      bits |= (top * 0x00204081u >> 28) << 4 * k;
    } else if (kBytes == 2) {
      bits |= ((x[k] & 0xffff) != 0) << 2 * k | (x[k] >> 16 != 0) << (2 * k + 1);
    } else {
      bits |= (x[k] != 0) << k * 4 / kBytes;
    }
  }
  return bits;
}

/* Puts them where they belong in the bitmap of places. u is a lane's unit, if it is there; those of a warp lie side
 * by side from a multiple of 32 on. */
template <int kBytes>
FHK_DEV void note(uint32_t *chosen, uint32_t u, bool there, uint32_t bits) {
  constexpr int kBits = kUnit / kBytes, kUnits = kBits < 8 ? 8 / kBits : 1; /* places of a unit, units of a byte */
#pragma unroll
  for (int d = 1; d < kUnits; d <<= 1) bits |= __shfl_down_sync(~0u, bits, d) << d * kBits;
  if (!there || u % kUnits) return;
  if (kBits == 16) reinterpret_cast<uint16_t *>(chosen)[u] = static_cast<uint16_t>(bits);
  else reinterpret_cast<uint8_t *>(chosen)[u / kUnits] = static_cast<uint8_t>(bits);
}

template <int kBytes>
FHK_DEV uint64_t members_at(const uint8_t *map, uint32_t place) {
  if (kBytes == 1) return map[place];
  if (kBytes == 2) return reinterpret_cast<const uint16_t *>(map)[place];
  if (kBytes == 4) return reinterpret_cast<const uint32_t *>(map)[place];
  return reinterpret_cast<const uint64_t *>(map)[place];
}

/* The entries of all windows of one span, behind the `entries` that are there; returns how many there are then. */
template <int kBytes, bool kPaged>
FHK_DEV uint32_t map_span(const Build &b, const Rows &rows, const Memory<kBytes> &at, uint32_t start, uint32_t all,
                          uint32_t entries, Shared &sh) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const uint32_t map = ptx::smem_addr(at.map);
  uint4 *unit = reinterpret_cast<uint4 *>(at.map);
  int32_t *token = b.plan.token + blockIdx.x * b.plan.capacity;
  uint64_t *member = b.plan.member + blockIdx.x * b.plan.capacity;
  constexpr int kWordUnits = 2 * kBytes; /* units of 32 places */
  uint32_t bits = 0;
  for (uint32_t from = 0; from < all; from += b.places) {
    const uint32_t places = min(all - from, b.places), units = (places * kBytes + kUnit - 1) / kUnit;
    for (uint32_t u = threadIdx.x; u < units; u += blockDim.x) unit[u] = make_uint4(0, 0, 0, 0);
    if (kPaged) name_pages(b, at, from);
    __syncthreads();
    each_key(b, rows, true, sh, [&](int q, uint32_t row) {
      const uint32_t place = place_of<kPaged>(b, at, start, row) - from, bit = place * (8 * kBytes) + q;
      const bool here = place < places;
      ptx::or_shared(map + bit / 32 * 4, 1u << (bit & 31), here);
      return here;
    });
    __syncthreads();

    /* Each warp takes a stretch of the window, a multiple of 1024 places but for the last one. */
    const uint32_t words = (places + 31) / 32, steps = (words + warps * 32 - 1) / (warps * 32);
    const uint32_t first = min(warp * steps * 32, words);
    const uint32_t last = min(first + steps * 32, words);
    for (uint32_t u = first * kWordUnits + lane; u - lane < last * kWordUnits; u += 32)
      note<kBytes>(at.chosen, u, u < last * kWordUnits, u < units ? not_zero<kBytes>(unit[u]) : 0);
    __syncwarp();
    uint32_t mine = 0;
    for (uint32_t w = first + lane; w < last; w += 32) mine += __popc(at.chosen[w]);
    mine = __reduce_add_sync(~0u, mine);
    if (lane == 0) sh.warp_sum[warp] = mine;
    __syncthreads();
    const uint32_t of_warp = lane < warps ? sh.warp_sum[lane] : 0;
    uint32_t out = entries + __reduce_add_sync(~0u, lane < warp ? of_warp : 0), held = 0;
    entries += __reduce_add_sync(~0u, of_warp);
    auto write = [&]() {
      __syncwarp();
      for (uint32_t e = lane; e < held; e += 32) {
        const uint32_t place = at.buffer[e];
        const uint64_t who = members_at<kBytes>(at.map, place);
        token[out + e] = static_cast<int32_t>(start + row_of<kPaged>(at, from, place));
        member[out + e] = who;
        bits += kBytes == 8 ? __popcll(who) : __popc(static_cast<uint32_t>(who));
      }
      __syncwarp();
      out += held, held = 0;
    };
    const uint16_t *half = reinterpret_cast<const uint16_t *>(at.chosen);
    for (uint32_t h = first * 2; h < last * 2; h += 32) { /* 16 places a lane */
      uint32_t chosen = h + lane < last * 2 ? half[h + lane] : 0;
      const uint32_t own = __popc(chosen), upto = warp_scan(own);
      uint32_t here = held + upto - own;
      for (; chosen; chosen &= chosen - 1)
        at.buffer[here++] = static_cast<uint16_t>((h + lane) * 16 + __ffs(chosen) - 1);
      held += __shfl_sync(~0u, upto, 31);
      if (held >= kFlush) write();
    }
    write();
    __syncthreads(); /* map and sums have been read */
  }
  bits = __reduce_add_sync(~0u, bits);
  if (lane == 0) atomicAdd(&sh.bits, bits);
  return entries;
}

/* The same with a counter of 2^log bits for each (place, query), which takes repeats: a place has as many copies as
 * its largest counter says. */
template <int kBytes, bool kPaged>
FHK_DEV uint32_t count_span(const Build &b, const Rows &rows, const Memory<kBytes> &at, uint32_t start, uint32_t all,
                            uint32_t entries, int log, Shared &sh) {
  const int queries = rows.queries;
  uint32_t *word = reinterpret_cast<uint32_t *>(at.map);
  const uint32_t mask = ~0u >> (32 - (1 << log));
  const uint32_t window = min((b.places * kBytes * 8 >> log) / queries / kPage * kPage, b.places);
  auto counter = [&](uint32_t place, int q) {
    const uint32_t bit = place * queries + q << log;
    return word[bit / 32] >> bit % 32 & mask;
  };
  int32_t *token = b.plan.token + blockIdx.x * b.plan.capacity;
  uint64_t *member = b.plan.member + blockIdx.x * b.plan.capacity;
  for (uint32_t from = 0; from < all; from += window) {
    for (uint32_t k = threadIdx.x; k < (window * queries << log) / 32; k += blockDim.x) word[k] = 0;
    if (kPaged) name_pages(b, at, from);
    __syncthreads();
    each_key(b, rows, false, sh, [&](int q, uint32_t row) {
      const uint32_t place = place_of<kPaged>(b, at, start, row) - from, bit = place * queries + q << log;
      if (place < min(window, all - from)) atomicAdd(word + bit / 32, 1u << bit % 32);
      return false;
    });
    __syncthreads();
    for (uint32_t first = 0; first < window; first += blockDim.x) {
      const uint32_t k = first + threadIdx.x;
      uint32_t copies = 0, here;
      if (k < window)
        for (int q = 0; q < queries; q++) copies = max(copies, counter(k, q));
      const uint32_t out = entries + block_scan(copies, &here, sh);
      for (uint32_t copy = 0; copy < copies; copy++) {
        uint64_t who = 0;
        for (int q = 0; q < queries; q++) who |= static_cast<uint64_t>(counter(k, q) > copy) << q;
        token[out + copy] = static_cast<int32_t>(start + row_of<kPaged>(at, from, k));
        member[out + copy] = who;
      }
      entries += here;
    }
    __syncthreads(); /* counters have been read */
  }
  return entries;
}

/* All spans. kRepeats: with counters of 2^log bits. */
template <int kBytes, bool kPaged, bool kRepeats>
FHK_DEV uint32_t unite(const Build &b, const Rows &rows, const Memory<kBytes> &at, int log, Shared &sh) {
  uint32_t start = 0, entries = 0;
  if (kPaged && b.call.s_kv > static_cast<int64_t>(b.words) * 32 * kPage) start = first_row(b, rows, sh);
  while (start != kNone) {
    uint32_t all = static_cast<uint32_t>(b.call.s_kv), next = kNone;
    if (kPaged) {
      start -= start % kPage;
      all = number_pages(b, rows, at, start, sh);
      next = take_next(sh);
    }
    entries = kRepeats ? count_span<kBytes, kPaged>(b, rows, at, start, all, entries, log, sh)
                       : map_span<kBytes, kPaged>(b, rows, at, start, all, entries, sh);
    start = next;
  }
  return entries;
}

template <int kBytes, bool kPaged>
__global__ void __launch_bounds__(kMaxThreads) build_group(const __grid_constant__ Build b) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ Shared sh;
  ptx::let_grid_behind_start(); /* the order, which waits for this grid */
  const Rows rows = find_rows(b);
  if (threadIdx.x < rows.queries) sh.length[threadIdx.x] = list_length(b.call, rows.first + threadIdx.x);
  if (threadIdx.x < kMaxGroup) sh.keys[threadIdx.x] = 0;
  if (threadIdx.x == 0) sh.next = kNone, sh.bits = 0;
  if (kPaged) __syncthreads();
  const Memory<kBytes> at(b, memory);
  uint32_t entries = 0, keys = 0;
  if (rows.queries > 0) {
    entries = unite<kBytes, kPaged, false>(b, rows, at, 0, sh);
    __syncthreads();
    for (int q = 0; q < rows.queries; q++) keys += sh.keys[q];
    if (sh.bits != keys) { /* lists have a row twice: so often at most, once more where it stands first */
      const uint32_t most = keys - sh.bits + 1;
      const int log = most < 1 << 2 ? 1 : most < 1 << 4 ? 2 : most < 1 << 8 ? 3 : most < 1 << 16 ? 4 : 5;
      entries = unite<kBytes, kPaged, true>(b, rows, at, log, sh);
    }
  }
  if (threadIdx.x < rows.queries) b.plan.keys[rows.first + threadIdx.x] = static_cast<int32_t>(sh.keys[threadIdx.x]);
  if (threadIdx.x == 0) {
    b.plan.first[blockIdx.x] = rows.first;
    if (blockIdx.x == gridDim.x - 1) b.plan.first[gridDim.x] = b.call.s_q;
    b.plan.entries[blockIdx.x] = static_cast<int32_t>(entries);
    const int32_t saves = fh_group_saves(&b.costs, entries, rows.queries, keys);
    b.saves[blockIdx.x] = saves;
    b.rank[blockIdx.x] = fh_group_rank(b.plan.capacity, entries, saves);
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

/* A warp a group, which counts those that go before it, and one more. */
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
  for (int32_t first = lane; first < o.groups; first += 32 * kOrderAhead) {
    uint32_t other[kOrderAhead];
#pragma unroll
    for (int k = 0; k < kOrderAhead; k++) other[k] = first + 32 * k < o.groups ? o.rank[first + 32 * k] : kNone;
#pragma unroll
    for (int k = 0; k < kOrderAhead; k++) before += other[k] < mine || (other[k] == mine && first + 32 * k < g);
  }
  before = __reduce_add_sync(~0u, before);
  if (lane == 0) o.order[before] = g;
}

/* One CTA sorts the groups by rank, stable, digit by digit from the lowest. Each warp has a stretch of them. */
__global__ void __launch_bounds__(kMaxThreads)
    order_sorted(const __grid_constant__ Order o, int32_t *spare, int passes) {
  constexpr int kWarps = kMaxThreads / 32, kShare = kDigits * kWarps / kMaxThreads;
  __shared__ uint32_t counts[kWarps * kDigits];
  __shared__ Shared sh;
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  uint32_t *count = counts + warp * kDigits; /* of this warp's groups by digit */
  const int64_t share = ((static_cast<int64_t>(o.groups) + kMaxThreads - 1) / kMaxThreads) * 32;
  const int32_t first = static_cast<int32_t>(min(warp * share, static_cast<int64_t>(o.groups)));
  const int32_t last = static_cast<int32_t>(min(first + share, static_cast<int64_t>(o.groups)));
  ptx::wait_for_grid_before();
  if (warp == 0) {
    const int32_t from = packed_from(o.saves, o.groups, o.costs);
    if (lane == 0) *o.packed_from = from;
  }
  for (int pass = 0; pass < passes; pass++) {
    const bool even = (passes - pass) % 2 == 0; /* the last one writes `order` */
    const int32_t *from = even ? o.order : spare;
    int32_t *to = even ? spare : o.order;
    auto group = [&](int32_t k) { return pass == 0 ? k : from[k]; };
    auto digit = [&](int32_t g) { return o.rank[g] >> kDigitBits * pass & (kDigits - 1); };
    for (int k = t; k < kWarps * kDigits; k += kMaxThreads) counts[k] = 0;
    __syncthreads();
    for (int32_t k = first + lane; k < last; k += 32) atomicAdd(&count[digit(group(k))], 1u);
    __syncthreads();
    /* Of each digit in turn the warps' counts in turn: a thread sums kShare of them. */
    uint32_t *mine = counts + t * kShare % kWarps * kDigits + t * kShare / kWarps, sum = 0, all;
#pragma unroll
    for (int k = 0; k < kShare; k++) sum += mine[k * kDigits];
    uint32_t before = block_scan(sum, &all, sh);
#pragma unroll
    for (int k = 0; k < kShare; k++) {
      const uint32_t here = mine[k * kDigits];
      mine[k * kDigits] = before;
      before += here;
    }
    __syncthreads();
    for (int32_t k = first + lane; k - lane < last; k += 32) {
      const int32_t g = k < last ? group(k) : 0;
      const uint32_t d = k < last ? digit(g) : kDigits, same = __match_any_sync(~0u, d);
      uint32_t at = 0;
      if (k < last) at = count[d] + __popc(same & ((1u << lane) - 1));
      __syncwarp();
      if (k < last && lane == 31 - __clz(same)) count[d] = at + 1;
      __syncwarp();
      if (k < last) to[at] = g;
    }
    __syncthreads(); /* counts have been used, and `to` is there for all */
  }
}

/* ---- Host ---- */

/* What is needed while a plan is built, behind its arrays: rank and saves of each group, and room to sort many. */
inline uint64_t scratch_part(uint64_t groups) { return fh_plan_part(groups, sizeof(uint32_t)); }

/* How the groups of a call are built. */
struct Shape {
  int bytes;       /* of a place: 1, 2, 4 or 8, a bit a query */
  int threads;     /* of a CTA */
  uint32_t places; /* of a window */
  uint32_t words;  /* of the pages' bitmap, 0: places are KV rows */
  uint32_t shared;
};

using Kernel = void (*)(Build);
inline Kernel kernel_of(const Shape &shape) {
  static constexpr Kernel kernels[4][2] = {{build_group<1, false>, build_group<1, true>},
                                           {build_group<2, false>, build_group<2, true>},
                                           {build_group<4, false>, build_group<4, true>},
                                           {build_group<8, false>, build_group<8, true>}};
  return kernels[shape.bytes == 8 ? 3 : shape.bytes / 2][shape.words > 0];
}

/* Of Memory. */
inline uint64_t shared_bytes(uint64_t bytes, uint64_t places, uint64_t words, int threads) {
  return places * bytes + words * 8 + (words ? places / kPage * 4 : 0) + places / 32 * 4 + threads / 32 * kBuffer * 2;
}

/* Shared memory of a multiprocessor, of which each CTA takes 1 KB for itself, and Shared has some. */
inline uint64_t shared_memory(int32_t capability) {
  return capability == 80 || capability == 87   ? 164 << 10
         : capability >= 90 && capability < 120 ? 228 << 10
                                                : 100 << 10;
}

/* The most places, a multiple of 32, that fit. */
inline uint32_t places_within(uint64_t budget, int bytes, uint64_t words, int threads) {
  const uint64_t none = shared_bytes(bytes, 0, words, threads), step = shared_bytes(bytes, 32, words, threads) - none;
  const uint64_t steps = budget > none ? (budget - none) / step : 0;
  return static_cast<uint32_t>(steps * 32 < kMostPlaces ? steps * 32 : kMostPlaces);
}

/* Threads of a CTA: 1024 share a multiprocessor, but no more than have something to do. */
inline int threads_of(int64_t resident, int64_t capacity) {
  int threads = resident > 4 ? 128 : resident > 2 ? 256 : resident > 1 ? 512 : 1024;
  while (threads > 128 && threads > capacity / kKeysPerThread) threads /= 2;
  return threads;
}

/* One window where 8 CTAs, or at least 4, find room for it on a multiprocessor; else two; else pages. Fewer groups
 * have more room. */
inline Shape shape_of(const fh_call *call, int64_t groups, const fhk_gpu *gpu) {
  Shape shape;
  const int64_t per_sm = (groups + gpu->multiprocessors - 1) / gpu->multiprocessors,
                capacity = call->topk * call->group;
  const int64_t most = per_sm < kResident ? per_sm : kResident, few = most < kResident / 2 ? most : kResident / 2;
  const uint64_t rows = (static_cast<uint64_t>(call->s_kv) + 31) / 32 * 32;
  shape.bytes = call->group <= 8 ? 1 : call->group <= 16 ? 2 : call->group <= 32 ? 4 : 8;
  auto room = [&](int64_t resident,
                  uint64_t words) { /* what so many CTAs leave each other */
                                    shape.words = static_cast<uint32_t>(words);
                                    shape.threads = threads_of(resident, capacity);
                                    shape.places = places_within(shared_memory(gpu->capability) / resident - (2 << 10),
                                                                 shape.bytes, words, shape.threads);
                                    return static_cast<uint64_t>(shape.places);
  };
  uint64_t places = rows;
  if (room(most, 0) < rows && room(few, 0) < rows) {
    places = (rows / 32 + 1) / 2 * 32;
    if (room(few, 0) < places) {
      const uint64_t words = rows / kPage < kMostPages ? (rows / kPage + 31) / 32 : kMostPages / 32;
      int64_t resident = most;
      while (room(resident, words) * shape.bytes < kLeastMap && resident > 1) resident = (resident + 1) / 2;
      places = shape.places;
    }
  }
  const uint64_t least = kLeastMap / shape.bytes / 32 * 32; /* counters of repeats have their place there too */
  shape.places = static_cast<uint32_t>(places > least ? places : least);
  shape.shared = static_cast<uint32_t>(shared_bytes(shape.bytes, shape.places, shape.words, shape.threads));
  return shape;
}

inline cudaError_t launch(Build b, const Shape &shape, cudaStream_t stream) {
  b.places = shape.places;
  b.words = shape.words;
  kernel_of(shape)<<<static_cast<unsigned>(b.plan.groups), shape.threads, shape.shared, stream>>>(b);
  return cudaGetLastError();
}

}  // namespace plan
}  // namespace fhk

using namespace fhk;
using namespace fhk::plan;

int fhk_plan_prepare(void) {
  int device = 0, most = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (int k = 0; k < 8 && status == cudaSuccess; k++) {
    const Shape shape = {1 << k / 2, 0, 0, static_cast<uint32_t>(k % 2), 0};
    status = cudaFuncSetAttribute(kernel_of(shape), cudaFuncAttributeMaxDynamicSharedMemorySize, most - 1024);
  }
  return status;
}

uint64_t fhk_plan_bytes(const fhk_gpu *, const fh_call *call) {
  const fh_plan_layout at = fh_plan_layout_of(call);
  const uint64_t part = scratch_part(at.groups);
  return fhk_add(at.scratch, fhk_add(fhk_add(part, part), at.groups > kOrderDirect ? part : 0));
}

int fhk_plan_build(const fhk_gpu *gpu, const fh_call *call, void *memory, fh_plan *plan, void *given_stream) {
  const cudaStream_t stream = static_cast<cudaStream_t>(given_stream);
  char *scratch = static_cast<char *>(fh_plan_lay(call, memory, plan));
  const uint64_t part = scratch_part(plan->groups);
  if (plan->groups == 0) /* first[0], and packed_from behind it */
    return cudaMemsetAsync(plan->first, 0, scratch - reinterpret_cast<char *>(plan->first), stream);
  if (plan->groups > INT32_MAX || plan->capacity > INT32_MAX) return cudaErrorInvalidConfiguration;

  Build b;
  b.call = *call;
  b.plan = *plan;
  b.rank = reinterpret_cast<uint32_t *>(scratch);
  b.saves = reinterpret_cast<int32_t *>(scratch + part);
  b.costs = fh_group_costs_of(call);
  b.aligned = call->topk % 4 == 0 && fhk::aligned(call->indices, call->indices_stride, 0, 4, 16);
  const cudaError_t status = launch(b, shape_of(call, plan->groups, gpu), stream);
  if (status != cudaSuccess) return status;
  const Order o = {b.rank, b.saves, b.costs, plan->order, plan->packed_from, static_cast<int32_t>(plan->groups)};
  if (o.groups <= kOrderDirect)
    return launch_behind(gpu->capability, order_direct, o.groups / (kOrderThreads / 32) + 1, kOrderThreads, 0, stream,
                         o);
  int passes = 1;
  while (static_cast<uint64_t>(fh_group_rank(plan->capacity, 0, 0)) >> kDigitBits * passes) passes++;
  return launch_behind(gpu->capability, order_sorted, 1, kMaxThreads, 0, stream, o,
                       reinterpret_cast<int32_t *>(scratch + 2 * part), passes);
}
