/* The memory of a call: its arrays, and what is refused of them. */
#include <inttypes.h>

#include "internal.h"

static void add(fh_arrays *all, int written, fh_array array) {
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

fh_arrays fh_arrays_of(const fh_call *call, uint64_t counters_bytes) {
  fh_arrays all = {0};
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
static fh_status check_overlap(const fh_arrays *all, int32_t i) {
  const fh_array *mine = &all->at[i].array;
  for (int32_t j = 0; j < all->count; j++) {
    if (j == i || fh_arrays_disjoint(mine, &all->at[j].array)) continue;
    return fh_fail(FH_ERR_OVERLAP,
                   "%s: its memory overlaps %s; wanted memory of its own, or the same strides and other heads",
                   mine->name, all->at[j].array.name);
  }
  return FH_OK;
}

fh_status fh_check_arrays(const fh_arrays *all) {
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

fh_status fh_check_workspace_array(fh_arrays *all, void *workspace, int64_t bytes) {
  add(all, 1, row("workspace", workspace, 1, bytes));
  const fh_status status = fh_check_array(&all->at[all->count - 1].array);
  return status ? status : check_overlap(all, all->count - 1);
}
