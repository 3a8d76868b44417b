#define TILE_OPS fhk_tile_avx2
#include "cpu/tile_template.h"
