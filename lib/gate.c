/* The published rule that engines use today, and how heads are dealt over ranks. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

#define PREFILL "VLLM_DSV41_FEWHEAD_PREFILL"
#define MIN_SQ "VLLM_DSV41_FEWHEAD_MIN_SQ"

#define GATE_LEAST FH_UP_TO(fh_gate, min_sq)

static const fh_gate published = {.struct_size = sizeof published, .enabled = 1, .min_sq = FH_GATE_MIN_SQ};

fh_status fh_gate_init(fh_gate *gate, uint64_t struct_size) {
  return fh_struct_init("fh_gate", gate, struct_size, GATE_LEAST, &published, sizeof published);
}

/* Compares ASCII letters alone; the locale does not matter. */
static int same_word(const char *a, const char *b) {
  for (; *a && *b; a++, b++) {
    const char lower = *a >= 'A' && *a <= 'Z' ? (char)(*a - 'A' + 'a') : *a;
    if (lower != *b) return 0;
  }
  return *a == *b;
}

static int read_switch(const char *text, int32_t *on) {
  static const char *const words[2][4] = {{"0", "false", "no", "off"}, {"1", "true", "yes", "on"}};
  for (int32_t value = 0; value < 2; value++)
    for (int i = 0; i < 4; i++)
      if (same_word(text, words[value][i])) {
        *on = value;
        return 1;
      }
  return 0;
}

typedef struct warnings {
  char *text;
  uint64_t bytes, used;
} warnings;

__attribute__((format(printf, 2, 3))) static void warn(warnings *to, const char *format, ...) {
  char line[256];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (to->used && to->used + 1 < to->bytes) to->text[to->used++] = '\n';
  for (const char *c = line; *c && to->used + 1 < to->bytes; c++) to->text[to->used++] = *c;
  if (to->bytes) to->text[to->used] = 0;
}

fh_status fh_gate_parse(const char *prefill, const char *min_sq, fh_gate *gate, char *warning, uint64_t warning_bytes) {
  char quoted[FH_QUOTED];
  fh_gate read = published;
  const fh_status status = fh_struct_out("fh_gate", gate, GATE_LEAST, NULL, sizeof read);
  if (status) return status;
  warnings to = {.text = warning, .bytes = warning ? warning_bytes : 0};
  if (to.bytes) *warning = 0;
  if (prefill && *prefill && !read_switch(prefill, &read.enabled))
    warn(&to, PREFILL ": got %s, wanted 1/0, true/false, yes/no or on/off; using 1", fh_quote(prefill, quoted));
  if (min_sq && *min_sq && !fh_read_whole(min_sq, &read.min_sq))
    warn(&to, MIN_SQ ": got %s, wanted a whole number >= 0; using %d", fh_quote(min_sq, quoted), (int)FH_GATE_MIN_SQ);
  return fh_struct_out("fh_gate", gate, GATE_LEAST, &read, sizeof read);
}

fh_status fh_gate_from_env(fh_gate *gate, char *warning, uint64_t warning_bytes) {
  return fh_gate_parse(getenv(PREFILL), getenv(MIN_SQ), gate, warning, warning_bytes);
}

int32_t fh_padded_heads(int64_t heads) { return heads < 1 || heads > 128 ? 0 : heads <= 64 ? 64 : 128; }

/* The reasons of the rule's answer: first the reasons for padded, then those for native. */
typedef enum reason { OFF, NO_HEADS, TOO_MANY_HEADS, ALL_REAL, FEW_ROWS, EVERY_CHUNK, ENOUGH_ROWS } reason;

static reason reason_of(const fh_gate *gate, int64_t heads, int64_t padded_heads, int64_t s_q) {
  if (!gate->enabled) return OFF;
  if (heads <= 0) return NO_HEADS;
  if (padded_heads <= 0) return TOO_MANY_HEADS;
  if (heads >= padded_heads) return ALL_REAL;
  if (s_q < gate->min_sq) return FEW_ROWS;
  return gate->min_sq == 0 ? EVERY_CHUNK : ENOUGH_ROWS;
}

int32_t fh_gate_native(const fh_gate *gate, int64_t n_local_heads, int64_t padded_heads, int64_t s_q) {
  return gate && gate->struct_size >= GATE_LEAST && gate->struct_size <= sizeof *gate &&
         reason_of(gate, n_local_heads, padded_heads, s_q) >= EVERY_CHUNK;
}

fh_status fh_gate_explain(const fh_gate *given, int64_t heads, int64_t padded_heads, int64_t s_q, char *text,
                          uint64_t bytes) {
  fh_gate gate;
  char discarded[1];
  const fh_status status = fh_struct_in("fh_gate", given, GATE_LEAST, &gate, sizeof gate);
  if (status) return status;
  if (!text && bytes) return fh_fail_null("text");
  char *to = bytes ? text : discarded;
  const size_t room = bytes ? bytes : sizeof discarded;
#define SAY(format, ...) snprintf(to, room, format, __VA_ARGS__)
  switch (reason_of(&gate, heads, padded_heads, s_q)) {
    case OFF: SAY("%s", "padded: the native path is off"); break;
    case NO_HEADS: SAY("padded: %" PRId64 " local heads: nothing to run natively", heads); break;
    case TOO_MANY_HEADS:
      SAY("padded: %" PRId64 " local heads are more than the 128 a padded kernel takes", heads);
      break;
    case ALL_REAL:
      SAY("padded: %" PRId64 " local heads fill the %" PRId64 " padded ones: no head is padding", heads, padded_heads);
      break;
    case FEW_ROWS: SAY("padded: s_q %" PRId64 " < MIN_SQ %" PRId64, s_q, gate.min_sq); break;
    case EVERY_CHUNK:
      SAY("native: MIN_SQ 0 takes every chunk, and %" PRId64 " of %" PRId64 " heads are real", heads, padded_heads);
      break;
    case ENOUGH_ROWS:
      SAY("native: s_q %" PRId64 " >= MIN_SQ %" PRId64 ", and %" PRId64 " of %" PRId64 " heads are real", s_q,
          gate.min_sq, heads, padded_heads);
      break;
  }
#undef SAY
  return FH_OK;
}

fh_status fh_tp_heads(int64_t heads, int64_t ranks, int32_t virtual_heads, int64_t *local, int64_t *added) {
  if (!local) return fh_fail_null("local");
  if (!added) return fh_fail_null("added");
  if (heads < 1) return fh_fail(FH_ERR_SHAPE, "heads: got %" PRId64 ", wanted >= 1", heads);
  if (ranks < 1) return fh_fail(FH_ERR_SHAPE, "ranks: got %" PRId64 ", wanted >= 1", ranks);
  if (virtual_heads != 0 && virtual_heads != 1)
    return fh_fail(FH_ERR_ARGUMENT, "virtual_heads: got %d, wanted 0 or 1", (int)virtual_heads);
  const int64_t over = heads % ranks, each = heads / ranks + (over != 0);
  if (over && !virtual_heads)
    return fh_fail(FH_ERR_SHAPE,
                   "heads: got %" PRId64 " over %" PRId64 " ranks, wanted a multiple, or virtual_heads 1 for %" PRId64
                   " a rank",
                   heads, ranks, each);
  *local = each;
  *added = over ? ranks - over : 0;
  return FH_OK;
}
