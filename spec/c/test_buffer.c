/* Buffers: bounds, wrapping, alignment, eviction. */
#include <stdlib.h>

#include "refuse.h"

static void allocation(fh_device *device) {
  for (uint64_t bytes = 1; bytes < 1 << 24; bytes = bytes * 3 + 1) {
    fh_buffer *buffer = NULL;
    CHECK_INT(fh_buffer_alloc(device, bytes, &buffer), FH_OK);
    CHECK_INT((uintptr_t)fh_buffer_data(buffer) % 256, 0);
    CHECK_INT(fh_buffer_bytes(buffer), bytes);
    CHECK_INT(fh_buffer_fill(buffer, 0xa5), FH_OK);
    CHECK_INT(((unsigned char *)fh_buffer_data(buffer))[bytes - 1], 0xa5);
    fh_buffer_free(&buffer);
    CHECK(buffer == NULL);
    fh_buffer_free(&buffer);
  }
  fh_buffer *host = NULL;
  CHECK_INT(fh_buffer_alloc_host(device, 1000, &host), FH_OK);
  CHECK_INT(fh_buffer_fill(host, 0x5a), FH_OK);
  CHECK_INT(((unsigned char *)fh_buffer_data(host))[999], 0x5a);
  fh_buffer_free(&host);
  REFUSED(fh_buffer_alloc_host(NULL, 1, &host), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");

  fh_buffer *empty = NULL;
  CHECK_INT(fh_buffer_alloc(device, 0, &empty), FH_OK);
  CHECK(fh_buffer_data(empty) == NULL);
  CHECK_INT(fh_buffer_bytes(empty), 0);
  CHECK_INT(fh_buffer_write(empty, 0, NULL, 0), FH_OK);
  CHECK_INT(fh_buffer_read(empty, 0, NULL, 0), FH_OK);
  CHECK_INT(fh_buffer_fill(empty, 1), FH_OK);
  CHECK_INT(fh_buffer_evict(empty), FH_OK);
  fh_buffer_free(&empty);
  fh_buffer_free(NULL);
  CHECK(fh_buffer_data(NULL) == NULL);
  CHECK_INT(fh_buffer_bytes(NULL), 0);

  fh_buffer *none = NULL;
  REFUSED(fh_buffer_alloc(device, UINT64_MAX, &none), FH_ERR_MEMORY,
          "bytes: got 18446744073709551615, more than the device could allocate");
  CHECK_INT(fh_buffer_alloc(device, (uint64_t)1 << 60, &none), FH_ERR_MEMORY);
  CHECK_INT(fh_buffer_alloc(device, INT64_MAX, &none), FH_ERR_MEMORY);
  CHECK(none == NULL);
  REFUSED(fh_buffer_alloc(NULL, 1, &none), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_buffer_alloc(device, 1, NULL), FH_ERR_ARGUMENT, "buffer: got NULL, wanted a pointer");
}

static void bounds(fh_device *device) {
  fh_buffer *buffer = NULL;
  unsigned char host[64], back[64];
  CHECK_INT(fh_buffer_alloc(device, 100, &buffer), FH_OK);
  CHECK_INT(fh_buffer_fill(buffer, 0), FH_OK);
  for (int i = 0; i < 64; i++) host[i] = (unsigned char)(i + 1);
  CHECK_INT(fh_buffer_write(buffer, 36, host, 64), FH_OK);
  CHECK_INT(fh_buffer_read(buffer, 36, back, 64), FH_OK);
  CHECK(memcmp(host, back, 64) == 0);
  CHECK_INT(fh_buffer_read(buffer, 34, back, 4), FH_OK);
  CHECK(memcmp(back, "\0\0\1\2", 4) == 0);
  CHECK_INT(fh_buffer_write(buffer, 100, NULL, 0), FH_OK);

  REFUSED(fh_buffer_write(buffer, 37, host, 64), FH_ERR_SHAPE,
          "bytes: got 64 from offset 37, wanted them within the buffer's 100");
  REFUSED(fh_buffer_read(buffer, 101, back, 0), FH_ERR_SHAPE,
          "bytes: got 0 from offset 101, wanted them within the buffer's 100");
  REFUSED(fh_buffer_read(buffer, UINT64_MAX, back, 2), FH_ERR_SHAPE,
          "bytes: got 2 from offset 18446744073709551615, wanted them within the buffer's 100");
  REFUSED(fh_buffer_write(buffer, 1, host, UINT64_MAX), FH_ERR_SHAPE,
          "bytes: got 18446744073709551615 from offset 1, wanted them within the buffer's 100");
  REFUSED(fh_buffer_write(buffer, 0, NULL, 1), FH_ERR_ARGUMENT, "src: got NULL, wanted a pointer");
  REFUSED(fh_buffer_read(buffer, 0, NULL, 1), FH_ERR_ARGUMENT, "dst: got NULL, wanted a pointer");
  REFUSED(fh_buffer_write(NULL, 0, host, 1), FH_ERR_ARGUMENT, "buffer: got NULL, wanted a pointer");
  REFUSED(fh_buffer_fill(NULL, 0), FH_ERR_ARGUMENT, "buffer: got NULL, wanted a pointer");
  REFUSED(fh_buffer_fill(buffer, 256), FH_ERR_ARGUMENT, "value: got 256, wanted 0 .. 255");
  REFUSED(fh_buffer_fill(buffer, -1), FH_ERR_ARGUMENT, "value: got -1, wanted 0 .. 255");
  REFUSED(fh_buffer_evict(NULL), FH_ERR_ARGUMENT, "buffer: got NULL, wanted a pointer");
  fh_buffer_free(&buffer);
}

static void wrapping(fh_device *device) {
  unsigned char *own = malloc(3 << 20);
  fh_buffer *buffer = NULL;
  CHECK_INT(fh_buffer_wrap(device, own + 1, (3 << 20) - 1, &buffer), FH_OK);
  CHECK(fh_buffer_data(buffer) == own + 1);
  CHECK_INT(fh_buffer_fill(buffer, 9), FH_OK);
  CHECK_INT(fh_buffer_evict(buffer), FH_OK); /* keeps the contents, whatever the alignment */
  int same = 1;
  for (int i = 1; i < 3 << 20; i++) same &= own[i] == 9;
  CHECK(same);
  fh_buffer_free(&buffer);
  own[1] = 1; /* still the caller's */
  free(own);

  CHECK_INT(fh_buffer_wrap(device, NULL, 0, &buffer), FH_OK);
  CHECK(fh_buffer_data(buffer) == NULL);
  fh_buffer_free(&buffer);
  CHECK_INT(fh_buffer_wrap(device, &same, 0, &buffer), FH_OK);
  CHECK(fh_buffer_data(buffer) == NULL);
  fh_buffer_free(&buffer);
  REFUSED(fh_buffer_wrap(device, NULL, 5, &buffer), FH_ERR_ARGUMENT, "base: got NULL, wanted the address of 5 bytes");
  REFUSED(fh_buffer_wrap(device, &same, UINT64_MAX, &buffer), FH_ERR_SHAPE,
          text_of("bytes: got 18446744073709551615, more than can lie at %p", (void *)&same));
  REFUSED(fh_buffer_wrap(NULL, &same, 4, &buffer), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_buffer_wrap(device, &same, 4, NULL), FH_ERR_ARGUMENT, "buffer: got NULL, wanted a pointer");
  CHECK(buffer == NULL);
}

int main(void) {
  fh_device *device = open_cpu(2);
  allocation(device);
  bounds(device);
  wrapping(device);
  fh_device_close(&device);
  return check_summary();
}
