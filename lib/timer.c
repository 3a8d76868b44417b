/* Time: the host's monotonic clock, and timers that measure what a device did between two points. */
#include <stdlib.h>
#include <time.h>

#include "internal.h"

struct fh_timer {
  fh_device *device;
  fh_moment start, stop;
  int32_t started, stopped;
};

uint64_t fh_time_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

fh_status fh_timer_create(fh_device *device, fh_timer **timer) {
  if (!device) return fh_fail_null("device");
  if (!timer) return fh_fail_null("timer");
  fh_timer *made = calloc(1, sizeof *made);
  if (!made) return fh_fail(FH_ERR_MEMORY, "timer: the system refused %zu bytes for the handle", sizeof *made);
  fh_status status = device->back_end->moment_create(device, &made->start);
  if (!status && (status = device->back_end->moment_create(device, &made->stop)))
    device->back_end->moment_destroy(device, &made->start);
  if (status) {
    free(made);
    return status;
  }
  made->device = fh_device_retain(device);
  *timer = made;
  return FH_OK;
}

static fh_status check(const fh_timer *timer, const void *stream) {
  return timer ? fh_check_stream(timer->device, stream) : fh_fail_null("timer");
}

fh_status fh_timer_start(fh_timer *timer, void *stream) {
  fh_status status = check(timer, stream);
  if (status || (status = timer->device->back_end->moment_mark(timer->device, &timer->start, stream))) return status;
  timer->started = 1;
  timer->stopped = 0;
  return FH_OK;
}

fh_status fh_timer_stop(fh_timer *timer, void *stream) {
  fh_status status = check(timer, stream);
  if (status) return status;
  if (!timer->started) return fh_fail(FH_ERR_ARGUMENT, "timer: got a stop, wanted a start before it");
  if ((status = timer->device->back_end->moment_mark(timer->device, &timer->stop, stream))) return status;
  timer->stopped = 1;
  return FH_OK;
}

fh_status fh_timer_elapsed_us(fh_timer *timer, double *us) {
  if (!timer) return fh_fail_null("timer");
  if (!us) return fh_fail_null("us");
  if (!timer->stopped)
    return fh_fail(FH_ERR_ARGUMENT, "timer: got no %s, wanted a start and a stop after it",
                   timer->started ? "stop" : "start");
  return timer->device->back_end->moment_between(timer->device, &timer->start, &timer->stop, us);
}

void fh_timer_free(fh_timer **timer) {
  if (!timer || !*timer) return;
  fh_timer *t = *timer;
  *timer = NULL;
  t->device->back_end->moment_destroy(t->device, &t->start);
  t->device->back_end->moment_destroy(t->device, &t->stop);
  fh_device_release(t->device);
  free(t);
}
