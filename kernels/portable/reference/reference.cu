/*
 * portable reference: fp32, plain, any alignment, any device. What the other kernels are checked against.
 *
 * A CTA of 256 threads takes one query and eight heads. Keys go by in blocks of 32: each warp scores four of them (a
 * lane multiplies every 32nd column), P of the block is computed, and each thread adds its two of the 512 columns up
 * for all eight heads.
 */
#include <cuda_runtime.h>

#include "cuda/cuda.h"
#include "cuda/common.cuh"

FHK_KERNEL(portable_reference)

namespace fhk {
namespace portable_reference {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kHeads = 8;
constexpr int kBlock = 32; /* keys: a warp's lanes find the maximum of one head */
constexpr int kDv = 512, kMaxD = 576;
constexpr int kColumns = kDv / kThreads;
static_assert(kWarps == kHeads, "a warp makes P of a block for one head");

FHK_DEV float to_float(uint16_t x) { return __uint_as_float(static_cast<uint32_t>(x) << 16); }

__global__ void __launch_bounds__(kThreads) kernel(const __grid_constant__ fh_call call, int head_blocks) {
  __shared__ float q[kHeads][kMaxD];
  __shared__ float p[kBlock][kHeads];
  __shared__ int32_t tokens[kBlock];
  __shared__ float rescale[kHeads], running_max[kHeads], running_sum[kHeads];
  const int t = threadIdx.x, warp = t >> 5, lane = t & 31;
  const int64_t s = blockIdx.x / head_blocks;
  const int head0 = static_cast<int>(blockIdx.x % head_blocks) * kHeads, heads = min(kHeads, call.h_q - head0);
  for (int k = t; k < kHeads * call.d_qk; k += kThreads) {
    const int h = k / call.d_qk, d = k % call.d_qk;
    q[h][d] = h < heads ? to_float(call.q[s * call.q_stride_s + (head0 + h) * call.q_stride_h + d]) : 0.f;
  }
  if (t < kHeads) {
    running_max[t] = -INFINITY;
    running_sum[t] = 0.f;
  }
  float o[kHeads][kColumns] = {};
  const int64_t length = list_length(call, s);
  for (int64_t first = 0; first < length; first += kBlock) {
    if (t < kBlock) {
      const int32_t entry = first + t < length ? call.indices[s * call.indices_stride + first + t] : -1;
      tokens[t] = entry >= 0 && entry < call.s_kv ? entry : -1;
    }
    __syncthreads();
    for (int k = warp; k < kBlock; k += kWarps) {
      float sum[kHeads] = {};
      if (tokens[k] >= 0) {
        const uint16_t *row = call.kv + tokens[k] * call.kv_stride;
        for (int d = lane; d < call.d_qk; d += 32) {
          const float x = to_float(row[d]);
#pragma unroll
          for (int h = 0; h < kHeads; h++) sum[h] += q[h][d] * x;
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; h++) {
        for (int d = 16; d > 0; d >>= 1) sum[h] += __shfl_xor_sync(~0u, sum[h], d);
        if (lane == 0) p[k][h] = tokens[k] >= 0 ? sum[h] * call.sm_scale : -INFINITY;
      }
    }
    __syncthreads();
    { /* warp h: softmax of head h */
      const float logit = p[lane][warp];
      float top = logit;
      for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
      const float old = running_max[warp], now = fmaxf(old, top);
      const float p_of_key = now == -INFINITY ? 0.f : expf(logit - now);
      float sum = p_of_key;
      for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
      p[lane][warp] = p_of_key;
      __syncwarp(); /* every lane has read the old maximum */
      if (lane == 0) {
        rescale[warp] = now == -INFINITY ? 1.f : expf(old - now);
        running_max[warp] = now;
        running_sum[warp] = running_sum[warp] * rescale[warp] + sum;
      }
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
#pragma unroll
      for (int c = 0; c < kColumns; c++) o[h][c] *= rescale[h];
    }
    for (int k = 0; k < kBlock; k++) {
      if (tokens[k] < 0) continue;
      const uint16_t *row = call.kv + tokens[k] * call.kv_stride;
#pragma unroll
      for (int c = 0; c < kColumns; c++) {
        const float x = to_float(row[c * kThreads + t]);
#pragma unroll
        for (int h = 0; h < kHeads; h++) o[h][c] += p[k][h] * x;
      }
    }
    __syncthreads();
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; h++) {
    if (h >= heads) break;
    const float top = running_max[h], sum = running_sum[h];
    const bool empty = top == -INFINITY;
    const float sink = call.attn_sink && !empty ? expf(call.attn_sink[head0 + h] - top) : 0.f;
    const int64_t at = s * call.out_stride_s + (head0 + h) * call.out_stride_h;
#pragma unroll
    for (int c = 0; c < kColumns; c++) {
      const float x = empty ? 0.f : o[h][c] / (sum + sink);
      const int64_t where = at + c * kThreads + t;
      if (call.out_dtype == FH_F32) static_cast<float *>(call.out)[where] = x;
      else static_cast<uint16_t *>(call.out)[where] = static_cast<uint16_t>(ptx::pack_bf16(x, x));
    }
    if (t == 0 && call.lse) call.lse[s * call.lse_stride + head0 + h] = empty ? INFINITY : top + logf(sum);
    if (t == 0 && call.max_logits) call.max_logits[s * call.max_logits_stride + head0 + h] = top;
  }
}

}  // namespace portable_reference
}  // namespace fhk

using namespace fhk::portable_reference;

int fhk_portable_reference_prepare(void) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}

uint64_t fhk_portable_reference_workspace(const fhk_gpu *, const fh_call *) { return 0; }

int fhk_portable_reference_run(const fhk_gpu *, const fh_call *call, void *stream) {
  if (call->s_q == 0) return cudaSuccess;
  const int head_blocks = (call->h_q + kHeads - 1) / kHeads;
  const int64_t ctas = call->s_q * head_blocks;
  if (ctas > INT32_MAX) return cudaErrorInvalidConfiguration; /* terabytes of output */
  kernel<<<static_cast<unsigned>(ctas), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*call, head_blocks);
  return cudaGetLastError();
}
