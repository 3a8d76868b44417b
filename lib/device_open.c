/* The kinds of devices, one row for every folder lib/<device>/ (build/gen/devices.h): opened by name, counted, asked
 * which paths they have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define FH_DEVICE(name) extern const fh_back_end fh_##name##_back_end;
#define FH_DEVICE_LEFT_OUT(name)
#include "devices.h"
#undef FH_DEVICE
#undef FH_DEVICE_LEFT_OUT
#define FH_DEVICE(name) {#name, &fh_##name##_back_end},
#define FH_DEVICE_LEFT_OUT(name) {#name, NULL},
typedef struct kind_row {
  const char *name;            /* of the folder: "cpu", "cuda" */
  const fh_back_end *back_end; /* NULL: not in this build */
} kind_row;
static const kind_row rows[] = {
#include "devices.h"
};
enum { ROWS = sizeof rows / sizeof *rows };

/* NULL if this library has no such fh_device_kind. */
static const kind_row *row_of(int32_t kind) {
  for (size_t i = 0; i < ROWS; i++)
    if (rows[i].back_end && rows[i].back_end->kind == kind) return &rows[i];
  return NULL;
}

const char *fh_device_kind_name(int32_t kind) { return row_of(kind) ? row_of(kind)->name : NULL; }

/* A kind that is not in this build may have been numbered. */
static int numbered(const kind_row *row) { return !row->back_end || row->back_end->numbered; }

/* The row that a device's name stands for, and the number in it, 0 if there is none. NULL for any other name. */
static const kind_row *read_name(const char *name, int64_t *ordinal) {
  *ordinal = 0;
  for (size_t i = 0; i < ROWS; i++) {
    const size_t length = strlen(rows[i].name);
    if (strcmp(name, rows[i].name) == 0) return &rows[i];
    if (numbered(&rows[i]) && strncmp(name, rows[i].name, length) == 0 && name[length] == ':')
      return fh_read_whole(name + length + 1, ordinal) ? &rows[i] : NULL;
  }
  return NULL;
}

/* Writes the names that open a device: "cpu, cuda or cuda:N". built 1: of the kinds in this build alone. */
static const char *names_of(int32_t built, char names[FH_WHY]) {
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

int32_t fh_device_count(int32_t kind) {
  const kind_row *row = row_of(kind);
  return row ? row->back_end->count() : 0;
}

fh_status fh_device_open(const char *name, const fh_device_options *options, fh_device **device) {
  char quoted[FH_QUOTED], names[FH_WHY];
  fh_device_options full = {0};
  int64_t ordinal;
  fh_status status;
  if (!name) return fh_fail_null("name");
  if (!device) return fh_fail_null("device");
  if (options && (status = fh_struct_in("fh_device_options", options, sizeof(uint64_t), &full, sizeof full)))
    return status;
  const kind_row *row = read_name(name, &ordinal);
  if (!row) return fh_fail(FH_ERR_ARGUMENT, "name: got %s, wanted %s", fh_quote(name, quoted), names_of(0, names));
  const fh_back_end *back_end = row->back_end;
  if (!back_end)
    return fh_fail(FH_ERR_DEVICE, "name: got %s, wanted %s: this library was built without %s", fh_quote(name, quoted),
                   names_of(1, names), row->name);

  fh_device *opened = calloc(1, sizeof *opened);
  if (!opened) return fh_fail(FH_ERR_MEMORY, "device: the system refused %zu bytes for the handle", sizeof *opened);
  atomic_init(&opened->references, 1);
  opened->back_end = back_end;
  opened->info = (fh_device_info){.struct_size = sizeof opened->info, .kind = back_end->kind};
  if ((status = back_end->open(opened, name, ordinal, &full))) {
    free(opened);
    return status;
  }
  *device = opened;
  return FH_OK;
}

fh_status fh_path_get_info(int32_t path, fh_path_info *info) {
  const fh_status status = fh_check_path(path);
  if (status) return status;
  fh_path_info full = *fh_path_of(path);
  for (size_t i = 0; i < ROWS; i++)
    if (rows[i].back_end && rows[i].back_end->has_path(path)) full.devices |= 1u << rows[i].back_end->kind;
  return fh_struct_out("fh_path_info", info, FH_UP_TO(fh_path_info, writes_f32), &full, sizeof full);
}
