/*
 * The CUDA kernels alone: no library, no Lua. Every attention kernel against the reference kernel, the reference kernel
 * against double loops on the CPU, over the corners of the contract; plans against a brute force; then times. The cases
 * of the contract are in contract.cu, the cases of one kernel in cases.cu of its folder.
 *
 *   kernels check [NAME]              all cases; NAME: only this kernel; auto: FH_AUTO's parts. Exit status 1 when one
 *                                     fails
 *   kernels small [NAME]              a few small cases: what compute-sanitizer is run on
 *   kernels plan                      plans against a host brute force, exact
 *   kernels garbage                   plans that hold garbage: nothing outside the outputs is written
 *   kernels time [NAME] [quick|full]  microseconds, CUDA events, median of 30 launches
 *   kernels share [quick|packed]      plan and packed over patterns with overlap, with padded beside; packed: its
 *                                     kernel alone
 *   kernels once NAME PATTERN S_Q     two launches: for a profiler
 *
 * NAME: sm90_padded, sm90_gather, sm90_packed, portable_gather. A case whose rows are not aligned is not the case of a
 * kernel that wants aligned ones; the last line counts these.
 */
#include <chrono>

#include "cuda/test/test.h"

namespace fhk_test {

fhk_gpu gpu;
int passes = 0, failures = 0, skips = 0;

const Family kReference = {"portable_reference", "portable reference", FH_REFERENCE};

/* ---- Kernels under test ---- */

namespace {

constexpr uint64_t kLine = 256;
uint64_t rounded(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/* Of the rows for the path whose names begin with `kernel` and that take the call, the preferred one. */
const fhk_kernel *row_of(const char *kernel, const fhk_gpu &on, const fh_call &call, int32_t path) {
  const fhk_kernel *best = nullptr;
  for (int32_t i = 0; const fhk_kernel *row = fhk_kernel_row(i); i++)
    if (!strncmp(row->name, kernel, strlen(kernel)) && fhk_kernel_takes(row, &on, &call, path) &&
        (!best || row->preference > best->preference))
      best = row;
  return best;
}

}  // namespace

fhk_gpu Family::device() const {
  fhk_gpu on = gpu;
  if (multiprocessors) on.multiprocessors = multiprocessors;
  if (capability) on.capability = capability;
  return on;
}

const fhk_kernel *Family::row(const fh_call &call) const { return row_of(kernel, device(), call, path); }

int Family::prepare() const {
  int status = cudaSuccess;
  for (int32_t i = 0; const fhk_kernel *r = fhk_kernel_row(i); i++)
    if (status == cudaSuccess && (!strncmp(r->name, kernel, strlen(kernel)) || (parts && r->path == FH_PACKED)) &&
        fhk_kernel_runs_on(r, &gpu))
      status = r->prepare();
  return status;
}

uint64_t Family::workspace(const fh_call &given) const {
  const fhk_gpu on = device();
  fh_call call = given;
  const fh_plan any = {};
  uint64_t bytes = 0;
  if (plans() && !call.plan) bytes = rounded(fhk_plan_bytes(&on, &call)), call.plan = &any;
  const fhk_kernel *packed = plans() ? row_of("sm90 packed", on, call, FH_PACKED) : row(call);
  return bytes + (packed ? packed->workspace(&on, &call) : 0);
}

int Family::build_plan(const fh_call &given, void *memory, fh_plan *plan, cudaStream_t stream) const {
  const fhk_gpu on = device();
  fh_call call = given;
  const double by_key = 1 / (2e-9 * (call.d_qk + call.d_v)), half = 0.5 * call.topk * call.group;
  fh_costs costs = {sizeof costs, {1e9, 0, 0}, {1e9, 0, 0}, {0, half, 0}, {0, 0, 0}, {0, 0, 0}};
  (path == FH_PADDED ? costs.padded : costs.gather) = {0, 0, by_key / (path == FH_PADDED ? call.h_pad : call.h_q)};
  call.path = parts ? FH_AUTO : FH_PACKED;
  call.costs = parts ? &costs : nullptr;
  return fhk_plan_build(&on, &call, 0, memory, plan, stream);
}

int Family::run(const fh_call &given, cudaStream_t stream) const {
  const fhk_gpu on = device();
  fh_call call = given;
  fh_plan plan;
  call.path = parts ? FH_AUTO : path;
  if (plans() && !call.plan) {
    const int status = build_plan(given, call.workspace, &plan, stream);
    if (status != cudaSuccess) return status;
    call.plan = &plan;
    call.workspace = static_cast<char *>(call.workspace) + rounded(fhk_plan_bytes(&on, &given));
  }
  if (parts) {
    const int status = row_of("sm90 packed", on, call, FH_PACKED)->run(&on, &call, stream);
    if (status != cudaSuccess) return status;
  }
  return row(call)->run(&on, &call, stream);
}

/* ---- Suites ---- */

namespace {
std::vector<Suite> &all_suites() {
  static std::vector<Suite> all;
  return all;
}
}  // namespace

Registration::Registration(Suite suite) {
  all_suites().push_back(std::move(suite));
  std::sort(all_suites().begin(), all_suites().end(),
            [](const Suite &a, const Suite &b) { return strcmp(a.name, b.name) < 0; });
}
const std::vector<Suite> &suites() { return all_suites(); }

bool wanted(const Family &f, const char *only) {
  return !only || !strcmp(only, f.name) || (f.parts && !strcmp(only, "auto")) ||
         (!f.parts && !strncmp(f.name, only, strlen(only)) && f.name[strlen(only)] == ',');
}

const Family &family(const char *name) {
  for (const Suite &s : suites())
    for (const Family &f : s.families)
      if (!strcmp(f.name, name)) return f;
  printf("%s: no such kernel in this program\n", name);
  _Exit(2);
}

/* ---- Waiting ---- */

void finish(const char *what, const char *name) {
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

}  // namespace fhk_test

using namespace fhk_test;

/* All families that are asked for. */
static std::vector<Family> families(const char *only) {
  std::vector<Family> all;
  for (const Suite &s : suites())
    for (const Family &f : s.families)
      if (wanted(f, only)) all.push_back(f);
  return all;
}

static int verdict() {
  printf("%d passed, %d failed, %d not the kernel's case\n", passes, failures, skips);
  return failures || !passes ? 1 : 0;
}

static int check(const char *only, bool small) {
  const std::vector<Family> all = families(only);
  if (all.empty()) {
    printf("%s: no such kernel in this program\n", only);
    return 2;
  }
  for (const Case &c : small ? small_cases() : contract_cases()) check_case(c, all, small ? 2 : 6);
  for (const Suite &s : suites()) {
    std::vector<Family> own;
    for (const Family &f : s.families)
      if (wanted(f, only)) own.push_back(f);
    if (s.cases && !small && !own.empty())
      for (const Case &c : s.cases()) check_case(c, own, 6);
    if (s.more && (s.families.empty() || !own.empty())) s.more(small);
  }
  if (!small) {
    check_far(kReference);
    for (const Family &f : all)
      if (!f.parts && !f.multiprocessors) check_far(f);
  }
  return verdict();
}

/* The checks of one suite that are not cases of the contract. */
static int more_of(const char *suite) {
  for (const Suite &s : suites())
    if (!strcmp(s.name, suite)) s.more(false);
  return verdict();
}

static int once(const char *name, const char *pattern, int64_t s_q) {
  Case c;
  c.pattern = !strcmp(pattern, "csa") ? kCsa : kUniform;
  c.s_q = s_q, c.s_kv = c.pattern == kCsa ? 10240 : 8192, c.buffer_heads = 64, c.lengths = c.pattern == kCsa;
  c.holes = c.repeats = false;
  Problem p(c);
  const Family &f = family(name);
  const Ready ready(f, p.call);
  for (int k = 0; k < 2; k++) OK(f.run(ready.call, nullptr));
  finish("once", name);
  return 0;
}

int main(int argc, char **argv) {
  const std::string what = argc > 1 ? argv[1] : "check";
  const std::string amount = argc > 2 ? argv[argc - 1] : "";
  const bool amount_alone = what == "share" || amount == "quick" || amount == "full";
  const char *only = argc > (amount_alone ? 3 : 2) ? argv[2] : nullptr;
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 0));
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.capability = properties.major * 10 + properties.minor;
  if (what == "small") gpu.multiprocessors = 3; /* fewer CTAs than tiles: rings and phases live on from tile to tile */
  OK(kReference.prepare());
  for (const Family &f : families(nullptr)) OK(f.prepare());
  OK(fhk_plan_prepare());
  if (what == "check" || what == "small") return check(only, what == "small");
  if (what == "plan") return more_of("portable_plan");
  if (what == "garbage") return more_of("sm90_packed");
  if (what == "share") {
    time_sharing(amount == "quick" || amount == "packed" || amount == "portable", amount == "packed",
                 amount == "portable");
    return 0;
  }
  if (what == "time") {
    time_all(only, amount == "quick", amount == "full");
    if (amount != "quick") printf("reference, 8192 rows x 8 heads x 640 keys: %.1f ms\n", reference_ms());
    return 0;
  }
  if (what == "once" && argc == 5) return once(argv[2], argv[3], atoll(argv[4]));
  printf(
      "usage: kernels check|small [NAME] | plan | garbage | time [NAME] [quick|full] | share [quick|packed|portable] | "
      "once NAME uniform|csa S_Q\n");
  return 2;
}
