#include <sherd/nn/reductions.h>

#include <memory>

#include <sherd/nn/algebra.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/reduced.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/kernels/strided/strided.h>

namespace sherd::nn {
namespace {

/// The shape without `dims`, which are sorted.
Shape without(const Shape& shape, const std::vector<int64_t>& dims) {
  Shape rest;
  for (size_t d = 0, next = 0; d < shape.size(); ++d) {
    if (next < dims.size() && dims[next] == static_cast<int64_t>(d))
      ++next;
    else
      rest.push_back(shape[d]);
  }
  return rest;
}

Var scaled_sum_over(const Var& x, const std::vector<int64_t>& over, bool keep, bool mean, const char* name) {
  const Tensor in = x.value();
  const std::vector<int64_t> dims = detail::dims_of(name, in.shape(), over);
  const Shape kept = detail::with_ones(in.shape(), dims);
  const double factor = mean ? static_cast<double>(numel_of(kept)) / static_cast<double>(in.numel()) : 1;
  return function(
      {x},
      [&](Stream& s) {
        return detail::reduced(s, Reduction::sum, in, dims, factor)
            .view(keep ? kept : without(in.shape(), dims));
      },
      [kept, factor, device = &in.device(), shape = in.shape(), dtype = in.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Gradient& g = call.output();
        if (g.constant() && dtype != DType::f64)
          return {Gradient::constant(*g.constant() * static_cast<float>(factor))};
        const Tensor dx = Tensor::empty(*device, shape, dtype, detail::kActivations);
        const Tensor dy = g.tensor(*device, kept, dtype).view(kept);
        ops::map(s, MapFunction::multiply, ops::dense(dx), {ops::broadcast(ops::dense(dy), shape), factor});
        return {dx};
      },
      {}, name);
}

}  // namespace

Var sum(const Var& x, const std::vector<int64_t>& dims, bool keep) {
  return scaled_sum_over(x, dims, keep, false, "sum");
}

Var mean(const Var& x, const std::vector<int64_t>& dims, bool keep) {
  return scaled_sum_over(x, dims, keep, true, "mean");
}

Var max(const Var& x, const std::vector<int64_t>& over, bool keep) {
  const Tensor in = x.value();
  const std::vector<int64_t> dims = detail::dims_of("max", in.shape(), over);
  const Shape kept = detail::with_ones(in.shape(), dims);
  const auto most = std::make_shared<Tensor>();  // the result, from forward on
  return function(
      {x},
      [&](Stream& s) {
        *most = detail::reduced(s, Reduction::max, in, dims);
        return most->view(keep ? kept : without(in.shape(), dims));
      },
      [in, most, dims, kept](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const auto widely = [&](const Tensor& t) { return ops::broadcast(ops::dense(t), in.shape()); };
        // 1 where x is the maximum; the gradient is divided by their number.
        const Tensor dx = detail::like(in);
        ops::map(s, MapFunction::equal, ops::dense(dx), {in, widely(*most)});
        const Tensor share = detail::reduced(s, Reduction::sum, dx, dims);
        const Tensor dy = call.output().tensor(in.device(), kept, in.dtype()).view(kept);
        ops::map(s, MapFunction::divide, ops::dense(share), {dy, share});
        ops::map(s, MapFunction::multiply, ops::dense(dx), {dx, widely(share)});
        return {dx};
      });
}

Var logsumexp(const Var& x, const std::vector<int64_t>& dims, bool keep) {
  const Var most = max(x.detach(), dims, true);
  const Var shift = where(equal(most * 0.0, 0.0), most, 0.0);  // 0 for a maximum that is not finite
  const Var y = log(sum(exp(x - shift), dims, true)) + shift;
  return keep ? y : view(y, without(x.shape(), detail::dims_of("logsumexp", x.shape(), dims)));
}

Var variance(const Var& x, const std::vector<int64_t>& dims, bool keep) {
  return mean(power(x - mean(x, dims, true), 2.0), dims, keep);
}

}  // namespace sherd::nn
