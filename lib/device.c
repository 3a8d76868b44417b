/* Devices: opened by name, counted, asked about. */
#include <stdlib.h>
#include <string.h>

#include "cuda_build.h"
#include "internal.h"

/* The kinds of devices: what they are called when a device is opened, and the back end, NULL if it is not in this
 * build. */
static const struct {
  const char *name;
  int32_t kind;
  int32_t numbered; /* 1: "name:N" is device N */
  const fh_back_end *back_end;
} kinds[] = {
    {"cpu", FH_DEVICE_CPU, 0, &fh_cpu_back_end},
#if FH_WITH_CUDA
    {"cuda", FH_DEVICE_CUDA, 1, &fh_cuda_back_end},
#else
    {"cuda", FH_DEVICE_CUDA, 1, NULL},
#endif
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const fh_back_end *back_end_of(int32_t kind) {
  for (size_t i = 0; i < KINDS; i++)
    if (kinds[i].kind == kind) return kinds[i].back_end;
  return NULL;
}

/* The fh_device_kind of a device's name and the device's number, 0 if the name has none; 0 for any other name. */
static int32_t read_name(const char *name, int64_t *ordinal) {
  *ordinal = 0;
  for (size_t i = 0; i < KINDS; i++) {
    const size_t length = strlen(kinds[i].name);
    if (strcmp(name, kinds[i].name) == 0) return kinds[i].kind;
    if (kinds[i].numbered && strncmp(name, kinds[i].name, length) == 0 && name[length] == ':')
      return fh_read_whole(name + length + 1, ordinal) ? kinds[i].kind : 0;
  }
  return 0;
}

int32_t fh_device_count(int32_t kind) {
  const fh_back_end *back_end = back_end_of(kind);
  return back_end ? back_end->count() : 0;
}

fh_status fh_device_open(const char *name, const fh_device_options *options, fh_device **device) {
  char quoted[FH_QUOTED];
  fh_device_options full = {0};
  int64_t ordinal;
  fh_status status;
  if (!name) return fh_fail_null("name");
  if (!device) return fh_fail_null("device");
  if (options && (status = fh_struct_in("fh_device_options", options, sizeof(uint64_t), &full, sizeof full)))
    return status;
  const int32_t kind = read_name(name, &ordinal);
  if (!kind) return fh_fail(FH_ERR_ARGUMENT, "name: got %s, wanted cpu, cuda or cuda:N", fh_quote(name, quoted));
  const fh_back_end *back_end = back_end_of(kind);
  if (!back_end)
    return fh_fail(FH_ERR_DEVICE, "name: got %s, wanted cpu: this library was built without CUDA",
                   fh_quote(name, quoted));

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
