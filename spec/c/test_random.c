/* Random numbers: the published generator, the formulas of the header, and independence of layout, threads and
 * instructions. */
#include <math.h>
#include <stdlib.h>

#include "cpu/cpu.h"
#include "internal.h"
#include "refuse.h"

/* The known answers that Random123 publishes for philox4x32-10 (counter, key, result). */
static void known_answers(void) {
  static const struct {
    uint64_t seed, stream, position;
    uint32_t want[4];
  } cases[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint32_t got[4];
    fh_philox(cases[i].seed, cases[i].stream, cases[i].position, got);
    for (int j = 0; j < 4; j++) CHECK_INT(got[j], cases[i].want[j]);
  }
  uint32_t words[3];
  CHECK_INT(fh_random_u32(0, 0, 1, 3, words), FH_OK);
  CHECK_INT(words[0], 0xe169c58d);
  CHECK_INT(words[2], 0x9b00dbd8);
}

static void words_of_host(void) {
  enum { N = 1000 };
  uint32_t all[N], part[N];
  const uint64_t far = UINT64_MAX - N + 1;
  for (int side = 0; side < 2; side++) {
    const uint64_t first = side ? far : 0;
    CHECK_INT(fh_random_u32(5, 6, first, N, all), FH_OK);
    int same = 1;
    for (uint64_t i = 0; i < N; i++) {
      uint32_t block[4];
      fh_philox(5, 6, (first + i) / 4, block);
      same &= all[i] == block[(first + i) % 4];
    }
    CHECK(same);
    for (uint64_t i = 0; i < 9; i++) {
      CHECK_INT(fh_random_u32(5, 6, first + i, N - i, part), FH_OK);
      CHECK(memcmp(all + i, part, (N - i) * 4) == 0);
    }
  }
  CHECK_INT(fh_random_u32(5, 6, 7, 0, NULL), FH_OK);
  REFUSED(fh_random_u32(5, 6, 7, 1, NULL), FH_ERR_ARGUMENT, "dst: got NULL, wanted a pointer");
  REFUSED(fh_random_u32(5, 6, UINT64_MAX, 2, all), FH_ERR_SHAPE,
          "n: got 2 words from 18446744073709551615, wanted them to end within 64 bits");
}

static fh_device *open_isa(int32_t threads, int32_t isa) {
  fh_device *device = NULL;
  const fh_device_options options = {sizeof options, threads, isa};
  CHECK_INT(fh_device_open("cpu", &options, &device), FH_OK);
  return device;
}

static fh_view *contiguous(fh_device *device, int32_t dtype, int64_t n) {
  fh_buffer *buffer = NULL;
  fh_view *view = NULL;
  CHECK_INT(fh_buffer_alloc(device, (uint64_t)n * (uint64_t)fh_dtype_bytes(dtype), &buffer), FH_OK);
  CHECK_INT(fh_view_create(buffer, dtype, 1, &n, NULL, 0, &view), FH_OK);
  fh_buffer_free(&buffer);
  return view;
}

static void *data_of(const fh_view *view) {
  fh_view_info info = {.struct_size = sizeof info};
  CHECK_INT(fh_view_get_info(view, &info), FH_OK);
  return info.data;
}

/* Every element from the header's formulas, one by one, for every instruction set that fills views. */
static void formulas(int32_t isa) {
  enum { N = 9000 };
  const uint64_t seed = 0x123456789abcdef, stream = 0xfedcba9876543210;
  const double a = 0.3, b = -1.7;
  fh_device *device = open_isa(2, isa);
  fh_view *f32 = contiguous(device, FH_F32, N), *bf16 = contiguous(device, FH_BF16, N),
          *i32 = contiguous(device, FH_I32, N);
  const float *x = data_of(f32);
  const uint16_t *h = data_of(bf16);
  const int32_t *k = data_of(i32);
  uint32_t *words = malloc(4 * N * sizeof *words);
  CHECK_INT(fh_random_u32(seed, stream, 0, 4 * N, words), FH_OK);

  CHECK_INT(fh_view_random(f32, FH_UNIFORM, seed, stream, a, b), FH_OK);
  CHECK_INT(fh_view_random(bf16, FH_UNIFORM, seed, stream, a, b), FH_OK);
  int wrong = 0;
  for (int i = 0; i < N; i++) {
    const float want = fmaf((float)(words[i] >> 8) * 0x1p-24f, (float)(b - a), (float)a);
    wrong += x[i] != want || h[i] != fh_bf16(want);
  }
  CHECK_INT(wrong, 0);

  CHECK_INT(fh_view_random(f32, FH_NORMAL, seed, stream, a, b), FH_OK);
  CHECK_INT(fh_view_random(bf16, FH_NORMAL, seed, stream, a, b), FH_OK);
  for (int i = 0; i < N; i++) {
    int32_t sum = -262140;
    for (int j = 0; j < 4; j++) sum += (int32_t)(words[4 * i + j] & 0xffff) + (int32_t)(words[4 * i + j] >> 16);
    const float z = (float)sum * 0x1.3988e2p-16f, want = fmaf((float)b, z, (float)a);
    wrong += x[i] != want || h[i] != fh_bf16(want);
  }
  CHECK_INT(wrong, 0);

  static const double ranges[][2] = {
      {-5, 7}, {0, 1}, {-2147483648.0, 2147483648.0}, {2147483646, 2147483648.0}, {0, 4194304}};
  for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
    CHECK_INT(fh_view_random(i32, FH_UNIFORM, seed, stream, ranges[r][0], ranges[r][1]), FH_OK);
    for (int i = 0; i < N; i++) {
      const double want = ranges[r][0] + floor((double)words[i] * (ranges[r][1] - ranges[r][0]) / 4294967296.0);
      wrong += (double)k[i] != want || k[i] < ranges[r][0] || k[i] >= ranges[r][1];
    }
    CHECK_INT(wrong, 0);
  }
  free(words);
  fh_view_free(&f32);
  fh_view_free(&bf16);
  fh_view_free(&i32);
  fh_device_close(&device);
}

/* The same numbers in the same row-major order through any strides, on 1 and on 3 threads. */
static void layouts(void) {
  enum { ROWS = 301, COLUMNS = 67, N = ROWS * COLUMNS };
  for (int32_t dtype = FH_BF16; dtype <= FH_I32; dtype++)
    for (int32_t threads = 1; threads <= 3; threads += 2) {
      const int32_t dist = dtype == FH_I32 ? FH_UNIFORM : FH_NORMAL;
      const size_t bytes = (size_t)N * (size_t)fh_dtype_bytes(dtype);
      fh_device *device = open_cpu(threads);
      fh_view *plain = contiguous(device, dtype, N), *turned = NULL, *odd = NULL;
      fh_buffer *buffer = NULL;
      const int64_t shape[] = {ROWS, COLUMNS}, columns_first[] = {1, ROWS}, backwards[] = {-2 * COLUMNS - 1, 2};
      CHECK_INT(fh_buffer_alloc(device, (uint64_t)3 * N * 4, &buffer), FH_OK);
      CHECK_INT(fh_view_create(buffer, dtype, 2, shape, columns_first, 0, &turned), FH_OK);
      CHECK_INT(fh_view_create(buffer, dtype, 2, shape, backwards, (ROWS - 1) * (2 * COLUMNS + 1), &odd), FH_OK);
      void *got = malloc(bytes);
      CHECK_INT(fh_view_random(plain, dist, 9, 1, -3, 2), FH_OK);
      CHECK_INT(fh_view_random(turned, dist, 9, 1, -3, 2), FH_OK);
      CHECK_INT(fh_view_read(turned, got, bytes), FH_OK);
      CHECK(memcmp(got, data_of(plain), bytes) == 0);
      CHECK_INT(fh_view_random(odd, dist, 9, 1, -3, 2), FH_OK);
      CHECK_INT(fh_view_read(odd, got, bytes), FH_OK);
      CHECK(memcmp(got, data_of(plain), bytes) == 0);
      CHECK_INT(fh_view_random(odd, dist, 9, 2, -3, 2), FH_OK); /* another stream, another sequence */
      CHECK_INT(fh_view_read(odd, got, bytes), FH_OK);
      CHECK(memcmp(got, data_of(plain), bytes) != 0);
      CHECK_INT(fh_view_random(odd, dist, 8, 1, -3, 2), FH_OK);
      CHECK_INT(fh_view_read(odd, got, bytes), FH_OK);
      CHECK(memcmp(got, data_of(plain), bytes) != 0);
      free(got);
      fh_view_free(&plain);
      fh_view_free(&turned);
      fh_view_free(&odd);
      fh_buffer_free(&buffer);
      fh_device_close(&device);
    }
}

/* Mean, deviation, kurtosis and bounds of a million draws, within five standard errors. */
static void moments(void) {
  enum { N = 1 << 20 };
  fh_device *device = open_cpu(2);
  fh_view *view = contiguous(device, FH_F32, N);
  const float *x = data_of(view);
  for (int32_t dist = FH_UNIFORM; dist <= FH_NORMAL; dist++) {
    double sum = 0, squares = 0, fourth = 0, low = INFINITY, high = -INFINITY;
    CHECK_INT(fh_view_random(view, dist, 77, 3, 0, 1), FH_OK);
    const double centre = dist == FH_UNIFORM ? 0.5 : 0;
    for (int i = 0; i < N; i++) {
      const double d = (double)x[i] - centre;
      sum += d;
      squares += d * d;
      fourth += d * d * d * d;
      low = fmin(low, (double)x[i]);
      high = fmax(high, (double)x[i]);
    }
    const double variance = dist == FH_UNIFORM ? 1.0 / 12 : 1;
    /* fourth moments: 1/80, and 3 - 6/5/8 for a sum of eight uniform numbers */
    const double fourth_wanted = dist == FH_UNIFORM ? 1.0 / 80 : 2.85;
    CHECK(fabs(sum / N) < 5 * sqrt(variance / N));
    CHECK(fabs(squares / N - variance) < 5 * sqrt((fourth_wanted - variance * variance) / N));
    CHECK(fabs(fourth / N / fourth_wanted - 1) < 0.02);
    if (dist == FH_UNIFORM) CHECK(low >= 0 && low < 1e-5 && high < 1 && high > 1 - 1e-5);
    else CHECK(low > -4.9 && low < -4 && high < 4.9 && high > 4);
  }
  fh_view_free(&view);
  fh_device_close(&device);
}

static void refusals(void) {
  fh_device *device = open_cpu(1);
  fh_view *f32 = contiguous(device, FH_F32, 4), *i32 = contiguous(device, FH_I32, 4);
  REFUSED(fh_view_random(NULL, FH_UNIFORM, 1, 1, 0, 1), FH_ERR_ARGUMENT, "view: got NULL, wanted a pointer");
  REFUSED(fh_view_random(f32, 0, 1, 1, 0, 1), FH_ERR_ARGUMENT, "dist: got 0, wanted 1 (uniform) or 2 (normal)");
  REFUSED(fh_view_random(f32, 3, 1, 1, 0, 1), FH_ERR_ARGUMENT, "dist: got 3, wanted 1 (uniform) or 2 (normal)");
  REFUSED(fh_view_random(i32, FH_NORMAL, 1, 1, 0, 1), FH_ERR_ARGUMENT,
          "dist: got normal for an i32 view, wanted uniform");
  REFUSED(fh_view_random(i32, FH_UNIFORM, 1, 1, 0, 0.5), FH_ERR_ARGUMENT,
          "a, b: got 0 and 0.5, wanted whole numbers a < b in -2^31 .. 2^31 for an i32 view");
  REFUSED(fh_view_random(f32, FH_NORMAL, 1, 1, 0, 1e39), FH_ERR_ARGUMENT,
          "a, b: got 0 and 9.9999999999999994e+38, wanted numbers, and a difference, within float's range");
  static const double i32_none[][2] = {{1, 1},   {2, 1},   {-2147483649.0, 0}, {0, 2147483649.0},
                                       {NAN, 1}, {0, NAN}, {-INFINITY, 0}};
  for (size_t i = 0; i < sizeof i32_none / sizeof *i32_none; i++)
    CHECK_INT(fh_view_random(i32, FH_UNIFORM, 1, 1, i32_none[i][0], i32_none[i][1]), FH_ERR_ARGUMENT);
  static const double f32_none[][2] = {{NAN, 1}, {0, INFINITY}, {-3e38, 3e38}, {1e39, 0}};
  for (size_t i = 0; i < sizeof f32_none / sizeof *f32_none; i++)
    CHECK_INT(fh_view_random(f32, FH_UNIFORM, 1, 1, f32_none[i][0], f32_none[i][1]), FH_ERR_ARGUMENT);
  CHECK_INT(fh_view_random(f32, FH_UNIFORM, 1, 1, 2, 2), FH_OK); /* no width: a constant */
  CHECK(((float *)data_of(f32))[3] == 2);
  fh_view_free(&f32);
  fh_view_free(&i32);
  fh_device_close(&device);
}

int main(void) {
  known_answers();
  words_of_host();
  for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++) formulas(isa);
  layouts();
  moments();
  refusals();
  return check_summary();
}
