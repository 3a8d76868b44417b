/* The contract that every attention kernel keeps: its corners as cases, and their check against the reference
 * kernel. Outputs are poisoned before a run, and everything around them is checked after it. */
#include "cuda/test/test.h"

namespace fhk_test {

void report(const Case &c, const char *kernel, const Residual &r, double out_limit, double statistic_limit) {
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

Residual compare(const Problem &p, const std::vector<float> &out32, const std::vector<float> &lse32,
                 const std::vector<float> &max32) {
  const Case &c = p.c;
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
  return r;
}

void check_case(const Case &c, const std::vector<Family> &families, int64_t reference_rows) {
  Problem p(c);
  const fh_call reference = p.reference_call();
  p.out32.poison();
  OK(kReference.run(reference, nullptr));
  finish(c.name, kReference.name);
  const auto out32 = p.out32.get(), lse32 = p.lse32.get(), max32 = p.max32.get();
  if (reference_rows > 0) check_reference(p, out32, lse32, max32, reference_rows);
  for (const Family &f : families) {
    if (c.h_q > f.most_heads) continue;
    if (!f.row(p.call)) { /* the rows are unaligned and the kernel wants aligned rows: the registry gives such
                             calls to another kernel */
      printf("%-22s %-18s not its case\n", c.name, f.name);
      skips++;
      continue;
    }
    const Ready ready(f, p.call);
    p.out.poison();
    p.lse.poison();
    p.max_logits.poison();
    OK(f.run(ready.call, nullptr));
    finish(c.name, f.name);
    report(c, f.name, compare(p, out32, lse32, max32), 2.5e-3, 1e-5); /* rounding the exact result to bf16
                                                                         alone: 1.65e-3 */
  }
}

std::vector<Case> contract_cases() {
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
  add("no sink, no lengths",
      [](Case &c) { c.s_q = 64, c.s_kv = 4096, c.sink = kNoSink, c.lengths = false, c.holes = false; });
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
  add("an Inf, 12 heads",
      [](Case &c) { c.s_q = 301, c.s_kv = 700, c.bad_row = 699, c.bad_one = true, c.h_q = 12, c.topk = 320; });
  add("a NaN row, NaN in q", [](Case &c) { c.s_q = 300, c.s_kv = 700, c.bad_row = 64, c.bad_q = true; });
  const std::vector<std::pair<int, const char *>> heads = {
      {2, "2 heads"}, {4, "4 heads"}, {5, "5 heads"}, {12, "12 heads"}, {20, "20 heads"}};
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
void check_far(const Family &f) {
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
  const Ready ready(f, p.call);
  fh_call far = ready.call;
  far.kv = kv.p, far.kv_stride = kv_far, far.q = q.p, far.q_stride_s = row_far;
  far.indices = indices.p, far.indices_stride = row_far, far.out = out.p, far.out_stride_s = row_far;
  bool same = true;
  const int64_t bytes = p.q_stride_s * 2;
  std::vector<char> got(bytes), want(bytes);
  p.out.poison();
  OK(f.run(ready.call, nullptr));
  OK(f.run(far, nullptr));
  finish(c.name, f.name);
  for (int64_t s = 0; s < c.s_q; s++) {
    OK(cudaMemcpy(want.data(), static_cast<uint16_t *>(p.call.out) + s * p.call.out_stride_s, bytes,
                  cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(got.data(), out.p + s * row_far, bytes, cudaMemcpyDeviceToHost));
    same = same && got == want;
  }
  printf("%-22s %-18s offsets past 2^31 elements: %s\n", c.name, f.name, same ? "ok" : "FAILED: another result");
  same ? passes++ : failures++;
}

std::vector<Case> small_cases() {
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

}  // namespace fhk_test
