#include "cpu/tile.h"
#if defined(__AVX2__) && defined(__FMA__)
#define TILE_OPS fhk_tile_avx2
#include "cpu/tile_template.h"
#endif
