/* A reader of a strict subset of JSON, for files that come from outside. No public name. */
#ifndef FEWHEAD_JSON_H
#define FEWHEAD_JSON_H

#include "internal.h"

/*
 * The subset: objects without a key twice, arrays, strings of printable ASCII (escapes \" \\ \/ \n \t only), whole
 * numbers within +-2^53, true, false, null; at most FH_JSON_DEPTH levels. Everything else is refused with the line that
 * it stands on.
 */
enum { FH_JSON_DEPTH = 16 };

typedef enum fh_json_kind {
  FH_JSON_NULL,
  FH_JSON_FALSE,
  FH_JSON_TRUE,
  FH_JSON_NUMBER,
  FH_JSON_STRING,
  FH_JSON_ARRAY,
  FH_JSON_OBJECT
} fh_json_kind;

/* A value. Children of an array or object follow each other by `next`; 0 ends the list (value 0 is the whole
 * document). */
typedef struct fh_json_value {
  fh_json_kind kind;
  int32_t line;         /* from 1 */
  uint32_t first, next; /* numbers of values: the first child, the next sibling */
  uint32_t key, text;   /* offsets in fh_json.text of the name in an object and of a string; both end with 0 */
  int64_t number;
} fh_json_value;

typedef struct fh_json {
  char *text; /* the document; strings are unescaped in place and end with 0 */
  fh_json_value *values;
  uint32_t count, room;
} fh_json;

/* Parse bytes of text, which stay the caller's. FH_ERR_ARGUMENT with "NAME:LINE: reason" for what is not of the
 * subset; on success the caller gives the document back with fh_json_free. */
fh_status fh_json_parse(const char *name, const char *text, uint64_t bytes, fh_json *json);

/* The same of a file of at most most_bytes bytes. FH_ERR_ARGUMENT with the system's words where it cannot be read. */
fh_status fh_json_read(const char *path, uint64_t most_bytes, fh_json *json);

/* Free what a document holds; a zeroed one holds nothing. */
void fh_json_free(fh_json *json);

/* The member of an object by name; NULL where there is none or the value is no object. */
const fh_json_value *fh_json_member(const fh_json *json, const fh_json_value *object, const char *key);

/* The text of a string; NULL for another kind. */
const char *fh_json_text(const fh_json *json, const fh_json_value *value);

#endif
