#include <sherd/nn/embedding.h>

#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/kernels/embedding/embedding.h>

namespace sherd::nn {

Var embedding(const Var& tokens, const Parameter& table, const Parameter& positions, int64_t first_position) {
  const Tensor in = tokens.value();
  Tensor out;
  std::vector<Parameter> parameters{table};
  if (positions.defined()) parameters.push_back(positions);
  return function(
      {tokens},
      [&](Stream& s) {
        const Tensor rows = table.data();
        out = Tensor::empty(in.device(), {in.numel(), rows.size(1)}, rows.dtype(), detail::kActivations);
        ops::embedding_forward(
            s, out, in, rows,
            positions.defined() ? detail::rows_from(positions.data(), first_position) : Tensor());
        return out;
      },
      [in, table, positions, first_position](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dout =
            call.output().tensor(in.device(), {in.numel(), table.shape()[1]}, table.data().dtype());
        ops::embedding_backward(s, detail::gradient_of(s, table, dout),
                                detail::rows_from(detail::gradient_of(s, positions, dout), first_position),
                                dout, in);
        return {Gradient()};
      },
      parameters);
}

}  // namespace sherd::nn
