/* Loads PyTorch's libraries; implements torch.h. */
#include "torch.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The release whose shim this file was written for. It decides how values are encoded in a stack. */
static const uint64_t SHIM_VERSION = (uint64_t)2 << 56 | (uint64_t)10 << 48;

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* Loads folder/name. The process never unloads it: PyTorch's registries and threads outlive every use. */
static void *open_library(const char *folder, const char *name, char *text, size_t text_bytes) {
  char path[4096];
  if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) {
    snprintf(text, text_bytes, "torch: got a path of more than %zu bytes", sizeof path - 1);
    return NULL;
  }
  void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) snprintf(text, text_bytes, "PyTorch does not load: %s", dlerror());
  return library;
}

/* Formats a version such as "2.11.0": the top three bytes of `abi` are major, minor and patch. */
static void format_version(uint64_t abi, char *version, size_t version_bytes) {
  snprintf(version, version_bytes, "%u.%u.%u", (unsigned)(abi >> 56), (unsigned)(abi >> 48 & 255),
           (unsigned)(abi >> 40 & 255));
}

int fm_torch_load(const char *folder, fm_torch *torch, char *text, size_t text_bytes) {
  static char *loaded; /* the folder; two copies of libtorch in one process would share symbols */
  const char *missing = NULL;
  memset(torch, 0, sizeof *torch);
  if (loaded && strcmp(loaded, folder) != 0) {
    snprintf(text, text_bytes, "torch: got %s, and this process has the PyTorch of %s", folder, loaded);
    return 1;
  }
  /* libtorch_cuda.so loads all the others except libtorch.so, an empty library that extensions ask for by name. */
  void *library = open_library(folder, "libtorch_cuda.so", text, text_bytes);
  if (!library || !open_library(folder, "libtorch.so", text, text_bytes)) return 1;
#define FM_FIND(type, name, arguments)            \
  *(void **)&torch->name = dlsym(library, #name); \
  if (!torch->name && !missing) missing = #name;
  FM_SHIM(FM_FIND)
#undef FM_FIND
  *(void **)&torch->operator_new = dlsym(library, "_Znwm");
  if (!torch->operator_new && !missing) missing = "operator new";
  if (torch->aoti_torch_abi_version)
    format_version(torch->aoti_torch_abi_version(), torch->version, sizeof torch->version);
  if (!missing) {
    if (!loaded) loaded = strdup(folder);
    return 0;
  }
  snprintf(text, text_bytes, "PyTorch %s in %s has no %s: wanted PyTorch 2.10 or later with CUDA",
           *torch->version ? torch->version : "(of no known version)", folder, missing);
  return 1;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

fm_shape fm_dense(int64_t rank, int64_t a, int64_t b, int64_t c) {
  fm_shape shape = {rank, {a, b, c, 1}, {1, 1, 1, 1}};
  for (int64_t i = rank - 2; i >= 0; i--) shape.strides[i] = shape.strides[i + 1] * shape.sizes[i + 1];
  return shape;
}

int fm_view(const fm_torch *torch, fm_place place, const void *data, int32_t dtype, fm_shape shape, fm_tensor *made) {
  union {
    const void *given;
    void *taken;
  } memory = {data}; /* the shim has no const */
  return torch->aoti_torch_create_tensor_from_blob(memory.taken, shape.rank, shape.sizes, shape.strides, 0, dtype,
                                                   place.device, place.ordinal, made) != 0;
}

int fm_new(const fm_torch *torch, fm_place place, int32_t dtype, fm_shape shape, fm_tensor *made) {
  return torch->aoti_torch_empty_strided(shape.rank, shape.sizes, shape.strides, dtype, place.device, place.ordinal,
                                         made) != 0;
}

int fm_part(const fm_torch *torch, fm_tensor tensor, fm_shape shape, int64_t offset, fm_tensor *made) {
  return torch->aoti_torch__reinterpret_tensor(tensor, shape.rank, shape.sizes, shape.strides, offset, made) != 0;
}

int fm_fill(const fm_torch *torch, fm_tensor tensor, int32_t dtype, const void *value) {
  const fm_place host = {torch->aoti_torch_device_type_cpu(), 0};
  fm_tensor one = NULL;
  const int failed =
      fm_view(torch, host, value, dtype, fm_dense(1, 1, 1, 1), &one) || torch->aoti_torch_copy_(tensor, one, 0);
  fm_drop(torch, &one);
  return failed;
}

int fm_has_sizes(const fm_torch *torch, fm_tensor tensor, fm_shape shape) {
  int64_t rank, *sizes;
  return !torch->aoti_torch_get_dim(tensor, &rank) && rank == shape.rank &&
         !torch->aoti_torch_get_sizes(tensor, &sizes) && memcmp(sizes, shape.sizes, (size_t)rank * sizeof *sizes) == 0;
}

void fm_drop(const fm_torch *torch, fm_tensor *tensor) {
  if (*tensor) torch->aoti_torch_delete_tensor_object(*tensor);
  *tensor = NULL;
}

/* ---- Operators --------------------------------------------------------------------------------------------------- */

fm_value fm_some(const fm_torch *torch, fm_value value) {
  fm_value *boxed = torch->operator_new(sizeof *boxed);
  *boxed = value;
  return (fm_value)(uintptr_t)boxed;
}

int fm_argument(const fm_torch *torch, fm_tensor tensor, int optional, fm_value *value) {
  fm_tensor handle;
  *value = 0;
  if (!tensor) return !optional;
  if (torch->aoti_torch_new_tensor_handle(tensor, &handle)) return 1;
  *value = (fm_value)(uintptr_t)handle;
  if (optional) *value = fm_some(torch, *value);
  return 0;
}

fm_value fm_float(double number) {
  fm_value value;
  memcpy(&value, &number, sizeof value);
  return value;
}

int fm_call(const fm_torch *torch, const char *name, const char *overload, fm_value *stack) {
  return torch->torch_call_dispatcher(name, overload, stack, SHIM_VERSION) != 0;
}

int fm_take_list(const fm_torch *torch, fm_value value, fm_tensor *tensors, size_t wanted) {
  fm_list list = (fm_list)(uintptr_t)value;
  size_t count = 0;
  int failed = torch->torch_list_size(list, &count) != 0;
  for (size_t i = 0; !failed && i < count; i++) {
    fm_value item;
    failed = torch->torch_list_get_item(list, i, &item) != 0;
    fm_tensor tensor = (fm_tensor)(uintptr_t)(failed ? 0 : item);
    if (i < wanted) tensors[i] = tensor;
    else fm_drop(torch, &tensor);
  }
  torch->torch_delete_list(list);
  return failed || count != wanted;
}

/* Calls an operator that works in place on its first argument and returns the argument. */
static int call_in_place(const fm_torch *torch, const char *name, const char *overload, fm_value *stack) {
  if (fm_call(torch, name, overload, stack)) return 1;
  fm_tensor result = (fm_tensor)(uintptr_t)stack[0];
  fm_drop(torch, &result);
  return 0;
}

int fm_scale(const fm_torch *torch, fm_tensor tensor, float factor) {
  const fm_place host = {torch->aoti_torch_device_type_cpu(), 0};
  fm_value stack[2];
  fm_tensor number = NULL;
  const int failed = fm_view(torch, host, &factor, torch->aoti_torch_dtype_float32(), fm_dense(0, 1, 1, 1), &number) ||
                     fm_argument(torch, tensor, 0, &stack[0]) || fm_argument(torch, number, 0, &stack[1]) ||
                     call_in_place(torch, "aten::mul_", "Tensor", stack);
  fm_drop(torch, &number);
  return failed;
}

int fm_turn_infinity(const fm_torch *torch, fm_tensor tensor) {
  fm_value stack[4]; /* the tensor, and what replaces NaN, +inf and -inf */
  if (fm_argument(torch, tensor, 0, &stack[0])) return 1;
  stack[1] = fm_some(torch, fm_float((double)NAN));
  stack[2] = fm_some(torch, fm_float((double)INFINITY));
  stack[3] = fm_some(torch, fm_float((double)INFINITY));
  return call_in_place(torch, "aten::nan_to_num_", "", stack);
}

/* ---- Messages of PyTorch ----------------------------------------------------------------------------------------- */

void fm_capture_begin(fm_capture *capture) {
  capture->saved = -1;
  capture->file = memfd_create("stderr", MFD_CLOEXEC);
  if (capture->file < 0) return;
  fflush(stderr);
  capture->saved = dup(STDERR_FILENO);
  if (capture->saved < 0 || dup2(capture->file, STDERR_FILENO) < 0) {
    if (capture->saved >= 0) close(capture->saved);
    close(capture->file);
    capture->saved = -1;
  }
}

/* Copies the whole file to standard error. */
static void pass_on(int file) {
  char piece[4096];
  ssize_t got;
  lseek(file, 0, SEEK_SET);
  while ((got = read(file, piece, sizeof piece)) > 0)
    if (write(STDERR_FILENO, piece, (size_t)got) != got) return; /* standard error is gone, so nobody can be told */
}

/* Finds the line after "Exception in aoti_torch: ", the shim's first words. */
static void find_raised(int file, char *raised, size_t raised_bytes) {
  static const char BEGIN[] = "Exception in aoti_torch: ";
  char log[8192]; /* the beginning; below it is a stack trace */
  const ssize_t got = pread(file, log, sizeof log - 1, 0);
  log[got > 0 ? got : 0] = 0;
  const char *line = strstr(log, BEGIN);
  line = line ? line + sizeof BEGIN - 1 : log;
  snprintf(raised, raised_bytes, "%.*s", (int)strcspn(line, "\n"), line);
}

void fm_capture_end(fm_capture *capture, char *raised, size_t raised_bytes) {
  if (raised) *raised = 0;
  if (capture->saved < 0) return;
  fflush(stderr);
  dup2(capture->saved, STDERR_FILENO);
  close(capture->saved);
  if (raised) find_raised(capture->file, raised, raised_bytes);
  else pass_on(capture->file);
  close(capture->file);
  capture->saved = -1;
}
