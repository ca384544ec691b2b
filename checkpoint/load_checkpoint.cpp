// Fills a sharded model and its optimizer from a checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/detail/state_names.h>
#include <sherd/checkpoint/detail/widen.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/ops/ops.h>

namespace sherd {
namespace {

/// Elements copied to the device at a time.
constexpr int64_t kUpload = int64_t{4} << 20;

// What this model and optimizer hold, by name in the checkpoint.
struct Wanted {
  Section section;
  std::string name;
  Parameter param;  // whose state it is
  Shape shape;
  Tensor local;        // at the parameter's shard_range(), or
  bool count = false;  // one number
};

std::vector<Wanted> wanted(ModuleBase& root, const std::vector<Optimizer*>& optimizers, const LoadOptions& options) {
  std::vector<Wanted> all;
  const auto stored = [](const Shape& s) { return s.empty() ? Shape{1} : s; };
  if (options.model) {
    for (auto& [name, p] : root.named_parameters())
      all.push_back({Section::model, name, p, stored(p.global_shape()), p.shard()});
  }
  for (size_t i = 0; options.optimizer && i < optimizers.size(); ++i) {
    const Optimizer* optimizer = optimizers[i];
    for (StateTensor& s : optimizer->state())
      all.push_back({Section::optim, state_name(s.param.name(), s.key), s.param,
                     stored(s.param.global_shape()), s.local});
    for (StateCounter& c : optimizer->counters())
      all.push_back({Section::optim, state_name(c.param.name(), c.key), c.param, {1}, c.value, true});
  }
  return all;
}

// Whoever has to act on it knows from some names what the others are.
std::string a_few(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  const size_t shown = names.size() > kShown + 1 ? kShown : names.size();
  const std::string list =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "));
  return shown == names.size() ? list : fmt::format("{} and {} more", list, names.size() - shown);
}

// The lists of everything that does not fit.
class Comparison {
 public:
  Comparison(const CheckpointReader& reader, const std::vector<Wanted>& all, const LoadOptions& options)
      : reader_(reader), options_(options) {
    std::set<std::pair<Section, std::string>> known;
    for (const Wanted& w : all) {
      known.emplace(w.section, w.name);
      if (w.section == Section::optim) ++needed_;
      const CheckpointTensor* t = reader.find(w.section, w.name);
      if (t == nullptr) {
        missing(w);
      } else if (t->shape != w.shape) {
        other_.push_back(fmt::format("'{}' has shape {} where the run has {}", w.name, to_string(t->shape),
                                     to_string(w.shape)));
      } else if (!widens_to_f32(t->dtype)) {
        other_.push_back(
            fmt::format("'{}' is {}: only f32, bf16 and f16 are read", w.name, name_of(t->dtype)));
      }
    }
    for (const CheckpointTensor& t : reader.manifest().tensors) {
      const bool asked = t.section == Section::model ? options.model : options.optimizer;
      if (asked && !known.contains({t.section, t.name})) unexpected(t);
    }
  }

  /// @throws InvalidArgument with all of it.
  void require_fit() const {
    std::vector<std::string> problems;
    const auto say = [&](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) problems.push_back(fmt::format("{}: {}", what, a_few(names)));
    };
    say("missing in it", missing_);
    say("unknown to the run", unexpected_);
    say("different", other_);
    if (!options_.allow_new_state) {
      say("optimizer state missing in it", missing_state_);
      say("optimizer state unknown to the run", unexpected_state_);
    }
    if (problems.empty()) return;
    if (!options_.cause.empty()) problems.insert(problems.begin(), options_.cause);
    std::string text = fmt::format("the checkpoint '{}' does not fit the run: {}", reader_.path().string(),
                                   fmt::join(problems, "; "));
    if (!options_.allow_new_state && !(missing_state_.empty() && unexpected_state_.empty()))
      text += explain_state();
    throw InvalidArgument(text);
  }

  void report(LoadReport& report) const {
    report.started_anew = missing_state_;
    report.left_out = unexpected_state_;
  }

 private:
  void missing(const Wanted& w) {
    (w.section == Section::model ? missing_ : missing_state_).push_back(w.name);
    if (w.section == Section::optim) needs_.insert(w.param.name());
  }
  void unexpected(const CheckpointTensor& t) {
    (t.section == Section::model ? unexpected_ : unexpected_state_).push_back(t.name);
  }

  // Names the parameters that another optimizer updates now than when the checkpoint was written.
  std::string explain_state() const {
    std::set<std::string> moved;
    for (const std::string& name : unexpected_state_) {
      const std::string_view rest = std::string_view(name).substr(std::min(name.size(), kStatePrefix.size()));
      const std::string param(rest.substr(0, rest.rfind('.')));
      if (needs_.contains(param)) moved.insert(param);
    }
    std::string text;
    if (!moved.empty())
      text += fmt::format(
          "; routing has changed: AdamW keeps exp_avg, exp_avg_sq and step, Muon keeps momentum_buffer, and "
          "neither "
          "can use the other's; this concerns {}",
          a_few({moved.begin(), moved.end()}));
    if (missing_state_.size() == needed_)
      return text +
             "; it holds no state for this optimizer: load the model only (LoadOptions::optimizer = false)";
    return text +
           "; route parameters as the run that saved it did, or allow new state "
           "(LoadOptions::allow_new_state): "
           "what is missing starts from zero, the rest is left out";
  }

  const CheckpointReader& reader_;
  const LoadOptions& options_;
  std::vector<std::string> missing_, unexpected_, other_, missing_state_, unexpected_state_;
  std::set<std::string> needs_;  // parameters whose state is missing
  size_t needed_ = 0;            // state tensors of the run
};

void check_momentum(const CheckpointReader& reader, const std::vector<Wanted>& all) {
  const auto& info = reader.manifest().training.info;
  const auto form = info.find("muon.momentum");
  if (form == info.end() || form->second == "ema") return;
  for (const Wanted& w : all) {
    if (w.name.ends_with(".momentum_buffer"))
      throw InvalidArgument(fmt::format(
          "the checkpoint '{}' has momentum buffers of form '{}', this program keeps 'ema': they cannot be "
          "exchanged; load the model only",
          reader.path().string(), form->second));
  }
}

void read(CheckpointReader& reader, const Wanted& w, Stream& stream) {
  const CheckpointTensor* t = reader.find(w.section, w.name);
  if (t == nullptr) {  // allowed: starts anew
    ops::fill(stream, w.local, 0);
    return;
  }
  std::vector<float> values(static_cast<size_t>(w.local.numel()));
  const std::vector<Box> boxes =
      w.count ? std::vector<Box>{{{0}, {1}}} : w.param.global_boxes(w.param.shard_range());
  reader.read(*t, boxes, values.data());
  widen_in_place(t->dtype, values);
  if (w.count && !(values[0] >= 0 && values[0] < 0x1p62f && std::floor(values[0]) == values[0]))
    throw CorruptCheckpoint(
        fmt::format("'{}': '{}' is {}, no number of steps", reader.path().string(), w.name, values[0]));
  // In pieces, so that a GPU's pinned staging stays small.
  for (int64_t at = 0; at < w.local.numel(); at += kUpload) {
    const int64_t end = std::min(at + kUpload, w.local.numel());
    ops::copy_from_host(stream, w.local.flat(at, end), values.data() + at, (end - at) * 4);
    stream.synchronize();
  }
}

}  // namespace

LoadReport load_checkpoint(CheckpointReader& reader, ModuleBase& root, Optimizer* optimizer,
                           const LoadOptions& options) {
  return load_checkpoint(reader, root, optimizer == nullptr ? std::vector<Optimizer*>{} : std::vector{optimizer},
                         options);
}

LoadReport load_checkpoint(CheckpointReader& reader, ModuleBase& root, const std::vector<Optimizer*>& optimizers,
                           const LoadOptions& options) {
  ShardRuntime& runtime = runtime_of(root);
  Stream& stream = runtime.device().compute();
  Agreement ranks(*runtime.mesh().world());
  LoadReport report;
  std::vector<Wanted> all;
  ranks.run_collectively([&] {
    if (options.optimizer && optimizers.empty())
      throw InvalidArgument("load_checkpoint: an optimizer is needed to load optimizer state into");
    all = wanted(root, optimizers, options);
    const Comparison comparison(reader, all, options);
    comparison.require_fit();
    check_momentum(reader, all);
    comparison.report(report);
  });
  WeightsChange change(runtime);
  ranks.run_collectively([&] {
    for (const Wanted& w : all) read(reader, w, stream);
  });
  stream.synchronize();
  change.end();
  if (options.model) runtime.weights_replaced();
  report.training = reader.manifest().training;
  report.counts = reader.counts();
  for (Optimizer* optimizer : optimizers)
    if (options.optimizer) optimizer->set_steps(report.training.step);
  return report;
}

}  // namespace sherd
