/* The instruction set amx: who may use it, what it leaves behind, and its numbers. What all instruction sets share
 * is tested with the paths. What needs the tile unit is left out, and said to be, where this machine has none. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attention.h"
#include "cpu/amx.h"
#include "refuse.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- Detection --------------------------------------------------------------------------------------------------- */

static void readings(void) {
  const fhk_amx_readings good = {1u << 22 | 1u << 24, 1, 8u << 16 | 64, 16, 0x602e7};
  CHECK(fhk_amx_lacks(&good) == NULL);
  fhk_amx_readings r = good;
  r.leaf_7_edx = 1u << 22;
  CHECK_STR(fhk_amx_lacks(&r), "the CPU has no AMX tiles (AMX-TILE)");
  r.leaf_7_edx = 1u << 24;
  CHECK_STR(fhk_amx_lacks(&r), "the CPU's AMX has no bf16 products (AMX-BF16)");
  static const uint64_t states[] = {0, 0x2e7, 0x2e7 | 1u << 17, 0x2e7 | 1u << 18};
  for (int i = 0; i < 4; i++) {
    r = good;
    r.xcr0 = states[i];
    CHECK_STR(fhk_amx_lacks(&r), "the operating system does not save AMX tiles (XCR0 bits 17 and 18)");
  }
  static const uint32_t palettes[][3] = {
      {0, 8u << 16 | 64, 16}, {1, 4u << 16 | 64, 16}, {1, 8u << 16 | 32, 16}, {1, 8u << 16 | 64, 8}, {1, 0, 0}};
  for (int i = 0; i < 5; i++) {
    r = good;
    r.leaf_1d_eax = palettes[i][0];
    r.leaf_1d_1_ebx = palettes[i][1];
    r.leaf_1d_1_ecx_rows = palettes[i][2];
    CHECK_STR(fhk_amx_lacks(&r), "the CPU offers no AMX tiles of 16 rows of 64 bytes (palette 1 of CPUID leaf 0x1D)");
  }
  r = (fhk_amx_readings){0, 0, 0, 0, 0};
  CHECK_STR(fhk_amx_lacks(&r), "the CPU has no AMX tiles (AMX-TILE)");
}

static void refusals(void) {
  CHECK(fhk_amx_refused(0) == NULL);
  CHECK_STR(fhk_amx_refused(EINVAL), "the kernel knows no permission for AMX tiles (arch_prctl: EINVAL)");
  CHECK_STR(fhk_amx_refused(EPERM), "this process may not ask the kernel for AMX tiles (arch_prctl: EPERM)");
  CHECK_STR(fhk_amx_refused(ENOSYS), "the kernel has no call to ask for AMX tiles (arch_prctl: ENOSYS)");
  CHECK_STR(fhk_amx_refused(ENOSPC),
            "a thread's alternate signal stack is too small for AMX tiles (arch_prctl: ENOSPC)");
  CHECK_STR(fhk_amx_refused(EBADF), "the kernel refuses AMX tiles (arch_prctl)");
}

/* ---- Processes that are not let, each a child, since a process asks once ----------------------------------------- */

enum { REQUEST_PERMISSION = 0x1023 };

/* From now on the request for the permission has the effect `action`, a SECCOMP_RET_. */
static int filter_request(uint32_t action) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, REQUEST_PERMISSION, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, action),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Runs `body` in a child; its checks count here. */
static void in_child(void (*body)(void), const char *what) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    check_passed = check_failed = 0;
    body();
    fflush(stdout);
    _exit(check_failed || !check_passed);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  if (!CHECK(status == 0)) printf("    in the child: %s\n", what);
}

static int32_t isa_of(fh_device *device) {
  fh_device_info info = {.struct_size = sizeof info};
  CHECK_INT(fh_device_get_info(device, &info), FH_OK);
  return info.isa;
}

/* The best there is does without, and amx by name is refused with `reason`. */
static void expect_without(const char *reason) {
  fh_device *device = open_cpu(1);
  CHECK(isa_of(device) >= FH_ISA_AVX512 && isa_of(device) <= FH_ISA_AVX512_BF16);
  fh_device_close(&device);
  CHECK_INT(fhk_cpu_best_isa(), FH_ISA_AVX512_BF16);
  CHECK_STR(fhk_amx_known_missing(), reason);
  setenv("FEWHEAD_ISA", "amx", 1);
  REFUSED(fh_device_open("cpu", NULL, &device), FH_ERR_DEVICE,
          text_of("FEWHEAD_ISA: got amx, wanted one that works here, up to avx512_bf16: %s", reason));
  CHECK(device == NULL);
  unsetenv("FEWHEAD_ISA");
  const fh_device_options options = {.struct_size = sizeof options, .isa = FH_ISA_AMX};
  REFUSED(fh_device_open("cpu", &options, &device), FH_ERR_DEVICE,
          text_of("options.isa: got amx, wanted one that works here, up to avx512_bf16: %s", reason));
}

static void forbidden(void) {
  CHECK_INT(filter_request(SECCOMP_RET_ERRNO | EPERM), 0);
  expect_without("this process may not ask the kernel for AMX tiles (arch_prctl: EPERM)");
}

/* A filter that says yes without asking. */
static void pretended(void) {
  CHECK_INT(filter_request(SECCOMP_RET_ERRNO | 0), 0);
  expect_without("this process may not ask the kernel for AMX tiles (arch_prctl: EPERM)");
}

static void not_known(void) {
  CHECK_INT(filter_request(SECCOMP_RET_ERRNO | ENOSYS), 0);
  expect_without("the kernel has no call to ask for AMX tiles (arch_prctl: ENOSYS)");
}

/* Other instruction sets do not ask: asking would end this process. */
static void others_do_not_ask(void) {
  CHECK_INT(filter_request(SECCOMP_RET_KILL_PROCESS), 0);
  for (int32_t isa = FH_ISA_GENERIC; isa <= FH_ISA_AVX512_BF16; isa++) {
    fh_device *device = NULL;
    const fh_device_options options = {.struct_size = sizeof options, .isa = isa};
    CHECK_INT(fh_device_open("cpu", &options, &device), FH_OK);
    fh_device_close(&device);
  }
  setenv("FEWHEAD_ISA", "generic", 1);
  fh_device *device = open_cpu(1);
  CHECK_INT(isa_of(device), FH_ISA_GENERIC);
  fh_device_close(&device);
  CHECK(fhk_amx_known_missing() == NULL);
}

static volatile sig_atomic_t requests;
static void count_request(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  requests++;
#if defined(__x86_64__)
  ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
#endif
}

/* One request a process, however often devices are opened. */
static void asks_once(void) {
  struct sigaction action = {.sa_sigaction = count_request, .sa_flags = SA_SIGINFO};
  CHECK_INT(sigaction(SIGSYS, &action, NULL), 0);
  CHECK_INT(filter_request(SECCOMP_RET_TRAP), 0);
  for (int i = 0; i < 3; i++) {
    fh_device *device = open_cpu(1);
    fh_device_close(&device);
    const fh_device_options options = {.struct_size = sizeof options, .isa = FH_ISA_AMX};
    fh_device_open("cpu", &options, &device);
    fh_device_close(&device);
    CHECK_INT(requests, 1);
  }
}

static pthread_barrier_t ready, done;
static char small_stack[2048];
static void *hold_small_stack(void *arg) {
  int *error = arg;
  const stack_t stack = {.ss_sp = small_stack, .ss_size = sizeof small_stack};
  stack_t before; /* the address sanitizer's, which takes it back when the thread ends */
  *error = sigaltstack(&stack, &before) ? errno : 0;
  pthread_barrier_wait(&ready);
  pthread_barrier_wait(&done);
  sigaltstack(&before, NULL);
  return NULL;
}

/* Python -X faulthandler and others set one. */
static void small_signal_stack(void) {
  pthread_t thread;
  int error = -1;
  pthread_barrier_init(&ready, NULL, 2);
  pthread_barrier_init(&done, NULL, 2);
  pthread_create(&thread, NULL, hold_small_stack, &error);
  pthread_barrier_wait(&ready);
  if (CHECK(error == 0))
    expect_without("a thread's alternate signal stack is too small for AMX tiles (arch_prctl: ENOSPC)");
  pthread_barrier_wait(&done);
  pthread_join(thread, NULL);
}

/* The other way round: once the permission is there, the kernel refuses stacks that tile state does not fit on. */
static void small_signal_stack_later(void) {
  const fh_device_options options = {.struct_size = sizeof options, .isa = FH_ISA_AMX};
  fh_device *device = NULL;
  CHECK_INT(fh_device_open("cpu", &options, &device), FH_OK);
  const stack_t stack = {.ss_sp = small_stack, .ss_size = sizeof small_stack};
  CHECK(sigaltstack(&stack, NULL) != 0 && errno == ENOMEM);
  fh_device_close(&device);
}

/* ---- What stays as it was ---------------------------------------------------------------------------------------- */

static fhk_cpu *must_create(int32_t threads, int32_t isa) {
  fhk_cpu *cpu = fhk_cpu_create(threads, isa);
  if (!CHECK(cpu != NULL)) exit(check_summary());
  return cpu;
}

static int same(const attention *a, const result *x, const result *y) {
  const uint64_t rows = (uint64_t)a->call.s_q * (uint64_t)a->call.h_q;
  return memcmp(x->out, y->out, rows * 512 * 4) == 0 && memcmp(x->lse, y->lse, rows * 4) == 0 &&
         memcmp(x->max_logits, y->max_logits, rows * 4) == 0;
}

static attention some_case(void) { return make_attention(12, 400, 8, 512, 300, LENGTHS | HOLES | REPEATS | SINK, 21); }

/* Denormals flushed and sums rounded upwards: the settings are there after a call, and their flags have nothing new
 * of the tile unit's. One thread, the caller's. */
static void settings_stay(void) {
#if defined(__x86_64__)
  fhk_cpu *cpu = must_create(1, FH_ISA_AMX);
  attention a = some_case();
  const unsigned before = _mm_getcsr(), set = (before & ~0x603fu) | 0x8040u | 0x4000u;
  for (int32_t path = FH_PADDED; path <= FH_PACKED; path++) {
    _mm_setcsr(set);
    run_path(&a, cpu, path);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK_INT(after & ~0x3fu, set & ~0x3fu);
  }
  free_attention(&a);
  fhk_cpu_destroy(cpu);
#endif
}

static result expected;
#if defined(__SANITIZE_THREAD__)
enum { CHILD_THREADS = 1 }; /* the thread sanitizer starts none in a child of a process that had some */
#else
enum { CHILD_THREADS = 2 };
#endif
static void run_in_child(void) {
  fhk_cpu *cpu = must_create(CHILD_THREADS, FH_ISA_AMX);
  attention a = some_case();
  run_path(&a, cpu, FH_PACKED);
  result got = take_result(&a);
  CHECK(same(&a, &got, &expected));
  free_result(&got);
  free_attention(&a);
  fhk_cpu_destroy(cpu);
}

static volatile sig_atomic_t alarms;
static void count_alarm(int number) { (void)number, alarms++; }

typedef struct runner {
  pthread_t thread;
  int good;
} runner;
static void *run_often(void *arg) {
  runner *r = arg;
  fhk_cpu *cpu = fhk_cpu_create(2, FH_ISA_AMX);
  attention a = some_case();
  r->good = cpu != NULL;
  for (int i = 0; i < 5 && cpu; i++) {
    run_path(&a, cpu, FH_PACKED);
    result got = take_result(&a);
    r->good &= same(&a, &got, &expected);
    free_result(&got);
  }
  free_attention(&a);
  fhk_cpu_destroy(cpu);
  return NULL;
}

/* A child of fork, a handler that interrupts tiles at work, several callers: the same bits. */
static void surroundings(void) {
  fhk_cpu *cpu = must_create(2, FH_ISA_AMX);
  attention a = some_case();
  run_path(&a, cpu, FH_PACKED);
  expected = take_result(&a);
  in_child(run_in_child, "a child of a process that has used tiles");

  struct sigaction action = {.sa_handler = count_alarm, .sa_flags = SA_RESTART}, old;
  sigaction(SIGALRM, &action, &old);
  const struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  for (int i = 0; i < 1000 && (i < 20 || alarms < 10); i++) {
    run_path(&a, cpu, FH_PACKED);
    result got = take_result(&a);
    if (!same(&a, &got, &expected)) FAILED("bits after a signal");
    free_result(&got);
  }
  setitimer(ITIMER_REAL, &never, NULL);
  sigaction(SIGALRM, &old, NULL);
  CHECK(alarms >= 10);

  runner runners[4] = {{0}};
  for (int i = 0; i < 4; i++) CHECK_INT(pthread_create(&runners[i].thread, NULL, run_often, &runners[i]), 0);
  for (int i = 0; i < 4; i++) {
    pthread_join(runners[i].thread, NULL);
    CHECK(runners[i].good);
  }
  free_result(&expected);
  free_attention(&a);
  fhk_cpu_destroy(cpu);
}

/* ---- Numbers, beside the other instruction sets ------------------------------------------------------------------ */

static void fill_bf16(uint16_t *to, int64_t n, float value) {
  for (int64_t i = 0; i < n; i++) to[i] = fh_bf16(value);
}

static void fill_bits(uint16_t *to, int64_t n, uint16_t bits) {
  for (int64_t i = 0; i < n; i++) to[i] = bits;
}

static const float BF16_STEP = 1.0f / 128; /* between 1 and 2; below 1 half of it */

/* Values of 1 under 640 random logits are 1 within a step, and 2048 equal logits give the mean. */
static void means(fhk_cpu *cpu, int32_t path, int32_t h_q) {
  attention a = make_attention(3, 2048, h_q, 576, 640, 0, 31);
  for (int64_t t = 0; t < a.call.s_kv; t++) fill_bf16(a.kv + t * 576, 512, 1);
  a.call.sm_scale = 0.3f; /* the last 64 columns alone make the logits differ: sums of 64 */
  run_path(&a, cpu, path);
  result got = take_result(&a);
  for (int64_t i = 0; i < 3 * (int64_t)h_q * 512; i++)
    if (!(fabsf(got.out[i] - 1) <= BF16_STEP / 2)) {
      FAILED("values of 1");
      break;
    }
  CHECK(got.max_logits[0] > 1);
  free_result(&got);
  free_attention(&a);

  attention b = make_attention(2, 2048, h_q, 512, 2048, 0, 32);
  memset(b.q, 0, (uint64_t)b.q_elements * 2);
  for (int64_t s = 0; s < 2; s++)
    for (int64_t j = 0; j < 2048; j++) b.indices[s * 2048 + j] = (int32_t)j;
  run_path(&b, cpu, path);
  got = take_result(&b);
  for (int d = 0; d < 512; d++) {
    double mean = 0;
    for (int64_t t = 0; t < 2048; t++) mean += (double)fh_float(b.kv[t * 512 + d]) / 2048;
    for (int64_t row = 0; row < 2 * h_q; row++)
      if (!(fabs((double)got.out[row * 512 + d] - mean) <= fabs(mean) / 256 + 1e-6)) {
        FAILED("the mean");
        d = 512;
        break;
      }
  }
  CHECK(fabs((double)got.lse[0] - log(2048)) < 1e-6);
  free_result(&got);
  free_attention(&b);
}

/* Two keys 88 and 100 apart: the smaller weight, exp(-88) or less, leaves the larger one's value as it is. */
static void far_apart(fhk_cpu *cpu, int32_t path) {
  for (int apart = 88; apart <= 100; apart += 12) {
    attention a = make_attention(1, 2, 8, 512, 2, 0, 33);
    memset(a.q, 0, (uint64_t)a.q_elements * 2);
    memset(a.kv, 0, (uint64_t)a.kv_elements * 2);
    for (int32_t h = 0; h < 8; h++) a.q[h * 512] = fh_bf16(1);
    a.kv[0] = fh_bf16((float)apart);
    for (int d = 1; d < 512; d++) {
      a.kv[d] = fh_bf16(3);
      a.kv[512 + d] = fh_bf16(-3);
    }
    a.indices[0] = 0;
    a.indices[1] = 1;
    a.call.sm_scale = 1;
    run_path(&a, cpu, path);
    result got = take_result(&a);
    CHECK(got.out[1] == 3 && got.out[511] == 3 && got.lse[0] == (float)apart && got.max_logits[0] == (float)apart);
    free_result(&got);
    free_attention(&a);
  }
}

/* Denormal values are 0 with amx and are averaged by the others; denormals in q or k add nothing to a logit, or
 * next to nothing. */
static void denormals(fhk_cpu *cpu, int32_t isa, int32_t path) {
  const uint16_t denormal = 8; /* 8 * 2^-133, 7e-40 */
  attention a = make_attention(2, 64, 8, 512, 40, 0, 34);
  fill_bits(a.kv, a.kv_elements, denormal);
  run_path(&a, cpu, path);
  result got = take_result(&a);
  const float want = isa == FH_ISA_AMX ? 0 : fh_float(denormal);
  for (int64_t i = 0; i < 2 * 8 * 512; i++)
    if (!(fabsf(got.out[i] - want) <= want / 8)) {
      FAILED("denormal values");
      break;
    }
  free_result(&got);
  fill_bits(a.q, a.q_elements, denormal);
  fill_bf16(a.kv, a.kv_elements, 1);
  run_path(&a, cpu, path);
  got = take_result(&a);
  for (int64_t row = 0; row < 16; row++) {
    CHECK(fabsf(got.max_logits[row]) < 1e-35f && fabs((double)got.lse[row] - log(40)) < 1e-6);
    CHECK(fabsf(got.out[row * 512] - 1) <= BF16_STEP / 2);
  }
  free_result(&got);
  free_attention(&a);
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* Lists longer than the blocks of any number of rows, one entry more and one less than whole blocks. */
static void long_lists(fhk_cpu *cpu, int32_t h_q) {
  static const int64_t widths[] = {320, 641, 1024, 1025, 2100};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
    const int features = i % 3 == 0 ? REPEATS : i % 3 == 1 ? HOLES | SINK | ODD : HOLES;
    attention a = make_attention(2, 3000, h_q, i % 2 ? 576 : 512, widths[i], features, 40 + i);
    if (i == 4) a.call.sm_scale = 1.5f; /* the largest logit rises block by block */
    result want = reference_result(&a, cpu);
    for (int32_t path = FH_PADDED; path <= FH_PACKED; path++) {
      run_path(&a, cpu, path);
      result got = take_result(&a);
      check_result(&a, &got, &want, text_of("path %d, h_q %d, topk %d", (int)path, (int)h_q, (int)widths[i]));
      CHECK(padding_intact(&a));
      free_result(&got);
    }
    free_result(&want);
    free_attention(&a);
  }
}

/* Logits that rise from key to key: each list's largest logit comes last, far above the first ones, in every block. */
static void rising_logits(fhk_cpu *cpu, int32_t h_q) {
  attention a = make_attention(3, 1400, h_q, 512, 1400, 0, 71);
  for (int64_t i = 0; i < a.q_elements; i += 512) a.q[i] = fh_bf16(8);
  for (int64_t t = 0; t < 1400; t++) a.kv[t * 512] = fh_bf16((float)t / 2);
  for (int64_t s = 0; s < 3; s++)
    for (int32_t j = 0; j < 1400; j++) a.indices[s * 1400 + j] = s == 2 ? 1399 - j : j;
  result want = reference_result(&a, cpu);
  for (int32_t path = FH_PADDED; path <= FH_PACKED; path++) {
    run_path(&a, cpu, path);
    result got = take_result(&a);
    check_result(&a, &got, &want, text_of("rising logits, path %d, h_q %d", (int)path, (int)h_q));
    free_result(&got);
  }
  free_result(&want);
  free_attention(&a);
}

/* A row's bits are those it has alone, whatever the number of rows and whatever the others list. */
static void row_invariant(fhk_cpu *cpu, int32_t h_q) {
  enum { ROWS = 7 };
  attention a = make_attention(ROWS, 500, h_q, 512, 333, LENGTHS | HOLES | REPEATS | SINK, 51);
  a.call.row_invariant = 1;
  run_path(&a, cpu, FH_GATHER);
  result all = take_result(&a);
  for (int64_t s = 0; s < ROWS; s++) {
    attention one = make_attention(ROWS, 500, h_q, 512, 333, LENGTHS | HOLES | REPEATS | SINK, 51);
    one.call.s_q = 1;
    one.call.row_invariant = 1;
    one.call.q += s * one.call.q_stride_s;
    one.call.indices += s * one.call.indices_stride;
    one.call.topk_length += s;
    run_path(&one, cpu, FH_GATHER);
    result got = take_result(&one);
    const result row = {all.out + s * h_q * 512, all.lse + s * h_q, all.max_logits + s * h_q};
    CHECK(same(&one, &got, &row));
    free_result(&got);
    free_attention(&one);
  }
  free_result(&all);
  free_attention(&a);
}

/* Queries list 96 keys of their own and 32 that all list. Sixteen heads fill a vector, so a query's own keys are
 * multiplied with its rows alone. A NaN in one of them reaches that query and nobody else. */
static void squares_left_out(fhk_cpu *cpu) {
  enum { OWN = 96, ALL = 32, KEYS = OWN + ALL };
  attention a = make_attention(4, 4 * OWN + ALL, 16, 512, KEYS, 0, 81);
  for (int32_t s = 0; s < 4; s++)
    for (int32_t j = 0; j < KEYS; j++) a.indices[s * KEYS + j] = j < OWN ? 4 * j + s : 4 * OWN + j - OWN;
  result want = reference_result(&a, cpu);
  const fh_counters counters = run_path(&a, cpu, FH_PACKED);
  CHECK_INT(counters.executed_flops, counters.useful_flops);
  result got = take_result(&a);
  check_result(&a, &got, &want, "squares left out");
  a.kv[(4 * 5 + 2) * 512 + 3] = 0x7fc0;
  run_path(&a, cpu, FH_PACKED);
  result spoilt = take_result(&a);
  for (int64_t i = 0; i < 4 * 16 * 512; i++) {
    const int64_t s = i / (16 * 512);
    if (s == 2) CHECK(isnan(spoilt.out[i]));
    else CHECK(fabsf(spoilt.out[i] - got.out[i]) < 1e-2f);
  }
  free_result(&spoilt);
  free_result(&got);
  free_result(&want);
  free_attention(&a);
}

/* A union of more entries than are sorted at a time, of all sets of four vectors and of eight. */
static void large_union(fhk_cpu *cpu, int32_t group) {
  enum { KEYS = 700 };
  attention a = make_attention(group + 1, 5000, 8, 512, KEYS, SINK, 91);
  a.call.group = group;
  for (int64_t s = 0; s <= group; s++)
    for (int64_t j = 0; j < KEYS; j++) a.indices[s * KEYS + j] = (int32_t)((j * 37 + s * s * 911) % 5000);
  result want = reference_result(&a, cpu);
  run_path(&a, cpu, FH_PACKED);
  result got = take_result(&a);
  check_result(&a, &got, &want, text_of("large union, group %d", (int)group));
  free_result(&got);
  free_result(&want);
  free_attention(&a);
}

/* A finite KV row whose products overflow is taken for one with Inf: it reaches those who list it, and nobody else. */
static void overflow_in_a_group(fhk_cpu *cpu) {
  attention a = make_attention(8, 300, 8, 512, 41, 0, 61);
  const int32_t bad = a.indices[4 * 41 + 7];
  fill_bf16(a.kv + bad * 512, 512, 3e38f);
  for (int64_t i = 0; i < a.q_elements; i++)
    a.q[i] &= 0x7fff; /* so that every row's products add up past the largest float */
  run_path(&a, cpu, FH_PACKED);
  result got = take_result(&a);
  for (int64_t s = 0; s < 8; s++) {
    int lists = 0, finite = 1;
    for (int j = 0; j < 41; j++) lists |= a.indices[s * 41 + j] == bad;
    for (int64_t i = s * 8 * 512; i < (s + 1) * 8 * 512; i++) finite &= isfinite(got.out[i]) != 0;
    CHECK_INT(finite, !lists);
  }
  free_result(&got);
  free_attention(&a);
}

int main(void) {
  unsetenv("FEWHEAD_ISA");
  unsetenv("FEWHEAD_THREADS");
  readings();
  refusals();
  const char *missing = fhk_cpu_isa_missing(FH_ISA_AMX, 0);
  if (missing) {
    printf("test_amx: left out what needs the tile unit: %s\n", missing);
    fh_device *device = NULL;
    const fh_device_options options = {.struct_size = sizeof options, .isa = FH_ISA_AMX};
    CHECK_INT(fh_device_open("cpu", &options, &device), FH_ERR_DEVICE);
    return check_summary();
  }
  in_child(forbidden, "EPERM");
  in_child(not_known, "ENOSYS");
  in_child(pretended, "a filter that says yes");
  in_child(others_do_not_ask, "other instruction sets");
  in_child(asks_once, "one request");
  in_child(small_signal_stack, "a small alternate stack before");
  in_child(small_signal_stack_later, "a small alternate stack afterwards");

  missing = fhk_cpu_isa_missing(FH_ISA_AMX, 1);
  if (missing) {
    printf("test_amx: left out what needs the tile unit: %s\n", missing);
    return check_summary();
  }
  settings_stay();
  surroundings();
  for (int32_t isa = FH_ISA_GENERIC; isa <= FH_ISA_AMX; isa++) {
    fhk_cpu *cpu = must_create(2, isa);
    for (int32_t path = FH_PADDED; path <= FH_PACKED; path++) {
      means(cpu, path, 8);
      far_apart(cpu, path);
      denormals(cpu, isa, path);
      if (isa == FH_ISA_AMX) means(cpu, path, 20);
    }
    row_invariant(cpu, 8);
    row_invariant(cpu, 20);
    if (isa == FH_ISA_AMX) {
      static const int32_t heads[] = {3, 16, 20, 64, 128};
      for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) long_lists(cpu, heads[h]);
      overflow_in_a_group(cpu);
      squares_left_out(cpu);
      large_union(cpu, 8);
      large_union(cpu, 16);
      rising_logits(cpu, 2);
      rising_logits(cpu, 8);
      rising_logits(cpu, 20);
    }
    fhk_cpu_destroy(cpu);
  }
  return check_summary();
}
