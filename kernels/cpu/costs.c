/* The built-in costs of the CPU, by instruction set. */
#include "cpu/back_end.h"

/* Microseconds of one thread; more threads share them. */
static const double START_US = 10; /* of a call: waking the threads */
static const double PLAN_US = 40;  /* of the plan of a group */

/* Vector units, fitted to h_q 2, 8 and 16, padded 64, topk 640, on a Xeon with AVX-512 at 2.9 GHz. Packed multiplies
 * as much as gather does and needs a plan besides, while fh_work_gflop counts every row of a group for every entry.
 * So FH_AUTO packs only lists that are so much alike that packed costs no more even by this count. */
static const double ROW_US = 20;    /* of a row, beyond its products */
static const double GROUP_US = 160; /* of a group of 8 rows */
static const struct {
  double padded, gather;
} gflop_us[] = {
    [FH_ISA_GENERIC] = {39700, 40500},
    [FH_ISA_AVX2] = {12900, 13800},
    [FH_ISA_AVX512] = {6650, 6900},
    [FH_ISA_AVX512_BF16] = {9640, 9400},
};

/* The tile unit, fitted to CPU time of one thread: gather at h_q 2, 4, 8, 12, 16, 32, 48 and 64 and topk 640, padded
 * 64 at topk 640, packed at 64 rows and unions of 980 and 1980 rows, on a Xeon (Emerald Rapids). A KV row costs the
 * same for 1 to 8 rows of q, and for each 16 further on. Packed leaves out 16 rows that do not list a KV row: often
 * where they belong to four queries or fewer, seldom where they belong to more. */
static const double TILE_ROW_US = 2;
static const double TILE_GROUP_US = 20;
static double tile_key_us(int32_t rows) {
  if (rows <= 8) return 0.052;
  return rows <= 16 ? 0.064 : 0.045 * ((rows + 15) / 16);
}
static double tile_left_out(int32_t heads, int32_t rows) { return rows > 16 && heads >= 4 ? 0.28 : 0; }

/* Microseconds per GFLOP of a path that passes over the KV rows with `rows` rows of q at once. */
static double tile_gflop_us(const fh_call *call, int32_t rows) {
  const double gflop = 2e-9 * rows * ((call ? call->d_qk : 512) + 512.0); /* of a KV row */
  return tile_key_us(rows) / gflop;
}

const char *fhk_cpu_costs(const fhk_cpu *cpu, const fh_call *call, fh_costs *costs) {
  const double threads = fhk_cpu_threads(cpu);
  const int32_t isa = fhk_cpu_isa(cpu), heads = call ? call->h_q : 8;
  costs->plan = (fh_path_cost){START_US, PLAN_US / threads, 0};
  if (isa == FH_ISA_AMX) {
    const int32_t padded = call ? call->h_pad : 64, packed = heads * (call ? call->group : 8);
    costs->padded = (fh_path_cost){START_US, TILE_ROW_US / threads, tile_gflop_us(call, padded) / threads};
    costs->gather = (fh_path_cost){START_US, TILE_ROW_US / threads, tile_gflop_us(call, heads) / threads};
    costs->packed = (fh_path_cost){START_US, TILE_GROUP_US / threads,
                                   tile_gflop_us(call, packed) * (1 - tile_left_out(heads, packed)) / threads};
    return "scaled by threads from one thread of a Xeon with AMX";
  }
  const double gather = gflop_us[isa].gather;
  costs->padded = (fh_path_cost){START_US, ROW_US / threads, gflop_us[isa].padded / threads};
  costs->gather = (fh_path_cost){START_US, ROW_US / threads, gather / threads};
  costs->packed = (fh_path_cost){START_US, GROUP_US / threads, gather / threads};
  return "scaled by threads from one thread of a Xeon with AVX-512 at 2.9 GHz";
}
