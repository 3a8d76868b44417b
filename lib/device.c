/* Devices: opened by name, counted, asked about. */
#include <stdlib.h>

#include "internal.h"

int32_t fh_device_count(int32_t kind) {
  const fh_back_end *back_end = fh_back_end_of(kind);
  return back_end ? back_end->count() : 0;
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
  const fh_device_row *row = fh_device_row_of(name, &ordinal);
  if (!row)
    return fh_fail(FH_ERR_ARGUMENT, "name: got %s, wanted %s", fh_quote(name, quoted), fh_device_names(0, names));
  const fh_back_end *back_end = row->back_end;
  if (!back_end)
    return fh_fail(FH_ERR_DEVICE, "name: got %s, wanted %s: this library was built without %s", fh_quote(name, quoted),
                   fh_device_names(1, names), row->name);

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

fh_device *fh_device_retain(fh_device *device) {
  atomic_fetch_add(&device->references, 1);
  return device;
}

void fh_device_release(fh_device *device) {
  if (atomic_fetch_sub(&device->references, 1) != 1) return;
  device->back_end->close(device);
  free(device);
}

int fh_device_same(const fh_device *a, const fh_device *b) {
  return a->back_end == b->back_end && a->info.ordinal == b->info.ordinal;
}

fh_status fh_check_stream(const fh_device *device, const void *stream) {
  if (!stream || device->back_end->has_streams) return FH_OK;
  return fh_fail(FH_ERR_ARGUMENT, "stream: got %p, wanted NULL on %s", stream, device->back_end->called);
}

void fh_device_close(fh_device **device) {
  if (!device || !*device) return;
  fh_device_release(*device);
  *device = NULL;
}

fh_status fh_device_get_info(const fh_device *device, fh_device_info *info) {
  if (!device) return fh_fail_null("device");
  return fh_struct_out("fh_device_info", info, FH_UP_TO(fh_device_info, ordinal), &device->info, sizeof device->info);
}

fh_status fh_device_synchronize(fh_device *device) {
  return device ? device->back_end->synchronize(device) : fh_fail_null("device");
}

int32_t fh_device_has_path(const fh_device *device, int32_t path, int32_t h_q) {
  char why[FH_WHY];
  return device && fh_path_of(path) && h_q >= 0 && h_q <= fh_path_of(path)->max_heads &&
         device->back_end->offers(device, path, h_q, why);
}
