/* Which path is expected to be fastest: a pure function of a description, testable on any machine. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "internal.h"

fh_status fh_policy_check(const fh_policy *policy) {
  static const char *const names[] = {"padded", "gather", "packed"};
  const fh_path_cost costs[] = {policy->padded, policy->gather, policy->packed};
  for (int i = 0; i < 3; i++)
    if (!isfinite(costs[i].call_us) || !isfinite(costs[i].unit_us) || !isfinite(costs[i].gflop_us))
      return fh_fail(FH_ERR_ARGUMENT, "policy.%s: got call_us %g, unit_us %g, gflop_us %g, wanted finite numbers", names[i],
                     costs[i].call_us, costs[i].unit_us, costs[i].gflop_us);
  return FH_OK;
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

fh_status fh_policy_choose(const fh_policy *policy, const fh_work *work, int32_t row_invariant, int32_t *path, double *cost_us) {
  fh_policy costs;
  fh_work w;
  fh_status status;
  if (!path) return fh_fail_null("path");
  if (!cost_us) return fh_fail_null("cost_us");
  if ((status = fh_struct_in("fh_policy", policy, sizeof costs, &costs, sizeof costs)) || (status = fh_policy_check(&costs)) ||
      (status = read_work(work, &w)))
    return status;
  if (row_invariant != 0 && row_invariant != 1)
    return fh_fail(FH_ERR_ARGUMENT, "row_invariant: got %d, wanted 0 or 1", (int)row_invariant);
  const fh_path_cost *cost[FH_PATHS] = {[FH_PADDED] = &costs.padded, [FH_GATHER] = &costs.gather, [FH_PACKED] = &costs.packed};
  if (!w.groups || row_invariant) cost[FH_PACKED] = NULL;
  int32_t best = FH_PADDED;
  for (int32_t p = 0; p < FH_PATHS; p++) {
    cost_us[p] = INFINITY;
    if (!cost[p]) continue;
    const double units = (double)(p == FH_PACKED ? w.groups : w.rows);
    cost_us[p] = cost[p]->call_us + cost[p]->unit_us * units + cost[p]->gflop_us * gflop(&w, p);
    if (cost_us[p] < cost_us[best]) best = p;
  }
  *path = best;
  return FH_OK;
}

fh_status fh_policy_default(const fh_device *device, fh_policy *policy) {
  if (!device) return fh_fail_null("device");
  fh_policy costs = {.struct_size = sizeof costs};
  device->back_end->policy(device, NULL, &costs);
  return fh_struct_out("fh_policy", policy, sizeof costs, &costs, sizeof costs);
}
