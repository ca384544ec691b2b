#include <sherd/nn/detail/memory.h>

#include <utility>

namespace sherd::nn::detail {

Tensor like(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), x.dtype(), kActivations);
}

Tensor like_f32(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), DType::f32, kActivations);
}

}  // namespace sherd::nn::detail
