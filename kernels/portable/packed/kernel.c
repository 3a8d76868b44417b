/* The rows of portable packed: mma.sync and cp.async, compute capability 8.0 and up, group * h_q <= 64 rows. The kernel
 * works on call->plan, which every packed call has. Unaligned rows are loaded element by element. */
#include "cuda/registry.h"

FHK_KERNEL(portable_packed)

#define ROW(text, preferred, alignment)                                                                             \
  {                                                                                                                 \
    text, FH_PACKED, .preference = preferred, FHK_PORTABLE, FHK_HEADS_TO(64), alignment, FHK_RUNS(portable_packed), \
                     FHK_COUNTS(64, 64, 16)                                                                         \
  }
const fhk_kernel fhk_rows_portable_packed[] = {
    ROW("portable packed", 12, FHK_ALIGNED(4, 16, 16)),
    ROW("portable packed, unaligned", 10, FHK_ANY_ALIGNMENT),
    FHK_LAST_ROW,
};
