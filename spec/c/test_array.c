/* Overlap of strided arrays, against the sets of bytes they really touch. */
#include <stdlib.h>

#include "internal.h"
#include "refuse.h"

enum { SPACE = 4096, MIDDLE = SPACE / 2 };

static unsigned char space[SPACE];

/* Marks the bytes of the array; returns how often a byte had this mark already, or -1 when an element leaves the
 * space. */
static int touch(const fh_array *a, unsigned char *bytes, unsigned char mark) {
  int again = 0;
  int64_t total = 1;
  for (int32_t d = 0; d < a->rank; d++) total *= a->count[d];
  for (int64_t n = 0; n < total; n++) {
    int64_t at = (const unsigned char *)a->base - space, rest = n;
    for (int32_t d = a->rank; d-- > 0; rest /= a->count[d]) at += rest % a->count[d] * a->stride[d] * a->element_bytes;
    for (int32_t b = 0; b < a->element_bytes; b++) {
      if (at + b < 0 || at + b >= SPACE) return -1;
      if (bytes[at + b] & mark) again++;
      bytes[at + b] |= mark;
    }
  }
  return again;
}

static int64_t draw(uint32_t *word, int64_t low, int64_t high) {
  uint32_t value;
  fh_random_u32(2024, 1, (*word)++, 1, &value);
  return low + value % (uint32_t)(high - low + 1);
}

static fh_array random_array(uint32_t *word) {
  fh_array a = {.name = "a", .rank = (int32_t)draw(word, 1, 3), .element_bytes = (int32_t)draw(word, 1, 4)};
  a.base = space + MIDDLE + draw(word, -40, 40);
  for (int32_t d = 0; d < a.rank; d++) {
    a.count[d] = draw(word, 0, 4);
    a.stride[d] = draw(word, -12, 12);
  }
  if (draw(word, 0, 1)) a.stride[a.rank - 1] = 1;
  return a;
}

/* What is called disjoint or distinct is so; what lies apart is called so; all in both orders. */
static void against_sets(void) {
  uint32_t word = 0;
  int proven = 0, interleaved = 0, shared = 0, distinct = 0, doubled = 0;
  for (int i = 0; i < 20000; i++) {
    const fh_array a = random_array(&word), b = random_array(&word);
    unsigned char bytes[SPACE] = {0};
    const int again = touch(&a, bytes, 1);
    int common = 0, low[2] = {SPACE, SPACE}, high[2] = {0, 0};
    if (touch(&b, bytes, 2) < 0 || again < 0) {
      FAILED("an element lies outside the space");
      return;
    }
    for (int at = 0; at < SPACE; at++) {
      common += bytes[at] == 3;
      for (int side = 0; side < 2; side++)
        if (bytes[at] & (1 << side)) {
          if (low[side] == SPACE) low[side] = at;
          high[side] = at + 1;
        }
    }
    const int disjoint = fh_arrays_disjoint(&a, &b), apart = high[0] <= low[1] || high[1] <= low[0];
    if (disjoint != fh_arrays_disjoint(&b, &a) || (disjoint && common) || (apart && !disjoint)) {
      FAILED("fh_arrays_disjoint is not sound");
      return;
    }
    proven += disjoint;
    interleaved += disjoint && !apart;
    shared += common != 0;
    if (fh_array_distinct(&a)) {
      distinct++;
      if (again) {
        FAILED("fh_array_distinct is not sound");
        return;
      }
    } else {
      doubled++;
    }
    int64_t first, past;
    if (fh_array_extent(&a, &first, &past) ||
        (high[0] && ((const unsigned char *)a.base - space + first != low[0] ||
                     (const unsigned char *)a.base - space + past != high[0])) ||
        (!high[0] && (first || past))) {
      FAILED("fh_array_extent is not exact");
      return;
    }
  }
  CHECK(proven > 1000 && interleaved > 100 && shared > 1000 && distinct > 1000 && doubled > 1000);
}

/* Heads 0..7 and 8..15 of one [s, 64, 512] buffer, in bf16. */
static void heads_of_one_buffer(void) {
  uint16_t *buffer = calloc(4 * 64 * 512, sizeof *buffer);
  const fh_array low = {"low", buffer, 2, 3, {4, 8, 512}, {64 * 512, 512, 1}};
  fh_array high = low;
  high.base = buffer + 8 * 512;
  CHECK(fh_arrays_disjoint(&low, &high));
  CHECK(fh_arrays_disjoint(&high, &low));
  high.base = buffer + 8 * 512 - 1;
  CHECK(!fh_arrays_disjoint(&low, &high));
  high.base = buffer + 56 * 512;
  CHECK(fh_arrays_disjoint(&low, &high));
  high.base = buffer + 56 * 512 + 1; /* into the next row's head 0 */
  CHECK(!fh_arrays_disjoint(&low, &high));
  fh_array wider = low; /* every other row: a multiple of the period */
  wider.base = buffer + 8 * 512;
  wider.count[0] = 2;
  wider.stride[0] = 2 * 64 * 512;
  CHECK(fh_arrays_disjoint(&low, &wider));
  fh_array backwards = {"backwards", buffer + 3 * 64 * 512 + 8 * 512, 2, 3, {4, 8, 512}, {-64 * 512, 512, 1}};
  CHECK(fh_arrays_disjoint(&low, &backwards));
  backwards.base = buffer + 3 * 64 * 512 + 7 * 512;
  CHECK(!fh_arrays_disjoint(&low, &backwards));
  free(buffer);
}

static void sixty_four_bits(void) {
  int64_t low, high;
  fh_array a = {.name = "kv", .element_bytes = 2, .rank = 2, .count = {3, 512}, .stride = {INT64_MAX, 1}};
  REFUSED(fh_array_extent(&a, &low, &high), FH_ERR_STRIDE,
          "kv: 3 elements in steps of 9223372036854775807 leave 64 bits");
  a.count[0] = 2;
  REFUSED(fh_array_extent(&a, &low, &high), FH_ERR_STRIDE, "kv: 512 elements in steps of 1 leave 64 bits");
  a.count[1] = 1;
  REFUSED(fh_array_extent(&a, &low, &high), FH_ERR_STRIDE,
          "kv: elements 0 .. 9223372036854775807 of 2 bytes leave 64 bits");
  a.stride[0] = INT64_MIN;
  REFUSED(fh_array_extent(&a, &low, &high), FH_ERR_STRIDE,
          "kv: elements -9223372036854775808 .. 0 of 2 bytes leave 64 bits");
  CHECK_INT(low, 0);
  CHECK_INT(high, 0);
  a.count[0] = 1; /* a stride that is never taken */
  CHECK_INT(fh_array_extent(&a, &low, &high), FH_OK);
  CHECK_INT(high, 2);
  CHECK(fh_array_distinct(&a));
  a.count[0] = 0;
  CHECK_INT(fh_array_extent(&a, &low, &high), FH_OK);
  CHECK_INT(high, 0);
  CHECK(fh_array_empty(&a));
  a = (fh_array){.name = "x", .element_bytes = 1, .rank = 2, .count = {2, 2}, .stride = {INT64_MIN, 1}};
  CHECK_INT(fh_array_extent(&a, &low, &high), FH_OK);
  CHECK_INT(low, INT64_MIN);
  CHECK_INT(high, 2);
  CHECK(fh_array_distinct(&a));
}

int main(void) {
  against_sets();
  heads_of_one_buffer();
  sixty_four_bits();
  return check_summary();
}
