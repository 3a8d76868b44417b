/* portable reference against double loops on the CPU. Every case of the contract comes by here, on a few of its
 * rows. */
#include "cuda/test/test.h"

namespace fhk_test {

/* The reference kernel against double loops, on up to `rows` rows. */
void check_reference(const Problem &p, const std::vector<float> &out, const std::vector<float> &lse,
                     const std::vector<float> &top, int64_t rows) {
  const Case &c = p.c;
  const auto kv = p.kv.get(), q = p.q.get();
  const auto indices = p.indices.get(), lengths = p.lengths.get();
  const auto sink = p.sink.get();
  Residual r;
  for (int64_t s = 0; s < c.s_q; s += std::max<int64_t>(1, c.s_q / rows)) {
    int64_t length = c.lengths ? lengths[s] : c.topk;
    length = std::min<int64_t>(std::max<int64_t>(length, 0), c.topk);
    if (c.bad_row >= 0 && s % 2 == 1) continue;
    for (int h = 0; h < c.h_q; h++) {
      std::vector<double> logit(length);
      double most = -INFINITY, sum = 0, o[512] = {};
      const uint16_t *qr = q.data() + c.q_offset + s * p.q_stride_s + h * p.q_stride_h;
      auto row = [&](int64_t j) {
        const int32_t t = indices[s * p.list_stride + j];
        return t >= 0 && t < c.s_kv ? kv.data() + c.kv_offset + t * p.kv_stride : nullptr;
      };
      for (int64_t j = 0; j < length; j++) {
        const uint16_t *k = row(j);
        if (!k) continue;
        double x = 0;
        for (int d = 0; d < c.d; d++) x += static_cast<double>(to_float(qr[d])) * to_float(k[d]);
        logit[j] = x * p.call.sm_scale;
        most = std::max(most, logit[j]);
      }
      for (int64_t j = 0; j < length; j++) {
        const uint16_t *k = row(j);
        if (!k) continue;
        const double w = exp(logit[j] - most);
        sum += w;
        for (int d = 0; d < 512; d++) o[d] += w * to_float(k[d]);
      }
      const double whole = sum + (c.sink == kNoSink || most == -INFINITY ? 0. : exp(sink[h] - most));
      for (int d = 0; d < 512; d++) r.add(out[(s * c.h_q + h) * 512 + d], most == -INFINITY ? 0. : o[d] / whole);
      r.statistic(r.lse, lse[s * c.h_q + h], most == -INFINITY ? INFINITY : most + log(sum), "lse");
      r.statistic(r.top, top[s * c.h_q + h], most, "max_logits");
    }
  }
  report(c, "reference", r, 2e-6, 2e-6);
}

}  // namespace fhk_test
