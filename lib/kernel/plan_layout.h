/* Where the arrays of a plan lie in its memory, spelled once for every device. Host code of C and of CUDA C++. */
#ifndef FEWHEAD_KERNEL_PLAN_LAYOUT_H
#define FEWHEAD_KERNEL_PLAN_LAYOUT_H

#include "fewhead.h"
#include "groups.h"
#include "memory.h"

/* Each array starts on a multiple of this, counted from the start of the memory. */
enum { FH_PLAN_LINE = 256 };

static inline uint64_t fh_plan_part(uint64_t count, uint64_t size) {
  return fhk_round_up(fhk_mul(count, size), FH_PLAN_LINE);
}

/* Bytes from the start of the memory. What a device needs while it builds, its scratch, stands behind the arrays. */
typedef struct fh_plan_layout {
  uint64_t groups, token, member, entries, order, keys, first, packed_from, scratch;
} fh_plan_layout;

/* The layout for a call whose group is set; UINT64_MAX where a size leaves 64 bits. */
static inline fh_plan_layout fh_plan_layout_of(const fh_call *call) {
  fh_plan_layout at;
  at.groups = (uint64_t)fh_groups_most(call->s_q, call->requests, call->group);
  const uint64_t all = fhk_mul(at.groups, fhk_mul((uint64_t)call->topk, (uint64_t)call->group));
  at.token = 0;
  at.member = fh_plan_part(all, sizeof(int32_t));
  at.entries = fhk_add(at.member, fh_plan_part(all, sizeof(uint64_t)));
  at.order = fhk_add(at.entries, fh_plan_part(at.groups, sizeof(int32_t)));
  at.keys = fhk_add(at.order, fh_plan_part(at.groups, sizeof(int32_t)));
  at.first = fhk_add(at.keys, fh_plan_part((uint64_t)call->s_q, sizeof(int32_t)));
  at.packed_from = fhk_add(at.first, fh_plan_part(at.groups + 1, sizeof(int64_t)));
  at.scratch = fhk_add(at.packed_from, fh_plan_part(1, sizeof(int32_t)));
  return at;
}

/* Fills *plan: its sizes by the call, its arrays in `memory`. Returns the scratch behind them. */
static inline void *fh_plan_lay(const fh_call *call, void *memory, fh_plan *plan) {
  const fh_plan_layout at = fh_plan_layout_of(call);
  unsigned char *base = (unsigned char *)memory;
  plan->struct_size = sizeof *plan;
  plan->s_q = call->s_q;
  plan->requests = call->requests;
  plan->groups = (int64_t)at.groups;
  plan->group = call->group;
  plan->s_kv = (int32_t)call->s_kv;
  plan->capacity = call->topk * call->group;
  plan->token = (int32_t *)(void *)(base + at.token);
  plan->member = (uint64_t *)(void *)(base + at.member);
  plan->entries = (int32_t *)(void *)(base + at.entries);
  plan->order = (int32_t *)(void *)(base + at.order);
  plan->keys = (int32_t *)(void *)(base + at.keys);
  plan->first = (int64_t *)(void *)(base + at.first);
  plan->packed_from = (int32_t *)(void *)(base + at.packed_from);
  return base + at.scratch;
}

#endif
