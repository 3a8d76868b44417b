/*
 * The plan on the device (fh_plan): for each group of neighbouring queries the union of their lists and who chose what.
 * A CTA takes one group. Any device from sm_80 on.
 *
 * The map has 2 to 64 bits for each place, one for each query. One pass over the lists sets bits. One pass over the map
 * counts the places that are not zero: neighbouring threads take neighbouring units of up to 16 places, so that a dense
 * stretch of the map is work for all warps. Each thread then puts its places into a list in shared memory, and the CTA
 * writes that list out. What does not fit in one window of the map is done window by window.
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
constexpr int kMostSteps = 8;              /* units that a thread holds at once */
constexpr uint32_t kListed = 20;           /* entries a thread that are listed before they are written */
constexpr uint32_t kPlaceLine = 64;        /* places of a window are a multiple of this */
constexpr uint32_t kMostPlaces = 65536;    /* of a window: places are 16-bit numbers */
constexpr uint32_t kLeastMap = 10 << 10;   /* bytes: room for the counters of 32 places and 64 queries */
constexpr int kAhead = 2;                  /* loads of 4 entries by a thread */
constexpr int64_t kResidentThreads = 1024; /* of a multiprocessor, whose registers they fill */
constexpr int kLeastThreads = 64;          /* of a CTA */
constexpr int64_t kKeysPerThread = 10;     /* fewer are not worth a thread */
constexpr int64_t kSampled = 64;           /* groups of a sample at most */
constexpr double kWantedShare = 0.04;      /* of what padding costs: a sample has to save more than costs are sure of */
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
  uint32_t places; /* of a window, a multiple of kPlaceLine */
  uint32_t words;  /* of the pages' bitmap; 0: places are KV rows */
  int parts;       /* of each list, that warps share */
  int64_t every;   /* a sample: the CTA takes group blockIdx * every, counts its union and says what packing it saves */
  int32_t *sample; /* [kSampled] those savings: written by a sample's CTAs, read by others; NULL: there is none */
  int sampled;     /* how many there are */
  double wanted;   /* nanoseconds that a sample has to find for all groups */
  bool aligned;    /* lists start on 16 bytes and are a multiple of 4 wide */
  bool complete;   /* all groups are listed, also those that are not packed */
};

struct Rows {
  int64_t first;
  int queries;
  uint32_t group; /* its number */
};

struct Shared {
  uint32_t warp_sum[32];
  uint32_t keys[kMaxGroup];
  uint32_t bits; /* members of all entries */
  uint32_t next; /* smallest KV row behind the span */
};

/* Dynamic shared memory. */
template <int kBits>
struct Memory {
  uint8_t *map;      /* kBits a place: a bit a query */
  uint2 *pages;      /* x: a bit a page; y: pages chosen before these 32 */
  uint32_t *page_of; /* page of each kPage places of the window */
  uint16_t *sums;    /* [kMostSteps, warps] places that are not zero */
  uint16_t *listed;  /* [kListed * threads] places of the next entries */

  FHK_DEV Memory(const Build &b, uint8_t *memory) {
    map = memory;
    pages = reinterpret_cast<uint2 *>(map + b.places / 8 * kBits);
    page_of = reinterpret_cast<uint32_t *>(pages + b.words);
    sums = reinterpret_cast<uint16_t *>(page_of + (b.words ? b.places / kPage : 0));
    listed = sums + kMostSteps * (blockDim.x >> 5);
  }
};

/* Lengths of the group's lists: a lane has those of the queries lane and lane + 32. */
struct Lengths {
  uint32_t low, high;
  FHK_DEV uint32_t of(int q) const { return __shfl_sync(~0u, q < 32 ? low : high, q & 31); }
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
FHK_DEV Rows find_rows(const Build &b, uint32_t number) {
  const int lane = threadIdx.x & 31, group = b.plan.group;
  const int64_t s_q = b.call.s_q;
  if (b.call.requests < 2) {
    const int64_t first = static_cast<int64_t>(number) * group, left = s_q - first;
    return {first, left < group ? static_cast<int>(left) : group, number};
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
    const uint32_t nth = number - groups - (upto - mine); /* of this request's groups; wraps where it is one
                                                                 before */
    const uint32_t met = __ballot_sync(~0u, nth < mine);
    if (met) {
      const int32_t first = start + static_cast<int32_t>(nth) * group;
      return {__shfl_sync(~0u, first, __ffs(met) - 1), __shfl_sync(~0u, min(group, end - first), __ffs(met) - 1),
              number};
    }
    row = __shfl_sync(~0u, end, 31);
    groups += __shfl_sync(~0u, upto, 31);
  }
  return {s_q, 0, number};
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

/* What a warp reads of the lists: whole lists, or parts where there are more warps than lists. A part is every
 * `parts`-th 128 entries of its list. */
struct Cursor {
  int item, items, q; /* q -1: nothing is left */
  uint32_t at, length, step;
  const int32_t *list;

  FHK_DEV Cursor(const Build &b, const Rows &rows) {
    items = rows.queries * b.parts, item = threadIdx.x >> 5, step = b.parts * 128;
    q = -1, at = length = 0, list = nullptr;
  }
  FHK_DEV void look(const Build &b, const Rows &rows) {
    for (q = item, at = 0; q >= rows.queries; q -= rows.queries) at += 128; /* parts are few: no division */
    list = b.call.indices + (rows.first + q) * b.call.indices_stride + (threadIdx.x & 31) * 4;
  }
  /* The next list, or part of one, that has entries. */
  FHK_DEV void open(const Build &b, const Rows &rows, const Lengths &lengths) {
    for (; item < items; item += blockDim.x >> 5) {
      look(b, rows);
      length = lengths.of(q);
      if (at < length) return;
    }
    q = -1;
  }
  FHK_DEV uint32_t left(int k) const { return length - min(length, at + k * step + (threadIdx.x & 31) * 4); }
};

struct Ahead {
  int4 v[kAhead];
};

/* The first loads of a warp, before anybody knows how long the lists are: what lies behind their ends is dropped when
 * it is used. Nothing here waits for what is loaded. */
FHK_DEV Ahead fetch_early(const Build &b, const Rows &rows) {
  Cursor c(b, rows);
  Ahead early = {};
  c.length = static_cast<uint32_t>(b.call.topk);
  if (c.item < c.items) c.look(b, rows);
  else c.length = 0;
#pragma unroll
  for (int k = 0; k < kAhead; k++) {
    const int32_t left = static_cast<int32_t>(c.left(k));
    const int32_t *from = c.list + c.at + k * c.step;
    if (!b.aligned) early.v[k] = load4(from, left, false);
    else if (left > 0) early.v[k] = __ldg(reinterpret_cast<const int4 *>(from));
  }
  return early;
}

/* f(query, KV row) for every entry of the group's lists, and -1 for some that are not there; it returns whether the
 * entry is one to count in sh.keys, where `count` asks for that. What comes next is on its way while f works. begun:
 * fetch_early has loaded what comes first. */
template <typename F>
FHK_DEV void each_key(const Build &b, const Rows &rows, const Lengths &lengths, const Ahead &early, bool begun,
                      bool count, Shared &sh, F &&f) {
  const int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
  Cursor c(b, rows);
  Ahead next;
  auto step = [&]() {
    c.at += kAhead * c.step; /* below 2^32 */
    if (c.at >= c.length) c.item += blockDim.x >> 5, c.open(b, rows, lengths);
  };
  auto fetch = [&]() {
#pragma unroll
    for (int k = 0; k < kAhead; k++)
      next.v[k] = load4(c.list + c.at + k * c.step, static_cast<int32_t>(c.left(k)), b.aligned);
    step();
  };
  c.open(b, rows, lengths);
  int q_next = c.q;
  if (begun && c.q >= 0 && c.item == first) {
#pragma unroll
    for (int k = 0; k < kAhead; k++) {
      const int32_t left = static_cast<int32_t>(c.left(k));
      next.v[k] = make_int4(left > 0 ? early.v[k].x : -1, left > 1 ? early.v[k].y : -1, left > 2 ? early.v[k].z : -1,
                            left > 3 ? early.v[k].w : -1);
    }
    step();
  } else if (c.q >= 0) {
    fetch();
  }
  while (q_next >= 0) {
    const Ahead now = next;
    const int q_now = q_next;
    q_next = c.q;
    if (c.q >= 0) fetch();
    uint32_t found = 0;
#pragma unroll
    for (int k = 0; k < kAhead; k++) {
      const int32_t row[4] = {now.v[k].x, now.v[k].y, now.v[k].z, now.v[k].w};
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
FHK_DEV uint32_t first_row(const Build &b, const Rows &rows, const Lengths &lengths, Shared &sh) {
  uint32_t least = kNone;
  each_key(b, rows, lengths, Ahead(), false, false, sh, [&](int, uint32_t row) {
    if (row < static_cast<uint32_t>(b.call.s_kv)) least = min(least, row);
    return false;
  });
  offer_next(least, sh);
  return take_next(sh);
}

/* ---- Places: the KV rows of a span, or those of its pages that somebody chose ---- */

/* Marks and counts the pages that hold a key; returns how many places they have. What lies behind the span is left
 * to the next one. */
template <int kBits>
FHK_DEV uint32_t number_pages(const Build &b, const Rows &rows, const Lengths &lengths, const Memory<kBits> &at,
                              uint32_t start, Shared &sh) {
  for (uint32_t w = threadIdx.x; w < b.words; w += blockDim.x) at.pages[w] = make_uint2(0, 0);
  __syncthreads();
  uint32_t least = kNone;
  each_key(b, rows, lengths, Ahead(), false, false, sh, [&](int, uint32_t row) {
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
template <int kBits>
FHK_DEV void name_pages(const Build &b, const Memory<kBits> &at, uint32_t from) {
  const uint32_t slots = b.places / kPage;
  for (uint32_t w = threadIdx.x; w < b.words; w += blockDim.x) {
    const uint2 word = at.pages[w];
    uint32_t slot = word.y - from / kPage;
    for (uint32_t bits = word.x; bits; bits &= bits - 1, slot++)
      if (slot < slots) at.page_of[slot] = w * 32 + __ffs(bits) - 1;
  }
}

/* Counted from the start of the span; past all places for a row that has none there. */
template <bool kPaged, int kBits>
FHK_DEV uint32_t place_of(const Build &b, const Memory<kBits> &at, uint32_t start, uint32_t row) {
  if (!kPaged) return row;
  const uint32_t page = (row - start) / kPage, bit = page & 31;
  const uint2 word = at.pages[min(page >> 5, b.words - 1)];
  const uint32_t place = (word.y + __popc(word.x & ((1u << bit) - 1))) * kPage + row % kPage; /* spans start on pages */
  return page < b.words * 32 && row < static_cast<uint32_t>(b.call.s_kv) ? place : kNone;
}
/* The way back: from a place in the window that starts at place `from` to a row of the span. */
template <bool kPaged, int kBits>
FHK_DEV uint32_t row_of(const Memory<kBits> &at, uint32_t from, uint32_t place) {
  return kPaged ? at.page_of[place / kPage] * kPage + place % kPage : from + place;
}

/* ---- The map ---- */

/* A unit of the map is what a thread looks at once: 16 places where they fit 16 bytes. */
template <int kBits>
constexpr int kUnitPlaces = kBits <= 8 ? 16 : 128 / kBits;

/* The lowest bit of every `kBits` bits that has a bit set, those bits side by side. */
template <int kBits>
FHK_DEV uint32_t gather_bits(uint32_t x) {
  if (kBits == 2) {
    x = (x | x >> 1) & 0x55555555;
    x = (x | x >> 1) & 0x33333333;
    x = (x | x >> 2) & 0x0f0f0f0f;
    x = (x | x >> 4) & 0x00ff00ff;
    return (x | x >> 8) & 0xffff;
  }
  if (kBits == 4) {
    x |= x >> 2;
    x = (x | x >> 1) & 0x11111111;
    x = (x | x >> 3) & 0x03030303;
    x = (x | x >> 6) & 0x000f000f;
    return (x | x >> 12) & 0xff;
  }
  return ((x & 0xffff) != 0) | (x >> 16 != 0) << 1; /* 16 */
}

/* A bit for each place of unit u that is not zero. */
template <int kBits>
FHK_DEV uint32_t not_zero(const uint8_t *map, uint32_t u) {
  if (kBits == 2) return gather_bits<2>(reinterpret_cast<const uint32_t *>(map)[u]);
  if (kBits == 4) {
    const uint2 v = reinterpret_cast<const uint2 *>(map)[u];
    return gather_bits<4>(v.x) | gather_bits<4>(v.y) << 8;
  }
  const uint4 v = reinterpret_cast<const uint4 *>(map)[u];
  if constexpr (kBits == 8) { /* the top bit of each byte says it, times 1, 2, 4, .. 128 */
    auto top = [](uint32_t x) { return (((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) & 0x80808080; };
    const uint32_t low = __dp4a(top(v.y), 0x80402010u, __dp4a(top(v.x), 0x08040201u, 0u));
    const uint32_t high = __dp4a(top(v.w), 0x80402010u, __dp4a(top(v.z), 0x08040201u, 0u));
    return low >> 7 | high << 1;
  }
  if constexpr (kBits == 16)
    return gather_bits<16>(v.x) | gather_bits<16>(v.y) << 2 | gather_bits<16>(v.z) << 4 | gather_bits<16>(v.w) << 6;
  if (kBits == 32) return (v.x != 0) | (v.y != 0) << 1 | (v.z != 0) << 2 | (v.w != 0) << 3;
  return ((v.x | v.y) != 0) | ((v.z | v.w) != 0) << 1;
}

template <int kBits>
FHK_DEV uint64_t members_at(const uint8_t *map, uint32_t place) {
  if (kBits < 8) return map[place * kBits / 8] >> place * kBits % 8 & ((1u << kBits % 8) - 1);
  if (kBits == 8) return map[place];
  if (kBits == 16) return reinterpret_cast<const uint16_t *>(map)[place];
  if (kBits == 32) return reinterpret_cast<const uint32_t *>(map)[place];
  return reinterpret_cast<const uint64_t *>(map)[place];
}

/* Valid keys of the group so far. */
FHK_DEV uint32_t all_keys(const Rows &rows, const Shared &sh) {
  const int lane = threadIdx.x & 31;
  return __reduce_add_sync(~0u, (lane < rows.queries ? sh.keys[lane] : 0) +
                                    (lane + 32 < rows.queries ? sh.keys[lane + 32] : 0));
}

/* 1 where a group with at least so many entries goes row by row, so that nobody will ask for its union: packing it
 * loses more than its share of what it costs to begin rows. Were the losses of all groups smaller than that, all
 * groups would be packed. */
FHK_DEV bool may_skip(const Build &b, uint32_t entries, int queries, uint32_t keys) {
  return !b.complete &&
         fh_group_saves(&b.costs, entries, queries, keys) < -1e3 * b.costs.rows / static_cast<double>(b.plan.groups);
}

/* What is known of a union: its entries, and whether they are listed. */
struct Union {
  uint32_t entries;
  bool skipped;
};

/* The entries of all windows of one span, behind those that are there. last: no other span has keys. */
template <int kBits, bool kPaged>
FHK_DEV void map_span(const Build &b, const Rows &rows, const Lengths &lengths, const Ahead &early,
                      const Memory<kBits> &at, uint32_t start, uint32_t all, bool last, Union &result, Shared &sh) {
  constexpr uint32_t kPlaces = kUnitPlaces<kBits>;
  constexpr int kSteps = kPaged ? kMostSteps / 2 : kMostSteps; /* pages need registers too */
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const uint32_t map = ptx::smem_addr(at.map), threads = blockDim.x, room = kListed * threads;
  int32_t *token = b.plan.token + rows.group * b.plan.capacity;
  uint64_t *member = b.plan.member + rows.group * b.plan.capacity;
  uint32_t bits = 0;
  for (uint32_t from = 0; from < all && !result.skipped; from += b.places) {
    const uint32_t places = min(all - from, b.places), units = (places + kPlaces - 1) / kPlaces;
    for (uint32_t u = threadIdx.x; u < (places * kBits + 127) / 128; u += threads)
      reinterpret_cast<uint4 *>(at.map)[u] = make_uint4(0, 0, 0, 0);
    if (kPaged) name_pages(b, at, from);
    __syncthreads();
    each_key(b, rows, lengths, early, !kPaged && from == 0, true, sh, [&](int q, uint32_t row) {
      const uint32_t place = place_of<kPaged>(b, at, start, row) - from, bit = place * kBits + q;
      const bool here = place < places;
      ptx::or_shared(map + bit / 32 * 4, 1u << (bit & 31), here);
      return here;
    });
    __syncthreads();
    const bool whole = last && all <= b.places; /* all keys have been counted */
    for (uint32_t first = 0; first < units && !result.skipped; first += kSteps * threads) {
      uint32_t held[kSteps], total = 0; /* of a unit: its places, and above bit 16 where the first stands */
#pragma unroll
      for (int k = 0; k < kSteps; k++) {
        const uint32_t u = first + k * threads + threadIdx.x;
        held[k] = 0;
        if (first + k * threads >= units) continue;
        held[k] = u < units ? not_zero<kBits>(at.map, u) : 0;
        uint32_t upto = 0;
        if (__any_sync(~0u, held[k] != 0)) { /* whole stretches are empty: a window's tokens are few of all */
          const uint32_t own = __popc(held[k]);
          upto = warp_scan(own);
          held[k] |= (upto - own) << 16;
        }
        if (lane == 31) at.sums[k * warps + warp] = static_cast<uint16_t>(upto);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kSteps; k++) {
        if (first + k * threads >= units) continue;
        const uint32_t sum = lane < warps ? at.sums[k * warps + lane] : 0;
        const uint32_t both = __reduce_add_sync(~0u, sum | (lane < warp ? sum << 16 : 0));
        held[k] += (total + (both >> 16)) << 16;
        total += both & 0xffff;
      }
      if (whole && !b.every) result.skipped = may_skip(b, result.entries + total, rows.queries, all_keys(rows, sh));
      for (uint32_t done = 0; done < total && !result.skipped && !b.every; done += room) {
        const uint32_t listed = min(total - done, room);
#pragma unroll
        for (int k = 0; k < kSteps; k++) {
          if (first + k * threads >= units) continue;
          const uint32_t place = (first + k * threads + threadIdx.x) * kPlaces;
          uint32_t e = (held[k] >> 16) - done; /* wraps where it was listed before */
          for (uint32_t chosen = held[k] & 0xffff; chosen; chosen &= chosen - 1, e++)
            if (e < listed) at.listed[e] = static_cast<uint16_t>(place + __ffs(chosen) - 1);
        }
        __syncthreads();
        for (uint32_t e = threadIdx.x; e < listed; e += threads) {
          const uint32_t place = at.listed[e], to = result.entries + done + e;
          const uint64_t who = members_at<kBits>(at.map, place);
          token[to] = static_cast<int32_t>(start + row_of<kPaged>(at, from, place));
          member[to] = who;
          bits += kBits == 64 ? __popcll(who) : __popc(static_cast<uint32_t>(who));
        }
        __syncthreads(); /* the list has been read, and in the end sums and map */
      }
      if (total == 0 || b.every) __syncthreads();
      result.entries += total;
    }
  }
  bits = __reduce_add_sync(~0u, bits);
  if (lane == 0) atomicAdd(&sh.bits, bits);
}

/* The same with a counter of 2^log bits for each (place, query), which takes repeats: a place has as many copies as
 * its largest counter says. */
template <int kBits, bool kPaged>
FHK_DEV void count_span(const Build &b, const Rows &rows, const Lengths &lengths, const Memory<kBits> &at,
                        uint32_t start, uint32_t all, Union &result, int log, Shared &sh) {
  const int queries = rows.queries;
  uint32_t *word = reinterpret_cast<uint32_t *>(at.map);
  const uint32_t mask = ~0u >> (32 - (1 << log));
  const uint32_t window = min((b.places * kBits >> log) / queries / kPage * kPage, b.places);
  auto counter = [&](uint32_t place, int q) {
    const uint32_t bit = place * queries + q << log;
    return word[bit / 32] >> bit % 32 & mask;
  };
  int32_t *token = b.plan.token + rows.group * b.plan.capacity;
  uint64_t *member = b.plan.member + rows.group * b.plan.capacity;
  for (uint32_t from = 0; from < all; from += window) {
    for (uint32_t k = threadIdx.x; k < (window * queries << log) / 32; k += blockDim.x) word[k] = 0;
    if (kPaged) name_pages(b, at, from);
    __syncthreads();
    each_key(b, rows, lengths, Ahead(), false, false, sh, [&](int q, uint32_t row) {
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
      const uint32_t out = result.entries + block_scan(copies, &here, sh);
      for (uint32_t copy = 0; copy < copies; copy++) {
        uint64_t who = 0;
        for (int q = 0; q < queries; q++) who |= static_cast<uint64_t>(counter(k, q) > copy) << q;
        token[out + copy] = static_cast<int32_t>(start + row_of<kPaged>(at, from, k));
        member[out + copy] = who;
      }
      result.entries += here;
    }
    __syncthreads(); /* counters have been read */
  }
}

/* All spans. kRepeats: with counters of 2^log bits. */
template <int kBits, bool kPaged, bool kRepeats>
FHK_DEV Union unite(const Build &b, const Rows &rows, const Lengths &lengths, const Ahead &early,
                    const Memory<kBits> &at, int log, Shared &sh) {
  uint32_t start = 0;
  Union result = {0, false};
  if (kPaged && b.call.s_kv > static_cast<int64_t>(b.words) * 32 * kPage) start = first_row(b, rows, lengths, sh);
  while (start != kNone && !result.skipped) {
    uint32_t all = static_cast<uint32_t>(b.call.s_kv), next = kNone;
    if (kPaged) {
      start -= start % kPage;
      all = number_pages(b, rows, lengths, at, start, sh);
      next = take_next(sh);
    }
    const bool last = start == 0 && next == kNone; /* of one span: then all keys are known when it is mapped */
    if constexpr (kRepeats) count_span<kBits, kPaged>(b, rows, lengths, at, start, all, result, log, sh);
    else map_span<kBits, kPaged>(b, rows, lengths, early, at, start, all, last, result, sh);
    start = next;
  }
  return result;
}

/* Whether a sample of the groups has found so little to save that none is packed. */
FHK_DEV bool none_packed(const Build &b) {
  int64_t saved = 0;
  for (int k = threadIdx.x & 31; k < b.sampled; k += 32) saved += max(b.sample[k], 0);
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) saved += __shfl_xor_sync(~0u, saved, d);
  return static_cast<double>(saved) * static_cast<double>(b.plan.groups) < b.wanted * b.sampled;
}

template <int kBits, bool kPaged>
__global__ void __launch_bounds__(kMaxThreads) build_group(const __grid_constant__ Build b) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ Shared sh;
  const int lane = threadIdx.x & 31;
  if (threadIdx.x < kMaxGroup) sh.keys[threadIdx.x] = 0;
  if (threadIdx.x == 0) sh.next = kNone, sh.bits = 0;
  ptx::wait_for_grid_before();
  ptx::let_grid_behind_start(); /* the order, or the groups behind a sample, which wait for this grid */
  const Rows rows = find_rows(b, b.every ? static_cast<uint32_t>(blockIdx.x * b.every) : blockIdx.x);
  const Lengths lengths = {lane < rows.queries ? list_length(b.call, rows.first + lane) : 0,
                           lane + 32 < rows.queries ? list_length(b.call, rows.first + lane + 32) : 0};
  const Memory<kBits> at(b, memory);
  Union result = {0, false};
  uint32_t keys = 0;
  if (b.sample && !b.every && none_packed(b)) {
    result.skipped = true;
    __syncthreads(); /* sh.keys is there */
  } else if (rows.queries > 0) {
    Ahead early = {};
    if (kPaged) __syncthreads();
    else early = fetch_early(b, rows);
    result = unite<kBits, kPaged, false>(b, rows, lengths, early, at, 0, sh);
    __syncthreads();
    keys = all_keys(rows, sh);
    if (!b.every && !result.skipped && sh.bits != keys) { /* lists have a row twice: so often at most, once more where
                                                             it stands first */
      const uint32_t most = keys - sh.bits + 1;
      const int log = most < 1 << 2 ? 1 : most < 1 << 4 ? 2 : most < 1 << 8 ? 3 : most < 1 << 16 ? 4 : 5;
      result = unite<kBits, kPaged, true>(b, rows, lengths, Ahead(), at, log, sh);
    }
  }
  if (b.every) {
    if (threadIdx.x == 0) b.sample[blockIdx.x] = fh_group_saves(&b.costs, result.entries, rows.queries, keys);
    return;
  }
  if (threadIdx.x < rows.queries) b.plan.keys[rows.first + threadIdx.x] = static_cast<int32_t>(sh.keys[threadIdx.x]);
  if (threadIdx.x == 0) {
    b.plan.first[blockIdx.x] = rows.first;
    if (blockIdx.x == gridDim.x - 1) b.plan.first[gridDim.x] = b.call.s_q;
    b.plan.entries[blockIdx.x] = static_cast<int32_t>(result.entries);
    /* What is not listed must not be packed. */
    const int32_t saves = result.skipped ? -INT32_MAX : fh_group_saves(&b.costs, result.entries, rows.queries, keys);
    b.saves[blockIdx.x] = saves;
    b.rank[blockIdx.x] = fh_group_rank(b.plan.capacity, result.entries, saves);
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
  ptx::let_grid_behind_start();
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
  ptx::let_grid_behind_start();
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

/* What is needed while a plan is built, behind its arrays: rank and saves of each group, room to sort many, and what a
 * sample of the groups saves. */
inline uint64_t scratch_part(uint64_t groups) { return fh_plan_part(groups, sizeof(uint32_t)); }

/* How the groups of a call are built. */
struct Shape {
  int bits;        /* of a place: 2, 4, .. 64, one a query */
  int threads;     /* of a CTA */
  uint32_t places; /* of a window */
  uint32_t words;  /* of the pages' bitmap, 0: places are KV rows */
  uint32_t shared;
};

using Kernel = void (*)(Build);
constexpr int kWidths = 6; /* of a place: 2 << 0 .. 2 << 5 bits */
inline Kernel kernel_of(const Shape &shape) {
  static constexpr Kernel kernels[kWidths][2] = {
      {build_group<2, false>, build_group<2, true>},   {build_group<4, false>, build_group<4, true>},
      {build_group<8, false>, build_group<8, true>},   {build_group<16, false>, build_group<16, true>},
      {build_group<32, false>, build_group<32, true>}, {build_group<64, false>, build_group<64, true>}};
  int width = 0;
  while (2 << width < shape.bits) width++;
  return kernels[width][shape.words > 0];
}

/* Of Memory. */
inline uint64_t shared_bytes(uint64_t bits, uint64_t places, uint64_t words, uint64_t threads) {
  return places / 8 * bits + words * 8 + (words ? places / kPage * 4 : 0) + kMostSteps * threads / 32 * 2 +
         kListed * threads * 2;
}

/* Shared memory of a multiprocessor, of which each CTA takes 1 KB for itself, and Shared has some. */
inline uint64_t shared_memory(int32_t capability) {
  return capability == 80 || capability == 87   ? 164 << 10
         : capability >= 90 && capability < 120 ? 228 << 10
                                                : 100 << 10;
}

/* The most places that fit. */
inline uint32_t places_within(uint64_t budget, int bits, uint64_t words, int threads) {
  const uint64_t none = shared_bytes(bits, 0, words, threads),
                 step = shared_bytes(bits, kPlaceLine, words, threads) - none;
  const uint64_t steps = budget > none ? (budget - none) / step : 0;
  return static_cast<uint32_t>(steps * kPlaceLine < kMostPlaces ? steps * kPlaceLine : kMostPlaces);
}

/* Threads of a CTA: kResidentThreads share a multiprocessor, but no more than have something to do. */
inline int threads_of(int64_t resident, int64_t capacity) {
  int threads = kMaxThreads;
  while (threads > kLeastThreads && (threads * resident > kResidentThreads || threads > capacity / kKeysPerThread))
    threads /= 2;
  return threads;
}

/* One window where as many CTAs as the registers take, or at least half of these, find room for it on a multiprocessor;
 * else two; else pages. Fewer groups have more room. */
inline Shape shape_of(const fh_call *call, int64_t groups, const fhk_gpu *gpu) {
  Shape shape;
  const int64_t per_sm = (groups + gpu->multiprocessors - 1) / gpu->multiprocessors,
                capacity = call->topk * call->group;
  /* CTAs of a multiprocessor where there are many: of 128 threads, or of 64 where these have enough to do. */
  const int64_t resident = kResidentThreads / (capacity < 4 * kLeastThreads * kKeysPerThread ? kLeastThreads : 128);
  const int64_t most = per_sm < resident ? per_sm : resident, few = most < resident / 2 ? most : resident / 2;
  const uint64_t rows = (static_cast<uint64_t>(call->s_kv) + kPlaceLine - 1) / kPlaceLine * kPlaceLine;
  shape.bits = 2;
  while (shape.bits < call->group) shape.bits *= 2;
  auto room = [&](int64_t sharing,
                  uint64_t words) { /* what so many CTAs leave each other */
                                    shape.words = static_cast<uint32_t>(words);
                                    shape.threads = threads_of(sharing, capacity);
                                    shape.places = places_within(shared_memory(gpu->capability) / sharing - (2 << 10),
                                                                 shape.bits, words, shape.threads);
                                    return static_cast<uint64_t>(shape.places);
  };
  uint64_t places = rows;
  if (room(most, 0) < rows && room(few, 0) < rows) {
    places = (rows / kPlaceLine + 1) / 2 * kPlaceLine;
    if (room(few, 0) < places) {
      const uint64_t words = rows / kPage < kMostPages ? (rows / kPage + 31) / 32 : kMostPages / 32;
      int64_t sharing = most;
      while (room(sharing, words) * shape.bits / 8 < kLeastMap && sharing > 1) sharing = (sharing + 1) / 2;
      places = shape.places;
    }
  }
  const uint64_t least = kLeastMap * 8 / shape.bits; /* counters of repeats have their place there too */
  shape.places = static_cast<uint32_t>(places > least ? places : least);
  shape.shared = static_cast<uint32_t>(shared_bytes(shape.bits, shape.places, shape.words, shape.threads));
  return shape;
}

/* ctas: of the grid, a group each. */
inline cudaError_t launch(Build b, const Shape &shape, int64_t ctas, const fhk_gpu *gpu, cudaStream_t stream) {
  const int warps = shape.threads / 32;
  b.places = shape.places;
  b.words = shape.words;
  b.parts = warps > b.plan.group ? warps / b.plan.group : 1;
  return launch_behind(gpu->capability, kernel_of(shape), ctas, shape.threads, shape.shared, stream, b);
}

/* Whether a sample of the groups says first if any is to be packed: a plan for one call whose rows, if they are not
 * packed, are padded. There a plan in vain would make the call slower than padding. */
inline bool samples(const fh_call *call, int32_t complete) {
  return !complete && call->path == FH_AUTO && call->costs && fh_rows_path(call, call->costs) == FH_PADDED;
}

}  // namespace plan
}  // namespace fhk

using namespace fhk;
using namespace fhk::plan;

int fhk_plan_prepare(void) {
  int device = 0, most = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (int k = 0; k < 2 * kWidths && status == cudaSuccess; k++) {
    const Shape shape = {2 << k / 2, 0, 0, static_cast<uint32_t>(k % 2), 0};
    status = cudaFuncSetAttribute(kernel_of(shape), cudaFuncAttributeMaxDynamicSharedMemorySize, most - 1024);
  }
  return status;
}

uint64_t fhk_plan_bytes(const fhk_gpu *, const fh_call *call) {
  const fh_plan_layout at = fh_plan_layout_of(call);
  const uint64_t part = scratch_part(at.groups);
  const uint64_t sample = fh_plan_part(kSampled, sizeof(int32_t));
  return fhk_add(at.scratch, fhk_add(fhk_add(part, part), fhk_add(at.groups > kOrderDirect ? part : 0, sample)));
}

int fhk_plan_build(const fhk_gpu *gpu, const fh_call *call, int32_t complete, void *memory, fh_plan *plan,
                   void *given_stream) {
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
  b.complete = complete || call->path != FH_AUTO;
  b.every = 0, b.sample = nullptr, b.sampled = 0, b.wanted = 0;
  cudaError_t status = cudaSuccess;
  if (samples(call, complete)) {
    const int64_t sampled = plan->groups < kSampled ? plan->groups : kSampled;
    const double gflop = fh_gflop(call->d_qk, call->d_v, static_cast<double>(call->s_q * call->topk) * call->h_q);
    b.sample = reinterpret_cast<int32_t *>(scratch + (plan->groups > kOrderDirect ? 3 : 2) * part);
    b.sampled = static_cast<int>(sampled);
    b.wanted =
        1e3 * (call->costs->packed.call_us + fh_cost_us(&call->costs->plan, static_cast<double>(plan->groups), gflop) +
               kWantedShare *
                   fh_cost_us(&call->costs->padded, static_cast<double>(call->s_q), gflop * call->h_pad / call->h_q));
    b.every = plan->groups / sampled;
    status = launch(b, shape_of(call, sampled, gpu), sampled, gpu, stream);
    b.every = 0;
  }
  if (status == cudaSuccess) status = launch(b, shape_of(call, plan->groups, gpu), plan->groups, gpu, stream);
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
