// Rows of attention's scores, their exponentials and gradients. Private to CPU kernels. What rounds to bf16 is for processors
// with AVX512-BF16; results too small for a normal bf16 are 0. NaN stays NaN.
#pragma once

#include <cstdint>
#include <utility>

#include <sherd/kernels/device/dtype.h>

#include "cpu_exponentials.h"

namespace sherd::cpu {

/// p = e^(scale * (score - max)) with zeros at keys that the row does not see; `keys` is a multiple of 32. Returns the largest
/// score and the sum of exponentials before they are rounded.
std::pair<float, float> probabilities(bf16* p, const float* scores, SeenKeys seen, int64_t keys, float scale);
/// The same in f32, replacing the scores.
std::pair<float, float> probabilities(float* scores, SeenKeys seen, int64_t keys, float scale);

/// The sum of a[i] * b[i], of `count` products, an even number.
float dot(const bf16* a, const bf16* b, int64_t count);
/// The same of any elements, in f32.
template <class T>
float dot(const T* a, const float* b, int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += float(a[i]) * b[i];
  return sum;
}

/// to[i] = from[i] * factor, of `count` elements.
void round_row(bf16* to, const float* from, int64_t count, float factor);

/// A row of scores and of the gradients dp of its probabilities.
struct ScoreRow {
  const float *scores, *dp;
  SeenKeys seen;
  float lse, delta;  // of its exponentials; the sum of p * dp over the row
};

/// p = e^(scale * score - lse) and ds = p * (dp - delta) of two rows, with zeros at keys that a row does not see; `keys` is a
/// multiple of 32. ds_even and ds_odd have ds; paired_p and paired_ds the two rows' elements of each key side by side.
struct GradientRows {
  ScoreRow even, odd;
  float scale;
  bf16 *ds_even, *ds_odd, *paired_p, *paired_ds;
};
void gradients(const GradientRows& rows, int64_t keys);
/// The same of one row in f32. p may take the place of its scores, and ds that of its dp.
void gradients(const ScoreRow& row, float scale, float* p, float* ds, int64_t keys);

}  // namespace sherd::cpu
