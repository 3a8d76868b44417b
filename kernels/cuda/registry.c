/* The choice among the kernels of CUDA. */
#include "cuda/registry.h"

#include <stdarg.h>
#include <stdio.h>

/* The rows of every folder. */
#define FHK_ROWS(folder) extern const fhk_kernel fhk_rows_##folder[];
#include "kernels_cuda.h"
#undef FHK_ROWS
#define FHK_ROWS(folder) fhk_rows_##folder,
static const fhk_kernel *const folders[] = {
#include "kernels_cuda.h"
};
#undef FHK_ROWS
enum { FOLDERS = sizeof folders / sizeof *folders };

const fhk_kernel *fhk_kernel_row(int32_t i) {
  for (size_t f = 0; i >= 0 && f < FOLDERS; f++)
    for (const fhk_kernel *row = folders[f]; row->name; row++)
      if (i-- == 0) return row;
  return NULL;
}

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
  const fhk_kernel *best = NULL, *row;
  for (int32_t i = 0; (row = fhk_kernel_row(i)); i++)
    if ((!best || row->preference > best->preference) && fhk_kernel_takes(row, gpu, call, path)) best = row;
  return best;
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
  const fhk_kernel *nearest = NULL, *row; /* the row to name: the preferred row that runs on the device, else
                                             the preferred row */
  int nearest_here = 0;
  if (path == FH_AUTO) return 1;
  for (int32_t i = 0; (row = fhk_kernel_row(i)); i++) {
    if (row->path != path) continue;
    const int here = fhk_kernel_runs_on(row, gpu);
    if (here && h_q <= row->most_heads) return 1;
    if (nearest && here == nearest_here ? row->preference > nearest->preference : !nearest || here)
      nearest = row, nearest_here = here;
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
