/* The call without its memory: defaults, sizes, choices, costs. */
#include <inttypes.h>
#include <math.h>

#include "groups.h"
#include "internal.h"

/* Limits that keep every size computed from a call inside 64 bits: no workspace takes more than 2^22 bytes a row and
 * 2^6 bytes for a row's list entry. Both are far beyond any memory. */
#define MAX_ROWS ((int64_t)1 << 40)
#define MAX_LIST_ENTRIES ((int64_t)1 << 56)

enum { MAX_HEADS = 128, TILE_ROWS = 64 };

static const float MAX_SCALE = 0x1p127f; /* kernels multiply by log2(e), 1.44: the product stays finite */

fh_status fh_call_init(fh_call *call, uint64_t struct_size, int64_t s_q, int64_t s_kv, int32_t h_q, int32_t d_qk,
                       int64_t topk) {
  fh_call full = {.struct_size = sizeof full,
                  .s_q = s_q,
                  .s_kv = s_kv,
                  .topk = topk,
                  .h_q = h_q,
                  .d_qk = d_qk,
                  .d_v = 512,
                  .path = FH_AUTO,
                  .out_dtype = FH_BF16};
  full.sm_scale = (float)(1 / sqrt((double)d_qk));
  full.q_stride_h = d_qk;
  full.q_stride_s = (int64_t)h_q * d_qk;
  full.kv_stride = d_qk;
  full.indices_stride = topk;
  full.out_stride_h = full.d_v;
  full.out_stride_s = (int64_t)h_q * full.d_v;
  full.lse_stride = full.max_logits_stride = h_q;
  return fh_struct_init("fh_call", call, struct_size, FH_CALL_LEAST, &full, sizeof full);
}

static fh_status check_range(const char *name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return FH_OK;
  return fh_fail(FH_ERR_SHAPE, "%s: got %" PRId64 ", wanted %" PRId64 " .. %" PRId64, name, value, low, high);
}

/* Path, group and scale: what is a choice rather than a size. h_q is good. */
static fh_status check_choices(fh_call *call) {
  const int most = TILE_ROWS / call->h_q;
  const fh_path_info *path = fh_path_of(call->path);
  if (!path) return fh_check_path(call->path);
  if (call->row_invariant != 0 && call->row_invariant != 1)
    return fh_fail(FH_ERR_ARGUMENT, "row_invariant: got %d, wanted 0 or 1", (int)call->row_invariant);
  if (call->h_pad != 0 && call->h_pad != 64 && call->h_pad != 128)
    return fh_fail(FH_ERR_SHAPE, "h_pad: got %d, wanted 0, 64 or 128", (int)call->h_pad);
  if (call->h_pad != 0 && call->h_pad < call->h_q)
    return fh_fail(FH_ERR_SHAPE, "h_pad: got %d, wanted at least h_q, %d", (int)call->h_pad, (int)call->h_q);
  if (call->group < 0 || (call->group > 1 && call->group > most))
    return fh_fail(FH_ERR_SHAPE, "group: got %d, wanted 0 .. %d for h_q %d", (int)call->group, most > 1 ? most : 1,
                   (int)call->h_q);
  if (!isfinite(call->sm_scale) || call->sm_scale <= 0)
    return fh_fail(FH_ERR_ARGUMENT, "sm_scale: got %g, wanted a finite number > 0", (double)call->sm_scale);
  if (call->sm_scale > MAX_SCALE)
    return fh_fail(FH_ERR_ARGUMENT, "sm_scale: got %g, wanted at most 2^127", (double)call->sm_scale);
  if (call->reserved != 0) return fh_fail(FH_ERR_ARGUMENT, "reserved: got %d, wanted 0", (int)call->reserved);
  if (call->out_dtype != FH_BF16 && call->out_dtype != FH_F32)
    return fh_fail(FH_ERR_ARGUMENT, "out_dtype: got %d, wanted 1 (bf16) or 2 (f32)", (int)call->out_dtype);
  if (call->out_dtype == FH_F32 && !path->writes_f32)
    return fh_fail(FH_ERR_UNSUPPORTED, "out_dtype: got f32 on path %s, wanted bf16; only the reference path writes f32",
                   path->name);
  if (path->shares_tile && call->row_invariant)
    return fh_fail(FH_ERR_UNSUPPORTED,
                   "row_invariant: got 1 on path %s, whose rows share a tile; wanted 0, or path gather", path->name);
  if (call->h_pad == 0) call->h_pad = fh_padded_heads(call->h_q);
  if (call->group == 0) call->group = most > 1 ? most : 1;
  return FH_OK;
}

fh_status fh_check_sizes(const fh_device *device, const fh_call *given, fh_checked *checked) {
  fh_call *call = &checked->call;
  fh_status status;
  if (!device) return fh_fail_null("device");
  if ((status = fh_struct_in("fh_call", given, FH_CALL_LEAST, call, sizeof *call)) ||
      (status = check_range("s_q", call->s_q, 0, MAX_ROWS)) ||
      (status = check_range("s_kv", call->s_kv, 0, INT32_MAX)) ||
      (status = check_range("h_q", call->h_q, 1, MAX_HEADS)) ||
      (status = check_range("topk", call->topk, 0, INT32_MAX)))
    return status;
  if (call->d_qk != 512 && call->d_qk != 576)
    return fh_fail(FH_ERR_SHAPE, "d_qk: got %d, wanted 512 or 576", (int)call->d_qk);
  if (call->d_v != 512) return fh_fail(FH_ERR_SHAPE, "d_v: got %d, wanted 512", (int)call->d_v);
  if (call->s_q > 0 && call->topk > MAX_LIST_ENTRIES / call->s_q)
    return fh_fail(FH_ERR_SHAPE, "topk: got %" PRId64 " for s_q %" PRId64 ", wanted s_q * topk <= 2^56", call->topk,
                   call->s_q);
  if ((status = check_range("requests", call->requests, call->cu_seqlens_q ? 1 : 0, INT32_MAX))) return status;
  if (call->requests > 0 && call->s_q > INT32_MAX)
    return fh_fail(FH_ERR_SHAPE, "s_q: got %" PRId64 " with requests, wanted 0 .. %d, which offsets of 32 bits reach",
                   call->s_q, INT32_MAX);
  return check_choices(call);
}

fh_status fh_take_costs(const fh_device *device, fh_checked *checked) {
  fh_call *call = &checked->call;
  if (!call->costs && call->path != FH_AUTO) return FH_OK;
  if (call->costs) {
    const fh_status status = fh_costs_in(call->costs, &checked->costs);
    if (status) return status;
    checked->costs_from = "given by the caller";
  } else {
    checked->costs = (fh_costs){.struct_size = sizeof checked->costs};
    checked->costs_from = device->back_end->costs(device, call, &checked->costs);
  }
  call->costs = &checked->costs;
  return FH_OK;
}
