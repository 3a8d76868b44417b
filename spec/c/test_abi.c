/*
 * A program of 0.2: built against a committed copy of that version's declarations, linked with the library, and run
 * twice, with the library as it is and with one whose structs have all grown at their ends (Makefile, LATER). Behind
 * every struct that the library fills stand guard bytes: a library that writes past the size it was told fails here.
 */
#include "abi_0_2.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

enum { S_Q = 9, S_KV = 40, H_Q = 8, D = 512, GUARD = 256 };

/* A struct with what the library must leave alone behind it. */
#define GUARDED(type)           \
  struct {                      \
    type is;                    \
    unsigned char guard[GUARD]; \
  }
#define START(x) (memset(&(x), 0xa5, sizeof(x)), (x).is.struct_size = sizeof((x).is))
#define START_ZERO(x) (START(x), memset((char *)&(x).is + 8, 0, sizeof((x).is) - 8))

static int intact(const unsigned char *guard) {
  for (int i = 0; i < GUARD; i++)
    if (guard[i] != 0xa5) return 0;
  return 1;
}

static uint16_t q[S_Q * H_Q * D], kv[S_KV * D], out[S_Q * H_Q * D];
static int32_t indices[S_Q];

static fh_device *open_device(void) {
  fh_device *device = NULL;
  const fh_device_options options = {.struct_size = sizeof options, .threads = 2};
  CHECK_INT(fh_device_open("cpu", &options, &device), FH_OK);
  return device;
}

static void sizes(int later) {
  const struct {
    const char *name;
    uint64_t bytes;
  } structs[] = {
      {"fh_device_options", sizeof(fh_device_options)},
      {"fh_device_info", sizeof(fh_device_info)},
      {"fh_view_info", sizeof(fh_view_info)},
      {"fh_path_info", sizeof(fh_path_info)},
      {"fh_call", sizeof(fh_call)},
      {"fh_counters", sizeof(fh_counters)},
      {"fh_plan", sizeof(fh_plan)},
      {"fh_work", sizeof(fh_work)},
      {"fh_costs", sizeof(fh_costs)},
      {"fh_gate", sizeof(fh_gate)},
      {"fh_provider_info", sizeof(fh_provider_info)},
  };
  for (size_t i = 0; i < sizeof structs / sizeof *structs; i++) {
    if (!CHECK(fh_struct_bytes(structs[i].name) >= structs[i].bytes + (later ? 8 : 0)))
      printf("    %s\n", structs[i].name);
  }
  CHECK_INT(fh_struct_bytes("fh_path_cost"), sizeof(fh_path_cost)); /* a part of others: never grows */
  CHECK(fh_version() >= FH_VERSION);
}

static void infos(fh_device *device) {
  GUARDED(fh_device_info) about;
  START(about);
  CHECK_INT(fh_device_get_info(device, &about.is), FH_OK);
  CHECK_INT(about.is.kind, FH_DEVICE_CPU);
  CHECK_INT(about.is.threads, 2);
  CHECK(about.is.isa >= FH_ISA_GENERIC);
  CHECK_INT(about.is.multiprocessors, 0);
  CHECK_INT(about.is.capability, 0);
  CHECK_STR(about.is.driver, "");
  CHECK(intact(about.guard));

  GUARDED(fh_path_info) path;
  START(path);
  CHECK_INT(fh_path_get_info(FH_PACKED, &path.is), FH_OK);
  CHECK_STR(path.is.name, "packed");
  CHECK(path.is.native && path.is.wants_plan && path.is.shares_tile && !path.is.writes_f32);
  CHECK(intact(path.guard));

  GUARDED(fh_gate) gate;
  START(gate);
  CHECK_INT(fh_gate_init(&gate.is, sizeof gate.is), FH_OK);
  CHECK_INT(gate.is.min_sq, FH_GATE_MIN_SQ);
  CHECK_INT(fh_gate_native(&gate.is, 8, 64, 2048), 1);
  CHECK_INT(fh_gate_native(&gate.is, 8, 64, 2047), 0);
  CHECK_INT(fh_gate_parse("off", "7", &gate.is, NULL, 0), FH_OK);
  CHECK_INT(gate.is.enabled, 0);
  CHECK_INT(gate.is.min_sq, 7);
  CHECK(intact(gate.guard));
}

static void views(fh_device *device) {
  fh_buffer *buffer = NULL;
  fh_view *view = NULL;
  const int64_t shape[] = {3, 5};
  CHECK_INT(fh_buffer_alloc(device, 60, &buffer), FH_OK);
  CHECK_INT(fh_view_create(buffer, FH_I32, 2, shape, NULL, 0, &view), FH_OK);
  GUARDED(fh_view_info) info;
  START(info);
  CHECK_INT(fh_view_get_info(view, &info.is), FH_OK);
  CHECK_INT(info.is.rank, 2);
  CHECK_INT(info.is.shape[1], 5);
  CHECK_INT(info.is.stride[0], 5);
  CHECK_INT(info.is.stride[3], 0);
  CHECK(info.is.data == fh_buffer_data(buffer));
  CHECK(intact(info.guard));
  fh_view_free(&view);
  fh_buffer_free(&buffer);
}

/* One key a row: the softmax of one number is 1, so a row's output is the V of its key, whatever the path. */
static int is_right(void) {
  for (int s = 0; s < S_Q; s++)
    for (int h = 0; h < H_Q; h++)
      if (memcmp(out + (s * H_Q + h) * D, kv + indices[s] * D, D * sizeof *out) != 0) return 0;
  return 1;
}

static void *workspace_for(fh_device *device, fh_call *call) {
  call->workspace_bytes = 0;
  CHECK_INT(fh_workspace_bytes(device, call, &call->workspace_bytes), FH_OK);
  return aligned_alloc(64, (call->workspace_bytes + 64) / 64 * 64);
}

static void run(fh_device *device, fh_call *call, const char *kernels) {
  GUARDED(fh_counters) counted;
  START_ZERO(counted);
  call->workspace = workspace_for(device, call);
  call->counters = &counted.is;
  memset(out, 0xff, sizeof out);
  CHECK_INT(fh_call_check(device, call), FH_OK);
  CHECK_INT(fh_sparse_fwd(device, call), FH_OK);
  CHECK(is_right());
  uint64_t rows = 0;
  for (int32_t p = 0; p < FH_MAX_PATHS; p++) rows += counted.is.rows[p];
  CHECK_INT(rows, S_Q);
  CHECK_INT(counted.is.useful_flops, (uint64_t)2 * S_Q * H_Q * (D + 512));
  CHECK_INT(counted.is.calls[FH_AUTO], call->path == FH_AUTO);
  if (!CHECK(strstr(counted.is.kernel, kernels) != NULL))
    printf("    kernel %s, wanted %s\n", counted.is.kernel, kernels);
  CHECK(intact(counted.guard));
  free(call->workspace);
}

static void calls(fh_device *device) {
  for (int i = 0; i < S_Q * H_Q * D; i++) q[i] = (uint16_t)(0x3c00 + i % 251);
  for (int i = 0; i < S_KV * D; i++) kv[i] = (uint16_t)(0x3f00 + i % 127);
  for (int s = 0; s < S_Q; s++) indices[s] = s * 7 % S_KV;
  GUARDED(fh_call) given;
  START(given);
  fh_call *call = &given.is;
  CHECK_INT(fh_call_init(call, sizeof *call, S_Q, S_KV, H_Q, D, 1), FH_OK);
  CHECK(intact(given.guard));
  CHECK_INT(call->struct_size, sizeof *call);
  call->q = q;
  call->kv = kv;
  call->indices = indices;
  call->out = out;

  for (int32_t path = FH_REFERENCE; path < FH_PATHS; path++) {
    call->path = path;
    run(device, call, fh_path_name(path));
  }

  /* a plan that lasts, for packed and for auto */
  GUARDED(fh_plan) plan;
  START(plan);
  uint64_t bytes = 0;
  CHECK_INT(fh_plan_bytes(device, call, &bytes), FH_OK);
  void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
  CHECK_INT(fh_plan_build(device, call, memory, bytes, &plan.is), FH_OK);
  CHECK_INT(plan.is.groups, 2);
  CHECK_INT(plan.is.entries[0], 8);
  CHECK(intact(plan.guard));
  call->plan = &plan.is;
  call->path = FH_PACKED;
  run(device, call, "packed");
  call->plan = NULL;

  /* costs of the caller's own, read to their end and no further */
  GUARDED(fh_costs) costs;
  START(costs);
  CHECK_INT(fh_costs_default(device, &costs.is), FH_OK);
  CHECK(isfinite(costs.is.plan.call_us));
  CHECK(intact(costs.guard));
  const fh_path_cost cheap = {1, 0, 0}, dear = {1000, 0, 0};
  costs.is.padded = costs.is.packed = costs.is.plan = dear;
  costs.is.gather = cheap;
  call->costs = &costs.is;
  call->path = FH_AUTO;
  run(device, call, "gather");

  /* as many numbers as the caller has room for */
  GUARDED(fh_work) work;
  START_ZERO(work);
  work.is.rows = S_Q, work.is.keys = S_Q, work.is.h_q = H_Q, work.is.h_pad = 64, work.is.d_qk = work.is.d_v = 512;
  double us[3] = {-1, -1, -1};
  int32_t path = -1;
  CHECK_INT(fh_costs_choose(&costs.is, &work.is, 0, &path, us, 2), FH_OK);
  CHECK_INT(path, FH_GATHER);
  CHECK(isinf(us[0]) && isinf(us[1]) && us[2] == -1);
  free(memory);
}

/* The program once more, with the library in that folder. The counts so far go along as arguments. */
static void run_with(const char *self, const char *folder) {
  char passed[16], failed[16];
  snprintf(passed, sizeof passed, "%d", check_passed);
  snprintf(failed, sizeof failed, "%d", check_failed);
  setenv("LD_LIBRARY_PATH", folder, 1);
  execl(self, self, passed, failed, (char *)NULL);
  CHECK(!"the program could be started again");
}

int main(int argc, char **argv) {
  const int later = argc == 3;
  if (later) {
    check_passed = atoi(argv[1]);
    check_failed = atoi(argv[2]);
  }
  fh_device *device = open_device();
  sizes(later);
  infos(device);
  views(device);
  calls(device);
  fh_device_close(&device);
  if (!later) run_with(argv[0], LATER);
  return check_summary();
}
