/* What fh_view_* needs on a CUDA device: setting, reading and copying strided elements. Stream-ordered; return a
 * cudaError_t as int. */
#ifndef FEWHEAD_KERNELS_CUDA_VIEWS_H
#define FEWHEAD_KERNELS_CUDA_VIEWS_H

#include "fewhead.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element (i, j, ..) lies at data + (i * stride[0] + j * stride[1] + ..) * element_bytes; entries past the rank are
 * 1 and 0. */
typedef struct fhk_elements {
  void *data;
  int64_t count; /* product of the shape, > 0 */
  int64_t shape[FH_MAX_RANK];
  int64_t stride[FH_MAX_RANK];
  int32_t element_bytes; /* 2 or 4 */
  int32_t dtype;
} fhk_elements;

/* The generator of fh_view_random, its arguments checked and rounded. */
typedef struct fhk_random {
  uint64_t seed, stream;
  uint64_t width; /* i32: b - a, up to 2^32 */
  int32_t dist;
  int32_t low;    /* i32: a */
  float a, scale; /* f32, bf16: a; b - a (uniform) or b (normal), as floats */
} fhk_random;

/* Every element becomes the low element_bytes of `bits`. */
int fhk_views_fill(const fhk_elements *to, uint32_t bits, void *stream);
/* Elements must not share memory: kernels write in no fixed order. */
int fhk_views_random(const fhk_elements *to, const fhk_random *random, void *stream);
/* to[i] = from[i]; same shape and element size. */
int fhk_views_copy(const fhk_elements *to, const fhk_elements *from, void *stream);

#ifdef __cplusplus
}
#endif

#endif
