#include <sherd/fsdp/init.h>

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include <sherd/kernels/random/random.h>

namespace sherd {

double fan_of(const Shape& whole, Fan fan) {
  const size_t matrix = whole.size() == 3 ? 1 : 0;  // of a stack: of each
  double window = 1;
  for (size_t d = matrix + 2; d < whole.size(); ++d) window *= static_cast<double>(whole[d]);
  const double in = window * static_cast<double>(whole[matrix + 1]);
  const double out = window * static_cast<double>(whole[matrix]);
  return fan == Fan::in ? in : fan == Fan::out ? out : (in + out) / 2;
}

std::string check_init(const Init& init, const Shape& shape) {
  const auto finite = [](auto... values) { return (std::isfinite(values) && ...); };
  if (!finite(init.gain)) return fmt::format("a gain of {}", init.gain);
  if (init.kind == InitKind::function) return init.function ? "" : "no function";
  if (init.kind == InitKind::orthogonal || init.fan != Fan::none) {
    if (shape.size() < 2)
      return fmt::format("{} need a matrix; use normal(), uniform() or constant()",
                         init.kind == InitKind::orthogonal ? "orthogonal values" : "fans");
    return "";
  }
  const bool bounded = init.kind == InitKind::uniform || init.kind == InitKind::truncated_normal;
  if (bounded && !(finite(init.low, init.high) && init.low <= init.high))
    return fmt::format("values between {} and {}", init.low, init.high);
  if (init.kind == InitKind::truncated_normal && !(finite(init.mean, init.stddev) && init.stddev > 0))
    return fmt::format("a normal distribution of mean {} and stddev {}", init.mean, init.stddev);
  if (init.kind ==
      InitKind::truncated_normal) {  // as ops::random_truncated_normal, on ranks without elements, too
    const auto below = [&](float v) {
      // Phi((v - mean) / stddev), the normal distribution function.
      return 0.5 * std::erfc((double{init.mean} - v) / (init.stddev * std::sqrt(2.0)));
    };
    if (const double inside = below(init.high) - below(init.low); inside < 0.01)
      return fmt::format(
          "a value of mean {} and stddev {} lies in [{}, {}] with probability {:.2g}; use wider bounds, "
          "or uniform values",
          init.mean, init.stddev, init.low, init.high, inside);
  }
  return "";
}

// Returns a digest for comparing ranks. InitKind::function compares as a kind only: code has no digest.
uint64_t digest_of(const Init& init) {
  uint64_t digest = 0;
  for (const float v : {init.mean, init.stddev, init.low, init.high, init.gain})
    digest = hash64(digest ^ std::bit_cast<uint32_t>(v), "value");
  for (const int v : {static_cast<int>(init.kind), static_cast<int>(init.fan), int{init.by_blocks}})
    digest = hash64(digest ^ static_cast<uint64_t>(v), "choice");
  return digest;
}

}  // namespace sherd
