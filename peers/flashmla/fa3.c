/*
 * FlashAttention 3's kernel for MLA, called as vLLM calls it for sparse lists: each row of q is a sequence of one
 * token, the KV rows are pages of one row, and the row's list is the sequence's page table. Heads are the real ones;
 * the kernel computes tiles of 64 heads of one token.
 *
 * q and the KV rows are given in two parts, K's last 64 columns (rope) and the 512 columns that are V too. At d_qk 512
 * there is no rope part: then vLLM gives 64 zeros for q and V's first 64 columns for K, and so does this file.
 *
 * The kernel follows the whole list up to its length. Lists with an invalid index before their end are copied once,
 * before any run, without the invalid ones. Arrays whose rows do not start at multiples of 16 bytes are copied too.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

enum {
  ROPE = 64,
  TILE = 64, /* heads of one token, and keys, that the kernel computes at a time */
  ARGUMENTS = 37
};

/* The arguments that are given, by their place in the schema. */
enum {
  Q = 0,
  K = 1,
  V = 2,
  Q_V = 5,
  OUT_ARGUMENT = 6,
  CU_SEQLENS_Q = 7,
  SEQUSED_K = 11,
  MAX_SEQLEN_Q = 12,
  MAX_SEQLEN_K = 13,
  PAGE_TABLE = 14,
  SOFTMAX_SCALE = 23,
  IS_CAUSAL = 24,
  WINDOW_SIZE_LEFT = 25,
  WINDOW_SIZE_RIGHT = 26,
  IS_ROTARY_INTERLEAVED = 28,
  CP_WORLD_SIZE = 34
};

enum { OUT, LSE, OUT_PARTS, LSE_PARTS, RESULTS }; /* in the operator's order */

typedef struct fa_job {
  fm_state *state;
  fm_place place;
  int64_t width;                /* of the page table */
  fm_tensor q, k, v, q_v, out;  /* arguments of these names */
  fm_tensor starts, used, list; /* cu_seqlens_q, seqused_k, page_table */
  fm_tensor results[RESULTS];   /* of the last run */
  fm_tensor home_out, home_lse; /* the caller's memory; home_lse is NULL if the caller wants none */
} fa_job;

/* ---- What it runs ------------------------------------------------------------------------------------------------ */

static void describe(const fm_state *state, char *text, size_t text_bytes) {
  (void)state;
  snprintf(text, text_bytes,
           "(q, k, v, q_v, cu_seqlens_q, seqused_k, page_table); native heads, a sequence a row of q, pages of one KV "
           "row; at d_qk 512 with a rope part of zeros");
}

static fh_status supports(const fm_state *state, const fh_device_info *device, const fh_call *call, char *text) {
  (void)state;
  if (device->kind != FH_DEVICE_CUDA || device->capability != 90)
    return fm_fail(FH_ERR_UNSUPPORTED, text, "device: got %s, wanted a CUDA device of compute capability 9.0",
                   device->name);
  if (call->s_q > INT32_MAX / call->h_q)
    return fm_fail(FH_ERR_UNSUPPORTED, text,
                   "s_q: got %" PRId64 ", wanted at most %d: FlashAttention counts rows of %d heads in 32 bits",
                   call->s_q, (int)(INT32_MAX / call->h_q), (int)call->h_q);
  if (call->s_kv > INT32_MAX || call->topk > INT32_MAX)
    return fm_fail(FH_ERR_UNSUPPORTED, text, "%s: got %" PRId64 ", wanted less than 2^31",
                   call->s_kv > INT32_MAX ? "s_kv" : "topk", call->s_kv > INT32_MAX ? call->s_kv : call->topk);
  if (call->attn_sink)
    return fm_fail(FH_ERR_UNSUPPORTED, text, "attn_sink: FlashAttention 3 takes none where V has more columns than K");
  if (call->max_logits) return fm_fail(FH_ERR_UNSUPPORTED, text, "max_logits: FlashAttention 3 returns none");
  return FH_OK;
}

static void drop_tensors(fa_job *job) {
  const fm_torch *torch = &job->state->torch;
  fm_tensor *tensors[] = {&job->q,      &job->k,    &job->v,    &job->q_v,      &job->out,
                          &job->starts, &job->used, &job->list, &job->home_out, &job->home_lse};
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) fm_drop(torch, tensors[i]);
  for (int i = 0; i < RESULTS; i++) fm_drop(torch, &job->results[i]);
}

static void release(void *opened, void *made) {
  (void)opened;
  if (made) drop_tensors(made);
  free(made);
}

/* ---- q and KV rows ----------------------------------------------------------------------------------------------- */

/* Makes a bf16 tensor of the caller's rows: on the caller's memory if the kernel takes them there, else on a dense
 * copy. *shape, of the caller's memory, becomes the tensor's. */
static int use_or_copy(fa_job *job, const uint16_t *data, fm_shape *shape, fm_tensor *made) {
  const fm_torch *torch = &job->state->torch;
  const int32_t dtype = torch->aoti_torch_dtype_bfloat16();
  const fm_shape dense = fm_dense(3, shape->sizes[0], shape->sizes[1], shape->sizes[2]);
  fm_tensor from = NULL;
  if (fm_rows_fit(data, shape->strides[0], 2, FM_ROW_BYTES) && fm_rows_fit(data, shape->strides[1], 2, FM_ROW_BYTES))
    return fm_view(torch, job->place, data, dtype, *shape, made);
  const int failed = fm_view(torch, job->place, data, dtype, *shape, &from) ||
                     fm_new(torch, job->place, dtype, dense, made) || torch->aoti_torch_copy_(*made, from, 1);
  fm_drop(torch, &from);
  *shape = dense;
  return failed;
}

static int make_q(fa_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  static const uint16_t zero = 0;
  const int32_t dtype = torch->aoti_torch_dtype_bfloat16();
  fm_shape shape = {3, {call->s_q, call->h_q, call->d_qk}, {call->q_stride_s, call->q_stride_h, 1}};
  fm_tensor whole = NULL;
  int failed = use_or_copy(job, call->q, &shape, &whole);
  if (!failed) {
    shape.sizes[2] = FM_D_V;
    failed = fm_part(torch, whole, shape, 0, &job->q_v);
    shape.sizes[2] = ROPE;
  }
  if (!failed && call->d_qk > FM_D_V) failed = fm_part(torch, whole, shape, FM_D_V, &job->q);
  else if (!failed)
    failed = fm_new(torch, job->place, dtype, fm_dense(3, call->s_q, call->h_q, ROPE), &job->q) ||
             fm_fill(torch, job->q, dtype, &zero);
  fm_drop(torch, &whole);
  return failed;
}

static int make_kv(fa_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  fm_shape shape = {3, {call->s_kv, 1, call->d_qk}, {call->kv_stride, call->kv_stride, 1}};
  fm_tensor whole = NULL;
  int failed = use_or_copy(job, call->kv, &shape, &whole);
  const int64_t step = shape.strides[0];
  const fm_shape k = {4, {call->s_kv, 1, 1, ROPE}, {step, step, step, 1}};
  const fm_shape v = {4, {call->s_kv, 1, 1, FM_D_V}, {step, step, step, 1}};
  failed = failed || fm_part(torch, whole, k, call->d_qk > FM_D_V ? FM_D_V : 0, &job->k) ||
           fm_part(torch, whole, v, 0, &job->v);
  fm_drop(torch, &whole);
  return failed;
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* Moves the valid entries of each list to its front and sets used[row] to how many there are. Returns 1 if an entry
 * moved. lengths may be NULL. */
static int compact(const fh_call *call, int64_t width, const int32_t *lengths, int32_t *lists, int32_t *used) {
  int moved = 0;
  for (int64_t row = 0; row < call->s_q; row++) {
    int32_t *list = lists + row * width, kept = 0;
    const int64_t end = lengths && lengths[row] < call->topk ? lengths[row] : call->topk;
    for (int64_t j = 0; j < end; j++)
      if (list[j] >= 0 && list[j] < call->s_kv) {
        moved |= kept != j;
        list[kept++] = list[j];
      }
    used[row] = kept;
  }
  return moved;
}

/* Copies an int32 array of the device to the host. The stream is waited for. */
static int read_back(const fa_job *job, const void *data, fm_shape shape, int32_t *copy) {
  const fm_torch *torch = &job->state->torch;
  const fm_place host = {torch->aoti_torch_device_type_cpu(), 0};
  const int32_t dtype = torch->aoti_torch_dtype_int32();
  fm_tensor from = NULL, to = NULL;
  const int failed = fm_view(torch, job->place, data, dtype, shape, &from) ||
                     fm_view(torch, host, copy, dtype, fm_dense(shape.rank, shape.sizes[0], shape.sizes[1], 1), &to) ||
                     torch->aoti_torch_copy_(to, from, 0);
  fm_drop(torch, &from);
  fm_drop(torch, &to);
  return failed;
}

/* Makes an int32 tensor of the device with these values. */
static int upload(const fa_job *job, const int32_t *values, fm_shape shape, fm_tensor *made) {
  const fm_torch *torch = &job->state->torch;
  const fm_place host = {torch->aoti_torch_device_type_cpu(), 0};
  const int32_t dtype = torch->aoti_torch_dtype_int32();
  fm_tensor from = NULL;
  const int failed = fm_view(torch, host, values, dtype, shape, &from) ||
                     fm_new(torch, job->place, dtype, shape, made) || torch->aoti_torch_copy_(*made, from, 0);
  fm_drop(torch, &from);
  return failed;
}

/* Host memory of a call's lists. */
typedef struct fa_lists {
  int32_t *entries, *lengths, *used, *starts;
} fa_lists;

static int fill_lists(fa_job *job, const fh_call *call, const fa_lists *lists) {
  const fm_torch *torch = &job->state->torch;
  const int32_t dtype = torch->aoti_torch_dtype_int32();
  const fm_shape row = fm_dense(1, call->s_q, 1, 1);
  const fm_shape given = {2, {call->s_q, call->topk}, {call->indices_stride, 1}};
  if ((call->topk > 0 && read_back(job, call->indices, given, lists->entries)) ||
      (call->topk_length && read_back(job, call->topk_length, row, lists->lengths)))
    return 1;
  const int moved = compact(call, job->width, call->topk_length ? lists->lengths : NULL, lists->entries, lists->used);
  for (int64_t i = 0; i <= call->s_q; i++) lists->starts[i] = (int32_t)i;
  return upload(job, lists->used, row, &job->used) ||
         upload(job, lists->starts, fm_dense(1, call->s_q + 1, 1, 1), &job->starts) ||
         (moved || call->topk == 0 ? upload(job, lists->entries, fm_dense(2, call->s_q, job->width, 1), &job->list)
                                   : fm_view(torch, job->place, call->indices, dtype, given, &job->list));
}

static int make_lists(fa_job *job, const fh_call *call) {
  const size_t rows = (size_t)call->s_q;
  const fa_lists lists = {calloc(rows, (size_t)job->width * sizeof *lists.entries),
                          malloc(rows * sizeof *lists.lengths), malloc(rows * sizeof *lists.used),
                          malloc((rows + 1) * sizeof *lists.starts)};
  const int failed = !lists.entries || !lists.lengths || !lists.used || !lists.starts || fill_lists(job, call, &lists);
  free(lists.entries);
  free(lists.lengths);
  free(lists.used);
  free(lists.starts);
  return failed;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static int make_outputs(fa_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  const int32_t bf16 = torch->aoti_torch_dtype_bfloat16(), f32 = torch->aoti_torch_dtype_float32();
  const fm_shape out = {3, {call->s_q, call->h_q, FM_D_V}, {call->out_stride_s, call->out_stride_h, 1}};
  const fm_shape lse = {2, {call->s_q, call->h_q}, {call->lse_stride, 1}};
  return fm_new(torch, job->place, bf16, fm_dense(3, call->s_q, call->h_q, FM_D_V), &job->out) ||
         fm_view(torch, job->place, call->out, bf16, out, &job->home_out) ||
         (call->lse && fm_view(torch, job->place, call->lse, f32, lse, &job->home_lse));
}

static int call_operator(fa_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  fm_value stack[ARGUMENTS] = {
      [SOFTMAX_SCALE] = fm_float((double)call->sm_scale),
      [IS_CAUSAL] = 1,
      [WINDOW_SIZE_LEFT] = (fm_value)-1,
      [WINDOW_SIZE_RIGHT] = (fm_value)-1,
      [IS_ROTARY_INTERLEAVED] = 1,
      [CP_WORLD_SIZE] = 1,
  };
  const struct {
    int place, optional;
    fm_tensor tensor;
  } given[] = {{Q, 0, job->q},
               {K, 0, job->k},
               {V, 0, job->v},
               {Q_V, 1, job->q_v},
               {OUT_ARGUMENT, 1, job->out},
               {CU_SEQLENS_Q, 1, job->starts},
               {SEQUSED_K, 1, job->used},
               {PAGE_TABLE, 1, job->list}};
  for (int i = 0; i < RESULTS; i++) fm_drop(torch, &job->results[i]);
  for (size_t i = 0; i < sizeof given / sizeof *given; i++)
    if (fm_argument(torch, given[i].tensor, given[i].optional, &stack[given[i].place])) return 1;
  stack[MAX_SEQLEN_Q] = fm_some(torch, 1);
  stack[MAX_SEQLEN_K] = fm_some(torch, (fm_value)job->width);
  return fm_call(torch, job->state->extension.operator_name, "", stack) ||
         fm_take_list(torch, stack[0], job->results, RESULTS);
}

/* Calls `work` while the caller's stream is PyTorch's current stream. */
static int on_stream(fa_job *job, const fh_call *call, int (*work)(fa_job *job, const fh_call *call)) {
  const fm_torch *torch = &job->state->torch;
  fm_guard guard;
  if (torch->aoti_torch_create_cuda_stream_guard(call->stream, job->place.ordinal, &guard)) return 1;
  const int failed = work(job, call);
  torch->aoti_torch_delete_cuda_stream_guard(guard);
  return failed;
}

static fh_status run(void *opened, void *made, const fh_call *call, char *text) {
  fa_job *job = made;
  (void)opened;
  if (!on_stream(job, call, call_operator)) return FH_OK;
  return fm_fail(FH_ERR_DEVICE, text, "%s raised an error; PyTorch's message is on standard error",
                 job->state->extension.operator_name);
}

/* A row without keys has lse -inf there, +inf here. */
static int bring_home(fa_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  const fm_shape by_row = {2, {call->s_q, call->h_q}, {1, call->s_q}}; /* of lse [h_q, s_q] */
  fm_tensor lse = NULL;
  const int failed =
      torch->aoti_torch_copy_(job->home_out, job->results[OUT], 1) ||
      (job->home_lse && (fm_part(torch, job->results[LSE], by_row, 0, &lse) ||
                         torch->aoti_torch_copy_(job->home_lse, lse, 1) || fm_turn_infinity(torch, job->home_lse)));
  fm_drop(torch, &lse);
  return failed;
}

static fh_status collect(void *opened, void *made, const fh_call *call, char *text) {
  fa_job *job = made;
  (void)opened;
  if (!job->results[OUT]) return fm_fail(FH_ERR_ARGUMENT, text, "there are no results: no run has succeeded");
  if (!on_stream(job, call, bring_home)) return FH_OK;
  return fm_fail(FH_ERR_DEVICE, text, "PyTorch refused to copy results; its message is on standard error");
}

/* ---- Preparing --------------------------------------------------------------------------------------------------- */

static int make_all(fa_job *job, const fh_call *call) {
  return make_q(job, call) || make_kv(job, call) || make_lists(job, call) || make_outputs(job, call) ||
         call_operator(job, call);
}

/* Runs once: if FlashAttention refuses the call, it does so here, where its message is caught. */
static fh_status set_up(fa_job *job, const fh_call *call, char *text) {
  const fm_torch *torch = &job->state->torch;
  const char *operator_name = job->state->extension.operator_name;
  char raised[FH_PROVIDER_TEXT / 2];
  fm_capture capture;
  fm_capture_begin(&capture);
  const int failed = on_stream(job, call, make_all);
  fm_capture_end(&capture, failed ? raised : NULL, sizeof raised);
  if (failed)
    return fm_fail(FH_ERR_DEVICE, text, "%s raised: %s", operator_name, *raised ? raised : "nothing that can be shown");
  if (!fm_has_sizes(torch, job->results[OUT], fm_dense(3, call->s_q, call->h_q, FM_D_V)) ||
      !fm_has_sizes(torch, job->results[LSE], fm_dense(2, call->h_q, call->s_q, 1)))
    return fm_fail(FH_ERR_DEVICE, text, "%s: wanted out [s_q, h_q, 512] and lse [h_q, s_q] back", operator_name);
  return FH_OK;
}

static fh_status prepare(void *opened, const fh_device_info *device, const fh_call *call, void **made, char *text) {
  fm_state *state = opened;
  fa_job *job = calloc(1, sizeof *job);
  if (!job) return fm_fail(FH_ERR_MEMORY, text, "the system refused %zu bytes for the job", sizeof *job);
  job->state = state;
  job->place = (fm_place){state->torch.aoti_torch_device_type_cuda(), device->ordinal};
  job->width = call->topk > 0 ? call->topk : 1;
  const fh_status status = set_up(job, call, text);
  if (status) release(opened, job);
  else *made = job;
  return status;
}

/* Tiles of heads and keys are computed whole. */
static uint64_t executed_flops(void *opened, void *made, const fh_call *call) {
  const uint64_t heads = ((uint64_t)call->h_q + TILE - 1) / TILE * TILE;
  const uint64_t keys = ((uint64_t)call->topk + TILE - 1) / TILE * TILE;
  (void)opened, (void)made;
  return 2 * (uint64_t)(FM_D_V + ROPE + FM_D_V) * heads * keys * (uint64_t)call->s_q;
}

const fm_kernel fm_fa3 = {describe, supports, prepare, run, collect, release, executed_flops};
