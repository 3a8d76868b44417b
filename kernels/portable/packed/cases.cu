/* portable packed: all cases of the contract, as the device would run it, as one with few multiprocessors would (many
 * groups a CTA), and so as one with 163 and one with 99 KiB of shared memory would. */
#include "cuda/test/test.h"

namespace fhk_test {

static const Registration added({"portable_packed",
                                 {{"portable_packed", "portable packed", FH_PACKED, 64},
                                  {"portable_packed, few", "portable packed", FH_PACKED, 64, 7},
                                  {"portable_packed, 163", "portable packed", FH_PACKED, 64, 7, false, 80},
                                  {"portable_packed, 99", "portable packed", FH_PACKED, 64, 7, false, 89}},
                                 {},
                                 {}});

}  // namespace fhk_test
