#include <sherd/nn/activation.h>

#include <sherd/kernels/epilogue/epilogue.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/kernels/activation/activation.h>
#include <sherd/nn/kernels/softmax/softmax.h>

namespace sherd::nn {

using detail::like;

namespace {

Var activation(const Var& x, Activation f) {
  const Tensor in = x.value();
  return function(
      {x},
      [&](Stream& s) {
        Tensor y = like(in);
        ops::activation_forward(s, f, y, in);
        return y;
      },
      [in, f](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dx = like(in);
        ops::activation_backward(s, f, dx, call.output().tensor(in), in);
        return {dx};
      });
}

}  // namespace

Var gelu(const Var& x) {
  const Tensor in = x.value();
  return function(
      {x},
      [&](Stream& s) {
        Tensor y = like(in);
        ops::gelu_forward(s, y, in);
        return y;
      },
      [in](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dx = like(in);
        ops::gelu_backward(s, dx, call.output().tensor(in), in);
        return {dx};
      });
}

Var gelu_erf(const Var& x) { return activation(x, Activation::gelu_erf); }
Var silu(const Var& x) { return activation(x, Activation::silu); }
Var relu(const Var& x) { return activation(x, Activation::relu); }

Var swiglu(const Var& gate, const Var& up) {
  const Tensor g = gate.value(), u = up.value();
  return function(
      {gate, up},
      [&](Stream& s) {
        Tensor y = like(g);
        ops::swiglu_forward(s, y, g, u);
        return y;
      },
      [g, u](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dgate = like(g), dup = like(u);
        ops::swiglu_backward(s, dgate, dup, call.output().tensor(g), g, u);
        return {dgate, dup};
      });
}

Var swiglu(const Var& gate_up) {
  const Tensor in = gate_up.value();
  if (in.dim() != 2 || in.size(1) % 2 != 0)
    throw ShapeMismatch("swiglu: gate and up side by side must be [rows, 2 * hidden], not " +
                        to_string(in.shape()));
  const Shape half{in.size(0), in.size(1) / 2};
  return function(
      {gate_up},
      [&](Stream& s) {
        Tensor y = like(in, half);
        ops::swiglu_forward(s, y, in);
        return y;
      },
      [in, half](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dx = like(in);
        ops::swiglu_backward(s, dx, call.output().tensor(in.device(), half, in.dtype()), in);
        return {dx};
      });
}

Var softmax(const Var& x) {
  const Tensor y = like(x.value());
  return function(
      {x},
      [&](Stream& s) {
        ops::softmax_forward(s, y, x.value());
        return y;
      },
      [y](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dx = like(y);
        ops::softmax_backward(s, dx, call.output().tensor(y), y);
        return {dx};
      });
}

}  // namespace sherd::nn
