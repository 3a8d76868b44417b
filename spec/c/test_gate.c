/* The gate: the published rule, its two settings as they are spelled, and heads over ranks. */
#include <stdlib.h>

#include "internal.h"
#include "refuse.h"

#define MIN_SQ "VLLM_DSV41_FEWHEAD_MIN_SQ"
#define PREFILL "VLLM_DSV41_FEWHEAD_PREFILL"

static fh_gate parse(const char *prefill, const char *min_sq, const char *warning_wanted) {
  fh_gate gate = {.struct_size = sizeof gate, .enabled = -1, .reserved = 5, .min_sq = -1};
  char warning[300] = "old";
  CHECK_INT(fh_gate_parse(prefill, min_sq, &gate, warning, sizeof warning), FH_OK);
  CHECK_STR(warning, warning_wanted);
  CHECK_INT(gate.reserved, 0);
  return gate;
}

static void settings(void) {
  fh_gate gate = {0};
  fh_gate_init(&gate, sizeof gate);
  CHECK_INT(gate.struct_size, sizeof gate);
  CHECK_INT(gate.enabled, 1);
  CHECK_INT(gate.min_sq, 2048);
  CHECK_INT(FH_GATE_MIN_SQ, 2048);
  REFUSED(fh_gate_init(NULL, sizeof gate), FH_ERR_ARGUMENT, "fh_gate: got NULL, wanted a pointer");

  CHECK_INT(parse(NULL, NULL, "").enabled, 1);
  CHECK_INT(parse(NULL, NULL, "").min_sq, 2048);
  CHECK_INT(parse("", "", "").enabled, 1);
  CHECK_INT(parse("", "", "").min_sq, 2048);

  static const char *const on[] = {"1", "true", "yes", "on", "TRUE", "Yes", "oN", "tRuE"};
  static const char *const off[] = {"0", "false", "no", "off", "FALSE", "No", "OFF", "fAlSe"};
  for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
    CHECK_INT(parse(on[i], NULL, "").enabled, 1);
    CHECK_INT(parse(off[i], NULL, "").enabled, 0);
  }
  static const char *const neither[] = {"2", "-1", "00",  "01",    " 1",     "1 ",  "y",
                                        "n", "t",  "tru", "truee", "enable", "on\n"};
  for (size_t i = 0; i < sizeof neither / sizeof *neither; i++) {
    char quoted[FH_QUOTED];
    CHECK_INT(parse(neither[i], NULL,
                    text_of(PREFILL ": got %s, wanted 1/0, true/false, yes/no or on/off; using 1",
                            fh_quote(neither[i], quoted)))
                  .enabled,
              1);
  }

  static const struct {
    const char *text;
    int64_t value;
  } good[] = {{"0", 0}, {"1", 1}, {"2048", 2048}, {"0000512", 512}, {"9223372036854775807", INT64_MAX}};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    CHECK_INT(parse(NULL, good[i].text, "").min_sq, good[i].value);
  static const char *const bad[] = {"abc",
                                    "+5",
                                    " 5",
                                    "5 ",
                                    "0x10",
                                    "1e3",
                                    "-1",
                                    "-0",
                                    "5.0",
                                    "1_000",
                                    "5\n",
                                    "9223372036854775808",
                                    "99999999999999999999999999"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char quoted[FH_QUOTED];
    const char *wanted = text_of(MIN_SQ ": got %s, wanted a whole number >= 0; using 2048", fh_quote(bad[i], quoted));
    CHECK_INT(parse(NULL, bad[i], wanted).min_sq, 2048);
  }
  CHECK_INT(parse(NULL, "abc", "VLLM_DSV41_FEWHEAD_MIN_SQ: got \"abc\", wanted a whole number >= 0; using 2048").min_sq,
            2048);

  /* one bad setting leaves the other alone; two give two lines */
  const fh_gate half = parse("off", "many", MIN_SQ ": got \"many\", wanted a whole number >= 0; using 2048");
  CHECK_INT(half.enabled, 0);
  CHECK_INT(half.min_sq, 2048);
  parse("maybe", "many",
        PREFILL ": got \"maybe\", wanted 1/0, true/false, yes/no or on/off; using 1\n" MIN_SQ
                ": got \"many\", wanted a whole number >= 0; using 2048");
}

static void room_for_warnings(void) {
  fh_gate gate = {.struct_size = sizeof gate};
  char warning[16];
  memset(warning, 'x', sizeof warning);
  CHECK_INT(fh_gate_parse("?", "?", &gate, warning, 10), FH_OK);
  CHECK_STR(warning, "VLLM_DSV4");
  CHECK_INT(warning[10], 'x');
  CHECK_INT(fh_gate_parse("?", "?", &gate, warning, 1), FH_OK);
  CHECK_STR(warning, "");
  CHECK_INT(fh_gate_parse("?", "?", &gate, warning, 0), FH_OK);
  CHECK_INT(fh_gate_parse("?", "?", &gate, NULL, 100), FH_OK);
  CHECK_INT(gate.min_sq, 2048);

  REFUSED(fh_gate_parse(NULL, NULL, NULL, NULL, 0), FH_ERR_ARGUMENT, "fh_gate: got NULL, wanted a pointer");
  gate = (fh_gate){.struct_size = 8, .min_sq = 3};
  strcpy(warning, "kept");
  REFUSED(fh_gate_parse(NULL, "x", &gate, warning, sizeof warning), FH_ERR_VERSION,
          "fh_gate.struct_size: got 8, wanted 24 (at least 24), set by the caller");
  CHECK_STR(warning, "kept");
  CHECK_INT(gate.min_sq, 3);
}

static void environment(void) {
  fh_gate gate = {.struct_size = sizeof gate};
  char warning[200];
  unsetenv(PREFILL);
  unsetenv(MIN_SQ);
  CHECK_INT(fh_gate_from_env(&gate, warning, sizeof warning), FH_OK);
  CHECK_INT(gate.enabled, 1);
  CHECK_INT(gate.min_sq, 2048);
  CHECK_STR(warning, "");
  setenv(PREFILL, "No", 1);
  setenv(MIN_SQ, "64", 1);
  CHECK_INT(fh_gate_from_env(&gate, warning, sizeof warning), FH_OK);
  CHECK_INT(gate.enabled, 0);
  CHECK_INT(gate.min_sq, 64);
  setenv(MIN_SQ, "1e3", 1);
  CHECK_INT(fh_gate_from_env(&gate, warning, sizeof warning), FH_OK);
  CHECK_STR(warning, MIN_SQ ": got \"1e3\", wanted a whole number >= 0; using 2048");
  unsetenv(PREFILL);
  unsetenv(MIN_SQ);
}

static void rule(void) {
  fh_gate gate;
  fh_gate_init(&gate, sizeof gate);
  static const struct {
    int64_t local, padded, s_q;
    int32_t native;
  } published[] = {
      {8, 64, 2048, 1},   {8, 64, 2047, 0},    {8, 64, 8192, 1},    {63, 64, 2048, 1},
      {64, 64, 8192, 0},  {65, 64, 8192, 0},   {0, 64, 8192, 0},    {-1, 64, 8192, 0},
      {64, 128, 2048, 1}, {127, 128, 2048, 1}, {128, 128, 2048, 0}, {8, 0, 2048, 0},
  };
  char text[128];
  for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
    CHECK_INT(fh_gate_explain(&gate, published[i].local, published[i].padded, published[i].s_q, text, sizeof text),
              FH_OK);
    CHECK(strstr(text, published[i].native ? "native: " : "padded: ") == text);
    CHECK_INT(fh_gate_native(&gate, published[i].local, published[i].padded, published[i].s_q), published[i].native);
  }
  CHECK_INT(fh_gate_explain(&gate, 8, 64, 2047, text, sizeof text), FH_OK);
  CHECK_STR(text, "padded: s_q 2047 < MIN_SQ 2048");
  CHECK_INT(fh_gate_explain(&gate, 8, 64, 2048, text, sizeof text), FH_OK);
  CHECK_STR(text, "native: s_q 2048 >= MIN_SQ 2048, and 8 of 64 heads are real");
  CHECK_INT(fh_gate_explain(&gate, 8, 64, 2048, text, 9), FH_OK);
  CHECK_STR(text, "native: ");
  CHECK_INT(fh_gate_explain(&gate, 8, 64, 2048, NULL, 0), FH_OK);
  REFUSED(fh_gate_explain(&gate, 8, 64, 2048, NULL, 1), FH_ERR_ARGUMENT, "text: got NULL, wanted a pointer");
  REFUSED(fh_gate_explain(NULL, 8, 64, 2048, text, 9), FH_ERR_ARGUMENT, "fh_gate: got NULL, wanted a pointer");
  gate.min_sq = 0;
  CHECK_INT(fh_gate_native(&gate, 8, 64, 0), 1);
  gate.enabled = 0;
  CHECK_INT(fh_gate_native(&gate, 8, 64, 8192), 0);
  CHECK_INT(fh_gate_native(NULL, 8, 64, 8192), 0);
  gate = (fh_gate){.enabled = 1}; /* no struct_size */
  CHECK_INT(fh_gate_native(&gate, 8, 64, 8192), 0);

  static const struct {
    int64_t heads;
    int32_t padded;
  } padded[] = {{1, 64}, {8, 64}, {64, 64}, {65, 128},      {128, 128},
                {0, 0},  {-1, 0}, {129, 0}, {INT64_MAX, 0}, {INT64_MIN, 0}};
  for (size_t i = 0; i < sizeof padded / sizeof *padded; i++)
    CHECK_INT(fh_padded_heads(padded[i].heads), padded[i].padded);
}

static void ranks(void) {
  static const struct {
    int64_t heads, ranks;
    int32_t virtual_heads;
    int64_t local, added;
  } good[] = {
      {64, 8, 0, 8, 0},
      {128, 8, 0, 16, 0},
      {64, 8, 1, 8, 0},
      {64, 1, 0, 64, 0},
      {10, 4, 1, 3, 2},
      {1, 8, 1, 1, 7},
      {64, 7, 1, 10, 6},
      {INT64_MAX, 1, 0, INT64_MAX, 0},
      {INT64_MAX, INT64_MAX - 1, 1, 2, INT64_MAX - 2},
      {1, INT64_MAX, 1, 1, INT64_MAX - 1},
  };
  int64_t local = -1, added = -1;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    CHECK_INT(fh_tp_heads(good[i].heads, good[i].ranks, good[i].virtual_heads, &local, &added), FH_OK);
    CHECK_INT(local, good[i].local);
    CHECK_INT(added, good[i].added);
  }
  for (int64_t heads = 1; heads <= 128; heads++)
    for (int64_t n = 1; n <= 16; n++) {
      const fh_status status = fh_tp_heads(heads, n, 1, &local, &added);
      if (status || local * n != heads + added || added < 0 || added >= n) FAILED("a head is lost");
    }
  local = added = -1;
  REFUSED(fh_tp_heads(10, 4, 0, &local, &added), FH_ERR_SHAPE,
          "heads: got 10 over 4 ranks, wanted a multiple, or virtual_heads 1 for 3 a rank");
  REFUSED(fh_tp_heads(0, 4, 0, &local, &added), FH_ERR_SHAPE, "heads: got 0, wanted >= 1");
  REFUSED(fh_tp_heads(8, 0, 1, &local, &added), FH_ERR_SHAPE, "ranks: got 0, wanted >= 1");
  REFUSED(fh_tp_heads(8, -2, 1, &local, &added), FH_ERR_SHAPE, "ranks: got -2, wanted >= 1");
  REFUSED(fh_tp_heads(8, 2, 2, &local, &added), FH_ERR_ARGUMENT, "virtual_heads: got 2, wanted 0 or 1");
  REFUSED(fh_tp_heads(8, 2, 0, NULL, &added), FH_ERR_ARGUMENT, "local: got NULL, wanted a pointer");
  REFUSED(fh_tp_heads(8, 2, 0, &local, NULL), FH_ERR_ARGUMENT, "added: got NULL, wanted a pointer");
  CHECK_INT(local, -1);
  CHECK_INT(added, -1);
}

int main(void) {
  settings();
  room_for_warnings();
  environment();
  rule();
  ranks();
  return check_summary();
}
