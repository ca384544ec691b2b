#include <sherd/nn/activation.h>

#include <sherd/kernels/ops/activation.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn {

using detail::like;

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

}  // namespace sherd::nn
