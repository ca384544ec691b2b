#include <sherd/nn/detail/memory.h>

#include <utility>

namespace sherd::nn::detail {

Tensor like(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), x.dtype(), kActivations);
}

Tensor like_f32(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), DType::f32, kActivations);
}

Tensor like_wide(const Tensor& x, Shape shape) {
  return x.dtype() == DType::f64 ? like(x, std::move(shape)) : like_f32(x, std::move(shape));
}

}  // namespace sherd::nn::detail
