/*
 * The CPU back end as lib/ sees it: a pool of threads with the kernels of one instruction set.
 *
 * Every fh_call that arrives here has passed fh_call_check and carries no defaults any more: h_pad is 64 or 128, group
 * is 1..64, struct_size is the full one, path is one of reference, padded, gather, packed; a packed call has a plan;
 * workspace is large enough.
 */
#ifndef FEWHEAD_KERNELS_CPU_H
#define FEWHEAD_KERNELS_CPU_H

#include <stddef.h>

#include "fewhead.h"

typedef struct fhk_cpu fhk_cpu;

/* Returns what this process lacks for an fh_isa, one line: "the CPU has no AMX tiles (AMX-TILE)"; NULL if it lacks
 * nothing. ask 1: for FH_ISA_AMX, asks the system for the permission to use tiles, at most once a process. ask 0:
 * answers by what is known already. */
const char *fhk_cpu_isa_missing(int32_t isa, int32_t ask);
/* Returns the best fh_isa that this process may use, never FH_ISA_BEST. Asks for the permission if the CPU has AMX. */
int32_t fhk_cpu_best_isa(void);
/* Returns what FH_ISA_BEST stands for: the fastest fh_isa that this process may use. The best need not be the
 * fastest: bf16 dot products are slower than multiply-adds on some CPUs. So a CPU with dot products or AMX is timed,
 * once a process. */
int32_t fhk_cpu_fastest_isa(void);
/* "generic", "avx2", "avx512", "avx512_bf16", "amx"; NULL for another number. */
const char *fhk_cpu_isa_name(int32_t isa);

/* threads >= 1, the caller of a run included; the CPU has the isa. Returns NULL if the system refuses memory or
 * threads. */
fhk_cpu *fhk_cpu_create(int32_t threads, int32_t isa);
void fhk_cpu_destroy(fhk_cpu *cpu);

/* Run fn(arg, item, thread) for item 0 .. items - 1, dealt dynamically; returns when all are done. thread is 0 ..
 * threads - 1 and no two items run at once on one thread number. Calls from several threads take turns; fn must not
 * call it again. */
void fhk_cpu_parallel(fhk_cpu *cpu, int64_t items, void (*fn)(void *arg, int64_t item, int32_t thread), void *arg);

/* Returns 1 if a device of this fh_isa has a kernel for this fh_path, which is not FH_AUTO. */
int fhk_cpu_has_path(int32_t isa, int32_t path);
/* Writes the name of that kernel, with the instruction set that the kernel is compiled for: "cpu avx512 gather". */
void fhk_cpu_kernel_name(int32_t isa, int32_t path, char *name, size_t room);

/* Workspace of one path, bytes, a multiple of 64; 0 without a kernel. */
uint64_t fhk_cpu_workspace_bytes(const fhk_cpu *cpu, const fh_call *call);

/* Run the path. Counters (full-size) are added to, except .calls, which lib/ counts. */
void fhk_cpu_run(fhk_cpu *cpu, const fh_call *call, fh_counters *counters);

/* A call with path FH_AUTO and a plan: its groups order[0 .. packed_from - 1] by path `rows` (padded or gather),
 * the others packed. */
void fhk_cpu_run_parts(fhk_cpu *cpu, const fh_call *call, int32_t rows, fh_counters *counters);

uint64_t fhk_cpu_plan_bytes(const fhk_cpu *cpu, const fh_call *call);
void fhk_cpu_plan_build(fhk_cpu *cpu, const fh_call *call, void *memory, fh_plan *plan);

/* Sets *costs to the built-in costs (costs.c) for this call; call NULL: for 8 heads. Returns where the costs are
 * from, one line for people. */
const char *fhk_cpu_costs(const fhk_cpu *cpu, const fh_call *call, fh_costs *costs);

#endif
