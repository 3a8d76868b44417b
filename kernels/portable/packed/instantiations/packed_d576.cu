#include "portable/packed/packed.cuh"

namespace fhk {
namespace portable_packed {
FHK_PORTABLE_PACKED_DEFINE(576)
}  // namespace portable_packed
}  // namespace fhk
