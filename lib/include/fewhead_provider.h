/*
 * A plug-in: a shared library that brings a kernel of your own into the race, run on the same calls, buffers, parity and timing
 * as the library's own paths. It exports one table, `fewhead_provider`, links nothing of fewhead, and needs this header alone.
 *
 * A whole one, for the CPU:
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
 *  - The call is fh_call of fewhead.h, checked by the library as for fh_sparse_fwd, with every default filled in: sizes are in
 *    range, pointers there and aligned, strides keep outputs apart, out is bf16. On CUDA its stream is never NULL. path, group,
 *    plan, costs and counters mean nothing here; row_invariant is the caller's wish. Calls with s_q = 0 do not arrive.
 *  - Of q and out heads 0 .. h_q - 1 are there and no others. What is computed, for rows without keys too, stands at fh_call.
 *  - A function that can fail returns FH_OK or an fh_status and, in `text`, one line that says why: what was given, what was
 *    wanted. text has FH_PROVIDER_TEXT bytes and comes empty. No exception leaves a function, and none ends the process.
 *  - On CUDA the device's context is the thread's current one in every function that is given a call, and work goes to
 *    call->stream. The library has waited for nothing: inputs are there in the order of that stream, and so must the outputs be.
 *  - Functions of one state run one at a time.
 *  - A function pointer that may be NULL says so. What stands between the cdef marks LuaJIT's ffi.cdef reads after fewhead.h.
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
  FH_PROVIDER_ABI = 2,    /* changes when an older plug-in could no longer be called */
  FH_PROVIDER_TEXT = 512, /* bytes of every `text` */
  FH_PROVIDER_CPU = 1 << 1, /* bits of `devices`, by fh_device_kind */
  FH_PROVIDER_CUDA = 1 << 2
};

typedef struct fh_provider_table {
  uint64_t struct_size; /* sizeof(fh_provider_table). A newer library takes an older, smaller table: fields it lacks are NULL */
  int32_t abi;          /* FH_PROVIDER_ABI */
  uint32_t call_bytes;  /* sizeof(fh_call) */
  uint32_t info_bytes;  /* sizeof(fh_device_info) */
  uint32_t devices;     /* kinds of device it runs on: FH_PROVIDER_CPU, FH_PROVIDER_CUDA or both */
  const char *name;     /* 1 .. 31 letters, digits, '.', '_', '-', the first one a letter: what records call it */
  const char *version;  /* of the plug-in, one line, not empty */

  /* What lasts as long as the provider. options is the text given to fh_provider_load, "" for none. *state comes NULL and may
   * stay so. On success text may say what was found ("vllm 0.24.0, torch 2.11.0+cu130"), which goes into records beside the
   * version. NULL: nothing to open. */
  fh_status (*open)(const char *options, void **state, char *text);

  /* Undo open. Every job has been released. May be NULL. */
  void (*close)(void *state);

  /* FH_OK when it can run such a call there, else FH_ERR_UNSUPPORTED and the reason. Asked before anything else about a call.
   * Arrays that must be there may be NULL still; those that need not (topk_length, attn_sink, lse, max_logits) are NULL where the
   * call has none. NULL: it runs every call on its devices. */
  fh_status (*supports)(void *state, const fh_device_info *device, const fh_call *call, char *text);

  /* Bytes of call->workspace that the call needs: memory of the device, aligned to 64 bytes, its contents undefined at first.
   * Depends on what supports may look at. NULL: none. */
  uint64_t (*workspace_bytes)(void *state, const fh_device_info *device, const fh_call *call);

  /* What is to be done once for a call and not timed: inputs brought into the shape that the kernel takes, memory of its own. The
   * call and all it points to stay as they are until release, inputs too. *job comes NULL and may stay so. May be NULL. */
  fh_status (*prepare)(void *state, const fh_device_info *device, const fh_call *call, void **job, char *text);

  /* Run the call: what is timed, many times over. Leaves results in out, lse and max_logits, or where collect finds them. */
  fh_status (*run)(void *state, void *job, const fh_call *call, char *text);

  /* Bring the results of the last run into out, lse and max_logits; not timed. NULL: they are there. */
  fh_status (*collect)(void *state, void *job, const fh_call *call, char *text);

  /* Undo prepare; the stream has done what it was given. May be NULL. */
  void (*release)(void *state, void *job);

  /* FLOPs that a run really multiplies: 2 * (d_qk + d_v) for every key and head it computes, padding included; on CUDA, where the
   * host does not see the lists, as if every list were full. NULL, or 0: not known. */
  uint64_t (*executed_flops)(void *state, void *job, const fh_call *call);
} fh_provider_table;

/* The one symbol that a plug-in exports. */
extern const fh_provider_table fewhead_provider;

/* cdef:end */

/* The first fields of a table, for its initializer. */
#define FH_PROVIDER_HEAD                                                                                             \
  .struct_size = sizeof(fh_provider_table), .abi = FH_PROVIDER_ABI, .call_bytes = sizeof(fh_call),                   \
  .info_bytes = sizeof(fh_device_info)

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* FEWHEAD_PROVIDER_H */
