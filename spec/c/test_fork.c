/* A forked child: a CPU device opened before the fork works there and can be closed, whatever the parent's threads
 * were doing. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "cpu/cpu.h"
#include "fewhead.h"

enum { ROWS = 64, S_KV = 8, TOPK = 2, LIMIT_S = 60 };

static uint16_t q[ROWS * 512], kv[S_KV * 512], out[ROWS * 512];
static int32_t indices[ROWS * TOPK];

/* q = 0 and KV row j equal to j: each row is the mean of the rows it lists, 3 and 5, which is 4 (bf16 0x4080). */
static int four_everywhere(fh_device *device, int32_t path) {
  fh_call call;
  fh_call_init(&call, sizeof call, ROWS, S_KV, 1, 512, TOPK);
  call.path = path;
  call.q = q;
  call.kv = kv;
  call.indices = indices;
  call.out = out;
  memset(out, 0xff, sizeof out);
  uint64_t bytes = 0;
  if (fh_workspace_bytes(device, &call, &bytes)) return 0;
  void *workspace = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
  call.workspace = workspace;
  call.workspace_bytes = bytes;
  const fh_status status = fh_sparse_fwd(device, &call);
  free(workspace);
  for (int i = 0; i < ROWS * 512; i++)
    if (status || out[i] != 0x4080) return 0;
  return 1;
}

static int all_paths(fh_device *device) {
  return four_everywhere(device, FH_PADDED) && four_everywhere(device, FH_GATHER) && four_everywhere(device, FH_PACKED);
}

static fh_device *open_device(int32_t threads) {
  const fh_device_options options = {.struct_size = sizeof options, .threads = threads};
  fh_device *device = NULL;
  CHECK_INT(fh_device_open("cpu", &options, &device), FH_OK);
  return device;
}

/* AddressSanitizer holds locks of its own while a thread starts and while it looks for leaks; a child that is forked
 * then, or looks for leaks itself, may hang. So threads have started before a fork, and a child looks for no leaks. */
static int is_child;
#ifdef __SANITIZE_ADDRESS__
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return is_child; }
static void let_threads_start(void) { usleep(200000); }
#else
static void let_threads_start(void) {}
#endif

static int only_exits(fh_device *device) { return device != NULL; }

/* How a child ended that ran what(device) and left with its answer: its status, or less the signal; -14: it hung. */
static int in_child(fh_device *device, int (*what)(fh_device *)) {
  const pid_t child = fork();
  if (child == 0) {
    is_child = 1;
    alarm(LIMIT_S); /* a hang ends as a signal */
    const int answer = what(device) ? 42 : 1;
    if (what == only_exits) exit(answer);
    _exit(answer);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int closes(fh_device *device) {
  fh_device_close(&device);
  return device == NULL;
}
static int calls(fh_device *device) { return all_paths(device) && closes(device); }
static int opens_another(fh_device *device) {
  (void)device;
  fh_device *own = open_device(3);
  return all_paths(own) && closes(own);
}
static int forks_again(fh_device *device) { return in_child(device, calls) == 42 && calls(device); }

static void each(fh_device *device) {
  CHECK_INT(in_child(device, closes), 42);
  CHECK_INT(in_child(device, only_exits), 42);
  CHECK_INT(in_child(device, calls), 42);
  CHECK_INT(in_child(device, opens_another), 42);
  CHECK_INT(in_child(device, forks_again), 42);
}

/* A thread of the parent that runs calls without end holds the pool's locks at most moments of a fork. */
static _Atomic int busy_end, busy_wrong;
static void nap(void *arg, int64_t item, int32_t thread) {
  (void)arg, (void)item, (void)thread;
  usleep(20);
}
static void *busy(void *cpu) {
  while (!busy_end) fhk_cpu_parallel(cpu, 16, nap, NULL);
  return NULL;
}
static void note(void *arg, int64_t item, int32_t thread) {
  (void)thread;
  ((_Atomic int *)arg)[item]++;
}
static int child_of_busy(fhk_cpu *cpu) {
  _Atomic int seen[100] = {0};
  fhk_cpu_parallel(cpu, 100, note, seen);
  for (int i = 0; i < 100; i++)
    if (seen[i] != 1) return 1;
  fhk_cpu_destroy(cpu);
  return 42;
}
static void fork_while_busy(void) {
  fhk_cpu *cpu = fhk_cpu_create(3, FH_ISA_GENERIC);
  pthread_t thread;
  CHECK_INT(pthread_create(&thread, NULL, busy, cpu), 0);
  let_threads_start();
  for (int i = 0; i < 30; i++) {
    usleep(100);
    const pid_t child = fork();
    if (child == 0) {
      alarm(LIMIT_S);
      _exit(child_of_busy(cpu));
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    busy_wrong += !(WIFEXITED(status) && WEXITSTATUS(status) == 42);
  }
  CHECK_INT(busy_wrong, 0);
  busy_end = 1;
  pthread_join(thread, NULL);
  fhk_cpu_destroy(cpu);
}

int main(void) {
  for (int i = 0; i < ROWS; i++) indices[2 * i] = 3, indices[2 * i + 1] = 5;
  static const uint16_t bf16[S_KV] = {0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
  for (int i = 0; i < S_KV * 512; i++) kv[i] = bf16[i / 512];
  for (int32_t threads = 1; threads <= 4; threads++) {
    fh_device *device = open_device(threads);
    let_threads_start();
    each(device); /* workers that have never run */
    CHECK(all_paths(device));
    usleep(20000);
    each(device);             /* workers that wait for the next run */
    CHECK(all_paths(device)); /* the parent goes on */
    fh_device_close(&device);
  }
  CHECK_INT(in_child(NULL, opens_another), 42); /* loaded before the fork, opened after it */
  fork_while_busy();
  return check_summary();
}
