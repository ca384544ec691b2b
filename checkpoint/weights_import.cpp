#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include <sherd/checkpoint/detail/box_runs.h>
#include <sherd/checkpoint/detail/compare_copies.h>
#include <sherd/checkpoint/detail/comparison.h>
#include <sherd/checkpoint/detail/stored_form.h>
#include <sherd/checkpoint/detail/widen.h>
#include <sherd/checkpoint/format/coverage.h>
#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/safetensors/detail/weights_index.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/fsdp/weights_change.h>

namespace sherd {
namespace {

constexpr size_t kNamedInMessage = 20;               // names that a list in a message has
constexpr int64_t kReadElements = int64_t{4} << 20;  // elements read at a time

// Sources of a parameter: boxes of it and of the tensors.
struct Source {
  const CheckpointTensor* tensor;
  const StoredPart* part;
};

// Calls take(box) for boxes of at most kReadElements elements, or one row of the first dimension, that `whole` consists of.
template <class Take>
void each_piece(const Box& whole, Take take) {
  const int64_t row = numel_of(whole.size) / whole.size[0];
  const int64_t rows = std::max<int64_t>(1, kReadElements / row);
  for (int64_t at = 0; at < whole.size[0]; at += rows) {
    Box piece = whole;
    piece.offset[0] += at;
    piece.size[0] = std::min(rows, whole.size[0] - at);
    take(piece);
  }
}

// The elements of a parameter's box. With a step the elements between them are read, too, and dropped.
void read_piece(CheckpointReader& reader, const Source& source, const Box& box, std::vector<float>& values) {
  const int64_t step = source.part->step;
  Box stored = in_tensor(*source.part, box);
  const int64_t first = stored.offset.back() % step;
  stored.offset.back() -= first;
  stored.size.back() *= step;
  values.resize(static_cast<size_t>(numel_of(stored.size)));
  reader.read(*source.tensor, {&stored, 1}, values.data());
  widen_in_place(source.tensor->dtype, values);
  if (step == 1) return;
  const size_t count = values.size() / static_cast<size_t>(step);
  for (size_t i = 0; i < count; ++i)
    values[i] = values[i * static_cast<size_t>(step) + static_cast<size_t>(first)];
  values.resize(count);
}

// Reads this rank's part of a parameter or an f32 buffer, from all tensors that hold it.
void read_values(CheckpointReader& reader, const Wanted& w, const std::vector<Source>& sources,
                 Stream& stream) {
  std::vector<float> values(static_cast<size_t>(w.local.numel())), piece;
  int64_t first = 0;
  for (const Box& own : w.boxes()) {
    for (const Source& source : sources) {
      const auto common = intersect(own, source.part->in_parameter);
      if (!common) continue;
      each_piece(*common, [&](const Box& box) {
        read_piece(reader, source, box, piece);
        each_run(box, box, own, [&](int64_t from, int64_t to, int64_t count) {
          std::copy_n(piece.begin() + from, count, values.begin() + first + to);
        });
      });
    }
    first += numel_of(own.size);
  }
  upload(stream, w.local, values.data());
}

// A stored copy that differs from its original means a model with other parameters. A few neighbouring values
// show it: a 256th of the tensor, at most 4096 values.
void check_copies(CheckpointReader& reader, const StoredForm& form) {
  for (auto& [name, of] : form.copies) {
    const CheckpointTensor* copy = reader.find(Section::model, name);
    const CheckpointTensor* source = reader.find(Section::model, of);
    if (copy == nullptr || source == nullptr) continue;
    bool equal = copy->shape == source->shape && widens_to_f32(copy->dtype) && widens_to_f32(source->dtype);
    if (equal) {
      const int64_t numel = numel_of(copy->shape), count = std::min<int64_t>(4096, numel / 256);
      const auto boxes = boxes_of(copy->shape, {ParamIndex(numel / 2), ParamIndex(numel / 2 + count)});
      const auto values = [&](const CheckpointTensor& tensor) {
        std::vector<float> read(static_cast<size_t>(count));
        reader.read(tensor, boxes, read.data());
        widen_in_place(tensor.dtype, read);
        return read;
      };
      const std::vector<float> a = values(*copy), b = values(*source);
      equal = std::equal(a.begin(), a.end(), b.begin(),
                         [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); });
    }
    if (!equal)
      throw InvalidArgument(fmt::format(
          "'{}': '{}' is not the copy of '{}' that it should be: these weights are not tied; take a model "
          "that does not tie them (tie_word_embeddings), or leave the tensor out",
          reader.path().string(), name, of));
  }
}

// A buffer of another dtype.
void read_bytes(CheckpointReader& reader, const Wanted& w, const CheckpointTensor& tensor, Stream& stream) {
  std::vector<char> bytes(static_cast<size_t>(w.local.nbytes()));
  reader.read(tensor, w.boxes(), bytes.data());
  upload(stream, w.local, bytes.data());
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
  Stream& stream = runtime.device().compute();
  Agreement ranks(*runtime.mesh().world(), "import_weights");
  const std::vector<Wanted> all = held_by(forms, root);
  std::vector<std::vector<Source>> sources(all.size());
  std::vector<StoredForm> possible;
  StoredForm form;
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
    form = choose(possible, names);
    std::vector<CheckpointTensor> offered;  // without their pieces
    for (const CheckpointTensor& t : reader.manifest().tensors) {
      if (t.section != Section::model) continue;
      if (form.copies.contains(t.name) || is_ignored(t.name, forms, possible))
        report.ignored.push_back(t.name);
      else
        offered.push_back({t.name, t.section, t.dtype, t.shape, {}});
    }
    const std::vector<Wanted> stored = as_wanted(form, all);
    const Comparison comparison(fmt::format("'{}'", path.string()), offered, stored, options,
                                kNamedInMessage);
    comparison.require_fit();
    comparison.report(report);
    if (ranks.rank() == 0) check_copies(reader, form);

    std::vector<bool> absent(all.size());
    for (auto& [name, tensor] : form.tensors) {
      const CheckpointTensor* found = reader.find(Section::model, name);
      for (const StoredPart& part : tensor.parts) {
        if (found == nullptr)
          absent[part.wanted] = true;
        else
          sources[part.wanted].push_back({found, &part});
      }
    }
    for (size_t i = 0; i < all.size(); ++i)
      if (absent[i]) sources[i].clear();
  });
  WeightsChange change(runtime);
  change.begin_update();
  ranks.run_collectively([&] {
    for (size_t i = 0; i < all.size(); ++i) {
      if (sources[i].empty()) continue;
      if (all[i].local.dtype() == DType::f32)
        read_values(reader, all[i], sources[i], stream);
      else
        read_bytes(reader, all[i], *sources[i].front().tensor, stream);
    }
  });
  stream.synchronize();
  change.end();
  runtime.weights_replaced();
  report.training = reader.manifest().training;
  report.counts = reader.counts();
  report.notes = reader.manifest().notes;
  return report;
}

}  // namespace sherd
