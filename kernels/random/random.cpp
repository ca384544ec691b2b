#include <sherd/kernels/random/random.h>

#include <fmt/format.h>

#include <cmath>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

namespace {

void check(const char* op, std::string_view name, const Tensor& dst, int64_t begin, float low, float high) {
  Check(op).dtype("dst", dst, DType::f32).done();
  require(begin >= 0, fmt::format("{} of '{}': first element {} is negative", op, name, begin));
  require(std::isfinite(low) && std::isfinite(high) && low <= high,
          fmt::format("{} of '{}': bounds {} and {} are not a finite interval", op, name, low, high));
}

// Returns the probability that a standard normal value is below z.
double probability_below(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

}  // namespace

void random_uniform(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed, std::string_view name,
                    float low, float high) {
  check("random_uniform", name, dst, begin, low, high);
  queue(s, "random_uniform", kernels<RandomKernels>(s).random_uniform,
        RandomBoundedArgs{dst.data<float>(), begin, dst.numel(), hash64(seed, name), low, high});
}

void random_truncated_normal(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed,
                             std::string_view name, float mean, float stddev, float low, float high) {
  check("random_truncated_normal", name, dst, begin, low, high);
  require(std::isfinite(mean) && std::isfinite(stddev) && stddev > 0,
          fmt::format(
              "random_truncated_normal of '{}': mean {} and stddev {} do not define a normal distribution",
              name, mean, stddev));
  const double inside =
      probability_below((double{high} - mean) / stddev) - probability_below((double{low} - mean) / stddev);
  require(
      inside >= 0.01,
      fmt::format("random_truncated_normal of '{}': a value of mean {} and stddev {} lies in [{}, {}] with "
                  "probability {:.2g}; use wider bounds, or uniform values",
                  name, mean, stddev, low, high, inside));
  queue(
      s, "random_truncated_normal", kernels<RandomKernels>(s).random_truncated_normal,
      RandomBoundedArgs{dst.data<float>(), begin, dst.numel(), hash64(seed, name), low, high, mean, stddev});
}

void random_normal(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed, std::string_view name,
                   float mean, float stddev) {
  Check("random_normal").dtype("dst", dst, DType::f32).done();
  require(begin >= 0, fmt::format("random_normal of '{}': first element {} is negative", name, begin));
  queue(s, "random_normal", kernels<RandomKernels>(s).random_normal, dst.data<float>(), begin, dst.numel(),
        hash64(seed, name), mean, stddev);
}

}  // namespace sherd::ops
