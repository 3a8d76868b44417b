/* Status codes and the error text of a thread. */
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

static _Thread_local char message[512];

/* The caller's program may have chosen a locale with another decimal point; a message's numbers are the same in every
 * one. */
void fh_format(char *text, size_t bytes, const char *format, va_list args) {
  const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = plain ? uselocale(plain) : (locale_t)0;
  vsnprintf(text, bytes, format, args);
  if (!plain) return;
  uselocale(before);
  freelocale(plain);
}

fh_status fh_fail(fh_status status, const char *format, ...) {
  char text[sizeof message]; /* an argument may be the old message */
  va_list args;
  va_start(args, format);
  fh_format(text, sizeof text, format, args);
  va_end(args);
  memcpy(message, text, sizeof message);
  return status;
}

fh_status fh_fail_null(const char *name) { return fh_fail(FH_ERR_ARGUMENT, "%s: got NULL, wanted a pointer", name); }

const char *fh_error(void) { return message; }

const char *fh_status_name(fh_status status) {
  switch (status) {
    case FH_OK: return "FH_OK";
    case FH_ERR_ARGUMENT: return "FH_ERR_ARGUMENT";
    case FH_ERR_SHAPE: return "FH_ERR_SHAPE";
    case FH_ERR_STRIDE: return "FH_ERR_STRIDE";
    case FH_ERR_ALIGNMENT: return "FH_ERR_ALIGNMENT";
    case FH_ERR_OVERLAP: return "FH_ERR_OVERLAP";
    case FH_ERR_UNSUPPORTED: return "FH_ERR_UNSUPPORTED";
    case FH_ERR_WORKSPACE: return "FH_ERR_WORKSPACE";
    case FH_ERR_MEMORY: return "FH_ERR_MEMORY";
    case FH_ERR_DEVICE: return "FH_ERR_DEVICE";
    case FH_ERR_VERSION: return "FH_ERR_VERSION";
    default: return "FH_ERR_?";
  }
}

/* Every public struct starts with its size. In every version its size is a multiple of 8, so that no version ends
 * inside a field. */
static fh_status struct_size(const char *name, const void *given, uint64_t min_size, uint64_t full_size,
                             uint64_t *size) {
  if (!given) return fh_fail_null(name);
  memcpy(size, given, sizeof *size);
  if (*size < min_size || *size > full_size || *size % 8)
    return fh_fail(FH_ERR_VERSION,
                   "%s.struct_size: got %" PRIu64 ", wanted %" PRIu64 " (at least %" PRIu64 "), set by the caller",
                   name, *size, full_size, min_size);
  return FH_OK;
}

fh_status fh_struct_in(const char *name, const void *given, uint64_t min_size, void *full, uint64_t full_size) {
  uint64_t size = 0;
  const fh_status status = struct_size(name, given, min_size, full_size, &size);
  if (status) return status;
  memset(full, 0, full_size);
  memcpy(full, given, size);
  memcpy(full, &full_size, sizeof full_size);
  return FH_OK;
}

fh_status fh_struct_out(const char *name, void *given, uint64_t min_size, const void *full, uint64_t full_size) {
  uint64_t size = 0;
  const fh_status status = struct_size(name, given, min_size, full_size, &size);
  if (status || !full) return status;
  memcpy((unsigned char *)given + sizeof size, (const unsigned char *)full + sizeof size, size - sizeof size);
  return FH_OK;
}

fh_status fh_struct_init(const char *name, void *given, uint64_t size, uint64_t min_size, const void *full,
                         uint64_t full_size) {
  if (!given) return fh_fail_null(name);
  const fh_status status = fh_struct_out(name, &size, min_size, NULL, full_size);
  if (status) return status;
  memcpy(given, &size, sizeof size);
  return fh_struct_out(name, given, min_size, full, full_size);
}
