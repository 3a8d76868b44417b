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

/* Measured at h_q 8, d 512, topk 640 on 2 threads of a Xeon with AVX-512: every path runs the same loops so far. */
void fhk_cpu_policy(const fhk_cpu *cpu, fh_policy *policy) {
  const double threads = fhk_cpu_threads(cpu);
  const fh_path_cost cost = {10.0, 1.0 / threads, 10000.0 / threads};
  policy->padded = policy->gather = policy->packed = cost;
}
