// Tensors of a model and its optimizer that each rank writes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include <sherd/checkpoint/detail/owned_boxes.h>
#include <sherd/checkpoint/detail/state_names.h>
#include <sherd/checkpoint/detail/stored_codes.h>
#include <sherd/checkpoint/detail/tied_names.h>
#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/optimizer_steps.h>

namespace sherd {
namespace {

// Returns the first byte of holder `index` of `count`, among `total` bytes.
int64_t cut_at(int64_t total, int index, int count) {
  return total / count * index + total % count * index / count;  // floor(total * index / count)
}

// The element of a local piece that lies at byte `at` of the pieces of all parameters together, where the
// piece begins at byte `piece_begin`; moved to the nearest row's begin where rows are short, and to a block of state in 8 bits.
// Monotone in `at`.
int64_t element_at(const Parameter& p, int64_t piece_begin, int64_t weight, int64_t at, int64_t share,
                   int64_t block) {
  const ParamRange range = p.shard_range();
  if (at <= piece_begin) return range.begin.value;
  const int64_t e = (at - piece_begin + weight - 1) / weight;
  if (e >= range.size()) return range.end.value;
  const int64_t element = range.begin.value + e;
  int64_t row = p.shape().size() < 2 ? 1 : p.shape().back();
  if (row * weight > share / 8) row = block;
  return std::clamp((element + row / 2) / row * row, range.begin.value, range.end.value);
}

class Collector {
 public:
  Collector(ModuleBase& root, const std::vector<const Optimizer*>& optimizers)
      : params_(root.named_parameters()),
        tied_(root),
        buffers_(root.named_buffers()),
        rank_(runtime_of(root).mesh().world()->rank()) {
    for (const Optimizer* optimizer : optimizers) {
      for (StateTensor& s : optimizer->state()) states_[s.param.name()].push_back(s);
      for (OwnedState& s : optimizer->owned_state()) owned_.push_back(std::move(s));
      for (StateCounter& c : optimizer->counters()) counters_.push_back(std::move(c));
    }
  }

  std::vector<LocalTensor> collect() {
    for (auto& [name, p] : params_) totals_[key_of(p)] += bytes_of(p);
    std::vector<LocalTensor> model, optim;
    for (auto& [name, p] : params_) {
      const ParamRange mine = next_share(p);
      model.push_back(local(name, Section::model, p, mine, p.shard(), p.shard_low()));
      add_tied(model);
      for (const StateTensor& s : states_[name]) {
        optim.push_back(local(state_name(name, s.key), Section::optim, p, mine, s.local));
        if (s.scales.defined()) optim.push_back(scales(state_name(name, s.key), p, mine, s));
      }
    }
    for (auto& [name, b] : buffers_)
      if (b.persistent()) {
        model.push_back(on_one_rank(name, Section::model, b.shape(), b.data()));
        model.back().counts_not_finite = false;
        add_tied(model);
      }
    for (const OwnedState& s : owned_) optim.push_back(owned(s));
    for (const StateCounter& c : counters_)
      optim.push_back(on_one_rank(state_name(c.param.name(), c.key), Section::optim, {1}, c.value));
    std::move(optim.begin(), optim.end(), std::back_inserter(model));
    return model;
  }

 private:
  // The ranks of a mesh and the dimensions along which holders of the same elements differ.
  using Key = std::pair<const Communicator*, std::vector<std::string>>;
  static Key key_of(const Parameter& p) {
    return {p.group().mesh().world().get(), p.group().axes().holders_of(p.tensor_shard()).dims};
  }
  // Bytes per element: the weight under all its names and its states.
  int64_t weight(const Parameter& p) {
    int64_t bytes =
        sherd::bytes_of(p.group().plan().master) * static_cast<int64_t>(1 + tied_.of(p.name()).size());
    for (const StateTensor& s : states_[p.name()]) bytes += size_of(s.local.dtype());
    return bytes;
  }
  // Elements between which pieces of it may be cut.
  int64_t block_of(const Parameter& p) {
    int64_t block = 1;
    for (const StateTensor& s : states_[p.name()]) block = std::max(block, s.block);
    return block;
  }
  int64_t bytes_of(const Parameter& p) { return weight(p) * p.shard_range().size(); }

  // The elements of p's local piece that this rank writes. Called in the order of parameters.
  ParamRange next_share(const Parameter& p) {
    const Holders h = p.group().axes().holders_of(p.tensor_shard());
    const ParamRange range = p.shard_range();
    // Ignored parameters may differ from rank to rank: the first rank's count.
    if (p.group().replicated()) return h.index == 0 ? range : ParamRange{range.begin, range.begin};
    const Key key = key_of(p);
    const int64_t total = totals_[key], begin = std::exchange(done_[key], done_[key] + bytes_of(p));
    const auto at = [&](int index) {
      return ParamIndex(
          element_at(p, begin, weight(p), cut_at(total, index, h.count), total / h.count, block_of(p)));
    };
    return {at(h.index), h.index + 1 == h.count ? range.end : at(h.index + 1)};
  }

  // The last tensor once more under each of its other names: readers know nothing of ties.
  void add_tied(std::vector<LocalTensor>& model) const {
    LocalTensor copy = model.back();
    model.back().tied = tied_.of(copy.name);
    for (const std::string& other : tied_.of(copy.name)) {
      copy.name = other;
      model.push_back(copy);
    }
  }

  static LocalTensor local(std::string name, Section section, const Parameter& p, ParamRange mine,
                           const Tensor& piece, const Tensor& low = {}) {
    const int64_t begin = mine.begin.value - p.shard_range().begin.value, end = begin + mine.size();
    return {.name = std::move(name),
            .section = section,
            .dtype = low.defined() ? DType::f32 : piece.dtype(),
            .shape = p.global_shape(),
            .boxes = p.global_boxes(mine),
            .data = piece.flat(begin, end),
            .low = low.defined() ? low.flat(begin, end) : low};
  }

  // Scales of the codes in `mine`, named after these.
  static LocalTensor scales(const std::string& codes, const Parameter& p, ParamRange mine,
                            const StateTensor& s) {
    const ParamRange here = blocks_of(mine, s.block), all = blocks_of(p.shard_range(), s.block);
    LocalTensor t{.name = codes + scale_suffix(s.code),
                  .section = Section::optim,
                  .dtype = DType::f32,
                  .shape = in_blocks(p.global_shape(), s.block),
                  .boxes = {},
                  .data = s.scales.flat(here.begin - all.begin, here.end - all.begin)};
    for (const Box& box : p.global_boxes(mine)) t.boxes.push_back(in_blocks(box, s.block));
    return t;
  }

  // On the owner of the matrices, which is one rank.
  static LocalTensor owned(const OwnedState& s) {
    return {.name = state_name(s.param.name(), s.key),
            .section = Section::optim,
            .dtype = s.local.dtype(),
            .shape = s.shape,
            .boxes = s.saves ? boxes_of(s) : std::vector<Box>{},
            .data = s.local.flat(0, s.saves ? s.local.numel() : 0)};
  }

  // Counters, which everybody reads as a whole, and buffers, which may differ from rank to rank: the first one's.
  LocalTensor on_one_rank(std::string name, Section section, Shape shape, const Tensor& data) const {
    const bool here = rank_ == 0 && data.numel() > 0;
    LocalTensor t{.name = std::move(name),
                  .section = section,
                  .dtype = data.dtype(),
                  .shape = shape,
                  .boxes = {},
                  .data = data.flat(0, here ? data.numel() : 0)};
    if (shape.empty()) shape = {1};
    if (here) t.boxes.push_back({Shape(shape.size(), 0), std::move(shape)});
    return t;
  }

  std::vector<std::pair<std::string, Parameter>> params_;
  TiedNames tied_;
  std::vector<std::pair<std::string, Buffer>> buffers_;
  int rank_;
  std::unordered_map<std::string, std::vector<StateTensor>> states_;
  std::vector<OwnedState> owned_;
  std::vector<StateCounter> counters_;
  std::map<Key, int64_t> totals_, done_;
};

}  // namespace

std::vector<LocalTensor> checkpoint_tensors(ModuleBase& root, const Optimizer* optimizer) {
  return checkpoint_tensors(root,
                            optimizer == nullptr ? std::vector<const Optimizer*>{} : std::vector{optimizer});
}

std::vector<LocalTensor> checkpoint_tensors(ModuleBase& root,
                                            const std::vector<const Optimizer*>& optimizers) {
  const auto& sets = runtime_of(root).update_sets();
  if (!optimizers.empty() && sets->count() != static_cast<int>(optimizers.size()))
    throw InvalidArgument(
        fmt::format("checkpoint_tensors: {} of the {} optimizers of this root; give all of them, or none to "
                    "save the model alone",
                    optimizers.size(), sets->count()));
  std::vector<LocalTensor> all = Collector(root, optimizers).collect();
  const bool rounds =
      std::any_of(all.begin(), all.end(),
                  [](const LocalTensor& t) {  // no buffer
                    return (t.dtype == DType::bf16 || size_of(t.dtype) == 1) && t.counts_not_finite;
                  }) ||
      std::ranges::any_of(runtime_of(root).plan().groups(),
                          [](const GroupPlan* g) { return g->grad_dtype != DType::f32; });
  if (!all.empty())
    all.front().before_save = [&root, optimizers, rounds](TrainingState& training) {
      runtime_of(root).require_whole_weights("CheckpointSaver");
      if (!optimizers.empty()) runtime_of(root).require_trained_weights("CheckpointSaver");
      if (optimizers.size() > 1) record_optimizer_steps(training, root, optimizers);
      if (rounds) training.info[kNoiseSeed] = std::to_string(runtime_of(root).noise_seed());
    };
  return all;
}

}  // namespace sherd
