/* Timers: order of calls, and time that passes. */
#include <time.h>

#include "refuse.h"

int main(void) {
  fh_device *device = open_cpu(1);
  fh_timer *timer = NULL;
  double us = -1;
  CHECK_INT(fh_timer_create(device, &timer), FH_OK);
  REFUSED(fh_timer_elapsed_us(timer, &us), FH_ERR_ARGUMENT, "timer: got no start, wanted a start and a stop after it");
  REFUSED(fh_timer_stop(timer, NULL), FH_ERR_ARGUMENT, "timer: got a stop, wanted a start before it");
  CHECK_INT(fh_timer_start(timer, NULL), FH_OK);
  REFUSED(fh_timer_elapsed_us(timer, &us), FH_ERR_ARGUMENT, "timer: got no stop, wanted a start and a stop after it");
  CHECK(us == -1);

  const uint64_t before = fh_time_ns();
  const struct timespec nap = {0, 2000000};
  CHECK_INT(fh_timer_start(timer, NULL), FH_OK);
  while (nanosleep(&nap, NULL)) {}
  CHECK_INT(fh_timer_stop(timer, NULL), FH_OK);
  const uint64_t after = fh_time_ns();
  CHECK_INT(fh_timer_elapsed_us(timer, &us), FH_OK);
  CHECK(us >= 2000); /* microseconds */
  CHECK(us <= (double)(after - before) * 1e-3);

  double again = 0;
  CHECK_INT(fh_timer_elapsed_us(timer, &again), FH_OK);
  CHECK(again == us);
  CHECK_INT(fh_timer_start(timer, NULL), FH_OK); /* a new start forgets the old stop */
  CHECK_INT(fh_timer_elapsed_us(timer, &us), FH_ERR_ARGUMENT);

  REFUSED(fh_timer_create(NULL, &timer), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_timer_create(device, NULL), FH_ERR_ARGUMENT, "timer: got NULL, wanted a pointer");
  REFUSED(fh_timer_start(NULL, NULL), FH_ERR_ARGUMENT, "timer: got NULL, wanted a pointer");
  REFUSED(fh_timer_stop(NULL, NULL), FH_ERR_ARGUMENT, "timer: got NULL, wanted a pointer");
  REFUSED(fh_timer_elapsed_us(NULL, &us), FH_ERR_ARGUMENT, "timer: got NULL, wanted a pointer");
  REFUSED(fh_timer_elapsed_us(timer, NULL), FH_ERR_ARGUMENT, "us: got NULL, wanted a pointer");
  REFUSED(fh_timer_start(timer, &us), FH_ERR_ARGUMENT, text_of("stream: got %p, wanted NULL on a CPU", (void *)&us));
  REFUSED(fh_timer_stop(timer, &us), FH_ERR_ARGUMENT, text_of("stream: got %p, wanted NULL on a CPU", (void *)&us));

  fh_timer_free(&timer);
  CHECK(timer == NULL);
  fh_timer_free(&timer);
  fh_timer_free(NULL);
  fh_device_close(&device);
  return check_summary();
}
