/* What the files of the CPU back end share among themselves. */
#ifndef FEWHEAD_KERNELS_CPU_BACK_END_H
#define FEWHEAD_KERNELS_CPU_BACK_END_H

#include <stdatomic.h>
#include <string.h>

#include "cpu/cpu.h"
#include "memory.h"
#include "numbers.h"

int32_t fhk_cpu_threads(const fhk_cpu *cpu);
int32_t fhk_cpu_isa(const fhk_cpu *cpu);

/* Every part of the workspace starts on a cache line. */
static inline uint64_t fhk_align(uint64_t bytes) { return fhk_round_up(bytes, 64); }
static inline uint64_t fhk_part(uint64_t count, uint64_t size) { return fhk_align(fhk_mul(count, size)); }

/* Returns the length of row s's list: topk_length clamped to 0 .. topk. */
static inline int64_t fhk_list_length(const fh_call *call, int64_t s) {
  if (!call->topk_length) return call->topk;
  const int64_t length = call->topk_length[s];
  return length < 0 ? 0 : length > call->topk ? call->topk : length;
}

/* Returns the list of row s; NULL if topk is 0, because the array may be NULL then. */
static inline const int32_t *fhk_list(const fh_call *call, int64_t s) {
  return call->topk ? call->indices + s * call->indices_stride : NULL;
}

static inline int64_t fhk_clamp(int64_t value, int64_t least, int64_t most) {
  return value < least ? least : value > most ? most : value;
}

/*
 * Returns the rows of group g and sets *first to its first row; returns 0 if the plan has no group g. A plan lies in
 * the caller's memory and may have been overwritten after it was built. Results are then wrong, but no row lies outside
 * the call and no group has more than `group` rows.
 */
static inline int64_t fhk_plan_rows(const fh_plan *plan, int64_t g, int64_t *first) {
  *first = 0;
  if (g < 0 || g >= plan->groups) return 0;
  *first = fhk_clamp(plan->first[g], 0, plan->s_q);
  return fhk_clamp(plan->first[g + 1], *first, *first + plan->group < plan->s_q ? *first + plan->group : plan->s_q) -
         *first;
}

/* Group g of a plan, with all that kernels read of it; 0 queries if the plan has no group g. */
typedef struct fhk_group {
  int64_t first, entries;
  int32_t queries;
  uint64_t everyone; /* the bits of its queries */
  const int32_t *token;
  const uint64_t *member;
} fhk_group;

static inline fhk_group fhk_plan_group(const fh_plan *plan, int64_t g) {
  fhk_group group = {0};
  group.queries = (int32_t)fhk_plan_rows(plan, g, &group.first);
  if (group.queries == 0) return group;
  group.everyone = UINT64_MAX >> (64 - group.queries);
  group.entries = fhk_clamp(plan->entries[g], 0, plan->capacity);
  group.token = plan->token + g * plan->capacity;
  group.member = plan->member + g * plan->capacity;
  return group;
}

/* Groups at the start of the order that are not packed. */
static inline int64_t fhk_plan_packed_from(const fh_plan *plan) {
  return fhk_clamp(*plan->packed_from, 0, plan->groups);
}

/* A counter that the threads of one run add to. */
typedef struct fhk_work {
  _Atomic uint64_t useful_flops, executed_flops, bytes;
} fhk_work;

/* What every path reads and writes for one row besides KV rows and metadata: q, out, lse, max_logits. */
static inline uint64_t fhk_row_bytes(const fh_call *call) {
  const uint64_t heads = (uint64_t)call->h_q;
  return heads * ((uint64_t)call->d_qk * 2 + (uint64_t)call->d_v * (call->out_dtype == FH_F32 ? 4 : 2) +
                  (call->lse ? 4 : 0) + (call->max_logits ? 4 : 0));
}

/* Bytes of the list of row s that a path has to look at. */
static inline uint64_t fhk_list_bytes(const fh_call *call, int64_t s) {
  return (uint64_t)fhk_list_length(call, s) * 4 + (call->topk_length ? 4 : 0);
}

static inline uint64_t fhk_useful_flops(const fh_call *call, uint64_t keys) {
  return 2 * keys * (uint64_t)call->h_q * (uint64_t)(call->d_qk + call->d_v);
}

static inline void fhk_count(fhk_work *work, uint64_t useful, uint64_t executed, uint64_t bytes) {
  atomic_fetch_add_explicit(&work->useful_flops, useful, memory_order_relaxed);
  atomic_fetch_add_explicit(&work->executed_flops, executed, memory_order_relaxed);
  atomic_fetch_add_explicit(&work->bytes, bytes, memory_order_relaxed);
}

/*
 * A kernel: one row. Every folder kernels/cpu/<kernel>/ has a file kernel.c with an array fhk_rows_cpu_<kernel> of
 * rows, which ends with a row of zeros. The build collects the arrays (build/gen/kernels_cpu.h). A row takes a call if
 * it computes the call's path and the device has its instruction set. Of the rows that take a call, the one with the
 * highest preference runs.
 */
typedef struct fhk_cpu_kernel {
  const char *name;   /* "gather": counters and records say "cpu avx512 gather" */
  int32_t path;       /* the fh_path that the kernel computes */
  int32_t preference; /* all rows of one path have different ones */
  int32_t least_isa;  /* the device has this fh_isa or a later one */
  int32_t plain;      /* 1: plain C on every instruction set; the name in counters then lacks it: "cpu reference" */
  uint64_t (*workspace)(const fhk_cpu *cpu, const fh_call *call); /* bytes */
  void (*run)(fhk_cpu *cpu, const fh_call *call, fhk_work *work);
  /* The groups order[first .. end - 1] of call->plan. The kernels of padded, gather and packed have this function: an
   * FH_AUTO call may be shared among them. */
  void (*run_groups)(fhk_cpu *cpu, const fh_call *call, int64_t first, int64_t end, fhk_work *work);
} fhk_cpu_kernel;

/* The row that runs the path on a device of this fh_isa; NULL if no row does (cpu.c). */
const fhk_cpu_kernel *fhk_cpu_kernel_of(int32_t isa, int32_t path);

#endif
