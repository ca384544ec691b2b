#include "parallel_linear.h"

#include <sherd/kernels/ops/ops.h>

namespace train_gpt {

using sherd::DType;
using sherd::Shape;
namespace ops = sherd::ops;
namespace {

constexpr const char* kDim = "tp";

}  // namespace

TensorParallel TensorParallel::of(const sherd::DeviceMesh& mesh) {
  if (!mesh.has(kDim) || mesh.size(kDim) == 1) return {};
  return {mesh.comm(kDim)->clone()};
}

Parameter TensorParallel::cut(Parameter p, int dim) const {
  if (size() > 1) p.set_tensor_shard({kDim, dim, size(), rank()});
  return p;
}

void TensorParallel::sum(Stream& s, const Tensor& x) const {
  if (size() > 1) comm->all_reduce(s, x.unowned_view());
}

Tensor TensorParallel::gather(Stream& s, const Tensor& x) const {
  Shape shape = x.shape();
  shape.insert(shape.begin(), size());
  if (size() == 1) return x.view(shape);
  Tensor all = like(x, shape);
  comm->all_gather(s, all.unowned_view(), x.unowned_view());
  return all;
}

Tensor TensorParallel::gather_columns(Stream& s, const Tensor& x) const {
  if (size() == 1) return x;
  const int64_t rows = x.size(0), cols = x.size(1);
  const Tensor parts = gather(s, x);
  Tensor whole = like(x, {rows, cols * size()});
  for (int64_t p = 0; p < size(); ++p)
    ops::strided_copy(s, whole.flat(p * cols, whole.numel()), size() * cols, parts.rows(p, p + 1).flat(),
                      cols, rows, cols);
  return whole;
}

Tensor like(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), x.dtype(), "activations");
}

Tensor like_f32(const Tensor& x, Shape shape) {
  return Tensor::empty(x.device(), std::move(shape), DType::f32, "activations");
}

void weight_backward(Stream& s, const Parameter& w, const Tensor& dy, const Tensor& x) {
  const auto [grad, beta] = w.grad_for_overwrite();
  ops::gemm(s, grad, dy, true, x, false, 1, beta);
}

Tensor linear(Stream& s, const Tensor& x, const Parameter& w) {
  Tensor y = like(x, {x.size(0), w.shape()[0]});
  ops::gemm(s, y, x, false, w.data(), true);
  return y;
}

Tensor linear_backward(Stream& s, const Tensor& dy, const Tensor& x, const Parameter& w) {
  weight_backward(s, w, dy, x);
  Tensor dx = like(dy, {dy.size(0), w.shape()[1]});
  ops::gemm(s, dx, dy, false, w.data(), false);
  return dx;
}

Tensor linear_gelu_backward(Stream& s, const Tensor& dy, const Tensor& x, const Tensor& pre,
                            const Parameter& w) {
  weight_backward(s, w, dy, x);
  Tensor dpre = like(pre, pre.shape());
  ops::gemm_gelu_backward(s, dpre, dy, false, w.data(), false, pre);
  return dpre;
}

Tensor row_parallel(Stream& s, const TensorParallel& tp, const Tensor& x, const Parameter& w) {
  Tensor y = linear(s, x, w);
  tp.sum(s, y);
  return y;
}

Tensor add_row_parallel(Stream& s, const TensorParallel& tp, const Tensor& residual, const Tensor& x,
                        const Parameter& w) {
  Tensor y = like(residual, residual.shape());
  if (tp.size() == 1) {
    ops::gemm_add(s, y, x, false, w.data(), true, residual);
  } else {
    ops::add(s, y, residual, row_parallel(s, tp, x, w));
  }
  return y;
}

Tensor column_parallel_backward(Stream& s, const TensorParallel& tp, const Tensor& dy, const Tensor& x,
                                const Parameter& w) {
  Tensor dx = linear_backward(s, dy, x, w);
  tp.sum(s, dx);
  return dx;
}

Tensor ParallelCrossEntropy::forward(Stream& s, const TensorParallel& tp, const Tensor& logits,
                                     const Tensor& wanted) {
  targets = wanted;
  Tensor losses = like_f32(logits, {logits.size(0)});
  if (tp.size() == 1) {
    ops::cross_entropy_forward(s, losses, logits, targets);
    return losses;
  }
  const int64_t cols = logits.size(1);
  const Tensor stats = like_f32(logits, {logits.size(0), 3});
  ops::vocab_parallel_partial(s, stats, logits, targets, {tp.rank() * cols, tp.size() * cols});
  lse = like_f32(logits, {logits.size(0)});
  ops::vocab_parallel_combine(s, losses, lse, tp.gather(s, stats));
  return losses;
}

Tensor ParallelCrossEntropy::forward_for_backward(Stream& s, const TensorParallel& tp, const Tensor& logits,
                                                  const Tensor& wanted, float factor) {
  scale = factor;
  if (tp.size() > 1) return forward(s, tp, logits, wanted);
  Tensor losses = like_f32(logits, {logits.size(0)});
  ops::cross_entropy_forward_backward(s, losses, logits, logits, wanted, scale);
  return losses;
}

void ParallelCrossEntropy::backward(Stream& s, const TensorParallel& tp, const Tensor& logits) const {
  if (tp.size() == 1) return;
  const int64_t cols = logits.size(1);
  ops::vocab_parallel_backward(s, logits, logits, lse, targets, {tp.rank() * cols, tp.size() * cols}, scale);
}

}  // namespace train_gpt
