/* Counters: what calls did, added up. */
#include <stdio.h>
#include <string.h>

#include "internal.h"

_Static_assert(FH_PATHS <= FH_MAX_PATHS, "counters have room for every path");
_Static_assert(sizeof((fh_counters *)NULL)->rows == FH_MAX_PATHS * sizeof(uint64_t),
               "the header writes FH_MAX_PATHS as a number");

fh_status fh_add_counters(fh_counters *given, const fh_counters *ran) {
  fh_counters sum;
  const fh_status status = fh_struct_in("fh_counters", given, FH_COUNTERS_LEAST, &sum, sizeof sum);
  if (status) return status;
  sum.useful_flops += ran->useful_flops;
  sum.executed_flops += ran->executed_flops;
  sum.bytes += ran->bytes;
  for (int path = 0; path < FH_PATHS; path++) {
    sum.calls[path] += ran->calls[path];
    sum.rows[path] += ran->rows[path];
  }
  memcpy(sum.kernel, ran->kernel, sizeof sum.kernel);
  return fh_struct_out("fh_counters", given, FH_COUNTERS_LEAST, &sum, sizeof sum);
}

void fh_name_kernel(fh_counters *counters, const char *name) {
  const size_t length = strnlen(counters->kernel, sizeof counters->kernel);
  snprintf(counters->kernel + length, sizeof counters->kernel - length, "%s%s", length ? " + " : "", name);
}
