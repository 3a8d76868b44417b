/* The plan builder: exact values by hand, then against the definition written as plainly as can be. */
#include "attention.h"
#include "groups.h"

typedef struct built {
  fh_plan plan;
  void *memory;
} built;

static built build(fhk_cpu *cpu, const fh_call *call) {
  built b = {.plan = {.struct_size = sizeof b.plan}};
  b.memory = must_alloc(fhk_cpu_plan_bytes(cpu, call));
  fhk_cpu_plan_build(cpu, call, b.memory, &b.plan);
  return b;
}

static fh_call lists(int64_t s_q, int64_t s_kv, int64_t topk, int32_t group, const int32_t *indices,
                     const int32_t *length) {
  fh_call call = {
      .struct_size = sizeof call, .path = FH_PACKED, .s_q = s_q, .s_kv = s_kv, .h_q = 1, .d_qk = 512, .d_v = 512};
  call.topk = topk;
  call.group = group;
  call.indices = indices;
  call.indices_stride = topk;
  call.topk_length = length;
  return call;
}

static void check_by_hand(void) {
  fhk_cpu *cpu = fhk_cpu_create(2, FH_ISA_GENERIC);
  /* Five queries in groups of two. Invalid: -1, 10 (= s_kv) and what lies past the length. */
  static const int32_t indices[] = {7, 3, 7, 9, 3, 7, -1, 10, 2, 2, 2, 0, 5, 1, 8, 9, 9, 9, 9, 9};
  static const int32_t length[] = {4, 9, 3, -1, 4};
  const fh_call call = lists(5, 10, 4, 2, indices, length);
  built b = build(cpu, &call);
  const fh_plan *p = &b.plan;
  CHECK_INT(p->struct_size, sizeof *p);
  CHECK_INT(p->s_q, 5);
  CHECK_INT(p->groups, 3);
  CHECK_INT(p->group, 2);
  CHECK_INT(p->capacity, 8);
  CHECK_INT(p->s_kv, 10);
  static const int32_t keys[] = {4, 2, 3, 0, 4};
  for (int s = 0; s < 5; s++) CHECK_INT(p->keys[s], keys[s]);
  /* Group 0: {7 3 7 9} and {3 7}: 3 of both, 7 of both, 7 again of the first, 9 of the first. */
  CHECK_INT(p->entries[0], 4);
  static const int32_t token0[] = {3, 7, 7, 9};
  static const uint64_t member0[] = {3, 3, 1, 1};
  for (int e = 0; e < 4; e++) {
    CHECK_INT(p->token[e], token0[e]);
    CHECK_INT(p->member[e], member0[e]);
  }
  /* Group 1: {2 2 2} and, its length being negative, nothing. */
  CHECK_INT(p->entries[1], 3);
  for (int e = 0; e < 3; e++) {
    CHECK_INT(p->token[8 + e], 2);
    CHECK_INT(p->member[8 + e], 1);
  }
  /* Group 2: the last query alone. */
  CHECK_INT(p->entries[2], 4);
  for (int e = 0; e < 4; e++) {
    CHECK_INT(p->token[16 + e], 9);
    CHECK_INT(p->member[16 + e], 1);
  }
  for (int g = 0; g < 3; g++) CHECK_INT(p->order[g], g); /* a tile each */
  CHECK_INT(*p->packed_from, 0);
  for (int g = 0; g <= 3; g++) CHECK_INT(p->first[g], g < 3 ? 2 * g : 5);
  CHECK_INT((uintptr_t)p->token % 64, 0);
  CHECK_INT((uintptr_t)p->member % 64, 0);
  free(b.memory);
  fhk_cpu_destroy(cpu);
}

/* Eleven rows of seven requests in groups of three, offsets that fall, leave the chunk and are wrong at both ends
 * among them. */
static void check_boundaries(void) {
  static const int32_t offsets[][8] = {
      {0, 0, 5, 6, 6, 10, 10, 11}, {-9, -1, 5, 6, 3, 10, -7, 99}, /* the same requests */
      {4, 0, 5, 6, 0, 10, 10, 3},                                 /* and again */
      {0, 1, 2, 3, 4, 5, 6, 11},   {0, 12, 0, 0, 0, 0, 0, 11},    /* the first one has all rows */
      {0, 0, 0, 0, 0, 0, 0, 0},                                   /* the last one has */
  };
  static const int64_t first[][11] = {
      {0, 3, 5, 6, 9, 10, 11, 11, 11}, {0, 3, 5, 6, 9, 10, 11, 11, 11},  {0, 3, 5, 6, 9, 10, 11, 11, 11},
      {0, 1, 2, 3, 4, 5, 6, 9, 11},    {0, 3, 6, 9, 11, 11, 11, 11, 11}, {0, 3, 6, 9, 11, 11, 11, 11, 11},
  };
  int32_t indices[11 * 2];
  for (int32_t s = 0; s < 11; s++) indices[2 * s] = s, indices[2 * s + 1] = 50;
  fhk_cpu *cpu = fhk_cpu_create(2, FH_ISA_GENERIC);
  for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
    fh_call call = lists(11, 60, 2, 3, indices, NULL);
    call.requests = 7;
    call.cu_seqlens_q = offsets[i];
    built b = build(cpu, &call);
    const fh_plan *p = &b.plan;
    CHECK_INT(p->groups, 8); /* 7 requests of at least one row: 7 + (11 - 7) / 3 */
    CHECK_INT(p->requests, 7);
    CHECK_INT(p->packed_from[0], 0);
    for (int g = 0; g <= 8; g++) CHECK_INT(p->first[g], first[i][g]);
    for (int g = 0; g < 8; g++) { /* a key of each row's own, in rising order, and one of all */
      const int64_t rows = first[i][g + 1] - first[i][g];
      CHECK_INT(p->entries[g], rows ? rows + 1 : 0);
      for (int64_t e = 0; e < p->entries[g]; e++) {
        CHECK_INT(p->token[g * p->capacity + e], e < rows ? first[i][g] + e : 50);
        CHECK_INT(p->member[g * p->capacity + e], e < rows ? 1 << e : (1 << rows) - 1);
      }
    }
    for (int g = 0; g < 8; g++) CHECK_INT(p->order[g], g); /* a tile each; those without rows stand last anyway */
    free(b.memory);
  }
  fhk_cpu_destroy(cpu);
}

/* The most groups there can be, against all ways to cut few rows into requests. */
static int64_t most_groups(int64_t rows, int64_t requests, int64_t group) {
  int64_t most = requests == 1 ? (rows + group - 1) / group : 0;
  for (int64_t first = 0; requests > 1 && first <= rows; first++) {
    const int64_t all = (first + group - 1) / group + most_groups(rows - first, requests - 1, group);
    if (all > most) most = all;
  }
  return most;
}

static void check_group_bound(void) {
  for (int64_t rows = 0; rows <= 9; rows++)
    for (int64_t requests = 1; requests <= 4; requests++)
      for (int64_t group = 1; group <= 4; group++)
        CHECK_INT(fh_groups_most(rows, requests, group), most_groups(rows, requests, group));
  CHECK_INT(fh_groups_most(8192, 0, 8), 1024);
  CHECK_INT(fh_groups_most(3, 1000, 8), 3);
}

/* How the groups of `call` are parted: in this order, so many of them not packed. */
static void check_parts(fhk_cpu *cpu, const fh_call *call, const int32_t order[4], int32_t unpacked) {
  built b = build(cpu, call);
  CHECK_INT(*b.plan.packed_from, unpacked);
  for (int i = 0; i < 4; i++) CHECK_INT(b.plan.order[i], order[i]);
  free(b.memory);
}

/* Groups of 2 with unions of 2, 4, 3 and 0 entries, and 4, 4, 4 and 0 keys: rows are cheaper one by one where unions
 * are large. */
static void check_choice(void) {
  static const int32_t indices[] = {1, 2, 2, 1, 3, 4, 5, 6, 7, 8, 8, 9, -1, -1, -1, -1};
  static const int32_t falling[] = {0, 1, 2, 3}, parted[] = {3, 0, 1, 2};
  fh_call call = lists(8, 20, 2, 2, indices, NULL);
  const double pair = 2.0 * 1024 * 1e-9; /* GFLOP of a head and a key */
  /* a row 5, a key 1; a packed group 13.5: 0.5 less than 4 keys of 2 rows, 3.5 more than 2 rows without keys */
  const fh_path_cost dear = {1000000, 0, 0}, by_key = {0, 5, 1 / pair}, by_group = {0, 13.5, 0};
  fh_costs costs = {.struct_size = sizeof costs, .padded = dear, .gather = by_key, .packed = by_group};
  fhk_cpu *cpu = fhk_cpu_create(1, FH_ISA_GENERIC);
  call.costs = &costs;
  call.h_pad = 64;
  for (call.path = 0; call.path < FH_PATHS; call.path++)
    check_parts(cpu, &call, call.path == FH_AUTO ? parted : falling, call.path == FH_AUTO);
  call.path = FH_AUTO;

  /* what a second kind of work in the call costs decides, not only what each group does */
  static const struct {
    double packed, rows;
    int32_t unpacked;
  } calls[] = {
      {1.4, 0, 1},   {1.6, 0, 4},    /* three groups save 1.5 packed */
      {0, 3.4, 1},   {0, 3.6, 0},    /* one saves 3.5 row by row */
      {1.7, 3.6, 4}, {1.55, 3.6, 0}, /* neither pays beside the other: the one that loses less */
  };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    costs.packed.call_us = calls[i].packed;
    costs.gather.call_us = calls[i].rows;
    check_parts(cpu, &call, parted, calls[i].unpacked);
  }
  costs.gather = by_key;

  /* 10.5, and 3.6 for each 64 entries begun: 14.1 against 14, 10.5 against 10 */
  costs.packed = (fh_path_cost){0, 10.5, 3.6 / (pair * 2 * 64)};
  check_parts(cpu, &call, falling, 4);

  /* where padded is cheaper than gather for full lists, it is what rows one by one cost: here the same, its 64 heads
   * a key's 1 */
  costs.packed = by_group;
  costs.gather = dear;
  costs.padded = (fh_path_cost){0, 5, 1 / (64 * pair)};
  check_parts(cpu, &call, parted, 1);
  fhk_cpu_destroy(cpu);
}

/* The k-th entry of a KV row belongs to the queries that list it more than k times. */
static void check_against_definition(const fh_call *call, const fh_plan *p) {
  CHECK_INT(p->groups, (call->s_q + call->group - 1) / call->group);
  CHECK_INT(p->capacity, call->group * call->topk);
  for (int64_t g = 0; g < p->groups; g++) {
    const int64_t first = g * call->group, last = first + call->group < call->s_q ? first + call->group : call->s_q;
    int64_t entry = 0, total = 0, wrong = 0;
    for (int64_t s = first; s < last; s++) {
      CHECK_INT(p->keys[s], valid_keys(call, s));
      total += p->keys[s];
    }
    const int32_t *token = p->token + g * p->capacity;
    const uint64_t *member = p->member + g * p->capacity;
    for (int64_t e = 0; e < p->entries[g];) { /* the lists' rows in ascending order, found by looking for the
                                                 next larger one */
      int64_t next = INT64_MAX;
      const int64_t previous = e ? token[e - 1] : -1;
      int64_t copies[64] = {0};
      for (int64_t s = first; s < last; s++)
        for (int64_t j = 0; j < call->topk && (!call->topk_length || j < call->topk_length[s]); j++) {
          const int32_t key = call->indices[s * call->indices_stride + j];
          if (key > previous && key < call->s_kv && key < next) next = key;
        }
      int64_t most = 0;
      for (int64_t s = first; s < last; s++)
        for (int64_t j = 0; j < call->topk && (!call->topk_length || j < call->topk_length[s]); j++)
          if (call->indices[s * call->indices_stride + j] == next && ++copies[s - first] > most)
            most = copies[s - first];
      if (!CHECK(most > 0)) return;
      for (int64_t k = 0; k < most; k++, e++) {
        uint64_t want = 0;
        for (int64_t i = 0; i < last - first; i++) want |= (uint64_t)(copies[i] > k) << i;
        wrong += token[e] != next || member[e] != want;
        for (uint64_t m = member[e]; m; m &= m - 1) total--;
      }
      entry = e;
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(entry, p->entries[g]);
    CHECK_INT(total, 0); /* every pair stands in exactly one entry */
  }
  int64_t wrong = 0;
  for (int64_t i = 1; i < p->groups; i++) {
    const int32_t a = p->order[i - 1], b = p->order[i];
    const int64_t more = fh_tiles(p->entries[a]) - fh_tiles(p->entries[b]);
    wrong += !(more > 0 || (more == 0 && a < b));
  }
  CHECK_INT(wrong, 0);
}

static void check_random(void) {
  stream r = {11, 0};
  static const int64_t s_kvs[] = {1, 3, 40, 2047, 2048, 2049, 100000, 4227584, 2147483647};
  static const int32_t groups[] = {1, 2, 7, 8, 33, 64};
  for (size_t i = 0; i < sizeof s_kvs / sizeof *s_kvs; i++)
    for (size_t j = 0; j < sizeof groups / sizeof *groups; j++) {
      const int64_t s_q = 1 + next_below(&r, 100), topk = next_below(&r, 24), stride = topk + 2;
      int32_t *indices = must_alloc((uint64_t)(s_q * stride + 1) * 4), *length = must_alloc((uint64_t)s_q * 4);
      const int64_t pool = 1 + next_below(&r, s_kvs[i] < 50 ? s_kvs[i] : 50), base = s_kvs[i] - pool;
      for (int64_t n = 0; n < s_q * stride; n++) {
        const int64_t kind = next_below(&r, 8);
        indices[n] = kind == 0  ? -1 - (int32_t)next_below(&r, 1 << 30)
                     : kind < 3 ? (int32_t)next_below(&r, s_kvs[i])
                                : (int32_t)(base + next_below(&r, pool));
        if (kind == 7 && s_kvs[i] < INT32_MAX) indices[n] = (int32_t)(s_kvs[i] + next_below(&r, INT32_MAX - s_kvs[i]));
      }
      for (int64_t s = 0; s < s_q; s++) length[s] = (int32_t)(next_below(&r, topk + 8) - 4);
      fh_call call = lists(s_q, s_kvs[i], topk, groups[j], indices, next_below(&r, 3) ? length : NULL);
      call.indices_stride = stride;
      built one = {0};
      for (int32_t threads = 1; threads <= 4; threads++) {
        fhk_cpu *cpu = fhk_cpu_create(threads, FH_ISA_GENERIC);
        built b = build(cpu, &call);
        fhk_cpu_destroy(cpu);
        if (threads == 1) {
          check_against_definition(&call, &b.plan);
          one = b;
          continue;
        }
        int same = 1;
        for (int64_t g = 0; g < b.plan.groups; g++) {
          const int64_t at = g * b.plan.capacity;
          same &= b.plan.entries[g] == one.plan.entries[g] && b.plan.order[g] == one.plan.order[g];
          same &= memcmp(b.plan.token + at, one.plan.token + at, (size_t)one.plan.entries[g] * 4) == 0;
          same &= memcmp(b.plan.member + at, one.plan.member + at, (size_t)one.plan.entries[g] * 8) == 0;
        }
        CHECK(same && memcmp(b.plan.keys, one.plan.keys, (size_t)s_q * 4) == 0);
        free(b.memory);
      }
      free(one.memory);
      free(indices);
      free(length);
    }
}

/* Built again into the same memory, nothing of the earlier lists is left. */
static void check_again(void) {
  fhk_cpu *cpu = fhk_cpu_create(3, FH_ISA_GENERIC);
  attention a = make_attention(40, 500, 1, 512, 30, REPEATS | HOLES, 1);
  attention b = make_attention(40, 500, 1, 512, 30, LENGTHS | HOLES, 2);
  a.call.group = b.call.group = 16;
  built first = build(cpu, &a.call);
  fhk_cpu_plan_build(cpu, &b.call, first.memory, &first.plan);
  check_against_definition(&b.call, &first.plan);
  free(first.memory);
  free_attention(&a);
  free_attention(&b);
  fhk_cpu_destroy(cpu);
}

static void check_empty(void) {
  fhk_cpu *cpu = fhk_cpu_create(2, FH_ISA_GENERIC);
  const fh_call no_rows = lists(0, 10, 4, 8, NULL, NULL), no_lists = lists(9, 10, 0, 4, NULL, NULL);
  built b = build(cpu, &no_rows);
  CHECK_INT(b.plan.groups, 0);
  free(b.memory);
  b = build(cpu, &no_lists);
  CHECK_INT(b.plan.groups, 3);
  for (int g = 0; g < 3; g++) {
    CHECK_INT(b.plan.entries[g], 0);
    CHECK_INT(b.plan.order[g], g);
  }
  for (int s = 0; s < 9; s++) CHECK_INT(b.plan.keys[s], 0);
  free(b.memory);
  /* A size that no memory can have is told as one, not as a small number that wrapped around. */
  const fh_call huge = lists(INT64_MAX / 2, 10, INT64_MAX / 64, 64, NULL, NULL);
  CHECK(fhk_cpu_plan_bytes(cpu, &huge) == UINT64_MAX);
  fhk_cpu_destroy(cpu);
}

int main(void) {
  check_by_hand();
  check_boundaries();
  check_group_bound();
  check_choice();
  check_random();
  check_again();
  check_empty();
  return check_summary();
}
