/*
 * fewhead: sparse MLA prefill for few query heads a GPU or CPU.
 *
 * This header is the manual. It starts with what the shortest program needs: a device, a call, the run. Then come the
 * workspace, counters, plans and the cost model; then buffers, views and the rest. What may still change before 1.0
 * says so.
 *
 * A complete program, on the CPU:
 *
 *     fh_device *cpu = NULL;
 *     if (fh_device_open("cpu", NULL, &cpu)) { puts(fh_error()); return 1; }
 *     fh_call call;                                           // sizes, contiguous strides, sm_scale = d_qk^-0.5
 *     fh_call_init(&call, sizeof call, s_q, s_kv, h_q, 512, topk);
 *     call.q = q; call.kv = kv; call.indices = indices; call.out = out;
 *     uint64_t bytes;
 *     if (fh_workspace_bytes(cpu, &call, &bytes)) { puts(fh_error()); return 1; }
 *     call.workspace = aligned_alloc(64, (bytes + 63) / 64 * 64); call.workspace_bytes = bytes;
 *     if (fh_sparse_fwd(cpu, &call)) puts(fh_error());
 *     fh_device_close(&cpu);
 *
 * Rules for every function
 *  - A function that can fail returns an fh_status: FH_OK (0) or one of the pinned codes below. On failure, fh_error()
 *    returns one line that names the argument, what was given and what was wanted; nothing that the caller owns has
 *    changed. The library never prints, aborts or exits. Every such function returns FH_ERR_ARGUMENT for a NULL where a
 *    pointer is needed, FH_ERR_VERSION for a struct_size that it does not know, and FH_ERR_DEVICE for an error of the
 *    device. The comment of a function names the other codes.
 *  - A struct passed by pointer starts with its own size, `struct_size`, set by the caller (sizeof) or by the _init
 *    function. The library accepts an older, smaller struct: the fields it lacks take their defaults. The library
 *    refuses a larger struct. From 0.2 on a struct grows at its end only.
 *  - The library borrows a pointer for the length of the call, unless the declaration says owned. Objects (fh_device,
 *    fh_buffer, fh_view, fh_timer, fh_graph, fh_provider, fh_provider_job) are counted: a buffer keeps its device
 *    alive, a view its buffer. A function that frees takes the address of the handle and sets the handle to NULL. So
 *    freeing twice, and freeing NULL, do nothing.
 *  - Strides and offsets are int64_t, in elements of their array. Sizes in bytes say so.
 *  - Every function may be called from any thread. Two calls may run at once if they write separate memory. Calls on
 *    one CPU device share its threads and take turns.
 *
 * On CUDA
 *  - Every device has a stream of its own, which waits for no other stream. A call, a timer or a graph runs there, or
 *    on the cudaStream_t that it is given. Functions that move or set memory use the device's own stream and are done
 *    when they return, except fh_buffer_evict. The caller orders other streams, with events or with
 *    fh_device_synchronize.
 *  - fh_plan_build fills the struct at once, and the struct's arrays, which lie on the device, in the order of
 *    call->stream: a call on that stream may follow at once. Every device builds plans; fh_device_has_path tells which
 *    devices have FH_PACKED.
 *  - With FH_AUTO and a plan, the device decides which groups are packed. The host does not see the choice, and a graph
 *    that is launched again decides again by the lists of that time.
 *  - Every function leaves the thread's current device and context as they were.
 *  - Errors name CUDA's function, its error and its text. After some errors, such as a bad address in a kernel, CUDA
 *    does nothing more in this process: the message then ends in "the device's context is lost until the process ends".
 *    CUDA reports errors late: the first function that waits may return an error caused by an earlier call.
 */
#ifndef FEWHEAD_H
#define FEWHEAD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* What stands between the two cdef marks is read by LuaJIT's ffi.cdef as it is: no preprocessor lines, constants are
 * enums, and a bf16 is a uint16_t that holds the upper half of an IEEE float. */
/* cdef:begin */

/* ---- Status ------------------------------------------------------------------------------------------------------ */

typedef int32_t fh_status;

enum {
  FH_OK = 0,
  FH_ERR_ARGUMENT = 10,    /* a value outside its domain: NULL where a pointer is needed, an unknown enum, a bad name */
  FH_ERR_SHAPE = 20,       /* a size is negative, too large, or does not fit another */
  FH_ERR_STRIDE = 30,      /* strides make elements of an output overlap, or an offset leaves 64 bits */
  FH_ERR_ALIGNMENT = 40,   /* a pointer is not a multiple of its element's size */
  FH_ERR_OVERLAP = 50,     /* an output's memory overlaps an input or another output */
  FH_ERR_UNSUPPORTED = 60, /* well formed, but this path or device cannot do it */
  FH_ERR_WORKSPACE = 70,   /* the workspace or plan memory is missing or too small */
  FH_ERR_MEMORY = 80,      /* an allocation failed */
  FH_ERR_DEVICE = 90,      /* the device is missing or reported an error */
  FH_ERR_VERSION = 100     /* a struct_size this library does not know */
};

/* Returns the name of a status, "FH_ERR_SHAPE" for 20; "FH_ERR_?" for any other number. Never NULL. */
const char *fh_status_name(fh_status status);

/* Returns what went wrong in the last failed call of this thread: one line without a line end, "" if no call has
 * failed. Valid until this thread's next failing call. Never NULL. */
const char *fh_error(void);

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

typedef struct fh_device fh_device;

typedef enum fh_device_kind { FH_DEVICE_CPU = 1, FH_DEVICE_CUDA = 2 } fh_device_kind;

/* Instruction sets of the CPU kernels. Each includes those before it. */
typedef enum fh_isa {
  FH_ISA_BEST = 0,        /* the fastest that this CPU has */
  FH_ISA_GENERIC = 1,     /* plain C, any x86-64 or other CPU */
  FH_ISA_AVX2 = 2,        /* AVX2 and FMA */
  FH_ISA_AVX512 = 3,      /* AVX-512 F, BW, DQ, VL */
  FH_ISA_AVX512_BF16 = 4, /* and bf16 dot products */
  FH_ISA_AMX = 5          /* and AMX tiles with bf16 products, where the kernel lets this process use them */
} fh_isa;

typedef struct fh_device_options {
  uint64_t struct_size;
  int32_t threads; /* CPU: threads that work on a call, 1 .. 1024; 0 = FEWHEAD_THREADS if set, else the CPUs that this
                      process may use (affinity and container quota) */
  int32_t isa;     /* CPU: an fh_isa that this CPU has; 0 = FEWHEAD_ISA (generic, avx2, avx512, avx512_bf16, amx) if
                      set, else the fastest */
} fh_device_options;

/* Opens a device by name: "cpu", "cuda:0", "cuda:1" and on; "cuda" is "cuda:0". options may be NULL. The caller owns
 * the new handle and gives it back with fh_device_close. Returns FH_ERR_ARGUMENT for any other name, and FH_ERR_DEVICE
 * if the device, its driver, the requested isa or compute capability 8.0 is missing. On CUDA the function makes the
 * device's primary context, loads all kernels and allocates twice the L2 cache. With FEWHEAD_FORCE_PORTABLE=1 in the
 * environment the device uses only the kernels that run on any capability. */
fh_status fh_device_open(const char *name, const fh_device_options *options, fh_device **device);

/* Gives the handle back and sets it to NULL. The device itself goes when the last buffer and timer on it has gone. */
void fh_device_close(fh_device **device);

/* ---- The call ---------------------------------------------------------------------------------------------------- */

/* Ways to compute a call. All give the same result within rounding. */
typedef enum fh_path {
  FH_AUTO = 0,      /* padded, gather or packed, by the cost model; maybe packed for some groups and not for others */
  FH_REFERENCE = 1, /* the oracle: plain loops, double accumulation */
  FH_PADDED = 2,    /* a tile holds one query's heads and zero heads up to h_pad: what engines do today */
  FH_GATHER = 3,    /* a tile holds one query's native heads */
  FH_PACKED = 4     /* a tile holds `group` neighbouring queries, over the union of their index lists */
} fh_path;

enum {
  FH_PATHS = 5,     /* paths there are */
  FH_MAX_PATHS = 16 /* paths there is room for in fh_counters */
};

typedef struct fh_plan fh_plan;
typedef struct fh_counters fh_counters;
typedef struct fh_costs fh_costs;

/*
 * out[s, h, :] = sum over valid keys t of softmax_t(sm_scale * q[s, h, :] . kv[t, :]) * kv[t, 0 : d_v]
 *
 * The keys of row s are indices[s, j] for j < topk_length[s]. A key is valid when 0 <= index < s_kv, and counts as
 * often as it stands in the list. topk_length is clamped to 0 .. topk. Invalid entries may stand anywhere in the list.
 *   lse[s, h]        = ln of the sum of exp(logit) over valid keys, without the sink
 *   max_logits[s, h] = the largest logit, sm_scale included
 *   attn_sink[h]     adds exp(sink) to the denominator of out only; -inf adds nothing, +inf makes out 0
 *   a row without a valid key: out 0, lse +inf, max_logits -inf
 * A KV row that holds NaN or Inf changes only the rows that list it; the results of such rows are not specified.
 * Sums are kept in fp32, with weights of up to 2^8 before they are divided by their sum. So finite values give a finite
 * out if the values of kv are below 2^119 / topk (6e35 / topk) and no product of q and kv overflows. Larger values,
 * near the top of bf16, may give Inf or NaN.
 *
 * Every path reads q and writes out for heads 0 .. h_q - 1 only: the padding heads of a 64-head buffer are neither read
 * nor written. Accumulation is fp32; bf16 results are rounded to nearest even.
 */
typedef struct fh_call {
  uint64_t struct_size;

  /* Sizes */
  int64_t s_q;    /* query rows of the chunk, 0 .. 2^40 */
  int64_t s_kv;   /* KV rows, 0 .. 2^31 - 1 */
  int64_t topk;   /* width of the index lists, 0 .. 2^31 - 1; s_q * topk <= 2^56; packed: group * topk
                     < 2^31 */
  int32_t h_q;    /* query heads of this rank, 1 .. 128 */
  int32_t d_qk;   /* 512 or 576 */
  int32_t d_v;    /* 512: V is the first 512 columns of the KV row */
  float sm_scale; /* > 0, at most 2^127 */

  /* Inputs */
  const uint16_t *q; /* bf16 [s_q, h_q, d_qk]; the last dimension is contiguous */
  int64_t q_stride_s;
  int64_t q_stride_h;
  const uint16_t *kv; /* bf16 [s_kv, d_qk], h_kv = 1; the last dimension is contiguous */
  int64_t kv_stride;
  const int32_t *indices; /* [s_q, topk]; the last dimension is contiguous */
  int64_t indices_stride;
  const int32_t *topk_length;  /* [s_q] contiguous, or NULL: topk for every row */
  const float *attn_sink;      /* [h_q] contiguous, or NULL: no sink */
  const int32_t *cu_seqlens_q; /* [requests + 1] contiguous: first row of each request, ascending from 0 to s_q, and s_q
                                  is below 2^31 then. A packed group holds rows of one request only */
  int64_t requests;            /* requests in the chunk, 0 .. 2^31 - 1; 0 = one request, and no cu_seqlens_q */

  /* Outputs */
  void *out; /* out_dtype [s_q, h_q, d_v]; the last dimension is contiguous */
  int64_t out_stride_s;
  int64_t out_stride_h;
  float *lse; /* [s_q, h_q], or NULL; natural log; heads contiguous */
  int64_t lse_stride;
  float *max_logits; /* [s_q, h_q], or NULL; heads contiguous */
  int64_t max_logits_stride;
  int32_t out_dtype; /* FH_BF16; the reference also takes FH_F32 (unrounded) */

  /* How */
  int32_t path;          /* an fh_path */
  int32_t row_invariant; /* 0, or 1: the result of a row must not depend on its neighbours, bit for bit. Then
                            FH_AUTO never packs, FH_PACKED refuses, and gather adds in the same order for any
                            number of rows */
  int32_t h_pad;         /* heads the padded path computes: 0 (choose), 64 or 128, >= h_q */
  int32_t group;         /* queries of a packed group: 0 = max(1, 64 / h_q); else 1, or up to 64 / h_q */
  int32_t reserved;      /* 0 */
  void *workspace;       /* at least fh_workspace_bytes, 64-byte aligned; may be NULL when that is 0 */
  uint64_t workspace_bytes;
  void *stream;          /* CUDA: cudaStream_t of the device, NULL = its own stream. CPU: must be NULL */
  const fh_plan *plan;   /* built by fh_plan_build from the same indices, topk_length and cu_seqlens_q; its sizes
                            must fit the call. NULL = a plan is built in the workspace if one is needed */
  const fh_costs *costs; /* the cost model that FH_AUTO compares by, or NULL: the device's own */
  fh_counters *counters; /* host memory that the call adds to, or NULL */
} fh_call;

/* Fills the struct of struct_size bytes, which must be sizeof(fh_call): the sizes, contiguous strides for all arrays (q
 * and out with h_q heads a row), sm_scale = d_qk^-0.5, d_v = 512, path FH_AUTO, out_dtype FH_BF16, and 0 or NULL for
 * the rest. The caller sets the pointers. The sizes are not checked here. */
fh_status fh_call_init(fh_call *call, uint64_t struct_size, int64_t s_q, int64_t s_kv, int32_t h_q, int32_t d_qk,
                       int64_t topk);

/* Returns everything that fh_sparse_fwd would refuse, without running: sizes, pointers, strides, alignment, overlap,
 * support; not the workspace. Index values are data, not arguments: no index value is refused.
 *  - A pointer to an array without elements (s_q, s_kv or topk 0) may be anything, NULL too.
 *  - Strides of q, kv and indices may be any number: 0, negative, rows that overlap. Strides of out, lse and max_logits
 *    must keep elements apart: the larger step over all that the smaller one covers, in either order and with either
 *    sign.
 *  - Memory that is written shares nothing with any other array of the call. Interleaving with a common period is fine:
 *    q in heads 0 .. 7 and out in heads 8 .. 15 of the same buffer, lse and max_logits side by side in each row. */
fh_status fh_call_check(fh_device *device, const fh_call *call);

/* Runs the call. Allocates nothing, prints nothing; on CUDA it only enqueues work on the stream and may be captured in
 * a graph. A call with s_q = 0 does nothing and succeeds. Fails as fh_call_check does; FH_ERR_WORKSPACE if the
 * workspace is smaller than fh_workspace_bytes says. */
fh_status fh_sparse_fwd(fh_device *device, const fh_call *call);

/* ---- Workspace and counters -------------------------------------------------------------------------------------- */

/* Sets *bytes to the workspace that the call needs. The number depends on path, sizes, device, costs and whether a plan
 * is given, never on data. The other pointers of the call may still be NULL. Fails as fh_call_check does for sizes,
 * path and costs. */
fh_status fh_workspace_bytes(fh_device *device, const fh_call *call, uint64_t *bytes);

/*
 * Counts what calls did: which path and kernel ran and how much work it was. Zero the struct, set struct_size, pass it
 * to calls, read it afterwards. A call in a graph is counted when it is recorded, not when it is launched.
 *
 * On CUDA the host does not know what the lists hold. It counts every row as topk valid keys: calls and rows are exact,
 * flops and bytes are the most that they can have been. Nor does the host know which groups an FH_AUTO call packed:
 * such rows are counted in rows[FH_AUTO], and fh_plan.packed_from tells which groups were packed, if the caller built
 * the plan.
 */
struct fh_counters {
  uint64_t struct_size;
  uint64_t useful_flops;   /* 2 * h_q * (d_qk + d_v) for every valid key of every row */
  uint64_t executed_flops; /* the same over heads and keys that the kernel really multiplied, padding included */
  uint64_t bytes;          /* KV rows fetched, q read, out, lse and max_logits written, lists and plan read; bytes */
  uint64_t calls[16];      /* [FH_MAX_PATHS] by fh_path: calls with rows on it; [FH_AUTO]: calls that asked for auto */
  uint64_t rows[16];       /* [FH_MAX_PATHS] rows by the path that computed them; [FH_AUTO]: see above, 0 on a CPU */
  char kernel[64];         /* kernel of the last call, "sm90 gather"; of two that shared its rows both names,
                              "sm90 packed + sm90 gather" */
};

/* ---- Plan: what neighbouring queries share ----------------------------------------------------------------------- */

/*
 * A plan holds, for each group of neighbouring rows, the union of the rows' lists. FH_PACKED works on a plan, and
 * FH_AUTO on a plan decides by group. One plan serves every call with the same lists: all layers that share an index
 * list, for one.
 *
 * Groups. Group g is rows first[g] .. first[g + 1] - 1 of one request: `group` rows, fewer at the end of a request. The
 * host does not see where requests end, so `groups` is the most there can be:
 *     groups = m + (s_q - m) / group,  m = min(max(requests, 1), s_q)
 * Groups that are left over have no rows and stand behind the others. With one request groups = ceil(s_q / group) and
 * first[g] = g * group. cu_seqlens_q is data: the first and the last offset count as 0 and s_q, an offset below an
 * earlier one counts as that one, an offset beyond s_q as s_q. So every row is in exactly one group.
 *
 * Entries. The entries of a group are its rows' valid keys, each KV row once, ascending. A row that lists a key k times
 * needs k entries of that key: it is a member of the first k. Bit i of member belongs to row first[g] + i.
 * Example: 8 heads, group 8, 3 rows that list {1,2}, {2,3}, {2,2}: one group with entries 1, 2, 2, 3 and members 001,
 * 111, 100, 010 (the last digit is row 0). keys is 2, 2, 2.
 *
 * Order. order[0 .. packed_from - 1] are the groups that FH_AUTO computes row by row, order[packed_from ..] the groups
 * that it packs. A plan that was built by a call with path FH_AUTO holds that choice; any other plan packs all groups.
 * FH_PACKED packs every group of any plan. Packing a group saves
 *     saves = rows * unit_us + gflop_us * GFLOP(keys * heads)
 *             - packed.unit_us - packed.gflop_us * GFLOP(E * h_q * group)
 * microseconds. unit_us and gflop_us are those of gather (heads = h_q) or padded (heads = h_pad), whichever is cheaper
 * for the whole call with full lists; GFLOP(n) = 2e-9 * (d_qk + d_v) * n; E is the entries, rounded up to a multiple
 * of 64. The groups with saves < 0 go row by row, unless all groups alike cost less: let S be the sum of the saves
 * above 0 and L the sum of the others without their sign. Both kinds run if S > packed.call_us and L > the call_us of
 * the row path. Else no group is packed if S - packed.call_us < L - call_us, and else all are.
 * Example: 8 heads, d_qk 512, gather {4, 0, 7.86}, packed {5, 0.036, 1.42}, a group of 8 rows with 5120 keys in 1600
 * entries. Row by row 7.86 * 0.0839 = 0.659 us, packed 0.036 + 1.42 * 0.210 = 0.334 us: saves 0.326 us. With 128 such
 * groups S = 42 and L = 0: all are packed. Groups row by row come in rising number, packed groups by
 * falling E, equal ones in rising number.
 *
 * All pointers lie in the memory given to fh_plan_build, on the device the plan was built on.
 */
struct fh_plan {
  uint64_t struct_size;
  int64_t s_q; /* of the call it was built from, as are requests, group and s_kv */
  int64_t requests;
  int64_t groups;       /* see above */
  int64_t capacity;     /* entries there is room for in each group: group * topk */
  int32_t group;        /* queries of a group */
  int32_t s_kv;         /* KV rows: all tokens are below */
  int32_t *token;       /* [groups, capacity] KV row of each entry; entries past entries[g] are not written */
  uint64_t *member;     /* [groups, capacity] which rows of the group chose the entry */
  int32_t *entries;     /* [groups] entries of each group */
  int32_t *order;       /* [groups] group numbers */
  int32_t *keys;        /* [s_q] valid keys of each row, repeats counted */
  int64_t *first;       /* [groups + 1] first row of each group; first[groups] = s_q */
  int32_t *packed_from; /* [1] groups at the start of order that FH_AUTO does not pack */
};

/* Sets *bytes to the memory that fh_plan_build needs for this call: the arrays above and its scratch. FH_ERR_SHAPE for
 * a size out of range, FH_ERR_UNSUPPORTED for a call that has no plan. */
fh_status fh_plan_bytes(fh_device *device, const fh_call *call, uint64_t *bytes);

/* Builds a plan from the call's indices, topk_length, cu_seqlens_q, sizes, group, stream, path and costs. memory is
 * 64-byte aligned; the caller keeps it as long as the plan is used. Nothing else is allocated. plan->struct_size must
 * be set. Fails as fh_plan_bytes does; FH_ERR_WORKSPACE if memory is missing or too small, FH_ERR_ALIGNMENT, and
 * FH_ERR_OVERLAP if it shares memory with an array of the call. */
fh_status fh_plan_build(fh_device *device, const fh_call *call, void *memory, uint64_t memory_bytes, fh_plan *plan);

/* ---- Cost model: which path is expected to be fastest ------------------------------------------------------------ */

/* The cost model may change before 1.0. */

/* What a call amounts to, for the cost model. */
typedef struct fh_work {
  uint64_t struct_size;
  int64_t rows;    /* s_q */
  int64_t keys;    /* valid keys over all rows */
  int64_t groups;  /* packed groups; 0: packing is not on offer */
  int64_t entries; /* union entries over all groups */
  int32_t h_q;
  int32_t h_pad;
  int32_t group; /* queries of a packed group */
  int32_t d_qk;
  int32_t d_v;
  int32_t reserved; /* 0 */
} fh_work;

/* microseconds = call_us + unit_us * units + gflop_us * executed GFLOP. A unit is a row (padded, gather) or a group
 * (packed, plan). call_us is what a call takes however small it is; the other two are what one more unit or GFLOP adds
 * to a call that keeps the whole device busy. This struct never grows. */
typedef struct fh_path_cost {
  double call_us;
  double unit_us;
  double gflop_us;
} fh_path_cost;

/* Costs at one number of heads. A kernel computes more heads than it is given, so the costs of 8 heads do not hold for
 * 5. */
struct fh_costs {
  uint64_t struct_size;
  fh_path_cost padded;
  fh_path_cost gather;
  fh_path_cost packed; /* on a plan that is there */
  fh_path_cost plan;   /* building one; its GFLOP are those of gather */
  fh_path_cost vain;   /* what a plan that packs nothing adds to an FH_AUTO call that builds it, by the same units and
                          GFLOP; all zeros: twice `plan` */
};

/* Returns the GFLOP that the path multiplies for this work, padding included; 0 if the path is unknown or not on
 * offer. */
double fh_work_gflop(const fh_work *work, int32_t path);

/* Sets *path to the cheapest of padded, gather and packed, the earlier one of equals, and cost_us[0 .. count - 1] to
 * the expected microseconds of the paths 0 .. count - 1: +inf where a path is not on offer. cost_us may be NULL if
 * count is 0. row_invariant 1 excludes packed. The numbers of *costs must be finite. A pure function. */
fh_status fh_costs_choose(const fh_costs *costs, const fh_work *work, int32_t row_invariant, int32_t *path,
                          double *cost_us, int32_t count);

/*
 * Sets *packs to 1 if FH_AUTO lets a plan decide, group by group, which rows are packed (fh_plan), and to 0 if FH_AUTO
 * takes the cheaper of padded and gather for all rows. FH_AUTO asks this first, before it knows what the lists share.
 * Let R be the microseconds of the cheaper of padded and gather, K the microseconds of packed at best (all lists of a
 * group are equal, entries = keys / group), P the microseconds of the plan. work->entries is not read.
 *  - planned 1, the call brings a plan: packs if R - K > 0 and R - K >= the call_us of the row path, which has to start
 *    beside packed where only some groups are packed.
 *  - planned 0, the plan would have to be built: packs if R - K - P >= V and R + V <= 1.06 * padded. V are the
 *    microseconds of a plan in vain (costs->vain). So lists that share nothing make a call at most 6 % slower than
 *    padding. If rows one by one are padded, a plan is built for large calls only: a caller who knows that lists share
 *    keys brings a plan, or costs in which plans are cheap.
 * Example: an H200, 8 heads, s_q 1024, full lists of 640: padded 134.5 us, gather R = 92.3 us, packed at best K = 24.5
 * us, plan P = 12.6 us, in vain V = 19.5 us. R - K - P = 55.2 >= V, and R + V = 111.8 <= 1.06 * padded = 142.6:
 * FH_AUTO builds the plan.
 * On CUDA every list counts as full. row_invariant 1: *packs is 0. A pure function. Fails as fh_costs_choose does.
 */
fh_status fh_costs_packs(const fh_costs *costs, const fh_work *work, int32_t row_invariant, int32_t planned,
                         int32_t *packs);

/* Writes one line that says what FH_AUTO makes of the call and why: what it takes, the expected microseconds of each
 * path on offer, what a plan would cost and what packing has to save, and where the costs are from. For the example
 * above, in one line:
 *     s_q 1024, h_q 8, 655360 keys: auto builds a plan, which says which groups are packed; the other rows take
 *     gather. Expected: padded 141 us, gather 92.3 us, packed 25.4 us at best and 15.8 us for its plan: packing
 *     saves 51.1 us at most, and has to save 19.5 us. Costs: measured on NVIDIA H200
 * The line is cut to `bytes`, its final 0 included. Only sizes, costs, plan and lists of the call are read; lists count
 * as full if indices is NULL, and on CUDA. If the call asks for another path, the line names it and explains FH_AUTO
 * all the same. Fails as fh_workspace_bytes does. */
fh_status fh_explain(fh_device *device, const fh_call *call, char *text, uint64_t bytes);

/* Sets *costs to the device's built-in costs, measured on one machine or scaled from it (fh_explain says which): good
 * for choosing, not for predicting. On CUDA the costs are for 8 heads and many rows. If a call brings no costs, FH_AUTO
 * takes the costs of the call's own heads and number of rows: the last wave of the device takes as long as the others,
 * and few rows share it. costs->struct_size must be set. */
fh_status fh_costs_default(const fh_device *device, fh_costs *costs);

/* ---- What there is: paths, devices, version ---------------------------------------------------------------------- */

/* What a path is. FH_AUTO, which takes a path by the call, has none of the properties. */
typedef struct fh_path_info {
  uint64_t struct_size;
  int32_t path;        /* the fh_path */
  int32_t candidate;   /* 1: one of those that FH_AUTO chooses among */
  int32_t native;      /* 1: computes h_q heads a row; 0: computes h_pad */
  int32_t wants_plan;  /* 1: works on a plan; if the call brings none, a plan is built in its workspace */
  int32_t shares_tile; /* 1: rows of neighbours share a tile, so a row's last bits depend on its neighbours */
  int32_t max_heads;   /* the largest h_q on any device; a device may take fewer */
  uint32_t devices;    /* bits 1 << fh_device_kind: kinds for which this library has kernels of the path, maybe not for
                          every device */
  int32_t writes_f32;  /* 1: takes out_dtype FH_F32 too */
  char name[16];       /* "auto", "reference", "padded", "gather", "packed" */
} fh_path_info;

/* Fills *info; info->struct_size must be set. FH_ERR_ARGUMENT, with the names of all paths, if path is not an
 * fh_path. */
fh_status fh_path_get_info(int32_t path, fh_path_info *info);

/* Returns the path's name: "auto", "reference", "padded", "gather", "packed"; NULL if path is not an fh_path. */
const char *fh_path_name(int32_t path);

/* Returns 1 if the device can run the fh_path with h_q query heads (0: with some number of heads), else 0. */
int32_t fh_device_has_path(const fh_device *device, int32_t path, int32_t h_q);

/* Each field is 0, or "", where it means nothing or is not known. */
typedef struct fh_device_info {
  uint64_t struct_size;
  int32_t kind;             /* an fh_device_kind */
  int32_t ordinal;          /* number among devices of its kind, from 0 */
  int32_t threads;          /* CPU: threads that work on a call */
  int32_t isa;              /* CPU: an fh_isa */
  int32_t multiprocessors;  /* CUDA */
  int32_t capability;       /* CUDA: compute capability as major * 10 + minor, 90 for 9.0 */
  int32_t clock_mhz;        /* CUDA: highest clock of the multiprocessors */
  int32_t memory_clock_mhz; /* CUDA: highest clock of the memory */
  uint64_t cache_bytes;     /* last-level cache, bytes */
  uint64_t memory_bytes;    /* memory of the device, bytes */
  char name[128];           /* what the vendor calls it: "Intel(R) Xeon(R) Processor" */
  char driver[64];          /* CUDA: "580.65.06, CUDA 13.0", the driver's version and the newest CUDA it knows */
} fh_device_info;

/* Fills *info; info->struct_size must be set. */
fh_status fh_device_get_info(const fh_device *device, fh_device_info *info);

/* Returns how many devices of a kind this machine has: 1 CPU; CUDA devices, 0 if there is no device, no driver or no
 * CUDA in the library, which fh_device_open tells apart; 0 if kind is not an fh_device_kind. */
int32_t fh_device_count(int32_t kind);

/* Waits until the device has done everything it was given, on every stream. A CPU device is always done.
 * FH_ERR_DEVICE for an error of earlier work. */
fh_status fh_device_synchronize(fh_device *device);

enum { FH_VERSION = 200 }; /* major * 10000 + minor * 100 + patch: 0.2.0 */

/* Returns FH_VERSION of the header that the library was built from. */
int32_t fh_version(void);

/* Returns the checksum (POSIX cksum) of the text between the cdef marks of that header. A binding compares it with its
 * own text. */
uint32_t fh_header_checksum(void);

/* Returns sizeof the named struct ("fh_call") in the library, 0 for a name it does not know. */
uint64_t fh_struct_bytes(const char *name);

/* Returns one line: version, commit, compiler, CUDA or not. Never NULL. */
const char *fh_build_info(void);

/* ---- Gate: the published rule that engines use today ------------------------------------------------------------- */

typedef struct fh_gate {
  uint64_t struct_size;
  int32_t enabled;  /* 0: always padded */
  int32_t reserved; /* 0 */
  int64_t min_sq;   /* native heads from this s_q up; 0 = always */
} fh_gate;

enum { FH_GATE_MIN_SQ = 2048 }; /* the published default */

/* Fills the struct of struct_size bytes, which must be sizeof(fh_gate): enabled = 1, min_sq = FH_GATE_MIN_SQ. */
fh_status fh_gate_init(fh_gate *gate, uint64_t struct_size);

/* Reads the two settings as vLLM spells them (VLLM_DSV41_FEWHEAD_PREFILL: 1/0, true/false, yes/no, on/off in any case;
 * VLLM_DSV41_FEWHEAD_MIN_SQ: a whole non-negative decimal number). NULL or "" = default; gate->struct_size must be set.
 * A value that cannot be read keeps the default and adds one line to `warning`, such as
 *     VLLM_DSV41_FEWHEAD_MIN_SQ: got "abc", wanted a whole number >= 0; using 2048
 * warning (may be NULL) gets "" when there is nothing to warn of, and is cut to warning_bytes. */
fh_status fh_gate_parse(const char *prefill, const char *min_sq, fh_gate *gate, char *warning, uint64_t warning_bytes);

/* fh_gate_parse on the process environment; returns what that returns. */
fh_status fh_gate_from_env(fh_gate *gate, char *warning, uint64_t warning_bytes);

/*
 * Reads the gate for calls of h_q heads, d_qk and topk from a gate table: a JSON file that `fewhead` measured on a
 * device like this one (fh.gate_table in Lua writes it). The format of the file may change before 1.0. Of several gates
 * for the shape, measured on other lists, the strictest is taken. On failure *gate is unchanged and fh_error() names
 * the file and both values:
 *   FH_ERR_ARGUMENT     the file cannot be read or is no gate table: "FILE:LINE: reason"
 *   FH_ERR_VERSION      another schema, or measured with another major.minor version of the library
 *   FH_ERR_DEVICE       measured on another device: kind, name, multiprocessors and compute capability (CUDA), threads
 *                       and instruction set (CPU) must be equal; the driver may differ
 *   FH_ERR_UNSUPPORTED  no gate for this shape
 */
fh_status fh_gate_load(const char *path, const fh_device *device, int32_t h_q, int32_t d_qk, int64_t topk,
                       fh_gate *gate);

/* Returns 64 for 1 .. 64 heads, 128 for 65 .. 128, 0 for any other number. */
int32_t fh_padded_heads(int64_t heads);

/* Returns 1 = native heads, 0 = padded: enabled, 0 < n_local_heads < padded_heads and s_q >= min_sq. A pure function; 0
 * if gate is NULL. */
int32_t fh_gate_native(const fh_gate *gate, int64_t n_local_heads, int64_t padded_heads, int64_t s_q);

/* Writes what fh_gate_native answers and why: "padded: s_q 512 < MIN_SQ 2048". The line is cut to `bytes`, its final 0
 * included. FH_ERR_ARGUMENT if text is NULL and bytes is not 0. */
fh_status fh_gate_explain(const fh_gate *gate, int64_t n_local_heads, int64_t padded_heads, int64_t s_q, char *text,
                          uint64_t bytes);

/* Sets *local to the heads of each rank under tensor parallelism. heads % ranks != 0 is refused (FH_ERR_SHAPE) unless
 * virtual_heads is 1: then every rank gets ceil(heads / ranks), and *added counts the zero heads added at the end. No
 * head is ever lost. */
fh_status fh_tp_heads(int64_t heads, int64_t ranks, int32_t virtual_heads, int64_t *local, int64_t *added);

/* ---- Streams, graphs, timers ------------------------------------------------------------------------------------- */

/* Makes a new stream of a CUDA device, a cudaStream_t that waits for no other stream. FH_ERR_UNSUPPORTED on a CPU. */
fh_status fh_stream_create(fh_device *device, void **stream);

/* Destroys the stream, once its work is done, and sets *stream to NULL; NULL does nothing. */
void fh_stream_destroy(fh_device *device, void **stream);

/* Work of a CUDA stream, recorded once, to be run again by one launch. FH_ERR_UNSUPPORTED on a CPU. */
typedef struct fh_graph fh_graph;

/* From here to fh_graph_end, calls on this stream (NULL: the device's own) are recorded and do not run. Their memory is
 * borrowed as long as the graph exists. Nothing may move memory on a stream that records, or wait for it.
 * FH_ERR_UNSUPPORTED on a CPU, FH_ERR_DEVICE if the stream records already. */
fh_status fh_graph_begin(fh_device *device, void *stream);

/* Stops recording and makes the graph, which the caller owns. FH_ERR_MEMORY; FH_ERR_DEVICE if the stream did not record
 * or what it recorded makes no graph. */
fh_status fh_graph_end(fh_device *device, void *stream, fh_graph **graph);

/* Runs all of the graph, in order, on a stream of its device. FH_ERR_DEVICE if the launch fails. */
fh_status fh_graph_launch(fh_graph *graph, void *stream);

/* Frees the graph and sets the handle to NULL. */
void fh_graph_free(fh_graph **graph);

/* Returns monotonic host time in nanoseconds. */
uint64_t fh_time_ns(void);

typedef struct fh_timer fh_timer;

/* Measures device time between start and stop on a stream (CPU: monotonic host time; stream must be NULL). */
fh_status fh_timer_create(fh_device *device, fh_timer **timer);
fh_status fh_timer_start(fh_timer *timer, void *stream);
fh_status fh_timer_stop(fh_timer *timer, void *stream);
/* Sets *us to the microseconds between the last start and stop; waits for the stop. FH_ERR_ARGUMENT unless both were
 * called. */
fh_status fh_timer_elapsed_us(fh_timer *timer, double *us);
void fh_timer_free(fh_timer **timer);

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

typedef struct fh_buffer fh_buffer;

/* Allocates `bytes` (0 is allowed) on the device, aligned to 256 bytes, contents undefined. Owned by the caller.
 * FH_ERR_MEMORY if there is no such memory. */
fh_status fh_buffer_alloc(fh_device *device, uint64_t bytes, fh_buffer **buffer);

/* The same, and the same errors, in the host memory that the device copies to and from fastest: pinned on CUDA, plain
 * on a CPU. fh_buffer_data returns an address that host and device may use. */
fh_status fh_buffer_alloc_host(fh_device *device, uint64_t bytes, fh_buffer **buffer);

/* Wraps memory that the caller keeps alive and frees. base may be NULL only if bytes is 0. On CUDA the memory must be
 * memory that the device reaches: FH_ERR_ARGUMENT for any other. */
fh_status fh_buffer_wrap(fh_device *device, void *base, uint64_t bytes, fh_buffer **buffer);

/* Releases the handle and sets it to NULL; views made from the buffer keep the memory. */
void fh_buffer_free(fh_buffer **buffer);

/* Returns the address on the device, NULL for a NULL or empty buffer. */
void *fh_buffer_data(const fh_buffer *buffer);

/* Returns the size in bytes, 0 for NULL. */
uint64_t fh_buffer_bytes(const fh_buffer *buffer);

/* Copies host memory in, or device memory out, `bytes` from `offset`; ordered after the device's earlier work, done on
 * return. FH_ERR_SHAPE if the bytes do not lie in the buffer. */
fh_status fh_buffer_write(fh_buffer *buffer, uint64_t offset, const void *src, uint64_t bytes);
fh_status fh_buffer_read(const fh_buffer *buffer, uint64_t offset, void *dst, uint64_t bytes);

/* Sets every byte to `value`, 0 .. 255: FH_ERR_ARGUMENT for any other. */
fh_status fh_buffer_fill(fh_buffer *buffer, int32_t value);

/* Pushes the buffer out of the device's caches, so that the next run finds it cold. On CUDA everything else leaves the
 * caches too. Fails on an error of the device alone. */
fh_status fh_buffer_evict(fh_buffer *buffer);

/* ---- Views ------------------------------------------------------------------------------------------------------- */

typedef struct fh_view fh_view;

typedef enum fh_dtype { FH_BF16 = 1, FH_F32 = 2, FH_I32 = 3 } fh_dtype;

enum { FH_MAX_RANK = 4 };

typedef struct fh_view_info {
  uint64_t struct_size;
  int32_t dtype;     /* an fh_dtype */
  int32_t rank;      /* 1 .. FH_MAX_RANK */
  int64_t shape[4];  /* elements; entries past the rank are 1 */
  int64_t stride[4]; /* elements, may be 0 or negative; entries past the rank are 0 */
  int64_t offset;    /* elements from the buffer's base to element (0, 0, ..) */
  void *data;        /* device address of element (0, 0, ..); NULL if the view has no element */
} fh_view_info;

/* Returns the bytes of one element: 2, 4, 4; 0 if dtype is not an fh_dtype. */
int32_t fh_dtype_bytes(int32_t dtype);

/* Makes a view of a buffer: element (i, j, ..) lies at offset + i * stride[0] + j * stride[1] + ..; stride NULL =
 * contiguous, row-major. FH_ERR_SHAPE if an element would lie outside the buffer. */
fh_status fh_view_create(fh_buffer *buffer, int32_t dtype, int32_t rank, const int64_t *shape, const int64_t *stride,
                         int64_t offset, fh_view **view);

/* Makes a view of the elements first, first + step, .. (count elements) of dimension dim, counted from 0. step may
 * be negative, not 0. Slice and view share memory. FH_ERR_SHAPE if dim is no dimension or an element lies outside of
 * it, FH_ERR_ARGUMENT for a step of 0, FH_ERR_STRIDE if a stride or offset leaves 64 bits. */
fh_status fh_view_slice(const fh_view *view, int32_t dim, int64_t first, int64_t count, int64_t step, fh_view **slice);

/* Frees the view and sets the handle to NULL. Its buffer and other views of it stay. */
void fh_view_free(fh_view **view);

/* Fills *info; info->struct_size must be set. */
fh_status fh_view_get_info(const fh_view *view, fh_view_info *info);

/* Elements may share memory (a stride of 0). A function that sets a view sets elements in row-major order, so the
 * value of the last element stays. On CUDA only fh_view_fill takes such a view; the others refuse it
 * (FH_ERR_UNSUPPORTED). */

/* Sets every element to `value`, rounded to nearest even for bf16 and f32. FH_ERR_ARGUMENT for an I32 view and a value
 * that is not a whole number in range. */
fh_status fh_view_fill(fh_view *view, double value);

/* Copies to or from contiguous row-major host memory of the view's dtype; `bytes` must be exactly elements *
 * fh_dtype_bytes. Host memory that overlaps the view is refused. */
fh_status fh_view_write(fh_view *view, const void *src, uint64_t bytes);
fh_status fh_view_read(const fh_view *view, void *dst, uint64_t bytes);

/* dst[i] = src[i]; same shape and dtype, any strides. Overlapping memory is refused; interleaved memory (the left and
 * the right half of the same rows) is not. */
fh_status fh_view_copy(fh_view *dst, const fh_view *src);

/* Formulas over the words w of Philox4x32-10 (Salmon et al., SC'11). rn() is one rounding to float, fma() has one
 * rounding, A and B are rn(a) and rn(b), b - a is taken in double, and bf16 is the float result rounded once more. i is
 * the element's position in row-major order of the view. */
typedef enum fh_dist {
  FH_UNIFORM = 1, /* word w = i % 4 of block i / 4. F32, BF16: fma((w >> 8) * 2^-24, rn(b - a), A).
                     I32: a + floor(w * (b - a) / 2^32), in a .. b - 1 */
  FH_NORMAL = 2   /* F32, BF16: fma(B, z, A), z = rn(S * 0x1.3988e2p-16), S = the eight 16-bit halves of block i summed,
                     less 262140: mean 0, deviation 1, |z| < 4.9 */
} fh_dist;

/* Fills the view with random numbers that depend only on (seed, stream, i): the same on every device, for any strides
 * and any number of threads. Block p has key = seed and counter = (p, stream). I32 takes FH_UNIFORM with whole a < b;
 * F32 and BF16 take a, b and b - a within float's range. FH_ERR_ARGUMENT for another dist, a or b. */
fh_status fh_view_random(fh_view *view, int32_t dist, uint64_t seed, uint64_t stream, double a, double b);

/* The same generator for host code: n 32-bit words, word i being word i % 4 of block i / 4 counted from word
 * `first`. FH_ERR_SHAPE if first + n leaves 64 bits. */
fh_status fh_random_u32(uint64_t seed, uint64_t stream, uint64_t first, uint64_t n, uint32_t *dst);

/* ---- Providers: kernels of others -------------------------------------------------------------------------------- */

/* Providers may change before 1.0. */

/* A loaded plug-in: a shared library as fewhead_provider.h describes it. One thread at a time uses a provider and its
 * jobs. */
typedef struct fh_provider fh_provider;

/* A call that a provider has prepared for, to be run many times. */
typedef struct fh_provider_job fh_provider_job;

typedef struct fh_provider_info {
  uint64_t struct_size;
  uint32_t devices;      /* bits 1 << fh_device_kind: the kinds of device that it runs on */
  int32_t abi;           /* FH_PROVIDER_ABI */
  char name[32];         /* what it calls itself: "flashmla" */
  char version[128];     /* of the plug-in */
  char description[512]; /* what it found when it was loaded, one line; "" when there is nothing to say */
} fh_provider_info;

/* Loads the file at `path` (without a slash: in the current folder) and opens it with `options` (NULL: none), a text
 * that only the plug-in understands. FH_ERR_ARGUMENT, with the loader's own words, if the file does not load or is no
 * plug-in; FH_ERR_VERSION if it was made for another ABI or with other structs; or the status that the plug-in's open
 * fails with. The file stays loaded until the process ends, because what the plug-in started may outlive the handle.
 * Loading the file again opens it again, and does not notice that the file was built anew. */
fh_status fh_provider_load(const char *path, const char *options, fh_provider **provider);

/* Gives the handle back and sets it to NULL. The plug-in closes when its last job has gone too. */
void fh_provider_free(fh_provider **provider);

/* Fills *info; info->struct_size must be set. */
fh_status fh_provider_get_info(const fh_provider *provider, fh_provider_info *info);

/* Sets *bytes to the workspace that the provider needs for the call, as fh_workspace_bytes does for a path. Arrays that
 * a call may lack count as wanted if their pointer is not NULL. FH_ERR_UNSUPPORTED, with the provider's reason, if it
 * does not run such a call. path, group, plan, costs and counters of the call are not read. */
fh_status fh_provider_workspace_bytes(fh_provider *provider, fh_device *device, const fh_call *call, uint64_t *bytes);

/* Checks the call as fh_sparse_fwd does, lets the provider do what it does once for a call, and makes a job, owned by
 * the caller. The arrays of the call, workspace included, stay as they are until the job is freed. The job keeps
 * provider and device alive. */
fh_status fh_provider_prepare(fh_provider *provider, fh_device *device, const fh_call *call, fh_provider_job **job);

/* Runs the call, on CUDA in the order of its stream. Returns what the provider returns; fh_error() has its text. */
fh_status fh_provider_run(fh_provider_job *job);

/* Brings the results of the last run into the call's outputs, in the order of its stream. A provider may keep the
 * results elsewhere until then. Returns what the provider returns. */
fh_status fh_provider_collect(fh_provider_job *job);

/* Returns the FLOPs that a run multiplies, as fh_counters has them; 0 if the provider does not say. */
uint64_t fh_provider_executed_flops(fh_provider_job *job);

/* Waits for the device, gives back what was made for the call and sets the handle to NULL. */
void fh_provider_job_free(fh_provider_job **job);

/* cdef:end */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* FEWHEAD_H */
