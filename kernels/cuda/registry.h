/*
 * Which kernel runs a call: one row a kernel, the first row that takes the call runs it. README.md says how to add a
 * row.
 *
 * A row takes a call if the path, the device, the heads and the alignment of the call's arrays are what the row asks
 * for. Nothing hands a call on to another kernel behind the registry's back, so the name of the row is the name of the
 * kernel that ran.
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
} fhk_kernel;

/* Row i of the table; NULL past its end. */
const fhk_kernel *fhk_kernel_row(int32_t i);

/* 1 if the device can run the row's kernel, whatever the call. */
int fhk_kernel_runs_on(const fhk_kernel *kernel, const fhk_gpu *gpu);

/* 1 if the row takes this call on this device. `path` stands in for call->path: parts of an FH_AUTO call have paths
 * of their own. */
int fhk_kernel_takes(const fhk_kernel *kernel, const fhk_gpu *gpu, const fh_call *call, int32_t path);

/* The first row that takes the call; NULL if no row does. */
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
