/*
 * The largest values of V for which fewhead.h promises a finite out: below 2^119 / topk every path of every instruction
 * set is exact.
 */
#include <math.h>
#include <stdlib.h>

#include "internal.h"
#include "refuse.h"

enum { S_Q = 9, H_Q = 8, MOST_TOPK = 640 };

static uint16_t q[S_Q * H_Q * 512], out[S_Q * H_Q * 512], *kv;
static int32_t indices[S_Q * MOST_TOPK];

/* q = 0 and every V equal: out is that value, in every row, head and column. */
static int exact(fh_device *device, int32_t path, int32_t topk, uint16_t value) {
  fh_call call;
  fh_call_init(&call, sizeof call, S_Q, topk, H_Q, 512, topk);
  call.path = path;
  call.q = q;
  call.kv = kv;
  call.indices = indices;
  call.out = out;
  for (int32_t i = 0; i < topk * 512; i++) kv[i] = value;
  for (int32_t i = 0; i < S_Q * topk; i++) indices[i] = i % topk;
  uint64_t bytes = 0;
  CHECK_INT(fh_workspace_bytes(device, &call, &bytes), FH_OK);
  call.workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
  call.workspace_bytes = bytes;
  CHECK_INT(fh_sparse_fwd(device, &call), FH_OK);
  free(call.workspace);
  for (int i = 0; i < S_Q * H_Q * 512; i++)
    if (abs((int)out[i] - (int)value) > 1) return 0; /* one step of bf16 */
  return 1;
}

int main(void) {
  static const int32_t widths[] = {1, 2, 3, 48, 49, MOST_TOPK};
  static const int32_t paths[] = {FH_REFERENCE, FH_PADDED, FH_GATHER, FH_PACKED};
  kv = malloc(MOST_TOPK * 512 * sizeof *kv);
  int32_t sets = 0;
  for (int32_t isa = FH_ISA_GENERIC; isa <= FH_ISA_AMX; isa++) {
    const fh_device_options options = {.struct_size = sizeof options, .threads = 2, .isa = isa};
    fh_device *device = NULL;
    if (fh_device_open("cpu", &options, &device)) continue; /* not of this CPU */
    sets++;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
      for (size_t p = 0; p < sizeof paths / sizeof *paths; p++) {
        /* The largest bf16 below the limit, and its negative. */
        const uint16_t value = (uint16_t)(fh_bf16(ldexpf(1, 119) / (float)widths[w]) - 1);
        CHECK(exact(device, paths[p], widths[w], value));
        CHECK(exact(device, paths[p], widths[w], (uint16_t)(value | 0x8000)));
      }
    /* The oracle sums in double: two keys of 3e38 average to 3e38. */
    CHECK(exact(device, FH_REFERENCE, 2, fh_bf16(3e38f)));
    fh_device_close(&device);
  }
  CHECK(sets >= 1);
  free(kv);
  return check_summary();
}
