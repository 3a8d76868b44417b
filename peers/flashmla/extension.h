/*
 * The library file of a package that holds an attention kernel. The file is read before its code runs. Loading it
 * registers its operators with PyTorch.
 *
 * FlashMLA's operator is sparse_prefill_fwd(q, kv, indices, sm_scale, d_v, ..) -> [out, max_logits, lse]. Packages of
 * later have more arguments after d_v, always added at the end:
 *
 *     arguments                        seen in
 *     none                             FlashMLA of 2025, sglang-kernel 0.4.2
 *     attn_sink, topk_length           sglang-kernel 0.4.4 and later
 *     attn_sink, topk_length, out      vLLM 0.24 and later
 *
 * FlashAttention 3's operator is fwd(q, k, v, ..) -> [out, lse, ..] with 37 arguments, the same in vLLM 0.26 and 0.33.
 *
 * PyTorch calls an operator with as many values as its schema has arguments and does not check them. So the schema is
 * read from the file first, and a file with an unknown schema is refused.
 */
#ifndef FLASHMLA_EXTENSION_H
#define FLASHMLA_EXTENSION_H

#include <stddef.h>
#include <stdint.h>

enum { FM_SINK = 1, FM_LENGTHS = 2, FM_OUT = 3 }; /* arguments after d_v, up to and including this one */

typedef enum fm_family { FM_FLASHMLA, FM_FA3, FM_FAMILIES } fm_family;

typedef struct fm_extension {
  int32_t module; /* which known package the file belongs to */
  fm_family family;
  char operator_name[64]; /* "_flashmla_C::sparse_prefill_fwd" */
  int32_t optional;       /* of FlashMLA: arguments after d_v, 0 .. 3 */
  int32_t few_heads;      /* 1 if it has FlashMLA's kernel for 8, 16 and 32 heads on compute capability 9.0 */
} fm_extension;

/* Read the operator's description from the file at `path`. Returns 0, or 1 with one line in text. */
int fm_extension_read(const char *path, fm_extension *extension, char *text, size_t text_bytes);

/* Load the file into the process, where PyTorch is loaded already. A process loads one file of each package. Returns
 * 0, or 1 with one line in text. */
int fm_extension_load(const char *path, const fm_extension *extension, char *text, size_t text_bytes);

#endif
