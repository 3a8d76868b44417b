/*
 * The path that fills a tile with neighbouring queries: `group` of them over the union of their lists, each entry of which carries a
 * bit per query (fh_plan). Groups are dealt by falling size, so that the last ones to start are the short ones.
 */
#include "cpu/tile.h"

typedef struct packed_run {
  const fh_call *call;
  const fh_plan *plan;
  fhk_work *work;
  const fhk_tile_ops *ops;
  char *scratch;
  uint64_t scratch_bytes; /* of one thread */
} packed_run;

/* A plan built for this call alone lies at the workspace's start. */
static uint64_t own_plan_bytes(const fhk_cpu *cpu, const fh_call *call) { return call->plan ? 0 : fhk_cpu_plan_bytes(cpu, call); }

uint64_t fhk_packed_workspace_bytes(const fhk_cpu *cpu, const fh_call *call) {
  const uint64_t scratch = fhk_tile_scratch_bytes(fhk_tile_ops_of(fhk_cpu_isa(cpu)), call->group * call->h_q, call->d_qk);
  return fhk_add(own_plan_bytes(cpu, call), fhk_mul((uint64_t)fhk_cpu_threads(cpu), scratch));
}

static void group(void *arg, int64_t item, int32_t thread) {
  const packed_run *run = arg;
  const fh_call *call = run->call;
  const fh_plan *plan = run->plan;
  const int64_t g = plan->order[item], first = g * plan->group, left = call->s_q - first;
  const int32_t queries = (int32_t)(left < plan->group ? left : plan->group);
  fhk_tile_job job = {.rows = queries * call->h_q, .token = plan->token + g * plan->capacity, .keys = plan->entries[g]};
  if (queries > 1) {
    job.member = plan->member + g * plan->capacity;
    job.rows_per_query = call->h_q;
  }
  uint64_t keys = 0, bytes = (uint64_t)plan->entries[g] * ((uint64_t)call->d_qk * 2 + sizeof *plan->token + sizeof *plan->member) +
                             sizeof *plan->order + sizeof *plan->entries;
  for (int32_t i = 0; i < queries; i++) {
    for (int32_t h = 0; h < call->h_q; h++) fhk_tile_row(call, first + i, h, &job, i * call->h_q + h);
    keys += (uint64_t)plan->keys[first + i];
    bytes += fhk_row_bytes(call) + sizeof *plan->keys + (call->plan ? 0 : fhk_list_bytes(call, first + i));
  }
  const uint64_t executed = fhk_tile_run(run->ops, call, &job, run->scratch + (uint64_t)thread * run->scratch_bytes);
  fhk_count(run->work, 2 * keys * (uint64_t)call->h_q * (uint64_t)(call->d_qk + call->d_v), executed, bytes);
}

void fhk_packed_run(fhk_cpu *cpu, const fh_call *call, fhk_work *work) {
  fh_plan own = {.struct_size = sizeof own};
  if (!call->plan) fhk_cpu_plan_build(cpu, call, call->workspace, &own);
  packed_run run = {.call = call, .plan = call->plan ? call->plan : &own, .work = work, .ops = fhk_tile_ops_of(fhk_cpu_isa(cpu))};
  run.scratch = (char *)call->workspace + own_plan_bytes(cpu, call);
  run.scratch_bytes = fhk_tile_scratch_bytes(run.ops, run.plan->group * call->h_q, call->d_qk);
  fhk_cpu_parallel(cpu, run.plan->groups, group, &run);
}
