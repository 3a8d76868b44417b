/* What FH_AUTO makes of a call, in words: the whole line, for costs that make every number round. */
#include <stdlib.h>

#include "internal.h"
#include "refuse.h"

static fh_device *device;

/* Lists that are not there count as full: 64 rows of 640 keys in 8 groups. */
static fh_call call_by(const fh_costs *costs) {
  fh_call call;
  CHECK_INT(fh_call_init(&call, sizeof call, 64, 5000, 8, 512, 640), FH_OK);
  call.costs = costs;
  return call;
}

static const char *explain(const fh_call *call) {
  static char text[1024];
  memset(text, '!', sizeof text);
  CHECK_INT(fh_explain(device, call, text, sizeof text), FH_OK);
  CHECK(strchr(text, '\n') == NULL);
  return text;
}

#define HEAD "s_q 64, h_q 8, 40960 keys: "
#define TAIL ". Costs: given by the caller"

static void by_costs(void) {
  fh_costs costs = {sizeof costs, {100, 0, 0}, {50, 0, 0}, {10, 0, 0}, {5, 0, 0}, {0, 0, 0}};
  fh_call call = call_by(&costs);
  CHECK_STR(explain(&call),
            HEAD "auto builds a plan, which says which groups are packed; the other rows take gather. Expected: "
                 "padded 100 us, gather 50 us, packed 10 us at best and 5 us for its plan: packing saves 35 us at "
                 "most, and has to "
                 "save 10 us" TAIL);
  costs.plan.call_us = 30;
  CHECK_STR(explain(&call),
            HEAD "auto takes gather for all rows. Expected: padded 100 us, gather 50 us, packed 10 us at best and "
                 "30 us for its plan: packing saves 10 us at most, and has to save 60 us; a plan that packs nothing "
                 "would bring the "
                 "call to 110 us, wanted at most 106 us" TAIL);
  costs.gather.call_us = 200;
  call.row_invariant = 1;
  CHECK_STR(explain(&call),
            HEAD "auto takes padded for all rows. Expected: padded 100 us, gather 200 us; packed is not on offer: "
                 "row_invariant is 1" TAIL);
  call.row_invariant = 0;
  call.group = 1;
  call.path = FH_GATHER;
  CHECK_STR(explain(&call),
            HEAD "the call asks for gather; auto takes padded for all rows. Expected: padded 100 us, gather 200 us; "
                 "packed is not on offer: a group of one row shares nothing" TAIL);
  /* the choice that is told is the one that is made: costs by the key turn it */
  costs = (fh_costs){sizeof costs, {0, 0, 1}, {0, 0, 9}, {1e6, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  call = call_by(&costs);
  CHECK(strstr(explain(&call), "auto takes padded for all rows. Expected: padded 5.37 us, gather 6.04 us") != NULL);
}

/* With lists the keys are counted, and with a plan its groups. */
static void by_lists(void) {
  static int32_t indices[64 * 640];
  for (int s = 0; s < 64; s++)
    for (int j = 0; j < 640; j++) indices[s * 640 + j] = j % 2 ? -1 : s < 32 ? j : (s * 640 + j) % 5000;
  const double pair = 2.048e-6; /* GFLOP */
  const fh_costs costs = {sizeof costs, {1e6, 0, 0}, {0, 0, 1 / (8 * pair)}, {0, 0, 0.25 / (8 * pair)},
                          {0, 0, 0},    {0, 0, 0}};
  fh_call call = call_by(&costs);
  call.indices = indices;
  uint64_t bytes = 0;
  fh_plan plan = {.struct_size = sizeof plan};
  CHECK_INT(fh_plan_bytes(device, &call, &bytes), FH_OK);
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
  call.plan = &plan;
  /* a group of equal lists: 2560 keys in 320 entries for 640 us; of lists apart: more entries, 4 us a tile's entry of 8
   * rows */
  CHECK_INT(*plan.packed_from, 4);
  CHECK_STR(explain(&call),
            "s_q 64, h_q 8, 20480 keys: auto packs 4 of the plan's 8 groups; the other rows take gather. Expected: "
            "padded 1000000 us, gather 20480 us, packed 5120 us at best: packing saves 15360 us at most, and has to "
            "save 0 us" TAIL);
  free(memory);
}

static void own_costs(void) {
  const fh_call call = call_by(NULL);
  fh_device_info info = {.struct_size = sizeof info};
  CHECK_INT(fh_device_get_info(device, &info), FH_OK);
  const char *unit = info.isa == FH_ISA_AMX ? "AMX" : "AVX-512 at 2.9 GHz";
  CHECK(strstr(explain(&call), text_of(". Costs: scaled by threads from one thread of a Xeon with %s", unit)) != NULL);
}

static void room(void) {
  const fh_costs costs = {sizeof costs, {100, 0, 0}, {50, 0, 0}, {10, 0, 0}, {5, 0, 0}, {0, 0, 0}};
  fh_call call = call_by(&costs);
  char text[16];
  memset(text, '!', sizeof text);
  CHECK_INT(fh_explain(device, &call, text, 9), FH_OK);
  CHECK_STR(text, "s_q 64, ");
  CHECK_INT(text[9], '!');
  CHECK_INT(fh_explain(device, &call, NULL, 0), FH_OK);
  REFUSED(fh_explain(device, &call, NULL, 1), FH_ERR_ARGUMENT, "text: got NULL, wanted a pointer");
  REFUSED(fh_explain(NULL, &call, text, 9), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_explain(device, NULL, text, 9), FH_ERR_ARGUMENT, "fh_call: got NULL, wanted a pointer");
  call.topk = -1;
  REFUSED(fh_explain(device, &call, text, 9), FH_ERR_SHAPE, "topk: got -1, wanted 0 .. 2147483647");
  CHECK_STR(text, "s_q 64, ");
  call = call_by(&costs);
  call.indices = (const int32_t *)(const void *)&text[1];
  if ((uintptr_t)call.indices % 4) CHECK_INT(fh_explain(device, &call, text, 9), FH_ERR_ALIGNMENT);
  call = call_by(&costs);
  call.s_q = 0; /* nothing to do, nothing to weigh */
  CHECK(strncmp(explain(&call), "s_q 0, h_q 8, 0 keys: auto takes gather for all rows", 50) == 0);
}

int main(void) {
  device = open_cpu(2);
  by_costs();
  by_lists();
  own_costs();
  room();
  fh_device_close(&device);
  return check_summary();
}
