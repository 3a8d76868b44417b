#include "sm90/packed/packed.cuh"

namespace fhk {
namespace sm90_packed {
FHK_SM90_PACKED_DEFINE(576, true)
}  // namespace sm90_packed
}  // namespace fhk
