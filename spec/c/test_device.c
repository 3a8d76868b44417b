/* Opening devices, what they say of themselves, and how long they live. */
#include <pthread.h>
#include <stdlib.h>

#include "cpu/cpu.h"
#include "cuda_build.h"
#include "internal.h"
#include "refuse.h"

static fh_device_info info_of(const fh_device *device) {
  fh_device_info info = {.struct_size = sizeof info};
  CHECK_INT(fh_device_get_info(device, &info), FH_OK);
  return info;
}

static void opening(void) {
  fh_device *device = NULL;
  CHECK_INT(fh_device_open("cpu", NULL, &device), FH_OK);
  const fh_device_info info = info_of(device);
  CHECK_INT(info.kind, FH_DEVICE_CPU);
  CHECK_INT(info.ordinal, 0);
  CHECK(info.threads >= 1);
  CHECK_INT(info.isa, fhk_cpu_fastest_isa());
  CHECK(info.memory_bytes > 1 << 20);
  CHECK(info.name[0] != 0 && strchr(info.name, '\n') == NULL);
  CHECK_STR(info.driver, "");
  CHECK_INT(fh_device_synchronize(device), FH_OK);
  fh_device_close(&device);
  CHECK(device == NULL);
  fh_device_close(&device);
  fh_device_close(NULL);
}

static void refusals(void) {
  fh_device *device = NULL;
  REFUSED(fh_device_open(NULL, NULL, &device), FH_ERR_ARGUMENT, "name: got NULL, wanted a pointer");
  REFUSED(fh_device_open("cpu", NULL, NULL), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_device_open("gpu", NULL, &device), FH_ERR_ARGUMENT, "name: got \"gpu\", wanted cpu, cuda or cuda:N");
  REFUSED(fh_device_open("", NULL, &device), FH_ERR_ARGUMENT, "name: got \"\", wanted cpu, cuda or cuda:N");
  REFUSED(fh_device_open("cpu:0", NULL, &device), FH_ERR_ARGUMENT, "name: got \"cpu:0\", wanted cpu, cuda or cuda:N");
  REFUSED(fh_device_open("cuda:", NULL, &device), FH_ERR_ARGUMENT, "name: got \"cuda:\", wanted cpu, cuda or cuda:N");
  REFUSED(fh_device_open("cuda:-1", NULL, &device), FH_ERR_ARGUMENT,
          "name: got \"cuda:-1\", wanted cpu, cuda or cuda:N");
  REFUSED(fh_device_open("cuda0", NULL, &device), FH_ERR_ARGUMENT, "name: got \"cuda0\", wanted cpu, cuda or cuda:N");
  fh_device_options options = {.struct_size = sizeof options, .threads = 1025};
  REFUSED(fh_device_open("cpu", &options, &device), FH_ERR_ARGUMENT, "options.threads: got 1025, wanted 0 .. 1024");
  options.threads = -1;
  REFUSED(fh_device_open("cpu", &options, &device), FH_ERR_ARGUMENT, "options.threads: got -1, wanted 0 .. 1024");
  options.threads = 1;
  options.isa = 6;
  REFUSED(fh_device_open("cpu", &options, &device), FH_ERR_ARGUMENT, "options.isa: got 6, wanted an fh_isa, 0 .. 5");
  options.isa = -1;
  REFUSED(fh_device_open("cpu", &options, &device), FH_ERR_ARGUMENT, "options.isa: got -1, wanted an fh_isa, 0 .. 5");
  options.struct_size = 0;
  REFUSED(fh_device_open("cpu", &options, &device), FH_ERR_VERSION,
          "fh_device_options.struct_size: got 0, wanted 16 (at least 8), set by the caller");
  options.struct_size = sizeof options + 8;
  CHECK_INT(fh_device_open("cpu", &options, &device), FH_ERR_VERSION);
  CHECK(device == NULL);

  device = open_cpu(1);
  fh_device_info info = {.struct_size = sizeof info + 1, .threads = 77};
  CHECK_INT(fh_device_get_info(device, &info), FH_ERR_VERSION);
  CHECK_INT(info.threads, 77);
  info.struct_size = offsetof(fh_device_info, threads);
  CHECK_INT(fh_device_get_info(device, &info), FH_OK);
  CHECK_INT(info.kind, FH_DEVICE_CPU);
  CHECK_INT(info.threads, 77); /* past the caller's struct */
  REFUSED(fh_device_get_info(device, NULL), FH_ERR_ARGUMENT, "fh_device_info: got NULL, wanted a pointer");
  REFUSED(fh_device_get_info(NULL, &info), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_device_synchronize(NULL), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  fh_device_close(&device);
}

/* What there is of CUDA is said in one line, whatever is missing. */
static void missing_devices(void) {
  fh_device *device = NULL;
  const int32_t devices = fh_device_count(FH_DEVICE_CUDA);
  CHECK_INT(fh_device_count(FH_DEVICE_CPU), 1);
  CHECK_INT(fh_device_count(0), 0);
  CHECK_INT(fh_device_count(7), 0);
  CHECK(devices >= 0);
  CHECK_INT(fh_device_open("cuda:123456789", NULL, &device), FH_ERR_DEVICE);
  CHECK(device == NULL);
  CHECK(strchr(fh_error(), '\n') == NULL);
  if (!FH_WITH_CUDA)
    CHECK_STR(fh_error(), "name: got \"cuda:123456789\", wanted cpu: this library was built without cuda");
  else if (devices == 0)
    CHECK(strstr(fh_error(), "name: got \"cuda:123456789\", and ") == fh_error() &&
          strstr(fh_error(), "(cudaGetDeviceCount: cudaError"));
  else
    CHECK_STR(fh_error(), text_of("name: got \"cuda:123456789\", wanted cuda:0 .. cuda:%d, the devices of this machine",
                                  (int)devices - 1));
  if (devices == 0) CHECK_INT(fh_device_open("cuda", NULL, &device), FH_ERR_DEVICE);
}

/* Streams and graphs are CUDA's; a CPU has every path. */
static void cpu_has_no_streams(void) {
  fh_device *device = open_cpu(1);
  void *stream = NULL;
  fh_graph *graph = NULL;
  REFUSED(fh_stream_create(device, &stream), FH_ERR_UNSUPPORTED, "stream: a CPU has none; wanted a CUDA device");
  REFUSED(fh_graph_begin(device, NULL), FH_ERR_UNSUPPORTED, "graph: a CPU has none; wanted a CUDA device");
  REFUSED(fh_graph_end(device, NULL, &graph), FH_ERR_UNSUPPORTED, "graph: a CPU has none; wanted a CUDA device");
  REFUSED(fh_stream_create(NULL, &stream), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_graph_begin(NULL, NULL), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_graph_launch(NULL, NULL), FH_ERR_ARGUMENT, "graph: got NULL, wanted a pointer");
  fh_stream_destroy(device, &stream);
  fh_stream_destroy(device, NULL);
  fh_stream_destroy(NULL, &stream);
  fh_graph_free(&graph);
  fh_graph_free(NULL);
  for (int32_t path = 0; path < FH_PATHS; path++) {
    CHECK_INT(fh_device_has_path(device, path, 0), 1);
    CHECK_INT(fh_device_has_path(device, path, 128), 1);
    CHECK_INT(fh_device_has_path(device, path, 129), 0);
    CHECK_INT(fh_device_has_path(device, path, -1), 0);
  }
  CHECK_INT(fh_device_has_path(device, -1, 0), 0);
  CHECK_INT(fh_device_has_path(device, FH_PATHS, 0), 0);
  CHECK_INT(fh_device_has_path(NULL, FH_GATHER, 0), 0);
  fh_device_close(&device);
}

/* What the caller asks for stands before the environment, the environment before the machine. */
static void environment(void) {
  fh_device *device = NULL;
  fh_device_options options = {.struct_size = sizeof options};
  setenv("FEWHEAD_THREADS", "3", 1);
  CHECK_INT(fh_device_open("cpu", NULL, &device), FH_OK);
  CHECK_INT(info_of(device).threads, 3);
  fh_device_close(&device);
  options.threads = 2;
  CHECK_INT(fh_device_open("cpu", &options, &device), FH_OK);
  CHECK_INT(info_of(device).threads, 2);
  fh_device_close(&device);
  static const char *const bad[] = {"0", "1025", "two", "-1", " 2"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    setenv("FEWHEAD_THREADS", bad[i], 1);
    REFUSED(fh_device_open("cpu", NULL, &device), FH_ERR_ARGUMENT,
            text_of("FEWHEAD_THREADS: got \"%s\", wanted a whole number in 1 .. 1024", bad[i]));
  }
  setenv("FEWHEAD_THREADS", "", 1);
  CHECK_INT(fh_device_open("cpu", NULL, &device), FH_OK);
  fh_device_close(&device);
  unsetenv("FEWHEAD_THREADS");

  setenv("FEWHEAD_ISA", "generic", 1);
  CHECK_INT(fh_device_open("cpu", NULL, &device), FH_OK);
  CHECK_INT(info_of(device).isa, FH_ISA_GENERIC);
  fh_device_close(&device);
  options.isa = fhk_cpu_best_isa();
  CHECK_INT(fh_device_open("cpu", &options, &device), FH_OK);
  CHECK_INT(info_of(device).isa, options.isa);
  fh_device_close(&device);
  setenv("FEWHEAD_ISA", "sse", 1);
  REFUSED(fh_device_open("cpu", NULL, &device), FH_ERR_ARGUMENT,
          "FEWHEAD_ISA: got \"sse\", wanted generic, avx2, avx512, avx512_bf16 or amx");
  const char *best = fhk_cpu_isa_name(fhk_cpu_best_isa());
  for (int32_t isa = fhk_cpu_best_isa() + 1; isa <= FH_ISA_AMX; isa++) {
    setenv("FEWHEAD_ISA", fhk_cpu_isa_name(isa), 1);
    REFUSED(fh_device_open("cpu", NULL, &device), FH_ERR_DEVICE,
            text_of("FEWHEAD_ISA: got %s, wanted one that works here, up to %s: %s", fhk_cpu_isa_name(isa), best,
                    fhk_cpu_isa_missing(isa, 1)));
  }
  for (int32_t isa = FH_ISA_GENERIC; isa <= FH_ISA_AMX; isa++) {
    options.isa = isa;
    CHECK_INT(fh_device_open("cpu", &options, &device), isa <= fhk_cpu_best_isa() ? FH_OK : FH_ERR_DEVICE);
    fh_device_close(&device);
  }
  unsetenv("FEWHEAD_ISA");
}

/* Whatever is freed last takes the device with it; the sanitizers see a leak or a use after free. */
static void lifetimes(void) {
  for (int order = 0; order < 6; order++) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    fh_device *device = open_cpu(2);
    fh_buffer *buffer = NULL;
    fh_view *view = NULL;
    const int64_t shape[] = {1000, 16};
    float value = 0;
    CHECK_INT(fh_buffer_alloc(device, 64000, &buffer), FH_OK);
    CHECK_INT(fh_view_create(buffer, FH_F32, 2, shape, NULL, 0, &view), FH_OK);
    for (int i = 0; i < 3; i++) {
      if (orders[order][i] == 0) fh_device_close(&device);
      if (orders[order][i] == 1) fh_buffer_free(&buffer);
      if (orders[order][i] == 2) fh_view_free(&view);
      if (view) {
        fh_view *one = NULL;
        CHECK_INT(fh_view_fill(view, 3 + i), FH_OK); /* needs the device's threads and the buffer's memory */
        CHECK_INT(fh_view_slice(view, 0, 999, 1, 1, &one), FH_OK);
        fh_view *last = NULL;
        CHECK_INT(fh_view_slice(one, 1, 15, 1, 1, &last), FH_OK);
        fh_view_free(&one);
        CHECK_INT(fh_view_read(last, &value, sizeof value), FH_OK);
        CHECK(value == (float)(3 + i));
        fh_view_free(&last);
      }
      if (buffer) CHECK_INT(fh_buffer_fill(buffer, 255), FH_OK);
    }
    CHECK(!device && !buffer && !view);
  }
  fh_device *device = open_cpu(1);
  fh_timer *timer = NULL;
  CHECK_INT(fh_timer_create(device, &timer), FH_OK);
  fh_device_close(&device);
  CHECK_INT(fh_timer_start(timer, NULL), FH_OK);
  fh_timer_free(&timer);
}

/* Handles on one device are taken and given back from several threads at once. */
static void *take_and_give(void *arg) {
  fh_device *device = arg;
  int good = 1;
  for (int i = 0; i < 200; i++) {
    fh_buffer *buffer = NULL;
    fh_view *view = NULL;
    const int64_t n = 50;
    good &= fh_buffer_alloc(device, 200, &buffer) == FH_OK &&
            fh_view_create(buffer, FH_F32, 1, &n, NULL, 0, &view) == FH_OK;
    fh_buffer_free(&buffer);
    good &= fh_view_fill(view, i) == FH_OK;
    fh_view_free(&view);
  }
  return good ? device : NULL;
}

static void threads(void) {
  fh_device *device = open_cpu(2);
  pthread_t other[4];
  for (int i = 0; i < 4; i++) pthread_create(&other[i], NULL, take_and_give, device);
  for (int i = 0; i < 4; i++) {
    void *good = NULL;
    pthread_join(other[i], &good);
    CHECK(good == device);
  }
  CHECK_INT(atomic_load(&device->references), 1);
  fh_device_close(&device);
}

int main(void) {
  unsetenv("FEWHEAD_THREADS");
  unsetenv("FEWHEAD_ISA");
  opening();
  refusals();
  missing_devices();
  cpu_has_no_streams();
  environment();
  lifetimes();
  threads();
  return check_summary();
}
