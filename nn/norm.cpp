#include <sherd/nn/norm.h>

#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/epilogue/epilogue.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/summed_gradient.h>
#include <sherd/nn/kernels/norm/norm.h>

namespace sherd::nn {

using namespace detail;

namespace {

// Adds the result of add(gradient) to the gradient of w, summed over the ranks. The gradient of a frozen
// weight goes to scratch memory, because the kernels compute it together with that of the rows.
template <class F>
void add_gradient(Stream& s, const TensorParallel& tp, const Parameter& w, const Tensor& beside, F add) {
  const auto write = [&](const GradTarget& target) {
    if (target.beta == 0) ops::fill(s, target.grad, 0);
    add(target.grad);
  };
  w.frozen() ? write({like_wide(beside, w.shape()), 0}) : add_summed(s, tp, w, write);
}

struct RowsGradient {
  Tensor dx, addend;
};

// The gradient of a normalised value `in`, computed in the dtype of `rows`, and what is to be added to it in the same pass: the
// residual's gradient, where the dtypes agree.
RowsGradient gradient_of_rows(const BackwardCall& call, const Tensor& in, const Tensor& rows) {
  const Tensor sum = in.dtype() == rows.dtype() ? call.take_sum(0) : Tensor();
  return {sum.sole_owner() ? sum : like(rows), sum};
}

}  // namespace

// A weight in another dtype than the rows: all is computed in the weight's, and rounded to the rows' at the end. Of the
// rows only the narrow copy is kept.
Var rms_norm(const Var& x, const Parameter& w, float eps, const TensorParallel& tp, float base) {
  const Tensor in = x.value();
  const Tensor rstd = like_wide(in, {in.size(0)});
  return function(
      {x},
      [&](Stream& s) {
        const Tensor weight = norm_weight(s, w, base), rows = as_dtype(s, in, weight.dtype());
        Tensor y = like(rows);
        ops::rms_norm_forward(s, y, rstd, rows, weight, eps);
        return as_dtype(s, y, in.dtype());
      },
      [in, rstd, w, tp, base](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor weight = norm_weight(s, w, base), rows = as_dtype(s, in, weight.dtype());
        const Tensor dy = as_dtype(s, call.output().tensor(in), weight.dtype());
        const RowsGradient to = gradient_of_rows(call, in, rows);
        add_gradient(s, tp, w, in, [&](const Tensor& dw) {
          ops::rms_norm_backward(s, to.dx, dw, dy, rows, weight, rstd, to.addend);
        });
        return {as_dtype(s, to.dx, in.dtype())};
      },
      {w});
}

Var layer_norm(const Var& x, const Parameter& w, const Parameter& bias, float eps, const TensorParallel& tp) {
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
      [in, mean, rstd, w, bias, tp](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor weight = w.data(), rows = as_dtype(s, in, weight.dtype());
        const Tensor dy = as_dtype(s, call.output().tensor(in), weight.dtype());
        const RowsGradient to = gradient_of_rows(call, in, rows);
        add_gradient(s, tp, w, in, [&](const Tensor& dw) {
          ops::layer_norm_backward(s, to.dx, dw, dy, rows, weight, mean, rstd, to.addend);
        });
        if (bias.defined() && !bias.frozen())
          add_gradient(s, tp, bias, in, [&](const Tensor& sums) { ops::bias_backward(s, sums, dy); });
        return {as_dtype(s, to.dx, in.dtype())};
      },
      bias.defined() ? std::vector<Parameter>{w, bias} : std::vector<Parameter>{w});
}

}  // namespace sherd::nn
