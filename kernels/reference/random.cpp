#include <sherd/kernels/ops/random.h>

#include <cmath>
#include <numbers>

#include "reference.h"

namespace sherd::reference {
namespace {

/// Elements 4*block .. 4*block+3 of the standard normal sequence of `key`: two Box-Muller pairs.
std::array<double, 4> normals(uint64_t block, uint64_t key) {
  const auto bits = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0},
                               {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  std::array<double, 4> z;
  for (size_t i = 0; i < 4; i += 2) {
    const double radius = std::sqrt(-2 * std::log((bits[i] + 0.5) * 0x1p-32));  // + 0.5: never log(0)
    const double angle = 2 * std::numbers::pi * (bits[i + 1] * 0x1p-32);
    z[i] = radius * std::cos(angle);
    z[i + 1] = radius * std::sin(angle);
  }
  return z;
}

}  // namespace

void random_normal(ExecutionContext&, float* dst, int64_t begin, int64_t count, uint64_t key, float mean,
                   float stddev) {
  for (int64_t i = 0; i < count;) {
    const auto element = static_cast<uint64_t>(begin + i);
    const auto z = normals(element / 4, key);
    for (size_t j = element % 4; j < 4 && i < count; ++j, ++i)
      dst[i] = static_cast<float>(mean + stddev * z[j]);
  }
}

}  // namespace sherd::reference
