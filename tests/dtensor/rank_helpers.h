// Short hands for tests that run ranks.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>

namespace sherd {

inline Tensor make_tensor(RankContext& rank, const Shape& shape, const std::vector<float>& values) {
  Tensor t = Tensor::empty(*rank.device, shape, DType::f32, "test");
  ops::copy_from_host(rank.device->compute(), t, values.data(),
                      static_cast<int64_t>(values.size() * sizeof(float)));
  return t;
}

/// 1, 2, 3, ...
inline std::vector<float> counting(int64_t n, float first = 1) {
  std::vector<float> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), first);
  return v;
}

}  // namespace sherd
