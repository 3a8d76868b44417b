/* Calls on CUDA: which kernel a path is, what it costs and what it did, as far as the host can know. */
#include "cuda/registry.h"
#include "cuda_back_end.h"

static const char plan_kernel[] = "portable plan";

static const fhk_gpu *gpu_of(const fh_device *device) { return &fh_cuda_of(device)->gpu; }

fh_status fh_cuda_prepare(const fh_device *device) {
  const fhk_kernel *kernel;
  for (int32_t i = 0; (kernel = fhk_kernel_row(i)); i++) {
    const fh_status status =
        fhk_kernel_runs_on(kernel, gpu_of(device)) ? fh_cuda_status(kernel->prepare(), kernel->name) : FH_OK;
    if (status) return status;
  }
  return fh_cuda_status(fhk_plan_prepare(), plan_kernel);
}

int fh_cuda_has_path(int32_t path) {
  const fhk_kernel *kernel;
  for (int32_t i = 0; path != FH_AUTO && (kernel = fhk_kernel_row(i)); i++)
    if (kernel->path == path) return 1;
  return path == FH_AUTO;
}

int fh_cuda_offers(const fh_device *device, int32_t path, int32_t h_q, char why[FH_WHY]) {
  return fhk_offers(gpu_of(device), path, h_q, why, FH_WHY);
}

uint64_t fh_cuda_workspace_bytes(const fh_device *device, const fh_call *call) {
  const fhk_kernel *kernel = fhk_kernel_of(gpu_of(device), call, call->path);
  return kernel ? kernel->workspace(gpu_of(device), call) : 0;
}

/* The lists lie on the device: they are taken to be full. */
int64_t fh_cuda_count_keys(const fh_device *device, const fh_call *call) {
  (void)device;
  return call->s_q * call->topk;
}

/* A row's q, out, lse and max_logits. */
static uint64_t row_bytes(const fh_call *call) {
  const uint64_t statistics = (call->lse ? 4 : 0) + (call->max_logits ? 4 : 0);
  const uint64_t out = (uint64_t)call->d_v * (call->out_dtype == FH_F32 ? 4 : 2);
  return (uint64_t)call->h_q * ((uint64_t)call->d_qk * 2 + out + statistics);
}

/* All 64 rows of a tile over the union of its queries' lists, as if no two had a key in common. */
static void count_packed(const fhk_kernel *k, const fh_call *call, fh_counters *counters) {
  const uint64_t topk = (uint64_t)call->topk, tile = (uint64_t)k->tile, group = (uint64_t)call->group;
  const uint64_t whole = (uint64_t)call->s_q / group, rest = (uint64_t)call->s_q % group;
  const uint64_t blocks = whole * ((group * topk + tile - 1) / tile) + (rest * topk + tile - 1) / tile;
  const uint64_t pair = 2 * ((uint64_t)call->d_qk + (uint64_t)call->d_v), keys = (uint64_t)call->s_q * topk;
  counters->rows[FH_PACKED] += (uint64_t)call->s_q;
  counters->useful_flops += pair * (uint64_t)call->h_q * keys;
  counters->executed_flops += pair * (uint64_t)k->block * blocks * tile;
  counters->bytes += keys * ((uint64_t)call->d_qk * 2 + sizeof *call->plan->token + sizeof *call->plan->member) +
                     (whole + (rest != 0)) * (sizeof *call->plan->order + sizeof *call->plan->entries) +
                     (uint64_t)call->s_q * row_bytes(call);
}

static void count_rows(const fhk_kernel *k, const fh_call *call, fh_counters *counters) {
  const uint64_t rows = (uint64_t)call->s_q, topk = (uint64_t)call->topk, tile = (uint64_t)k->tile;
  const uint64_t heads = (uint64_t)fhk_kernel_heads(k, call), h_q = (uint64_t)call->h_q, block = (uint64_t)k->block;
  const uint64_t passes = (heads + block - 1) / block;
  const uint64_t pair = 2 * ((uint64_t)call->d_qk + (uint64_t)call->d_v);
  const uint64_t row = row_bytes(call);
  const uint64_t list = passes * (topk * 4 + (call->topk_length ? 4 : 0));
  counters->rows[k->path] += rows;
  counters->useful_flops += pair * h_q * topk * rows;
  counters->executed_flops += pair * heads * ((topk + tile - 1) / tile * tile) * rows;
  counters->bytes += (passes * topk * (uint64_t)call->d_qk * 2 + row + list) * rows;
}

static void count(const fhk_kernel *k, const fh_call *call, fh_counters *counters) {
  if (k->path == FH_PACKED) count_packed(k, call, counters);
  else count_rows(k, call, counters);
}

/* Enqueue the part of the call that `path` computes; *ran is the kernel. Entered. */
static fh_status run_path(fh_device *device, const fh_call *call, int32_t path, const fhk_kernel **ran) {
  const fhk_kernel *kernel = *ran = fhk_kernel_of(gpu_of(device), call, path);
  if (!kernel)
    return fh_fail(FH_ERR_UNSUPPORTED, "path %s: no kernel of this device takes the call", fh_path_name(path));
  return fh_cuda_status(kernel->run(gpu_of(device), call, fh_cuda_stream(device, call->stream)), kernel->name);
}

fh_status fh_cuda_run(fh_device *device, const fh_call *call, fh_counters *counters) {
  const fhk_kernel *kernel = NULL;
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  if ((status = fh_cuda_leave(run_path(device, call, call->path, &kernel)))) return status;
  count(kernel, call, counters);
  fh_name_kernel(counters, kernel->name);
  return FH_OK;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Two grids, each with what the plan leaves it when it begins. The second one does not wait for the first: it fills the
 * multiprocessors that the first leaves idle. */
fh_status fh_cuda_run_parts(fh_device *device, const fh_call *call, int32_t rows, fh_counters *counters) {
  const int32_t paths[] = {FH_PACKED, rows};
  const fhk_kernel *kernels[2] = {NULL, NULL};
  fh_counters parts[2] = {{0}, {0}};
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  for (int i = 0; i < 2 && !status; i++) status = run_path(device, call, paths[i], &kernels[i]);
  if ((status = fh_cuda_leave(status)) || !kernels[0] || !kernels[1]) return status;
  for (int i = 0; i < 2; i++) {
    count(kernels[i], call, &parts[i]);
    fh_name_kernel(counters, kernels[i]->name);
  }
  counters->rows[FH_AUTO] += (uint64_t)call->s_q;
  counters->useful_flops += parts[0].useful_flops;
  counters->executed_flops += larger(parts[0].executed_flops, parts[1].executed_flops);
  counters->bytes += larger(parts[0].bytes, parts[1].bytes);
  return FH_OK;
}

/* ---- Plans
 * ---------------------------------------------------------------------------------------------------------------- */

uint64_t fh_cuda_plan_bytes(const fh_device *device, const fh_call *call) {
  return fhk_plan_bytes(&fh_cuda_of(device)->gpu, call);
}

fh_status fh_cuda_plan_build(fh_device *device, const fh_call *call, int32_t complete, void *memory, fh_plan *plan) {
  const fh_status status = fh_cuda_enter(device);
  if (status) return status;
  return fh_cuda_leave(fh_cuda_status(
      fhk_plan_build(&fh_cuda_of(device)->gpu, call, complete, memory, plan, fh_cuda_stream(device, call->stream)),
      plan_kernel));
}

/* ---- Costs
 * ---------------------------------------------------------------------------------------------------------------- */

const char *fh_cuda_costs(const fh_device *device, const fh_call *call, fh_costs *costs) {
  enum { HEADS = 8, PADDED = 64 }; /* of the costs that stand for the device, where there is no call */
  fh_call one;
  if (!call) {
    fh_call_init(&one, sizeof one, 0, 0, HEADS, 512, 0);
    one.h_pad = PADDED;
    one.group = PADDED / HEADS;
    call = &one;
  }
  return fhk_costs(gpu_of(device), call, costs);
}
