// Test that all ranks have the same 64-bit value, by a sum that is made anyway.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace sherd {

/// Each rank adds encode(value) to data that is summed over ranks (i64 words, in any order and grouping).
/// Every rank reads the same result from the sums. Exact for up to 16384 summands.
struct SameValue {
  /// number of summands; sum of the squares of four digits; the digits, 16 bits each
  static constexpr int64_t kWords = 6;
  using Words = std::array<int64_t, kWords>;

  static constexpr Words encode(uint64_t value) {
    Words words{1};
    for (size_t i = 0; i < 4; ++i) {
      const auto digit = static_cast<int64_t>(value >> (16 * i) & 0xffff);
      words[2 + i] = digit;
      words[1] += digit * digit;
    }
    return words;
  }

  /// Returns whether all summands were equal. @pre sums holds kWords words, sums of encode(). By
  /// Cauchy-Schwarz n * (d1^2 + ... + dn^2) >= (d1 + ... + dn)^2, with equality exactly when all d are equal.
  /// A sum of four such differences is 0 exactly when each is 0.
  static constexpr bool all_equal(std::span<const int64_t> sums) {
    int64_t squares_of_sums = 0;
    for (size_t i = 2; i < kWords; ++i) squares_of_sums += sums[i] * sums[i];
    return sums[0] * sums[1] == squares_of_sums;
  }
};

}  // namespace sherd
