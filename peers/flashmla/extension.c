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

typedef struct argument {
  const char *type, *name;
} argument;

static const argument FLASHMLA_ARGUMENTS[] = {
    {"Tensor", "q"}, {"Tensor", "kv"},         {"Tensor", "indices"},      {"float", "sm_scale"},
    {"int", "d_v"},  {"Tensor?", "attn_sink"}, {"Tensor?", "topk_length"}, {"Tensor?", "out"},
};
static const argument FA3_ARGUMENTS[] = {
    {"Tensor", "q"},
    {"Tensor", "k"},
    {"Tensor", "v"},
    {"Tensor?", "k_new"},
    {"Tensor?", "v_new"},
    {"Tensor?", "q_v"},
    {"Tensor?", "out"},
    {"Tensor?", "cu_seqlens_q"},
    {"Tensor?", "cu_seqlens_k"},
    {"Tensor?", "cu_seqlens_k_new"},
    {"Tensor?", "seqused_q"},
    {"Tensor?", "seqused_k"},
    {"int?", "max_seqlen_q"},
    {"int?", "max_seqlen_k"},
    {"Tensor?", "page_table"},
    {"Tensor?", "kv_batch_idx"},
    {"Tensor?", "leftpad_k"},
    {"Tensor?", "rotary_cos"},
    {"Tensor?", "rotary_sin"},
    {"Tensor?", "seqlens_rotary"},
    {"Tensor?", "q_descale"},
    {"Tensor?", "k_descale"},
    {"Tensor?", "v_descale"},
    {"float", "softmax_scale"},
    {"bool", "is_causal"},
    {"int", "window_size_left"},
    {"int", "window_size_right"},
    {"float", "softcap"},
    {"bool", "is_rotary_interleaved"},
    {"Tensor?", "scheduler_metadata"},
    {"int", "num_splits"},
    {"bool?", "pack_gqa"},
    {"int", "sm_margin"},
    {"Tensor?", "s_aux"},
    {"int", "cp_world_size"},
    {"int", "cp_rank"},
    {"Tensor?", "cp_tot_seqused_k"},
};

/* Of each family: the operator's name, and its arguments in order. Every version has the first `fixed`. */
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))
static const struct family {
  const char *name;
  const argument *arguments;
  int fixed, count;
} FAMILIES[FM_FAMILIES] = {
    [FM_FLASHMLA] = {"sparse_prefill_fwd", FLASHMLA_ARGUMENTS, 5, COUNT(FLASHMLA_ARGUMENTS)},
    [FM_FA3] = {"fwd", FA3_ARGUMENTS, COUNT(FA3_ARGUMENTS), COUNT(FA3_ARGUMENTS)},
};

/* Returns 1 if the text is this argument. Alias marks, defaults and more than one space do not count:
 * "Tensor(a!)?  out_=None" and "Tensor!? out" are "Tensor?" and "out". */
static int is_argument(const char *at, const char *end, const argument *wanted) {
  char plain[64] = "", expected[64];
  size_t length = 0;
  for (; at < end && *at != '=' && length < sizeof plain - 1; at++) {
    if (*at == '(')
      while (at < end && *at != ')') at++;
    else if (*at != '!' && !(*at == ' ' && (length == 0 || plain[length - 1] == ' '))) plain[length++] = *at;
  }
  if (length > 0 && plain[length - 1] == '_') length--;
  plain[length] = 0;
  snprintf(expected, sizeof expected, "%s %s", wanted->type, wanted->name);
  return strcmp(plain, expected) == 0;
}

/* Number of arguments after the fixed ones in the written schema, or -1 if the schema is another one. */
static int32_t read_schema(const char *at, const char *end, const struct family *family) {
  int number = 0;
  for (const char *start = at; at < end; at++) {
    if (*at == '(' && at > start) /* an alias mark */
      while (at < end && *at != ')') at++;
    else if (*at == ',' || *at == ')') {
      if (number == family->count || !is_argument(start, at, &family->arguments[number])) return -1;
      number++;
      if (*at == ')') break;
      start = at + 1;
    }
  }
  static const char RESULT[] = ") -> Tensor[]";
  if (number < family->fixed || (size_t)(end - at) < sizeof RESULT || memcmp(at, RESULT, sizeof RESULT) != 0) return -1;
  return number - family->fixed;
}

/* C++'s mangled type of FlashMLA's function with these arguments. The file holds it if PyTorch infers the schema. */
static const char *const INFERRED[] = {
    "FSt6vectorIN2at6TensorESaIS1_EERKS1_S5_S5_dlE",
    NULL, /* never released */
    "FSt6vectorIN2at6TensorESaIS1_EERKS1_S5_S5_dlRKSt8optionalIS1_ES9_E",
    "FSt6vectorIN2at6TensorESaIS1_EERKS1_S5_S5_dlRKSt8optionalIS1_ES9_S9_E",
};

/* Number of arguments after d_v, or -1 with one line in text that says what the file holds. */
static int32_t find_schema(bytes file, fm_family kind, const char *path, char *text, size_t text_bytes) {
  const struct family *family = &FAMILIES[kind];
  const char *end = file.at + file.count;
  char opening[64] = ""; /* NUL, name, ( */
  const size_t opening_bytes = 1 + (size_t)snprintf(opening + 1, sizeof opening - 1, "%s(", family->name);
  const char *written = find(file, opening, opening_bytes);
  if (written) {
    const int32_t optional = read_schema(written + opening_bytes, end, family);
    if (optional >= 0) return optional;
    const int length = (int)strnlen(written + 1, (size_t)(end - written - 1));
    snprintf(text, text_bytes, "%s: its schema is not known here: %.*s", path, length, written + 1);
    return -1;
  }
  for (int32_t i = COUNT(INFERRED) - 1; kind == FM_FLASHMLA && i >= 0; i--)
    if (INFERRED[i] && has_string(file, INFERRED[i])) return i;
  snprintf(text, text_bytes, "%s: no schema of %s that is known here stands in it", path, family->name);
  return -1;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* The known packages: the function with which Python starts their module, the namespace of their operator, its
 * family. */
enum { N_MODULES = 3 };
static const struct {
  const char *start, *space;
  fm_family family;
} MODULES[N_MODULES] = {
    {"PyInit__flashmla_C", "_flashmla_C", FM_FLASHMLA}, /* vLLM */
    {"PyInit_flashmla_ops", "sgl_kernel", FM_FLASHMLA}, /* sglang-kernel */
    {"PyInit__vllm_fa3_C", "_vllm_fa3_C", FM_FA3},      /* vLLM */
};

/* The host function of FlashMLA's kernel for 8, 16 and 32 heads. */
static const char FEW_HEADS[] = "launch_small_heads";

static int read_bytes(bytes file, const char *path, fm_extension *extension, char *text, size_t text_bytes) {
  int32_t module = 0;
  while (module < N_MODULES && !has_string(file, MODULES[module].start)) module++;
  const struct family *family = module < N_MODULES ? &FAMILIES[MODULES[module].family] : NULL;
  if (!family || !find(file, family->name, strlen(family->name))) {
    snprintf(text, text_bytes,
             "%s registers no sparse_prefill_fwd or fwd with PyTorch, as vLLM's _flashmla_C and _vllm_fa3_C and "
             "sglang-kernel's flashmla_ops do",
             path);
    return 1;
  }
  const int32_t optional = find_schema(file, MODULES[module].family, path, text, text_bytes);
  if (optional < 0) return 1;
  extension->module = module;
  extension->family = MODULES[module].family;
  snprintf(extension->operator_name, sizeof extension->operator_name, "%s::%s", MODULES[module].space, family->name);
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
  return dladdr(FEW_HEADS, &self) && dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
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
