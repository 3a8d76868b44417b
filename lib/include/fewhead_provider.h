/*
 * A provider is a plug-in: a shared library with a kernel of your own. The kernel runs on the same calls and buffers as
 * the library's own paths, and with the same parity check and timing. A plug-in exports one table, `fewhead_provider`.
 * It links nothing of fewhead and needs no other header.
 *
 * A complete plug-in for the CPU:
 *
 *     #include <fewhead_provider.h>
 *     #include <math.h>
 *
 *     static float f32(uint16_t x) { union { uint32_t word; float f; } v = {(uint32_t)x << 16}; return v.f; }
 *     static uint16_t bf16(double x) {
 *       union { float f; uint32_t word; } v = {(float)x};
 *       return (uint16_t)((v.word + 0x7fff + (v.word >> 16 & 1)) >> 16);
 *     }
 *     static fh_status run(void *state, void *job, const fh_call *c, char *text) {
 *       (void)state, (void)job, (void)text;
 *       for (int64_t row = 0; row < c->s_q * c->h_q; row++) {
 *         const int64_t s = row / c->h_q, h = row % c->h_q, n = c->topk_length ? c->topk_length[s] : c->topk;
 *         const uint16_t *q = c->q + s * c->q_stride_s + h * c->q_stride_h;
 *         uint16_t *out = (uint16_t *)c->out + s * c->out_stride_s + h * c->out_stride_h;
 *         double most = -INFINITY, sum = 0, o[512] = {0};
 *         for (int64_t j = 0; j < n && j < c->topk; j++) {
 *           const int32_t t = c->indices[s * c->indices_stride + j];
 *           if (t < 0 || t >= c->s_kv) continue;
 *           const uint16_t *kv = c->kv + t * c->kv_stride;
 *           double logit = 0;
 *           for (int d = 0; d < c->d_qk; d++) logit += (double)f32(q[d]) * f32(kv[d]);
 *           logit *= c->sm_scale;
 *           const double keep = logit > most ? exp(most - logit) : 1, p = logit > most ? 1 : exp(logit - most);
 *           if (logit > most) most = logit;
 *           sum = sum * keep + p;
 *           for (int d = 0; d < 512; d++) o[d] = o[d] * keep + p * f32(kv[d]);
 *         }
 *         const double under = sum + (c->attn_sink ? exp(c->attn_sink[h] - most) : 0);
 *         for (int d = 0; d < 512; d++) out[d] = sum > 0 ? bf16(o[d] / under) : 0;
 *         if (c->lse) c->lse[s * c->lse_stride + h] = (float)(sum > 0 ? most + log(sum) : INFINITY);
 *         if (c->max_logits) c->max_logits[s * c->max_logits_stride + h] = (float)most;
 *       }
 *       return FH_OK;
 *     }
 *     const fh_provider_table fewhead_provider = {
 *         FH_PROVIDER_HEAD, .devices = FH_PROVIDER_CPU, .name = "loops", .version = "1.0", .run = run};
 *
 *     cc -shared -fPIC -O2 -I FOLDER-OF-THIS-HEADER -o loops.so loops.c -lm
 *     ./fewhead run experiments/peers.lua --provider loops=./loops.so
 *
 * Rules
 *  - The call is an fh_call (fewhead.h). The library has checked it as fh_sparse_fwd does, and has filled in every
 *    default: sizes are in range, pointers are not NULL and are aligned, outputs do not overlap, out is bf16. On CUDA
 *    the stream is never NULL. Ignore path, group, plan, costs and counters. row_invariant is 1 if the caller wants
 *    rows that do not depend on other rows. Calls with s_q = 0 are not passed on.
 *  - q and out have heads 0 .. h_q - 1 and no others. fh_call says what is computed, for rows without keys too.
 *  - A function that can fail returns FH_OK, or another fh_status and one line in `text`: what was given and what was
 *    wanted. text has FH_PROVIDER_TEXT bytes and is empty before the call. No function throws an exception or ends the
 *    process.
 *  - On CUDA the device's context is current in every function that gets a call, and work goes to call->stream. The
 *    library has not waited for anything: the inputs are ready in the order of that stream, and the outputs must be
 *    ready in that order too.
 *  - The library calls the functions of one state one at a time. The harness loads the plug-in and calls its functions
 *    in a worker process: a function that crashes, ends the process, hangs or loses the CUDA context ends its own
 *    cells alone. Before that it loads the plug-in in its own process too, to see that it opens.
 *  - A function pointer may be NULL where its comment says so. LuaJIT's ffi.cdef reads the text between the cdef marks,
 *    after fewhead.h.
 */
#ifndef FEWHEAD_PROVIDER_H
#define FEWHEAD_PROVIDER_H

#include "fewhead.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* cdef:begin */

enum {
  FH_PROVIDER_ABI = 2,      /* changes when the library can no longer call older plug-ins */
  FH_PROVIDER_TEXT = 512,   /* bytes of every `text` */
  FH_PROVIDER_CPU = 1 << 1, /* bits of `devices`, by fh_device_kind */
  FH_PROVIDER_CUDA = 1 << 2
};

typedef struct fh_provider_table {
  uint64_t struct_size; /* sizeof(fh_provider_table). A newer library takes a smaller, older table: the missing fields
                           are NULL */
  int32_t abi;          /* FH_PROVIDER_ABI */
  uint32_t call_bytes;  /* sizeof(fh_call) */
  uint32_t info_bytes;  /* sizeof(fh_device_info) */
  uint32_t devices;     /* kinds of device it runs on: FH_PROVIDER_CPU, FH_PROVIDER_CUDA or both */
  const char *name;     /* 1 .. 31 letters, digits, '.', '_', '-', the first one a letter: what records call it */
  const char *version;  /* the plug-in's version: one line, not empty */

  /* Make the state that lasts as long as the provider. options is the text given to fh_provider_load, "" if none was
   * given. *state is NULL before the call and may stay NULL. On success text may say what was found ("vllm 0.24.0,
   * torch 2.11.0+cu130"); records show it beside the version. open may be NULL. */
  fh_status (*open)(const char *options, void **state, char *text);

  /* Undo open. Every job has been released before. close may be NULL. */
  void (*close)(void *state);

  /* Returns FH_OK if the plug-in can run this call on this device, else FH_ERR_UNSUPPORTED and the reason. The
   * library asks this first. q, kv, indices and out may still be NULL; topk_length, attn_sink, lse and max_logits
   * are NULL if the call has none. If supports is NULL, the plug-in runs every call on its devices. */
  fh_status (*supports)(void *state, const fh_device_info *device, const fh_call *call, char *text);

  /* Returns the bytes of call->workspace that the call needs: memory of the device, aligned to 64 bytes, with
   * undefined contents. The answer may depend only on what supports may look at. If it is NULL, the plug-in needs no
   * workspace. */
  uint64_t (*workspace_bytes)(void *state, const fh_device_info *device, const fh_call *call);

  /* Do what is done once for a call and not timed: bring inputs into the shape that the kernel takes, allocate
   * memory. The call and everything it points to, inputs too, stay unchanged until release. *job is NULL before the
   * call and may stay NULL. prepare may be NULL. */
  fh_status (*prepare)(void *state, const fh_device_info *device, const fh_call *call, void **job, char *text);

  /* Run the call. This function is timed and is called many times. It leaves the results in out, lse and max_logits,
   * or where collect finds them. */
  fh_status (*run)(void *state, void *job, const fh_call *call, char *text);

  /* Bring the results of the last run into out, lse and max_logits; not timed. If collect is NULL, run has left them
   * there. */
  fh_status (*collect)(void *state, void *job, const fh_call *call, char *text);

  /* Undo prepare. The stream has finished its work. release may be NULL. */
  void (*release)(void *state, void *job);

  /* Returns the FLOPs that a run executes: 2 * (d_qk + d_v) for each key and head that it computes, padding
   * included. On CUDA the host does not see the lists: count every list as full. 0, or a NULL pointer, means not
   * known. */
  uint64_t (*executed_flops)(void *state, void *job, const fh_call *call);
} fh_provider_table;

/* The only symbol that a plug-in exports. */
extern const fh_provider_table fewhead_provider;

/* cdef:end */

/* The first fields of a table, for its initializer. */
#define FH_PROVIDER_HEAD                                                                           \
  .struct_size = sizeof(fh_provider_table), .abi = FH_PROVIDER_ABI, .call_bytes = sizeof(fh_call), \
  .info_bytes = sizeof(fh_device_info)

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* FEWHEAD_PROVIDER_H */
