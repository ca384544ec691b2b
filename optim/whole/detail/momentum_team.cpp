#include <sherd/optim/whole/detail/momentum_team.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <sherd/fsdp/group.h>
#include <sherd/kernels/dion/dion.h>
#include <sherd/kernels/ops.h>
#include <sherd/optim/detail/rest_segments.h>

namespace sherd {
namespace {

std::vector<Parameter> params_of(const std::vector<MomentumTeam::Slot>& slots) {
  std::vector<Parameter> params;
  for (const MomentumTeam::Slot& slot : slots) params.push_back(slot.param);
  return params;
}

std::vector<StateForm> forms_of(const std::vector<MomentumTeam::Slot>& slots) {
  std::vector<StateForm> forms;
  for (const MomentumTeam::Slot& slot : slots)
    forms.push_back(
        {slot.state_dtype == DType::i8 ? DType::bf16 : slot.state_dtype, slot.state_place, slot.windows});
  return forms;
}

}  // namespace

RestForms MomentumTeam::Slot::forms() const {
  return {param.group().plan().master, momentum.values.defined() ? momentum.used_dtype() : DType::f32,
          param.group().plan().grad_dtype};
}

MomentumTeam::MomentumTeam(Device& device, std::vector<Slot> slots, MatrixRule& rule,
                           const MomentumOptions& options, MatrixStreams& streams,
                           MatrixRefinement* refinement)
    : slots_(std::move(slots)),
      rule_(rule),
      options_(options),
      refinement_(refinement),
      team_(device, params_of(slots_), rule, *this,
            {.label = rule.label(),
             .whole = options,
             .sums = refinement != nullptr,
             .settings = to_string(options) + " " + rule.settings()},
            streams),
      states_(device, params_of(slots_), forms_of(slots_), team_, rule),
      guard_(rule.name(), device.label(), team_) {
  // A skip flag that is always set, for parameters that are frozen at present.
  skip_frozen_ = Tensor::empty(device, {1}, DType::i64, MemoryClass::optimizer, "optimizer status");
  ops::fill(device.compute(), skip_frozen_, 1);
  if (rule_.takes_gradient() &&
      std::ranges::any_of(slots_, [](const Slot& s) { return s.forms().gradient != DType::f32; })) {
    zero_ = Tensor::empty(device, {1}, DType::f32, MemoryClass::optimizer, "optimizer status");
    ops::fill(device.compute(), zero_, 0);
  }
  const auto draws = [&](const Slot& slot) {
    return slot.forms().master == Master::bf16 ||
           (slot.momentum.values.defined() && slot.state_dtype != DType::f32);
  };
  if (std::none_of(slots_.begin(), slots_.end(), draws)) return;
  updates_ = Tensor::empty(device, {static_cast<int64_t>(slots_.size())}, DType::f32, MemoryClass::optimizer,
                           "optimizer updates");
  ops::fill(device.compute(), updates_, 0);
  for (size_t i = 0; i < slots_.size(); ++i)
    if (draws(slots_[i]))
      slots_[i].updates = updates_.flat(static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
}

void MomentumTeam::count_updates(Stream& compute) {
  if (!updates_.defined()) return;
  const auto size = static_cast<int64_t>(slots_.size());
  const auto counts = [&](int64_t i) { return !slots_[static_cast<size_t>(i)].param.frozen(); };
  // One kernel for adjacent slots.
  for (int64_t begin = 0, end = 0; begin < size; begin = end + 1) {
    for (end = begin; end < size && counts(end);) ++end;
    if (begin < end) ops::adamw_count(compute, updates_.flat(begin, end), {}, {}, skip_);
  }
}

void MomentumTeam::step(Stream& compute, double lr, const Tensor& skip, const Tensor& gradient_factor) {
  guard_.begin_step();
  lr_ = lr;
  skip_ = skip;
  // Ignored parameters, a team of their own, are outside the gradient norm, so its factor does not apply to them.
  factor_ = slots_.front().param.group().replicated() ? Tensor() : gradient_factor;
  count_updates(compute);
  team_.step(compute);
  if (!rule_.checks_values()) guard_.end_step(compute);
  skip_ = factor_ = Tensor();
}

// Advances the momentum and writes its (Nesterov) value to the message, or writes the gradient. Each local element is in the inputs
// of exactly one chunk, so it advances once in a step.
void MomentumTeam::pack(Stream& compute, const Tensor& message, const MatrixChunk& chunk) {
  // Parameters with unequal decay differ in the l2 term only: one pass for each value. Frozen ones are
  // packed, too, since messages are the same in every step, and keep their momentum.
  std::map<std::tuple<double, bool, RestForms>, std::vector<MomentumSegment>> passes;
  // The gradient is its own buffer, which does not move: with a momentum of 0 and Nesterov the message is the gradient in
  // bits.
  const bool takes_gradient = rule_.takes_gradient();
  RestPass pass(
      slots_.front().windows, compute,
      [&] {
        for (auto& [kind, segments] : passes) {
          const auto& [l2, frozen, forms] = kind;
          ops::muon_momentum(compute, message, segments, takes_gradient ? 0 : options_.momentum,
                             takes_gradient || options_.nesterov, static_cast<float>(l2),
                             takes_gradient || frozen ? skip_frozen_ : skip_, factor_, forms);
        }
        passes.clear();
      },
      skip_);
  for (auto& seg : chunk.inputs) {
    const Slot& slot = slot_of(seg.matrix);
    const Parameter& p = slot.param;
    const double l2 = options_.decay == MatrixDecay::l2 ? slot.weight_decay : 0;
    RestForms forms = slot.forms();
    if (takes_gradient) forms.state = forms.gradient;
    const std::tuple kind{l2, p.frozen(), forms};
    const RestState state = takes_gradient ? RestState(p.grad_shard()) : slot.momentum;
    const Tensor weights = l2 != 0 ? p.shard() : Tensor(), low = l2 != 0 ? p.shard_low() : Tensor();
    pass.parts({state, weights, low}, seg.local, seg.count, [&](int64_t begin, int64_t count) {
      const RestPiece buffer(pass.open(state, begin, count, !p.frozen(), p, slot.updates), begin),
          weight(pass.open(weights, begin, count, false), begin),
          halves(pass.open(low, begin, count, false), begin);
      // The pass rounds the buffer alone, and no gradient.
      for (const NoiseRun& run :
           rest_runs(p, {Master::f32, forms.state}, begin, count, takes_gradient ? zero_ : slot.updates))
        passes[kind].push_back({.buffer = buffer.at(run.begin),
                                .gradient = RestPiece(p.grad_shard()).at(run.begin),
                                .weight = weight.at(run.begin),
                                .count = run.count,
                                .at = seg.at < 0 ? seg.at : seg.at + run.begin - seg.local,
                                .low = static_cast<uint16_t*>(halves.at(run.begin)),
                                .noise = run.noise});
    });
  }
  pass.finish();
}

void MomentumTeam::compute(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status,
                           const std::vector<int>& matrices) {
  if (!states_.any()) return compute_some(compute, out, in, status, matrices, {});
  // State on the host passes with its matrices, whose results do not depend on their batch.
  std::vector<MatrixState> states;
  size_t first = 0;
  RestPass pass(slots_.front().windows, compute, [&] {
    if (states.empty()) return;
    const auto begin = static_cast<int64_t>(first), end = begin + static_cast<int64_t>(states.size());
    const std::vector<int> some(matrices.begin() + begin, matrices.begin() + end);
    compute_some(compute, out.rows(begin, end), in.rows(begin, end), status.flat(begin, end), some, states);
    first += states.size();
    states.clear();
  });
  for (const int m : matrices) {
    std::vector<Tensor> tensors = states_.of(m);
    pass.make_room(tensors);
    const bool frozen = slot_of(m).param.frozen();
    for (Tensor& t : tensors) t = pass.open(t, 0, t.numel(), !frozen).view(t.shape());
    states.push_back({std::move(tensors), frozen ? skip_frozen_ : skip_, noise_key_of(m)});
  }
  pass.finish();
}

void MomentumTeam::compute_some(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status,
                                const std::vector<int>& matrices, const std::vector<MatrixState>& states) {
  const bool checks = !rule_.checks_values();
  if (checks) {  // before the rule, which may write statuses of its own
    ops::fill(compute, status, 0);
    check(compute, in, status, matrices, MatrixStatus::not_finite, false);
  }
  guard_.call(matrices, [&] {
    if (states.empty()) return rule_.compute(compute, out, in, status);
    rule_.compute_with_state(compute, out, in, status, states);
  });
  if (checks) check_results(compute, out, status, matrices, states);
}

void MomentumTeam::check(Stream& compute, const Tensor& values, const Tensor& status,
                         const std::vector<int>& matrices, MatrixStatus found, bool clears) {
  const int64_t n = values.size(1) * values.size(2);
  std::vector<CheckedSegment> segments;
  for (size_t i = 0; i < matrices.size(); ++i)
    if (!slot_of(matrices[i]).param.frozen())
      segments.push_back({values.data<float>() + static_cast<int64_t>(i) * n, n,
                          status.data<int32_t>() + static_cast<int64_t>(i)});
  if (!segments.empty()) ops::check_finite(compute, segments, found, clears, skip_);
}

void MomentumTeam::check_results(Stream& compute, const Tensor& out, const Tensor& status,
                                 const std::vector<int>& matrices, const std::vector<MatrixState>& states) {
  check(compute, out, status, matrices, MatrixStatus::bad_result, true);
  std::map<DType, std::vector<CheckedSegment>> segments;
  for (size_t i = 0; i < states.size(); ++i) {
    if (slot_of(matrices[i]).param.frozen()) continue;
    for (const Tensor& t : states[i].tensors)
      segments[t.dtype()].push_back({t.raw(), t.numel(), status.data<int32_t>() + static_cast<int64_t>(i)});
  }
  for (auto& [dtype, some] : segments)
    ops::check_finite(compute, some, MatrixStatus::bad_state, false, skip_, dtype);
}

// Elements of a matrix have indices of their own: the whole matrix is on its owner, whatever cuts the parameter.
uint64_t MomentumTeam::noise_key_of(int matrix) const {
  const LogicalMatrix& m = team_.matrices()[static_cast<size_t>(matrix)];
  // Names of matrices that tensor parallelism assigns whole depend on its ranks, places in their set do not.
  return hash64(noise_key(slot_of(matrix).param),
                m.stack_size > 0 ? fmt::format("{} {}", m.stack, m.stack_index) : m.block);
}

void MomentumTeam::compute_parts(Stream& compute, const std::vector<MatrixPart>& parts,
                                 const std::function<void(const Tensor&)>& sum) {
  rule_.compute_parts(
      compute, parts, [&](Shape shape) { return team_.buffers().matrices(std::move(shape)); }, sum);
}

Tensor MomentumTeam::refined(Stream& compute, const Tensor& results, const MatrixChunk& chunk, bool cut) {
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
    std::vector<MatrixPiece> pieces;
    for (auto& seg : chunk.updates)
      if (is_chosen(seg.matrix))
        pieces.push_back({slot_of(seg.matrix).item, seg.matrix, seg.first, seg.local, seg.at, seg.count,
                          noise_of(seg.matrix)});
    const auto sum = [&, shared = shared](const Tensor& t) { team_.sum(compute, t, cut, shared); };
    const int tensor_rank = shared ? team_.tensor_rank() : 0;
    refinement_->refine(compute, {values, matrices, present, pieces, tensor_rank, sum},
                        frozen ? skip_frozen_ : skip_);
  }
  return values;
}

// w = decay * w - lr * scale * O, for the elements that this rank holds. With `skip` the kernel leaves all
// bits.
void MomentumTeam::update(Stream& compute, const Tensor& results, const MatrixChunk& chunk, bool cut) {
  const Tensor values = refined(compute, results, chunk, cut);
  std::map<std::pair<DType, Master>, std::vector<UpdateSegment>>
      updates;  // by the dtype of copies and the form
  RestPass pass(slots_.front().windows, compute, [&] {
    for (auto& [kind, segments] : updates)
      ops::muon_update(compute, segments, values, skip_, kind.first, {kind.second, DType::f32});
    updates.clear();
  });
  for (auto& seg : chunk.updates) {
    const LogicalMatrix& m = team_.matrices()[static_cast<size_t>(seg.matrix)];
    const Slot& slot = slot_of(seg.matrix);
    const Parameter& p = slot.param;
    if (p.frozen()) continue;
    const double rate = lr_ * slot.lr_factor;
    // A refinement determines the scale itself.
    const double scale = refinement_ ? 1 : rule_.scale(m.whole_rows(), m.whole_cols());
    const Tensor copy = slot.writes_copy ? p.model_copy() : Tensor(), weights = p.shard(),
                 low = p.shard_low();
    const std::pair kind{copy.defined() ? copy.dtype() : DType::f32, slot.forms().master};
    pass.parts({weights, low}, seg.local, seg.count, [&](int64_t begin, int64_t count) {
      const RestPiece weight(pass.open(weights, begin, count, true), begin),
          halves(pass.open(low, begin, count, true), begin);
      for (const NoiseRun& run : rest_runs(p, {kind.second, DType::f32}, begin, count, slot.updates))
        updates[kind].push_back(
            {.weight = weight.at(run.begin),
             .count = run.count,
             .at = seg.at + run.begin - seg.local,
             .decay = static_cast<float>(decay_factor(options_.decay, rate, slot.weight_decay)),
             .alpha = static_cast<float>(-rate * scale),
             .copy = RestPiece(copy).at(run.begin),
             .low = static_cast<uint16_t*>(halves.at(run.begin)),
             .noise = run.noise});
    });
  }
  pass.finish();
  if (rule_.keeps_unused()) keep_unused(compute, results, chunk);
}

// The next step multiplies every element by `momentum`: this undoes it.
void MomentumTeam::keep_unused(Stream& compute, const Tensor& results, const MatrixChunk& chunk) {
  std::vector<DionSegment> segments;
  if (slots_.front().windows != nullptr) slots_.front().windows->fetch_again();  // pack() has stored it
  RestPass pass(slots_.front().windows, compute, [&] {
    if (!segments.empty()) ops::dion_keep(compute, segments, results, 1 / options_.momentum, skip_);
    segments.clear();
  });
  for (auto& seg : chunk.updates) {
    const Slot& slot = slot_of(seg.matrix);
    if (slot.param.frozen()) continue;
    const Tensor& momentum = slot.momentum.values;
    pass.parts({momentum}, seg.local, seg.count, [&](int64_t begin, int64_t count) {
      segments.push_back(
          {pass.open(momentum, begin, count, true).data<float>(), count, seg.at + begin - seg.local});
    });
  }
  pass.finish();
}

}  // namespace sherd
