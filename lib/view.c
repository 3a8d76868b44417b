/* Views: typed, strided windows on a buffer, filled, copied, and read and written in row-major order. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

int32_t fh_dtype_bytes(int32_t dtype) { return dtype == FH_BF16 ? 2 : dtype == FH_F32 || dtype == FH_I32 ? 4 : 0; }

fh_array fh_view_array(const fh_view *view, const char *name) {
  fh_array array = {.name = name,
                    .base = view->info.data,
                    .element_bytes = fh_dtype_bytes(view->info.dtype),
                    .rank = view->info.rank};
  for (int32_t i = 0; i < array.rank; i++) array.count[i] = view->info.shape[i], array.stride[i] = view->info.stride[i];
  return array;
}

/* Takes info with dtype, rank, shape, stride and offset set, and checks where the elements lie. */
static fh_status make(fh_buffer *buffer, fh_view_info *info, fh_view **view) {
  const int32_t bytes = fh_dtype_bytes(info->dtype);
  int64_t elements = 1, size, low, high, offset;
  for (int32_t i = 0; i < info->rank; i++)
    if (info->shape[i] == 0) elements = 0;
  for (int32_t i = 0; i < info->rank; i++)
    if (elements && __builtin_mul_overflow(elements, info->shape[i], &elements)) elements = INT64_MAX;
  if (__builtin_mul_overflow(elements, bytes, &size))
    return fh_fail(FH_ERR_SHAPE, "shape: more elements than 64 bits can count the bytes of");
  for (int32_t i = info->rank; i < FH_MAX_RANK; i++) info->shape[i] = 1, info->stride[i] = 0;
  info->struct_size = sizeof *info;
  info->data = NULL;
  if (elements) {
    fh_array array = {.name = "stride", .element_bytes = bytes, .rank = info->rank};
    for (int32_t i = 0; i < info->rank; i++) array.count[i] = info->shape[i], array.stride[i] = info->stride[i];
    const fh_status status = fh_array_extent(&array, &low, &high);
    if (status) return status;
    if (__builtin_mul_overflow(info->offset, bytes, &offset) || __builtin_add_overflow(low, offset, &low) ||
        __builtin_add_overflow(high, offset, &high) || low < 0 || (uint64_t)high > buffer->bytes)
      return fh_fail(FH_ERR_SHAPE,
                     "view: its elements would lie outside the buffer's %" PRIu64 " bytes (offset %" PRId64
                     " elements of %d bytes)",
                     buffer->bytes, info->offset, (int)bytes);
    info->data = buffer->base + offset;
    if ((uintptr_t)info->data & (uintptr_t)(bytes - 1))
      return fh_fail(FH_ERR_ALIGNMENT, "buffer: its base %p is not a multiple of the element's %d bytes",
                     (void *)buffer->base, (int)bytes);
  }
  fh_view *made = malloc(sizeof *made);
  if (!made) return fh_fail(FH_ERR_MEMORY, "view: the system refused %zu bytes for the handle", sizeof *made);
  atomic_fetch_add(&buffer->references, 1);
  made->buffer = buffer;
  made->info = *info;
  made->elements = elements;
  *view = made;
  return FH_OK;
}

fh_status fh_view_create(fh_buffer *buffer, int32_t dtype, int32_t rank, const int64_t *shape, const int64_t *stride,
                         int64_t offset, fh_view **view) {
  if (!buffer) return fh_fail_null("buffer");
  if (!shape) return fh_fail_null("shape");
  if (!view) return fh_fail_null("view");
  if (!fh_dtype_bytes(dtype))
    return fh_fail(FH_ERR_ARGUMENT, "dtype: got %d, wanted 1 (bf16), 2 (f32) or 3 (i32)", (int)dtype);
  if (rank < 1 || rank > FH_MAX_RANK)
    return fh_fail(FH_ERR_SHAPE, "rank: got %d, wanted 1 .. %d", (int)rank, (int)FH_MAX_RANK);
  fh_view_info info = {.dtype = dtype, .rank = rank, .offset = offset};
  int64_t contiguous = 1;
  for (int32_t i = rank; i-- > 0;) {
    if (shape[i] < 0) return fh_fail(FH_ERR_SHAPE, "shape[%d]: got %" PRId64 ", wanted >= 0", (int)i, shape[i]);
    info.shape[i] = shape[i];
    info.stride[i] = stride ? stride[i] : contiguous;
    if (!stride && i > 0 && __builtin_mul_overflow(contiguous, shape[i] ? shape[i] : 1, &contiguous))
      return fh_fail(FH_ERR_SHAPE, "shape: its contiguous strides leave 64 bits");
  }
  return make(buffer, &info, view);
}

fh_status fh_view_slice(const fh_view *view, int32_t dim, int64_t first, int64_t count, int64_t step, fh_view **slice) {
  if (!view) return fh_fail_null("view");
  if (!slice) return fh_fail_null("slice");
  fh_view_info info = view->info;
  if (dim < 0 || dim >= info.rank)
    return fh_fail(FH_ERR_SHAPE, "dim: got %d, wanted 0 .. %d", (int)dim, (int)info.rank - 1);
  if (step == 0) return fh_fail(FH_ERR_ARGUMENT, "step: got 0, wanted another number");
  const int64_t size = info.shape[dim];
  int64_t last = first;
  if (count < 0) return fh_fail(FH_ERR_SHAPE, "count: got %" PRId64 ", wanted >= 0", count);
  if (count > 0 && (__builtin_mul_overflow(count - 1, step, &last) || __builtin_add_overflow(first, last, &last)))
    last = -1;
  if (first < 0 || first > size || (count > 0 && (first == size || last < 0 || last >= size)))
    return fh_fail(FH_ERR_SHAPE,
                   "slice: got %" PRId64 " elements from %" PRId64 " in steps of %" PRId64
                   ", wanted them within the %" PRId64 " of dimension %d",
                   count, first, step, size, (int)dim);
  int64_t skipped;
  if (__builtin_mul_overflow(info.stride[dim], step, &info.stride[dim])) {
    if (count > 1) return fh_fail(FH_ERR_STRIDE, "step: got %" PRId64 ", which takes the stride out of 64 bits", step);
    info.stride[dim] = 0; /* of one element or none: never taken */
  }
  if (view->elements && count > 0 &&
      (__builtin_mul_overflow(first, view->info.stride[dim], &skipped) ||
       __builtin_add_overflow(info.offset, skipped, &info.offset)))
    return fh_fail(FH_ERR_STRIDE, "first: got %" PRId64 ", which takes the offset out of 64 bits", first);
  info.shape[dim] = count;
  return make(view->buffer, &info, slice);
}

void fh_view_free(fh_view **view) {
  if (!view || !*view) return;
  fh_buffer_free(&(*view)->buffer);
  free(*view);
  *view = NULL;
}

fh_status fh_view_get_info(const fh_view *view, fh_view_info *info) {
  if (!view) return fh_fail_null("view");
  return fh_struct_out("fh_view_info", info, FH_UP_TO(fh_view_info, dtype), &view->info, sizeof view->info);
}

/* ---- Contents ---------------------------------------------------------------------------------------------------- */

/* Rounds a double to the nearest bf16, ties to even, in one rounding: a float that is rounded to odd keeps the
 * information that lies beyond its bits. */
static uint16_t bf16_of(double x) {
  union {
    float f;
    uint32_t u;
  } v = {(float)x};
  if (!isnan(x) && (double)v.f != x) {
    if (fabs((double)v.f) > fabs(x)) v.u--;
    v.u |= 1;
  }
  return fh_bf16(v.f);
}

fh_status fh_view_fill(fh_view *view, double value) {
  if (!view) return fh_fail_null("view");
  uint32_t bits;
  if (view->info.dtype == FH_I32) {
    if (!(value >= INT32_MIN && value <= INT32_MAX && value == floor(value)))
      return fh_fail(FH_ERR_ARGUMENT, "value: got %.17g, wanted a whole number in %d .. %d for an i32 view", value,
                     INT32_MIN, INT32_MAX);
    bits = (uint32_t)(int32_t)value;
  } else if (view->info.dtype == FH_F32) {
    const union {
      float f;
      uint32_t u;
    } v = {(float)value};
    bits = v.u;
  } else {
    bits = bf16_of(value);
  }
  return view->elements ? view->buffer->device->back_end->view_fill(view, bits) : FH_OK;
}

/* The host side must hold the elements exactly, and must not be the view's own memory. */
static fh_status check_host(const fh_view *view, const char *name, const void *host, uint64_t bytes) {
  if (!view) return fh_fail_null("view");
  const int32_t element = fh_dtype_bytes(view->info.dtype);
  const uint64_t wanted = (uint64_t)view->elements * (uint64_t)element;
  if (bytes != wanted)
    return fh_fail(FH_ERR_SHAPE, "bytes: got %" PRIu64 ", wanted %" PRIu64 ", %" PRId64 " elements of %d bytes", bytes,
                   wanted, view->elements, (int)element);
  if (!bytes) return FH_OK;
  if (!host) return fh_fail_null(name);
  const fh_array mine = fh_view_array(view, "view");
  const fh_array other = {
      .name = name, .base = host, .element_bytes = 1, .rank = 1, .count = {(int64_t)bytes}, .stride = {1}};
  if (!fh_arrays_disjoint(&mine, &other)) return fh_fail(FH_ERR_OVERLAP, "%s: its memory overlaps the view's", name);
  return FH_OK;
}

fh_status fh_view_write(fh_view *view, const void *src, uint64_t bytes) {
  const fh_status status = check_host(view, "src", src, bytes);
  if (status || !bytes) return status;
  return view->buffer->device->back_end->view_write(view, src);
}

fh_status fh_view_read(const fh_view *view, void *dst, uint64_t bytes) {
  const fh_status status = check_host(view, "dst", dst, bytes);
  if (status || !bytes) return status;
  return view->buffer->device->back_end->view_read(view, dst);
}

/* Between devices the elements go through host memory. */
static fh_status copy_through_host(const fh_view *dst, const fh_view *src) {
  const size_t bytes = (size_t)dst->elements * sizeof(uint32_t); /* the widest dtype */
  void *staged = malloc(bytes);
  if (!staged) return fh_fail(FH_ERR_MEMORY, "src: the system refused %zu bytes to bring it to another device", bytes);
  fh_status status = src->buffer->device->back_end->view_read(src, staged);
  if (!status) status = dst->buffer->device->back_end->view_write(dst, staged);
  free(staged);
  return status;
}

fh_status fh_view_copy(fh_view *dst, const fh_view *src) {
  if (!dst) return fh_fail_null("dst");
  if (!src) return fh_fail_null("src");
  const fh_view_info *d = &dst->info, *s = &src->info;
  if (d->dtype != s->dtype)
    return fh_fail(FH_ERR_ARGUMENT, "src: got dtype %d, wanted dst's %d", (int)s->dtype, (int)d->dtype);
  if (d->rank != s->rank) return fh_fail(FH_ERR_SHAPE, "src: got rank %d, wanted dst's %d", (int)s->rank, (int)d->rank);
  for (int32_t i = 0; i < d->rank; i++)
    if (d->shape[i] != s->shape[i])
      return fh_fail(FH_ERR_SHAPE, "src: got %" PRId64 " elements in dimension %d, wanted dst's %" PRId64, s->shape[i],
                     (int)i, d->shape[i]);
  if (!dst->elements) return FH_OK;
  const fh_array to = fh_view_array(dst, "dst"), from = fh_view_array(src, "src");
  if (!fh_arrays_disjoint(&to, &from)) return fh_fail(FH_ERR_OVERLAP, "dst: its memory overlaps src's");
  if (!fh_device_same(dst->buffer->device, src->buffer->device)) return copy_through_host(dst, src);
  return dst->buffer->device->back_end->view_copy(dst, src);
}
