/* What a path is: one row a path, which everything that asks for a property of a path reads. The
 * devices' back ends know which of them have kernels for it. */
#include <stdio.h>

#include "internal.h"

#define ROW(number, text, ...) \
  [number] = {.struct_size = sizeof(fh_path_info), .path = number, .name = text, __VA_ARGS__}
static const fh_path_info rows[FH_PATHS] = {
    ROW(FH_AUTO, "auto", .max_heads = 128),
    ROW(FH_REFERENCE, "reference", .native = 1, .writes_f32 = 1, .max_heads = 128),
    ROW(FH_PADDED, "padded", .candidate = 1, .max_heads = 128),
    ROW(FH_GATHER, "gather", .candidate = 1, .native = 1, .max_heads = 128),
    ROW(FH_PACKED, "packed", .candidate = 1, .native = 1, .wants_plan = 1, .shares_tile = 1, .max_heads = 128),
};
#undef ROW

const fh_path_info *fh_path_of(int32_t path) { return path >= 0 && path < FH_PATHS ? &rows[path] : NULL; }

fh_status fh_check_path(int32_t path) {
  char names[FH_PATHS * sizeof rows->name];
  size_t length = 0;
  if (fh_path_of(path)) return FH_OK;
  for (int32_t p = 0; p < FH_PATHS; p++)
    length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", p ? ", " : "", rows[p].name);
  return fh_fail(FH_ERR_ARGUMENT, "path: got %d, wanted an fh_path, 0 .. %d: %s", (int)path, FH_PATHS - 1, names);
}

const char *fh_path_name(int32_t path) {
  const fh_path_info *info = fh_path_of(path);
  return info ? info->name : NULL;
}
