/*
 * PyTorch through its stable C shim: tensors on the caller's memory, operators called by name. The libraries are loaded
 * from the folder of a Python environment. Building needs nothing of PyTorch, and no Python runs.
 *
 * A function that returns int returns 0, or 1 if PyTorch raised an error. PyTorch's message is then on standard error,
 * or in the capture if one is active.
 */
#ifndef FLASHMLA_TORCH_H
#define FLASHMLA_TORCH_H

#include <stddef.h>
#include <stdint.h>

typedef struct fm_tensor_object *fm_tensor; /* AtenTensorHandle: an owned reference */
typedef struct fm_list_object *fm_list;     /* StableListHandle */
typedef struct fm_guard_object *fm_guard;   /* CUDAStreamGuardHandle */
typedef uint64_t fm_value;                  /* StableIValue: a handle, a number's bits, or a pointer to an
                                               optional value */

/* The functions used, of torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h, as PyTorch 2.10 and
 * later declare them. An operator takes over the references in its stack. Whoever reads an item of a list owns the
 * reference. */
#define FM_SHIM(X)                                                                                                   \
  X(uint64_t, aoti_torch_abi_version, (void))                                                                        \
  X(int32_t, aoti_torch_device_type_cpu, (void))                                                                     \
  X(int32_t, aoti_torch_device_type_cuda, (void))                                                                    \
  X(int32_t, aoti_torch_dtype_bfloat16, (void))                                                                      \
  X(int32_t, aoti_torch_dtype_float32, (void))                                                                       \
  X(int32_t, aoti_torch_dtype_int32, (void))                                                                         \
  X(int32_t, aoti_torch_create_tensor_from_blob,                                                                     \
    (void *data, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, int32_t dtype,          \
     int32_t device, int32_t ordinal, fm_tensor *made))                                                              \
  X(int32_t, aoti_torch_empty_strided,                                                                               \
    (int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device, int32_t ordinal,     \
     fm_tensor *made))                                                                                               \
  X(int32_t, aoti_torch__reinterpret_tensor,                                                                         \
    (fm_tensor tensor, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, fm_tensor *made)) \
  X(int32_t, aoti_torch_new_tensor_handle, (fm_tensor tensor, fm_tensor * made))                                     \
  X(int32_t, aoti_torch_delete_tensor_object, (fm_tensor tensor))                                                    \
  X(int32_t, aoti_torch_get_dim, (fm_tensor tensor, int64_t * rank))                                                 \
  X(int32_t, aoti_torch_get_sizes, (fm_tensor tensor, int64_t * *sizes))                                             \
  X(int32_t, aoti_torch_copy_, (fm_tensor to, fm_tensor from, int32_t non_blocking))                                 \
  X(int32_t, aoti_torch_create_cuda_stream_guard, (void *stream, int32_t ordinal, fm_guard *made))                   \
  X(int32_t, aoti_torch_delete_cuda_stream_guard, (fm_guard guard))                                                  \
  X(int32_t, torch_call_dispatcher, (const char *name, const char *overload, fm_value *stack, uint64_t version))     \
  X(int32_t, torch_list_size, (fm_list list, size_t * size))                                                         \
  X(int32_t, torch_list_get_item, (fm_list list, size_t index, fm_value * item))                                     \
  X(int32_t, torch_delete_list, (fm_list list))

typedef struct fm_torch {
#define FM_FIELD(type, name, arguments) type(*name) arguments;
  FM_SHIM(FM_FIELD)
#undef FM_FIELD
  void *(*operator_new)(size_t); /* of C++, because PyTorch deletes the values that optional arguments point to */
  char version[24];              /* "2.11.0" */
} fm_torch;

/* Load libtorch from `folder`. Returns 0, or 1 with one line in text that says what is missing. */
int fm_torch_load(const char *folder, fm_torch *torch, char *text, size_t text_bytes);

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

enum { FM_MAX_RANK = 4 };

typedef struct fm_shape {
  int64_t rank;
  int64_t sizes[FM_MAX_RANK];
  int64_t strides[FM_MAX_RANK]; /* elements; none is negative */
} fm_shape;

/* A dense shape of at most three dimensions: rows without gaps, the last dimension contiguous. */
fm_shape fm_dense(int64_t rank, int64_t a, int64_t b, int64_t c);

/* The device of a tensor, in PyTorch's numbers. */
typedef struct fm_place {
  int32_t device;
  int32_t ordinal;
} fm_place;

/* Make a tensor: on the caller's memory; on new memory; on the memory of another tensor, which begins `offset` elements
 * before the new one. */
int fm_view(const fm_torch *torch, fm_place place, const void *data, int32_t dtype, fm_shape shape, fm_tensor *made);
int fm_new(const fm_torch *torch, fm_place place, int32_t dtype, fm_shape shape, fm_tensor *made);
int fm_part(const fm_torch *torch, fm_tensor tensor, fm_shape shape, int64_t offset, fm_tensor *made);

/* Set every element of the tensor to *value, which lies on the host and has the tensor's dtype. */
int fm_fill(const fm_torch *torch, fm_tensor tensor, int32_t dtype, const void *value);

/* Returns 1 if the tensor has the sizes of this shape. */
int fm_has_sizes(const fm_torch *torch, fm_tensor tensor, fm_shape shape);

/* Release the reference and set it to NULL. */
void fm_drop(const fm_torch *torch, fm_tensor *tensor);

/* ---- Operators --------------------------------------------------------------------------------------------------- */

/* Make an operator's argument from a new reference to the tensor. An `optional` argument may be NULL. */
int fm_argument(const fm_torch *torch, fm_tensor tensor, int optional, fm_value *value);

fm_value fm_float(double number);

/* An optional argument that is given. PyTorch deletes it. */
fm_value fm_some(const fm_torch *torch, fm_value value);

/* Call "namespace::name" with the values in the stack as arguments. The results replace them. The stack may be
 * longer than the operator's list of arguments: the operator does not look at the rest, which stays the caller's. */
int fm_call(const fm_torch *torch, const char *name, const char *overload, fm_value *stack);

/* Take the tensors of a list that an operator returned and delete the list. Returns 1 unless it has `count` tensors. */
int fm_take_list(const fm_torch *torch, fm_value list, fm_tensor *tensors, size_t count);

/* Multiply every element by a number, in place. */
int fm_scale(const fm_torch *torch, fm_tensor tensor, float factor);

/* Replace every -inf by +inf, in place. */
int fm_turn_infinity(const fm_torch *torch, fm_tensor tensor);

/* ---- Messages of PyTorch ----------------------------------------------------------------------------------------- */

/* On an error the shim writes the message to standard error and returns a number. Between begin and end standard
 * error goes to a file, for the whole process. Keep that time short. */
typedef struct fm_capture {
  int file;
  int saved; /* the former standard error; -1 if nothing is captured */
} fm_capture;

void fm_capture_begin(fm_capture *capture);

/* Writes the first line of the error to `raised`, "" if there is none. With `raised` NULL the text goes on to standard
 * error. */
void fm_capture_end(fm_capture *capture, char *raised, size_t raised_bytes);

#endif
