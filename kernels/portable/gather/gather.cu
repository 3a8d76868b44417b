/* Which instantiation a call gets: teams for 8, 16 or 32 heads by h_q, groups of 32 heads beyond. */
#include "portable/gather/gather.cuh"

FHK_KERNEL(portable_gather)

namespace fhk {
namespace portable_gather {
FHK_PORTABLE_GATHER_DECLARE(512, 2, 1)
FHK_PORTABLE_GATHER_DECLARE(512, 2, 2)
FHK_PORTABLE_GATHER_DECLARE(512, 4, 4)
FHK_PORTABLE_GATHER_DECLARE(576, 2, 1)
FHK_PORTABLE_GATHER_DECLARE(576, 2, 2)
FHK_PORTABLE_GATHER_DECLARE(576, 4, 4)

using Launch = cudaError_t (*)(const fhk_gpu *, const fh_call *, cudaStream_t);
template <int kD>
Launch launch_for(int32_t h_q) {
  return h_q <= 8 ? launch<kD, 2, 1> : h_q <= 16 ? launch<kD, 2, 2> : launch<kD, 4, 4>;
}
}  // namespace portable_gather
}  // namespace fhk

using namespace fhk::portable_gather;

int fhk_portable_gather_prepare(void) {
  for (cudaError_t (*one)() : {prepare<512, 2, 1>, prepare<512, 2, 2>, prepare<512, 4, 4>, prepare<576, 2, 1>,
                               prepare<576, 2, 2>, prepare<576, 4, 4>}) {
    const cudaError_t status = one();
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

uint64_t fhk_portable_gather_workspace(const fhk_gpu *, const fh_call *) { return 0; }

int fhk_portable_gather_run(const fhk_gpu *gpu, const fh_call *call, void *stream) {
  if (call->s_q == 0) return cudaSuccess;
  return (call->d_qk == 576 ? launch_for<576> : launch_for<512>)(heads_of(*call))(gpu, call,
                                                                                  static_cast<cudaStream_t>(stream));
}
