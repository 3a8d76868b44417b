/*
 * The oracle: each row and head by the definition in fewhead.h, two passes, double accumulation, nothing clever.
 */
#include <math.h>

#include "cpu/back_end.h"

typedef struct reference_run {
  const fh_call *call;
  fhk_work *work;
  uint64_t scratch_bytes;
} reference_run;

/* One thread's scratch: the valid keys of a row and their logits. */
static uint64_t scratch_bytes(const fh_call *call) {
  return fhk_add(fhk_part((uint64_t)call->topk, sizeof(double)), fhk_part((uint64_t)call->topk, sizeof(int32_t)));
}

static uint64_t workspace(const fhk_cpu *cpu, const fh_call *call) {
  return fhk_mul((uint64_t)fhk_cpu_threads(cpu), scratch_bytes(call));
}

/* Four sums side by side, so that the additions do not wait for each other; n is a multiple of 4. */
static double dot(const uint16_t *a, const uint16_t *b, int32_t n) {
  double sum[4] = {0, 0, 0, 0};
  for (int32_t i = 0; i < n; i += 4)
    for (int32_t j = 0; j < 4; j++) sum[j] += (double)fh_float(a[i + j]) * (double)fh_float(b[i + j]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void reference_row(void *arg, int64_t s, int32_t thread) {
  const reference_run *run = arg;
  const fh_call *call = run->call;
  double *logit = (double *)(void *)((char *)call->workspace + (uint64_t)thread * run->scratch_bytes);
  int32_t *key = (int32_t *)((char *)logit + fhk_part((uint64_t)call->topk, sizeof *logit));

  const int32_t *list = fhk_list(call, s);
  const int64_t length = fhk_list_length(call, s);
  int64_t keys = 0;
  for (int64_t j = 0; j < length; j++)
    if (list[j] >= 0 && list[j] < call->s_kv) key[keys++] = list[j];

  for (int32_t h = 0; h < call->h_q; h++) {
    const uint16_t *q = call->q + s * call->q_stride_s + h * call->q_stride_h;
    double max = -INFINITY;
    for (int64_t j = 0; j < keys; j++) {
      logit[j] = (double)call->sm_scale * dot(q, call->kv + key[j] * call->kv_stride, call->d_qk);
      if (logit[j] > max) max = logit[j];
    }
    double sum = 0, out[512] = {0};
    for (int64_t j = 0; j < keys; j++) {
      const double p = exp(logit[j] - max);
      const uint16_t *v = call->kv + key[j] * call->kv_stride;
      sum += p;
      for (int32_t c = 0; c < call->d_v; c++) out[c] += p * (double)fh_float(v[c]);
    }
    double denominator = sum;
    if (call->attn_sink && keys) denominator += exp((double)call->attn_sink[h] - max);
    const int64_t at = s * call->out_stride_s + h * call->out_stride_h;
    for (int32_t c = 0; c < call->d_v; c++) {
      const float value = keys ? (float)(out[c] / denominator) : 0.0f;
      if (call->out_dtype == FH_F32) ((float *)call->out)[at + c] = value;
      else ((uint16_t *)call->out)[at + c] = fh_bf16(value);
    }
    if (call->lse) call->lse[s * call->lse_stride + h] = keys ? (float)(max + log(sum)) : INFINITY;
    if (call->max_logits) call->max_logits[s * call->max_logits_stride + h] = (float)max;
  }
  const uint64_t flops = fhk_useful_flops(call, (uint64_t)keys);
  fhk_count(run->work, flops, flops,
            (uint64_t)keys * (uint64_t)call->d_qk * 2 + fhk_row_bytes(call) + fhk_list_bytes(call, s));
}

static void run_call(fhk_cpu *cpu, const fh_call *call, fhk_work *work) {
  reference_run run = {call, work, scratch_bytes(call)};
  fhk_cpu_parallel(cpu, call->s_q, reference_row, &run);
}

const fhk_cpu_kernel fhk_rows_cpu_reference[] = {
    {"reference", FH_REFERENCE, .preference = 0, FH_ISA_GENERIC, .plain = 1, .workspace = workspace, .run = run_call},
    {0},
};
