// Loading of a sharded model and its optimizer from a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include <sherd/base/printable.h>
#include <sherd/checkpoint/detail/compare_copies.h>
#include <sherd/checkpoint/detail/comparison.h>
#include <sherd/checkpoint/detail/fill.h>
#include <sherd/checkpoint/detail/state_names.h>
#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/optimizer_steps.h>

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

// Returns the scales of state in 8 bits.
StoredScales find_scales(const CheckpointReader& reader, const Wanted& w, const CheckpointTensor& t) {
  if (w.section != Section::optim || !w.rests()) return {};
  return scales_of(t, [&](const std::string& name) { return reader.find(w.section, name); });
}

bool equal_copies(CheckpointReader& reader, const Wanted& w, const CheckpointTensor& a,
                  const CheckpointTensor& b) {
  const StoredScales of_a = find_scales(reader, w, a), of_b = find_scales(reader, w, b);
  if (of_a.tensor == nullptr || of_b.tensor == nullptr) return equal_values(reader, a, b, w.boxes());
  std::vector<float> values[2];
  read_codes(reader, a, of_a, w.boxes(), values[0]);
  read_codes(reader, b, of_b, w.boxes(), values[1]);
  return values[0] == values[1];
}

// Reads averages in the place of the weights that have one.
void take_averages(const CheckpointReader& reader, const std::vector<Wanted>& all,
                   std::vector<FileParts>& parts) {
  bool found = false;
  for (size_t i = 0; i < all.size(); ++i) {
    const CheckpointTensor* average = find_by_names(all[i], [&](const std::string& name) {
      return reader.find(Section::optim, state_name(name, "ema"));
    });
    if (average == nullptr) continue;
    parts[i].front().tensor = average;
    found = true;
  }
  if (!found)
    throw InvalidArgument(fmt::format(
        "the checkpoint '{}' has no averages of weights (OptimizerOptions::ema_decay); load its weights",
        reader.path().string()));
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
      if (!equal_copies(reader, w, *first, *other))
        throw InvalidArgument(
            fmt::format("'{}': '{}' and '{}' are one tensor in this model, and hold different values there: "
                        "these weights are not "
                        "tied; load them into a model that does not tie the two",
                        reader.path().string(), first->name, other->name));
    }
  }
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
  if (options.averages && options.optimizer)
    throw InvalidArgument(
        "load_checkpoint: averages in the place of the weights (LoadOptions::averages) are for loads of the "
        "model alone; set LoadOptions::optimizer = false");
  Agreement ranks(*runtime.mesh().world(), "load_checkpoint");
  if (options.compare_copies) {
    std::vector<FileCopy> copies;
    ranks.run_collectively([&] { copies = weights_copies(reader.path(), reader.files()); });
    compare_copies(ranks, std::move(copies));
  }
  LoadReport report;
  std::vector<Wanted> all;
  std::vector<FileParts> parts;
  ranks.run_collectively([&] {
    all = wanted(root, optimizers, options, "load_checkpoint");
    require_fit(fmt::format("the checkpoint '{}'", reader.path().string()), reader.manifest().tensors, all,
                options, report, kNamedOfCheckpoint, /*reads_codes=*/true);
    require_equal_copies(reader, all);
    check_momentum(reader, all);
    for (const Wanted& w : all) {
      const CheckpointTensor* const t = find(reader, w);
      parts.push_back({{t, whole_part(0, w.shape), {}}});
      if (t != nullptr) parts.back().front().scales = find_scales(reader, w, *t);
    }
    if (options.averages) take_averages(reader, all, parts);
  });
  fill_from_files(runtime, ranks, all, reader, parts, report);
  const auto& info = report.training.info;
  if (const auto found = info.find(kNoiseSeed); options.optimizer && found != info.end()) {
    uint64_t seed = 0;
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (error != std::errc() || end != text.data() + text.size())
      throw CorruptCheckpoint(fmt::format("'{}': {} '{}' is not a whole number", reader.path().string(),
                                          kNoiseSeed, printable(text)));
    runtime.set_noise_seed(seed);
  }
  for (Optimizer* optimizer : optimizers)
    if (options.optimizer) optimizer->set_steps(recorded_optimizer_steps(report.training, root, *optimizer));
  return report;
}

}  // namespace sherd
