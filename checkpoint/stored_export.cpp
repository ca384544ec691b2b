// Export of a model in the form of other programs' files.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/printable.h>
#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/detail/comparison.h>
#include <sherd/checkpoint/detail/gather_whole.h>
#include <sherd/checkpoint/detail/out_tensor.h>
#include <sherd/checkpoint/weights.h>

namespace sherd {
namespace {

constexpr size_t kNamedOfExport = 20;          // names that a list in a message has
constexpr int64_t kCopied = int64_t{1} << 20;  // bytes of another file at a time

// Tensors to write, in order; one without parts is an entry of options.like, unchanged.
using Steps = std::vector<OutTensor>;

// The first form, as save_pretrained() writes it, and copies that are to be written, too.
Steps plan_new(const StoredForm& form, const std::set<std::string>& copies, const std::vector<Wanted>& all,
               const ExportOptions& options, WeightsPlan& plan) {
  std::map<std::string, StoredTensor> written = form.tensors;
  for (const std::string& name : copies)
    if (const auto copy = form.copies.find(name); copy != form.copies.end())
      written[name] = form.tensors.at(copy->second);
  std::map<size_t, std::vector<OutTensor>> in_model_order;
  for (auto& [name, stored] : written) {
    if (stored.parts.empty()) continue;
    const size_t number = stored.parts.front().wanted;
    const Wanted& w = all[number];
    OutTensor t{name, w.local.dtype(), stored.shape, stored.parts};
    if (w.param.defined()) t.dtype = options.dtype;
    if (name == w.name) t.shape = w.param.defined() ? w.param.global_shape() : w.local.shape();
    in_model_order[number].push_back(std::move(t));
  }
  std::vector<SafetensorsSpec> specs;
  std::map<std::string, OutTensor> by_name;
  int64_t parameters = 0;
  for (auto& [number, tensors] : in_model_order) {
    for (const OutTensor& t : tensors) {
      specs.push_back({t.name, t.dtype, t.shape});
      by_name.emplace(t.name, t);
      if (all[number].param.defined()) parameters += numel_of(t.shape);
    }
  }
  auto metadata = options.metadata;
  metadata["format"] = "pt";
  plan = split_weights(specs, metadata,
                       options.file.empty() ? options.max_shard_bytes : std::numeric_limits<int64_t>::max());
  if (!options.file.empty()) plan.weights.front().name = options.file;
  add_index(plan, parameters);
  Steps steps;
  for (WeightsFile& file : plan.weights) {
    std::sort(
        file.tensors.begin(), file.tensors.end(), [](const SafetensorsSpec& a, const SafetensorsSpec& b) {
          return size_of(a.dtype) != size_of(b.dtype) ? size_of(a.dtype) > size_of(b.dtype) : a.name < b.name;
        });
    for (const SafetensorsSpec& t : file.tensors) steps.push_back(by_name.at(t.name));
  }
  return steps;
}

// Names of all tensors of a folder, in the order of the files and of the data in them.
std::vector<std::string> names_of(const StoredFolder& folder) {
  std::vector<std::string> names;
  for (const SafetensorsReader& file : folder.weights())
    for (const SafetensorsEntry& e : file.entries()) names.push_back(e.name);
  return names;
}

Steps plan_like(const StoredForm& form, const std::vector<std::string>& names) {
  Steps steps;
  for (const std::string& name : names) {
    const auto copy = form.copies.find(name);
    const auto found = form.tensors.find(copy == form.copies.end() ? name : copy->second);
    steps.push_back({.name = name, .followed = true});
    if (found != form.tensors.end()) steps.back().parts = found->second.parts;
  }
  return steps;
}

// On rank 0: all that the folder and the model disagree on, and what its headers say of each tensor.
void follow(const StoredFolder& folder, const StoredForm& form, const StoredForms& forms,
            const std::vector<StoredForm>& possible, const std::vector<Wanted>& all, bool allow_unexpected,
            Steps& steps) {
  std::vector<CheckpointTensor> offered;
  std::vector<std::string> unreadable;
  auto step = steps.begin();
  for (const SafetensorsReader& file : folder.weights()) {
    for (const SafetensorsEntry& e : file.entries()) {
      step->shape = e.shape;
      if (e.dtype) step->dtype = *e.dtype;
      const bool known = form.tensors.contains(e.name) || form.copies.contains(e.name);
      const bool other = is_ignored(e.name, forms, possible) || (allow_unexpected && !known);
      const bool copy = form.copies.contains(e.name);
      if (!other && !e.dtype)
        unreadable.push_back(fmt::format("'{}' is {}", printable(e.name), e.dtype_name));
      if (!other && !copy && e.dtype)
        offered.push_back({e.name, Section::model, *e.dtype, e.shape.empty() ? Shape{1} : e.shape, {}});
      if (copy && e.dtype) {
        require_weights_dtype(*e.dtype);
        const StoredTensor& repeated = form.tensors.at(form.copies.at(e.name));
        if (repeated.shape != e.shape)
          unreadable.push_back(fmt::format("'{}' repeats '{}' of shape {} with shape {}", e.name,
                                           form.copies.at(e.name), to_string(repeated.shape),
                                           to_string(e.shape)));
      }
      ++step;
    }
  }
  const std::string source = fmt::format("the folder '{}' to be followed", printable(folder.path().string()));
  if (!unreadable.empty())
    throw InvalidArgument(fmt::format("{} does not fit the run: {}", source, fmt::join(unreadable, "; ")));
  LoadReport unused;
  require_fit(source, offered, as_wanted(form, all), {}, unused, kNamedOfExport);
}

WeightsPlan plan_of(const StoredFolder& folder) {
  WeightsPlan plan;
  for (const SafetensorsReader& file : folder.weights()) {
    plan.weights.push_back({.name = file.path().lexically_relative(folder.path()).generic_string(),
                            .bytes = file.entries().empty() ? 0 : file.entries().back().end,
                            .header = file.header()});
  }
  plan.others = folder.others();
  return plan;
}

void copy_entry(const StoredFolder& folder, const std::string& name, WeightsWriter& writer) {
  for (const SafetensorsReader& file : folder.weights()) {
    const SafetensorsEntry* e = file.find(name);
    if (e == nullptr) continue;
    const int64_t size = e->end - e->begin;
    std::vector<char> bytes(static_cast<size_t>(std::min(kCopied, size)));
    for (int64_t at = 0; at < size; at += kCopied) {
      const int64_t some = std::min(kCopied, size - at);
      file.read_bytes(*e, at, some, bytes.data());
      writer.append(bytes.data(), some);
    }
  }
}

}  // namespace

bool export_weights(ModuleBase& root, const std::filesystem::path& path, const StoredForms& forms,
                    const ExportOptions& options, FileSystem& files) {
  ShardRuntime& runtime = runtime_of(root);
  require_same_ranks(runtime, "export_weights");
  Stream& stream = runtime.device().compute();
  Agreement ranks(*runtime.mesh().world(), "export_weights");
  const bool first = ranks.rank() == 0;
  const std::vector<Wanted> all = held_by(forms, root);
  const StoredFolder* like = first ? options.like.get() : nullptr;
  const bool follows = ranks.sum(like != nullptr ? 1 : 0) > 0;
  std::vector<std::string> names;
  std::vector<StoredForm> possible;
  ranks.run_collectively([&] {
    require_weights_dtype(options.dtype);
    possible = candidates(all, forms);
    if (like) names = names_of(*like);
  });
  names = ranks.broadcast(names);

  Steps steps;
  std::optional<WeightsWriter> writer;
  ranks.run_collectively([&] {
    WeightsPlan plan;
    if (follows) {
      const StoredForm form = choose(possible, {names.begin(), names.end()});
      steps = plan_like(form, names);
      if (like) {
        follow(*like, form, forms, possible, all, options.allow_unexpected, steps);
        plan = plan_of(*like);
      }
    } else {
      steps = plan_new(possible.front(), forms.written_copies, all, options, plan);
    }
    if (!first) return;
    for (auto& [name, contents] : options.files) plan.others[name] = contents;
    writer.emplace(path, std::move(plan), files, options.existing);
  });
  for (const OutTensor& step : steps) {
    if (!step.parts.empty())
      write_tensor(stream, all, step, first ? &*writer : nullptr);
    else if (first)
      copy_entry(*like, step.name, *writer);
  }
  stream.synchronize();
  bool written = true;
  ranks.run_collectively([&] {
    if (writer) written = writer->finish();
  });
  return written;
}

}  // namespace sherd
