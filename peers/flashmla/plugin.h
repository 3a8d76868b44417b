/* Shared by the files of the plug-in: its state, and what a family of kernels does. */
#ifndef FLASHMLA_PLUGIN_H
#define FLASHMLA_PLUGIN_H

#include "extension.h"
#include "fewhead_provider.h"
#include "torch.h"

enum {
  FM_D_V = 512,
  FM_ROW_BYTES = 16 /* alignment of rows, which kernels fetch 16 bytes at a time or by a tensor map */
};

typedef struct fm_kernel fm_kernel;

typedef struct fm_state {
  fm_torch torch;
  fm_extension extension;
  const fm_kernel *kernel;
  int32_t least_heads; /* of FlashMLA */
  int timed;           /* of FlashMLA */
  float unit;          /* of FlashMLA's max_logits and lse: 1, or ln 2 if they are to base 2; 0 if not known yet */
} fm_state;

/* The functions of fh_provider_table that depend on the family. Strides that `supports` sees are not negative. The
 * other functions get a call that it has accepted. describe writes what follows the operator's name. */
struct fm_kernel {
  void (*describe)(const fm_state *state, char *text, size_t text_bytes);
  fh_status (*supports)(const fm_state *state, const fh_device_info *device, const fh_call *call, char *text);
  fh_status (*prepare)(void *state, const fh_device_info *device, const fh_call *call, void **job, char *text);
  fh_status (*run)(void *state, void *job, const fh_call *call, char *text);
  fh_status (*collect)(void *state, void *job, const fh_call *call, char *text);
  void (*release)(void *state, void *job);
  uint64_t (*executed_flops)(void *state, void *job, const fh_call *call);
};
extern const fm_kernel fm_flashmla, fm_fa3;

/* Writes one line to text[FH_PROVIDER_TEXT] and returns the status. */
fh_status fm_fail(fh_status status, char *text, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Returns 1 if a kernel takes rows of elements of this size with this stride, each at a multiple of `bytes`. */
int fm_rows_fit(const void *base, int64_t stride, int64_t element_bytes, int64_t bytes);

#endif
