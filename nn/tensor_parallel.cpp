#include <sherd/nn/tensor_parallel.h>

#include <utility>

#include <sherd/kernels/ops/ops.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/function.h>
#include <sherd/nn/linear.h>

namespace sherd::nn {
namespace {

constexpr const char* kDim = "tp";

Tensor empty_like(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), x.dtype(), "activations");
}

Tensor f32_like(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), DType::f32, "activations");
}

}  // namespace

TensorParallel TensorParallel::of(const sherd::DeviceMesh& mesh) {
  if (!mesh.has(kDim) || mesh.size(kDim) == 1) return {};
  return {mesh.comm(kDim)->clone()};
}

namespace {

// All n rows, of each rank's part.
Tensor all_rows(Stream& s, const TensorParallel& tp, const Tensor& part, int64_t n) {
  const int64_t width = part.size(1);
  std::vector<int64_t> counts;
  for (int r = 0; r < tp.size(); ++r) counts.push_back((tp.begin_of(n, r + 1) - tp.begin_of(n, r)) * width);
  Tensor all = empty_like(part, {n, width});
  tp.comm->all_gather_v(s, all.unowned_view(), counts, part.unowned_view());
  return all;
}

Tensor own_rows(const TensorParallel& tp, const Tensor& all) {
  return all.rows(tp.begin_of(all.size(0), tp.rank()), tp.begin_of(all.size(0), tp.rank() + 1));
}

}  // namespace

Var TensorParallel::split_rows(const Var& x) const {
  if (size() == 1) return x;
  return function(
      {x}, [&](Stream&) { return own_rows(*this, x.value()); },
      [tp = *this, part = own_rows(*this, x.value()).shape(), device = &x.device(), dtype = x.dtype(), n = x.size(0)](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        return {all_rows(s, tp, call.output().tensor(*device, part, dtype), n)};
      });
}

Var TensorParallel::gather_rows(const Var& x, int64_t n) const {
  if (size() == 1) return x;
  return function(
      {x}, [&](Stream& s) { return all_rows(s, *this, x.value(), n); },
      [tp = *this, device = &x.device(), shape = Shape{n, x.size(1)}, dtype = x.dtype()](
          Stream&, const BackwardCall& call) -> std::vector<Gradient> {
        return {own_rows(tp, call.output().tensor(*device, shape, dtype))};
      });
}

Parameter TensorParallel::cut(Parameter p, int dim) const {
  if (size() > 1) p.set_tensor_shard({kDim, dim, size(), rank()});
  return p;
}

Var TensorParallel::copied(const Var& x) const {
  if (size() == 1) return x;
  return function(
      {x}, [&](Stream&) { return x.value(); },
      [group = comm, like = x.value()](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dx = empty_like(like, like.shape());
        ops::copy(s, dx, call.output().tensor(like));
        group->all_reduce(s, dx.unowned_view());
        return {dx};
      });
}

Var TensorParallel::summed(const Var& x) const {
  if (size() == 1) return x;
  return function(
      {x},
      [&](Stream& s) {
        comm->all_reduce(s, x.value().unowned_view());
        return x.value();
      },
      [](Stream&, const BackwardCall& call) -> std::vector<Gradient> { return {call.output()}; });
}

Tensor TensorParallel::gather(Stream& s, const Tensor& x) const {
  Shape shape = x.shape();
  shape.insert(shape.begin(), size());
  if (size() == 1) return x.view(shape);
  Tensor all = empty_like(x, shape);
  comm->all_gather(s, all.unowned_view(), x.unowned_view());
  return all;
}

Tensor TensorParallel::gather_columns(Stream& s, const Tensor& x) const {
  if (size() == 1) return x;
  const int64_t rows = x.size(0), cols = x.size(1);
  const Tensor parts = gather(s, x);
  Tensor whole = empty_like(x, {rows, cols * size()});
  for (int64_t p = 0; p < size(); ++p)
    ops::strided_copy(s, whole.flat(p * cols, whole.numel()), size() * cols, parts.rows(p, p + 1).flat(),
                      cols, rows, cols);
  return whole;
}

Var add_row_parallel(const TensorParallel& tp, const Var& residual, const Var& x, const Parameter& w) {
  if (tp.size() == 1) return add_linear(residual, x, w);
  return residual + tp.summed(linear(x, w));
}

CrossEntropy vocab_parallel_cross_entropy(const TensorParallel& tp, const Var& x, const Tensor& targets,
                                          float scale) {
  const Tensor logits = x.value();
  const int64_t rows = logits.size(0), cols = logits.size(1);
  const ops::VocabPart part{tp.rank() * cols, tp.size() * cols};
  const Tensor losses = f32_like(logits, {rows}), lse = f32_like(logits, {rows});
  Var objective = function(
      {x},
      [&](Stream& s) {
        const Tensor stats = f32_like(logits, {rows, 3});
        ops::vocab_parallel_partial(s, stats, logits, targets, part);
        ops::vocab_parallel_combine(s, losses, lse, tp.gather(s, stats));
        return scaled_sum(s, losses, scale);
      },
      [logits, lse, targets, part, scale](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        ops::vocab_parallel_backward(s, logits, logits, lse, targets, part, scale);
        scale_by(s, logits, call.output());
        return {logits};
      });
  return {objective, losses};
}

}  // namespace sherd::nn
