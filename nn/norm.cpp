#include <sherd/nn/norm.h>

#include <sherd/kernels/ops/elementwise.h>
#include <sherd/kernels/ops/norm.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn {

using namespace detail;

// A weight in another dtype than the rows: all is computed in the weight's, and rounded to the rows' at the end. Of the
// rows only the narrow copy is kept.
Var rms_norm(const Var& x, const Parameter& w, float eps) {
  const Tensor in = x.value();
  const Tensor rstd = like_f32(in, {in.size(0)});
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
        Tensor dx = like(rows), dw = w.trainable() ? w.grad() : like_f32(in, w.shape());
        if (!w.trainable()) ops::fill(s, dw, 0);  // nobody reads it
        ops::rms_norm_backward(s, dx, dw, dy, rows, weight, rstd);
        return {as_dtype(s, dx, in.dtype())};
      },
      {w});
}

}  // namespace sherd::nn
