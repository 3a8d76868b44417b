/* The JSON subset of json.h: one pass over a copy of the text, values in one array. */
#include "json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t MOST = (int64_t)1 << 53;

typedef struct parser {
  const char *name;
  char *at, *end; /* *end is 0 */
  int32_t line, depth;
  fh_json *json;
} parser;

__attribute__((format(printf, 2, 3))) static fh_status refuse(const parser *p, const char *format, ...) {
  char why[FH_WHY];
  va_list args;
  va_start(args, format);
  vsnprintf(why, sizeof why, format, args);
  va_end(args);
  return fh_fail(FH_ERR_ARGUMENT, "%s:%d: %s", p->name, (int)p->line, why);
}

static void skip_space(parser *p) {
  for (; *p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'; p->at++) p->line += *p->at == '\n';
}

/* Describes the character at the parser, for a message. */
static const char *found(const parser *p, char text[8]) {
  if (p->at == p->end) return "the end of the text";
  const unsigned char c = (unsigned char)*p->at;
  if (c > 0x20 && c < 0x7f) snprintf(text, 8, "'%c'", c);
  else snprintf(text, 8, "0x%02x", c);
  return text;
}

static fh_status wanted(const parser *p, const char *what) {
  char text[8];
  return refuse(p, "got %s, wanted %s", found(p, text), what);
}

/* Adds a value of a kind and returns its number. Only the first value has number 0; for any other value 0 means that
 * memory ran out. */
static fh_status add(parser *p, fh_json_kind kind, uint32_t *number) {
  fh_json *json = p->json;
  if (json->count == json->room) {
    const uint32_t room = json->room ? json->room * 2 : 64;
    fh_json_value *values = realloc(json->values, room * sizeof *values);
    if (!values) return fh_fail(FH_ERR_MEMORY, "%s: no memory for %u values", p->name, (unsigned)room);
    json->values = values;
    json->room = room;
  }
  *number = json->count++;
  json->values[*number] = (fh_json_value){.kind = kind, .line = p->line};
  return FH_OK;
}

/* Reads a string; the parser is at its quote. Unescapes in place, because the text only becomes shorter. */
static fh_status read_string(parser *p, uint32_t *text) {
  char *to = ++p->at;
  *text = (uint32_t)(to - p->json->text);
  for (;; p->at++) {
    char c = *p->at;
    if (c == '"') break;
    if (p->at == p->end || c < 0x20 || c > 0x7e) return wanted(p, "printable ASCII or the end of the string");
    if (c == '\\') {
      static const char from[] = "\"\\/nt", into[] = "\"\\/\n\t";
      const char *escape = p->at[1] ? strchr(from, p->at[1]) : NULL;
      if (!escape) return refuse(p, "an escape other than \\\" \\\\ \\/ \\n \\t in a string");
      c = into[escape - from];
      p->at++;
    }
    *to++ = c;
  }
  *to = 0;
  p->at++;
  return FH_OK;
}

static fh_status read_number(parser *p, int64_t *number) {
  const int negative = *p->at == '-';
  int64_t value = 0;
  p->at += negative;
  if (*p->at < '0' || *p->at > '9') return wanted(p, "a digit");
  if (*p->at == '0' && p->at[1] >= '0' && p->at[1] <= '9') return refuse(p, "a number with a leading 0");
  for (; *p->at >= '0' && *p->at <= '9'; p->at++) {
    value = value * 10 + (*p->at - '0');
    if (value > MOST) return refuse(p, "a number beyond 2^53");
  }
  if (*p->at == '.' || *p->at == 'e' || *p->at == 'E') return refuse(p, "a number that is not whole");
  *number = negative ? -value : value;
  return FH_OK;
}

static int take_word(parser *p, const char *word) {
  const size_t length = strlen(word);
  if (strncmp(p->at, word, length) != 0) return 0;
  p->at += length;
  return 1;
}

static fh_status read_value(parser *p, uint32_t *number);

/* Returns 1 if a member before `last` has the same key. */
static int is_double(const fh_json *json, uint32_t first, uint32_t last) {
  for (uint32_t i = first; i != last; i = json->values[i].next)
    if (strcmp(json->text + json->values[i].key, json->text + json->values[last].key) == 0) return 1;
  return 0;
}

/* The members of an object or the items of an array, up to the closing bracket. */
static fh_status read_children(parser *p, uint32_t parent, char close) {
  uint32_t before = 0;
  fh_status status;
  if (++p->depth > FH_JSON_DEPTH) return refuse(p, "more than %d levels", FH_JSON_DEPTH);
  p->at++;
  for (skip_space(p); *p->at != close; skip_space(p)) {
    uint32_t child = 0, key = 0;
    char quoted[FH_QUOTED];
    if (before) {
      if (*p->at != ',') return wanted(p, close == '}' ? "',' or '}'" : "',' or ']'");
      p->at++;
      skip_space(p);
    }
    if (close == '}') {
      if (*p->at != '"') return wanted(p, "a name in quotes");
      if ((status = read_string(p, &key))) return status;
      skip_space(p);
      if (*p->at != ':') return wanted(p, "':'");
      p->at++;
      skip_space(p);
    }
    if ((status = read_value(p, &child))) return status;
    fh_json_value *values = p->json->values; /* moved by read_value */
    values[child].key = key;
    if (before) values[before].next = child;
    else values[parent].first = child;
    if (close == '}' && is_double(p->json, values[parent].first, child))
      return refuse(p, "%s stands twice in an object", fh_quote(p->json->text + key, quoted));
    before = child;
  }
  p->at++;
  p->depth--;
  return FH_OK;
}

static fh_status read_value(parser *p, uint32_t *number) {
  fh_status status;
  const char c = *p->at;
  const fh_json_kind kind = c == '{'   ? FH_JSON_OBJECT
                            : c == '[' ? FH_JSON_ARRAY
                            : c == '"' ? FH_JSON_STRING
                                       : FH_JSON_NUMBER;
  if ((status = add(p, kind, number))) return status;
  if (kind == FH_JSON_OBJECT || kind == FH_JSON_ARRAY)
    return read_children(p, *number, kind == FH_JSON_OBJECT ? '}' : ']');
  fh_json_value *value = &p->json->values[*number];
  if (kind == FH_JSON_STRING) return read_string(p, &value->text);
  if (c == '-' || (c >= '0' && c <= '9')) return read_number(p, &value->number);
  if (take_word(p, "true")) value->kind = FH_JSON_TRUE;
  else if (take_word(p, "false")) value->kind = FH_JSON_FALSE;
  else if (take_word(p, "null")) value->kind = FH_JSON_NULL;
  else return wanted(p, "a value");
  return FH_OK;
}

fh_status fh_json_parse(const char *name, const char *text, uint64_t bytes, fh_json *json) {
  parser p = {.name = name, .line = 1, .json = json};
  uint32_t root = 0;
  *json = (fh_json){0};
  if (bytes > UINT32_MAX - 1)
    return fh_fail(FH_ERR_ARGUMENT, "%s: got %" PRIu64 " bytes, wanted less than 4 GiB", name, bytes);
  json->text = malloc(bytes + 1);
  if (!json->text) return fh_fail(FH_ERR_MEMORY, "%s: no memory for %" PRIu64 " bytes", name, bytes);
  memcpy(json->text, text, bytes);
  json->text[bytes] = 0;
  p.at = json->text;
  p.end = json->text + bytes;
  skip_space(&p);
  fh_status status = read_value(&p, &root);
  if (!status) {
    skip_space(&p);
    if (p.at != p.end) status = wanted(&p, "the end of the text");
  }
  if (status) fh_json_free(json);
  return status;
}

fh_status fh_json_read(const char *path, uint64_t most_bytes, fh_json *json) {
  *json = (fh_json){0};
  FILE *file = fopen(path, "rbe");
  char *text = file ? malloc(most_bytes + 1) : NULL;
  fh_status status = FH_OK;
  if (!file) return fh_fail(FH_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
  if (!text) status = fh_fail(FH_ERR_MEMORY, "%s: no memory for %" PRIu64 " bytes", path, most_bytes);
  if (!status) {
    const size_t bytes = fread(text, 1, most_bytes + 1, file);
    if (ferror(file)) status = fh_fail(FH_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
    else if (bytes > most_bytes)
      status = fh_fail(FH_ERR_ARGUMENT, "%s: wanted at most %" PRIu64 " bytes", path, most_bytes);
    else status = fh_json_parse(path, text, bytes, json);
  }
  free(text);
  fclose(file);
  return status;
}

void fh_json_free(fh_json *json) {
  free(json->text);
  free(json->values);
  *json = (fh_json){0};
}

const fh_json_value *fh_json_member(const fh_json *json, const fh_json_value *object, const char *key) {
  if (object->kind != FH_JSON_OBJECT) return NULL;
  for (uint32_t i = object->first; i; i = json->values[i].next)
    if (strcmp(json->text + json->values[i].key, key) == 0) return &json->values[i];
  return NULL;
}

const char *fh_json_text(const fh_json *json, const fh_json_value *value) {
  return value->kind == FH_JSON_STRING ? json->text + value->text : NULL;
}
