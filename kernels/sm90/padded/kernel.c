/* The rows of sm90 padded: wgmma, heads on M. cp.async copies 16 bytes from multiples of 16; rows of q and kv that are
 * unaligned are loaded element by element. */
#include "cuda/registry.h"

FHK_KERNEL(sm90_padded)
FHK_KERNEL(sm90_padded_unaligned)

#define ROW(text, preferred, alignment, kernel)                                                         \
  {                                                                                                     \
    text, FH_PADDED, .preference = preferred, FHK_SM90, FHK_HEADS_TO(128), alignment, FHK_RUNS(kernel), \
                     FHK_COUNTS(64, 64, 64)                                                             \
  }
const fhk_kernel fhk_rows_sm90_padded[] = {
    ROW("sm90 padded", 94, FHK_ALIGNED(16, 16, 16), sm90_padded),
    ROW("sm90 padded, unaligned out", 92, FHK_ALIGNED(16, 16, 1), sm90_padded),
    ROW("sm90 padded, unaligned", 90, FHK_ANY_ALIGNMENT, sm90_padded_unaligned),
    FHK_LAST_ROW,
};
