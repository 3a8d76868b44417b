/* The kernels of the CUDA back end, and the choice among them. */
#include "cuda/registry.h"

#include <stdarg.h>
#include <stdio.h>

#define RUNS(family) .prepare = fhk_##family##_prepare, .workspace = fhk_##family##_workspace, .run = fhk_##family##_run
#define ALIGNED(q, kv, out) .q_bytes = (q), .kv_bytes = (kv), .out_bytes = (out)
#define ANY_ALIGNMENT ALIGNED(1, 1, 1)
#define PORTABLE .capability = 80
#define SM90 .capability = 90, .exact = 1
#define HEADS_TO(n) .most_heads = (n)
#define COUNTS(least, most, keys) .narrowest = (least), .block = (most), .tile = (keys)

/* In order of preference for each path. cp.async copies 16 bytes from multiples of 16; the kernels of unaligned rows
 * load elements one by one. Devices without a padded kernel of their own run portable gather over h_pad heads: it
 * computes the zero heads too. */
static const fhk_kernel rows[] = {
    {"portable reference", FH_REFERENCE, PORTABLE, HEADS_TO(128), ANY_ALIGNMENT, RUNS(portable_reference),
     COUNTS(8, 8, 32)},

    {"sm90 padded", FH_PADDED, SM90, HEADS_TO(128), ALIGNED(16, 16, 16), RUNS(sm90_padded), COUNTS(64, 64, 64)},
    {"sm90 padded, unaligned out", FH_PADDED, SM90, HEADS_TO(128), ALIGNED(16, 16, 1), RUNS(sm90_padded),
     COUNTS(64, 64, 64)},
    {"sm90 padded, unaligned", FH_PADDED, SM90, HEADS_TO(128), ANY_ALIGNMENT, RUNS(sm90_padded_unaligned),
     COUNTS(64, 64, 64)},
    {"portable gather", FH_PADDED, PORTABLE, HEADS_TO(128), ALIGNED(4, 16, 16), RUNS(portable_gather),
     COUNTS(8, 32, 16)},
    {"portable gather, unaligned", FH_PADDED, PORTABLE, HEADS_TO(128), ANY_ALIGNMENT, RUNS(portable_gather),
     COUNTS(8, 32, 16)},

    {"sm90 gather", FH_GATHER, SM90, HEADS_TO(128), ALIGNED(16, 16, 4), RUNS(sm90_gather), COUNTS(8, 32, 64)},
    {"portable gather", FH_GATHER, PORTABLE, HEADS_TO(128), ALIGNED(4, 16, 16), RUNS(portable_gather),
     COUNTS(8, 32, 16)},
    {"portable gather, unaligned", FH_GATHER, PORTABLE, HEADS_TO(128), ANY_ALIGNMENT, RUNS(portable_gather),
     COUNTS(8, 32, 16)},

    {"sm90 packed", FH_PACKED, SM90, HEADS_TO(64), ALIGNED(16, 16, 16), RUNS(sm90_packed), COUNTS(64, 64, 64)},
    {"sm90 packed, unaligned out", FH_PACKED, SM90, HEADS_TO(64), ALIGNED(16, 16, 1), RUNS(sm90_packed),
     COUNTS(64, 64, 64)},
    {"sm90 packed, unaligned", FH_PACKED, SM90, HEADS_TO(64), ANY_ALIGNMENT, RUNS(sm90_packed_unaligned),
     COUNTS(64, 64, 64)},
};

enum { ROWS = sizeof rows / sizeof *rows };

const fhk_kernel *fhk_kernel_row(int32_t i) { return i >= 0 && i < ROWS ? &rows[i] : NULL; }

int fhk_kernel_runs_on(const fhk_kernel *kernel, const fhk_gpu *gpu) {
  return kernel->exact ? gpu->capability == kernel->capability && !gpu->portable_only
                       : gpu->capability >= kernel->capability;
}

/* Are the rows of an array that starts at p and steps by these strides, in elements of `size` bytes, on multiples of
 * `bytes`? */
static int aligned(const void *p, int64_t stride0, int64_t stride1, int64_t size, int64_t bytes) {
  return (int64_t)((uintptr_t)p % (uintptr_t)bytes) == 0 && stride0 % bytes * size % bytes == 0 &&
         stride1 % bytes * size % bytes == 0;
}

int fhk_kernel_takes(const fhk_kernel *kernel, const fhk_gpu *gpu, const fh_call *call, int32_t path) {
  const int64_t out_size = call->out_dtype == FH_F32 ? 4 : 2;
  return kernel->path == path && fhk_kernel_runs_on(kernel, gpu) && call->h_q <= kernel->most_heads &&
         aligned(call->q, call->q_stride_s, call->q_stride_h, 2, kernel->q_bytes) &&
         aligned(call->kv, call->kv_stride, 0, 2, kernel->kv_bytes) &&
         aligned(call->out, call->out_stride_s, call->out_stride_h, out_size, kernel->out_bytes);
}

const fhk_kernel *fhk_kernel_of(const fhk_gpu *gpu, const fh_call *call, int32_t path) {
  for (int32_t i = 0; i < ROWS; i++)
    if (fhk_kernel_takes(&rows[i], gpu, call, path)) return &rows[i];
  return NULL;
}

int32_t fhk_kernel_heads(const fhk_kernel *kernel, const fh_call *call) {
  const int32_t heads = kernel->path == FH_PADDED ? call->h_pad : call->h_q;
  int32_t width = kernel->narrowest;
  while (width < kernel->block && width < heads) width *= 2;
  return (heads + width - 1) / width * width;
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

/* Text that grows at its end and is cut where the room ends. */
typedef struct text {
  char *at;
  size_t room;
} text;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
add(text *t, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(t->at, t->room, format, arguments);
  va_end(arguments);
  const size_t wanted = length < 0 ? 0 : (size_t)length, taken = wanted < t->room ? wanted : t->room ? t->room - 1 : 0;
  t->at += taken;
  t->room -= taken;
}

static void add_capability(text *t, const fhk_kernel *k) {
  add(t, "compute capability %d.%d%s", k->capability / 10, k->capability % 10, k->exact ? "" : " and up");
}

/* What keeps the row from this device or these heads. */
static void add_missing(text *t, const fhk_kernel *k, const fhk_gpu *gpu, int32_t h_q) {
  if (k->exact ? gpu->capability != k->capability : gpu->capability < k->capability) add_capability(t, k);
  else if (!fhk_kernel_runs_on(k, gpu)) add(t, "the kernels that FEWHEAD_FORCE_PORTABLE=1 leaves out");
  else add(t, "a kernel for h_q %d", (int)h_q);
}

int fhk_offers(const fhk_gpu *gpu, int32_t path, int32_t h_q, char *why, size_t room) {
  const fhk_kernel *nearest = NULL; /* the row that lacks least: one that runs here, else the first */
  if (path == FH_AUTO) return 1;
  for (int32_t i = 0; i < ROWS; i++) {
    const int here = rows[i].path == path && fhk_kernel_runs_on(&rows[i], gpu);
    if (here && h_q <= rows[i].most_heads) return 1;
    if (rows[i].path == path && (!nearest || (here && !fhk_kernel_runs_on(nearest, gpu)))) nearest = &rows[i];
  }
  text t = {why, room};
  if (!nearest) {
    add(&t, "no kernel computes it");
    return 0;
  }
  add(&t, "required: compute capability %d.%d", gpu->capability / 10, gpu->capability % 10);
  if (h_q) add(&t, ", h_q %d", (int)h_q);
  add(&t, "; supported by %s: ", nearest->name);
  add_capability(&t, nearest);
  add(&t, ", h_q 1 .. %d; missing: ", (int)nearest->most_heads);
  add_missing(&t, nearest, gpu, h_q);
  return 0;
}
