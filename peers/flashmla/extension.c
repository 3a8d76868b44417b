/* Searches an extension's file for its operator, and loads the file (extension.h). */
#include "extension.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf_file.h"

/* ---- The file ---------------------------------------------------------------------------------------------------- */

typedef struct bytes {
  const char *at;
  size_t count;
} bytes;

/* The first place of `what` in the file, or NULL. */
static const char *find(bytes file, const char *what, size_t what_bytes) {
  return memmem(file.at, file.count, what, what_bytes);
}

/* Returns 1 if the file holds the whole C string. */
static int has_string(bytes file, const char *text) {
  char whole[128] = ""; /* NUL, text, NUL */
  const size_t length = strlen(text);
  memcpy(whole + 1, text, length + 1);
  return find(file, whole, length + 2) != NULL;
}

/* ---- The schema -------------------------------------------------------------------------------------------------- */

/* Types and names of the arguments, in order. Every version has the first FIXED. */
enum { FIXED = 5, ARGUMENTS = FIXED + 3 };
static const struct {
  const char *type, *name;
} WANTED[ARGUMENTS] = {
    {"Tensor", "q"}, {"Tensor", "kv"},         {"Tensor", "indices"},      {"float", "sm_scale"},
    {"int", "d_v"},  {"Tensor?", "attn_sink"}, {"Tensor?", "topk_length"}, {"Tensor?", "out"},
};

/* Returns 1 if the text is the argument of this number. Alias marks and defaults do not count: "Tensor(a!)?
 * out_=None" is "Tensor?" and "out". */
static int is_argument(const char *at, const char *end, int number) {
  char plain[64] = "";
  size_t length = 0;
  while (at < end && *at == ' ') at++;
  for (; at < end && *at != '=' && length < sizeof plain - 1; at++) {
    if (*at == '(')
      while (at < end && *at != ')') at++;
    else plain[length++] = *at;
  }
  if (length > 0 && plain[length - 1] == '_') length--;
  plain[length] = 0;
  char wanted[64];
  snprintf(wanted, sizeof wanted, "%s %s", WANTED[number].type, WANTED[number].name);
  return strcmp(plain, wanted) == 0;
}

/* Number of arguments after d_v in the written schema, or -1 if the schema is another one. */
static int32_t read_schema(const char *at, const char *end) {
  int number = 0;
  for (const char *start = at; at < end; at++) {
    if (*at == '(' && at > start) /* an alias mark */
      while (at < end && *at != ')') at++;
    else if (*at == ',' || *at == ')') {
      if (number == ARGUMENTS || !is_argument(start, at, number)) return -1;
      number++;
      if (*at == ')') break;
      start = at + 1;
    }
  }
  static const char RESULT[] = ") -> Tensor[]";
  if (number < FIXED || (size_t)(end - at) < sizeof RESULT || memcmp(at, RESULT, sizeof RESULT) != 0) return -1;
  return number - FIXED;
}

static const char NAME[] = "sparse_prefill_fwd";

/* C++'s mangled type of a function with these arguments. The file holds it if PyTorch infers the schema. */
static const char *const INFERRED[] = {
    "FSt6vectorIN2at6TensorESaIS1_EERKS1_S5_S5_dlE",
    NULL, /* never released */
    "FSt6vectorIN2at6TensorESaIS1_EERKS1_S5_S5_dlRKSt8optionalIS1_ES9_E",
    "FSt6vectorIN2at6TensorESaIS1_EERKS1_S5_S5_dlRKSt8optionalIS1_ES9_S9_E",
};

/* Number of arguments after d_v, or -1 with one line in text that says what the file holds. */
static int32_t find_schema(bytes file, const char *path, char *text, size_t text_bytes) {
  const char *end = file.at + file.count;
  const char *written = find(file, "\0sparse_prefill_fwd(", sizeof NAME + 1);
  if (written) {
    const char *arguments = written + sizeof NAME + 1;
    const int32_t optional = read_schema(arguments, end);
    if (optional >= 0) return optional;
    const int length = (int)strnlen(written + 1, (size_t)(end - written - 1));
    snprintf(text, text_bytes, "%s: its schema is not known here: %.*s", path, length, written + 1);
    return -1;
  }
  for (int32_t i = (int32_t)(sizeof INFERRED / sizeof *INFERRED) - 1; i >= 0; i--)
    if (INFERRED[i] && has_string(file, INFERRED[i])) return i;
  snprintf(text, text_bytes, "%s: no schema of %s that is known here stands in it", path, NAME);
  return -1;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* The known packages: the function with which Python starts their module, and the namespace of their operator. */
enum { N_MODULES = 2 };
static const struct {
  const char *start, *space;
} MODULES[N_MODULES] = {
    {"PyInit__flashmla_C", "_flashmla_C"}, /* vLLM */
    {"PyInit_flashmla_ops", "sgl_kernel"}, /* sglang-kernel */
};

/* The host function of FlashMLA's kernel for 8, 16 and 32 heads. */
static const char FEW_HEADS[] = "launch_small_heads";

static int read_bytes(bytes file, const char *path, fm_extension *extension, char *text, size_t text_bytes) {
  int32_t module = 0;
  while (module < N_MODULES && !has_string(file, MODULES[module].start)) module++;
  if (module == N_MODULES || !find(file, NAME, sizeof NAME - 1)) {
    snprintf(text, text_bytes,
             "%s registers no %s with PyTorch, as vLLM's _flashmla_C and sglang-kernel's flashmla_ops do", path, NAME);
    return 1;
  }
  const int32_t optional = find_schema(file, path, text, text_bytes);
  if (optional < 0) return 1;
  extension->module = module;
  snprintf(extension->operator_name, sizeof extension->operator_name, "%s::%s", MODULES[module].space, NAME);
  extension->optional = optional;
  extension->few_heads = find(file, FEW_HEADS, sizeof FEW_HEADS - 1) != NULL;
  return 0;
}

int fm_extension_read(const char *path, fm_extension *extension, char *text, size_t text_bytes) {
  struct stat status;
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
    snprintf(text, text_bytes, "extension: got %s, wanted a shared library (%s)", path,
             descriptor < 0 ? strerror(errno) : "not a file with something in it");
    if (descriptor >= 0) close(descriptor);
    return 1;
  }
  const bytes file = {mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0),
                      (size_t)status.st_size};
  close(descriptor);
  if (file.at == MAP_FAILED) {
    snprintf(text, text_bytes, "extension: %s cannot be read: %s", path, strerror(errno));
    return 1;
  }
  const int failed = read_bytes(file, path, extension, text, text_bytes);
  munmap((void *)(uintptr_t)file.at, file.count);
  return failed;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* The only function of Python that extensions call. Nobody imports their module here. */
__attribute__((visibility("default"))) void *PyModule_Create2(void *definition, int version);
void *PyModule_Create2(void *definition, int version) {
  (void)definition, (void)version;
  return NULL;
}

/* Lets libraries that are loaded later find the exported symbols of this plug-in. */
static int export_own_symbols(void) {
  Dl_info self;
  return dladdr(NAME, &self) && dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

int fm_extension_load(const char *path, const fm_extension *extension, char *text, size_t text_bytes) {
  static char *loaded[N_MODULES]; /* never unloaded, because their operators stay registered */
  char **mine = &loaded[extension->module], *name = realpath(path, NULL);
  const char *reason = NULL;
  if (!name) {
    reason = strerror(errno);
  } else if (fh_elf_is_cut(name, text, text_bytes)) {
    /* text says so */
  } else if (*mine && strcmp(*mine, name) != 0) { /* registering an operator twice ends the process */
    snprintf(text, text_bytes, "%s registered %s in this process already", *mine, extension->operator_name);
  } else {
    /* RTLD_NOW: a symbol that only another PyTorch has is missed here, by name, and not in the middle of a call. */
    if (export_own_symbols() && dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
      if (*mine) free(name);
      else *mine = name;
      return 0;
    }
    reason = dlerror();
  }
  if (reason) snprintf(text, text_bytes, "%s", reason);
  free(name);
  return 1;
}
