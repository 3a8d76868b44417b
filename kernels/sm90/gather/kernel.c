/* The row of sm90 gather: wgmma, tokens on M. */
#include "sm90/gather/gather.h"

#include "cuda/registry.h"

const fhk_kernel fhk_rows_sm90_gather[] = {
    {"sm90 gather", FH_GATHER, .preference = 90, FHK_SM90, FHK_HEADS_TO(128), FHK_ALIGNED(16, 16, 4),
     FHK_RUNS(sm90_gather), FHK_COUNTS(8, 32, 64), .cluster = FHK_SM90_GATHER_CLUSTER},
    FHK_LAST_ROW,
};
