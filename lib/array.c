/* Where the elements of a strided array lie, and whether two arrays share memory. */
#include <inttypes.h>

#include "internal.h"

static uint64_t magnitude(int64_t x) { return x < 0 ? 0 - (uint64_t)x : (uint64_t)x; }

int fh_array_empty(const fh_array *array) {
  for (int32_t i = 0; i < array->rank; i++)
    if (array->count[i] == 0) return 1;
  return 0;
}

fh_status fh_array_extent(const fh_array *array, int64_t *low, int64_t *high) {
  int64_t lo = 0, hi = 0; /* of element starts, in elements */
  *low = *high = 0;
  if (fh_array_empty(array)) return FH_OK;
  for (int32_t i = 0; i < array->rank; i++) {
    int64_t reach;
    int64_t *end = array->stride[i] < 0 ? &lo : &hi;
    if (__builtin_mul_overflow(array->count[i] - 1, array->stride[i], &reach) ||
        __builtin_add_overflow(*end, reach, end))
      return fh_fail(FH_ERR_STRIDE, "%s: %" PRId64 " elements in steps of %" PRId64 " leave 64 bits", array->name,
                     array->count[i], array->stride[i]);
  }
  int64_t past;
  if (__builtin_mul_overflow(lo, array->element_bytes, low) || __builtin_add_overflow(hi, 1, &past) ||
      __builtin_mul_overflow(past, array->element_bytes, high)) {
    *low = *high = 0;
    return fh_fail(FH_ERR_STRIDE, "%s: elements %" PRId64 " .. %" PRId64 " of %d bytes leave 64 bits", array->name, lo,
                   hi, (int)array->element_bytes);
  }
  return FH_OK;
}

int fh_array_distinct(const fh_array *array) {
  if (fh_array_empty(array)) return 1;
  uint64_t step[FH_MAX_RANK], last[FH_MAX_RANK]; /* of the dimensions that move, by rising step; index of their
                                                    last element */
  int32_t n = 0;
  for (int32_t i = 0; i < array->rank; i++) {
    if (array->count[i] == 1) continue;
    int32_t at = n++;
    for (; at > 0 && step[at - 1] > magnitude(array->stride[i]); at--) step[at] = step[at - 1], last[at] = last[at - 1];
    step[at] = magnitude(array->stride[i]);
    last[at] = (uint64_t)(array->count[i] - 1);
  }
  uint64_t within = 1; /* elements from the lowest to the highest of the dimensions seen so far */
  for (int32_t i = 0; i < n; i++) {
    if (step[i] < within) return 0;
    within += last[i] * step[i];
  }
  return 1;
}

/* Returns the bytes that the array covers within one period of `period` bytes: dimensions whose step is a multiple
 * of the period are left out. Sets *start to the lowest of these bytes, modulo the period. */
static uint64_t window(const fh_array *array, uint64_t period, uint64_t *start) {
  const uint64_t bytes = (uint64_t)array->element_bytes;
  uint64_t from = (uintptr_t)array->base, size = bytes;
  for (int32_t i = 0; i < array->rank; i++) {
    const uint64_t step = magnitude(array->stride[i]) * bytes, reach = (uint64_t)(array->count[i] - 1) * step;
    if (step % period == 0) continue;
    size += reach;
    if (array->stride[i] < 0) from -= reach;
  }
  *start = from % period;
  return size;
}

static int apart(const fh_array *a, const fh_array *b, uint64_t period) {
  uint64_t start_a, start_b;
  const uint64_t size_a = window(a, period, &start_a), size_b = window(b, period, &start_b);
  const uint64_t gap =
      start_b >= start_a ? start_b - start_a : period - (start_a - start_b); /* from a's start up to b's */
  return size_a <= gap && size_b <= period - gap;
}

int fh_arrays_disjoint(const fh_array *a, const fh_array *b) {
  int64_t low_a, high_a, low_b, high_b;
  if (fh_array_extent(a, &low_a, &high_a) || fh_array_extent(b, &low_b, &high_b)) return 0;
  if (low_a == high_a || low_b == high_b) return 1;
  const uintptr_t base_a = (uintptr_t)a->base, base_b = (uintptr_t)b->base;
  if (base_a + (uint64_t)high_a <= base_b + (uint64_t)low_b || base_b + (uint64_t)high_b <= base_a + (uint64_t)low_a)
    return 1;
  for (int32_t side = 0; side < 2; side++) {
    const fh_array *array = side ? b : a;
    for (int32_t i = 0; i < array->rank; i++) {
      const uint64_t period = magnitude(array->stride[i]) * (uint64_t)array->element_bytes;
      if (period != 0 && array->count[i] > 1 && apart(a, b, period)) return 1;
    }
  }
  return 0;
}

fh_status fh_check_array(const fh_array *array) {
  int64_t low, high;
  uintptr_t address;
  if (fh_array_empty(array)) return FH_OK;
  if (!array->base) return fh_fail_null(array->name);
  if ((uintptr_t)array->base % (uintptr_t)array->element_bytes)
    return fh_fail(FH_ERR_ALIGNMENT, "%s: got %p, wanted a multiple of %d bytes", array->name, array->base,
                   (int)array->element_bytes);
  const fh_status status = fh_array_extent(array, &low, &high);
  if (status) return status;
  if (__builtin_add_overflow((uintptr_t)array->base, low, &address) ||
      __builtin_add_overflow((uintptr_t)array->base, high, &address))
    return fh_fail(FH_ERR_STRIDE, "%s: bytes %" PRId64 " .. %" PRId64 " from %p leave 64 bits", array->name, low, high,
                   array->base);
  return FH_OK;
}
