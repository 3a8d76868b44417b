/* Buffers: memory on a device, owned or wrapped, kept alive by the views on it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "internal.h"

enum {
  ALIGNMENT = 256,
  HUGE_PAGE = 2 << 20, /* from this size up memory is aligned to, and asked for in, huge pages: gathered rows touch many pages */
  CACHE_LINE = 64,
  CHUNK = 1 << 20 /* what one turn of a thread fills or flushes */
};

static fh_status make(fh_device *device, void *base, uint64_t bytes, int32_t owned, fh_buffer **buffer) {
  fh_buffer *made = malloc(sizeof *made);
  if (!made) return fh_fail(FH_ERR_MEMORY, "buffer: the system refused %zu bytes for the handle", sizeof *made);
  atomic_init(&made->references, 1);
  made->owned = owned;
  made->device = fh_device_retain(device);
  made->base = base;
  made->bytes = bytes;
  *buffer = made;
  return FH_OK;
}

fh_status fh_buffer_alloc(fh_device *device, uint64_t bytes, fh_buffer **buffer) {
  if (!device) return fh_fail_null("device");
  if (!buffer) return fh_fail_null("buffer");
  void *base = NULL;
  if (bytes) {
    const uint64_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    if (bytes <= INT64_MAX - alignment) base = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (!base) return fh_fail(FH_ERR_MEMORY, "bytes: got %" PRIu64 ", more than the device could allocate", bytes);
#if defined(MADV_HUGEPAGE)
    if (alignment == HUGE_PAGE) (void)madvise(base, bytes, MADV_HUGEPAGE); /* a wish: refused, it changes nothing but speed */
#endif
  }
  const fh_status status = make(device, base, bytes, 1, buffer);
  if (status) free(base);
  return status;
}

fh_status fh_buffer_wrap(fh_device *device, void *base, uint64_t bytes, fh_buffer **buffer) {
  if (!device) return fh_fail_null("device");
  if (!buffer) return fh_fail_null("buffer");
  if (!base && bytes) return fh_fail(FH_ERR_ARGUMENT, "base: got NULL, wanted the address of %" PRIu64 " bytes", bytes);
  if (bytes > INT64_MAX || bytes > UINTPTR_MAX - (uintptr_t)base)
    return fh_fail(FH_ERR_SHAPE, "bytes: got %" PRIu64 ", more than can lie at %p", bytes, base);
  return make(device, bytes ? base : NULL, bytes, 0, buffer);
}

void fh_buffer_free(fh_buffer **buffer) {
  if (!buffer || !*buffer) return;
  fh_buffer *b = *buffer;
  *buffer = NULL;
  if (atomic_fetch_sub(&b->references, 1) != 1) return;
  if (b->owned) free(b->base);
  fh_device_release(b->device);
  free(b);
}

void *fh_buffer_data(const fh_buffer *buffer) {
  return buffer ? buffer->base : NULL;
}

uint64_t fh_buffer_bytes(const fh_buffer *buffer) {
  return buffer ? buffer->bytes : 0;
}

static fh_status check_range(const fh_buffer *buffer, uint64_t offset, const char *name, const void *host, uint64_t bytes) {
  if (!buffer) return fh_fail_null("buffer");
  if (offset > buffer->bytes || bytes > buffer->bytes - offset)
    return fh_fail(FH_ERR_SHAPE, "bytes: got %" PRIu64 " from offset %" PRIu64 ", wanted them within the buffer's %" PRIu64,
                   bytes, offset, buffer->bytes);
  return host || !bytes ? FH_OK : fh_fail_null(name);
}

fh_status fh_buffer_write(fh_buffer *buffer, uint64_t offset, const void *src, uint64_t bytes) {
  const fh_status status = check_range(buffer, offset, "src", src, bytes);
  if (!status && bytes) memmove(buffer->base + offset, src, bytes);
  return status;
}

fh_status fh_buffer_read(const fh_buffer *buffer, uint64_t offset, void *dst, uint64_t bytes) {
  const fh_status status = check_range(buffer, offset, "dst", dst, bytes);
  if (!status && bytes) memmove(dst, buffer->base + offset, bytes);
  return status;
}

static uint64_t chunk_end(const fh_buffer *buffer, uint64_t first) {
  return buffer->bytes - first < CHUNK ? buffer->bytes : first + CHUNK;
}

static void on_chunks(fh_buffer *buffer, void (*work)(void *arg, int64_t item, int32_t thread), void *arg) {
  if (buffer->bytes) fhk_cpu_parallel(buffer->device->cpu, (int64_t)((buffer->bytes - 1) / CHUNK + 1), work, arg);
}

typedef struct filling { const fh_buffer *buffer; int32_t value; } filling;

static void fill_chunk(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  const filling *fill = arg;
  const uint64_t first = (uint64_t)item * CHUNK;
  memset(fill->buffer->base + first, fill->value, chunk_end(fill->buffer, first) - first);
}

fh_status fh_buffer_fill(fh_buffer *buffer, int32_t value) {
  if (!buffer) return fh_fail_null("buffer");
  if (value < 0 || value > 255) return fh_fail(FH_ERR_ARGUMENT, "value: got %d, wanted 0 .. 255", (int)value);
  filling fill = {buffer, value};
  on_chunks(buffer, fill_chunk, &fill);
  return FH_OK;
}

#if defined(__x86_64__)

static void flush_chunk(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  const fh_buffer *buffer = arg;
  const uint64_t first = (uint64_t)item * CHUNK, end = chunk_end(buffer, first);
  for (uint64_t at = first; at < end; at += CACHE_LINE) _mm_clflush(buffer->base + at);
  _mm_clflush(buffer->base + end - 1); /* a wrapped base need not start a line */
  _mm_mfence();
}

static fh_status evict(fh_buffer *buffer) {
  on_chunks(buffer, flush_chunk, buffer);
  return FH_OK;
}

#else

/* No portable instruction drops a line: other memory, twice the size of the largest cache, takes its place. */
static fh_status evict(fh_buffer *buffer) {
  const uint64_t cache = buffer->device->info.cache_bytes ? buffer->device->info.cache_bytes : 64 << 20, bytes = 2 * cache;
  unsigned char *other = calloc(bytes, 1);
  if (!other) return fh_fail(FH_ERR_MEMORY, "buffer: the system refused the %" PRIu64 " bytes that evict it", bytes);
  for (uint64_t at = 0; at < bytes; at += CACHE_LINE) *(volatile unsigned char *)(other + at) += 1;
  free(other);
  return FH_OK;
}

#endif

fh_status fh_buffer_evict(fh_buffer *buffer) {
  if (!buffer) return fh_fail_null("buffer");
  return buffer->bytes ? evict(buffer) : FH_OK;
}
