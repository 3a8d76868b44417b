/* Which instantiation a call gets: the narrowest of 8, 16 and 32 heads that holds h_q, blocks of 32 beyond. */
#include "sm90/gather/gather.cuh"

namespace fhk {
namespace sm90_gather {
FHK_SM90_GATHER_DECLARE(512, 8)
FHK_SM90_GATHER_DECLARE(512, 16)
FHK_SM90_GATHER_DECLARE(512, 32)
FHK_SM90_GATHER_DECLARE(576, 8)
FHK_SM90_GATHER_DECLARE(576, 16)
FHK_SM90_GATHER_DECLARE(576, 32)

using Launch = cudaError_t (*)(const fh_call *, int32_t, cudaStream_t);
template <int kD>
Launch launch_for(int32_t h_q) {
  return h_q <= 8 ? launch<kD, 8> : h_q <= 16 ? launch<kD, 16> : launch<kD, 32>;
}
}  // namespace sm90_gather
}  // namespace fhk

using namespace fhk;

int fhk_sm90_gather_prepare(void) {
  using namespace sm90_gather;
  for (cudaError_t (*one)() :
       {prepare<512, 8>, prepare<512, 16>, prepare<512, 32>, prepare<576, 8>, prepare<576, 16>, prepare<576, 32>}) {
    const cudaError_t status = one();
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

uint64_t fhk_sm90_gather_workspace(const fhk_gpu *, const fh_call *) { return 0; }

int fhk_sm90_gather_run(const fhk_gpu *gpu, const fh_call *call, void *stream) {
  if (call->s_q == 0) return cudaSuccess;
  const auto launch =
      call->d_qk == 576 ? sm90_gather::launch_for<576>(call->h_q) : sm90_gather::launch_for<512>(call->h_q);
  return launch(call, gpu->multiprocessors, static_cast<cudaStream_t>(stream));
}
