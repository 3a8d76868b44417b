/*
 * Prepares a call for FlashMLA and runs it. FlashMLA demands more than a call has to offer. Where the call does not
 * meet a demand, an array is copied once, before any run:
 *  - 64 or 128 heads (8, 16 and 32 too if the package has that kernel). q is used where it is if its buffer has room
 *    for that many heads in every row. Else it is copied, with zeros after the real heads. attn_sink gets -inf for the
 *    padding heads.
 *  - Lists whose width is a multiple of 128. Else they are copied to wider lists that end with -1.
 *  - topk_length in 0 .. topk. Else it is copied and clamped.
 *  - Rows that start at multiples of 16 bytes (lists: 32), less than 2^31 elements apart. Else the array is copied.
 * Results lie in memory of PyTorch, dense and with the padding heads. collect copies the real heads to the caller's
 * memory.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

enum {
  LIST_STEP = 128, /* the width of lists is a multiple of this: capability 9.0 takes two tiles of 64 keys at a time */
  LIST_BYTES = 32  /* alignment of lists */
};

static const double LN_2 = 0.693147180559945309;

enum { OUT, MAX_LOGITS, LSE, RESULTS }; /* in FlashMLA's order */

/* A copy into padded memory: `to` is the part that is not padding. */
typedef struct fm_pad {
  fm_tensor to, from;
} fm_pad;

typedef struct fm_job {
  fm_state *state;
  fm_place place;
  int32_t h_pad;
  int64_t width;                                         /* of the padded lists */
  fm_tensor q, kv, indices, attn_sink, topk_length, out; /* FlashMLA's arguments; NULL if not given */
  fm_pad pads[3];                                        /* q, indices, attn_sink */
  int n_pads;
  fm_tensor results[RESULTS]; /* of the last run */
  fm_tensor home[RESULTS];    /* the caller's memory for them; NULL if the caller wants none */
} fm_job;

/* ---- What it runs ------------------------------------------------------------------------------------------------ */

/* Number of heads that FlashMLA computes for a call with h_q heads; 0 if it has no kernel for h_q. */
static int32_t padded_heads(const fm_state *state, const fh_device_info *device, int32_t h_q) {
  static const int32_t counts[] = {8, 16, 32, 64, 128};
  const int few = state->extension.few_heads && device->capability == 90;
  for (size_t i = few ? 0 : 3; i < sizeof counts / sizeof *counts; i++)
    if (counts[i] >= h_q && counts[i] >= state->least_heads) return counts[i];
  return 0;
}

/* Width of the list that FlashMLA gets for a list of topk keys; never 0. */
static int64_t padded_width(int64_t topk) {
  return topk > LIST_STEP ? (topk + LIST_STEP - 1) / LIST_STEP * LIST_STEP : LIST_STEP;
}

static void describe(const fm_state *state, char *text, size_t text_bytes) {
  static const char *const more[] = {"", ", attn_sink", ", attn_sink, topk_length", ", attn_sink, topk_length, out"};
  const char *heads = state->least_heads == 128 ? "128" : "64 or 128";
  if (state->extension.few_heads && state->least_heads == 1) heads = "8, 16, 32, 64 or 128";
  snprintf(text, text_bytes, "(q, kv, indices, sm_scale, d_v%s); heads padded to %s, lists to a multiple of %d, %s",
           more[state->extension.optional], heads, LIST_STEP, state->timed ? "timed" : "not timed");
}

static fh_status supports(const fm_state *state, const fh_device_info *device, const fh_call *call, char *text) {
  if (device->kind != FH_DEVICE_CUDA || (device->capability != 90 && device->capability / 10 != 10))
    return fm_fail(FH_ERR_UNSUPPORTED, text, "device: got %s, wanted a CUDA device of compute capability 9.0 or 10.x",
                   device->name);
  const int32_t heads = padded_heads(state, device, call->h_q);
  if (!heads) return fm_fail(FH_ERR_UNSUPPORTED, text, "h_q: got %d, wanted 1 .. 128", (int)call->h_q);
  if (call->s_q > INT32_MAX / heads)
    return fm_fail(FH_ERR_UNSUPPORTED, text,
                   "s_q: got %" PRId64 ", wanted at most %d: FlashMLA counts rows of %d heads in 32 bits", call->s_q,
                   (int)(INT32_MAX / heads), (int)heads);
  if (padded_width(call->topk) > INT32_MAX)
    return fm_fail(FH_ERR_UNSUPPORTED, text, "topk: got %" PRId64 ", wanted less than 2^31 after padding", call->topk);
  if (call->attn_sink && state->extension.optional < FM_SINK)
    return fm_fail(FH_ERR_UNSUPPORTED, text, "%s of this package takes no attn_sink", state->extension.operator_name);
  if (call->topk_length && state->extension.optional < FM_LENGTHS)
    return fm_fail(FH_ERR_UNSUPPORTED, text, "%s of this package takes no topk_length", state->extension.operator_name);
  return FH_OK;
}

/* ---- The job ----------------------------------------------------------------------------------------------------- */

static void drop_results(fm_job *job) {
  for (int i = 0; i < RESULTS; i++) fm_drop(&job->state->torch, &job->results[i]);
}

static void drop_tensors(fm_job *job) {
  const fm_torch *torch = &job->state->torch;
  fm_tensor *inputs[] = {&job->q, &job->kv, &job->indices, &job->attn_sink, &job->topk_length, &job->out};
  drop_results(job);
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) fm_drop(torch, inputs[i]);
  for (int i = 0; i < job->n_pads; i++) fm_drop(torch, &job->pads[i].to), fm_drop(torch, &job->pads[i].from);
  for (int i = 0; i < RESULTS; i++) fm_drop(torch, &job->home[i]);
}

static void release(void *opened, void *made) {
  (void)opened;
  if (made) drop_tensors(made);
  free(made);
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

/* Returns 1 if the allocation that holds `base` has `bytes` bytes from there on. The padding heads of q are read,
 * and the call does not promise that they exist. */
static int reaches(const void *base, int64_t bytes) {
  uint64_t start;
  size_t size;
  int (*range)(uint64_t * start, size_t * size, uint64_t address);
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!driver) return 0;
  *(void **)&range = dlsym(driver, "cuMemGetAddressRange_v2");
  const int known = range && range(&start, &size, (uintptr_t)base) == 0;
  dlclose(driver);
  return known && (uint64_t)bytes <= start + size - (uintptr_t)base;
}

/* Makes a dense tensor full of `filler`; the caller's array is copied to its first part. */
static int copy_padded(fm_job *job, const void *data, int32_t dtype, fm_shape given, fm_shape dense, const void *filler,
                       fm_tensor *made) {
  const fm_torch *torch = &job->state->torch;
  fm_pad *pad = &job->pads[job->n_pads++];
  fm_shape real = given;
  memcpy(real.strides, dense.strides, sizeof real.strides);
  return fm_new(torch, job->place, dtype, dense, made) || fm_fill(torch, *made, dtype, filler) ||
         fm_part(torch, *made, real, 0, &pad->to) || fm_view(torch, job->place, data, dtype, given, &pad->from) ||
         torch->aoti_torch_copy_(pad->to, pad->from, 1);
}

/* Returns 1 if every row of q has room for that many heads in allocated memory. */
static int has_room(const fh_call *call, int64_t heads) {
  if (heads == call->h_q) return 1;
  const int64_t last = (call->s_q - 1) * call->q_stride_s + (heads - 1) * call->q_stride_h + call->d_qk;
  return call->q_stride_s >= heads * call->q_stride_h && reaches(call->q, last * (int64_t)sizeof *call->q);
}

static int make_q(fm_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  static const uint16_t zero = 0;
  const int64_t rows = call->s_q, heads = job->h_pad, step = call->q_stride_s, head_step = call->q_stride_h;
  const int32_t dtype = torch->aoti_torch_dtype_bfloat16();
  const fm_shape given = {3, {rows, call->h_q, call->d_qk}, {step, head_step, 1}};
  if (step > 0 && head_step > 0 && fm_rows_fit(call->q, step, 2, FM_ROW_BYTES) &&
      fm_rows_fit(call->q, head_step, 2, FM_ROW_BYTES) && has_room(call, heads)) {
    const fm_shape padded = {3, {rows, heads, call->d_qk}, {step, head_step, 1}};
    return fm_view(torch, job->place, call->q, dtype, padded, &job->q);
  }
  return copy_padded(job, call->q, dtype, given, fm_dense(3, rows, heads, call->d_qk), &zero, &job->q);
}

static int make_kv(fm_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  const int32_t dtype = torch->aoti_torch_dtype_bfloat16();
  const fm_shape given = {3, {call->s_kv, 1, call->d_qk}, {call->kv_stride, call->d_qk, 1}};
  fm_tensor from = NULL;
  if (fm_rows_fit(call->kv, call->kv_stride, 2, FM_ROW_BYTES))
    return fm_view(torch, job->place, call->kv, dtype, given, &job->kv);
  const int failed = fm_view(torch, job->place, call->kv, dtype, given, &from) ||
                     fm_new(torch, job->place, dtype, fm_dense(3, call->s_kv, 1, call->d_qk), &job->kv) ||
                     torch->aoti_torch_copy_(job->kv, from, 1);
  fm_drop(torch, &from);
  return failed;
}

static int make_indices(fm_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  static const int32_t none = -1;
  const int32_t dtype = torch->aoti_torch_dtype_int32();
  const fm_shape given = {3, {call->s_q, 1, call->topk}, {call->indices_stride, call->topk, 1}};
  const fm_shape dense = fm_dense(3, call->s_q, 1, job->width);
  if (call->topk == 0) /* the call's pointer may have any value */
    return fm_new(torch, job->place, dtype, dense, &job->indices) || fm_fill(torch, job->indices, dtype, &none);
  if (job->width == call->topk && fm_rows_fit(call->indices, call->indices_stride, 4, LIST_BYTES))
    return fm_view(torch, job->place, call->indices, dtype, given, &job->indices);
  return copy_padded(job, call->indices, dtype, given, dense, &none, &job->indices);
}

static int make_sink(fm_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  static const uint32_t minus_infinity = 0xff800000;
  const int32_t dtype = torch->aoti_torch_dtype_float32();
  const fm_shape given = fm_dense(1, call->h_q, 1, 1);
  if (!call->attn_sink) return 0;
  if (job->h_pad == call->h_q) return fm_view(torch, job->place, call->attn_sink, dtype, given, &job->attn_sink);
  return copy_padded(job, call->attn_sink, dtype, given, fm_dense(1, job->h_pad, 1, 1), &minus_infinity,
                     &job->attn_sink);
}

/* Clamps each length to 0 .. topk; returns 1 if a length changed. */
static int clamp(int32_t *lengths, int64_t count, int64_t topk) {
  int changed = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t kept = lengths[i] < 0 ? 0 : lengths[i] > topk ? topk : lengths[i];
    changed |= kept != lengths[i];
    lengths[i] = (int32_t)kept;
  }
  return changed;
}

/* FlashMLA trusts the lengths, so the host checks them first. */
static int make_lengths(fm_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  const fm_place host = {torch->aoti_torch_device_type_cpu(), 0};
  const int32_t dtype = torch->aoti_torch_dtype_int32();
  const fm_shape shape = fm_dense(1, call->s_q, 1, 1);
  fm_tensor seen = NULL;
  if (!call->topk_length) return 0;
  int32_t *lengths = malloc((size_t)call->s_q * sizeof *lengths);
  int failed = !lengths || fm_view(torch, job->place, call->topk_length, dtype, shape, &job->topk_length) ||
               fm_view(torch, host, lengths, dtype, shape, &seen) || torch->aoti_torch_copy_(seen, job->topk_length, 0);
  if (!failed && clamp(lengths, call->s_q, call->topk)) {
    fm_drop(torch, &job->topk_length);
    failed = fm_new(torch, job->place, dtype, shape, &job->topk_length) ||
             torch->aoti_torch_copy_(job->topk_length, seen, 0);
  }
  fm_drop(torch, &seen);
  free(lengths);
  return failed;
}

/* Memory for results: FlashMLA allocates it if its operator has no `out`. Also describes the caller's memory as
 * tensors. */
static int make_outputs(fm_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  const int32_t bf16 = torch->aoti_torch_dtype_bfloat16(), f32 = torch->aoti_torch_dtype_float32();
  const fm_shape out = {3, {call->s_q, call->h_q, FM_D_V}, {call->out_stride_s, call->out_stride_h, 1}};
  const fm_shape lse = {2, {call->s_q, call->h_q}, {call->lse_stride, 1}};
  const fm_shape max_logits = {2, {call->s_q, call->h_q}, {call->max_logits_stride, 1}};
  return (job->state->extension.optional >= FM_OUT &&
          fm_new(torch, job->place, bf16, fm_dense(3, call->s_q, job->h_pad, FM_D_V), &job->out)) ||
         fm_view(torch, job->place, call->out, bf16, out, &job->home[OUT]) ||
         (call->lse && fm_view(torch, job->place, call->lse, f32, lse, &job->home[LSE])) ||
         (call->max_logits && fm_view(torch, job->place, call->max_logits, f32, max_logits, &job->home[MAX_LOGITS]));
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* Between enter and leave the caller's stream is PyTorch's current stream. */
static int enter(const fm_job *job, const fh_call *call, fm_guard *guard) {
  return job->state->torch.aoti_torch_create_cuda_stream_guard(call->stream, job->place.ordinal, guard) != 0;
}

static void leave(const fm_job *job, fm_guard guard) { job->state->torch.aoti_torch_delete_cuda_stream_guard(guard); }

static int call_operator(fm_job *job, float sm_scale) {
  const fm_torch *torch = &job->state->torch;
  fm_value stack[8] = {[3] = fm_float(sm_scale), [4] = FM_D_V};
  drop_results(job);
  if (fm_argument(torch, job->q, 0, &stack[0]) || fm_argument(torch, job->kv, 0, &stack[1]) ||
      fm_argument(torch, job->indices, 0, &stack[2]) || fm_argument(torch, job->attn_sink, 1, &stack[5]) ||
      fm_argument(torch, job->topk_length, 1, &stack[6]) || fm_argument(torch, job->out, 1, &stack[7]) ||
      fm_call(torch, job->state->extension.operator_name, "", stack))
    return 1;
  return fm_take_list(torch, stack[0], job->results, RESULTS);
}

/* Copies the real heads of one result to the caller's memory. */
static int bring_home(fm_job *job, const fh_call *call, int which) {
  const fm_torch *torch = &job->state->torch;
  const int64_t h_pad = job->h_pad;
  const fm_shape real = which == OUT ? (fm_shape){3, {call->s_q, call->h_q, FM_D_V}, {h_pad * FM_D_V, FM_D_V, 1}}
                                     : (fm_shape){2, {call->s_q, call->h_q}, {h_pad, 1}};
  fm_tensor part = NULL;
  if (!job->home[which]) return 0;
  const int other_unit = which != OUT && job->state->unit != 1;
  const int failed = fm_part(torch, job->results[which], real, 0, &part) ||
                     torch->aoti_torch_copy_(job->home[which], part, 1) ||
                     (other_unit && fm_scale(torch, job->home[which], job->state->unit));
  fm_drop(torch, &part);
  return failed;
}

static int run_once(fm_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  if (job->state->timed)
    for (int i = 0; i < job->n_pads; i++)
      if (torch->aoti_torch_copy_(job->pads[i].to, job->pads[i].from, 1)) return 1;
  if (call_operator(job, call->sm_scale)) return 1;
  return job->state->timed && bring_home(job, call, OUT);
}

static fh_status run(void *opened, void *made, const fh_call *call, char *text) {
  fm_job *job = made;
  fm_guard guard;
  (void)opened;
  if (enter(job, call, &guard))
    return fm_fail(FH_ERR_DEVICE, text, "PyTorch refused the stream; its message is on standard error");
  const int failed = run_once(job, call);
  leave(job, guard);
  if (!failed) return FH_OK;
  return fm_fail(FH_ERR_DEVICE, text, "%s raised an error; PyTorch's message is on standard error",
                 job->state->extension.operator_name);
}

static fh_status collect(void *opened, void *made, const fh_call *call, char *text) {
  fm_job *job = made;
  fm_guard guard;
  (void)opened;
  if (!job->results[OUT]) return fm_fail(FH_ERR_ARGUMENT, text, "there are no results: no run has succeeded");
  int failed = enter(job, call, &guard);
  if (!failed) {
    for (int i = 0; i < RESULTS && !failed; i++) failed = bring_home(job, call, i);
    leave(job, guard);
  }
  return failed ? fm_fail(FH_ERR_DEVICE, text, "PyTorch refused to copy results; its message is on standard error")
                : FH_OK;
}

/* ---- Preparing --------------------------------------------------------------------------------------------------- */

/* Returns 1 if the results have the sizes that later reads rely on. */
static int results_fit(const fm_job *job, const fh_call *call) {
  const fm_torch *torch = &job->state->torch;
  const fm_shape heads = fm_dense(2, call->s_q, job->h_pad, 1);
  return fm_has_sizes(torch, job->results[OUT], fm_dense(3, call->s_q, job->h_pad, FM_D_V)) &&
         fm_has_sizes(torch, job->results[LSE], heads) && fm_has_sizes(torch, job->results[MAX_LOGITS], heads);
}

/* Makes a call of one row of zeros that lists the same key of zeros LIST_STEP times. Every logit is 0, so lse is
 * the logarithm of LIST_STEP. */
static int make_equal_keys(fm_job *probe, int64_t d_qk) {
  const fm_torch *torch = &probe->state->torch;
  const int32_t bf16 = torch->aoti_torch_dtype_bfloat16(), i32 = torch->aoti_torch_dtype_int32();
  static const uint16_t zero = 0;
  static const int32_t row_0 = 0;
  return fm_new(torch, probe->place, bf16, fm_dense(3, 1, probe->h_pad, d_qk), &probe->q) ||
         fm_new(torch, probe->place, bf16, fm_dense(3, 1, 1, d_qk), &probe->kv) ||
         fm_new(torch, probe->place, i32, fm_dense(3, 1, 1, LIST_STEP), &probe->indices) ||
         fm_fill(torch, probe->q, bf16, &zero) || fm_fill(torch, probe->kv, bf16, &zero) ||
         fm_fill(torch, probe->indices, i32, &row_0) ||
         (probe->state->extension.optional >= FM_OUT &&
          fm_new(torch, probe->place, bf16, fm_dense(3, 1, probe->h_pad, FM_D_V), &probe->out));
}

/* Finds out the base of max_logits and lse: packages differ, and no schema says it. Runs the call of equal keys and
 * sets *lse to its lse. */
static int ask_unit(const fm_job *job, int64_t d_qk, float *lse) {
  const fm_torch *torch = &job->state->torch;
  const int32_t f32 = torch->aoti_torch_dtype_float32();
  const fm_place host = {torch->aoti_torch_device_type_cpu(), 0};
  const fm_shape one = fm_dense(1, 1, 1, 1);
  fm_job probe = {.state = job->state, .place = job->place, .h_pad = job->h_pad, .width = LIST_STEP};
  fm_tensor there = NULL, here = NULL;
  const int failed = make_equal_keys(&probe, d_qk) || call_operator(&probe, 1) ||
                     fm_part(torch, probe.results[LSE], one, 0, &there) || fm_view(torch, host, lse, f32, one, &here) ||
                     torch->aoti_torch_copy_(here, there, 0);
  fm_drop(torch, &there);
  fm_drop(torch, &here);
  drop_tensors(&probe);
  return failed;
}

/* The tolerance is far below the distance of the two logarithms and far above rounding. */
static int near(double got, double wanted) { return got > wanted - 0.01 && got < wanted + 0.01; }

/* Makes the inputs and runs once: if FlashMLA refuses the call, it does so here, where its message is caught. */
static fh_status set_up(fm_job *job, const fh_call *call, char *text) {
  static const double LOG2_KEYS = 7; /* log2(LIST_STEP) */
  float lse = (float)LOG2_KEYS;
  const char *operator_name = job->state->extension.operator_name;
  char raised[FH_PROVIDER_TEXT / 2];
  const char *at = "PyTorch";
  fm_capture capture;
  fm_guard guard;
  fm_capture_begin(&capture);
  int failed = enter(job, call, &guard);
  if (!failed) {
    failed = make_q(job, call) || make_kv(job, call) || make_indices(job, call) || make_sink(job, call) ||
             make_lengths(job, call) || make_outputs(job, call);
    if (!failed) {
      at = operator_name;
      failed = (job->state->unit == 0 && ask_unit(job, call->d_qk, &lse)) || run_once(job, call);
    }
    leave(job, guard);
  }
  fm_capture_end(&capture, failed ? raised : NULL, sizeof raised);
  if (failed) return fm_fail(FH_ERR_DEVICE, text, "%s raised: %s", at, *raised ? raised : "nothing that can be shown");
  if (job->state->unit == 0) {
    if (!near(lse, LOG2_KEYS) && !near(lse, LOG2_KEYS * LN_2))
      return fm_fail(FH_ERR_DEVICE, text, "%s: lse of %d equal keys: got %g, wanted %g or %g", operator_name, LIST_STEP,
                     (double)lse, LOG2_KEYS * LN_2, LOG2_KEYS);
    job->state->unit = near(lse, LOG2_KEYS) ? (float)LN_2 : 1;
  }
  if (!results_fit(job, call))
    return fm_fail(FH_ERR_DEVICE, text, "%s: wanted out [s_q, %d, 512], max_logits and lse [s_q, %d] back",
                   operator_name, (int)job->h_pad, (int)job->h_pad);
  return FH_OK;
}

static fh_status prepare(void *opened, const fh_device_info *device, const fh_call *call, void **made, char *text) {
  fm_state *state = opened;
  fm_job *job = calloc(1, sizeof *job);
  if (!job) return fm_fail(FH_ERR_MEMORY, text, "the system refused %zu bytes for the job", sizeof *job);
  job->state = state;
  job->place = (fm_place){state->torch.aoti_torch_device_type_cuda(), device->ordinal};
  job->h_pad = padded_heads(state, device, call->h_q);
  job->width = padded_width(call->topk);
  const fh_status status = set_up(job, call, text);
  if (status) release(opened, job);
  else *made = job;
  return status;
}

static uint64_t executed_flops(void *opened, void *made, const fh_call *call) {
  const fm_job *job = made;
  (void)opened;
  return 2 * (uint64_t)(call->d_qk + FM_D_V) * (uint64_t)job->h_pad * (uint64_t)job->width * (uint64_t)call->s_q;
}

const fm_kernel fm_flashmla = {describe, supports, prepare, run, collect, release, executed_flops};
