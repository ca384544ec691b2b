// Loading of a sharded model and its optimizer from a checkpoint.
#include <fmt/format.h>

#include <algorithm>

#include <sherd/checkpoint/detail/compare_copies.h>
#include <sherd/checkpoint/detail/comparison.h>
#include <sherd/checkpoint/detail/widen.h>
#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/optimizer_steps.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

constexpr size_t kNamedOfCheckpoint = 5;  // names that a list in a message has

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

const CheckpointTensor* find(const CheckpointReader& reader, const Wanted& w) {
  return find_by_names(w, [&](const std::string& name) { return reader.find(w.section, name); });
}

// Returns the bytes of a tensor that this rank holds.
std::vector<char> bytes_of(CheckpointReader& reader, const Wanted& w, const CheckpointTensor& t) {
  std::vector<char> bytes(static_cast<size_t>(w.local.numel() * size_of(t.dtype)));
  reader.read(t, w.boxes(), bytes.data());
  return bytes;
}

// Files of other programs, or of a model that was not tied, may hold other values under each name of a tied tensor.
void require_equal_copies(CheckpointReader& reader, const std::vector<Wanted>& all) {
  for (const Wanted& w : all) {
    const CheckpointTensor* first = find(reader, w);
    for (const std::string& name : w.tied) {
      const CheckpointTensor* other = reader.find(w.section, name);
      if (other == nullptr || other == first) continue;
      const auto was_tied_to = [](const CheckpointTensor& a, const CheckpointTensor& b) {
        return std::find(a.tied.begin(), a.tied.end(), b.name) != a.tied.end();
      };
      if (was_tied_to(*first, *other) || was_tied_to(*other, *first)) continue;
      if (first->dtype != other->dtype || bytes_of(reader, w, *first) != bytes_of(reader, w, *other))
        throw InvalidArgument(
            fmt::format("'{}': '{}' and '{}' are one tensor in this model, and hold different values there: "
                        "these weights are not "
                        "tied; load them into a model that does not tie the two",
                        reader.path().string(), first->name, other->name));
    }
  }
}

void read(CheckpointReader& reader, const Wanted& w, Stream& stream) {
  const CheckpointTensor* t = find(reader, w);
  if (t == nullptr) {  // allowed: state starts anew, values stay
    if (w.section == Section::optim) ops::fill(stream, w.local, 0);
    return;
  }
  if (w.local.dtype() != DType::f32) {
    return upload(stream, w.local, bytes_of(reader, w, *t).data());
  }
  std::vector<float> values(static_cast<size_t>(w.local.numel()));
  reader.read(*t, w.boxes(), values.data());
  widen_in_place(t->dtype, values);
  if (const std::string wrong = w.count ? check_count(values[0]) : ""; !wrong.empty())
    throw CorruptCheckpoint(fmt::format("'{}': '{}' {}", reader.path().string(), w.name, wrong));
  upload(stream, w.local, values.data());
}

}  // namespace

LoadReport load_checkpoint(CheckpointReader& reader, ModuleBase& root, Optimizer* optimizer,
                           const LoadOptions& options) {
  return load_checkpoint(reader, root,
                         optimizer == nullptr ? std::vector<Optimizer*>{} : std::vector{optimizer}, options);
}

LoadReport load_checkpoint(CheckpointReader& reader, ModuleBase& root,
                           const std::vector<Optimizer*>& optimizers, const LoadOptions& options) {
  ShardRuntime& runtime = runtime_of(root);
  Stream& stream = runtime.device().compute();
  Agreement ranks(*runtime.mesh().world(), "load_checkpoint");
  if (options.compare_copies) {
    std::vector<FileCopy> copies;
    ranks.run_collectively([&] { copies = weights_copies(reader.path(), reader.files()); });
    compare_copies(ranks, std::move(copies));
  }
  LoadReport report;
  std::vector<Wanted> all;
  ranks.run_collectively([&] {
    if (options.optimizer && optimizers.empty())
      throw InvalidArgument("load_checkpoint: an optimizer is needed to load optimizer state into");
    std::vector<const Optimizer*> loaded;
    if (options.optimizer) loaded.assign(optimizers.begin(), optimizers.end());
    all = wanted(root, options.model, loaded);
    const Comparison comparison(fmt::format("the checkpoint '{}'", reader.path().string()),
                                reader.manifest().tensors, all, options, kNamedOfCheckpoint);
    comparison.require_fit();
    require_equal_copies(reader, all);
    check_momentum(reader, all);
    comparison.report(report);
  });
  WeightsChange change(runtime);
  change.begin_update();
  ranks.run_collectively([&] {
    for (const Wanted& w : all) read(reader, w, stream);
  });
  stream.synchronize();
  change.end();
  if (options.model) runtime.weights_replaced();
  report.training = reader.manifest().training;
  report.counts = reader.counts();
  report.notes = reader.manifest().notes;
  for (Optimizer* optimizer : optimizers)
    if (options.optimizer) optimizer->set_steps(recorded_optimizer_steps(report.training, root, *optimizer));
  return report;
}

}  // namespace sherd
