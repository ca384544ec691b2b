#include <sherd/kernels/squares/squares.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <sherd/kernels/device/reference/access.h>
#include <sherd/kernels/squares/exact_sum.h>

namespace sherd::reference {
namespace {

float value_at(const SquaresSegment& s, int64_t i) {
  return static_cast<float>(get({const_cast<void*>(s.x), s.dtype}, i));
}

// Adds x^power of every element, power being 1 or 2.
void accumulate(const std::vector<SquaresSegment>& segments, int power) {
  for (const SquaresSegment& segment : segments) {
    std::array<int64_t, ExactSum::kWords> unused{};
    int64_t* sum = segment.sum ? segment.sum : unused.data();
    for (int64_t i = 0; i < segment.count; ++i) {
      const float x = value_at(segment, i);
      if (!std::isfinite(x)) {
        ++sum[ExactSum::kNonFinite];
        if (segment.non_finite) ++*segment.non_finite;
      } else if (x == 0) {
        ++sum[ExactSum::kZeros];
      } else {
        int exponent;  // |x| = mantissa * 2^(exponent - 24), mantissa an integer
        const auto mantissa = static_cast<uint64_t>(std::abs(std::frexp(x, &exponent)) * 0x1p24f);
        const int position = power * (exponent - 24) + ExactSum::kBias;
        const uint64_t term = power == 2 ? mantissa * mantissa : mantissa;
        for (int bit = 0; bit < 48; ++bit)
          if (term >> bit & 1) sum[(position + bit) / 32] += int64_t{1} << (position + bit) % 32;
      }
      ExactSum::normalise({sum, ExactSum::kWords});
    }
  }
}

void accumulate_squares(ExecutionContext&, const std::vector<SquaresSegment>& segments) {
  accumulate(segments, 2);
}

void accumulate_magnitudes(ExecutionContext&, const std::vector<SquaresSegment>& segments) {
  accumulate(segments, 1);
}

void largest_magnitude(ExecutionContext&, float* largest, const std::vector<SquaresSegment>& segments) {
  for (const SquaresSegment& segment : segments)
    for (int64_t i = 0; i < segment.count; ++i)
      if (const float x = value_at(segment, i); std::isfinite(x)) *largest = std::max(*largest, std::abs(x));
}

void add_words(ExecutionContext&, int64_t* dst, const int64_t* src, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    dst[i] = static_cast<int64_t>(static_cast<uint64_t>(dst[i]) + static_cast<uint64_t>(src[i]));
}

void clip_factor(ExecutionContext& context, const ClipFactorArgs& a) {
  std::fill_n(a.total, ExactSum::kWords, 0);
  for (const int64_t* words : a.accumulators) add_words(context, a.total, words, ExactSum::kWords);
  const std::span<const int64_t> words(a.total, ExactSum::kWords);
  float norm = a.kind == NormKind::one ? static_cast<float>(ExactSum::value(words)) : ExactSum::norm(words);
  if (a.kind == NormKind::infinity && words[ExactSum::kNonFinite] == 0) norm = *a.largest;
  const bool skip = !std::isfinite(norm) || a.total[ExactSum::kElsewhere] != 0;
  if (a.skip) *a.skip = skip;
  a.factor[0] = 1;
  if (a.max_norm > 0 && !skip) a.factor[0] = std::min(1.0f, static_cast<float>(a.max_norm) / (norm + 1e-6f));
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const SquaresKernels* SquaresKernels::reference() {
  static constexpr SquaresKernels table{
      .accumulate_squares = reference::accumulate_squares,
      .accumulate_magnitudes = reference::accumulate_magnitudes,
      .largest_magnitude = reference::largest_magnitude,
      .add_words = reference::add_words,
      .clip_factor = reference::clip_factor,
  };
  return &table;
}

}  // namespace sherd
