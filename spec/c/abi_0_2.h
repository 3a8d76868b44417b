/* The declarations of fewhead 0.2, as programs were built with them. They stay as they are: test_abi.c is such a
 * program, and must run with every later library of this SONAME. */
#ifndef FEWHEAD_SPEC_ABI_0_2_H
#define FEWHEAD_SPEC_ABI_0_2_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t fh_status;

enum {
  FH_OK = 0,
  FH_ERR_ARGUMENT = 10,
  FH_ERR_SHAPE = 20,
  FH_ERR_STRIDE = 30,
  FH_ERR_ALIGNMENT = 40,
  FH_ERR_OVERLAP = 50,
  FH_ERR_UNSUPPORTED = 60,
  FH_ERR_WORKSPACE = 70,
  FH_ERR_MEMORY = 80,
  FH_ERR_DEVICE = 90,
  FH_ERR_VERSION = 100
};

const char *fh_status_name(fh_status status);

const char *fh_error(void);

typedef struct fh_device fh_device;

typedef enum fh_device_kind { FH_DEVICE_CPU = 1, FH_DEVICE_CUDA = 2 } fh_device_kind;

typedef enum fh_isa {
  FH_ISA_BEST = 0,
  FH_ISA_GENERIC = 1,
  FH_ISA_AVX2 = 2,
  FH_ISA_AVX512 = 3,
  FH_ISA_AVX512_BF16 = 4,
  FH_ISA_AMX = 5
} fh_isa;

typedef struct fh_device_options {
  uint64_t struct_size;
  int32_t threads;
  int32_t isa;
} fh_device_options;

fh_status fh_device_open(const char *name, const fh_device_options *options, fh_device **device);

void fh_device_close(fh_device **device);

typedef enum fh_path { FH_AUTO = 0, FH_REFERENCE = 1, FH_PADDED = 2, FH_GATHER = 3, FH_PACKED = 4 } fh_path;

enum { FH_PATHS = 5, FH_MAX_PATHS = 16 };

typedef struct fh_plan fh_plan;
typedef struct fh_counters fh_counters;
typedef struct fh_costs fh_costs;

typedef struct fh_call {
  uint64_t struct_size;

  int64_t s_q;
  int64_t s_kv;
  int64_t topk;
  int32_t h_q;
  int32_t d_qk;
  int32_t d_v;
  float sm_scale;

  const uint16_t *q;
  int64_t q_stride_s;
  int64_t q_stride_h;
  const uint16_t *kv;
  int64_t kv_stride;
  const int32_t *indices;
  int64_t indices_stride;
  const int32_t *topk_length;
  const float *attn_sink;
  const int32_t *cu_seqlens_q;
  int64_t requests;

  void *out;
  int64_t out_stride_s;
  int64_t out_stride_h;
  float *lse;
  int64_t lse_stride;
  float *max_logits;
  int64_t max_logits_stride;
  int32_t out_dtype;

  int32_t path;
  int32_t row_invariant;
  int32_t h_pad;
  int32_t group;
  int32_t reserved;
  void *workspace;
  uint64_t workspace_bytes;
  void *stream;
  const fh_plan *plan;
  const fh_costs *costs;
  fh_counters *counters;
} fh_call;

fh_status fh_call_init(fh_call *call, uint64_t struct_size, int64_t s_q, int64_t s_kv, int32_t h_q, int32_t d_qk,
                       int64_t topk);

fh_status fh_call_check(fh_device *device, const fh_call *call);

fh_status fh_sparse_fwd(fh_device *device, const fh_call *call);

fh_status fh_workspace_bytes(fh_device *device, const fh_call *call, uint64_t *bytes);

struct fh_counters {
  uint64_t struct_size;
  uint64_t useful_flops;
  uint64_t executed_flops;
  uint64_t bytes;
  uint64_t calls[16];
  uint64_t rows[16];
  char kernel[64];
};

struct fh_plan {
  uint64_t struct_size;
  int64_t s_q;
  int64_t requests;
  int64_t groups;
  int64_t capacity;
  int32_t group;
  int32_t s_kv;
  int32_t *token;
  uint64_t *member;
  int32_t *entries;
  int32_t *order;
  int32_t *keys;
  int64_t *first;
  int32_t *packed_from;
};

fh_status fh_plan_bytes(fh_device *device, const fh_call *call, uint64_t *bytes);

fh_status fh_plan_build(fh_device *device, const fh_call *call, void *memory, uint64_t memory_bytes, fh_plan *plan);

typedef struct fh_work {
  uint64_t struct_size;
  int64_t rows;
  int64_t keys;
  int64_t groups;
  int64_t entries;
  int32_t h_q;
  int32_t h_pad;
  int32_t group;
  int32_t d_qk;
  int32_t d_v;
  int32_t reserved;
} fh_work;

typedef struct fh_path_cost {
  double call_us;
  double unit_us;
  double gflop_us;
} fh_path_cost;

struct fh_costs {
  uint64_t struct_size;
  fh_path_cost padded;
  fh_path_cost gather;
  fh_path_cost packed;
  fh_path_cost plan;
};

double fh_work_gflop(const fh_work *work, int32_t path);

fh_status fh_costs_choose(const fh_costs *costs, const fh_work *work, int32_t row_invariant, int32_t *path,
                          double *cost_us, int32_t count);

fh_status fh_costs_packs(const fh_costs *costs, const fh_work *work, int32_t row_invariant, int32_t planned,
                         int32_t *packs);

fh_status fh_explain(fh_device *device, const fh_call *call, char *text, uint64_t bytes);

fh_status fh_costs_default(const fh_device *device, fh_costs *costs);

typedef struct fh_path_info {
  uint64_t struct_size;
  int32_t path;
  int32_t candidate;
  int32_t native;
  int32_t wants_plan;
  int32_t shares_tile;
  int32_t max_heads;
  uint32_t devices;
  int32_t writes_f32;
  char name[16];
} fh_path_info;

fh_status fh_path_get_info(int32_t path, fh_path_info *info);

const char *fh_path_name(int32_t path);

int32_t fh_device_has_path(const fh_device *device, int32_t path, int32_t h_q);

typedef struct fh_device_info {
  uint64_t struct_size;
  int32_t kind;
  int32_t ordinal;
  int32_t threads;
  int32_t isa;
  int32_t multiprocessors;
  int32_t capability;
  int32_t clock_mhz;
  int32_t memory_clock_mhz;
  uint64_t cache_bytes;
  uint64_t memory_bytes;
  char name[128];
  char driver[64];
} fh_device_info;

fh_status fh_device_get_info(const fh_device *device, fh_device_info *info);

int32_t fh_device_count(int32_t kind);

fh_status fh_device_synchronize(fh_device *device);

enum { FH_VERSION = 200 };

int32_t fh_version(void);

uint32_t fh_header_checksum(void);

uint64_t fh_struct_bytes(const char *name);

const char *fh_build_info(void);

typedef struct fh_gate {
  uint64_t struct_size;
  int32_t enabled;
  int32_t reserved;
  int64_t min_sq;
} fh_gate;

enum { FH_GATE_MIN_SQ = 2048 };

fh_status fh_gate_init(fh_gate *gate, uint64_t struct_size);

fh_status fh_gate_parse(const char *prefill, const char *min_sq, fh_gate *gate, char *warning, uint64_t warning_bytes);

fh_status fh_gate_from_env(fh_gate *gate, char *warning, uint64_t warning_bytes);

fh_status fh_gate_load(const char *path, const fh_device *device, int32_t h_q, int32_t d_qk, int64_t topk,
                       fh_gate *gate);

int32_t fh_padded_heads(int64_t heads);

int32_t fh_gate_native(const fh_gate *gate, int64_t n_local_heads, int64_t padded_heads, int64_t s_q);

fh_status fh_tp_heads(int64_t heads, int64_t ranks, int32_t virtual_heads, int64_t *local, int64_t *added);

fh_status fh_stream_create(fh_device *device, void **stream);

void fh_stream_destroy(fh_device *device, void **stream);

typedef struct fh_graph fh_graph;

fh_status fh_graph_begin(fh_device *device, void *stream);

fh_status fh_graph_end(fh_device *device, void *stream, fh_graph **graph);

fh_status fh_graph_launch(fh_graph *graph, void *stream);
void fh_graph_free(fh_graph **graph);

uint64_t fh_time_ns(void);

typedef struct fh_timer fh_timer;

fh_status fh_timer_create(fh_device *device, fh_timer **timer);
fh_status fh_timer_start(fh_timer *timer, void *stream);
fh_status fh_timer_stop(fh_timer *timer, void *stream);

fh_status fh_timer_elapsed_us(fh_timer *timer, double *us);
void fh_timer_free(fh_timer **timer);

typedef struct fh_buffer fh_buffer;

fh_status fh_buffer_alloc(fh_device *device, uint64_t bytes, fh_buffer **buffer);

fh_status fh_buffer_alloc_host(fh_device *device, uint64_t bytes, fh_buffer **buffer);

fh_status fh_buffer_wrap(fh_device *device, void *base, uint64_t bytes, fh_buffer **buffer);

void fh_buffer_free(fh_buffer **buffer);

void *fh_buffer_data(const fh_buffer *buffer);

uint64_t fh_buffer_bytes(const fh_buffer *buffer);

fh_status fh_buffer_write(fh_buffer *buffer, uint64_t offset, const void *src, uint64_t bytes);
fh_status fh_buffer_read(const fh_buffer *buffer, uint64_t offset, void *dst, uint64_t bytes);

fh_status fh_buffer_fill(fh_buffer *buffer, int32_t value);

fh_status fh_buffer_evict(fh_buffer *buffer);

typedef struct fh_view fh_view;

typedef enum fh_dtype { FH_BF16 = 1, FH_F32 = 2, FH_I32 = 3 } fh_dtype;

enum { FH_MAX_RANK = 4 };

typedef struct fh_view_info {
  uint64_t struct_size;
  int32_t dtype;
  int32_t rank;
  int64_t shape[4];
  int64_t stride[4];
  int64_t offset;
  void *data;
} fh_view_info;

int32_t fh_dtype_bytes(int32_t dtype);

fh_status fh_view_create(fh_buffer *buffer, int32_t dtype, int32_t rank, const int64_t *shape, const int64_t *stride,
                         int64_t offset, fh_view **view);

fh_status fh_view_slice(const fh_view *view, int32_t dim, int64_t first, int64_t count, int64_t step, fh_view **slice);

void fh_view_free(fh_view **view);

fh_status fh_view_get_info(const fh_view *view, fh_view_info *info);

fh_status fh_view_fill(fh_view *view, double value);

fh_status fh_view_write(fh_view *view, const void *src, uint64_t bytes);
fh_status fh_view_read(const fh_view *view, void *dst, uint64_t bytes);

fh_status fh_view_copy(fh_view *dst, const fh_view *src);

typedef enum fh_dist { FH_UNIFORM = 1, FH_NORMAL = 2 } fh_dist;

fh_status fh_view_random(fh_view *view, int32_t dist, uint64_t seed, uint64_t stream, double a, double b);

fh_status fh_random_u32(uint64_t seed, uint64_t stream, uint64_t first, uint64_t n, uint32_t *dst);

typedef struct fh_provider fh_provider;

typedef struct fh_provider_job fh_provider_job;

typedef struct fh_provider_info {
  uint64_t struct_size;
  uint32_t devices;
  int32_t abi;
  char name[32];
  char version[128];
  char description[512];
} fh_provider_info;

fh_status fh_provider_load(const char *path, const char *options, fh_provider **provider);

void fh_provider_free(fh_provider **provider);

fh_status fh_provider_get_info(const fh_provider *provider, fh_provider_info *info);

fh_status fh_provider_workspace_bytes(fh_provider *provider, fh_device *device, const fh_call *call, uint64_t *bytes);

fh_status fh_provider_prepare(fh_provider *provider, fh_device *device, const fh_call *call, fh_provider_job **job);

fh_status fh_provider_run(fh_provider_job *job);

fh_status fh_provider_collect(fh_provider_job *job);

uint64_t fh_provider_executed_flops(fh_provider_job *job);

void fh_provider_job_free(fh_provider_job **job);

#endif
