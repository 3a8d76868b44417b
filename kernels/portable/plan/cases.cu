/* Plans against a host brute force, bit for bit. */
#include <set>

#include "cuda/test/test.h"

namespace fhk_test {

struct PlanCase {
  const char *name;
  int64_t s_q, s_kv, topk;
  int group;
  int64_t span; /* keys are drawn from this many rows around a place of the group's own; 0 = all */
  int repeats;  /* one key in so many is drawn anew from the row's earlier ones; 0 = none, 1 = the list is
                         one row */
  int requests; /* 0: no offsets; offsets are drawn, and some of them fall, repeat or leave the chunk */
  bool choose;  /* groups are packed where that is cheaper: where neighbours share much */
  int form;     /* of the lists, beside what is said above: kDrawn, .. */
};
/* What a list is made of: rows drawn one by one; half of it the first rows, the other half a window that ends behind
 * the last row; runs of 4 rows; of 8; any of these from list to list. Runs start anywhere. */
enum { kDrawn, kRange, kRunsOf4, kRunsOf8, kMixed };

struct PlanInput {
  int64_t stride;
  std::vector<int32_t> list, length, offset; /* [s_q, stride], [s_q], [requests + 1] or empty */
};

static PlanInput make_input(const PlanCase &c) {
  PlanInput in;
  in.stride = c.topk + 1 + (c.s_q % 2 ? 0 : 3 - c.topk % 4); /* for even s_q steps of 16 bytes */
  auto &list = in.list, &length = in.length;
  list.assign(c.s_q * in.stride, 0), length.resize(c.s_q);
  std::mt19937_64 random(static_cast<uint64_t>(c.s_q + c.topk + c.group));
  for (int64_t s = 0; s < c.s_q; s++) {
    int32_t *row = list.data() + s * in.stride;
    const int64_t pool = c.choose && s / c.group % 2 ? c.topk + c.topk / 4 : c.span; /* every other group shares much */
    const int64_t span = pool ? std::min(pool, c.s_kv) : c.s_kv;
    const int64_t place = c.s_kv > span ? static_cast<int64_t>((s / c.group * 2654435761ull) % (c.s_kv - span)) : 0;
    std::vector<bool> seen(c.repeats == 0 ? span : 0);
    const int form = c.form == kMixed ? static_cast<int>(s % 4) : c.form, run = form == kRunsOf4 ? 4 : 8;
    std::vector<bool> taken(form == kRunsOf4 || form == kRunsOf8 ? c.s_kv / run - 1 : 0); /* runs, of a list */
    for (int64_t k = 0; k < c.topk; k++) {
      const int64_t draw = span ? static_cast<int64_t>(random() % span) : 0;
      row[k] = static_cast<int32_t>(place + draw);
      if (form == kRange) {
        const int64_t half = c.topk / 2;
        row[k] = static_cast<int32_t>(k < half ? k + s % 3 : c.s_kv - half / 2 + k - half - s % 5);
      } else if (form != kDrawn && k % run) {
        row[k] = row[k - 1] + 1;
      } else if (form != kDrawn) {
        size_t at = random() % taken.size();
        while (taken[at]) at = (at + 1) % taken.size();
        taken[at] = true;
        row[k] = static_cast<int32_t>(at * run + s % run);
      }
      if (c.repeats > 0 && k > 0 && random() % c.repeats == 0) row[k] = row[random() % k];
      if (c.repeats == 0 && form == kDrawn) {
        if (seen[draw]) row[k] = -1;
        seen[draw] = true;
      }
      if (form != kDrawn && k % 97) continue; /* some runs are broken */
      if (random() % 50 == 0) row[k] = static_cast<int32_t>(-1 - static_cast<int64_t>(random() % 1000));
      if (random() % 50 == 0 && c.s_kv < INT32_MAX - 3) row[k] = static_cast<int32_t>(c.s_kv + random() % 3);
    }
    const int64_t part = static_cast<int64_t>(random() % (c.topk + 1));
    length[s] = static_cast<int32_t>(s % 3 == 0 ? c.topk + 9 : s % 7 == 0 ? -3 : s % 11 == 0 ? part : c.topk);
  }
  auto &offset = in.offset;
  offset.resize(c.requests ? c.requests + 1 : 0);
  for (int32_t &at : offset) at = static_cast<int32_t>(static_cast<int64_t>(random() % (c.s_q + 1)));
  std::sort(offset.begin(), offset.end());
  for (size_t r = 0; r < offset.size(); r += 1 + random() % 9)
    offset[r] = static_cast<int32_t>(random() % 4 ? random() % (c.s_q + 1) : random());
  return in;
}

/* The first row of each group, and s_q behind them. Requests end where the largest offset so far says, inside the
 * chunk; the last one at its end. */
static std::vector<int64_t> first_rows(const PlanCase &c, const PlanInput &in) {
  std::vector<int64_t> first;
  int64_t begin = 0;
  for (int r = 1; r <= std::max(c.requests, 1); r++) {
    int64_t end = c.s_q;
    if (r < c.requests) end = std::min<int64_t>(std::max<int64_t>(in.offset[r], begin), c.s_q);
    for (; begin < end; begin = std::min(begin + c.group, end)) first.push_back(begin);
  }
  const int64_t most = std::min<int64_t>(std::max(c.requests, 1), c.s_q), groups = most + (c.s_q - most) / c.group;
  first.resize(groups + 1, c.s_q);
  return first;
}

/* How a plan is built: complete; or for one call whose other rows are gathered; or padded, so that a sample of the
 * groups is looked at first, which finds enough, or too little. */
enum Use { kComplete, kBesideGather, kBesidePadded, kSampleSaysNone };

static void check_plan_of(const PlanCase &c, Use given) {
  const bool complete = given == kComplete;
  Use use = given;
  const int64_t capacity = c.topk * c.group;
  const PlanInput in = make_input(c);
  const auto &list = in.list, &length = in.length, &offset = in.offset;
  const int64_t stride = in.stride;
  const std::vector<int64_t> first = first_rows(c, in);
  const int64_t groups = static_cast<int64_t>(first.size()) - 1;
  Device<int32_t> offsets(static_cast<int64_t>(offset.size()) + 1);
  offsets.from(offset);
  Device<int32_t> indices(list.size()), lengths(length.size());
  indices.from(list);
  lengths.from(length);
  fh_call call;
  memset(&call, 0, sizeof call);
  call.struct_size = sizeof call;
  call.s_q = c.s_q, call.s_kv = c.s_kv, call.topk = c.topk, call.group = c.group, call.h_q = 1,
  call.d_qk = call.d_v = 512;
  call.indices = indices.p, call.indices_stride = stride, call.topk_length = lengths.p;
  call.requests = c.requests, call.cu_seqlens_q = c.requests ? offsets.p : nullptr;
  fh_costs costs;
  memset(&costs, 0, sizeof costs);
  const double gflop = 2 * 1024 * 1e-9; /* of a head and a key: what follows makes a key cost 1 and 64 entries
                                           begun 200 */
  costs.gather.gflop_us = 1 / gflop, costs.packed.unit_us = 50, costs.packed.gflop_us = 200 / (gflop * 64 * c.group);
  costs.padded.call_us = 1e9;
  if (use == kBesidePadded || use == kSampleSaysNone)
    call.h_pad = 1, std::swap(costs.padded, costs.gather), costs.plan.call_us = use == kSampleSaysNone ? 1e9 : 0;
  if (c.choose) call.path = FH_AUTO, call.costs = &costs;
  else call.path = FH_PACKED;
  Device<uint8_t> memory(static_cast<int64_t>(fhk_plan_bytes(&gpu, &call)));
  memory.poison();
  fh_plan plan;
  OK(fhk_plan_build(&gpu, &call, complete, memory.p, &plan, nullptr));
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
    snprintf(text, sizeof text, "%s[%lld, %lld]: got %llx, want %llx", what, static_cast<long long>(i),
             static_cast<long long>(j), static_cast<unsigned long long>(got), static_cast<unsigned long long>(want));
    bad = text;
  };
  differ("groups", 0, 0, plan.groups, groups);
  int64_t all = 0;
  std::vector<int32_t> want_order(groups), want_entries(groups);
  std::vector<bool> unpacked(groups);
  int64_t saved = 0; /* groups that are better packed */
  for (int64_t g = 0; g <= groups; g++) differ("first", g, 0, got_first[g], first[g]);
  /* KV row and query of each valid key of a group. */
  auto pairs_of = [&](int64_t g) {
    std::vector<std::pair<int32_t, int>> pairs;
    for (int64_t s = first[g]; s < first[g + 1]; s++)
      for (int64_t k = 0; k < std::min<int64_t>(std::max(length[s], 0), c.topk); k++) {
        const int32_t t = list[s * stride + k];
        if (t >= 0 && t < c.s_kv) pairs.push_back({t, static_cast<int>(s - first[g])});
      }
    return pairs;
  };
  auto saves_of = [&](int64_t g, double chosen, int64_t entries) {
    return c.choose && first[g] < first[g + 1] ? chosen - 50 - 200. * ((entries + 63) / 64) : 0;
  };
  if (given == kBesidePadded) { /* up to 64 groups have to find 4 % of what padding costs, or none is packed */
    const int64_t sampled = std::min<int64_t>(groups, 64);
    double found = 0;
    for (int64_t k = 0; k < sampled; k++) {
      const int64_t g = k * (groups / sampled);
      const auto pairs = pairs_of(g);
      std::set<int32_t> rows; /* a sample does not look for repeats */
      for (const auto &pair : pairs) rows.insert(pair.first);
      found += std::max(0., saves_of(g, static_cast<double>(pairs.size()), static_cast<int64_t>(rows.size())));
    }
    if (found * static_cast<double>(groups) < 0.04 * static_cast<double>(c.s_q * c.topk * sampled))
      use = kSampleSaysNone;
  }
  for (int64_t g = 0; g < groups; g++) {
    auto pairs = pairs_of(g);
    for (int64_t s = first[g]; s < first[g + 1]; s++) {
      const int64_t valid =
          std::count_if(pairs.begin(), pairs.end(), [&](auto &pair) { return pair.second == s - first[g]; });
      if (use != kSampleSaysNone) differ("keys", s, 0, static_cast<uint64_t>(keys[s]), valid);
    }
    std::sort(pairs.begin(), pairs.end());
    int64_t n = 0, run = 0, copy = 0;
    std::vector<uint64_t> who;
    std::vector<int32_t> rows_of_kv;
    for (size_t k = 0; k < pairs.size(); k++) {
      copy = k && pairs[k] == pairs[k - 1] ? copy + 1 : 0;
      if (!k || pairs[k].first != pairs[k - 1].first) run = n;
      if (run + copy == n) {
        rows_of_kv.push_back(pairs[k].first);
        who.push_back(0);
        n++;
      }
      who[run + copy] |= 1ull << pairs[k].second;
    }
    const double chosen = static_cast<double>(pairs.size());
    const double saves = saves_of(g, chosen, n);
    /* A group that goes row by row may be left unlisted. */
    const bool listed = complete || (saves >= 0 && use != kSampleSaysNone);
    differ("entries", g, 0, static_cast<uint64_t>(entries[g] > n || listed ? entries[g] : n), n);
    for (int64_t k = 0; k < n && listed; k++) {
      differ("token", g, k, static_cast<uint32_t>(token[g * capacity + k]), static_cast<uint32_t>(rows_of_kv[k]));
      differ("member", g, k, member[g * capacity + k], who[k]);
    }
    for (int64_t k = n; k < capacity; k++) {
      differ("token past the end", g, k, static_cast<uint32_t>(token[g * capacity + k]), 0xffffffffu);
      differ("member past the end", g, k, member[g * capacity + k], ~0ull);
    }
    want_order[g] = static_cast<int32_t>(g);
    want_entries[g] = static_cast<int32_t>(n);
    unpacked[g] = saves < 0 || use == kSampleSaysNone;
    saved += saves > 0 && !unpacked[g];
    all += n;
  }
  std::stable_sort(want_order.begin(), want_order.end(), [&](int32_t a, int32_t b) {
    if (unpacked[a] || unpacked[b]) return unpacked[a] && !unpacked[b];
    return (want_entries[a] + 63) / 64 > (want_entries[b] + 63) / 64;
  });
  const int64_t fewer = std::count(unpacked.begin(), unpacked.end(), true);
  differ("packed_from", 0, 0, packed_from, fewer && !saved ? groups : fewer); /* beside rows alone nothing is packed */
  for (int64_t g = 0; g < groups && (complete || packed_from < groups || groups <= 2048); g++)
    differ("order", g, 0, static_cast<uint32_t>(order[g]), static_cast<uint32_t>(want_order[g]));
  printf("plan: %-30s %8lld groups %9lld entries %8d not packed%s %s\n", c.name, static_cast<long long>(groups),
         static_cast<long long>(all), packed_from,
         (const char *[]){"", ", beside gather", ", beside padded", ", sampled"}[given],
         bad.empty() ? "ok" : ("FAILED: " + bad).c_str());
  fflush(stdout);
  bad.empty() ? passes++ : failures++;
}

static void check_plan(const PlanCase &c) {
  check_plan_of(c, kComplete);
  for (const Use use : {kBesideGather, kBesidePadded, kSampleSaysNone})
    if (c.choose) check_plan_of(c, use);
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
  for (int group : {2, 7, 8, 64})
    for (const int64_t s_kv : {10368, 70000, 300000}) {
      check_plan({"ranges", 202, s_kv, 640, group, 0, 0, 0, true, kRange});
      check_plan({"pools of 4", 202, s_kv, 640, group, 0, 0, 0, false, kRunsOf4});
      check_plan({"blocks of 8", 130, s_kv, 1024, group, 0, 0, 0, true, kRunsOf8});
      check_plan({"blocks of 8, not on 16 bytes", 67, s_kv, 1023, group, 0, 0, 0, false, kRunsOf8});
      check_plan({"any form", 202, s_kv, 644, group, 0, 0, 3, true, kMixed});
      check_plan({"any form, repeats", 66, s_kv, 2051, group, 0, 30, 0, false, kMixed});
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
  check_plan({"2^31 - 1 rows", 20, 0, 640, 8, 0, 200});
  check_plan({"topk 2048, 16", 100, 8192, 2048, 16, 0, 0});
  check_plan({"topk 5000, 64", 130, 100000, 5000, 64, 0, 0});
  check_plan({"topk 40000", 9, 200000, 40000, 8, 0, 100});
  check_plan({"groups past one count", 20000, 200, 20, 1, 0, 0});
  check_plan({"30000 groups of 2", 60000, 200, 10, 2, 0, 7});
  check_plan({"30000 groups of 2, choice", 60000, 20, 10, 2, 0, 7, 9, true});
}
static const Registration added({"portable_plan", {}, {}, check_plans});

}  // namespace fhk_test
