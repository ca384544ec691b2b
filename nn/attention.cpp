#include <sherd/nn/attention.h>

#include <sherd/kernels/ops/attention.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn {

using namespace detail;

Var causal_attention(const Var& qkv, int64_t batch, int64_t heads) {
  if (batch < 1 || qkv.size(0) % batch != 0 || qkv.size(1) % 3 != 0)
    throw ShapeMismatch("causal_attention: qkv must be [batch * seq, 3 * heads * head_dim]");
  const Tensor in = qkv.value();
  const Tensor out = like(in, {in.size(0), in.size(1) / 3});
  const Tensor lse = like_f32(in, {batch, heads, in.size(0) / batch});
  return function(
      {qkv},
      [&](Stream& s) {
        ops::attention_forward(s, out, lse, in, batch, heads);
        return out;
      },
      [in, out, lse, batch, heads](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dqkv = like(in);
        ops::attention_backward(s, dqkv, call.output().tensor(out), out, lse, in, batch, heads);
        return {dqkv};
      });
}

}  // namespace sherd::nn
