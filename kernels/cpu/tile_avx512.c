#include "cpu/tile.h"
#if defined(__AVX512F__)
#define TILE_OPS fhk_tile_avx512
#include "cpu/tile_template.h"
#endif
