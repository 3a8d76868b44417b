/* What a binding asks before it trusts the library. */
#include <string.h>

#include "commit.h"
#include "cuda_build.h"
#include "header_checksum.h"
#include "internal.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

#if defined(__clang__)
#define COMPILER "clang " TEXT(__clang_major__) "." TEXT(__clang_minor__) "." TEXT(__clang_patchlevel__)
#elif defined(__GNUC__)
#define COMPILER "gcc " TEXT(__GNUC__) "." TEXT(__GNUC_MINOR__) "." TEXT(__GNUC_PATCHLEVEL__)
#else
#define COMPILER "an unknown compiler"
#endif

#define VERSION_TEXT "0.2.0"
_Static_assert(FH_VERSION == 0 * 10000 + 2 * 100 + 0, "VERSION_TEXT spells FH_VERSION");

int32_t fh_version(void) { return FH_VERSION; }

uint32_t fh_header_checksum(void) { return FH_HEADER_CHECKSUM; }

uint64_t fh_struct_bytes(const char *name) {
  static const struct {
    const char *name;
    uint64_t bytes;
  } known[] = {
      {"fh_device_options", sizeof(fh_device_options)},
      {"fh_device_info", sizeof(fh_device_info)},
      {"fh_view_info", sizeof(fh_view_info)},
      {"fh_path_info", sizeof(fh_path_info)},
      {"fh_call", sizeof(fh_call)},
      {"fh_counters", sizeof(fh_counters)},
      {"fh_plan", sizeof(fh_plan)},
      {"fh_work", sizeof(fh_work)},
      {"fh_path_cost", sizeof(fh_path_cost)},
      {"fh_costs", sizeof(fh_costs)},
      {"fh_gate", sizeof(fh_gate)},
      {"fh_provider_info", sizeof(fh_provider_info)},
  };
  for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
    if (strcmp(name, known[i].name) == 0) return known[i].bytes;
  return 0;
}

const char *fh_build_info(void) {
  return "fewhead " VERSION_TEXT ", commit " FH_COMMIT ", " COMPILER ", " FH_CUDA_TEXT;
}
