#include <sherd/nn/rope.h>

#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/kernels/rope/rope.h>

namespace sherd::nn {

using namespace detail;

Var rope(Var x, const Tensor& inv_freq, const RopeOptions& o) {
  const bool in_place = x.value().sole_owner();
  const Tensor in = x.value();
  return function(
      {std::move(x)},
      [&](Stream& s) {
        const Tensor y = in_place ? in : like(in);
        ops::rope(s, y, in, inv_freq, o.batch, o.heads, o.first_position, /*inverse=*/false, o.head_dim,
                  o.scale);
        return y;
      },
      [inv_freq, o, device = &in.device(), shape = in.shape(), type = in.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.take_output().tensor(*device, shape, type);
        const Tensor dx = dy.sole_owner() ? dy : like(dy);
        ops::rope(s, dx, dy, inv_freq, o.batch, o.heads, o.first_position, /*inverse=*/true, o.head_dim,
                  o.scale);
        return {dx};
      });
}

Tensor rope_table(Device& device, const std::vector<float>& frequencies) {
  Tensor table = Tensor::empty(device, {static_cast<int64_t>(frequencies.size())}, DType::f32, "rope");
  ops::copy_from_host(device.compute(), table, frequencies.data(), table.nbytes());
  return table;
}

}  // namespace sherd::nn
