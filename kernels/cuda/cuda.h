/*
 * The CUDA kernels as lib/ sees them. Every fh_call that arrives here has passed fh_call_check and carries no defaults
 * any more. registry.h says which kernel takes a call; a kernel is only given calls that its row takes.
 *
 * A kernel family has three functions: `prepare` loads it on the current device and raises its shared-memory limit
 * (device open), `workspace` says how many bytes of call->workspace it wants, `run` enqueues on a stream. They return a
 * cudaError_t as int, 0 = done. `run` allocates nothing, waits for nothing and may be captured in a graph.
 */
#ifndef FEWHEAD_KERNELS_CUDA_H
#define FEWHEAD_KERNELS_CUDA_H

#include "fewhead.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a launch needs to know of the device. */
typedef struct fhk_gpu {
  int32_t multiprocessors;
  int32_t capability;    /* major * 10 + minor */
  int32_t portable_only; /* 1: leave out the kernels made for one capability */
  /* For the costs; 0 and NULL if unknown. */
  int32_t clock_mhz;        /* highest clock of the multiprocessors */
  int32_t memory_clock_mhz; /* highest clock of the memory */
  int32_t memory_bus_bits;
  const char *name; /* what the vendor calls it: "NVIDIA H200" */
} fhk_gpu;

#define FHK_KERNEL_FAMILY(name)                                             \
  int fhk_##name##_prepare(void);                                           \
  uint64_t fhk_##name##_workspace(const fhk_gpu *gpu, const fh_call *call); \
  int fhk_##name##_run(const fhk_gpu *gpu, const fh_call *call, void *stream);

FHK_KERNEL_FAMILY(portable_reference) /* fp32, any device */
FHK_KERNEL_FAMILY(portable_gather)    /* mma.sync and cp.async, sm_80 and up */
FHK_KERNEL_FAMILY(sm90_gather)        /* wgmma, tokens on M */
FHK_KERNEL_FAMILY(sm90_padded)        /* wgmma, heads on M */
FHK_KERNEL_FAMILY(sm90_padded_unaligned)
FHK_KERNEL_FAMILY(sm90_packed) /* wgmma, group * h_q <= 64 rows on M; by call->plan, which every packed
                                         call has */
FHK_KERNEL_FAMILY(sm90_packed_unaligned)

#undef FHK_KERNEL_FAMILY

/* CTAs that share a row of few in sm90_gather, and parts that sm90_packed makes of each union of few: 1 and more. */
enum { FHK_SM90_GATHER_CLUSTER = 8 };
int32_t fhk_sm90_packed_splits(const fhk_gpu *gpu, const fh_call *call);

/* The plan (portable/plan, sm_80 and up): call->group is set and group * topk < 2^31. `bytes` says what `memory`
 * must hold, 64-byte aligned. `build` fills *plan (struct_size too) before it returns, and the arrays in stream
 * order. */
int fhk_plan_prepare(void);
uint64_t fhk_plan_bytes(const fhk_gpu *gpu, const fh_call *call);
int fhk_plan_build(const fhk_gpu *gpu, const fh_call *call, void *memory, fh_plan *plan, void *stream);

/* The device's built-in costs for a call that carries no defaults (costs.c). Returns where they are from, one line
 * for people: "measured on NVIDIA H200". */
const char *fhk_costs(const fhk_gpu *gpu, const fh_call *call, fh_costs *costs);

#ifdef __cplusplus
}
#endif

#endif
