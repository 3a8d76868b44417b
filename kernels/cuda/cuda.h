/*
 * The CUDA kernels as lib/ sees them. Every fh_call that arrives here has passed fh_call_check and carries no defaults
 * any more. registry.h says which kernel takes a call; a kernel is only given calls that its row takes.
 *
 * A kernel has three functions, declared by FHK_KERNEL. `prepare` loads the kernel on the current device and raises its
 * shared-memory limit (device open). `workspace` returns how many bytes of call->workspace the kernel wants. `run`
 * enqueues on a stream, allocates nothing, waits for nothing and may be captured in a graph. prepare and run return a
 * cudaError_t as int, 0 = done.
 */
#ifndef FEWHEAD_KERNELS_CUDA_H
#define FEWHEAD_KERNELS_CUDA_H

#include "fewhead.h"

#ifdef __cplusplus
#define FHK_C extern "C"
extern "C" {
#else
#define FHK_C
#endif

/* Declares the functions of a kernel: FHK_KERNEL(sm90_gather). */
#define FHK_KERNEL(name)                                                          \
  FHK_C int fhk_##name##_prepare(void);                                           \
  FHK_C uint64_t fhk_##name##_workspace(const fhk_gpu *gpu, const fh_call *call); \
  FHK_C int fhk_##name##_run(const fhk_gpu *gpu, const fh_call *call, void *stream);

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

/* The plan (portable/plan, sm_80 and up): call->group is set and group * topk < 2^31. `bytes` says what `memory`
 * must hold, 64-byte aligned. `build` fills *plan (struct_size too) before it returns, and the arrays in stream
 * order. complete 0: the plan serves one call with path FH_AUTO; a group that goes row by row may be left unlisted,
 * with fewer entries than it has. */
int fhk_plan_prepare(void);
uint64_t fhk_plan_bytes(const fhk_gpu *gpu, const fh_call *call);
int fhk_plan_build(const fhk_gpu *gpu, const fh_call *call, int32_t complete, void *memory, fh_plan *plan,
                   void *stream);

/* The device's built-in costs for a call that carries no defaults (costs.c). Returns where they are from, one line
 * for people: "measured on NVIDIA H200". */
const char *fhk_costs(const fhk_gpu *gpu, const fh_call *call, fh_costs *costs);

#ifdef __cplusplus
}
#endif

#endif
