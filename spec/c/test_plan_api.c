/* Plans as a caller sees them: sizes, refusals, and that what is built is the union that the header promises. */
#include <math.h>
#include <stdlib.h>

#include "refuse.h"

enum { S_Q = 19, TOPK = 24, S_KV = 50 };

static int32_t indices[S_Q * (TOPK + 5)], topk_length[S_Q];

static fh_call a_call(void) {
  fh_call call;
  fh_call_init(&call, sizeof call, S_Q, S_KV, 8, 512, TOPK);
  call.indices = indices;
  call.indices_stride = TOPK + 5;
  call.topk_length = topk_length;
  call.path = FH_PACKED;
  return call;
}

static int times(int64_t s, int32_t token) {
  int n = 0;
  for (int32_t j = 0; j < topk_length[s] && j < TOPK; j++) n += indices[s * (TOPK + 5) + j] == token;
  return n;
}

static int held(const fh_plan *plan, int64_t g, int64_t row, int32_t token) {
  int n = 0;
  for (int64_t e = 0; e < plan->entries[g]; e++)
    n += plan->token[g * plan->capacity + e] == token && (plan->member[g * plan->capacity + e] >> row & 1);
  return n;
}

/* Every row is a member of exactly as many entries of a token as it lists it; entries ascend; orders and counts are
 * right. */
static void built(fh_device *device, int32_t group) {
  fh_call call = a_call();
  fh_plan plan = {.struct_size = sizeof plan};
  uint64_t bytes = 0;
  call.group = group;
  CHECK_INT(fh_plan_bytes(device, &call, &bytes), FH_OK);
  unsigned char *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
  memset(memory + bytes, 0x5a, 64);
  CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
  for (int i = 0; i < 64; i++) CHECK_INT(memory[bytes + (uint64_t)i], 0x5a);
  if (!group) group = 8; /* 64 / h_q */
  CHECK_INT(plan.struct_size, sizeof plan);
  CHECK_INT(plan.s_q, S_Q);
  CHECK_INT(plan.group, group);
  CHECK_INT(plan.groups, (S_Q + group - 1) / group);
  CHECK_INT(plan.s_kv, call.s_kv);
  CHECK_INT(plan.capacity, group * TOPK);

  int wrong = 0;
  for (int64_t g = 0; g < plan.groups; g++) {
    int32_t most = 0; /* entries wanted: for each token the most that a row lists it */
    for (int32_t token = -3; token < S_KV + 3; token++) {
      int32_t most_of_token = 0;
      for (int64_t row = 0; row < group && g * group + row < S_Q; row++) {
        const int n = token >= 0 && token < S_KV ? times(g * group + row, token) : 0;
        wrong += held(&plan, g, row, token) != n;
        if (n > most_of_token) most_of_token = n;
      }
      most += most_of_token;
    }
    CHECK_INT(plan.entries[g], most);
    for (int64_t e = 1; e < plan.entries[g]; e++)
      wrong += plan.token[g * plan.capacity + e - 1] > plan.token[g * plan.capacity + e];
  }
  CHECK_INT(wrong, 0);
  for (int64_t i = 1; i < plan.groups; i++) {
    const int32_t before = plan.order[i - 1], after = plan.order[i];
    const int32_t more = (plan.entries[before] + 63) / 64 - (plan.entries[after] + 63) / 64; /* tiles */
    CHECK(more > 0 || (more == 0 && before < after));
  }
  for (int64_t s = 0; s < S_Q; s++) {
    int32_t keys = 0;
    for (int32_t token = 0; token < S_KV; token++) keys += times(s, token);
    CHECK_INT(plan.keys[s], keys);
  }
  free(memory);
}

/* FH_AUTO does not pack all groups: by the call's costs, else by the device's. */
static void parted(fh_device *device) {
  fh_call call = a_call();
  fh_plan plan = {.struct_size = sizeof plan};
  fh_costs costs = {.struct_size = sizeof costs, .padded = {1e9, 0, 0}, .gather = {0, 1, 0}, .packed = {0, 7.5, 0}};
  uint64_t bytes = 0;
  call.path = FH_AUTO;
  CHECK_INT(fh_plan_bytes(device, &call, &bytes), FH_OK);
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  call.costs = &costs;
  CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
  CHECK_INT(*plan.packed_from, 1); /* 8 rows for 8, 8 for 8, 3 for 3 */
  CHECK_INT(plan.order[0], 2);
  costs.packed.gflop_us = NAN;
  REFUSED(
      fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_ARGUMENT,
      text_of("costs.packed: got call_us 0, unit_us 7.5, gflop_us %g, wanted finite numbers", costs.packed.gflop_us));
  call.costs = NULL;
  CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
  CHECK_INT(*plan.packed_from, 3); /* lists this short share too little for a CPU */
  free(memory);
}

/* Offsets of requests are checked as the other arrays are. */
static void requests(fh_device *device) {
  static int32_t offsets[] = {0, 3, 3, 12, S_Q};
  fh_call call = a_call();
  fh_plan plan = {.struct_size = sizeof plan};
  uint64_t bytes = 0;
  call.requests = 4;
  CHECK_INT(fh_plan_bytes(device, &call, &bytes), FH_OK); /* sizes are enough */
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  REFUSED(fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_ARGUMENT,
          "cu_seqlens_q: got NULL, wanted a pointer");
  call.cu_seqlens_q = memory;
  REFUSED(fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_OVERLAP, "memory: overlaps cu_seqlens_q");
  call.cu_seqlens_q = offsets;
  CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
  CHECK_INT(plan.groups, 5); /* 4 requests of a row or more: 4 + (19 - 4) / 8 */
  static const int64_t first[] = {0, 3, 11, 12, 19, 19};
  for (int g = 0; g <= 5; g++) CHECK_INT(plan.first[g], first[g]);
  free(memory);
}

static void refusals(fh_device *device) {
  fh_call call = a_call();
  uint64_t bytes = 77;
  REFUSED(fh_plan_bytes(NULL, &call, &bytes), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_plan_bytes(device, NULL, &bytes), FH_ERR_ARGUMENT, "fh_call: got NULL, wanted a pointer");
  REFUSED(fh_plan_bytes(device, &call, NULL), FH_ERR_ARGUMENT, "bytes: got NULL, wanted a pointer");
  call.topk = -1;
  REFUSED(fh_plan_bytes(device, &call, &bytes), FH_ERR_SHAPE, "topk: got -1, wanted 0 .. 2147483647");
  call.topk = 268435456;
  REFUSED(fh_plan_bytes(device, &call, &bytes), FH_ERR_SHAPE,
          "topk: got 268435456 for groups of 8, wanted group * topk <= 2147483647");
  CHECK_INT(bytes, 77);

  call = a_call();
  CHECK_INT(fh_plan_bytes(device, &call, &bytes), FH_OK);
  char *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
  fh_plan plan = {.struct_size = sizeof plan, .s_q = -5};
  REFUSED(fh_plan_build(NULL, &call, memory, bytes, &plan), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_plan_build(device, NULL, memory, bytes, &plan), FH_ERR_ARGUMENT, "fh_call: got NULL, wanted a pointer");
  REFUSED(fh_plan_build(device, &call, memory, bytes, NULL), FH_ERR_ARGUMENT, "fh_plan: got NULL, wanted a pointer");
  call.stream = &plan;
  REFUSED(fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_ARGUMENT,
          text_of("stream: got %p, wanted NULL on a CPU", (void *)&plan));
  call.stream = NULL;
  REFUSED(fh_plan_build(device, &call, NULL, bytes, &plan), FH_ERR_WORKSPACE,
          text_of("memory: got NULL, wanted %" PRIu64 " bytes", bytes));
  REFUSED(fh_plan_build(device, &call, memory, bytes - 1, &plan), FH_ERR_WORKSPACE,
          text_of("memory_bytes: got %" PRIu64 ", wanted at least %" PRIu64, bytes - 1, bytes));
  REFUSED(fh_plan_build(device, &call, memory + 8, bytes, &plan), FH_ERR_ALIGNMENT,
          text_of("memory: got %p, wanted a multiple of 64 bytes", (void *)(memory + 8)));
  call.indices = (int32_t *)(void *)(memory + 64);
  REFUSED(fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_OVERLAP, "memory: overlaps indices");
  call = a_call();
  call.topk_length = (int32_t *)(void *)memory;
  REFUSED(fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_OVERLAP, "memory: overlaps topk_length");
  call = a_call();
  call.indices = NULL;
  REFUSED(fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_ARGUMENT, "indices: got NULL, wanted a pointer");
  call.indices = (const int32_t *)((uintptr_t)indices + 1);
  CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_ALIGNMENT);
  call = a_call();
  call.indices_stride = INT64_MAX;
  REFUSED(fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_STRIDE,
          "indices: 19 elements in steps of 9223372036854775807 leave 64 bits");
  call = a_call();
  plan.struct_size = 8;
  REFUSED(fh_plan_build(device, &call, memory, bytes, &plan), FH_ERR_VERSION,
          "fh_plan.struct_size: got 8, wanted 104 (at least 104), set by the caller");
  CHECK_INT(plan.s_q, -5);

  /* what the plan does not depend on need not be there, a stale plan least of all */
  plan.struct_size = sizeof plan;
  call.plan = &plan;
  CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
  CHECK_INT(plan.s_q, S_Q);
  free(memory);

  /* nothing to plan */
  fh_call_init(&call, sizeof call, 0, 0, 8, 512, 5);
  CHECK_INT(fh_plan_bytes(device, &call, &bytes), FH_OK);
  memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
  CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
  CHECK_INT(plan.groups, 0);
  free(memory);
  fh_call_init(&call, sizeof call, 3, 0, 8, 512, 0);
  CHECK_INT(fh_plan_bytes(device, &call, &bytes), FH_OK);
  memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
  CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
  CHECK_INT(plan.groups, 1);
  CHECK_INT(plan.entries[0], 0);
  CHECK_INT(plan.keys[2], 0);
  free(memory);
}

int main(void) {
  for (int64_t s = 0; s < S_Q; s++) {
    topk_length[s] = (int32_t)(s * 5 % (TOPK + 6)) - 2; /* below 0 and above topk too */
    for (int64_t j = 0; j < TOPK + 5; j++)
      indices[s * (TOPK + 5) + j] = (int32_t)((s + j * j * 3 + j / 4) % (S_KV + 6)) - 3;
    if (s % 3 == 0)
      for (int64_t j = 0; j < 6; j++) indices[s * (TOPK + 5) + j] = 7; /* repeats */
  }
  for (int32_t threads = 1; threads <= 3; threads += 2) {
    fh_device *device = open_cpu(threads);
    for (int32_t group = 0; group <= 8; group++) built(device, group);
    parted(device);
    requests(device);
    refusals(device);
    fh_device_close(&device);
  }
  return check_summary();
}
