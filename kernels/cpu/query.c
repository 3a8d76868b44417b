/*
 * The paths that take one query a tile: `gather` at its native heads, `padded` at h_pad heads of which those past h_q are zeros.
 */
#include "cpu/tile.h"

typedef struct query_run {
  const fh_call *call;
  fhk_work *work;
  const fhk_tile_ops *ops;
  int32_t rows; /* heads computed */
  uint64_t token_bytes, scratch_bytes; /* of one thread */
} query_run;

static query_run prepare(const fhk_cpu *cpu, const fh_call *call, fhk_work *work) {
  query_run run = {call, work, fhk_tile_ops_of(fhk_cpu_isa(cpu)), call->path == FH_PADDED ? call->h_pad : call->h_q, 0, 0};
  run.token_bytes = fhk_part((uint64_t)call->topk, sizeof(int32_t));
  run.scratch_bytes = fhk_add(run.token_bytes, fhk_tile_scratch_bytes(run.ops, run.rows, call->d_qk));
  return run;
}

uint64_t fhk_query_workspace_bytes(const fhk_cpu *cpu, const fh_call *call) {
  return fhk_mul((uint64_t)fhk_cpu_threads(cpu), prepare(cpu, call, NULL).scratch_bytes);
}

static void query(void *arg, int64_t s, int32_t thread) {
  const query_run *run = arg;
  const fh_call *call = run->call;
  char *scratch = (char *)call->workspace + (uint64_t)thread * run->scratch_bytes;
  int32_t *token = (int32_t *)(void *)scratch;
  const int32_t *list = call->indices + s * call->indices_stride;
  const int64_t length = fhk_list_length(call, s);
  int64_t keys = 0;
  for (int64_t j = 0; j < length; j++) {
    token[keys] = list[j];
    keys += list[j] >= 0 && list[j] < call->s_kv;
  }

  fhk_tile_job job = {.rows = run->rows, .token = token, .keys = keys};
  for (int32_t h = 0; h < call->h_q; h++) fhk_tile_row(call, s, h, &job, h);
  const uint64_t executed = fhk_tile_run(run->ops, call, &job, scratch + run->token_bytes);
  const uint64_t useful = 2 * (uint64_t)keys * (uint64_t)call->h_q * (uint64_t)(call->d_qk + call->d_v);
  fhk_count(run->work, useful, executed, (uint64_t)keys * (uint64_t)call->d_qk * 2 + fhk_row_bytes(call) + fhk_list_bytes(call, s));
}

void fhk_query_run(fhk_cpu *cpu, const fh_call *call, fhk_work *work) {
  query_run run = prepare(cpu, call, work);
  fhk_cpu_parallel(cpu, call->s_q, query, &run);
}
