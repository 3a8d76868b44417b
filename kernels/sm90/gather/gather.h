/* sm90 gather as its own files see it. */
#ifndef FEWHEAD_KERNELS_SM90_GATHER_H
#define FEWHEAD_KERNELS_SM90_GATHER_H

#include "cuda/cuda.h"

FHK_KERNEL(sm90_gather)

enum { FHK_SM90_GATHER_CLUSTER = 8 }; /* CTAs that share a row where rows are few: the largest portable cluster */

#endif
