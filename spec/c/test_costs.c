/* The cost model: what each path multiplies, what it is expected to cost, and which one is chosen. */
#include <math.h>
#include <stddef.h>

#include "refuse.h"

/* 1000 rows of 500 keys, in 125 groups of 600 entries. */
static fh_work some_work(void) {
  return (fh_work){.struct_size = sizeof(fh_work),
                   .rows = 1000,
                   .keys = 500000,
                   .groups = 125,
                   .entries = 75000,
                   .h_q = 8,
                   .h_pad = 64,
                   .group = 8,
                   .d_qk = 512,
                   .d_v = 512};
}

static void products(void) {
  const fh_work work = some_work();
  CHECK(fabs(fh_work_gflop(&work, FH_PADDED) - 2.0 * 64 * 1024 * 500000 * 1e-9) < 1e-9);
  CHECK(fabs(fh_work_gflop(&work, FH_GATHER) - 2.0 * 8 * 1024 * 500000 * 1e-9) < 1e-9);
  CHECK(fabs(fh_work_gflop(&work, FH_REFERENCE) - 2.0 * 8 * 1024 * 500000 * 1e-9) < 1e-9);
  CHECK(fabs(fh_work_gflop(&work, FH_PACKED) - 2.0 * 64 * 1024 * 75000 * 1e-9) < 1e-9);
  CHECK(fh_work_gflop(&work, FH_AUTO) == 0);
  CHECK(fh_work_gflop(&work, FH_PATHS) == 0);
  CHECK(fh_work_gflop(&work, -1) == 0);
  CHECK(fh_work_gflop(NULL, FH_PADDED) == 0);
  fh_work none = work;
  none.groups = none.entries = 0;
  none.group = 0;
  CHECK(fh_work_gflop(&none, FH_PACKED) == 0);
  CHECK(fh_work_gflop(&none, FH_GATHER) > 0);
  none.d_qk = 576;
  CHECK(fabs(fh_work_gflop(&none, FH_GATHER) - 2.0 * 8 * 1088 * 500000 * 1e-9) < 1e-9);
}

static void costs(void) {
  const fh_work work = some_work();
  const fh_costs costs = {sizeof costs, {10, 0.5, 2}, {20, 0.25, 4}, {30, 2, 3}, {0, 0, 0}, {0, 0, 0}};
  int32_t path = -1;
  double us[FH_PATHS];
  CHECK_INT(fh_costs_choose(&costs, &work, 0, &path, us, FH_PATHS), FH_OK);
  CHECK(isinf(us[FH_AUTO]) && us[FH_AUTO] > 0);
  CHECK(isinf(us[FH_REFERENCE]) && us[FH_REFERENCE] > 0);
  CHECK(fabs(us[FH_PADDED] - (10 + 0.5 * 1000 + 2 * 65.536)) < 1e-9);
  CHECK(fabs(us[FH_GATHER] - (20 + 0.25 * 1000 + 4 * 8.192)) < 1e-9);
  CHECK(fabs(us[FH_PACKED] - (30 + 2.0 * 125 + 3 * 9.8304)) < 1e-9);
  CHECK_INT(path, FH_GATHER); /* 302.8 against 641.1 and 309.5 */

  fh_costs other = costs;
  other.packed.unit_us = 1;
  CHECK_INT(fh_costs_choose(&other, &work, 0, &path, us, FH_PATHS), FH_OK);
  CHECK_INT(path, FH_PACKED);
  CHECK_INT(fh_costs_choose(&other, &work, 1, &path, us, FH_PATHS), FH_OK);
  CHECK_INT(path, FH_GATHER);
  CHECK(isinf(us[FH_PACKED]));
  fh_work none = work;
  none.groups = 0;
  CHECK_INT(fh_costs_choose(&other, &none, 0, &path, us, FH_PATHS), FH_OK);
  CHECK_INT(path, FH_GATHER);
  CHECK(isinf(us[FH_PACKED]));
  other.gather.call_us = 1000;
  CHECK_INT(fh_costs_choose(&other, &none, 0, &path, us, FH_PATHS), FH_OK);
  CHECK_INT(path, FH_PADDED);

  /* ties go to the earlier */
  const fh_costs flat = {sizeof flat, {1, 0, 0}, {1, 0, 0}, {1, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  CHECK_INT(fh_costs_choose(&flat, &work, 0, &path, us, FH_PATHS), FH_OK);
  CHECK_INT(path, FH_PADDED);
  const fh_costs native = {sizeof native, {2, 0, 0}, {1, 0, 0}, {1, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  CHECK_INT(fh_costs_choose(&native, &work, 0, &path, us, FH_PATHS), FH_OK);
  CHECK_INT(path, FH_GATHER);
}

static void refusals(void) {
  const fh_costs costs = {sizeof costs, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
  const fh_work work = some_work();
  int32_t path = 77;
  double us[FH_PATHS] = {5};
  REFUSED(fh_costs_choose(NULL, &work, 0, &path, us, FH_PATHS), FH_ERR_ARGUMENT,
          "fh_costs: got NULL, wanted a pointer");
  REFUSED(fh_costs_choose(&costs, NULL, 0, &path, us, FH_PATHS), FH_ERR_ARGUMENT,
          "fh_work: got NULL, wanted a pointer");
  REFUSED(fh_costs_choose(&costs, &work, 0, NULL, us, FH_PATHS), FH_ERR_ARGUMENT, "path: got NULL, wanted a pointer");
  REFUSED(fh_costs_choose(&costs, &work, 0, &path, NULL, 1), FH_ERR_ARGUMENT, "cost_us: got NULL, wanted a pointer");
  REFUSED(fh_costs_choose(&costs, &work, 2, &path, us, FH_PATHS), FH_ERR_ARGUMENT,
          "row_invariant: got 2, wanted 0 or 1");
  fh_costs odd = costs;
  odd.gather.gflop_us = NAN;
  REFUSED(fh_costs_choose(&odd, &work, 0, &path, us, FH_PATHS), FH_ERR_ARGUMENT,
          "costs.gather: got call_us 1, unit_us 1, gflop_us nan, wanted finite numbers");
  odd = costs;
  odd.plan.unit_us = -INFINITY;
  REFUSED(fh_costs_choose(&odd, &work, 0, &path, us, FH_PATHS), FH_ERR_ARGUMENT,
          "costs.plan: got call_us 1, unit_us -inf, gflop_us 1, wanted finite numbers");
  odd = costs;
  odd.vain.call_us = NAN;
  REFUSED(fh_costs_choose(&odd, &work, 0, &path, us, FH_PATHS), FH_ERR_ARGUMENT,
          "costs.vain: got call_us nan, unit_us 0, gflop_us 0, wanted finite numbers");
  odd = costs;
  odd.packed.call_us = INFINITY;
  CHECK_INT(fh_costs_choose(&odd, &work, 0, &path, us, FH_PATHS), FH_ERR_ARGUMENT);
  odd = costs;
  odd.struct_size = 0;
  CHECK_INT(fh_costs_choose(&odd, &work, 0, &path, us, FH_PATHS), FH_ERR_VERSION);

#define WORK(field, value, text)                                                        \
  do {                                                                                  \
    fh_work bad = work;                                                                 \
    bad.field = value;                                                                  \
    REFUSED(fh_costs_choose(&costs, &bad, 0, &path, us, FH_PATHS), FH_ERR_SHAPE, text); \
    CHECK(fh_work_gflop(&bad, FH_PADDED) == 0);                                         \
  } while (0)
  WORK(rows, -1, "work.rows: got -1, wanted 0 .. 9223372036854775807");
  WORK(keys, -1, "work.keys: got -1, wanted 0 .. 9223372036854775807");
  WORK(groups, -1, "work.groups: got -1, wanted 0 .. 9223372036854775807");
  WORK(entries, -1, "work.entries: got -1, wanted 0 .. 9223372036854775807");
  WORK(h_q, 0, "work.h_q: got 0, wanted 1 .. 128");
  WORK(h_q, 129, "work.h_q: got 129, wanted 1 .. 128");
  WORK(h_pad, 7, "work.h_pad: got 7, wanted 8 .. 128");
  WORK(group, 0, "work.group: got 0, wanted 1 .. 64");
  WORK(d_qk, 0, "work.d_qk: got 0, wanted 1 .. 2147483647");
  WORK(d_v, -1, "work.d_v: got -1, wanted 1 .. 2147483647");
  WORK(reserved, 1, "work.reserved: got 1, wanted 0 .. 0");
  fh_work sized = work;
  sized.struct_size++;
  CHECK_INT(fh_costs_choose(&costs, &sized, 0, &path, us, FH_PATHS), FH_ERR_VERSION);
  CHECK_INT(path, 77);
  CHECK(us[0] == 5);
}

static int32_t packs(const fh_costs *costs, const fh_work *work, int32_t planned) {
  int32_t answer = -1;
  CHECK_INT(fh_costs_packs(costs, work, 0, planned, &answer), FH_OK);
  return answer;
}

/* Whether a plan is looked at, or built: 500000 keys, so unions of 62500 entries at best: 8.192 GFLOP, as many as
 * gather's. */
static void packing(void) {
  fh_work work = some_work();
  work.entries = 1 << 30; /* what the lists share is not known yet */
  /* rows one by one 100, padded 130; packed at best 60 */
  fh_costs costs = {sizeof costs, {130, 0, 0}, {0, 0.1, 0}, {10, 0.2, 25 / 8.192}, {0, 0, 0}, {0, 0, 0}};
  CHECK_INT(packs(&costs, &work, 1), 1);
  CHECK_INT(packs(&costs, &work, 0), 1);
  for (int more = 0; more < 2;
       more++) { /* a plan that is there is paid for, but rows begin once more: 100 - 60 against that */
    fh_costs begun = costs;
    begun.gather = (fh_path_cost){39.9 + 0.2 * more, (60.1 - 0.2 * more) / 1000, 0};
    begun.plan = (fh_path_cost){1000, 0, 0};
    CHECK_INT(packs(&begun, &work, 1), !more);
    begun.gather.call_us = 130; /* then it is padded that begins */
    begun.padded = (fh_path_cost){39.9 + 0.2 * more, (60.1 - 0.2 * more) / 1000, 0};
    CHECK_INT(packs(&begun, &work, 1), !more);
  }
  for (int part = 0; part < 3;
       part++) { /* 40 to gain, of which a plan takes a third, and twice that in vain; each kind of cost */
    for (int more = 0; more < 2; more++) {
      const double us = 13.3 + 0.1 * more;
      costs.plan = (fh_path_cost){part == 0 ? us : 0, part == 1 ? us / 125 : 0, part == 2 ? us / 8.192 : 0};
      CHECK_INT(packs(&costs, &work, 0), !more);
      /* the other condition alone: 100 and twice the plan against 1.06 times padded */
      costs.packed.call_us = 0;
      costs.padded.call_us = 126.7 / 1.06;
      CHECK_INT(packs(&costs, &work, 0), !more);
      costs.packed.call_us = 10;
      costs.padded.call_us = 130;
    }
  }
  costs.plan = (fh_path_cost){13.2, 0, 0}; /* 26.8 to gain, 26.4 in vain: so much, or as much as somebody measured */
  for (int part = 0; part < 3; part++)
    for (int more = 0; more < 2; more++) {
      const double us = 26.7 + 0.2 * more;
      costs.vain = (fh_path_cost){part == 0 ? us : 0, part == 1 ? us / 125 : 0, part == 2 ? us / 8.192 : 0};
      CHECK_INT(packs(&costs, &work, 0), !more);
      CHECK_INT(packs(&costs, &work, 1), 1); /* a plan that is there is never in vain */
      costs.padded.call_us = 126.8 / 1.06;   /* the other condition alone */
      costs.packed.call_us = 0;
      CHECK_INT(packs(&costs, &work, 0), !more);
      costs.padded.call_us = 130;
      costs.packed.call_us = 10;
    }
  costs.vain = (fh_path_cost){0, 0, 0};
  fh_work endless = work; /* as many keys as the type holds, rounded up to groups */
  endless.keys = INT64_MAX;
  CHECK_INT(packs(&costs, &endless, 1), 0);
  costs.plan = (fh_path_cost){0, 0, 0};
  for (int32_t planned = 0; planned < 2; planned++) {
    fh_costs other = costs;
    other.packed.call_us = 50.1; /* at best 100.1 */
    CHECK_INT(packs(&other, &work, planned), 0);
    other.packed.call_us = 49.9;
    CHECK_INT(packs(&other, &work, planned), 1);
    other.gather.call_us = 130; /* then padded is what rows cost one by one */
    other.padded = (fh_path_cost){0, 0.0998, 0};
    CHECK_INT(packs(&other, &work, planned), 0);
    other.padded.unit_us = 0.1;
    CHECK_INT(packs(&other, &work, planned), 1);
    int32_t answer = -1;
    CHECK_INT(fh_costs_packs(&other, &work, 1, planned, &answer), FH_OK); /* row_invariant */
    CHECK_INT(answer, 0);
    fh_work none = work;
    none.groups = 0;
    CHECK_INT(packs(&other, &none, planned), 0);
  }

  int32_t answer = 5;
  REFUSED(fh_costs_packs(&costs, &work, 0, 0, NULL), FH_ERR_ARGUMENT, "packs: got NULL, wanted a pointer");
  REFUSED(fh_costs_packs(NULL, &work, 0, 0, &answer), FH_ERR_ARGUMENT, "fh_costs: got NULL, wanted a pointer");
  REFUSED(fh_costs_packs(&costs, NULL, 0, 0, &answer), FH_ERR_ARGUMENT, "fh_work: got NULL, wanted a pointer");
  REFUSED(fh_costs_packs(&costs, &work, -1, 0, &answer), FH_ERR_ARGUMENT, "row_invariant: got -1, wanted 0 or 1");
  REFUSED(fh_costs_packs(&costs, &work, 0, 2, &answer), FH_ERR_ARGUMENT, "planned: got 2, wanted 0 or 1");
  work.h_q = 0;
  REFUSED(fh_costs_packs(&costs, &work, 0, 0, &answer), FH_ERR_SHAPE, "work.h_q: got 0, wanted 1 .. 128");
  CHECK_INT(answer, 5);
}

/* Costs from before plans had a cost: they cost nothing. */
static void older(void) {
  fh_device *device = open_cpu(2);
  const fh_work work = some_work();
  fh_costs costs = {offsetof(fh_costs, plan), {120, 0, 0}, {100, 0, 0}, {10, 0, 0}, {1000, 0, 0}, {0, 0, 0}};
  CHECK_INT(packs(&costs, &work, 0), 1);
  costs.struct_size = sizeof costs;
  CHECK_INT(packs(&costs, &work, 0), 0);
  costs.plan.call_us = 10;
  costs.vain.call_us = 1000;
  CHECK_INT(packs(&costs, &work, 0), 0);
  costs.struct_size = offsetof(fh_costs, vain); /* twice the plan */
  CHECK_INT(packs(&costs, &work, 0), 1);
  costs.struct_size = offsetof(fh_costs, plan);
  costs.plan.call_us = 77;
  CHECK_INT(fh_costs_default(device, &costs), FH_OK);
  CHECK(costs.plan.call_us == 77);
  fh_device_close(&device);
}

static void defaults(void) {
  fh_device *device = open_cpu(2);
  fh_costs costs = {.struct_size = sizeof costs};
  CHECK_INT(fh_costs_default(device, &costs), FH_OK);
  const fh_path_cost all[] = {costs.padded, costs.gather, costs.packed, costs.plan};
  for (int i = 0; i < 4; i++)
    CHECK(isfinite(all[i].call_us) && isfinite(all[i].unit_us) && isfinite(all[i].gflop_us) && all[i].call_us > 0);
  REFUSED(fh_costs_default(NULL, &costs), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_costs_default(device, NULL), FH_ERR_ARGUMENT, "fh_costs: got NULL, wanted a pointer");
  costs.struct_size = 7;
  CHECK_INT(fh_costs_default(device, &costs), FH_ERR_VERSION);
  fh_device_close(&device);
}

int main(void) {
  products();
  costs();
  refusals();
  packing();
  older();
  defaults();
  return check_summary();
}
