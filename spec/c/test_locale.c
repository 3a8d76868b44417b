/* Messages are the same in every locale: a decimal comma that the program around the library chose stays out of
 * them. */
#include <locale.h>
#include <pthread.h>
#include <stdlib.h>

#include "internal.h"
#include "refuse.h"

/* A locale with a decimal comma: one that is installed, else one that localedef makes in a folder of its own.
 * Returns its name. */
static const char *comma_locale(void) {
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8", "made"};
  static char folder[] = "/tmp/fewhead_locale_XXXXXX";
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(names[i], "made") == 0) {
      char command[512];
      if (!mkdtemp(folder)) return NULL;
      /* The whole of LC_NUMERIC, and nothing else: -c goes on where the other categories are missing. */
      snprintf(command, sizeof command,
               "printf 'comment_char %%%%\\nescape_char /\\nLC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep "
               "\".\"\\ngrouping 3;3\\n"
               "END LC_NUMERIC\\n' >%s/src && localedef -c -i %s/src -f ANSI_X3.4-1968 %s/made >/dev/null 2>&1; test "
               "-d %s/made",
               folder, folder, folder, folder);
      if (system(command)) return NULL;
      setenv("LOCPATH", folder, 1);
    }
    if (setlocale(LC_NUMERIC, names[i]) && strcmp(localeconv()->decimal_point, ",") == 0) return names[i];
  }
  return NULL;
}

static void *a_message(void *unused) {
  (void)unused;
  REFUSED(fh_fail(FH_ERR_ARGUMENT, "sm_scale: got %g and %.3f", -0.5, 1234567.125), FH_ERR_ARGUMENT,
          "sm_scale: got -0.5 and 1234567.125");
  return NULL;
}

int main(void) {
  const char *name = comma_locale();
  if (!CHECK(name != NULL)) return check_summary();
  char text[32];
  snprintf(text, sizeof text, "%.1f", 0.5);
  CHECK_STR(text, "0,5"); /* the locale is in force */
  a_message(NULL);
  pthread_t thread;
  CHECK_INT(pthread_create(&thread, NULL, a_message, NULL), 0);
  pthread_join(thread, NULL);
  /* A thread that has a locale of its own gets it back. */
  const locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(own);
  a_message(NULL);
  CHECK(uselocale((locale_t)0) == own);
  uselocale(before);
  freelocale(own);

  fh_device *device = open_cpu(1);
  fh_call call;
  uint64_t bytes;
  fh_call_init(&call, sizeof call, 1, 1, 1, 512, 1);
  call.sm_scale = -0.125f;
  REFUSED(fh_workspace_bytes(device, &call, &bytes), FH_ERR_ARGUMENT,
          "sm_scale: got -0.125, wanted a finite number > 0");
  fh_costs costs = {.struct_size = sizeof costs, .padded = {0.5, 0, 0}};
  call.sm_scale = 1;
  costs.padded.unit_us = 1 / 0.0;
  call.path = FH_AUTO;
  call.costs = &costs;
  REFUSED(fh_workspace_bytes(device, &call, &bytes), FH_ERR_ARGUMENT,
          "costs.padded: got call_us 0.5, unit_us inf, gflop_us 0, wanted finite numbers");
  snprintf(text, sizeof text, "%.1f", 0.5);
  CHECK_STR(text, "0,5"); /* the program's locale is as it was */
  fh_device_close(&device);
  return check_summary();
}
