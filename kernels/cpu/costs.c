/* The built-in costs of the CPU, by instruction set. */
#include "cpu/back_end.h"

/* Microseconds of one thread, fitted to h_q 2, 8 and 16, padded 64, topk 640, on a Xeon with AVX-512 at 2.9 GHz; more
 * threads share them. Packed multiplies what gather multiplies, and needs a plan besides, while fh_work_gflop counts
 * every row of a group for every entry: it is taken only where lists are so much alike that even so it costs no more.
 */
static const double START_US = 10;  /* of a call: waking the threads */
static const double ROW_US = 20;    /* of a row, beyond its products */
static const double GROUP_US = 160; /* of a group of 8 rows */
static const double PLAN_US = 40;   /* of the plan of a group */
static const struct {
  double padded, gather;
} gflop_us[] = {
    [FH_ISA_GENERIC] = {39700, 40500},   [FH_ISA_AVX2] = {12900, 13800}, [FH_ISA_AVX512] = {6650, 6900},
    [FH_ISA_AVX512_BF16] = {9640, 9400}, [FH_ISA_AMX] = {1000, 3000},
};

const char *fhk_cpu_costs(const fhk_cpu *cpu, fh_costs *costs) {
  const double threads = fhk_cpu_threads(cpu);
  const double padded = gflop_us[fhk_cpu_isa(cpu)].padded, gather = gflop_us[fhk_cpu_isa(cpu)].gather;
  costs->padded = (fh_path_cost){START_US, ROW_US / threads, padded / threads};
  costs->gather = (fh_path_cost){START_US, ROW_US / threads, gather / threads};
  costs->packed = (fh_path_cost){START_US, GROUP_US / threads, gather / threads};
  costs->plan = (fh_path_cost){START_US, PLAN_US / threads, 0};
  return "scaled by threads from one thread of a Xeon with AVX-512 at 2.9 GHz";
}
