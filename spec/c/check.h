/* The few lines the C tests share. A test file calls CHECK* inside functions and ends main with `return
 * check_summary();`. */
#ifndef FEWHEAD_SPEC_CHECK_H
#define FEWHEAD_SPEC_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int check_passed, check_failed;

#define CHECK(cond) check_record((cond) != 0, __FILE__, __LINE__, #cond)
/* Two integers; prints both when they differ. */
#define CHECK_INT(got, want)                                                 \
  do {                                                                       \
    const int64_t got_ = (int64_t)(got), want_ = (int64_t)(want);            \
    if (!check_record(got_ == want_, __FILE__, __LINE__, #got " == " #want)) \
      printf("    got %" PRId64 ", want %" PRId64 "\n", got_, want_);        \
  } while (0)
/* Two strings; prints both when they differ. */
#define CHECK_STR(got, want)                                                                    \
  do {                                                                                          \
    const char *got_ = (got), *want_ = (want);                                                  \
    if (!check_record(got_ && strcmp(got_, want_) == 0, __FILE__, __LINE__, #got " == " #want)) \
      printf("    got  \"%s\"\n    want \"%s\"\n", got_ ? got_ : "(null)", want_);              \
  } while (0)

static inline int check_record(int ok, const char *file, int line, const char *what) {
  if (ok) check_passed++;
  else {
    check_failed++;
    printf("%s:%d: failed: %s\n", file, line, what);
  }
  return ok;
}

/* Prints the closing line; the exit status of the program: 1 when a check failed or none ran. */
static inline int check_summary(void) {
  printf("%d passed, %d failed\n", check_passed, check_failed);
  return check_failed != 0 || check_passed == 0;
}

#endif
