// Exact sums of squares or of magnitudes: the same bits in any order, for any layout and any number of ranks.
//
// The square of a binary32 is an integer multiple of 2^-298 below 2^256, so a sum of squares is a fixed-point
// number of 32-bit digits. Each digit is kept in an int64 so that digits of many ranks can be added with a
// plain integer all-reduce and carried once at the end. A magnitude is a multiple of 2^-149 below 2^128.
#pragma once

#include <cstdint>
#include <span>

namespace sherd {

struct ExactSum {
  /// Digit i has weight 2^(32*i - 320); a normalised accumulator holds digits in [0, 2^32).
  static constexpr int kDigits = 20;
  static constexpr int kBias = 320;
  static constexpr int kZeros = kDigits;          // number of elements equal to zero
  static constexpr int kNonFinite = kDigits + 1;  // number of inf or NaN elements (not in the sum)
  /// Non-finite elements anywhere, on any rank, those that belong to no sum included: what decides whether a
  /// step is taken. Added up like the digits, otherwise of no meaning here.
  static constexpr int kElsewhere = kDigits + 2;
  static constexpr int kWords = kDigits + 3;

  /// Carries digits into [0, 2^32). Needed before adding accumulators of more than 2^31 sources.
  static void normalise(std::span<int64_t> words);
  /// The sum as a double, rounded once (to nearest); NaN when there were non-finite elements.
  static double value(std::span<const int64_t> words);
  /// sqrt of the sum, rounded once to fp32.
  static float norm(std::span<const int64_t> words);
};

}  // namespace sherd
