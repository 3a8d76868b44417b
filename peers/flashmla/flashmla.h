/* Shared by the files of the plug-in: its state and the functions of its jobs. */
#ifndef FLASHMLA_FLASHMLA_H
#define FLASHMLA_FLASHMLA_H

#include "extension.h"
#include "fewhead_provider.h"
#include "torch.h"

enum {
  FM_LIST_STEP = 128, /* the width of lists is a multiple of this: capability 9.0 takes two tiles of 64 keys at
                         a time */
  FM_D_V = 512
};

typedef struct fm_state {
  fm_torch torch;
  fm_extension extension;
  int32_t least_heads;
  int timed;
  float unit; /* of FlashMLA's max_logits and lse: 1, or ln 2 if they are to base 2; 0 if not known yet */
} fm_state;

/* Writes one line to text[FH_PROVIDER_TEXT] and returns the status. */
fh_status fm_fail(fh_status status, char *text, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Number of heads that FlashMLA computes for a call with h_q heads; 0 if it has no kernel for h_q. */
int32_t fm_padded_heads(const fm_state *state, const fh_device_info *device, int32_t h_q);

/* Width of the list that FlashMLA gets for a list of topk keys; never 0. */
int64_t fm_padded_width(int64_t topk);

/* Functions of fh_provider_table that get a job (fewhead_provider.h). The call is one that `supports` has accepted. */
fh_status fm_prepare(void *state, const fh_device_info *device, const fh_call *call, void **job, char *text);
fh_status fm_run(void *state, void *job, const fh_call *call, char *text);
fh_status fm_collect(void *state, void *job, const fh_call *call, char *text);
void fm_release(void *state, void *job);
uint64_t fm_executed_flops(void *state, void *job, const fh_call *call);

#endif
