/* What the files of the CUDA back end share. */
#ifndef FEWHEAD_CUDA_BACK_END_H
#define FEWHEAD_CUDA_BACK_END_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "cuda/cuda.h"
#include "internal.h"

/* State of an open device. */
typedef struct fh_cuda {
  CUcontext context; /* the device's primary one */
  cudaStream_t stream;
  fhk_gpu gpu;
  /* Memory of the device that lasts: overwritten to evict the L2 cache, and where strided views are staged. */
  pthread_mutex_t scratch_lock; /* held until the stream is done with what was put there */
  void *scratch;
  uint64_t scratch_bytes;
} fh_cuda;

static inline fh_cuda *fh_cuda_of(const fh_device *device) { return device->state; }

static inline cudaStream_t fh_cuda_stream(const fh_device *device, void *stream) {
  return stream ? stream : fh_cuda_of(device)->stream;
}

extern const fh_back_end fh_cuda_back_end; /* device.c */

/* ---- What the other files build on (context.c) ------------------------------------------------------------------- */

/* Look the driver's functions up, once a process; before any of the functions below. */
fh_status fh_cuda_load_driver(void);

/* The device's primary context, retained. */
fh_status fh_cuda_retain(CUcontext *context, int64_t ordinal);

/* FH_OK for cudaSuccess; else the status and message of a cudaError_t that `function` gave. */
fh_status fh_cuda_status(int code, const char *function);

/* FH_CUDA(cudaFree, base) calls cudaFree(base). */
#define FH_CUDA(function, ...) fh_cuda_status(function(__VA_ARGS__), #function)

/* What calls CUDA stands between these two: the device's context is the thread's current one there, and afterwards it
 * is again what it was. leave returns its argument, or its own failure where that is FH_OK. */
fh_status fh_cuda_enter(const fh_device *device);
fh_status fh_cuda_leave(fh_status status);

/* Memory (memory.c). */
fh_status fh_cuda_alloc(fh_device *device, fh_memory memory, uint64_t bytes, void **base);
void fh_cuda_release(fh_device *device, fh_memory memory, void *base);
fh_status fh_cuda_check_wrapped(fh_device *device, const void *base);
fh_status fh_cuda_write(fh_device *device, void *to, const void *host, uint64_t bytes);
fh_status fh_cuda_read(fh_device *device, const void *from, void *host, uint64_t bytes);
fh_status fh_cuda_fill(fh_buffer *buffer, int32_t value);
fh_status fh_cuda_evict(fh_buffer *buffer);

/* Views (view.c). */
fh_status fh_cuda_view_fill(const fh_view *view, uint32_t bits);
fh_status fh_cuda_view_random(const fh_view *view, const fh_generator *generator);
fh_status fh_cuda_view_write(const fh_view *view, const void *src);
fh_status fh_cuda_view_read(const fh_view *view, void *dst);
fh_status fh_cuda_view_copy(const fh_view *dst, const fh_view *src);

/* Streams, graphs and timers (stream.c). */
fh_status fh_cuda_stream_create(fh_device *device, void **stream);
void fh_cuda_stream_destroy(fh_device *device, void *stream);
fh_status fh_cuda_graph_begin(fh_device *device, void *stream);
fh_status fh_cuda_graph_end(fh_device *device, void *stream, void **graph);
fh_status fh_cuda_graph_launch(fh_device *device, void *graph, void *stream);
void fh_cuda_graph_free(fh_device *device, void *graph);
fh_status fh_cuda_moment_create(fh_device *device, fh_moment *moment);
void fh_cuda_moment_destroy(fh_device *device, fh_moment *moment);
fh_status fh_cuda_moment_mark(fh_device *device, fh_moment *moment, void *stream);
fh_status fh_cuda_moment_between(fh_device *device, const fh_moment *start, const fh_moment *stop, double *us);

/* Calls (call.c). */
fh_status fh_cuda_prepare(const fh_device *device); /* load the kernels; entered */
int fh_cuda_has_path(int32_t path);
int fh_cuda_offers(const fh_device *device, int32_t path, int32_t h_q, char why[FH_WHY]);
uint64_t fh_cuda_workspace_bytes(const fh_device *device, const fh_call *call);
int64_t fh_cuda_count_keys(const fh_device *device, const fh_call *call);
fh_status fh_cuda_run(fh_device *device, const fh_call *call, fh_counters *counters);
fh_status fh_cuda_run_parts(fh_device *device, const fh_call *call, int32_t rows, fh_counters *counters);
const char *fh_cuda_costs(const fh_device *device, const fh_call *call, fh_costs *costs);
uint64_t fh_cuda_plan_bytes(const fh_device *device, const fh_call *call);
fh_status fh_cuda_plan_build(fh_device *device, const fh_call *call, int32_t complete, void *memory, fh_plan *plan);

#endif
