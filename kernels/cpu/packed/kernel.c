/*
 * The path that works on `group` neighbouring queries at once, over the union of their lists.
 *
 * A tensor core or a tile unit takes the same time for 64 rows, zeros or not. So on such a unit the union's rows are
 * multiplied for all queries and masked, but for squares that hold nothing (kernels_amx.c). A vector unit takes time
 * for each product. So here a KV row of the union goes to the tiles of its members alone. All of the group's queries
 * thus pass over the same stretch of KV rows at the same time, and a row is fetched from memory once for the group. A
 * KV row with NaN or Inf reaches its members and nobody else, since nobody else's product contains it.
 */
#include "cpu/amx.h"
#include "cpu/tile.h"

typedef struct packed_run {
  const fh_call *call;
  const fh_plan *plan;
  int64_t from; /* groups at the start of the order that are left out */
  fhk_work *work;
  const fhk_tile_ops *ops; /* NULL: the tile unit */
  char *scratch;
  uint64_t scratch_bytes; /* of one thread */
} packed_run;

/* Of one thread. */
static uint64_t scratch_bytes(const fhk_tile_ops *ops, const fh_call *call, int32_t group) {
  return ops ? fhk_tiles_bytes(ops, call, call->h_q, group) : fhk_amx_group_bytes(call, group);
}

static uint64_t workspace(const fhk_cpu *cpu, const fh_call *call) {
  return (uint64_t)fhk_cpu_threads(cpu) * scratch_bytes(fhk_tile_ops_of(fhk_cpu_isa(cpu)), call, call->group);
}

/* A group with the vectors' kernels, each KV row for its members alone. Returns the FLOPs multiplied. */
static uint64_t group_in_tiles(const packed_run *run, const fhk_group *g, void *memory) {
  const fh_call *call = run->call;
  tile *t = fhk_tiles_make(run->ops, call, call->h_q, g->queries, memory);
  for (int32_t i = 0; i < g->queries; i++) fhk_tile_start(&t[i], run->ops, call, g->first + i);
  for (int64_t e = 0; e < g->entries; e++) {
    if (g->token[e] < 0 || g->token[e] >= call->s_kv) continue;
    const uint16_t *row = call->kv + g->token[e] * call->kv_stride;
    for (uint64_t m = g->member[e] & g->everyone; m; m &= m - 1) fhk_tile_add(&t[__builtin_ctzll(m)], run->ops, row);
  }
  uint64_t executed = 0;
  for (int32_t i = 0; i < g->queries; i++) executed += fhk_tile_finish(&t[i], run->ops, call, g->first + i);
  return executed;
}

/* Groups are dealt by falling size, so that the last ones to start are the short ones. */
static void group(void *arg, int64_t item, int32_t thread) {
  const packed_run *run = arg;
  const fh_call *call = run->call;
  const fh_plan *plan = run->plan;
  const fhk_group g = fhk_plan_group(plan, plan->order[run->from + item]);
  if (g.queries == 0) return; /* fewer groups than there might have been */
  char *memory = run->scratch + (uint64_t)thread * run->scratch_bytes;
  const uint64_t executed = run->ops ? group_in_tiles(run, &g, memory) : fhk_amx_group(call, &g, memory);
  uint64_t keys = 0, bytes = (uint64_t)g.entries * ((uint64_t)call->d_qk * 2 + sizeof *g.token + sizeof *g.member) +
                             sizeof *plan->order + sizeof *plan->entries;
  for (int64_t s = g.first; s < g.first + g.queries; s++) {
    keys += (uint64_t)plan->keys[s];
    bytes += fhk_row_bytes(call) + sizeof *plan->keys;
  }
  fhk_count(run->work, fhk_useful_flops(call, keys), executed, bytes);
}

static void run_groups(fhk_cpu *cpu, const fh_call *call, int64_t first, int64_t end, fhk_work *work) {
  packed_run run = {.call = call, .plan = call->plan, .from = first, .work = work};
  run.ops = fhk_tile_ops_of(fhk_cpu_isa(cpu));
  run.scratch = call->workspace;
  run.scratch_bytes = scratch_bytes(run.ops, call, run.plan->group);
  fhk_cpu_parallel(cpu, end - first, group, &run);
}

static void run_call(fhk_cpu *cpu, const fh_call *call, fhk_work *work) {
  run_groups(cpu, call, 0, call->plan->groups, work);
}

const fhk_cpu_kernel fhk_rows_cpu_packed[] = {
    {"packed", FH_PACKED, .preference = 0, FH_ISA_GENERIC, .workspace = workspace, .run = run_call,
     .run_groups = run_groups},
    {0},
};
