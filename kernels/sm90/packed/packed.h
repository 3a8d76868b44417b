/* sm90 packed as its own files see it. */
#ifndef FEWHEAD_KERNELS_SM90_PACKED_H
#define FEWHEAD_KERNELS_SM90_PACKED_H

#include "cuda/cuda.h"

FHK_KERNEL(sm90_packed)
FHK_KERNEL(sm90_packed_unaligned)

/* Parts that each union is split into where groups are few: 1 and more. */
FHK_C int32_t fhk_sm90_packed_splits(const fhk_gpu *gpu, const fh_call *call);

#endif
