/* An open device: how long it lives, and what it says of itself. */
#include <stdlib.h>

#include "internal.h"

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
