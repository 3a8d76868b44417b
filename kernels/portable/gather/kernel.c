/* The rows of portable gather: mma.sync and cp.async, compute capability 8.0 and up. cp.async copies 16 bytes from
 * multiples of 16; unaligned rows are loaded element by element. Devices without a padded kernel of their own run this
 * one over h_pad heads: it computes the zero heads too. */
#include "cuda/registry.h"

FHK_KERNEL(portable_gather)

#define ROW(text, number, preferred, alignment)                                                                   \
  {                                                                                                               \
    text, number, .preference = preferred, FHK_PORTABLE, FHK_HEADS_TO(128), alignment, FHK_RUNS(portable_gather), \
                  FHK_COUNTS(8, 32, 16)                                                                           \
  }
const fhk_kernel fhk_rows_portable_gather[] = {
    ROW("portable gather", FH_GATHER, 12, FHK_ALIGNED(4, 16, 16)),
    ROW("portable gather, unaligned", FH_GATHER, 10, FHK_ANY_ALIGNMENT),
    ROW("portable gather", FH_PADDED, 12, FHK_ALIGNED(4, 16, 16)),
    ROW("portable gather, unaligned", FH_PADDED, 10, FHK_ANY_ALIGNMENT),
    FHK_LAST_ROW,
};
