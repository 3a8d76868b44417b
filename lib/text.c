/* Text that comes from outside: environment variables and names. */
#include <string.h>

#include "internal.h"

const char *fh_quote(const char *text, char quoted[FH_QUOTED]) {
  const size_t room = FH_QUOTED - 5; /* two quotes, "..", the end */
  const size_t length = strnlen(text, room + 1), kept = length > room ? room : length;
  char *to = quoted;
  *to++ = '"';
  for (size_t i = 0; i < kept; i++) {
    const unsigned char c = (unsigned char)text[i];
    *to++ = c < 0x20 || c == 0x7f ? '?' : text[i];
  }
  *to++ = '"';
  if (length > room) *to++ = '.', *to++ = '.';
  *to = 0;
  return quoted;
}

int fh_read_whole(const char *text, int64_t *value) {
  int64_t v = 0;
  if (!*text) return 0;
  for (; *text; text++) {
    if (*text < '0' || *text > '9') return 0;
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *text - '0', &v)) return 0;
  }
  *value = v;
  return 1;
}
