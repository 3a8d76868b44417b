/* Which instantiation a call gets: by d_qk, and by whether rows of q and kv start on the 16 bytes that cp.async wants. */
#include "cuda/cuda.h"
#include "sm90/padded/padded.cuh"

namespace fhk {
namespace sm90_padded {
FHK_SM90_PADDED_DECLARE(512, true)
FHK_SM90_PADDED_DECLARE(512, false)
FHK_SM90_PADDED_DECLARE(576, true)
FHK_SM90_PADDED_DECLARE(576, false)
}  // namespace sm90_padded
}  // namespace fhk

using namespace fhk;

int fhk_sm90_padded_prepare(void) {
  using namespace sm90_padded;
  for (cudaError_t (*one)() : {prepare<512, true>, prepare<512, false>, prepare<576, true>, prepare<576, false>}) {
    const cudaError_t status = one();
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

uint64_t fhk_sm90_padded_workspace(const fhk_gpu *, const fh_call *) { return 0; }

int fhk_sm90_padded_run(const fhk_gpu *gpu, const fh_call *call, void *stream) {
  using namespace sm90_padded;
  if (call->s_q == 0) return cudaSuccess;
  if (most_rows(*call) > kMostRows / (call->h_pad / kRows)) return cudaErrorInvalidConfiguration;
  const bool on_16_bytes = aligned(call->q, call->q_stride_s, call->q_stride_h, 2, 16) && aligned(call->kv, call->kv_stride, 0, 2, 16);
  const auto aligned_one = call->d_qk == 576 ? launch<576, true> : launch<512, true>;
  const auto unaligned_one = call->d_qk == 576 ? launch<576, false> : launch<512, false>;
  return (on_16_bytes ? aligned_one : unaligned_one)(call, gpu->multiprocessors, static_cast<cudaStream_t>(stream));
}
