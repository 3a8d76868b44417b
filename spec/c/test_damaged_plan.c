/* A plan whose memory was overwritten after it was built: the answer is wrong, but nothing outside the call's arrays
 * is read or written, and the next call is right. The sanitizers see reads; canaries show writes. */
#include <math.h>
#include <stdlib.h>

#include "refuse.h"

enum { S_Q = 21, S_KV = 40, H_Q = 8, TOPK = 3, OUT = S_Q * H_Q * 512, CANARY = 4096 };

static uint16_t *q, *kv, *out;
static float *lse;
static int32_t *indices;

static fh_call a_call(int32_t path) {
  fh_call call;
  fh_call_init(&call, sizeof call, S_Q, S_KV, H_Q, 512, TOPK);
  call.path = path;
  call.q = q;
  call.kv = kv;
  call.indices = indices;
  call.out = out + CANARY;
  call.lse = lse;
  return call;
}

/* Runs the call with a workspace of its own; 1 when nothing around `out` was written. */
static int run(fh_device *device, fh_call *call) {
  uint64_t bytes = 0;
  CHECK_INT(fh_workspace_bytes(device, call, &bytes), FH_OK);
  call->workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
  call->workspace_bytes = bytes;
  for (int64_t i = 0; i < OUT + 2 * CANARY; i++) out[i] = 0x7fc1;
  CHECK_INT(fh_sparse_fwd(device, call), FH_OK);
  free(call->workspace);
  call->workspace = NULL;
  int touched = 0;
  for (int64_t i = 0; i < CANARY; i++) touched += out[i] != 0x7fc1 || out[CANARY + OUT + i] != 0x7fc1;
  return !touched;
}

/* Each row lists KV rows 3, 4 and 5, which hold those numbers: 4, and ln 3. */
static int right(void) {
  for (int64_t i = 0; i < OUT; i++)
    if (out[CANARY + i] != 0x4080) return 0;
  for (int64_t i = 0; i < S_Q * H_Q; i++)
    if (fabsf(lse[i] - 1.0986123f) > 1e-6f) return 0;
  return 1;
}

static uint64_t random_word(void) {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 16 ^ state << 32;
}

/* The plan's memory as something else would leave it: one pattern in every byte or word, or noise. */
static void spoil(unsigned char *memory, uint64_t bytes, int how) {
  static const uint32_t words[] = {0, 1, 1000000000u, 0x7fffffffu, 0x80000000u, 0xffffffffu, 0x7fc17fc1u};
  for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
    const uint32_t word = how < 7 ? words[how] : (uint32_t)random_word() % (how % 2 ? 64 : UINT32_MAX);
    memcpy(memory + i, &word, 4);
  }
}

static void each_path(fh_device *device, int32_t path) {
  fh_call call = a_call(path);
  /* Costs by which FH_AUTO packs some groups and not all: 21 rows are two groups of 8 and one of 5. */
  const fh_costs costs = {
      .struct_size = sizeof costs, .padded = {1e9, 0, 0}, .gather = {0, 1, 0}, .packed = {0, 7.5, 0}};
  fh_plan plan = {.struct_size = sizeof plan};
  uint64_t bytes = 0;
  if (path == FH_AUTO) call.costs = &costs;
  CHECK_INT(fh_plan_bytes(device, &call, &bytes), FH_OK);
  unsigned char *memory = aligned_alloc(64, bytes);
  for (int how = 0; how < 27; how++) {
    call.plan = NULL;
    CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
    call.plan = &plan;
    CHECK(run(device, &call));
    CHECK(right());
    spoil(memory, bytes, how);
    CHECK(run(device, &call));
  }
  /* One array at a time. An entry that is no KV row counts as an index that is none. */
  static const int64_t wild[] = {-1, INT32_MIN, INT32_MAX, 1000000000, S_KV, 64};
  for (size_t w = 0; w < sizeof wild / sizeof *wild; w++)
    for (int array = 0; array < 6; array++) {
      call.plan = NULL;
      CHECK_INT(fh_plan_build(device, &call, memory, bytes, &plan), FH_OK);
      call.plan = &plan;
      for (int64_t i = 0; array == 0 && i < plan.groups * plan.capacity; i++) plan.token[i] = (int32_t)wild[w];
      for (int64_t i = 0; array == 1 && i < plan.groups * plan.capacity; i++) plan.member[i] = (uint64_t)wild[w];
      for (int64_t i = 0; array == 2 && i < plan.groups; i++) plan.entries[i] = (int32_t)wild[w];
      for (int64_t i = 0; array == 3 && i < plan.groups; i++) plan.order[i] = (int32_t)wild[w];
      for (int64_t i = 0; array == 4 && i <= plan.groups; i++) plan.first[i] = wild[w];
      if (array == 5) *plan.packed_from = (int32_t)wild[w];
      CHECK(run(device, &call));
      if (array || path != FH_PACKED || wild[w] == 64) continue;
      int wrong = 0;
      for (int64_t i = 0; i < OUT; i++) wrong += out[CANARY + i] != 0;
      for (int64_t i = 0; i < S_Q * H_Q; i++) wrong += lse[i] != INFINITY;
      CHECK_INT(wrong, 0);
    }
  free(memory);
}

int main(void) {
  q = calloc(S_Q * H_Q * 512, sizeof *q);
  kv = malloc(S_KV * 512 * sizeof *kv);
  out = malloc((OUT + 2 * CANARY) * sizeof *out);
  lse = malloc(S_Q * H_Q * sizeof *lse);
  indices = malloc(S_Q * TOPK * sizeof *indices);
  for (int i = 0; i < S_Q * TOPK; i++) indices[i] = 3 + i % 3;
  static const uint16_t three_on[] = {0x4040, 0x4080, 0x40a0};
  for (int i = 0; i < S_KV * 512; i++) kv[i] = i / 512 >= 3 && i / 512 <= 5 ? three_on[i / 512 - 3] : 0;
  for (int32_t isa = FH_ISA_GENERIC; isa <= FH_ISA_AMX; isa++)
    for (int32_t threads = 1; threads <= 3; threads += 2) {
      const fh_device_options options = {.struct_size = sizeof options, .threads = threads, .isa = isa};
      fh_device *device = NULL;
      if (fh_device_open("cpu", &options, &device)) continue; /* not of this CPU */
      each_path(device, FH_PACKED);
      each_path(device, FH_AUTO);
      fh_device_close(&device);
    }
  CHECK(check_passed > 0);
  free(q), free(kv), free(out), free(lse), free(indices);
  return check_summary();
}
