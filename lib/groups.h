/* The groups of a call on the packed path: how many there can be, and by which path each is expected to be cheaper. Read by C and by
 * CUDA C++; every device decides alike. */
#ifndef FEWHEAD_GROUPS_H
#define FEWHEAD_GROUPS_H

#include "fewhead.h"

#if defined(__CUDACC__)
#define FH_GROUPS static inline __host__ __device__
#else
#define FH_GROUPS static inline
#endif

/* The most groups that s_q rows make. A request of n > 0 rows makes 1 + (n - 1) / group of them, so m such requests make at most
 * m + (s_q - m) / group, which grows with m; m is at most `requests`, and at most s_q. */
FH_GROUPS int64_t fh_groups_most(int64_t s_q, int64_t requests, int64_t group) {
  int64_t m = requests < 1 ? 1 : requests;
  if (m > s_q) m = s_q;
  return m + (s_q - m) / group;
}

/* Where the request ends that an offset ends: offsets never fall, and never leave the chunk. */
FH_GROUPS int64_t fh_request_end(int64_t offset, int64_t end_before, int64_t s_q) {
  if (offset > s_q) return s_q;
  return offset < end_before ? end_before : offset;
}

/* Expected microseconds: of a packed group, of each 64 entries of its union begun; of a row on the gather path, of each of its keys. */
typedef struct fh_group_costs {
  double packed, packed_tile, gather_row, gather_key;
} fh_group_costs;

enum { FH_TILE_ENTRIES = 64 };

/* The policy's costs less those of the whole call, which do not depend on what a group does. All zeros where there is nothing to
 * choose: then no group gathers. */
FH_GROUPS fh_group_costs fh_group_costs_of(const fh_call *call) {
  const double gflop = 2.0 * call->h_q * ((double)call->d_qk + call->d_v) * 1e-9; /* of a query's heads and one key */
  const fh_policy *policy = call->policy;
  fh_group_costs costs = {0, 0, 0, 0};
  if (call->path != FH_AUTO || !policy) return costs;
  costs.packed = policy->packed.unit_us;
  costs.packed_tile = policy->packed.gflop_us * gflop * call->group * FH_TILE_ENTRIES;
  costs.gather_row = policy->gather.unit_us;
  costs.gather_key = policy->gather.gflop_us * gflop;
  return costs;
}

/* 1 where the rows of a group cost less one by one; a group without rows never does. */
FH_GROUPS int fh_group_gathers(const fh_group_costs *costs, int64_t entries, int64_t rows, int64_t keys) {
  const int64_t tiles = (entries + FH_TILE_ENTRIES - 1) / FH_TILE_ENTRIES;
  return rows > 0 && costs->gather_row * (double)rows + costs->gather_key * (double)keys <
                         costs->packed + costs->packed_tile * (double)tiles;
}

#endif
