#include <sherd/optim/muon/muon_rule.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <utility>

#include <sherd/kernels/dion/dion.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

/// Steps between two formations of X: the standard form is the gram form restarted after every step. by_shape sums as
/// the gram form.
std::vector<int> round_ends(const OrthogonalizeOptions& o) {
  const int steps = static_cast<int>(o.steps.size());
  std::vector<int> ends = o.restarts;
  if (o.form == IterationForm::standard) {
    ends.resize(static_cast<size_t>(steps - 1));
    std::iota(ends.begin(), ends.end(), 1);
  }
  // Each entry is the step before which X is formed again; the last one ends the iteration.
  ends.push_back(steps);
  return ends;
}

}  // namespace

// Ranks that form Gram matrices at different steps would add different matrices.
std::string MuonRule::settings() const {
  const OrthogonalizeOptions& ns = o_.orthogonalize;
  std::string text =
      fmt::format("{} {} {} {} {} {}", name_of(o_.scale), o_.scale_factor, static_cast<int>(ns.method),
                  static_cast<int>(ns.form), static_cast<int>(ns.working), ns.eps);
  if (o_.fraction < 1) text += fmt::format(" fraction {}", o_.fraction);
  for (auto& [a, b, c] : ns.steps) text += fmt::format(" {} {} {}", a, b, c);
  return text + fmt::format(" {}", fmt::join(ns.restarts, " "));
}

void MuonRule::compute(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status) {
  if (o_.fraction == 1) return ops::orthogonalize(compute, out, in, status, o_.orthogonalize);
  const int64_t batch = in.size(0), rows = in.size(1), kept = kept_rows(o_.fraction, rows);
  const auto make = [&](Shape shape, DType dtype) {
    return Tensor::empty(compute.device(), std::move(shape), dtype, MemoryClass::scratch, "muon rows");
  };
  const Tensor slots = make({batch, rows}, DType::i32), norms = make({batch, rows}, DType::f64),
               chosen = make({batch, kept, in.size(2)}, DType::f32),
               results = make(chosen.shape(), DType::f32);
  ops::dion_choose(compute, slots, norms, in, kept);
  ops::dion_take(compute, chosen, in, slots);
  ops::orthogonalize(compute, results, chosen, status, o_.orthogonalize);
  ops::dion_put(compute, out, results, slots);
}

void MuonRule::compute_parts(Stream& compute, const std::vector<MatrixPart>& parts,
                             const std::function<Tensor(Shape)>& make,
                             const std::function<void(const Tensor&)>& sum) {
  std::vector<int64_t> begin = {0};
  std::vector<Tensor> x, next;
  std::vector<Shape> square;
  for (auto& p : parts) {
    const int64_t side = p.contract_rows ? p.x.size(2) : p.x.size(1);
    square.push_back({p.x.size(0), side, side});
    begin.push_back(begin.back() + numel_of(square.back()));
    x.push_back(p.x);
    next.push_back(p.out);
  }
  // All parts side by side: `sum` needs one collective per round.
  const Tensor grams = make({begin.back()});
  int first = 0;
  for (const int last : round_ends(o_.orthogonalize)) {
    const auto gram = [&](size_t k) { return grams.flat(begin[k], begin[k + 1]).view(square[k]); };
    for (size_t k = 0; k < parts.size(); ++k)
      ops::gram_product(compute, gram(k), x[k], parts[k].contract_rows);
    // R = sum of the parts' X^T X (rows cut) or X X^T (columns cut): the only data that travels.
    sum(grams);
    for (size_t k = 0; k < parts.size(); ++k) {
      const Tensor q = make(square[k]);
      ops::gram_iterate(compute, q, gram(k), parts[k].status, first, last, o_.orthogonalize);
      ops::gram_apply(compute, next[k], x[k], q, parts[k].contract_rows);
      // X <- X Q or Q X alternates between the two buffers, without a third.
      std::swap(x[k], next[k]);
    }
    first = last;
  }
  for (size_t k = 0; k < parts.size(); ++k)
    if (x[k].raw() != parts[k].out.raw()) ops::copy(compute, parts[k].out, x[k]);
}

}  // namespace sherd
