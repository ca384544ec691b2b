#include <sherd/nn/rope.h>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/kernels/rope/rope.h>

namespace sherd::nn {

using namespace detail;

Var rope(const Var& x, const Tensor& inv_freq, const RopeOptions& o) {
  return function(
      {x},
      [&](Stream& s) {
        Tensor y = like(x.value());
        ops::rope(s, y, x.value(), inv_freq, o.batch, o.heads, o.first_position);
        return y;
      },
      [inv_freq, o, device = &x.device(), shape = x.shape(), type = x.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(*device, shape, type);
        Tensor dx = like(dy);
        ops::rope(s, dx, dy, inv_freq, o.batch, o.heads, o.first_position, /*inverse=*/true);
        return {dx};
      });
}

Tensor rope_table(Device& device, const std::vector<float>& frequencies) {
  Tensor table = Tensor::empty(device, {static_cast<int64_t>(frequencies.size())}, DType::f32, "rope");
  ops::copy_from_host(device.compute(), table, frequencies.data(), table.nbytes());
  return table;
}

}  // namespace sherd::nn
