/* Which path is expected to be fastest: a pure function of a description, testable on any machine. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "internal.h"

/* What FH_AUTO may lose to padded on lists that share nothing: a difference that is within the noise of most machines. */
static const double AUTO_MARGIN = 0.02;

/* What a plan costs that leads to nothing, in its own cost: itself, and again as much where the memory that it writes takes the
 * place of KV rows and lists in the caches. On an H200, lists that share nothing: 26 us for a plan of 11 at s_q 1024, 8 heads; 24 for
 * one of 12 at s_q 512, 16 heads; 72 for one of 43 at s_q 8192. */
static const double PLAN_IN_VAIN = 2;

static fh_status check_numbers(const fh_policy *policy) {
  static const char *const names[] = {"padded", "gather", "packed", "plan"};
  const fh_path_cost costs[] = {policy->padded, policy->gather, policy->packed, policy->plan};
  for (int i = 0; i < 4; i++)
    if (!isfinite(costs[i].call_us) || !isfinite(costs[i].unit_us) || !isfinite(costs[i].gflop_us))
      return fh_fail(FH_ERR_ARGUMENT, "policy.%s: got call_us %g, unit_us %g, gflop_us %g, wanted finite numbers", names[i],
                     costs[i].call_us, costs[i].unit_us, costs[i].gflop_us);
  return FH_OK;
}

fh_status fh_policy_in(const fh_policy *given, fh_policy *policy) {
  const fh_status status = fh_struct_in("fh_policy", given, offsetof(fh_policy, plan), policy, sizeof *policy);
  return status ? status : check_numbers(policy);
}

static fh_status read_work(const fh_work *given, fh_work *work) {
  const fh_status status = fh_struct_in("fh_work", given, sizeof *work, work, sizeof *work);
  if (status) return status;
  const struct { const char *name; int64_t value, low, high; } fields[] = {
      {"rows", work->rows, 0, INT64_MAX},   {"keys", work->keys, 0, INT64_MAX},
      {"groups", work->groups, 0, INT64_MAX}, {"entries", work->entries, 0, INT64_MAX},
      {"h_q", work->h_q, 1, 128},           {"h_pad", work->h_pad, work->h_q, 128},
      {"group", work->group, work->groups ? 1 : 0, 64}, {"d_qk", work->d_qk, 1, INT32_MAX},
      {"d_v", work->d_v, 1, INT32_MAX},     {"reserved", work->reserved, 0, 0},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (fields[i].value < fields[i].low || fields[i].value > fields[i].high)
      return fh_fail(FH_ERR_SHAPE, "work.%s: got %" PRId64 ", wanted %" PRId64 " .. %" PRId64, fields[i].name, fields[i].value,
                     fields[i].low, fields[i].high);
  return FH_OK;
}

static double gflop(const fh_work *work, int32_t path) {
  const double pair = 2.0 * ((double)work->d_qk + (double)work->d_v) * 1e-9; /* of one head and one key */
  switch (path) {
    case FH_PADDED: return pair * work->h_pad * (double)work->keys;
    case FH_REFERENCE:
    case FH_GATHER: return pair * work->h_q * (double)work->keys;
    case FH_PACKED: return work->groups ? pair * work->h_q * work->group * (double)work->entries : 0;
    default: return 0;
  }
}

double fh_work_gflop(const fh_work *given, int32_t path) {
  fh_work work;
  return read_work(given, &work) ? 0 : gflop(&work, path);
}

static double microseconds(const fh_path_cost *cost, int64_t units, double work_gflop) {
  return cost->call_us + cost->unit_us * (double)units + cost->gflop_us * work_gflop;
}

/* What both questions below are asked with. */
static fh_status read_question(const fh_policy *policy, const fh_work *work, int32_t row_invariant, fh_policy *costs, fh_work *w) {
  fh_status status;
  if ((status = fh_policy_in(policy, costs)) || (status = read_work(work, w))) return status;
  if (row_invariant != 0 && row_invariant != 1)
    return fh_fail(FH_ERR_ARGUMENT, "row_invariant: got %d, wanted 0 or 1", (int)row_invariant);
  return FH_OK;
}

/* Costs by path, and the cheapest. */
static int32_t compare(const fh_policy *costs, const fh_work *w, int32_t row_invariant, double *cost_us) {
  const fh_path_cost *cost[FH_PATHS] = {[FH_PADDED] = &costs->padded, [FH_GATHER] = &costs->gather, [FH_PACKED] = &costs->packed};
  if (!w->groups || row_invariant) cost[FH_PACKED] = NULL;
  for (int32_t p = 0; p < FH_PATHS; p++)
    cost_us[p] = cost[p] ? microseconds(cost[p], p == FH_PACKED ? w->groups : w->rows, gflop(w, p)) : INFINITY;
  int32_t best = FH_PADDED;
  for (int32_t p = 0; p < FH_PATHS; p++)
    if (cost_us[p] < cost_us[best]) best = p;
  return best;
}

fh_status fh_policy_choose(const fh_policy *policy, const fh_work *work, int32_t row_invariant, int32_t *path, double *cost_us) {
  fh_policy costs;
  fh_work w;
  if (!path) return fh_fail_null("path");
  if (!cost_us) return fh_fail_null("cost_us");
  const fh_status status = read_question(policy, work, row_invariant, &costs, &w);
  if (status) return status;
  *path = compare(&costs, &w, row_invariant, cost_us);
  return FH_OK;
}

fh_status fh_policy_packs(const fh_policy *policy, const fh_work *work, int32_t row_invariant, int32_t planned, int32_t *packs) {
  fh_policy costs;
  fh_work w;
  double us[FH_PATHS];
  if (!packs) return fh_fail_null("packs");
  const fh_status status = read_question(policy, work, row_invariant, &costs, &w);
  if (status) return status;
  if (planned != 0 && planned != 1) return fh_fail(FH_ERR_ARGUMENT, "planned: got %d, wanted 0 or 1", (int)planned);
  w.entries = w.groups ? w.keys / w.group + (w.keys % w.group != 0) : 0;
  compare(&costs, &w, row_invariant, us);
  const int gathers = us[FH_GATHER] < us[FH_PADDED];
  const double rows = us[gathers ? FH_GATHER : FH_PADDED], start = (gathers ? costs.gather : costs.padded).call_us;
  const double plan = planned ? 0 : microseconds(&costs.plan, w.groups, gflop(&w, FH_GATHER)), saved = rows - us[FH_PACKED] - plan;
  const double in_vain = plan * PLAN_IN_VAIN;
  *packs = saved > 0 && saved >= (planned ? start : in_vain) && (planned || rows + in_vain <= us[FH_PADDED] * (1 + AUTO_MARGIN));
  return FH_OK;
}

fh_status fh_policy_default(const fh_device *device, fh_policy *policy) {
  if (!device) return fh_fail_null("device");
  fh_policy costs = {.struct_size = sizeof costs};
  device->back_end->policy(device, NULL, &costs);
  return fh_struct_out("fh_policy", policy, offsetof(fh_policy, plan), &costs, sizeof costs);
}
