/* Strided views on the device. Plain kernels: they prepare and fetch data, nothing that is timed runs through them. */
#include <cuda_runtime.h>

#include "cuda/views.h"
#include "numbers.h"

namespace {

constexpr int kThreads = 256;

/* Bytes from data to element `i` in row-major order. */
__device__ int64_t offset_of(const fhk_elements &e, int64_t i) {
  int64_t offset = 0;
#pragma unroll
  for (int d = FH_MAX_RANK - 1; d > 0; d--) {
    offset += i % e.shape[d] * e.stride[d];
    i /= e.shape[d];
  }
  return (offset + i * e.stride[0]) * e.element_bytes;
}

__device__ void store(const fhk_elements &e, int64_t i, uint32_t bits) {
  char *at = static_cast<char *>(e.data) + offset_of(e, i);
  if (e.element_bytes == 2) *reinterpret_cast<uint16_t *>(at) = static_cast<uint16_t>(bits);
  else *reinterpret_cast<uint32_t *>(at) = bits;
}

__device__ uint32_t load(const fhk_elements &e, int64_t i) {
  const char *at = static_cast<const char *>(e.data) + offset_of(e, i);
  return e.element_bytes == 2 ? *reinterpret_cast<const uint16_t *>(at) : *reinterpret_cast<const uint32_t *>(at);
}

/* The formulas of fh_dist, one rounding where they say so. */
__device__ uint32_t random_bits(const fhk_random &r, int32_t dtype, uint64_t i) {
  uint32_t w[4];
  float x;
  if (r.dist == FH_NORMAL) {
    fh_philox(r.seed, r.stream, i, w);
    uint32_t sum = 0;
    for (int j = 0; j < 4; j++) sum += (w[j] & 0xffffu) + (w[j] >> 16);
    x = __fmaf_rn(r.scale, __fmul_rn(__int2float_rn(static_cast<int>(sum) - FH_NORMAL_MEAN), FH_NORMAL_SCALE), r.a);
  } else {
    fh_philox(r.seed, r.stream, i / 4, w);
    const uint32_t word = w[i % 4];
    if (dtype == FH_I32)
      return static_cast<uint32_t>(static_cast<int32_t>(r.low + static_cast<int64_t>((word * r.width) >> 32)));
    x = __fmaf_rn(__fmul_rn(__int2float_rn(static_cast<int>(word >> 8)), 0x1p-24f), r.scale, r.a);
  }
  return dtype == FH_BF16 ? fh_bf16(x) : __float_as_uint(x);
}

__global__ void fill_kernel(const __grid_constant__ fhk_elements to, uint32_t bits) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < to.count; i += int64_t{gridDim.x} * kThreads)
    store(to, i, bits);
}

__global__ void random_kernel(const __grid_constant__ fhk_elements to, const __grid_constant__ fhk_random random) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < to.count; i += int64_t{gridDim.x} * kThreads)
    store(to, i, random_bits(random, to.dtype, static_cast<uint64_t>(i)));
}

__global__ void copy_kernel(const __grid_constant__ fhk_elements to, const __grid_constant__ fhk_elements from) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < to.count; i += int64_t{gridDim.x} * kThreads)
    store(to, i, load(from, i));
}

unsigned blocks_for(int64_t count) {
  constexpr int64_t kMost = 1 << 16; /* enough for any device; the kernels stride over the rest */
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

}  // namespace

int fhk_views_fill(const fhk_elements *to, uint32_t bits, void *stream) {
  fill_kernel<<<blocks_for(to->count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*to, bits);
  return cudaGetLastError();
}

int fhk_views_random(const fhk_elements *to, const fhk_random *random, void *stream) {
  random_kernel<<<blocks_for(to->count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*to, *random);
  return cudaGetLastError();
}

int fhk_views_copy(const fhk_elements *to, const fhk_elements *from, void *stream) {
  copy_kernel<<<blocks_for(to->count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*to, *from);
  return cudaGetLastError();
}
