/* FH_AUTO: what it weighs for a call, and the same in words. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "groups.h"
#include "internal.h"

int fh_may_pack(const fh_device *device, const fh_call *call, char why[FH_WHY]) {
  const char *reason = call->row_invariant   ? "row_invariant is 1"
                       : call->group < 2     ? "a group of one row shares nothing"
                       : !fh_plannable(call) ? "group * topk is more than 32 bits count"
                                             : NULL;
  if (!reason) return device->back_end->offers(device, FH_PACKED, call->h_q, why);
  snprintf(why, FH_WHY, "%s", reason);
  return 0;
}

fh_status fh_weigh_call(const fh_device *device, const fh_call *call, fh_work *work, fh_weighed *weighed) {
  char why[FH_WHY];
  const int seen = call->indices || !device->back_end->sees_lists;
  *work = (fh_work){.struct_size = sizeof *work,
                    .rows = call->s_q,
                    .h_q = call->h_q,
                    .h_pad = call->h_pad,
                    .group = call->group,
                    .d_qk = call->d_qk,
                    .d_v = call->d_v};
  work->keys =
      seen && call->s_q > 0 && call->topk > 0 ? device->back_end->count_keys(device, call) : call->s_q * call->topk;
  if (fh_may_pack(device, call, why)) work->groups = fh_groups_most(call->s_q, call->requests, call->group);
  return fh_weigh(call->costs, work, call->row_invariant, call->plan != NULL, weighed);
}

/* ---- In words
 * -------------------------------------------------------------------------------------------------------------- */

/* A text that grows to its end and is cut there. */
typedef struct sentence {
  char *text;
  uint64_t bytes, used;
} sentence;

__attribute__((format(printf, 2, 3))) static void say(sentence *to, const char *format, ...) {
  char part[FH_WHY + 128];
  va_list args;
  va_start(args, format);
  fh_format(part, sizeof part, format, args);
  va_end(args);
  for (const char *c = part; *c && to->used + 1 < to->bytes; c++) to->text[to->used++] = *c;
  if (to->bytes) to->text[to->used] = 0;
}

/* Three digits, or all of them where there are more before the point. */
static void say_us(sentence *to, const char *before, double us, const char *after) {
  if (us < 1000) say(to, "%s%.3g us%s", before, us, after);
  else say(to, "%s%.0f us%s", before, us, after);
}

static void say_choice(sentence *to, const fh_device *device, const fh_call *call, const fh_weighed *weighed) {
  const char *rows = fh_path_name(fh_rows_path(call, call->costs));
  if (!weighed->packs) say(to, "auto takes %s for all rows", fh_path_name(weighed->row_path));
  else if (!call->plan) say(to, "auto builds a plan, which says which groups are packed; the other rows take %s", rows);
  else if (!device->back_end->sees_lists)
    say(to, "auto packs the groups that the call's plan says; the other rows take %s", rows);
  else
    say(to, "auto packs %" PRId64 " of the plan's %" PRId64 " groups; the other rows take %s",
        call->plan->groups - *call->plan->packed_from, call->plan->groups, rows);
}

/* What packing would bring, or why it is not on offer. */
static void say_packing(sentence *to, const fh_device *device, const fh_call *call, const fh_weighed *weighed) {
  char why[FH_WHY];
  if (!fh_may_pack(device, call, why)) {
    say(to, "; packed is not on offer: %s", why);
    return;
  }
  say_us(to, ", packed ", weighed->us[FH_PACKED], " at best");
  if (!call->plan) say_us(to, " and ", weighed->plan_us, " for its plan");
  say_us(to, ": packing saves ", fmax(weighed->saves_us, 0), " at most, and has to save ");
  say_us(to, "", weighed->wanted_us, "");
  if (weighed->risk_us <= weighed->most_us) return;
  say_us(to, "; a plan that packs nothing would bring the call to ", weighed->risk_us, ", wanted at most ");
  say_us(to, "", weighed->most_us, "");
}

fh_status fh_explain(fh_device *device, const fh_call *given, char *text, uint64_t bytes) {
  fh_checked checked;
  fh_call *call = &checked.call;
  fh_work work;
  fh_weighed weighed = {0};
  fh_status status;
  if (!text && bytes) return fh_fail_null("text");
  if ((status = fh_check_sizes(device, given, &checked)) || (status = fh_check_plan(device, &checked))) return status;
  const int32_t asked = call->path;
  call->path = FH_AUTO;
  if ((status = fh_take_costs(device, &checked))) return status;
  const fh_array lists[] = {fh_call_indices(call), fh_call_topk_length(call)};
  for (size_t i = 0; call->indices && i < sizeof lists / sizeof *lists; i++)
    if ((status = fh_check_array(&lists[i]))) return status;
  if ((status = fh_weigh_call(device, call, &work, &weighed))) return status;

  sentence to = {.text = text, .bytes = bytes};
  if (bytes) *text = 0;
  say(&to, "s_q %" PRId64 ", h_q %d, %" PRId64 " keys: ", work.rows, (int)work.h_q, work.keys);
  if (asked != FH_AUTO) say(&to, "the call asks for %s; ", fh_path_name(asked));
  say_choice(&to, device, call, &weighed);
  say_us(&to, ". Expected: padded ", weighed.us[FH_PADDED], ", gather ");
  say_us(&to, "", weighed.us[FH_GATHER], "");
  say_packing(&to, device, call, &weighed);
  say(&to, ". Costs: %s", checked.costs_from);
  return FH_OK;
}
