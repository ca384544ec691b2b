#include <sherd/kernels/squares/squares.h>

#include <array>
#include <bit>
#include <mutex>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/squares/exact_sum.h>

namespace sherd::cpu {
namespace {

using Words = std::array<int64_t, ExactSum::kWords>;

/// A square of a 24-bit mantissa has 48 bits, so this many fit into a 64-bit bin.
constexpr int64_t kFlush = 65536;
/// Neighbouring elements often share an exponent; several tables keep their additions independent.
constexpr int64_t kTables = 4;

/// Sums of mantissas, squared or not, by biased exponent.
using Bins = std::array<uint64_t, 256>;

/// power: 1 or 2
template <int power>
void add_power(Bins& bins, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = (bits >> 23) & 0xff;
  const uint64_t mantissa = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
  bins[exponent] += power == 2 ? mantissa * mantissa : mantissa;
}

/// |x| is mantissa * 2^(max(exponent, 1) - 150), so its square sits at twice that.
template <int power>
void spread(Words& words, const Bins& bins) {
  for (int exponent = 0; exponent < 255; ++exponent) {  // 255: inf and NaN, left out
    const uint64_t sum = bins[static_cast<size_t>(exponent)];
    if (sum == 0) continue;
    const int position = power * (std::max(exponent, 1) - 150) + ExactSum::kBias;
    const auto digit = static_cast<size_t>(position / 32);
    const int shift = position % 32;
    const uint64_t low = sum << shift, high = shift == 0 ? 0 : sum >> (64 - shift);
    words[digit] += static_cast<int64_t>(low & 0xffffffffu);
    words[digit + 1] += static_cast<int64_t>(low >> 32);
    words[digit + 2] += static_cast<int64_t>(high);
  }
}

template <int power>
void accumulate(Words& words, const float* x, int64_t count) {
  std::array<Bins, kTables> tables{};
  int64_t i = 0;
  for (; i + kTables <= count; i += kTables)
    for (int64_t t = 0; t < kTables; ++t) add_power<power>(tables[static_cast<size_t>(t)], x[i + t]);
  for (; i < count; ++i) add_power<power>(tables[0], x[i]);
  for (const Bins& bins : tables) spread<power>(words, bins);

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
      for (int64_t i = begin; i < end; i += kFlush)
        accumulate<power>(words, segment.x + i, std::min(kFlush, end - i));
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
