#include "sm90/padded/padded.cuh"

namespace fhk {
namespace sm90_padded {
FHK_SM90_PADDED_DEFINE(512, false)
}  // namespace sm90_padded
}  // namespace fhk
