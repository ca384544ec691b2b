#include <sherd/kernels/squares/exact_sum.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace sherd {

void ExactSum::normalise(std::span<int64_t> words) {
  int64_t carry = 0;
  for (size_t i = 0; i + 1 < kDigits; ++i) {
    const int64_t digit = words[i] + carry;
    carry = digit >> 32;
    words[i] = digit & 0xffffffff;
  }
  words[kDigits - 1] += carry;
}

double ExactSum::value(std::span<const int64_t> words) {
  if (words[kNonFinite] != 0) return std::numeric_limits<double>::quiet_NaN();
  std::array<int64_t, kWords> w;
  std::copy_n(words.begin(), kWords, w.begin());
  normalise(w);
  int top = kDigits - 1;
  while (top > 0 && w[static_cast<size_t>(top)] == 0) --top;
  auto digit = [&](int i) { return i < 0 ? uint64_t{0} : static_cast<uint64_t>(w[static_cast<size_t>(i)]); };
  if (digit(top) == 0) return 0;

  // The leading 64 bits, with all lower ones folded into the last (sticky) bit, round correctly to 53.
  const int shift = std::countl_zero(static_cast<uint32_t>(digit(top)));
  uint64_t lead = ((digit(top) << 32 | digit(top - 1)) << shift) | (digit(top - 2) << shift) >> 32;
  bool sticky = static_cast<uint32_t>(digit(top - 2) << shift) != 0;
  for (int i = 0; i < top - 2; ++i) sticky |= digit(i) != 0;
  lead |= sticky ? 1u : 0u;
  return std::ldexp(static_cast<double>(lead), 32 * (top - 1) - kBias - shift);
}

float ExactSum::norm(std::span<const int64_t> words) { return static_cast<float>(std::sqrt(value(words))); }

}  // namespace sherd
