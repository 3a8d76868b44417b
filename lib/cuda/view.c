/* Views in the memory of CUDA devices: set and copied by kernels, staged side by side on their way to and from the
 * host. */
#include "cuda/views.h"
#include "cuda_back_end.h"

static fhk_elements elements_of(const fh_view *view) {
  fhk_elements e = {.data = view->info.data,
                    .count = view->elements,
                    .element_bytes = fh_dtype_bytes(view->info.dtype),
                    .dtype = view->info.dtype};
  for (int i = 0; i < FH_MAX_RANK; i++) e.shape[i] = view->info.shape[i], e.stride[i] = view->info.stride[i];
  return e;
}

/* Describes the same elements, contiguous at `data`. */
static fhk_elements packed_at(const fhk_elements *elements, void *data) {
  fhk_elements e = *elements;
  e.data = data;
  int64_t step = 1;
  for (int i = FH_MAX_RANK; i-- > 0; step *= e.shape[i]) e.stride[i] = step;
  return e;
}

static int is_packed(const fhk_elements *elements) {
  const fhk_elements packed = packed_at(elements, elements->data);
  for (int i = 0; i < FH_MAX_RANK; i++)
    if (elements->shape[i] > 1 && elements->stride[i] != packed.stride[i]) return 0;
  return 1;
}

/* Kernels write in no fixed order, so the last of several elements that share memory would not stay. */
static fh_status check_distinct(const fh_view *view) {
  const fh_array array = fh_view_array(view, "view");
  if (fh_array_distinct(&array)) return FH_OK;
  return fh_fail(FH_ERR_UNSUPPORTED, "view: its elements share memory; on CUDA only fh_view_fill sets such a view");
}

static fh_status finish(const fh_view *view, int code, const char *kernel) {
  fh_status status = fh_cuda_status(code, kernel);
  if (!status) status = FH_CUDA(cudaStreamSynchronize, fh_cuda_of(view->buffer->device)->stream);
  return fh_cuda_leave(status);
}

fh_status fh_cuda_view_fill(const fh_view *view, uint32_t bits) {
  const fhk_elements to = elements_of(view);
  const fh_status status = fh_cuda_enter(view->buffer->device);
  if (status) return status;
  return finish(view, fhk_views_fill(&to, bits, fh_cuda_of(view->buffer->device)->stream), "fill kernel");
}

fh_status fh_cuda_view_random(const fh_view *view, const fh_generator *g) {
  const fhk_elements to = elements_of(view);
  const fhk_random random = {.seed = g->seed,
                             .stream = g->stream,
                             .width = g->width,
                             .dist = g->dist,
                             .low = g->low,
                             .a = g->a,
                             .scale = g->scale};
  fh_status status;
  if ((status = check_distinct(view)) || (status = fh_cuda_enter(view->buffer->device))) return status;
  return finish(view, fhk_views_random(&to, &random, fh_cuda_of(view->buffer->device)->stream), "random kernel");
}

fh_status fh_cuda_view_copy(const fh_view *dst, const fh_view *src) {
  const fhk_elements to = elements_of(dst), from = elements_of(src);
  fh_status status;
  if ((status = check_distinct(dst)) || (status = fh_cuda_enter(dst->buffer->device))) return status;
  return finish(dst, fhk_views_copy(&to, &from, fh_cuda_of(dst->buffer->device)->stream), "copy kernel");
}

/* ---- To and from the host ---------------------------------------------------------------------------------------- */

/* Elements of a view that follow each other in row-major order and fit in the scratch memory, one piece after the
 * other. */
typedef struct pieces {
  const fhk_elements *all;
  int split;     /* dimensions before it are taken one index at a time, it by runs, those after it whole */
  int64_t run;   /* indices of the split dimension in a piece */
  int64_t outer; /* indices of the dimensions before it, together */
  int64_t at_outer, at_split;
} pieces;

static pieces pieces_of(const fhk_elements *all, int64_t most) {
  pieces p = {.all = all, .run = all->shape[0], .outer = 1};
  int64_t within = all->count / all->shape[0]; /* elements of one index of the split dimension */
  while (within > most) {
    p.outer *= all->shape[p.split++];
    within /= all->shape[p.split];
  }
  p.run = most / within;
  return p;
}

/* Returns 1 and sets the next piece; returns 0 after the last piece. */
static int next_piece(pieces *p, fhk_elements *piece) {
  if (p->at_outer == p->outer) return 0;
  const int64_t size = p->all->shape[p->split], left = size - p->at_split;
  *piece = *p->all;
  int64_t offset = p->at_split * piece->stride[p->split], rest = p->at_outer;
  for (int i = p->split; i-- > 0; rest /= p->all->shape[i]) {
    offset += rest % p->all->shape[i] * piece->stride[i];
    piece->shape[i] = 1;
  }
  piece->shape[p->split] = left < p->run ? left : p->run;
  piece->data = (unsigned char *)piece->data + offset * piece->element_bytes;
  piece->count = 1;
  for (int i = 0; i < FH_MAX_RANK; i++) piece->count *= piece->shape[i];
  p->at_split += piece->shape[p->split];
  if (p->at_split == size) p->at_split = 0, p->at_outer++;
  return 1;
}

typedef enum direction { TO_VIEW, FROM_VIEW } direction;

/* Piece by piece through the scratch memory; the stream keeps a piece from overtaking the one before. */
static fh_status move_staged(fh_cuda *cuda, const fhk_elements *all, unsigned char *host, direction way) {
  pieces left = pieces_of(all, (int64_t)(cuda->scratch_bytes / (uint64_t)all->element_bytes));
  fhk_elements piece;
  fh_status status = FH_OK;
  while (!status && next_piece(&left, &piece)) {
    const fhk_elements staged = packed_at(&piece, cuda->scratch);
    const size_t bytes = (size_t)piece.count * (size_t)piece.element_bytes;
    if (way == TO_VIEW) {
      status = FH_CUDA(cudaMemcpyAsync, cuda->scratch, host, bytes, cudaMemcpyDefault, cuda->stream);
      if (!status) status = fh_cuda_status(fhk_views_copy(&piece, &staged, cuda->stream), "copy kernel");
    } else {
      status = fh_cuda_status(fhk_views_copy(&staged, &piece, cuda->stream), "copy kernel");
      if (!status) status = FH_CUDA(cudaMemcpyAsync, host, cuda->scratch, bytes, cudaMemcpyDefault, cuda->stream);
    }
    host += bytes;
  }
  return status ? status : FH_CUDA(cudaStreamSynchronize, cuda->stream);
}

static fh_status move(const fh_view *view, void *host, direction way) {
  fh_device *device = view->buffer->device;
  const fhk_elements all = elements_of(view);
  const uint64_t bytes = (uint64_t)all.count * (uint64_t)all.element_bytes;
  if (is_packed(&all))
    return way == TO_VIEW ? fh_cuda_write(device, all.data, host, bytes) : fh_cuda_read(device, all.data, host, bytes);
  fh_cuda *cuda = fh_cuda_of(device);
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  pthread_mutex_lock(&cuda->scratch_lock);
  status = move_staged(cuda, &all, host, way);
  pthread_mutex_unlock(&cuda->scratch_lock);
  return fh_cuda_leave(status);
}

fh_status fh_cuda_view_write(const fh_view *view, const void *src) {
  const fh_status status = check_distinct(view);
  return status ? status : move(view, (void *)(uintptr_t)src, TO_VIEW);
}

fh_status fh_cuda_view_read(const fh_view *view, void *dst) { return move(view, dst, FROM_VIEW); }
