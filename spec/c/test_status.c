/* Status names, the error text of a thread, versions of structs, and reading text from outside. */
#include <pthread.h>

#include "internal.h"
#include "refuse.h"

static void names(void) {
  static const struct {
    int32_t status;
    const char *name;
  } all[] = {
      {0, "FH_OK"},
      {10, "FH_ERR_ARGUMENT"},
      {20, "FH_ERR_SHAPE"},
      {30, "FH_ERR_STRIDE"},
      {40, "FH_ERR_ALIGNMENT"},
      {50, "FH_ERR_OVERLAP"},
      {60, "FH_ERR_UNSUPPORTED"},
      {70, "FH_ERR_WORKSPACE"},
      {80, "FH_ERR_MEMORY"},
      {90, "FH_ERR_DEVICE"},
      {100, "FH_ERR_VERSION"},
      {1, "FH_ERR_?"},
      {-10, "FH_ERR_?"},
      {110, "FH_ERR_?"},
      {INT32_MAX, "FH_ERR_?"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) CHECK_STR(fh_status_name(all[i].status), all[i].name);
}

static void *other_thread(void *seen) {
  *(int *)seen = fh_error()[0] == 0;
  fh_fail(FH_ERR_SHAPE, "of the other thread");
  return NULL;
}

static void messages(void) {
  CHECK_STR(fh_error(), "");
  CHECK_INT(fh_fail(FH_ERR_SHAPE, "s_q: got %d, wanted >= 0", -1), FH_ERR_SHAPE);
  CHECK_STR(fh_error(), "s_q: got -1, wanted >= 0");
  CHECK_INT(fh_fail(FH_ERR_ARGUMENT, "again: %s", fh_error()), FH_ERR_ARGUMENT);
  CHECK_STR(fh_error(), "again: s_q: got -1, wanted >= 0");

  int fresh = 0;
  pthread_t thread;
  pthread_create(&thread, NULL, other_thread, &fresh);
  pthread_join(thread, NULL);
  CHECK(fresh);
  CHECK_STR(fh_error(), "again: s_q: got -1, wanted >= 0");

  fh_fail(FH_ERR_ARGUMENT, "%2000d", 7);
  CHECK_INT(strlen(fh_error()), 511);

  REFUSED(fh_fail_null("call"), FH_ERR_ARGUMENT, "call: got NULL, wanted a pointer");
}

typedef struct record {
  uint64_t struct_size;
  int64_t first, second, third;
} record;

static void struct_sizes(void) {
  const record given = {sizeof given, 1, 2, 3};
  record full;
  CHECK_INT(fh_struct_in("record", &given, 16, &full, sizeof full), FH_OK);
  CHECK(memcmp(&full, &given, sizeof full) == 0);

  const record older = {16, 1, 2, 3}; /* ends after `first` */
  CHECK_INT(fh_struct_in("record", &older, 16, &full, sizeof full), FH_OK);
  CHECK_INT(full.struct_size, sizeof full);
  CHECK_INT(full.first, 1);
  CHECK_INT(full.second, 0);
  CHECK_INT(full.third, 0);

  const uint64_t wrong[] = {0, 1, 15, 20, 31, 33, 40, UINT64_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    record bad = {wrong[i], 1, 2, 3};
    REFUSED(fh_struct_in("record", &bad, 16, &full, sizeof full), FH_ERR_VERSION,
            text_of("record.struct_size: got %" PRIu64 ", wanted 32 (at least 16), set by the caller", wrong[i]));
    CHECK_INT(fh_struct_out("record", &bad, 16, &given, sizeof given), FH_ERR_VERSION);
    CHECK_INT(bad.first, 1);
  }
  REFUSED(fh_struct_in("record", NULL, 16, &full, sizeof full), FH_ERR_ARGUMENT, "record: got NULL, wanted a pointer");
  REFUSED(fh_struct_out("record", NULL, 16, &given, sizeof given), FH_ERR_ARGUMENT,
          "record: got NULL, wanted a pointer");

  record to = {24, 7, 7, 7}; /* ends after `second` */
  CHECK_INT(fh_struct_out("record", &to, 16, &given, sizeof given), FH_OK);
  CHECK_INT(to.struct_size, 24);
  CHECK_INT(to.first, 1);
  CHECK_INT(to.second, 2);
  CHECK_INT(to.third, 7);
}

static void version(void) {
  CHECK_INT(fh_version(), 200);
  CHECK_INT(fh_struct_bytes("fh_device_options"), 16);
  CHECK_INT(fh_struct_bytes("fh_device_info"), sizeof(fh_device_info));
  CHECK_INT(fh_struct_bytes("fh_view_info"), sizeof(fh_view_info));
  CHECK_INT(fh_struct_bytes("fh_path_info"), 8 + 8 * 4 + 16);
  CHECK_INT(fh_struct_bytes("fh_call"), sizeof(fh_call));
  CHECK_INT(fh_struct_bytes("fh_counters"), 4 * 8 + 2 * 16 * 8 + 64);
  CHECK_INT(fh_struct_bytes("fh_plan"), sizeof(fh_plan));
  CHECK_INT(fh_struct_bytes("fh_work"), sizeof(fh_work));
  CHECK_INT(fh_struct_bytes("fh_path_cost"), 24);
  CHECK_INT(fh_struct_bytes("fh_costs"), 8 + 5 * 24);
  CHECK_INT(fh_struct_bytes("fh_gate"), 24);
  CHECK_INT(fh_struct_bytes("fh_provider_info"), 16 + 32 + 128 + 512);
  CHECK_INT(fh_struct_bytes("fh_cal"), 0);
  CHECK_INT(fh_struct_bytes(""), 0);
  CHECK_INT(fh_struct_bytes(NULL), 0);
  CHECK(strncmp(fh_build_info(), "fewhead 0.2.0, commit ", 22) == 0);
  CHECK(strchr(fh_build_info(), '\n') == NULL);
}

static void text(void) {
  char quoted[FH_QUOTED];
  CHECK_STR(fh_quote("abc", quoted), "\"abc\"");
  CHECK_STR(fh_quote("", quoted), "\"\"");
  CHECK_STR(fh_quote("a\nb\x7f\t", quoted), "\"a?b??\"");
  CHECK_STR(fh_quote("12345678901234567890123456789012345678901234567890123456789", quoted),
            "\"12345678901234567890123456789012345678901234567890123456789\"");
  CHECK_STR(fh_quote("123456789012345678901234567890123456789012345678901234567890", quoted),
            "\"12345678901234567890123456789012345678901234567890123456789\"..");

  int64_t value = -7;
  CHECK(fh_read_whole("0", &value));
  CHECK_INT(value, 0);
  CHECK(fh_read_whole("007", &value));
  CHECK_INT(value, 7);
  CHECK(fh_read_whole("9223372036854775807", &value));
  CHECK_INT(value, INT64_MAX);
  value = 42;
  static const char *const none[] = {"",
                                     " ",
                                     "+5",
                                     "-1",
                                     " 5",
                                     "5 ",
                                     "0x10",
                                     "1e3",
                                     "1.0",
                                     "5\n",
                                     "\xd9\xa3",
                                     "9223372036854775808",
                                     "99999999999999999999"};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    CHECK(!fh_read_whole(none[i], &value));
    CHECK_INT(value, 42);
  }
}

int main(void) {
  messages();
  names();
  struct_sizes();
  version();
  text();
  return check_summary();
}
