/* The call: every refusal by name, the edges of what is accepted, workspace, empty sizes, auto and its parts,
 * counters, threads. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cpu/cpu.h"
#include "internal.h"
#include "refuse.h"

#define CALL_LEAST FH_UP_TO(fh_call, workspace_bytes) /* what no call can do without */

/* Allocations are counted, where a program may stand in front of its C library and no sanitizer does so already */

static atomic_long allocations;

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void *malloc(size_t bytes) {
  atomic_fetch_add(&allocations, 1);
  return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes) {
  atomic_fetch_add(&allocations, 1);
  return __libc_calloc(n, bytes);
}
void *realloc(void *old, size_t bytes) {
  atomic_fetch_add(&allocations, 1);
  return __libc_realloc(old, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
  atomic_fetch_add(&allocations, 1);
  return __libc_memalign(alignment, bytes);
}
#else
#define COUNTS_ALLOCATIONS 0
#endif

/* ---- A call that is right ---------------------------------------------------------------------------------------- */

enum { S_Q = 21, S_KV = 40, H_Q = 8, HEADS = 64, D = 512, TOPK = 16, WORKSPACE = 1 << 22 };

typedef struct fixture {
  fh_device *device;
  uint16_t *q, *kv, *out; /* q and out are 64-head buffers */
  int32_t *indices, *topk_length;
  float *sink, *lse, *max_logits;
  void *workspace;
} fixture;

static fixture fix;

static void random_bf16(uint16_t *to, int64_t n, uint64_t stream) {
  fh_buffer *buffer = NULL;
  fh_view *view = NULL;
  CHECK_INT(fh_buffer_wrap(fix.device, to, (uint64_t)n * 2, &buffer), FH_OK);
  CHECK_INT(fh_view_create(buffer, FH_BF16, 1, &n, NULL, 0, &view), FH_OK);
  CHECK_INT(fh_view_random(view, FH_NORMAL, 1, stream, 0, 1), FH_OK);
  fh_view_free(&view);
  fh_buffer_free(&buffer);
}

static void make_fixture(int32_t threads) {
  fix.device = open_cpu(threads);
  fix.q = malloc(S_Q * HEADS * D * 2);
  fix.kv = malloc(S_KV * D * 2);
  fix.out = malloc(S_Q * HEADS * D * 2);
  fix.indices = malloc(S_Q * TOPK * 4);
  fix.topk_length = malloc(S_Q * 4);
  fix.sink = malloc(HEADS * 4);
  fix.lse = malloc(S_Q * H_Q * 4);
  fix.max_logits = malloc(S_Q * H_Q * 4);
  fix.workspace = aligned_alloc(64, WORKSPACE);
  random_bf16(fix.q, S_Q * HEADS * D, 1);
  random_bf16(fix.kv, S_KV * D, 2);
  for (int i = 0; i < S_Q * TOPK; i++)
    fix.indices[i] = (i * 7 + i / TOPK * 3) % (S_KV + 4) - 2; /* some invalid on both sides */
  for (int i = 0; i < S_Q; i++) fix.topk_length[i] = i % (TOPK + 3) - 1;
  for (int i = 0; i < HEADS; i++) fix.sink[i] = (float)i * 0.25f - 1;
  memset(fix.out, 0xff, S_Q * HEADS * D * 2);
}

static void free_fixture(void) {
  fh_device_close(&fix.device);
  void *all[] = {fix.q,    fix.kv,  fix.out,        fix.indices,  fix.topk_length,
                 fix.sink, fix.lse, fix.max_logits, fix.workspace};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static fh_call good_call(void) {
  fh_call call;
  fh_call_init(&call, sizeof call, S_Q, S_KV, H_Q, D, TOPK);
  call.q = fix.q;
  call.kv = fix.kv;
  call.indices = fix.indices;
  call.topk_length = fix.topk_length;
  call.attn_sink = fix.sink;
  call.out = fix.out;
  call.q_stride_s = call.out_stride_s = HEADS * D;
  call.lse = fix.lse;
  call.max_logits = fix.max_logits;
  call.workspace = fix.workspace;
  call.workspace_bytes = WORKSPACE;
  call.path = FH_GATHER;
  return call;
}

static int untouched(const void *memory, size_t bytes) {
  const unsigned char *byte = memory;
  for (size_t i = 0; i < bytes; i++)
    if (byte[i] != 0xff) return 0;
  return 1;
}

/* fh_call_check and fh_sparse_fwd refuse alike, and nothing runs. */
static void refused(const fh_call *call, fh_status status, const char *text, int line) {
  const int failed = check_failed;
  memset(fix.out, 0xff, S_Q * HEADS * D * 2);
  REFUSED(fh_call_check(fix.device, call), status, text);
  REFUSED(fh_sparse_fwd(fix.device, call), status, text);
  CHECK(untouched(fix.out, S_Q * HEADS * D * 2));
  if (check_failed != failed) printf("    at line %d\n", line);
}

#define BAD(change, status, text)           \
  do {                                      \
    fh_call call = good_call();             \
    change;                                 \
    refused(&call, status, text, __LINE__); \
  } while (0)

#define GOOD(change)                                               \
  do {                                                             \
    fh_call call = good_call();                                    \
    change;                                                        \
    const fh_status got_status = fh_call_check(fix.device, &call); \
    CHECK_INT(got_status, FH_OK);                                  \
    if (got_status) printf("    %s\n", fh_error());                \
    CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK);            \
  } while (0)

static void initial(void) {
  fh_call call;
  memset(&call, 0xee, sizeof call);
  fh_call_init(&call, sizeof call, 7, 9, 8, 576, 11);
  CHECK_INT(call.struct_size, sizeof call);
  CHECK_INT(call.path, FH_AUTO);
  CHECK_INT(call.s_q, 7);
  CHECK_INT(call.s_kv, 9);
  CHECK_INT(call.h_q, 8);
  CHECK_INT(call.h_pad, 0);
  CHECK_INT(call.group, 0);
  CHECK_INT(call.d_qk, 576);
  CHECK_INT(call.d_v, 512);
  CHECK_INT(call.topk, 11);
  CHECK(call.sm_scale == (float)(1 / 24.0));
  CHECK_INT(call.q_stride_s, 8 * 576);
  CHECK_INT(call.q_stride_h, 576);
  CHECK_INT(call.kv_stride, 576);
  CHECK_INT(call.indices_stride, 11);
  CHECK_INT(call.out_stride_s, 8 * 512);
  CHECK_INT(call.out_stride_h, 512);
  CHECK_INT(call.out_dtype, FH_BF16);
  CHECK_INT(call.lse_stride, 8);
  CHECK_INT(call.max_logits_stride, 8);
  CHECK(!call.q && !call.out && !call.plan && !call.counters && !call.stream);
  REFUSED(fh_call_init(NULL, sizeof call, 1, 1, 1, 512, 1), FH_ERR_ARGUMENT, "fh_call: got NULL, wanted a pointer");
  call.s_q = 77;
  REFUSED(fh_call_init(&call, 8, 1, 1, 1, 512, 1), FH_ERR_VERSION,
          text_of("fh_call.struct_size: got 8, wanted %zu (at least %zu), set by the caller", sizeof call, CALL_LEAST));
  REFUSED(fh_call_init(&call, sizeof call + 8, 1, 1, 1, 512, 1), FH_ERR_VERSION,
          text_of("fh_call.struct_size: got %zu, wanted %zu (at least %zu), set by the caller", sizeof call + 8,
                  sizeof call, CALL_LEAST));
  CHECK_INT(call.s_q, 77);
  /* a smaller struct: what stands behind it stays */
  memset(&call, 0xff, sizeof call);
  CHECK_INT(fh_call_init(&call, CALL_LEAST, 1, 1, 1, 512, 1), FH_OK);
  CHECK_INT(call.struct_size, CALL_LEAST);
  CHECK(call.workspace == NULL && call.workspace_bytes == 0);
  CHECK_INT((intptr_t)call.stream, -1);
  CHECK_INT((intptr_t)call.counters, -1);
  fh_call_init(&call, sizeof call, INT64_MAX, INT64_MIN, INT32_MIN, INT32_MIN, -1); /* checks nothing, overflows
                                                                                       nothing */

  static const char *const names[] = {"auto", "reference", "padded", "gather", "packed"};
  for (size_t path = 0; path < sizeof names / sizeof *names; path++)
    CHECK_STR(fh_path_name((int32_t)path), names[path]);
  CHECK(fh_path_name(-1) == NULL);
  CHECK(fh_path_name(FH_PATHS) == NULL);
}

static void sizes(void) {
  fh_call one = good_call();
  REFUSED(fh_call_check(NULL, &one), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_sparse_fwd(NULL, &one), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_call_check(fix.device, NULL), FH_ERR_ARGUMENT, "fh_call: got NULL, wanted a pointer");
  REFUSED(fh_sparse_fwd(fix.device, NULL), FH_ERR_ARGUMENT, "fh_call: got NULL, wanted a pointer");

  BAD(call.struct_size = 0, FH_ERR_VERSION,
      text_of("fh_call.struct_size: got 0, wanted %zu (at least %zu), set by the caller", sizeof call, CALL_LEAST));
  BAD(call.struct_size = sizeof call + 8, FH_ERR_VERSION,
      text_of("fh_call.struct_size: got %zu, wanted %zu (at least %zu), set by the caller", sizeof call + 8,
              sizeof call, CALL_LEAST));
  BAD(call.path = FH_PATHS, FH_ERR_ARGUMENT, no_path(FH_PATHS));
  BAD(call.path = -1, FH_ERR_ARGUMENT, no_path(-1));
  BAD(call.row_invariant = 2, FH_ERR_ARGUMENT, "row_invariant: got 2, wanted 0 or 1");
  BAD(call.row_invariant = -1, FH_ERR_ARGUMENT, "row_invariant: got -1, wanted 0 or 1");
  BAD((call.path = FH_PACKED, call.row_invariant = 1), FH_ERR_UNSUPPORTED,
      "row_invariant: got 1 on path packed, whose rows share a tile; wanted 0, or path gather");
  BAD(call.s_q = -1, FH_ERR_SHAPE, "s_q: got -1, wanted 0 .. 1099511627776");
  BAD(call.s_q = INT64_MAX, FH_ERR_SHAPE, "s_q: got 9223372036854775807, wanted 0 .. 1099511627776");
  BAD(call.s_kv = -1, FH_ERR_SHAPE, "s_kv: got -1, wanted 0 .. 2147483647");
  BAD(call.s_kv = (int64_t)1 << 31, FH_ERR_SHAPE, "s_kv: got 2147483648, wanted 0 .. 2147483647");
  BAD(call.h_q = 0, FH_ERR_SHAPE, "h_q: got 0, wanted 1 .. 128");
  BAD(call.h_q = -8, FH_ERR_SHAPE, "h_q: got -8, wanted 1 .. 128");
  BAD(call.h_q = 129, FH_ERR_SHAPE, "h_q: got 129, wanted 1 .. 128");
  BAD(call.topk = -1, FH_ERR_SHAPE, "topk: got -1, wanted 0 .. 2147483647");
  BAD(call.topk = (int64_t)1 << 31, FH_ERR_SHAPE, "topk: got 2147483648, wanted 0 .. 2147483647");
  BAD((call.s_q = (int64_t)1 << 40, call.topk = 65537), FH_ERR_SHAPE,
      "topk: got 65537 for s_q 1099511627776, wanted s_q * topk <= 2^56");
  BAD(call.d_qk = 0, FH_ERR_SHAPE, "d_qk: got 0, wanted 512 or 576");
  BAD(call.d_qk = 192, FH_ERR_SHAPE, "d_qk: got 192, wanted 512 or 576");
  BAD(call.d_v = 576, FH_ERR_SHAPE, "d_v: got 576, wanted 512");
  BAD(call.h_pad = 1, FH_ERR_SHAPE, "h_pad: got 1, wanted 0, 64 or 128");
  BAD(call.h_pad = -64, FH_ERR_SHAPE, "h_pad: got -64, wanted 0, 64 or 128");
  BAD((call.h_q = 65, call.h_pad = 64), FH_ERR_SHAPE, "h_pad: got 64, wanted at least h_q, 65");
  BAD(call.group = -1, FH_ERR_SHAPE, "group: got -1, wanted 0 .. 8 for h_q 8");
  BAD(call.group = 9, FH_ERR_SHAPE, "group: got 9, wanted 0 .. 8 for h_q 8");
  BAD((call.h_q = 24, call.group = 3), FH_ERR_SHAPE, "group: got 3, wanted 0 .. 2 for h_q 24");
  BAD((call.h_q = 64, call.group = 2), FH_ERR_SHAPE, "group: got 2, wanted 0 .. 1 for h_q 64");
  BAD((call.h_q = 100, call.group = 2), FH_ERR_SHAPE, "group: got 2, wanted 0 .. 1 for h_q 100");
  BAD(call.sm_scale = 0, FH_ERR_ARGUMENT, "sm_scale: got 0, wanted a finite number > 0");
  BAD(call.sm_scale = -0.5f, FH_ERR_ARGUMENT, "sm_scale: got -0.5, wanted a finite number > 0");
  BAD(call.sm_scale = INFINITY, FH_ERR_ARGUMENT, "sm_scale: got inf, wanted a finite number > 0");
  BAD(call.sm_scale = NAN, FH_ERR_ARGUMENT,
      text_of("sm_scale: got %g, wanted a finite number > 0", (double)call.sm_scale));
  BAD(call.sm_scale = 0x1.8p127f, FH_ERR_ARGUMENT,
      "sm_scale: got 2.55212e+38, wanted at most 2^127"); /* times log2(e): inf */
  GOOD(call.sm_scale = 0x1p127f);
  BAD(call.requests = -1, FH_ERR_SHAPE, "requests: got -1, wanted 0 .. 2147483647");
  BAD(call.requests = (int64_t)1 << 31, FH_ERR_SHAPE, "requests: got 2147483648, wanted 0 .. 2147483647");
  BAD(call.cu_seqlens_q = fix.topk_length, FH_ERR_SHAPE, "requests: got 0, wanted 1 .. 2147483647");
  BAD((call.requests = 1, call.s_q = (int64_t)1 << 31), FH_ERR_SHAPE,
      "s_q: got 2147483648 with requests, wanted 0 .. 2147483647, which offsets of 32 bits reach");
  BAD(call.reserved = 1, FH_ERR_ARGUMENT, "reserved: got 1, wanted 0");
  BAD(call.out_dtype = 0, FH_ERR_ARGUMENT, "out_dtype: got 0, wanted 1 (bf16) or 2 (f32)");
  BAD(call.out_dtype = FH_I32, FH_ERR_ARGUMENT, "out_dtype: got 3, wanted 1 (bf16) or 2 (f32)");
  for (int32_t path = 0; path < FH_PATHS; path++)
    if (path != FH_REFERENCE)
      BAD((call.path = path, call.out_dtype = FH_F32), FH_ERR_UNSUPPORTED,
          text_of("out_dtype: got f32 on path %s, wanted bf16; only the reference path writes f32",
                  fh_path_name(path)));
  BAD(call.stream = fix.q, FH_ERR_ARGUMENT, text_of("stream: got %p, wanted NULL on a CPU", (void *)fix.q));
  BAD((call.path = FH_PACKED, call.topk = 268435456, call.indices_stride = 0), FH_ERR_SHAPE,
      "topk: got 268435456 for groups of 8, wanted group * topk <= 2147483647");
}

static void pointers(void) {
  BAD(call.q = NULL, FH_ERR_ARGUMENT, "q: got NULL, wanted a pointer");
  BAD(call.kv = NULL, FH_ERR_ARGUMENT, "kv: got NULL, wanted a pointer");
  BAD(call.requests = 3, FH_ERR_ARGUMENT, "cu_seqlens_q: got NULL, wanted a pointer");
  BAD(call.indices = NULL, FH_ERR_ARGUMENT, "indices: got NULL, wanted a pointer");
  BAD(call.out = NULL, FH_ERR_ARGUMENT, "out: got NULL, wanted a pointer");
  GOOD((call.topk_length = NULL, call.attn_sink = NULL, call.lse = NULL, call.max_logits = NULL));

#define ODD(type, pointer, by) ((type)(uintptr_t)((uintptr_t)(pointer) + (by)))
  BAD(call.q = ODD(const uint16_t *, fix.q, 1), FH_ERR_ALIGNMENT,
      text_of("q: got %p, wanted a multiple of 2 bytes", ODD(void *, fix.q, 1)));
  BAD(call.kv = ODD(const uint16_t *, fix.kv, 1), FH_ERR_ALIGNMENT,
      text_of("kv: got %p, wanted a multiple of 2 bytes", ODD(void *, fix.kv, 1)));
  BAD(call.indices = ODD(const int32_t *, fix.indices, 2), FH_ERR_ALIGNMENT,
      text_of("indices: got %p, wanted a multiple of 4 bytes", ODD(void *, fix.indices, 2)));
  BAD(call.topk_length = ODD(const int32_t *, fix.topk_length, 2), FH_ERR_ALIGNMENT,
      text_of("topk_length: got %p, wanted a multiple of 4 bytes", ODD(void *, fix.topk_length, 2)));
  BAD((call.requests = 3, call.cu_seqlens_q = ODD(const int32_t *, fix.topk_length, 2)), FH_ERR_ALIGNMENT,
      text_of("cu_seqlens_q: got %p, wanted a multiple of 4 bytes", (void *)call.cu_seqlens_q));
  BAD(call.attn_sink = ODD(const float *, fix.sink, 1), FH_ERR_ALIGNMENT,
      text_of("attn_sink: got %p, wanted a multiple of 4 bytes", ODD(void *, fix.sink, 1)));
  BAD(call.out = ODD(void *, fix.out, 1), FH_ERR_ALIGNMENT,
      text_of("out: got %p, wanted a multiple of 2 bytes", ODD(void *, fix.out, 1)));
  BAD((call.path = FH_REFERENCE, call.out_dtype = FH_F32, call.out = ODD(void *, fix.out, 2)), FH_ERR_ALIGNMENT,
      text_of("out: got %p, wanted a multiple of 4 bytes", ODD(void *, fix.out, 2)));
  BAD(call.lse = ODD(float *, fix.lse, 2), FH_ERR_ALIGNMENT,
      text_of("lse: got %p, wanted a multiple of 4 bytes", ODD(void *, fix.lse, 2)));
  BAD(call.max_logits = ODD(float *, fix.max_logits, 3), FH_ERR_ALIGNMENT,
      text_of("max_logits: got %p, wanted a multiple of 4 bytes", ODD(void *, fix.max_logits, 3)));
  /* two-byte alignment is all that bf16 needs */
  GOOD((call.q = fix.q + 1, call.kv = fix.kv + 1, call.s_kv--, call.out = fix.out + 1));
}

static void strides(void) {
  BAD(call.q_stride_s = INT64_MAX, FH_ERR_STRIDE, "q: 21 elements in steps of 9223372036854775807 leave 64 bits");
  BAD(call.q_stride_s = INT64_MIN, FH_ERR_STRIDE, "q: 21 elements in steps of -9223372036854775808 leave 64 bits");
  BAD((call.q_stride_s = 0, call.q_stride_h = INT64_MAX / 7), FH_ERR_STRIDE,
      "q: 512 elements in steps of 1 leave 64 bits");
  BAD(call.q_stride_h = INT64_MAX / 8, FH_ERR_STRIDE,
      text_of("q: elements 0 .. %" PRId64 " of 2 bytes leave 64 bits",
              20 * (int64_t)HEADS * D + 7 * (INT64_MAX / 8) + 511));
  BAD(call.kv_stride = INT64_MAX, FH_ERR_STRIDE, "kv: 40 elements in steps of 9223372036854775807 leave 64 bits");
  BAD(call.kv_stride = INT64_MIN / 39, FH_ERR_STRIDE,
      text_of("kv: elements %" PRId64 " .. 511 of 2 bytes leave 64 bits", 39 * (INT64_MIN / 39)));
  BAD(call.indices_stride = INT64_MIN, FH_ERR_STRIDE,
      "indices: 21 elements in steps of -9223372036854775808 leave 64 bits");
  BAD(call.indices_stride = INT64_MAX / 20, FH_ERR_STRIDE, "indices: 16 elements in steps of 1 leave 64 bits");
  BAD(call.out_stride_s = INT64_MAX, FH_ERR_STRIDE, "out: 21 elements in steps of 9223372036854775807 leave 64 bits");
  BAD(call.lse_stride = INT64_MAX, FH_ERR_STRIDE, "lse: 21 elements in steps of 9223372036854775807 leave 64 bits");
  BAD(call.max_logits_stride = INT64_MIN, FH_ERR_STRIDE,
      "max_logits: 21 elements in steps of -9223372036854775808 leave 64 bits");
  /* fits as an offset, but not from this address */
  const int64_t down = -(int64_t)((uintptr_t)fix.kv / 2 / 39 + 1);
  BAD(call.kv_stride = down, FH_ERR_STRIDE,
      text_of("kv: bytes %" PRId64 " .. 1024 from %p leave 64 bits", 39 * 2 * down, (void *)fix.kv));

  BAD(call.out_stride_h = 511, FH_ERR_STRIDE,
      "out: got strides 32768, 511 for [21, 8, 512], which make its elements overlap");
  BAD(call.out_stride_h = 0, FH_ERR_STRIDE,
      "out: got strides 32768, 0 for [21, 8, 512], which make its elements overlap");
  BAD(call.out_stride_s = 0, FH_ERR_STRIDE,
      "out: got strides 0, 512 for [21, 8, 512], which make its elements overlap");
  BAD(call.out_stride_s = 8 * 512 - 1, FH_ERR_STRIDE,
      "out: got strides 4095, 512 for [21, 8, 512], which make its elements overlap");
  BAD((call.out = fix.out + 20 * 4095, call.out_stride_s = -4095), FH_ERR_STRIDE,
      "out: got strides -4095, 512 for [21, 8, 512], which make its elements overlap");
  BAD((call.out_stride_s = 512, call.out_stride_h = 21 * 512 - 1), FH_ERR_STRIDE,
      "out: got strides 512, 10751 for [21, 8, 512], which make its elements overlap");
  BAD(call.lse_stride = 7, FH_ERR_STRIDE, "lse: got strides 7, 1 for [21, 8], which make its elements overlap");
  BAD(call.max_logits_stride = 0, FH_ERR_STRIDE,
      "max_logits: got strides 0, 1 for [21, 8], which make its elements overlap");

  GOOD((call.out_stride_s = 512, call.out_stride_h = 21 * 512));                                 /* heads outermost */
  GOOD((call.out = fix.out + 20 * 4096, call.out_stride_s = -4096));                             /* rows backwards */
  GOOD((call.out = fix.out + 7 * 512, call.out_stride_h = -512));                                /* heads backwards */
  GOOD((call.q_stride_s = 0, call.q_stride_h = 0, call.kv_stride = 0, call.indices_stride = 0)); /* everything shared */
  GOOD((call.kv = fix.kv + 39 * 512, call.kv_stride = -512, call.indices = fix.indices + 20 * 16,
        call.indices_stride = -16));
  GOOD((call.q_stride_s = 3, call.q_stride_h = -1, call.q = fix.q + 7, call.kv_stride = 1)); /* rows that overlap */
  GOOD((call.s_q = 1, call.q_stride_s = INT64_MAX, call.out_stride_s = INT64_MIN, call.indices_stride = INT64_MIN,
        call.lse_stride = INT64_MAX, call.max_logits_stride = 0)); /* strides that are never taken */
  GOOD((call.s_kv = 1, call.kv_stride = INT64_MIN));
  GOOD((call.h_q = 1, call.q_stride_h = INT64_MIN, call.out_stride_h = 0));
}

static void overlap(void) {
#define APART "; wanted memory of its own, or the same strides and other heads"
  BAD((call.requests = 3, call.cu_seqlens_q = (const int32_t *)fix.out), FH_ERR_OVERLAP,
      "out: its memory overlaps cu_seqlens_q" APART);
  BAD(call.out = fix.q, FH_ERR_OVERLAP, "out: its memory overlaps q" APART);
  BAD(call.out = fix.q + 7 * 512, FH_ERR_OVERLAP, "out: its memory overlaps q" APART);
  BAD(call.out = fix.q + 57 * 512, FH_ERR_OVERLAP, "out: its memory overlaps q" APART);
  BAD((call.q = fix.out + 20 * 32768 + 7 * 512 + 511, call.s_q = 21), FH_ERR_OVERLAP,
      "out: its memory overlaps q" APART);
  BAD(call.kv = fix.out + 4095, FH_ERR_OVERLAP, "out: its memory overlaps kv" APART);
  BAD(call.indices = (const int32_t *)(void *)fix.out, FH_ERR_OVERLAP, "out: its memory overlaps indices" APART);
  BAD(call.topk_length = (const int32_t *)(void *)(fix.out + 4094), FH_ERR_OVERLAP,
      "out: its memory overlaps topk_length" APART);
  BAD(call.attn_sink = (const float *)(void *)(fix.out + 20 * 32768), FH_ERR_OVERLAP,
      "out: its memory overlaps attn_sink" APART);
  BAD(call.lse = (float *)(void *)fix.out, FH_ERR_OVERLAP, "out: its memory overlaps lse" APART);
  BAD(call.max_logits = (float *)(void *)fix.out, FH_ERR_OVERLAP, "out: its memory overlaps max_logits" APART);
  BAD(call.max_logits = fix.lse, FH_ERR_OVERLAP, "lse: its memory overlaps max_logits" APART);
  BAD(call.lse = (float *)(void *)fix.kv, FH_ERR_OVERLAP, "lse: its memory overlaps kv" APART);
  BAD((call.lse = NULL, call.max_logits = fix.sink), FH_ERR_OVERLAP, "max_logits: its memory overlaps attn_sink" APART);
  BAD(call.counters = (fh_counters *)memset(fix.out, 0xff, 8), FH_ERR_VERSION,
      text_of("fh_counters.struct_size: got 18446744073709551615, wanted 352 (at least 288), set by the caller"));

  /* q in heads 0 .. 7 of a 64-head buffer, out in others of the same rows */
  GOOD((call.q = fix.out, call.out = fix.out + 8 * 512));
  GOOD((call.q = fix.out, call.out = fix.out + 56 * 512));
  GOOD((call.q = fix.out + 3 * 512, call.out = fix.out + 11 * 512));
  /* lse and max_logits side by side in one array */
  float *both = malloc(S_Q * 16 * 4);
  GOOD((call.lse = both, call.max_logits = both + 8, call.lse_stride = call.max_logits_stride = 16));
  BAD((call.lse = both, call.max_logits = both + 7, call.lse_stride = call.max_logits_stride = 16), FH_ERR_OVERLAP,
      "lse: its memory overlaps max_logits" APART);
  /* columns that the last dimension leaves free */
  GOOD((call.s_kv = 3, call.q = fix.out, call.out = fix.out + 8 * 512, call.kv = fix.out + 16 * 512,
        call.kv_stride = HEADS * D));
  free(both);
}

/* A path's q and out in one buffer give what they give apart. */
static void interleaved_result(void) {
  uint16_t *shared = malloc(S_Q * HEADS * D * 2);
  for (int32_t path = FH_REFERENCE; path < FH_PATHS; path++) {
    fh_call call = good_call();
    call.path = path;
    CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK);
    memcpy(shared, fix.q, S_Q * HEADS * D * 2);
    call.q = shared;
    call.out = shared + 8 * 512;
    CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK);
    int wrong = 0;
    for (int64_t s = 0; s < S_Q; s++) {
      wrong += memcmp(shared + s * HEADS * D, fix.q + s * HEADS * D, 8 * 512 * 2) != 0;
      wrong += memcmp(shared + s * HEADS * D + 8 * 512, fix.out + s * HEADS * D, 8 * 512 * 2) != 0;
      wrong += memcmp(shared + s * HEADS * D + 16 * 512, fix.q + s * HEADS * D + 16 * 512, 48 * 512 * 2) != 0;
    }
    CHECK_INT(wrong, 0);
  }
  free(shared);
}

static void older_struct(void) {
  struct {
    fh_call call;
    unsigned char guard[8];
  } older = {.call = good_call()};
  older.call.path = FH_REFERENCE;
  memset(fix.out, 0xff, S_Q * HEADS * D * 2);
  CHECK_INT(fh_sparse_fwd(fix.device, &older.call), FH_OK);
  uint16_t *want = malloc(S_Q * HEADS * D * 2);
  memcpy(want, fix.out, S_Q * HEADS * D * 2);
  memset(fix.out, 0xff, S_Q * HEADS * D * 2);
  memset(fix.lse, 0xff, S_Q * H_Q * 4);
  /* a caller that knows nothing past workspace_bytes: what stands there is not the library's to read */
  older.call.struct_size = offsetof(fh_call, stream);
  older.call.stream = fix.q;
  older.call.counters = (fh_counters *)(void *)fix.q;
  CHECK_INT(fh_sparse_fwd(fix.device, &older.call), FH_OK);
  CHECK(memcmp(want, fix.out, S_Q * HEADS * D * 2) == 0);
  CHECK(!untouched(fix.lse, S_Q * H_Q * 4));
  free(want);
}

static void workspace(void) {
  for (int32_t path = 0; path < FH_PATHS; path++) {
    fh_call call = good_call();
    uint64_t bytes = 99, bare = 98;
    call.path = path;
    CHECK_INT(fh_workspace_bytes(fix.device, &call, &bytes), FH_OK);
    CHECK_INT(bytes % 64, 0);
    fh_call no_pointers;
    fh_call_init(&no_pointers, sizeof no_pointers, S_Q, S_KV, H_Q, D, TOPK);
    no_pointers.path = path;
    CHECK_INT(fh_workspace_bytes(fix.device, &no_pointers, &bare), FH_OK);
    CHECK_INT(bare, bytes);
    if (path == FH_PACKED || path == FH_AUTO) CHECK(bytes > 0);
    if (!bytes) continue;

    CHECK(bytes <= WORKSPACE);
    call.workspace_bytes = bytes;
    CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK);
    memset(fix.out, 0xff, S_Q * HEADS * D * 2);
    call.workspace_bytes = bytes - 1;
    CHECK_INT(fh_call_check(fix.device, &call), FH_OK); /* the workspace is the run's business */
    REFUSED(fh_sparse_fwd(fix.device, &call), FH_ERR_WORKSPACE,
            text_of("workspace_bytes: got %" PRIu64 ", wanted at least %" PRIu64, bytes - 1, bytes));
    call.workspace = NULL;
    REFUSED(fh_sparse_fwd(fix.device, &call), FH_ERR_WORKSPACE,
            text_of("workspace: got NULL, wanted %" PRIu64 " bytes", bytes));
    call.workspace = (char *)fix.workspace + 32;
    call.workspace_bytes = bytes;
    REFUSED(fh_sparse_fwd(fix.device, &call), FH_ERR_ALIGNMENT,
            text_of("workspace: got %p, wanted a multiple of 64 bytes", call.workspace));
    call.workspace = (void *)(((uintptr_t)fix.out + 63) / 64 * 64);
    CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_ERR_OVERLAP);
    call.workspace = fix.workspace;
    call.indices = (const int32_t *)fix.workspace;
    REFUSED(fh_sparse_fwd(fix.device, &call), FH_ERR_OVERLAP, "workspace: its memory overlaps indices" APART);
    CHECK(untouched(fix.out, S_Q * HEADS * D * 2));
  }
  fh_call call = good_call();
  uint64_t bytes = 7;
  REFUSED(fh_workspace_bytes(fix.device, &call, NULL), FH_ERR_ARGUMENT, "bytes: got NULL, wanted a pointer");
  REFUSED(fh_workspace_bytes(NULL, &call, &bytes), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_workspace_bytes(fix.device, NULL, &bytes), FH_ERR_ARGUMENT, "fh_call: got NULL, wanted a pointer");
  call.h_q = 0;
  REFUSED(fh_workspace_bytes(fix.device, &call, &bytes), FH_ERR_SHAPE, "h_q: got 0, wanted 1 .. 128");
  CHECK_INT(bytes, 7);

  /* auto has room for every path that it may take, and none for a plan that it may not */
  for (int64_t rows = 1; rows <= 4096; rows *= 8)
    for (int32_t heads = 1; heads <= 128; heads *= 2) {
      uint64_t all[FH_PATHS] = {0}, invariant = 0;
      fh_call_init(&call, sizeof call, rows, 5000, heads, 512, 640);
      for (call.path = 0; call.path < FH_PATHS; call.path++)
        CHECK_INT(fh_workspace_bytes(fix.device, &call, &all[call.path]), FH_OK);
      call.path = FH_AUTO;
      call.row_invariant = 1;
      CHECK_INT(fh_workspace_bytes(fix.device, &call, &invariant), FH_OK);
      CHECK(all[FH_AUTO] >= all[FH_PADDED] && all[FH_AUTO] >= all[FH_GATHER]);
      CHECK(invariant >= all[FH_PADDED] && invariant >= all[FH_GATHER]);
      if (heads <= 32) CHECK(all[FH_AUTO] >= all[FH_PACKED] && invariant < all[FH_AUTO]);
      else CHECK_INT(invariant, all[FH_AUTO]);
    }

  /* the largest sizes that are accepted, on every path and head count */
  for (int32_t path = 0; path < FH_PATHS; path++)
    for (int32_t heads = 1; heads <= 128; heads += 127) {
      fh_call_init(&call, sizeof call, (int64_t)1 << 40, INT32_MAX, heads, 576, 65536);
      call.path = path;
      CHECK_INT(fh_workspace_bytes(fix.device, &call, &bytes), FH_OK);
      CHECK(bytes < (uint64_t)1 << 63);
      fh_call_init(&call, sizeof call, 1, INT32_MAX, heads, 576, INT32_MAX / 64);
      call.path = path;
      CHECK_INT(fh_workspace_bytes(fix.device, &call, &bytes), FH_OK);
      CHECK(bytes < (uint64_t)1 << 63);
    }
  /* lists too long to pack leave auto its other paths */
  fh_call_init(&call, sizeof call, 1, INT32_MAX, 8, 576, INT32_MAX);
  CHECK_INT(fh_workspace_bytes(fix.device, &call, &bytes), FH_OK);
}

/* No rows, no lists, no KV: nothing to compute, and nothing that has no element need be there. */
static void empty(void) {
  for (int32_t path = 0; path < FH_PATHS; path++)
    for (int none = 0; none < 3; none++) {
      fh_call call = good_call();
      fh_counters counters = {.struct_size = sizeof counters};
      call.path = path;
      call.counters = &counters;
      if (none == 0)
        call.s_q = 0, call.q = NULL, call.out = NULL, call.indices = NULL, call.workspace = NULL,
        call.workspace_bytes = 0;
      if (none == 1) call.topk = 0, call.indices = NULL;
      if (none == 2) call.s_kv = 0, call.kv = NULL;
      memset(fix.out, 0xff, S_Q * HEADS * D * 2);
      memset(fix.lse, 0xff, S_Q * H_Q * 4);
      memset(fix.max_logits, 0xff, S_Q * H_Q * 4);
      CHECK_INT(fh_call_check(fix.device, &call), FH_OK);
      CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK);
      CHECK_INT(counters.useful_flops, 0);
      if (none == 0) {
        CHECK(untouched(fix.out, S_Q * HEADS * D * 2));
        CHECK_INT(counters.calls[FH_AUTO] + counters.calls[FH_PADDED] + counters.calls[FH_GATHER] +
                      counters.calls[FH_PACKED] + counters.calls[FH_REFERENCE],
                  0);
        continue;
      }
      int wrong = 0;
      for (int64_t s = 0; s < S_Q; s++) {
        for (int64_t i = 0; i < H_Q * D; i++) wrong += fix.out[s * HEADS * D + i] != 0;
        for (int64_t h = 0; h < H_Q; h++)
          wrong += fix.lse[s * H_Q + h] != INFINITY || fix.max_logits[s * H_Q + h] != -INFINITY;
        wrong += !untouched(fix.out + s * HEADS * D + H_Q * D, (HEADS - H_Q) * D * 2);
      }
      CHECK_INT(wrong, 0);
    }
  GOOD((call.s_q = 0, call.q = (const uint16_t *)1, call.out = (void *)1)); /* no element, no alignment */
}

/* Which path ran, by its counters; 0 when not exactly one did. */
static int32_t path_that_ran(const fh_counters *counters) {
  int32_t path = 0;
  for (int32_t p = FH_REFERENCE; p < FH_PATHS; p++) {
    if (counters->calls[p] == 0 && counters->rows[p] == 0) continue;
    if (path || counters->calls[p] != 1 || counters->rows[p] != S_Q) return 0;
    path = p;
  }
  return path;
}

static int64_t valid_keys(void) {
  int64_t keys = 0;
  for (int s = 0; s < S_Q; s++)
    for (int j = 0; j < fix.topk_length[s] && j < TOPK; j++)
      keys += fix.indices[s * TOPK + j] >= 0 && fix.indices[s * TOPK + j] < S_KV;
  return keys;
}

/* "cpu avx2" of the device that the tests run on. */
static const char *isa_of_device(void) {
  fh_device_info info = {.struct_size = sizeof info};
  CHECK_INT(fh_device_get_info(fix.device, &info), FH_OK);
  return fhk_cpu_isa_name(info.isa);
}

static void counters(void) {
  const char *isa = isa_of_device();
  const uint64_t useful = (uint64_t)valid_keys() * 2 * H_Q * (D + 512);
  for (int32_t path = FH_REFERENCE; path < FH_PATHS; path++) {
    fh_counters all = {.struct_size = sizeof all};
    fh_call call = good_call();
    call.path = path;
    call.counters = &all;
    CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK);
    CHECK_INT(path_that_ran(&all), path);
    CHECK_INT(all.calls[FH_AUTO], 0);
    CHECK_INT(all.useful_flops, useful);
    CHECK(all.executed_flops >= useful);
    CHECK(all.bytes > 0);
    const fh_counters once = all;
    CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK); /* adds */
    CHECK_INT(all.calls[path], 2);
    CHECK_INT(all.rows[path], 2 * S_Q);
    CHECK_INT(all.useful_flops, 2 * once.useful_flops);
    CHECK_INT(all.executed_flops, 2 * once.executed_flops);
    CHECK_INT(all.bytes, 2 * once.bytes);

    CHECK_STR(all.kernel, path == FH_REFERENCE ? "cpu reference" : text_of("cpu %s %s", isa, fh_path_name(path)));

    fh_counters older = {.struct_size = offsetof(fh_counters, kernel), .kernel = "mine"};
    call.counters = &older;
    CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK);
    CHECK_INT(older.rows[path], S_Q);
    CHECK_STR(older.kernel, "mine"); /* past the caller's struct */
  }
  fh_counters odd = {.struct_size = 9};
  BAD(call.counters = &odd, FH_ERR_VERSION,
      "fh_counters.struct_size: got 9, wanted 352 (at least 288), set by the caller");
  fh_counters *inside = memset(fix.lse, 0, sizeof *inside);
  inside->struct_size = sizeof *inside;
  BAD(call.counters = inside, FH_ERR_OVERLAP, "lse: its memory overlaps counters" APART);
}

static fh_costs costs_for(int32_t path) {
  const fh_path_cost cheap = {0, 1, 0}, dear = {0, 20, 0};
  return (fh_costs){sizeof(fh_costs),
                    path == FH_PADDED ? cheap : dear,
                    path == FH_GATHER ? cheap : dear,
                    path == FH_PACKED ? cheap : dear,
                    {0, 0, 0},
                    {0, 0, 0}};
}

static int32_t auto_takes(fh_call call, const fh_costs *costs) {
  fh_counters counted = {.struct_size = sizeof counted};
  call.path = FH_AUTO;
  call.costs = costs;
  call.counters = &counted;
  uint64_t bytes = 0;
  CHECK_INT(fh_workspace_bytes(fix.device, &call, &bytes), FH_OK);
  call.workspace_bytes = bytes; /* what was asked for is enough */
  memset((char *)fix.workspace + bytes, 0xab, 64);
  CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK);
  for (int i = 0; i < 64; i++)
    if (((unsigned char *)fix.workspace)[bytes + (uint64_t)i] != 0xab) FAILED("written past the workspace");
  CHECK_INT(counted.calls[FH_AUTO], 1);
  return path_that_ran(&counted);
}

static void automatic(void) {
  uint16_t *out = malloc(S_Q * HEADS * D * 2);
  for (int32_t path = FH_PADDED; path <= FH_PACKED; path++) {
    const fh_costs costs = costs_for(path);
    fh_call run = good_call();
    CHECK_INT(auto_takes(run, &costs), path);
    memcpy(out, fix.out, S_Q * HEADS * D * 2);
    run.path = path; /* bit for bit what the path alone gives */
    CHECK_INT(fh_sparse_fwd(fix.device, &run), FH_OK);
    CHECK(memcmp(out, fix.out, S_Q * HEADS * D * 2) == 0);
  }
  free(out);

  /* packed is not on offer where rows must not depend on their neighbours, nor with one row a group */
  const fh_costs packed = costs_for(FH_PACKED);
  fh_call run = good_call();
  run.row_invariant = 1;
  CHECK_INT(auto_takes(run, &packed), FH_PADDED);
  run = good_call();
  run.group = 1;
  CHECK_INT(auto_takes(run, &packed), FH_PADDED);
  run = good_call();
  CHECK(auto_takes(run, NULL) >= FH_PADDED);

  /* the cost model sees the lists: gather's price by the key against padded's by the run, once below and once above
   * the true count */
  const double gflop = (double)valid_keys() * 2 * H_Q * (D + 512) * 1e-9;
  for (int invariant = 0; invariant < 2; invariant++) {
    run = good_call();
    run.row_invariant = invariant;
    fh_costs by_key = {sizeof by_key, {100, 0, 0}, {0, 0, 99.9 / gflop}, {1000, 0, 0}, {0, 0, 0}, {0, 0, 0}};
    CHECK_INT(auto_takes(run, &by_key), FH_GATHER);
    by_key.gather.gflop_us = 100.1 / gflop;
    CHECK_INT(auto_takes(run, &by_key), FH_PADDED);
  }
  /* and packed's price by the entry: lists that are all alike make a union of one list a group, rounded up to 64
   * entries */
  int32_t *same = malloc(S_Q * TOPK * 4);
  for (int i = 0; i < S_Q * TOPK; i++) same[i] = i % TOPK;
  run = good_call();
  run.indices = same;
  run.topk_length = NULL;
  const double union_gflop = 2.0 * H_Q * 8 * (D + 512) * 64 * 3 * 1e-9; /* 3 groups */
  fh_costs by_entry = {sizeof by_entry, {100, 0, 0}, {1000, 0, 0}, {0, 0, 99.9 / union_gflop}, {0, 0, 0}, {0, 0, 0}};
  CHECK_INT(auto_takes(run, &by_entry), FH_PACKED);
  by_entry.packed.gflop_us = 100.1 / union_gflop;
  CHECK_INT(auto_takes(run, &by_entry), FH_PADDED);
  free(same);

  fh_costs bad = costs_for(FH_PADDED);
  bad.padded.unit_us = NAN;
  BAD(call.costs = &bad, FH_ERR_ARGUMENT,
      text_of("costs.padded: got call_us 0, unit_us %g, gflop_us 0, wanted finite numbers", bad.padded.unit_us));
  bad.struct_size = 8;
  BAD(call.costs = &bad, FH_ERR_VERSION, "fh_costs.struct_size: got 8, wanted 128 (at least 80), set by the caller");
}

/* Groups of 8, 8 and 5 rows with 128, 16 and 80 keys, some of them twice or no key at all; a group packed costs what
 * 30 keys do. */
static void parts_of(int32_t rows_path, int64_t requests, const int32_t *cu_seqlens_q, const int gathered[S_Q]) {
  enum { ROW = H_Q * D * 2 };
  static uint16_t by_rows[S_Q * HEADS * D], by_group[S_Q * HEADS * D];
  int32_t indices[S_Q * TOPK], lengths[S_Q];
  for (int i = 0; i < S_Q * TOPK; i++) indices[i] = (i * 11 + i / TOPK) % S_KV;
  for (int i = 0; i < S_Q; i++) {
    lengths[i] = i / 8 == 1 ? 8 * (i % 2) : TOPK; /* every other row of the second eight is empty */
    indices[i * TOPK + 2] = indices[i * TOPK + 1];
  }
  for (int i = 9; i < 16; i += 2)
    for (int j = 4; j < 8; j++) indices[i * TOPK + j] = j % 2 ? -1 : S_KV; /* holes: four keys are left */
  indices[9 * TOPK + 0] = -1;
  indices[9 * TOPK + 4] = 3;
  fh_call run = good_call();
  run.indices = indices;
  run.topk_length = lengths;
  run.requests = requests;
  run.cu_seqlens_q = cu_seqlens_q;
  uint16_t *const results[] = {by_rows, by_group};
  for (int i = 0; i < 2; i++) {
    run.path = i ? FH_PACKED : rows_path;
    CHECK_INT(fh_sparse_fwd(fix.device, &run), FH_OK);
    memcpy(results[i], fix.out, S_Q * HEADS * D * 2);
  }
  const double gflop = 2.0 * 1024 * 1e-9; /* of a head and a key */
  const fh_path_cost dear = {1000000, 0, 0};
  fh_costs costs = {sizeof costs, dear, dear, {0, 30, 0}, {0, 0, 0}, {0, 0, 0}};
  if (rows_path == FH_GATHER) costs.gather = (fh_path_cost){0, 0, 1 / (gflop * H_Q)};
  else costs.padded = (fh_path_cost){0, 0, 1 / (gflop * 64)};
  run.path = FH_AUTO;
  run.costs = &costs;
  uint64_t bytes = 0, rows = 0;
  fh_plan plan = {.struct_size = sizeof plan};
  CHECK_INT(fh_plan_bytes(fix.device, &run, &bytes), FH_OK);
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  CHECK_INT(fh_plan_build(fix.device, &run, memory, bytes, &plan), FH_OK);
  for (int s = 0; s < S_Q; s++) rows += gathered[s] != 0;
  for (int planned = 0; planned < 2; planned++) { /* on a plan of its own, and on the one that was built for it */
    fh_counters counted = {.struct_size = sizeof counted};
    if (planned) run.plan = &plan;
    run.counters = &counted;
    memset(fix.out, 0xff, S_Q * HEADS * D * 2);
    CHECK_INT(fh_sparse_fwd(fix.device, &run), FH_OK);
    for (int s = 0; s < S_Q; s++)
      CHECK(memcmp(fix.out + s * HEADS * D, (gathered[s] ? by_rows : by_group) + s * HEADS * D, ROW) == 0);
    for (int s = 0; s < S_Q; s++) CHECK(untouched(fix.out + s * HEADS * D + H_Q * D, ROW));
    CHECK_INT(counted.rows[rows_path], rows);
    CHECK_INT(counted.rows[FH_PACKED], S_Q - rows);
    CHECK_INT(counted.rows[FH_AUTO], 0);
    CHECK_INT(counted.calls[FH_AUTO], 1);
    CHECK_INT(counted.calls[rows_path], rows > 0);
    CHECK_INT(counted.calls[FH_PACKED], rows < S_Q);
    CHECK_STR(counted.kernel,
              text_of("cpu %s packed + cpu %s %s", isa_of_device(), isa_of_device(), fh_path_name(rows_path)));
  }
  /* a row that must not depend on its neighbours is never packed, whatever the plan says */
  fh_counters counted = {.struct_size = sizeof counted};
  run.counters = &counted;
  run.row_invariant = 1;
  CHECK_INT(fh_sparse_fwd(fix.device, &run), FH_OK);
  CHECK_INT(counted.rows[rows_path], S_Q);
  CHECK_INT(counted.calls[FH_PACKED], 0);
  for (int s = 0; s < S_Q; s++) CHECK(memcmp(fix.out + s * HEADS * D, by_rows + s * HEADS * D, ROW) == 0);
  free(memory);
}

static void parts(void) {
  static const int second[S_Q] = {[8] = 1, 1, 1, 1, 1, 1, 1, 1};
  /* requests of 3, 0, 13 and 5 rows: groups of 3, 8, 5 and 5 with 48, 84, 12 and 80 keys */
  static const int32_t cu_seqlens_q[] = {0, 3, 3, 16, 21};
  static const int ragged[S_Q] = {[11] = 1, 1, 1, 1, 1};
  for (int32_t path = FH_PADDED; path <= FH_GATHER; path++) {
    parts_of(path, 0, NULL, second);
    parts_of(path, 4, cu_seqlens_q, ragged);
  }
}

static void plans(void) {
  fh_call run = good_call();
  uint64_t bytes = 0, with = 0, without = 0;
  fh_plan plan = {.struct_size = sizeof plan};
  CHECK_INT(fh_plan_bytes(fix.device, &run, &bytes), FH_OK);
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  CHECK_INT(fh_plan_build(fix.device, &run, memory, bytes, &plan), FH_OK);

  /* the same result as with a plan of its own, in less workspace; auto takes it too */
  uint16_t *own = malloc(S_Q * HEADS * D * 2);
  fh_counters building = {.struct_size = sizeof building}, given = building;
  run.path = FH_PACKED;
  run.counters = &building;
  CHECK_INT(fh_workspace_bytes(fix.device, &run, &without), FH_OK);
  CHECK_INT(fh_sparse_fwd(fix.device, &run), FH_OK);
  memcpy(own, fix.out, S_Q * HEADS * D * 2);
  memset(fix.out, 0xff, S_Q * HEADS * D * 2);
  run.plan = &plan;
  CHECK_INT(fh_workspace_bytes(fix.device, &run, &with), FH_OK);
  CHECK_INT(without - with, (bytes + 255) / 256 * 256); /* the plan's share */
  run.workspace_bytes = with;
  run.counters = &given;
  CHECK_INT(fh_sparse_fwd(fix.device, &run), FH_OK);
  uint64_t listed = 0; /* a plan that is built reads lists and lengths, one that is given does not */
  for (int s = 0; s < S_Q; s++)
    listed += 4 + 4 * (uint64_t)(fix.topk_length[s] < 0 ? 0 : fix.topk_length[s] > TOPK ? TOPK : fix.topk_length[s]);
  CHECK_INT(building.bytes - given.bytes, listed);
  CHECK_INT(building.executed_flops, given.executed_flops);
  run.counters = NULL;
  int wrong = 0;
  for (int64_t s = 0; s < S_Q; s++) wrong += memcmp(own + s * HEADS * D, fix.out + s * HEADS * D, H_Q * D * 2) != 0;
  CHECK_INT(wrong, 0);
  free(own);
  const fh_costs packed = costs_for(FH_PACKED);
  CHECK_INT(auto_takes(run, &packed), FH_PACKED);

#define BAD_PLAN(field, value, text)                                                                                 \
  do {                                                                                                               \
    fh_plan other = plan;                                                                                            \
    other.field = value;                                                                                             \
    for (int32_t path = 0; path < FH_PATHS; path++) BAD((call.path = path, call.plan = &other), FH_ERR_SHAPE, text); \
  } while (0)
  BAD_PLAN(s_q, 22, "plan.s_q: got 22, wanted the call's 21");
  BAD_PLAN(requests, 1, "plan.requests: got 1, wanted the call's 0");
  BAD_PLAN(group, 4, "plan.group: got 4, wanted the call's 8");
  BAD_PLAN(groups, 4, "plan.groups: got 4, wanted the call's 3");
  BAD_PLAN(s_kv, S_KV + 1, text_of("plan.s_kv: got %d, wanted the call's %d", S_KV + 1, S_KV)); /* tokens beyond kv */
  BAD_PLAN(capacity, 127, "plan.capacity: got 127, wanted the call's 128");
  BAD((call.plan = &plan, call.group = 4), FH_ERR_SHAPE, "plan.group: got 8, wanted the call's 4");
  BAD((call.plan = &plan, call.topk = 15), FH_ERR_SHAPE, "plan.capacity: got 128, wanted the call's 120");
  fh_plan other = plan;
  other.token = NULL;
  BAD(call.plan = &other, FH_ERR_ARGUMENT, "plan.token: got NULL, wanted a pointer");
  other = plan;
  other.member = (uint64_t *)((uintptr_t)plan.member + 4);
  BAD(call.plan = &other, FH_ERR_ALIGNMENT,
      text_of("plan.member: got %p, wanted a multiple of 8 bytes", (void *)other.member));
  other = plan;
  other.entries = (int32_t *)(void *)fix.out;
  BAD(call.plan = &other, FH_ERR_OVERLAP, "out: its memory overlaps plan.entries" APART);
  other = plan;
  other.keys = (int32_t *)(void *)fix.lse;
  BAD(call.plan = &other, FH_ERR_OVERLAP, "lse: its memory overlaps plan.keys" APART);
  other = plan;
  other.first = NULL;
  BAD(call.plan = &other, FH_ERR_ARGUMENT, "plan.first: got NULL, wanted a pointer");
  other = plan;
  other.packed_from = (int32_t *)(void *)fix.lse;
  BAD(call.plan = &other, FH_ERR_OVERLAP, "lse: its memory overlaps plan.packed_from" APART);
  other = plan;
  other.struct_size = 0;
  BAD(call.plan = &other, FH_ERR_VERSION, "fh_plan.struct_size: got 0, wanted 104 (at least 104), set by the caller");
  run = good_call();
  run.path = FH_AUTO;
  run.plan = &plan;
  run.workspace = memory;
  run.workspace_bytes = bytes;
  CHECK_INT(fh_workspace_bytes(fix.device, &run, &with), FH_OK);
  if (with && with <= bytes) CHECK_INT(fh_sparse_fwd(fix.device, &run), FH_ERR_OVERLAP);
  free(memory);
}

/* Callers on several threads share one device: every result is what one caller alone gets. */
typedef struct caller {
  pthread_t thread;
  int32_t path;
  int good;
  const uint16_t *want;
} caller;

static void *call_often(void *arg) {
  caller *me = arg;
  uint16_t *out = malloc(S_Q * H_Q * D * 2);
  void *own = aligned_alloc(64, WORKSPACE);
  fh_counters counted = {.struct_size = sizeof counted};
  fh_call call = good_call();
  call.path = me->path;
  call.out = out;
  call.out_stride_s = H_Q * D;
  call.lse = call.max_logits = NULL;
  call.workspace = own;
  call.counters = &counted;
  me->good = 1;
  for (int i = 0; i < 20; i++) {
    memset(out, 0xff, S_Q * H_Q * D * 2);
    me->good &= fh_sparse_fwd(fix.device, &call) == FH_OK && memcmp(out, me->want, S_Q * H_Q * D * 2) == 0;
    fh_call bad = call;
    bad.h_q = me->path + 200; /* each thread reads its own message */
    me->good &= fh_sparse_fwd(fix.device, &bad) == FH_ERR_SHAPE &&
                strcmp(fh_error(), text_of("h_q: got %d, wanted 1 .. 128", me->path + 200)) == 0;
  }
  me->good &= counted.calls[me->path] == 20;
  free(out);
  free(own);
  return NULL;
}

static void callers(void) {
  caller all[FH_PATHS] = {{0}};
  for (int32_t path = FH_REFERENCE; path < FH_PATHS; path++) {
    uint16_t *want = malloc(S_Q * H_Q * D * 2);
    fh_call call = good_call();
    call.path = path;
    call.out = want;
    call.out_stride_s = H_Q * D;
    CHECK_INT(fh_sparse_fwd(fix.device, &call), FH_OK);
    all[path].path = path;
    all[path].want = want;
  }
  for (int32_t path = FH_REFERENCE; path < FH_PATHS; path++)
    pthread_create(&all[path].thread, NULL, call_often, &all[path]);
  for (int32_t path = FH_REFERENCE; path < FH_PATHS; path++) {
    pthread_join(all[path].thread, NULL);
    CHECK(all[path].good);
    free((void *)(uintptr_t)all[path].want);
  }
}

static void no_allocation(void) {
  if (!COUNTS_ALLOCATIONS) {
    printf("allocations are not counted in this build: the sanitizer owns the allocator\n");
    return;
  }
  long before = atomic_load(&allocations);
  void *volatile one = malloc(1); /* volatile: or the compiler leaves both calls out */
  free(one);
  CHECK(atomic_load(&allocations) == before + 1); /* they are counted */
  for (int32_t path = 0; path < FH_PATHS; path++) {
    fh_call call = good_call();
    call.path = path;
    uint64_t bytes = 0;
    before = atomic_load(&allocations);
    const fh_status status = fh_workspace_bytes(fix.device, &call, &bytes) || fh_call_check(fix.device, &call) ||
                             fh_sparse_fwd(fix.device, &call);
    const long after = atomic_load(&allocations);
    CHECK_INT(status, FH_OK);
    CHECK_INT(after - before, 0);
  }
}

int main(void) {
  for (int32_t threads = 1; threads <= 2; threads++) {
    make_fixture(threads);
    initial();
    sizes();
    pointers();
    strides();
    overlap();
    interleaved_result();
    older_struct();
    workspace();
    empty();
    counters();
    automatic();
    parts();
    plans();
    callers();
    no_allocation();
    free_fixture();
  }
  return check_summary();
}
