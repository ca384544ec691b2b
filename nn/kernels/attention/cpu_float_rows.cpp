#include <algorithm>

#include <sherd/kernels/device/cpu/vectors.h>

#include "cpu_rows.h"

namespace sherd::cpu {

std::pair<float, float> probabilities(float* scores, SeenKeys seen, int64_t keys, float scale) {
  return vectorized([=] { return exponentials(scores, seen, keys, scale); });
}

void gradients(const ScoreRow& row, float scale, float* p, float* ds, int64_t keys) {
  vectorized([=] {
    const int64_t from = row.seen.first, count = row.seen.end, whole = from + (count - from) / 32 * 32,
                  end = whole_vectors(count, keys);
    const auto left = static_cast<int>(count - whole), last = static_cast<int>(end - whole);
    // A product and a difference, as forward's: a fused one would leave a difference at the largest score.
    const auto exponential = [&](int64_t j) { return exp_bounded(row.scores[j] * scale - row.lse); };
    std::fill_n(p, from, 0.0f);
    std::fill_n(ds, from, 0.0f);
#pragma omp simd
    for (int64_t j = from; j < whole; ++j) {
      const float e = exponential(j), gradient = e * (row.dp[j] - row.delta);
      p[j] = e;
      ds[j] = gradient;
    }
#pragma omp simd
    for (int j = 0; j < last; ++j) {
      const float e = exponential(whole + j), gradient = e * (row.dp[whole + j] - row.delta);
      p[whole + j] = j < left ? e : 0.0f;
      ds[whole + j] = j < left ? gradient : 0.0f;
    }
    std::fill(p + end, p + keys, 0.0f);
    std::fill(ds + end, ds + keys, 0.0f);
  });
}

}  // namespace sherd::cpu
