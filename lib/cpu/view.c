/* Views in host memory: walked in row-major order, stretch by stretch on all threads. */
#include <string.h>

#include "cpu_back_end.h"

/* ---- Walking a view in row-major order --------------------------------------------------------------------------- */

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
  for (int32_t i = w->rank; i-- > 0; rest /= w->shape[i])
    index[i] = rest % w->shape[i], offset += index[i] * w->stride[i];
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

/* ---- Setting a view ---------------------------------------------------------------------------------------------- */

typedef struct setting {
  walk to;
  int64_t elements;
  fh_cpu_make *make;
  void *arg;
} setting;

static void set_stretch(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  const setting *set = arg;
  const int64_t first = item * FH_CPU_STRETCH, left = set->elements - first,
                n = left < FH_CPU_STRETCH ? left : FH_CPU_STRETCH;
  _Alignas(64) unsigned char staged[FH_CPU_STRETCH * 4];
  set->make(set->arg, first, n, staged);
  move(&set->to, first, n, staged, TO_VIEW);
}

/* Set every element: make(arg, first, n, staged) writes elements first .. first + n - 1, n <= FH_CPU_STRETCH. Elements
 * that share memory keep the last one's value. */
static fh_status set(const fh_view *view, fh_cpu_make *make, void *arg) {
  setting all = {.to = walk_of(view), .elements = view->elements, .make = make, .arg = arg};
  const int64_t stretches = (view->elements - 1) / FH_CPU_STRETCH + 1;
  const fh_array array = fh_view_array(view, "view");
  if (fh_array_distinct(&array)) fhk_cpu_parallel(fh_cpu(view->buffer->device), stretches, set_stretch, &all);
  else
    for (int64_t i = 0; i < stretches; i++) set_stretch(&all, i, 0); /* in order, so that the last one stays */
  return FH_OK;
}

typedef struct constant {
  int32_t bytes;
  uint32_t bits;
} constant;

static void make_constant(void *arg, int64_t first, int64_t n, void *staged) {
  (void)first;
  const constant *c = arg;
  if (c->bytes == 2)
    for (int64_t i = 0; i < n; i++) ((uint16_t *)staged)[i] = (uint16_t)c->bits;
  else
    for (int64_t i = 0; i < n; i++) ((uint32_t *)staged)[i] = c->bits;
}

fh_status fh_cpu_view_fill(const fh_view *view, uint32_t bits) {
  constant c = {fh_dtype_bytes(view->info.dtype), bits};
  return set(view, make_constant, &c);
}

fh_status fh_cpu_view_random(const fh_view *view, const fh_generator *generator) {
  fh_generator own = *generator;
  return set(view, fh_cpu_random_maker(view->buffer->device->info.isa), &own);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

typedef struct reading {
  walk from;
  unsigned char *host;
  int64_t elements;
} reading;

static void read_stretch(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  const reading *r = arg;
  const int64_t first = item * FH_CPU_STRETCH, left = r->elements - first;
  move(&r->from, first, left < FH_CPU_STRETCH ? left : FH_CPU_STRETCH, r->host + first * r->from.bytes, FROM_VIEW);
}

static void make_from_host(void *arg, int64_t first, int64_t n, void *staged) {
  const reading *r = arg;
  memcpy(staged, r->host + first * r->from.bytes, (size_t)(n * r->from.bytes));
}

static void make_from_view(void *arg, int64_t first, int64_t n, void *staged) {
  const reading *r = arg;
  move(&r->from, first, n, staged, FROM_VIEW);
}

fh_status fh_cpu_view_write(const fh_view *view, const void *src) {
  reading r = {.from = walk_of(view), .host = (unsigned char *)(uintptr_t)src, .elements = view->elements};
  return set(view, make_from_host, &r);
}

fh_status fh_cpu_view_read(const fh_view *view, void *dst) {
  reading r = {.from = walk_of(view), .host = dst, .elements = view->elements};
  fhk_cpu_parallel(fh_cpu(view->buffer->device), (view->elements - 1) / FH_CPU_STRETCH + 1, read_stretch, &r);
  return FH_OK;
}

fh_status fh_cpu_view_copy(const fh_view *dst, const fh_view *src) {
  reading r = {.from = walk_of(src), .elements = src->elements};
  return set(dst, make_from_view, &r);
}
