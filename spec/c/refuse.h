/* A refusal has a status and a message, and both are part of the contract. */
#ifndef FEWHEAD_SPEC_REFUSE_H
#define FEWHEAD_SPEC_REFUSE_H

#include <stdarg.h>

#include "check.h"
#include "fewhead.h"

#define REFUSED(call, status, text) \
  do {                              \
    CHECK_INT(call, status);        \
    CHECK_STR(fh_error(), text);    \
  } while (0)

/* Something that must not happen did. */
#define FAILED(what) check_record(0, __FILE__, __LINE__, what)

/* A message that holds addresses or limits known at run time only; valid until the next one. */
__attribute__((format(printf, 1, 2))) static inline const char *text_of(const char *format, ...) {
  static _Thread_local char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return text;
}

/* The refusal of a number that is no fh_path: it lists all paths. */
static inline const char *no_path(int32_t got) {
  char names[FH_PATHS * 32] = "";
  for (int32_t path = 0; path < FH_PATHS; path++) {
    const size_t length = strlen(names);
    snprintf(names + length, sizeof names - length, "%s%s", path ? ", " : "", fh_path_name(path));
  }
  return text_of("path: got %d, wanted an fh_path, 0 .. %d: %s", (int)got, FH_PATHS - 1, names);
}

/* A CPU device of `threads` threads and the best instructions, or the end of the program. */
static inline fh_device *open_cpu(int32_t threads) {
  fh_device *device = NULL;
  const fh_device_options options = {.struct_size = sizeof options, .threads = threads};
  CHECK_INT(fh_device_open("cpu", &options, &device), FH_OK);
  return device;
}

#endif
