/* Buffers: memory on a device, owned or wrapped, kept alive by the views on it. */
#include <inttypes.h>
#include <stdlib.h>

#include "internal.h"

static fh_status make(fh_device *device, void *base, uint64_t bytes, fh_memory memory, fh_buffer **buffer) {
  fh_buffer *made = malloc(sizeof *made);
  if (!made) return fh_fail(FH_ERR_MEMORY, "buffer: the system refused %zu bytes for the handle", sizeof *made);
  atomic_init(&made->references, 1);
  made->memory = memory;
  made->device = fh_device_retain(device);
  made->base = base;
  made->bytes = bytes;
  *buffer = made;
  return FH_OK;
}

static fh_status alloc(fh_device *device, uint64_t bytes, fh_memory memory, fh_buffer **buffer) {
  if (!device) return fh_fail_null("device");
  if (!buffer) return fh_fail_null("buffer");
  void *base = NULL;
  fh_status status = bytes ? device->back_end->alloc(device, memory, bytes, &base) : FH_OK;
  if (!status && (status = make(device, base, bytes, memory, buffer)) && base)
    device->back_end->release(device, memory, base);
  return status;
}

fh_status fh_buffer_alloc(fh_device *device, uint64_t bytes, fh_buffer **buffer) {
  return alloc(device, bytes, FH_MEMORY_DEVICE, buffer);
}

fh_status fh_buffer_alloc_host(fh_device *device, uint64_t bytes, fh_buffer **buffer) {
  return alloc(device, bytes, FH_MEMORY_HOST, buffer);
}

fh_status fh_buffer_wrap(fh_device *device, void *base, uint64_t bytes, fh_buffer **buffer) {
  if (!device) return fh_fail_null("device");
  if (!buffer) return fh_fail_null("buffer");
  if (!base && bytes) return fh_fail(FH_ERR_ARGUMENT, "base: got NULL, wanted the address of %" PRIu64 " bytes", bytes);
  if (bytes > INT64_MAX || bytes > UINTPTR_MAX - (uintptr_t)base)
    return fh_fail(FH_ERR_SHAPE, "bytes: got %" PRIu64 ", more than can lie at %p", bytes, base);
  if (bytes && device->back_end->check_wrapped) {
    const fh_status status = device->back_end->check_wrapped(device, base);
    if (status) return status;
  }
  return make(device, bytes ? base : NULL, bytes, FH_MEMORY_WRAPPED, buffer);
}

void fh_buffer_free(fh_buffer **buffer) {
  if (!buffer || !*buffer) return;
  fh_buffer *b = *buffer;
  *buffer = NULL;
  if (atomic_fetch_sub(&b->references, 1) != 1) return;
  if (b->base && b->memory != FH_MEMORY_WRAPPED) b->device->back_end->release(b->device, b->memory, b->base);
  fh_device_release(b->device);
  free(b);
}

void *fh_buffer_data(const fh_buffer *buffer) { return buffer ? buffer->base : NULL; }

uint64_t fh_buffer_bytes(const fh_buffer *buffer) { return buffer ? buffer->bytes : 0; }

static fh_status check_range(const fh_buffer *buffer, uint64_t offset, const char *name, const void *host,
                             uint64_t bytes) {
  if (!buffer) return fh_fail_null("buffer");
  if (offset > buffer->bytes || bytes > buffer->bytes - offset)
    return fh_fail(FH_ERR_SHAPE,
                   "bytes: got %" PRIu64 " from offset %" PRIu64 ", wanted them within the buffer's %" PRIu64, bytes,
                   offset, buffer->bytes);
  return host || !bytes ? FH_OK : fh_fail_null(name);
}

fh_status fh_buffer_write(fh_buffer *buffer, uint64_t offset, const void *src, uint64_t bytes) {
  const fh_status status = check_range(buffer, offset, "src", src, bytes);
  if (status || !bytes) return status;
  return buffer->device->back_end->write(buffer->device, buffer->base + offset, src, bytes);
}

fh_status fh_buffer_read(const fh_buffer *buffer, uint64_t offset, void *dst, uint64_t bytes) {
  const fh_status status = check_range(buffer, offset, "dst", dst, bytes);
  if (status || !bytes) return status;
  return buffer->device->back_end->read(buffer->device, buffer->base + offset, dst, bytes);
}

fh_status fh_buffer_fill(fh_buffer *buffer, int32_t value) {
  if (!buffer) return fh_fail_null("buffer");
  if (value < 0 || value > 255) return fh_fail(FH_ERR_ARGUMENT, "value: got %d, wanted 0 .. 255", (int)value);
  return buffer->bytes ? buffer->device->back_end->fill(buffer, value) : FH_OK;
}

fh_status fh_buffer_evict(fh_buffer *buffer) {
  if (!buffer) return fh_fail_null("buffer");
  return buffer->bytes ? buffer->device->back_end->evict(buffer) : FH_OK;
}
