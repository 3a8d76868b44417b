/* The formulas of the cost model (fewhead.h), one copy for the library and for every device. Read by C and by CUDA C++.
 */
#ifndef FEWHEAD_KERNEL_COST_H
#define FEWHEAD_KERNEL_COST_H

#include "fewhead.h"

#if defined(__CUDACC__)
#define FH_COST static inline __host__ __device__
#else
#define FH_COST static inline
#endif

/* GFLOP of so many (head, key) pairs: a multiplication and an addition for each of the d_qk columns of K and the d_v of
 * V. */
FH_COST double fh_gflop(int32_t d_qk, int32_t d_v, double pairs) { return 2e-9 * ((double)d_qk + (double)d_v) * pairs; }

/* Microseconds of a call with so many units and GFLOP. */
FH_COST double fh_cost_us(const fh_path_cost *cost, double units, double gflop) {
  return cost->call_us + cost->unit_us * units + cost->gflop_us * gflop;
}

/* The path of rows that are not packed: the cheaper of gather and padded, padded of equals. */
FH_COST int32_t fh_cheaper_rows(double padded_us, double gather_us) {
  return gather_us < padded_us ? FH_GATHER : FH_PADDED;
}

#endif
