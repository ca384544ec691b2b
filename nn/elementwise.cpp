#include <sherd/nn/elementwise.h>

#include <string>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/loss.h>

namespace sherd::nn {
namespace {

using detail::like;

Var sum_of(const Var& x, float factor) {
  const Tensor in = x.value();
  return function(
      {x}, [&](Stream& s) { return scaled_sum(s, in, factor); },
      [factor, device = &in.device(), shape = in.shape(), dtype = in.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        if (call.output().constant()) return {Gradient::constant(*call.output().constant() * factor)};
        Tensor dx = Tensor::empty(*device, shape, dtype, detail::kActivations);
        ops::fill(s, dx, factor);
        scale_by(s, dx, call.output());
        return {dx};
      });
}

}  // namespace

Var cast(const Var& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return function(
      {x}, [&](Stream& s) { return detail::as_dtype(s, x.value(), dtype); },
      [device = &x.device(), shape = x.shape(), from = x.dtype(), dtype](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        if (call.output().constant()) return {call.output()};
        return {detail::as_dtype(s, call.output().tensor(*device, shape, dtype), from)};
      });
}

Var view(const Var& x, Shape shape) {
  return function(
      {x}, [&](Stream&) { return x.value().view(std::move(shape)); },
      [inside = x.shape()](Stream&, const BackwardCall& call) -> std::vector<Gradient> {
        if (call.output().constant()) return {call.output()};
        return {call.output().tensor().view(inside)};
      });
}

Var sum(const Var& x) { return sum_of(x, 1); }

Var mean(const Var& x) { return sum_of(x, 1 / static_cast<float>(x.numel())); }

Var mean_squared_error(const Var& x, const Tensor& target) {
  const Tensor in = x.value();
  if (in.dtype() == DType::bf16 || in.shape() != target.shape())
    throw ShapeMismatch("mean_squared_error: x is " + std::string(name_of(in.dtype())) + " " +
                        to_string(in.shape()) + ", the target " + to_string(target.shape()) +
                        "; both must be f32 of one shape");
  const Tensor difference = like(in);
  const float per_element = 1 / static_cast<float>(in.numel());
  return function(
      {x},
      [&](Stream& s) {
        ops::copy(s, difference, target);
        ops::scale(s, difference, -1);
        ops::add(s, difference, in, difference);
        Tensor squares = detail::like_wide(in, {1, 1});
        const Tensor row = difference.view({1, in.numel()});
        ops::gemm(s, squares, row, false, row, true, per_element);
        return squares.view({1});
      },
      [difference, per_element](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Gradient& g = call.output();
        Tensor dx = like(difference);
        ops::copy(s, dx, difference);
        ops::scale(s, dx, 2 * per_element * g.constant().value_or(1));
        if (!g.constant()) scale_by(s, dx, g);
        return {dx};
      });
}

}  // namespace sherd::nn
