/* The rows of sm90 packed: wgmma, group * h_q <= 64 rows on M. The kernel works on call->plan, which every packed call
 * has. cp.async copies 16 bytes from multiples of 16; rows of q and kv that are unaligned are loaded element by
 * element. */
#include "sm90/packed/packed.h"

#include "cuda/registry.h"

#define ROW(text, preferred, alignment, kernel)                                                        \
  {                                                                                                    \
    text, FH_PACKED, .preference = preferred, FHK_SM90, FHK_HEADS_TO(64), alignment, FHK_RUNS(kernel), \
                     FHK_COUNTS(64, 64, 64), .splits = fhk_sm90_packed_splits                          \
  }
const fhk_kernel fhk_rows_sm90_packed[] = {
    ROW("sm90 packed", 94, FHK_ALIGNED(16, 16, 16), sm90_packed),
    ROW("sm90 packed, unaligned out", 92, FHK_ALIGNED(16, 16, 1), sm90_packed),
    ROW("sm90 packed, unaligned", 90, FHK_ANY_ALIGNMENT, sm90_packed_unaligned),
    FHK_LAST_ROW,
};
