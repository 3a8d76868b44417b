/*
 * The plan builder: for each group of neighbouring queries the union of their lists and, per entry, who chose it
 * (fh_plan).
 *
 * Each group's valid (KV row, query) pairs are collected query by query, sorted by KV row with a stable radix sort, and
 * merged: in a run of equal rows the k-th pair of a query joins the k-th copy. The cost is proportional to the pairs
 * and does not depend on s_kv: the sort takes one pass for each 11 bits of the group's largest row.
 */
#include "cpu/back_end.h"
#include "plan_layout.h"

enum {
  DIGIT_BITS = 11, /* a histogram of 8 KiB stays in the first-level cache beside the pairs it sorts */
  MOST_PASSES = (32 + DIGIT_BITS - 1) / DIGIT_BITS
};

typedef struct plan_run {
  const fh_call *call;
  fh_plan *plan;
  fh_group_costs costs;
  uint64_t *rank; /* of each group: fh_group_rank in the upper half, its number in the lower */
  char *scratch;
  uint64_t scratch_bytes; /* of one thread: pairs, and room to sort them */
} plan_run;

/* What is needed while a plan is built, behind its arrays: the ranks, with room to sort them, then a share of each
 * thread. */
static uint64_t rank_bytes(const fh_call *call) {
  return fhk_part((uint64_t)fh_groups_most(call->s_q, call->requests, call->group), 2 * sizeof(uint64_t));
}

static uint64_t thread_bytes(const fh_call *call) {
  return fhk_part(fhk_mul((uint64_t)call->topk, (uint64_t)call->group), 2 * sizeof(uint64_t));
}

/* Sorts n words by their upper halves, stably. No upper half exceeds `max`; `spare` has room for n words. Returns
 * the array that holds the result. */
static uint64_t *sort_by_upper_half(uint64_t *words, uint64_t *spare, int64_t n, uint32_t max) {
  int bits = 0;
  while (bits < 32 && max >> bits) bits++;
  const int passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS, digit = passes ? (bits + passes - 1) / passes : 0;
  const uint64_t mask = ((uint64_t)1 << digit) - 1;
  uint32_t count[MOST_PASSES][1 << DIGIT_BITS];
  for (int pass = 0; pass < passes; pass++) memset(count[pass], 0, (mask + 1) * sizeof **count);
  for (int64_t i = 0; i < n; i++)
    for (int pass = 0; pass < passes; pass++) count[pass][words[i] >> (32 + pass * digit) & mask]++;
  for (int pass = 0; pass < passes; pass++) {
    const int shift = 32 + pass * digit;
    uint32_t before = 0;
    for (uint64_t d = 0; d <= mask; d++) {
      const uint32_t here = count[pass][d];
      count[pass][d] = before;
      before += here;
    }
    for (int64_t i = 0; i < n; i++) spare[count[pass][words[i] >> shift & mask]++] = words[i];
    uint64_t *swap = words;
    words = spare;
    spare = swap;
  }
  return words;
}

/* What packing group g saves; its keys and entries have been counted. */
static int32_t saves(const plan_run *run, int64_t g) {
  const fh_plan *plan = run->plan;
  int64_t keys = 0;
  for (int64_t s = plan->first[g]; s < plan->first[g + 1]; s++) keys += plan->keys[s];
  return fh_group_saves(&run->costs, plan->entries[g], plan->first[g + 1] - plan->first[g], keys);
}

static void plan_group(void *arg, int64_t g, int32_t thread) {
  const plan_run *run = arg;
  const fh_call *call = run->call;
  fh_plan *plan = run->plan;
  uint64_t *pair = (uint64_t *)(run->scratch + (uint64_t)thread * run->scratch_bytes);
  const int64_t first = plan->first[g], last = plan->first[g + 1];
  int64_t pairs = 0;
  uint32_t max = 0;
  for (int64_t s = first; s < last; s++) {
    const int32_t *list = fhk_list(call, s);
    const int64_t length = fhk_list_length(call, s), before = pairs;
    for (int64_t j = 0; j < length; j++) {
      const int32_t key = list[j];
      if (key < 0 || key >= call->s_kv) continue;
      if ((uint32_t)key > max) max = (uint32_t)key;
      pair[pairs++] = (uint64_t)(uint32_t)key << 32 | (uint64_t)(s - first);
    }
    plan->keys[s] = (int32_t)(pairs - before);
  }
  pair = sort_by_upper_half(pair, pair + plan->capacity, pairs, max);

  int32_t *token = plan->token + g * plan->capacity;
  uint64_t *member = plan->member + g * plan->capacity;
  /* Without branches: where rows change is as good as random. */
  int64_t entries = 0, run_start = 0, copy = 0;
  uint64_t previous = UINT64_MAX; /* no pair, and no pair's row */
  for (int64_t i = 0; i < pairs; i++) {
    copy = pair[i] == previous ? copy + 1 : 0; /* the same query again */
    run_start = pair[i] >> 32 != previous >> 32 ? entries : run_start;
    const int64_t at = run_start + copy, opens = at == entries;
    token[at] = (int32_t)(pair[i] >> 32);
    member[at] = (member[at] & (uint64_t)(opens - 1)) | (uint64_t)1 << (pair[i] & 63);
    entries += opens;
    previous = pair[i];
  }
  plan->entries[g] = (int32_t)entries;
  run->rank[g] = (uint64_t)fh_group_rank(plan->capacity, entries, saves(run, g)) << 32 | (uint64_t)g;
}

/* Cuts the rows into groups, request by request; the groups left over begin where all rows end. */
static void cut(const fh_call *call, const fh_plan *plan) {
  const int64_t requests = call->requests < 1 ? 1 : call->requests;
  int64_t g = 0, row = 0;
  for (int64_t r = 1; r <= requests; r++) {
    const int64_t end = r == requests ? call->s_q : fh_request_end(call->cu_seqlens_q[r], row, call->s_q);
    for (; row < end; row = end - row < plan->group ? end : row + plan->group) plan->first[g++] = row;
  }
  while (g <= plan->groups) plan->first[g++] = call->s_q;
}

uint64_t fhk_cpu_plan_bytes(const fhk_cpu *cpu, const fh_call *call) {
  const uint64_t scratch = fhk_add(rank_bytes(call), fhk_mul((uint64_t)fhk_cpu_threads(cpu), thread_bytes(call)));
  return fhk_add(fh_plan_layout_of(call).scratch, scratch);
}

void fhk_cpu_plan_build(fhk_cpu *cpu, const fh_call *call, void *memory, fh_plan *plan) {
  char *scratch = fh_plan_lay(call, memory, plan);
  cut(call, plan);
  plan_run run = {.call = call, .plan = plan, .costs = fh_group_costs_of(call), .rank = (uint64_t *)(void *)scratch};
  run.scratch = scratch + rank_bytes(call);
  run.scratch_bytes = thread_bytes(call);
  fhk_cpu_parallel(cpu, plan->groups, plan_group, &run);

  const uint32_t most = fh_group_rank(plan->capacity, 0, 0);
  uint64_t *rank = sort_by_upper_half(run.rank, run.rank + plan->groups, plan->groups, most);
  int64_t fewer = 0, saved = 0, lost = 0;
  for (int64_t i = 0; i < plan->groups; i++) {
    plan->order[i] = (int32_t)(uint32_t)rank[i];
    const int32_t here = saves(&run, plan->order[i]);
    if (here < 0) fewer++, lost -= here;
    else saved += here;
  }
  *plan->packed_from = (int32_t)fh_packed_from(&run.costs, plan->groups, fewer, saved, lost);
}
