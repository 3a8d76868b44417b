/* The CPU back end's front door: which file computes which path. */
#include "cpu/back_end.h"

uint64_t fhk_cpu_workspace_bytes(const fhk_cpu *cpu, const fh_call *call) {
  switch (call->path) {
    case FH_REFERENCE: return fhk_reference_workspace_bytes(cpu, call);
    case FH_PACKED: return fhk_packed_workspace_bytes(cpu, call);
    default: return fhk_query_workspace_bytes(cpu, call);
  }
}

void fhk_cpu_run(fhk_cpu *cpu, const fh_call *call, fh_counters *counters) {
  fhk_work work = {0, 0, 0};
  switch (call->path) {
    case FH_REFERENCE: fhk_reference_run(cpu, call, &work); break;
    case FH_PACKED: fhk_packed_run(cpu, call, &work); break;
    default: fhk_query_run(cpu, call, &work);
  }
  if (!counters) return;
  counters->rows[call->path] += (uint64_t)call->s_q;
  counters->useful_flops += work.useful_flops;
  counters->executed_flops += work.executed_flops;
  counters->bytes += work.bytes;
}

/* Costs of one thread in microseconds, fitted to h_q 1 .. 24 and padded 64 at topk 640 on a Xeon of 2.9 GHz; more threads share
 * them. Packed multiplies what gather multiplies, for its plan besides, while fh_work_gflop counts every row of a group for
 * every entry: it is taken only where lists are so much alike that even so it costs no more. */
typedef struct measured { double row, padded_gflop, gather_gflop; } measured;
static const measured costs[] = {
    [FH_ISA_GENERIC] = {15, 40000, 40400},
    [FH_ISA_AVX2] = {20, 13200, 14000},
    [FH_ISA_AVX512] = {17, 7450, 7860},
    [FH_ISA_AVX512_BF16] = {17, 10300, 9350},
};
static const double START_US = 10;  /* waking the threads */
static const double GROUP_US = 170; /* the plan of 8 lists of 640, and 8 rows */

void fhk_cpu_policy(const fhk_cpu *cpu, fh_policy *policy) {
  const double threads = fhk_cpu_threads(cpu);
  const measured m = costs[fhk_cpu_isa(cpu)];
  policy->padded = (fh_path_cost){START_US, m.row / threads, m.padded_gflop / threads};
  policy->gather = (fh_path_cost){START_US, m.row / threads, m.gather_gflop / threads};
  policy->packed = (fh_path_cost){START_US, GROUP_US / threads, m.gather_gflop / threads};
}
