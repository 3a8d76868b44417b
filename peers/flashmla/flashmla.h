/* What the files of the plug-in share: what it opened, and its jobs. */
#ifndef FLASHMLA_FLASHMLA_H
#define FLASHMLA_FLASHMLA_H

#include "extension.h"
#include "fewhead_provider.h"
#include "torch.h"

enum {
  FM_LIST_STEP = 128, /* lists are a multiple of so many keys wide: two tiles of 64 at a time on capability 9.0 */
  FM_D_V = 512
};

typedef struct fm_state {
  fm_torch torch;
  fm_extension extension;
  int32_t least_heads;
  int timed;
  float unit; /* of FlashMLA's max_logits and lse: 1, or ln 2 where it counts to base 2; 0: not known yet */
} fm_state;

/* The status, with one line in text[FH_PROVIDER_TEXT]. */
fh_status fm_fail(fh_status status, char *text, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Heads that FlashMLA computes for h_q of them; 0: it has no kernel for so many. */
int32_t fm_padded_heads(const fm_state *state, const fh_device_info *device, int32_t h_q);

/* Keys of a list for topk of them; never 0. */
int64_t fm_padded_width(int64_t topk);

/* The functions of the table that have a job, as fewhead_provider.h has them; the call is one that is supported. */
fh_status fm_prepare(void *state, const fh_device_info *device, const fh_call *call, void **job, char *text);
fh_status fm_run(void *state, void *job, const fh_call *call, char *text);
fh_status fm_collect(void *state, void *job, const fh_call *call, char *text);
void fm_release(void *state, void *job);
uint64_t fm_executed_flops(void *state, void *job, const fh_call *call);

#endif
