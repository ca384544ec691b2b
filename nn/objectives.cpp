#include <sherd/nn/objectives.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/activation.h>
#include <sherd/nn/composites.h>
#include <sherd/nn/detail/logits.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/reductions.h>
#include <sherd/nn/shapes.h>

namespace sherd::nn {

using namespace detail;

namespace {

Var widened(const Var& x) { return x.dtype() == DType::f64 ? x : cast(x, DType::f32); }

void require_same(const char* function, const Var& logits, const Tensor& other) {
  if (other.shape() != logits.shape())
    throw ShapeMismatch(fmt::format("{}: the other model's logits are {}, must be {} as the logits", function,
                                    to_string(other.shape()), to_string(logits.shape())));
}

struct ChunkedHead {
  VocabularyCut cut;
  Tensor x;
  Parameter w;
  OfLogits::Function of;
  int64_t chunk;

  /// Calls f(begin, end) for each chunk; of no rows, once.
  template <class F>
  void for_chunks(F f) const {
    const int64_t rows = x.size(0), most = chunk <= 0 ? std::max<int64_t>(rows, 1) : chunk;
    int64_t at = 0;
    do f(at, std::min(at + most, rows));
    while ((at += most) < rows);
  }
  Tensor all_columns(Stream& s, const ops::Columns& own) const {
    if (own.matrix.size(1) == own.count) return cut.whole(s, own.matrix);
    const Tensor dense = like(x, {own.matrix.size(0), own.count});
    if (dense.numel() > 0)
      ops::strided_copy(s, dense, own.count, own.matrix, own.matrix.size(1), dense.size(0), own.count);
    return cut.whole(s, dense);
  }
  /// Writes this rank's columns of `all` into `own`, and zeros beside them.
  void own_columns(Stream& s, const ops::Columns& own, const Tensor& all) const {
    ops::fill(s, own.matrix, 0);
    if (all.numel() > 0 && cut.tokens() > 0)
      ops::strided_copy(s, own.matrix.flat(), own.matrix.size(1), all.flat(cut.begin(), all.numel()),
                        cut.vocab, all.size(0), cut.tokens());
  }
  /// Calls `of` for rows [begin, end). @throws ShapeMismatch for a result that has other rows.
  Var result(const Var& logits, int64_t begin, int64_t end) const {
    Var y = of(logits, begin, end);
    const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
    if (!y.defined() || y.value().dim() < 1 || y.size(0) != end - begin || y.dtype() != wide)
      throw ShapeMismatch(fmt::format(
          "of_logits: the function of {} rows of logits returned {}; it must return {} [{}] or [{}, n]",
          end - begin,
          y.defined() ? fmt::format("{} {}", name_of(y.dtype()), to_string(y.shape())) : "nothing",
          name_of(wide), end - begin, end - begin));
    return y;
  }
};

}  // namespace

Var log_probs(const Var& logits, const Tensor& targets) { return -token_losses(logits, targets); }

OfLogits log_probs(const Tensor& targets) {
  return {[all = targets.flat()](const Var& logits, int64_t begin, int64_t end) {
            return log_probs(logits, all.flat(begin, end));
          },
          targets.numel()};
}

Var entropy(const Var& logits) {
  const Var l = log_softmax(widened(logits));
  return -sum(exp(l) * l, {-1});
}

Var z_loss(const Var& logits) { return power(logsumexp(widened(logits), {-1}), 2); }

Var divergence(const Var& logits, const Tensor& reference) {
  require_same("divergence", logits, reference);
  const Var p = log_softmax(widened(logits)), q = log_softmax(widened(Var(reference)));
  return sum(exp(p) * (p - q), {-1});
}

Var distillation(const Var& logits, const Tensor& teacher, double temperature) {
  require_same("distillation", logits, teacher);
  const Var p = log_softmax(widened(logits) / temperature), q = softmax(widened(Var(teacher)) / temperature);
  return sum(kl_divergence(p, q), {-1}) * (temperature * temperature);
}

CrossEntropy cross_entropy(const Var& logits, const Tensor& targets, const Tensor& weights) {
  if (weights.numel() != logits.size(0))
    throw ShapeMismatch(fmt::format("cross_entropy: {} weights for {} rows of logits; give one for each row",
                                    weights.numel(), logits.size(0)));
  const Var losses = token_losses(logits, targets);
  return {sum(losses * reshape(weights, losses.shape())), losses.value()};
}

Var of_logits(const VocabularyCut& cut, const Var& x, const Parameter& w, const OfLogits& of, int64_t rows,
              int64_t chunk, bool split) {
  if (of.rows >= 0 && of.rows != rows)
    throw ShapeMismatch(fmt::format("of_logits: {} targets for a forward of {} rows; give one for each token",
                                    of.rows, rows));
  const Var entered = SequenceRows{cut.tp, rows, split}.enter(x);
  const ChunkedHead head{cut, entered.value(), w, of.of, chunk};
  const auto shape = std::make_shared<Shape>();
  return function(
      {entered},
      [&](Stream& s) {
        const HeadWeights weights(s, w.data());
        Tensor all;
        head.for_chunks([&](int64_t begin, int64_t end) {
          Tape tape;
          const NoGrad off(tape);
          const Tensor part =
              head.result(tape.input(head.all_columns(s, weights.logits(s, head.x.rows(begin, end)))), begin,
                          end)
                  .value();
          *shape = part.shape();
          (*shape)[0] = head.x.size(0);
          if (!all.defined()) all = like(part, *shape);
          if (part.numel() > 0) ops::copy(s, all.rows(begin, end), part);
        });
        return all;
      },
      [head, shape](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dx = call.wants(0) ? like(head.x) : Tensor();
        const Tensor dy = call.output().tensor(head.x.device(), *shape,
                                               head.x.dtype() == DType::f64 ? DType::f64 : DType::f32);
        const HeadWeights weights(s, head.w.data());
        head.for_chunks([&](int64_t begin, int64_t end) {
          const Tensor in = head.x.rows(begin, end);
          const ops::Columns own = weights.logits(s, in);
          Tape tape;
          const Var logits = tape.leaf(head.all_columns(s, own));
          const Var y = head.result(logits, begin, end);
          if (y.requires_grad()) tape.backward(y, dy.rows(begin, end));
          const Tensor dlogits = y.requires_grad() ? tape.gradient(logits) : Tensor();
          ops::Columns d = own;
          if (dlogits.defined() && head.cut.tp.size() == 1 && own.matrix.size(1) == head.cut.vocab) {
            d = dlogits;
          } else if (dlogits.defined()) {
            head.own_columns(s, own, dlogits);
          } else {
            ops::fill(s, own.matrix, 0);
          }
          const GradTarget dw = head.w.frozen() ? GradTarget{} : head.w.grad_for_overwrite();
          weights.backward(s, d, in, dw.grad, dw.beta, dx.defined() ? dx.rows(begin, end) : Tensor());
        });
        return {dx.defined() ? Gradient(dx) : Gradient()};
      },
      {w});
}

}  // namespace sherd::nn
