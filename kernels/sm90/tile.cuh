/*
 * The 64-row tile of sm90: O[64 x 512] = softmax(Q[64 x d] K^T) V over a list of KV rows. A tiling (below) says what a
 * row is.
 *
 * One persistent CTA of four warpgroups an SM. Blocks of 64 list entries, and the tiles they belong to, follow without
 * a gap:
 *
 *   warpgroup 3: fetch            warpgroup 0: score                  warpgroups 1, 2: pv, 256 columns each
 *   wait empty[slot] <------------------------------------------------ arrive empty[slot] once PV has read it
 *   cp.async 64 rows x 256 B
 *   arrive full[slot] ----------> S += Q[quarter] K[quarter]^T, two quarters at once
 *                                 after the last ones:
 *                                 arrive given of block n - 1 ------> O = O * rescale + P V
 *                                 wait taken of block n - 2 <-------- arrive taken
 *                                 mask, maximum, P = 2^(scale S - m)
 *                                 P to shared memory
 *
 * The tensor cores work on scores and on PV in turn. The scoring warps give P of a block away once they have queued the
 * next block's scores: PV then has the tensor pipe while P is made of those scores. If P is given away earlier, the two
 * PV warpgroups take four fifths of the pipe. The scores, which the longest chain waits for, then come late, and the
 * pipe idles while P is made of them.
 *
 * P refers to a maximum m that may lag: only if a row's maximum has grown by more than kSlack are O and the sum brought
 * up to the new m. A tile's end brings the true maximum back.
 *
 * Half of Q lives in the registers of warpgroup 0, the rest in shared memory: with more of it in registers the compiler
 * has too few for the scores, and lets the tensor cores wait for each instruction. Steps with Q in registers and steps
 * with Q in shared memory alternate, since the tensor cores load Q of one while they multiply another; alone, a step
 * with Q in shared memory takes half as long again. The first half passes through the ring, 32 rows a slot, so that few
 * real rows cost few slots; the rest is fetched to its place as soon as the last scores of the tile before are done,
 * behind the first slot of the tile's KV rows, which need not wait for it.
 *
 * What a row's query chose of a block is a word of 64 bits. The fetching warps, which have issue slots to spare, make
 * these words of the entries' marks, in an order in which a scoring thread's 16 bits lie side by side. One fetching
 * thread tells the others what the next tile is.
 *
 * A tiling is a struct that is passed to the kernel by value:
 *   int32_t tiles                        tiles of the launch at most, below 2^31 - 2^16
 *   int32_t count()                      how many there are
 *   void enter(), void leave()           first and last in every CTA: what the grid owes those in front of it and
 *                                        behind it
 *   uint32_t kv_rows                     entries are KV rows; one that is not below this counts as a hole
 *   int32_t next(int32_t i)              the tile that the CTA takes after tile i; the first one is blockIdx.x
 *   int32_t look(int32_t i)              a load that tile() needs, a tile early
 *   Tile tile(int32_t i, int32_t looked)
 *   int query_of(int r)                  which of the tile's queries row r belongs to, 0 .. 63, rising with r
 *   uint32_t member(tile, uint32_t pos, int half)        bit q: query 32 half + q chose entry pos
 *   const uint16_t *kv(int32_t entry)    the KV row
 *   const uint16_t *q_row(tile, int r), uint16_t *out_row(tile, int r)
 *   float sink(tile, int r), void statistics(tile, int r, float m, float l)
 *   float scale                          sm_scale * log2(e)
 *   bool aligned_out                        out rows start on multiples of 16 bytes
 *   static constexpr bool kPartial       a tile has a part of its rows' keys. Then, in place of out_row, sink and
 *                                        statistics:
 *                                        float4 *partial(tile): O before the division, in accumulator order: float4 k
 *                                        of the 32
 *                                        of thread t of half h at (32 h + k) 128 + t; float2 *sums(tile): (maximum,
 *                                        sum) of a row
 *   static constexpr bool kShared        rows of a tile have different keys
 *
 * Isolation, where kShared: the P of a masked pair, 0, times a NaN or an Inf of V would reach a row that never chose
 * that key. Such a KV row shows in the scores of every row, 0 * Inf = NaN included, and a masked score becomes s * 0 -
 * inf: still NaN. The row maximum, taken so that NaN wins, is the test, at no cost beside the vote that kSlack needs;
 * the scoring warp that sees it overwrites the bad V rows with zeros before it gives its P away. Rows that did choose
 * the key keep its NaN, which their P carries.
 */
#ifndef FEWHEAD_KERNELS_SM90_TILE_CUH
#define FEWHEAD_KERNELS_SM90_TILE_CUH

#include "cuda/common.cuh"

namespace fhk {
namespace sm90_tile {

constexpr int kThreads = 512;
constexpr int kScoreRegs = 144, kPvRegs = 160, kFetchRegs = 48; /* 144 + 2 * 160 + 48 = 4 * 128, what the launch
                                                                   allots */
constexpr int kRows = 64, kBlock = 64, kDv = 512;
constexpr int kGranule = 16;                       /* rows of a warp */
constexpr uint32_t kSlotBytes = 2 * kSliceBytes;   /* a quarter of a block, 64 rows x 128 columns; or 32 rows
                                                       of Q x 256 */
constexpr uint32_t kGranuleSlice = kGranule * 128; /* 16 rows x 64 columns */
constexpr uint32_t kWordBytes = 4 * kGranule * 8;  /* words of a block: which entries each query of each
                                                       scoring warp chose */
constexpr int kQuarters = 4;
constexpr int kRegisterSteps = 16; /* k16 steps of Q that live in registers */
constexpr float kSlack = 8;        /* P stays below 2^kSlack times the sums of the blocks before */
constexpr uint32_t kGranuleBytes = kRegisterSteps / 4 * kGranuleSlice; /* a granule's columns for registers:
                                                                          half a slot */
static_assert(2 * kGranuleBytes == kSlotBytes, "two granules of Q fill a slot");
constexpr int kTailSlices = kDv / 64 - kRegisterSteps / 4; /* slices of Q up to column 511 that are read from
                                                              shared memory */

/* What the warpgroups need to know of a tile. */
struct Tile {
  int64_t first;       /* query of row 0 */
  const int32_t *list; /* KV rows of its entries */
  int32_t rows;        /* rows 0 .. rows - 1 are real; the others are zeros and never stored. -1: no more tiles */
  uint32_t entries;
  int32_t part; /* the tiling's own */
  int32_t unused;
};
static_assert(sizeof(Tile) == 32, "two 16-byte units");
FHK_DEV int32_t blocks_of(const Tile &tile) {
  return tile.entries == 0 ? 1 : static_cast<int32_t>((tile.entries - 1) / kBlock + 1);
}

template <int kD>
struct Shape {
  static_assert(kD == 512 || kD == 576, "columns past 512 are one slice at most");
  static constexpr bool kRope = kD > kDv; /* columns 512 .. 575: scores only */
  static constexpr int kSlots = kRope ? 10 : 11;
  /* Shared memory, bytes from a 1024-byte boundary. */
  static constexpr uint32_t kQueryTail = 0; /* Q from column 256 on, [64 rows x 64 columns] slices */
  static constexpr uint32_t kRing = kQueryTail + (kTailSlices + (kRope ? 1 : 0)) * kSliceBytes;
  static constexpr uint32_t kRopeSlot = kRing + kSlots * kSlotBytes;
  static constexpr uint32_t kP = kRopeSlot + (kRope ? kSliceBytes : 0); /* P of two blocks, bf16 64 x 64 */
  static constexpr uint32_t kRescale = kP + 2 * kSliceBytes;            /* of two blocks, a float a row: O is
                                                                            multiplied by it */
  static constexpr uint32_t kFinish = kRescale + 2 * kRows * 4;         /* of two tiles, a float a row: O
                                                                                  ends with it */
  static constexpr uint32_t kWords = kFinish + 2 * kRows * 4;           /* of three blocks */
  static constexpr uint32_t kTiles = kWords + 3 * kWordBytes;           /* four Tile */
  static constexpr uint32_t kBarriers = kTiles + 4 * sizeof(Tile);
  static constexpr uint32_t kBytes = kBarriers + (2 * kSlots + 12) * 8;
  static_assert(kBytes <= 227 * 1024, "more shared memory than a CTA can have");
};

template <int kD>
struct Barriers {
  using X = Shape<kD>;
  uint32_t base;
  FHK_DEV uint32_t full(uint32_t slot) const {
    return base + slot * 8;
  } /* 128 fetching threads' copies, 4
                                                                            warps' own writes */
  FHK_DEV uint32_t empty(uint32_t slot) const {
    return base + (X::kSlots + slot) * 8;
  }                                                                              /* the 4 warps that read it last */
  FHK_DEV uint32_t rope_full() const { return base + 2 * X::kSlots * 8; }        /* 128 fetching threads */
  FHK_DEV uint32_t rope_empty() const { return base + (2 * X::kSlots + 1) * 8; } /* 4 scoring warps */
  FHK_DEV uint32_t given(uint32_t buffer) const {
    return base + (2 * X::kSlots + 2 + buffer) * 8;
  } /* 4 scoring warps */
  FHK_DEV uint32_t taken(uint32_t buffer) const { return base + (2 * X::kSlots + 4 + buffer) * 8; } /* 8 PV warps */
  FHK_DEV uint32_t told(uint32_t k) const {
    return base + (2 * X::kSlots + 6 + k) * 8;
  }                                                                               /* one fetching thread; k < 4 */
  FHK_DEV uint32_t tail_full() const { return base + (2 * X::kSlots + 10) * 8; }  /* 128 fetching threads */
  FHK_DEV uint32_t tail_empty() const { return base + (2 * X::kSlots + 11) * 8; } /* 4 scoring warps */
  FHK_DEV void init() const {
    for (uint32_t i = 0; i < X::kSlots; i++) {
      ptx::mbar_init(full(i), 128 + 4 * kWarpArrivals);
      ptx::mbar_init(empty(i), 4 * kWarpArrivals);
    }
    ptx::mbar_init(rope_full(), 128);
    ptx::mbar_init(rope_empty(), 4 * kWarpArrivals);
    for (uint32_t buffer = 0; buffer < 2; buffer++) {
      ptx::mbar_init(given(buffer), 4 * kWarpArrivals);
      ptx::mbar_init(taken(buffer), 8 * kWarpArrivals);
    }
    for (uint32_t k = 0; k < 4; k++) ptx::mbar_init(told(k), 1);
    ptx::mbar_init(tail_full(), 128);
    ptx::mbar_init(tail_empty(), 4 * kWarpArrivals);
    ptx::fence_mbar_init();
  }
};

/* Which quarter of a block's columns its slot number k holds, and the other way round. The first two slots are those
 * that the first products of either PV warpgroup let go, and their scores take Q from registers and from shared memory
 * by turns, as do those of the last two. */
FHK_DEV constexpr int quarter_of(int k) { return k == 1 || k == 2 ? 3 - k : k; }
static_assert(kRegisterSteps == 16, "quarters 0 and 1 have their Q in registers, 2 and 3 in shared memory");

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

/* The CTA's tile number `turn`, told while the one before is fetched. There is room for four: four tiles are more
 * slots than the ring has, so all have read the one that is overwritten. */
FHK_DEV void tell_tile(uint32_t tiles, uint32_t told, uint32_t turn, const Tile &tile) {
  const uint32_t to = tiles + (turn & 3) * static_cast<uint32_t>(sizeof tile);
  const uint64_t first = static_cast<uint64_t>(tile.first), list = reinterpret_cast<uint64_t>(tile.list);
  ptx::st_shared4(to, static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32), static_cast<uint32_t>(list),
                  static_cast<uint32_t>(list >> 32));
  ptx::st_shared4(to + 16, static_cast<uint32_t>(tile.rows), tile.entries, static_cast<uint32_t>(tile.part), 0);
  ptx::mbar_arrive(told);
}
template <int kD>
FHK_DEV Tile hear_tile(uint32_t smem, uint32_t turn) {
  using X = Shape<kD>;
  ptx::mbar_wait(Barriers<kD>{smem + X::kBarriers}.told(turn & 3), turn >> 2 & 1);
  const uint32_t from = smem + X::kTiles + (turn & 3) * static_cast<uint32_t>(sizeof(Tile));
  const uint4 a = ptx::ld_shared4(from), b = ptx::ld_shared4(from + 16);
  return {static_cast<int64_t>(a.x | static_cast<uint64_t>(a.y) << 32),
          reinterpret_cast<const int32_t *>(a.z | static_cast<uint64_t>(a.w) << 32),
          static_cast<int32_t>(b.x),
          b.y,
          static_cast<int32_t>(b.z),
          0};
}

/* Where the next block's words are. */
template <int kD>
FHK_DEV uint32_t next_words(uint32_t smem, uint32_t words) {
  return words == smem + Shape<kD>::kWords + 2 * kWordBytes ? smem + Shape<kD>::kWords : words + kWordBytes;
}

FHK_DEV int granules(const Tile &tile) { return (tile.rows + kGranule - 1) / kGranule; }
/* Ring slots of a tile's Q. */
FHK_DEV int query_slots(const Tile &tile) { return (granules(tile) + 1) / 2; }

/* Warpgroup 3. Thread t copies 16-byte unit t % 8 of rows t / 8 + {0, 16, 32, 48}: eight threads cover 128 bytes */

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
/* A slot of the ring is written, and so is what the warp stored before. */
template <bool kAligned>
FHK_DEV void slot_arrive(uint32_t bar, int lane) {
  copies_arrive<kAligned>(bar);
  warp_arrive(bar, lane);
}

/* The fetching thread's share of every 16 rows: 16-byte unit `unit` of row row0, which lies at `mine`. */
struct Share {
  int row0, unit;
  uint32_t mine;
};

/* The columns of a tile's Q that go to registers, through the ring. */
template <int kD, bool kAligned, typename Tiling>
FHK_DEV void fetch_query(const Tiling &tiling, const Tile &tile, uint32_t smem, const Barriers<kD> &bar,
                         const Share &share, int lane, Ring<Shape<kD>::kSlots> &ring) {
  using X = Shape<kD>;
  for (int g = 0; g < granules(tile); g++) {
    const int r = g * kGranule + share.row0;
    const uint16_t *src = tiling.q_row(tile, r < tile.rows ? r : 0) + share.unit * 8;
    const uint32_t dst = smem + X::kRing + ring.slot * kSlotBytes + (g & 1) * kGranuleBytes + share.mine;
    if ((g & 1) == 0) ptx::mbar_wait(bar.empty(ring.slot), ring.phase ^ 1);
#pragma unroll
    for (int c = 0; c < kRegisterSteps / 4; c++)
      copy_unit<kAligned>(dst + c * kGranuleSlice, src + c * 64, r < tile.rows);
    if ((g & 1) == 1 || g + 1 == granules(tile)) {
      slot_arrive<kAligned>(bar.full(ring.slot), lane);
      ring.skip(1);
    }
  }
}

/* The columns of Q that wgmma reads in shared memory, once that is free. `filled`: granules of it that may be other
 * than zero. */
template <int kD, bool kAligned, typename Tiling>
FHK_DEV void fetch_tail(const Tiling &tiling, const Tile &tile, uint32_t smem, const Barriers<kD> &bar,
                        const Share &share, uint32_t turn, int &filled) {
  using X = Shape<kD>;
  ptx::mbar_wait(bar.tail_empty(), (turn & 1) ^ 1);
  for (int g = 0; g < max(granules(tile), filled); g++) { /* with zeros where the last tile had rows, or nobody yet */
    const int r = g * kGranule + share.row0;
    const uint16_t *src = tiling.q_row(tile, r < tile.rows ? r : 0) + kRegisterSteps * 16 + share.unit * 8;
    const uint32_t dst = smem + X::kQueryTail + g * kGranuleSlice + share.mine;
#pragma unroll
    for (int c = 0; c < kTailSlices + (X::kRope ? 1 : 0); c++)
      copy_unit<kAligned>(dst + c * kSliceBytes, src + c * 64, r < tile.rows);
  }
  filled = granules(tile);
  copies_arrive<kAligned>(bar.tail_full());
}

/* Bit b of a query's word of 64 stands for this entry of the block; b < 32, bit b + 32 for the fourth entry behind. So
 * the bits 16 c .. 16 c + 15 are those of the columns that a scoring lane with lane % 4 = c holds, in its order. */
FHK_DEV uint32_t entry_of_bit(uint32_t b) { return 8 * ((b & 15) >> 1) + 2 * (b >> 4) + (b & 1); }

/* The words of a block, by a warp for its 16 rows: which entries each query chose. member0, member1: those of the
 * lane's two entries, a bit a query. */
FHK_DEV void store_words(uint32_t words, uint32_t member0, uint32_t member1, int query0, int queries, int lane) {
  uint2 word = make_uint2(0, 0);
  for (int q = 0; q < queries; q++) {
    const uint32_t low = __ballot_sync(~0u, member0 >> ((query0 + q) & 31) & 1);
    const uint32_t high = __ballot_sync(~0u, member1 >> ((query0 + q) & 31) & 1);
    if (lane == q) word = make_uint2(low, high);
  }
  if (lane < queries) ptx::st_shared2(words + lane * 8, word.x, word.y);
}

/* Start a tile's Q and list towards L2, by lines of 128 bytes. */
template <int kD, typename Tiling>
FHK_DEV void prefetch_tile(const Tiling &tiling, const Tile &next, const Share &share, int t) {
  for (int r = share.row0; r < next.rows; r += kGranule)
    for (int column = share.unit * 64; column < kD; column += 8 * 64) ptx::prefetch_l2(tiling.q_row(next, r) + column);
  for (uint32_t at = t * 32; at < next.entries; at += 128 * 32) ptx::prefetch_l2(next.list + at);
}

template <int kD, bool kAligned, typename Tiling>
FHK_DEV void fetch(const Tiling &tiling, int32_t tiles, uint32_t smem, int t, int warp, int lane) {
  using X = Shape<kD>;
  const Barriers<kD> bar{smem + X::kBarriers};
  const Share share = {t >> 3, t & 7, swizzled(t >> 3, t & 7)};
  const int query0 = tiling.query_of(warp * kGranule),
            queries = tiling.query_of(warp * kGranule + kGranule - 1) - query0 + 1;
  Ring<X::kSlots> ring;
  uint32_t rope_phase = 1, words = smem + X::kWords;
  int filled = kRows / kGranule;                   /* granules of the tail that may be other than zero */
  int32_t i = blockIdx.x, looked = tiling.look(i); /* thread 0: the tile to tell of next */
  auto tell = [&](uint32_t turn) {
    Tile tile = {0, nullptr, -1, 0, 0, 0};
    if (i < tiles) {
      tile = tiling.tile(i, looked);
      i = tiling.next(i);
      if (i < tiles) looked = tiling.look(i);
    }
    tell_tile(smem + X::kTiles, bar.told(turn & 3), turn, tile);
  };
  if (t == 0) tell(0);
  for (uint32_t turn = 0;; turn++) {
    const Tile tile = hear_tile<kD>(smem, turn);
    if (tile.rows < 0) break;
    int32_t entries[4];
    auto start_entries = [&](int32_t n) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const uint32_t pos = n * kBlock + share.row0 + 16 * k;
        entries[k] = pos < tile.entries ? __ldg(tile.list + pos) : -1;
      }
    };
    start_entries(0);
    fetch_query<kD, kAligned>(tiling, tile, smem, bar, share, lane, ring);
    /* ---- K = V */
    const int32_t blocks = blocks_of(tile);
    for (int32_t n = 0; n < blocks; n++) {
      const uint32_t pos = n * kBlock + entry_of_bit(lane);
      const uint32_t member0 = pos < tile.entries ? tiling.member(tile, pos, query0 >> 5) : 0;
      const uint32_t member1 = pos + 4 < tile.entries ? tiling.member(tile, pos + 4, query0 >> 5) : 0;
      const uint16_t *src[4];
      bool real[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        real[k] = static_cast<uint32_t>(entries[k]) < tiling.kv_rows;
        src[k] = tiling.kv(real[k] ? entries[k] : 0) + share.unit * 8;
      }
      if (n + 1 < blocks) start_entries(n + 1);
#pragma unroll
      for (int k_slot = 0; k_slot < kQuarters; k_slot++) {
        const uint32_t dst = smem + X::kRing + ring.slot * kSlotBytes + share.mine;
        if (k_slot == 1 && n == 0) /* before the first scores that need it; the slot in front need not wait for it */
          fetch_tail<kD, kAligned>(tiling, tile, smem, bar, share, turn, filled);
        if (k_slot == kQuarters - 1) { /* those of three blocks ago were used before PV let go of the slot before */
          store_words(words + warp * kGranule * 8, member0, member1, query0, queries, lane);
          words = next_words<kD>(smem, words);
        }
        ptx::mbar_wait(bar.empty(ring.slot), ring.phase ^ 1);
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
          for (int k = 0; k < 4; k++)
            copy_unit<kAligned>(dst + c * kSliceBytes + k * kGranuleSlice, src[k] + (quarter_of(k_slot) * 2 + c) * 64,
                                real[k]);
        }
        slot_arrive<kAligned>(bar.full(ring.slot), lane);
        ring.skip(1);
      }
      if constexpr (X::kRope) {
        const uint32_t dst = smem + X::kRopeSlot + share.mine;
        ptx::mbar_wait(bar.rope_empty(), rope_phase);
        rope_phase ^= 1;
#pragma unroll
        for (int k = 0; k < 4; k++) copy_unit<kAligned>(dst + k * kGranuleSlice, src[k] + kDv, real[k]);
        copies_arrive<kAligned>(bar.rope_full());
      }
      if (n == 0 && t == 0) tell(turn + 1);
      if (n == 1 || blocks == 1) prefetch_tile<kD>(tiling, hear_tile<kD>(smem, turn + 1), share, t);
    }
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

/* NaN counts as the largest where rows share a tile. */
template <bool kShared>
FHK_DEV float larger(float a, float b) {
  return kShared ? ptx::max_nan(a, b) : fmaxf(a, b);
}
/* Of either row, with the four scores of columns j and j + 1. */
template <bool kShared>
FHK_DEV float2 larger_pair(float2 x, const float *s) {
  return make_float2(larger<kShared>(x.x, larger<kShared>(s[0], s[1])),
                     larger<kShared>(x.y, larger<kShared>(s[2], s[3])));
}
/* The largest of the lane's scores of either row. */
template <bool kShared>
FHK_DEV float2 lane_max(const float (&s)[32]) {
  float2 x[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float *t = s + 8 * j;
    x[j] = larger_pair<kShared>(make_float2(larger<kShared>(t[0], t[1]), larger<kShared>(t[2], t[3])), t + 4);
  }
  return make_float2(larger<kShared>(larger<kShared>(x[0].x, x[1].x), larger<kShared>(x[2].x, x[3].x)),
                     larger<kShared>(larger<kShared>(x[0].y, x[1].y), larger<kShared>(x[2].y, x[3].y)));
}
/* The largest over the four lanes that share two rows, NaN left out. */
FHK_DEV float2 quad_max(float2 x) {
#pragma unroll
  for (int d = 1; d <= 2; d <<= 1) {
    const float a = __shfl_xor_sync(~0u, x.x, d), b = __shfl_xor_sync(~0u, x.y, d);
    x = make_float2(fmaxf(x.x, a), fmaxf(x.y, b));
  }
  return x;
}

/* Replace the scores of pairs that do not belong together: bit 2 j + e of chosen0 or chosen1 says that the lane's first
 * or second row chose column 8 j + 2 (lane % 4) + e. */
template <typename Replace>
FHK_DEV void hide(float (&s)[32], uint32_t chosen0, uint32_t chosen1, Replace &&replace) {
#pragma unroll
  for (int j = 0; j < 8; j++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      if (!(chosen0 >> (2 * j + e) & 1)) s[4 * j + e] = replace(s[4 * j + e]);
      if (!(chosen1 >> (2 * j + e) & 1)) s[4 * j + 2 + e] = replace(s[4 * j + 2 + e]);
    }
  }
}

/* Zero those V rows of the block before `after` that hold a NaN or an Inf, as far as this warp's scores show them. */
template <int kSlots>
FHK_DEV void silence(const float (&s)[32], uint32_t ring, const Ring<kSlots> &after, int lane) {
#pragma unroll
  for (int k = 0; k < 16; k++) {
    const int at = 4 * (k >> 1) + (k & 1);
    uint32_t who = __ballot_sync(~0u, !(s[at] < INFINITY) | !(s[at + 2] < INFINITY));
    who |= who >> 16, who |= who >> 8, who |= who >> 4, who &= 15; /* bit c: a lane with column 8 (k / 2) + 2 c
                                                                      + k % 2 */
    while (who) {
      const uint32_t row = 8 * (k >> 1) + 2 * (__ffs(who) - 1) + (k & 1);
      who &= who - 1;
      uint32_t to[2]; /* lane: unit lane % 8 of two of the row's eight slices */
      bool bad = false;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint32_t slice = 4 * h + (lane >> 3),
                       slot = after.ahead(kSlots - kQuarters + quarter_of(slice >> 1)).slot;
        to[h] = ring + slot * kSlotBytes + (slice & 1) * kSliceBytes + row * 128 + (lane & 7) * 16;
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

/* Q of a tile from the ring to the registers of a scoring warp. */
template <int kD>
FHK_DEV void load_query(uint32_t (&q)[kRegisterSteps][4], const Tile &tile, uint32_t smem, const Barriers<kD> &bar,
                        Ring<Shape<kD>::kSlots> &ring, uint32_t frag_row, uint32_t frag_unit, int warp, int lane) {
  using X = Shape<kD>;
  const int slots = query_slots(tile);
  for (int k = 0; k < slots; k++) { /* all of them: letting a slot go that is not filled yet would count for
                                       what it held */
    const Ring<X::kSlots> at = ring.ahead(k);
    ptx::mbar_wait(bar.full(at.slot), at.phase);
  }
  if (warp < granules(tile)) {
    const uint32_t src = smem + X::kRing + ring.ahead(warp >> 1).slot * kSlotBytes + (warp & 1) * kGranuleBytes;
#pragma unroll
    for (int k = 0; k < kRegisterSteps; k++)
      ptx::ldmatrix4(q[k], src + (k >> 2) * kGranuleSlice + swizzled(frag_row, 2 * (k & 3) + frag_unit));
  } else {
#pragma unroll
    for (int k = 0; k < kRegisterSteps; k++) q[k][0] = q[k][1] = q[k][2] = q[k][3] = 0;
  }
  for (int k = 0; k < slots; k++) warp_arrive(bar.empty(ring.ahead(k).slot), lane);
  ring.skip(slots);
}

/* Queue S = Q K^T of a block, number n of its tile and `turn` of the CTA. The P of the block before is given away
 * when all of it is queued. A step with Q in registers and one with Q in shared memory follow each other by turns: the
 * tensor cores load the one's Q while they multiply the other's. */
template <int kD>
FHK_DEV void queue_scores(float (&s)[32], const uint32_t (&q)[kRegisterSteps][4], uint32_t smem,
                          const Barriers<kD> &bar, Ring<Shape<kD>::kSlots> &ring, int32_t n, uint32_t turn,
                          uint32_t tile_turn, int lane) {
  using X = Shape<kD>;
  const uint64_t tail = ptx::desc_k_major(smem + X::kQueryTail);
#pragma unroll
  for (int pair = 0; pair < 2; pair++) { /* of slots: quarters `pair` and 2 + pair */
    const Ring<X::kSlots> right = ring.ahead(1);
    if (pair == 0 && n == 0) ptx::mbar_wait(bar.tail_full(), tile_turn & 1);
    ptx::mbar_wait(bar.full(ring.slot), ring.phase);
    ptx::mbar_wait(bar.full(right.slot), right.phase);
    ptx::fence_proxy_async(); /* landed cp.async writes, and P of the block before, before wgmma reads them */
    ptx::wgmma_fence();
    const uint64_t left_k = ptx::desc_k_major(smem + X::kRing + ring.slot * kSlotBytes);
    const uint64_t right_k = ptx::desc_k_major(smem + X::kRing + right.slot * kSlotBytes);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int step = pair * 8 + k;
      const uint32_t at = (k >> 2) * (kSliceBytes / 16) + (k & 3) * 2;
      ptx::wgmma_rs<0>(s, q[step], left_k + at, step != 0);
      ptx::wgmma_ss<0, 0>(s, tail + (step >> 2) * (kSliceBytes / 16) + (step & 3) * 2, right_k + at, 1);
    }
    ptx::wgmma_commit();
    ring.skip(2);
  }
  if (n > 0) warp_arrive(bar.given((turn & 1) ^ 1), lane);
  if constexpr (X::kRope) {
    ptx::mbar_wait(bar.rope_full(), turn & 1);
    ptx::fence_proxy_async();
    ptx::wgmma_fence();
    const uint64_t k_desc = ptx::desc_k_major(smem + X::kRopeSlot);
#pragma unroll
    for (int k = 0; k < 4; k++)
      ptx::wgmma_ss<0, 0>(s, tail + kTailSlices * (kSliceBytes / 16) + k * 2, k_desc + k * 2, 1);
    ptx::wgmma_commit();
  }
}

/* P = 2^(scale S - m) to shared memory; p_mine: where the lane's unit of the first 16 columns goes. Returns the lane's
 * part of the sums of its two rows. S is lost: with the exponentials in its registers many of them are on their way at
 * once. */
FHK_DEV float2 make_p(float (&s)[32], float scale, float m0, float m1, uint32_t p_mine) {
  float2 sums = make_float2(0.f, 0.f);
#pragma unroll
  for (int k = 0; k <= 4; k++) { /* exponentials of one k16 step are on their way while those of the last are used */
    if (k < 4) {
#pragma unroll
      for (int j = 0; j < 8; j++) s[8 * k + j] = ptx::exp2_here(fmaf(s[8 * k + j], scale, j & 2 ? -m1 : -m0));
    }
    if (k > 0) {
      const float *p = s + 8 * (k - 1);
      sums.x += (p[0] + p[1]) + (p[4] + p[5]);
      sums.y += (p[2] + p[3]) + (p[6] + p[7]);
      /* swizzled() leaves the unit's upper bits, which number the 16 columns, where a xor reaches them. */
      ptx::stmatrix4(p_mine ^ (k - 1) << 5, ptx::pack_bf16(p[0], p[1]), ptx::pack_bf16(p[2], p[3]),
                     ptx::pack_bf16(p[4], p[5]), ptx::pack_bf16(p[6], p[7]));
    }
  }
  return sums;
}

/* The end of a tile, by the first lane of each quad: what O is multiplied by to be out. top: the true maxima of its two
 * rows; rest: what brings O and the sums up to them; l: the whole sums by then. */
template <typename Tiling>
FHK_DEV void finish_rows(float2 top, float2 rest, float2 l, float sink0, float sink1, uint32_t finish) {
  if constexpr (!Tiling::kPartial) {
    rest.x *= inverse_denominator(top.x, l.x, sink0 * kLog2e);
    rest.y *= inverse_denominator(top.y, l.y, sink1 * kLog2e);
  }
  ptx::st_shared_f(finish, rest.x);
  ptx::st_shared_f(finish + 8 * 4, rest.y);
}
/* And the statistics, which nobody waits for. */
template <typename Tiling>
FHK_DEV void store_sums(const Tiling &tiling, const Tile &tile, int r0, float2 top, float2 l) {
  const int r1 = r0 + 8;
  if constexpr (Tiling::kPartial) {
    tiling.sums(tile)[r0] = make_float2(top.x, l.x);
    tiling.sums(tile)[r1] = make_float2(top.y, l.y);
  } else {
    if (r0 < tile.rows) tiling.statistics(tile, r0, top.x, l.x);
    if (r1 < tile.rows) tiling.statistics(tile, r1, top.y, l.y);
  }
}

template <int kD, typename Tiling>
FHK_DEV void score(const Tiling &tiling, uint32_t smem, int warp, int lane) {
  using X = Shape<kD>;
  const Barriers<kD> bar{smem + X::kBarriers};
  /* This lane's row and first unit for ldmatrix: matrices 0, 1 are rows 0..7, 8..15 of the left 8 columns, 2, 3 of
   * the right. */
  const uint32_t frag_row = (lane & 7) + ((lane >> 3) & 1) * 8, frag_unit = lane >> 4;
  const uint32_t p_mine = smem + X::kP + warp * kGranuleSlice + swizzled(frag_row, frag_unit);
  const int r0 = warp * kGranule + (lane >> 2), r1 = r0 + 8;
  Ring<X::kSlots> ring;
  uint32_t turn = 0; /* blocks so far */
  uint32_t words = smem + X::kWords;
  const uint32_t word0 =
      (warp * kGranule + tiling.query_of(r0) - tiling.query_of(warp * kGranule)) * 8 + 2 * (lane & 3);
  const uint32_t word1 = word0 + (tiling.query_of(r1) - tiling.query_of(r0)) * 8;
  for (uint32_t tile_turn = 0;; tile_turn++) {
    Tile tile = hear_tile<kD>(smem, tile_turn);
    if (tile.rows < 0) break;
    const int32_t blocks = blocks_of(tile);
    uint32_t q[kRegisterSteps][4];
    load_query<kD>(q, tile, smem, bar, ring, frag_row, frag_unit, warp, lane);
    float2 top = make_float2(-INFINITY, -INFINITY); /* the lane's largest scores so far */
    float m0 = kMaxStart, m1 = kMaxStart;           /* the maxima that P and the sums refer to */
    float l0 = 0.f, l1 = 0.f;
    for (int32_t n = 0; n < blocks; n++) {
      const bool last = n + 1 == blocks;
      const uint32_t buffer = turn & 1;
      float s[32];
      queue_scores<kD>(s, q, smem, bar, ring, n, turn, tile_turn, lane);
      float sink0 = -INFINITY, sink1 = -INFINITY; /* of the tile that ends with this block, on their way until then */
      if constexpr (!Tiling::kPartial) {
        if (last) {
          tile = hear_tile<kD>(smem, tile_turn); /* again: it would cost registers beside Q */
          if (r0 < tile.rows) sink0 = tiling.sink(tile, r0);
          if (r1 < tile.rows) sink1 = tiling.sink(tile, r1);
        }
      }
      ptx::mbar_wait(bar.taken(buffer), (turn >> 1 & 1) ^ 1);
      const uint32_t rescale = smem + X::kRescale + (buffer * kRows + r0) * 4;
      if ((lane & 3) == 0) {
        ptx::st_shared_f(rescale, 1.f);
        ptx::st_shared_f(rescale + 8 * 4, 1.f);
      }
      ptx::wgmma_wait<0>();
      ptx::keep(s);
      if constexpr (X::kRope) warp_arrive(bar.rope_empty(), lane);
      if (last) warp_arrive(bar.tail_empty(), lane);
      const uint32_t chosen0 = ptx::ld_shared_u16(words + word0), chosen1 = ptx::ld_shared_u16(words + word1);
      if (Tiling::kShared || chosen0 != 0xffff)
        hide(s, chosen0, chosen1, [](float x) { return Tiling::kShared ? fmaf(x, 0.f, -INFINITY) : -INFINITY; });
      float2 x = lane_max<Tiling::kShared>(s);
      if (n == 0 ||
          __any_sync(~0u, !(fmaf(x.x, tiling.scale, -m0) <= kSlack) | !(fmaf(x.y, tiling.scale, -m1) <= kSlack))) {
        if constexpr (Tiling::kShared) {
          if (__any_sync(~0u, !(x.x < INFINITY) | !(x.y < INFINITY))) {
            silence(s, smem + X::kRing, ring, lane);
            /* The words are read anew, or the compiler keeps the 64 conditions of above for this. */
            hide(s, ptx::ld_shared_u16(words + word0), ptx::ld_shared_u16(words + word1),
                 [](float) { return -INFINITY; });
            x = lane_max<true>(s);
          }
        }
        const float2 row = quad_max(x);
        const float old0 = m0, old1 = m1;
        m0 = fmaxf(m0, row.x * tiling.scale);
        m1 = fmaxf(m1, row.y * tiling.scale);
        const float rescale0 = ptx::exp2(old0 - m0), rescale1 = ptx::exp2(old1 - m1);
        l0 *= rescale0, l1 *= rescale1;
        if ((lane & 3) == 0) {
          ptx::st_shared_f(rescale, rescale0);
          ptx::st_shared_f(rescale + 8 * 4, rescale1);
        }
      }
      const float2 sums = make_p(s, tiling.scale, m0, m1, p_mine + buffer * kSliceBytes);
      top = make_float2(fmaxf(top.x, x.x), fmaxf(top.y, x.y));
      l0 += sums.x, l1 += sums.y;
      words = next_words<kD>(smem, words);
      turn++;
      if (!last) continue;
      /* out = O / (l + 2^(sink - m)), with the true maxima again */
      if constexpr (Tiling::kPartial) tile = hear_tile<kD>(smem, tile_turn);
      top = quad_max(top);
      top = make_float2(fmaxf(top.x * tiling.scale, kMaxStart), fmaxf(top.y * tiling.scale, kMaxStart));
      const float2 rest = make_float2(ptx::exp2(m0 - top.x), ptx::exp2(m1 - top.y));
      const float2 l = quad_sum(make_float2(l0 * rest.x, l1 * rest.y));
      if ((lane & 3) == 0)
        finish_rows<Tiling>(top, rest, l, sink0, sink1, smem + X::kFinish + ((tile_turn & 1) * kRows + r0) * 4);
      ptx::fence_proxy_async();             /* P, before wgmma reads it */
      warp_arrive(bar.given(buffer), lane); /* no next scores to queue first */
      if ((lane & 3) == 0) store_sums(tiling, tile, r0, top, l);
    }
  }
}

/* ---- Warpgroups 1 and 2: P and O = P V, columns 256 half .. 256 half + 255 ---- */

/* Store 128 columns of one of the lane's two rows; row may be NULL. */
template <int kHalf>
FHK_DEV void store_row(const float (&o)[64], float factor, uint16_t *row, bool aligned_out, int lane) {
  const int c4 = lane & 3;
  uint32_t v[4][4]; /* [32 columns][pair 8 k + 2 c4] */
#pragma unroll
  for (int j = 0; j < 4; j++) {
#pragma unroll
    for (int k = 0; k < 4; k++)
      v[j][k] = ptx::pack_bf16(o[16 * j + 4 * k + 2 * kHalf] * factor, o[16 * j + 4 * k + 2 * kHalf + 1] * factor);
  }
  if (!aligned_out) {
    if (!row) return;
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        row[32 * j + 8 * k + 2 * c4] = static_cast<uint16_t>(v[j][k]);
        row[32 * j + 8 * k + 2 * c4 + 1] = static_cast<uint16_t>(v[j][k] >> 16);
      }
    }
    return;
  }
  /* A 4 x 4 transpose in the quad gives the lane columns 8 c4 .. 8 c4 + 7 of each 32; the four in step, for latency. */
#pragma unroll
  for (int d = 1; d <= 2; d <<= 1) {
    const bool right = c4 & d;
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        if (k & d) continue;
        const uint32_t other = __shfl_xor_sync(~0u, right ? v[j][k] : v[j][k + d], d);
        v[j][k] = right ? other : v[j][k];
        v[j][k + d] = right ? v[j][k + d] : other;
      }
    }
  }
  if (!row) return;
#pragma unroll
  for (int j = 0; j < 4; j++)
    *reinterpret_cast<uint4 *>(row + 32 * j + 8 * c4) = make_uint4(v[j][0], v[j][1], v[j][2], v[j][3]);
}

template <int kD, typename Tiling>
FHK_DEV void pv(const Tiling &tiling, uint32_t smem, int half, int warp, int lane) {
  using X = Shape<kD>;
  const Barriers<kD> bar{smem + X::kBarriers};
  const int r0 = warp * kGranule + (lane >> 2), r1 = r0 + 8;
  Ring<X::kSlots> ring;
  uint32_t turn = 0;
  for (uint32_t tile_turn = 0;; tile_turn++) {
    const Tile tile = hear_tile<kD>(smem, tile_turn);
    if (tile.rows < 0) break;
    const int32_t blocks = blocks_of(tile);
    ring.skip(query_slots(tile));
    float o0[64], o1[64]; /* 128 columns each */
    float finish0, finish1;
    for (int32_t n = 0; n < blocks; n++) {
      const uint32_t buffer = turn & 1;
      const Ring<X::kSlots> left = ring.ahead(quarter_of(2 * half)), right = ring.ahead(quarter_of(2 * half + 1));
      ptx::mbar_wait(bar.full(left.slot), left.phase);
      ptx::mbar_wait(bar.full(right.slot), right.phase);
      ptx::fence_proxy_async(); /* landed V, before wgmma reads it */
      ptx::mbar_wait(bar.given(buffer), turn >> 1 & 1);
      turn++;
      const float rescale0 = ptx::ld_shared_f(smem + X::kRescale + (buffer * kRows + r0) * 4);
      const float rescale1 = ptx::ld_shared_f(smem + X::kRescale + (buffer * kRows + r1) * 4);
      if (n > 0 && __any_sync(~0u, (rescale0 != 1.f) | (rescale1 != 1.f))) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
          o0[4 * j] *= rescale0, o0[4 * j + 1] *= rescale0, o0[4 * j + 2] *= rescale1, o0[4 * j + 3] *= rescale1;
          o1[4 * j] *= rescale0, o1[4 * j + 1] *= rescale0, o1[4 * j + 2] *= rescale1, o1[4 * j + 3] *= rescale1;
        }
      }
      const uint64_t p = ptx::desc_k_major(smem + X::kP + buffer * kSliceBytes);
      const uint64_t v0 = ptx::desc_mn_major(smem + X::kRing + left.slot * kSlotBytes, kSliceBytes);
      const uint64_t v1 = ptx::desc_mn_major(smem + X::kRing + right.slot * kSlotBytes, kSliceBytes);
      ptx::keep(o0);
      ptx::keep(o1);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; k++) ptx::wgmma_ss<0, 1>(o0, p + k * 2, v0 + k * 128, (k > 0) | (n > 0));
      ptx::wgmma_commit();
#pragma unroll
      for (int k = 0; k < 4; k++) ptx::wgmma_ss<0, 1>(o1, p + k * 2, v1 + k * 128, (k > 0) | (n > 0));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::keep(o0);
      warp_arrive(bar.empty(left.slot), lane);
      ptx::wgmma_wait<0>();
      ptx::keep(o1);
      if (n + 1 == blocks) { /* before `taken` lets them be written anew */
        finish0 = ptx::ld_shared_f(smem + X::kFinish + ((tile_turn & 1) * kRows + r0) * 4);
        finish1 = ptx::ld_shared_f(smem + X::kFinish + ((tile_turn & 1) * kRows + r1) * 4);
      }
      warp_arrive(bar.empty(right.slot), lane);
      warp_arrive(bar.taken(buffer), lane);
      ring.skip(kQuarters);
    }
    if constexpr (Tiling::kPartial) {
      float4 *to = tiling.partial(tile) + half * 32 * 128 + warp * 32 + lane;
#pragma unroll
      for (int j = 0; j < 16; j++)
        to[j * 128] =
            make_float4(o0[4 * j] * finish0, o0[4 * j + 1] * finish0, o0[4 * j + 2] * finish1, o0[4 * j + 3] * finish1);
#pragma unroll
      for (int j = 0; j < 16; j++)
        to[(16 + j) * 128] =
            make_float4(o1[4 * j] * finish0, o1[4 * j + 1] * finish0, o1[4 * j + 2] * finish1, o1[4 * j + 3] * finish1);
    } else if (warp * kGranule < tile.rows) {
      uint16_t *row = r0 < tile.rows ? tiling.out_row(tile, r0) + half * 256 : nullptr;
      store_row<0>(o0, finish0, row, tiling.aligned_out, lane);
      store_row<0>(o1, finish0, row ? row + 128 : nullptr, tiling.aligned_out, lane);
      if (warp * kGranule + 8 < tile.rows) {
        row = r1 < tile.rows ? tiling.out_row(tile, r1) + half * 256 : nullptr;
        store_row<1>(o0, finish1, row, tiling.aligned_out, lane);
        store_row<1>(o1, finish1, row ? row + 128 : nullptr, tiling.aligned_out, lane);
      }
    }
  }
}

template <int kD, bool kAligned, typename Tiling>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ Tiling tiling) {
  using X = Shape<kD>;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t smem = ptx::smem_addr(memory);
  const int all_warps = __shfl_sync(~0u, threadIdx.x >> 5, 0); /* the same in all lanes, and the compiler knows */
  const int group = all_warps >> 2, warp = all_warps & 3, t = threadIdx.x & 127, lane = t & 31;
  tiling.enter();
  const int32_t tiles = tiling.count();
  if (static_cast<int32_t>(blockIdx.x) >= tiles) return tiling.leave();
  if (threadIdx.x == 0) Barriers<kD>{smem + X::kBarriers}.init();
  __syncthreads();
  /* ptxas honours setmaxnreg only where each role is one branch of a single if/else. */
  if (group == 3) {
    ptx::setmaxnreg_dec<kFetchRegs>();
    fetch<kD, kAligned>(tiling, tiles, smem, t, warp, lane);
  } else if (group == 0) {
    ptx::setmaxnreg_inc<kScoreRegs>();
    score<kD>(tiling, smem, warp, lane);
  } else {
    ptx::setmaxnreg_inc<kPvRegs>();
    pv<kD>(tiling, smem, group - 1, warp, lane);
  }
  tiling.leave();
}

template <int kD, bool kAligned, typename Tiling>
cudaError_t prepare() {
  return cudaFuncSetAttribute(kernel<kD, kAligned, Tiling>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              Shape<kD>::kBytes);
}

/* early: the tiling's enter() keeps the order among grids, so that this one may start before the one in front has
 * ended. */
template <int kD, bool kAligned, typename Tiling>
cudaError_t launch(const Tiling &tiling, bool early, int32_t multiprocessors, cudaStream_t stream) {
  const int32_t ctas = tiling.tiles < multiprocessors ? tiling.tiles : multiprocessors;
  return launch_grid(early, kernel<kD, kAligned, Tiling>, ctas, kThreads, Shape<kD>::kBytes, stream, tiling);
}

}  // namespace sm90_tile
}  // namespace fhk

#endif
