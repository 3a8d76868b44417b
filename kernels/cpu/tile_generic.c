#define TILE_OPS fhk_tile_generic
#include "cpu/tile_template.h"
