/*
 * The CUDA kernels alone: no library, no Lua. Every kernel family against the reference family, the reference against double
 * loops on the CPU, over the corners of the contract; then times. Outputs are poisoned before a run and everything around them is
 * checked after it.
 *
 *   kernels check [NAME]              all cases; NAME: only this kernel. Exit status 1 when one fails
 *   kernels small [NAME]              a few small cases: what compute-sanitizer is run on
 *   kernels time [NAME] [quick|full]  microseconds, CUDA events, median of 30 launches
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

struct Family {
  const char *name;
  int (*prepare)();
  uint64_t (*workspace)(const fhk_gpu *, const fh_call *);
  int (*run)(const fhk_gpu *, const fh_call *, void *);
};
#define FAMILY(name) {#name, fhk_##name##_prepare, fhk_##name##_workspace, fhk_##name##_run}
static const Family kReference = FAMILY(portable_reference);
static const std::vector<Family> kFamilies = {FAMILY(sm90_padded), FAMILY(portable_gather)
#ifdef FHK_TEST_SM90_GATHER
                                                  , FAMILY(sm90_gather)
#endif
};

static fhk_gpu gpu;

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
enum Pattern { kUniform, kCsa };
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
  for (int64_t s = 0; s < c.s_q; s++) {
    int32_t *row = indices.data() + s * stride;
    if (c.pattern == kCsa) { /* ratio 4: compressed rows first, then the window; one prompt whose last row is row s_kv's last */
      const int64_t compressed = c.s_kv / 5, pos = c.s_kv - compressed - c.s_q + s, seen = (pos + 1) / 4;
      const int64_t picks = std::min<int64_t>(seen, 512), window = std::min<int64_t>(pos + 1, 128);
      for (int64_t k = 0; k < seen; k++) pool[k] = static_cast<int32_t>(k);
      pick(row, picks, seen);
      for (int64_t k = 0; k < window; k++) row[picks + k] = static_cast<int32_t>(compressed + pos - window + 1 + k);
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
    if (c.bad_row >= 0) OK(cudaMemset(kv.p + c.kv_offset + c.bad_row * kv_stride, 0xff, c.d * 2));
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
    call.path = FH_PADDED;
    call.s_q = c.s_q, call.s_kv = c.s_kv, call.h_q = c.h_q, call.h_pad = c.h_pad ? c.h_pad : c.h_q <= 64 ? 64 : 128;
    call.d_qk = c.d, call.d_v = 512, call.topk = c.topk, call.group = 1;
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
  std::string bad;
  void add(double got, double want) {
    if (isnan(got) || isinf(got)) {
      bad = "non-finite out";
      return;
    }
    const double e = fabs(got - want);
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
         bad.empty() ? "ok" : ("FAILED: " + bad).c_str());
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

static void check_case(const Case &c, const char *only, int64_t reference_rows) {
  Problem p(c);
  const fh_call reference = p.reference_call();
  p.out32.poison();
  OK(kReference.run(&gpu, &reference, nullptr));
  finish(c.name, kReference.name);
  const auto out32 = p.out32.get(), lse32 = p.lse32.get(), max32 = p.max32.get();
  if (reference_rows > 0) check_reference(p, out32, lse32, max32, reference_rows);
  for (const Family &f : kFamilies) {
    if (!wanted(f, only)) continue;
    p.out.poison();
    p.lse.poison();
    p.max_logits.poison();
    OK(f.run(&gpu, &p.call, nullptr));
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
          if (!unspecified) r.add(to_float(out[at + d]), out32[(s * c.h_q + h) * 512 + d]);
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
    fh_call far = p.call;
    far.kv = kv.p, far.kv_stride = kv_far, far.q = q.p, far.q_stride_s = row_far;
    far.indices = indices.p, far.indices_stride = row_far, far.out = out.p, far.out_stride_s = row_far;
    bool same = true;
    const int64_t bytes = p.q_stride_s * 2;
    std::vector<char> got(bytes), want(bytes);
    p.out.poison();
    OK(f.run(&gpu, &p.call, nullptr));
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
      const double us = median_us(f, p.call, row.name);
      if (!strcmp(f.name, "sm90_padded")) padded = us;
      printf(" %16.1f", us);
    }
    printf(" | %5.0f\n", padded > 0 ? 2. * c.buffer_heads * (c.d + 512) * c.topk * c.s_q / padded * 1e-6 : 0.);
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
  const char *only = argc > 2 && strcmp(argv[2], "quick") && strcmp(argv[2], "full") ? argv[2] : nullptr;
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 0));
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.capability = properties.major * 10 + properties.minor;
  if (what == "small") gpu.multiprocessors = 3; /* fewer CTAs than tiles: rings and phases live on from tile to tile */
  OK(kReference.prepare());
  for (const Family &f : kFamilies)
    if (wanted(f, only)) OK(f.prepare());
  if (what == "check" || what == "small") {
    for (const Case &c : what == "check" ? cases() : small_cases()) check_case(c, only, what == "small" ? 2 : 6);
    if (what == "check") check_far(only);
    printf("%d passed, %d failed\n", passes, failures);
    return failures ? 1 : 0;
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
      if (wanted(f, only))
        for (int k = 0; k < 2; k++) OK(f.run(&gpu, &p.call, nullptr));
    finish("once", only);
    return 0;
  }
  printf("usage: kernels check|small [NAME] | time [NAME] [quick|full] | once NAME uniform|csa S_Q\n");
  return 2;
}
