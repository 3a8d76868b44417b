/* The packed path against the oracle: groups of every size, plans made beforehand or on the way. */
#include "attention.h"

static fh_plan build_plan(fhk_cpu *cpu, const fh_call *call, void **memory) {
  fh_plan plan = {.struct_size = sizeof plan};
  *memory = must_alloc(fhk_cpu_plan_bytes(cpu, call));
  fhk_cpu_plan_build(cpu, call, *memory, &plan);
  return plan;
}

/* Every group that a head count allows gives the oracle's result, and all of them the same bits: a row's keys are
 * taken in the order of the plan, whoever the neighbours are. Not with amx, which adds up the whole union's entries
 * by tiles, so that which keys are added first depends on the neighbours. */
static void check_groups(int32_t h_q) {
  fhk_cpu *pools[FH_ISA_AMX + 1];
  open_pools(pools, 2);
  attention a = make_attention(13, 120, h_q, 512, 61, LENGTHS | HOLES | REPEATS | SINK, (uint64_t)h_q);
  result want = reference_result(&a, pools[FH_ISA_GENERIC]);
  for (int32_t isa = FH_ISA_GENERIC; isa <= fhk_cpu_best_isa(); isa++) {
    result first = {0};
    for (int32_t group = 1; group == 1 || group * h_q <= 64; group += group < 9 ? 1 : 13) {
      a.call.group = group;
      char what[64];
      snprintf(what, sizeof what, "%s, h_q %d, group %d", fhk_cpu_isa_name(isa), (int)h_q, (int)group);
      run_path(&a, pools[isa], FH_PACKED);
      result got = take_result(&a);
      check_result(&a, &got, &want, what);
      if (!first.out) {
        first = got;
        continue;
      }
      if (isa != FH_ISA_AMX) {
        if (!CHECK(memcmp(got.out, first.out, 13 * (size_t)h_q * 512 * 4) == 0)) printf("    %s\n", what);
        CHECK(memcmp(got.lse, first.lse, 13 * (size_t)h_q * 4) == 0);
      }
      free_result(&got);
    }
    free_result(&first);
  }
  free_result(&want);
  free_attention(&a);
  close_pools(pools);
}

/* A plan serves every call with the same lists: other q, other KV, other heads; and the result is that of a plan
 * built on the way. */
static void check_plan_reuse(void) {
  fhk_cpu *cpu = fhk_cpu_create(2, fhk_cpu_best_isa());
  attention a = make_attention(21, 90, 8, 512, 50, HOLES | REPEATS | LENGTHS, 1);
  void *memory;
  const fh_plan plan = build_plan(cpu, &a.call, &memory);
  for (int round = 0; round < 3; round++) {
    attention b = make_attention(21, 90, 8 - round, round == 1 ? 576 : 512, 50, 0, 100 + (uint64_t)round);
    b.call.indices = a.call.indices;
    b.call.indices_stride = a.call.indices_stride;
    b.call.topk_length = a.call.topk_length;
    b.call.group = a.call.group;
    run_path(&b, cpu, FH_PACKED);
    result own = take_result(&b);
    b.call.plan = &plan;
    run_path(&b, cpu, FH_PACKED);
    result got = take_result(&b), want = reference_result(&b, cpu);
    check_result(&b, &got, &want, "plan given");
    CHECK(memcmp(got.out, own.out, 21 * (size_t)b.call.h_q * 512 * 4) == 0);
    free_result(&own);
    free_result(&got);
    free_result(&want);
    free_attention(&b);
  }
  free(memory);
  free_attention(&a);
  fhk_cpu_destroy(cpu);
}

/* What is counted: a KV row of the union once a group, and no list, which the plan stands for. */
static void check_counters(void) {
  fhk_cpu *cpu = fhk_cpu_create(2, FH_ISA_GENERIC);
  attention a = make_attention(4, 40, 8, 512, 3, 0, 3);
  a.call.group = 2;
  const int32_t lists[12] = {5, 7, -1, 7, 7, 9, 1, 2, 3, 3, 2, 1};
  memcpy(a.indices, lists, sizeof lists);
  void *memory;
  const fh_plan plan = build_plan(cpu, &a.call, &memory);
  const uint64_t entries = 4 + 3; /* 5 7 7 9 and 1 2 3 */
  const uint64_t keys = 2 + 3 + 3 + 3, row = 8 * (512 * 2 + 512 * 2 + 4 + 4);
  const uint64_t fetched = entries * 1024 + 4 * row, metadata = entries * (4 + 8) + 2 * (4 + 4) + 4 * 4;
  a.call.plan = &plan;
  fh_counters counters = run_path(&a, cpu, FH_PACKED);
  CHECK_INT(counters.rows[FH_PACKED], 4);
  CHECK_INT(counters.useful_flops, 2 * keys * 8 * 1024);
  CHECK_INT(counters.bytes, fetched + metadata);
  a.call.lse = NULL;
  a.call.max_logits = NULL;
  counters = run_path(&a, cpu, FH_PACKED);
  CHECK_INT(counters.bytes, fetched + metadata - 4 * 8 * 8);
  free(memory);
  free_attention(&a);
  fhk_cpu_destroy(cpu);
}

int main(void) {
  check_grid(FH_PACKED);
  check_edges(FH_PACKED);
  check_threads(FH_PACKED);
  static const int32_t heads[] = {1, 3, 8, 20, 32};
  for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) check_groups(heads[i]);
  check_plan_reuse();
  check_counters();
  return check_summary();
}
