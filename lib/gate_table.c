/* Gate tables: MIN_SQ as measured on a device, read from a file and compared with the device at hand. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "json.h"

/* A table is about a page long; a larger file is no table. */
static const uint64_t MOST_BYTES = (uint64_t)1 << 20;
/* FH_VERSION counts patches below 100; a patch does not change which kernel is faster. */
enum { SCHEMA = 1, VERSION_STEP = 100 };

typedef struct table {
  const char *path;
  fh_json json;
} table;

/* Returns a member that the file must have, of one kind; NULL after fh_fail. */
static const fh_json_value *need(const table *t, const fh_json_value *object, const char *key, fh_json_kind kind) {
  static const char *const kinds[] = {"null",     "true or false", "true or false", "a whole number",
                                      "a string", "a list",        "an object"};
  const fh_json_value *value = fh_json_member(&t->json, object, key);
  if (value && value->kind == kind) return value;
  fh_fail(FH_ERR_ARGUMENT, "%s:%d: %s: got %s, wanted %s", t->path, (int)(value ? value->line : object->line), key,
          value ? "another kind of value" : "nothing", kinds[kind]);
  return NULL;
}

static fh_status check_number(const table *t, const fh_json_value *object, const char *key, const char *whose,
                              int64_t here) {
  const fh_json_value *value = need(t, object, key, FH_JSON_NUMBER);
  if (!value) return FH_ERR_ARGUMENT;
  if (value->number == here) return FH_OK;
  return fh_fail(FH_ERR_DEVICE,
                 "%s: %s.%s: measured with %" PRId64 ", here it is %" PRId64
                 "; measure this device and load its own table",
                 t->path, whose, key, value->number, here);
}

static fh_status check_text(const table *t, const fh_json_value *object, const char *key, const char *here) {
  char theirs[FH_QUOTED], ours[FH_QUOTED];
  const fh_json_value *value = need(t, object, key, FH_JSON_STRING);
  if (!value) return FH_ERR_ARGUMENT;
  if (strcmp(fh_json_text(&t->json, value), here) == 0) return FH_OK;
  return fh_fail(FH_ERR_DEVICE,
                 "%s: device.%s: measured on %s, here it is %s; measure this device and load its own table", t->path,
                 key, fh_quote(fh_json_text(&t->json, value), theirs), fh_quote(here, ours));
}

/* Refuses a table of another device. Compares all fields that decide speed; the driver may differ. */
static fh_status check_device(const table *t, const fh_json_value *root, const fh_device *device) {
  fh_device_info info = {.struct_size = sizeof info};
  const fh_json_value *object = need(t, root, "device", FH_JSON_OBJECT);
  fh_status status;
  if (!object) return FH_ERR_ARGUMENT;
  if ((status = fh_device_get_info(device, &info))) return status;
  if ((status = check_text(t, object, "kind", fh_device_kind_name(info.kind))) ||
      (status = check_text(t, object, "name", info.name)))
    return status;
  if (info.multiprocessors) {
    if ((status = check_number(t, object, "multiprocessors", "device", info.multiprocessors))) return status;
    return check_number(t, object, "capability", "device", info.capability);
  }
  if ((status = check_number(t, object, "threads", "device", info.threads))) return status;
  return check_number(t, object, "isa", "device", info.isa);
}

static fh_status check_build(const table *t, const fh_json_value *root) {
  const fh_json_value *schema = need(t, root, "schema", FH_JSON_NUMBER);
  const fh_json_value *version = schema ? need(t, root, "library", FH_JSON_NUMBER) : NULL;
  if (!version) return FH_ERR_ARGUMENT;
  if (schema->number != SCHEMA)
    return fh_fail(FH_ERR_VERSION, "%s: schema: got %" PRId64 ", wanted %d", t->path, schema->number, SCHEMA);
  if (version->number / VERSION_STEP != FH_VERSION / VERSION_STEP)
    return fh_fail(FH_ERR_VERSION,
                   "%s: library: measured with version %" PRId64 ".%" PRId64 ", this is %d.%d; measure again", t->path,
                   version->number / 10000, version->number / 100 % 100, FH_VERSION / 10000, FH_VERSION / 100 % 100);
  return FH_OK;
}

/* min_sq of an entry: a number >= 0, or "never". */
static fh_status read_min_sq(const table *t, const fh_json_value *entry, fh_gate *gate) {
  const fh_json_value *value = fh_json_member(&t->json, entry, "min_sq");
  const char *word = value ? fh_json_text(&t->json, value) : NULL;
  gate->enabled = 1;
  if (word && strcmp(word, "never") == 0) {
    gate->enabled = 0;
    return FH_OK;
  }
  if (value && value->kind == FH_JSON_NUMBER && value->number >= 0) {
    gate->min_sq = value->number;
    return FH_OK;
  }
  return fh_fail(FH_ERR_ARGUMENT, "%s:%d: min_sq: wanted a whole number >= 0 or \"never\"", t->path,
                 (int)(value ? value : entry)->line);
}

/* Several entries of one shape: takes the strictest, so that the gate loses on none of the measured lists. */
static fh_status find(const table *t, const fh_json_value *root, int32_t h_q, int32_t d_qk, int64_t topk,
                      fh_gate *gate) {
  const fh_json_value *list = need(t, root, "gates", FH_JSON_ARRAY);
  int found = 0;
  fh_status status;
  if (!list) return FH_ERR_ARGUMENT;
  for (uint32_t i = list->first; i; i = t->json.values[i].next) {
    const fh_json_value *entry = &t->json.values[i];
    fh_gate one = {.struct_size = sizeof one};
    if (entry->kind != FH_JSON_OBJECT)
      return fh_fail(FH_ERR_ARGUMENT, "%s:%d: gates: wanted a list of objects", t->path, (int)entry->line);
    const fh_json_value *heads = need(t, entry, "h_q", FH_JSON_NUMBER);
    const fh_json_value *width = heads ? need(t, entry, "d_qk", FH_JSON_NUMBER) : NULL;
    const fh_json_value *picks = width ? need(t, entry, "topk", FH_JSON_NUMBER) : NULL;
    if (!picks) return FH_ERR_ARGUMENT;
    if ((status = read_min_sq(t, entry, &one))) return status;
    if (heads->number != h_q || width->number != d_qk || picks->number != topk) continue;
    if (!found || !one.enabled || (gate->enabled && one.min_sq > gate->min_sq)) *gate = one;
    found = 1;
  }
  if (found) return FH_OK;
  return fh_fail(FH_ERR_UNSUPPORTED, "%s: gates: none for h_q %d, d_qk %d, topk %" PRId64, t->path, (int)h_q, (int)d_qk,
                 topk);
}

fh_status fh_gate_load(const char *path, const fh_device *device, int32_t h_q, int32_t d_qk, int64_t topk,
                       fh_gate *gate) {
  table t = {.path = path};
  fh_gate read = {.struct_size = sizeof read};
  if (!path) return fh_fail_null("path");
  if (!device) return fh_fail_null("device");
  fh_status status = fh_struct_out("fh_gate", gate, FH_UP_TO(fh_gate, min_sq), NULL, sizeof read);
  if (status || (status = fh_json_read(path, MOST_BYTES, &t.json))) return status;
  const fh_json_value *root = t.json.values;
  if (root->kind != FH_JSON_OBJECT) status = fh_fail(FH_ERR_ARGUMENT, "%s:%d: wanted an object", path, (int)root->line);
  if (!status) status = check_build(&t, root);
  if (!status) status = check_device(&t, root, device);
  if (!status) status = find(&t, root, h_q, d_qk, topk, &read);
  fh_json_free(&t.json);
  return status ? status : fh_struct_out("fh_gate", gate, FH_UP_TO(fh_gate, min_sq), &read, sizeof read);
}
