/* What torch_stub.c shares with flashmla_stub.c and fa3_stub.c. */
#ifndef TORCH_STUB_H
#define TORCH_STUB_H

#include <stddef.h>
#include <stdint.h>

enum { BF16 = 15, F32 = 6, I32 = 3 }; /* PyTorch's numbers */

typedef struct storage {
  void *data, *owned;
  int users;
} storage;
enum { MAX_RANK = 4, MAX_ARGUMENTS = 40 };

typedef struct tensor {
  int64_t rank, sizes[MAX_RANK], strides[MAX_RANK], offset; /* elements */
  int32_t dtype;
  storage *memory;
} tensor;
typedef struct list {
  size_t count;
  tensor *items[4];
} list;

/* One argument of an operator. An optional argument that is not given is all zeros. */
typedef struct argument {
  int given;
  tensor *tensor;
  double number;
  int64_t integer;
} argument;

/* An operator's function: 0 and *results; or 1. */
typedef int operator(const argument arguments[MAX_ARGUMENTS], list **results);

int stub_alive(void);
extern void *stub_stream;
/* types: a letter an argument: T tensor, F float, I int or bool; small letters: the same, optional. */
void stub_register(const char *name, operator* function, const char *types);
const void *stub_data(const tensor *t); /* its first element; NULL without a tensor */
int stub_raise(const char *what);       /* says so as the shim does, and is 1 */
int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                                 int32_t device, int32_t ordinal, tensor **made);
int32_t aoti_torch_new_tensor_handle(tensor *t, tensor **made);

#endif
