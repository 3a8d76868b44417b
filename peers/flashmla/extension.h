/*
 * The library of a package that holds FlashMLA: what its file says before any of it runs, then loaded, which registers its
 * operators with PyTorch.
 *
 * The operator is sparse_prefill_fwd(q, kv, indices, sm_scale, d_v, ..) -> [out, max_logits, lse]. What follows d_v has grown,
 * always at the end:
 *
 *     arguments                        seen in
 *     none                             FlashMLA of 2025, sglang-kernel 0.4.2
 *     attn_sink, topk_length           sglang-kernel 0.4.4 and later
 *     attn_sink, topk_length, out      vLLM 0.24 and later
 *
 * PyTorch calls an operator with as many values as its schema has arguments, whatever they are: so the schema is read from the
 * file first, and a file with another one is refused.
 */
#ifndef FLASHMLA_EXTENSION_H
#define FLASHMLA_EXTENSION_H

#include <stddef.h>
#include <stdint.h>

enum { FM_SINK = 1, FM_LENGTHS = 2, FM_OUT = 3 }; /* so many arguments after d_v bring attn_sink, topk_length, out */

typedef struct fm_extension {
  int32_t module;         /* which of the known packages it is of */
  char operator_name[64]; /* "_flashmla_C::sparse_prefill_fwd" */
  int32_t optional;       /* arguments after d_v, 0 .. 3 */
  int32_t few_heads;      /* it has a kernel for 8, 16 and 32 heads on compute capability 9.0 */
} fm_extension;

/* Read what the file at `path` says of its operator. 0; else 1 and one line. */
int fm_extension_read(const char *path, fm_extension *extension, char *text, size_t text_bytes);

/* Load what was read beside the PyTorch that is loaded. A process takes one file for each package. 0; else 1 and one line. */
int fm_extension_load(const char *path, const fm_extension *extension, char *text, size_t text_bytes);

#endif
