/*
 * A plug-in (fewhead_provider.h) that runs the FlashMLA or the FlashAttention 3 of an installed package on the caller's
 * memory and stream, through the PyTorch that the package belongs to. No Python runs.
 *
 * options: lines of KEY=VALUE
 *     extension   the package's library with the kernel in it                                   required
 *     torch       the folder with libtorch_cuda.so                                              required
 *     package     the package's name for records: "vllm 0.24.0"
 *     heads       64 or 128: the smallest head count to pad to, even if FlashMLA has a kernel for fewer heads
 *     padding     "timed": every run copies q, lists and results into and out of padded memory
 * heads and padding are FlashMLA's alone.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

fh_status fm_fail(fh_status status, char *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, FH_PROVIDER_TEXT, format, arguments);
  va_end(arguments);
  return status;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

typedef struct fm_options {
  char *extension, *torch, *package, *heads, *padding;
} fm_options;

/* Cuts `text` into the values of its keys. */
static fh_status read_options(char *text, fm_options *found, char *reason) {
  const struct {
    const char *key;
    char **value;
  } known[] = {{"extension", &found->extension},
               {"torch", &found->torch},
               {"package", &found->package},
               {"heads", &found->heads},
               {"padding", &found->padding}};
  enum { KEYS = sizeof known / sizeof *known };
  char *rest = NULL;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char *value = strchr(line, '=');
    size_t i = 0;
    if (value) *value++ = 0;
    while (i < KEYS && strcmp(line, known[i].key) != 0) i++;
    if (i == KEYS || !value)
      return fm_fail(FH_ERR_ARGUMENT, reason,
                     "options: got the key \"%s\", wanted extension=, torch=, package=, heads= or padding=", line);
    *known[i].value = value;
  }
  if (!found->extension || !found->torch)
    return fm_fail(FH_ERR_ARGUMENT, reason,
                   "options: %s= is missing: wanted the package's library and PyTorch's folder",
                   found->extension ? "torch" : "extension");
  return FH_OK;
}

static fh_status choose(const fm_options *given, fm_state *state, char *text) {
  state->least_heads = 1;
  if (given->heads) {
    if (strcmp(given->heads, "64") != 0 && strcmp(given->heads, "128") != 0)
      return fm_fail(FH_ERR_ARGUMENT, text, "options: heads: got \"%s\", wanted 64 or 128", given->heads);
    state->least_heads = atoi(given->heads);
  }
  if (given->padding && strcmp(given->padding, "timed") != 0)
    return fm_fail(FH_ERR_ARGUMENT, text, "options: padding: got \"%s\", wanted timed", given->padding);
  state->timed = given->padding != NULL;
  return FH_OK;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static const fm_kernel *const KERNELS[FM_FAMILIES] = {[FM_FLASHMLA] = &fm_flashmla, [FM_FA3] = &fm_fa3};

static void describe(const fm_options *given, const fm_state *state, char *text) {
  const int length = snprintf(text, FH_PROVIDER_TEXT, "%s%sPyTorch %s; %s", given->package ? given->package : "",
                              given->package ? ", " : "", state->torch.version, state->extension.operator_name);
  if (length < FH_PROVIDER_TEXT) state->kernel->describe(state, text + length, FH_PROVIDER_TEXT - (size_t)length);
}

static fh_status open_with(const fm_options *given, fm_state *state, char *text) {
  char reason[FH_PROVIDER_TEXT];
  const fh_status status = choose(given, state, text);
  if (status) return status;
  if (fm_extension_read(given->extension, &state->extension, text, FH_PROVIDER_TEXT) ||
      fm_torch_load(given->torch, &state->torch, text, FH_PROVIDER_TEXT))
    return FH_ERR_UNSUPPORTED;
  if (state->extension.family != FM_FLASHMLA && (given->heads || given->padding))
    return fm_fail(FH_ERR_ARGUMENT, text, "options: got %s= for %s, which pads nothing",
                   given->heads ? "heads" : "padding", state->extension.operator_name);
  state->kernel = KERNELS[state->extension.family];
  if (fm_extension_load(given->extension, &state->extension, reason, sizeof reason))
    return fm_fail(FH_ERR_UNSUPPORTED, text, "%s does not load with PyTorch %s: %s",
                   given->package ? given->package : "the extension", state->torch.version, reason);
  describe(given, state, text);
  return FH_OK;
}

static fh_status open_state(const char *text_options, void **made, char *text) {
  fm_options given = {NULL, NULL, NULL, NULL, NULL};
  fm_state *state = calloc(1, sizeof *state);
  char *lines = strdup(text_options);
  fh_status status = FH_ERR_MEMORY;
  if (!state || !lines) fm_fail(status, text, "the system refused memory");
  else if (!(status = read_options(lines, &given, text))) status = open_with(&given, state, text);
  free(lines);
  if (status) free(state);
  else *made = state;
  return status;
}

static void close_state(void *made) { free(made); }

/* ---- What it runs ------------------------------------------------------------------------------------------------ */

int fm_rows_fit(const void *base, int64_t stride, int64_t element_bytes, int64_t bytes) {
  return stride <= INT32_MAX && (intptr_t)base % bytes == 0 && stride * element_bytes % bytes == 0;
}

static fh_status supports(void *opened, const fh_device_info *device, const fh_call *call, char *text) {
  const fm_state *state = opened;
  const struct {
    const char *name;
    int64_t stride;
  } strides[] = {{"q_stride_s", call->q_stride_s},     {"q_stride_h", call->q_stride_h},
                 {"kv_stride", call->kv_stride},       {"indices_stride", call->indices_stride},
                 {"out_stride_s", call->out_stride_s}, {"out_stride_h", call->out_stride_h},
                 {"lse_stride", call->lse_stride},     {"max_logits_stride", call->max_logits_stride}};
  for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
    if (strides[i].stride < 0)
      return fm_fail(FH_ERR_UNSUPPORTED, text, "%s: got %" PRId64 ", and PyTorch has no negative strides",
                     strides[i].name, strides[i].stride);
  if (call->s_kv < 1) return fm_fail(FH_ERR_UNSUPPORTED, text, "s_kv: got 0, wanted at least one row");
  if (call->out_dtype != FH_BF16)
    return fm_fail(FH_ERR_UNSUPPORTED, text, "out_dtype: %s writes bf16 only", state->extension.operator_name);
  return state->kernel->supports(state, device, call, text);
}

/* ---- Of the family ----------------------------------------------------------------------------------------------- */

static const fm_kernel *kernel_of(void *opened) { return ((const fm_state *)opened)->kernel; }

static fh_status prepare(void *opened, const fh_device_info *device, const fh_call *call, void **job, char *text) {
  return kernel_of(opened)->prepare(opened, device, call, job, text);
}

static fh_status run(void *opened, void *job, const fh_call *call, char *text) {
  return kernel_of(opened)->run(opened, job, call, text);
}

static fh_status collect(void *opened, void *job, const fh_call *call, char *text) {
  return kernel_of(opened)->collect(opened, job, call, text);
}

static void release(void *opened, void *job) { kernel_of(opened)->release(opened, job); }

static uint64_t executed_flops(void *opened, void *job, const fh_call *call) {
  return kernel_of(opened)->executed_flops(opened, job, call);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

const fh_provider_table fewhead_provider = {
    FH_PROVIDER_HEAD,   .devices = FH_PROVIDER_CUDA, .name = "flashmla",   .version = "1.0",
    .open = open_state, .close = close_state,        .supports = supports, .prepare = prepare,
    .run = run,         .collect = collect,          .release = release,   .executed_flops = executed_flops,
};
