// Exponentials of a row of attention's scores. Private to CPU kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include <sherd/kernels/device/cpu/vector_math.h>

namespace sherd::cpu {

/// Rows of scores are worked in whole vectors, as far as there are keys: up to 31 scalar elements at the end of each would
/// take longer than all others. Of the last 32, keys from `count` on are not seen.
inline int64_t whole_vectors(int64_t count, int64_t keys) { return std::min(keys, (count + 31) / 32 * 32); }

/// Keys that a row sees, counted from the first one of a block's scores.
struct SeenKeys {
  int64_t first, end;
};

/// scores = exp(scale * (score - max)) with zeros at keys that the row does not see; returns {max, sum}.
inline std::pair<float, float> exponentials(float* scores, SeenKeys seen, int64_t keys, float scale = 1) {
  std::fill_n(scores, seen.first, 0.0f);
  scores += seen.first, keys -= seen.first;
  const int64_t count = seen.end - seen.first, whole = count / 32 * 32, end = whole_vectors(count, keys);
  const auto left = static_cast<int>(count - whole), last = static_cast<int>(end - whole);
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  float max = kLeast;
#pragma omp simd reduction(max : max)
  for (int64_t j = 0; j < whole; ++j) max = scores[j] > max ? scores[j] : max;
  float* const rest = scores + whole;
#pragma omp simd reduction(max : max)
  for (int j = 0; j < last; ++j) {
    const float score = j < left ? rest[j] : kLeast;
    max = score > max ? score : max;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < whole; ++j) {
    const float e = exp_bounded((scores[j] - max) * scale);
    scores[j] = e;
    sum += e;
  }
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < last; ++j) {
    const float e = j < left ? exp_bounded((rest[j] - max) * scale) : 0.0f;
    rest[j] = e;
    sum += e;
  }
  std::fill(scores + end, scores + keys, 0.0f);
  return {max, sum};
}

}  // namespace sherd::cpu
