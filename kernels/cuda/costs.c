/*
 * Built-in costs, a table a device, for FH_AUTO and for people who ask what a path is expected to take.
 *
 * A device that stands in the table gets what was measured on it. Any other device gets the costs of the first row,
 * scaled by what the device reports:
 *     compute = multiprocessors * clock of the row's device / (multiprocessors * clock of this one)
 *     memory  = memory clock * bus width of the row's device / (memory clock * bus width of this one)
 * gflop_us and unit_us of gather, padded and packed are multiplied by `compute`: tensor cores and shared memory, and
 * about so the L2 cache, go by multiprocessors and clock. unit_us of a plan is multiplied by `compute`, its gflop_us,
 * which stands for the lists read and unions written, by `memory`. call_us stays: starting a kernel takes about as long
 * on every device. A quotient whose numbers the device does not report is 1, but for multiprocessors, which every
 * device reports. The text that comes with the costs says which of the two it was.
 */
#include <math.h>
#include <string.h>

#include "cuda/registry.h"
#include "groups.h"

/* Of a kernel, by the heads that it computes at once (gather) or has to store (padded, which multiplies 64 whatever
 * they are). Gather's gflop_us is by the heads that it computes. */
typedef struct kernel_costs {
  const char *kernel; /* a name of the registry */
  int32_t heads;
  int32_t ctas; /* that share a multiprocessor; 0: waves of CTAs are not looked at */
  fh_path_cost cost;
} kernel_costs;

enum { MOST_KERNEL_COSTS = 16 };

typedef struct device_costs {
  const char *name;     /* what the vendor calls the device */
  const char *measured; /* what is said of its costs, on the device itself and on others */
  const char *scaled;
  fhk_gpu gpu;
  kernel_costs kernels[MOST_KERNEL_COSTS];
  fh_path_cost packed;
  fh_path_cost plan; /* what building one adds to a call that packs, at plan_heads heads: it goes by keys */
  /* What one adds that packs nothing: where rows are gathered, and where they are padded, so that a sample of the
   * groups is looked at first. */
  fh_path_cost vain, vain_sampled;
  int32_t plan_heads;
  double split_us; /* what combining the parts of split unions adds to a call */
  /* A row takes this part of its time in a full device where a cluster shares it, and where it has a multiprocessor
   * to itself. */
  double row_shared, row_alone;
} device_costs;

#define SOURCE(device)                               \
  .name = device, .measured = "measured on " device, \
  .scaled = "scaled from " device " by multiprocessors, clocks and memory bus; nobody measured this device"

static const device_costs devices[] = {
    {
        /* d_qk 512, topk 640, lists full, calls that fill the device; portable gather: uniform lists over 8192 rows,
         * at 16 and 32 heads csa lists, times what uniform ones take more at 8 heads. results/nvidia-h200/ has the
         * runs behind the sm90 kernels, the README of portable gather its own. */
        SOURCE("NVIDIA H200"),
        .gpu = {.multiprocessors = 132,
                .capability = 90,
                .clock_mhz = 1980,
                .memory_clock_mhz = 3201,
                .memory_bus_bits = 6144},
        .kernels =
            {
                {"sm90 gather", 8, 2, {5.3, 0.0, 7.86}},
                {"sm90 gather", 16, 2, {4.5, 0.0, 4.89}},
                {"sm90 gather", 32, 1, {4.0, 0.0, 4.86}},
                {"portable gather", 8, 0, {5.3, 0.0, 10.15}},
                {"portable gather", 16, 0, {5.3, 0.0, 6.97}},
                {"portable gather", 32, 0, {5.3, 0.0, 6.56}},
                {"portable packed", 64, 0, {5.0, 0.071, 2.9}},
                {"sm90 padded", 8, 1, {5.2, 0.0, 1.46}},
                {"sm90 padded", 16, 1, {5.2, 0.0, 1.57}},
                {"sm90 padded", 20, 1, {5.2, 0.0, 1.53}},
                {"sm90 padded", 24, 1, {5.2, 0.0, 1.58}},
                {"sm90 padded", 32, 1, {5.2, 0.0, 1.64}},
                {"sm90 padded", 64, 1, {5.2, 0.0, 1.77}},
            },
        .packed = {5.0, 0.0356, 1.34},
        .plan = {9.9, 0.0085, 0.15},
        .vain = {13, 0.03, 0.25},
        .vain_sampled = {18, 0.007, 0},
        .plan_heads = 8,
        .split_us = 8.2,
        .row_shared = 0.25,
        .row_alone = 0.65,
    },
};

/* The row of the device; NULL if there is none. */
static const device_costs *row_of(const fhk_gpu *gpu) {
  for (size_t i = 0; gpu->name && i < sizeof devices / sizeof *devices; i++)
    if (strcmp(gpu->name, devices[i].name) == 0 && gpu->capability == devices[i].gpu.capability) return &devices[i];
  return NULL;
}

static double quotient(double of, double by) { return of > 0 && by > 0 ? of / by : 1; }

/* How much longer units take than in a device that is always full: the last wave takes as long as the others. */
static double in_waves(double units, double slots) { return units > 0 ? ceil(units / slots) * slots / units : 1; }

/* Returns the costs of a kernel at this number of heads or the next larger one. The registry's name may go on behind
 * a comma. */
static const kernel_costs *costs_of(const device_costs *row, const char *kernel, int32_t heads) {
  const kernel_costs *best = NULL;
  for (const kernel_costs *k = row->kernels; k < row->kernels + MOST_KERNEL_COSTS && k->kernel; k++) {
    const size_t length = strlen(k->kernel);
    if (strncmp(k->kernel, kernel, length) != 0 || (kernel[length] != 0 && kernel[length] != ',')) continue;
    if (!best || best->heads < heads) best = k;
  }
  return best;
}

/* us per GFLOP of the call's own heads: the kernel multiplies more of them. */
static fh_path_cost gather_cost(const device_costs *row, const fhk_gpu *gpu, const fh_call *call,
                                const fhk_kernel *kernel) {
  const double multiprocessors = gpu->multiprocessors;
  const int32_t heads = fhk_kernel_heads(kernel, call);
  /* A row whose heads fill several blocks is as many rows to the device: a CTA or a cluster each. */
  const double rows = (double)call->s_q * ((heads + kernel->block - 1) / kernel->block);
  const kernel_costs *known = costs_of(row, kernel->name, heads);
  fh_path_cost cost = known->cost;
  cost.gflop_us *= (double)heads / (kernel->path == FH_PADDED ? call->h_pad : call->h_q);
  if (!known->ctas || rows == 0) return cost; /* without rows: as for many */
  cost.gflop_us *= in_waves(rows, multiprocessors * known->ctas);
  if (kernel->cluster && rows * kernel->cluster <= multiprocessors) cost.gflop_us *= row->row_shared;
  else if (known->ctas == 2 && rows <= multiprocessors) cost.gflop_us *= row->row_alone;
  return cost;
}

static fh_path_cost padded_cost(const device_costs *row, const fhk_gpu *gpu, const fh_call *call,
                                const fhk_kernel *kernel) {
  if (kernel->narrowest < kernel->block) return gather_cost(row, gpu, call, kernel); /* its width follows the heads */
  fh_path_cost cost = costs_of(row, kernel->name, call->h_q)->cost;
  const double tiles = (double)call->s_q * call->h_pad / kernel->block;
  cost.gflop_us *= in_waves(tiles, gpu->multiprocessors);
  return cost;
}

static fh_path_cost packed_cost(const device_costs *row, const fhk_gpu *gpu, const fh_call *call,
                                const fhk_kernel *kernel) {
  const kernel_costs *known = costs_of(row, kernel->name, 64);
  fh_path_cost cost = known ? known->cost : row->packed;
  const int32_t splits = kernel->splits ? kernel->splits(gpu, call) : 1;
  const double groups = (double)fh_groups_most(call->s_q, call->requests, call->group);
  const double waves = in_waves(groups * splits, gpu->multiprocessors);
  cost.unit_us *= splits * waves;
  cost.gflop_us *= waves * kernel->block / (call->group * call->h_q);
  if (splits > 1) cost.call_us += row->split_us;
  return cost;
}

static void scale(fh_path_cost *cost, double unit, double gflop) {
  cost->unit_us *= unit;
  cost->gflop_us *= gflop;
}

/* As fh_rows_path; of no call in particular: for many rows. */
static int rows_are_padded(const fh_call *call, const fh_costs *costs) {
  if (call->s_q && call->topk) return fh_rows_path(call, costs) == FH_PADDED;
  return costs->padded.gflop_us * call->h_pad <= costs->gather.gflop_us * call->h_q;
}

/* Without a kernel for FH_PACKED nobody reads the costs of packed. */
const char *fhk_costs(const fhk_gpu *gpu, const fh_call *call, fh_costs *costs) {
  const device_costs *own = row_of(gpu), *row = own ? own : devices;
  const fhk_kernel *packed = fhk_kernel_of(gpu, call, FH_PACKED);
  costs->gather = gather_cost(row, gpu, call, fhk_kernel_of(gpu, call, FH_GATHER));
  costs->padded = padded_cost(row, gpu, call, fhk_kernel_of(gpu, call, FH_PADDED));
  costs->packed = row->packed;
  if (packed) costs->packed = packed_cost(row, gpu, call, packed);
  costs->plan = row->plan;
  costs->vain = rows_are_padded(call, costs) ? row->vain_sampled : row->vain;
  costs->plan.gflop_us *= (double)row->plan_heads / call->h_q;
  costs->vain.gflop_us *= (double)row->plan_heads / call->h_q;
  if (own) return row->measured;
  const double compute = quotient((double)row->gpu.multiprocessors, (double)gpu->multiprocessors) *
                         quotient(row->gpu.clock_mhz, gpu->clock_mhz);
  const double memory = quotient((double)row->gpu.memory_clock_mhz * row->gpu.memory_bus_bits,
                                 (double)gpu->memory_clock_mhz * gpu->memory_bus_bits);
  scale(&costs->gather, compute, compute);
  scale(&costs->padded, compute, compute);
  scale(&costs->packed, compute, compute);
  scale(&costs->plan, compute, memory);
  scale(&costs->vain, compute, memory);
  return row->scaled;
}
