/* What torch_stub.c and flashmla_stub.c share. */
#ifndef TORCH_STUB_H
#define TORCH_STUB_H

#include <stddef.h>
#include <stdint.h>

enum { BF16 = 15, F32 = 6, I32 = 3 }; /* PyTorch's numbers */

typedef struct storage {
  void *data, *owned;
  int users;
} storage;
typedef struct tensor {
  int64_t rank, sizes[3], strides[3];
  int32_t dtype;
  storage *memory;
} tensor;
typedef struct list {
  size_t count;
  tensor *items[4];
} list;

/* An operator's function: its tensors in their places, NULL where not given. 0 and *results; or 1. */
typedef int operator(tensor *arguments[8], double scale, int64_t d_v, list **results);

int stub_alive(void);
extern void *stub_stream;
void stub_register(const char *name, operator* function, int arguments);
int stub_raise(const char *what); /* says so as the shim does, and is 1 */
int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                                 int32_t device, int32_t ordinal, tensor **made);
int32_t aoti_torch_new_tensor_handle(tensor *t, tensor **made);

#endif
