/* The call: everything that is refused, the workspace, and the run. */
#include <inttypes.h>
#include <string.h>

#include "groups.h"
#include "internal.h"
#include "memory.h"

enum { WORKSPACE_ALIGNMENT = 64 };

/* Everything but the workspace. */
static fh_status check(const fh_device *device, const fh_call *given, fh_checked *checked, uint64_t *counters_bytes,
                       fh_arrays *all) {
  fh_call *call = &checked->call;
  fh_counters counters;
  fh_status status;
  if ((status = fh_check_sizes(device, given, checked)) || (status = fh_check_plan(device, checked))) return status;
  if ((status = fh_check_stream(device, call->stream))) return status;
  if (call->counters) {
    status = fh_struct_in("fh_counters", call->counters, FH_COUNTERS_LEAST, &counters, sizeof counters);
    if (status) return status;
    memcpy(counters_bytes, call->counters, sizeof *counters_bytes);
  }
  if ((status = fh_take_costs(device, checked))) return status;
  *all = fh_arrays_of(call, *counters_bytes);
  return fh_check_arrays(all);
}

fh_status fh_call_check(fh_device *device, const fh_call *call) {
  fh_checked checked;
  uint64_t counters_bytes = 0;
  fh_arrays all = {0};
  return check(device, call, &checked, &counters_bytes, &all);
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

static uint64_t path_bytes(const fh_device *device, const fh_call *call, int32_t path) {
  fh_call one = *call;
  one.path = path;
  return device->back_end->workspace_bytes(device, &one);
}

/* Returns 1 if a call with path FH_AUTO may work on a plan. A device that sees the lists decides by the lists when
 * the call runs. */
static int may_plan(const fh_device *device, const fh_call *call) {
  char why[FH_WHY];
  fh_work work;
  fh_weighed weighed = {0};
  if (!fh_may_pack(device, call, why)) return 0;
  return device->back_end->sees_lists || (!fh_weigh_call(device, call, &work, &weighed) && weighed.packs);
}

/* If the library builds the plan, the plan lies at the start. The path has the rest: for FH_AUTO, what the most
 * demanding path that it may take needs. */
static uint64_t workspace_bytes(const fh_device *device, const fh_call *call) {
  const int automatic = call->path == FH_AUTO;
  const int planned = automatic ? may_plan(device, call) : fh_path_of(call->path)->wants_plan;
  uint64_t rest = automatic ? 0 : path_bytes(device, call, call->path);
  for (int32_t path = 0; automatic && path < FH_PATHS; path++) {
    const fh_path_info *info = fh_path_of(path);
    const uint64_t bytes = info->candidate && (planned || !info->wants_plan) ? path_bytes(device, call, path) : 0;
    if (bytes > rest) rest = bytes;
  }
  return fhk_add(planned && !call->plan ? fh_own_plan_bytes(device, call) : 0, rest);
}

fh_status fh_workspace_bytes(fh_device *device, const fh_call *given, uint64_t *bytes) {
  fh_checked checked;
  fh_status status;
  if (!bytes) return fh_fail_null("bytes");
  if ((status = fh_check_sizes(device, given, &checked)) || (status = fh_check_plan(device, &checked)) ||
      (status = fh_take_costs(device, &checked)))
    return status;
  *bytes = workspace_bytes(device, &checked.call);
  return FH_OK;
}

static fh_status check_workspace(const fh_call *call, uint64_t wanted, fh_arrays *all) {
  if (!wanted) return FH_OK;
  if (!call->workspace) return fh_fail(FH_ERR_WORKSPACE, "workspace: got NULL, wanted %" PRIu64 " bytes", wanted);
  if (call->workspace_bytes < wanted)
    return fh_fail(FH_ERR_WORKSPACE, "workspace_bytes: got %" PRIu64 ", wanted at least %" PRIu64,
                   call->workspace_bytes, wanted);
  if ((uintptr_t)call->workspace % WORKSPACE_ALIGNMENT)
    return fh_fail(FH_ERR_ALIGNMENT, "workspace: got %p, wanted a multiple of %d bytes", call->workspace,
                   WORKSPACE_ALIGNMENT);
  if (wanted > INT64_MAX) return fh_fail(FH_ERR_WORKSPACE, "workspace: %" PRIu64 " bytes leave 64 bits", wanted);
  return fh_check_workspace_array(all, call->workspace, (int64_t)wanted);
}

fh_status fh_check_call(const fh_device *device, const fh_call *given, uint64_t wanted, fh_checked *checked) {
  uint64_t counters_bytes = 0;
  fh_arrays all = {0};
  const fh_status status = check(device, given, checked, &counters_bytes, &all);
  return status || checked->call.s_q == 0 ? status : check_workspace(&checked->call, wanted, &all);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

/* Replaces FH_AUTO by one path for the whole call. Or leaves FH_AUTO, with a plan that says which groups are packed,
 * and sets *rows to the path of the other groups. */
static fh_status choose(fh_device *device, fh_checked *checked, int32_t *rows) {
  fh_call *call = &checked->call;
  fh_work work;
  fh_weighed weighed = {0};
  fh_status status = fh_weigh_call(device, call, &work, &weighed);
  if (status) return status;
  if (!weighed.packs) {
    call->path = weighed.row_path;
    return FH_OK;
  }
  if (!call->plan && (status = fh_build_own_plan(device, checked))) return status;
  *rows = fh_rows_path(call, call->costs);
  if (!device->back_end->sees_lists) return FH_OK;
  if (*call->plan->packed_from == 0) call->path = FH_PACKED;
  if (*call->plan->packed_from == call->plan->groups) call->path = *rows;
  return FH_OK;
}

/* Bytes of lists and lengths that the plan of this call was built from, as far as the host knows them. */
static uint64_t list_bytes(const fh_device *device, const fh_call *call) {
  uint64_t keys = (uint64_t)call->s_q * (uint64_t)call->topk;
  const uint64_t lengths = call->topk_length ? (uint64_t)call->s_q : 0;
  if (lengths && device->back_end->sees_lists) {
    keys = 0;
    for (int64_t s = 0; s < call->s_q; s++) {
      const int64_t length = call->topk_length[s];
      keys += (uint64_t)(length < 0 ? 0 : length > call->topk ? call->topk : length);
    }
  }
  return (keys + lengths) * sizeof *call->indices;
}

fh_status fh_sparse_fwd(fh_device *device, const fh_call *given) {
  fh_checked checked;
  fh_call *call = &checked.call;
  fh_counters ran = {.struct_size = sizeof ran};
  uint64_t counters_bytes = 0;
  int32_t rows = FH_AUTO;
  fh_arrays all = {0};
  fh_status status = check(device, given, &checked, &counters_bytes, &all);
  if (status || call->s_q == 0) return status;
  if ((status = check_workspace(call, workspace_bytes(device, call), &all))) return status;
  const int asked_auto = call->path == FH_AUTO, brings_plan = call->plan != NULL;
  if (asked_auto && (status = choose(device, &checked, &rows))) return status;
  if (fh_path_of(call->path)->wants_plan && !call->plan && (status = fh_build_own_plan(device, &checked)))
    return status;
  fh_counters *counters = call->counters;
  call->counters = NULL;
  status = call->path == FH_AUTO ? device->back_end->run_parts(device, call, rows, &ran)
                                 : device->back_end->run(device, call, &ran);
  if (status || !counters) return status;
  if (call->plan && !brings_plan) ran.bytes += list_bytes(device, call);
  for (int path = 0; path < FH_PATHS; path++) ran.calls[path] = ran.rows[path] > 0;
  ran.calls[FH_AUTO] = asked_auto;
  return fh_add_counters(counters, &ran);
}
