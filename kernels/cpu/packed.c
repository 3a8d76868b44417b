/*
 * The path that works on `group` neighbouring queries at once, over the union of their lists.
 *
 * A tensor core pays for 64 rows whatever they hold, so there the union's rows are multiplied for all queries and masked. A
 * vector unit pays for what it multiplies: here a KV row of the union goes to the tiles of its members alone. All of the
 * group's queries thus pass over the same stretch of KV rows at the same time, and a row is fetched from memory once for the
 * group. A KV row with NaN or Inf reaches its members and nobody else, since nobody else's product contains it.
 */
#include "cpu/tile.h"

typedef struct packed_run {
  const fh_call *call;
  const fh_plan *plan;
  int64_t from; /* groups at the start of the order that are left out */
  fhk_work *work;
  const fhk_tile_ops *ops;
  char *scratch;
  uint64_t scratch_bytes; /* of one thread */
} packed_run;

/* A plan built for this call alone lies at the workspace's start. */
static uint64_t own_plan_bytes(const fhk_cpu *cpu, const fh_call *call) { return call->plan ? 0 : fhk_cpu_plan_bytes(cpu, call); }

uint64_t fhk_packed_workspace_bytes(const fhk_cpu *cpu, const fh_call *call) {
  const uint64_t scratch = fhk_tiles_bytes(fhk_tile_ops_of(fhk_cpu_isa(cpu)), call, call->h_q, call->group);
  return fhk_add(own_plan_bytes(cpu, call), (uint64_t)fhk_cpu_threads(cpu) * scratch);
}

/* Groups are dealt by falling size, so that the last ones to start are the short ones. */
static void group(void *arg, int64_t item, int32_t thread) {
  const packed_run *run = arg;
  const fh_call *call = run->call;
  const fh_plan *plan = run->plan;
  const int64_t g = plan->order[run->from + item];
  int64_t first;
  const int32_t queries = (int32_t)fhk_plan_rows(plan, g, &first);
  if (queries == 0) return; /* fewer groups than there might have been */
  const int32_t *token = plan->token + g * plan->capacity;
  const uint64_t *member = plan->member + g * plan->capacity;
  const uint64_t everyone = UINT64_MAX >> (64 - queries);
  const int64_t entries = fhk_clamp(plan->entries[g], 0, plan->capacity);
  tile *t = fhk_tiles_make(run->ops, call, call->h_q, queries, run->scratch + (uint64_t)thread * run->scratch_bytes);
  uint64_t keys = 0;
  for (int32_t i = 0; i < queries; i++) {
    fhk_tile_start(&t[i], run->ops, call, first + i);
    keys += (uint64_t)plan->keys[first + i];
  }
  for (int64_t e = 0; e < entries; e++) {
    if (token[e] < 0 || token[e] >= call->s_kv) continue;
    const uint16_t *row = call->kv + token[e] * call->kv_stride;
    for (uint64_t m = member[e] & everyone; m; m &= m - 1) fhk_tile_add(&t[__builtin_ctzll(m)], run->ops, row);
  }
  uint64_t executed = 0;
  uint64_t bytes = (uint64_t)entries * ((uint64_t)call->d_qk * 2 + sizeof *token + sizeof *member) + sizeof *plan->order +
                   sizeof *plan->entries;
  for (int32_t i = 0; i < queries; i++) {
    executed += fhk_tile_finish(&t[i], run->ops, call, first + i);
    bytes += fhk_row_bytes(call) + sizeof *plan->keys + (call->plan ? 0 : fhk_list_bytes(call, first + i));
  }
  fhk_count(run->work, fhk_useful_flops(call, keys), executed, bytes);
}

void fhk_packed_run(fhk_cpu *cpu, const fh_call *call, int64_t from, fhk_work *work) {
  fh_plan own = {.struct_size = sizeof own};
  if (!call->plan) fhk_cpu_plan_build(cpu, call, call->workspace, &own);
  packed_run run = {.call = call, .plan = call->plan ? call->plan : &own, .from = from, .work = work};
  run.ops = fhk_tile_ops_of(fhk_cpu_isa(cpu));
  run.scratch = (char *)call->workspace + own_plan_bytes(cpu, call);
  run.scratch_bytes = fhk_tiles_bytes(run.ops, call, call->h_q, run.plan->group);
  fhk_cpu_parallel(cpu, run.plan->groups - from, group, &run);
}
