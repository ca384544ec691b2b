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

// A weight in another dtype than the rows: all is computed in the weight's, and rounded to the rows' at the end. Of the
// rows only the narrow copy is kept.
Var rms_norm(const Var& x, const Parameter& w, float eps) {
  const Tensor in = x.value();
  const Tensor rstd = like_wide(in, {in.size(0)});
  return function(
      {x},
      [&](Stream& s) {
        const Tensor weight = w.data(), rows = as_dtype(s, in, weight.dtype());
        Tensor y = like(rows);
        ops::rms_norm_forward(s, y, rstd, rows, weight, eps);
        return as_dtype(s, y, in.dtype());
      },
      [in, rstd, w](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor weight = w.data(), rows = as_dtype(s, in, weight.dtype());
        const Tensor dy = as_dtype(s, call.output().tensor(in), weight.dtype());
        Tensor dx = like(rows), dw = gradient_of(s, w, in);
        ops::rms_norm_backward(s, dx, dw, dy, rows, weight, rstd);
        return {as_dtype(s, dx, in.dtype())};
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
        const Tensor weight = w.data(), rows = as_dtype(s, in, weight.dtype());
        Tensor y = like(rows);
        ops::layer_norm_forward(s, y, mean, rstd, rows, weight, bias.defined() ? bias.data() : Tensor(), eps);
        return as_dtype(s, y, in.dtype());
      },
      [in, mean, rstd, w, bias](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor weight = w.data(), rows = as_dtype(s, in, weight.dtype());
        const Tensor dy = as_dtype(s, call.output().tensor(in), weight.dtype());
        Tensor dx = like(rows);
        ops::layer_norm_backward(s, dx, gradient_of(s, w, in), dy, rows, weight, mean, rstd);
        if (bias.defined() && bias.trainable()) ops::bias_backward(s, bias.grad(), dy);
        return {as_dtype(s, dx, in.dtype())};
      },
      bias.defined() ? std::vector<Parameter>{w, bias} : std::vector<Parameter>{w});
}

}  // namespace sherd::nn
