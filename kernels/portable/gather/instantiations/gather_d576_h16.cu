#include "portable/gather/gather.cuh"

namespace fhk {
namespace portable_gather {
FHK_PORTABLE_GATHER_DEFINE(576, 2, 2)
}  // namespace portable_gather
}  // namespace fhk
