/* Inputs of the kernels' program: lists by pattern, and a case with its arrays on the device. */
#include "cuda/test/test.h"

namespace fhk_test {

__device__ static uint32_t mix(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull, x ^= x >> 33;
  return static_cast<uint32_t>(x);
}
/* About normal: the sum of four uniform bytes, mean 0, deviation 1. */
__global__ void fill_normal(uint16_t *to, int64_t count, uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count; i += step) {
    const uint32_t w = mix(seed * 0x9e3779b97f4a7c15ull + i);
    const float x = (static_cast<float>((w & 255) + (w >> 8 & 255) + (w >> 16 & 255) + (w >> 24)) - 510.f) / 147.8f;
    to[i] = static_cast<uint16_t>((__float_as_uint(x) + 0x7fff + (__float_as_uint(x) >> 16 & 1)) >> 16);
  }
}
float to_float(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

void make_lists(const Case &c, std::vector<int32_t> &indices, std::vector<int32_t> &lengths, int64_t stride) {
  std::mt19937 random(static_cast<uint32_t>(17 * c.s_q + c.topk));
  auto below = [&](int64_t n) {
    return static_cast<int64_t>(static_cast<uint64_t>(random()) * static_cast<uint64_t>(n) >> 32);
  };
  indices.assign(c.s_q * stride, -7);
  lengths.assign(c.s_q, 0);
  std::vector<int32_t> pool(c.s_kv);
  for (int64_t k = 0; k < c.s_kv; k++) pool[k] = static_cast<int32_t>(k);
  auto pick = [&](int32_t *to, int64_t count, int64_t from) { /* distinct ones of 0 .. from - 1 */
                                                              for (int64_t k = 0; k < count; k++) {
                                                                std::swap(pool[k], pool[k + below(from - k)]);
                                                                to[k] = pool[k];
                                                              }
  };
  std::vector<int32_t> picked;
  std::vector<bool> taken(c.s_kv);
  for (int64_t s = 0; s < c.s_q; s++) {
    int32_t *row = indices.data() + s * stride;
    if (c.pattern != kUniform) { /* ratio 4: compressed rows first, then the window; the last row's own row is
                                    the last of KV */
      const int64_t compressed = c.compressed ? c.compressed : c.s_kv / 5, at = c.s_kv - compressed - c.s_q + s;
      const int64_t pos = c.base + at;
      const int64_t seen = std::min((pos + 1) / 4, compressed);
      const int64_t picks = std::min<int64_t>(seen, 512), window = std::min<int64_t>(pos + 1, 128);
      if (c.pattern == kCsa) {
        for (int64_t k = 0; k < seen; k++) pool[k] = static_cast<int32_t>(k);
        pick(row, picks, seen);
      } else {
        size_t kept = 0;
        for (const int32_t t : picked) {
          if (below(1000) < static_cast<int64_t>(1000 * c.kept)) picked[kept++] = t;
          else taken[t] = false;
        }
        picked.resize(kept);
        while (static_cast<int64_t>(picked.size()) < picks) {
          const int32_t t = static_cast<int32_t>(below(seen));
          if (!taken[t]) taken[t] = true, picked.push_back(t);
        }
        std::copy(picked.begin(), picked.end(), row);
      }
      for (int64_t k = 0; k < window; k++) row[picks + k] = static_cast<int32_t>(compressed + at - window + 1 + k);
      for (int64_t k = picks + window; k < c.topk; k++) row[k] = -1;
      lengths[s] = static_cast<int32_t>(picks + window);
      continue;
    }
    const int64_t distinct = std::min(c.topk, c.s_kv);
    pick(row, distinct, c.s_kv);
    for (int64_t k = distinct; k < c.topk; k++) row[k] = c.s_kv ? static_cast<int32_t>(below(c.s_kv)) : 3;
    if (c.repeats)
      for (int64_t k = 1; k < c.topk; k += 9) row[k] = row[k / 2];
    if (c.holes)
      for (int64_t k = 0; k < c.topk; k++) {
        const int64_t dice = below(40);
        if (dice == 0) row[k] = -1;
        if (dice == 1) row[k] = static_cast<int32_t>(c.s_kv + below(5));
        if (dice == 2 && k % 3 == 0) row[k] = INT32_MIN;
      }
    if (c.bad_row >= 0) {
      for (int64_t k = 0; k < c.topk; k++)
        if (row[k] == c.bad_row) row[k] = -1;
      if (s % 2 == 1 && c.topk > 0) row[0] = static_cast<int32_t>(c.bad_row);
    }
    lengths[s] = static_cast<int32_t>(s % 5 == 0 ? c.topk : below(c.topk + 1));
    if (s == 3) lengths[s] = 0;
    if (s == 4) lengths[s] = -5;
    if (s == 6) lengths[s] = static_cast<int32_t>(c.topk + 100);
    if (s == 7 && c.bad_row < 0)
      for (int64_t k = 0; k < c.topk; k++) row[k] = -1;
  }
}

Problem::Problem(const Case &given, int64_t guard)
    : c(given), buffer_heads(heads_of(c)), kv_stride(c.d + c.kv_gap), q_stride_h(c.d + c.q_gap),
      q_stride_s(buffer_heads * q_stride_h), list_stride(c.topk + (c.pattern == kUniform ? 3 : 0)), out_rows(c.s_q + 2),
      kv(c.s_kv * kv_stride + c.kv_offset + 8, guard), q(c.s_q * q_stride_s + c.q_offset + 8, guard),
      out(out_rows * buffer_heads * 512 + c.out_offset + 8, guard), out32(c.s_q * c.h_q * 512),
      lse(out_rows * (c.h_q + 1), guard), max_logits(out_rows * (c.h_q + 1), guard), lse32(c.s_q * c.h_q),
      max32(c.s_q * c.h_q), sink(c.h_q, guard), indices(c.s_q * list_stride, guard), lengths(c.s_q, guard) {
  fill_normal<<<1024, 256>>>(kv.p, kv.n, 1);
  fill_normal<<<1024, 256>>>(q.p, q.n, 2);
  OK(cudaGetLastError());
  if (c.bad_row >= 0) {
    uint16_t *bad = kv.p + c.kv_offset + c.bad_row * kv_stride;
    const uint16_t inf = 0x7f80;
    if (c.bad_one) OK(cudaMemcpy(bad + 300, &inf, sizeof inf, cudaMemcpyHostToDevice));
    else OK(cudaMemset(bad, 0xff, c.d * 2));
    if (c.bad_q) OK(cudaMemset(q.p + c.q_offset + q_stride_s, 0xff, c.d * 2));
  }
  std::vector<int32_t> list, length;
  make_lists(c, list, length, list_stride);
  indices.from(list);
  lengths.from(length);
  std::vector<float> sinks(c.h_q);
  for (int h = 0; h < c.h_q; h++) {
    sinks[h] = static_cast<float>(h % 7) - 3.f;
    if (c.sink == kWildSink) sinks[h] = h % 4 == 0 ? INFINITY : h % 4 == 1 ? -INFINITY : h % 4 == 2 ? 50.f : -50.f;
  }
  sink.from(sinks);
  memset(&call, 0, sizeof call);
  call.struct_size = sizeof call;
  call.s_q = c.s_q, call.s_kv = c.s_kv, call.h_q = c.h_q, call.h_pad = c.h_pad ? c.h_pad : c.h_q <= 64 ? 64 : 128;
  call.d_qk = c.d, call.d_v = 512, call.topk = c.topk;
  call.group = c.group ? c.group : std::max(1, 64 / c.h_q);
  call.sm_scale = c.scale != 0 ? c.scale : static_cast<float>(1 / sqrt(static_cast<double>(c.d)));
  call.q = q.p + c.q_offset, call.q_stride_s = q_stride_s, call.q_stride_h = q_stride_h;
  call.kv = c.s_kv ? kv.p + c.kv_offset : nullptr, call.kv_stride = kv_stride;
  call.indices = c.topk ? indices.p : nullptr, call.indices_stride = list_stride;
  call.topk_length = c.lengths ? lengths.p : nullptr;
  call.attn_sink = c.sink == kNoSink ? nullptr : sink.p;
  call.out = out.p + c.out_offset + buffer_heads * 512, call.out_stride_s = buffer_heads * 512, call.out_stride_h = 512;
  call.out_dtype = FH_BF16;
  if (c.statistics) {
    call.lse = lse.p + c.h_q + 1, call.lse_stride = c.h_q + 1;
    call.max_logits = max_logits.p + c.h_q + 1, call.max_logits_stride = c.h_q + 1;
  }
}

fh_call Problem::reference_call() const {
  fh_call r = call;
  r.path = FH_REFERENCE;
  r.out = out32.p, r.out_stride_s = c.h_q * 512, r.out_stride_h = 512, r.out_dtype = FH_F32;
  r.lse = lse32.p, r.lse_stride = c.h_q;
  r.max_logits = max32.p, r.max_logits_stride = c.h_q;
  return r;
}

}  // namespace fhk_test
