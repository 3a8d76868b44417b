/* Views: typed, strided windows on a buffer, filled, copied, and read and written in row-major order. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

int32_t fh_dtype_bytes(int32_t dtype) {
  return dtype == FH_BF16 ? 2 : dtype == FH_F32 || dtype == FH_I32 ? 4 : 0;
}

fh_array fh_view_array(const fh_view *view, const char *name) {
  fh_array array = {.name = name, .base = view->info.data, .element_bytes = fh_dtype_bytes(view->info.dtype),
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
      return fh_fail(FH_ERR_ALIGNMENT, "buffer: its base %p is not a multiple of the element's %d bytes", (void *)buffer->base,
                     (int)bytes);
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
  if (!fh_dtype_bytes(dtype)) return fh_fail(FH_ERR_ARGUMENT, "dtype: got %d, wanted 1 (bf16), 2 (f32) or 3 (i32)", (int)dtype);
  if (rank < 1 || rank > FH_MAX_RANK) return fh_fail(FH_ERR_SHAPE, "rank: got %d, wanted 1 .. %d", (int)rank, (int)FH_MAX_RANK);
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
  if (dim < 0 || dim >= info.rank) return fh_fail(FH_ERR_SHAPE, "dim: got %d, wanted 0 .. %d", (int)dim, (int)info.rank - 1);
  if (step == 0) return fh_fail(FH_ERR_ARGUMENT, "step: got 0, wanted another number");
  const int64_t size = info.shape[dim];
  int64_t last = first;
  if (count < 0) return fh_fail(FH_ERR_SHAPE, "count: got %" PRId64 ", wanted >= 0", count);
  if (count > 0 && (__builtin_mul_overflow(count - 1, step, &last) || __builtin_add_overflow(first, last, &last))) last = -1;
  if (first < 0 || first > size || (count > 0 && (first == size || last < 0 || last >= size)))
    return fh_fail(FH_ERR_SHAPE,
                   "slice: got %" PRId64 " elements from %" PRId64 " in steps of %" PRId64 ", wanted them within the %" PRId64
                   " of dimension %d",
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
  return fh_struct_out("fh_view_info", info, offsetof(fh_view_info, rank), &view->info, sizeof view->info);
}

/* ---- Walking a view in row-major order ------------------------------------------------------------------------------------ */

/* A view with dimensions that continue each other joined, so that runs along the last one are long. */
typedef struct walk {
  unsigned char *data;
  int32_t rank, bytes;
  int64_t shape[FH_MAX_RANK], stride[FH_MAX_RANK];
} walk;

static walk walk_of(const fh_view *view) {
  walk w = {.data = view->info.data, .bytes = fh_dtype_bytes(view->info.dtype)};
  for (int32_t i = 0; i < view->info.rank; i++) {
    const int64_t count = view->info.shape[i], stride = view->info.stride[i];
    if (count == 1 && (w.rank || i + 1 < view->info.rank)) continue;
    int64_t whole;
    if (w.rank && !__builtin_mul_overflow(count, stride, &whole) && w.stride[w.rank - 1] == whole) {
      w.shape[w.rank - 1] *= count;
      w.stride[w.rank - 1] = stride;
    } else {
      w.shape[w.rank] = count;
      w.stride[w.rank++] = stride;
    }
  }
  return w;
}

typedef enum direction { TO_VIEW, FROM_VIEW } direction;

/* n elements of one run between the view, in steps of `stride`, and contiguous memory. */
static void move_run(unsigned char *at, int64_t stride, unsigned char *host, int64_t n, int32_t bytes, direction way) {
  if (stride == 1) {
    if (way == TO_VIEW) memcpy(at, host, (size_t)(n * bytes));
    else memcpy(host, at, (size_t)(n * bytes));
    return;
  }
  const int64_t step = stride * bytes;
  for (int64_t i = 0; i < n; i++) {
    unsigned char *element = at + i * step, *other = host + i * bytes;
    if (bytes == 2) memcpy(way == TO_VIEW ? element : other, way == TO_VIEW ? other : element, 2);
    else memcpy(way == TO_VIEW ? element : other, way == TO_VIEW ? other : element, 4);
  }
}

/* Elements first .. first + n - 1 of the view to or from contiguous memory. n > 0. */
static void move(const walk *w, int64_t first, int64_t n, void *host, direction way) {
  int64_t index[FH_MAX_RANK] = {0}, rest = first, offset = 0;
  for (int32_t i = w->rank; i-- > 0; rest /= w->shape[i]) index[i] = rest % w->shape[i], offset += index[i] * w->stride[i];
  const int32_t inner = w->rank - 1;
  unsigned char *to = host;
  for (;;) {
    const int64_t left = w->shape[inner] - index[inner], run = left < n ? left : n;
    move_run(w->data + offset * w->bytes, w->stride[inner], to, run, w->bytes, way);
    n -= run;
    if (!n) return;
    to += run * w->bytes;
    offset -= index[inner] * w->stride[inner];
    index[inner] = 0;
    for (int32_t i = inner; i-- > 0;) {
      offset += w->stride[i];
      if (++index[i] < w->shape[i]) break;
      offset -= index[i] * w->stride[i];
      index[i] = 0;
    }
  }
}

/* ---- Setting a view ------------------------------------------------------------------------------------------------------- */

typedef struct setting {
  walk to;
  int64_t elements;
  void (*make)(void *arg, int64_t first, int64_t n, void *staged);
  void *arg;
} setting;

static void set_chunk(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  const setting *set = arg;
  const int64_t first = item * FH_VIEW_CHUNK, left = set->elements - first, n = left < FH_VIEW_CHUNK ? left : FH_VIEW_CHUNK;
  _Alignas(64) unsigned char staged[FH_VIEW_CHUNK * 4];
  set->make(set->arg, first, n, staged);
  move(&set->to, first, n, staged, TO_VIEW);
}

void fh_view_set(const fh_view *view, void (*make_chunk)(void *arg, int64_t first, int64_t n, void *staged), void *arg) {
  if (!view->elements) return;
  setting set = {.to = walk_of(view), .elements = view->elements, .make = make_chunk, .arg = arg};
  const int64_t chunks = (view->elements - 1) / FH_VIEW_CHUNK + 1;
  const fh_array array = fh_view_array(view, "view");
  if (fh_array_distinct(&array)) fhk_cpu_parallel(view->buffer->device->cpu, chunks, set_chunk, &set);
  else
    for (int64_t i = 0; i < chunks; i++) set_chunk(&set, i, 0); /* in order, so that the last one stays */
}

/* Nearest even of a double, in one rounding: through a float rounded to odd, which keeps what lies beyond it. */
static uint16_t bf16_of(double x) {
  union { float f; uint32_t u; } v = {(float)x};
  if (!isnan(x) && (double)v.f != x) {
    if (fabs((double)v.f) > fabs(x)) v.u--;
    v.u |= 1;
  }
  return fh_bf16(v.f);
}

typedef struct constant { int32_t bytes; uint32_t bits; } constant;

static void make_constant(void *arg, int64_t first, int64_t n, void *staged) {
  (void)first;
  const constant *c = arg;
  if (c->bytes == 2)
    for (int64_t i = 0; i < n; i++) ((uint16_t *)staged)[i] = (uint16_t)c->bits;
  else
    for (int64_t i = 0; i < n; i++) ((uint32_t *)staged)[i] = c->bits;
}

fh_status fh_view_fill(fh_view *view, double value) {
  if (!view) return fh_fail_null("view");
  constant c = {.bytes = fh_dtype_bytes(view->info.dtype)};
  if (view->info.dtype == FH_I32) {
    if (!(value >= INT32_MIN && value <= INT32_MAX && value == floor(value)))
      return fh_fail(FH_ERR_ARGUMENT, "value: got %.17g, wanted a whole number in %d .. %d for an i32 view", value, INT32_MIN,
                     INT32_MAX);
    c.bits = (uint32_t)(int32_t)value;
  } else if (view->info.dtype == FH_F32) {
    const union { float f; uint32_t u; } v = {(float)value};
    c.bits = v.u;
  } else {
    c.bits = bf16_of(value);
  }
  fh_view_set(view, make_constant, &c);
  return FH_OK;
}

/* ---- Copies --------------------------------------------------------------------------------------------------------------- */

typedef struct reading {
  walk from;
  unsigned char *host;
  int64_t elements;
} reading;

static void read_chunk(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  const reading *r = arg;
  const int64_t first = item * FH_VIEW_CHUNK, left = r->elements - first;
  move(&r->from, first, left < FH_VIEW_CHUNK ? left : FH_VIEW_CHUNK, r->host + first * r->from.bytes, FROM_VIEW);
}

static void make_from_host(void *arg, int64_t first, int64_t n, void *staged) {
  const reading *r = arg;
  memcpy(staged, r->host + first * r->from.bytes, (size_t)(n * r->from.bytes));
}

static void make_from_view(void *arg, int64_t first, int64_t n, void *staged) {
  const reading *r = arg;
  move(&r->from, first, n, staged, FROM_VIEW);
}

/* The host side must hold the elements exactly, and must not be the view's own memory. */
static fh_status check_host(const fh_view *view, const char *name, const void *host, uint64_t bytes) {
  if (!view) return fh_fail_null("view");
  const int32_t element = fh_dtype_bytes(view->info.dtype);
  const uint64_t wanted = (uint64_t)view->elements * (uint64_t)element;
  if (bytes != wanted)
    return fh_fail(FH_ERR_SHAPE, "bytes: got %" PRIu64 ", wanted %" PRIu64 ", %" PRId64 " elements of %d bytes", bytes, wanted,
                   view->elements, (int)element);
  if (!bytes) return FH_OK;
  if (!host) return fh_fail_null(name);
  const fh_array mine = fh_view_array(view, "view");
  const fh_array other = {.name = name, .base = host, .element_bytes = 1, .rank = 1, .count = {(int64_t)bytes}, .stride = {1}};
  if (!fh_arrays_disjoint(&mine, &other)) return fh_fail(FH_ERR_OVERLAP, "%s: its memory overlaps the view's", name);
  return FH_OK;
}

fh_status fh_view_write(fh_view *view, const void *src, uint64_t bytes) {
  const fh_status status = check_host(view, "src", src, bytes);
  if (status || !bytes) return status;
  reading r = {.from = walk_of(view), .host = (unsigned char *)(uintptr_t)src, .elements = view->elements};
  fh_view_set(view, make_from_host, &r);
  return FH_OK;
}

fh_status fh_view_read(const fh_view *view, void *dst, uint64_t bytes) {
  const fh_status status = check_host(view, "dst", dst, bytes);
  if (status || !bytes) return status;
  reading r = {.from = walk_of(view), .host = dst, .elements = view->elements};
  fhk_cpu_parallel(view->buffer->device->cpu, (view->elements - 1) / FH_VIEW_CHUNK + 1, read_chunk, &r);
  return FH_OK;
}

fh_status fh_view_copy(fh_view *dst, const fh_view *src) {
  if (!dst) return fh_fail_null("dst");
  if (!src) return fh_fail_null("src");
  const fh_view_info *d = &dst->info, *s = &src->info;
  if (d->dtype != s->dtype) return fh_fail(FH_ERR_ARGUMENT, "src: got dtype %d, wanted dst's %d", (int)s->dtype, (int)d->dtype);
  if (d->rank != s->rank) return fh_fail(FH_ERR_SHAPE, "src: got rank %d, wanted dst's %d", (int)s->rank, (int)d->rank);
  for (int32_t i = 0; i < d->rank; i++)
    if (d->shape[i] != s->shape[i])
      return fh_fail(FH_ERR_SHAPE, "src: got %" PRId64 " elements in dimension %d, wanted dst's %" PRId64, s->shape[i], (int)i,
                     d->shape[i]);
  if (!dst->elements) return FH_OK;
  const fh_array to = fh_view_array(dst, "dst"), from = fh_view_array(src, "src");
  if (!fh_arrays_disjoint(&to, &from)) return fh_fail(FH_ERR_OVERLAP, "dst: its memory overlaps src's");
  reading r = {.from = walk_of(src), .elements = src->elements};
  fh_view_set(dst, make_from_view, &r);
  return FH_OK;
}
