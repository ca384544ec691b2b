// Exponentials of a row of attention's scores. Private to CPU kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include <sherd/kernels/device/cpu/vector_math.h>

namespace sherd::cpu {

/// Turns a row of scores into exp(score - max) with zeros from `count` on; returns {max, sum}.
inline std::pair<float, float> exponentials(float* row, int64_t count, int64_t keys) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t j = 0; j < count; ++j) max = row[j] > max ? row[j] : max;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) {
    row[j] = exp_fast(row[j] - max);
    sum += row[j];
  }
  std::fill(row + count, row + keys, 0.0f);
  return {max, sum};
}

}  // namespace sherd::cpu
