/*
 * The plan on the device (fh_plan): for each group of neighbouring queries the union of their lists and who chose what.
 * A CTA takes one group. Any device from sm_80 on.
 *
 * The map has a bit for each query and place, a query's bits in a row. One pass over the lists sets bits: one atomic
 * a key, or one for four keys where lists hold runs of rows, as windows, lists of all rows and pools of four do. One
 * pass over the map looks at 32 places a thread: those that any query has are chosen and counted. Each thread then puts
 * chosen places into a list in shared memory, half a word at a time, so that a dense stretch of the map is work for all
 * warps, and the CTA writes that list out. What does not fit in one window of the map is done window by window.
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
constexpr uint32_t kListed = 14;                   /* entries a thread that are listed before they are written */
constexpr uint32_t kPlaceLine = 128;               /* places of a window are a multiple of this */
constexpr uint32_t kMostPlaces = 65536;            /* of a window: places are 16-bit numbers */
constexpr uint32_t kSegments = kMostPlaces / 1024; /* of 32 words */
constexpr uint32_t kLeastMap = 10 << 10;           /* bytes: room for the counters of 32 places and 64 queries */
constexpr int kAhead = 5;                  /* loads of 4 entries by a thread: lists of 640 are one step of a warp */
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
  uint32_t length[kMaxGroup]; /* of the lists */
  uint32_t keys[kMaxGroup];
  uint32_t bits; /* members of all entries */
  uint32_t next; /* smallest KV row behind the span */
};

/* Dynamic shared memory. */
struct Memory {
  uint32_t *map;     /* of each query in turn a bit for each place */
  uint2 *pages;      /* x: a bit a page; y: pages chosen before these 32 */
  uint32_t *page_of; /* page of each kPage places of the window */
  uint32_t *chosen;  /* a bit a place of the window: somebody chose it */
  uint16_t *before;  /* [places / 32] those of smaller words of the same segment, 32 words */
  uint16_t *sums;    /* [kSegments] those of a segment */
  uint16_t *listed;  /* [kListed * threads] places of the next entries */

  FHK_DEV Memory(const Build &b, uint8_t *memory) {
    map = reinterpret_cast<uint32_t *>(memory);
    pages = reinterpret_cast<uint2 *>(map + b.places / 32 * b.plan.group);
    page_of = reinterpret_cast<uint32_t *>(pages + b.words);
    chosen = page_of + (b.words ? b.places / kPage : 0);
    before = reinterpret_cast<uint16_t *>(chosen + b.places / 32);
    sums = before + b.places / 32;
    listed = sums + kSegments;
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

/* Where a warp stands in the lists. A warp reads 128 entries at once, of whole lists, or, where there are more warps
 * than lists, every `parts`-th 128 of one list. */
struct Walk {
  int q; /* no query of the group: nothing is left */
  uint32_t at;

  FHK_DEV Walk(const Build &b, const Rows &rows) {
    q = threadIdx.x >> 5, at = 0;
    while (b.parts > 1 && q >= rows.queries) q -= rows.queries, at += 128; /* parts are few: no division */
    if (at >= b.parts * 128u) q = kMaxGroup;
  }
  /* Behind what a warp holds at once. */
  FHK_DEV void on(const Build &b, uint32_t length) {
    at += kAhead * b.parts * 128; /* below 2^32 */
    if (at >= length) q += blockDim.x >> 5, at = 0;
  }
  FHK_DEV const int32_t *list(const Build &b, const Rows &rows) const {
    return b.call.indices + (rows.first + q) * b.call.indices_stride + at + (threadIdx.x & 31) * 4;
  }
};

/* Four entries of a list, neighbours there. */
struct Four {
  uint32_t row[4];
};
/* Those of which `left` are there; what the others hold is not said. aligned: lists are a multiple of 4 wide, and lie
 * on 16 bytes. */
template <bool kAligned>
FHK_DEV int4 load4(const int32_t *from, int32_t left) {
  int4 v = make_int4(-1, -1, -1, -1);
  if (kAligned) {
    if (left > 0) v = __ldg(reinterpret_cast<const int4 *>(from));
  } else {
    if (left > 0) v.x = __ldg(from);
    if (left > 1) v.y = __ldg(from + 1);
    if (left > 2) v.z = __ldg(from + 2);
    if (left > 3) v.w = __ldg(from + 3);
  }
  return v;
}

/* What a warp holds of a list. */
struct Ahead {
  int4 v[kAhead];
};

/* The first loads of a warp, before anybody knows how long the lists are: what lies behind their ends is dropped when
 * it is used. Nothing here waits for what is loaded. */
template <bool kAligned>
FHK_DEV Ahead load_first(const Build &b, const Rows &rows) {
  const Walk walk(b, rows);
  Ahead ahead = {};
  if (walk.q >= rows.queries) return ahead;
  const int32_t *from = walk.list(b, rows);
  int32_t left = static_cast<int32_t>(b.call.topk - walk.at) - static_cast<int32_t>(threadIdx.x & 31) * 4;
#pragma unroll
  for (int k = 0; k < kAhead; k++, from += b.parts * 128, left -= b.parts * 128)
    ahead.v[k] = load4<kAligned>(from, left);
  return ahead;
}

/* f(query, row) for each of four. */
template <typename F>
FHK_DEV auto one_by_one(F &&f) {
  return [=](int q, const Four &four) {
    uint32_t found = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) found += f(q, four.row[e]);
    return found;
  };
}

/* f(query, four KV rows) for all entries of the group's lists, and -1 for some that are not there; it returns how many
 * of them are to be counted in sh.keys, where `count` asks for that. All lanes of a warp call it at once. What comes
 * next is on its way while f works. ahead: of load_first. */
template <bool kAligned, typename F>
FHK_DEV void each_key(const Build &b, const Rows &rows, Ahead ahead, bool count, Shared &sh, F &&f) {
  const int32_t lane = threadIdx.x & 31, step = b.parts * 128;
  Walk now(b, rows);
  uint32_t length = now.q < rows.queries ? sh.length[now.q] : 0;
  while (now.q < rows.queries) {
    Walk next = now;
    next.on(b, length);
    const uint32_t next_length = next.q < rows.queries ? sh.length[next.q] : 0;
    const int32_t *from = next.list(b, rows);
    int32_t left = static_cast<int32_t>(length - now.at),
            coming = static_cast<int32_t>(next_length - next.at) - lane * 4;
    uint32_t found = 0;
#pragma unroll
    for (int k = 0; k < kAhead; k++, left -= step, coming -= step, from += step) {
      if (left > 0) {
        Four four = {{static_cast<uint32_t>(ahead.v[k].x), static_cast<uint32_t>(ahead.v[k].y),
                      static_cast<uint32_t>(ahead.v[k].z), static_cast<uint32_t>(ahead.v[k].w)}};
        if (left < 128) {
#pragma unroll
          for (int e = 0; e < 4; e++)
            if (left <= lane * 4 + e) four.row[e] = kNone;
        }
        found += f(now.q, four);
      }
      if (coming > 0) ahead.v[k] = load4<kAligned>(from, coming);
    }
    if (count) {
      found = __reduce_add_sync(~0u, found);
      if (lane == 0) atomicAdd(&sh.keys[now.q], found);
    }
    now = next, length = next_length;
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
template <bool kAligned>
FHK_DEV uint32_t first_row(const Build &b, const Rows &rows, Shared &sh) {
  uint32_t least = kNone;
  each_key<kAligned>(b, rows, load_first<kAligned>(b, rows), false, sh, one_by_one([&](int, uint32_t row) {
                       if (row < static_cast<uint32_t>(b.call.s_kv)) least = min(least, row);
                       return false;
                     }));
  offer_next(least, sh);
  return take_next(sh);
}

/* ---- Places: the KV rows of a span, or those of its pages that somebody chose ---- */

/* Marks and counts the pages that hold a key; returns how many places they have. What lies behind the span is left
 * to the next one. */
template <bool kAligned>
FHK_DEV uint32_t number_pages(const Build &b, const Rows &rows, const Memory &at, uint32_t start, Shared &sh) {
  for (uint32_t w = threadIdx.x; w < b.words; w += blockDim.x) at.pages[w] = make_uint2(0, 0);
  __syncthreads();
  uint32_t least = kNone;
  each_key<kAligned>(b, rows, load_first<kAligned>(b, rows), false, sh, one_by_one([&](int, uint32_t row) {
                       const uint32_t page = (row - start) / kPage, bit = 1u << (page & 31);
                       if (row < start || row >= static_cast<uint32_t>(b.call.s_kv)) return false;
                       if (page >= b.words * 32) least = min(least, row);
                       else if (!kLookFirst || !(at.pages[page >> 5].x & bit)) atomicOr(&at.pages[page >> 5].x, bit);
                       return false;
                     }));
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
FHK_DEV void name_pages(const Build &b, const Memory &at, uint32_t from) {
  const uint32_t slots = b.places / kPage;
  for (uint32_t w = threadIdx.x; w < b.words; w += blockDim.x) {
    const uint2 word = at.pages[w];
    uint32_t slot = word.y - from / kPage;
    for (uint32_t bits = word.x; bits; bits &= bits - 1, slot++)
      if (slot < slots) at.page_of[slot] = w * 32 + __ffs(bits) - 1;
  }
}

/* Counted from the start of the span; past all places for a row that has none there. */
template <bool kPaged>
FHK_DEV uint32_t place_of(const Build &b, const Memory &at, uint32_t start, uint32_t row) {
  if (!kPaged) return row;
  const uint32_t page = (row - start) / kPage, bit = page & 31;
  const uint2 word = at.pages[min(page >> 5, b.words - 1)];
  const uint32_t place = (word.y + __popc(word.x & ((1u << bit) - 1))) * kPage + row % kPage; /* spans start on pages */
  return page < b.words * 32 && row < static_cast<uint32_t>(b.call.s_kv) ? place : kNone;
}
/* The way back: from a place in the window that starts at place `from` to a row of the span. */
template <bool kPaged>
FHK_DEV uint32_t row_of(const Memory &at, uint32_t from, uint32_t place) {
  return kPaged ? at.page_of[place / kPage] * kPage + place % kPage : from + place;
}

/* ---- The map ---- */

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

/* Words of the map for the places of one query. */
FHK_DEV uint32_t words_of(uint32_t places) { return (places + kPlaceLine - 1) / kPlaceLine * (kPlaceLine / 32); }
FHK_DEV void zero_map(const Memory &at, uint32_t words) {
  for (uint32_t u = threadIdx.x; u < words / 4; u += blockDim.x)
    reinterpret_cast<uint4 *>(at.map)[u] = make_uint4(0, 0, 0, 0);
}

/* Sets the bits of four entries in a query's words of the map, at shared address `map`; returns how many of them have a
 * place. Four places in a row take one atomic, or two: windows, lists of all rows, pools of four. All lanes of a warp
 * call it at once. */
FHK_DEV uint32_t set_bits(uint32_t map, const uint32_t place[4], uint32_t places) {
  const uint32_t largest = max(max(place[0], place[1]), max(place[2], place[3]));
  auto one = [=](uint32_t p, bool here) { ptx::or_shared(map + ((p & ~31u) >> 3), 1u << (p & 31), here); };
  if (__all_sync(~0u, largest < places)) { /* no branch a key */
    const bool run = place[1] - place[0] == 1 && place[2] - place[0] == 2 && place[3] - place[0] == 3;
    if (__all_sync(~0u, place[3] - place[0] == 3) && __all_sync(~0u, run)) {
      const uint32_t bit = place[0] & 31, at = map + place[0] / 32 * 4;
      ptx::or_shared(at, 15u << bit, true);
      if (bit > 28) ptx::or_shared(at + 4, 7u >> (31 - bit), true);
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++) one(place[e], true);
    }
    return 4;
  }
  uint32_t found = 0;
#pragma unroll
  for (int e = 0; e < 4; e++) {
    one(place[e], place[e] < places);
    found += place[e] < places;
  }
  return found;
}

/* f(word) for the words of some queries, which lie `words` apart: loads first, as many as there are, up to 8. */
template <int kCount, typename F>
FHK_DEV void some_words(const uint32_t *&from, uint32_t words, F &f) {
  uint32_t here[kCount];
#pragma unroll
  for (int k = 0; k < kCount; k++, from += words) here[k] = *from;
#pragma unroll
  for (int k = 0; k < kCount; k++) f(here[k]);
}
template <typename F>
FHK_DEV void each_word(const uint32_t *from, uint32_t words, int queries, F &&f) {
#pragma unroll 1
  for (int left = queries; left >= 8; left -= 8) some_words<8>(from, words, f);
  if (queries & 4) some_words<4>(from, words, f);
  if (queries & 2) some_words<2>(from, words, f);
  if (queries & 1) some_words<1>(from, words, f);
}

/* The bits that any of the queries has in its word. */
FHK_DEV uint32_t any_of(const uint32_t *from, uint32_t words, int queries) {
  uint32_t any = 0;
  each_word(from, words, queries, [&](uint32_t word) { any |= word; });
  return any;
}

/* Who chose a place: of up to 32 queries. */
FHK_DEV uint32_t who_of(const uint32_t *from, uint32_t words, uint32_t place, int queries) {
  uint32_t who = 0;
  each_word(from, words, queries, [&](uint32_t word) { who = __funnelshift_r(who, word >> (place & 31), 1); });
  return who >> (32 - queries);
}

/* The entries of all windows of one span, behind those that are there. last: no other span has keys. */
template <bool kPaged, bool kAligned>
FHK_DEV void map_span(const Build &b, const Rows &rows, Ahead &ahead, const Memory &at, uint32_t start, uint32_t all,
                      bool last, Union &result, Shared &sh) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t map = ptx::smem_addr(at.map), threads = blockDim.x, room = kListed * threads;
  int32_t *tokens = b.plan.token + rows.group * b.plan.capacity;
  uint64_t *members = b.plan.member + rows.group * b.plan.capacity;
  uint32_t bits = 0;
  for (uint32_t from = 0;;) {
    const uint32_t places = min(all - from, b.places), stride = words_of(places), words = (places + 31) / 32;
    if (kPaged || from > 0) zero_map(at, rows.queries * stride);
    if (kPaged) name_pages(b, at, from), ahead = load_first<kAligned>(b, rows);
    __syncthreads();
    each_key<kAligned>(b, rows, ahead, true, sh, [&](int q, const Four &four) {
      uint32_t place[4];
#pragma unroll
      for (int e = 0; e < 4; e++) place[e] = place_of<kPaged>(b, at, start, four.row[e]) - from;
      return set_bits(map + q * stride * 4, place, places);
    });
    __syncthreads();
    /* A lane a word: who of its places is chosen, and how many before it in these 32 words, a segment. */
    const uint32_t segments = (words + 31) / 32;
    for (uint32_t u = threadIdx.x; u < segments * 32; u += threads) {
      const uint32_t chosen = u < words ? any_of(at.map + u, stride, rows.queries) : 0, own = __popc(chosen);
      uint32_t upto = 0;
      if (__any_sync(~0u, own)) upto = warp_scan(own); /* whole stretches are empty: of a window's rows few count */
      if (u < words) at.chosen[u] = chosen, at.before[u] = static_cast<uint16_t>(upto - own);
      if (lane == 31) at.sums[u / 32] = static_cast<uint16_t>(upto);
    }
    __syncthreads();
    /* Each warp adds up all segments, two a lane. */
    const uint32_t low = lane * 2 < segments ? at.sums[lane * 2] : 0,
                   both = low + (lane * 2 + 1 < segments ? at.sums[lane * 2 + 1] : 0), upto = warp_scan(both),
                   total = __shfl_sync(~0u, upto, 31);
    if (last && all <= b.places && !b.every) /* all keys have been counted */
      result.skipped = may_skip(b, result.entries + total, rows.queries, all_keys(rows, sh));
    for (uint32_t done = 0; done < total && !result.skipped && !b.every; done += room) {
      const uint32_t listed = min(total - done, room);
      for (uint32_t h = threadIdx.x; h < segments * 64; h += threads) { /* half a word: dense ones are work for all */
        const uint32_t segment = h / 64, word = h / 2, half = h % 2 * 16;
        const uint32_t before =
            __shfl_sync(~0u, upto - both, segment / 2) + (segment % 2 ? __shfl_sync(~0u, low, segment / 2) : 0);
        const uint32_t chosen = word < words ? at.chosen[word] : 0;
        uint32_t left = chosen >> half & 0xffff, e = 0;
        if (left)
          e = before + at.before[word] + (half ? __popc(chosen & 0xffff) : 0) - done; /* wraps where it was
                                                                                                 listed before */
        for (uint32_t end = e + __popc(left); left; e++) { /* from both ends; the middle one may be listed twice */
          const uint32_t first = __ffs(left) - 1, high = 31 - __clz(left);
          end--;
          if (e < listed) at.listed[e] = static_cast<uint16_t>(word * 32 + half + first);
          if (end < listed) at.listed[end] = static_cast<uint16_t>(word * 32 + half + high);
          left &= left - 1, left &= ~(1u << high);
        }
      }
      __syncthreads();
      int32_t *token = tokens + (result.entries + done);
      uint64_t *member = members + (result.entries + done);
      for (uint32_t e = threadIdx.x; e < listed; e += threads) {
        const uint32_t place = at.listed[e], *word = at.map + place / 32;
        const uint32_t who = who_of(word, stride, place, min(rows.queries, 32));
        uint32_t more = 0;
        if (rows.queries > 32) more = who_of(word + 32 * stride, stride, place, rows.queries - 32);
        token[e] = static_cast<int32_t>(start + row_of<kPaged>(at, from, place));
        member[e] = static_cast<uint64_t>(more) << 32 | who;
        bits += __popc(who);
        if (rows.queries > 32) bits += __popc(more);
      }
      __syncthreads(); /* the list has been read */
    }
    result.entries += total;
    from += b.places; /* below 2^32 */
    if (from >= all || result.skipped) break;
    __syncthreads(); /* sums and map have been read */
    if (!kPaged) ahead = load_first<kAligned>(b, rows);
  }
  bits = __reduce_add_sync(~0u, bits);
  if (lane == 0) atomicAdd(&sh.bits, bits);
}

/* The same with a counter of 2^log bits for each (place, query), which takes repeats: a place has as many copies as
 * its largest counter says. */
template <bool kPaged, bool kAligned>
FHK_DEV void count_span(const Build &b, const Rows &rows, const Memory &at, uint32_t start, uint32_t all, Union &result,
                        int log, Shared &sh) {
  const int queries = rows.queries;
  uint32_t *word = at.map;
  const uint32_t mask = ~0u >> (32 - (1 << log));
  const uint32_t window = min((b.places * b.plan.group >> log) / queries / kPage * kPage, b.places);
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
    each_key<kAligned>(b, rows, load_first<kAligned>(b, rows), false, sh, one_by_one([&](int q, uint32_t row) {
                         const uint32_t place = place_of<kPaged>(b, at, start, row) - from,
                                        bit = place * queries + q << log;
                         if (place < min(window, all - from)) atomicAdd(word + bit / 32, 1u << bit % 32);
                         return false;
                       }));
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
template <bool kPaged, bool kAligned, bool kRepeats>
FHK_DEV Union unite(const Build &b, const Rows &rows, Ahead &ahead, const Memory &at, int log, Shared &sh) {
  uint32_t start = 0;
  Union result = {0, false};
  if (kPaged && b.call.s_kv > static_cast<int64_t>(b.words) * 32 * kPage) start = first_row<kAligned>(b, rows, sh);
  while (start != kNone && !result.skipped) {
    uint32_t all = static_cast<uint32_t>(b.call.s_kv), next = kNone;
    if (kPaged) {
      start -= start % kPage;
      all = number_pages<kAligned>(b, rows, at, start, sh);
      next = take_next(sh);
    }
    const bool last = start == 0 && next == kNone; /* of one span: then all keys are known when it is mapped */
    if constexpr (kRepeats) count_span<kPaged, kAligned>(b, rows, at, start, all, result, log, sh);
    else map_span<kPaged, kAligned>(b, rows, ahead, at, start, all, last, result, sh);
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

template <bool kPaged, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) build_group(const __grid_constant__ Build b) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ Shared sh;
  if (threadIdx.x < kMaxGroup) sh.keys[threadIdx.x] = 0;
  if (threadIdx.x == 0) sh.next = kNone, sh.bits = 0;
  const Memory at(b, memory);
  if (!kPaged) zero_map(at, b.plan.group * words_of(min(static_cast<uint32_t>(b.call.s_kv), b.places)));
  ptx::wait_for_grid_before();
  ptx::let_grid_behind_start(); /* the order, or the groups behind a sample, which wait for this grid */
  const Rows rows = find_rows(b, b.every ? static_cast<uint32_t>(blockIdx.x * b.every) : blockIdx.x);
  Union result = {0, false};
  uint32_t keys = 0;
  if (b.sample && !b.every && none_packed(b)) {
    result.skipped = true;
    __syncthreads(); /* sh.keys is there */
  } else if (rows.queries > 0) {
    Ahead ahead = load_first<kAligned>(b, rows);
    if (threadIdx.x < rows.queries) sh.length[threadIdx.x] = list_length(b.call, rows.first + threadIdx.x);
    if (kPaged) __syncthreads();
    result = unite<kPaged, kAligned, false>(b, rows, ahead, at, 0, sh);
    __syncthreads();
    keys = all_keys(rows, sh);
    if (!b.every && !result.skipped && sh.bits != keys) { /* lists have a row twice: so often at most, once more where
                                                             it stands first */
      const uint32_t most = keys - sh.bits + 1;
      const int log = most < 1 << 2 ? 1 : most < 1 << 4 ? 2 : most < 1 << 8 ? 3 : most < 1 << 16 ? 4 : 5;
      result = unite<kPaged, kAligned, true>(b, rows, ahead, at, log, sh);
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
  ptx::let_grid_behind_start();
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
  int bits;        /* of a place, one a query */
  int threads;     /* of a CTA */
  uint32_t places; /* of a window */
  uint32_t words;  /* of the pages' bitmap, 0: places are KV rows */
  uint32_t shared;
};

using Kernel = void (*)(Build);
inline Kernel kernel_of(bool paged, bool aligned) {
  if (paged) return aligned ? build_group<true, true> : build_group<true, false>;
  return aligned ? build_group<false, true> : build_group<false, false>;
}

/* Of Memory. */
inline uint64_t shared_bytes(uint64_t bits, uint64_t places, uint64_t words, uint64_t threads) {
  return places / 8 * bits + words * 8 + (words ? places / kPage * 4 : 0) + places / 32 * 6 + kSegments * 2 +
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
  shape.bits = call->group;
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
  /* Counters of repeats have their place there too. */
  const uint64_t least = (kLeastMap * 8 / shape.bits + kPlaceLine - 1) / kPlaceLine * kPlaceLine;
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
  return launch_behind(gpu->capability, kernel_of(shape.words > 0, b.aligned), ctas, shape.threads, shape.shared,
                       stream, b);
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
  for (int k = 0; k < 4 && status == cudaSuccess; k++)
    status = cudaFuncSetAttribute(kernel_of(k / 2, k % 2), cudaFuncAttributeMaxDynamicSharedMemorySize, most - 1024);
  /* They use none, but stand between kernels that do: a multiprocessor would have to empty to share its memory anew. */
  const void *const orders[] = {reinterpret_cast<const void *>(order_direct),
                                reinterpret_cast<const void *>(order_sorted)};
  for (int k = 0; k < 2 && status == cudaSuccess; k++)
    status =
        cudaFuncSetAttribute(orders[k], cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
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