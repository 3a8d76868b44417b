/* What the CUDA back end says about calls without asking a device: paths, workspaces, refusals and costs. */
#include "cuda/cuda_back_end.h"
#include "groups.h"
#include "refuse.h"

#include "cuda/registry.h"

typedef struct fake {
  fh_cuda cuda;
  fh_device device;
} fake;

/* A device as it is once open, but for what CUDA would have given it. */
static void open_fake(fake *f, int32_t capability, int32_t portable_only) {
  *f = (fake){.cuda = {.gpu = {.multiprocessors = 132, .capability = capability, .portable_only = portable_only}}};
  f->device.back_end = &fh_cuda_back_end;
  f->device.state = &f->cuda;
  f->device.info = (fh_device_info){
      .struct_size = sizeof f->device.info, .kind = FH_DEVICE_CUDA, .multiprocessors = 132, .capability = capability};
}

static fh_call call_of(int32_t path, int64_t s_q, int32_t h_q) {
  fh_call call;
  fh_call_init(&call, sizeof call, s_q, 10240, h_q, 512, 640);
  call.path = path;
  return call;
}

static uint64_t workspace_of(fake *f, const fh_call *call) {
  uint64_t bytes = UINT64_MAX;
  CHECK_INT(fh_workspace_bytes(&f->device, call, &bytes), FH_OK);
  return bytes;
}

static void paths(void) {
  fake h200, ada, forced;
  open_fake(&h200, 90, 0);
  open_fake(&ada, 89, 0);
  open_fake(&forced, 90, 1);
  for (int32_t path = 0; path < FH_PATHS; path++) {
    CHECK_INT(fh_device_has_path(&h200.device, path, 0), 1);
    CHECK_INT(fh_device_has_path(&h200.device, path, 64), 1);
    CHECK_INT(fh_device_has_path(&h200.device, path, 65), path != FH_PACKED);
    CHECK_INT(fh_device_has_path(&ada.device, path, 8), 1);
    CHECK_INT(fh_device_has_path(&ada.device, path, 65), path != FH_PACKED);
    CHECK_INT(fh_device_has_path(&forced.device, path, 8), 1);
  }
  const fh_call call = call_of(FH_PACKED, 100, 8);
  uint64_t bytes = 0;
  CHECK_INT(fh_plan_bytes(&ada.device, &call, &bytes), FH_OK); /* plans are for every device */
  CHECK(bytes >= 13 * 8 * 640 * 12);
  for (int32_t h_q = 1; h_q <= 64; h_q++) {
    const fh_call few = call_of(FH_PACKED, 100, h_q);
    CHECK_INT(fh_workspace_bytes(&h200.device, &few, &bytes), FH_OK);
  }
  const fh_call many = call_of(FH_PACKED, 100, 65);
  REFUSED(fh_workspace_bytes(&h200.device, &many, &bytes), FH_ERR_UNSUPPORTED,
          "path packed on CUDA: required: compute capability 9.0, h_q 65; supported by sm90 packed: compute capability "
          "9.0, "
          "h_q 1 .. 64; missing: a kernel for h_q 65; use gather or padded");
  REFUSED(fh_workspace_bytes(&ada.device, &many, &bytes), FH_ERR_UNSUPPORTED,
          "path packed on CUDA: required: compute capability 8.9, h_q 65; supported by portable packed: compute "
          "capability 8.0 and up, h_q 1 .. 64; missing: a kernel for h_q 65; use gather or padded");
}

static fh_plan plan_of(const fh_call *call, int32_t group) {
  return (fh_plan){.struct_size = sizeof(fh_plan),
                   .s_q = call->s_q,
                   .groups = (call->s_q + group - 1) / group,
                   .group = group,
                   .s_kv = (int32_t)call->s_kv,
                   .capacity = group * call->topk};
}

static void workspaces(void) {
  fake f;
  open_fake(&f, 90, 0);
  fh_call call = call_of(FH_PACKED, 64, 8);
  uint64_t plan_bytes = 0;
  CHECK_INT(fh_plan_bytes(&f.device, &call, &plan_bytes), FH_OK);
  const uint64_t whole = workspace_of(&f, &call);
  const fh_plan plan = plan_of(&call, 8);
  call.plan = &plan;
  const uint64_t parts = workspace_of(&f, &call);
  CHECK(parts > 0); /* 8 groups are few: their unions are split */
  CHECK_INT(whole, (plan_bytes + 255) / 256 * 256 + parts);
}

/* What FH_AUTO makes of a call by the built-in costs: the cheaper path for rows one by one, the cost of each path
 * where an entry serves 3 keys, and whether it lets a plan decide, one that is there or one to be built. */
typedef struct answer {
  double us[FH_PATHS];
  int32_t rows, on_plan, builds;
} answer;

static answer ask(int32_t capability, int64_t s_q, int32_t h_q) {
  answer a = {.rows = -1};
  fake f;
  open_fake(&f, capability, 0);
  fh_call call = call_of(FH_AUTO, s_q, h_q);
  call.group = 64 / h_q ? 64 / h_q : 1;
  call.h_pad = fh_padded_heads(h_q);
  fh_costs costs = {.struct_size = sizeof costs};
  fh_cuda_costs(&f.device, &call, &costs);
  fh_work work = {.struct_size = sizeof work,
                  .rows = s_q,
                  .keys = s_q * 640,
                  .h_q = h_q,
                  .h_pad = call.h_pad,
                  .group = call.group,
                  .d_qk = 512,
                  .d_v = 512};
  CHECK_INT(fh_costs_choose(&costs, &work, 0, &a.rows, a.us, FH_PATHS), FH_OK);
  CHECK_INT(a.rows, fh_rows_path(&call, &costs));
  if (call.group == 1) return a;
  work.groups = (s_q + call.group - 1) / call.group;
  work.entries = s_q * 640 / 3;
  int32_t path = 0;
  CHECK_INT(fh_costs_choose(&costs, &work, 0, &path, a.us, FH_PATHS), FH_OK);
  CHECK_INT(fh_costs_packs(&costs, &work, 0, 1, &a.on_plan), FH_OK);
  CHECK_INT(fh_costs_packs(&costs, &work, 0, 0, &a.builds), FH_OK);
  /* the workspace holds a plan where one is built, and nowhere else */
  uint64_t plan_bytes = 0;
  call.group = call.h_pad = 0;
  CHECK_INT(fh_plan_bytes(&f.device, &call, &plan_bytes), FH_OK);
  CHECK_INT(workspace_of(&f, &call) >= plan_bytes, a.builds);
  call.row_invariant = 1;
  CHECK(workspace_of(&f, &call) < plan_bytes);
  return a;
}

static int near(double got, double want, double share) { return got > want * (1 - share) && got < want * (1 + share); }

static void costs(void) {
  answer a = ask(90, 8192, 8);
  CHECK(near(a.us[FH_PADDED], 1024, 0.02) && near(a.us[FH_GATHER], 702, 0.02)); /* as measured */
  CHECK_INT(a.rows, FH_GATHER);
  CHECK(a.on_plan && a.builds);
  a = ask(90, 1024, 8);
  CHECK(near(a.us[FH_PADDED], 134, 0.02) && near(a.us[FH_GATHER], 92, 0.02));
  CHECK(a.on_plan && a.builds);
  a = ask(90, 64, 8);
  CHECK_INT(a.rows, FH_GATHER);
  CHECK(!a.builds); /* a plan would cost more than it can save */
  a = ask(90, 8192, 16);
  CHECK(near(a.us[FH_GATHER], 871, 0.02));
  CHECK_INT(a.rows, FH_GATHER);
  a = ask(90, 8192, 32);
  CHECK(near(a.us[FH_GATHER], 1678, 0.02));
  CHECK_INT(a.rows, FH_PADDED);
  CHECK(a.on_plan);
  CHECK_INT(ask(90, 8192, 64).rows, FH_PADDED);
  CHECK_INT(ask(90, 1, 64).rows, FH_GATHER); /* two blocks of heads: still fewer clusters than multiprocessors */
  a = ask(90, 16, 64); /* twice as many clusters as fit at once: measured 29.6 us beside 21.3 of padded */
  CHECK(near(a.us[FH_GATHER], 31, 0.1));
  CHECK_INT(a.rows, FH_PADDED);
  a = ask(89, 8192, 8);
  CHECK_INT(a.rows, FH_GATHER); /* padded is the same kernel over 64 heads */
  CHECK(a.on_plan && a.builds);
  CHECK_INT(ask(89, 8192, 32).rows, FH_GATHER);
}

/* The kernel that takes a call of 8 heads whose q, kv and out are moved by so many elements. */
static const char *kernel_of(const fake *f, int32_t path, int q, int kv, int out) {
  static uint16_t _Alignas(16) memory[64];
  fh_call call = call_of(path, 100, 8);
  call.h_pad = 64;
  call.group = 8;
  call.q = memory + q;
  call.kv = memory + kv;
  call.out = memory + out;
  const fhk_kernel *kernel = fhk_kernel_of(&f->cuda.gpu, &call, path);
  return kernel ? kernel->name : "none";
}

/* Every row has what a row needs, and no two rows of a path have the same preference. */
static void rows(void) {
  const fhk_kernel *a, *b;
  int32_t count = 0;
  for (; (a = fhk_kernel_row(count)); count++) {
    CHECK(a->prepare && a->workspace && a->run);
    CHECK(a->path > FH_AUTO && a->path < FH_PATHS && a->most_heads > 0 && a->capability >= 80);
    CHECK(a->q_bytes > 0 && a->kv_bytes > 0 && a->out_bytes > 0 && a->narrowest > 0 && a->block > 0 && a->tile > 0);
    for (int32_t i = 0; i < count; i++) {
      b = fhk_kernel_row(i);
      CHECK(a->path != b->path || a->preference != b->preference);
    }
  }
  CHECK(count >= 12);
  CHECK(fhk_kernel_row(-1) == NULL && fhk_kernel_row(count + 1) == NULL);
}

static void kernels(void) {
  fake h200, ada, forced;
  open_fake(&h200, 90, 0);
  open_fake(&ada, 89, 0);
  open_fake(&forced, 90, 1);
  const struct {
    int32_t path;
    int q, kv, out;
    const char *on_h200, *elsewhere;
  } table[] = {
      {FH_REFERENCE, 1, 1, 1, "portable reference", "portable reference"},
      {FH_PADDED, 0, 0, 0, "sm90 padded", "portable gather"},
      {FH_PADDED, 0, 0, 4, "sm90 padded, unaligned out", "portable gather, unaligned"},
      {FH_PADDED, 4, 0, 0, "sm90 padded, unaligned", "portable gather"},
      {FH_PADDED, 0, 1, 0, "sm90 padded, unaligned", "portable gather, unaligned"},
      {FH_GATHER, 0, 0, 0, "sm90 gather", "portable gather"},
      {FH_GATHER, 0, 0, 2, "sm90 gather", "portable gather, unaligned"},
      {FH_GATHER, 0, 0, 1, "portable gather, unaligned", "portable gather, unaligned"},
      {FH_GATHER, 2, 0, 0, "portable gather", "portable gather"},
      {FH_GATHER, 1, 0, 0, "portable gather, unaligned", "portable gather, unaligned"},
      {FH_GATHER, 0, 4, 0, "portable gather, unaligned", "portable gather, unaligned"},
      {FH_PACKED, 0, 0, 0, "sm90 packed", "portable packed"},
      {FH_PACKED, 0, 0, 4, "sm90 packed, unaligned out", "portable packed, unaligned"},
      {FH_PACKED, 4, 0, 0, "sm90 packed, unaligned", "portable packed"},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    CHECK_STR(kernel_of(&h200, table[i].path, table[i].q, table[i].kv, table[i].out), table[i].on_h200);
    CHECK_STR(kernel_of(&ada, table[i].path, table[i].q, table[i].kv, table[i].out), table[i].elsewhere);
    CHECK_STR(kernel_of(&forced, table[i].path, table[i].q, table[i].kv, table[i].out), table[i].elsewhere);
  }
  /* Strides count as the base does. */
  fh_call call = call_of(FH_GATHER, 100, 8);
  call.kv_stride = 512 + 4;
  CHECK_STR(fhk_kernel_of(&h200.cuda.gpu, &call, FH_GATHER)->name, "portable gather, unaligned");
}

/* A device that is in the table gets what was measured on it, whatever it reports; another one costs that are
 * scaled. */
static void scaled_costs(void) {
  fake f;
  fh_costs measured = {.struct_size = sizeof measured}, scaled = measured, small = measured;
  open_fake(&f, 90, 0);
  const fh_call call = call_of(FH_GATHER, 0, 8);
  fh_call whole = call;
  whole.h_pad = 64;
  whole.group = 8;
  f.cuda.gpu.name = "NVIDIA H200";
  f.cuda.gpu.clock_mhz = 1000;
  CHECK_STR(fh_cuda_costs(&f.device, &whole, &measured), "measured on NVIDIA H200");
  CHECK(measured.gather.gflop_us == 7.86 && measured.padded.gflop_us == 1.46 && measured.packed.gflop_us == 1.34);
  f.cuda.gpu = (fhk_gpu){.multiprocessors = 66,
                         .capability = 90,
                         .clock_mhz = 990,
                         .memory_clock_mhz = 3201,
                         .memory_bus_bits = 3072,
                         .name = "NVIDIA H20"};
  CHECK_STR(fh_cuda_costs(&f.device, &whole, &scaled),
            "scaled from NVIDIA H200 by multiprocessors, clocks and memory bus; nobody measured this device");
  CHECK(near(scaled.gather.gflop_us, 4 * 7.86, 1e-9) && near(scaled.padded.gflop_us, 4 * 1.46, 1e-9));
  CHECK(near(scaled.packed.unit_us, 4 * measured.packed.unit_us, 1e-9) && near(scaled.plan.gflop_us, 2 * 0.15, 1e-9));
  CHECK(scaled.gather.call_us == measured.gather.call_us);
  f.cuda.gpu = (fhk_gpu){.multiprocessors = 66, .capability = 89, .name = "NVIDIA L4"}; /* clocks unknown: they count as
                                                                                           equal */
  (void)fh_cuda_costs(&f.device, &whole, &small);
  CHECK(near(small.gather.gflop_us, 2 * 10.15, 1e-9) && near(small.padded.gflop_us, 2 * 6.56, 1e-9));
}

/* The example of the header, which must stay true. */
static void explained(void) {
  fake f;
  char text[512];
  open_fake(&f, 90, 0);
  f.cuda.gpu.name = "NVIDIA H200";
  fh_call call = call_of(FH_AUTO, 1024, 8);
  CHECK_INT(fh_explain(&f.device, &call, text, sizeof text), FH_OK);
  CHECK_STR(
      text,
      "s_q 1024, h_q 8, 655360 keys: auto builds a plan, which says which groups are packed; the other rows take "
      "gather. Expected: padded 135 us, gather 92.3 us, packed 24.5 us at best and 12.6 us for its plan: packing saves "
      "55.2 us at most, and has to save 19.5 us. Costs: measured on NVIDIA H200");
  call = call_of(FH_AUTO, 8192, 32); /* rows that are padded: a plan for a large call, none for a small one */
  CHECK_INT(fh_explain(&f.device, &call, text, sizeof text), FH_OK);
  CHECK(strstr(text, "auto builds a plan, which says which groups are packed; the other rows take padded.") != NULL);
  call = call_of(FH_AUTO, 1024, 32);
  CHECK_INT(fh_explain(&f.device, &call, text, sizeof text), FH_OK);
  CHECK(strstr(text, "auto takes padded for all rows.") != NULL);
  call = call_of(FH_AUTO, 1024, 33); /* a group would be one query */
  CHECK_INT(fh_explain(&f.device, &call, text, sizeof text), FH_OK);
  CHECK(strstr(text, "; packed is not on offer: a group of one row shares nothing. ") != NULL);
}

int main(void) {
  explained();
  rows();
  kernels();
  scaled_costs();
  paths();
  workspaces();
  costs();
  return check_summary();
}
