/* Which instantiation a call gets: by d_qk. The registry knows whether rows of q and kv start on the 16 bytes that
 * cp.async wants. */
#include "sm90/packed/packed.cuh"
#include "sm90/packed/packed.h"

namespace fhk {
namespace sm90_packed {
FHK_SM90_PACKED_DECLARE(512, true)
FHK_SM90_PACKED_DECLARE(512, false)
FHK_SM90_PACKED_DECLARE(576, true)
FHK_SM90_PACKED_DECLARE(576, false)
}  // namespace sm90_packed
}  // namespace fhk

using namespace fhk;

namespace {

template <bool kAligned>
int prepare_both() {
  using namespace sm90_packed;
  const cudaError_t status = prepare<512, kAligned>();
  return status != cudaSuccess ? status : prepare<576, kAligned>();
}

template <bool kAligned>
int run(const fhk_gpu *gpu, const fh_call *call, void *stream) {
  using namespace sm90_packed;
  if (call->s_q == 0) return cudaSuccess;
  const fh_plan *plan = call->plan;
  if (plan->group * call->h_q > kRows || plan->groups > INT32_MAX / 4) return cudaErrorInvalidConfiguration;
  const int32_t splits = splits_of(call, gpu->multiprocessors);
  const auto launch_one = call->d_qk == 576 ? launch<576, kAligned> : launch<512, kAligned>;
  return launch_one(call, plan, splits, call->workspace, gpu, static_cast<cudaStream_t>(stream));
}

}  // namespace

int32_t fhk_sm90_packed_splits(const fhk_gpu *gpu, const fh_call *call) {
  return sm90_packed::splits_of(call, gpu->multiprocessors);
}

/* The partial results of split unions. */
uint64_t fhk_sm90_packed_workspace(const fhk_gpu *gpu, const fh_call *call) {
  using namespace sm90_packed;
  const int32_t splits = splits_of(call, gpu->multiprocessors);
  if (splits == 1) return 0;
  const int64_t groups = fh_groups_most(call->s_q, call->requests, call->group);
  return groups * splits * (kPartialBytes + kSumsBytes);
}
uint64_t fhk_sm90_packed_unaligned_workspace(const fhk_gpu *gpu, const fh_call *call) {
  return fhk_sm90_packed_workspace(gpu, call);
}

int fhk_sm90_packed_prepare(void) { return prepare_both<true>(); }
int fhk_sm90_packed_unaligned_prepare(void) { return prepare_both<false>(); }
int fhk_sm90_packed_run(const fhk_gpu *gpu, const fh_call *call, void *stream) { return run<true>(gpu, call, stream); }
int fhk_sm90_packed_unaligned_run(const fhk_gpu *gpu, const fh_call *call, void *stream) {
  return run<false>(gpu, call, stream);
}
