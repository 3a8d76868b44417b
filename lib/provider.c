/* Providers: plug-ins loaded, their tables checked, and calls run on them. fewhead_provider.h says what a plug-in
 * is. */
#include <ctype.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elf_file.h"
#include "fewhead_provider.h"
#include "internal.h"

static const char SYMBOL[] = "fewhead_provider";
enum { POINTER_BYTES = sizeof(void *) };

/* The most bytes that a process can address. A plug-in that asks for more has miscounted. */
static const uint64_t MOST_WORKSPACE = (uint64_t)1 << 47;

_Static_assert(FH_PROVIDER_CPU == 1 << FH_DEVICE_CPU && FH_PROVIDER_CUDA == 1 << FH_DEVICE_CUDA,
               "a kind's bit is its number");
_Static_assert(sizeof((fh_provider_info *)NULL)->description == FH_PROVIDER_TEXT,
               "what open says fits the description");

struct fh_provider {
  atomic_int references; /* the loader's handle, and one of every job */
  fh_provider_table table;
  void *state;
  fh_provider_info info;
};

struct fh_provider_job {
  fh_provider *provider;
  fh_device *device;
  fh_call call; /* what the plug-in sees: defaults filled in */
  void *job;    /* the plug-in's own */
  int prepared;
};

/* ---- What a plug-in says ----------------------------------------------------------------------------------------- */

/* Makes one line of what came from outside. */
static const char *one_line(char text[FH_PROVIDER_TEXT]) {
  text[FH_PROVIDER_TEXT - 1] = 0;
  size_t length = strlen(text);
  while (length > 0 && isspace((unsigned char)text[length - 1])) text[--length] = 0;
  for (size_t i = 0; i < length; i++)
    if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) text[i] = ' ';
  return text;
}

/* The status of a plug-in's function, with its reason as the message. */
static fh_status said(const fh_provider *provider, fh_status status, const char *function,
                      char text[FH_PROVIDER_TEXT]) {
  if (status == FH_OK) return FH_OK;
  const fh_status known = strcmp(fh_status_name(status), "FH_ERR_?") == 0 ? FH_ERR_DEVICE : status;
  if (*one_line(text)) return fh_fail(known, "%s: %s", provider->info.name, text);
  return fh_fail(known, "%s: %s gave status %d and no reason", provider->info.name, function, (int)status);
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* The table in the library at path, which stays loaded. */
static fh_status find_table(const char *path, const char *quoted, const void **table) {
  char text[FH_PROVIDER_TEXT], *file = NULL;
  /* The loader would look for a bare name in the system's folders. */
  if (asprintf(&file, "%s%s", strchr(path, '/') ? "" : "./", path) < 0)
    return fh_fail(FH_ERR_MEMORY, "path: the system refused memory for a copy");
  const int cut = fh_elf_is_cut(file, text, sizeof text);
  void *library = cut ? NULL : dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  free(file);
  if (!library) {
    if (!cut) snprintf(text, sizeof text, "%s", dlerror());
    return fh_fail(FH_ERR_ARGUMENT, "path: got %s, wanted a shared library that loads (%s)", quoted, one_line(text));
  }
  *table = dlsym(library, SYMBOL);
  dlclose(library); /* RTLD_NODELETE: it stays */
  if (!*table) return fh_fail(FH_ERR_ARGUMENT, "path: got %s, wanted a plug-in: it exports no %s", quoted, SYMBOL);
  return FH_OK;
}

static fh_status check_number(const char *quoted, const char *name, uint64_t got, uint64_t low, uint64_t high) {
  if (got >= low && got <= high) return FH_OK;
  return fh_fail(FH_ERR_VERSION,
                 "plug-in %s: %s: got %" PRIu64 ", wanted %" PRIu64 " .. %" PRIu64
                 "; build it with this library's header",
                 quoted, name, got, low, high);
}

static int is_name(const char *name) {
  const size_t length = strnlen(name, sizeof((fh_provider_info *)NULL)->name);
  if (length == sizeof((fh_provider_info *)NULL)->name || !isalpha((unsigned char)*name)) return 0;
  for (size_t i = 0; i < length; i++)
    if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i])) return 0;
  return 1;
}

/* The table with this library's fields; fields that an older table lacks are NULL. */
static fh_status read_table(const void *given, const char *quoted, fh_provider_table *table) {
  fh_status status;
  memcpy(table, given, offsetof(fh_provider_table, call_bytes)); /* no more may be read before its version is known */
  if (table->abi != FH_PROVIDER_ABI)
    return fh_fail(FH_ERR_VERSION, "plug-in %s: abi: got %d, wanted %d; build it with this library's header", quoted,
                   (int)table->abi, FH_PROVIDER_ABI);
  const uint64_t bytes = table->struct_size;
  status = check_number(quoted, "struct_size", bytes, offsetof(fh_provider_table, collect), sizeof *table);
  if (status) return status;
  memset(table, 0, sizeof *table);
  memcpy(table, given, bytes - bytes % POINTER_BYTES); /* no pointer is cut */
  if ((status = check_number(quoted, "call_bytes", table->call_bytes, FH_CALL_LEAST, sizeof(fh_call))) ||
      (status = check_number(quoted, "info_bytes", table->info_bytes, FH_UP_TO(fh_device_info, ordinal),
                             sizeof(fh_device_info))))
    return status;
  const uint32_t kinds = FH_PROVIDER_CPU | FH_PROVIDER_CUDA;
  if (!table->devices || table->devices & ~kinds)
    return fh_fail(FH_ERR_ARGUMENT, "plug-in %s: devices: got %u, wanted FH_PROVIDER_CPU, FH_PROVIDER_CUDA or both",
                   quoted, (unsigned)table->devices);
  if (!table->name || !is_name(table->name))
    return fh_fail(FH_ERR_ARGUMENT,
                   "plug-in %s: name: wanted 1 .. 31 letters, digits, '.', '_', '-', the first one a letter", quoted);
  if (!table->version || !*table->version)
    return fh_fail(FH_ERR_ARGUMENT, "plug-in %s: version: wanted a text", quoted);
  if (!table->run) return fh_fail(FH_ERR_ARGUMENT, "plug-in %s: run: got NULL, wanted a function", quoted);
  return FH_OK;
}

static void describe(fh_provider *provider) {
  fh_provider_info *info = &provider->info;
  char version[FH_PROVIDER_TEXT];
  info->struct_size = sizeof *info;
  info->devices = provider->table.devices;
  info->abi = provider->table.abi;
  snprintf(info->name, sizeof info->name, "%s", provider->table.name);
  snprintf(version, sizeof version, "%s", provider->table.version);
  snprintf(info->version, sizeof info->version, "%.*s", (int)sizeof info->version - 1, one_line(version));
}

fh_status fh_provider_load(const char *path, const char *options, fh_provider **provider) {
  char quoted[FH_QUOTED], text[FH_PROVIDER_TEXT] = "";
  if (!path) return fh_fail_null("path");
  if (!provider) return fh_fail_null("provider");
  const void *given = NULL;
  fh_status status = find_table(path, fh_quote(path, quoted), &given);
  if (!given) return status;
  fh_provider *loaded = calloc(1, sizeof *loaded);
  if (!loaded) return fh_fail(FH_ERR_MEMORY, "provider: the system refused %zu bytes for the handle", sizeof *loaded);
  atomic_init(&loaded->references, 1);
  if (!(status = read_table(given, quoted, &loaded->table))) {
    describe(loaded);
    if (loaded->table.open)
      status = said(loaded, loaded->table.open(options ? options : "", &loaded->state, text), "open", text);
  }
  if (status) {
    free(loaded);
    return status;
  }
  memcpy(loaded->info.description, one_line(text), sizeof loaded->info.description);
  *provider = loaded;
  return FH_OK;
}

static void release(fh_provider *provider) {
  if (atomic_fetch_sub(&provider->references, 1) != 1) return;
  if (provider->table.close) provider->table.close(provider->state);
  free(provider);
}

void fh_provider_free(fh_provider **provider) {
  if (!provider || !*provider) return;
  release(*provider);
  *provider = NULL;
}

fh_status fh_provider_get_info(const fh_provider *provider, fh_provider_info *info) {
  if (!provider) return fh_fail_null("provider");
  return fh_struct_out("fh_provider_info", info, FH_UP_TO(fh_provider_info, description), &provider->info,
                       sizeof provider->info);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Between these two functions the device's context is current, if the device has one. */
static fh_status enter(const fh_device *device) {
  return device->back_end->enter ? device->back_end->enter(device) : FH_OK;
}

static fh_status leave(const fh_device *device, fh_status status) {
  return device->back_end->leave ? device->back_end->leave(status) : status;
}

/* Copies the caller's call without the fields that providers do not read. */
static fh_status plain_call(const fh_call *given, fh_call *plain) {
  const fh_status status = fh_struct_in("fh_call", given, FH_CALL_LEAST, plain, sizeof *plain);
  if (status) return status;
  plain->path = FH_AUTO;
  plain->group = 0;
  plain->plan = NULL;
  plain->costs = NULL;
  plain->counters = NULL;
  return FH_OK;
}

static fh_status supports(fh_provider *provider, fh_device *device, const fh_call *call, uint64_t *bytes) {
  const fh_provider_table *table = &provider->table;
  char text[FH_PROVIDER_TEXT] = "";
  if (!(table->devices & 1u << device->info.kind))
    return fh_fail(FH_ERR_UNSUPPORTED, "%s: not made for %s", provider->info.name, device->back_end->called);
  *bytes = 0;
  if (call->s_q == 0) return FH_OK;
  fh_status status = enter(device);
  if (status) return status;
  if (table->supports)
    status = said(provider, table->supports(provider->state, &device->info, call, text), "supports", text);
  if (!status && table->workspace_bytes) {
    const uint64_t wanted = table->workspace_bytes(provider->state, &device->info, call);
    if (wanted <= MOST_WORKSPACE) *bytes = wanted;
    else
      status = fh_fail(FH_ERR_MEMORY, "%s: workspace_bytes gave %" PRIu64 ", wanted at most %" PRIu64,
                       provider->info.name, wanted, MOST_WORKSPACE);
  }
  return leave(device, status);
}

fh_status fh_provider_workspace_bytes(fh_provider *provider, fh_device *device, const fh_call *given, uint64_t *bytes) {
  fh_checked checked;
  fh_call plain;
  fh_status status;
  if (!provider) return fh_fail_null("provider");
  if (!bytes) return fh_fail_null("bytes");
  if ((status = plain_call(given, &plain)) || (status = fh_check_sizes(device, &plain, &checked))) return status;
  return supports(provider, device, &checked.call, bytes);
}

static fh_status prepare(fh_provider_job *job) {
  const fh_provider *provider = job->provider;
  char text[FH_PROVIDER_TEXT] = "";
  if (job->call.s_q == 0) return FH_OK;
  if (provider->table.prepare) {
    fh_status status = enter(job->device);
    if (status) return status;
    status = provider->table.prepare(provider->state, &job->device->info, &job->call, &job->job, text);
    if ((status = leave(job->device, said(provider, status, "prepare", text)))) return status;
  }
  job->prepared = 1;
  return FH_OK;
}

fh_status fh_provider_prepare(fh_provider *provider, fh_device *device, const fh_call *given, fh_provider_job **job) {
  fh_checked checked;
  fh_call plain;
  uint64_t bytes = 0;
  fh_status status;
  if (!provider) return fh_fail_null("provider");
  if (!job) return fh_fail_null("job");
  if ((status = plain_call(given, &plain)) || (status = fh_check_sizes(device, &plain, &checked)) ||
      (status = supports(provider, device, &checked.call, &bytes)) ||
      (status = fh_check_call(device, &plain, bytes, &checked)))
    return status;
  fh_provider_job *made = calloc(1, sizeof *made);
  if (!made) return fh_fail(FH_ERR_MEMORY, "provider: the system refused %zu bytes for the job", sizeof *made);
  atomic_fetch_add(&provider->references, 1);
  made->provider = provider;
  made->device = fh_device_retain(device);
  made->call = checked.call;
  if (device->back_end->stream_of) made->call.stream = device->back_end->stream_of(device, made->call.stream);
  if ((status = prepare(made))) {
    fh_provider_job_free(&made);
    return status;
  }
  *job = made;
  return FH_OK;
}

typedef fh_status step(void *state, void *job, const fh_call *call, char *text);

/* Calls one of the table's functions on the job; does nothing if the function is NULL. */
static fh_status take(fh_provider_job *job, step *function, const char *name) {
  char text[FH_PROVIDER_TEXT];
  if (!job) return fh_fail_null("job");
  if (!function || job->call.s_q == 0) return FH_OK;
  fh_status status = enter(job->device);
  if (status) return status;
  text[0] = 0;
  status = function(job->provider->state, job->job, &job->call, text);
  return leave(job->device, status ? said(job->provider, status, name, text) : FH_OK);
}

fh_status fh_provider_run(fh_provider_job *job) { return take(job, job ? job->provider->table.run : NULL, "run"); }

fh_status fh_provider_collect(fh_provider_job *job) {
  return take(job, job ? job->provider->table.collect : NULL, "collect");
}

uint64_t fh_provider_executed_flops(fh_provider_job *job) {
  if (!job || job->call.s_q == 0 || !job->provider->table.executed_flops || enter(job->device)) return 0;
  const uint64_t flops = job->provider->table.executed_flops(job->provider->state, job->job, &job->call);
  (void)leave(job->device, FH_OK);
  return flops;
}

void fh_provider_job_free(fh_provider_job **job) {
  if (!job || !*job) return;
  fh_provider_job *old = *job;
  const fh_provider_table *table = &old->provider->table;
  if (old->prepared && enter(old->device) == FH_OK) {
    (void)old->device->back_end->synchronize(old->device);
    if (table->release) table->release(old->provider->state, old->job);
    (void)leave(old->device, FH_OK);
  }
  fh_device_release(old->device);
  release(old->provider);
  free(old);
  *job = NULL;
}
