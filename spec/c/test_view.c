/* Views: bounds of every kind of stride, slices, and element order in fill, read, write and copy. */
#include <math.h>
#include <stdlib.h>

#include "cpu/cpu_back_end.h"
#include "refuse.h"

static fh_view_info info_of(const fh_view *view) {
  fh_view_info info = {.struct_size = sizeof info};
  CHECK_INT(fh_view_get_info(view, &info), FH_OK);
  return info;
}

static fh_view *view_of(fh_buffer *buffer, int32_t dtype, int32_t rank, const int64_t *shape, const int64_t *stride,
                        int64_t offset) {
  fh_view *view = NULL;
  if (fh_view_create(buffer, dtype, rank, shape, stride, offset, &view)) {
    FAILED("no view");
    printf("    %s\n", fh_error());
  }
  return view;
}

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

static void creation(fh_buffer *buffer) {
  fh_view *view = view_of(buffer, FH_BF16, 3, SHAPE(4, 3, 5), NULL, 7);
  const fh_view_info info = info_of(view);
  CHECK_INT(info.dtype, FH_BF16);
  CHECK_INT(info.rank, 3);
  const int64_t shape[] = {4, 3, 5, 1}, stride[] = {15, 5, 1, 0};
  CHECK(memcmp(info.shape, shape, sizeof shape) == 0);
  CHECK(memcmp(info.stride, stride, sizeof stride) == 0);
  CHECK_INT(info.offset, 7);
  CHECK(info.data == (char *)fh_buffer_data(buffer) + 14);
  fh_view_info part = {.struct_size = offsetof(fh_view_info, shape), .shape = {-9}};
  CHECK_INT(fh_view_get_info(view, &part), FH_OK);
  CHECK_INT(part.rank, 3);
  CHECK_INT(part.shape[0], -9);
  fh_view_free(&view);
  CHECK(view == NULL);
  fh_view_free(&view);
  fh_view_free(NULL);

  CHECK_INT(fh_dtype_bytes(FH_BF16), 2);
  CHECK_INT(fh_dtype_bytes(FH_F32), 4);
  CHECK_INT(fh_dtype_bytes(FH_I32), 4);
  CHECK_INT(fh_dtype_bytes(0), 0);
  CHECK_INT(fh_dtype_bytes(4), 0);
}

/* The buffer holds 1000 bytes: 500 bf16, 250 f32. */
static void limits(fh_device *device, fh_buffer *buffer) {
  static const struct {
    int32_t dtype, rank;
    int64_t shape[4], stride[4], offset;
    int32_t want;
  } cases[] = {
      {FH_BF16, 1, {500}, {1}, 0, FH_OK},
      {FH_BF16, 1, {501}, {1}, 0, FH_ERR_SHAPE},
      {FH_BF16, 1, {500}, {1}, 1, FH_ERR_SHAPE},
      {FH_BF16, 1, {1}, {1}, -1, FH_ERR_SHAPE},
      {FH_BF16, 1, {500}, {-1}, 499, FH_OK},
      {FH_BF16, 1, {500}, {-1}, 498, FH_ERR_SHAPE},
      {FH_BF16, 1, {INT64_MAX / 2}, {0}, 499, FH_OK},
      {FH_BF16, 1, {INT64_MAX}, {0}, 499, FH_ERR_SHAPE},
      {FH_F32, 2, {5, 10}, {-50, 25}, 200, FH_ERR_SHAPE},
      {FH_F32, 2, {5, 2}, {-50, 25}, 200, FH_OK},
      {FH_F32, 2, {5, 2}, {-50, 50}, 200, FH_ERR_SHAPE},
      {FH_I32, 1, {0}, {1}, 999999, FH_OK},
      {FH_I32, 3, {7, 0, INT64_MAX}, {INT64_MAX, INT64_MIN, 1}, INT64_MIN, FH_OK},
      {FH_I32, 1, {1}, {INT64_MAX}, 249, FH_OK},
      {FH_I32, 1, {2}, {INT64_MAX}, 0, FH_ERR_STRIDE},
      {FH_I32, 1, {2}, {INT64_MIN}, 0, FH_ERR_STRIDE},
      {FH_I32, 1, {3}, {INT64_MAX}, 0, FH_ERR_STRIDE},
      {FH_I32, 2, {2, 2}, {INT64_MAX, INT64_MAX}, 0, FH_ERR_STRIDE},
      {FH_I32, 1, {1}, {1}, INT64_MAX, FH_ERR_SHAPE},
      {FH_I32, 1, {1}, {1}, INT64_MIN, FH_ERR_SHAPE},
      {FH_I32, 2, {INT64_MAX, 2}, {0, 0}, 0, FH_ERR_SHAPE},
      {FH_I32, 4, {INT64_MAX, INT64_MAX, INT64_MAX, 0}, {0, 0, 0, 0}, 0, FH_OK},
      {FH_I32, 2, {4, -1}, {1, 1}, 0, FH_ERR_SHAPE},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fh_view *view = NULL;
    const fh_status got =
        fh_view_create(buffer, cases[i].dtype, cases[i].rank, cases[i].shape, cases[i].stride, cases[i].offset, &view);
    if (got != cases[i].want) printf("    case %zu: %s\n", i, fh_error());
    CHECK_INT(got, cases[i].want);
    CHECK((got == FH_OK) == (view != NULL));
    fh_view_free(&view);
  }

  fh_view *view = NULL;
  REFUSED(fh_view_create(buffer, FH_F32, 1, SHAPE(251), NULL, 0, &view), FH_ERR_SHAPE,
          "view: its elements would lie outside the buffer's 1000 bytes (offset 0 elements of 4 bytes)");
  REFUSED(fh_view_create(buffer, FH_F32, 2, SHAPE(3, -2), NULL, 0, &view), FH_ERR_SHAPE,
          "shape[1]: got -2, wanted >= 0");
  REFUSED(fh_view_create(buffer, FH_F32, 0, SHAPE(1), NULL, 0, &view), FH_ERR_SHAPE, "rank: got 0, wanted 1 .. 4");
  REFUSED(fh_view_create(buffer, FH_F32, 5, SHAPE(1, 1, 1, 1, 1), NULL, 0, &view), FH_ERR_SHAPE,
          "rank: got 5, wanted 1 .. 4");
  REFUSED(fh_view_create(buffer, 9, 1, SHAPE(1), NULL, 0, &view), FH_ERR_ARGUMENT,
          "dtype: got 9, wanted 1 (bf16), 2 (f32) or 3 (i32)");
  REFUSED(fh_view_create(buffer, FH_F32, 3, SHAPE(0, INT64_MAX, 2), NULL, 0, &view), FH_ERR_SHAPE,
          "shape: its contiguous strides leave 64 bits");
  REFUSED(fh_view_create(buffer, FH_F32, 1, SHAPE(INT64_MAX), NULL, 0, &view), FH_ERR_SHAPE,
          "shape: more elements than 64 bits can count the bytes of");
  REFUSED(fh_view_create(NULL, FH_F32, 1, SHAPE(1), NULL, 0, &view), FH_ERR_ARGUMENT,
          "buffer: got NULL, wanted a pointer");
  REFUSED(fh_view_create(buffer, FH_F32, 1, NULL, NULL, 0, &view), FH_ERR_ARGUMENT,
          "shape: got NULL, wanted a pointer");
  REFUSED(fh_view_create(buffer, FH_F32, 1, SHAPE(1), NULL, 0, NULL), FH_ERR_ARGUMENT,
          "view: got NULL, wanted a pointer");
  CHECK(view == NULL);

  fh_buffer *odd = NULL;
  CHECK_INT(fh_buffer_wrap(device, (char *)fh_buffer_data(buffer) + 2, 100, &odd), FH_OK);
  REFUSED(fh_view_create(odd, FH_F32, 1, SHAPE(1), NULL, 0, &view), FH_ERR_ALIGNMENT,
          text_of("buffer: its base %p is not a multiple of the element's 4 bytes", fh_buffer_data(odd)));
  CHECK_INT(fh_view_create(odd, FH_BF16, 1, SHAPE(50), NULL, 0, &view), FH_OK);
  fh_view_free(&view);
  fh_buffer_free(&odd);

  view = view_of(buffer, FH_F32, 1, SHAPE(0), NULL, 0);
  CHECK(info_of(view).data == NULL);
  fh_view_free(&view);
}

static void slices(fh_buffer *buffer) {
  int32_t numbers[60], got[60];
  fh_view *all = view_of(buffer, FH_I32, 3, SHAPE(3, 4, 5), NULL, 2), *view = NULL, *again = NULL;
  for (int i = 0; i < 60; i++) numbers[i] = i;
  CHECK_INT(fh_view_write(all, numbers, sizeof numbers), FH_OK);

  CHECK_INT(fh_view_slice(all, 1, 1, 2, 2, &view), FH_OK); /* rows 1 and 3 */
  CHECK_INT(fh_view_read(view, got, 3 * 2 * 5 * 4), FH_OK);
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < 2; j++)
      for (int k = 0; k < 5; k++) CHECK_INT(got[(i * 2 + j) * 5 + k], i * 20 + (1 + 2 * j) * 5 + k);
  CHECK_INT(fh_view_slice(view, 2, 4, 5, -1, &again), FH_OK); /* columns backwards, of the slice */
  fh_view_free(&view);
  CHECK_INT(fh_view_read(again, got, 3 * 2 * 5 * 4), FH_OK);
  for (int i = 0; i < 30; i++) CHECK_INT(got[i], i / 10 * 20 + (1 + 2 * (i / 5 % 2)) * 5 + 4 - i % 5);
  fh_view_free(&again);

  CHECK_INT(fh_view_slice(all, 0, 3, 0, 1, &view), FH_OK);
  CHECK_INT(info_of(view).shape[0], 0);
  CHECK(info_of(view).data == NULL);
  CHECK_INT(fh_view_slice(view, 1, 2, 1, 1, &again), FH_OK);
  fh_view_free(&again);
  fh_view_free(&view);
  CHECK_INT(fh_view_slice(all, 0, 2, 1, INT64_MAX, &view), FH_OK); /* a step that is never taken */
  CHECK_INT(fh_view_read(view, got, 80), FH_OK);
  CHECK_INT(got[0], 40);
  fh_view_free(&view);

  REFUSED(fh_view_slice(all, 3, 0, 1, 1, &view), FH_ERR_SHAPE, "dim: got 3, wanted 0 .. 2");
  REFUSED(fh_view_slice(all, -1, 0, 1, 1, &view), FH_ERR_SHAPE, "dim: got -1, wanted 0 .. 2");
  REFUSED(fh_view_slice(all, 0, 0, 1, 0, &view), FH_ERR_ARGUMENT, "step: got 0, wanted another number");
  REFUSED(fh_view_slice(all, 0, 0, -1, 1, &view), FH_ERR_SHAPE, "count: got -1, wanted >= 0");
  REFUSED(fh_view_slice(all, 1, 2, 3, 1, &view), FH_ERR_SHAPE,
          "slice: got 3 elements from 2 in steps of 1, wanted them within the 4 of dimension 1");
  static const int64_t outside[][3] = {{-1, 1, 1},
                                       {4, 1, 1},
                                       {5, 0, 1},
                                       {-1, 0, 1},
                                       {0, 2, -1},
                                       {4, 2, -1},
                                       {3, 3, INT64_MIN},
                                       {1, INT64_MAX, INT64_MAX},
                                       {INT64_MAX, INT64_MAX, 1},
                                       {INT64_MIN, 1, 1}};
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
    CHECK_INT(fh_view_slice(all, 1, outside[i][0], outside[i][1], outside[i][2], &view), FH_ERR_SHAPE);
  REFUSED(fh_view_slice(NULL, 0, 0, 1, 1, &view), FH_ERR_ARGUMENT, "view: got NULL, wanted a pointer");
  REFUSED(fh_view_slice(all, 0, 0, 1, 1, NULL), FH_ERR_ARGUMENT, "slice: got NULL, wanted a pointer");
  CHECK(view == NULL);
  fh_view_free(&all);

  all = view_of(buffer, FH_I32, 1, SHAPE(INT64_MAX / 4), SHAPE(0), 0);
  CHECK_INT(fh_view_slice(all, 0, INT64_MAX / 4 - 1, 2, -(INT64_MAX / 4 - 1), &view),
            FH_OK); /* first and last of many */
  fh_view_free(&view);
  fh_view_free(&all);
}

static void fills(fh_buffer *buffer) {
  static const struct {
    int32_t dtype;
    double value;
    uint32_t bits;
  } cases[] = {
      {FH_F32, 1, 0x3f800000},
      {FH_F32, 0.1, 0x3dcccccd},
      {FH_F32, -0.0, 0x80000000},
      {FH_F32, 1 + 0x1p-24, 0x3f800000}, /* half way: to even */
      {FH_F32, 1 + 0x3p-24, 0x3f800002},
      {FH_F32, 1e39, 0x7f800000},
      {FH_F32, -INFINITY, 0xff800000},
      {FH_F32, 0x1p-149, 1},
      {FH_BF16, 1, 0x3f80},
      {FH_BF16, 1 + 0x1p-8, 0x3f80}, /* half way: to even */
      {FH_BF16, 1 + 0x3p-8, 0x3f82},
      {FH_BF16, 1 + 0x1p-8 + 0x1p-40, 0x3f81}, /* above half way by less than a float shows */
      {FH_BF16, 1 + 0x3p-8 - 0x1p-40, 0x3f81},
      {FH_BF16, -1 - 0x1p-8 - 0x1p-40, 0xbf81},
      {FH_BF16, 0x1.fep127, 0x7f7f}, /* the largest */
      {FH_BF16, 0x1.ff0p127, 0x7f80},
      {FH_BF16, 0x1.fefffffffp127, 0x7f7f},
      {FH_BF16, 1e300, 0x7f80},
      {FH_BF16, -INFINITY, 0xff80},
      {FH_BF16, 1e-300, 0},
      {FH_BF16, 0x1p-133, 1},
      {FH_I32, -2147483648.0, 0x80000000},
      {FH_I32, 2147483647.0, 0x7fffffff},
      {FH_I32, -1, 0xffffffff},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fh_view *view = view_of(buffer, cases[i].dtype, 2, SHAPE(5, 3), SHAPE(4, 1), 1);
    uint32_t wide[15];
    uint16_t narrow[15];
    CHECK_INT(fh_buffer_fill(buffer, 0x77), FH_OK);
    CHECK_INT(fh_view_fill(view, cases[i].value), FH_OK);
    if (cases[i].dtype == FH_BF16) {
      CHECK_INT(fh_view_read(view, narrow, sizeof narrow), FH_OK);
      for (int k = 0; k < 15; k++) wide[k] = narrow[k];
    } else {
      CHECK_INT(fh_view_read(view, wide, sizeof wide), FH_OK);
    }
    for (int k = 0; k < 15; k++) CHECK_INT(wide[k], cases[i].bits);
    /* what lies between the rows stays */
    const int32_t bytes = fh_dtype_bytes(cases[i].dtype);
    const unsigned char *base = fh_buffer_data(buffer);
    for (int k = 0; k < 1000; k++)
      if (k / bytes % 4 == 0 || k / bytes >= 20) CHECK_INT(base[k], 0x77);
    fh_view_free(&view);
  }
  fh_view *view = view_of(buffer, FH_F32, 1, SHAPE(1), NULL, 0);
  float value = 0;
  CHECK_INT(fh_view_fill(view, NAN), FH_OK);
  CHECK_INT(fh_view_read(view, &value, 4), FH_OK);
  CHECK(isnan(value));
  fh_view_free(&view);
  view = view_of(buffer, FH_BF16, 1, SHAPE(1), NULL, 0);
  uint16_t narrow = 0;
  CHECK_INT(fh_view_fill(view, NAN), FH_OK);
  CHECK_INT(fh_view_read(view, &narrow, 2), FH_OK);
  CHECK(isnan(fh_float(narrow)));
  fh_view_free(&view);

  view = view_of(buffer, FH_I32, 1, SHAPE(1), NULL, 0);
  REFUSED(fh_view_fill(view, 0.5), FH_ERR_ARGUMENT,
          "value: got 0.5, wanted a whole number in -2147483648 .. 2147483647 for an i32 view");
  static const double none[] = {2147483648.0, -2147483649.0, NAN, INFINITY, -INFINITY};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) CHECK_INT(fh_view_fill(view, none[i]), FH_ERR_ARGUMENT);
  fh_view_free(&view);
  REFUSED(fh_view_fill(NULL, 0), FH_ERR_ARGUMENT, "view: got NULL, wanted a pointer");
}

/* Row-major order of every element, for shapes and strides of all kinds, several chunks long, on several threads. */
static void order(fh_device *device) {
  static const struct {
    int32_t rank;
    int64_t shape[4], stride[4], offset;
  } cases[] = {
      {1, {20000}, {1}, 0},
      {1, {9000}, {-2}, 19000},
      {2, {100, 150}, {150, 1}, 0},
      {2, {150, 100}, {1, 150}, 0},
      {2, {9001, 2}, {2, 1}, 3},
      {2, {2, 9001}, {-9002, 1}, 9500},
      {3, {30, 20, 25}, {500, 25, 1}, 0},
      {3, {30, 1, 25}, {500, 12345, 1}, 0},
      {3, {30, 20, 25}, {1, 30, 600}, 0},
      {3, {8, 31, 40}, {-41, 400, 1}, 300},
      {4, {3, 5, 7, 11}, {1000, 100, 11, 1}, 0},
      {4, {1, 1, 1, 1}, {5, 6, 7, 8}, 19999},
      {4, {4, 1, 4097, 1}, {1, 0, 4, 0}, 0},
      {4, {6, 5, 4, 3}, {-3, -18, -90, -1}, 400},
  };
  enum { SIZE = 20000 };
  fh_buffer *buffer = NULL, *other = NULL;
  CHECK_INT(fh_buffer_alloc(device, SIZE * 4, &buffer), FH_OK);
  CHECK_INT(fh_buffer_alloc(device, SIZE * 4, &other), FH_OK);
  for (int32_t dtype = FH_BF16; dtype <= FH_I32; dtype++)
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
      const int32_t bytes = fh_dtype_bytes(dtype), rank = cases[n].rank;
      int64_t elements = 1;
      for (int32_t d = 0; d < rank; d++) elements *= cases[n].shape[d];
      fh_view *view = view_of(buffer, dtype, rank, cases[n].shape, cases[n].stride, cases[n].offset);
      fh_view *copy = view_of(other, dtype, rank, cases[n].shape, NULL, 0);
      unsigned char *host = malloc((size_t)(elements * bytes)), *back = malloc((size_t)(elements * bytes));
      for (int64_t i = 0; i < elements; i++) {
        const uint32_t value = (uint32_t)i * 7 + 1;
        memcpy(host + i * bytes, &value, (size_t)bytes);
      }
      CHECK_INT(fh_buffer_fill(buffer, 0), FH_OK);
      CHECK_INT(fh_view_write(view, host, (uint64_t)(elements * bytes)), FH_OK);
      const unsigned char *base = fh_buffer_data(buffer);
      int64_t wrong = 0, set = 0;
      for (int64_t i = 0; i < elements; i++) {
        int64_t rest = i, at = cases[n].offset;
        for (int32_t d = rank; d-- > 0; rest /= cases[n].shape[d]) at += rest % cases[n].shape[d] * cases[n].stride[d];
        wrong += memcmp(base + at * bytes, host + i * bytes, (size_t)bytes) != 0;
      }
      for (int64_t i = 0; i < SIZE * 4 / bytes; i++) {
        uint32_t value = 0;
        memcpy(&value, base + i * bytes, (size_t)bytes);
        set += value != 0;
      }
      CHECK_INT(wrong, 0);
      CHECK(set == elements || dtype == FH_BF16); /* nothing else was written; a bf16 pattern may be 0 itself */
      CHECK_INT(fh_view_read(view, back, (uint64_t)(elements * bytes)), FH_OK);
      CHECK(memcmp(host, back, (size_t)(elements * bytes)) == 0);
      CHECK_INT(fh_view_copy(copy, view), FH_OK);
      CHECK(memcmp(host, fh_buffer_data(other), (size_t)(elements * bytes)) == 0);
      CHECK_INT(fh_buffer_fill(buffer, 0), FH_OK);
      CHECK_INT(fh_view_copy(view, copy), FH_OK);
      CHECK_INT(fh_view_read(view, back, (uint64_t)(elements * bytes)), FH_OK);
      CHECK(memcmp(host, back, (size_t)(elements * bytes)) == 0);
      fh_view_free(&view);
      fh_view_free(&copy);
      free(host);
      free(back);
    }
  fh_buffer_free(&buffer);
  fh_buffer_free(&other);
}

/* Elements that share memory: the last one in row-major order stays, on any number of threads. The last one stands
 * alone behind whole chunks, many enough for every thread to take some: one that took it out of turn would be done
 * before those before it. */
static void shared_elements(fh_buffer *buffer) {
  enum { COUNT = 300 * FH_CPU_STRETCH + 1 };
  int32_t *host = malloc(COUNT * sizeof *host), last = 0;
  fh_view *shared = view_of(buffer, FH_I32, 1, SHAPE(COUNT), SHAPE(0), 3),
          *one = view_of(buffer, FH_I32, 1, SHAPE(1), NULL, 3);
  for (int i = 0; i < COUNT; i++) host[i] = i;
  for (int round = 0; round < 20; round++) {
    CHECK_INT(fh_view_fill(one, -1), FH_OK);
    CHECK_INT(fh_view_write(shared, host, COUNT * 4), FH_OK);
    CHECK_INT(fh_view_read(one, &last, 4), FH_OK);
    CHECK_INT(last, COUNT - 1);
  }
  fh_view_free(&shared);
  fh_view_free(&one);
  free(host);
}

static void copies(fh_buffer *buffer) {
  fh_view *view = view_of(buffer, FH_I32, 2, SHAPE(3, 4), NULL, 0), *other = NULL;
  int32_t host[12] = {0};
  REFUSED(fh_view_write(view, host, 44), FH_ERR_SHAPE, "bytes: got 44, wanted 48, 12 elements of 4 bytes");
  REFUSED(fh_view_read(view, host, 0), FH_ERR_SHAPE, "bytes: got 0, wanted 48, 12 elements of 4 bytes");
  REFUSED(fh_view_write(view, NULL, 48), FH_ERR_ARGUMENT, "src: got NULL, wanted a pointer");
  REFUSED(fh_view_read(view, NULL, 48), FH_ERR_ARGUMENT, "dst: got NULL, wanted a pointer");
  REFUSED(fh_view_write(NULL, host, 48), FH_ERR_ARGUMENT, "view: got NULL, wanted a pointer");
  REFUSED(fh_view_read(NULL, host, 48), FH_ERR_ARGUMENT, "view: got NULL, wanted a pointer");
  REFUSED(fh_view_write(view, (char *)fh_buffer_data(buffer) + 44, 48), FH_ERR_OVERLAP,
          "src: its memory overlaps the view's");
  REFUSED(fh_view_read(view, fh_buffer_data(buffer), 48), FH_ERR_OVERLAP, "dst: its memory overlaps the view's");
  REFUSED(fh_view_copy(NULL, view), FH_ERR_ARGUMENT, "dst: got NULL, wanted a pointer");
  REFUSED(fh_view_copy(view, NULL), FH_ERR_ARGUMENT, "src: got NULL, wanted a pointer");

  other = view_of(buffer, FH_F32, 2, SHAPE(3, 4), NULL, 20);
  REFUSED(fh_view_copy(view, other), FH_ERR_ARGUMENT, "src: got dtype 2, wanted dst's 3");
  fh_view_free(&other);
  other = view_of(buffer, FH_I32, 1, SHAPE(12), NULL, 20);
  REFUSED(fh_view_copy(view, other), FH_ERR_SHAPE, "src: got rank 1, wanted dst's 2");
  fh_view_free(&other);
  other = view_of(buffer, FH_I32, 2, SHAPE(3, 5), NULL, 20);
  REFUSED(fh_view_copy(view, other), FH_ERR_SHAPE, "src: got 5 elements in dimension 1, wanted dst's 4");
  fh_view_free(&other);
  other = view_of(buffer, FH_I32, 2, SHAPE(3, 4), NULL, 11);
  REFUSED(fh_view_copy(view, other), FH_ERR_OVERLAP, "dst: its memory overlaps src's");
  REFUSED(fh_view_copy(view, view), FH_ERR_OVERLAP, "dst: its memory overlaps src's");
  fh_view_free(&other);
  fh_view_free(&view);

  /* left and right half of the same rows */
  view = view_of(buffer, FH_I32, 2, SHAPE(3, 4), SHAPE(8, 1), 0);
  other = view_of(buffer, FH_I32, 2, SHAPE(3, 4), SHAPE(8, 1), 4);
  for (int i = 0; i < 12; i++) host[i] = i;
  CHECK_INT(fh_view_write(view, host, 48), FH_OK);
  CHECK_INT(fh_view_copy(other, view), FH_OK);
  memset(host, 0, sizeof host);
  CHECK_INT(fh_view_read(other, host, 48), FH_OK);
  for (int i = 0; i < 12; i++) CHECK_INT(host[i], i);
  fh_view_free(&other);
  fh_view_free(&view);

  view = view_of(buffer, FH_I32, 2, SHAPE(0, 4), NULL, 0);
  CHECK_INT(fh_view_write(view, NULL, 0), FH_OK);
  CHECK_INT(fh_view_read(view, NULL, 0), FH_OK);
  CHECK_INT(fh_view_fill(view, 1), FH_OK);
  CHECK_INT(fh_view_copy(view, view), FH_OK);
  fh_view_free(&view);
}

int main(void) {
  fh_device *device = open_cpu(3);
  fh_buffer *buffer = NULL;
  CHECK_INT(fh_buffer_alloc(device, 1000, &buffer), FH_OK);
  creation(buffer);
  limits(device, buffer);
  slices(buffer);
  fills(buffer);
  order(device);
  shared_elements(buffer);
  copies(buffer);
  fh_buffer_free(&buffer);
  fh_device_close(&device);
  return check_summary();
}
