#define TILE_OPS fhk_tile_avx512
#include "cpu/tile_template.h"
