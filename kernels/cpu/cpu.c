/* The CPU back end's front door: which file computes which path. */
#include "cpu/back_end.h"

/* A path without a row here has no kernel on the CPU. */
typedef struct path_row {
  uint64_t (*workspace_bytes)(const fhk_cpu *cpu, const fh_call *call);
  void (*run)(fhk_cpu *cpu, const fh_call *call, fhk_work *work);
} path_row;

static void run_packed(fhk_cpu *cpu, const fh_call *call, fhk_work *work) { fhk_packed_run(cpu, call, 0, work); }

static const path_row paths[FH_PATHS] = {
    [FH_REFERENCE] = {fhk_reference_workspace_bytes, fhk_reference_run},
    [FH_PADDED] = {fhk_query_workspace_bytes, fhk_query_run},
    [FH_GATHER] = {fhk_query_workspace_bytes, fhk_query_run},
    [FH_PACKED] = {fhk_packed_workspace_bytes, run_packed},
};

int fhk_cpu_has_path(int32_t path) { return paths[path].run != NULL; }

uint64_t fhk_cpu_workspace_bytes(const fhk_cpu *cpu, const fh_call *call) {
  return fhk_cpu_has_path(call->path) ? paths[call->path].workspace_bytes(cpu, call) : 0;
}

static void add_work(fh_counters *counters, fhk_work *work) {
  counters->useful_flops += work->useful_flops;
  counters->executed_flops += work->executed_flops;
  counters->bytes += work->bytes;
}

void fhk_cpu_run(fhk_cpu *cpu, const fh_call *call, fh_counters *counters) {
  fhk_work work = {0, 0, 0};
  paths[call->path].run(cpu, call, &work);
  counters->rows[call->path] += (uint64_t)call->s_q;
  add_work(counters, &work);
}

void fhk_cpu_run_parts(fhk_cpu *cpu, const fh_call *call, int32_t rows, fh_counters *counters) {
  fhk_work work = {0, 0, 0};
  const fh_plan *plan = call->plan;
  fh_call part = *call;
  uint64_t one_by_one = 0;
  const int64_t packed_from = fhk_plan_packed_from(plan);
  for (int64_t i = 0, first; i < packed_from; i++) one_by_one += (uint64_t)fhk_plan_rows(plan, plan->order[i], &first);
  if (one_by_one > (uint64_t)call->s_q) one_by_one = (uint64_t)call->s_q; /* a damaged plan may name a group twice */
  fhk_packed_run(cpu, &part, packed_from, &work);
  part.path = rows;
  fhk_query_run_groups(cpu, &part, packed_from, &work);
  counters->rows[rows] += one_by_one;
  counters->rows[FH_PACKED] += (uint64_t)call->s_q - one_by_one;
  add_work(counters, &work);
}
