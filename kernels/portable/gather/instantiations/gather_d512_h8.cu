#include "portable/gather/gather.cuh"

namespace fhk {
namespace portable_gather {
FHK_PORTABLE_GATHER_DEFINE(512, 2, 1)
}  // namespace portable_gather
}  // namespace fhk
