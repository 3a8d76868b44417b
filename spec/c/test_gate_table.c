/* Gate tables: what is loaded, and that a table of another device, version or shape is refused with both values. */
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"
#include "refuse.h"

static char path[] = "/tmp/fewhead-gate-XXXXXX";
static fh_device *cpu;
static fh_device_info info = {.struct_size = sizeof info};

static FILE *open_table(void) {
  FILE *file = fopen(path, "wb");
  if (!file) abort();
  return file;
}

static void write_table(const char *text) {
  FILE *file = open_table();
  fputs(text, file);
  fclose(file);
}

/* A table of this device with the given gates; the named fields of the device can be other ones. */
static void write_gates(int64_t library, const char *name, int threads, const char *gates) {
  FILE *file = open_table();
  fprintf(file,
          "{\"schema\": 1, \"library\": %lld, \"driver\": \"any\",\n \"gates\": [%s],\n \"device\": {\"isa\": %d, "
          "\"threads\": %d, "
          "\"name\": \"%s\", \"kind\": \"cpu\"}}\n",
          (long long)library, gates, (int)info.isa, threads, name);
  fclose(file);
}

static fh_status load(int32_t h_q, fh_gate *gate) {
  *gate = (fh_gate){.struct_size = sizeof *gate, .enabled = 7, .min_sq = 77};
  return fh_gate_load(path, cpu, h_q, 512, 640, gate);
}

#define ENTRY(h_q, min_sq) \
  "{\"topk\": 640, \"min_sq\": " min_sq ", \"h_q\": " h_q ", \"d_qk\": 512, \"pattern\": \"csa\"}"

static void loads(void) {
  fh_gate gate;
  write_gates(FH_VERSION, info.name, info.threads,
              ENTRY("8", "128") ", " ENTRY("8", "512") ", " ENTRY("8", "0") ", " ENTRY("16", "\"never\"") ", " ENTRY(
                  "16", "64") ", " ENTRY("4", "0"));
  CHECK_INT(load(8, &gate), FH_OK);
  CHECK_INT(gate.enabled, 1);
  CHECK_INT(gate.min_sq, 512); /* the strictest */
  CHECK_INT(load(16, &gate), FH_OK);
  CHECK_INT(gate.enabled, 0);
  CHECK_INT(load(4, &gate), FH_OK);
  CHECK_INT(gate.enabled, 1);
  CHECK_INT(gate.min_sq, 0);
  REFUSED(load(32, &gate), FH_ERR_UNSUPPORTED, text_of("%s: gates: none for h_q 32, d_qk 512, topk 640", path));
  CHECK_INT(gate.min_sq, 77);
  write_gates(FH_VERSION + 1, info.name, info.threads, ENTRY("8", "3")); /* a patch release changes nothing */
  CHECK_INT(load(8, &gate), FH_OK);
  CHECK_INT(gate.min_sq, 3);
}

static void refuses_others(void) {
  fh_gate gate;
  write_gates(FH_VERSION, "Other CPU", info.threads, ENTRY("8", "0"));
  char quoted[FH_QUOTED];
  REFUSED(load(8, &gate), FH_ERR_DEVICE,
          text_of("%s: device.name: measured on \"Other CPU\", here it is %s; measure this device and "
                  "load its own table",
                  path, fh_quote(info.name, quoted)));
  write_gates(FH_VERSION, info.name, info.threads + 1, ENTRY("8", "0"));
  REFUSED(load(8, &gate), FH_ERR_DEVICE,
          text_of("%s: device.threads: measured with %d, here it is %d; measure this device and load its "
                  "own table",
                  path, (int)info.threads + 1, (int)info.threads));
  write_gates(100, info.name, info.threads, ENTRY("8", "0"));
  REFUSED(load(8, &gate), FH_ERR_VERSION,
          text_of("%s: library: measured with version 0.1, this is %d.%d; measure again", path, FH_VERSION / 10000,
                  FH_VERSION / 100 % 100));
  write_table("{\"schema\": 2, \"library\": 200}");
  REFUSED(load(8, &gate), FH_ERR_VERSION, text_of("%s: schema: got 2, wanted 1", path));
  CHECK_INT(gate.enabled, 7);
}

static void refuses_damage(void) {
  fh_gate gate;
  static const struct {
    const char *text, *why;
  } bad[] = {
      {"", ":1: got the end of the text, wanted a value"},
      {"[]", ":1: wanted an object"},
      {"{}", ":1: schema: got nothing, wanted a whole number"},
      {"{\"schema\": \"1\", \"library\": 200}", ":1: schema: got another kind of value, wanted a whole number"},
      {"{\"schema\": 1, \"library\": 200, \"device\": {\"kind\": \"cpu\"",
       ":1: got the end of the text, wanted ',' or '}'"},
      {"{\"schema\": 1,\n\"library\": 200}", ":1: device: got nothing, wanted an object"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    write_table(bad[i].text);
    REFUSED(load(8, &gate), FH_ERR_ARGUMENT, text_of("%s%s", path, bad[i].why));
  }
  static const struct {
    const char *gates, *why;
  } entries[] = {
      {"1", ":2: gates: wanted a list of objects"},
      {"{}", ":2: h_q: got nothing, wanted a whole number"},
      {ENTRY("8", "-1"), ":2: min_sq: wanted a whole number >= 0 or \"never\""},
      {ENTRY("8", "\"always\""), ":2: min_sq: wanted a whole number >= 0 or \"never\""},
      {ENTRY("9", "null"), ":2: min_sq: wanted a whole number >= 0 or \"never\""}, /* of another shape: still no
                                                                                      table */
  };
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    write_gates(FH_VERSION, info.name, info.threads, entries[i].gates);
    REFUSED(load(8, &gate), FH_ERR_ARGUMENT, text_of("%s%s", path, entries[i].why));
  }
  CHECK_INT(gate.min_sq, 77);
  REFUSED(fh_gate_load(NULL, cpu, 8, 512, 640, &gate), FH_ERR_ARGUMENT, "path: got NULL, wanted a pointer");
  REFUSED(fh_gate_load(path, NULL, 8, 512, 640, &gate), FH_ERR_ARGUMENT, "device: got NULL, wanted a pointer");
  REFUSED(fh_gate_load(path, cpu, 8, 512, 640, NULL), FH_ERR_ARGUMENT, "fh_gate: got NULL, wanted a pointer");
  REFUSED(fh_gate_load("/no/where", cpu, 8, 512, 640, &gate), FH_ERR_ARGUMENT, "/no/where: No such file or directory");
}

int main(void) {
  const int file = mkstemp(path);
  if (file < 0 || fh_device_open("cpu", NULL, &cpu) || fh_device_get_info(cpu, &info)) return 1;
  close(file);
  loads();
  refuses_others();
  refuses_damage();
  unlink(path);
  fh_device_close(&cpu);
  return check_summary();
}
