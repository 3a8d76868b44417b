/*
 * The CUDA kernels alone: no library, no Lua. Every kernel family against the reference family, the reference against double
 * loops on the CPU, over the corners of the contract; then times. Outputs are poisoned before a run and everything around them is
 * checked after it.
 *
 *   kernels check [NAME]              all cases; NAME: only this kernel; auto: FH_AUTO's parts. Exit status 1 when one fails
 *   kernels small [NAME]              a few small cases: what compute-sanitizer is run on
 *   kernels plan                      plans against a host brute force, exact
 *   kernels time [NAME] [quick|full]  microseconds, CUDA events, median of 30 launches
 *   kernels share [quick|packed]      plan and packed over patterns with overlap, with padded beside; packed: its kernel alone
 *   kernels once NAME PATTERN S_Q     two launches: for a profiler
 */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "cuda/cuda.h"

#define OK(expression)                                                                                       \
  do {                                                                                                       \
    const cudaError_t status_ = static_cast<cudaError_t>(expression);                                        \
    if (status_ != cudaSuccess) {                                                                            \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #expression, cudaGetErrorString(status_));               \
      fflush(stdout);                                                                                        \
      _Exit(2);                                                                                              \
    }                                                                                                        \
  } while (0)

static fhk_gpu gpu;

struct Family {
  const char *name;
  int32_t path;
  int (*prepare)();
  uint64_t (*workspace)(const fhk_gpu *, const fh_call *);
  int (*launch)(const fhk_gpu *, const fh_call *, void *);
  int32_t most_heads = 128;
  int run(const fhk_gpu *on, const fh_call *given, void *stream) const {
    fh_call call = *given;
    call.path = path;
    return launch(on, &call, stream);
  }
};
#define FAMILY(name, path) {#name, path, fhk_##name##_prepare, fhk_##name##_workspace, fhk_##name##_run}
static const Family kReference = FAMILY(portable_reference, FH_REFERENCE);
static const Family kPacked = {"sm90_packed", FH_PACKED, fhk_sm90_packed_prepare, fhk_sm90_packed_workspace, fhk_sm90_packed_run, 64};
/* packed as a device with few multiprocessors would run it: unions whole where they would be split, many tiles a CTA. */
struct Whole {
  static fhk_gpu few() { return {7, gpu.capability}; }
  static uint64_t workspace(const fhk_gpu *, const fh_call *call) {
    const fhk_gpu g = few();
    return fhk_sm90_packed_workspace(&g, call);
  }
  static int run(const fhk_gpu *, const fh_call *call, void *stream) {
    const fhk_gpu g = few();
    return fhk_sm90_packed_run(&g, call, stream);
  }
};
static const Family kWhole = {"sm90_packed, few", FH_PACKED, fhk_sm90_packed_prepare, Whole::workspace, Whole::run, 64};
/* FH_AUTO: a plan whose packed groups cost what half full lists cost row by row, so that both kinds of work are there. */
template <int32_t kRows, int (*kRun)(const fhk_gpu *, const fh_call *, void *)>
struct Parts {
  static uint64_t workspace(const fhk_gpu *on, const fh_call *given) {
    fh_call call = *given;
    const fh_plan any = {};
    const uint64_t own = fhk_plan_bytes(on, &call);
    call.plan = &any;
    return (own + 255) / 256 * 256 + fhk_sm90_packed_workspace(on, &call);
  }
  static int run(const fhk_gpu *on, const fh_call *given, void *stream) {
    fh_call call = *given;
    const double by_key = 1 / (2e-9 * (call.d_qk + call.d_v)), half = 0.5 * call.topk * call.group;
    fh_costs costs = {sizeof costs, {1e9, 0, 0}, {1e9, 0, 0}, {0, half, 0}, {0, 0, 0}};
    (kRows == FH_PADDED ? costs.padded : costs.gather) = {0, 0, by_key / (kRows == FH_PADDED ? call.h_pad : call.h_q)};
    call.costs = &costs;
    fh_plan plan;
    const int status = fhk_plan_build(on, &call, call.workspace, &plan, stream);
    if (status != cudaSuccess) return status;
    call.plan = &plan;
    call.workspace = static_cast<char *>(call.workspace) + (fhk_plan_bytes(on, given) + 255) / 256 * 256;
    const int packed = fhk_sm90_packed_run(on, &call, stream);
    return packed != cudaSuccess ? packed : kRun(on, &call, stream);
  }
  static Family family(const char *name, int (*prepare)()) { return {name, FH_AUTO, prepare, workspace, run, 64}; }
};
static const std::vector<Family> kParts = {
    Parts<FH_PADDED, fhk_sm90_padded_run>::family("auto, padded", fhk_sm90_padded_prepare),
    Parts<FH_GATHER, fhk_portable_gather_run>::family("auto, portable", fhk_portable_gather_prepare),
#ifdef FHK_TEST_SM90_GATHER
    Parts<FH_GATHER, fhk_sm90_gather_run>::family("auto, gather", fhk_sm90_gather_prepare),
#endif
};
static const std::vector<Family> kFamilies = {FAMILY(sm90_padded, FH_PADDED), FAMILY(portable_gather, FH_GATHER), kPacked
#ifdef FHK_TEST_SM90_GATHER
                                                  , FAMILY(sm90_gather, FH_GATHER)
#endif
};

/* ---- Inputs ---- */

__device__ static uint32_t mix(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull, x ^= x >> 33;
  return static_cast<uint32_t>(x);
}
/* About normal: the sum of four uniform bytes, mean 0, deviation 1. */
__global__ void fill_normal(uint16_t *to, int64_t count, uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count; i += step) {
    const uint32_t w = mix(seed * 0x9e3779b97f4a7c15ull + i);
    const float x = (static_cast<float>((w & 255) + (w >> 8 & 255) + (w >> 16 & 255) + (w >> 24)) - 510.f) / 147.8f;
    to[i] = static_cast<uint16_t>((__float_as_uint(x) + 0x7fff + (__float_as_uint(x) >> 16 & 1)) >> 16);
  }
}
static float to_float(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

enum Sink { kNoSink, kNormalSink, kWildSink };
enum Pattern { kUniform, kCsa, kLocal };
struct Case {
  const char *name = "";
  int64_t s_q = 1, s_kv = 1;
  int h_q = 8, h_pad = 0, d = 512;
  int64_t topk = 640;
  Pattern pattern = kUniform;
  int buffer_heads = 0;                  /* heads of the q and out buffers; 0 = h_q */
  int64_t kv_gap = 0, q_gap = 0;         /* elements between rows beyond the natural stride */
  int kv_offset = 0, q_offset = 0, out_offset = 0; /* elements from an aligned base */
  Sink sink = kNormalSink;
  bool lengths = true, holes = true, repeats = true, statistics = true;
  float scale = 0;                       /* of sm_scale; 0 = d^-0.5 */
  int64_t bad_row = -1;                  /* this KV row is NaN; odd rows list it in place of their first entry */
  bool bad_one = false;                  /* instead of all NaN, the bad row holds one Inf */
  bool bad_q = false;                    /* q of row 1, an odd one, is NaN too */
  int group = 0;                         /* of packed; 0 = 64 / h_q */
  int64_t compressed = 0, base = 0;      /* kCsa, kLocal: compressed rows, 0 = s_kv / 5; position of the first row behind them */
  double kept = 0.9;                     /* kLocal: share of a row's picks that the next row keeps */
};

template <typename T>
struct Device {
  T *p = nullptr;
  int64_t n = 0;
  explicit Device(int64_t count) : n(count) { OK(cudaMalloc(&p, std::max<int64_t>(count, 1) * sizeof(T))); }
  ~Device() { cudaFree(p); }
  Device(const Device &) = delete;
  void from(const std::vector<T> &v) { OK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice)); }
  std::vector<T> get() const {
    std::vector<T> v(n);
    OK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }
  void poison() { OK(cudaMemset(p, 0xff, n * sizeof(T))); }
};

static void make_lists(const Case &c, std::vector<int32_t> &indices, std::vector<int32_t> &lengths, int64_t stride) {
  std::mt19937 random(static_cast<uint32_t>(17 * c.s_q + c.topk));
  auto below = [&](int64_t n) { return static_cast<int64_t>(static_cast<uint64_t>(random()) * static_cast<uint64_t>(n) >> 32); };
  indices.assign(c.s_q * stride, -7);
  lengths.assign(c.s_q, 0);
  std::vector<int32_t> pool(c.s_kv);
  for (int64_t k = 0; k < c.s_kv; k++) pool[k] = static_cast<int32_t>(k);
  auto pick = [&](int32_t *to, int64_t count, int64_t from) { /* distinct ones of 0 .. from - 1 */
    for (int64_t k = 0; k < count; k++) {
      std::swap(pool[k], pool[k + below(from - k)]);
      to[k] = pool[k];
    }
  };
  std::vector<int32_t> picked;
  std::vector<bool> taken(c.s_kv);
  for (int64_t s = 0; s < c.s_q; s++) {
    int32_t *row = indices.data() + s * stride;
    if (c.pattern != kUniform) { /* ratio 4: compressed rows first, then the window; the last row's own row is the last of KV */
      const int64_t compressed = c.compressed ? c.compressed : c.s_kv / 5, at = c.s_kv - compressed - c.s_q + s;
      const int64_t pos = c.base + at;
      const int64_t seen = std::min((pos + 1) / 4, compressed);
      const int64_t picks = std::min<int64_t>(seen, 512), window = std::min<int64_t>(pos + 1, 128);
      if (c.pattern == kCsa) {
        for (int64_t k = 0; k < seen; k++) pool[k] = static_cast<int32_t>(k);
        pick(row, picks, seen);
      } else {
        size_t kept = 0;
        for (const int32_t t : picked) {
          if (below(1000) < static_cast<int64_t>(1000 * c.kept)) picked[kept++] = t;
          else taken[t] = false;
        }
        picked.resize(kept);
        while (static_cast<int64_t>(picked.size()) < picks) {
          const int32_t t = static_cast<int32_t>(below(seen));
          if (!taken[t]) taken[t] = true, picked.push_back(t);
        }
        std::copy(picked.begin(), picked.end(), row);
      }
      for (int64_t k = 0; k < window; k++) row[picks + k] = static_cast<int32_t>(compressed + at - window + 1 + k);
      for (int64_t k = picks + window; k < c.topk; k++) row[k] = -1;
      lengths[s] = static_cast<int32_t>(picks + window);
      continue;
    }
    const int64_t distinct = std::min(c.topk, c.s_kv);
    pick(row, distinct, c.s_kv);
    for (int64_t k = distinct; k < c.topk; k++) row[k] = c.s_kv ? static_cast<int32_t>(below(c.s_kv)) : 3;
    if (c.repeats)
      for (int64_t k = 1; k < c.topk; k += 9) row[k] = row[k / 2];
    if (c.holes)
      for (int64_t k = 0; k < c.topk; k++) {
        const int64_t dice = below(40);
        if (dice == 0) row[k] = -1;
        if (dice == 1) row[k] = static_cast<int32_t>(c.s_kv + below(5));
        if (dice == 2 && k % 3 == 0) row[k] = INT32_MIN;
      }
    if (c.bad_row >= 0) {
      for (int64_t k = 0; k < c.topk; k++)
        if (row[k] == c.bad_row) row[k] = -1;
      if (s % 2 == 1 && c.topk > 0) row[0] = static_cast<int32_t>(c.bad_row);
    }
    lengths[s] = static_cast<int32_t>(s % 5 == 0 ? c.topk : below(c.topk + 1));
    if (s == 3) lengths[s] = 0;
    if (s == 4) lengths[s] = -5;
    if (s == 6) lengths[s] = static_cast<int32_t>(c.topk + 100);
    if (s == 7 && c.bad_row < 0)
      for (int64_t k = 0; k < c.topk; k++) row[k] = -1;
  }
}

struct Problem {
  Case c;
  int64_t buffer_heads, kv_stride, q_stride_h, q_stride_s, list_stride, out_rows;
  Device<uint16_t> kv, q, out;
  Device<float> out32, lse, max_logits, lse32, max32, sink;
  Device<int32_t> indices, lengths;
  fh_call call;

  static int64_t heads_of(const Case &c) { return c.buffer_heads ? c.buffer_heads : c.h_q; }
  explicit Problem(const Case &given)
      : c(given), buffer_heads(heads_of(c)), kv_stride(c.d + c.kv_gap), q_stride_h(c.d + c.q_gap),
        q_stride_s(buffer_heads * q_stride_h), list_stride(c.topk + (c.pattern == kUniform ? 3 : 0)),
        out_rows(c.s_q + 2), kv(c.s_kv * kv_stride + c.kv_offset + 8),
        q(c.s_q * q_stride_s + c.q_offset + 8), out(out_rows * buffer_heads * 512 + c.out_offset + 8), out32(c.s_q * c.h_q * 512),
        lse(out_rows * (c.h_q + 1)), max_logits(out_rows * (c.h_q + 1)), lse32(c.s_q * c.h_q), max32(c.s_q * c.h_q), sink(c.h_q),
        indices(c.s_q * list_stride), lengths(c.s_q) {
    fill_normal<<<1024, 256>>>(kv.p, kv.n, 1);
    fill_normal<<<1024, 256>>>(q.p, q.n, 2);
    OK(cudaGetLastError());
    if (c.bad_row >= 0) {
      uint16_t *bad = kv.p + c.kv_offset + c.bad_row * kv_stride;
      const uint16_t inf = 0x7f80;
      if (c.bad_one) OK(cudaMemcpy(bad + 300, &inf, sizeof inf, cudaMemcpyHostToDevice));
      else OK(cudaMemset(bad, 0xff, c.d * 2));
      if (c.bad_q) OK(cudaMemset(q.p + c.q_offset + q_stride_s, 0xff, c.d * 2));
    }
    std::vector<int32_t> list, length;
    make_lists(c, list, length, list_stride);
    indices.from(list);
    lengths.from(length);
    std::vector<float> sinks(c.h_q);
    for (int h = 0; h < c.h_q; h++) {
      sinks[h] = static_cast<float>(h % 7) - 3.f;
      if (c.sink == kWildSink) sinks[h] = h % 4 == 0 ? INFINITY : h % 4 == 1 ? -INFINITY : h % 4 == 2 ? 50.f : -50.f;
    }
    sink.from(sinks);
    memset(&call, 0, sizeof call);
    call.struct_size = sizeof call;
    call.s_q = c.s_q, call.s_kv = c.s_kv, call.h_q = c.h_q, call.h_pad = c.h_pad ? c.h_pad : c.h_q <= 64 ? 64 : 128;
    call.d_qk = c.d, call.d_v = 512, call.topk = c.topk;
    call.group = c.group ? c.group : std::max(1, 64 / c.h_q);
    call.sm_scale = c.scale != 0 ? c.scale : static_cast<float>(1 / sqrt(static_cast<double>(c.d)));
    call.q = q.p + c.q_offset, call.q_stride_s = q_stride_s, call.q_stride_h = q_stride_h;
    call.kv = c.s_kv ? kv.p + c.kv_offset : nullptr, call.kv_stride = kv_stride;
    call.indices = c.topk ? indices.p : nullptr, call.indices_stride = list_stride;
    call.topk_length = c.lengths ? lengths.p : nullptr;
    call.attn_sink = c.sink == kNoSink ? nullptr : sink.p;
    call.out = out.p + c.out_offset + buffer_heads * 512, call.out_stride_s = buffer_heads * 512, call.out_stride_h = 512;
    call.out_dtype = FH_BF16;
    if (c.statistics) {
      call.lse = lse.p + c.h_q + 1, call.lse_stride = c.h_q + 1;
      call.max_logits = max_logits.p + c.h_q + 1, call.max_logits_stride = c.h_q + 1;
    }
  }
  fh_call reference_call() const {
    fh_call r = call;
    r.path = FH_REFERENCE;
    r.out = out32.p, r.out_stride_s = c.h_q * 512, r.out_stride_h = 512, r.out_dtype = FH_F32;
    r.lse = lse32.p, r.lse_stride = c.h_q;
    r.max_logits = max32.p, r.max_logits_stride = c.h_q;
    return r;
  }
};

/* A kernel that hangs must not take the device with it. */
static void finish(const char *what, const char *name) {
  cudaEvent_t done;
  OK(cudaEventCreate(&done));
  OK(cudaEventRecord(done));
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t status = cudaEventQuery(done);
    if (status == cudaSuccess) break;
    if (status != cudaErrorNotReady) {
      printf("%s, %s: %s\n", what, name, cudaGetErrorString(status));
      fflush(stdout);
      _Exit(2);
    }
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(getenv("FHK_PATIENT") ? 300 : 10)) {
      printf("%s, %s: hangs\n", what, name);
      fflush(stdout);
      _Exit(3);
    }
  }
  OK(cudaEventDestroy(done));
}

/* ---- Checks ---- */

static int failures = 0, passes = 0;

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

static void report(const Case &c, const char *kernel, const Residual &r, double out_limit, double statistic_limit) {
  std::string bad = r.bad;
  if (bad.empty() && !(r.relative() < out_limit)) bad = "out";
  if (bad.empty() && !(r.lse < statistic_limit && r.top < statistic_limit)) bad = "statistics";
  printf("%-22s %-18s %9lld compared, mean %.2e max %.2e rel %.2e lse %.1e max_logits %.1e %s\n", c.name, kernel,
         static_cast<long long>(r.compared), r.compared ? r.mean / r.compared : 0., r.max, r.relative(), r.lse, r.top,
         bad.empty() ? "ok" : ("FAILED: " + bad + r.where).c_str());
  fflush(stdout);
  if (bad.empty()) passes++;
  else failures++;
}

/* The reference kernel against double loops, on up to `rows` rows. */
static void check_reference(const Problem &p, const std::vector<float> &out, const std::vector<float> &lse,
                            const std::vector<float> &top, int64_t rows) {
  const Case &c = p.c;
  const auto kv = p.kv.get(), q = p.q.get();
  const auto indices = p.indices.get(), lengths = p.lengths.get();
  const auto sink = p.sink.get();
  Residual r;
  for (int64_t s = 0; s < c.s_q; s += std::max<int64_t>(1, c.s_q / rows)) {
    int64_t length = c.lengths ? lengths[s] : c.topk;
    length = std::min<int64_t>(std::max<int64_t>(length, 0), c.topk);
    if (c.bad_row >= 0 && s % 2 == 1) continue;
    for (int h = 0; h < c.h_q; h++) {
      std::vector<double> logit(length);
      double most = -INFINITY, sum = 0, o[512] = {};
      const uint16_t *qr = q.data() + c.q_offset + s * p.q_stride_s + h * p.q_stride_h;
      auto row = [&](int64_t j) {
        const int32_t t = indices[s * p.list_stride + j];
        return t >= 0 && t < c.s_kv ? kv.data() + c.kv_offset + t * p.kv_stride : nullptr;
      };
      for (int64_t j = 0; j < length; j++) {
        const uint16_t *k = row(j);
        if (!k) continue;
        double x = 0;
        for (int d = 0; d < c.d; d++) x += static_cast<double>(to_float(qr[d])) * to_float(k[d]);
        logit[j] = x * p.call.sm_scale;
        most = std::max(most, logit[j]);
      }
      for (int64_t j = 0; j < length; j++) {
        const uint16_t *k = row(j);
        if (!k) continue;
        const double w = exp(logit[j] - most);
        sum += w;
        for (int d = 0; d < 512; d++) o[d] += w * to_float(k[d]);
      }
      const double whole = sum + (c.sink == kNoSink || most == -INFINITY ? 0. : exp(sink[h] - most));
      for (int d = 0; d < 512; d++) r.add(out[(s * c.h_q + h) * 512 + d], most == -INFINITY ? 0. : o[d] / whole);
      r.statistic(r.lse, lse[s * c.h_q + h], most == -INFINITY ? INFINITY : most + log(sum), "lse");
      r.statistic(r.top, top[s * c.h_q + h], most, "max_logits");
    }
  }
  report(c, "reference", r, 2e-6, 2e-6);
}

static bool wanted(const Family &f, const char *only) { return !only || !strcmp(only, f.name); }

/* What a family wants beside the call, given to it. */
struct Ready {
  fh_call call;
  Device<uint8_t> workspace;
  Ready(const Family &f, const fh_call &from) : call(from), workspace(static_cast<int64_t>(f.workspace(&gpu, &from))) {
    workspace.poison();
    call.workspace = workspace.p, call.workspace_bytes = workspace.n;
  }
};

static void check_case(const Case &c, const char *only, int64_t reference_rows) {
  Problem p(c);
  const fh_call reference = p.reference_call();
  p.out32.poison();
  OK(kReference.run(&gpu, &reference, nullptr));
  finish(c.name, kReference.name);
  const auto out32 = p.out32.get(), lse32 = p.lse32.get(), max32 = p.max32.get();
  if (reference_rows > 0) check_reference(p, out32, lse32, max32, reference_rows);
  std::vector<Family> all = kFamilies;
  if (wanted(kPacked, only)) all.push_back(kWhole);
  for (const Family &f : kParts)
    if (!only || !strcmp(only, "auto") || wanted(f, only)) all.push_back(f);
  for (const Family &f : all) {
    if ((only && f.path != FH_AUTO && !wanted(f, only) && f.launch != kWhole.launch) || c.h_q > f.most_heads) continue;
    const Ready ready(f, p.call);
    p.out.poison();
    p.lse.poison();
    p.max_logits.poison();
    OK(f.run(&gpu, &ready.call, nullptr));
    finish(c.name, f.name);
    const auto out = p.out.get();
    const auto lse = p.lse.get(), top = p.max_logits.get();
    Residual r;
    auto is_poison = [](float x) {
      uint32_t bits;
      memcpy(&bits, &x, 4);
      return bits == 0xffffffffu;
    };
    std::vector<bool> mine(out.size());
    for (int64_t s = 0; s < c.s_q; s++) {
      const bool unspecified = c.bad_row >= 0 && s % 2 == 1;
      for (int h = 0; h < c.h_q; h++) {
        const int64_t at = c.out_offset + ((s + 1) * p.buffer_heads + h) * 512;
        for (int d = 0; d < 512; d++) {
          mine[at + d] = true;
          if (!unspecified) r.add(to_float(out[at + d]), out32[(s * c.h_q + h) * 512 + d], s, h, d);
        }
        if (!c.statistics || unspecified) continue;
        r.statistic(r.lse, lse[(s + 1) * (c.h_q + 1) + h], lse32[s * c.h_q + h], "lse");
        r.statistic(r.top, top[(s + 1) * (c.h_q + 1) + h], max32[s * c.h_q + h], "max_logits");
      }
    }
    for (size_t k = 0; k < out.size(); k++)
      if (!mine[k] && out[k] != 0xffff) r.bad = "wrote outside its heads";
    for (int64_t s = 0; s < c.s_q + 2; s++) {
      const int64_t pad = s * (c.h_q + 1) + c.h_q;
      if (!is_poison(lse[pad]) || !is_poison(top[pad])) r.bad = "wrote outside its statistics";
    }
    report(c, f.name, r, 2.5e-3, 1e-5); /* rounding the exact result to bf16 alone: 1.65e-3 */
  }
}

static std::vector<Case> cases() {
  std::vector<Case> all;
  auto add = [&](const char *name, auto set) {
    Case c;
    c.name = name;
    set(c);
    all.push_back(c);
  };
  add("one row", [](Case &c) { c.s_q = 1, c.s_kv = 700; });
  add("no keys at all", [](Case &c) { c.s_q = 9, c.s_kv = 0, c.topk = 64; });
  add("topk 0", [](Case &c) { c.s_q = 9, c.s_kv = 10, c.topk = 0; });
  add("topk 1", [](Case &c) { c.s_q = 40, c.s_kv = 10, c.topk = 1; });
  add("topk 63", [](Case &c) { c.s_q = 40, c.s_kv = 100, c.topk = 63, c.buffer_heads = 64; });
  add("topk 129, one head", [](Case &c) { c.s_q = 333, c.s_kv = 1000, c.topk = 129, c.h_q = 1; });
  add("buffer of 64 heads", [](Case &c) { c.s_q = 333, c.s_kv = 4096, c.buffer_heads = 64; });
  add("no sink, no lengths", [](Case &c) { c.s_q = 64, c.s_kv = 4096, c.sink = kNoSink, c.lengths = false, c.holes = false; });
  add("wild sinks", [](Case &c) { c.s_q = 65, c.s_kv = 2000, c.sink = kWildSink; });
  add("no statistics", [](Case &c) { c.s_q = 20, c.s_kv = 2000, c.statistics = false; });
  add("large scores", [](Case &c) { c.s_q = 64, c.s_kv = 2000, c.scale = 1.5f; });
  add("7 heads", [](Case &c) { c.s_q = 50, c.s_kv = 3000, c.h_q = 7; });
  add("9 heads", [](Case &c) { c.s_q = 50, c.s_kv = 3000, c.h_q = 9; });
  add("16 heads, few rows", [](Case &c) { c.s_q = 50, c.s_kv = 3000, c.h_q = 16; });
  add("16 heads", [](Case &c) { c.s_q = 700, c.s_kv = 3000, c.h_q = 16; });
  add("24 heads", [](Case &c) { c.s_q = 300, c.s_kv = 3000, c.h_q = 24; });
  add("32 heads, few rows", [](Case &c) { c.s_q = 30, c.s_kv = 3000, c.h_q = 32; });
  add("33 heads", [](Case &c) { c.s_q = 300, c.s_kv = 3000, c.h_q = 33; });
  add("63 heads", [](Case &c) { c.s_q = 200, c.s_kv = 3000, c.h_q = 63, c.topk = 300; });
  add("64 heads", [](Case &c) { c.s_q = 200, c.s_kv = 3000, c.h_q = 64, c.topk = 300; });
  add("8 heads, h_pad 128", [](Case &c) { c.s_q = 200, c.s_kv = 3000, c.h_pad = 128, c.buffer_heads = 128; });
  add("65 heads", [](Case &c) { c.s_q = 200, c.s_kv = 3000, c.h_q = 65, c.topk = 300; });
  add("128 heads", [](Case &c) { c.s_q = 200, c.s_kv = 3000, c.h_q = 128, c.topk = 300; });
  add("d 576", [](Case &c) { c.s_q = 333, c.s_kv = 4096, c.d = 576, c.topk = 2048, c.buffer_heads = 64; });
  add("d 576, few rows", [](Case &c) { c.s_q = 40, c.s_kv = 4096, c.d = 576; });
  add("d 576, 16 heads", [](Case &c) { c.s_q = 300, c.s_kv = 4096, c.d = 576, c.h_q = 16; });
  add("d 576, 40 heads", [](Case &c) { c.s_q = 300, c.s_kv = 4096, c.d = 576, c.h_q = 40; });
  add("d 576, 128 heads", [](Case &c) { c.s_q = 140, c.s_kv = 4096, c.d = 576, c.h_q = 128, c.topk = 200; });
  add("strided rows", [](Case &c) { c.s_q = 300, c.s_kv = 4096, c.kv_gap = 64, c.q_gap = 8; });
  add("odd kv", [](Case &c) { c.s_q = 300, c.s_kv = 4096, c.kv_gap = 1, c.kv_offset = 3; });
  add("odd q", [](Case &c) { c.s_q = 300, c.s_kv = 4096, c.q_gap = 3, c.q_offset = 1; });
  add("odd out", [](Case &c) { c.s_q = 300, c.s_kv = 4096, c.out_offset = 3; });
  add("all odd, d 576", [](Case &c) {
    c.s_q = 30, c.s_kv = 4096, c.d = 576, c.kv_gap = 5, c.q_gap = 1, c.out_offset = 1, c.q_offset = 1, c.h_q = 13;
  });
  add("a NaN row", [](Case &c) { c.s_q = 300, c.s_kv = 700, c.bad_row = 13; });
  add("a NaN row, d 576", [](Case &c) { c.s_q = 300, c.s_kv = 700, c.bad_row = 13, c.d = 576, c.h_q = 20; });
  add("an Inf", [](Case &c) { c.s_q = 300, c.s_kv = 700, c.bad_row = 13, c.bad_one = true; });
  add("an Inf, 12 heads", [](Case &c) {
    c.s_q = 301, c.s_kv = 700, c.bad_row = 699, c.bad_one = true, c.h_q = 12, c.topk = 320;
  });
  add("a NaN row, NaN in q", [](Case &c) { c.s_q = 300, c.s_kv = 700, c.bad_row = 64, c.bad_q = true; });
  const std::vector<std::pair<int, const char *>> heads = {{2, "2 heads"}, {4, "4 heads"}, {5, "5 heads"}, {12, "12 heads"},
                                                           {20, "20 heads"}};
  for (const auto &[h_q, name] : heads) {
    const int h = h_q;
    add(name, [h](Case &c) { c.s_q = 203, c.s_kv = 2000, c.h_q = h, c.topk = 300; });
  }
  add("d 576, one head", [](Case &c) { c.s_q = 203, c.s_kv = 2000, c.h_q = 1, c.topk = 300, c.d = 576; });
  add("d 576, 5 heads", [](Case &c) { c.s_q = 203, c.s_kv = 2000, c.h_q = 5, c.topk = 300, c.d = 576; });
  add("d 576, 32 heads", [](Case &c) { c.s_q = 203, c.s_kv = 2000, c.h_q = 32, c.topk = 300, c.d = 576; });
  add("groups of 3", [](Case &c) { c.s_q = 100, c.s_kv = 2000, c.topk = 300, c.group = 3; });
  add("local", [](Case &c) { c.s_q = 4096, c.s_kv = 10240, c.pattern = kLocal, c.buffer_heads = 64; });
  add("local, d 576, 16", [](Case &c) { c.s_q = 1000, c.s_kv = 10240, c.pattern = kLocal, c.d = 576, c.h_q = 16; });
  add("csa", [](Case &c) { c.s_q = 2048, c.s_kv = 2560, c.pattern = kCsa, c.buffer_heads = 64; });
  add("3000 rows", [](Case &c) { c.s_q = 3000, c.s_kv = 9000; });
  return all;
}

/* Strides so long that offsets leave 32 bits: the same rows far apart must give the same bits. */
static void check_far(const char *only) {
  Case c;
  c.name = "far apart", c.s_q = 3, c.s_kv = 20, c.topk = 70;
  const int64_t kv_far = 1ll << 27, row_far = 1ll << 30;
  Problem p(c);
  const int64_t far_elements = (c.s_q - 1) * row_far + p.q_stride_s;
  Device<uint16_t> kv((c.s_kv - 1) * kv_far + c.d), q(far_elements), out(far_elements);
  Device<int32_t> indices((c.s_q - 1) * row_far + c.topk);
  auto spread = [](auto &to, const auto *from, int64_t rows, int64_t far, int64_t near, int64_t count) {
    for (int64_t r = 0; r < rows; r++)
      OK(cudaMemcpy(to.p + r * far, from + r * near, count * sizeof *from, cudaMemcpyDeviceToDevice));
  };
  spread(kv, p.call.kv, c.s_kv, kv_far, p.kv_stride, c.d);
  spread(q, p.call.q, c.s_q, row_far, p.q_stride_s, p.q_stride_s);
  spread(indices, p.call.indices, c.s_q, row_far, p.list_stride, c.topk);
  std::vector<Family> all = kFamilies;
  all.push_back(kReference);
  for (const Family &f : all) {
    if (!wanted(f, only)) continue;
    const Ready ready(f, p.call);
    fh_call far = ready.call;
    far.kv = kv.p, far.kv_stride = kv_far, far.q = q.p, far.q_stride_s = row_far;
    far.indices = indices.p, far.indices_stride = row_far, far.out = out.p, far.out_stride_s = row_far;
    bool same = true;
    const int64_t bytes = p.q_stride_s * 2;
    std::vector<char> got(bytes), want(bytes);
    p.out.poison();
    OK(f.run(&gpu, &ready.call, nullptr));
    OK(f.run(&gpu, &far, nullptr));
    finish(c.name, f.name);
    for (int64_t s = 0; s < c.s_q; s++) {
      OK(cudaMemcpy(want.data(), static_cast<uint16_t *>(p.call.out) + s * p.call.out_stride_s, bytes, cudaMemcpyDeviceToHost));
      OK(cudaMemcpy(got.data(), out.p + s * row_far, bytes, cudaMemcpyDeviceToHost));
      same = same && got == want;
    }
    printf("%-22s %-18s offsets past 2^31 elements: %s\n", c.name, f.name, same ? "ok" : "FAILED: another result");
    same ? passes++ : failures++;
  }
}

/* ---- Plans ---- */

struct PlanCase {
  const char *name;
  int64_t s_q, s_kv, topk;
  int group;
  int64_t span;       /* keys are drawn from this many rows around a place of the group's own; 0 = all */
  int repeats;        /* one key in so many is drawn anew from the row's earlier ones; 0 = none, 1 = the list is one row */
  int requests;       /* 0: no offsets; offsets are drawn, and some of them fall, repeat or leave the chunk */
  bool choose;        /* groups are packed where that is cheaper: where neighbours share much */
};

static void check_plan(const PlanCase &c) {
  const int64_t stride = c.topk + 1 + (c.s_q % 2 ? 0 : 3 - c.topk % 4); /* for even s_q steps of 16 bytes */
  const int64_t capacity = c.topk * c.group;
  std::vector<int32_t> list(c.s_q * stride, 0), length(c.s_q);
  std::mt19937_64 random(static_cast<uint64_t>(c.s_q + c.topk + c.group));
  for (int64_t s = 0; s < c.s_q; s++) {
    int32_t *row = list.data() + s * stride;
    const int64_t pool = c.choose && s / c.group % 2 ? c.topk + c.topk / 4 : c.span; /* every other group shares much */
    const int64_t span = pool ? std::min(pool, c.s_kv) : c.s_kv;
    const int64_t place = c.s_kv > span ? static_cast<int64_t>((s / c.group * 2654435761ull) % (c.s_kv - span)) : 0;
    std::vector<bool> seen(c.repeats == 0 ? span : 0);
    for (int64_t k = 0; k < c.topk; k++) {
      const int64_t draw = span ? static_cast<int64_t>(random() % span) : 0;
      row[k] = static_cast<int32_t>(place + draw);
      if (c.repeats > 0 && k > 0 && random() % c.repeats == 0) row[k] = row[random() % k];
      if (c.repeats == 0) {
        if (seen[draw]) row[k] = -1;
        seen[draw] = true;
      }
      if (random() % 50 == 0) row[k] = static_cast<int32_t>(-1 - static_cast<int64_t>(random() % 1000));
      if (random() % 50 == 0 && c.s_kv < INT32_MAX - 3) row[k] = static_cast<int32_t>(c.s_kv + random() % 3);
    }
    const int64_t part = static_cast<int64_t>(random() % (c.topk + 1));
    length[s] = static_cast<int32_t>(s % 3 == 0 ? c.topk + 9 : s % 7 == 0 ? -3 : s % 11 == 0 ? part : c.topk);
  }
  /* Requests end where the largest offset so far says, inside the chunk; the last one at its end. */
  std::vector<int32_t> offset(c.requests ? c.requests + 1 : 0);
  for (int32_t &at : offset) at = static_cast<int32_t>(static_cast<int64_t>(random() % (c.s_q + 1)));
  std::sort(offset.begin(), offset.end());
  for (size_t r = 0; r < offset.size(); r += 1 + random() % 9)
    offset[r] = static_cast<int32_t>(random() % 4 ? random() % (c.s_q + 1) : random());
  std::vector<int64_t> first;
  int64_t begin = 0;
  for (int r = 1; r <= std::max(c.requests, 1); r++) {
    int64_t end = c.s_q;
    if (r < c.requests) end = std::min<int64_t>(std::max<int64_t>(offset[r], begin), c.s_q);
    for (; begin < end; begin = std::min(begin + c.group, end)) first.push_back(begin);
  }
  const int64_t most = std::min<int64_t>(std::max(c.requests, 1), c.s_q), groups = most + (c.s_q - most) / c.group;
  first.resize(groups + 1, c.s_q);
  Device<int32_t> offsets(static_cast<int64_t>(offset.size()) + 1);
  offsets.from(offset);
  Device<int32_t> indices(list.size()), lengths(length.size());
  indices.from(list);
  lengths.from(length);
  fh_call call;
  memset(&call, 0, sizeof call);
  call.struct_size = sizeof call;
  call.s_q = c.s_q, call.s_kv = c.s_kv, call.topk = c.topk, call.group = c.group, call.h_q = 1, call.d_qk = call.d_v = 512;
  call.indices = indices.p, call.indices_stride = stride, call.topk_length = lengths.p;
  call.requests = c.requests, call.cu_seqlens_q = c.requests ? offsets.p : nullptr;
  fh_costs costs;
  memset(&costs, 0, sizeof costs);
  const double gflop = 2 * 1024 * 1e-9; /* of a head and a key: what follows makes a key cost 1 and 64 entries begun 200 */
  costs.gather.gflop_us = 1 / gflop, costs.packed.unit_us = 50, costs.packed.gflop_us = 200 / (gflop * 64 * c.group);
  costs.padded.call_us = 1e9;
  if (c.choose) call.path = FH_AUTO, call.costs = &costs;
  else call.path = FH_PACKED;
  Device<uint8_t> memory(static_cast<int64_t>(fhk_plan_bytes(&gpu, &call)));
  memory.poison();
  fh_plan plan;
  OK(fhk_plan_build(&gpu, &call, memory.p, &plan, nullptr));
  finish(c.name, "plan");
  auto get = [](auto *from, int64_t count) {
    std::vector<std::remove_reference_t<decltype(*from)>> v(count);
    OK(cudaMemcpy(v.data(), from, count * sizeof *from, cudaMemcpyDeviceToHost));
    return v;
  };
  const auto entries = get(plan.entries, groups), order = get(plan.order, groups), keys = get(plan.keys, c.s_q);
  const auto got_first = get(plan.first, groups + 1);
  const int32_t packed_from = get(plan.packed_from, 1)[0];
  const auto token = get(plan.token, groups * capacity);
  const auto member = get(plan.member, groups * capacity);
  std::string bad;
  auto differ = [&](const char *what, int64_t i, int64_t j, uint64_t got, uint64_t want) {
    if (got == want || !bad.empty()) return;
    char text[128];
    snprintf(text, sizeof text, "%s[%lld, %lld]: got %llx, want %llx", what, static_cast<long long>(i), static_cast<long long>(j),
             static_cast<unsigned long long>(got), static_cast<unsigned long long>(want));
    bad = text;
  };
  differ("groups", 0, 0, plan.groups, groups);
  int64_t all = 0;
  std::vector<int32_t> want_order(groups), want_entries(groups);
  std::vector<bool> unpacked(groups);
  int64_t saved = 0; /* groups that are better packed */
  for (int64_t g = 0; g <= groups; g++) differ("first", g, 0, got_first[g], first[g]);
  for (int64_t g = 0; g < groups; g++) {
    std::vector<std::pair<int32_t, int>> pairs;
    for (int64_t s = first[g]; s < first[g + 1]; s++) {
      const int64_t n = std::min<int64_t>(std::max(length[s], 0), c.topk), before = pairs.size();
      for (int64_t k = 0; k < n; k++) {
        const int32_t t = list[s * stride + k];
        if (t >= 0 && t < c.s_kv) pairs.push_back({t, static_cast<int>(s - first[g])});
      }
      differ("keys", s, 0, static_cast<uint64_t>(keys[s]), pairs.size() - before);
    }
    std::sort(pairs.begin(), pairs.end());
    int64_t n = 0, run = 0, copy = 0;
    std::vector<uint64_t> who;
    for (size_t k = 0; k < pairs.size(); k++) {
      copy = k && pairs[k] == pairs[k - 1] ? copy + 1 : 0;
      if (!k || pairs[k].first != pairs[k - 1].first) run = n;
      if (run + copy == n) {
        differ("token", g, n, static_cast<uint32_t>(n < capacity ? token[g * capacity + n] : -1),
               static_cast<uint32_t>(pairs[k].first));
        who.push_back(0);
        n++;
      }
      who[run + copy] |= 1ull << pairs[k].second;
    }
    differ("entries", g, 0, static_cast<uint64_t>(entries[g]), n);
    for (int64_t k = 0; k < n; k++) differ("member", g, k, member[g * capacity + k], who[k]);
    for (int64_t k = n; k < capacity; k++) {
      differ("token past the end", g, k, static_cast<uint32_t>(token[g * capacity + k]), 0xffffffffu);
      differ("member past the end", g, k, member[g * capacity + k], ~0ull);
    }
    want_order[g] = static_cast<int32_t>(g);
    want_entries[g] = static_cast<int32_t>(n);
    const double chosen = static_cast<double>(pairs.size());
    const double saves = c.choose && first[g] < first[g + 1] ? chosen - 50 - 200. * ((n + 63) / 64) : 0;
    unpacked[g] = saves < 0;
    saved += saves > 0;
    all += n;
  }
  std::stable_sort(want_order.begin(), want_order.end(), [&](int32_t a, int32_t b) {
    if (unpacked[a] || unpacked[b]) return unpacked[a] && !unpacked[b];
    return (want_entries[a] + 63) / 64 > (want_entries[b] + 63) / 64;
  });
  const int64_t fewer = std::count(unpacked.begin(), unpacked.end(), true);
  differ("packed_from", 0, 0, packed_from, fewer && !saved ? groups : fewer); /* beside rows alone nothing is packed */
  for (int64_t g = 0; g < groups; g++)
    differ("order", g, 0, static_cast<uint32_t>(order[g]), static_cast<uint32_t>(want_order[g]));
  printf("plan: %-30s %8lld groups %9lld entries %8d not packed %s\n", c.name, static_cast<long long>(groups),
         static_cast<long long>(all), packed_from, bad.empty() ? "ok" : ("FAILED: " + bad).c_str());
  fflush(stdout);
  bad.empty() ? passes++ : failures++;
}

static void check_plans(bool small) {
  if (small) {
    check_plan({"small", 20, 300, 60, 8, 0, 0});
    check_plan({"small, repeats", 20, 300, 60, 8, 0, 9});
    check_plan({"small, far", 9, 300000, 60, 4, 0, 0});
    check_plan({"small, far, repeats", 9, 300000, 60, 4, 0, 9});
    check_plan({"small, requests", 40, 300, 60, 8, 0, 0, 50, true});
    return;
  }
  for (int group : {1, 2, 3, 5, 8, 12, 16, 21, 32, 64}) {
    check_plan({"no repeats, by group", 203, 10240, 640, group, 0, 0});
    check_plan({"repeats, by group", 130, 3000, 300, group, 0, 9});
    check_plan({"choice, by group", 203, 3000, 640, group, 0, 0, 0, true});
    check_plan({"far, by group", 130, 300000, 640, group, 0, 0});
    check_plan({"far, repeats, by group", 66, 300000, 300, group, 0, 9});
    check_plan({"requests, by group", 200, 3000, 300, group, 0, 0, 9, false});
  }
  check_plan({"one request", 100, 3000, 300, 8, 0, 0, 1, false});
  check_plan({"more requests than rows", 7, 3000, 300, 8, 0, 0, 100, false});
  check_plan({"3000 requests", 4000, 3000, 64, 8, 0, 0, 3000, true});
  check_plan({"8192 rows, 12 requests", 8192, 10240, 64, 8, 600, 0, 12, true});
  check_plan({"one row", 1, 700, 640, 8, 0, 0});
  check_plan({"no keys at all", 9, 0, 64, 8, 0, 5});
  check_plan({"topk 0", 9, 10, 0, 8, 0, 5});
  check_plan({"topk 1", 100, 10, 1, 8, 0, 0});
  check_plan({"lists of one row", 20, 1000, 640, 8, 0, 1});
  check_plan({"topk far beyond s_kv", 20, 10, 4096, 8, 0, 50});
  check_plan({"s_kv at a window", 40, 65536, 640, 8, 0, 0});
  check_plan({"s_kv past a window", 40, 65537, 640, 8, 0, 0});
  check_plan({"41088 rows", 500, 41088, 640, 8, 0, 0});
  check_plan({"4,227,584 rows", 100, 4227584, 640, 8, 0, 0});
  check_plan({"4,227,584 rows, local", 300, 4227584, 640, 8, 100000, 0});
  check_plan({"4,227,584 rows, repeats", 40, 4227584, 640, 8, 100000, 30});
  check_plan({"a span of pages", 40, 4325376, 640, 8, 0, 0});
  check_plan({"past a span of pages", 40, 4325377, 640, 8, 0, 0});
  check_plan({"8192 rows far up", 8192, 4227584, 64, 8, 5000, 0});
  check_plan({"2^31 - 1 rows", 20, INT32_MAX, 640, 8, 0, 200});
  check_plan({"topk 2048, 16", 100, 8192, 2048, 16, 0, 0});
  check_plan({"topk 5000, 64", 130, 100000, 5000, 64, 0, 0});
  check_plan({"topk 40000", 9, 200000, 40000, 8, 0, 100});
  check_plan({"groups past one count", 20000, 200, 20, 1, 0, 0});
  check_plan({"30000 groups of 2", 60000, 200, 10, 2, 0, 7});
  check_plan({"30000 groups of 2, choice", 60000, 20, 10, 2, 0, 7, 9, true});
}

static std::vector<Case> small_cases() {
  std::vector<Case> all;
  auto add = [&](const char *name, int h_q, int d, int64_t topk, int64_t s_q, int odd) {
    Case c;
    c.name = name, c.s_q = s_q, c.s_kv = 300, c.h_q = h_q, c.d = d, c.topk = topk;
    c.kv_gap = odd, c.q_gap = odd, c.out_offset = odd;
    all.push_back(c);
  };
  add("small", 8, 512, 200, 20, 0);
  add("small, one row", 8, 512, 200, 1, 0);
  add("small, 20 heads", 20, 512, 130, 20, 0);
  add("small, d 576", 10, 576, 130, 9, 0);
  add("small, odd", 9, 576, 70, 9, 1);
  return all;
}

/* ---- Times ---- */

static double median_us(const Family &f, const fh_call &call, const char *name) {
  constexpr int kLaunches = 30;
  std::vector<cudaEvent_t> events(kLaunches + 1);
  for (auto &e : events) OK(cudaEventCreate(&e));
  for (int k = 0; k < 3; k++) OK(f.run(&gpu, &call, nullptr));
  finish(name, f.name);
  OK(cudaEventRecord(events[0]));
  for (int k = 0; k < kLaunches; k++) {
    OK(f.run(&gpu, &call, nullptr));
    OK(cudaEventRecord(events[k + 1]));
  }
  finish(name, f.name);
  std::vector<float> us(kLaunches);
  for (int k = 0; k < kLaunches; k++) {
    OK(cudaEventElapsedTime(&us[k], events[k], events[k + 1]));
    us[k] *= 1e3f;
  }
  for (auto &e : events) OK(cudaEventDestroy(e));
  std::sort(us.begin(), us.end());
  return us[kLaunches / 2];
}

static void time_all(const char *only, bool quick, bool full) {
  struct Row { const char *name; Pattern pattern; int64_t s_q, s_kv; int h_q, d; int64_t topk; };
  std::vector<Row> rows;
  const std::vector<int64_t> few = {64, 1024, 8192}, many = {64, 128, 256, 512, 1024, 2048, 4096, 8192};
  for (int64_t s_q : quick ? few : many) rows.push_back({"uniform", kUniform, s_q, 8192, 8, 512, 640});
  for (int64_t s_q : few) rows.push_back({"csa", kCsa, s_q, 10240, 8, 512, 640});
  rows.push_back({"uniform d 576", kUniform, 4096, 8192, 8, 576, 2048});
  if (full) {
    rows.push_back({"uniform", kUniform, 16384, 8192, 8, 512, 640});
    rows.push_back({"uniform 32896", kUniform, 8192, 32896, 8, 512, 640});
    for (int64_t topk : {512, 1024, 2048}) rows.push_back({"uniform", kUniform, 8192, 8192, 8, 512, topk});
    for (int h_q : {16, 32, 64, 128}) rows.push_back({"csa", kCsa, 8192, 10240, h_q, 512, 640});
    for (int h_q : {16, 128}) rows.push_back({"uniform d 576", kUniform, 4096, 8192, h_q, 576, 2048});
  }
  printf("%-14s %6s %6s %4s %4s %5s |", "pattern", "s_q", "s_kv", "h_q", "d", "topk");
  for (const Family &f : kFamilies)
    if (wanted(f, only)) printf(" %16s", f.name);
  printf(" | padded TFLOP/s\n");
  for (const Row &row : rows) {
    Case c;
    c.s_q = row.s_q, c.s_kv = row.s_kv, c.h_q = row.h_q, c.d = row.d, c.topk = row.topk, c.pattern = row.pattern;
    c.buffer_heads = row.h_q <= 64 ? 64 : 128;
    c.lengths = row.pattern == kCsa, c.holes = c.repeats = false, c.statistics = true;
    Problem p(c);
    printf("%-14s %6lld %6lld %4d %4d %5lld |", row.name, static_cast<long long>(c.s_q), static_cast<long long>(c.s_kv), c.h_q,
           c.d, static_cast<long long>(c.topk));
    double padded = 0;
    for (const Family &f : kFamilies) {
      if (!wanted(f, only)) continue;
      if (row.h_q > f.most_heads) {
        printf(" %16s", "-");
        continue;
      }
      const double us = median_us(f, Ready(f, p.call).call, row.name);
      if (!strcmp(f.name, "sm90_padded")) padded = us;
      printf(" %16.1f", us);
    }
    printf(" | %5.0f\n", padded > 0 ? 2. * c.buffer_heads * (c.d + 512) * c.topk * c.s_q / padded * 1e-6 : 0.);
    fflush(stdout);
  }
}

/* Plan and packed where neighbours share: us of each alone, of both as one call, and of padded. Times are medians of 30. */
static void time_sharing(bool quick, bool alone) {
  struct Row { const char *name; Pattern pattern; int64_t s_q, s_kv, compressed, base; int h_q, d; int64_t topk; double kept; };
  std::vector<Row> rows;
  for (int64_t s_q : {8192, 1024}) {
    rows.push_back({"csa 8k", kCsa, s_q, 10240, 0, 0, 8, 512, 640, 0});
    rows.push_back({"local 0.9 8k", kLocal, s_q, 10240, 0, 0, 8, 512, 640, 0.9});
    rows.push_back({"local 0.9 128k", kLocal, s_q, 32768 + 8320, 32768, 131072 - 8320, 8, 512, 640, 0.9});
    rows.push_back({"uniform 32768", kUniform, s_q, 32768, 0, 0, 8, 512, 640, 0});
  }
  rows.push_back({"uniform 8192", kUniform, 8192, 8192, 0, 0, 8, 512, 640, 0});
  for (int64_t s_q : {64, 128, 256, 512, 2048, 4096}) rows.push_back({"local 0.9 8k", kLocal, s_q, 10240, 0, 0, 8, 512, 640, 0.9});
  if (!quick) {
    rows.push_back({"local 0.8 8k", kLocal, 8192, 10240, 0, 0, 8, 512, 640, 0.8});
    for (int h_q : {4, 16, 32}) rows.push_back({"csa 8k", kCsa, 8192, 10240, 0, 0, h_q, 512, 640, 0});
    for (int h_q : {1, 2, 4, 16, 32}) rows.push_back({"local 0.9 8k", kLocal, 8192, 10240, 0, 0, h_q, 512, 640, 0.9});
    for (int h_q : {8, 16}) rows.push_back({"local 0.9 8k d 576", kLocal, 4096, 10240, 0, 0, h_q, 576, 640, 0.9});
    rows.push_back({"uniform d 576", kUniform, 4096, 8192, 0, 0, 8, 576, 2048, 0});
  }
  struct BuildOnly { static int run(const fhk_gpu *g, const fh_call *call, void *stream) {
    fh_plan plan;
    return fhk_plan_build(g, call, call->workspace, &plan, stream);
  } };
  Family build = kPacked;
  build.name = "plan", build.launch = BuildOnly::run;
  if (!alone) printf("%-18s %5s %6s %3s %4s %5s | %7s %7s | %7s %8s %8s %8s | %6s %7s\n", "pattern", "s_q", "s_kv", "h_q", "d", "topk",
         "union", "keys/en", "plan", "packed", "both", "padded", "TF", "x");
  for (const Row &row : rows) {
    Case c;
    c.s_q = row.s_q, c.s_kv = row.s_kv, c.compressed = row.compressed, c.base = row.base, c.h_q = row.h_q, c.d = row.d;
    c.topk = row.topk, c.pattern = row.pattern, c.kept = row.kept, c.buffer_heads = 64, c.lengths = row.pattern != kUniform;
    c.holes = c.repeats = false;
    Problem p(c);
    const Ready ready(kPacked, p.call);
    const Device<uint8_t> memory(static_cast<int64_t>(fhk_plan_bytes(&gpu, &p.call)));
    fh_plan plan;
    OK(fhk_plan_build(&gpu, &p.call, memory.p, &plan, nullptr));
    finish(row.name, "plan");
    std::vector<int32_t> entries(plan.groups), keys(c.s_q);
    OK(cudaMemcpy(entries.data(), plan.entries, entries.size() * 4, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(keys.data(), plan.keys, keys.size() * 4, cudaMemcpyDeviceToHost));
    double all = 0, chosen = 0;
    for (const int32_t n : entries) all += n;
    for (const int32_t n : keys) chosen += n;
    fh_call planned = p.call;
    planned.plan = &plan;
    const double packed = median_us(kPacked, Ready(kPacked, planned).call, row.name);
    if (alone) {
      printf("%-18s %5lld %3d %4d %5lld | %7.0f | %7.1f us\n", row.name, static_cast<long long>(c.s_q), c.h_q, c.d,
             static_cast<long long>(c.topk), all / plan.groups, packed);
      fflush(stdout);
      continue;
    }
    const double plan_us = median_us(build, ready.call, row.name), both = median_us(kPacked, ready.call, row.name);
    const double padded = median_us(kFamilies[0], p.call, row.name);
    printf("%-18s %5lld %6lld %3d %4d %5lld | %7.0f %7.2f | %7.1f %8.1f %8.1f %8.1f | %6.0f %7.2f\n", row.name,
           static_cast<long long>(c.s_q), static_cast<long long>(c.s_kv), c.h_q, c.d, static_cast<long long>(c.topk),
           all / plan.groups, chosen / all, plan_us, packed, both, padded, 2. * 64 * (c.d + 512) * all / packed * 1e-6,
           padded / both);
    fflush(stdout);
  }
}

static double reference_ms() {
  Case c;
  c.s_q = 8192, c.s_kv = 8192, c.holes = c.repeats = c.lengths = false;
  Problem p(c);
  const fh_call call = p.reference_call();
  OK(kReference.run(&gpu, &call, nullptr));
  finish("time", kReference.name);
  const auto start = std::chrono::steady_clock::now();
  OK(kReference.run(&gpu, &call, nullptr));
  finish("time", kReference.name);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

int main(int argc, char **argv) {
  const std::string what = argc > 1 ? argv[1] : "check";
  const std::string amount = argc > 2 ? argv[argc - 1] : "";
  const bool amount_alone = what == "share" || !strcmp(amount.c_str(), "quick") || !strcmp(amount.c_str(), "full");
  const char *only = argc > (amount_alone ? 3 : 2) ? argv[2] : nullptr;
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 0));
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.capability = properties.major * 10 + properties.minor;
  if (what == "small") gpu.multiprocessors = 3; /* fewer CTAs than tiles: rings and phases live on from tile to tile */
  OK(kReference.prepare());
  for (const Family &f : kFamilies)
    if (wanted(f, only)) OK(f.prepare());
  for (const Family &f : kParts) OK(f.prepare());
  OK(kPacked.prepare());
  OK(fhk_plan_prepare());
  if (what == "check" || what == "small") {
    for (const Case &c : what == "check" ? cases() : small_cases()) check_case(c, only, what == "small" ? 2 : 6);
    if (what == "check") check_far(only);
    check_plans(what == "small");
    printf("%d passed, %d failed\n", passes, failures);
    return failures ? 1 : 0;
  }
  if (what == "plan") {
    check_plans(false);
    printf("%d passed, %d failed\n", passes, failures);
    return failures ? 1 : 0;
  }
  if (what == "share") {
    time_sharing(amount == "quick" || amount == "packed", amount == "packed");
    return 0;
  }
  if (what == "time") {
    time_all(only, amount == "quick", amount == "full");
    if (amount != "quick") printf("reference, 8192 rows x 8 heads x 640 keys: %.1f ms\n", reference_ms());
    return 0;
  }
  if (what == "once" && argc == 5) {
    Case c;
    c.pattern = !strcmp(argv[3], "csa") ? kCsa : kUniform;
    c.s_q = atoll(argv[4]), c.s_kv = c.pattern == kCsa ? 10240 : 8192, c.buffer_heads = 64, c.lengths = c.pattern == kCsa;
    c.holes = c.repeats = false;
    Problem p(c);
    for (const Family &f : kFamilies)
      if (wanted(f, only)) {
        const Ready ready(f, p.call);
        for (int k = 0; k < 2; k++) OK(f.run(&gpu, &ready.call, nullptr));
        finish("once", only);
      }
    return 0;
  }
  printf("usage: kernels check|small [NAME] | time [NAME] [quick|full] | once NAME uniform|csa S_Q\n");
  return 2;
}
