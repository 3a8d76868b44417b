/* What the CUDA kernels share: tile addressing, the finish of a softmax row, and small launch helpers. */
#ifndef FEWHEAD_KERNELS_CUDA_COMMON_CUH
#define FEWHEAD_KERNELS_CUDA_COMMON_CUH

#include <cuda_runtime.h>

#include "cuda/ptx.cuh"
#include "fewhead.h"

namespace fhk {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
/* Running maximum before any key. Finite, so that old - new is never inf - inf. */
constexpr float kMaxStart = -1e30f;

/* A slice is up to 64 rows of 128 bytes (64 bf16 columns) with the 128-byte swizzle of wgmma: 16-byte unit u of row
 * r lies at unit u ^ (r % 8). A tile of 64 rows x d columns is d / 64 slices. */
constexpr uint32_t kSliceBytes = 64 * 128;
FHK_DEV uint32_t swizzled(uint32_t row, uint32_t unit) { return row * 128 + ((unit ^ (row & 7)) << 4); }

/* Run f(integral constant 0), f(1), .. f(kCount - 1), unrolled at compile time. */
template <int kValue>
struct Int {
  static constexpr int value = kValue;
};
template <int kCount, int kFrom = 0, typename F>
FHK_DEV void static_for(F &&f) {
  if constexpr (kFrom < kCount) {
    f(Int<kFrom>{});
    static_for<kCount, kFrom + 1>(static_cast<F &&>(f));
  }
}

/* One arrival for a warp. An arrival releases only its own thread's accesses, hence the __syncwarp.
 * compute-sanitizer's racecheck does not follow that chain; for it, FHK_RACECHECK builds the same protocol with
 * every lane speaking for itself. */
#ifdef FHK_RACECHECK
constexpr uint32_t kWarpArrivals = 32;
FHK_DEV void warp_arrive(uint32_t bar, int) { ptx::mbar_arrive(bar); }
#else
constexpr uint32_t kWarpArrivals = 1;
FHK_DEV void warp_arrive(uint32_t bar, int lane) {
  __syncwarp();
  if (lane == 0) ptx::mbar_arrive(bar);
}
#endif

/* Valid entries end here: topk_length clamped to 0 .. topk. */
FHK_DEV uint32_t list_length(const fh_call &call, int64_t s) {
  const int topk = static_cast<int>(call.topk);
  return call.topk_length == nullptr ? topk : min(max(__ldg(call.topk_length + s), 0), topk);
}

/* m: running maximum of the logits times log2(e); l: sum of 2^(logit - m). The sink enters the denominator only. */
FHK_DEV float sink_of(const fh_call &call, int head) {
  return call.attn_sink ? __ldg(call.attn_sink + head) : -INFINITY;
}
FHK_DEV float sink_log2(const fh_call &call, int head) { return sink_of(call, head) * kLog2e; }
FHK_DEV float inverse_denominator(float m, float l, float sink) {
  const float d = l + ptx::exp2(sink - m);
  return l == 0.f ? 0.f : 1.f / d;
}
FHK_DEV void store_statistics(const fh_call &call, int64_t s, int head, float m, float l) {
  if (call.lse) call.lse[s * call.lse_stride + head] = l == 0.f ? INFINITY : (m + ptx::log2(l)) * kLn2;
  if (call.max_logits) call.max_logits[s * call.max_logits_stride + head] = l == 0.f ? -INFINITY : m * kLn2;
}

/* Are all rows of an array that starts at p and steps by these strides (elements of `size` bytes) on multiples of
 * `bytes`? */
inline bool aligned(const void *p, int64_t stride0, int64_t stride1, int64_t size, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0 && stride0 * size % bytes == 0 && stride1 * size % bytes == 0;
}

/* Launch a kernel. early: it keeps the order among grids itself (ptx::wait_for_grid_before), so that it may start
 * before the grid in front of it has ended; Hopper can. */
template <typename... Parameters, typename... Arguments>
cudaError_t launch_grid(bool early, void (*kernel)(Parameters...), int64_t ctas, int threads, uint32_t shared,
                        cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(ctas);
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/* The same on any device: early where it can be. */
template <typename... Parameters, typename... Arguments>
cudaError_t launch_behind(int32_t capability, void (*kernel)(Parameters...), int64_t ctas, int threads, uint32_t shared,
                          cudaStream_t stream, Arguments... arguments) {
  return launch_grid(capability >= 90, kernel, ctas, threads, shared, stream, arguments...);
}

}  // namespace fhk

#endif
