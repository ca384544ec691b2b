#include <sherd/nn/loss.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/kernels/reduce/reduce.h>
#include <sherd/nn/detail/logits.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/kernels/loss/loss.h>

namespace sherd::nn {
namespace {

using detail::like;
using detail::like_f32;
using detail::like_wide;

bool recorded(const Var& x, const Parameter& w) {
  const Tape* const tape = detail::tape_of({x}, {w});
  return tape != nullptr && tape->recording() && (x.requires_grad() || !w.frozen());
}

// The rows [begin, end) of a chunk, and how it is computed.
struct Head {
  Tensor x, targets;
  Parameter w;
  int64_t chunk;

  int64_t rows() const { return x.size(0); }
  template <class F>
  void for_chunks(F f) const {
    for (int64_t at = 0; at < rows(); at += chunk) f(at, std::min(at + chunk, rows()));
  }
};

}  // namespace

Tensor scaled_sum(Stream& s, const Tensor& x, float factor) {
  const Tensor wide = Tensor::empty(x.device(), {1}, DType::f64, detail::kActivations);
  ops::fill(s, wide, 0);
  ops::accumulate_sum(s, wide, x);
  Tensor narrow = like_wide(x, {1});
  ops::cast(s, narrow, wide);
  if (factor != 1) ops::scale(s, narrow, factor);
  return narrow;
}

void scale_by(Stream& s, const Tensor& x, const Gradient& gradient) {
  if (gradient.constant()) {
    if (*gradient.constant() != 1) ops::scale(s, x, *gradient.constant());
    return;
  }
  if (x.dtype() == DType::f32) return ops::scale_by(s, x, gradient.tensor());
  if (x.dtype() == DType::f64) {  // which scale_by() does not take: a product with a matrix of one element
    const Tensor column = x.view({x.numel(), 1}), scaled = like(column);
    ops::gemm(s, scaled, column, false, gradient.tensor().view({1, 1}), false);
    return ops::copy(s, column, scaled);
  }
  const Tensor wide = like_f32(x, x.shape());
  ops::cast(s, wide, x);
  ops::scale_by(s, wide, gradient.tensor());
  ops::cast(s, x, wide);
}

CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, float scale) {
  const Tensor in = logits.value();
  const Tensor losses = like_wide(in, {in.size(0)});
  Var result = function(
      {logits},
      [&](Stream& s) {
        ops::cross_entropy_forward(s, losses, in, targets);
        return scaled_sum(s, losses, scale);
      },
      [in, targets, scale](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Gradient& g = call.output();
        Tensor dlogits = like(in);
        ops::cross_entropy_backward(s, dlogits, in, targets, scale * g.constant().value_or(1));
        if (!g.constant()) scale_by(s, dlogits, g);
        return {dlogits};
      });
  return {result, losses};
}

Var token_losses(const Var& logits, const Tensor& targets) {
  const Tensor in = logits.value(), wanted = targets.flat();
  const Tensor losses = like_wide(in, {in.size(0)});
  return function(
      {logits},
      [&](Stream& s) {
        ops::cross_entropy_forward(s, losses, in, wanted);
        return losses;
      },
      [in, wanted](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Gradient& g = call.output();
        const Tensor dlogits = like(in);
        ops::cross_entropy_backward(s, dlogits, in, wanted, g.constant().value_or(1),
                                    g.constant() ? Tensor() : g.tensor());
        return {dlogits};
      });
}

CrossEntropy linear_cross_entropy(const Var& x, const Parameter& w, const Tensor& targets, float scale,
                                  int64_t chunk) {
  const Tensor in = x.value();
  const bool whole = chunk <= 0 || chunk >= in.size(0);
  const Head head{in, targets.flat(), w, whole ? std::max<int64_t>(in.size(0), 1) : chunk};
  const Tensor losses = like_wide(in, {in.size(0)});
  const bool keeps = whole && recorded(x, w);
  const auto kept =
      std::make_shared<std::optional<ops::Columns>>();  // of one chunk: the gradient of its logits
  Var result = function(
      {x},
      [&](Stream& s) {
        const detail::HeadWeights weights(s, w.data());
        head.for_chunks([&](int64_t begin, int64_t end) {
          const ops::Columns logits = weights.logits(s, head.x.rows(begin, end));
          const Tensor wanted = head.targets.flat(begin, end);
          if (keeps) {
            ops::cross_entropy_forward_backward(s, losses, logits, logits, wanted, scale);
            *kept = logits;
          } else {
            ops::cross_entropy_forward(s, losses.flat(begin, end), logits, wanted);
          }
        });
        return scaled_sum(s, losses, scale);
      },
      [head, scale, kept](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Gradient& g = call.output();
        const Tensor dx = call.wants(0) ? like(head.x) : Tensor();
        const detail::HeadWeights weights(s, head.w.data());
        head.for_chunks([&](int64_t begin, int64_t end) {
          const Tensor rows = head.x.rows(begin, end);
          const bool there = kept->has_value();
          const ops::Columns dlogits = there ? *std::exchange(*kept, {}) : weights.logits(s, rows);
          if (!there) ops::cross_entropy_backward(s, dlogits, dlogits, head.targets.flat(begin, end), scale);
          scale_by(s, dlogits.matrix, g);
          const GradTarget dw = head.w.frozen() ? GradTarget{} : head.w.grad_for_overwrite();
          weights.backward(s, dlogits, rows, dw.grad, dw.beta, dx.defined() ? dx.rows(begin, end) : Tensor());
        });
        return {dx};
      },
      {w});
  return {result, losses};
}

}  // namespace sherd::nn
