#include <sherd/nn/detail/memory.h>

#include <utility>

#include <sherd/kernels/elementwise/elementwise.h>

namespace sherd::nn::detail {

Tensor like(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), x.dtype(), kActivations);
}

Tensor like_f32(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), DType::f32, kActivations);
}

Tensor as_dtype(Stream& s, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.device(), x.shape(), dtype, kActivations);
  ops::cast(s, y, x);
  return y;
}

Tensor norm_weight(Stream& s, const Parameter& w, float base) {
  if (base == 0) return w.data();
  const Tensor sum = like_f32(w.data(), w.shape());
  ops::fill(s, sum, base);
  ops::scaled_add(s, sum, 1, w.data());
  return sum;
}

Tensor like_wide(const Tensor& x, Shape shape) {
  return x.dtype() == DType::f64 ? like(x, std::move(shape)) : like_f32(x, std::move(shape));
}

Tensor gradient_of(Stream& s, const Parameter& p, const Tensor& beside) {
  if (!p.defined()) return {};
  if (!p.frozen()) return p.grad();
  Tensor unused = like_wide(beside, p.shape());
  ops::fill(s, unused, 0);
  return unused;
}

}  // namespace sherd::nn::detail
