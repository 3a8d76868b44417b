/* The call: its defaults, everything that is refused, and the run. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "groups.h"
#include "internal.h"
#include "memory.h"

/* Limits that keep every size computed from a call inside 64 bits: no workspace takes more than 2^22 bytes a row and
 * 2^6 bytes for a row's list entry. Both are far beyond any memory. */
#define MAX_ROWS ((int64_t)1 << 40)
#define MAX_LIST_ENTRIES ((int64_t)1 << 56)

enum { MAX_HEADS = 128, TILE_ROWS = 64, WORKSPACE_ALIGNMENT = 64, MAX_ARRAYS = 20 };

/* The least of the structs that callers pass: what 0.2 could not do without. */
#define COUNTERS_LEAST FH_UP_TO(fh_counters, rows)
_Static_assert(FH_PATHS <= FH_MAX_PATHS, "counters have room for every path");
_Static_assert(sizeof((fh_counters *)NULL)->rows == FH_MAX_PATHS * sizeof(uint64_t),
               "the header writes FH_MAX_PATHS as a number");

static const float MAX_SCALE = 0x1p127f; /* kernels multiply by log2(e), 1.44: the product stays finite */

fh_status fh_call_init(fh_call *call, uint64_t struct_size, int64_t s_q, int64_t s_kv, int32_t h_q, int32_t d_qk,
                       int64_t topk) {
  fh_call full = {.struct_size = sizeof full,
                  .s_q = s_q,
                  .s_kv = s_kv,
                  .topk = topk,
                  .h_q = h_q,
                  .d_qk = d_qk,
                  .d_v = 512,
                  .path = FH_AUTO,
                  .out_dtype = FH_BF16};
  full.sm_scale = (float)(1 / sqrt((double)d_qk));
  full.q_stride_h = d_qk;
  full.q_stride_s = (int64_t)h_q * d_qk;
  full.kv_stride = d_qk;
  full.indices_stride = topk;
  full.out_stride_h = full.d_v;
  full.out_stride_s = (int64_t)h_q * full.d_v;
  full.lse_stride = full.max_logits_stride = h_q;
  return fh_struct_init("fh_call", call, struct_size, FH_CALL_LEAST, &full, sizeof full);
}

/* ---- Sizes
 * ---------------------------------------------------------------------------------------------------------------- */

static fh_status check_range(const char *name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return FH_OK;
  return fh_fail(FH_ERR_SHAPE, "%s: got %" PRId64 ", wanted %" PRId64 " .. %" PRId64, name, value, low, high);
}

/* Path, group and scale: what is a choice rather than a size. h_q is good. */
static fh_status check_choices(fh_call *call) {
  const int most = TILE_ROWS / call->h_q;
  const fh_path_info *path = fh_path_of(call->path);
  if (!path) return fh_check_path(call->path);
  if (call->row_invariant != 0 && call->row_invariant != 1)
    return fh_fail(FH_ERR_ARGUMENT, "row_invariant: got %d, wanted 0 or 1", (int)call->row_invariant);
  if (call->h_pad != 0 && call->h_pad != 64 && call->h_pad != 128)
    return fh_fail(FH_ERR_SHAPE, "h_pad: got %d, wanted 0, 64 or 128", (int)call->h_pad);
  if (call->h_pad != 0 && call->h_pad < call->h_q)
    return fh_fail(FH_ERR_SHAPE, "h_pad: got %d, wanted at least h_q, %d", (int)call->h_pad, (int)call->h_q);
  if (call->group < 0 || (call->group > 1 && call->group > most))
    return fh_fail(FH_ERR_SHAPE, "group: got %d, wanted 0 .. %d for h_q %d", (int)call->group, most > 1 ? most : 1,
                   (int)call->h_q);
  if (!isfinite(call->sm_scale) || call->sm_scale <= 0)
    return fh_fail(FH_ERR_ARGUMENT, "sm_scale: got %g, wanted a finite number > 0", (double)call->sm_scale);
  if (call->sm_scale > MAX_SCALE)
    return fh_fail(FH_ERR_ARGUMENT, "sm_scale: got %g, wanted at most 2^127", (double)call->sm_scale);
  if (call->reserved != 0) return fh_fail(FH_ERR_ARGUMENT, "reserved: got %d, wanted 0", (int)call->reserved);
  if (call->out_dtype != FH_BF16 && call->out_dtype != FH_F32)
    return fh_fail(FH_ERR_ARGUMENT, "out_dtype: got %d, wanted 1 (bf16) or 2 (f32)", (int)call->out_dtype);
  if (call->out_dtype == FH_F32 && !path->writes_f32)
    return fh_fail(FH_ERR_UNSUPPORTED, "out_dtype: got f32 on path %s, wanted bf16; only the reference path writes f32",
                   path->name);
  if (path->shares_tile && call->row_invariant)
    return fh_fail(FH_ERR_UNSUPPORTED,
                   "row_invariant: got 1 on path %s, whose rows share a tile; wanted 0, or path gather", path->name);
  if (call->h_pad == 0) call->h_pad = fh_padded_heads(call->h_q);
  if (call->group == 0) call->group = most > 1 ? most : 1;
  return FH_OK;
}

fh_status fh_check_sizes(const fh_device *device, const fh_call *given, fh_checked *checked) {
  fh_call *call = &checked->call;
  fh_status status;
  if (!device) return fh_fail_null("device");
  if ((status = fh_struct_in("fh_call", given, FH_CALL_LEAST, call, sizeof *call)) ||
      (status = check_range("s_q", call->s_q, 0, MAX_ROWS)) ||
      (status = check_range("s_kv", call->s_kv, 0, INT32_MAX)) ||
      (status = check_range("h_q", call->h_q, 1, MAX_HEADS)) ||
      (status = check_range("topk", call->topk, 0, INT32_MAX)))
    return status;
  if (call->d_qk != 512 && call->d_qk != 576)
    return fh_fail(FH_ERR_SHAPE, "d_qk: got %d, wanted 512 or 576", (int)call->d_qk);
  if (call->d_v != 512) return fh_fail(FH_ERR_SHAPE, "d_v: got %d, wanted 512", (int)call->d_v);
  if (call->s_q > 0 && call->topk > MAX_LIST_ENTRIES / call->s_q)
    return fh_fail(FH_ERR_SHAPE, "topk: got %" PRId64 " for s_q %" PRId64 ", wanted s_q * topk <= 2^56", call->topk,
                   call->s_q);
  if ((status = check_range("requests", call->requests, call->cu_seqlens_q ? 1 : 0, INT32_MAX))) return status;
  if (call->requests > 0 && call->s_q > INT32_MAX)
    return fh_fail(FH_ERR_SHAPE, "s_q: got %" PRId64 " with requests, wanted 0 .. %d, which offsets of 32 bits reach",
                   call->s_q, INT32_MAX);
  return check_choices(call);
}

fh_status fh_take_costs(const fh_device *device, fh_checked *checked) {
  fh_call *call = &checked->call;
  if (!call->costs && call->path != FH_AUTO) return FH_OK;
  if (call->costs) {
    const fh_status status = fh_costs_in(call->costs, &checked->costs);
    if (status) return status;
    checked->costs_from = "given by the caller";
  } else {
    checked->costs = (fh_costs){.struct_size = sizeof checked->costs};
    checked->costs_from = device->back_end->costs(device, call, &checked->costs);
  }
  call->costs = &checked->costs;
  return FH_OK;
}

/* ---- Memory
 * --------------------------------------------------------------------------------------------------------------- */

fh_status fh_check_array(const fh_array *array) {
  int64_t low, high;
  uintptr_t address;
  if (fh_array_empty(array)) return FH_OK;
  if (!array->base) return fh_fail_null(array->name);
  if ((uintptr_t)array->base % (uintptr_t)array->element_bytes)
    return fh_fail(FH_ERR_ALIGNMENT, "%s: got %p, wanted a multiple of %d bytes", array->name, array->base,
                   (int)array->element_bytes);
  const fh_status status = fh_array_extent(array, &low, &high);
  if (status) return status;
  if (__builtin_add_overflow((uintptr_t)array->base, low, &address) ||
      __builtin_add_overflow((uintptr_t)array->base, high, &address))
    return fh_fail(FH_ERR_STRIDE, "%s: bytes %" PRId64 " .. %" PRId64 " from %p leave 64 bits", array->name, low, high,
                   array->base);
  return FH_OK;
}

typedef struct arrays {
  int32_t count;
  struct {
    fh_array array;
    int written;
  } at[MAX_ARRAYS];
} arrays;

static void add(arrays *all, int written, fh_array array) {
  all->at[all->count].array = array;
  all->at[all->count++].written = written;
}

static fh_array row(const char *name, const void *base, int32_t element_bytes, int64_t count) {
  return (fh_array){name, base, element_bytes, 1, {count}, {1}};
}

static fh_array matrix(const char *name, const void *base, int32_t element_bytes, int64_t rows, int64_t columns,
                       int64_t stride) {
  return (fh_array){name, base, element_bytes, 2, {rows, columns}, {stride, 1}};
}

static fh_array heads(const char *name, const void *base, int32_t element_bytes, const fh_call *call, int64_t width,
                      int64_t stride_s, int64_t stride_h) {
  return (fh_array){name, base, element_bytes, 3, {call->s_q, call->h_q, width}, {stride_s, stride_h, 1}};
}

fh_array fh_call_indices(const fh_call *call) {
  return matrix("indices", call->indices, 4, call->s_q, call->topk, call->indices_stride);
}

fh_array fh_call_topk_length(const fh_call *call) {
  return row("topk_length", call->topk_length, 4, call->topk_length ? call->s_q : 0);
}

fh_array fh_call_cu_seqlens_q(const fh_call *call) {
  return row("cu_seqlens_q", call->cu_seqlens_q, 4, call->requests ? call->requests + 1 : 0);
}

/* Every array that the call reads or writes; of the optional ones those that are there. */
static arrays arrays_of(const fh_call *call, uint64_t counters_bytes) {
  arrays all = {0};
  add(&all, 0, heads("q", call->q, 2, call, call->d_qk, call->q_stride_s, call->q_stride_h));
  add(&all, 0, matrix("kv", call->kv, 2, call->s_kv, call->d_qk, call->kv_stride));
  add(&all, 0, fh_call_indices(call));
  add(&all, 0, fh_call_topk_length(call));
  add(&all, 0, fh_call_cu_seqlens_q(call));
  if (call->attn_sink) add(&all, 0, row("attn_sink", call->attn_sink, 4, call->h_q));
  add(&all, 1,
      heads("out", call->out, fh_dtype_bytes(call->out_dtype), call, call->d_v, call->out_stride_s,
            call->out_stride_h));
  if (call->lse) add(&all, 1, matrix("lse", call->lse, 4, call->s_q, call->h_q, call->lse_stride));
  if (call->max_logits)
    add(&all, 1, matrix("max_logits", call->max_logits, 4, call->s_q, call->h_q, call->max_logits_stride));
  if (call->plan) {
    const fh_plan *plan = call->plan;
    add(&all, 0, matrix("plan.token", plan->token, 4, plan->groups, plan->capacity, plan->capacity));
    add(&all, 0, matrix("plan.member", plan->member, 8, plan->groups, plan->capacity, plan->capacity));
    add(&all, 0, row("plan.entries", plan->entries, 4, plan->groups));
    add(&all, 0, row("plan.order", plan->order, 4, plan->groups));
    add(&all, 0, row("plan.keys", plan->keys, 4, plan->s_q));
    add(&all, 0, row("plan.first", plan->first, 8, plan->groups + 1));
    add(&all, 0, row("plan.packed_from", plan->packed_from, 4, 1));
  }
  if (call->counters) add(&all, 1, row("counters", call->counters, 8, (int64_t)(counters_bytes / 8)));
  return all;
}

/* Array i, which is written, against all others. */
static fh_status check_overlap(const arrays *all, int32_t i) {
  const fh_array *mine = &all->at[i].array;
  for (int32_t j = 0; j < all->count; j++) {
    if (j == i || fh_arrays_disjoint(mine, &all->at[j].array)) continue;
    return fh_fail(FH_ERR_OVERLAP,
                   "%s: its memory overlaps %s; wanted memory of its own, or the same strides and other heads",
                   mine->name, all->at[j].array.name);
  }
  return FH_OK;
}

static fh_status check_arrays(const arrays *all) {
  fh_status status;
  for (int32_t i = 0; i < all->count; i++)
    if ((status = fh_check_array(&all->at[i].array))) return status;
  for (int32_t i = 0; i < all->count; i++) {
    const fh_array *a = &all->at[i].array;
    if (!all->at[i].written) continue;
    if (!fh_array_distinct(a))
      return fh_fail(FH_ERR_STRIDE,
                     "%s: got strides %" PRId64 ", %" PRId64 " for [%" PRId64 ", %" PRId64
                     "%s], which make its elements overlap",
                     a->name, a->stride[0], a->stride[1], a->count[0], a->count[1], a->rank == 3 ? ", 512" : "");
    if ((status = check_overlap(all, i))) return status;
  }
  return FH_OK;
}

/* Everything but the workspace. */
static fh_status check(const fh_device *device, const fh_call *given, fh_checked *checked, uint64_t *counters_bytes,
                       arrays *all) {
  fh_call *call = &checked->call;
  fh_counters counters;
  fh_status status;
  if ((status = fh_check_sizes(device, given, checked)) || (status = fh_check_plan(device, checked))) return status;
  if ((status = fh_check_stream(device, call->stream))) return status;
  if (call->counters) {
    status = fh_struct_in("fh_counters", call->counters, COUNTERS_LEAST, &counters, sizeof counters);
    if (status) return status;
    memcpy(counters_bytes, call->counters, sizeof *counters_bytes);
  }
  if ((status = fh_take_costs(device, checked))) return status;
  *all = arrays_of(call, *counters_bytes);
  return check_arrays(all);
}

fh_status fh_call_check(fh_device *device, const fh_call *call) {
  fh_checked checked;
  uint64_t counters_bytes = 0;
  arrays all = {0};
  return check(device, call, &checked, &counters_bytes, &all);
}

/* ---- Workspace
 * ------------------------------------------------------------------------------------------------------------ */

static uint64_t path_bytes(const fh_device *device, const fh_call *call, int32_t path) {
  fh_call one = *call;
  one.path = path;
  return device->back_end->workspace_bytes(device, &one);
}

/* Whether a call with path FH_AUTO may come to work on a plan. A device that sees the lists decides by them, when the
 * call runs. */
static int may_plan(const fh_device *device, const fh_call *call) {
  char why[FH_WHY];
  fh_work work;
  fh_weighed weighed = {0};
  if (!fh_may_pack(device, call, why)) return 0;
  return device->back_end->sees_lists || (!fh_weigh_call(device, call, &work, &weighed) && weighed.packs);
}

/* The plan of a call that brings none lies at the start; the path has the rest, for FH_AUTO the largest share of any
 * path it may take. */
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

static fh_status check_workspace(const fh_call *call, uint64_t wanted, arrays *all) {
  if (!wanted) return FH_OK;
  if (!call->workspace) return fh_fail(FH_ERR_WORKSPACE, "workspace: got NULL, wanted %" PRIu64 " bytes", wanted);
  if (call->workspace_bytes < wanted)
    return fh_fail(FH_ERR_WORKSPACE, "workspace_bytes: got %" PRIu64 ", wanted at least %" PRIu64,
                   call->workspace_bytes, wanted);
  if ((uintptr_t)call->workspace % WORKSPACE_ALIGNMENT)
    return fh_fail(FH_ERR_ALIGNMENT, "workspace: got %p, wanted a multiple of %d bytes", call->workspace,
                   WORKSPACE_ALIGNMENT);
  if (wanted > INT64_MAX) return fh_fail(FH_ERR_WORKSPACE, "workspace: %" PRIu64 " bytes leave 64 bits", wanted);
  add(all, 1, row("workspace", call->workspace, 1, (int64_t)wanted));
  const fh_status status = fh_check_array(&all->at[all->count - 1].array);
  return status ? status : check_overlap(all, all->count - 1);
}

fh_status fh_check_call(const fh_device *device, const fh_call *given, uint64_t wanted, fh_checked *checked) {
  uint64_t counters_bytes = 0;
  arrays all = {0};
  const fh_status status = check(device, given, checked, &counters_bytes, &all);
  return status || checked->call.s_q == 0 ? status : check_workspace(&checked->call, wanted, &all);
}

/* ---- The run
 * -------------------------------------------------------------------------------------------------------------- */

/* Replaces FH_AUTO by one path for the whole call, or leaves it there with a plan that parts the groups and *rows, the
 * path of those that it does not pack. */
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

/* What a run counted, added to the caller's struct, as far as that goes. */
static fh_status add_counters(fh_counters *given, const fh_counters *ran) {
  fh_counters sum;
  const fh_status status = fh_struct_in("fh_counters", given, COUNTERS_LEAST, &sum, sizeof sum);
  if (status) return status;
  sum.useful_flops += ran->useful_flops;
  sum.executed_flops += ran->executed_flops;
  sum.bytes += ran->bytes;
  for (int path = 0; path < FH_PATHS; path++) {
    sum.calls[path] += ran->calls[path];
    sum.rows[path] += ran->rows[path];
  }
  memcpy(sum.kernel, ran->kernel, sizeof sum.kernel);
  return fh_struct_out("fh_counters", given, COUNTERS_LEAST, &sum, sizeof sum);
}

void fh_name_kernel(fh_counters *counters, const char *name) {
  const size_t length = strnlen(counters->kernel, sizeof counters->kernel);
  snprintf(counters->kernel + length, sizeof counters->kernel - length, "%s%s", length ? " + " : "", name);
}

fh_status fh_sparse_fwd(fh_device *device, const fh_call *given) {
  fh_checked checked;
  fh_call *call = &checked.call;
  fh_counters ran = {.struct_size = sizeof ran};
  uint64_t counters_bytes = 0;
  int32_t rows = FH_AUTO;
  arrays all = {0};
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
  return add_counters(counters, &ran);
}
