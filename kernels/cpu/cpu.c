/* The CPU back end's front door: which file computes which path. */
#include "cpu/back_end.h"

uint64_t fhk_cpu_workspace_bytes(const fhk_cpu *cpu, const fh_call *call) {
  switch (call->path) {
    case FH_REFERENCE: return fhk_reference_workspace_bytes(cpu, call);
    case FH_PACKED: return fhk_packed_workspace_bytes(cpu, call);
    default: return fhk_query_workspace_bytes(cpu, call);
  }
}

static void add_work(fh_counters *counters, fhk_work *work) {
  counters->useful_flops += work->useful_flops;
  counters->executed_flops += work->executed_flops;
  counters->bytes += work->bytes;
}

void fhk_cpu_run(fhk_cpu *cpu, const fh_call *call, fh_counters *counters) {
  fhk_work work = {0, 0, 0};
  switch (call->path) {
    case FH_REFERENCE: fhk_reference_run(cpu, call, &work); break;
    case FH_PACKED: fhk_packed_run(cpu, call, 0, &work); break;
    default: fhk_query_run(cpu, call, &work);
  }
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

/* Microseconds of one thread, fitted to h_q 2, 8 and 16, padded 64, topk 640, on a Xeon with AVX-512 at 2.9 GHz; more threads share
 * them. Packed multiplies what gather multiplies, and needs a plan besides, while fh_work_gflop counts every row of a group for
 * every entry: it is taken only where lists are so much alike that even so it costs no more. */
static const double START_US = 10;  /* of a call: waking the threads */
static const double ROW_US = 20;    /* of a row, beyond its products */
static const double GROUP_US = 160; /* of a group of 8 rows */
static const double PLAN_US = 40;   /* of the plan of a group */
static const struct { double padded, gather; } gflop_us[] = {
    [FH_ISA_GENERIC] = {39700, 40500},
    [FH_ISA_AVX2] = {12900, 13800},
    [FH_ISA_AVX512] = {6650, 6900},
    [FH_ISA_AVX512_BF16] = {9640, 9400},
    [FH_ISA_AMX] = {1000, 3000},
};

void fhk_cpu_costs(const fhk_cpu *cpu, fh_costs *costs) {
  const double threads = fhk_cpu_threads(cpu);
  const double padded = gflop_us[fhk_cpu_isa(cpu)].padded, gather = gflop_us[fhk_cpu_isa(cpu)].gather;
  costs->padded = (fh_path_cost){START_US, ROW_US / threads, padded / threads};
  costs->gather = (fh_path_cost){START_US, ROW_US / threads, gather / threads};
  costs->packed = (fh_path_cost){START_US, GROUP_US / threads, gather / threads};
  costs->plan = (fh_path_cost){START_US, PLAN_US / threads, 0};
}
