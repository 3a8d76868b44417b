/* Which path is expected to be fastest: a pure function of a description, testable on any machine. */
#include <inttypes.h>
#include <math.h>

#include "cost.h"
#include "internal.h"

/* What FH_AUTO may lose to padded on lists that share nothing. On an H200 a call of 4096 rows and 17 to 32 heads
 * loses as much then; on lists as models make them it gains 20 to 50 %. */
static const double AUTO_MARGIN = 0.06;

/* What a plan costs that leads to nothing, in its own cost, where nobody measured it: itself, and again as much where
 * the memory that it writes takes the place of KV rows and lists in the caches. */
static const double PLAN_IN_VAIN = 2;

/* A plan without a cost costs nothing. */
#define COSTS_LEAST FH_UP_TO(fh_costs, packed)

static fh_status check_numbers(const fh_costs *costs) {
  static const char *const names[] = {"padded", "gather", "packed", "plan", "vain"};
  const fh_path_cost all[] = {costs->padded, costs->gather, costs->packed, costs->plan, costs->vain};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!isfinite(all[i].call_us) || !isfinite(all[i].unit_us) || !isfinite(all[i].gflop_us))
      return fh_fail(FH_ERR_ARGUMENT, "costs.%s: got call_us %g, unit_us %g, gflop_us %g, wanted finite numbers",
                     names[i], all[i].call_us, all[i].unit_us, all[i].gflop_us);
  return FH_OK;
}

fh_status fh_costs_in(const fh_costs *given, fh_costs *costs) {
  const fh_status status = fh_struct_in("fh_costs", given, COSTS_LEAST, costs, sizeof *costs);
  return status ? status : check_numbers(costs);
}

static fh_status read_work(const fh_work *given, fh_work *work) {
  const fh_status status = fh_struct_in("fh_work", given, FH_UP_TO(fh_work, reserved), work, sizeof *work);
  if (status) return status;
  const struct {
    const char *name;
    int64_t value, low, high;
  } fields[] = {
      {"rows", work->rows, 0, INT64_MAX},
      {"keys", work->keys, 0, INT64_MAX},
      {"groups", work->groups, 0, INT64_MAX},
      {"entries", work->entries, 0, INT64_MAX},
      {"h_q", work->h_q, 1, 128},
      {"h_pad", work->h_pad, work->h_q, 128},
      {"group", work->group, work->groups ? 1 : 0, 64},
      {"d_qk", work->d_qk, 1, INT32_MAX},
      {"d_v", work->d_v, 1, INT32_MAX},
      {"reserved", work->reserved, 0, 0},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (fields[i].value < fields[i].low || fields[i].value > fields[i].high)
      return fh_fail(FH_ERR_SHAPE, "work.%s: got %" PRId64 ", wanted %" PRId64 " .. %" PRId64, fields[i].name,
                     fields[i].value, fields[i].low, fields[i].high);
  return FH_OK;
}

static double gflop(const fh_work *work, int32_t path) {
  const fh_path_info *info = fh_path_of(path);
  if (!info || (!info->native && !info->candidate)) return 0;
  const double heads = info->native ? work->h_q : work->h_pad;
  const double keys = info->shares_tile ? (work->groups ? work->group * (double)work->entries : 0) : (double)work->keys;
  return fh_gflop(work->d_qk, work->d_v, heads * keys);
}

double fh_work_gflop(const fh_work *given, int32_t path) {
  fh_work work;
  return read_work(given, &work) ? 0 : gflop(&work, path);
}

/* The cost of a path; NULL for a path without costs, which FH_AUTO never takes. */
static const fh_path_cost *cost_of(const fh_costs *costs, int32_t path) {
  switch (path) {
    case FH_PADDED: return &costs->padded;
    case FH_GATHER: return &costs->gather;
    case FH_PACKED: return &costs->packed;
    default: return NULL;
  }
}

/* Microseconds that a plan in vain adds to a call. */
static double in_vain_us(const fh_costs *costs, double plan_us, double groups, double gflop) {
  const fh_path_cost *vain = &costs->vain;
  if (vain->call_us == 0 && vain->unit_us == 0 && vain->gflop_us == 0) return plan_us * PLAN_IN_VAIN;
  return fh_cost_us(vain, groups, gflop);
}

/* What both questions below are asked with: full-size copies, checked. */
typedef struct question {
  fh_costs costs;
  fh_work work;
} question;

static fh_status read_question(const fh_costs *costs, const fh_work *work, int32_t row_invariant, question *asked) {
  fh_status status;
  if ((status = fh_costs_in(costs, &asked->costs)) || (status = read_work(work, &asked->work))) return status;
  if (row_invariant != 0 && row_invariant != 1)
    return fh_fail(FH_ERR_ARGUMENT, "row_invariant: got %d, wanted 0 or 1", (int)row_invariant);
  return FH_OK;
}

/* Costs by path, and the cheapest. */
static int32_t compare(const question *asked, int32_t row_invariant, double *cost_us) {
  const fh_work *work = &asked->work;
  int32_t best = FH_PADDED;
  for (int32_t p = 0; p < FH_PATHS; p++) {
    const fh_path_info *info = fh_path_of(p);
    const fh_path_cost *cost = cost_of(&asked->costs, p);
    const int offered = info->candidate && cost && !(info->shares_tile && (!work->groups || row_invariant));
    const int64_t units = info->shares_tile ? work->groups : work->rows;
    cost_us[p] = offered ? fh_cost_us(cost, (double)units, gflop(work, p)) : INFINITY;
  }
  for (int32_t p = 0; p < FH_PATHS; p++)
    if (cost_us[p] < cost_us[best]) best = p;
  return best;
}

fh_status fh_costs_choose(const fh_costs *costs, const fh_work *work, int32_t row_invariant, int32_t *path,
                          double *cost_us, int32_t count) {
  question asked;
  double us[FH_PATHS];
  if (!path) return fh_fail_null("path");
  if (count < 0) return fh_fail(FH_ERR_ARGUMENT, "count: got %d, wanted >= 0", (int)count);
  if (!cost_us && count) return fh_fail_null("cost_us");
  const fh_status status = read_question(costs, work, row_invariant, &asked);
  if (status) return status;
  *path = compare(&asked, row_invariant, us);
  for (int32_t p = 0; p < count; p++) cost_us[p] = p < FH_PATHS ? us[p] : INFINITY;
  return FH_OK;
}

fh_status fh_weigh(const fh_costs *costs, const fh_work *work, int32_t row_invariant, int32_t planned,
                   fh_weighed *weighed) {
  question asked;
  fh_work *w = &asked.work;
  double *us = weighed->us;
  const fh_status status = read_question(costs, work, row_invariant, &asked);
  if (status) return status;
  if (planned != 0 && planned != 1) return fh_fail(FH_ERR_ARGUMENT, "planned: got %d, wanted 0 or 1", (int)planned);
  w->entries = w->groups ? w->keys / w->group + (w->keys % w->group != 0) : 0;
  compare(&asked, row_invariant, us);
  weighed->row_path = fh_cheaper_rows(us[FH_PADDED], us[FH_GATHER]);
  const double rows = us[weighed->row_path];
  const double groups = (double)w->groups, plan_gflop = gflop(w, FH_GATHER);
  weighed->plan_us = planned ? 0 : fh_cost_us(&asked.costs.plan, groups, plan_gflop);
  const double in_vain = planned ? 0 : in_vain_us(&asked.costs, weighed->plan_us, groups, plan_gflop);
  weighed->saves_us = rows - us[FH_PACKED] - weighed->plan_us;
  weighed->wanted_us = planned ? cost_of(&asked.costs, weighed->row_path)->call_us : in_vain;
  weighed->risk_us = planned ? 0 : rows + in_vain;
  weighed->most_us = us[FH_PADDED] * (1 + AUTO_MARGIN);
  weighed->packs =
      weighed->saves_us > 0 && weighed->saves_us >= weighed->wanted_us && weighed->risk_us <= weighed->most_us;
  return FH_OK;
}

fh_status fh_costs_packs(const fh_costs *costs, const fh_work *work, int32_t row_invariant, int32_t planned,
                         int32_t *packs) {
  fh_weighed weighed = {0};
  if (!packs) return fh_fail_null("packs");
  const fh_status status = fh_weigh(costs, work, row_invariant, planned, &weighed);
  if (!status) *packs = weighed.packs;
  return status;
}

fh_status fh_costs_default(const fh_device *device, fh_costs *costs) {
  if (!device) return fh_fail_null("device");
  fh_costs own = {.struct_size = sizeof own};
  (void)device->back_end->costs(device, NULL, &own);
  return fh_struct_out("fh_costs", costs, COSTS_LEAST, &own, sizeof own);
}
