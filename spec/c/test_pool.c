/* The pool: every item once, whatever the number of threads and callers. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "check.h"
#include "cpu/cpu.h"

enum { ITEMS = 1000, MOST_THREADS = 8 };

typedef struct tally {
  _Atomic int seen[ITEMS];
  _Atomic int inside[MOST_THREADS]; /* items that run on this thread number right now */
  _Atomic int clashes, strangers;
  _Atomic int together, most_together;
  int32_t threads;
} tally;

static void count_item(void *arg, int64_t item, int32_t thread) {
  tally *t = arg;
  if (thread < 0 || thread >= t->threads) {
    t->strangers++;
    return;
  }
  if (t->inside[thread]++) t->clashes++;
  const int now = ++t->together;
  if (now > t->most_together) t->most_together = now;
  t->seen[item]++;
  t->together--;
  t->inside[thread]--;
}

static void check_counts(tally *t, int64_t items, int rounds) {
  int wrong = 0;
  for (int64_t i = 0; i < ITEMS; i++) wrong += t->seen[i] != (i < items ? rounds : 0);
  CHECK_INT(wrong, 0);
  CHECK_INT(t->clashes, 0);
  CHECK_INT(t->strangers, 0);
  CHECK(t->most_together <= t->threads);
}

static void check_items(void) {
  for (int32_t threads = 1; threads <= MOST_THREADS; threads++) {
    fhk_cpu *cpu = fhk_cpu_create(threads, FH_ISA_GENERIC);
    CHECK(cpu != NULL);
    static const int64_t items[] = {0, 1, 2, 3, 7, 8, 9, ITEMS};
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
      static tally t;
      memset(&t, 0, sizeof t);
      t.threads = threads;
      for (int round = 0; round < 3; round++) fhk_cpu_parallel(cpu, items[i], count_item, &t);
      check_counts(&t, items[i], 3);
    }
    fhk_cpu_destroy(cpu);
  }
  fhk_cpu_destroy(NULL);
}

typedef struct caller {
  fhk_cpu *cpu;
  tally *t;
} caller;
static void *call_often(void *arg) {
  caller *c = arg;
  for (int round = 0; round < 20; round++) fhk_cpu_parallel(c->cpu, ITEMS, count_item, c->t);
  return NULL;
}

/* Several callers take turns, so even together no two items run on one thread number at once. */
static void check_callers(void) {
  fhk_cpu *cpu = fhk_cpu_create(3, FH_ISA_GENERIC);
  static tally t;
  memset(&t, 0, sizeof t);
  t.threads = 3;
  caller c = {cpu, &t};
  pthread_t callers[4];
  for (int i = 0; i < 4; i++) CHECK_INT(pthread_create(&callers[i], NULL, call_often, &c), 0);
  for (int i = 0; i < 4; i++) pthread_join(callers[i], NULL);
  check_counts(&t, ITEMS, 80);
  fhk_cpu_destroy(cpu);
}

/* Signals go to the program's own threads: a worker has every one blocked. */
static _Atomic int unblocked;
static void look_at_mask(void *arg, int64_t item, int32_t thread) {
  (void)arg, (void)item;
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  if (thread > 0 && (!sigismember(&mask, SIGINT) || !sigismember(&mask, SIGTERM))) unblocked++;
}
static void check_signals(void) {
  fhk_cpu *cpu = fhk_cpu_create(4, FH_ISA_GENERIC);
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  CHECK(!sigismember(&mask, SIGINT)); /* the caller's own mask is as before */
  fhk_cpu_parallel(cpu, 500, look_at_mask, NULL);
  CHECK_INT(unblocked, 0);
  fhk_cpu_destroy(cpu);
}

static void check_isa(void) {
  CHECK_STR(fhk_cpu_isa_name(FH_ISA_GENERIC), "generic");
  CHECK_STR(fhk_cpu_isa_name(FH_ISA_AVX2), "avx2");
  CHECK_STR(fhk_cpu_isa_name(FH_ISA_AVX512), "avx512");
  CHECK_STR(fhk_cpu_isa_name(FH_ISA_AVX512_BF16), "avx512_bf16");
  CHECK_STR(fhk_cpu_isa_name(FH_ISA_AMX), "amx");
  CHECK(fhk_cpu_isa_name(FH_ISA_BEST) == NULL && fhk_cpu_isa_name(6) == NULL && fhk_cpu_isa_name(-1) == NULL);
  const int32_t best = fhk_cpu_best_isa(), fastest = fhk_cpu_fastest_isa();
  CHECK(best >= FH_ISA_GENERIC && best <= FH_ISA_AMX);
  CHECK(fastest >= FH_ISA_GENERIC && fastest <= best);
  CHECK(fastest == best || best >= FH_ISA_AVX512_BF16); /* only tiles and dot products are ever passed over */
  for (int32_t isa = FH_ISA_GENERIC; isa <= FH_ISA_AMX; isa++)
    CHECK_INT(fhk_cpu_isa_missing(isa, 0) == NULL, isa <= best);
  CHECK_INT(fhk_cpu_fastest_isa(), fastest);
}

int main(void) {
  check_items();
  check_callers();
  check_signals();
  check_isa();
  return check_summary();
}
