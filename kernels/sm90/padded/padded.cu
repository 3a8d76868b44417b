/* Which instantiation a call gets: by d_qk. The registry knows whether rows of q and kv start on the 16 bytes that
 * cp.async wants. */
#include "cuda/cuda.h"
#include "sm90/padded/padded.cuh"

FHK_KERNEL(sm90_padded)
FHK_KERNEL(sm90_padded_unaligned)

namespace fhk {
namespace sm90_padded {
FHK_SM90_PADDED_DECLARE(512, true)
FHK_SM90_PADDED_DECLARE(512, false)
FHK_SM90_PADDED_DECLARE(576, true)
FHK_SM90_PADDED_DECLARE(576, false)
}  // namespace sm90_padded
}  // namespace fhk

using namespace fhk;

namespace {

template <bool kAligned>
int prepare_both() {
  using namespace sm90_padded;
  const cudaError_t status = prepare<512, kAligned>();
  return status != cudaSuccess ? status : prepare<576, kAligned>();
}

template <bool kAligned>
int run(const fhk_gpu *gpu, const fh_call *call, void *stream) {
  using namespace sm90_padded;
  if (call->s_q == 0) return cudaSuccess;
  if (most_rows(*call) > kMostRows / (call->h_pad / kRows)) return cudaErrorInvalidConfiguration;
  const auto launch_one = call->d_qk == 576 ? launch<576, kAligned> : launch<512, kAligned>;
  return launch_one(call, gpu->multiprocessors, static_cast<cudaStream_t>(stream));
}

}  // namespace

int fhk_sm90_padded_prepare(void) { return prepare_both<true>(); }
int fhk_sm90_padded_unaligned_prepare(void) { return prepare_both<false>(); }
uint64_t fhk_sm90_padded_workspace(const fhk_gpu *, const fh_call *) { return 0; }
uint64_t fhk_sm90_padded_unaligned_workspace(const fhk_gpu *, const fh_call *) { return 0; }
int fhk_sm90_padded_run(const fhk_gpu *gpu, const fh_call *call, void *stream) { return run<true>(gpu, call, stream); }
int fhk_sm90_padded_unaligned_run(const fhk_gpu *gpu, const fh_call *call, void *stream) {
  return run<false>(gpu, call, stream);
}
