/* The groups of a call on the packed path: how many there can be, and which of them FH_AUTO packs. Read by C and by
 * CUDA C++, so that every device decides alike. */
#ifndef FEWHEAD_GROUPS_H
#define FEWHEAD_GROUPS_H

#include "cost.h"
#include "fewhead.h"

#if defined(__CUDACC__)
#define FH_GROUPS static inline __host__ __device__
#else
#define FH_GROUPS static inline
#endif

/* The most groups that s_q rows make. A request of n > 0 rows makes 1 + (n - 1) / group of them, so m such requests
 * make at most m + (s_q - m) / group, which grows with m; m is at most `requests`, and at most s_q. */
FH_GROUPS int64_t fh_groups_most(int64_t s_q, int64_t requests, int64_t group) {
  int64_t m = requests < 1 ? 1 : requests;
  if (m > s_q) m = s_q;
  return m + (s_q - m) / group;
}

/* Returns the row behind the last row of a request, from its offset in cu_seqlens_q. An offset below the one before
 * counts as the one before; an offset beyond s_q counts as s_q. */
FH_GROUPS int64_t fh_request_end(int64_t offset, int64_t end_before, int64_t s_q) {
  if (offset > s_q) return s_q;
  return offset < end_before ? end_before : offset;
}

/* The path of rows that are not packed, for a call of full lists: every device takes the same one, before it knows the
 * lists. */
FH_GROUPS int32_t fh_rows_path(const fh_call *call, const fh_costs *costs) {
  const double rows = (double)call->s_q,
               gflop = fh_gflop(call->d_qk, call->d_v, rows * (double)call->topk); /* of a head */
  return fh_cheaper_rows(fh_cost_us(&costs->padded, rows, gflop * call->h_pad),
                         fh_cost_us(&costs->gather, rows, gflop * call->h_q));
}

/* Expected microseconds. packed: once, if any group is packed; packed_group: for each group; packed_tile: for each
 * 64 entries of a union, or part of 64. rows: once, if any group goes row by row; row: for each row; key: for each
 * key of a row. */
typedef struct fh_group_costs {
  double packed, packed_group, packed_tile, rows, row, key;
} fh_group_costs;

/* Tiles that entries fill: what a packed group's time goes by. */
enum { FH_TILE_ENTRIES = 64 };
FH_GROUPS int64_t fh_tiles(int64_t entries) { return (entries + FH_TILE_ENTRIES - 1) / FH_TILE_ENTRIES; }

/* Returns zeros if there is nothing to choose: then all groups are packed. */
FH_GROUPS fh_group_costs fh_group_costs_of(const fh_call *call) {
  const double gflop = fh_gflop(call->d_qk, call->d_v, 1); /* of one head and one key */
  const fh_costs *costs = call->costs;
  fh_group_costs group = {0, 0, 0, 0, 0, 0};
  if (call->path != FH_AUTO || !costs) return group;
  const int padded = fh_rows_path(call, costs) == FH_PADDED;
  const fh_path_cost rows = padded ? costs->padded : costs->gather;
  group.packed = costs->packed.call_us;
  group.packed_group = costs->packed.unit_us;
  group.packed_tile = costs->packed.gflop_us * gflop * call->h_q * call->group * FH_TILE_ENTRIES;
  group.rows = rows.call_us;
  group.row = rows.unit_us;
  group.key = rows.gflop_us * gflop * (padded ? call->h_pad : call->h_q);
  return group;
}

/* Nanoseconds that packing the group saves, below 0 where its rows cost less one by one; within 31 bits, so that sums
 * are exact. A group without rows saves nothing. */
FH_GROUPS int32_t fh_group_saves(const fh_group_costs *costs, int64_t entries, int64_t rows, int64_t keys) {
  const double ns = 1e3 * (costs->row * (double)rows + costs->key * (double)keys - costs->packed_group -
                           costs->packed_tile * (double)fh_tiles(entries));
  if (rows == 0) return 0;
  return ns > INT32_MAX ? INT32_MAX : ns < -INT32_MAX ? -INT32_MAX : (int32_t)ns;
}

/* Returns where a group stands in the order, from 0 to fh_tiles(capacity) + 1. Groups that cost less row by row have
 * 0 and keep their order, because neighbours share KV rows. Then come the packed groups, by falling tiles. */
FH_GROUPS uint32_t fh_group_rank(int64_t capacity, int64_t entries, int32_t saves) {
  return saves < 0 ? 0 : (uint32_t)(1 + fh_tiles(capacity) - fh_tiles(entries));
}

/* Returns how many groups are not packed: `fewer`, the groups that cost less row by row; or all or none, if one kind of
 * work costs less than both kinds in one call. saved: nanoseconds that packing saves on the other groups; lost:
 * nanoseconds that packing would lose on the `fewer` groups.
 */
FH_GROUPS int64_t fh_packed_from(const fh_group_costs *costs, int64_t groups, int64_t fewer, int64_t saved,
                                 int64_t lost) {
  const double beside_rows = (double)saved - 1e3 * costs->packed, beside_packed = (double)lost - 1e3 * costs->rows;
  if (beside_rows > 0 && beside_packed > 0) return fewer;
  return beside_rows < beside_packed ? groups : 0;
}

#endif
