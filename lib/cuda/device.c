/*
 * CUDA devices: found, opened, asked about; and the table that stands for them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_back_end.h"

enum {
  OLDEST = 80,             /* compute capability that the kernels begin at */
  LEAST_SCRATCH = 32 << 20 /* bytes: views are staged in pieces large enough for full speed */
};

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static int32_t count(void) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess) return devices;
  (void)cudaGetLastError();
  return 0;
}

static fh_status find(const char *name, int64_t ordinal) {
  char quoted[FH_QUOTED];
  int devices = 0, version = 0;
  fh_quote(name, quoted);
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess) {
    const int no_driver = cudaDriverGetVersion(&version) == cudaSuccess && version == 0;
    (void)cudaGetLastError();
    return fh_fail(FH_ERR_DEVICE, "name: got %s, and %s (cudaGetDeviceCount: %s, %s)", quoted,
                   no_driver ? "this machine has no CUDA driver" : "CUDA finds no device", cudaGetErrorName(code),
                   cudaGetErrorString(code));
  }
  if (ordinal >= devices)
    return fh_fail(FH_ERR_DEVICE, "name: got %s, wanted cuda:0 .. cuda:%d, the devices of this machine", quoted,
                   devices - 1);
  return FH_OK;
}

/* "580.65.06" out of the line that the kernel module gives, "" where it gives none. */
static void read_driver_version(char *version, size_t room) {
  char line[256] = "";
  version[0] = 0;
  FILE *file = fopen("/proc/driver/nvidia/version", "re");
  if (!file) return;
  if (fgets(line, sizeof line, file)) {
    char *rest = NULL;
    for (const char *word = strtok_r(line, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest))
      if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.')) {
        snprintf(version, room, "%s", word);
        break;
      }
  }
  fclose(file);
}

/* 0 where the device does not say. */
static int32_t attribute(enum cudaDeviceAttr which, int ordinal) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, ordinal) == cudaSuccess) return value;
  (void)cudaGetLastError();
  return 0;
}

static fh_status describe(fh_device_info *info, const char *name, int ordinal) {
  char quoted[FH_QUOTED], version[32];
  struct cudaDeviceProp properties;
  int newest = 0;
  fh_status status;
  if ((status = FH_CUDA(cudaGetDeviceProperties, &properties, ordinal)) ||
      (status = FH_CUDA(cudaDriverGetVersion, &newest)))
    return status;
  if (properties.major * 10 + properties.minor < OLDEST)
    return fh_fail(FH_ERR_DEVICE, "name: got %s, %s of compute capability %d.%d, wanted 8.0 or newer",
                   fh_quote(name, quoted), properties.name, properties.major, properties.minor);
  info->ordinal = ordinal;
  info->multiprocessors = properties.multiProcessorCount;
  info->capability = properties.major * 10 + properties.minor;
  info->cache_bytes = (uint64_t)properties.l2CacheSize;
  info->memory_bytes = properties.totalGlobalMem;
  info->clock_mhz = attribute(cudaDevAttrClockRate, ordinal) / 1000;
  info->memory_clock_mhz = attribute(cudaDevAttrMemoryClockRate, ordinal) / 1000;
  snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
  read_driver_version(version, sizeof version);
  snprintf(info->driver, sizeof info->driver, "%s%sCUDA %d.%d", version, version[0] ? ", " : "", newest / 1000,
           newest % 1000 / 10);
  return FH_OK;
}

static fh_status read_environment(fh_cuda *cuda) {
  char quoted[FH_QUOTED];
  const char *text = getenv("FEWHEAD_FORCE_PORTABLE");
  if (!text || !*text || strcmp(text, "0") == 0) return FH_OK;
  if (strcmp(text, "1") != 0)
    return fh_fail(FH_ERR_ARGUMENT, "FEWHEAD_FORCE_PORTABLE: got %s, wanted 0 or 1", fh_quote(text, quoted));
  cuda->gpu.portable_only = 1;
  return FH_OK;
}

/* What needs the device's context. */
static fh_status furnish(fh_device *device) {
  fh_cuda *cuda = fh_cuda_of(device);
  cuda->scratch_bytes = 2 * device->info.cache_bytes;
  if (cuda->scratch_bytes < LEAST_SCRATCH) cuda->scratch_bytes = LEAST_SCRATCH;
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  if (!(status = FH_CUDA(cudaStreamCreateWithFlags, &cuda->stream, cudaStreamNonBlocking)) &&
      !(status = FH_CUDA(cudaMalloc, &cuda->scratch, cuda->scratch_bytes)))
    status = fh_cuda_prepare(device);
  return fh_cuda_leave(status);
}

static void close_cuda(fh_device *device) {
  fh_cuda *cuda = fh_cuda_of(device);
  if (cuda->context && fh_cuda_enter(device) == FH_OK) {
    (void)cudaFree(cuda->scratch);
    if (cuda->stream) (void)cudaStreamDestroy(cuda->stream);
    (void)cudaGetLastError();
    (void)fh_cuda_leave(FH_OK);
  }
  /* The primary context stays, as it does with every user of the runtime: kernels are not loaded twice. */
  pthread_mutex_destroy(&cuda->scratch_lock);
  free(cuda);
}

static fh_status open_cuda(fh_device *device, const char *name, int64_t ordinal, const fh_device_options *options) {
  fh_status status;
  if (options->threads || options->isa)
    return fh_fail(FH_ERR_ARGUMENT, "options.%s: got %d for a CUDA device, wanted 0",
                   options->threads ? "threads" : "isa", (int)(options->threads ? options->threads : options->isa));
  if ((status = find(name, ordinal)) || (status = describe(&device->info, name, (int)ordinal)) ||
      (status = fh_cuda_load_driver()))
    return status;
  fh_cuda *cuda = calloc(1, sizeof *cuda);
  if (!cuda) return fh_fail(FH_ERR_MEMORY, "device: the system refused %zu bytes for its state", sizeof *cuda);
  pthread_mutex_init(&cuda->scratch_lock, NULL);
  cuda->gpu = (fhk_gpu){.multiprocessors = device->info.multiprocessors,
                        .capability = device->info.capability,
                        .clock_mhz = device->info.clock_mhz,
                        .memory_clock_mhz = device->info.memory_clock_mhz,
                        .memory_bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth, (int)ordinal),
                        .name = device->info.name};
  device->state = cuda;
  if (!(status = read_environment(cuda)) && !(status = fh_cuda_retain(&cuda->context, ordinal)))
    status = furnish(device);
  if (status) close_cuda(device);
  return status;
}

static fh_status synchronize(fh_device *device) {
  const fh_status status = fh_cuda_enter(device);
  return status ? status : fh_cuda_leave(fh_cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
}

static void *stream_of(const fh_device *device, void *stream) { return fh_cuda_stream(device, stream); }

const fh_back_end fh_cuda_back_end = {
    .called = "CUDA",
    .kind = FH_DEVICE_CUDA,
    .numbered = 1,
    .has_streams = 1,
    .count = count,
    .open = open_cuda,
    .close = close_cuda,
    .synchronize = synchronize,
    .alloc = fh_cuda_alloc,
    .release = fh_cuda_release,
    .check_wrapped = fh_cuda_check_wrapped,
    .write = fh_cuda_write,
    .read = fh_cuda_read,
    .fill = fh_cuda_fill,
    .evict = fh_cuda_evict,
    .view_fill = fh_cuda_view_fill,
    .view_random = fh_cuda_view_random,
    .view_write = fh_cuda_view_write,
    .view_read = fh_cuda_view_read,
    .view_copy = fh_cuda_view_copy,
    .enter = fh_cuda_enter,
    .leave = fh_cuda_leave,
    .stream_of = stream_of,
    .stream_create = fh_cuda_stream_create,
    .stream_destroy = fh_cuda_stream_destroy,
    .graph_begin = fh_cuda_graph_begin,
    .graph_end = fh_cuda_graph_end,
    .graph_launch = fh_cuda_graph_launch,
    .graph_free = fh_cuda_graph_free,
    .moment_create = fh_cuda_moment_create,
    .moment_destroy = fh_cuda_moment_destroy,
    .moment_mark = fh_cuda_moment_mark,
    .moment_between = fh_cuda_moment_between,
    .has_path = fh_cuda_has_path,
    .offers = fh_cuda_offers,
    .workspace_bytes = fh_cuda_workspace_bytes,
    .count_keys = fh_cuda_count_keys,
    .run = fh_cuda_run,
    .run_parts = fh_cuda_run_parts,
    .costs = fh_cuda_costs,
    .plan_bytes = fh_cuda_plan_bytes,
    .plan_build = fh_cuda_plan_build,
};
