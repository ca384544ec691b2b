#include <sherd/kernels/squares/squares.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/squares/exact_sum.h>

namespace sherd::cpu {
namespace {

using Words = std::array<int64_t, ExactSum::kWords>;

/// Sums of so many doubles that are multiples of one unit, up to 2^42 units each, are exact.
constexpr int64_t kBlock = 2048;
/// Elements of one call of accumulate() below.
constexpr int64_t kFlush = 32 * kBlock;

/// Adds a double that is an integer multiple of 2^-298, below 2^280.
void add(Words& words, double sum) {
  if (sum == 0) return;
  int exponent;
  auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(sum, &exponent), 53));
  const int zeros = std::countr_zero(static_cast<uint64_t>(mantissa));
  mantissa >>= zeros;
  const int position = exponent - 53 + zeros + ExactSum::kBias;
  __extension__ typedef __int128 Wide;
  Wide rest = static_cast<Wide>(mantissa) * (Wide{1} << (position % 32));
  for (auto digit = static_cast<size_t>(position / 32); rest != 0; ++digit) {
    const bool last = rest < 0 && rest >= -(Wide{1} << 32);  // keeps the sign
    words[digit] += last ? static_cast<int64_t>(rest) : static_cast<int64_t>(rest & 0xffffffff);
    rest = last ? 0 : rest >> 32;
  }
}

/// Adds the magnitudes (power 1) or squares (2) of up to kBlock elements. Each is cut at a unit that depends on the
/// largest; the parts above it are summed, exactly, and the parts below it are cut again (Demmel and Nguyen, 2013, go
/// as far as a given accuracy; this ends when nothing is left, mostly after two sums).
template <int power>
void accumulate_block(Words& words, const float* x, int64_t count) {
  double rest[kBlock], largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < count; ++j) {
    const float magnitude = std::abs(x[j]);
    const double finite = magnitude <= std::numeric_limits<float>::max() ? magnitude : 0.0f;
    rest[j] = power == 2 ? finite * finite : finite;
    largest = rest[j] > largest ? rest[j] : largest;
  }
  while (largest > 0) {
    int exponent;
    std::frexp(largest, &exponent);  // largest < 2^exponent; the unit is 2^(exponent - 42)
    const double round = std::ldexp(1.5, exponent - 42 + 52);  // what is added to it is rounded to the unit
    double sum = 0;
    largest = 0;
#pragma omp simd reduction(+ : sum) reduction(max : largest)
    for (int64_t j = 0; j < count; ++j) {
      const double part = (rest[j] + round) - round, below = rest[j] - part;
      sum += part;
      rest[j] = below;
      largest = std::abs(below) > largest ? std::abs(below) : largest;
    }
    add(words, sum);
  }

  int32_t zeros = 0, non_finite = 0;
#pragma omp simd reduction(+ : zeros, non_finite)
  for (int64_t j = 0; j < count; ++j) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[j]) & 0x7fffffffu;
    zeros += magnitude == 0;
    non_finite += magnitude >= 0x7f800000u;
  }
  words[ExactSum::kZeros] += zeros;
  words[ExactSum::kNonFinite] += non_finite;
}

template <int power>
void accumulate(ExecutionContext& ctx, const std::vector<SquaresSegment>& segments) {
  std::mutex mutex;
  for (const SquaresSegment& segment : segments) {
    parallel_for(ctx, segment.count, kFlush, [&](int64_t begin, int64_t end) {
      Words words{};
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t count = std::min(kBlock, end - i);
        if (segment.dtype == DType::f32) {
          accumulate_block<power>(words, static_cast<const float*>(segment.x) + i, count);
          continue;
        }
        const uint16_t* const from = static_cast<const uint16_t*>(segment.x) + i;
        float wide[kBlock];
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) wide[j] = std::bit_cast<float>(uint32_t{from[j]} << 16);
        accumulate_block<power>(words, wide, count);
      }
      ExactSum::normalise(words);
      std::lock_guard lock(mutex);  // integer sums: any order of threads gives the same digits
      if (segment.non_finite) *segment.non_finite += words[ExactSum::kNonFinite];
      for (size_t i = 0; segment.sum && i < words.size(); ++i) segment.sum[i] += words[i];
    });
    if (segment.sum) ExactSum::normalise({segment.sum, ExactSum::kWords});
  }
}

void accumulate_squares(ExecutionContext& ctx, const std::vector<SquaresSegment>& segments) {
  accumulate<2>(ctx, segments);
}

void accumulate_magnitudes(ExecutionContext& ctx, const std::vector<SquaresSegment>& segments) {
  accumulate<1>(ctx, segments);
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const SquaresKernels* SquaresKernels::cpu() {
  static const SquaresKernels table{
      .accumulate_squares = cpu::accumulate_squares,
      .accumulate_magnitudes = cpu::accumulate_magnitudes,
      .largest_magnitude = reference()->largest_magnitude,
      .add_words = reference()->add_words,
      .clip_factor = reference()->clip_factor,
  };
  return &table;
}

}  // namespace sherd
