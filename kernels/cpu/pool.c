/*
 * The pool of threads behind a CPU device, and the instruction sets it may use.
 *
 * Items are dealt one at a time from a shared counter, so a thread that is slow or was descheduled holds up one item,
 * not a share. The thread that calls works too, as number 0. Nothing here depends on which thread took which item, and
 * no kernel does either: results are the same for every number of threads.
 *
 * A fork copies a pool's memory but none of its threads, and a lock that another thread held stays locked in the copy.
 * So the child renews every pool before fork returns there: locks as new, no worker. The first run in the child starts
 * workers again; if the system refuses, the run goes on with the threads that exist.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "cpu/amx.h"
#include "cpu/tile.h"

typedef struct worker {
  fhk_cpu *cpu;
  pthread_t handle;
  int32_t number;
} worker;

struct fhk_cpu {
  int32_t threads, isa;
  fhk_cpu *previous, *next_pool; /* in the list of all pools, guarded by pools_lock */
  pthread_mutex_t turn;          /* held for the length of a run: callers take turns; guards `started` too */
  int32_t started;               /* workers that run */
  pthread_mutex_t lock;          /* guards what follows up to `next` */
  pthread_cond_t start, done;
  uint64_t run;   /* counts runs; a worker that sees a new number has work, if the run is still open */
  int32_t open;   /* 0 once the caller has found no item left: nobody waits for a worker that comes later */
  int32_t inside; /* workers that take part in the run */
  int32_t stop;
  void (*fn)(void *arg, int64_t item, int32_t thread);
  void *arg;
  int64_t items;
  _Atomic int64_t next;
  worker workers[]; /* threads - 1 */
};

/* The best set that needs nothing but the CPU: all but amx. */
static int32_t best_without_asking(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return FH_ISA_AVX512_BF16;
  if (avx512) return FH_ISA_AVX512;
  if (avx2) return FH_ISA_AVX2;
#endif
  return FH_ISA_GENERIC;
}

const char *fhk_cpu_isa_missing(int32_t isa, int32_t ask) {
  if (isa == FH_ISA_AMX) {
    if (best_without_asking() < FH_ISA_AVX512_BF16) return "the CPU has no avx512_bf16, which amx includes";
    return ask ? fhk_amx_missing() : fhk_amx_known_missing();
  }
  return isa <= best_without_asking() ? NULL : "the CPU has no such instructions";
}

int32_t fhk_cpu_best_isa(void) { return fhk_cpu_isa_missing(FH_ISA_AMX, 1) ? best_without_asking() : FH_ISA_AMX; }

static pthread_once_t fastest_once = PTHREAD_ONCE_INIT;
static int32_t fastest;

static void find_fastest(void) {
  fastest = fhk_cpu_best_isa();
  if (fastest == FH_ISA_AMX && !fhk_amx_pays()) fastest = FH_ISA_AVX512_BF16;
#if defined(__x86_64__)
  if (fastest == FH_ISA_AVX512_BF16 && !fhk_tile_dot_pays()) fastest = FH_ISA_AVX512;
#endif
}

int32_t fhk_cpu_fastest_isa(void) {
  pthread_once(&fastest_once, find_fastest);
  return fastest;
}

const char *fhk_cpu_isa_name(int32_t isa) {
  static const char *const names[] = {NULL, "generic", "avx2", "avx512", "avx512_bf16", "amx"};
  return isa >= 0 && isa < (int32_t)(sizeof names / sizeof *names) ? names[isa] : NULL;
}

int32_t fhk_cpu_threads(const fhk_cpu *cpu) { return cpu->threads; }
int32_t fhk_cpu_isa(const fhk_cpu *cpu) { return cpu->isa; }

static void work_on(fhk_cpu *cpu, int32_t thread) {
  for (;;) {
    const int64_t item = atomic_fetch_add_explicit(&cpu->next, 1, memory_order_relaxed);
    if (item >= cpu->items) return;
    cpu->fn(cpu->arg, item, thread);
  }
}

static void *worker_main(void *arg) {
  worker *self = arg;
  fhk_cpu *cpu = self->cpu;
  uint64_t seen = 0;
  pthread_mutex_lock(&cpu->lock);
  for (;;) {
    while (!cpu->stop && cpu->run == seen) pthread_cond_wait(&cpu->start, &cpu->lock);
    if (cpu->stop) break;
    seen = cpu->run;
    if (!cpu->open) continue;
    cpu->inside++;
    pthread_mutex_unlock(&cpu->lock);
    work_on(cpu, self->number);
    pthread_mutex_lock(&cpu->lock);
    if (--cpu->inside == 0) pthread_cond_signal(&cpu->done);
  }
  pthread_mutex_unlock(&cpu->lock);
  return NULL;
}

/* ---- Fork -------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static fhk_cpu *pools;

static void make_locks(fhk_cpu *cpu) {
  pthread_mutex_init(&cpu->turn, NULL);
  pthread_mutex_init(&cpu->lock, NULL);
  pthread_cond_init(&cpu->start, NULL);
  pthread_cond_init(&cpu->done, NULL);
}

/* The list must be whole in the child. */
static void before_fork(void) { pthread_mutex_lock(&pools_lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&pools_lock); }

/* Runs in the child's only thread. What the locks held is overwritten: nobody in this process can unlock or wake
 * anything. */
static void after_fork_in_child(void) {
  for (fhk_cpu *cpu = pools; cpu; cpu = cpu->next_pool) {
    make_locks(cpu);
    cpu->started = cpu->open = cpu->inside = 0;
  }
  pthread_mutex_unlock(&pools_lock);
}

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int fork_watched;
static void watch_fork(void) { fork_watched = !pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

static void enlist(fhk_cpu *cpu) {
  pthread_mutex_lock(&pools_lock);
  cpu->next_pool = pools;
  if (pools) pools->previous = cpu;
  pools = cpu;
  pthread_mutex_unlock(&pools_lock);
}

static void delist(fhk_cpu *cpu) {
  pthread_mutex_lock(&pools_lock);
  if (cpu->next_pool) cpu->next_pool->previous = cpu->previous;
  if (cpu->previous) cpu->previous->next_pool = cpu->next_pool;
  else pools = cpu->next_pool;
  pthread_mutex_unlock(&pools_lock);
}

/* ---- Making and ending ------------------------------------------------------------------------------------------- */

/* Starts the workers that are missing, as many as the system grants. Workers take no signals: a program's handlers
 * run on its own threads, as they would without this library. */
static void start_workers(fhk_cpu *cpu) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  for (; cpu->started < cpu->threads - 1; cpu->started++) {
    worker *w = &cpu->workers[cpu->started];
    w->cpu = cpu;
    w->number = cpu->started + 1;
    if (pthread_create(&w->handle, NULL, worker_main, w)) break;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fhk_cpu_destroy(fhk_cpu *cpu) {
  if (!cpu) return;
  delist(cpu);
  pthread_mutex_lock(&cpu->lock);
  cpu->stop = 1;
  pthread_cond_broadcast(&cpu->start);
  pthread_mutex_unlock(&cpu->lock);
  for (int32_t i = 0; i < cpu->started; i++) pthread_join(cpu->workers[i].handle, NULL);
  pthread_cond_destroy(&cpu->start);
  pthread_cond_destroy(&cpu->done);
  pthread_mutex_destroy(&cpu->lock);
  pthread_mutex_destroy(&cpu->turn);
  free(cpu);
}

fhk_cpu *fhk_cpu_create(int32_t threads, int32_t isa) {
  pthread_once(&fork_once, watch_fork);
  if (!fork_watched) return NULL;
  fhk_cpu *cpu = calloc(1, sizeof *cpu + (size_t)(threads - 1) * sizeof cpu->workers[0]);
  if (!cpu) return NULL;
  cpu->threads = threads;
  cpu->isa = isa;
  make_locks(cpu);
  enlist(cpu);
  start_workers(cpu);
  if (cpu->started == threads - 1) return cpu;
  fhk_cpu_destroy(cpu);
  return NULL;
}

void fhk_cpu_parallel(fhk_cpu *cpu, int64_t items, void (*fn)(void *arg, int64_t item, int32_t thread), void *arg) {
  if (items <= 0) return;
  pthread_mutex_lock(&cpu->turn);
  if (cpu->threads == 1 || items == 1) { /* waking the others would cost more than it brings */
    for (int64_t item = 0; item < items; item++) fn(arg, item, 0);
    pthread_mutex_unlock(&cpu->turn);
    return;
  }
  if (cpu->started < cpu->threads - 1) start_workers(cpu); /* in a forked child */
  pthread_mutex_lock(&cpu->lock);
  cpu->fn = fn;
  cpu->arg = arg;
  cpu->items = items;
  atomic_store_explicit(&cpu->next, 0, memory_order_relaxed);
  cpu->open = 1;
  cpu->run++;
  pthread_cond_broadcast(&cpu->start);
  pthread_mutex_unlock(&cpu->lock);
  work_on(cpu, 0);
  pthread_mutex_lock(&cpu->lock);
  cpu->open = 0;
  while (cpu->inside) pthread_cond_wait(&cpu->done, &cpu->lock);
  pthread_mutex_unlock(&cpu->lock);
  pthread_mutex_unlock(&cpu->turn);
}
