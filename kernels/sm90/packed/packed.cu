/* Which instantiation a call gets: by d_qk, and by whether rows of q and kv start on the 16 bytes that cp.async wants. */
#include "cuda/cuda.h"
#include "sm90/packed/packed.cuh"

namespace fhk {
namespace sm90_packed {
FHK_SM90_PACKED_DECLARE(512, true)
FHK_SM90_PACKED_DECLARE(512, false)
FHK_SM90_PACKED_DECLARE(576, true)
FHK_SM90_PACKED_DECLARE(576, false)
}  // namespace sm90_packed
}  // namespace fhk

using namespace fhk;

int fhk_sm90_packed_prepare(void) {
  using namespace sm90_packed;
  for (cudaError_t (*one)() : {prepare<512, true>, prepare<512, false>, prepare<576, true>, prepare<576, false>}) {
    const cudaError_t status = one();
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

int32_t fhk_sm90_packed_splits(const fhk_gpu *gpu, const fh_call *call) {
  return sm90_packed::splits_of(call, gpu->multiprocessors);
}

/* The workspace: a plan where the call brings none, then the partial results of split unions. */
static uint64_t own_plan_bytes(const fhk_gpu *gpu, const fh_call *call) {
  constexpr uint64_t kLine = 256;
  const uint64_t bytes = call->plan ? 0 : fhk_plan_bytes(gpu, call);
  return bytes > UINT64_MAX - kLine ? UINT64_MAX : (bytes + kLine - 1) / kLine * kLine;
}

uint64_t fhk_sm90_packed_workspace(const fhk_gpu *gpu, const fh_call *call) {
  using namespace sm90_packed;
  const int32_t splits = splits_of(call, gpu->multiprocessors);
  if (splits == 1) return own_plan_bytes(gpu, call);
  const int64_t groups = fh_groups_most(call->s_q, call->requests, call->group);
  return own_plan_bytes(gpu, call) + groups * splits * (kPartialBytes + kSumsBytes);
}

int fhk_sm90_packed_run(const fhk_gpu *gpu, const fh_call *call, void *stream) {
  using namespace sm90_packed;
  if (call->s_q == 0) return cudaSuccess;
  fh_plan built;
  const fh_plan *plan = call->plan;
  if (!plan) {
    const int status = fhk_plan_build(gpu, call, call->workspace, &built, stream);
    if (status != cudaSuccess) return status;
    plan = &built;
  }
  if (plan->group * call->h_q > kRows || plan->groups > INT32_MAX / 4) return cudaErrorInvalidConfiguration;
  const int32_t splits = splits_of(call, gpu->multiprocessors);
  void *partials = static_cast<char *>(call->workspace) + own_plan_bytes(gpu, call);
  const bool on_16_bytes = aligned(call->q, call->q_stride_s, call->q_stride_h, 2, 16) && aligned(call->kv, call->kv_stride, 0, 2, 16);
  const auto aligned_one = call->d_qk == 576 ? launch<576, true> : launch<512, true>;
  const auto unaligned_one = call->d_qk == 576 ? launch<576, false> : launch<512, false>;
  return (on_16_bytes ? aligned_one : unaligned_one)(call, plan, splits, partials, gpu, static_cast<cudaStream_t>(stream));
}
