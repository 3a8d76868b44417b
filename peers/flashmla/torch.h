/*
 * PyTorch through its stable C shim: tensors on memory that is there, operators called by name. Its libraries are loaded from the
 * folder where a Python environment keeps them; nothing of PyTorch is needed to build this, and no Python runs.
 *
 * Every function here that returns int returns 0, or 1 when PyTorch raised something: its words are on standard error then, or
 * with who captures it.
 */
#ifndef FLASHMLA_TORCH_H
#define FLASHMLA_TORCH_H

#include <stddef.h>
#include <stdint.h>

typedef struct fm_tensor_object *fm_tensor; /* AtenTensorHandle: a reference, owned by whoever has it */
typedef struct fm_list_object *fm_list;     /* StableListHandle */
typedef struct fm_guard_object *fm_guard;   /* CUDAStreamGuardHandle */
typedef uint64_t fm_value;                  /* StableIValue: a handle, a number's bits, or a pointer to an optional value */

/* What is used of torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h, as PyTorch 2.10 and later declare it.
 * An operator takes over the references in its stack; a list's items are references of whoever reads it. */
#define FM_SHIM(X)                                                                                                              \
  X(uint64_t, aoti_torch_abi_version, (void))                                                                                   \
  X(int32_t, aoti_torch_device_type_cpu, (void))                                                                                \
  X(int32_t, aoti_torch_device_type_cuda, (void))                                                                               \
  X(int32_t, aoti_torch_dtype_bfloat16, (void))                                                                                 \
  X(int32_t, aoti_torch_dtype_float32, (void))                                                                                  \
  X(int32_t, aoti_torch_dtype_int32, (void))                                                                                    \
  X(int32_t, aoti_torch_create_tensor_from_blob,                                                                                \
    (void *data, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, int32_t dtype, int32_t device,     \
     int32_t ordinal, fm_tensor *made))                                                                                         \
  X(int32_t, aoti_torch_empty_strided,                                                                                          \
    (int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device, int32_t ordinal,                \
     fm_tensor *made))                                                                                                          \
  X(int32_t, aoti_torch__reinterpret_tensor,                                                                                    \
    (fm_tensor tensor, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, fm_tensor *made))            \
  X(int32_t, aoti_torch_new_tensor_handle, (fm_tensor tensor, fm_tensor *made))                                                 \
  X(int32_t, aoti_torch_delete_tensor_object, (fm_tensor tensor))                                                               \
  X(int32_t, aoti_torch_get_dim, (fm_tensor tensor, int64_t *rank))                                                             \
  X(int32_t, aoti_torch_get_sizes, (fm_tensor tensor, int64_t **sizes))                                                         \
  X(int32_t, aoti_torch_copy_, (fm_tensor to, fm_tensor from, int32_t non_blocking))                                            \
  X(int32_t, aoti_torch_create_cuda_stream_guard, (void *stream, int32_t ordinal, fm_guard *made))                              \
  X(int32_t, aoti_torch_delete_cuda_stream_guard, (fm_guard guard))                                                             \
  X(int32_t, torch_call_dispatcher, (const char *name, const char *overload, fm_value *stack, uint64_t version))                \
  X(int32_t, torch_list_size, (fm_list list, size_t *size))                                                                     \
  X(int32_t, torch_list_get_item, (fm_list list, size_t index, fm_value *item))                                                 \
  X(int32_t, torch_delete_list, (fm_list list))

typedef struct fm_torch {
#define FM_FIELD(type, name, arguments) type(*name) arguments;
  FM_SHIM(FM_FIELD)
#undef FM_FIELD
  void *(*operator_new)(size_t); /* of C++: PyTorch deletes the values that optional arguments point to */
  char version[24];              /* "2.11.0" */
} fm_torch;

/* Load libtorch from `folder`. 0; else 1 and one line that says what is missing. */
int fm_torch_load(const char *folder, fm_torch *torch, char *text, size_t text_bytes);

/* ---- Tensors -------------------------------------------------------------------------------------------------------------- */

enum { FM_MAX_RANK = 3 };

typedef struct fm_shape {
  int64_t rank;
  int64_t sizes[FM_MAX_RANK];
  int64_t strides[FM_MAX_RANK]; /* elements; none is negative */
} fm_shape;

/* Row after row without a gap; sizes[rank - 1] is contiguous. */
fm_shape fm_dense(int64_t rank, int64_t a, int64_t b, int64_t c);

/* Where tensors lie: PyTorch's numbers. */
typedef struct fm_place {
  int32_t device;
  int32_t ordinal;
} fm_place;

/* A tensor on the caller's memory; on memory of its own; on part of another's, from its first element on. */
int fm_view(const fm_torch *torch, fm_place place, const void *data, int32_t dtype, fm_shape shape, fm_tensor *made);
int fm_new(const fm_torch *torch, fm_place place, int32_t dtype, fm_shape shape, fm_tensor *made);
int fm_part(const fm_torch *torch, fm_tensor tensor, fm_shape shape, fm_tensor *made);

/* Set every element of the tensor to the host's *value, which has its dtype. */
int fm_fill(const fm_torch *torch, fm_tensor tensor, int32_t dtype, const void *value);

/* Whether it has this shape's sizes. */
int fm_has_sizes(const fm_torch *torch, fm_tensor tensor, fm_shape shape);

/* Give the reference back and set it to NULL. */
void fm_drop(const fm_torch *torch, fm_tensor *tensor);

/* ---- Operators ------------------------------------------------------------------------------------------------------------ */

/* Another reference to the tensor as an argument; `optional` one may be NULL. */
int fm_argument(const fm_torch *torch, fm_tensor tensor, int optional, fm_value *value);

fm_value fm_float(double number);

/* Call "namespace::name" with the stack's values as its arguments; its results come back in their places. The stack may be longer
 * than the operator's list of arguments: what is left over is not looked at, and stays the caller's. */
int fm_call(const fm_torch *torch, const char *name, const char *overload, fm_value *stack);

/* Multiply every element by a number, in place. */
int fm_scale(const fm_torch *torch, fm_tensor tensor, float factor);

/* ---- What PyTorch says ---------------------------------------------------------------------------------------------------- */

/* The shim writes what was raised to standard error and returns a number. Between these two calls standard error goes to a file,
 * for the whole process, so keep it short. */
typedef struct fm_capture {
  int file;
  int saved; /* standard error as it was; -1: nothing is captured */
} fm_capture;

void fm_capture_begin(fm_capture *capture);

/* `raised` NULL: what was written is passed on. Else it gets the first line of what was raised, "" when nothing was found. */
void fm_capture_end(fm_capture *capture, char *raised, size_t raised_bytes);

#endif
