#include <sherd/nn/detail/adapter.h>

#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/summed_gradient.h>

namespace sherd::nn::detail {
namespace {

ops::Columns columns_of(const Adapter& adapter, const Tensor& y) {
  return {y, adapter.column, adapter.b.shape()[0]};
}

// Adds to the gradients of a and b, and returns that of x a^T times scale, [n, rank].
Tensor pair_backward(Stream& s, const Adapter& p, const Tensor& dy, const Tensor& x, const Tensor& narrow) {
  const ops::Columns d = columns_of(p, dy);
  add_summed(s, {p.sum_b}, p.b,
             [&](const GradTarget& db) { ops::gemm_columns(s, db.grad, d, true, narrow, false, db.beta); });
  const Tensor dnarrow = like(narrow);
  ops::gemm_columns(s, dnarrow, d, false, p.b.data(), false);
  add_summed(s, {p.sum_a}, p.a,
             [&](const GradTarget& da) { ops::gemm(s, da.grad, dnarrow, true, x, false, p.scale, da.beta); });
  return dnarrow;
}

}  // namespace

Var add_adapters(Var y, const Var& x, const std::vector<Adapter>& adapters) {
  if (adapters.empty() || (adapters[0].used && !*adapters[0].used)) return y;
  const bool in_place = y.value().sole_owner();
  const Tensor before = y.value(), in = x.value();
  const Shape shape = before.shape();
  std::vector<Tensor> narrow;  // scale * x a^T of each
  std::vector<Parameter> parameters;
  for (const Adapter& p : adapters) {
    narrow.push_back(like(in, {in.size(0), p.a.shape()[0]}));
    parameters.push_back(p.a);
    parameters.push_back(p.b);
  }
  return function(
      {std::move(y), x},
      [&](Stream& s) {
        const Tensor sum = in_place ? before : like(before);
        if (!in_place) ops::copy(s, sum, before);
        for (size_t i = 0; i < adapters.size(); ++i) {
          const Adapter& p = adapters[i];
          ops::gemm(s, narrow[i], in, false, p.a.data(), true, p.scale);
          ops::gemm_columns(s, columns_of(p, sum), narrow[i], false, p.b.data(), true, 1);
        }
        return sum;
      },
      [adapters, narrow, in, shape](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(in.device(), shape, in.dtype());
        const Tensor dx = call.wants(1) ? like(in) : Tensor();
        for (size_t i = 0; i < adapters.size(); ++i) {
          const Tensor d = pair_backward(s, adapters[i], dy, in, narrow[i]);
          if (dx.defined())
            ops::gemm(s, dx, d, false, adapters[i].a.data(), false, adapters[i].scale, i == 0 ? 0 : 1);
        }
        return {Gradient(dy), dx.defined() ? Gradient(dx) : Gradient()};
      },
      parameters);
}

}  // namespace sherd::nn::detail
