#include <sherd/nn/vocab_parallel.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/logits.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/embedding.h>
#include <sherd/nn/kernels/embedding/embedding.h>
#include <sherd/nn/kernels/vocab_parallel/vocab_parallel.h>
#include <sherd/nn/linear.h>

namespace sherd::nn {

using namespace detail;

namespace {

// This rank's columns of the logits of some rows.
struct VocabHead {
  VocabularyCut cut;
  Tensor x, targets;
  Parameter w;
  int64_t chunk;
  float scale;

  int64_t rows() const { return x.size(0); }
  ops::VocabPart part() const { return {cut.begin(), cut.vocab}; }
  HeadWeights weights(Stream& s) const { return {s, w.data().rows(0, cut.tokens())}; }
  template <class F>
  void for_chunks(F f) const {
    for (int64_t at = 0; at < rows(); at += chunk) f(at, std::min(at + chunk, rows()));
  }
  void forward(Stream& s, const ops::Columns& logits, const Tensor& losses, const Tensor& lse, int64_t begin,
               int64_t end) const {
    const Tensor stats = like_f32(x, {end - begin, 3});
    ops::vocab_parallel_partial(s, stats, logits, targets.flat(begin, end), part());
    ops::vocab_parallel_combine(s, losses.flat(begin, end), lse.flat(begin, end), cut.tp.gather(s, stats),
                                targets.flat(begin, end));
  }
  // dlogits in the logits' place, then what they add to dw, and dx of these rows.
  void backward(Stream& s, const HeadWeights& weights, const ops::Columns& logits, const Tensor& lse,
                const Gradient& objective, const Tensor& dx, int64_t begin, int64_t end) const {
    ops::vocab_parallel_backward(s, logits, logits, lse.flat(begin, end), targets.flat(begin, end), part(),
                                 scale);
    scale_by(s, logits.matrix, objective);
    const GradTarget dw = w.frozen() ? GradTarget{} : w.grad_for_overwrite();
    weights.backward(s, logits, x.rows(begin, end),
                     dw.grad.defined() ? dw.grad.rows(0, cut.tokens()) : Tensor(), dw.beta,
                     dx.defined() ? dx.rows(begin, end) : Tensor());
    if (dw.grad.defined() && dw.beta == 0 && cut.tokens() < cut.rows())
      ops::fill(s, dw.grad.rows(cut.tokens(), cut.rows()), 0);
  }
};

}  // namespace

int64_t VocabularyCut::tokens() const { return std::min(vocab - begin(), rows()); }

Tensor VocabularyCut::whole(Stream& s, const Tensor& own) const {
  const Tensor all = tp.gather_columns(s, own);
  if (all.size(1) == vocab) return all;
  const Tensor trimmed = like(all, {all.size(0), vocab});
  if (all.numel() > 0) ops::strided_copy(s, trimmed, vocab, all, all.size(1), all.size(0), vocab);
  return trimmed;
}

Parameter VocabularyCut::cut(Parameter p) const {
  if (tp.size() > 1)
    p.set_tensor_shard(
        {.dim = 0, .parts = tp.size(), .index = tp.rank(), .size = vocab % tp.size() == 0 ? 0 : vocab});
  return p;
}

// The first rank adds the positions, to zeros where the token is another's: the sum is rounded once, as
// whole.
Var vocab_parallel_embedding(const VocabularyCut& cut, const Var& tokens, const Parameter& table,
                             const Parameter& positions, bool split, int64_t first_position) {
  if (cut.tp.size() == 1) return embedding(tokens, table, positions, first_position);
  const Tensor in = tokens.value();
  const ops::VocabPart part{cut.begin(), cut.vocab};
  const bool adds = positions.defined() && cut.tp.rank() == 0;
  const SequenceRows between{cut.tp, in.numel(), split};
  std::vector<Parameter> parameters{table};
  if (positions.defined()) parameters.push_back(positions);
  return function(
      {tokens},
      [&](Stream& s) {
        const Tensor rows = table.data();
        const Tensor out = Tensor::empty(in.device(), {in.numel(), rows.size(1)}, rows.dtype(), kActivations);
        ops::embedding_forward(s, out, in, rows,
                               adds ? rows_from(positions.data(), first_position) : Tensor(), part);
        if (between.splits()) return cut.tp.own_rows_of_sum(s, out);
        cut.tp.comm->all_reduce(s, out.unowned_view());
        return out;
      },
      [in, part, table, positions, first_position, between](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dout =
            call.output().tensor(in.device(), {between.here(), table.shape()[1]}, table.data().dtype());
        if (between.splits()) dout = between.tp.all_rows(s, dout, between.count);
        ops::embedding_backward(s, gradient_of(s, table, dout),
                                rows_from(gradient_of(s, positions, dout), first_position), dout, in, part);
        return {Gradient()};
      },
      parameters);
}

CrossEntropy vocab_parallel_linear_cross_entropy(const VocabularyCut& cut, const Var& x, const Parameter& w,
                                                 const Tensor& targets, float scale, int64_t chunk,
                                                 bool split) {
  if (cut.tp.size() == 1) return linear_cross_entropy(x, w, targets, scale, chunk);
  // A function each for product and loss: what the loss keeps of a row is freed before the product's backward.
  if (chunk <= 0 && !split && cut.vocab % cut.tp.size() == 0)
    return vocab_parallel_cross_entropy(cut.tp, linear(cut.tp.copied(x), w), targets, scale);
  const Var entered = SequenceRows{cut.tp, targets.numel(), split}.enter(x);
  const Tensor in = entered.value();
  const bool whole = chunk <= 0 || chunk >= in.size(0);
  const VocabHead head{cut, in, targets.flat(), w, whole ? std::max<int64_t>(in.size(0), 1) : chunk, scale};
  const Tensor losses = like_f32(in, {in.size(0)}), lse = like_f32(in, {in.size(0)});
  const Tape* const tape = detail::tape_of({x}, {w});
  const bool keeps = whole && tape != nullptr && tape->recording();
  const auto kept = std::make_shared<std::optional<ops::Columns>>();  // the logits of one chunk
  Var result = function(
      {entered},
      [&](Stream& s) {
        const HeadWeights weights = head.weights(s);
        head.for_chunks([&](int64_t begin, int64_t end) {
          const ops::Columns logits = weights.logits(s, head.x.rows(begin, end));
          head.forward(s, logits, losses, lse, begin, end);
          if (keeps) *kept = logits;
        });
        return scaled_sum(s, losses, scale);
      },
      [head, lse, kept](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dx = call.wants(0) ? like(head.x) : Tensor();
        const HeadWeights weights = head.weights(s);
        head.for_chunks([&](int64_t begin, int64_t end) {
          const ops::Columns logits =
              kept->has_value() ? *std::exchange(*kept, {}) : weights.logits(s, head.x.rows(begin, end));
          head.backward(s, weights, logits, lse, call.output(), dx, begin, end);
        });
        return {dx.defined() ? Gradient(dx) : Gradient()};
      },
      {w});
  return {result, losses};
}

Tensor vocab_parallel_logits(const VocabularyCut& cut, const Var& x, const Parameter& w) {
  const Var logits = linear(x, w);
  return cut.whole(logits.stream(), logits.value());
}

}  // namespace sherd::nn
