#include <sherd/kernels/exact_sum.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "reference.h"

namespace sherd::reference {

void accumulate_squares(ExecutionContext&, int64_t* accumulator, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) {
      ++accumulator[ExactSum::kNonFinite];
    } else if (x[i] == 0) {
      ++accumulator[ExactSum::kZeros];
    } else {
      int exponent;  // |x| = mantissa * 2^(exponent - 24), mantissa an integer
      const auto mantissa = static_cast<uint64_t>(std::abs(std::frexp(x[i], &exponent)) * 0x1p24f);
      const int position = 2 * (exponent - 24) + ExactSum::kBias;
      const uint64_t square = mantissa * mantissa;
      for (int bit = 0; bit < 48; ++bit)
        if (square >> bit & 1) accumulator[(position + bit) / 32] += int64_t{1} << (position + bit) % 32;
    }
    ExactSum::normalise({accumulator, ExactSum::kWords});
  }
}

void add_words(ExecutionContext&, int64_t* dst, const int64_t* src, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    dst[i] = static_cast<int64_t>(static_cast<uint64_t>(dst[i]) + static_cast<uint64_t>(src[i]));
}

void clip_factor(ExecutionContext& context, const ClipFactorArgs& a) {
  std::fill_n(a.total, ExactSum::kWords, 0);
  for (const int64_t* words : a.accumulators) add_words(context, a.total, words, ExactSum::kWords);
  const float norm = ExactSum::norm({a.total, ExactSum::kWords});
  a.factor[0] = 1;
  if (a.max_norm > 0 && std::isfinite(norm))
    a.factor[0] = std::min(1.0f, static_cast<float>(a.max_norm) / (norm + 1e-6f));
}

}  // namespace sherd::reference
