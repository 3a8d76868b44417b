/*
 * The kernels' own program: what its files share. Each kernel's folder has a cases.cu that adds a Suite; the runner
 * runs them.
 */
#ifndef FEWHEAD_KERNELS_CUDA_TEST_H
#define FEWHEAD_KERNELS_CUDA_TEST_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cuda/registry.h"

#define OK(expression)                                                                         \
  do {                                                                                         \
    const cudaError_t status_ = static_cast<cudaError_t>(expression);                          \
    if (status_ != cudaSuccess) {                                                              \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #expression, cudaGetErrorString(status_)); \
      fflush(stdout);                                                                          \
      _Exit(2);                                                                                \
    }                                                                                          \
  } while (0)

namespace fhk_test {

extern fhk_gpu gpu;
extern int passes, failures, skips;

/* ---- Kernels under test ---- */

/* A kernel as the program runs it: the rows of the registry whose names begin with `kernel`, the first of them that
 * takes the call. */
struct Family {
  const char *name;   /* on the command line: "sm90_packed" */
  const char *kernel; /* "sm90 packed" */
  int32_t path;
  int32_t most_heads = 128;
  int32_t multiprocessors = 0; /* 0: the device's; else as a device with so many would run it */
  /* FH_AUTO: a plan whose packed groups cost what half full lists cost row by row, so that both kinds of work are
   * there; the packed kernel has its groups, this kernel the others. */
  bool parts = false;
  int32_t capability = 0; /* 0: the device's; else as a device of this one would run it */

  fhk_gpu device() const;
  bool plans() const { return parts || path == FH_PACKED; }
  /* NULL where the rows of the call are for another kernel. */
  const fhk_kernel *row(const fh_call &call) const;
  int prepare() const;
  uint64_t workspace(const fh_call &call) const; /* with a plan, where one is wanted */
  int run(const fh_call &call, cudaStream_t stream) const;
  /* The plan that run() would build for the call, in `memory` of fhk_plan_bytes. */
  int build_plan(const fh_call &call, void *memory, fh_plan *plan, cudaStream_t stream) const;
};
extern const Family kReference;

/* ---- Inputs ---- */

enum Sink { kNoSink, kNormalSink, kWildSink };
enum Pattern { kUniform, kCsa, kLocal };
struct Case {
  const char *name = "";
  int64_t s_q = 1, s_kv = 1;
  int h_q = 8, h_pad = 0, d = 512;
  int64_t topk = 640;
  Pattern pattern = kUniform;
  int buffer_heads = 0;                            /* heads of the q and out buffers; 0 = h_q */
  int64_t kv_gap = 0, q_gap = 0;                   /* elements between rows beyond the natural stride */
  int kv_offset = 0, q_offset = 0, out_offset = 0; /* elements from an aligned base */
  Sink sink = kNormalSink;
  bool lengths = true, holes = true, repeats = true, statistics = true;
  float scale = 0;                  /* of sm_scale; 0 = d^-0.5 */
  int64_t bad_row = -1;             /* this KV row is NaN; odd rows list it in place of their first entry */
  bool bad_one = false;             /* instead of all NaN, the bad row holds one Inf */
  bool bad_q = false;               /* q of row 1, an odd one, is NaN too */
  int group = 0;                    /* of packed; 0 = 64 / h_q */
  int64_t compressed = 0, base = 0; /* kCsa, kLocal: compressed rows, 0 = s_kv / 5; position of the first
                                            row behind them */
  double kept = 0.9;                /* kLocal: share of a row's picks that the next row keeps */
};

template <typename T>
struct Device {
  static constexpr uint8_t kCanary = 0xa5;
  T *p = nullptr;
  int64_t n = 0, guard = 0; /* elements of T on both sides that nobody may write */
  explicit Device(int64_t count, int64_t guard_elements = 0) : n(count), guard(guard_elements) {
    const int64_t all = std::max<int64_t>(count, 1) + 2 * guard;
    OK(cudaMalloc(&p, all * sizeof(T)));
    if (guard) OK(cudaMemset(p, kCanary, all * sizeof(T)));
    p += guard;
  }
  ~Device() { cudaFree(p - guard); }
  Device(const Device &) = delete;
  void from(const std::vector<T> &v) { OK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice)); }
  std::vector<T> get() const {
    std::vector<T> v(n);
    OK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }
  void poison() { OK(cudaMemset(p, 0xff, n * sizeof(T))); }
  /* Are the guards as they were? */
  bool intact() const {
    std::vector<uint8_t> bytes(guard * sizeof(T));
    for (const T *side : {p - guard, p + std::max<int64_t>(n, 1)}) {
      OK(cudaMemcpy(bytes.data(), side, bytes.size(), cudaMemcpyDeviceToHost));
      for (const uint8_t b : bytes)
        if (b != kCanary) return false;
    }
    return true;
  }
};

float to_float(uint16_t bf16);
void make_lists(const Case &c, std::vector<int32_t> &indices, std::vector<int32_t> &lengths, int64_t stride);

/* A case with its arrays on the device. */
struct Problem {
  Case c;
  int64_t buffer_heads, kv_stride, q_stride_h, q_stride_s, list_stride, out_rows;
  Device<uint16_t> kv, q, out;
  Device<float> out32, lse, max_logits, lse32, max32, sink;
  Device<int32_t> indices, lengths;
  fh_call call;

  static int64_t heads_of(const Case &c) { return c.buffer_heads ? c.buffer_heads : c.h_q; }
  /* guard: elements on both sides of what a kernel reads or writes. */
  explicit Problem(const Case &given, int64_t guard = 0);
  fh_call reference_call() const;
  bool intact() const { /* are all guards as they were? */
    return kv.intact() && q.intact() && out.intact() && lse.intact() && max_logits.intact() && sink.intact() &&
           indices.intact() && lengths.intact();
  }
};

/* What a family wants beside the call, given to it. */
struct Ready {
  fh_call call;
  Device<uint8_t> workspace;
  Ready(const Family &f, const fh_call &from, int64_t guard = 0)
      : call(from), workspace(static_cast<int64_t>(f.workspace(from)), guard) {
    workspace.poison();
    call.workspace = workspace.p, call.workspace_bytes = workspace.n;
  }
};

/* ---- Checks ---- */

/* Waits for the device. A kernel that hangs must not take the device with it. */
void finish(const char *what, const char *name);

struct Residual {
  double mean = 0, max = 0, norm = 0, of = 0, lse = 0, top = 0;
  int64_t compared = 0;
  std::string bad, where; /* where: the first element that is far off */
  void add(double got, double want, int64_t s = 0, int h = 0, int d = 0) {
    const double e = fabs(got - want);
    if (where.empty() && !(e <= 0.05 + 0.02 * fabs(want))) {
      char text[96];
      snprintf(text, sizeof text, " at [%lld, %d, %d]: got %g, want %g", static_cast<long long>(s), h, d, got, want);
      where = text;
    }
    if (isnan(got) || isinf(got)) {
      bad = "non-finite out";
      return;
    }
    mean += e, max = std::max(max, e), norm += e * e, of += want * want, compared++;
  }
  void statistic(double &worst, double got, double want, const char *name) {
    if (isinf(want) ? got != want : !(fabs(got - want) <= 1e30)) bad = std::string(name) + " position";
    else if (!isinf(want)) worst = std::max(worst, fabs(got - want) / std::max(1., fabs(want)));
  }
  double relative() const { return of > 0 ? sqrt(norm / of) : norm > 0 ? INFINITY : 0; }
};

void report(const Case &c, const char *kernel, const Residual &r, double out_limit, double statistic_limit);
/* The reference kernel against double loops, on up to `rows` rows (portable/reference/cases.cu). */
void check_reference(const Problem &p, const std::vector<float> &out, const std::vector<float> &lse,
                     const std::vector<float> &top, int64_t rows);
/* What stands in out, lse and max_logits against the reference kernel's, and all around them untouched. */
Residual compare(const Problem &p, const std::vector<float> &out32, const std::vector<float> &lse32,
                 const std::vector<float> &max32);

/* ---- Times ---- */

/* us of what `run` enqueues. what, name: for messages. */
double median_us(const std::function<int()> &run, const char *what, const char *name);

/* ---- Suites ---- */

struct Suite {
  const char *name;                         /* of the kernel: "sm90_packed" */
  std::vector<Family> families;             /* what the cases of the contract are run on */
  std::function<std::vector<Case>()> cases; /* its own, beside the contract's (contract.cu); may be empty */
  std::function<void(bool small)> more;     /* checks of another kind; may be empty */
};
/* In the order of their names. */
const std::vector<Suite> &suites();

/* A file-scope object adds a suite: static const Registration added({...}); */
struct Registration {
  explicit Registration(Suite suite);
};

/* Is the family asked for? NULL: all are. */
bool wanted(const Family &f, const char *only);
const Family &family(const char *name);

/* contract.cu */
std::vector<Case> contract_cases();
std::vector<Case> small_cases();
void check_case(const Case &c, const std::vector<Family> &families, int64_t reference_rows);
void check_far(const Family &f);
/* times.cu */
void time_all(const char *only, bool quick, bool full);
double reference_ms();
/* sm90/packed/cases.cu: plan and packed where neighbours share. */
void time_sharing(bool quick, bool alone, bool portable);

}  // namespace fhk_test

#endif
