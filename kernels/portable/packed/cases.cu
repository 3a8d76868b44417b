/* portable packed: all cases of the contract, as the device would run it and as one with few multiprocessors would
 * (many groups a CTA). */
#include "cuda/test/test.h"

namespace fhk_test {

static const Registration added({"portable_packed",
                                 {{"portable_packed", "portable packed", FH_PACKED, 64},
                                  {"portable_packed, few", "portable packed", FH_PACKED, 64, 7}},
                                 {},
                                 {}});

}  // namespace fhk_test
