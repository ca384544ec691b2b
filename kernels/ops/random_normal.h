// Normally distributed values. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <string_view>

#include <sherd/kernels/device/tensor.h>

namespace sherd::ops {

/// dst f32 receives elements [begin, begin + numel) of the infinite N(mean, stddev) sequence that
/// hash64(seed, name) is the key of; Philox4x32-10 (random.h), so that an element's value does not depend on
/// who asks.
void random_normal(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed, std::string_view name,
                   float mean, float stddev);

}  // namespace sherd::ops
