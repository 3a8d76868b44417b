/* The JSON subset that gate tables are written in: what is read, what is refused, and that no text at all makes the
 * reader fail. */
#include <stdlib.h>

#include "json.h"
#include "refuse.h"

static fh_status parse(const char *text, fh_json *json) { return fh_json_parse("t", text, strlen(text), json); }

static void reads(void) {
  fh_json json;
  CHECK_INT(parse(" {\"a\": [1, -20, 9007199254740992], \"b\" : "
                  "{\"c\":\"x\\\"\\\\\\/\\n\\t\"},\n\"d\":true,\"e\":false,\"f\":null}\n",
                  &json),
            FH_OK);
  const fh_json_value *root = json.values, *a = fh_json_member(&json, root, "a");
  CHECK_INT(root->kind, FH_JSON_OBJECT);
  CHECK_INT(a->kind, FH_JSON_ARRAY);
  const fh_json_value *item = &json.values[a->first];
  CHECK_INT(item->number, 1);
  item = &json.values[item->next];
  CHECK_INT(item->number, -20);
  item = &json.values[item->next];
  CHECK_INT(item->number, 9007199254740992);
  CHECK_INT(item->next, 0);
  CHECK_STR(fh_json_text(&json, fh_json_member(&json, fh_json_member(&json, root, "b"), "c")), "x\"\\/\n\t");
  CHECK_INT(fh_json_member(&json, root, "d")->kind, FH_JSON_TRUE);
  CHECK_INT(fh_json_member(&json, root, "d")->line, 2);
  CHECK_INT(fh_json_member(&json, root, "e")->kind, FH_JSON_FALSE);
  CHECK_INT(fh_json_member(&json, root, "f")->kind, FH_JSON_NULL);
  CHECK(fh_json_member(&json, root, "g") == NULL);
  CHECK(fh_json_member(&json, a, "a") == NULL);
  CHECK(fh_json_text(&json, a) == NULL);
  fh_json_free(&json);
  CHECK_INT(parse("[]", &json), FH_OK);
  CHECK_INT(json.values->first, 0);
  fh_json_free(&json);
  CHECK_INT(parse("7", &json), FH_OK);
  CHECK_INT(json.values->number, 7);
  fh_json_free(&json);
}

static void refuses(void) {
  static const struct {
    const char *text, *why;
  } bad[] = {
      {"", "t:1: got the end of the text, wanted a value"},
      {"{", "t:1: got the end of the text, wanted a name in quotes"},
      {"{\"a\"}", "t:1: got '}', wanted ':'"},
      {"{\"a\":1,}", "t:1: got '}', wanted a name in quotes"},
      {"{\"a\":1 \"b\":2}", "t:1: got '\"', wanted ',' or '}'"},
      {"[1,]", "t:1: got ']', wanted a value"},
      {"[1 2]", "t:1: got '2', wanted ',' or ']'"},
      {"\n\n[1", "t:3: got the end of the text, wanted ',' or ']'"},
      {"{\"a\":1,\n\"a\":2}", "t:2: \"a\" stands twice in an object"},
      {"1.5", "t:1: a number that is not whole"},
      {"1e3", "t:1: a number that is not whole"},
      {"01", "t:1: a number with a leading 0"},
      {"-", "t:1: got the end of the text, wanted a digit"},
      {"+1", "t:1: got '+', wanted a value"},
      {"0x10", "t:1: got 'x', wanted the end of the text"},
      {"9007199254740993", "t:1: a number beyond 2^53"},
      {"99999999999999999999999", "t:1: a number beyond 2^53"},
      {"NaN", "t:1: got 'N', wanted a value"},
      {"nul", "t:1: got 'n', wanted a value"},
      {"\"\\u0041\"", "t:1: an escape other than \\\" \\\\ \\/ \\n \\t in a string"},
      {"\"a", "t:1: got the end of the text, wanted printable ASCII or the end of the string"},
      {"\"\xc3\xa9\"", "t:1: got 0xc3, wanted printable ASCII or the end of the string"},
      {"\"a\nb\"", "t:1: got 0x0a, wanted printable ASCII or the end of the string"},
      {"[[[[[[[[[[[[[[[[[", "t:1: more than 16 levels"},
      {"{} {}", "t:1: got '{', wanted the end of the text"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    fh_json json;
    REFUSED(parse(bad[i].text, &json), FH_ERR_ARGUMENT, bad[i].why);
    CHECK(json.text == NULL && json.values == NULL);
  }
  fh_json json;
  REFUSED(fh_json_parse("t", "[1]\0", 4, &json), FH_ERR_ARGUMENT, "t:1: got 0x00, wanted the end of the text");
  REFUSED(fh_json_read("/no/such/file", 10, &json), FH_ERR_ARGUMENT, "/no/such/file: No such file or directory");
  REFUSED(fh_json_read("/dev/zero", 10, &json), FH_ERR_ARGUMENT, "/dev/zero: wanted at most 10 bytes");
  REFUSED(fh_json_read("/", 10, &json), FH_ERR_ARGUMENT, "/: Is a directory");
}

/* Every way to cut a document, and to change one byte of it, parses or is refused; the sanitizers watch. */
static void survives(void) {
  static const char whole[] = "{\"a\": [1, {\"b\": \"c\\n\"}, true], \"d\": null, \"e\": -3}";
  char text[sizeof whole];
  int64_t parsed = 0, refused = 0;
  for (size_t i = 0; i < sizeof whole - 1; i++)
    for (int c = -1; c < 256; c++) {
      fh_json json;
      memcpy(text, whole, sizeof whole);
      if (c >= 0) text[i] = (char)c;
      if (fh_json_parse("t", text, c < 0 ? i : sizeof whole - 1, &json)) refused++;
      else parsed++, fh_json_free(&json);
    }
  CHECK(parsed > 0 && refused > 0);
  CHECK_INT(parsed + refused, (int64_t)(sizeof whole - 1) * 257);
}

/* Random texts of JSON's own characters reach deeper than random bytes. */
static void fuzz(void) {
  static const char letters[] = "{}[]:,\"\\ \n0123456789-truefalsn.eE";
  uint32_t words[64], refused = 0;
  char text[256];
  for (uint64_t round = 0; round < 20000; round++) {
    if (fh_random_u32(1, 1, round * 64, 64, words)) FAILED("no random words");
    for (size_t i = 0; i < sizeof text; i++)
      text[i] = letters[(words[i / 4] >> (i % 4 * 8) & 255) % (sizeof letters - 1)];
    fh_json json;
    if (fh_json_parse("t", text, words[0] % sizeof text, &json)) refused++;
    else fh_json_free(&json);
  }
  CHECK(refused > 0);
}

int main(void) {
  reads();
  refuses();
  survives();
  fuzz();
  return check_summary();
}
