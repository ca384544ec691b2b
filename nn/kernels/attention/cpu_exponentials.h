// Exponentials of a row of attention's scores. Private to CPU kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include <sherd/kernels/device/cpu/vector_math.h>

namespace sherd::cpu {

/// Rows of scores are worked in whole vectors, as far as there are keys: up to 31 scalar elements at the end of each would
/// take longer than all others.
inline int64_t whole_vectors(int64_t count, int64_t keys) { return std::min(keys, (count + 31) / 32 * 32); }

/// Keys that a row sees, counted from the first one of a block's scores.
struct SeenKeys {
  int64_t first, end;
};

/// scores = exp(score - max) with zeros at keys that the row does not see; returns {max, sum}.
inline std::pair<float, float> exponentials(float* scores, SeenKeys seen, int64_t keys) {
  std::fill_n(scores, seen.first, 0.0f);
  scores += seen.first, keys -= seen.first;
  const int64_t count = seen.end - seen.first;
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  const int64_t end = whole_vectors(count, keys);
  float max = kLeast;
#pragma omp simd reduction(max : max)
  for (int64_t j = 0; j < end; ++j) {
    const float score = j < count ? scores[j] : kLeast;
    max = score > max ? score : max;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < end; ++j) {
    const float e = j < count ? exp_bounded(scores[j] - max) : 0.0f;
    scores[j] = e;
    sum += e;
  }
  std::fill(scores + end, scores + keys, 0.0f);
  return {max, sum};
}

}  // namespace sherd::cpu
