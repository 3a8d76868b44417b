/* What the library's files share among themselves and with the kernels; nothing here is public. */
#ifndef FEWHEAD_INTERNAL_H
#define FEWHEAD_INTERNAL_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include "fewhead.h"
#include "numbers.h"

/* ---- Errors (status.c) ------------------------------------------------------------------------------------------- */

/* Record the message of this thread and return `status`: `return fh_fail(FH_ERR_SHAPE, "s_q: got %lld, wanted >= 0",
 * ...)`. */
fh_status fh_fail(fh_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* vsnprintf with a decimal point, whatever locale the program has chosen. */
void fh_format(char *text, size_t bytes, const char *format, va_list args);

/* FH_ERR_ARGUMENT: `name` is a pointer that must not be NULL. */
fh_status fh_fail_null(const char *name);

/* The size of a struct that ends with `field`: what a caller must have at least. */
#define FH_UP_TO(type, field) (offsetof(type, field) + sizeof(((type *)NULL)->field))

/* Copies the caller's struct of struct_size bytes into `full` (full_size bytes) and sets the rest to zero. Returns
 * FH_ERR_VERSION if struct_size is smaller than min_size, larger than full_size or not a multiple of 8. `name` is
 * the struct's name, for the message. */
fh_status fh_struct_in(const char *name, const void *given, uint64_t min_size, void *full, uint64_t full_size);

/* Copies the first struct_size bytes of `full` to the caller's struct, whose struct_size stays as it is. Refuses
 * what fh_struct_in refuses. If `full` is NULL, the function only checks. */
fh_status fh_struct_out(const char *name, void *given, uint64_t min_size, const void *full, uint64_t full_size);

/* fh_struct_out into a struct whose size the caller passes as a parameter. The struct may hold anything before. */
fh_status fh_struct_init(const char *name, void *given, uint64_t size, uint64_t min_size, const void *full,
                         uint64_t full_size);

/* ---- Text (text.c) ----------------------------------------------------------------------------------------------- */

enum { FH_QUOTED = 64, FH_WHY = 192 };

/* "text" in quotes and fit for one line of a message: control characters become '?', a long text is cut and ends in
 * "..". */
const char *fh_quote(const char *text, char quoted[FH_QUOTED]);

/* Returns 1 and sets *value if text is decimal digits only and fits an int64_t; else returns 0. */
int fh_read_whole(const char *text, int64_t *value);

/* ---- Strided arrays (array.c) ------------------------------------------------------------------------------------ */

/* Where the elements of an array lie: element (i, j, ..) at base + (i * stride[0] + j * stride[1] + ..) *
 * element_bytes. */
typedef struct fh_array {
  const char *name; /* for messages */
  const void *base;
  int32_t element_bytes;
  int32_t rank;
  int64_t count[FH_MAX_RANK];
  int64_t stride[FH_MAX_RANK];
} fh_array;

int fh_array_empty(const fh_array *array);

/* Bytes from base to the first byte of the lowest element and past the last of the highest; 0 and 0 when empty.
 * FH_ERR_STRIDE when one of them leaves 64 bits. */
fh_status fh_array_extent(const fh_array *array, int64_t *low, int64_t *high);

/* Returns 1 if no two elements share memory: each dimension steps over all that the dimensions of smaller stride
 * cover. Some rare arrays that interleave without sharing memory get 0. The extent fits 64 bits. */
int fh_array_distinct(const fh_array *array);

/* 1 when the two share no memory: their extents are apart, or they interleave with a common period (heads 0..7
 * and 8..15 of one buffer). 0 when that is not proven. All addresses of both fit 64 bits. */
int fh_arrays_disjoint(const fh_array *a, const fh_array *b);

/* Refuses a NULL pointer to an array that has elements, one that is not aligned to them, and addresses that leave 64
 * bits. */
fh_status fh_check_array(const fh_array *array);

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

typedef struct fh_back_end fh_back_end;

struct fh_device {
  atomic_int references; /* the opener's handle, and one of every buffer, timer and graph */
  const fh_back_end *back_end;
  void *state; /* the back end's own */
  fh_device_info info;
};

/* ---- Devices (device_open.c, device.c) --------------------------------------------------------------------------- */

/* The name of a kind that this library has: "cpu". */
const char *fh_device_kind_name(int32_t kind);

fh_device *fh_device_retain(fh_device *device);
void fh_device_release(fh_device *device);

/* 1 when both handles stand for the same device, so that one reaches what the other allocated. */
int fh_device_same(const fh_device *a, const fh_device *b);

/* Whose memory a buffer is: the device's, the host's (allocated for fast copies to the device), or the caller's. */
typedef enum fh_memory { FH_MEMORY_DEVICE, FH_MEMORY_HOST, FH_MEMORY_WRAPPED } fh_memory;

struct fh_buffer {
  atomic_int references; /* the owner's handle, and one of every view */
  fh_memory memory;
  fh_device *device;
  unsigned char *base;
  uint64_t bytes;
};

struct fh_view {
  fh_buffer *buffer;
  fh_view_info info;
  int64_t elements;
};

/* The array behind the view, for overlap checks. */
fh_array fh_view_array(const fh_view *view, const char *name);

/* What fh_view_random was asked for, checked and rounded. */
typedef struct fh_generator {
  uint64_t seed, stream;
  uint64_t width; /* i32: b - a, up to 2^32 */
  int32_t dtype, dist;
  int32_t low;    /* i32: a */
  float a, scale; /* f32, bf16: a; b - a (uniform) or b (normal), as floats */
} fh_generator;

/* A point in the work of a stream, for timers. */
typedef union fh_moment {
  uint64_t ns;
  void *event;
} fh_moment;

/* ---- Paths (path.c) ---------------------------------------------------------------------------------------------- */

/* The row of a path, without .devices; NULL if the number is not an fh_path. */
const fh_path_info *fh_path_of(int32_t path);

/* FH_ERR_ARGUMENT, with the names of all paths, if the number is not an fh_path. */
fh_status fh_check_path(int32_t path);

/* ---- The call without its memory (call_sizes.c) ------------------------------------------------------------------ */

/* The caller's call with every default filled in; its plan and costs are full-size copies held here. */
typedef struct fh_checked {
  fh_call call;
  fh_plan plan;
  fh_costs costs;
  const char *costs_from; /* where the costs are from, one line for people */
} fh_checked;

/* The smallest structs that are accepted: the structs of 0.2, up to their last field without a default. */
#define FH_CALL_LEAST FH_UP_TO(fh_call, workspace_bytes)
#define FH_PLAN_LEAST FH_UP_TO(fh_plan, packed_from)

/* Checks the device and all of the call that is not memory: struct, enums, sizes, scale. */
fh_status fh_check_sizes(const fh_device *device, const fh_call *given, fh_checked *checked);

/* Sets the costs of the call: the costs that the call brings, checked; else, with path FH_AUTO, the device's own. */
fh_status fh_take_costs(const fh_device *device, fh_checked *checked);

/* ---- The memory of a call (call_arrays.c) ------------------------------------------------------------------------ */

enum { FH_MAX_ARRAYS = 20 };

/* Every array that a call reads or writes. An optional array that the call lacks is left out. */
typedef struct fh_arrays {
  int32_t count;
  struct {
    fh_array array;
    int written;
  } at[FH_MAX_ARRAYS];
} fh_arrays;

fh_arrays fh_arrays_of(const fh_call *call, uint64_t counters_bytes);

/* Refuses an array that fh_check_array refuses, an output whose elements overlap, and an output that overlaps
 * another array. */
fh_status fh_check_arrays(const fh_arrays *all);

/* Adds the workspace to the arrays of the call and checks the workspace in the same way. */
fh_status fh_check_workspace_array(fh_arrays *all, void *workspace, int64_t bytes);

/* The index lists, their lengths and the requests' offsets as arrays, without elements where the call has none. */
fh_array fh_call_indices(const fh_call *call);
fh_array fh_call_topk_length(const fh_call *call);
fh_array fh_call_cu_seqlens_q(const fh_call *call);

/* ---- Counters (counters.c) --------------------------------------------------------------------------------------- */

/* The smallest struct that is accepted. */
#define FH_COUNTERS_LEAST FH_UP_TO(fh_counters, rows)

/* Adds what a run counted to the caller's struct; fields that the caller's struct lacks are dropped. */
fh_status fh_add_counters(fh_counters *given, const fh_counters *ran);

/* Sets the counters' kernel. If a kernel is set already, appends " + name". */
void fh_name_kernel(fh_counters *counters, const char *name);

/* ---- The call (call.c) ------------------------------------------------------------------------------------------- */

/* Checks all that fh_sparse_fwd checks. `wanted` is the bytes of workspace that the call needs. */
fh_status fh_check_call(const fh_device *device, const fh_call *given, uint64_t wanted, fh_checked *checked);

/* ---- Plans (plan.c) ---------------------------------------------------------------------------------------------- */

/* Returns FH_ERR_SHAPE if a group of the call could have more union entries than 32 bits count. fh_plannable returns
 * 1 or 0. */
fh_status fh_check_plannable(const fh_call *call);
int fh_plannable(const fh_call *call);

/* Checks that the device has the call's path. If the call brings a plan, checks that the plan was built for a call
 * of the same sizes. */
fh_status fh_check_plan(const fh_device *device, fh_checked *checked);

/* Bytes at the start of the workspace for the plan of a call that brings none; a multiple of 64. */
uint64_t fh_own_plan_bytes(const fh_device *device, const fh_call *call);

/* Builds the plan at the start of the workspace; the rest of the workspace is left to the path. */
fh_status fh_build_own_plan(fh_device *device, fh_checked *checked);

/* ---- The cost model (costs.c) and what FH_AUTO makes of it (auto.c) ---------------------------------------------- */

/* A full-size copy of the caller's costs. FH_ERR_ARGUMENT when a number of it is not finite. */
fh_status fh_costs_in(const fh_costs *given, fh_costs *costs);

/* How FH_AUTO begins (fh_costs_packs) and why. Microseconds. */
typedef struct fh_weighed {
  double us[FH_PATHS]; /* of each path; packed at best, as if all lists of a group were equal; +inf: not on offer */
  double plan_us;      /* of building a plan; 0 where there is one */
  double saves_us, wanted_us; /* what packing saves at most, less the plan; what packing must save at least */
  double risk_us, most_us;    /* what the call costs if the plan packs nothing, and the most that may be */
  int32_t row_path;           /* the cheaper of padded and gather for all rows */
  int32_t packs;              /* 1: a plan says which groups are packed */
} fh_weighed;

fh_status fh_weigh(const fh_costs *costs, const fh_work *work, int32_t row_invariant, int32_t planned,
                   fh_weighed *weighed);

/* Returns 1 if FH_AUTO may pack groups of the call, costs aside. Else returns 0 and writes the reason, one line. */
int fh_may_pack(const fh_device *device, const fh_call *call, char why[FH_WHY]);

/* What FH_AUTO weighs for a call whose costs have been taken. Lists that the call does not bring count as full. */
fh_status fh_weigh_call(const fh_device *device, const fh_call *call, fh_work *work, fh_weighed *weighed);

/* ---- Back ends --------------------------------------------------------------------------------------------------- */

/*
 * What a kind of device does. All arguments have been checked: pointers are not NULL, ranges lie within their buffers,
 * sizes are not 0, calls have their defaults filled in. A function that fails sets the message (fh_fail). Memory
 * functions that read or write host memory run after the device's earlier work and are done on return; the other
 * functions may return earlier.
 */
struct fh_back_end {
  const char *called; /* in messages: "a CPU" */
  int32_t kind;       /* an fh_device_kind */
  int32_t numbered;   /* 1: "name:N" opens device N */
  int32_t has_streams;

  /* Returns the number of devices; 0 if there is none or the number is unknown. */
  int32_t (*count)(void);
  /* Sets state and info of a device of which only the back end is set. `name` is the whole name, for messages. */
  fh_status (*open)(fh_device *device, const char *name, int64_t ordinal, const fh_device_options *options);
  void (*close)(fh_device *device);
  fh_status (*synchronize)(fh_device *device);

  fh_status (*alloc)(fh_device *device, fh_memory memory, uint64_t bytes, void **base);
  void (*release)(fh_device *device, fh_memory memory, void *base);
  fh_status (*check_wrapped)(fh_device *device, const void *base); /* NULL: any address will do */
  fh_status (*write)(fh_device *device, void *to, const void *host, uint64_t bytes);
  fh_status (*read)(fh_device *device, const void *from, void *host, uint64_t bytes);
  fh_status (*fill)(fh_buffer *buffer, int32_t value);
  fh_status (*evict)(fh_buffer *buffer);

  fh_status (*view_fill)(const fh_view *view, uint32_t bits); /* the low bytes of `bits` are the element */
  fh_status (*view_random)(const fh_view *view, const fh_generator *generator);
  fh_status (*view_write)(const fh_view *view, const void *src);
  fh_status (*view_read)(const fh_view *view, void *dst);
  fh_status (*view_copy)(const fh_view *dst, const fh_view *src); /* of the same device, apart */

  /* Code of others runs between enter and leave. leave returns `status`, or its own failure if `status` is FH_OK.
   * Both are NULL if there is nothing to do. stream_of returns the stream that NULL stands for. */
  fh_status (*enter)(const fh_device *device);
  fh_status (*leave)(fh_status status);
  void *(*stream_of)(const fh_device *device, void *stream);

  /* NULL where has_streams is 0. */
  fh_status (*stream_create)(fh_device *device, void **stream);
  void (*stream_destroy)(fh_device *device, void *stream);
  fh_status (*graph_begin)(fh_device *device, void *stream);
  fh_status (*graph_end)(fh_device *device, void *stream, void **graph);
  fh_status (*graph_launch)(fh_device *device, void *graph, void *stream);
  void (*graph_free)(fh_device *device, void *graph);

  fh_status (*moment_create)(fh_device *device, fh_moment *moment);
  void (*moment_destroy)(fh_device *device, fh_moment *moment);
  fh_status (*moment_mark)(fh_device *device, fh_moment *moment, void *stream);
  fh_status (*moment_between)(fh_device *device, const fh_moment *start, const fh_moment *stop, double *us);

  /* Returns 1 if a device of this kind has a kernel for the path, for some number of heads. FH_AUTO: 1. */
  int (*has_path)(int32_t path);
  /* Returns 1 if the device can run the path with h_q heads (0: with some number of heads). Else writes what is
   * required and what the device has, without a full stop: "required compute capability 9.0, the device has 8.9". */
  int (*offers)(const fh_device *device, int32_t path, int32_t h_q, char why[FH_WHY]);
  int32_t sees_lists; /* 1: the host reads lists and plans when a call arrives; 0: only the device reads them, later */
  /* The library refuses a path that the device lacks before it calls any of the next functions. A path that wants a
   * plan has a plan when it runs. The workspace that a path needs beside the plan does not depend on the plan. A run
   * adds to rows, flops and bytes of the counters and sets their kernel (fh_name_kernel). */
  uint64_t (*workspace_bytes)(const fh_device *device, const fh_call *call);
  int64_t (*count_keys)(const fh_device *device,
                        const fh_call *call); /* valid keys of all rows, or the most there can be */
  fh_status (*run)(fh_device *device, const fh_call *call, fh_counters *counters);
  /* A call with path FH_AUTO on a plan: its groups order[0 .. packed_from - 1] by path `rows`, the others packed. */
  fh_status (*run_parts)(fh_device *device, const fh_call *call, int32_t rows, fh_counters *counters);
  /* Sets *costs to the device's own costs for the call; call NULL: for 8 heads. Returns where the costs are from, a
   * line for people. */
  const char *(*costs)(const fh_device *device, const fh_call *call, fh_costs *costs);

  /* On a device with streams the arrays are there in the order of call->stream, *plan at once. A call with path FH_AUTO
   * brings the costs by which the groups are parted. complete 0: the plan serves this call alone, so that a call with
   * path FH_AUTO need not list the groups that go row by row: their entries may be fewer than they are. */
  uint64_t (*plan_bytes)(const fh_device *device, const fh_call *call);
  fh_status (*plan_build)(fh_device *device, const fh_call *call, int32_t complete, void *memory, fh_plan *plan);
};

/* FH_ERR_ARGUMENT for a stream on a device that has none. */
fh_status fh_check_stream(const fh_device *device, const void *stream);

#endif
