/* Times of the kernels' program: CUDA events, median of 30 launches. */
#include <chrono>

#include "cuda/test/test.h"

namespace fhk_test {

double median_us(const std::function<int()> &run, const char *what, const char *name) {
  constexpr int kLaunches = 30;
  std::vector<cudaEvent_t> events(kLaunches + 1);
  for (auto &e : events) OK(cudaEventCreate(&e));
  for (int k = 0; k < 3; k++) OK(run());
  finish(what, name);
  OK(cudaEventRecord(events[0]));
  for (int k = 0; k < kLaunches; k++) {
    OK(run());
    OK(cudaEventRecord(events[k + 1]));
  }
  finish(what, name);
  std::vector<float> us(kLaunches);
  for (int k = 0; k < kLaunches; k++) {
    OK(cudaEventElapsedTime(&us[k], events[k], events[k + 1]));
    us[k] *= 1e3f;
  }
  for (auto &e : events) OK(cudaEventDestroy(e));
  std::sort(us.begin(), us.end());
  return us[kLaunches / 2];
}

void time_all(const char *only, bool quick, bool full) {
  struct Row {
    const char *name;
    Pattern pattern;
    int64_t s_q, s_kv;
    int h_q, d;
    int64_t topk;
  };
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
  std::vector<Family> all;
  for (const Suite &s : suites())
    for (const Family &f : s.families)
      if (wanted(f, only) && !f.parts && !f.multiprocessors) all.push_back(f);
  for (const Family &f : all) printf(" %16s", f.name);
  printf(" | padded TFLOP/s\n");
  for (const Row &row : rows) {
    Case c;
    c.s_q = row.s_q, c.s_kv = row.s_kv, c.h_q = row.h_q, c.d = row.d, c.topk = row.topk, c.pattern = row.pattern;
    c.buffer_heads = row.h_q <= 64 ? 64 : 128;
    c.lengths = row.pattern == kCsa, c.holes = c.repeats = false, c.statistics = true;
    Problem p(c);
    printf("%-14s %6lld %6lld %4d %4d %5lld |", row.name, static_cast<long long>(c.s_q), static_cast<long long>(c.s_kv),
           c.h_q, c.d, static_cast<long long>(c.topk));
    double padded = 0;
    for (const Family &f : all) {
      if (row.h_q > f.most_heads) {
        printf(" %16s", "-");
        continue;
      }
      const Ready ready(f, p.call);
      const double us = median_us([&] { return f.run(ready.call, nullptr); }, row.name, f.name);
      if (!strcmp(f.name, "sm90_padded")) padded = us;
      printf(" %16.1f", us);
    }
    printf(" | %5.0f\n", padded > 0 ? 2. * c.buffer_heads * (c.d + 512) * c.topk * c.s_q / padded * 1e-6 : 0.);
    fflush(stdout);
  }
}

double reference_ms() {
  Case c;
  c.s_q = 8192, c.s_kv = 8192, c.holes = c.repeats = c.lengths = false;
  Problem p(c);
  const fh_call call = p.reference_call();
  OK(kReference.run(call, nullptr));
  finish("time", kReference.name);
  const auto start = std::chrono::steady_clock::now();
  OK(kReference.run(call, nullptr));
  finish("time", kReference.name);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace fhk_test
