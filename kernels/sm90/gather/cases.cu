/* sm90 gather: all cases of the contract, alone and as the rows that a plan leaves it. */
#include "cuda/test/test.h"

namespace fhk_test {

static const Registration
    added({"sm90_gather",
           {{"sm90_gather", "sm90 gather", FH_GATHER}, {"auto, gather", "sm90 gather", FH_GATHER, 64, 0, true}},
           {},
           {}});

}  // namespace fhk_test
