/* Devices: opened by name, counted, asked about. */
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { MAX_THREADS = 1024 };

/* The CPU share that a container was given, rounded up to whole CPUs; 0 when there is no limit. Linux control groups, v2. */
static int32_t quota_cpus(void) {
  FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
  if (!file) return 0;
  long long quota, period;
  const int limited = fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0;
  fclose(file);
  if (!limited) return 0;
  const long long cpus = (quota - 1) / period + 1;
  return cpus < MAX_THREADS ? (int32_t)cpus : MAX_THREADS;
}

static int32_t usable_cpus(void) {
  int32_t cpus = 0;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  if (cpus == 0) cpus = (int32_t)sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than a cpu_set_t has room for */
  const int32_t quota = quota_cpus();
  if (quota && quota < cpus) cpus = quota;
  return cpus < 1 ? 1 : cpus < MAX_THREADS ? cpus : MAX_THREADS;
}

static fh_status choose_threads(int32_t asked, int32_t *threads) {
  char quoted[FH_QUOTED];
  int64_t number;
  if (asked < 0 || asked > MAX_THREADS)
    return fh_fail(FH_ERR_ARGUMENT, "options.threads: got %d, wanted 0 .. %d", (int)asked, MAX_THREADS);
  const char *text = getenv("FEWHEAD_THREADS");
  if (asked) *threads = asked;
  else if (!text || !*text) *threads = usable_cpus();
  else if (fh_read_whole(text, &number) && number >= 1 && number <= MAX_THREADS) *threads = (int32_t)number;
  else
    return fh_fail(FH_ERR_ARGUMENT, "FEWHEAD_THREADS: got %s, wanted a whole number in 1 .. %d", fh_quote(text, quoted),
                   MAX_THREADS);
  return FH_OK;
}

static fh_status choose_isa(int32_t asked, int32_t *isa) {
  char quoted[FH_QUOTED];
  const int32_t best = fhk_cpu_best_isa();
  const char *source = "options.isa", *text = getenv("FEWHEAD_ISA");
  if (asked < FH_ISA_BEST || asked > FH_ISA_AVX512_BF16)
    return fh_fail(FH_ERR_ARGUMENT, "options.isa: got %d, wanted an fh_isa, 0 .. %d", (int)asked, (int)FH_ISA_AVX512_BF16);
  *isa = asked;
  if (asked == FH_ISA_BEST && text && *text) {
    source = "FEWHEAD_ISA";
    for (*isa = FH_ISA_GENERIC; *isa <= FH_ISA_AVX512_BF16; ++*isa)
      if (strcmp(text, fhk_cpu_isa_name(*isa)) == 0) break;
    if (*isa > FH_ISA_AVX512_BF16)
      return fh_fail(FH_ERR_ARGUMENT, "FEWHEAD_ISA: got %s, wanted generic, avx2, avx512 or avx512_bf16", fh_quote(text, quoted));
  }
  if (*isa == FH_ISA_BEST) *isa = fhk_cpu_fastest_isa();
  if (*isa > best)
    return fh_fail(FH_ERR_DEVICE, "%s: got %s, wanted one that this CPU has, up to %s", source, fhk_cpu_isa_name(*isa),
                   fhk_cpu_isa_name(best));
  return FH_OK;
}

static void describe_cpu(fh_device_info *info) {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) info->memory_bytes = (uint64_t)pages * (uint64_t)page;
  const int levels[] = {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE};
  for (size_t i = 0; i < sizeof levels / sizeof *levels && !info->cache_bytes; i++) {
    const long bytes = sysconf(levels[i]);
    if (bytes > 0) info->cache_bytes = (uint64_t)bytes;
  }
  snprintf(info->name, sizeof info->name, "CPU");
  FILE *file = fopen("/proc/cpuinfo", "re");
  if (!file) return;
  char line[256];
  while (fgets(line, sizeof line, file)) {
    const char *colon = strchr(line, ':');
    if (!colon || strncmp(line, "model name", 10) != 0) continue;
    colon += strspn(colon, ": \t");
    snprintf(info->name, sizeof info->name, "%.*s", (int)strcspn(colon, "\n"), colon);
    break;
  }
  fclose(file);
}

fh_status fh_device_open(const char *name, const fh_device_options *options, fh_device **device) {
  char quoted[FH_QUOTED];
  fh_device_options full = {0};
  int32_t threads = 0, isa = 0;
  fh_status status;
  if (!name) return fh_fail_null("name");
  if (!device) return fh_fail_null("device");
  if (options && (status = fh_struct_in("fh_device_options", options, offsetof(fh_device_options, threads), &full, sizeof full)))
    return status;
  if (strncmp(name, "cuda", 4) == 0 && (name[4] == 0 || name[4] == ':'))
    return fh_fail(FH_ERR_DEVICE, "name: got %s, wanted \"cpu\": this library was built without CUDA", fh_quote(name, quoted));
  if (strcmp(name, "cpu") != 0) return fh_fail(FH_ERR_ARGUMENT, "name: got %s, wanted \"cpu\"", fh_quote(name, quoted));
  if ((status = choose_threads(full.threads, &threads)) || (status = choose_isa(full.isa, &isa))) return status;

  fh_device *opened = calloc(1, sizeof *opened);
  fhk_cpu *cpu = fhk_cpu_create(threads, isa);
  if (!opened || !cpu) {
    if (cpu) fhk_cpu_destroy(cpu);
    free(opened);
    return fh_fail(FH_ERR_MEMORY, "options.threads: got %d, and the system refused memory or threads for them", (int)threads);
  }
  atomic_init(&opened->references, 1);
  opened->cpu = cpu;
  opened->info = (fh_device_info){.struct_size = sizeof opened->info, .kind = FH_DEVICE_CPU, .threads = threads, .isa = isa};
  describe_cpu(&opened->info);
  *device = opened;
  return FH_OK;
}

fh_device *fh_device_retain(fh_device *device) {
  atomic_fetch_add(&device->references, 1);
  return device;
}

void fh_device_release(fh_device *device) {
  if (atomic_fetch_sub(&device->references, 1) != 1) return;
  fhk_cpu_destroy(device->cpu);
  free(device);
}

void fh_device_close(fh_device **device) {
  if (!device || !*device) return;
  fh_device_release(*device);
  *device = NULL;
}

fh_status fh_device_get_info(const fh_device *device, fh_device_info *info) {
  if (!device) return fh_fail_null("device");
  return fh_struct_out("fh_device_info", info, offsetof(fh_device_info, ordinal), &device->info, sizeof device->info);
}

fh_status fh_device_synchronize(fh_device *device) {
  return device ? FH_OK : fh_fail_null("device");
}
