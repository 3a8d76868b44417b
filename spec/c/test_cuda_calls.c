/* What the CUDA back end says about calls without asking a device: paths, workspaces, refusals and costs. */
#include "cuda_back_end.h"
#include "groups.h"
#include "refuse.h"

typedef struct fake {
  fh_cuda cuda;
  fh_device device;
} fake;

/* A device as it is once open, but for what CUDA would have given it. */
static void open_fake(fake *f, int32_t capability, int32_t portable_only) {
  *f = (fake){.cuda = {.gpu = {.multiprocessors = 132, .capability = capability, .portable_only = portable_only}}};
  f->device.back_end = &fh_cuda_back_end;
  f->device.state = &f->cuda;
  f->device.info = (fh_device_info){.struct_size = sizeof f->device.info, .kind = FH_DEVICE_CUDA, .multiprocessors = 132,
                                     .capability = capability};
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
    CHECK_INT(fh_device_has_path(&ada.device, path, 8), path != FH_PACKED);
    CHECK_INT(fh_device_has_path(&forced.device, path, 8), path != FH_PACKED);
  }
  const fh_call call = call_of(FH_PACKED, 100, 8);
  uint64_t bytes = 0;
  REFUSED(fh_workspace_bytes(&ada.device, &call, &bytes), FH_ERR_UNSUPPORTED,
          "path packed on CUDA: required: compute capability 8.9, h_q 8; supported by sm90 packed: compute capability 9.0, "
          "h_q 1 .. 64; missing: compute capability 9.0; use gather or padded");
  REFUSED(fh_workspace_bytes(&forced.device, &call, &bytes), FH_ERR_UNSUPPORTED,
          "path packed on CUDA: required: compute capability 9.0, h_q 8; supported by sm90 packed: compute capability 9.0, "
          "h_q 1 .. 64; missing: the kernels that FEWHEAD_FORCE_PORTABLE=1 leaves out; use gather or padded");
  CHECK_INT(fh_plan_bytes(&ada.device, &call, &bytes), FH_OK); /* plans are for every device */
  CHECK(bytes >= 13 * 8 * 640 * 12);
  for (int32_t h_q = 1; h_q <= 64; h_q++) {
    const fh_call few = call_of(FH_PACKED, 100, h_q);
    CHECK_INT(fh_workspace_bytes(&h200.device, &few, &bytes), FH_OK);
  }
  const fh_call many = call_of(FH_PACKED, 100, 65);
  REFUSED(fh_workspace_bytes(&h200.device, &many, &bytes), FH_ERR_UNSUPPORTED,
          "path packed on CUDA: required: compute capability 9.0, h_q 65; supported by sm90 packed: compute capability 9.0, "
          "h_q 1 .. 64; missing: a kernel for h_q 65; use gather or padded");
}

static fh_plan plan_of(const fh_call *call, int32_t group) {
  return (fh_plan){.struct_size = sizeof(fh_plan), .s_q = call->s_q, .groups = (call->s_q + group - 1) / group, .group = group,
                   .s_kv = (int32_t)call->s_kv, .capacity = group * call->topk};
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

/* What FH_AUTO makes of a call by the built-in costs: the cheaper path for rows one by one, the cost of each path where an entry
 * serves 3 keys, and whether it lets a plan decide, one that is there or one to be built. */
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
  fh_work work = {.struct_size = sizeof work, .rows = s_q, .keys = s_q * 640, .h_q = h_q, .h_pad = call.h_pad,
                  .group = call.group, .d_qk = 512, .d_v = 512};
  CHECK_INT(fh_costs_choose(&costs, &work, 0, &a.rows, a.us, FH_PATHS), FH_OK);
  CHECK_INT(a.rows, fh_rows_path(&call, &costs));
  if (capability != 90 || call.group == 1) return a;
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

static int near(double got, double want, double share) {
  return got > want * (1 - share) && got < want * (1 + share);
}

static void costs(void) {
  answer a = ask(90, 8192, 8);
  CHECK(near(a.us[FH_PADDED], 1073, 0.02) && near(a.us[FH_GATHER], 702, 0.02)); /* as measured */
  CHECK_INT(a.rows, FH_GATHER);
  CHECK(a.on_plan && a.builds);
  a = ask(90, 1024, 8);
  CHECK(near(a.us[FH_PADDED], 141, 0.02) && near(a.us[FH_GATHER], 92, 0.02));
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
  CHECK_INT(ask(89, 8192, 8).rows, FH_GATHER); /* padded is the same kernel over 64 heads */
  CHECK_INT(ask(89, 8192, 32).rows, FH_GATHER);
}

int main(void) {
  paths();
  workspaces();
  costs();
  return check_summary();
}
