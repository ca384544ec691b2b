#include <sherd/nn/gradient.h>

#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn {

Tensor Gradient::tensor(Device& device, const Shape& shape, DType dtype) const {
  if (tensor_.defined()) return tensor_;
  Tensor written = Tensor::empty(device, shape, dtype, detail::kActivations);
  ops::fill(device.compute(), written, *constant_);
  return written;
}

void Gradient::add(Gradient other, Device& device, const Shape& shape, DType dtype) {
  if (!other.defined()) return;
  if (!defined()) {
    *this = std::move(other);
    return;
  }
  if (constant_ && other.constant_) {
    *constant_ += *other.constant_;
    return;
  }
  Tensor a = tensor(device, shape, dtype), b = other.tensor(device, shape, dtype);
  tensor_ = Tensor(), other.tensor_ = Tensor(), constant_.reset();
  Tensor sum = a.sole_owner()   ? a
               : b.sole_owner() ? b
                                : Tensor::empty(device, shape, dtype, detail::kActivations);
  ops::add(device.compute(), sum, a, b);
  tensor_ = std::move(sum);
}

}  // namespace sherd::nn
