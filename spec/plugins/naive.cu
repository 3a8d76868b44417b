/* A simple plug-in in CUDA: a block for each row and head, 128 threads over the columns, key after key. Its options
 * name what goes wrong: "traps", the kernel ends the CUDA context; "traps-later", from the fourth run on; "crashes",
 * "hangs". */
#include <cuda_bf16.h>
#include <fewhead_provider.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>

enum { THREADS = 128, D_V = 512 };

/* The sum of x over the block, in every thread. */
static __device__ float block_sum(float x, float *scratch) {
  for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  return scratch[0] + scratch[1] + scratch[2] + scratch[3];
}

static __global__ void attend(fh_call c) {
  __shared__ float scratch[THREADS / 32];
  const int64_t s = blockIdx.x / c.h_q, h = blockIdx.x % c.h_q;
  const __nv_bfloat16 *q = (const __nv_bfloat16 *)c.q + s * c.q_stride_s + h * c.q_stride_h;
  int64_t n = c.topk_length ? c.topk_length[s] : c.topk;
  if (n > c.topk) n = c.topk;
  float most = -INFINITY, sum = 0, o[D_V / THREADS] = {};
  for (int64_t j = 0; j < n; j++) {
    const int32_t t = c.indices[s * c.indices_stride + j];
    if (t < 0 || t >= c.s_kv) continue;
    const __nv_bfloat16 *kv = (const __nv_bfloat16 *)c.kv + t * c.kv_stride;
    float x = 0;
    for (int d = threadIdx.x; d < c.d_qk; d += THREADS) x += __bfloat162float(q[d]) * __bfloat162float(kv[d]);
    const float logit = block_sum(x, scratch) * c.sm_scale;
    const float up = fmaxf(most, logit), keep = expf(most - up), p = expf(logit - up);
    most = up, sum = sum * keep + p;
    for (int i = 0; i < D_V / THREADS; i++) o[i] = o[i] * keep + p * __bfloat162float(kv[threadIdx.x + THREADS * i]);
  }
  const float under = sum + (c.attn_sink ? expf(c.attn_sink[h] - most) : 0);
  __nv_bfloat16 *out = (__nv_bfloat16 *)c.out + s * c.out_stride_s + h * c.out_stride_h;
  for (int i = 0; i < D_V / THREADS; i++) out[threadIdx.x + THREADS * i] = __float2bfloat16(sum > 0 ? o[i] / under : 0);
  if (threadIdx.x) return;
  if (c.lse) c.lse[s * c.lse_stride + h] = sum > 0 ? most + logf(sum) : INFINITY;
  if (c.max_logits) c.max_logits[s * c.max_logits_stride + h] = most;
}

struct naive {
  char manner[32];
  int runs;
};

static fh_status open_naive(const char *options, void **state, char *) {
  static naive only; /* the specs open one at a time */
  snprintf(only.manner, sizeof only.manner, "%s", options ? options : "");
  only.runs = 0;
  *state = &only;
  return FH_OK;
}

static __global__ void trap() { __trap(); }

static fh_status run(void *state, void *, const fh_call *call, char *text) {
  naive *n = (naive *)state;
  const bool later = !strcmp(n->manner, "traps-later") && ++n->runs > 3;
  if (later || !strcmp(n->manner, "traps")) trap<<<1, 1, 0, (cudaStream_t)call->stream>>>();
  if (!strcmp(n->manner, "crashes")) raise(SIGSEGV);
  while (!strcmp(n->manner, "hangs")) sleep(1); /* an empty loop would be left out */
  attend<<<(unsigned)(call->s_q * call->h_q), THREADS, 0, (cudaStream_t)call->stream>>>(*call);
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return FH_OK;
  snprintf(text, FH_PROVIDER_TEXT, "attend: %s", cudaGetErrorString(code));
  return FH_ERR_DEVICE;
}

const fh_provider_table fewhead_provider = {FH_PROVIDER_HEAD, .devices = FH_PROVIDER_CUDA, .name = "naive",
                                            .version = "1",   .open = open_naive,          .run = run};
