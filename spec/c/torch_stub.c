#ifdef STUB_DRIVER
/* libcuda.so.1 for a spec: every allocation goes on for so many bytes. */
#include <stddef.h>
#include <stdint.h>

uint64_t stub_room;
int cuMemGetAddressRange_v2(uint64_t *start, size_t *size, uint64_t address);
int cuMemGetAddressRange_v2(uint64_t *start, size_t *size, uint64_t address) {
  *start = address - 64;
  *size = 64 + stub_room;
  return 0;
}
#else
/*
 * libtorch_cuda.so for a spec: the functions of PyTorch's C shim that the FlashMLA plug-in uses, on host memory
 * whatever the device, and a dispatcher of aten::mul_, aten::nan_to_num_ and the operator that an extension registers.
 * It counts what is alive.
 */
#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "torch_stub.h"

static int alive; /* handles, lists and boxed values that somebody must give back still */
int stub_alive(void) { return alive; }

void *stub_stream;       /* of the guard that is in force */
static operator* kernel; /* what the extension registered */
static char kernel_name[64];
static char kernel_types[MAX_ARGUMENTS + 1];

void stub_register(const char *name, operator* function, const char *types) {
  snprintf(kernel_name, sizeof kernel_name, "%s", name);
  snprintf(kernel_types, sizeof kernel_types, "%s", types);
  kernel = function;
}

int stub_raise(const char *what) {
  fprintf(stderr, "[E1130 00:00:00.000000 1 shim.cpp:1] Exception in aoti_torch: %s\nException raised from somewhere\n",
          what);
  return 1;
}

#ifndef STUB_OLD
uint64_t aoti_torch_abi_version(void) { return (uint64_t)2 << 56 | (uint64_t)11 << 48; }
#else
uint64_t aoti_torch_abi_version(void) { return (uint64_t)2 << 56 | (uint64_t)9 << 48 | (uint64_t)1 << 40; }
#endif
int32_t aoti_torch_device_type_cpu(void) { return 0; }
int32_t aoti_torch_device_type_cuda(void) { return 1; }
int32_t aoti_torch_dtype_bfloat16(void) { return BF16; }
int32_t aoti_torch_dtype_float32(void) { return F32; }
int32_t aoti_torch_dtype_int32(void) { return I32; }

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const tensor *t) { return t->dtype == BF16 ? 2 : 4; }

const void *stub_data(const tensor *t) { return t ? (char *)t->memory->data + t->offset * bytes_of(t) : NULL; }

static tensor *make(int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, int32_t dtype,
                    storage *memory) {
  tensor *t = calloc(1, sizeof *t);
  t->rank = rank;
  t->dtype = dtype;
  t->offset = offset;
  memcpy(t->sizes, sizes, (size_t)rank * sizeof *sizes);
  memcpy(t->strides, strides, (size_t)rank * sizeof *strides);
  t->memory = memory;
  memory->users++;
  alive++;
  return t;
}

int32_t aoti_torch_create_tensor_from_blob(void *data, int64_t rank, const int64_t *sizes, const int64_t *strides,
                                           int64_t offset, int32_t dtype, int32_t device, int32_t ordinal,
                                           tensor **made) {
  storage *memory = calloc(1, sizeof *memory);
  (void)device, (void)ordinal;
  memory->data = data;
  *made = make(rank, sizes, strides, offset, dtype, memory);
  return 0;
}

int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                                 int32_t device, int32_t ordinal, tensor **made) {
  storage *memory = calloc(1, sizeof *memory);
  size_t bytes = dtype == BF16 ? 2 : 4;
  (void)device, (void)ordinal;
  for (int64_t i = 0; i < rank; i++) bytes *= (size_t)sizes[i];
  memory->data = memory->owned = malloc(bytes);
  memset(memory->owned, 0xff, bytes); /* NaN, like memory that was used before */
  *made = make(rank, sizes, strides, 0, dtype, memory);
  return 0;
}

int32_t aoti_torch__reinterpret_tensor(tensor *t, int64_t rank, const int64_t *sizes, const int64_t *strides,
                                       int64_t offset, tensor **made) {
  *made = make(rank, sizes, strides, offset, t->dtype, t->memory);
  return 0;
}

int32_t aoti_torch_new_tensor_handle(tensor *t, tensor **made) {
  *made = make(t->rank, t->sizes, t->strides, t->offset, t->dtype, t->memory);
  return 0;
}

int32_t aoti_torch_delete_tensor_object(tensor *t) {
  if (--t->memory->users == 0) {
    free(t->memory->owned);
    free(t->memory);
  }
  free(t);
  alive--;
  return 0;
}

int32_t aoti_torch_get_dim(tensor *t, int64_t *rank) { return *rank = t->rank, 0; }
int32_t aoti_torch_get_sizes(tensor *t, int64_t **sizes) { return *sizes = t->sizes, 0; }

/* Element by element; a source of one element goes everywhere. */
int32_t aoti_torch_copy_(tensor *to, tensor *from, int32_t non_blocking) {
  const int64_t bytes = bytes_of(to);
  int64_t at[MAX_RANK] = {0}, elements = 1;
  (void)non_blocking;
  if (to->dtype != from->dtype) return stub_raise("copy_: dtypes differ");
  for (int64_t i = 0; i < from->rank; i++) elements *= from->sizes[i];
  for (int64_t i = 0; i < to->rank; i++) {
    if (elements != 1 && (from->rank != to->rank || from->sizes[i] != to->sizes[i]))
      return stub_raise("copy_: sizes differ");
    if (to->sizes[i] == 0) return 0;
  }
  for (;;) {
    int64_t here = 0, there = 0, i = to->rank - 1;
    for (int64_t k = 0; k < to->rank; k++) {
      here += at[k] * to->strides[k];
      if (elements != 1) there += at[k] * from->strides[k];
    }
    memcpy((char *)to->memory->data + (to->offset + here) * bytes, (const char *)stub_data(from) + there * bytes,
           (size_t)bytes);
    while (i >= 0 && ++at[i] == to->sizes[i]) at[i--] = 0;
    if (i < 0) return 0;
  }
}

/* ---- Streams, lists, operators ----------------------------------------------------------------------------------- */

int32_t aoti_torch_create_cuda_stream_guard(void *stream, int32_t ordinal, void **guard) {
  (void)ordinal;
  alive++;
  stub_stream = stream;
  *guard = &stub_stream;
  return 0;
}

int32_t aoti_torch_delete_cuda_stream_guard(void *guard) {
  (void)guard;
  alive--;
  stub_stream = NULL;
  return 0;
}

int32_t torch_list_size(list *l, size_t *size) { return *size = l->count, 0; }
int32_t torch_list_get_item(list *l, size_t i, uint64_t *item) { return *item = (uint64_t)(uintptr_t)l->items[i], 0; }
int32_t torch_delete_list(list *l) {
  free(l);
  alive--;
  return 0;
}

/* An optional value that the caller boxed. */
static uint64_t unbox(uint64_t box) {
  const uint64_t value = *(uint64_t *)(uintptr_t)box;
  free((void *)(uintptr_t)box);
  alive--;
  return value;
}

static double number_of(uint64_t value) {
  double number;
  memcpy(&number, &value, sizeof number);
  return number;
}

/* The operators on a matrix in place: the first argument comes back as the result. */
static float *element(tensor *t, int64_t i, int64_t j) {
  return (float *)t->memory->data + t->offset + i * t->strides[0] + j * t->strides[1];
}

static int32_t multiply(uint64_t *stack) {
  tensor *t = (tensor *)(uintptr_t)stack[0], *number = (tensor *)(uintptr_t)stack[1];
  for (int64_t i = 0; i < t->sizes[0]; i++)
    for (int64_t j = 0; j < t->sizes[1]; j++) *element(t, i, j) *= *(const float *)stub_data(number);
  aoti_torch_delete_tensor_object(number);
  return 0;
}

static int32_t replace(uint64_t *stack) {
  tensor *t = (tensor *)(uintptr_t)stack[0];
  double by[3]; /* for NaN, +inf and -inf */
  for (int i = 0; i < 3; i++) by[i] = number_of(unbox(stack[1 + i]));
  for (int64_t i = 0; i < t->sizes[0]; i++)
    for (int64_t j = 0; j < t->sizes[1]; j++) {
      float *x = element(t, i, j);
      if (isnan(*x)) *x = (float)by[0];
      else if (isinf(*x)) *x = (float)by[*x > 0 ? 1 : 2];
    }
  return 0;
}

#ifndef STUB_OLD
/* Arguments are the dispatcher's, whatever becomes of the call; the boxes of optional ones too. */
int32_t torch_call_dispatcher(const char *name, const char *overload, uint64_t *stack, uint64_t version) {
  argument arguments[MAX_ARGUMENTS] = {{0}};
  list *results = NULL;
  (void)version;
  if (strcmp(name, "aten::mul_") == 0 && strcmp(overload, "Tensor") == 0) return multiply(stack);
  if (strcmp(name, "aten::nan_to_num_") == 0 && !*overload) return replace(stack);
  if (strcmp(name, kernel_name) != 0) return stub_raise("Could not find schema");
  for (int i = 0; kernel_types[i]; i++) {
    const int type = toupper((unsigned char)kernel_types[i]), optional = type != kernel_types[i];
    if (optional && !stack[i]) continue;
    const uint64_t value = optional ? unbox(stack[i]) : stack[i];
    arguments[i].given = 1;
    if (type == 'T') arguments[i].tensor = (tensor *)(uintptr_t)value;
    else if (type == 'F') arguments[i].number = number_of(value);
    else arguments[i].integer = (int64_t)value;
  }
  const int failed = kernel(arguments, &results);
  for (int i = 0; i < MAX_ARGUMENTS; i++)
    if (arguments[i].tensor) aoti_torch_delete_tensor_object(arguments[i].tensor);
  if (results) alive++;
  stack[0] = (uint64_t)(uintptr_t)results;
  return failed;
}
#endif

/* operator new of C++ */
void *_Znwm(size_t bytes);
void *_Znwm(size_t bytes) {
  alive++;
  return malloc(bytes);
}
#endif
