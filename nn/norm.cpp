#include <sherd/nn/norm.h>

#include <sherd/kernels/ops/activation.h>
#include <sherd/kernels/ops/elementwise.h>
#include <sherd/kernels/ops/norm.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn {

using namespace detail;

namespace {

// Where a weight's gradient is added to; of a frozen one, memory that nobody reads.
Tensor gradient_of(Stream& s, const Parameter& w, const Tensor& beside) {
  if (w.trainable()) return w.grad();
  Tensor unused = like_wide(beside, w.shape());
  ops::fill(s, unused, 0);
  return unused;
}

}  // namespace

Var rms_norm(const Var& x, const Parameter& w, float eps) {
  const Tensor in = x.value();
  const Tensor rstd = like_wide(in, {in.size(0)});
  return function(
      {x},
      [&](Stream& s) {
        Tensor y = like(in);
        ops::rms_norm_forward(s, y, rstd, in, w.data(), eps);
        return y;
      },
      [in, rstd, w](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dx = like(in), dw = gradient_of(s, w, in);
        ops::rms_norm_backward(s, dx, dw, call.output().tensor(in), in, w.data(), rstd);
        return {dx};
      },
      {w});
}

Var layer_norm(const Var& x, const Parameter& w, const Parameter& bias, float eps) {
  const Tensor in = x.value();
  if (in.dim() != 2) throw ShapeMismatch("layer_norm: x must be [n, d], not " + to_string(in.shape()));
  const Tensor mean = like_wide(in, {in.size(0)}), rstd = like_wide(in, {in.size(0)});
  return function(
      {x},
      [&](Stream& s) {
        Tensor y = like(in);
        ops::layer_norm_forward(s, y, mean, rstd, in, w.data(), bias.defined() ? bias.data() : Tensor(), eps);
        return y;
      },
      [in, mean, rstd, w, bias](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(in);
        Tensor dx = like(in);
        ops::layer_norm_backward(s, dx, gradient_of(s, w, in), dy, in, w.data(), mean, rstd);
        if (bias.defined() && bias.trainable()) ops::bias_backward(s, bias.grad(), dy);
        return {dx};
      },
      bias.defined() ? std::vector<Parameter>{w, bias} : std::vector<Parameter>{w});
}

}  // namespace sherd::nn
