/* The rows of portable reference: fp32, any device. */
#include "cuda/registry.h"

FHK_KERNEL(portable_reference)

const fhk_kernel fhk_rows_portable_reference[] = {
    {"portable reference", FH_REFERENCE, .preference = 10, FHK_PORTABLE, FHK_HEADS_TO(128), FHK_ANY_ALIGNMENT,
     FHK_RUNS(portable_reference), FHK_COUNTS(8, 8, 32)},
    FHK_LAST_ROW,
};
