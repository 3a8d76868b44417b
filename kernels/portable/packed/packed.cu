/* Which instantiation a call gets: by d_qk. */
#include "portable/packed/packed.cuh"

FHK_KERNEL(portable_packed)

namespace fhk {
namespace portable_packed {
FHK_PORTABLE_PACKED_DECLARE(512)
FHK_PORTABLE_PACKED_DECLARE(576)
}  // namespace portable_packed
}  // namespace fhk

using namespace fhk::portable_packed;

int fhk_portable_packed_prepare(void) {
  const cudaError_t status = prepare<512>();
  return status != cudaSuccess ? status : prepare<576>();
}

uint64_t fhk_portable_packed_workspace(const fhk_gpu *, const fh_call *) { return 0; }

int fhk_portable_packed_run(const fhk_gpu *gpu, const fh_call *call, void *stream) {
  if (call->s_q == 0) return cudaSuccess;
  if (call->plan->group * call->h_q > kRows || call->plan->groups > INT32_MAX / 4) return cudaErrorInvalidConfiguration;
  return (call->d_qk == 576 ? launch<576> : launch<512>)(gpu, call, static_cast<cudaStream_t>(stream));
}
