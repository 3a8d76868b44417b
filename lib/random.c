/*
 * Random numbers: Philox4x32-10, the same bits on every device.
 *
 * The formulas of fewhead.h use single IEEE operations in float, rounded to nearest even, so that any device with an
 * fma reproduces them bit for bit. Uniform numbers take one word each, normal ones a block of four.
 */
#include <inttypes.h>
#include <math.h>

#include "internal.h"

fh_status fh_view_random(fh_view *view, int32_t dist, uint64_t seed, uint64_t stream, double a, double b) {
  if (!view) return fh_fail_null("view");
  fh_generator g = {.seed = seed, .stream = stream, .dtype = view->info.dtype, .dist = dist};
  if (dist != FH_UNIFORM && dist != FH_NORMAL)
    return fh_fail(FH_ERR_ARGUMENT, "dist: got %d, wanted 1 (uniform) or 2 (normal)", (int)dist);
  if (g.dtype == FH_I32) {
    if (dist == FH_NORMAL) return fh_fail(FH_ERR_ARGUMENT, "dist: got normal for an i32 view, wanted uniform");
    if (!(a >= INT32_MIN && b <= (double)INT32_MAX + 1 && a < b && a == floor(a) && b == floor(b)))
      return fh_fail(FH_ERR_ARGUMENT,
                     "a, b: got %.17g and %.17g, wanted whole numbers a < b in -2^31 .. 2^31 for an i32 view", a, b);
    g.low = (int32_t)a;
    g.width = (uint64_t)(b - a);
  } else {
    g.a = (float)a;
    g.scale = dist == FH_NORMAL ? (float)b : (float)(b - a);
    if (!isfinite(g.a) || !isfinite((float)b) || !isfinite(g.scale))
      return fh_fail(FH_ERR_ARGUMENT,
                     "a, b: got %.17g and %.17g, wanted numbers, and a difference, within float's range", a, b);
  }
  return view->elements ? view->buffer->device->back_end->view_random(view, &g) : FH_OK;
}

fh_status fh_random_u32(uint64_t seed, uint64_t stream, uint64_t first, uint64_t n, uint32_t *dst) {
  if (!n) return FH_OK;
  if (!dst) return fh_fail_null("dst");
  if (n - 1 > UINT64_MAX - first)
    return fh_fail(FH_ERR_SHAPE, "n: got %" PRIu64 " words from %" PRIu64 ", wanted them to end within 64 bits", n,
                   first);
  uint32_t block[4];
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t word = first + i;
    if (i == 0 || word % 4 == 0) fh_philox(seed, stream, word / 4, block);
    dst[i] = block[word % 4];
  }
  return FH_OK;
}
