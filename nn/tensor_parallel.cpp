#include <sherd/nn/tensor_parallel.h>

#include <fmt/format.h>

#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/function.h>
#include <sherd/nn/kernels/vocab_parallel/vocab_parallel.h>
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

Tensor TensorParallel::own_rows(const Tensor& all) const {
  return all.rows(begin_of(all.size(0), rank()), begin_of(all.size(0), rank() + 1));
}

Tensor TensorParallel::all_rows(Stream& s, const Tensor& part, int64_t n) const {
  if (size() == 1) return part;
  const int64_t width = part.size(1);
  std::vector<int64_t> counts;
  for (int r = 0; r < size(); ++r) counts.push_back((begin_of(n, r + 1) - begin_of(n, r)) * width);
  Tensor all = empty_like(part, {n, width});
  comm->all_gather_v(s, all.unowned_view(), counts, part.unowned_view());
  return all;
}

// A reduce-scatter has equal slices: where the parts differ, each slice has the largest part's size, and the
// extra row of a smaller part is an unused zero.
Tensor TensorParallel::own_rows_of_sum(Stream& s, const Tensor& x) const {
  if (size() == 1) return x;
  const int64_t n = x.size(0), width = x.size(1), most = (n + size() - 1) / size();
  const Tensor part = empty_like(x, {most, width});
  if (n % size() == 0) {
    comm->reduce_scatter(s, part.unowned_view(), x.unowned_view());
    return part;
  }
  const Tensor slices = empty_like(x, {size() * most, width});
  for (int r = 0; r < size(); ++r) {
    const int64_t begin = begin_of(n, r), rows = begin_of(n, r + 1) - begin;
    if (rows > 0) ops::copy(s, slices.rows(r * most, r * most + rows), x.rows(begin, begin + rows));
    if (rows < most) ops::fill(s, slices.rows(r * most + rows, (r + 1) * most), 0);
  }
  comm->reduce_scatter(s, part.unowned_view(), slices.unowned_view());
  return part.rows(0, begin_of(n, rank() + 1) - begin_of(n, rank()));
}

Var TensorParallel::split_rows(const Var& x) const {
  if (size() == 1) return x;
  return function(
      {x}, [&](Stream&) { return own_rows(x.value()); },
      [tp = *this, part = own_rows(x.value()).shape(), device = &x.device(), dtype = x.dtype(),
       n = x.size(0)](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        return {tp.all_rows(s, call.output().tensor(*device, part, dtype), n)};
      });
}

Var TensorParallel::gather_rows(const Var& x, int64_t n) const {
  if (size() == 1) return x;
  if (x.requires_grad() && x.tape()->training())
    throw InvalidArgument(
        fmt::format("TensorParallel::gather_rows(): x {} on rank {} of {} needs a gradient, which depends on "
                    "what the ranks compute "
                    "from the gathered rows; call nn::all_gather() or SequenceRows::enter() where each rank "
                    "computes another part of the objective "
                    "(backward sums the ranks' gradients), SequenceRows::enter_both().whole where all ranks "
                    "compute the same "
                    "(backward takes this rank's rows), or evaluate inside nn::NoGrad",
                    to_string(x.value().shape()), rank(), size()));
  const Tensor all = all_rows(x.stream(), x.value(), n);
  return x.tape() != nullptr ? x.tape()->input(all) : Var(all);
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
        ops::vocab_parallel_combine(s, losses, lse, tp.gather(s, stats), targets);
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
