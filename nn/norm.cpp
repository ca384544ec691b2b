#include <sherd/nn/norm.h>

#include <sherd/kernels/ops/elementwise.h>
#include <sherd/kernels/ops/norm.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn {

using namespace detail;

Var rms_norm(const Var& x, const Parameter& w, float eps) {
  const Tensor in = x.value();
  const Tensor rstd = like_f32(in, {in.size(0)});
  return function(
      {x},
      [&](Stream& s) {
        Tensor y = like(in);
        ops::rms_norm_forward(s, y, rstd, in, w.data(), eps);
        return y;
      },
      [in, rstd, w](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dx = like(in), dw = w.trainable() ? w.grad() : like_f32(in, w.shape());
        if (!w.trainable()) ops::fill(s, dw, 0);  // nobody reads it
        ops::rms_norm_backward(s, dx, dw, call.output().tensor(in), in, w.data(), rstd);
        return {dx};
      },
      {w});
}

}  // namespace sherd::nn
