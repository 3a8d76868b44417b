/* The rows of the CPU's kernels: which kernel runs a path, and what it is called. */
#include "check.h"
#include "cpu/back_end.h"

#define FHK_ROWS(folder) extern const fhk_cpu_kernel fhk_rows_##folder[];
#include "kernels_cpu.h"
#undef FHK_ROWS
#define FHK_ROWS(folder) fhk_rows_##folder,
static const fhk_cpu_kernel *const folders[] = {
#include "kernels_cpu.h"
};
enum { FOLDERS = sizeof folders / sizeof *folders };

/* Every row has what a row needs, and no two rows of a path have the same preference. */
static void rows(void) {
  const fhk_cpu_kernel *all[64];
  size_t count = 0;
  for (size_t i = 0; i < FOLDERS; i++)
    for (const fhk_cpu_kernel *k = folders[i]; k->run && count < 64; k++) all[count++] = k;
  CHECK(count >= 4 && count < 64);
  for (size_t i = 0; i < count; i++) {
    CHECK(all[i]->name && all[i]->workspace);
    CHECK(all[i]->path > FH_AUTO && all[i]->path < FH_PATHS);
    CHECK_INT(all[i]->run_groups != NULL, all[i]->path != FH_REFERENCE);
    for (size_t j = 0; j < i; j++) CHECK(all[i]->path != all[j]->path || all[i]->preference != all[j]->preference);
  }
}

static void names(void) {
  static const char *const want[][2] = {[FH_REFERENCE] = {"cpu reference", "cpu reference"},
                                        [FH_PADDED] = {"cpu generic padded", "cpu amx padded"},
                                        [FH_GATHER] = {"cpu generic gather", "cpu amx gather"},
                                        [FH_PACKED] = {"cpu generic packed", "cpu amx packed"}};
  char name[64];
  for (int32_t path = FH_REFERENCE; path <= FH_PACKED; path++) {
    fhk_cpu_kernel_name(FH_ISA_GENERIC, path, name, sizeof name);
    CHECK_STR(name, want[path][0]);
    fhk_cpu_kernel_name(FH_ISA_AMX, path, name, sizeof name);
    CHECK_STR(name, want[path][1]);
    CHECK(fhk_cpu_has_path(FH_ISA_GENERIC, path));
    CHECK(!fhk_cpu_has_path(FH_ISA_BEST, path)); /* no instruction set at all */
  }
  CHECK(!fhk_cpu_has_path(FH_ISA_AMX, FH_PATHS));
  CHECK(fhk_cpu_kernel_of(FH_ISA_AMX, FH_AUTO) == NULL);
}

int main(void) {
  rows();
  names();
  return check_summary();
}
