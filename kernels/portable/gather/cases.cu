/* portable gather: all cases of the contract, alone, as padded, and as the rows that a plan leaves it. */
#include "cuda/test/test.h"

namespace fhk_test {

static const Registration added({"portable_gather",
                                 {{"portable_gather", "portable gather", FH_GATHER},
                                  {"portable_gather, padded", "portable gather", FH_PADDED},
                                  {"auto, portable", "portable gather", FH_GATHER, 64, 0, true}},
                                 {},
                                 {}});

}  // namespace fhk_test
