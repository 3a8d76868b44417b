/* sm90 padded: all cases of the contract, alone and as the rows that a plan leaves it. */
#include "cuda/test/test.h"

namespace fhk_test {

static const Registration
    added({"sm90_padded",
           {{"sm90_padded", "sm90 padded", FH_PADDED}, {"auto, padded", "sm90 padded", FH_PADDED, 64, 0, true}},
           {},
           {}});

}  // namespace fhk_test
