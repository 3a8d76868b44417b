/*
 * sm90 packed: all cases of the contract, as the device would run it and as one with few multiprocessors would (unions
 * whole where they would be split, many tiles a CTA); plans that hold garbage, on it and on the kernels that take the
 * other groups of an FH_AUTO call; times where neighbours share.
 */
#include "cuda/test/test.h"

namespace fhk_test {

namespace {

/* What a plan's memory may hold: each 32-bit word of it becomes what `word` says. */
struct Garbage {
  const char *name;
  uint32_t (*word)(uint32_t was, std::mt19937 &random);
};
const Garbage kGarbage[] = {
    {"zeros", [](uint32_t, std::mt19937 &) { return 0u; }},
    {"minus ones", [](uint32_t, std::mt19937 &) { return ~0u; }},
    {"largest numbers", [](uint32_t, std::mt19937 &) { return 0x7fffffffu; }},
    {"smallest numbers", [](uint32_t, std::mt19937 &) { return 0x80000000u; }},
    {"any numbers", [](uint32_t, std::mt19937 &random) { return static_cast<uint32_t>(random()); }},
    {"small numbers", [](uint32_t, std::mt19937 &random) { return static_cast<uint32_t>(random() % 100) - 20; }},
    {"some words replaced",
     [](uint32_t was, std::mt19937 &random) { return random() % 4 ? was : static_cast<uint32_t>(random()); }},
};

/* Requests part the rows so that groups have first rows of their own, which kernels then read from the plan. */
struct GarbageCase {
  Case c;
  int64_t requests;
};

constexpr int64_t kGuard = 4096; /* elements around each array */

/* One family on one plan: the kernel must end, and may write its outputs and its workspace alone. */
void check_garbage_on(const Family &f, const GarbageCase &g, const Garbage &kind) {
  Problem p(g.c, kGuard);
  std::vector<int32_t> ends(g.requests + 1);
  for (int64_t r = 0; r <= g.requests; r++)
    ends[r] = static_cast<int32_t>(g.c.s_q * r / std::max<int64_t>(g.requests, 1));
  Device<int32_t> offsets(static_cast<int64_t>(ends.size()));
  offsets.from(ends);
  fh_call call = p.call;
  call.requests = g.requests, call.cu_seqlens_q = g.requests ? offsets.p : nullptr;
  Device<uint32_t> memory(static_cast<int64_t>(fhk_plan_bytes(&gpu, &call) / 4), kGuard);
  fh_plan plan;
  memory.poison();
  OK(f.build_plan(call, memory.p, &plan, nullptr));
  finish(kind.name, "plan");
  std::mt19937 random(7);
  std::vector<uint32_t> words = memory.get();
  for (uint32_t &w : words) w = kind.word(w, random);
  memory.from(words);
  call.plan = &plan;
  const Ready ready(f, call, kGuard);
  p.out.poison(), p.lse.poison(), p.max_logits.poison();
  const auto kv = p.kv.get(), q = p.q.get();
  OK(f.run(ready.call, nullptr));
  finish(kind.name, f.name);
  std::string bad;
  if (!p.intact() || !memory.intact() || !ready.workspace.intact()) bad = "wrote outside an array";
  if (memory.get() != words) bad = "wrote to the plan";
  if (p.kv.get() != kv || p.q.get() != q) bad = "wrote to an input";
  const auto out = p.out.get();
  const int64_t row = p.buffer_heads * 512;
  for (int64_t k = 0; k < p.out.n; k++) {
    const int64_t s = (k - g.c.out_offset) / row, h = (k - g.c.out_offset) % row / 512;
    const bool mine = k >= g.c.out_offset + row && s >= 1 && s <= g.c.s_q && h < g.c.h_q;
    if (!mine && out[k] != 0xffff) bad = "wrote outside its heads";
  }
  printf("garbage: %-22s %-18s %-20s %s\n", g.c.name, f.name, kind.name,
         bad.empty() ? "ok" : ("FAILED: " + bad).c_str());
  fflush(stdout);
  bad.empty() ? passes++ : failures++;
}

void check_garbage(bool small) {
  std::vector<GarbageCase> all;
  auto add = [&](const char *name, int64_t s_q, int h_q, int d, int64_t requests, int odd) {
    Case c;
    c.name = name, c.s_q = s_q, c.s_kv = 300, c.h_q = h_q, c.d = d, c.topk = 130, c.buffer_heads = h_q + 1;
    c.kv_gap = c.q_gap = odd;
    all.push_back({c, requests});
  };
  add("one request", 70, 8, 512, 0, 0);
  add("three requests", 70, 8, 512, 3, 0);
  if (!small) {
    add("many rows", 1500, 8, 512, 5, 0);
    add("d 576, 20 heads", 100, 20, 576, 3, 0);
    add("odd rows", 70, 13, 512, 3, 1);
    add("one row", 1, 8, 512, 0, 0);
  }
  for (const GarbageCase &g : all)
    for (const Suite &s : suites())
      for (const Family &f : s.families) {
        if (!f.plans() || !f.row(Problem(g.c).call)) continue; /* rows that another kernel takes */
        for (const Garbage &kind : kGarbage) check_garbage_on(f, g, kind);
      }
}

}  // namespace

/* Plan and packed where neighbours share: us of each alone, of both as one call, and of padded. Times are medians of
 * 30. */
void time_sharing(bool quick, bool alone, bool portable) {
  struct Row {
    const char *name;
    Pattern pattern;
    int64_t s_q, s_kv, compressed, base;
    int h_q, d;
    int64_t topk;
    double kept;
  };
  std::vector<Row> rows;
  for (int64_t s_q : {8192, 1024}) {
    rows.push_back({"csa 8k", kCsa, s_q, 10240, 0, 0, 8, 512, 640, 0});
    rows.push_back({"local 0.9 8k", kLocal, s_q, 10240, 0, 0, 8, 512, 640, 0.9});
    rows.push_back({"local 0.9 128k", kLocal, s_q, 32768 + 8320, 32768, 131072 - 8320, 8, 512, 640, 0.9});
    rows.push_back({"uniform 32768", kUniform, s_q, 32768, 0, 0, 8, 512, 640, 0});
  }
  rows.push_back({"uniform 8192", kUniform, 8192, 8192, 0, 0, 8, 512, 640, 0});
  for (int64_t s_q : {64, 128, 256, 512, 2048, 4096})
    rows.push_back({"local 0.9 8k", kLocal, s_q, 10240, 0, 0, 8, 512, 640, 0.9});
  if (!quick) {
    rows.push_back({"local 0.8 8k", kLocal, 8192, 10240, 0, 0, 8, 512, 640, 0.8});
    for (int h_q : {4, 16, 32}) rows.push_back({"csa 8k", kCsa, 8192, 10240, 0, 0, h_q, 512, 640, 0});
    for (int h_q : {1, 2, 4, 16, 32}) rows.push_back({"local 0.9 8k", kLocal, 8192, 10240, 0, 0, h_q, 512, 640, 0.9});
    for (int h_q : {8, 16}) rows.push_back({"local 0.9 8k d 576", kLocal, 4096, 10240, 0, 0, h_q, 576, 640, 0.9});
    rows.push_back({"uniform d 576", kUniform, 4096, 8192, 0, 0, 8, 576, 2048, 0});
  }
  const Family &packed_alone = family(portable ? "portable_packed" : "sm90_packed"),
               &padded_alone = family(portable ? "portable_gather, padded" : "sm90_padded");
  auto us_of = [](const Family &f, const Ready &ready, const char *what) {
    return median_us([&] { return f.run(ready.call, nullptr); }, what, f.name);
  };
  if (!alone)
    printf("%-18s %5s %6s %3s %4s %5s | %7s %7s | %7s %8s %8s %8s | %6s %7s\n", "pattern", "s_q", "s_kv", "h_q", "d",
           "topk", "union", "keys/en", "plan", "packed", "both", "padded", "TF", "x");
  for (const Row &row : rows) {
    Case c;
    c.s_q = row.s_q, c.s_kv = row.s_kv, c.compressed = row.compressed, c.base = row.base, c.h_q = row.h_q, c.d = row.d;
    c.topk = row.topk, c.pattern = row.pattern, c.kept = row.kept, c.buffer_heads = 64,
    c.lengths = row.pattern != kUniform;
    c.holes = c.repeats = false;
    Problem p(c);
    const Ready ready(packed_alone, p.call);
    const Device<uint8_t> memory(static_cast<int64_t>(fhk_plan_bytes(&gpu, &p.call)));
    fh_plan plan;
    OK(packed_alone.build_plan(p.call, memory.p, &plan, nullptr));
    finish(row.name, "plan");
    std::vector<int32_t> entries(plan.groups), keys(c.s_q);
    OK(cudaMemcpy(entries.data(), plan.entries, entries.size() * 4, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(keys.data(), plan.keys, keys.size() * 4, cudaMemcpyDeviceToHost));
    double all = 0, chosen = 0;
    for (const int32_t n : entries) all += n;
    for (const int32_t n : keys) chosen += n;
    fh_call planned = p.call;
    planned.plan = &plan;
    const double packed = us_of(packed_alone, Ready(packed_alone, planned), row.name);
    if (alone) {
      printf("%-18s %5lld %3d %4d %5lld | %7.0f | %7.1f us\n", row.name, static_cast<long long>(c.s_q), c.h_q, c.d,
             static_cast<long long>(c.topk), all / plan.groups, packed);
      fflush(stdout);
      continue;
    }
    fh_plan built;
    const double plan_us = median_us(
        [&] { return packed_alone.build_plan(ready.call, ready.call.workspace, &built, nullptr); }, row.name, "plan");
    const double both = us_of(packed_alone, ready, row.name),
                 padded = us_of(padded_alone, Ready(padded_alone, p.call), row.name);
    printf("%-18s %5lld %6lld %3d %4d %5lld | %7.0f %7.2f | %7.1f %8.1f %8.1f %8.1f | %6.0f %7.2f\n", row.name,
           static_cast<long long>(c.s_q), static_cast<long long>(c.s_kv), c.h_q, c.d, static_cast<long long>(c.topk),
           all / plan.groups, chosen / all, plan_us, packed, both, padded, 2. * 64 * (c.d + 512) * all / packed * 1e-6,
           padded / both);
    fflush(stdout);
  }
}

static const Registration
    added({"sm90_packed",
           {{"sm90_packed", "sm90 packed", FH_PACKED, 64}, {"sm90_packed, few", "sm90 packed", FH_PACKED, 64, 7}},
           {},
           check_garbage});

}  // namespace fhk_test
