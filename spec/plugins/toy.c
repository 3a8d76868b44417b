/*
 * A plug-in that misbehaves on request. Its arithmetic is the example in fewhead_provider.h, which the specs copy to
 * loops.c. options: "MANNER" or "MANNER FILE". MANNER names what goes wrong; FILE gets a line for each function that is
 * called.
 */
#define fewhead_provider example
#include "loops.c"
#undef fewhead_provider

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef TABLE
#define TABLE FH_PROVIDER_HEAD, .name = "toy", .version = "0.3", .run = toy_run
#endif

typedef struct toy {
  char manner[32], log[256];
  int runs;
} toy;

static int is(const toy *t, const char *manner) { return strcmp(t->manner, manner) == 0; }

static void note(const toy *t, const char *what) {
  FILE *file = t->log[0] ? fopen(t->log, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s\n", what);
  fclose(file);
}

static fh_status fail(fh_status status, char *text, const char *reason) {
  snprintf(text, FH_PROVIDER_TEXT, "%s", reason);
  return status;
}

static fh_status toy_open(const char *options, void **state, char *text) {
  toy *t = calloc(1, sizeof *t);
  if (!t) return fail(FH_ERR_MEMORY, text, "no memory");
  sscanf(options, "%31s %255s", t->manner, t->log);
  if (is(t, "shut")) {
    free(t);
    return fail(FH_ERR_DEVICE, text, "no licence\nfor this machine\n");
  }
  note(t, "open");
  snprintf(text, FH_PROVIDER_TEXT, "%s", is(t, "quiet") ? "" : "as asked");
  *state = t;
  return FH_OK;
}

static void toy_close(void *state) {
  note(state, "close");
  free(state);
}

static fh_status toy_picky(void *state, const fh_device_info *device, const fh_call *call, char *text) {
  (void)state, (void)device;
  if (call->h_q == 64) return FH_OK;
  snprintf(text, FH_PROVIDER_TEXT, "h_q: got %d, wanted 64", (int)call->h_q);
  return FH_ERR_UNSUPPORTED;
}

static fh_status toy_supports(void *state, const fh_device_info *device, const fh_call *call, char *text) {
  if (device->kind != FH_DEVICE_CPU) return fail(FH_ERR_UNSUPPORTED, text, "device: not a CPU");
  return is(state, "picky") ? toy_picky(state, device, call, text) : FH_OK;
}

/* Manner "elsewhere": results lie in the workspace until collect copies them. */
static uint64_t toy_workspace_bytes(void *state, const fh_device_info *device, const fh_call *call) {
  (void)device;
  if (is(state, "greedy")) return UINT64_MAX;
  return is(state, "elsewhere") ? (uint64_t)call->s_q * (uint64_t)call->h_q * 512 * 2 : 0;
}

static fh_status toy_prepare(void *state, const fh_device_info *device, const fh_call *call, void **job, char *text) {
  (void)device;
  note(state, "prepare");
  if (is(state, "unready")) return fail(FH_ERR_MEMORY, text, "no room for padded heads");
  fh_call *mine = malloc(sizeof *mine);
  if (!mine) return fail(FH_ERR_MEMORY, text, "no memory");
  *mine = *call;
  if (is(state, "elsewhere")) {
    mine->out = call->workspace;
    mine->out_stride_h = 512;
    mine->out_stride_s = 512 * (int64_t)call->h_q;
  }
  if (is(state, "spills")) { /* one head too many */
    mine->h_q++;
    mine->attn_sink = NULL;
    mine->lse = mine->max_logits = NULL;
  }
  *job = mine;
  return FH_OK;
}

/* "alters-q", "alters-kv", "alters-lists": every run writes to that input; "alters-later": to KV, from the third run
 * on. */
static void alter_inputs(toy *t, const fh_call *call) {
  if (is(t, "alters-q")) ++*(uint16_t *)call->q;
  if (is(t, "alters-kv")) ++*(uint16_t *)call->kv;
  if (is(t, "alters-lists")) ++*(int32_t *)call->indices;
  if (is(t, "alters-later") && ++t->runs > 2) ++*(uint16_t *)call->kv;
}

/* What ends or holds up the process that it runs in. */
static void misbehave(toy *t) {
  if (is(t, "crashes") || (is(t, "late") && ++t->runs > 3)) raise(SIGSEGV);
  if (is(t, "aborts")) abort();
  if (is(t, "exits")) exit(3);
  if (is(t, "exits0")) exit(0);
  while (is(t, "hangs")) continue;
}

static fh_status toy_run(void *state, void *job, const fh_call *call, char *text) {
  toy *t = state;
  note(t, "run");
  misbehave(t);
  if (is(t, "silent")) return 7;
  if (is(t, "fails") || (is(t, "tires") && ++t->runs > 2)) return fail(FH_ERR_DEVICE, text, "the kernel\tgave up");
  if (is(t, "lazy")) return FH_OK; /* writes nothing */
  if (is(t, "elsewhere") || is(t, "spills")) run(NULL, NULL, job, text);
  if (!is(t, "elsewhere")) run(NULL, NULL, call, text);
  if (is(t, "wrong") || (is(t, "turns") && ++t->runs > 2)) *(uint16_t *)call->out = 0x4120; /* 10.0 */
  alter_inputs(t, call);
  return FH_OK;
}

static fh_status toy_wrong(void *state, void *job, const fh_call *call, char *text) {
  snprintf(((toy *)state)->manner, sizeof((toy *)state)->manner, "wrong");
  return toy_run(state, job, call, text);
}

static fh_status toy_collect(void *state, void *job, const fh_call *call, char *text) {
  const fh_call *mine = job;
  note(state, "collect");
  if (is(state, "lost")) return fail(FH_ERR_DEVICE, text, "the results are gone");
  for (int64_t row = 0; is(state, "elsewhere") && row < call->s_q * call->h_q; row++) {
    const int64_t s = row / call->h_q, h = row % call->h_q;
    memcpy((uint16_t *)call->out + s * call->out_stride_s + h * call->out_stride_h,
           (const uint16_t *)mine->out + s * mine->out_stride_s + h * mine->out_stride_h, 512 * 2);
  }
  return FH_OK;
}

static void toy_release(void *state, void *job) {
  note(state, "release");
  free(job);
}

static uint64_t toy_executed_flops(void *state, void *job, const fh_call *call) {
  (void)state, (void)job;
  return 2u * 64 * (uint64_t)(call->d_qk + call->d_v) * (uint64_t)(call->s_q * call->topk);
}

const fh_provider_table fewhead_provider = {.devices = FH_PROVIDER_CPU,
                                            .open = toy_open,
                                            .close = toy_close,
                                            .supports = toy_supports,
                                            .workspace_bytes = toy_workspace_bytes,
                                            .prepare = toy_prepare,
                                            .collect = toy_collect,
                                            .release = toy_release,
                                            .executed_flops = toy_executed_flops,
                                            TABLE};
