/* Calls on CUDA: which kernel a path is, what it costs and what it did, as far as the host can know. */
#include "cuda_back_end.h"

typedef struct kernel {
  const char *name;
  int (*prepare)(void);
  uint64_t (*workspace)(const fhk_gpu *gpu, const fh_call *call);
  int (*run)(const fhk_gpu *gpu, const fh_call *call, void *stream);
  /* Heads are computed in blocks of narrowest, twice that .. block; a block fetches the keys anew. */
  int32_t narrowest, block;
  int32_t tile; /* keys that a list is rounded up to */
} kernel;

static const kernel reference = {"portable reference", fhk_portable_reference_prepare, fhk_portable_reference_workspace,
                                 fhk_portable_reference_run, 8, 8, 32};
static const kernel portable_gather = {"portable gather", fhk_portable_gather_prepare, fhk_portable_gather_workspace,
                                       fhk_portable_gather_run, 8, 32, 16};
static const kernel sm90_gather = {"sm90 gather", fhk_sm90_gather_prepare, fhk_sm90_gather_workspace,
                                   fhk_sm90_gather_run, 8, 32, 64};
static const kernel sm90_padded = {"sm90 padded", fhk_sm90_padded_prepare, fhk_sm90_padded_workspace,
                                   fhk_sm90_padded_run, 64, 64, 64};

static int is_sm90(const fh_device *device) {
  return device->info.isa == 90 && !fh_cuda_of(device)->portable_only;
}

/* Where there is no kernel of its own, padded is the gather kernel over h_pad heads: it computes the zero heads too. */
static const kernel *kernel_of(const fh_device *device, int32_t path) {
  switch (path) {
    case FH_REFERENCE: return &reference;
    case FH_PADDED: return is_sm90(device) ? &sm90_padded : &portable_gather;
    default: return is_sm90(device) ? &sm90_gather : &portable_gather;
  }
}

fh_status fh_cuda_prepare(const fh_device *device) {
  const kernel *const all[] = {&reference, &portable_gather, &sm90_gather, &sm90_padded};
  const size_t count = is_sm90(device) ? sizeof all / sizeof *all : 2;
  for (size_t i = 0; i < count; i++) {
    const fh_status status = fh_cuda_status(all[i]->prepare(), all[i]->name);
    if (status) return status;
  }
  return FH_OK;
}

int fh_cuda_has_path(int32_t path) {
  return path >= 0 && path < FH_PATHS && path != FH_PACKED;
}

uint64_t fh_cuda_workspace_bytes(const fh_device *device, const fh_call *call) {
  return kernel_of(device, call->path)->workspace(&fh_cuda_of(device)->gpu, call);
}

/* The lists lie on the device: they are taken to be full. */
int64_t fh_cuda_count_keys(fh_device *device, const fh_call *call) {
  (void)device;
  return call->s_q * call->topk;
}

/* Heads that the kernel multiplies for a row. */
static int32_t heads_of(const kernel *k, const fh_call *call) {
  const int32_t heads = call->path == FH_PADDED ? call->h_pad : call->h_q;
  int32_t width = k->narrowest;
  while (width < k->block && width < heads) width *= 2;
  return (heads + width - 1) / width * width;
}

static void count(const kernel *k, const fh_call *call, fh_counters *counters) {
  const uint64_t rows = (uint64_t)call->s_q, topk = (uint64_t)call->topk, tile = (uint64_t)k->tile;
  const uint64_t heads = (uint64_t)heads_of(k, call), h_q = (uint64_t)call->h_q, block = (uint64_t)k->block;
  const uint64_t passes = (heads + block - 1) / block;
  const uint64_t pair = 2 * ((uint64_t)call->d_qk + (uint64_t)call->d_v);
  const uint64_t statistics = (call->lse ? 4 : 0) + (call->max_logits ? 4 : 0);
  const uint64_t row = h_q * ((uint64_t)call->d_qk * 2 + (uint64_t)call->d_v * (call->out_dtype == FH_F32 ? 4 : 2) + statistics);
  const uint64_t list = passes * (topk * 4 + (call->topk_length ? 4 : 0));
  counters->rows[call->path] += rows;
  counters->useful_flops += pair * h_q * topk * rows;
  counters->executed_flops += pair * heads * ((topk + tile - 1) / tile * tile) * rows;
  counters->bytes += (passes * topk * (uint64_t)call->d_qk * 2 + row + list) * rows;
}

fh_status fh_cuda_run(fh_device *device, const fh_call *call, fh_counters *counters) {
  const kernel *k = kernel_of(device, call->path);
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  status = fh_cuda_leave(fh_cuda_status(k->run(&fh_cuda_of(device)->gpu, call, fh_cuda_stream(device, call->stream)), k->name));
  if (!status && counters) count(k, call, counters);
  return status;
}

/* ---- Costs ---------------------------------------------------------------------------------------------------------------- */

/* Measured on an H200 (bench-gpu), d_qk 512, by the heads that the gather kernel computes at once. */
typedef struct costs {
  int32_t heads;
  fh_path_cost padded, gather;
} costs;

static const costs measured[] = {
    {8, {14.0, 0.0, 1.0}, {10.0, 0.0, 8.0}},
    {16, {14.0, 0.0, 1.0}, {10.0, 0.0, 4.0}},
    {32, {14.0, 0.0, 1.0}, {10.0, 0.0, 2.5}},
};

void fh_cuda_policy(const fh_device *device, const fh_call *call, fh_policy *policy) {
  const kernel *k = kernel_of(device, FH_GATHER);
  fh_call one;
  if (!call) fh_call_init(&one, 0, 0, 8, 512, 0), call = &one;
  fh_call native = *call;
  native.path = FH_GATHER;
  const int32_t heads = heads_of(k, &native);
  size_t i = 0;
  while (i + 1 < sizeof measured / sizeof *measured && measured[i].heads < heads) i++;
  policy->padded = measured[i].padded;
  policy->gather = measured[i].gather;
  policy->gather.gflop_us *= (double)heads / call->h_q; /* the kernel multiplies all of them */
  policy->packed = policy->gather;
}
