/* The table of paths, and what is refused by it. */
#include <stddef.h>

#include "cuda_build.h"
#include "refuse.h"

static fh_path_info info_of(int32_t path) {
  fh_path_info info = {.struct_size = sizeof info};
  CHECK_INT(fh_path_get_info(path, &info), FH_OK);
  CHECK_INT(info.struct_size, sizeof info);
  CHECK_INT(info.path, path);
  CHECK_STR(info.name, fh_path_name(path));
  CHECK_INT(info.max_heads, 128);
  CHECK_INT(info.devices, 1u << FH_DEVICE_CPU | (uint32_t)FH_WITH_CUDA << FH_DEVICE_CUDA);
  return info;
}

static void properties(void) {
  static const struct {
    const char *name;
    int32_t candidate, native, wants_plan, shares_tile, writes_f32;
  } want[] = {
      [FH_AUTO] = {"auto", 0, 0, 0, 0, 0},     [FH_REFERENCE] = {"reference", 0, 1, 0, 0, 1},
      [FH_PADDED] = {"padded", 1, 0, 0, 0, 0}, [FH_GATHER] = {"gather", 1, 1, 0, 0, 0},
      [FH_PACKED] = {"packed", 1, 1, 1, 1, 0},
  };
  for (int32_t path = 0; path <= FH_PACKED; path++) {
    const fh_path_info info = info_of(path);
    CHECK_STR(info.name, want[path].name);
    CHECK_INT(info.candidate, want[path].candidate);
    CHECK_INT(info.native, want[path].native);
    CHECK_INT(info.wants_plan, want[path].wants_plan);
    CHECK_INT(info.shares_tile, want[path].shares_tile);
    CHECK_INT(info.writes_f32, want[path].writes_f32);
  }
}

static void refusals(void) {
  fh_path_info info = {.struct_size = sizeof info, .path = 77};
  REFUSED(fh_path_get_info(FH_PATHS, &info), FH_ERR_ARGUMENT, no_path(FH_PATHS));
  REFUSED(fh_path_get_info(-1, &info), FH_ERR_ARGUMENT, no_path(-1));
  CHECK_INT(info.path, 77);
  CHECK(fh_path_name(FH_PATHS) == NULL && fh_path_name(-1) == NULL);
  REFUSED(fh_path_get_info(FH_PACKED, NULL), FH_ERR_ARGUMENT, "fh_path_info: got NULL, wanted a pointer");
  info.struct_size = 8;
  REFUSED(fh_path_get_info(FH_PACKED, &info), FH_ERR_VERSION,
          "fh_path_info.struct_size: got 8, wanted 56 (at least 40), set by the caller");
  /* an older, smaller struct gets what it has room for */
  info.struct_size = offsetof(fh_path_info, name);
  info.name[0] = '!';
  CHECK_INT(fh_path_get_info(FH_PACKED, &info), FH_OK);
  CHECK_INT(info.path, FH_PACKED);
  CHECK_INT(info.name[0], '!');
}

int main(void) {
  properties();
  refusals();
  return check_summary();
}
