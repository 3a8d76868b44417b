/* The CPU as a device: its threads and instruction set, the calls it runs, and the table that stands for it. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu_back_end.h"
#include "cpu_quota.h"

enum { MAX_THREADS = 1024 };

static int32_t usable_cpus(void) {
  int32_t cpus = 0;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  if (cpus == 0) cpus = (int32_t)sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than a cpu_set_t has room for */
  const int32_t quota = fh_quota_cpus("");
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
  const char *source = "options.isa", *text = getenv("FEWHEAD_ISA");
  if (asked < FH_ISA_BEST || asked > FH_ISA_AMX)
    return fh_fail(FH_ERR_ARGUMENT, "options.isa: got %d, wanted an fh_isa, 0 .. %d", (int)asked, (int)FH_ISA_AMX);
  *isa = asked;
  if (asked == FH_ISA_BEST && text && *text) {
    source = "FEWHEAD_ISA";
    for (*isa = FH_ISA_GENERIC; *isa <= FH_ISA_AMX; ++*isa)
      if (strcmp(text, fhk_cpu_isa_name(*isa)) == 0) break;
    if (*isa > FH_ISA_AMX)
      return fh_fail(FH_ERR_ARGUMENT, "FEWHEAD_ISA: got %s, wanted generic, avx2, avx512, avx512_bf16 or amx",
                     fh_quote(text, quoted));
  }
  if (*isa == FH_ISA_BEST) *isa = fhk_cpu_fastest_isa();
  const char *missing = fhk_cpu_isa_missing(*isa, 1);
  if (missing)
    return fh_fail(FH_ERR_DEVICE, "%s: got %s, wanted one that works here, up to %s: %s", source,
                   fhk_cpu_isa_name(*isa), fhk_cpu_isa_name(fhk_cpu_best_isa()), missing);
  return FH_OK;
}

static void describe(fh_device_info *info) {
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

static int32_t count(void) { return 1; }

static fh_status open_cpu(fh_device *device, const char *name, int64_t ordinal, const fh_device_options *options) {
  int32_t threads = 0, isa = 0;
  fh_status status;
  (void)name, (void)ordinal;
  if ((status = choose_threads(options->threads, &threads)) || (status = choose_isa(options->isa, &isa))) return status;
  device->state = fhk_cpu_create(threads, isa);
  if (!device->state)
    return fh_fail(FH_ERR_MEMORY, "options.threads: got %d, and the system refused memory or threads for them",
                   (int)threads);
  device->info.threads = threads;
  device->info.isa = isa;
  describe(&device->info);
  return FH_OK;
}

static void close_cpu(fh_device *device) { fhk_cpu_destroy(fh_cpu(device)); }

/* A CPU does all work before a function returns. */
static fh_status synchronize(fh_device *device) {
  (void)device;
  return FH_OK;
}

/* ---- Timers ------------------------------------------------------------------------------------------------------ */

static fh_status moment_create(fh_device *device, fh_moment *moment) {
  (void)device, (void)moment;
  return FH_OK;
}

static void moment_destroy(fh_device *device, fh_moment *moment) { (void)device, (void)moment; }

static fh_status moment_mark(fh_device *device, fh_moment *moment, void *stream) {
  (void)device, (void)stream;
  moment->ns = fh_time_ns();
  return FH_OK;
}

static fh_status moment_between(fh_device *device, const fh_moment *start, const fh_moment *stop, double *us) {
  (void)device;
  *us = (double)(stop->ns - start->ns) * 1e-3;
  return FH_OK;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static int offers(const fh_device *device, int32_t path, int32_t h_q, char why[FH_WHY]) {
  (void)h_q;
  if (path == FH_AUTO || fhk_cpu_has_path(device->info.isa, path)) return 1;
  snprintf(why, FH_WHY, "no kernel computes it");
  return 0;
}

static int has_path(int32_t path) { return path == FH_AUTO || fhk_cpu_has_path(FH_ISA_AMX, path); }

static uint64_t workspace_bytes(const fh_device *device, const fh_call *call) {
  return fhk_cpu_workspace_bytes(fh_cpu(device), call);
}

enum { COUNT_ROWS = 64 }; /* rows that one turn of a thread counts: long enough to be worth the turn */

typedef struct counting {
  const fh_call *call;
  _Atomic int64_t keys;
} counting;

static void count_rows(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  counting *c = arg;
  const fh_call *call = c->call;
  const int64_t first = item * COUNT_ROWS, end = call->s_q - first < COUNT_ROWS ? call->s_q : first + COUNT_ROWS;
  int64_t keys = 0;
  for (int64_t s = first; s < end; s++) {
    const int32_t *list = call->indices + s * call->indices_stride;
    int64_t length = call->topk_length ? call->topk_length[s] : call->topk;
    if (length > call->topk) length = call->topk;
    for (int64_t j = 0; j < length; j++) keys += (uint32_t)list[j] < (uint32_t)call->s_kv;
  }
  atomic_fetch_add(&c->keys, keys);
}

static int64_t count_keys(const fh_device *device, const fh_call *call) {
  counting c = {.call = call};
  fhk_cpu_parallel(fh_cpu(device), (call->s_q - 1) / COUNT_ROWS + 1, count_rows, &c);
  return c.keys;
}

static void name_kernel(const fh_device *device, int32_t path, fh_counters *counters) {
  char name[sizeof counters->kernel];
  fhk_cpu_kernel_name(device->info.isa, path, name, sizeof name);
  fh_name_kernel(counters, name);
}

static fh_status run(fh_device *device, const fh_call *call, fh_counters *counters) {
  fhk_cpu_run(fh_cpu(device), call, counters);
  name_kernel(device, call->path, counters);
  return FH_OK;
}

static fh_status run_parts(fh_device *device, const fh_call *call, int32_t rows, fh_counters *counters) {
  fhk_cpu_run_parts(fh_cpu(device), call, rows, counters);
  name_kernel(device, FH_PACKED, counters);
  name_kernel(device, rows, counters);
  return FH_OK;
}

static const char *costs_of(const fh_device *device, const fh_call *call, fh_costs *costs) {
  return fhk_cpu_costs(fh_cpu(device), call, costs);
}

static uint64_t plan_bytes(const fh_device *device, const fh_call *call) {
  return fhk_cpu_plan_bytes(fh_cpu(device), call);
}

static fh_status plan_build(fh_device *device, const fh_call *call, int32_t complete, void *memory, fh_plan *plan) {
  (void)complete; /* a list costs little beside its union */
  fhk_cpu_plan_build(fh_cpu(device), call, memory, plan);
  return FH_OK;
}

const fh_back_end fh_cpu_back_end = {
    .called = "a CPU",
    .kind = FH_DEVICE_CPU,
    .count = count,
    .open = open_cpu,
    .close = close_cpu,
    .synchronize = synchronize,
    .alloc = fh_cpu_alloc,
    .release = fh_cpu_release,
    .write = fh_cpu_write,
    .read = fh_cpu_read,
    .fill = fh_cpu_fill,
    .evict = fh_cpu_evict,
    .view_fill = fh_cpu_view_fill,
    .view_random = fh_cpu_view_random,
    .view_write = fh_cpu_view_write,
    .view_read = fh_cpu_view_read,
    .view_copy = fh_cpu_view_copy,
    .moment_create = moment_create,
    .moment_destroy = moment_destroy,
    .moment_mark = moment_mark,
    .moment_between = moment_between,
    .has_path = has_path,
    .offers = offers,
    .sees_lists = 1,
    .workspace_bytes = workspace_bytes,
    .count_keys = count_keys,
    .run = run,
    .run_parts = run_parts,
    .costs = costs_of,
    .plan_bytes = plan_bytes,
    .plan_build = plan_build,
};
