/* Memory of the host: allocated in huge pages, filled and flushed on all threads. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cpu_back_end.h"

enum {
  ALIGNMENT = 256,
  HUGE_PAGE = 2 << 20, /* from this size up memory is aligned to, and asked for in, huge pages: gathered rows
                          touch many pages */
  CACHE_LINE = 64,
  STRETCH = 1 << 20 /* what one turn of a thread fills or flushes */
};

fh_status fh_cpu_alloc(fh_device *device, fh_memory memory, uint64_t bytes, void **base) {
  (void)device, (void)memory; /* all of it is the host's */
  const uint64_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
  *base =
      bytes <= INT64_MAX - alignment ? aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment) : NULL;
  if (!*base) return fh_fail(FH_ERR_MEMORY, "bytes: got %" PRIu64 ", more than the device could allocate", bytes);
#if defined(MADV_HUGEPAGE)
  if (alignment == HUGE_PAGE)
    (void)madvise(*base, bytes, MADV_HUGEPAGE); /* if the system refuses, only speed changes */
#endif
  return FH_OK;
}

void fh_cpu_release(fh_device *device, fh_memory memory, void *base) {
  (void)device, (void)memory;
  free(base);
}

fh_status fh_cpu_write(fh_device *device, void *to, const void *host, uint64_t bytes) {
  (void)device;
  memmove(to, host, bytes);
  return FH_OK;
}

fh_status fh_cpu_read(fh_device *device, const void *from, void *host, uint64_t bytes) {
  (void)device;
  memmove(host, from, bytes);
  return FH_OK;
}

static uint64_t stretch_end(const fh_buffer *buffer, uint64_t first) {
  return buffer->bytes - first < STRETCH ? buffer->bytes : first + STRETCH;
}

static void on_stretches(fh_buffer *buffer, void (*work)(void *arg, int64_t item, int32_t thread), void *arg) {
  fhk_cpu_parallel(fh_cpu(buffer->device), (int64_t)((buffer->bytes - 1) / STRETCH + 1), work, arg);
}

typedef struct filling {
  const fh_buffer *buffer;
  int32_t value;
} filling;

static void fill_stretch(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  const filling *fill = arg;
  const uint64_t first = (uint64_t)item * STRETCH;
  memset(fill->buffer->base + first, fill->value, stretch_end(fill->buffer, first) - first);
}

fh_status fh_cpu_fill(fh_buffer *buffer, int32_t value) {
  filling fill = {buffer, value};
  on_stretches(buffer, fill_stretch, &fill);
  return FH_OK;
}

#if defined(__x86_64__)

static void flush_stretch(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  const fh_buffer *buffer = arg;
  const uint64_t first = (uint64_t)item * STRETCH, end = stretch_end(buffer, first);
  for (uint64_t at = first; at < end; at += CACHE_LINE) _mm_clflush(buffer->base + at);
  _mm_clflush(buffer->base + end - 1); /* a wrapped base need not start a line */
  _mm_mfence();
}

fh_status fh_cpu_evict(fh_buffer *buffer) {
  on_stretches(buffer, flush_stretch, buffer);
  return FH_OK;
}

#else

/* No portable instruction drops a cache line. So the function writes other memory, twice the size of the largest
 * cache. */
fh_status fh_cpu_evict(fh_buffer *buffer) {
  const uint64_t cache = buffer->device->info.cache_bytes ? buffer->device->info.cache_bytes : 64 << 20,
                 bytes = 2 * cache;
  unsigned char *other = calloc(bytes, 1);
  if (!other) return fh_fail(FH_ERR_MEMORY, "buffer: the system refused the %" PRIu64 " bytes that evict it", bytes);
  for (uint64_t at = 0; at < bytes; at += CACHE_LINE) *(volatile unsigned char *)(other + at) += 1;
  free(other);
  return FH_OK;
}

#endif
