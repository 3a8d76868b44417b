/* Plans: the union of neighbouring queries' lists, built once an index list and used by every layer that shares the
 * list. */
#include <inttypes.h>

#include "internal.h"
#include "plan_layout.h"

enum { ALIGNMENT = 64 };

/* ---- The plan of a call
 * ---------------------------------------------------------------------------------------------------- */

/* Entries of a group are counted in 32 bits. */
int fh_plannable(const fh_call *call) { return call->group * call->topk <= INT32_MAX; }

fh_status fh_check_plannable(const fh_call *call) {
  if (fh_plannable(call)) return FH_OK;
  return fh_fail(FH_ERR_SHAPE, "topk: got %" PRId64 " for groups of %d, wanted group * topk <= %d", call->topk,
                 (int)call->group, INT32_MAX);
}

static fh_status check_offered(const fh_device *device, const fh_call *call) {
  char why[FH_WHY];
  if (device->back_end->offers(device, call->path, call->h_q, why)) return FH_OK;
  return fh_fail(FH_ERR_UNSUPPORTED, "path %s on %s: %s; use gather or padded", fh_path_name(call->path),
                 device->back_end->called, why);
}

fh_status fh_check_plan(const fh_device *device, fh_checked *checked) {
  fh_call *call = &checked->call;
  fh_plan *plan = &checked->plan;
  fh_status status = check_offered(device, call);
  if (!status && fh_path_of(call->path)->wants_plan) status = fh_check_plannable(call);
  if (status || !call->plan) return status;
  status = fh_struct_in("fh_plan", call->plan, FH_PLAN_LEAST, plan, sizeof *plan);
  if (status) return status;
  call->plan = plan;
  const struct {
    const char *name;
    int64_t got, wanted;
  } fields[] = {
      {"s_q", plan->s_q, call->s_q},
      {"group", plan->group, call->group},
      {"requests", plan->requests, call->requests},
      {"groups", plan->groups, fh_groups_most(call->s_q, call->requests, call->group)},
      {"s_kv", plan->s_kv, call->s_kv},
      {"capacity", plan->capacity, call->group * call->topk},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (fields[i].got != fields[i].wanted)
      return fh_fail(FH_ERR_SHAPE, "plan.%s: got %" PRId64 ", wanted the call's %" PRId64, fields[i].name,
                     fields[i].got, fields[i].wanted);
  return FH_OK;
}

uint64_t fh_own_plan_bytes(const fh_device *device, const fh_call *call) {
  return fhk_round_up(device->back_end->plan_bytes(device, call), FH_PLAN_LINE);
}

fh_status fh_build_own_plan(fh_device *device, fh_checked *checked) {
  fh_call *call = &checked->call;
  const uint64_t bytes = fh_own_plan_bytes(device, call);
  checked->plan = (fh_plan){.struct_size = sizeof checked->plan};
  const fh_status status = device->back_end->plan_build(device, call, 0, call->workspace, &checked->plan);
  if (status) return status;
  call->plan = &checked->plan;
  call->workspace = (unsigned char *)call->workspace + bytes;
  call->workspace_bytes -= bytes;
  return FH_OK;
}

/* ---- Plans that last
 * ------------------------------------------------------------------------------------------------------- */

fh_status fh_plan_bytes(fh_device *device, const fh_call *call, uint64_t *bytes) {
  fh_checked checked;
  fh_status status;
  if (!bytes) return fh_fail_null("bytes");
  if ((status = fh_check_sizes(device, call, &checked)) || (status = fh_check_plannable(&checked.call))) return status;
  *bytes = device->back_end->plan_bytes(device, &checked.call);
  return FH_OK;
}

fh_status fh_plan_build(fh_device *device, const fh_call *given, void *memory, uint64_t memory_bytes, fh_plan *plan) {
  fh_checked checked;
  fh_status status;
  const fh_call *call = &checked.call;
  if ((status = fh_check_sizes(device, given, &checked)) || (status = fh_check_plannable(call)) ||
      (status = fh_check_stream(device, call->stream)) || (status = fh_take_costs(device, &checked)) ||
      (status = fh_struct_out("fh_plan", plan, FH_PLAN_LEAST, NULL, sizeof *plan)))
    return status;
  const fh_array read[] = {fh_call_indices(call), fh_call_topk_length(call), fh_call_cu_seqlens_q(call)};
  const size_t arrays = sizeof read / sizeof *read;
  for (size_t i = 0; i < arrays; i++)
    if ((status = fh_check_array(&read[i]))) return status;

  const uint64_t bytes = device->back_end->plan_bytes(device, call);
  if (bytes && !memory) return fh_fail(FH_ERR_WORKSPACE, "memory: got NULL, wanted %" PRIu64 " bytes", bytes);
  if (memory_bytes < bytes)
    return fh_fail(FH_ERR_WORKSPACE, "memory_bytes: got %" PRIu64 ", wanted at least %" PRIu64, memory_bytes, bytes);
  if ((uintptr_t)memory % ALIGNMENT)
    return fh_fail(FH_ERR_ALIGNMENT, "memory: got %p, wanted a multiple of %d bytes", memory, ALIGNMENT);
  const fh_array own = {"memory", memory, 1, 1, {(int64_t)bytes}, {1}};
  if ((status = fh_check_array(&own))) return status;
  for (size_t i = 0; i < arrays; i++)
    if (!fh_arrays_disjoint(&own, &read[i])) return fh_fail(FH_ERR_OVERLAP, "memory: overlaps %s", read[i].name);

  checked.plan = (fh_plan){.struct_size = sizeof checked.plan};
  if ((status = device->back_end->plan_build(device, call, 1, memory, &checked.plan))) return status;
  return fh_struct_out("fh_plan", plan, FH_PLAN_LEAST, &checked.plan, sizeof checked.plan);
}
