/* What the files of the CPU back end share. */
#ifndef FEWHEAD_CPU_BACK_END_H
#define FEWHEAD_CPU_BACK_END_H

#include "cpu/cpu.h"
#include "internal.h"

static inline fhk_cpu *fh_cpu(const fh_device *device) { return device->state; }

/* Memory (memory.c). */
fh_status fh_cpu_alloc(fh_device *device, fh_memory memory, uint64_t bytes, void **base);
void fh_cpu_release(fh_device *device, fh_memory memory, void *base);
fh_status fh_cpu_write(fh_device *device, void *to, const void *host, uint64_t bytes);
fh_status fh_cpu_read(fh_device *device, const void *from, void *host, uint64_t bytes);
fh_status fh_cpu_fill(fh_buffer *buffer, int32_t value);
fh_status fh_cpu_evict(fh_buffer *buffer);

/* Views (view.c). */
fh_status fh_cpu_view_fill(const fh_view *view, uint32_t bits);
fh_status fh_cpu_view_random(const fh_view *view, const fh_generator *generator);
fh_status fh_cpu_view_write(const fh_view *view, const void *src);
fh_status fh_cpu_view_read(const fh_view *view, void *dst);
fh_status fh_cpu_view_copy(const fh_view *dst, const fh_view *src);

/* Elements that are staged at a time: 16 KiB, within any first-level cache. */
enum { FH_CPU_STRETCH = 4096 };

/* Writes elements first .. first + n - 1 in row-major order to `staged`, which has room for a whole stretch and may be
 * written past n; `first` is a multiple of FH_CPU_STRETCH. */
typedef void fh_cpu_make(void *arg, int64_t first, int64_t n, void *staged);

/* The one whose arg is an fh_generator (random.c), for an fh_isa. */
fh_cpu_make *fh_cpu_random_maker(int32_t isa);

#endif
