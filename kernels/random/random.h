// Random values: uniform, normal, and normal between two limits. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <string_view>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/random/philox.h>  // IWYU pragma: export

namespace sherd {

/// Elements [begin, begin + count) of the sequence of `key`. A value between the bounds may round to either.
struct RandomBoundedArgs {
  float* dst = nullptr;
  int64_t begin = 0, count = 0;
  uint64_t key = 0;
  float low = 0, high = 0;
  /// Mean and standard deviation of the normal distribution, which is cut off at the bounds; unused by
  /// uniform values.
  float mean = 0, stddev = 0;
};

struct RandomKernels {
  static constexpr const char* kName = "random";
  static const RandomKernels* reference();
  static const RandomKernels* cpu();
  static const RandomKernels* cuda();

  void (*random_uniform)(ExecutionContext&, const RandomBoundedArgs&);
  void (*random_truncated_normal)(ExecutionContext&, const RandomBoundedArgs&);
  void (*random_normal)(ExecutionContext&, float* dst, int64_t begin, int64_t count, uint64_t key, float mean,
                        float stddev);
};

namespace ops {

/// dst f32 receives elements [begin, begin + numel) of the infinite sequence of values uniform in [low, high]
/// with the key hash64(seed, name): low + (high - low) * (w + 1/2) / 2^32, fused and in double, with the word
/// w of Philox4x32-10 (philox.h). An element's value does not depend on the caller. The same bits on every
/// device.
/// @throws InvalidArgument unless low <= high, both finite.
void random_uniform(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed, std::string_view name,
                    float low, float high);

/// The same of N(mean, stddev) given that the value is in [low, high]: the first of an element's own sequence
/// of normal candidates (Box-Muller of Philox, the attempt in the counter's third word) that does. Another
/// device may round a value otherwise by one unit in the last place, in about one of 10^8.
/// @throws InvalidArgument unless all are finite, stddev > 0, and at least one candidate in a hundred can be
/// expected within the bounds.
void random_truncated_normal(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed,
                             std::string_view name, float mean, float stddev, float low, float high);

/// dst f32 receives elements [begin, begin + numel) of the infinite N(mean, stddev) sequence with the key
/// hash64(seed, name); Philox4x32-10 (philox.h). An element's value does not depend on the caller.
void random_normal(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed, std::string_view name,
                   float mean, float stddev);

}  // namespace ops
}  // namespace sherd
