/* Calls on CUDA: which kernel a path is, what it costs and what it did, as far as the host can know. */
#include <math.h>
#include <stdio.h>

#include "cuda_back_end.h"
#include "groups.h"

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
static const kernel sm90_packed = {"sm90 packed", fhk_sm90_packed_prepare, fhk_sm90_packed_workspace,
                                   fhk_sm90_packed_run, 64, 64, 64};
static const kernel sm90_padded = {"sm90 padded", fhk_sm90_padded_prepare, fhk_sm90_padded_workspace,
                                   fhk_sm90_padded_run, 64, 64, 64};

static const char plan_kernel[] = "portable plan";

static int is_sm90(const fh_device *device) {
  return device->info.capability == 90 && !fh_cuda_of(device)->portable_only;
}

/* Where there is no kernel of its own, padded is the gather kernel over h_pad heads: it computes the zero heads too. */
static const kernel *kernel_of(const fh_device *device, int32_t path) {
  switch (path) {
    case FH_REFERENCE: return &reference;
    case FH_PACKED: return &sm90_packed; /* refused where it is not */
    case FH_PADDED: return is_sm90(device) ? &sm90_padded : &portable_gather;
    default: return is_sm90(device) ? &sm90_gather : &portable_gather;
  }
}

fh_status fh_cuda_prepare(const fh_device *device) {
  const kernel *const all[] = {&reference, &portable_gather, &sm90_gather, &sm90_padded, &sm90_packed};
  const size_t count = is_sm90(device) ? sizeof all / sizeof *all : 2;
  for (size_t i = 0; i < count; i++) {
    const fh_status status = fh_cuda_status(all[i]->prepare(), all[i]->name);
    if (status) return status;
  }
  return fh_cuda_status(fhk_plan_prepare(), plan_kernel);
}

int fh_cuda_offers(const fh_device *device, int32_t path, int32_t h_q, char why[FH_WHY]) {
  const int capability = device->info.capability;
  if (path != FH_PACKED) return 1;
  if (capability != 90)
    snprintf(why, FH_WHY, "required compute capability 9.0, the device has %d.%d", capability / 10, capability % 10);
  else if (fh_cuda_of(device)->portable_only)
    snprintf(why, FH_WHY, "required kernels for compute capability 9.0, which FEWHEAD_FORCE_PORTABLE=1 leaves out");
  else if (h_q > sm90_packed.block)
    snprintf(why, FH_WHY, "required h_q <= %d, got %d", (int)sm90_packed.block, (int)h_q);
  else
    return 1;
  return 0;
}

uint64_t fh_cuda_workspace_bytes(const fh_device *device, const fh_call *call) {
  return kernel_of(device, call->path)->workspace(&fh_cuda_of(device)->gpu, call);
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

/* Heads that the kernel multiplies for a row. */
static int32_t heads_of(const kernel *k, const fh_call *call) {
  const int32_t heads = call->path == FH_PADDED ? call->h_pad : call->h_q;
  int32_t width = k->narrowest;
  while (width < k->block && width < heads) width *= 2;
  return (heads + width - 1) / width * width;
}

/* All 64 rows of a tile over the union of its queries' lists, as if no two had a key in common. */
static void count_packed(const fh_call *call, fh_counters *counters) {
  const uint64_t topk = (uint64_t)call->topk, tile = (uint64_t)sm90_packed.tile, group = (uint64_t)call->group;
  const uint64_t whole = (uint64_t)call->s_q / group, rest = (uint64_t)call->s_q % group;
  const uint64_t blocks = whole * ((group * topk + tile - 1) / tile) + (rest * topk + tile - 1) / tile;
  const uint64_t pair = 2 * ((uint64_t)call->d_qk + (uint64_t)call->d_v), keys = (uint64_t)call->s_q * topk;
  const uint64_t list = call->plan ? 0 : topk * 4 + (call->topk_length ? 4 : 0);
  counters->rows[FH_PACKED] += (uint64_t)call->s_q;
  counters->useful_flops += pair * (uint64_t)call->h_q * keys;
  counters->executed_flops += pair * (uint64_t)sm90_packed.block * blocks * tile;
  counters->bytes += keys * ((uint64_t)call->d_qk * 2 + sizeof *call->plan->token + sizeof *call->plan->member) +
                     (whole + (rest != 0)) * (sizeof *call->plan->order + sizeof *call->plan->entries) +
                     (uint64_t)call->s_q * (row_bytes(call) + list);
}

static void count(const kernel *k, const fh_call *call, fh_counters *counters) {
  const uint64_t rows = (uint64_t)call->s_q, topk = (uint64_t)call->topk, tile = (uint64_t)k->tile;
  const uint64_t heads = (uint64_t)heads_of(k, call), h_q = (uint64_t)call->h_q, block = (uint64_t)k->block;
  const uint64_t passes = (heads + block - 1) / block;
  const uint64_t pair = 2 * ((uint64_t)call->d_qk + (uint64_t)call->d_v);
  const uint64_t row = row_bytes(call);
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
  if (status) return status;
  if (call->path == FH_PACKED) count_packed(call, counters);
  else count(k, call, counters);
  fh_name_kernel(counters, k->name);
  return FH_OK;
}

static uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* Two grids, each with what the plan leaves it when it begins. The second one does not wait for the first: it fills the
 * multiprocessors that the first leaves idle. */
fh_status fh_cuda_run_parts(fh_device *device, const fh_call *call, int32_t rows, fh_counters *counters) {
  const kernel *const parts[] = {&sm90_packed, kernel_of(device, rows)};
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  for (size_t i = 0; i < sizeof parts / sizeof *parts && !status; i++)
    status = fh_cuda_status(parts[i]->run(&fh_cuda_of(device)->gpu, call, fh_cuda_stream(device, call->stream)), parts[i]->name);
  if ((status = fh_cuda_leave(status))) return status;
  fh_call all = *call;
  fh_counters packed = {0}, others = {0};
  count_packed(call, &packed);
  all.path = rows;
  count(parts[1], &all, &others);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) fh_name_kernel(counters, parts[i]->name);
  counters->rows[FH_AUTO] += (uint64_t)call->s_q;
  counters->useful_flops += packed.useful_flops;
  counters->executed_flops += larger(packed.executed_flops, others.executed_flops);
  counters->bytes += larger(packed.bytes, others.bytes);
  return FH_OK;
}

/* ---- Plans ---------------------------------------------------------------------------------------------------------------- */

uint64_t fh_cuda_plan_bytes(const fh_device *device, const fh_call *call) {
  return fhk_plan_bytes(&fh_cuda_of(device)->gpu, call);
}

fh_status fh_cuda_plan_build(fh_device *device, const fh_call *call, void *memory, fh_plan *plan) {
  const fh_status status = fh_cuda_enter(device);
  if (status) return status;
  return fh_cuda_leave(fh_cuda_status(
      fhk_plan_build(&fh_cuda_of(device)->gpu, call, memory, plan, fh_cuda_stream(device, call->stream)), plan_kernel));
}

/* ---- Costs ---------------------------------------------------------------------------------------------------------------- */

/* Measured on an H200: d_qk 512, topk 640, lists full, calls that fill the device. By the heads that the kernel computes at once
 * (gather) or has to store (padded, which multiplies 64 whatever they are). */
static const struct { int32_t heads, ctas; fh_path_cost cost; } gather_costs[] = { /* ctas: that share a multiprocessor */
    {8, 2, {5.3, 0.0, 7.86}},
    {16, 2, {4.5, 0.0, 4.89}},
    {32, 1, {4.0, 0.0, 4.86}},
};
static const struct { int32_t heads; fh_path_cost cost; } padded_costs[] = {
    {8, {5.2, 0.0, 1.53}}, {16, {5.2, 0.0, 1.64}}, {32, {5.2, 0.0, 1.71}}, {64, {5.2, 0.0, 1.85}},
};
static const fh_path_cost packed_cost = {5.0, 0.0356, 1.42};
static const fh_path_cost plan_cost = {9.5, 0.0215, 0.14}; /* of lists that share nothing, 8 heads */
static const double SPLIT_US = 8.2; /* what combining the parts of split unions adds to a call */
/* A row takes this part of its time in a full device where a cluster shares it, and where it has a multiprocessor to itself. */
static const double ROW_SHARED = 0.25, ROW_ALONE = 0.65;

/* How much longer units take than in a device that is always full: the last wave takes as long as the others. */
static double in_waves(double units, double slots) {
  return units > 0 ? ceil(units / slots) * slots / units : 1;
}

/* us per GFLOP of the call's own heads: the kernel multiplies more of them. */
static fh_path_cost gather_cost(const fh_device *device, const fh_call *call) {
  const double rows = (double)call->s_q, multiprocessors = fh_cuda_of(device)->gpu.multiprocessors;
  fh_call native = *call;
  native.path = FH_GATHER;
  const int32_t heads = heads_of(kernel_of(device, FH_GATHER), &native);
  size_t i = 0;
  while (i + 1 < sizeof gather_costs / sizeof *gather_costs && gather_costs[i].heads < heads) i++;
  const double slots = multiprocessors * gather_costs[i].ctas;
  fh_path_cost cost = gather_costs[i].cost;
  cost.gflop_us *= (double)heads / call->h_q;
  if (!is_sm90(device)) return cost;
  cost.gflop_us *= in_waves(rows, slots);
  if (rows * FHK_SM90_GATHER_CLUSTER <= multiprocessors) cost.gflop_us *= ROW_SHARED;
  else if (gather_costs[i].ctas == 2 && rows <= multiprocessors) cost.gflop_us *= ROW_ALONE;
  return cost;
}

static fh_path_cost padded_cost(const fh_device *device, const fh_call *call) {
  size_t i = 0;
  if (!is_sm90(device)) { /* it is the gather kernel over h_pad heads */
    fh_call whole = *call;
    whole.h_q = whole.h_pad = sm90_padded.block;
    return gather_cost(device, &whole);
  }
  while (i + 1 < sizeof padded_costs / sizeof *padded_costs && padded_costs[i].heads < call->h_q) i++;
  fh_path_cost cost = padded_costs[i].cost;
  const double tiles = (double)call->s_q * call->h_pad / sm90_padded.block;
  cost.gflop_us *= in_waves(tiles, fh_cuda_of(device)->gpu.multiprocessors);
  return cost;
}

void fh_cuda_costs(const fh_device *device, const fh_call *call, fh_costs *costs) {
  const fhk_gpu *gpu = &fh_cuda_of(device)->gpu;
  fh_call one;
  if (!call) {
    fh_call_init(&one, sizeof one, 0, 0, 8, 512, 0);
    one.h_pad = sm90_padded.block;
    one.group = sm90_packed.block / one.h_q;
    call = &one;
  }
  costs->gather = gather_cost(device, call);
  costs->padded = padded_cost(device, call);
  costs->packed = packed_cost;
  costs->plan = plan_cost;
  costs->plan.gflop_us *= (double)gather_costs[0].heads / call->h_q; /* it goes by keys */
  const int32_t splits = fhk_sm90_packed_splits(gpu, call);
  const double groups = (double)fh_groups_most(call->s_q, call->requests, call->group);
  const double waves = in_waves(groups * splits, gpu->multiprocessors);
  costs->packed.unit_us *= splits * waves;
  costs->packed.gflop_us *= waves * sm90_packed.block / (call->group * call->h_q);
  if (splits > 1) costs->packed.call_us += SPLIT_US;
}
