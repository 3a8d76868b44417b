#include "sm90/gather/gather.cuh"

namespace fhk {
namespace sm90_gather {
FHK_SM90_GATHER_DEFINE(576, 8)
}  // namespace sm90_gather
}  // namespace fhk
