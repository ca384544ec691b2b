#include <sherd/optim/muon/detail/muon_team.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <numeric>

#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

// Returns the dtype of momentum in messages. Its scale is unknown, that of results is about 1: f16 has too
// few exponents for the former.
DType incoming(DType payload) { return payload == DType::f16 ? DType::bf16 : payload; }

std::vector<MuonTeam::Slot> with_momentum(Device& device, std::vector<MuonTeam::Slot> slots) {
  for (MuonTeam::Slot& slot : slots) {
    slot.momentum = Tensor::empty(device, {slot.param.shard_range().size()}, DType::f32,
                                  MemoryClass::optimizer, "optimizer momentum_buffer");
    ops::fill(device.compute(), slot.momentum, 0);
  }
  return slots;
}

std::vector<Parameter> params_of(const std::vector<MuonTeam::Slot>& slots) {
  std::vector<Parameter> params;
  for (const MuonTeam::Slot& slot : slots) params.push_back(slot.param);
  return params;
}

MatrixTeamOptions team_options(const MuonOptions& o, bool refined) {
  const OrthogonalizeOptions& ns = o.orthogonalize;
  std::string settings = fmt::format(
      "{} {} {} {} {} {} {} {}", static_cast<int>(o.payload), static_cast<int>(ns.working),
      static_cast<int>(o.scale), static_cast<int>(o.decay), o.scale_factor, o.momentum, ns.eps, o.nesterov);
  for (auto& [a, b, c] : ns.steps) settings += fmt::format(" {} {} {}", a, b, c);
  // Ranks that form Gram matrices at different steps would add different matrices.
  settings += fmt::format(" {}", fmt::join(ns.restarts, " "));
  return {.label = "muon",
          .plan = matrix_plan_options(plan_options(o)),
          .distributed = o.tensor == MuonTensorMode::distributed,
          .input = incoming(o.payload),
          .result = o.payload,
          .transient_bytes = o.transient_bytes,
          .sums = refined,
          .settings = std::move(settings)};
}

/// Steps between two formations of X: the standard form is the gram form restarted after every step.
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

MuonTeam::MuonTeam(Device& device, std::vector<Slot> slots, const MuonOptions& options,
                   MatrixStreams& streams, MuonRefinement* refinement)
    : slots_(with_momentum(device, std::move(slots))),
      options_(options),
      refinement_(refinement),
      team_(device, params_of(slots_), MuonWork(plan_options(options)), *this,
            team_options(options, refinement != nullptr), streams) {
  // A skip flag that is always set, for parameters that are frozen at present.
  skip_frozen_ = Tensor::empty(device, {1}, DType::i64, MemoryClass::optimizer, "optimizer status");
  ops::fill(device.compute(), skip_frozen_, 1);
}

void MuonTeam::step(Stream& compute, double lr, const Tensor& skip) {
  lr_ = lr;
  skip_ = skip;
  team_.step(compute);
  skip_ = Tensor();
}

// Advances the momentum and writes its (Nesterov) value to the message. Each local element is in the inputs
// of exactly one chunk, so it advances once in a step.
void MuonTeam::pack(Stream& compute, const Tensor& message, const MatrixChunk& chunk) {
  // Parameters with unequal decay differ in the l2 term only: one pass for each value. Frozen ones are
  // packed, too, since messages are the same in every step, and keep their momentum.
  std::map<std::pair<double, bool>, std::vector<MomentumSegment>> passes;
  for (auto& seg : chunk.inputs) {
    const Slot& slot = slot_of(seg.matrix);
    const double l2 = options_.decay == MuonDecay::l2 ? slot.weight_decay : 0;
    passes[{l2, slot.param.frozen()}].push_back(
        {slot.momentum.data<float>() + seg.local, slot.param.grad_shard().data<float>() + seg.local,
         slot.param.shard().data<float>() + seg.local, seg.count, seg.at});
  }
  for (auto& [kind, segments] : passes)
    ops::muon_momentum(compute, message, segments, options_.momentum, options_.nesterov,
                       static_cast<float>(kind.first), kind.second ? skip_frozen_ : skip_);
}

void MuonTeam::compute(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status) {
  ops::orthogonalize(compute, out, in, status, options_.orthogonalize);
}

void MuonTeam::compute_parts(Stream& compute, const std::vector<MatrixPart>& parts,
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
  const Tensor grams = team_.buffers().matrices({begin.back()});
  int first = 0;
  for (const int last : round_ends(options_.orthogonalize)) {
    const auto gram = [&](size_t k) { return grams.flat(begin[k], begin[k + 1]).view(square[k]); };
    for (size_t k = 0; k < parts.size(); ++k)
      ops::gram_product(compute, gram(k), x[k], parts[k].contract_rows);
    // R = sum of the parts' X^T X (rows cut) or X X^T (columns cut): the only data that travels.
    sum(grams);
    for (size_t k = 0; k < parts.size(); ++k) {
      const Tensor q = team_.buffers().matrices(square[k]);
      ops::gram_iterate(compute, q, gram(k), parts[k].status, first, last, options_.orthogonalize);
      ops::gram_apply(compute, next[k], x[k], q, parts[k].contract_rows);
      // X <- X Q or Q X alternates between the two buffers, without a third.
      std::swap(x[k], next[k]);
    }
    first = last;
  }
  for (size_t k = 0; k < parts.size(); ++k)
    if (x[k].raw() != parts[k].out.raw()) ops::copy(compute, parts[k].out, x[k]);
}

Tensor MuonTeam::refined(Stream& compute, const Tensor& results, const MatrixChunk& chunk, bool cut) {
  if (!refinement_) return results;
  const std::vector<LogicalMatrix>& matrices = team_.matrices();
  Tensor values = results;
  if (results.dtype() != DType::f32) {
    values = team_.buffers().matrices({results.numel()});
    ops::cast(compute, values, results);
  }
  // First matrices that tensor parallelism cuts, whose sums also cover its ranks; then matrices that each
  // rank has of its own (heads that are assigned whole). State of frozen ones is unchanged.
  for (const auto& [shared, frozen] : {std::pair(true, false), {true, true}, {false, false}, {false, true}}) {
    const auto is_chosen = [&, shared = shared, frozen = frozen](int m) {
      return (matrices[static_cast<size_t>(m)].tensor_dim >= 0) == shared &&
             slot_of(m).param.frozen() == frozen;
    };
    std::vector<int> present;
    for (const int m : chunk.matrices)
      if (is_chosen(m)) present.push_back(m);
    if (present.empty()) continue;
    std::vector<MuonPiece> pieces;
    for (auto& seg : chunk.updates)
      if (is_chosen(seg.matrix))
        pieces.push_back({slot_of(seg.matrix).item, seg.matrix, seg.first, seg.local, seg.at, seg.count});
    const auto sum = [&, shared = shared](const Tensor& t) { team_.sum(compute, t, cut, shared); };
    const int tensor_rank = shared ? team_.tensor_rank() : 0;
    refinement_->refine(compute, {values, matrices, present, pieces, tensor_rank, sum},
                        frozen ? skip_frozen_ : skip_);
  }
  return values;
}

// w = decay * w - lr * scale * O, for the elements that this rank holds. With `skip` the kernel leaves all
// bits.
void MuonTeam::update(Stream& compute, const Tensor& results, const MatrixChunk& chunk, bool cut) {
  const Tensor values = refined(compute, results, chunk, cut);
  std::vector<UpdateSegment> updates;
  updates.reserve(chunk.updates.size());
  for (auto& seg : chunk.updates) {
    const LogicalMatrix& m = team_.matrices()[static_cast<size_t>(seg.matrix)];
    const Slot& slot = slot_of(seg.matrix);
    if (slot.param.frozen()) continue;
    const double rate = lr_ * slot.lr_factor;
    // A refinement determines the scale itself.
    const double scale = refinement_ ? 1 : update_scale(options_, m.whole_rows(), m.whole_cols());
    updates.push_back({slot.param.shard().data<float>() + seg.local, seg.count, seg.at,
                       static_cast<float>(decay_factor(options_.decay, rate, slot.weight_decay)),
                       static_cast<float>(-rate * scale)});
  }
  if (!updates.empty()) ops::muon_update(compute, updates, values, skip_);
}

}  // namespace sherd
