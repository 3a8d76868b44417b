/*
 * Which kernel runs a call: one row a kernel. Of the rows that take a call, the one with the highest preference runs.
 *
 * A row takes a call if the path, the device, the heads and the alignment of the call's arrays are what the row asks
 * for. No kernel hands a call on to another kernel, so the name of the row is the name of the kernel that ran.
 *
 * Every folder kernels/<arch>/<kernel>/ has a file kernel.c with its rows, an array fhk_rows_<arch>_<kernel> that ends
 * with a row of zeros. The build collects the arrays (build/gen/kernels_cuda.h). README.md says how to add a kernel.
 */
#ifndef FEWHEAD_KERNELS_CUDA_REGISTRY_H
#define FEWHEAD_KERNELS_CUDA_REGISTRY_H

#include <stddef.h>

#include "cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fhk_kernel {
  const char *name;   /* "sm90 gather": what counters and records call it */
  int32_t path;       /* the fh_path that it computes */
  int32_t preference; /* all rows of one path have different ones */
  int32_t capability; /* least compute capability, major * 10 + minor */
  int32_t exact;      /* 1: this capability alone, and not on a device that keeps to portable kernels */
  int32_t most_heads; /* of h_q, from 1 */
  /* Bytes that the base and every stride of q, kv and out are multiples of. */
  int32_t q_bytes, kv_bytes, out_bytes;
  int (*prepare)(void);
  uint64_t (*workspace)(const fhk_gpu *gpu, const fh_call *call);
  int (*run)(const fhk_gpu *gpu, const fh_call *call, void *stream);
  /* For counting. Heads are computed in blocks of narrowest, twice that .. block; each block fetches the keys anew. */
  int32_t narrowest, block;
  int32_t tile; /* keys that a list is rounded up to */
  /* For the costs; 0 and NULL where it does not apply. */
  int32_t cluster;                                            /* CTAs that share a row where rows are few */
  int32_t (*splits)(const fhk_gpu *gpu, const fh_call *call); /* parts that each union is split into, 1 and more */
} fhk_kernel;

/* For kernel.c: the fields of a row in short. */
#define FHK_RUNS(kernel) \
  .prepare = fhk_##kernel##_prepare, .workspace = fhk_##kernel##_workspace, .run = fhk_##kernel##_run
#define FHK_ALIGNED(q, kv, out) .q_bytes = (q), .kv_bytes = (kv), .out_bytes = (out)
#define FHK_ANY_ALIGNMENT FHK_ALIGNED(1, 1, 1)
#define FHK_PORTABLE .capability = 80
#define FHK_SM90 .capability = 90, .exact = 1
#define FHK_HEADS_TO(n) .most_heads = (n)
#define FHK_COUNTS(least, most, keys) .narrowest = (least), .block = (most), .tile = (keys)
#define FHK_LAST_ROW \
  { NULL }

/* Row i of all rows; NULL past the last one. */
const fhk_kernel *fhk_kernel_row(int32_t i);

/* 1 if the device can run the row's kernel, whatever the call. */
int fhk_kernel_runs_on(const fhk_kernel *kernel, const fhk_gpu *gpu);

/* 1 if the row takes this call on this device. `path` stands in for call->path: parts of an FH_AUTO call have paths
 * of their own. */
int fhk_kernel_takes(const fhk_kernel *kernel, const fhk_gpu *gpu, const fh_call *call, int32_t path);

/* The row that runs the call; NULL if no row takes the call. */
const fhk_kernel *fhk_kernel_of(const fhk_gpu *gpu, const fh_call *call, int32_t path);

/* Heads that the kernel multiplies for a row of this call. */
int32_t fhk_kernel_heads(const fhk_kernel *kernel, const fh_call *call);

/* Returns 1 if the device has a kernel for the path at h_q heads (0: at some number of heads) and aligned arrays.
 * Else writes one line without a full stop: what is required, what is supported and what is missing. */
int fhk_offers(const fhk_gpu *gpu, int32_t path, int32_t h_q, char *why, size_t room);

#ifdef __cplusplus
}
#endif

#endif
