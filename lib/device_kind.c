/* The kinds of devices: one row for every folder lib/<device>/, collected by the build (build/gen/devices.h). */
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define FH_DEVICE(name) extern const fh_back_end fh_##name##_back_end;
#define FH_DEVICE_LEFT_OUT(name)
#include "devices.h"
#undef FH_DEVICE
#undef FH_DEVICE_LEFT_OUT
#define FH_DEVICE(name) {#name, &fh_##name##_back_end},
#define FH_DEVICE_LEFT_OUT(name) {#name, NULL},
static const fh_device_row rows[] = {
#include "devices.h"
};
enum { ROWS = sizeof rows / sizeof *rows };

static const fh_device_row *row_of(int32_t kind) {
  for (size_t i = 0; i < ROWS; i++)
    if (rows[i].back_end && rows[i].back_end->kind == kind) return &rows[i];
  return NULL;
}

const fh_back_end *fh_back_end_of(int32_t kind) { return row_of(kind) ? row_of(kind)->back_end : NULL; }

const char *fh_device_kind_name(int32_t kind) { return row_of(kind) ? row_of(kind)->name : NULL; }

/* A kind that is not in this build may have been numbered. */
static int numbered(const fh_device_row *row) { return !row->back_end || row->back_end->numbered; }

const fh_device_row *fh_device_row_of(const char *name, int64_t *ordinal) {
  *ordinal = 0;
  for (size_t i = 0; i < ROWS; i++) {
    const size_t length = strlen(rows[i].name);
    if (strcmp(name, rows[i].name) == 0) return &rows[i];
    if (numbered(&rows[i]) && strncmp(name, rows[i].name, length) == 0 && name[length] == ':')
      return fh_read_whole(name + length + 1, ordinal) ? &rows[i] : NULL;
  }
  return NULL;
}

const char *fh_device_names(int32_t built, char names[FH_WHY]) {
  char form[2 * ROWS][FH_QUOTED];
  size_t count = 0, used = 0;
  for (size_t i = 0; i < ROWS; i++) {
    if (built && !rows[i].back_end) continue;
    snprintf(form[count++], FH_QUOTED, "%s", rows[i].name);
    if (numbered(&rows[i])) snprintf(form[count++], FH_QUOTED, "%s:N", rows[i].name);
  }
  for (size_t i = 0; i < count && used < FH_WHY; i++) {
    const char *between = i == 0 ? "" : i + 1 == count ? " or " : ", ";
    used += (size_t)snprintf(names + used, FH_WHY - used, "%s%s", between, form[i]);
  }
  return names;
}

uint32_t fh_devices_with_path(int32_t path) {
  uint32_t bits = 0;
  for (size_t i = 0; i < ROWS; i++)
    if (rows[i].back_end && rows[i].back_end->has_path(path)) bits |= 1u << rows[i].back_end->kind;
  return bits;
}
