#include <algorithm>
#include <set>

#include <fmt/format.h>

#include <sherd/checkpoint/detail/compare_copies.h>
#include <sherd/checkpoint/detail/comparison.h>
#include <sherd/checkpoint/detail/fill.h>
#include <sherd/checkpoint/detail/stored_form.h>
#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/safetensors/detail/weights_index.h>
#include <sherd/checkpoint/weights.h>

namespace sherd {
namespace {

constexpr size_t kNamedInMessage = 20;  // names that a list in a message has

// A stored copy that differs from its original means a model with other parameters. A few neighbouring values
// show it: a 256th of the tensor, at most 4096 values.
void check_copies(CheckpointReader& reader, const StoredForm& form) {
  for (auto& [name, of] : form.copies) {
    const CheckpointTensor* copy = reader.find(Section::model, name);
    const CheckpointTensor* source = reader.find(Section::model, of);
    if (copy == nullptr || source == nullptr) continue;
    const int64_t numel = numel_of(copy->shape), count = std::min<int64_t>(4096, numel / 256);
    const auto boxes = boxes_of(copy->shape, {ParamIndex(numel / 2), ParamIndex(numel / 2 + count)});
    if (copy->shape != source->shape || !equal_values(reader, *copy, *source, boxes))
      throw InvalidArgument(fmt::format(
          "'{}': '{}' is not the copy of '{}' that it should be: these weights are not tied; take a model "
          "that does not tie them (tie_word_embeddings), or leave the tensor out",
          reader.path().string(), name, of));
  }
}

}  // namespace

LoadReport import_weights(ModuleBase& root, const std::filesystem::path& path, LoadOptions options) {
  Agreement ranks(*runtime_of(root).mesh().world(), "import_weights");
  CheckpointReader reader =
      open_alike(ranks, options.compare_copies, [&] { return CheckpointReader::open(path); });
  options.optimizer = false;
  options.compare_copies = false;
  return load_checkpoint(reader, root, nullptr, options);
}

LoadReport import_weights(ModuleBase& root, const std::filesystem::path& path, const StoredForms& forms,
                          LoadOptions options, FileSystem& files) {
  options.model = true;
  options.optimizer = false;
  ShardRuntime& runtime = runtime_of(root);
  Agreement ranks(*runtime.mesh().world(), "import_weights");
  const std::vector<Wanted> all = held_by(forms, root);
  std::vector<FileParts> parts(all.size());
  std::vector<StoredForm> possible;
  LoadReport report;
  CheckpointReader reader = open_alike(ranks, options.compare_copies, [&] {
    possible = candidates(all, forms);
    return CheckpointReader::open(
        weights_path(path, files),
        [&](std::string_view name) {
          return options.allow_unexpected ? !is_part(name, possible) : is_ignored(name, forms, possible);
        },
        files);
  });
  ranks.run_collectively([&] {
    std::set<std::string> names;
    for (const CheckpointTensor& t : reader.manifest().tensors)
      if (t.section == Section::model) names.insert(t.name);
    const StoredForm form = choose(possible, names);
    std::vector<CheckpointTensor> offered;  // without their pieces
    for (const CheckpointTensor& t : reader.manifest().tensors) {
      if (t.section != Section::model) continue;
      if (form.copies.contains(t.name) || is_ignored(t.name, forms, possible))
        report.ignored.push_back(t.name);
      else
        offered.push_back({t.name, t.section, t.dtype, t.shape, {}});
    }
    require_fit(fmt::format("'{}'", path.string()), offered, as_wanted(form, all), options, report,
                kNamedInMessage);
    if (ranks.rank() == 0) check_copies(reader, form);
    for (auto& [name, tensor] : form.tensors)
      for (const StoredPart& part : tensor.parts)
        parts[part.wanted].push_back({reader.find(Section::model, name), part});
  });
  fill_from_files(runtime, ranks, all, reader, parts, report);
  return report;
}

}  // namespace sherd
