/* Which kernel of the CPU runs a call. */
#include <stdio.h>

#include "cpu/back_end.h"

/* The rows of every folder. */
#define FHK_ROWS(folder) extern const fhk_cpu_kernel fhk_rows_##folder[];
#include "kernels_cpu.h"
#undef FHK_ROWS
#define FHK_ROWS(folder) fhk_rows_##folder,
static const fhk_cpu_kernel *const folders[] = {
#include "kernels_cpu.h"
};
#undef FHK_ROWS
enum { FOLDERS = sizeof folders / sizeof *folders };

const fhk_cpu_kernel *fhk_cpu_kernel_of(int32_t isa, int32_t path) {
  const fhk_cpu_kernel *best = NULL;
  for (size_t i = 0; i < FOLDERS; i++)
    for (const fhk_cpu_kernel *k = folders[i]; k->run; k++)
      if (k->path == path && isa >= k->least_isa && (!best || k->preference > best->preference)) best = k;
  return best;
}

int fhk_cpu_has_path(int32_t isa, int32_t path) { return fhk_cpu_kernel_of(isa, path) != NULL; }

void fhk_cpu_kernel_name(int32_t isa, int32_t path, char *name, size_t room) {
  const fhk_cpu_kernel *kernel = fhk_cpu_kernel_of(isa, path);
  if (kernel->plain) snprintf(name, room, "cpu %s", kernel->name);
  else snprintf(name, room, "cpu %s %s", fhk_cpu_isa_name(isa), kernel->name);
}

uint64_t fhk_cpu_workspace_bytes(const fhk_cpu *cpu, const fh_call *call) {
  const fhk_cpu_kernel *kernel = fhk_cpu_kernel_of(fhk_cpu_isa(cpu), call->path);
  return kernel ? kernel->workspace(cpu, call) : 0;
}

static void add_work(fh_counters *counters, fhk_work *work) {
  counters->useful_flops += work->useful_flops;
  counters->executed_flops += work->executed_flops;
  counters->bytes += work->bytes;
}

void fhk_cpu_run(fhk_cpu *cpu, const fh_call *call, fh_counters *counters) {
  fhk_work work = {0, 0, 0};
  fhk_cpu_kernel_of(fhk_cpu_isa(cpu), call->path)->run(cpu, call, &work);
  counters->rows[call->path] += (uint64_t)call->s_q;
  add_work(counters, &work);
}

void fhk_cpu_run_parts(fhk_cpu *cpu, const fh_call *call, int32_t rows, fh_counters *counters) {
  fhk_work work = {0, 0, 0};
  const fh_plan *plan = call->plan;
  const int32_t isa = fhk_cpu_isa(cpu);
  fh_call part = *call;
  uint64_t one_by_one = 0;
  const int64_t packed_from = fhk_plan_packed_from(plan);
  for (int64_t i = 0, first; i < packed_from; i++) one_by_one += (uint64_t)fhk_plan_rows(plan, plan->order[i], &first);
  if (one_by_one > (uint64_t)call->s_q) one_by_one = (uint64_t)call->s_q; /* a damaged plan may name a group twice */
  part.path = FH_PACKED;
  fhk_cpu_kernel_of(isa, FH_PACKED)->run_groups(cpu, &part, packed_from, plan->groups, &work);
  part.path = rows;
  fhk_cpu_kernel_of(isa, rows)->run_groups(cpu, &part, 0, packed_from, &work);
  counters->rows[rows] += one_by_one;
  counters->rows[FH_PACKED] += (uint64_t)call->s_q - one_by_one;
  add_work(counters, &work);
}
