/* Plans: the union of neighbouring queries' lists, built once an index list and used by every layer that shares the list. */
#include <inttypes.h>

#include "internal.h"

enum { ALIGNMENT = 64 };

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
  if ((status = device->back_end->plan_build(device, call, memory, &checked.plan))) return status;
  return fh_struct_out("fh_plan", plan, FH_PLAN_LEAST, &checked.plan, sizeof checked.plan);
}
