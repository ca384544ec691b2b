#include <sherd/kernels/random/random.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

using Words = std::array<uint32_t, 4>;

Words words(uint64_t counter, uint32_t third, uint32_t fourth, uint64_t key) {
  return philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), third, fourth},
                    {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

/// Two Box-Muller pairs of standard normal values.
std::array<double, 4> normals(const Words& bits) {
  std::array<double, 4> z;
  for (size_t i = 0; i < 4; i += 2) {
    const double radius = std::sqrt(-2 * std::log((bits[i] + 0.5) * 0x1p-32));  // + 0.5: never log(0)
    const double angle = 2 * std::numbers::pi * (bits[i + 1] * 0x1p-32);
    z[i] = radius * std::cos(angle);
    z[i + 1] = radius * std::sin(angle);
  }
  return z;
}

/// Element `i` of the truncated sequence. A hundred expected candidates, four by four, make the last attempt
/// one of less than e^-80; it is there so that no loop is without an end.
float truncated(const RandomBoundedArgs& a, uint64_t i) {
  constexpr uint32_t kAttempts = 2048;
  for (uint32_t attempt = 0; attempt < kAttempts; ++attempt)
    for (const double z : normals(words(i, attempt, 1, a.key))) {
      const auto v = static_cast<float>(a.mean + a.stddev * z);
      if (a.low <= v && v <= a.high) return v;
    }
  return std::clamp(a.mean, a.low, a.high);
}

void random_normal(ExecutionContext&, float* dst, int64_t begin, int64_t count, uint64_t key, float mean,
                   float stddev) {
  for (int64_t i = 0; i < count;) {
    const auto element = static_cast<uint64_t>(begin + i);
    const auto z = normals(words(element / 4, 0, 0, key));
    for (size_t j = element % 4; j < 4 && i < count; ++j, ++i)
      dst[i] = static_cast<float>(mean + stddev * z[j]);
  }
}

void random_uniform(ExecutionContext&, const RandomBoundedArgs& a) {
  const double width = double{a.high} - a.low;
  for (int64_t i = 0; i < a.count;) {
    const auto element = static_cast<uint64_t>(a.begin + i);
    const Words bits = words(element / 4, 0, 0, a.key);
    for (size_t j = element % 4; j < 4 && i < a.count; ++j, ++i)
      a.dst[i] = static_cast<float>(std::fma(width, (bits[j] + 0.5) * 0x1p-32, double{a.low}));
  }
}

void random_truncated_normal(ExecutionContext&, const RandomBoundedArgs& a) {
  for (int64_t i = 0; i < a.count; ++i) a.dst[i] = truncated(a, static_cast<uint64_t>(a.begin + i));
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const RandomKernels* RandomKernels::reference() {
  static constexpr RandomKernels table{
      .random_uniform = reference::random_uniform,
      .random_truncated_normal = reference::random_truncated_normal,
      .random_normal = reference::random_normal,
  };
  return &table;
}

const RandomKernels* RandomKernels::cpu() { return reference(); }

}  // namespace sherd
