#include <sherd/nn/kernels/attention/cached_attention.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {

void cached_attention(ExecutionContext&, const CachedAttentionArgs& a) {
  const int64_t D = a.head_dim, stride = a.kv_heads * D;  // stride: of a row of k and v
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t column = h / (a.heads / a.kv_heads) * D;  // of the key head
      std::vector<double> p(static_cast<size_t>(a.length + i + 1));
      for (size_t j = 0; j < p.size(); ++j) {
        const int64_t row = static_cast<int64_t>(j) * stride + column;
        for (int64_t d = 0; d < D; ++d) p[j] += get(a.q, i * a.q_stride + h * D + d) * get(a.k, row + d);
        p[j] *= scale;
      }
      const double max = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - max);
      for (int64_t d = 0; d < D; ++d) {
        double o = 0;
        for (size_t j = 0; j < p.size(); ++j)
          o += p[j] * get(a.v, static_cast<int64_t>(j) * stride + column + d);
        put(a.out, (i * a.heads + h) * D + d, o / sum);
      }
    }
  }
}

}  // namespace sherd::reference
