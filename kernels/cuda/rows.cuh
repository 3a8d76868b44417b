/* Which rows a kernel that works row by row computes: all rows of a call, or the rows of the groups that the plan
 * does not pack. */
#ifndef FEWHEAD_KERNELS_CUDA_ROWS_CUH
#define FEWHEAD_KERNELS_CUDA_ROWS_CUH

#include "cuda/common.cuh"

namespace fhk {

/*
 * Rows have numbers here, 0 .. count - 1, in the order in which they are begun.
 * All rows of a call: the last one first, since the lists of a causal chunk are longest there.
 * Path FH_AUTO, on a plan: the rows of its groups order[0 .. packed_from), the last of these groups first, `group`
 * numbers each. A group that ends early lacks its last rows: they are -1. Neighbours are computed at about the same
 * time either way: they share KV rows that the L2 cache serves faster then.
 *
 * The plan's memory may hold anything: group numbers and rows are clamped as they are read, and no
 * address is bad.
 */
struct Rows {
  const int32_t *order; /* NULL: all rows */
  const int64_t *first; /* NULL: group g begins with row g * group */
  const int32_t *packed_from;
  int32_t all; /* rows of the call */
  int32_t group;
  int32_t groups;

  /* Groups that are left to this kernel. A negative number is a large one without its sign. */
  FHK_DEV int32_t left() const { return min(static_cast<uint32_t>(__ldg(packed_from)), static_cast<uint32_t>(groups)); }
  FHK_DEV int32_t count() const { return order ? left() * group : all; }
  /* In two steps, so that the first, a load, can be made early: the group that number n lies in, and its row. */
  FHK_DEV int32_t look(int32_t n) const { return order ? __ldg(order + left() - 1 - n / group) : 0; }
  FHK_DEV int32_t row(int32_t n, int32_t looked) const {
    if (!order) return all - 1 - n;
    looked = min(static_cast<uint32_t>(looked), static_cast<uint32_t>(groups) - 1);
    const int32_t s = (first ? static_cast<int32_t>(__ldg(first + looked)) : looked * group) + n % group;
    const int32_t end = first ? static_cast<int32_t>(__ldg(first + looked + 1)) : all;
    return s >= 0 && s < min(end, all) ? s : -1;
  }
};

/* Row numbers are below this limit, because kernels look a few grids ahead in 32 bits. A call of more rows has
 * terabytes of output. */
constexpr int64_t kMostRows = INT32_MAX - (1 << 20);

inline Rows rows_of(const fh_call &call) {
  const int32_t all = static_cast<int32_t>(call.s_q);
  if (call.path != FH_AUTO) return {nullptr, nullptr, nullptr, all, 1, 0};
  const fh_plan &plan = *call.plan;
  return {plan.order, plan.requests > 1 ? plan.first : nullptr, plan.packed_from, all,
          plan.group, static_cast<int32_t>(plan.groups)};
}
/* The most numbers that a call can have. */
inline int64_t most_rows(const fh_call &call) {
  return call.path == FH_AUTO ? call.plan->groups * call.plan->group : call.s_q;
}

}  // namespace fhk

#endif
