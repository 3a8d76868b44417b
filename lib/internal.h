/* What the library's files share among themselves and with the kernels; nothing here is public. */
#ifndef FEWHEAD_INTERNAL_H
#define FEWHEAD_INTERNAL_H

#include <stdatomic.h>

#include "cpu/cpu.h"
#include "fewhead.h"
#include "numbers.h"

/* ---- Errors (status.c) ---------------------------------------------------------------------------------------------------- */

/* Record the message of this thread and return `status`: `return fh_fail(FH_ERR_SHAPE, "s_q: got %lld, wanted >= 0", ...)`. */
fh_status fh_fail(fh_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* FH_ERR_ARGUMENT: `name` is a pointer that must not be NULL. */
fh_status fh_fail_null(const char *name);

/* Copies the caller's struct of struct_size bytes into `full` (of full_size bytes), the rest zero. FH_ERR_VERSION when
 * struct_size is smaller than min_size, larger than full_size or no multiple of 8; `name` is the struct's for the message. */
fh_status fh_struct_in(const char *name, const void *given, uint64_t min_size, void *full, uint64_t full_size);

/* The way back: the first struct_size bytes of `full` go to the caller's struct, whose struct_size stays. Same refusals; with
 * `full` NULL it only checks. */
fh_status fh_struct_out(const char *name, void *given, uint64_t min_size, const void *full, uint64_t full_size);

/* ---- Text (text.c) -------------------------------------------------------------------------------------------------------- */

enum { FH_QUOTED = 64 };

/* "text" in quotes and fit for one line of a message: control characters become '?', a long text is cut and ends in "..". */
const char *fh_quote(const char *text, char quoted[FH_QUOTED]);

/* 1 and *value when text is decimal digits only and fits an int64_t, else 0. */
int fh_read_whole(const char *text, int64_t *value);

/* ---- Strided arrays (array.c) --------------------------------------------------------------------------------------------- */

/* Where the elements of an array lie: element (i, j, ..) at base + (i * stride[0] + j * stride[1] + ..) * element_bytes. */
typedef struct fh_array {
  const char *name; /* for messages */
  const void *base;
  int32_t element_bytes;
  int32_t rank;
  int64_t count[FH_MAX_RANK];
  int64_t stride[FH_MAX_RANK];
} fh_array;

int fh_array_empty(const fh_array *array);

/* Bytes from base to the first byte of the lowest element and past the last of the highest; 0 and 0 when empty. FH_ERR_STRIDE
 * when one of them leaves 64 bits. */
fh_status fh_array_extent(const fh_array *array, int64_t *low, int64_t *high);

/* 1 when no two elements share memory: each dimension steps over all that the dimensions of smaller stride cover. The rare
 * interleavings that are distinct all the same get 0. The extent fits 64 bits. */
int fh_array_distinct(const fh_array *array);

/* 1 when the two share no memory: their extents are apart, or they interleave with a common period (heads 0..7 and 8..15 of one
 * buffer). 0 when that is not proven. All addresses of both fit 64 bits. */
int fh_arrays_disjoint(const fh_array *a, const fh_array *b);

/* ---- Objects -------------------------------------------------------------------------------------------------------------- */

struct fh_device {
  atomic_int references; /* the opener's handle, and one of every buffer and timer */
  fhk_cpu *cpu;
  fh_device_info info;
};

fh_device *fh_device_retain(fh_device *device);
void fh_device_release(fh_device *device);

struct fh_buffer {
  atomic_int references; /* the owner's handle, and one of every view */
  int32_t owned;         /* base was allocated here */
  fh_device *device;
  unsigned char *base;
  uint64_t bytes;
};

struct fh_view {
  fh_buffer *buffer;
  fh_view_info info;
  int64_t elements;
};

/* ---- Views (view.c) ------------------------------------------------------------------------------------------------------- */

/* Elements that view functions stage at a time: 16 KiB, within any first-level cache. */
enum { FH_VIEW_CHUNK = 4096 };

/* Set every element of the view, chunk by chunk on all of the device's threads: make(arg, first, n, staged) writes elements
 * first .. first + n - 1 in row-major order, n <= FH_VIEW_CHUNK. Elements that share memory keep the last one's value. */
void fh_view_set(const fh_view *view, void (*make)(void *arg, int64_t first, int64_t n, void *staged), void *arg);

/* The array behind the view, for overlap checks. */
fh_array fh_view_array(const fh_view *view, const char *name);

/* ---- The call (call.c) ---------------------------------------------------------------------------------------------------- */

/* The caller's call with every default filled in; its plan and policy are full-size copies held here. */
typedef struct fh_checked {
  fh_call call;
  fh_plan plan;
  fh_policy policy;
} fh_checked;

/* Checks the device and all of the call that is not memory: struct, enums, sizes, scale. */
fh_status fh_check_sizes(const fh_device *device, const fh_call *given, fh_checked *checked);

/* FH_ERR_SHAPE when a group of the call could have more union entries than 32 bits count. */
fh_status fh_check_plannable(const fh_call *call);

/* Refuses a NULL pointer to an array that has elements, one that is not aligned to them, and addresses that leave 64 bits. */
fh_status fh_check_array(const fh_array *array);

/* The index lists and their lengths as arrays. */
fh_array fh_call_indices(const fh_call *call);
fh_array fh_call_topk_length(const fh_call *call);

/* FH_ERR_ARGUMENT when a number of the policy is not finite. */
fh_status fh_policy_check(const fh_policy *policy);

#endif
