/*
 * The paths that work query by query: `gather` computes h_q heads, `padded` computes h_pad heads, of which the heads
 * past h_q are zeros.
 */
#include "cpu/amx.h"
#include "cpu/tile.h"

typedef struct query_run {
  const fh_call *call;
  const fh_plan *plan; /* query_of_group: its groups, by their order */
  int64_t from;        /* groups at the start of the order that are left out */
  fhk_work *work;
  const fhk_tile_ops *ops; /* NULL: the tile unit */
  int32_t rows;            /* heads computed */
  uint64_t scratch_bytes;  /* of one thread */
} query_run;

static query_run prepare(const fhk_cpu *cpu, const fh_call *call, fhk_work *work) {
  query_run run = {.call = call,
                   .plan = call->plan,
                   .work = work,
                   .ops = fhk_tile_ops_of(fhk_cpu_isa(cpu)),
                   .rows = call->path == FH_PADDED ? call->h_pad : call->h_q};
  run.scratch_bytes = run.ops ? fhk_tiles_bytes(run.ops, call, run.rows, 1) : fhk_amx_query_bytes(call, run.rows);
  return run;
}

static uint64_t workspace(const fhk_cpu *cpu, const fh_call *call) {
  return (uint64_t)fhk_cpu_threads(cpu) * prepare(cpu, call, NULL).scratch_bytes;
}

/* Row s with the vectors' kernels. Returns the FLOPs multiplied. */
static uint64_t query_in_tile(const query_run *run, int64_t s, void *memory, int64_t *keys) {
  const fh_call *call = run->call;
  const int32_t *list = fhk_list(call, s);
  const int64_t length = fhk_list_length(call, s);
  tile *t = fhk_tiles_make(run->ops, call, run->rows, 1, memory);
  fhk_tile_start(t, run->ops, call, s);
  for (int64_t j = 0; j < length; j++) {
    if (list[j] < 0 || list[j] >= call->s_kv) continue;
    fhk_tile_add(t, run->ops, call->kv + list[j] * call->kv_stride);
    ++*keys;
  }
  return fhk_tile_finish(t, run->ops, call, s);
}

static void query(void *arg, int64_t s, int32_t thread) {
  const query_run *run = arg;
  const fh_call *call = run->call;
  void *memory = (char *)call->workspace + (uint64_t)thread * run->scratch_bytes;
  int64_t keys = 0;
  const uint64_t executed =
      run->ops ? query_in_tile(run, s, memory, &keys) : fhk_amx_query(call, run->rows, s, memory, &keys);
  fhk_count(run->work, fhk_useful_flops(call, (uint64_t)keys), executed,
            (uint64_t)keys * (uint64_t)call->d_qk * 2 + fhk_row_bytes(call) + fhk_list_bytes(call, s));
}

/* Row item % group of a group; where the group ends early there is none. */
static void query_of_group(void *arg, int64_t item, int32_t thread) {
  const query_run *run = arg;
  const fh_plan *plan = run->plan;
  int64_t first;
  const int64_t rows = fhk_plan_rows(plan, plan->order[run->from + item / plan->group], &first);
  if (item % plan->group < rows) query(arg, first + item % plan->group, thread);
}

static void run_call(fhk_cpu *cpu, const fh_call *call, fhk_work *work) {
  query_run run = prepare(cpu, call, work);
  fhk_cpu_parallel(cpu, call->s_q, query, &run);
}

static void run_groups(fhk_cpu *cpu, const fh_call *call, int64_t first, int64_t end, fhk_work *work) {
  query_run run = prepare(cpu, call, work);
  run.from = first;
  fhk_cpu_parallel(cpu, (end - first) * run.plan->group, query_of_group, &run);
}

#define ROW(text, number)                                                                                   \
  {                                                                                                         \
    .name = (text), .path = (number), .preference = 0, .least_isa = FH_ISA_GENERIC, .workspace = workspace, \
    .run = run_call, .run_groups = run_groups                                                               \
  }
const fhk_cpu_kernel fhk_rows_cpu_gather[] = {ROW("gather", FH_GATHER), ROW("padded", FH_PADDED), {0}};
