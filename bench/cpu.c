/*
 * Times the CPU kernels beside OpenBLAS sgemm. Each time comes with the kernel's distance from the reference in the
 * same run. Prints a report and writes it to the file that the only argument names.
 *
 * Paths are timed in turn, round after round, so that a disturbance hits all of them. The time of a path is its best
 * round; the median stands beside it. The index lists are those of the last s_q rows of an 8192-token prompt: a window
 * of 128 rows and 512 picks among the compressed rows (ratio 4) that the row can see, drawn afresh for every row
 * (`csa`) or 90 % kept from row to row (`local`).
 *
 * With AMX the limits are measured in the same run (limits.h), and what the README asks for is compared with what
 * was measured. Where PyTorch is installed (FEWHEAD_TORCH_ENV, ~/.cache/fewhead/torch), its bf16 matrix products of the
 * same sizes stand beside.
 */
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fewhead.h"
#include "limits.h"

enum { PROMPT = 8192, RATIO = 4, WINDOW = 128, PICKS = 512, POOL = PROMPT / RATIO };
enum { GEMM = 512, CHECKED_ROWS = 32 };
/* A case is timed for at least MIN_ROUNDS rounds. It ends when each path has CLOSE_TIMES rounds within a factor
 * CLOSE of its best round, the best included, or after MAX_ROUNDS rounds or MAX_MS. */
enum { MIN_ROUNDS = 5, MAX_ROUNDS = 100, CLOSE_TIMES = 3, MAX_MS = 30000 };
static const double CLOSE = 1.03;

static void fail(const char *what) {
  fprintf(stderr, "bench: %s: %s\n", what, fh_error());
  exit(1);
}
#define MUST(call)         \
  do {                     \
    if (call) fail(#call); \
  } while (0)

static void *must_alloc(uint64_t bytes) {
  void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (!p) {
    fprintf(stderr, "bench: no memory for %llu bytes\n", (unsigned long long)bytes);
    exit(1);
  }
  return p;
}

/* ---- The report: each line is printed at once and kept for the file */
static char *report;
static size_t report_bytes, report_room;

static void say(const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  fputs(line, stdout);
  fflush(stdout);
  if (report_bytes + (size_t)n + 1 > report_room) {
    report_room = (report_room + (size_t)n) * 2 + 4096;
    report = realloc(report, report_room);
    if (!report) exit(1);
  }
  memcpy(report + report_bytes, line, (size_t)n + 1);
  report_bytes += (size_t)n;
}

static void write_report(const char *path) {
  char folder[1024], temporary[1040];
  snprintf(folder, sizeof folder, "%s", path);
  for (char *at = strchr(folder + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = 0;
    if (mkdir(folder, 0777) && errno != EEXIST) break;
    *at = '/';
  }
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  FILE *file = fopen(temporary, "w");
  if (!file || fwrite(report, 1, report_bytes, file) != report_bytes || fclose(file) || rename(temporary, path)) {
    fprintf(stderr, "bench: %s: %s\n", path, strerror(errno));
    exit(1);
  }
  printf("written to %s\n", path);
}

/* ---- OpenBLAS, loaded at run time, so that building does not need it. Each choice of its kernels gets a process of
 * its own. */
typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);
typedef struct blas {
  double gflops;
  char core[32];
} blas;

static blas time_sgemm(int32_t threads) {
  blas r = {0, ""};
  void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
  if (!lib) return r;
  sgemm_fn sgemm;
  char *(*core_name)(void);
  void (*set_threads)(int);
  *(void **)&sgemm = dlsym(lib, "cblas_sgemm");
  *(void **)&core_name = dlsym(lib, "openblas_get_corename");
  *(void **)&set_threads = dlsym(lib, "openblas_set_num_threads");
  if (!sgemm || !core_name || !set_threads) return r;
  set_threads(threads);
  snprintf(r.core, sizeof r.core, "%s", core_name());
  float *a = must_alloc(GEMM * GEMM * 4), *b = must_alloc(GEMM * GEMM * 4), *c = must_alloc(GEMM * GEMM * 4);
  for (int i = 0; i < GEMM * GEMM; i++) {
    a[i] = (float)(i % 17) / 16 - 0.5f;
    b[i] = (float)(i % 13) / 16 - 0.375f;
  }
  uint64_t best = UINT64_MAX;
  for (int i = 0; i < 200; i++) {
    const uint64_t start = fh_time_ns();
    sgemm(101, 111, 112, GEMM, GEMM, GEMM, 1, a, GEMM, b, GEMM, 0, c, GEMM); /* row-major, a b^T */
    const uint64_t t = fh_time_ns() - start;
    if (t < best) best = t;
  }
  r.gflops = 2.0 * GEMM * GEMM * GEMM / (double)best;
  return r;
}

/* Runs in a child process, because OpenBLAS chooses its kernels once, when it is loaded. With core NULL it chooses
 * itself. */
static blas sgemm_in_child(const char *core, int32_t threads) {
  blas r = {0, ""};
  int ends[2];
  if (pipe(ends)) return r;
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("OPENBLAS_L2_SIZE");
    if (core) setenv("OPENBLAS_CORETYPE", core, 1);
    else unsetenv("OPENBLAS_CORETYPE");
    r = time_sgemm(threads);
    _exit(write(ends[1], &r, sizeof r) != sizeof r);
  }
  close(ends[1]);
  if (child < 0 || read(ends[0], &r, sizeof r) != sizeof r) r = (blas){0, ""};
  close(ends[0]);
  if (child > 0) waitpid(child, NULL, 0);
  return r;
}

/* ---- Cases */
typedef struct problem {
  fh_call call;
  int32_t *indices, *length;
  uint16_t *q, *kv, *out, *out_reference;
  float *lse, *lse_reference;
} problem;

static uint32_t random_below(uint32_t n) {
  static uint64_t position;
  static uint32_t words[4096];
  if (position % 4096 == 0 && fh_random_u32(1, 2, position, 4096, words)) fail("fh_random_u32");
  return (uint32_t)((uint64_t)words[position++ % 4096] * n >> 32);
}

static void fill_normal(fh_device *device, uint16_t *data, int64_t n, uint64_t stream) {
  fh_buffer *buffer = NULL;
  fh_view *view = NULL;
  MUST(fh_buffer_wrap(device, data, (uint64_t)n * 2, &buffer));
  MUST(fh_view_create(buffer, FH_BF16, 1, &n, NULL, 0, &view));
  MUST(fh_view_random(view, FH_NORMAL, 1, stream, 0, 1));
  fh_view_free(&view);
  fh_buffer_free(&buffer);
}

static void make_lists(problem *p, int64_t s_q, double keep) {
  const int64_t topk = PICKS + WINDOW;
  uint8_t taken[POOL];
  p->indices = must_alloc((uint64_t)(s_q * topk) * 4);
  p->length = must_alloc((uint64_t)s_q * 4);
  for (int64_t s = 0; s < s_q; s++) {
    const int64_t position = PROMPT - s_q + s;
    const int32_t visible = (int32_t)((position + 1) / RATIO), picks = visible < PICKS ? visible : PICKS;
    const int32_t window = (int32_t)(position + 1 < WINDOW ? position + 1 : WINDOW);
    int32_t *list = p->indices + s * topk, n = 0;
    memset(taken, 0, sizeof taken);
    if (s)
      for (int32_t j = 0; j < picks && n < picks; j++) {
        const int32_t before = list[j - topk];
        if (before < 0 || before >= visible || random_below(1000) >= keep * 1000) continue;
        taken[before] = 1;
        list[n++] = before;
      }
    while (n < picks) {
      const int32_t pick = (int32_t)random_below((uint32_t)visible);
      if (taken[pick]) continue;
      taken[pick] = 1;
      list[n++] = pick;
    }
    for (int32_t j = 0; j < window; j++) list[n++] = (int32_t)(POOL + position - window + 1 + j);
    p->length[s] = n;
    while (n < topk) list[n++] = -1;
  }
}

static problem make_problem(fh_device *device, int64_t s_q, int32_t h_q, int32_t d_qk, double keep) {
  problem p = {0};
  const int64_t s_kv = POOL + PROMPT, rows = s_q * h_q;
  make_lists(&p, s_q, keep);
  fh_call_init(&p.call, sizeof p.call, s_q, s_kv, h_q, d_qk, PICKS + WINDOW);
  p.q = must_alloc((uint64_t)(rows * d_qk) * 2);
  p.kv = must_alloc((uint64_t)(s_kv * d_qk) * 2);
  p.out = must_alloc((uint64_t)rows * 512 * 2);
  p.out_reference = must_alloc((uint64_t)rows * 512 * 2);
  p.lse = must_alloc((uint64_t)rows * 4);
  p.lse_reference = must_alloc((uint64_t)rows * 4);
  fill_normal(device, p.q, rows * d_qk, 10);
  fill_normal(device, p.kv, s_kv * d_qk, 11);
  p.call.q = p.q;
  p.call.kv = p.kv;
  p.call.indices = p.indices;
  p.call.topk_length = p.length;
  p.call.out = p.out;
  p.call.lse = p.lse;
  return p;
}

static void free_problem(problem *p) {
  free(p->indices);
  free(p->length);
  free(p->q);
  free(p->kv);
  free(p->out);
  free(p->out_reference);
  free(p->lse);
  free(p->lse_reference);
}

static float to_float(uint16_t h) {
  const union {
    uint32_t u;
    float f;
  } v = {(uint32_t)h << 16};
  return v.f;
}

/* The reference on CHECKED_ROWS rows spread over the call. */
static void run_reference(fh_device *device, const problem *p, int64_t step) {
  fh_call call = p->call;
  int32_t length[CHECKED_ROWS];
  call.path = FH_REFERENCE;
  call.s_q = (p->call.s_q + step - 1) / step;
  for (int64_t s = 0; s < call.s_q; s++) length[s] = p->length[s * step];
  call.topk_length = length;
  call.q_stride_s *= step;
  call.indices_stride *= step;
  call.out_stride_s *= step;
  call.lse_stride *= step;
  call.out = p->out_reference;
  call.lse = p->lse_reference;
  MUST(fh_workspace_bytes(device, &call, &call.workspace_bytes));
  call.workspace = must_alloc(call.workspace_bytes);
  MUST(fh_sparse_fwd(device, &call));
  free(call.workspace);
}

typedef struct distance {
  double cosine, out, lse;
} distance;

static distance compare(const problem *p, int64_t step) {
  distance d = {0, 0, 0};
  double product = 0, squares = 0;
  for (int64_t s = 0; s < p->call.s_q; s += step)
    for (int32_t h = 0; h < p->call.h_q; h++) {
      const int64_t row = s * p->call.h_q + h;
      d.lse = fmax(d.lse, fabs((double)p->lse[row] - (double)p->lse_reference[row]));
      for (int c = 0; c < 512; c++) {
        const double a = (double)to_float(p->out[row * 512 + c]), b = (double)to_float(p->out_reference[row * 512 + c]);
        d.out = fmax(d.out, fabs(a - b));
        product += a * b;
        squares += a * a + b * b;
      }
    }
  d.cosine = 1 - 2 * product / squares;
  return d;
}

/* ---- Timing */
typedef struct arm {
  int32_t path;
  double best_ms, median_ms, plan_ms;
  fh_counters work;
  distance off;
} arm;

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double now_ms(void) { return (double)fh_time_ns() * 1e-6; }

/* Returns 1 if other rounds came close to the best of n times, so that the best is no accident. */
static int settled(const double *ms, int n) {
  int close = 0;
  double best = INFINITY;
  for (int i = 0; i < n; i++) best = fmin(best, ms[i]);
  for (int i = 0; i < n; i++) close += ms[i] < best * CLOSE;
  return close >= CLOSE_TIMES;
}

static void time_arms(fh_device *device, problem *p, arm *arms, int count) {
  double ms[8][MAX_ROUNDS];
  const int64_t step = (p->call.s_q + CHECKED_ROWS - 1) / CHECKED_ROWS;
  run_reference(device, p, step);
  fh_plan plan = {.struct_size = sizeof plan};
  void *memory[8] = {NULL};
  for (int i = 0; i < count; i++) {
    p->call.path = arms[i].path;
    p->call.plan = NULL;
    if (arms[i].path == FH_PACKED) {
      uint64_t bytes;
      MUST(fh_plan_bytes(device, &p->call, &bytes));
      memory[7] = must_alloc(bytes);
      for (int round = 0; round < 3; round++) {
        const double start = now_ms();
        MUST(fh_plan_build(device, &p->call, memory[7], bytes, &plan));
        const double t = now_ms() - start;
        if (round == 0 || t < arms[i].plan_ms) arms[i].plan_ms = t;
      }
      p->call.plan = &plan;
    }
    MUST(fh_workspace_bytes(device, &p->call, &p->call.workspace_bytes));
    memory[i] = must_alloc(p->call.workspace_bytes);
  }
  const double began = now_ms();
  int rounds = 0, all_settled = 0;
  for (int round = -1; round < MAX_ROUNDS && (round < MIN_ROUNDS || (!all_settled && now_ms() - began < MAX_MS));
       round++) {
    for (int n = 0; n < count; n++) {
      const int i = round % 2 ? n : count - 1 - n; /* back and forth */
      fh_counters work = {.struct_size = sizeof work};
      p->call.path = arms[i].path;
      p->call.plan = arms[i].path == FH_PACKED ? &plan : NULL;
      p->call.workspace = memory[i];
      MUST(fh_workspace_bytes(device, &p->call, &p->call.workspace_bytes));
      p->call.counters = &work;
      memset(p->out, 0xff, (size_t)(p->call.s_q * p->call.h_q) * 1024);
      const double start = now_ms();
      MUST(fh_sparse_fwd(device, &p->call));
      const double t = now_ms() - start;
      arms[i].work = work;
      arms[i].off = compare(p, step);
      if (round >= 0) ms[i][round] = t;
    }
    rounds = round + 1;
    all_settled = 1;
    for (int i = 0; i < count; i++) all_settled &= settled(ms[i], rounds);
  }
  p->call.counters = NULL;
  for (int i = 0; i < count; i++) {
    qsort(ms[i], (size_t)rounds, sizeof **ms, by_value);
    arms[i].best_ms = ms[i][0];
    arms[i].median_ms = ms[i][rounds / 2];
    free(memory[i]);
  }
  free(memory[7]);
}

/* Times the fastest sgemm once more: a disturbance in its first timing would flatter the kernels. */
static void start_table(const char *title, blas *best, const char *core, int32_t threads) {
  static const char *const head =
      "| case | path | isa | best ms | median ms | useful GFLOP/s | executed GFLOP/s | executed / sgemm | padded / "
      "this |"
      " cos diff | out max abs | lse max abs |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  if (best->gflops > 0) {
    const blas again = sgemm_in_child(core, threads);
    if (again.gflops > best->gflops) *best = again;
    say("\n%s; sgemm %.1f GFLOP/s (%s).\n\n%s", title, best->gflops, best->core, head);
  } else {
    say("\n%s.\n\n%s", title, head);
  }
}

/* arms[0] is padded. */
static void show_arms(const char *name, const char *isa, const arm *arms, int count, double sgemm) {
  for (int i = 0; i < count; i++) {
    const arm *a = &arms[i];
    const double per_ms = 1e-6 / a->best_ms, executed = (double)a->work.executed_flops * per_ms;
    char ratio[16] = "-"; /* no sgemm here */
    if (sgemm > 0) snprintf(ratio, sizeof ratio, "%.2f", executed / sgemm);
    say("| %s | %s | %s | %.2f | %.2f | %.1f | %.1f | %s | %.2f |", name, fh_path_name(a->path), isa, a->best_ms,
        a->median_ms, (double)a->work.useful_flops * per_ms, executed, ratio, arms[0].best_ms / a->best_ms);
    say(" %.1e | %.1e | %.1e |\n", a->off.cosine, a->off.out, a->off.lse);
  }
}

static fh_device *open_cpu(int32_t isa) {
  fh_device *device = NULL;
  const fh_device_options options = {.struct_size = sizeof options, .isa = isa};
  MUST(fh_device_open("cpu", &options, &device));
  return device;
}

static const char *isa_name(int32_t isa) {
  static const char *const names[] = {"best", "generic", "avx2", "avx512", "avx512_bf16", "amx"};
  return names[isa];
}

/* ---- Limits, and what is wanted */
#if defined(__x86_64__)
typedef struct limits {
  double gflops;    /* of tile products, all threads */
  double fetch_ms;  /* to load the KV rows that the lists name, query by query */
  double random_ms; /* to load as many rows picked at random from all of KV */
} limits;

static limits measure_limits(const problem *p, int32_t threads) {
  fhk_cpu *cpu = fhk_cpu_create(threads, FH_ISA_GENERIC);
  if (!cpu) fail("fhk_cpu_create");
  fh_call call = p->call;
  const int64_t entries = call.s_q * call.topk;
  int32_t *random = must_alloc((uint64_t)entries * sizeof *random);
  for (int64_t i = 0; i < entries; i++) random[i] = (int32_t)random_below((uint32_t)call.s_kv);
  limits l = {tile_gflops(cpu), fetch_ms(cpu, &call), 0};
  call.indices = random;
  call.topk_length = NULL;
  l.random_ms = fetch_ms(cpu, &call);
  free(random);
  fhk_cpu_destroy(cpu);
  return l;
}

static void show_want(const char *what, double got, const char *order, double want) {
  const int holds = *order == '<' ? got <= want : got >= want;
  say("| %s | %.2f | %s %.2f | %s |\n", what, got, order, want, holds ? "yes" : "no");
}

/* best[case][path]: ms of the first table. The figures wanted are those of 2 threads of an Emerald Rapids server. */
static void show_limits(const limits *l, arm best[][3]) {
  enum { CSA = 0, LOCAL = 1 };
  say("\nLimits on all threads, csa, s_q 2048: tile products with random operands %.0f GFLOP/s; loading the listed KV "
      "rows, query by query: %.1f ms; as many rows picked at random from all of KV: %.1f ms.\n",
      l->gflops, l->fetch_ms, l->random_ms);
  static const char *const paths[] = {"padded", "gather", "packed"};
  say("\n| s_q 2048 | executed / tile products |\n|---|---|\n");
  for (int c = CSA; c <= LOCAL; c++)
    for (int i = 0; i < 3; i++)
      say("| %s, %s | %.2f |\n", c == CSA ? "csa" : "local", paths[i],
          (double)best[c][i].work.executed_flops / best[c][i].best_ms * 1e-6 / l->gflops);
  say("\n| wanted on 2 threads, s_q 2048 | measured | wanted | holds |\n|---|---|---|---|\n");
  show_want("padded, csa, ms", best[CSA][0].best_ms, "<=", 110);
  show_want("gather, csa / loading as many rows at random", best[CSA][1].best_ms / l->random_ms, "<=", 1.15);
  show_want("gather, csa / loading its rows in order", best[CSA][1].best_ms / l->fetch_ms, "<=", 1.15);
  show_want("packed, local, ms", best[LOCAL][2].best_ms, "<=", 20);
  show_want("packed, csa, ms", best[CSA][2].best_ms, "<=", 35);
  show_want("gather / packed, local", best[LOCAL][1].best_ms / best[LOCAL][2].best_ms, ">=", 2);
}
#endif

/* PyTorch's bf16 matrix products, a measuring aid that may be missing. */
static void show_torch(int32_t threads) {
  char command[1200], line[512];
  const char *env = getenv("FEWHEAD_TORCH_ENV"), *home = getenv("HOME");
  snprintf(command, sizeof command, "%s%s/bin/python",
           env    ? env
           : home ? home
                  : "",
           env ? "" : "/.cache/fewhead/torch");
  if (access(command, X_OK)) {
    say("\nPyTorch is not installed (make torch-env): no comparison with oneDNN.\n");
    return;
  }
  const size_t used = strlen(command);
  snprintf(command + used, sizeof command - used, " bench/torch_cpu.py --products --threads %d", (int)threads);
  FILE *out = popen(command, "r");
  say("\n");
  while (out && fgets(line, sizeof line, out)) say("%s", line);
  if (!out || pclose(out)) say("bench/torch_cpu.py failed: no comparison with oneDNN.\n");
}

int main(int argc, char **argv) {
  fh_device *device = open_cpu(FH_ISA_BEST);
  fh_device_info info = {.struct_size = sizeof info};
  MUST(fh_device_get_info(device, &info));
  char date[32];
  const time_t now = time(NULL);
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
  say("# CPU kernels\n\ncommand: make bench\nlibrary: %s\ndevice: %s, %d threads\ndate: %s\n\n", fh_build_info(),
      info.name, (int)info.threads, date);

  blas best = sgemm_in_child(NULL, info.threads);
  const char *best_core = NULL;
  if (best.gflops > 0) {
    say("OpenBLAS sgemm, 512 x 512 x 512, %d threads, best of 200: %.1f GFLOP/s with the kernels of its own choice "
        "(%s)",
        (int)info.threads, best.gflops, best.core);
    const char *const cores[] = {"Haswell", "SkylakeX", "Cooperlake"};
    const int known = info.isa >= FH_ISA_AVX512 ? (info.isa >= FH_ISA_AVX512_BF16 ? 3 : 2)
                      : info.isa == FH_ISA_AVX2 ? 1
                                                : 0;
    for (int i = 0; i < known; i++) {
      const blas other = sgemm_in_child(cores[i], info.threads);
      say(", %.1f (%s)", other.gflops, other.core);
      if (other.gflops > best.gflops) {
        best = other;
        best_core = cores[i];
      }
    }
    say(". The fastest is timed again before each table; a table is compared with the best rate so far.\n\n");
  } else {
    say("OpenBLAS is not installed (libopenblas.so.0, Debian package libopenblas0): no comparison with sgemm.\n\n");
  }

  start_table("h_q 8, d 512, topk 640 (128-row window and 512 picks); packed: plan built once, its time apart", &best,
              best_core, info.threads);
  static const struct {
    const char *name;
    double keep;
    int64_t s_q;
  } cases[] = {
      {"csa, s_q 2048", 0, 2048}, {"local, s_q 2048", 0.9, 2048}, {"csa, s_q 64", 0, 64}, {"local, s_q 64", 0.9, 64}};
  arm arms[4][3];
#if defined(__x86_64__)
  limits of_csa = {0, 0, 0};
#endif
  for (int i = 0; i < 4; i++) {
    problem p = make_problem(device, cases[i].s_q, 8, 512, cases[i].keep);
    for (int path = FH_PADDED; path <= FH_PACKED; path++) arms[i][path - FH_PADDED] = (arm){.path = path};
    time_arms(device, &p, arms[i], 3);
    show_arms(cases[i].name, isa_name(info.isa), arms[i], 3, best.gflops);
#if defined(__x86_64__)
    if (i == 0 && info.isa == FH_ISA_AMX) of_csa = measure_limits(&p, info.threads);
#endif
    free_problem(&p);
  }
  say("\nplan, ms: csa 2048 %.2f, local 2048 %.2f, csa 64 %.2f, local 64 %.2f\n", arms[0][2].plan_ms,
      arms[1][2].plan_ms, arms[2][2].plan_ms, arms[3][2].plan_ms);
#if defined(__x86_64__)
  if (info.isa == FH_ISA_AMX) show_limits(&of_csa, arms);
#endif
  show_torch(info.threads);

  start_table("Head counts and d_qk 576; local, s_q 128", &best, best_core, info.threads);
  static const struct {
    int32_t h_q, d_qk;
  } shapes[] = {{1, 512},  {2, 512},  {4, 512},  {8, 576},  {12, 512}, {16, 512},
                {20, 512}, {32, 512}, {48, 512}, {64, 512}, {128, 576}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    char name[64];
    snprintf(name, sizeof name, "h_q %d, d_qk %d", (int)shapes[i].h_q, (int)shapes[i].d_qk);
    problem p = make_problem(device, 128, shapes[i].h_q, shapes[i].d_qk, 0.9);
    arm of_shape[] = {{.path = FH_PADDED}, {.path = FH_GATHER}, {.path = FH_PACKED}};
    time_arms(device, &p, of_shape, 3);
    show_arms(name, isa_name(info.isa), of_shape, 3, best.gflops);
    free_problem(&p);
  }
  fh_device_close(&device);

  start_table("Instruction sets; h_q 8, local, s_q 128", &best, best_core, info.threads);
  for (int32_t isa = FH_ISA_GENERIC; isa <= FH_ISA_AMX; isa++) {
    const fh_device_options options = {.struct_size = sizeof options, .isa = isa};
    if (fh_device_open("cpu", &options, &device)) continue; /* not on this CPU */
    problem p = make_problem(device, 128, 8, 512, 0.9);
    arm of_isa[] = {{.path = FH_PADDED}, {.path = FH_GATHER}, {.path = FH_PACKED}};
    time_arms(device, &p, of_isa, 3);
    show_arms("h_q 8", isa_name(isa), of_isa, 3, best.gflops);
    free_problem(&p);
    fh_device_close(&device);
  }
  say("\n");
  if (argc > 1) write_report(argv[1]);
  free(report);
  return 0;
}
