#include <sherd/nn/value.h>

#include <fmt/format.h>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn {

Var::Var(const Parameter& p) : Var(nn::value(p)) {}

Var value(const Parameter& p) {
  return function(
      {},
      [&](Stream& s) {
        const Tensor stored = p.data(), copy = detail::like(stored);
        ops::copy(s, copy, stored);
        return copy;
      },
      [p, dtype = p.data().dtype()](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        if (p.frozen()) return {};
        const GradTarget to = p.grad_for_overwrite();
        const Tensor dy = call.output().tensor(to.grad.device(), p.shape(), dtype);
        if (to.beta == 0)
          ops::cast(s, to.grad, dy);
        else if (to.grad.dtype() == DType::f64)
          ops::add(s, to.grad, to.grad, dy);
        else
          ops::scaled_add(s, to.grad, 1, dy);
        return {};
      },
      {p});
}

Var constants(Device& device, Shape shape, const std::vector<float>& values, DType dtype) {
  if (numel_of(shape) != static_cast<int64_t>(values.size()))
    throw ShapeMismatch(
        fmt::format("constants: {} values for the shape {}", values.size(), to_string(shape)));
  const Tensor f32 = Tensor::empty(device, std::move(shape), DType::f32, detail::kActivations);
  ops::copy_from_host(device.compute(), f32, values.data(), f32.nbytes());
  return detail::as_dtype(device.compute(), f32, dtype);
}

}  // namespace sherd::nn
